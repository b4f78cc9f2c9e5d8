"""The launch plan of the inverse on the checked engine, at every boundary of its regimes."""

import numpy as np
import pytest
import torch
from torch import Tensor

from mpslinalg import _inverse_plan, _lu_plan, testing
from mpslinalg._engines import cpu
from mpslinalg.testing import compare
from tests import lapack
from tests.inputs import DOUBLES, SINGLES, VIEWS, gallery, name, on

pytestmark = pytest.mark.usefixtures("checked")


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices without a gap take the kernels of GPUs; the others are held against them."""
    monkeypatch.setattr(cpu.ENGINE, "side_by_side", True)


SIZES = (1, 2, 3, 4, 5, 8, 9, 10, 16, 17, 31, 32, 33, 50, 64, 65)
ORDERS = [
    *((dtype, n) for dtype in SINGLES for n in SIZES),
    *((dtype, n) for dtype in DOUBLES for n in (2, 3, 8, 32, 33)),
]
# Each kernel, with a whole and a part of its lanes.
each_regime = pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 16, 27, 40])
each_dtype = pytest.mark.parametrize("dtype", SINGLES, ids=name)


def inverse(A: Tensor, device: str) -> tuple[Tensor, Tensor]:
    X, info = _inverse_plan.inv(on(device, A))
    return X.cpu(), info.cpu()


@pytest.mark.parametrize(("dtype", "n"), ORDERS, ids=name)
def test_inverse(dtype: torch.dtype, n: int, device: str) -> None:
    # All families in one launch: the singular ones must not touch the others.
    # Beyond a simdgroup the checked engine takes its time: every other family.
    step = 1 if n <= _lu_plan.SIMD else 2
    every = gallery(n, n, dtype)
    A = every.A[::step]
    X, info = inverse(A, device)
    assert info.tolist() == every.info[::step].tolist()
    good = info == 0
    A, X = A[good], X[good]
    X_lapack = lapack.getri(*lapack.getrf(A)[:2])
    compare(testing.inverse_ratio(A, X), testing.inverse_ratio(A, X_lapack))
    # As the solution of A X = I: a wrong column must not hide behind the norm of X.
    identity = torch.eye(n, dtype=dtype).expand_as(A)
    exact = np.linalg.inv(A.to(torch.complex128 if dtype.is_complex else torch.float64).numpy())
    compare(testing.forward_ratio(A, X, exact), testing.forward_ratio(A, X_lapack, exact))
    assert testing.solve_ratio(A[:1], X[:1], identity[:1]) < testing.LU_THRESHOLD


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 9, 16, 17, 32])
@pytest.mark.parametrize("batch", [1, 2, 3, 5, 33])
@each_dtype
def test_batches_are_their_matrices(dtype: torch.dtype, batch: int, n: int, device: str) -> None:
    A = testing.random((batch, n, n), dtype)
    X, info = inverse(A, device)
    assert not info.any()
    for i in {0, batch // 2, batch - 1}:
        assert torch.equal(X[i], inverse(A[i], device)[0])


@each_regime
@each_dtype
def test_a_bad_matrix_spoils_itself_only(dtype: torch.dtype, n: int, device: str) -> None:
    A = testing.random((5, n, n), dtype)
    good, bad = [0, 4], [1, 2, 3]
    expected = inverse(A, device)[0][good]
    for value in (torch.nan, torch.inf, -torch.inf, 0.0):
        A[1, :, n // 2] = value
        A[2, n - 1] = value
        A[3] = value
        X, info = inverse(A, device)
        assert torch.equal(X[good], expected)
        assert info[good].tolist() == [0, 0]
        if value == 0.0:
            assert info[bad].tolist() == lapack.getrf(A[bad])[2].tolist()
        elif value != value:
            assert X[bad].isnan().flatten(1).any(1).all()


@each_regime
@each_dtype
def test_powers_of_two_are_exact(dtype: torch.dtype, n: int, device: str) -> None:
    exponents = torch.arange(-80, 81, 1 if n <= 16 else 20)
    scale = torch.exp2(exponents.float())[:, None, None]
    X, info = inverse(testing.random((n, n), dtype) * scale, device)
    assert not info.any()
    assert torch.equal(X, X[exponents == 0] / scale)


@each_regime
def test_pivots_without_a_real_part(n: int, device: str) -> None:
    A = testing.random((3, n, n), torch.float32) * 1j
    X, info = inverse(A, device)
    X_lapack = lapack.getri(*lapack.getrf(A)[:2])
    assert not info.any()
    compare(testing.inverse_ratio(A, X), testing.inverse_ratio(A, X_lapack))


@each_regime
@pytest.mark.parametrize("exponent", [-126, -101, -100, 100, 101, 126])
@each_dtype
def test_pivots_at_the_ends_of_the_range(
    dtype: torch.dtype, exponent: int, n: int, device: str
) -> None:
    # A scale of the first column of A is one of the first row of A^-1 and touches no other. The
    # entries of that column have one size, so that none is a denormal.
    A = testing.random((n, n), dtype).expand(2, n, n).clone()
    A[..., 0] = A[..., 0].real.sgn()
    A[1, :, 0] *= 2.0**exponent
    X, info = inverse(A, device)
    assert not info.any()
    assert torch.equal(X[1, 1:], X[0, 1:])
    if abs(exponent) < 126:
        assert torch.equal(X[1, 0], X[0, 0] * 2.0**-exponent)


@each_regime
@pytest.mark.parametrize("scale", [1e-30, 1e30])
@each_dtype
def test_no_scale_costs_accuracy(dtype: torch.dtype, scale: float, n: int, device: str) -> None:
    A = testing.random((5, n, n), dtype) * scale
    X, info = inverse(A, device)
    assert not info.any()
    X_lapack = lapack.getri(*lapack.getrf(A)[:2])
    compare(testing.inverse_ratio(A, X), testing.inverse_ratio(A, X_lapack))


@each_regime
@each_dtype
def test_permutations_are_exact(dtype: torch.dtype, n: int, device: str) -> None:
    generator = torch.Generator().manual_seed(n)
    P = torch.stack(
        [torch.eye(n, dtype=dtype)[torch.randperm(n, generator=generator)] for _ in "abc"]
    )
    X, info = inverse(P, device)
    assert torch.equal(X, P.mT)
    assert not info.any()


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 16, 27])
@each_dtype
def test_strides(dtype: torch.dtype, n: int, view: str, device: str) -> None:
    A = testing.random((3, n, n), dtype)
    X, info = _inverse_plan.inv(VIEWS[view](on(device, A)))
    assert torch.equal(X.cpu(), inverse(A, device)[0])
    assert not info.any()


@each_regime
@each_dtype
def test_one_matrix_as_a_batch(dtype: torch.dtype, n: int, device: str) -> None:
    A = testing.random((1, n, n), dtype)
    X, _ = _inverse_plan.inv(on(device, A).expand(4, n, n))
    assert torch.equal(X.cpu(), inverse(A[[0] * 4], device)[0])


@pytest.mark.parametrize("shape", [(0, 0), (3, 0, 0), (0, 3, 3), (0, 40, 40), (2, 0, 8, 8)])
@each_dtype
def test_empty(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    X, info = inverse(torch.empty(shape, dtype=dtype), device)
    assert X.shape == shape
    assert info.shape == shape[:-2]
    assert not info.any()
