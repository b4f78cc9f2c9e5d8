"""Products and equations of tensors: what torch's own samples leave open."""

from typing import Any

import numpy as np
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


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_vander_of_unsigned(dtype: torch.dtype, device: str) -> None:
    x = torch.tensor([1, 2, 60]).to(dtype)
    assert torch.equal(LA.vander(on(device, x)).cpu(), torch.linalg.vander(x))


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


NUMBERS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("matrix_power", (np.int64(2),), {}),
    ("matrix_power", (torch.tensor(2),), {}),
    ("vander", (), {"N": np.int32(4)}),
    ("vector_norm", (np.float32(3),), {"dim": (np.int64(0), np.int64(1))}),
    ("norm", (np.int64(1),), {"out": torch.empty(())}),
    ("norm", (), {"dim": np.int64(1)}),
    ("matrix_norm", (np.int64(2),), {}),
    ("cond", (np.float64(2),), {}),
    ("tensorinv", (np.int64(1),), {}),
]


@pytest.mark.parametrize(("name", "args", "options"), NUMBERS)
def test_scalars_of_numpy_and_tensors_are_numbers(
    name: str, args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    A = torch.tensor([[3.0, 1.0], [1.0, 2.0]])
    with LA.use("kernels"):
        result = getattr(LA, name)(A, *args, **options)
        assert options.get("out") is None or result is options["out"]
    torch.testing.assert_close(result, getattr(torch.linalg, name)(A, *args, **options))


@pytest.mark.parametrize("N", [2**45, 2**70])
def test_vander_of_more_than_memory_holds(N: int) -> None:
    with LA.use("kernels"), pytest.raises((RuntimeError, ValueError), match=r"memory|Overflow"):
        LA.vander(torch.ones(3), N=N)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 3), (0, 2, 5)])
def test_vander_of_no_vectors_has_torchs_strides(shape: tuple[int, ...]) -> None:
    with LA.use("kernels"):
        result = LA.vander(torch.ones(shape))
    assert result.stride() == torch.linalg.vander(torch.ones(shape)).stride()


def test_first_power_is_contiguous() -> None:
    A = torch.ones(2, 3, 3).mT
    with LA.use("kernels"):
        assert LA.matrix_power(A, 1).stride() == torch.linalg.matrix_power(A, 1).stride()
