"""svd_lowrank held against NumPy and torch."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import mpslinalg as LA
from mpslinalg import testing
from tests.inputs import DOUBLES, SINGLES, all_on, name, on

pytestmark = pytest.mark.usefixtures("kernels")

each_single = pytest.mark.parametrize("dtype", SINGLES, ids=name)


def of_values(m: int, n: int, values: Tensor, dtype: torch.dtype, *batch: int) -> Tensor:
    k = len(values)
    U, V = (np.linalg.qr(testing.random((*batch, s, k), dtype, s).numpy())[0] for s in (m, n))
    return torch.from_numpy(U * values.numpy() @ V.conj().swapaxes(-2, -1)).to(dtype)


def double(A: Tensor) -> NDArray[Any]:
    a = A.numpy(force=True)
    return np.asarray(a.astype(np.complex128 if np.iscomplexobj(a) else np.float64))


def check(A: Tensor, U: Tensor, S: Tensor, V: Tensor, q: int) -> None:
    """Orthonormal factors, and the best approximation of rank q."""
    a, u, s, v = map(double, (A, U, S, V))
    eps = torch.finfo(A.dtype).eps
    for columns in (u, v):
        product = columns.conj().swapaxes(-2, -1) @ columns
        assert np.abs(product - np.eye(q)).max() < 50 * eps
    exact = np.linalg.svd(a, compute_uv=False)
    np.testing.assert_allclose(s, exact[..., :q], rtol=0, atol=50 * eps * exact.max())
    rest = exact[..., q].max() if q < exact.shape[-1] else 0.0
    error = a - u * s[..., None, :] @ v.conj().swapaxes(-2, -1)
    assert np.linalg.norm(error, 2, axis=(-2, -1)).max() < rest + 100 * eps * exact.max()


@pytest.mark.parametrize(
    ("shape", "batch"), [((60, 20), ()), ((20, 60), (2,)), ((8, 8), (2, 2))], ids=name
)
@each_single
def test_low_rank(
    dtype: torch.dtype, shape: tuple[int, int], batch: tuple[int, ...], device: str
) -> None:
    values = torch.tensor([3.0, 2.0, 2.0, 0.5])
    A = of_values(*shape, values, dtype, *batch)
    result = LA.svd_lowrank(on(device, A), 4)
    assert type(result) is tuple
    check(A, *result, 4)


def test_the_largest_of_many_values(device: str) -> None:
    A = of_values(50, 30, 0.3 ** torch.arange(12.0), torch.float32)
    check(A, *LA.svd_lowrank(on(device, A), 6, niter=4), 6)
    check(A, *LA.svd_lowrank(on(device, A), niter=None), 6)


@each_single
def test_the_seed_decides_and_columns_are_torchs(dtype: torch.dtype, device: str) -> None:
    A = on(device, testing.random((20, 12), dtype))

    def seeded(function: Any, *args: Any) -> tuple[Tensor, ...]:
        torch.manual_seed(5)
        result: tuple[Tensor, ...] = function(*args)
        return result

    once, again = (seeded(LA.svd_lowrank, A, 3, 1) for _ in range(2))
    for ours, same in zip(once, again, strict=True):
        assert torch.equal(ours, same)
    U, S, V = seeded(torch.svd_lowrank, A, 3, 1)
    # No rounding decides here what is in the span of 3 random columns.
    ours, theirs = ((X * s) @ Y.mH for X, s, Y in (once, (U, S, V)))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert [(x.shape, x.dtype) for x in once] == [(x.shape, x.dtype) for x in (U, S, V)]


def test_less_a_mean(device: str) -> None:
    A = of_values(30, 10, torch.tensor([3.0, 2.0, 1.0]), torch.float32)
    mean = testing.random((1, 10), torch.float32)
    for shifted in (A + mean, (A + mean).mT):
        M = on(device, mean if shifted.shape[0] == 30 else mean.mT)
        check(shifted - M.cpu(), *LA.svd_lowrank(on(device, shifted), 3, M=M), 3)


@pytest.mark.parametrize("shape", [(40, 15), (15, 40)], ids=name)
def test_sparse(shape: tuple[int, int], device: str) -> None:
    A = torch.zeros(shape)
    A[[1, 5, 14], [2, 9, 11]] = torch.tensor([3.0, 2.0, 1.0])
    check(A, *LA.svd_lowrank(on(device, A).to_sparse(), 3), 3)


@pytest.mark.parametrize(
    ("A", "options"),
    [
        (torch.ones(3), {}),
        (torch.ones(3, 3).int(), {}),
        (torch.ones(3, 3).half(), {}),
        (torch.ones(3, 3), {"M": torch.ones(4, 3)}),
        (torch.ones(3, 3), {"q": -1}),
        (torch.ones(3, 3), {"niter": "2"}),
    ],
)
def test_bad_input(A: Tensor, options: dict[str, Any], device: str) -> None:
    def error(function: Any, A: Tensor, options: dict[str, Any]) -> tuple[type, str]:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            function(A, **options)
        return caught.type, str(caught.value)

    given = all_on(device, (A, options))
    ours = error(LA.svd_lowrank, *given)
    # Of its products torch says other things on a GPU.
    if ours != error(torch.svd_lowrank, A, options):
        assert ours == error(torch.svd_lowrank, *given)


@pytest.mark.parametrize("dtype", DOUBLES, ids=name)
def test_gradients_are_torchs(dtype: torch.dtype, device: str) -> None:
    A = on(device, of_values(6, 5, torch.tensor([3.0, 2.0]), dtype)).requires_grad_()

    def gradient(function: Any) -> Tensor:
        torch.manual_seed(0)
        U, S, V = function(A, 2)
        loss = (U @ V.mH).abs().square().sum() + S.sin().sum()
        (found,) = torch.autograd.grad(loss, A)
        return found

    torch.testing.assert_close(gradient(LA.svd_lowrank), gradient(torch.svd_lowrank))


def test_which(device: str) -> None:
    for n in (9, 2000):
        A = torch.ones(n, n, device=device)
        assert LA.which("svd_lowrank", A).endswith("svd of q columns")
    with LA.use("auto"):
        if device == "cpu":
            assert LA.which("svd_lowrank", A).startswith("svd_lowrank: torch.linalg on cpu")
