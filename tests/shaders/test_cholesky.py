"""The launch plans of the Cholesky family on the checked engine, at every boundary."""

import numpy as np
import pytest
import torch
from torch import Tensor

from mpslinalg import _cholesky_plan, testing
from mpslinalg._engines import cpu
from mpslinalg._lu_plan import SIMD
from mpslinalg.testing import compare
from tests import lapack
from tests.inputs import DOUBLES, SINGLES, VIEWS, definite, name, on, random_definite

pytestmark = pytest.mark.usefixtures("checked")


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices without a gap take the kernels of GPUs; the others are held against them."""
    monkeypatch.setattr(cpu.ENGINE, "side_by_side", True)


# The largest matrix of one threadgroup.
GROUP = 256
SMALL = (1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65)
LARGE = (127, 128, 129, GROUP, GROUP + 1)
# The checked engine takes its time: each large size with each triangle once.
CASES = [
    *((dtype, n, upper) for dtype in SINGLES for n in SMALL for upper in (False, True)),
    *((dtype, n, (n + i) % 2 == 0) for i, dtype in enumerate(SINGLES) for n in LARGE),
    *((dtype, 40, dtype.is_complex) for dtype in DOUBLES),
]
# Each kernel, with a whole and a part of its lanes.
REGIMES = (1, 3, 4, 7, 16, 27, 40)
each_regime = pytest.mark.parametrize("n", REGIMES)
each_dtype = pytest.mark.parametrize("dtype", SINGLES, ids=name)
each_upper = pytest.mark.parametrize("upper", [False, True], ids=["lower", "upper"])


def with_other_triangle(A: Tensor, upper: bool, value: float) -> Tensor:
    """The triangle that is not asked for holds what must not be read."""
    return torch.where(other_triangle(A.shape[-1], upper), value, A)


def other_triangle(n: int, upper: bool) -> Tensor:
    other = torch.ones(n, n).tril(-1).bool()
    return other if upper else other.mT


def factor(A: Tensor, upper: bool, device: str) -> tuple[Tensor, Tensor]:
    L, info = _cholesky_plan.cholesky(on(device, with_other_triangle(A, upper, torch.nan)), upper)
    L, info = L.cpu(), info.cpu()
    assert not L[..., other_triangle(L.shape[-1], upper)].any()
    return L, info


@pytest.mark.parametrize(("dtype", "n", "upper"), CASES, ids=name)
def test_factor(dtype: torch.dtype, n: int, upper: bool, device: str) -> None:
    # All families in one launch: those that are not definite must not touch the others.
    every = definite(n, dtype)
    # Of the large ones those that are dense, and one that fails.
    chosen = slice(None) if n <= 65 else slice(4, None)
    A, expected = every.A[chosen], every.info[chosen]
    L, info = factor(A, upper, device)
    assert info.tolist() == expected.tolist()
    L_lapack, info_lapack = lapack.potrf(A, upper)
    assert info.tolist() == info_lapack.tolist()
    good = (info == 0).numpy()
    compare(
        testing.cholesky_ratio(A[good], L[good], upper),
        testing.cholesky_ratio(A[good], L_lapack[good], upper),
    )
    # What stands before the row that failed is the factor of the leading minor.
    for M, F, i in zip(A[~good], L[~good], info[~good].tolist(), strict=True):
        F = (F.mH if upper else F)[: i - 1, : i - 1]
        leading, _ = lapack.potrf(M[None, : i - 1, : i - 1], False)
        minor = M[None, : i - 1, : i - 1]
        compare(testing.cholesky_ratio(minor, F[None]), testing.cholesky_ratio(minor, leading))


@each_upper
@pytest.mark.parametrize("n", [1, 3, 4, 5, 9, 17, 33])
@each_dtype
def test_batches_are_their_matrices(dtype: torch.dtype, n: int, upper: bool, device: str) -> None:
    for batch in (1, 2, 5, 33)[: 4 if n <= 4 else 3]:
        A = random_definite((batch, n, n), dtype)
        L, info = factor(A, upper, device)
        assert not info.any()
        for i in {0, batch // 2, batch - 1}:
            assert torch.equal(L[i], factor(A[i], upper, device)[0])


@each_upper
@each_regime
@each_dtype
def test_a_bad_matrix_spoils_itself_only(
    dtype: torch.dtype, n: int, upper: bool, device: str
) -> None:
    A = random_definite((7, n, n), dtype)
    good, bad = [0, 6], [1, 2, 3, 4]
    expected = factor(A, upper, device)[0][good]
    for value in (torch.nan, torch.inf, -torch.inf, 0.0, -1.0):
        A[1, n // 2, n // 2] = value
        A[2, n - 1] = A[2, :, n - 1] = value
        A[3] = value
        A[4, 0, 0] = value
        # What is definite but for an entry off the diagonal.
        if n > 1:
            A[5, -1, 0] = A[5, 0, -1] = 1000 if value in (0.0, -1.0) else value
        L, info = factor(A, upper, device)
        assert torch.equal(L[good], expected)
        of_bad = [n // 2 + 1, n, 1, 1]
        if value == torch.inf:
            # An infinite pivot is greater than zero: it passes, as in LAPACK, and its column is
            # zero. (MKL's float32 kernel of 16 rows and fewer, torch's on a CPU, stops one later.)
            of_bad = [0, n, 2, 0] if n > 1 else [0] * 4
            assert not L[bad].isfinite().flatten(1).all(1).any()
            passed = L[4].mH if upper else L[4]
            assert passed[0, 0] == value
            assert not passed[1:, 0].any()
            minor, _ = lapack.potrf(A[4:5, 1:, 1:], False)
            compare(
                testing.cholesky_ratio(A[4:5, 1:, 1:], passed[None, 1:, 1:]),
                testing.cholesky_ratio(A[4:5, 1:, 1:], minor),
            )
        assert info.tolist() == [0, *of_bad, n if n > 1 else 0, 0]


@each_upper
@each_regime
@each_dtype
def test_powers_of_four_are_exact(dtype: torch.dtype, n: int, upper: bool, device: str) -> None:
    exponents = torch.arange(-50, 51, 1 if n <= 16 else 25)
    A = random_definite((n, n), dtype) * torch.exp2(2 * exponents.float())[:, None, None]
    L, info = factor(A, upper, device)
    assert not info.any()
    assert torch.equal(L, L[exponents == 0] * torch.exp2(exponents.float())[:, None, None])


@each_upper
@each_regime
@pytest.mark.parametrize("scale", [1e-30, 1e-13, 1e30])
@each_dtype
def test_no_scale_costs_accuracy(
    dtype: torch.dtype, scale: float, n: int, upper: bool, device: str
) -> None:
    A = random_definite((5, n, n), dtype) * scale
    L, info = factor(A, upper, device)
    assert not info.any()
    L_lapack, _ = lapack.potrf(A, upper)
    compare(testing.cholesky_ratio(A, L, upper), testing.cholesky_ratio(A, L_lapack, upper))


@each_upper
@each_regime
def test_imaginary_parts_of_the_diagonal_are_ignored(n: int, upper: bool, device: str) -> None:
    A = random_definite((3, n, n), torch.complex64)
    expected, _ = factor(A, upper, device)
    L, info = factor(A + 1j * torch.diag(torch.arange(n) - 2.0), upper, device)
    assert not info.any()
    assert torch.equal(L, expected)
    assert not L.diagonal(dim1=-2, dim2=-1).imag.any()


@each_upper
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("n", [3, 7, 27, 40])
@each_dtype
def test_strides(dtype: torch.dtype, n: int, view: str, upper: bool, device: str) -> None:
    A = on(device, random_definite((1, 3, n, n), dtype))
    L, _ = _cholesky_plan.cholesky(A, upper)
    assert torch.equal(_cholesky_plan.cholesky(VIEWS[view](A), upper)[0], L)
    for k in (1, 3, 9) if n <= SIMD else (3,):
        B = on(device, testing.random((1, 3, n, k), dtype))
        X = _cholesky_plan.cholesky_solve(B, L, upper)
        strided = _cholesky_plan.cholesky_solve(VIEWS[view](B), VIEWS[view](L), upper)
        assert torch.equal(strided, X)
    if n > SIMD:
        return  # from there on the triangular solve reads its strides
    inverse, _ = _cholesky_plan.cholesky_inverse(L, upper)
    assert torch.equal(_cholesky_plan.cholesky_inverse(VIEWS[view](L), upper)[0], inverse)


@each_upper
@pytest.mark.parametrize(
    ("dtype", "n"),
    [
        *((d, n) for d in SINGLES for n in (1, 4, 5, 8, 9, 16, 17, 32)),
        (torch.complex64, 33),
    ],
    ids=name,
)
def test_solve_and_inverse(dtype: torch.dtype, n: int, upper: bool, device: str) -> None:
    every = definite(n, dtype)
    A = every.A[torch.from_numpy(every.info == 0)]
    L = lapack.potrf(A, upper)[0]
    stored = on(device, with_other_triangle(torch.from_numpy(L), upper, torch.nan))
    double = torch.complex128 if dtype.is_complex else torch.float64
    for k in (1, 2, n + 1):
        X_true = testing.random((len(A), n, k), dtype, seed=2)
        B = (A.to(double) @ X_true.to(double)).to(dtype)
        X = _cholesky_plan.cholesky_solve(on(device, B), stored, upper).cpu()
        X_lapack = lapack.potrs(L, B, upper)
        compare(testing.solve_ratio(A, X, B), testing.solve_ratio(A, X_lapack, B))
        compare(testing.forward_ratio(A, X, X_true), testing.forward_ratio(A, X_lapack, X_true))
    X, info = _cholesky_plan.cholesky_inverse(stored, upper)
    assert not info.any()
    X_lapack = lapack.potri(L, upper)
    compare(testing.inverse_ratio(A, X), testing.inverse_ratio(A, X_lapack))
    exact = np.linalg.inv(A.to(double).numpy())
    compare(testing.forward_ratio(A, X, exact), testing.forward_ratio(A, X_lapack, exact))


@each_upper
@pytest.mark.parametrize(
    ("dtype", "n"), [*((d, n) for d in SINGLES for n in (34, 63, 64)), (torch.complex128, 33)]
)
def test_solve_for_few(dtype: torch.dtype, n: int, upper: bool, device: str) -> None:
    every = definite(n, dtype)
    A = every.A[torch.from_numpy(every.info == 0)][::4]
    L = lapack.potrf(A, upper)[0]
    if dtype.is_complex:
        # Any factor of A will do, one with a complex diagonal, too.
        phases = np.exp(1j * np.arange(n)).astype(L.dtype)
        L = phases[:, None] * L if upper else L * phases
    stored = on(device, with_other_triangle(torch.from_numpy(L), upper, torch.nan))
    for k in (1, 8):
        B = testing.random((len(A), n, k), dtype, seed=2)
        X = _cholesky_plan.cholesky_solve(on(device, B), stored, upper).cpu()
        compare(testing.solve_ratio(A, X, B), testing.solve_ratio(A, lapack.potrs(L, B, upper), B))
        parts = [
            _cholesky_plan.cholesky_solve(on(device, B[..., i:]), stored, upper) for i in (0, 1)
        ]
        assert k == 1 or torch.equal(parts[0][..., 1:], parts[1])


@each_upper
@pytest.mark.parametrize("n", [3, 7, 16, 27, 40])
@each_dtype
def test_zeros_on_the_diagonal(dtype: torch.dtype, n: int, upper: bool, device: str) -> None:
    L = torch.from_numpy(lapack.potrf(random_definite((5, n, n), dtype), upper)[0])
    L[1, n // 2, n // 2] = L[2, -1, -1] = L[3, 0, 0] = L[3, -1, -1] = 0
    X, info = (x.cpu() for x in _cholesky_plan.cholesky_inverse(on(device, L), upper))
    assert info.tolist() == [0, n // 2 + 1, n, 1, 0]
    good = [0, 4]
    alone = _cholesky_plan.cholesky_inverse(on(device, L[good]), upper)[0].cpu()
    assert torch.equal(X[good], alone)
    ones = torch.ones(5, n, 1, dtype=dtype)
    solved = _cholesky_plan.cholesky_solve(on(device, ones), on(device, L), upper).cpu()
    assert not solved[1:4].isfinite().flatten(1).all(1).any()
    assert solved[good].isfinite().all()
