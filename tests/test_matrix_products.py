"""Products and equations of tensors: what torch's own samples leave open."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg import _matrix_products, testing
from tests.inputs import on

pytestmark = [
    pytest.mark.usefixtures("kernels"),
    # torch's own forward mode does what they warn of.
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]


def matrices(*shape: int) -> Tensor:
    return testing.random(shape, torch.float64)


CALLS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "cross": (lambda x, y: LA.cross(x, y, dim=0), (matrices(3, 2), matrices(3, 2))),
    "diagonal": (lambda A: LA.diagonal(A, offset=1), (matrices(3, 4),)),
    "matmul": (LA.matmul, (matrices(2, 3), matrices(3))),
    "vecdot": (LA.vecdot, (matrices(2, 3), matrices(2, 3))),
    "multi_dot": (lambda *x: LA.multi_dot(x), (matrices(3), matrices(3, 2), matrices(2, 4))),
    "matrix_power": (lambda A: LA.matrix_power(A, -3), (matrices(3, 3),)),
    "matrix_exp": (LA.matrix_exp, (matrices(3, 3),)),
    "vander": (lambda x: LA.vander(x, 5), (matrices(3),)),
    "tensorinv": (lambda A: LA.tensorinv(A, 1), (matrices(4, 2, 2),)),
    "tensorsolve": (LA.tensorsolve, (matrices(2, 2, 4), matrices(2, 2))),
}
each_call = pytest.mark.parametrize("call", CALLS)


@each_call
def test_derivatives_vmap_and_compile(call: str, device: str) -> None:
    function, given = CALLS[call]
    args = tuple(on(device, x).requires_grad_() for x in given)
    assert torch.autograd.gradcheck(function, args, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, args, fast_mode=True)
    args = tuple(x.detach() for x in args)
    expected = function(*args)
    batches = tuple(torch.stack((x, 2 * x, x)) for x in args)
    torch.testing.assert_close(torch.func.vmap(function)(*batches)[2], expected)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*args), expected)


def test_large_inner_sizes_are_multiplied_in_parts(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(_matrix_products, "INNER", 4)
    largest: list[int] = []
    product = torch.matmul

    def matmul(A: Tensor, B: Tensor) -> Tensor:
        largest.append(A.shape[-1])
        return product(A, B)

    monkeypatch.setattr(torch, "matmul", matmul)
    for a, b in (((2, 3, 9), (2, 9, 4)), ((9,), (9,)), ((3, 9), (9,)), ((9,), (2, 9, 3))):
        A, B = on(device, matrices(*a)), on(device, matrices(*b))
        torch.testing.assert_close(LA.matmul(A, B), product(A, B))
        out = torch.empty(0, dtype=A.dtype, device=device)
        assert LA.matmul(A, B, out=out) is out
        torch.testing.assert_close(out, product(A, B))
    assert max(largest) == 4


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([10, 100, 5, 50], [[0, 1], 2]), ([30, 35, 15, 5, 10, 20, 25], [[0, [1, 2]], [[3, 4], 5]])],
)
def test_the_order_of_fewest_multiplications(sizes: list[int], expected: Any) -> None:
    split = _matrix_products._order(sizes)

    def tree(i: int, j: int) -> Any:
        return i if i == j else [tree(i, split[i][j]), tree(split[i][j] + 1, j)]

    # The second is the example of Cormen et al.
    assert tree(0, len(sizes) - 2) == expected


def test_vander_has_exact_powers(device: str) -> None:
    x = on(device, torch.tensor([[-3, 2, 1, 0]], dtype=torch.int16))
    V = LA.vander(x, 20)
    assert V.dtype == torch.int64
    assert V[0, :, 19].tolist() == [-(3**19), 2**19, 1, 0]


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 12, -1, -6])
def test_matrix_power(n: int, device: str) -> None:
    A = on(device, matrices(2, 4, 4))
    torch.testing.assert_close(LA.matrix_power(A, n).cpu(), torch.linalg.matrix_power(A.cpu(), n))


def test_which(device: str) -> None:
    A = torch.ones(3, 3, device=device)
    assert LA.which("matrix_power", A, -2).endswith("engine): inv, torch's matmul")
    assert LA.which("matmul", A, A).endswith("engine): torch's matmul")
    assert LA.which("diagonal", A).endswith("engine): a view")
    assert LA.which("vecdot", A, A).endswith("engine): torch's elementwise products")
    assert LA.which("tensorinv", A, 1).endswith("engine): inv")
    assert LA.which("tensorsolve", A, A[0]).endswith("engine): solve")
    with LA.use("auto"):
        assert LA.which("cross", A.cpu(), A.cpu()) == "cross: torch on cpu: its own kernels do"
