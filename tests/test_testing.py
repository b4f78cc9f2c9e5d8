"""The ratios accept what LAPACK computes and reject what is wrong; the gallery is as claimed."""

from collections.abc import Callable
from typing import Any, Literal

import mpmath
import numpy as np
import pytest
import scipy.linalg
import torch
from numpy.typing import NDArray

from mpslinalg import testing
from mpslinalg.testing import EIG_THRESHOLD, EIGH_THRESHOLD, LU_THRESHOLD, Matrix
from tests import lapack

DTYPES = (torch.float32, torch.complex64, torch.float64, torch.complex128)
SHAPES = (
    *((n, n) for n in (1, 2, 3, 5, 10, 50)),
    *((1, 4), (4, 1), (3, 5), (5, 3), (50, 10), (10, 50)),
)
SINGLE_EPS = 2.0**-24
# The condition is 2, or this power of 0.1 / eps.
CONDITIONS = {
    "diagonal": 0.0,
    "upper": 0.0,
    "lower": 0.0,
    "well_conditioned": 0.0,
    "ill_conditioned": 0.5,
    "near_singular": 1.0,
    "near_underflow": 0.0,
    "near_overflow": 0.0,
}

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
SCALES = ("well_conditioned", "near_underflow", "near_overflow")
each_scale = pytest.mark.parametrize("name", SCALES)
each_size = pytest.mark.parametrize("n", [1, 2, 3, 5, 10, 50])


def getrf(A: torch.Tensor) -> tuple[NDArray[Any], NDArray[Any], int]:
    a = A.numpy()
    (routine,) = scipy.linalg.get_lapack_funcs(("getrf",), (a,))
    LU, pivots, info = routine(a)
    return LU, pivots + 1, info


def family(name: str, n: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return next(M.A for M in testing.general(n, n, dtype, seed) if M.name == name)


def regular(n: int, dtype: torch.dtype) -> list[Matrix]:
    return [M for M in testing.general(n, n, dtype) if not M.singular]


@each_dtype
@each_shape
def test_lapack_lu(shape: tuple[int, int], dtype: torch.dtype) -> None:
    for M in testing.general(*shape, dtype):
        LU, pivots, info = getrf(M.A)
        assert testing.lu_ratio(M.A, LU, pivots) < 1.0, M.name
        assert info == M.info, M.name


@each_dtype
@each_size
@pytest.mark.parametrize("hermitian", [False, True])
def test_ldl_ratio(n: int, dtype: torch.dtype, hermitian: bool) -> None:
    A = testing.random((n, n), dtype).tril()
    LD, pivots, info = lapack.sytrf(A, hermitian)
    assert info == 0
    assert testing.ldl_ratio(A, LD, pivots, hermitian) < 1.0
    # The other triangle is read of neither.
    garbage = np.triu(np.full((n, n), 9.0), 1).astype(LD.dtype)
    assert testing.ldl_ratio(A.numpy() + garbage, LD + garbage, pivots, hermitian) < 1.0
    for i in range(n):
        wrong = LD.copy()
        wrong[i, 0] += 1e-2 * np.abs(LD).max()
        assert testing.ldl_ratio(A, wrong, pivots, hermitian) > LU_THRESHOLD
    for other in (pivots - 1, pivots + n, -pivots, np.zeros_like(pivots)):
        assert testing.ldl_ratio(A, LD, other, hermitian) > LU_THRESHOLD
    if dtype.is_complex:
        assert testing.ldl_ratio(A, LD, pivots, not hermitian) > LU_THRESHOLD


@each_dtype
@each_size
def test_lapack_inverse(n: int, dtype: torch.dtype) -> None:
    for M in regular(n, dtype):
        assert testing.inverse_ratio(M.A, scipy.linalg.inv(M.A.numpy())) < 3.0, M.name


@each_dtype
@each_size
@pytest.mark.parametrize("trans", ["N", "T", "C"])
@pytest.mark.parametrize("left", [True, False])
def test_lapack_solve(
    n: int, dtype: torch.dtype, trans: Literal["N", "T", "C"], left: bool
) -> None:
    for M in regular(n, dtype):
        a = M.A.numpy()
        op = {"N": a, "T": a.T, "C": a.conj().T}[trans]
        truth = testing.random((n, 3) if left else (3, n), dtype, 1).numpy()
        B = op @ truth if left else truth @ op
        X = scipy.linalg.solve(op, B) if left else scipy.linalg.solve(op.T, B.T).T
        assert testing.solve_ratio(M.A, X, B, trans, left) < 10.0, M.name
        assert testing.forward_ratio(M.A, X, truth, trans, left) < 10.0, M.name


@each_dtype
@each_size
def test_lapack_determinant(n: int, dtype: torch.dtype) -> None:
    for M in testing.general(n, n, dtype):
        assert testing.slogdet_ratio(M.A, *torch.linalg.slogdet(M.A)) < 3.0, M.name
        # An infinite complex product is NaN here: no determinant, and slogdet exists for that.
        if not (dtype.is_complex and M.name == "near_overflow"):
            assert testing.determinant_ratio(M.A, torch.linalg.det(M.A)) < 3.0, M.name


def test_lu_ratio_by_hand() -> None:
    A = np.array([[2.0, 1.0], [1.0, 3.0], [0.0, 1.0]])
    LU = np.array([[2.0, 1.0], [0.5, 2.5], [0.0, 0.4]], np.float32)
    assert testing.lu_ratio(A, LU, np.array([1, 2])) < 1.0
    LU[1, 1] += 0.25
    # The error is 0.25 in u22 and 0.25 * 0.4 below it; n = 2 columns, ||A|| = 5.
    assert testing.lu_ratio(A, LU, np.array([1, 2])) == pytest.approx(0.35 / (10 * SINGLE_EPS))


def potrf(A: torch.Tensor, upper: bool) -> tuple[NDArray[Any], int]:
    a = A.numpy()
    (routine,) = scipy.linalg.get_lapack_funcs(("potrf",), (a,))
    L, info = routine(a, lower=not upper, clean=True)
    return L, info


@each_dtype
@each_size
@pytest.mark.parametrize("upper", [False, True])
def test_lapack_cholesky(n: int, upper: bool, dtype: torch.dtype) -> None:
    for M in testing.positive_definite(n, dtype):
        L, info = potrf(M.A, upper)
        assert info == M.info, M.name
        if info == 0:
            assert testing.cholesky_ratio(M.A, L, upper) < 1.0, M.name
            other = testing.cholesky_ratio(M.A, L, not upper)
            assert n == 1 or other > 30.0 or M.name == "diagonal"
            wrong = L * (1 + 100 * n * np.finfo(L.dtype).eps)
            assert testing.cholesky_ratio(M.A, wrong, upper) > 30.0, M.name


@each_dtype
@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 2), (10, 10), (5, 8)])
def test_qr_ratio(m: int, n: int, dtype: torch.dtype) -> None:
    for M in testing.full_rank(m, n, dtype):
        Q, R = scipy.linalg.qr(M.A.numpy(), mode="economic")
        assert testing.qr_ratio(M.A, Q, R) < 5, M.name
        eps = np.finfo(R.dtype).eps
        assert testing.qr_ratio(M.A, Q, R * (1 + 100 * m * eps)) > 30, M.name
        assert testing.qr_ratio(M.A, Q * (1 + 100 * m * eps), R) > 30, M.name
        if m > 1:
            R[1, 0] = np.finfo(R.dtype).tiny
            assert testing.qr_ratio(M.A, Q, R) == np.inf
        if dtype.is_complex:
            Q, R = Q * 1j, R * -1j
            assert testing.qr_ratio(M.A, Q, R) == np.inf


@each_dtype
@pytest.mark.parametrize(("m", "n"), [(1, 1), (30, 2), (10, 10), (5, 8)])
def test_lstsq_ratio(m: int, n: int, dtype: torch.dtype) -> None:
    A = testing.random((3, m, n), dtype) + 2 * max(m, n) ** 0.5 * torch.eye(m, n)
    B = testing.random((3, m, 4), dtype, seed=1)
    A[1], B[2] = A[1] * 2.0**-100, B[2] * 2.0**100
    eps = torch.finfo(dtype).eps
    X = torch.linalg.lstsq(A, B, driver="gelsd").solution
    assert testing.lstsq_ratio(A, X, B).max() < 10
    assert testing.lstsq_ratio(A, X * (1 + 1000 * max(m, n) * eps), B).min() > 30
    vector = testing.lstsq_ratio(A[0], X[0, :, 2], B[0, :, 2])
    assert vector == testing.lstsq_ratio(A[0], X[0, :, 2:3], B[0, :, 2:3])
    if m < n:
        # A solution, but not the smallest.
        null = torch.linalg.qr(A[0].mH, mode="complete").Q[:, -1:]
        other = X[0] + 0.1 * X[0].abs().max() * null
        assert testing.solve_ratio(A[0], other, B[0]) < 30
        assert testing.lstsq_ratio(A[0], other, B[0]) > 30
    X[0, -1, -1] = float("nan")
    assert testing.lstsq_ratio(A, X, B)[0] == np.inf
    assert testing.lstsq_ratio(A[:, :0], X[1:2] * 0, B[:, :0]).max() == 0


def test_lstsq_ratio_of_many_rows() -> None:
    A = testing.random((10**5, 4), torch.float32)
    B = A @ torch.ones(4, 1) + testing.random((10**5, 1), torch.float32, seed=1)
    exact = np.linalg.lstsq(A.double().numpy(), B.double().numpy(), rcond=None)[0]
    X = exact.astype(np.float32)
    assert testing.lstsq_ratio(A, X, B) < 1
    assert testing.lstsq_ratio(A, X * np.float32(1.01), B) > 30


def test_lstsq_ratio_by_hand() -> None:
    A, B = np.array([[3.0], [4.0]]), np.array([[1.0], [1.0]])
    # x = 7/25; with 1/4 A^T (b - A x) is 7 - 25/4, ||A|| = 5, ||b|| = sqrt(2).
    ratio = testing.lstsq_ratio(A, np.array([[0.25]], np.float32), B)
    assert ratio == pytest.approx(0.75 / (2**0.5 * 5 * 2**0.5 * SINGLE_EPS))


def test_cholesky_ratio_by_hand() -> None:
    A = np.array([[4.0, 2.0], [2.0, 5.0]])
    L = np.array([[2.0, 0.0], [1.0, 2.5]], np.float32)
    # L L^T has 7.25 in its last place, for 5: n = 2, ||A|| = 7.
    assert testing.cholesky_ratio(A, L) == pytest.approx(2.25 / (14 * SINGLE_EPS))
    assert testing.cholesky_ratio(A, L.T, upper=True) == testing.cholesky_ratio(A, L)
    L[1, 1] = 2
    assert testing.cholesky_ratio(A, L) == 0
    L[0, 1] = 1  # counts, although it is in the other triangle
    assert testing.cholesky_ratio(A, L) == pytest.approx(3.0 / (14 * SINGLE_EPS))
    L[0, 1] = np.nan
    assert testing.cholesky_ratio(A, L) == np.inf


@each_dtype
@pytest.mark.parametrize("n", [3, 10])
def test_positive_definite_gallery(n: int, dtype: torch.dtype) -> None:
    eps, tiny = torch.finfo(dtype).eps, torch.finfo(dtype).tiny
    matrices = {M.name: M for M in testing.positive_definite(n, dtype)}
    assert len(matrices) == 9
    for name, M in matrices.items():
        assert torch.equal(M.A, M.A.mH)
        double = M.A.to(torch.complex128 if dtype.is_complex else torch.float64)
        values = torch.linalg.eigvalsh(double / double.abs().max())
        if M.info:
            assert not M.A[M.info - 1].any()
            assert values[0].abs() < 1e-15
            assert values[1] > 0
        else:
            condition = (0.1 / eps) ** CONDITIONS[name] if CONDITIONS[name] else 2.0
            assert values[-1] / values[0] == pytest.approx(condition, rel=0.1)
            scales = {"near_underflow": 0.25 * tiny / eps, "near_overflow": 4 * eps / tiny}
            largest = values[-1] * double.abs().max() / scales.get(name, 1.0)
            assert largest == pytest.approx(1.0, rel=1e-5)


@each_dtype
@pytest.mark.parametrize("n", [1, 2, 9])
def test_eigh_ratio(n: int, dtype: torch.dtype) -> None:
    eps, tiny = torch.finfo(dtype).eps, torch.finfo(dtype).tiny
    matrices = {M.name: M.A for M in testing.hermitian(n, dtype)}
    assert len(matrices) == 18
    for name, A in matrices.items():
        assert torch.equal(A, A.mH)
        L, V = lapack.eigh(A)
        assert testing.eigh_ratio(A, L, V) < 5, name
        if A.any():
            assert testing.eigh_ratio(A, L * (1 + 200 * n * eps), V) > EIGH_THRESHOLD, name
        assert testing.eigh_ratio(A, L, V * (1 + 100 * n * eps)) > EIGH_THRESHOLD, name
        scale = 1.0
        if "near" in name:
            scale = tiny**-0.5 if "overflow" in name else tiny**0.5
        assert A.abs().max() / scale <= 4
        sizes = np.abs(L[np.abs(L).argsort()]).astype(float) / scale
        last = eps if n > 1 else 1.0
        if name in ("diagonal_clustered", "clustered"):
            assert sizes[:-1] == pytest.approx(np.full(n - 1, eps), abs=8 * eps)
            assert sizes[-1] == pytest.approx(1.0)
        elif "arithmetic" in name and "band" not in name:
            assert sizes == pytest.approx(np.linspace(last, 1.0, n), abs=20 * eps)
    L, V = lapack.eigh(matrices["random"])
    V[0, 0] = np.nan
    assert testing.eigh_ratio(matrices["random"], L, V) == np.inf
    if n > 1:
        L, V = lapack.eigh(matrices["random"])
        assert testing.eigh_ratio(matrices["random"], L[::-1], V[:, ::-1]) == np.inf


@each_dtype
@pytest.mark.parametrize("n", [1, 2, 9])
def test_eig_ratio(n: int, dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    matrices = {M.name: M.A for M in testing.nonsymmetric(n, dtype)}
    assert len(matrices) == 21
    for name, A in matrices.items():
        L, V = lapack.eig(A)
        assert testing.eig_ratio(A, L, V) < 8, name
        size = float(A.abs().sum(0).max())
        if size > 0:
            assert testing.eig_ratio(A, L + 30 * n * eps * size, V) > EIG_THRESHOLD, name
        assert testing.eig_ratio(A, L, V * (1 + 20 * eps)) > EIG_THRESHOLD, name
    L, V = lapack.eig(matrices["random"])
    V[0, 0] = np.nan
    assert testing.eig_ratio(matrices["random"], L, V) == np.inf
    assert testing.eig_ratio(np.empty((3, 0, 0)), np.empty((3, 0)), np.empty((3, 0, 0))).max() == 0


@each_dtype
def test_families_of_nonsymmetric_eigenproblems(dtype: torch.dtype) -> None:
    eps, tiny = torch.finfo(dtype).eps, torch.finfo(dtype).tiny
    n = 9
    for name, A, _ in testing.nonsymmetric(n, dtype):
        a = A.to(torch.complex128).numpy()
        size = {"near_overflow": eps / tiny, "near_underflow": tiny / eps}
        scale = next((s for words, s in size.items() if words in name), 1.0)
        scale *= eps if name == "skewed_near_overflow" else 1.0
        values = np.sort(np.abs(np.linalg.eigvals(a / scale)))
        if name in ("diagonal_arithmetic", "unitary_arithmetic", "diagonal_near_overflow"):
            assert values == pytest.approx(np.linspace(eps, 1, n), abs=1e-3), name
        elif "circle" in name:
            expected = np.ones(n)
            # Of an odd number of conjugate pairs the last is one cosine.
            expected[0] = values[0] if not dtype.is_complex else 1.0
            assert values == pytest.approx(expected, abs=0.4 if "skewed" in name else 0.02), name
        elif name.startswith("bordered"):
            assert not a[:2].any()
            assert not a[-1].any()
            assert not a[:, 0].any()
            assert not a[:, -2:].any()
            assert a.any()


def test_inverse_ratio_by_hand() -> None:
    A = np.array([[1.0, 1.0], [0.0, 1.0]])
    X = np.array([[1.0, -1.0], [0.5, 1.0]], np.float32)
    # X A - I = [[0, 0], [0.5, 0.5]], where A X - I = [[0.5, 0], [0.5, 0]].
    assert testing.inverse_ratio(A, X) == pytest.approx(0.5 / (2 * 2 * 2 * SINGLE_EPS))


def test_solve_ratio_by_hand() -> None:
    A = np.array([[1.0, 2.0], [0.0, 1.0]])
    X = np.array([[1.0, 4.0], [1.0, 0.0]], np.float32)
    B = A @ X + np.array([[0.5, 0.0], [0.25, 1.0]])
    # Columns: 0.75 over ||x|| = 2, and 1 over 4.
    assert testing.solve_ratio(A, X, B) == pytest.approx(0.75 / (3 * 2 * SINGLE_EPS))


def test_forward_ratio_by_hand() -> None:
    A = np.array([[1.0, 2.0, 4.0], [0.0, 1.0, 8.0], [0.0, 0.0, 1.0]])
    truth = np.array([[1.0, 4.0], [1.0, 0.0], [2.0, 0.0]])
    X = (truth + np.array([[0.5, 0.0], [0.25, 1.0], [0.25, 0.0]])).astype(np.float32)
    # A^-1 = [[1, -2, 12], [0, 1, -8], [0, 0, 1]]: 13 * 21 by columns, 9 * 15 by rows.
    for trans, left, condition in (
        ("N", True, 13 * 21),
        ("T", True, 9 * 15),
        ("C", True, 9 * 15),
        ("N", False, 9 * 15),
        ("T", False, 13 * 21),
    ):
        x, x_true = (X, truth) if left else (X.T, truth.T)
        ratio = testing.forward_ratio(A, x, x_true, trans, left)  # type: ignore[arg-type]
        assert ratio == pytest.approx(0.25 / (condition * SINGLE_EPS))


def test_eps_is_that_of_the_result() -> None:
    A = testing.random((4, 4), torch.float64)
    X = torch.linalg.inv(A) * (1 + 1e-8)
    assert testing.inverse_ratio(A, X.to(torch.float32)) < 1.0
    assert testing.inverse_ratio(A, X) > 1e6


@each_dtype
@each_scale
def test_wrong_lu_fails(name: str, dtype: torch.dtype) -> None:
    A = family(name, 10, dtype)
    LU, pivots, _ = getrf(A)
    for i, j in ((0, 0), (9, 9), (9, 0), (0, 9), (5, 2)):
        wrong = LU.copy()
        wrong[i, j] *= 1.05
        assert testing.lu_ratio(A, wrong, pivots) > LU_THRESHOLD, (i, j)
    assert testing.lu_ratio(A, LU * (1 + 1e-3), pivots) > LU_THRESHOLD
    assert testing.lu_ratio(A, LU, pivots - 1) == np.inf
    assert testing.lu_ratio(A, LU, pivots + 10) == np.inf
    swapped = pivots.copy()
    swapped[0] = 1 if swapped[0] != 1 else 2
    assert testing.lu_ratio(A, LU, swapped) > 1e3
    if dtype.is_complex:
        assert testing.lu_ratio(A, LU.conj(), pivots) > 1e3


@each_dtype
@each_scale
def test_wrong_inverse_fails(name: str, dtype: torch.dtype) -> None:
    A = family(name, 10, dtype)
    X = scipy.linalg.inv(A.numpy())
    for wrong in (X * (1 + 1e-3), X.T, X.conj().T, 0 * X, X * 2.0**20, X * 2.0**-20):
        assert testing.inverse_ratio(A, wrong) > LU_THRESHOLD
    X[3, 7] *= 1.05
    assert testing.inverse_ratio(A, X) > LU_THRESHOLD


@each_dtype
@each_scale
def test_wrong_solution_fails(name: str, dtype: torch.dtype) -> None:
    A = family(name, 10, dtype)
    truth = testing.random((10, 2), dtype, 1).numpy()
    B = A.numpy() @ truth
    X = scipy.linalg.solve(A.numpy(), B)
    for wrong in (X * (1 + 1e-3), X[:, ::-1], X[::-1], 0 * X, X * 2.0**20, X * 2.0**-20):
        assert testing.solve_ratio(A, wrong, B) > LU_THRESHOLD
        assert testing.forward_ratio(A, wrong, truth) > LU_THRESHOLD
    transposed = scipy.linalg.solve(A.numpy().T, B)
    assert testing.solve_ratio(A, transposed, B, "T") < LU_THRESHOLD
    assert testing.solve_ratio(A, transposed, B, "N") > 1e3
    adjoint_fails = testing.solve_ratio(A, transposed, B, "C") > 1e3
    assert adjoint_fails == dtype.is_complex


@each_dtype
@pytest.mark.parametrize("name", [*SCALES, "ill_conditioned"])
def test_wrong_determinant_fails(name: str, dtype: torch.dtype) -> None:
    A = family(name, 5, dtype)
    sign, logabsdet = np.linalg.slogdet(A.numpy())
    one = A.new_ones(()).numpy()
    for wrong in (-sign, 0 * sign, 2 * sign, sign * (1 + 1e-3 * one)):
        assert testing.slogdet_ratio(A, wrong, logabsdet) > LU_THRESHOLD
    for wrong in (logabsdet * logabsdet.dtype.type(1.1), -logabsdet, -np.inf * logabsdet):
        assert testing.slogdet_ratio(A, sign, wrong) > LU_THRESHOLD
    if dtype.is_complex:
        assert testing.slogdet_ratio(A, sign.conj(), logabsdet) > LU_THRESHOLD
    if name in ("well_conditioned", "ill_conditioned"):
        det = np.linalg.det(A.numpy())
        for wrong in (-det, 0 * det, det * (1 + one / 20), 1 / det):
            assert testing.determinant_ratio(A, wrong) > LU_THRESHOLD


@each_dtype
@pytest.mark.parametrize("n", [5, 100])
def test_wrong_sign_of_near_singular_matrix_fails(n: int, dtype: torch.dtype) -> None:
    A = family("near_singular", n, dtype)
    sign, logabsdet = torch.linalg.slogdet(A)
    testing.compare(testing.slogdet_ratio(A, sign, logabsdet), 0.0)
    with pytest.raises(AssertionError):
        testing.compare(testing.slogdet_ratio(A, -sign, logabsdet), 0.0)


def test_lost_nan_fails() -> None:
    """BLAS may skip a NaN that meets a zero: the residual then looks perfect."""
    none, some, lost = np.zeros(2), np.ones(2), np.array([True, False])
    assert testing._ratio(none, some, lost).tolist() == [0.0, np.inf]


@each_dtype
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_entry_fails(bad: float, dtype: torch.dtype) -> None:
    n = 3
    # A and B have zeros, which BLAS may skip together with the NaN that they meet.
    A = torch.diag(torch.tensor([4.0, 2.0, 1.0], dtype=dtype))
    B = A.clone()
    LU, pivots = A.numpy(), np.arange(1, n + 1)
    X = np.linalg.inv(LU)
    for entry in np.ndindex(n, n):
        wrong = np.array([LU, X, np.eye(n, dtype=LU.dtype)])
        wrong[:, *entry] = bad
        assert testing.lu_ratio(A, wrong[0], pivots) == np.inf
        assert testing.inverse_ratio(A, wrong[1]) == np.inf
        assert testing.solve_ratio(A, wrong[2], B) == np.inf
        assert testing.forward_ratio(A, wrong[2], np.eye(n)) == np.inf
        broken = A.clone()
        broken[entry] = bad
        assert testing.determinant_ratio(broken, A.new_tensor(8.0)) == np.inf
        assert testing.slogdet_ratio(broken, A.new_ones(()), A.new_ones(()).abs()) == np.inf
    assert testing.determinant_ratio(A, A.new_tensor(bad)) == np.inf
    assert testing.slogdet_ratio(A, A.new_tensor(bad), A.new_ones(()).abs()) == np.inf
    if bad != -np.inf:
        assert testing.slogdet_ratio(A, A.new_ones(()), A.new_tensor(bad).abs()) == np.inf
        assert testing.slogdet_ratio(A, A.new_zeros(()), A.new_tensor(bad).abs()) == np.inf


def test_singular_matrix_supports_no_solution() -> None:
    A, X = np.ones((2, 2)), np.ones(2, np.float32)
    assert testing.forward_ratio(A, X, np.array([1.0, 2.0])) == np.inf
    assert testing.inverse_ratio(A, np.zeros((2, 2), np.float32)) == np.inf


def test_no_error_is_zero_even_without_a_norm() -> None:
    zero = np.zeros((2, 2), np.float32)
    assert testing.lu_ratio(zero, zero, np.array([1, 2])) == 0
    assert testing.solve_ratio(np.eye(2), zero, zero) == 0
    assert testing.lu_ratio(zero, np.eye(2, dtype=np.float32), np.array([1, 2])) == np.inf
    assert testing.solve_ratio(np.eye(2), zero, np.eye(2)) == np.inf


def test_unknown_trans_is_named() -> None:
    eye = np.eye(2)
    with pytest.raises(ValueError, match="'N', 'T' or 'C', but got 'H'"):
        testing.solve_ratio(eye, eye, eye, "H")  # type: ignore[arg-type]


@each_dtype
@pytest.mark.parametrize("name", ["well_conditioned", "near_singular", "last_half_zero"])
def test_determinant_bound_holds_and_is_sharp(name: str, dtype: torch.dtype) -> None:
    """Against mpmath: moving every singular value by eps s_1 is exactly the bound."""
    A = family(name, 4, dtype).numpy()
    eps = float(np.finfo(A.dtype).eps) / 2
    U, s, Vh = np.linalg.svd(A.astype(np.complex128 if dtype.is_complex else np.float64))
    for factor, lowest, highest in ((1.0, 0.5, 1.5), (1e3, 0.5e3, np.inf)):
        E = U * (factor * eps * s[0]) @ Vh
        with mpmath.workdps(60):
            det = mpmath.det(mpmath.matrix(A.tolist()) + mpmath.matrix(E.tolist()))
        value = complex(det) if dtype.is_complex else float(det)
        ratio = testing.determinant_ratio(A, np.array(value, A.dtype))
        assert lowest < ratio < highest, factor


@each_dtype
def test_determinant_reference_agrees_with_mpmath(dtype: torch.dtype) -> None:
    for M in regular(6, dtype):
        with mpmath.workdps(60):
            det = mpmath.det(mpmath.matrix(M.A.tolist()))
            sign, logabs = det / abs(det), mpmath.log(abs(det))
        real = M.A.real.numpy().dtype
        value = complex(sign) if dtype.is_complex else float(sign)
        ratio = testing.slogdet_ratio(
            M.A, np.array(value, M.A.numpy().dtype), np.array(float(logabs), real)
        )
        assert ratio < 1.5, M.name


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_determinant_beyond_the_range(dtype: type[np.floating[Any]]) -> None:
    largest, tiny = np.finfo(dtype).max, np.finfo(dtype).tiny
    huge = np.diag([largest, -largest]).astype(dtype)
    assert testing.determinant_ratio(huge, dtype(-np.inf)) == 0
    for wrong in (np.inf, np.nan, largest, -largest, 0.0):
        assert testing.determinant_ratio(huge, dtype(wrong)) > LU_THRESHOLD
    small = np.diag([tiny, tiny]).astype(dtype)
    for right in (0.0, tiny, -tiny):
        assert testing.determinant_ratio(small, dtype(right)) <= 1.0
    assert testing.determinant_ratio(small, 1e3 * dtype(tiny)) > LU_THRESHOLD
    representable = (np.eye(2) * np.sqrt(largest) / 2).astype(dtype)
    assert testing.determinant_ratio(representable, dtype(np.inf)) == np.inf


def test_complex_determinant_beyond_the_range() -> None:
    huge = np.diag([1e30, 1e30j]).astype(np.complex64)
    assert testing.determinant_ratio(huge, np.complex64(complex(0, np.inf))) == 0
    assert testing.determinant_ratio(huge, np.complex64(complex(np.nan, np.inf))) == np.inf


@each_dtype
def test_determinant_of_singular_matrices(dtype: torch.dtype) -> None:
    zero, one = torch.zeros((), dtype=dtype), torch.ones((), dtype=dtype)
    for M in testing.general(5, 5, dtype):
        if M.singular:
            assert testing.determinant_ratio(M.A, zero) == 0
            assert testing.determinant_ratio(M.A, one / 1000) > LU_THRESHOLD
            assert testing.slogdet_ratio(M.A, zero, -torch.inf * one.abs()) == 0
            assert testing.slogdet_ratio(M.A, one, zero.abs()) > LU_THRESHOLD
    # Rounding hides the rank of this one: its determinant comes out as 6.7e-16 or so.
    A = torch.arange(1.0, 10.0).reshape(3, 3).to(dtype)
    assert testing.determinant_ratio(A, torch.linalg.det(A)) < 3.0
    assert testing.slogdet_ratio(A, *torch.linalg.slogdet(A)) < 3.0


@each_dtype
def test_batches(dtype: torch.dtype) -> None:
    A = testing.random((2, 3, 4, 4), dtype)
    LU, pivots = torch.linalg.lu_factor(A)
    X, det, slogdet = torch.linalg.inv(A), torch.linalg.det(A), torch.linalg.slogdet(A)
    B = testing.random((3, 4, 2), dtype, 1)
    solution = torch.linalg.solve(A, B)
    # One wrong result must show at its own place only.
    for result in (LU, X, solution):
        result[1, 2, 3, 0] += 1
    det[1, 2] *= -1
    slogdet.logabsdet[1, 2] += 1
    pairs: list[tuple[NDArray[np.float64], Callable[[int, int], NDArray[np.float64]]]] = [
        (
            testing.lu_ratio(A, LU, pivots),
            lambda i, j: testing.lu_ratio(A[i, j], LU[i, j], pivots[i, j]),
        ),
        (testing.inverse_ratio(A, X), lambda i, j: testing.inverse_ratio(A[i, j], X[i, j])),
        (
            testing.solve_ratio(A, solution, B),
            lambda i, j: testing.solve_ratio(A[i, j], solution[i, j], B[j]),
        ),
        (
            testing.forward_ratio(A, solution, torch.linalg.solve(A, B)),
            lambda i, j: testing.forward_ratio(
                A[i, j], solution[i, j], torch.linalg.solve(A, B)[i, j]
            ),
        ),
        (
            testing.determinant_ratio(A, det),
            lambda i, j: testing.determinant_ratio(A[i, j], det[i, j]),
        ),
        (
            testing.slogdet_ratio(A, *slogdet),
            lambda i, j: testing.slogdet_ratio(A[i, j], slogdet.sign[i, j], slogdet[1][i, j]),
        ),
    ]
    for batched, single in pairs:
        assert batched.shape == (2, 3)
        assert batched.dtype == np.float64
        wrong = batched > LU_THRESHOLD
        assert np.argwhere(wrong).tolist() == [[1, 2]]
        for index in np.ndindex(2, 3):
            assert single(*index) == pytest.approx(batched[index], rel=0.5, abs=0.5)


@each_dtype
def test_vectors(dtype: torch.dtype) -> None:
    A, b = testing.random((3, 4, 4), dtype), testing.random((3, 4), dtype, 1)
    x = torch.linalg.solve(A, b)
    assert testing.solve_ratio(A, x, b).shape == (3,)
    assert (testing.solve_ratio(A, x, b) < LU_THRESHOLD).all()
    assert (testing.solve_ratio(A, x, b.roll(1, 0)) > LU_THRESHOLD).all()
    assert (testing.forward_ratio(A, x, x) == 0).all()
    assert testing.solve_ratio(A[0], x[0], b[0]) < LU_THRESHOLD
    same = testing.random((4,), dtype, 2)
    assert (testing.solve_ratio(A, torch.linalg.solve(A, same), same) < LU_THRESHOLD).all()


def test_lazy_conjugation_and_gradients_are_resolved() -> None:
    A = testing.random((4, 4), torch.complex64).requires_grad_()
    X = torch.linalg.inv(A).conj()
    assert X.is_conj()
    assert testing.inverse_ratio(A.conj(), X) < 1.0
    assert testing.inverse_ratio(A, X) > 1e3


def test_inputs_are_not_modified() -> None:
    A = family("well_conditioned", 5, torch.float64)
    LU, pivots, _ = getrf(A)
    copies = A.clone(), LU.copy(), pivots.copy()
    testing.lu_ratio(A, LU, pivots)
    testing.inverse_ratio(A, LU)
    testing.solve_ratio(A, LU, LU)
    testing.determinant_ratio(A, LU[0, 0])
    assert torch.equal(A, copies[0])
    np.testing.assert_array_equal(LU, copies[1])
    np.testing.assert_array_equal(pivots, copies[2])


@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (0, 3, 3)])
def test_empty_is_zero(shape: tuple[int, ...]) -> None:
    A = torch.empty(shape, dtype=torch.complex64)
    batch = shape[:-2]
    pivots = torch.empty(shape[:-1], dtype=torch.int32)
    one, zero = torch.ones(batch), torch.zeros(batch)
    results = (
        testing.lu_ratio(A, A, pivots),
        testing.inverse_ratio(A, A),
        testing.solve_ratio(A, A, A),
        testing.forward_ratio(A, A, A),
        testing.determinant_ratio(A, one),
        testing.slogdet_ratio(A, one, zero),
    )
    for ratios in results:
        assert ratios.shape == batch
        assert (ratios == 0).all()
    assert (testing.determinant_ratio(A, zero) > LU_THRESHOLD).all()


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_empty_rectangles_and_right_hand_sides(shape: tuple[int, int]) -> None:
    A = torch.empty(shape)
    assert testing.lu_ratio(A, A, torch.empty(0, dtype=torch.int32)) == 0
    B = torch.empty(3, 0)
    assert testing.solve_ratio(torch.eye(3), B, B) == 0
    assert testing.forward_ratio(torch.eye(3), B, B) == 0


@pytest.mark.parametrize(
    ("ours", "scipy_ratio"), [(0.9, 0.01), (2.9, 0.5), (8.9, 3.0), (29.0, 20.0), (0.0, 0.0)]
)
def test_compare_accepts(ours: float, scipy_ratio: float) -> None:
    testing.compare(ours, scipy_ratio)


@pytest.mark.parametrize(
    ("ours", "scipy_ratio"),
    [(3.1, 0.5), (9.1, 3.0), (30.0, 20.0), (np.inf, np.inf), (np.nan, 1.0), (1.0, np.nan)],
)
def test_compare_rejects(ours: float, scipy_ratio: float) -> None:
    with pytest.raises(AssertionError, match="test ratios are too large"):
        testing.compare(ours, scipy_ratio)


def test_compare_names_the_worst_of_a_batch() -> None:
    ours = np.array([[1.0, 4.0], [7.0, 1.0]])
    with pytest.raises(AssertionError, match=r"2 of 4 .* 7 at batch index \(1, 0\), .* 0\.5;"):
        testing.compare(ours, np.array([0.25, 2.0]) * 2 ** np.array([[0.0, -1], [1, 0]]))
    testing.compare(ours, 3.0)
    testing.compare(ours, 3.0, threshold=7.5)
    with pytest.raises(AssertionError):
        testing.compare(ours, 3.0, threshold=7.0)
    testing.compare(np.empty(0), np.empty(0))


def exact(A: torch.Tensor) -> tuple[NDArray[Any], float]:
    """A scaled to a norm near 1 in double, and its 2-norm."""
    a = A.numpy().astype(np.complex128 if A.is_complex() else np.float64)
    power = float(2.0 ** -np.frexp(np.abs(a).max())[1])
    return a * power, float(np.linalg.norm(a * power, 2) / power)


@each_dtype
@each_shape
def test_gallery_conditions_and_norms(shape: tuple[int, int], dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    small = 0.25 * limits.tiny / limits.eps
    norms = {"near_underflow": small, "near_overflow": 1 / small}
    for M in testing.general(*shape, dtype):
        if M.name not in CONDITIONS:
            continue
        a, norm = exact(M.A)
        expected = (0.1 / limits.eps) ** CONDITIONS[M.name] if CONDITIONS[M.name] else 2.0
        if min(shape) == 1:
            expected = 1.0
        assert expected / 2 < np.linalg.cond(a) < 2 * expected, M.name
        assert norm == pytest.approx(norms.get(M.name, 1.0), rel=1e-5), M.name
        assert M.info == 0


def test_gallery_scales_are_lapacks() -> None:
    norms = {M.name: exact(M.A)[1] for M in testing.general(5, 5, torch.float32)}
    assert norms["near_underflow"] == pytest.approx(2.0**-105, rel=1e-5)
    assert norms["near_overflow"] == pytest.approx(2.0**105, rel=1e-5)
    norms = {M.name: exact(M.A)[1] for M in testing.general(5, 5, torch.complex128)}
    assert norms["near_underflow"] == pytest.approx(2.0**-972)
    assert norms["near_overflow"] == pytest.approx(2.0**972)


@each_dtype
@each_shape
def test_gallery_structure(shape: tuple[int, int], dtype: torch.dtype) -> None:
    m, n = shape
    k = min(shape)
    matrices = {M.name: M for M in testing.general(m, n, dtype)}
    A = {name: M.A for name, M in matrices.items()}
    assert torch.equal(A["upper"], A["upper"].triu())
    assert torch.equal(A["lower"], A["lower"].tril())
    assert torch.equal(A["diagonal"], A["diagonal"].triu().tril())
    if m > 1 and n > 1:
        assert (A["upper"].triu(1) != 0).any()
        assert (A["lower"].tril(-1) != 0).any()
    zero_columns = {"first_column_zero": {0}, "last_column_zero": {k - 1}}
    zero_columns["last_half_zero"] = set(range(k // 2, n))
    for name in zero_columns.keys() & A.keys():
        zero = {j for j in range(n) if (A[name][:, j] == 0).all()}
        assert zero == zero_columns[name], name
        assert matrices[name].singular
        assert matrices[name].info == min(zero) + 1
        rank = np.linalg.matrix_rank(A[name].numpy())
        assert rank == min(m, n - len(zero)), name


@each_dtype
@each_shape
def test_gallery_entries(shape: tuple[int, int], dtype: torch.dtype) -> None:
    for M in testing.general(*shape, dtype):
        assert M.A.shape == shape
        assert M.A.dtype == dtype
        assert M.A.device.type == "cpu"
        assert M.A.is_contiguous()
        parts = torch.view_as_real(M.A) if dtype.is_complex else M.A
        assert parts.isfinite().all()
        assert ((parts == 0) | (parts.abs() >= torch.finfo(dtype).tiny)).all()
        if dtype.is_complex and min(shape) > 1:
            assert M.name in ("first_column_zero", "last_half_zero") or (M.A.imag != 0).any()


def test_no_denormals_survive() -> None:
    assert all(
        (M.A != 0).all() or M.name != "near_underflow" for M in testing.general(5, 5, torch.float32)
    )
    tiny = torch.finfo(torch.float32).tiny
    rounded = testing._rounded(np.array([[tiny, tiny / 2, -tiny / 2, -tiny]]), torch.float32, tiny)
    assert rounded.tolist() == [[tiny, 0.0, 0.0, -tiny]]


def test_gallery_families() -> None:
    names = [M.name for M in testing.general(3, 3, torch.float32)]
    assert len(names) == len(set(names)) == 11
    assert set(names) == CONDITIONS.keys() | {
        "first_column_zero",
        "last_column_zero",
        "last_half_zero",
    }
    assert [M.name for M in testing.general(0, 3, torch.float32)] == ["diagonal"]
    assert [M.A.shape for M in testing.general(3, 0, torch.float32)] == [(3, 0)]
    two = {M.name for M in testing.general(2, 2, torch.float32)}
    assert set(names) - two == {"last_half_zero"}
    one = {M.name for M in testing.general(1, 1, torch.float32)}
    assert two - one == {"last_column_zero"}


@each_dtype
def test_seeds(dtype: torch.dtype) -> None:
    first, again, other = (list(testing.general(4, 3, dtype, seed)) for seed in (7, 7, 8))
    for a, b, c in zip(first, again, other, strict=True):
        assert torch.equal(a.A, b.A)
        assert a.name == "first_column_zero" or not torch.equal(a.A, c.A)
    assert torch.equal(testing.random((5,), dtype, 3), testing.random((5,), dtype, 3))
    assert not torch.equal(testing.random((5,), dtype, 3), testing.random((5,), dtype, 4))


def test_orthonormal_factors_are_uniform() -> None:
    """QR by Householder alone would leave the one orthonormal 1 x 1 matrix that is not -1."""
    signs = {family("well_conditioned", 1, torch.float32, seed).item() for seed in range(20)}
    assert signs == {-1.0, 1.0}


@each_dtype
def test_random(dtype: torch.dtype) -> None:
    A = testing.random((2, 100, 100), dtype)
    assert A.shape == (2, 100, 100)
    assert A.dtype == dtype
    assert A.mean().abs() < 0.03
    assert A.abs().square().mean() == pytest.approx(1.0, abs=0.05)
    if dtype.is_complex:
        assert A.square().mean().abs() < 0.03


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4)])
@pytest.mark.parametrize("full", [True, False])
def test_svd_ratio_sees_each_part(dtype: torch.dtype, shape: tuple[int, int], full: bool) -> None:
    A = testing.random((2, *shape), dtype)
    parts = [x.numpy() for x in torch.linalg.svd(A, full)]
    assert (testing.svd_ratio(A, *parts) < 5).all()
    for position in range(3):
        wrong = [x.copy() for x in parts]
        wrong[position][(1, *(-1,) * (wrong[position].ndim - 1))] += 1e-2
        ratios = testing.svd_ratio(A, *wrong)
        assert ratios[0] < 5
        assert ratios[1] > 1e3
    U, S, Vh = parts
    # A product that is right does not make up for columns that are not orthonormal.
    assert (testing.svd_ratio(A, U * 2, S / 2, Vh) > 1e3).all()
    assert (testing.svd_ratio(A, U, S / 2, Vh * 2) > 1e3).all()
    U, S, Vh = U[..., : S.shape[-1]], S, Vh[..., : S.shape[-1], :]
    assert (testing.svd_ratio(A, U[..., ::-1], S[..., ::-1], Vh[..., ::-1, :]) == np.inf).all()
    assert (testing.svd_ratio(A, -U, -S, Vh) == np.inf).all()
    assert (testing.svd_ratio(A, U * np.nan, S, Vh) == np.inf).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (1, 1)])
def test_families_of_singular_values(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    matrices = {M.name: M.A for M in testing.singular_values(*shape, dtype)}
    assert list(matrices) == ["zero", "identity", "even", "near_underflow", "near_overflow"]
    assert not matrices["zero"].any()
    assert torch.equal(matrices["identity"], torch.eye(*shape, dtype=dtype))
    limits = torch.finfo(dtype)
    scale = limits.tiny / limits.eps
    expected = np.linspace(1, limits.eps, min(shape))
    for name, by in (("even", 1.0), ("near_underflow", scale), ("near_overflow", 1 / scale)):
        A = matrices[name].numpy() / by
        values = np.linalg.svd(A.astype(np.complex128), compute_uv=False)
        np.testing.assert_allclose(values, expected, rtol=0, atol=20 * limits.eps)
        assert matrices[name].dtype == dtype
