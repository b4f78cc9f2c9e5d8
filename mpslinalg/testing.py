"""LAPACK's test ratios and its gallery of test matrices, to judge a result on any device.

A ratio is a residual in units of what rounding may cause; LAPACK accepts a routine when every ratio
is below a threshold. Results and inputs are torch tensors on any device or NumPy arrays, with any
batch dimensions; they are copied to the CPU once and judged there in float64 or complex128. Every
ratio function returns one float64 per matrix of the batch: 0 for empty matrices, inf for a result
that holds a NaN or an infinity. Norms are 1-norms, eps is the unit roundoff of the result's dtype
(2^-24 for float32 and complex64, 2^-53 for float64 and complex128).

Source of definitions: TESTING/LIN and TESTING/MATGEN of Reference LAPACK. Unlike there, no error is
a ratio of 0 even if the norms are 0 (b = 0 and x = 0), and a failure is inf instead of 1 / eps.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray

__all__ = [
    "ALLOWED_FACTOR",
    "EIGH_THRESHOLD",
    "EIG_THRESHOLD",
    "LU_THRESHOLD",
    "RATIO_FLOOR",
    "Matrix",
    "Triangle",
    "cholesky_ratio",
    "compare",
    "determinant_ratio",
    "eig_ratio",
    "eigh_ratio",
    "eigvalsh_ratio",
    "forward_ratio",
    "full_rank",
    "general",
    "hermitian",
    "inverse_ratio",
    "ldl_ratio",
    "lstsq_ratio",
    "lu_ratio",
    "nonsymmetric",
    "positive_definite",
    "qr_ratio",
    "random",
    "singular_values",
    "slogdet_ratio",
    "solve_ratio",
    "svd_ratio",
    "svdvals_ratio",
    "triangular",
]

Array: TypeAlias = torch.Tensor | NDArray[Any] | np.generic
Ratios: TypeAlias = NDArray[np.float64]
Trans: TypeAlias = Literal["N", "T", "C"]

LU_THRESHOLD = 30.0
"""LAPACK's threshold for linear equations."""
EIGH_THRESHOLD = 60.0
"""LAPACK's threshold for symmetric eigenproblems."""
EIG_THRESHOLD = 20.0
"""LAPACK's threshold for nonsymmetric eigenproblems."""
ALLOWED_FACTOR = 3.0
"""Our own bar: at most this many times the ratio of SciPy's result in the same precision."""
RATIO_FLOOR = 1.0
"""Ratios of SciPy below this count as this: 0.2 against 0.05 says nothing."""


@np.errstate(all="ignore")
def compare(ratio_ours: Any, ratio_scipy: Any, threshold: float = LU_THRESHOLD) -> None:
    """Assert ratio_ours < threshold and ratio_ours <= 3 max(ratio_scipy, 1), element by element.

    Raises:
        AssertionError: names the worst matrix of the batch; NaN fails on either side.
    """
    ours, theirs = np.broadcast_arrays(
        np.asarray(ratio_ours, np.float64), np.asarray(ratio_scipy, np.float64)
    )
    allowed = ALLOWED_FACTOR * np.maximum(theirs, RATIO_FLOOR)
    failed = ~((ours < threshold) & (ours <= allowed))
    if failed.any():
        excess = np.where(failed, np.nan_to_num(ours / allowed, nan=np.inf), -1.0)
        worst = tuple(int(i) for i in np.unravel_index(excess.argmax(), excess.shape))
        where = f" at batch index {worst}" if worst else ""
        raise AssertionError(
            f"{int(failed.sum())} of {failed.size} test ratios are too large: "
            f"{ours[worst]:.3g}{where}, where SciPy's is {theirs[worst]:.3g}; "
            f"allowed are less than {threshold:g} and at most {allowed[worst]:.3g}"
        )


@np.errstate(all="ignore")
def lu_ratio(A: Array, LU: Array, pivots: Array) -> Ratios:
    """||L U - P A|| / (n ||A|| eps) of a packed factorization, m x n (LAPACK's xGET01).

    ``pivots`` are LAPACK's: 1-based, row i was swapped with row pivots[i]. Pivots that LAPACK
    cannot return, outside i..m, give inf.
    """
    eps = _eps(LU)
    A, LU, pivots = _host(A), _host(LU), _numpy(pivots)
    m, n = A.shape[-2:]
    k = min(m, n)
    exponent = _exponent(A)
    A = _ldexp(A, -exponent)
    L = np.tril(LU[..., :k], -1) + np.eye(m, k)
    U = _ldexp(np.triu(LU[..., :k, :]), -exponent)
    legal = ((np.arange(1, k + 1) <= pivots) & (pivots <= m)).all(-1)
    rows = _permutation(np.where(legal[..., None], pivots, 1), m)
    error = _norm(L @ U - np.take_along_axis(A, rows[..., None], -2))
    return _ratio(error, n * eps * _norm(A), legal & _finite(LU))


@np.errstate(all="ignore")
def cholesky_ratio(A: Array, L: Array, upper: bool = False) -> Ratios:
    """||L L^H - A|| / (n ||A|| eps) of a Cholesky factor, or of U^H U (LAPACK's xPOT01).

    What is no zero in the other triangle counts as part of the factor.
    """
    eps = _eps(L)
    A, L = _host(A), _host(L)
    exponent = _exponent(A)
    # An even power of two, of which the factor has half.
    exponent += exponent % 2
    A, L = _ldexp(A, -exponent), _ldexp(L, -exponent // 2)
    adjoint = L.conj().swapaxes(-2, -1)
    error = _norm((adjoint @ L if upper else L @ adjoint) - A)
    return _ratio(error, A.shape[-1] * eps * _norm(A), _finite(L))


@np.errstate(all="ignore")
def ldl_ratio(A: Array, LD: Array, pivots: Array, hermitian: bool = False) -> Ratios:
    """||L D L^T - A|| / (n ||A|| eps) of an LDL factorization (LAPACK's xSYT01 and xHET01).

    ``pivots`` are those of LAPACK's sytrf for the lower triangle, and of A, too, only that is read;
    with ``hermitian`` the product is L D L^H. Pivots that LAPACK cannot return give inf.
    """
    eps = _eps(LD)
    A, LD, pivots = _host(A), _host(LD), _numpy(pivots)
    n = A.shape[-1]
    A = _mirrored(A, hermitian)
    exponent = _exponent(A)
    A = _ldexp(A, -exponent)
    error, legal = np.zeros(A.shape[:-2]), np.ones(A.shape[:-2], bool)
    for index in np.ndindex(A.shape[:-2]):
        L, D, order, legal[index] = _unpacked(LD[index], pivots[index], hermitian)
        scaled = _times_blocks(L, _ldexp(D, -exponent[index]))
        product = scaled @ (L.conj() if hermitian else L).T
        error[index] = _norm(product - A[index][order][:, order])
    return _ratio(error, n * eps * _norm(A), legal & _finite(LD))


@np.errstate(all="ignore")
def qr_ratio(A: Array, Q: Array, R: Array) -> Ratios:
    """The larger of ||R - Q^H A|| / (m ||A|| eps) and ||I - Q^H Q|| / (m eps) (LAPACK's xQRT01).

    The first is taken column by column, ||r - Q^H a|| against ||a||, which Householder's method
    satisfies too. R that is not upper triangular, or has a diagonal that is not real, gives inf.
    """
    eps = _eps(Q)
    A, Q, R = _host(A), _host(Q), _host(R)
    m = A.shape[-2]
    legal = (np.tril(R, -1) == 0).all((-2, -1))
    legal &= (np.diagonal(R, axis1=-2, axis2=-1).imag == 0).all(-1) & _finite(R) & _finite(Q)
    exponent = _exponent(A, axis=-2)
    A, R = (_ldexp(x, -exponent) for x in (A, R))
    adjoint = Q.conj().swapaxes(-2, -1)
    residual, size = np.abs(R - adjoint @ A).sum(-2), np.abs(A).sum(-2)
    ratios = _ratio(residual, m * eps * size, legal[..., None]).max(-1, initial=0.0)
    error = _norm(np.eye(Q.shape[-1]) - adjoint @ Q)
    return np.asarray(np.maximum(ratios, _ratio(error, np.asarray(m * eps), legal)))


@np.errstate(all="ignore")
def svd_ratio(A: Array, U: Array, S: Array, Vh: Array) -> Ratios:
    """The largest of ||A - U S V^H|| / (max(m, n) ||A|| eps), ||I - U^H U|| / (m eps) and
    ||I - V^H V|| / (n eps) (LAPACK's xBDT01 and xUNT01 in xDRVBD).

    S that is negative or increases, or is not real, gives inf. U and V^H may be square.
    """
    eps = _eps(U)
    real = np.isrealobj(_numpy(S))
    A, U, S, Vh = _host(A), _host(U), _host(S), _host(Vh)
    m, n = A.shape[-2:]
    k = min(m, n)
    legal = (S >= 0).all(-1) & (np.diff(S, axis=-1) <= 0).all(-1) & real
    legal &= _finite(U) & _finite(Vh)
    exponent = _exponent(A)
    A, S = _ldexp(A, -exponent), _ldexp(S, -exponent[..., 0])
    residual = _norm(A - U[..., :k] * S[..., None, :] @ Vh[..., :k, :])
    left = _norm(np.eye(U.shape[-1]) - U.conj().swapaxes(-2, -1) @ U)
    right = _norm(np.eye(Vh.shape[-2]) - Vh @ Vh.conj().swapaxes(-2, -1))
    ratios = _ratio(residual, max(m, n) * eps * _norm(A), legal)
    for error, size in ((left, m), (right, n)):
        ratios = np.maximum(ratios, _ratio(error, np.asarray(size * eps), legal))
    return np.asarray(ratios)


@np.errstate(all="ignore")
def eigh_ratio(A: Array, values: Array, vectors: Array) -> Ratios:
    """The larger of ||A - V L V^H|| / (n ||A|| eps) and ||I - V^H V|| / (n eps) (LAPACK's xSYT21).

    A is a whole matrix, exactly hermitian. Values that do not ascend give inf.
    """
    eps = _eps(vectors)
    A, L, V = _host(A), _host(values), _host(vectors)
    n = A.shape[-1]
    legal = (np.diff(L) >= 0).all(-1) & _finite(L, axis=-1) & _finite(V)
    exponent = _exponent(A)
    A, L = _ldexp(A, -exponent), _ldexp(L, -exponent[..., 0])
    adjoint = V.conj().swapaxes(-2, -1)
    residual = _norm(A - V * L[..., None, :] @ adjoint)
    error = _norm(np.eye(n) - adjoint @ V)
    of_vectors = _ratio(error, np.asarray(n * eps), legal)
    return np.asarray(np.maximum(_ratio(residual, n * eps * _norm(A), legal), of_vectors))


@np.errstate(all="ignore")
def eigvalsh_ratio(A: Array, values: Array) -> Ratios:
    """max |l - l'| / (n max |l'| eps), l' the eigenvalues that NumPy finds in float64.

    A is a whole matrix, exactly hermitian. Values that do not ascend give inf.
    """
    return _values_ratio(A, values, np.linalg.eigvalsh, np.diff(_host(values)) >= 0)


@np.errstate(all="ignore")
def svdvals_ratio(A: Array, S: Array) -> Ratios:
    """max |s - s'| / (max(m, n) max s' eps), s' the singular values that NumPy finds in float64.

    S that is negative or increases gives inf.
    """
    S_host = _host(S)
    legal = (np.diff(S_host) <= 0) & (S_host[..., 1:] >= 0)
    return _values_ratio(A, S, lambda wide: np.linalg.svd(wide, compute_uv=False), legal)


def _values_ratio(
    A: Array, values: Array, exact: Callable[[Any], Any], legal: NDArray[np.bool_]
) -> Ratios:
    eps, A, found = _eps(values), _host(A), _host(values)
    exponent = _exponent(A)
    expected = exact(_ldexp(A, -exponent))
    error = np.abs(_ldexp(found, -exponent[..., 0]) - expected).max(-1, initial=0)
    allowed = max(A.shape[-2:]) * eps * np.abs(expected).max(-1, initial=0)
    return _ratio(error, allowed, legal.all(-1) & _finite(found, axis=-1))


@np.errstate(all="ignore")
def eig_ratio(A: Array, values: Array, vectors: Array) -> Ratios:
    """The larger of ||A V - V L|| / (n ||A|| eps) and |||v|| - 1| / eps (LAPACK's xGET22)."""
    eps = _eps(vectors)
    A, L, V = _host(A), _host(values), _host(vectors)
    legal = _finite(L, axis=-1) & _finite(V)
    exponent = _exponent(A)
    A, L = _ldexp(A, -exponent), _ldexp(L, -exponent[..., 0])
    residual = _norm(A @ V - V * L[..., None, :])
    lengths = np.linalg.norm(V, axis=-2)
    excess = np.abs(lengths - 1).max(-1, initial=0.0)
    of_lengths = _ratio(excess, np.asarray(eps), legal)
    return np.asarray(np.maximum(_ratio(residual, A.shape[-1] * eps * _norm(A), legal), of_lengths))


@np.errstate(all="ignore")
def inverse_ratio(A: Array, X: Array) -> Ratios:
    """||I - X A|| / (n ||A|| ||X|| eps) of a computed inverse X (LAPACK's xGET03)."""
    eps = _eps(X)
    A, X = _host(A), _host(X)
    n = A.shape[-1]
    exponent = _exponent(A)
    A, X = _ldexp(A, -exponent), _ldexp(X, exponent)
    return _ratio(_norm(np.eye(n) - X @ A), n * eps * _norm(A) * _norm(X), _finite(X))


@np.errstate(all="ignore")
def solve_ratio(A: Array, X: Array, B: Array, trans: Trans = "N", left: bool = True) -> Ratios:
    """Largest ||b - op(A) x|| / (||op(A)|| ||x|| eps) over the columns of X (LAPACK's xGET02).

    op(A) is A, A^T or A^H for ``trans`` N, T or C; ``left=False`` means X op(A) = B, judged row by
    row. X with one dimension less than A is a vector, or a batch of them. Batches broadcast.
    """
    eps = _eps(X)
    vector = X.ndim == A.ndim - 1
    A = _system(_host(A), trans, left)
    X, B = _columns(_host(X), vector, left), _columns(_host(B), vector, left)
    of_A, of_x = _exponent(A), _exponent(X, axis=-2)
    A, X, B = _ldexp(A, -of_A), _ldexp(X, -of_x), _ldexp(B, -(of_A + of_x))
    allowed = eps * _norm(A)[..., None] * np.abs(X).sum(-2)
    ratios = _ratio(np.abs(B - A @ X).sum(-2), allowed, _finite(X, axis=-2))
    return np.asarray(ratios.max(-1, initial=0.0))


@np.errstate(all="ignore")
def forward_ratio(
    A: Array, X: Array, X_true: Array, trans: Trans = "N", left: bool = True
) -> Ratios:
    """Largest ||x - x*|| rcond / (||x*|| eps) over the columns of X (LAPACK's xGET04).

    ``trans``, ``left`` and vectors are as in solve_ratio; rcond is that of op(A), from its inverse
    in float64. Here every norm is the 1-norm, where xGET04 takes the largest entry of a vector. A
    singular A supports no statement on x: the ratio is inf.
    """
    eps = _eps(X)
    vector = X.ndim == A.ndim - 1
    A = _system(_host(A), trans, left)
    X, X_true = _columns(_host(X), vector, left), _columns(_host(X_true), vector, left)
    exponent = _exponent(X_true, axis=-2)
    X, X_true = _ldexp(X, -exponent), _ldexp(X_true, -exponent)
    scaled = _ldexp(A, -_exponent(A))
    condition = np.linalg.cond(scaled, 1) if A.size else np.ones(A.shape[:-2])
    allowed = eps * np.asarray(condition)[..., None] * np.abs(X_true).sum(-2)
    ratios = _ratio(np.abs(X - X_true).sum(-2), allowed, _finite(X, axis=-2))
    return np.asarray(ratios.max(-1, initial=0.0))


@np.errstate(all="ignore")
def determinant_ratio(A: Array, det: Array) -> Ratios:
    """|det - det A| / (what a change of A by eps ||A||_2 can cause). Ours: LAPACK has no such test.

    A determinant from LU is that of a nearby A + E, and
    |det(A + E) - det A| <= prod(s_i + ||E||_2) - prod(s_i) with the singular values s_i of A
    (Ipsen and Rehman, SIAM J. Matrix Anal. Appl. 30, 2008). To first order that is Jacobi's
    d det A = det A tr(A^-1 dA), a relative error of eps sum(s_1 / s_i) <= n cond(A) eps, and covers
    the n roundings of the product. Unlike n cond(A) eps it also holds for a singular A, and is
    tight enough for a wrong sign to exceed 3, compare's bar, at a condition of 0.1 / eps
    up to n = 100.

    A determinant below the smallest normal number may be flushed to zero, one beyond the largest
    has to be infinite, with the right sign if real, without a NaN if complex. The reference is the
    product over LAPACK's LU in float64 or complex128, with a separate exponent; for results in
    double it has errors of its own of the size of the bound.
    """
    eps = _eps(det)
    limits = np.finfo(_numpy(det).dtype)
    A, det = _host(A), _host(det)
    mantissa, exponent = _determinant(A)
    log_det = np.log2(np.abs(mantissa)) + exponent
    log_bound = _log2_determinant_bound(A, eps)
    lowest = float(np.log2(float(limits.tiny)))
    shift = np.ceil(np.maximum(np.maximum(log_det, log_bound), lowest)).astype(np.int64)
    ratio = _ratio(
        np.abs(_ldexp(det, -shift) - _ldexp(mantissa, exponent - shift)),
        np.exp2(log_bound - shift) + np.exp2(lowest - shift),
        _finite(A),
    )
    infinite = np.isinf(det) & ~np.isnan(det)
    if np.isrealobj(det):
        infinite &= np.sign(det) == np.sign(mantissa)
    overflow = np.logaddexp2(log_det, log_bound) >= np.log2(float(limits.max))
    return np.where(infinite & overflow, 0.0, ratio)


@np.errstate(all="ignore")
def slogdet_ratio(A: Array, sign: Array, logabsdet: Array) -> Ratios:
    """determinant_ratio for sign * exp(logabsdet), whatever its size.

    The bound grows by the rounding of the logarithm, eps |log|det A|| |det A|. |sign| has to be 1
    within n eps, or 0 where logabsdet is -inf.
    """
    eps = _eps(logabsdet)
    A, sign, logabsdet = _host(A), _host(sign), _host(logabsdet)
    n = A.shape[-1]
    mantissa, exponent = _determinant(A)
    log_det = np.log2(np.abs(mantissa)) + exponent
    log_bound = _log2_determinant_bound(A, eps)
    shift = np.ceil(np.maximum(log_det, log_bound)).astype(np.int64)
    reference = _ldexp(mantissa, exponent - shift)
    value = np.where(sign == 0, 0.0, sign * np.exp2(logabsdet / np.log(2.0) - shift))
    rounding = np.where(reference == 0, 0.0, eps * np.log(2.0) * np.abs(log_det * reference))
    modulus = np.abs(np.abs(sign) - (logabsdet != -np.inf))
    trusted = _finite(A) & (logabsdet < np.inf)
    return np.maximum(
        _ratio(np.abs(value - reference), np.exp2(log_bound - shift) + rounding, trusted),
        _ratio(modulus, np.asarray(n * eps), trusted),
    )


@np.errstate(all="ignore")
def lstsq_ratio(A: Array, X: Array, B: Array) -> Ratios:
    """How far the columns x of X are from the least squares solutions; for well-conditioned A.

    With as many rows as columns or more, ||A^H (b - A x)|| / (sqrt(m) ||A|| ||b|| eps); with fewer
    the larger of ||b - A x|| / (sqrt(n) ||A|| ||x|| eps) and the same of what x has outside the
    rows of A, ||x - P x|| / (sqrt(n) ||x|| eps). LAPACK's xQRT17, xQRT16 and xQRT14, but in 2-norms
    (Frobenius' for A) and with the root of the size, for rounding errors add up at random (Higham,
    Mary, SIAM J. Sci. Comput. 41, 2019): in 1-norms and times the size itself x = 0 would pass for
    a matrix of 10^6 rows. X with one dimension less than A is a vector, or a batch of them.
    """
    eps = _eps(X)
    vector = X.ndim == A.ndim - 1
    A = _host(A)
    X, B = _columns(_host(X), vector, True), _columns(_host(B), vector, True)
    m, n = A.shape[-2:]
    of_A, of_b = _exponent(A), _exponent(B, axis=-2)
    A, X, B = _ldexp(A, -of_A), _ldexp(X, of_A - of_b), _ldexp(B, -of_b)
    adjoint = A.conj().swapaxes(-2, -1)
    size, trusted = np.linalg.norm(A, axis=(-2, -1))[..., None], _finite(X, axis=-2)

    def ratio(error: NDArray[Any], allowed: NDArray[Any]) -> Ratios:
        allowed = np.sqrt(max(m, n)) * eps * allowed
        ratios = _ratio(np.linalg.norm(error, axis=-2), allowed, trusted)
        return np.asarray(ratios.max(-1, initial=0.0))

    residual = B - A @ X
    if m >= n:
        return ratio(adjoint @ residual, size * np.linalg.norm(B, axis=-2))
    rows = np.linalg.qr(adjoint)[0]
    outside = X - rows @ (rows.conj().swapaxes(-2, -1) @ X)
    of_x = np.linalg.norm(X, axis=-2)
    return np.maximum(ratio(residual, size * of_x), ratio(outside, of_x))


class Matrix(NamedTuple):
    """A test matrix; ``info`` is what getrf has to return: 0, or the first zero pivot from 1."""

    name: str
    A: torch.Tensor
    info: int

    @property
    def singular(self) -> bool:
        return self.info > 0


def general(n_rows: int, n_cols: int, dtype: torch.dtype, seed: int = 0) -> Iterator[Matrix]:
    """LAPACK's 11 families of general matrices (xCHKGE, xLATB4), on the CPU, one matrix of each.

    A = c U diag(d) V in float64 or complex128, then rounded: U and V random with orthonormal
    columns and rows, shared by all families, d geometric from 1 to 1 / condition, c a power of two.
    With eps = 2^-23 (2^-52 in double) the conditions are 2, sqrt(0.1 / eps) and 0.1 / eps, and c is
    1 or, near underflow and overflow, 0.25 tiny / eps = 2^-105 (2^-972) and its reciprocal. The
    triangles are A reduced by QR, with the same d; the diagonal has random signs or phases. Columns
    that are zero count to min(m, n), as in xCHKGE, so that a wide matrix has the zero pivot too.

    Families that a small size would only repeat are left out, as in LAPACK: with fewer than 2
    columns the last column, with fewer than 3 the last half; an empty matrix is only the diagonal.

    Apple GPUs flush denormals to zero. No entry here is one (they are set to zero), so A is the
    same matrix there; but near underflow eps ||A|| is below tiny, the smallest normal number: what
    is flushed in a factorization costs up to tiny = 8 * 2^-24 c each, which the ratios then show.
    """
    limits = np.finfo(_numpy(torch.empty(0, dtype=dtype)).dtype)
    eps, tiny = float(limits.eps), float(limits.tiny)
    bad, small = 0.1 / eps, 0.25 * tiny / eps
    k = min(n_rows, n_cols)
    rng = np.random.default_rng(seed)
    U, V = _orthonormal(rng, n_rows, k, dtype), _orthonormal(rng, n_cols, k, dtype).T
    phases = _normal(rng, (k,), dtype)
    none = slice(0, 0)
    families = (
        ("diagonal", 2.0, 1.0, none),
        ("upper", 2.0, 1.0, none),
        ("lower", 2.0, 1.0, none),
        ("well_conditioned", 2.0, 1.0, none),
        ("first_column_zero", 2.0, 1.0, slice(0, 1)),
        ("last_column_zero", 2.0, 1.0, slice(k - 1, k)),
        ("last_half_zero", 2.0, 1.0, slice(k // 2, n_cols)),
        ("ill_conditioned", bad**0.5, 1.0, none),
        ("near_singular", bad, 1.0, none),
        ("near_underflow", 2.0, small, none),
        ("near_overflow", 2.0, 1.0 / small, none),
    )
    fewest_columns = {"last_column_zero": 2, "last_half_zero": 3}
    for name, condition, scale, zero in families:
        if (k == 0 and name != "diagonal") or n_cols < fewest_columns.get(name, 0):
            continue
        d = condition ** (-np.arange(k) / max(k - 1, 1))
        A = U * d @ V
        if name == "diagonal":
            A = np.eye(n_rows, k) * (d * phases / np.abs(phases)) @ np.eye(k, n_cols)
        if name == "upper":
            A = _upper(A)
        if name == "lower":
            A = _upper(A.T).T
        A[:, zero] = 0.0
        info = zero.start + 1 if zero != none else 0
        yield Matrix(name, _rounded(A * scale, dtype, tiny), info)


class Triangle(NamedTuple):
    """A triangular test matrix; ``zero`` is its first zero on the diagonal, from 1, or 0."""

    name: str
    A: torch.Tensor
    unit: bool
    zero: int


def triangular(n: int, dtype: torch.dtype, upper: bool, seed: int = 0) -> Iterator[Triangle]:
    """LAPACK's 18 families of triangular matrices (xCHKTR, xLATTR), on the CPU, one of each.

    Conditions and scales are those of ``general``. The first six have a diagonal of their own, the
    next four one of 1. The others are what xLATTR means for solvers that scale: here they are for
    right-hand sides op(A) x with x near 1, so that no solution overflows although the entries
    would let one. The other triangle is zero, the diagonal of a unit triangle 1.
    """
    limits = np.finfo(_numpy(torch.empty(0, dtype=dtype)).dtype)
    eps, tiny = float(limits.eps), float(limits.tiny)
    bad, small = 0.1 / eps, 0.25 * tiny / eps
    rng = np.random.default_rng(seed)
    phases = _normal(rng, (n,), dtype)
    phases = phases / np.abs(phases)
    noise = np.triu(_normal(rng, (n, n), dtype), 1)
    bounded = noise / np.maximum(np.abs(noise).max(initial=0.0), 1.0)

    def dense(condition: float, scale: float = 1.0) -> NDArray[Any]:
        d = condition ** (-np.arange(n) / max(n - 1, 1))
        U, V = _orthonormal(rng, n, n, dtype), _orthonormal(rng, n, n, dtype)
        return _upper(U * d @ V) * scale

    def diagonal(d: NDArray[Any], off: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(np.diag(d * phases) + off)

    # Where a solver starts: row n - 1 of an upper triangle.
    first_small = np.where(np.arange(n) == n - 1, small * 2.0**10, 1.0)
    half = n // 2
    # Beside one another, so that no rounding error is multiplied twice.
    columns = np.where(np.arange(n)[:, None] < half, bounded, 0.0) * (np.arange(n) >= half)
    singular = dense(2.0)
    singular[half : half + 1, half : half + 1] = 0.0
    families = (
        ("diagonal", False, diagonal(2.0 ** (-np.arange(n) / max(n - 1, 1)), 0.0 * noise)),
        ("well_conditioned", False, dense(2.0)),
        ("ill_conditioned", False, dense(bad**0.5)),
        ("near_singular", False, dense(bad)),
        ("near_underflow", False, dense(2.0, small)),
        ("near_overflow", False, dense(2.0, 1.0 / small)),
        ("identity", True, np.eye(n) + 0.0 * noise),
        ("unit_well_conditioned", True, _unit_triangle(noise, 2.0)),
        ("unit_ill_conditioned", True, _unit_triangle(noise, bad**0.5)),
        ("unit_near_singular", True, _unit_triangle(noise, bad)),
        ("diagonal_of_2", False, diagonal(np.full(n, 2.0), bounded)),
        ("first_divisor_small", False, diagonal(first_small, bounded / max(n, 1))),
        ("first_divisor_small_large_columns", False, diagonal(first_small, bounded)),
        ("small_diagonal", False, diagonal(np.full(n, small * 2.0**10), 0.0 * noise)),
        ("growth", False, diagonal(np.full(n, 2.0 ** (-100 / (n + 3))), np.eye(n, k=1))),
        ("zero_on_diagonal", False, singular),
        ("large_columns", False, diagonal(np.ones(n), columns * 2.0**-20 / small)),
        ("large", False, diagonal(np.full(n, 2.0), bounded) / small),
    )
    for name, unit, A in families:
        made = _rounded(A if upper else A[::-1, ::-1].copy(), dtype, tiny)
        zero = (half if upper else n - 1 - half) + 1 if A is singular and n != 0 else 0
        yield Triangle(name, made, unit, zero)


def positive_definite(n: int, dtype: torch.dtype, seed: int = 0) -> Iterator[Matrix]:
    """LAPACK's 9 families of hermitian positive definite matrices (xCHKPO, xLATB4), on the CPU.

    A = c U diag(d) U^H in float64 or complex128, then rounded, exactly hermitian; U, d and c as in
    ``general``. Rows and columns that are zero leave a matrix that is not definite: ``info`` is
    what potrf has to return. Families that a small size would only repeat are left out.
    """
    limits = np.finfo(_numpy(torch.empty(0, dtype=dtype)).dtype)
    eps, tiny = float(limits.eps), float(limits.tiny)
    bad, small = 0.1 / eps, 0.25 * tiny / eps
    U = _orthonormal(np.random.default_rng(seed), n, n, dtype)
    families = (
        ("diagonal", 2.0, 1.0, None),
        ("well_conditioned", 2.0, 1.0, None),
        ("first_row_zero", 2.0, 1.0, 0),
        ("last_row_zero", 2.0, 1.0, n - 1),
        ("middle_row_zero", 2.0, 1.0, n // 2),
        ("ill_conditioned", bad**0.5, 1.0, None),
        ("near_singular", bad, 1.0, None),
        ("near_underflow", 2.0, small, None),
        ("near_overflow", 2.0, 1.0 / small, None),
    )
    fewest_rows = {"last_row_zero": 2, "middle_row_zero": 3}
    for name, condition, scale, zero in families:
        if (n == 0 and name != "diagonal") or n < fewest_rows.get(name, 0):
            continue
        d = condition ** (-np.arange(n) / max(n - 1, 1))
        A = np.diag(d) if name == "diagonal" else U * d @ U.conj().T
        A = (A + A.conj().T) / 2
        if zero is not None:
            A[zero], A[:, zero] = 0.0, 0.0
        yield Matrix(name, _rounded(A * scale, dtype, tiny), 0 if zero is None else zero + 1)


def hermitian(n: int, dtype: torch.dtype, seed: int = 0) -> Iterator[Matrix]:
    """LAPACK's 18 families of symmetric and Hermitian eigenproblems (xDRVST), on the CPU, one each.

    Zero; the identity; diagonal and dense matrices, U diag(d) U^H, with d of random signs, from 1
    to eps evenly, geometrically, or clustered: 1 and all others eps; random and band matrices.
    Where near over- or underflow they are multiplied by the square root of the range, up or down.
    Entries of the random ones are normal; the band ones are a quarter of the diagonals of dense
    ones. ``info`` is 0.
    """
    limits = np.finfo(_numpy(torch.empty(0, dtype=dtype)).dtype)
    eps, tiny = float(limits.eps), float(limits.tiny)
    large, small = tiny**-0.5, tiny**0.5
    rng = np.random.default_rng(seed)
    U = _orthonormal(rng, n, n, dtype)
    signs = rng.choice((-1.0, 1.0), n)
    steps = np.arange(n) / max(n - 1, 1)
    arithmetic, geometric = signs * (1 - steps * (1 - eps)), signs * eps**steps
    clustered = signs * np.where(np.arange(n) == 0, 1.0, eps)
    normal = _normal(rng, (n, n), dtype)
    bound = np.abs(np.subtract.outer(np.arange(n), np.arange(n))) <= n // 4

    def dense(d: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(U * d @ U.conj().T)

    families = (
        ("zero", np.zeros((n, n))),
        ("identity", np.eye(n)),
        ("diagonal_arithmetic", np.diag(arithmetic)),
        ("diagonal_geometric", np.diag(geometric)),
        ("diagonal_clustered", np.diag(clustered)),
        ("diagonal_near_overflow", np.diag(geometric) * large),
        ("diagonal_near_underflow", np.diag(geometric) * small),
        ("arithmetic", dense(arithmetic)),
        ("geometric", dense(geometric)),
        ("clustered", dense(clustered)),
        ("near_overflow", dense(arithmetic) * large),
        ("near_underflow", dense(arithmetic) * small),
        ("random", normal),
        ("random_near_overflow", normal * large),
        ("random_near_underflow", normal * small),
        ("band_arithmetic", dense(arithmetic) * bound),
        ("band_near_overflow", dense(arithmetic) * bound * large),
        ("band_near_underflow", dense(arithmetic) * bound * small),
    )
    for name, A in families:
        A = np.asarray(A, U.dtype)
        yield Matrix(name, _rounded((A + A.conj().T) / 2, dtype, tiny), 0)


def nonsymmetric(n: int, dtype: torch.dtype, seed: int = 0) -> Iterator[Matrix]:
    """LAPACK's 21 families of nonsymmetric eigenproblems (xDRVEV, xLATME), on the CPU, one each.

    Zero; the identity; a transposed Jordan block of ones; diagonal matrices d; U^H T U and X^-1 T X
    for unitary U, X of condition 1 / sqrt(eps) and triangular T with d on the diagonal and normal
    entries above; normal matrices, and such with first column, first two rows, last two columns and
    last row zero. d has random signs and is spaced from 1 to eps evenly, geometrically, or 1 and
    all others eps, or it is random: of modulus 1, in conjugate pairs if real. Some also near over-
    and underflow. ``info`` is 0.
    """
    limits = np.finfo(_numpy(torch.empty(0, dtype=dtype)).dtype)
    eps, tiny = float(limits.eps), float(limits.tiny)
    large, small = eps / tiny, tiny / eps
    rng = np.random.default_rng(seed)
    signs = rng.choice((-1.0, 1.0), n)
    steps = np.arange(n) / max(n - 1, 1)
    arithmetic, geometric = signs * (1 - steps * (1 - eps)), signs * eps**steps
    clustered = signs * np.where(np.arange(n) == 0, 1.0, eps)
    U, W = (_orthonormal(rng, n, n, dtype) for _ in range(2))
    X = U * eps ** (steps / 2) @ W

    def triangle(d: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(np.diag(d) + np.triu(_normal(rng, (n, n), dtype), 1))

    def circle() -> NDArray[Any]:
        angles = rng.uniform(0, 2 * np.pi, n)
        if dtype.is_complex:
            return triangle(np.exp(1j * angles))
        T = triangle(np.cos(angles))
        for k in range(0, n - 1, 2):
            T[k + 1, k + 1] = T[k, k]
            T[k, k + 1], T[k + 1, k] = np.sin(angles[k]), -np.sin(angles[k])
        return T

    def alike(T: NDArray[Any]) -> NDArray[Any]:
        similar: NDArray[Any] = np.linalg.solve(X, T @ X)
        return similar

    normal, bordered = (_normal(rng, (n, n), dtype) for _ in range(2))
    skewed = alike(circle())
    if n >= 4:
        bordered[:2], bordered[-1], bordered[:, 0], bordered[:, -2:] = 0, 0, 0, 0
    families = (
        ("zero", np.zeros((n, n))),
        ("identity", np.eye(n)),
        ("jordan", np.eye(n) + np.eye(n, k=-1)),
        ("diagonal_arithmetic", np.diag(arithmetic)),
        ("diagonal_geometric", np.diag(geometric)),
        ("diagonal_clustered", np.diag(clustered)),
        ("diagonal_near_overflow", np.diag(arithmetic) * large),
        ("diagonal_near_underflow", np.diag(arithmetic) * small),
        ("unitary_arithmetic", U.conj().T @ triangle(arithmetic) @ U),
        ("unitary_geometric", U.conj().T @ triangle(geometric) @ U),
        ("unitary_clustered", U.conj().T @ triangle(clustered) @ U),
        ("unitary_circle", U.conj().T @ circle() @ U),
        ("skewed_arithmetic", alike(triangle(arithmetic))),
        ("skewed_geometric", alike(triangle(geometric))),
        ("skewed_clustered", alike(triangle(clustered))),
        ("skewed_circle", skewed),
        ("skewed_near_overflow", skewed * (large * eps)),
        ("skewed_near_underflow", skewed * small),
        ("random", normal),
        ("random_near_overflow", normal * large),
        ("bordered_near_underflow", bordered * small),
    )
    for name, A in families:
        yield Matrix(name, _rounded(np.asarray(A, U.dtype), dtype, tiny), 0)


def full_rank(n_rows: int, n_cols: int, dtype: torch.dtype, seed: int = 0) -> Iterator[Matrix]:
    """LAPACK's 8 families of matrices for QR (xCHKQR, xLATB4), on the CPU, one of each.

    Those of ``general`` without columns of zeros; ``info`` is 0. Every matrix has a QR
    factorization.
    """
    for matrix in general(n_rows, n_cols, dtype, seed):
        if matrix.info == 0:
            yield matrix


def singular_values(
    n_rows: int, n_cols: int, dtype: torch.dtype, seed: int = 0
) -> Iterator[Matrix]:
    """LAPACK's 5 families of matrices for the SVD (xDRVBD), on the CPU, one of each.

    Zero, the identity, and U D V with random U and V and singular values evenly spaced from 1 to
    eps, also at scales of tiny / eps and its reciprocal; eps = 2^-23 (2^-52 in double). No entry is
    a denormal.
    """
    limits = np.finfo(_numpy(torch.empty(0, dtype=dtype)).dtype)
    eps, tiny = float(limits.eps), float(limits.tiny)
    k = min(n_rows, n_cols)
    rng = np.random.default_rng(seed)
    U, V = _orthonormal(rng, n_rows, k, dtype), _orthonormal(rng, n_cols, k, dtype).T
    even = U * np.linspace(1.0, eps, k) @ V
    for name, A, scale in (
        ("zero", np.zeros_like(even), 1.0),
        ("identity", np.eye(n_rows, n_cols), 1.0),
        ("even", even, 1.0),
        ("near_underflow", even, tiny / eps),
        ("near_overflow", even, eps / tiny),
    ):
        yield Matrix(name, _rounded(A * scale, dtype, tiny), 0)


def _mirrored(A: NDArray[Any], hermitian: bool) -> NDArray[Any]:
    """The symmetric or Hermitian matrix with this lower triangle."""
    below = np.tril(A, -1).swapaxes(-2, -1)
    diagonal = A * np.eye(A.shape[-1])
    if hermitian:
        below, diagonal = below.conj(), diagonal.real
    return np.asarray(np.tril(A, -1) + below + diagonal)


def _times_blocks(L: NDArray[Any], D: NDArray[Any]) -> NDArray[Any]:
    """L D for a tridiagonal D."""
    product: NDArray[Any] = L * np.diagonal(D)
    product[:, :-1] += L[:, 1:] * np.diagonal(D, -1)
    product[:, 1:] += L[:, :-1] * np.diagonal(D, 1)
    return product


def _unpacked(
    LD: NDArray[Any], pivots: NDArray[Any], hermitian: bool
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64], bool]:
    """L with its rows in their last order, D, the row of A in each place, and whether all of it is
    what sytrf can return.
    """
    n = len(LD)
    L, D, order = np.tril(LD, -1) + np.eye(n), np.zeros_like(LD), np.arange(n)
    k = 0
    while k < n:
        pivot, last = int(pivots[k]), k if pivots[k] > 0 else k + 1
        other = abs(pivot) - 1
        if not last <= other < n or int(pivots[min(last, n - 1)]) != pivot:
            return L, D, order, False
        D[k, k] = LD[k, k]
        if last > k:
            D[last, last], D[last, k], L[last, k] = LD[last, last], LD[last, k], 0
            D[k, last] = D[last, k].conj() if hermitian else D[last, k]
        swap, swapped = [last, other], [other, last]
        L[swap, :k] = L[swapped, :k]
        order[swap] = order[swapped]
        k = last + 1
    return L, D, order, True


def random(shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Normally distributed entries of variance 1 (complex: circular), on the CPU."""
    return torch.from_numpy(_normal(np.random.default_rng(seed), tuple(shape), dtype)).to(dtype)


def _numpy(A: Array) -> NDArray[Any]:
    return A.numpy(force=True) if isinstance(A, torch.Tensor) else np.asarray(A)


def _host(A: Array) -> NDArray[Any]:
    A = _numpy(A)
    return A.astype(np.complex128 if np.iscomplexobj(A) else np.float64)


def _eps(computed: Array) -> float:
    return float(np.finfo(_numpy(computed).dtype).eps) / 2


def _norm(A: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(np.abs(A).sum(-2).max(-1, initial=0.0), np.float64)


def _finite(A: NDArray[Any], axis: int | tuple[int, int] = (-2, -1)) -> NDArray[np.bool_]:
    return np.asarray(np.isfinite(A).all(axis))


def _exponent(A: NDArray[Any], axis: int | tuple[int, ...] = (-2, -1)) -> NDArray[np.int64]:
    """e with 2^(e-1) <= max |Re|, |Im| < 2^e: products with 2^-e A neither over- nor underflow."""
    largest = np.maximum(np.abs(A.real), np.abs(A.imag)).max(axis, initial=0.0, keepdims=True)
    return np.asarray(np.frexp(largest)[1], np.int64)


def _ldexp(A: NDArray[Any], exponent: NDArray[np.int64]) -> NDArray[Any]:
    if np.isrealobj(A):
        return np.asarray(np.ldexp(A, exponent))
    scaled = np.empty(np.broadcast_shapes(A.shape, exponent.shape), np.complex128)
    scaled.real, scaled.imag = np.ldexp(A.real, exponent), np.ldexp(A.imag, exponent)
    return scaled


def _ratio(error: NDArray[Any], allowed: NDArray[Any], trusted: NDArray[np.bool_]) -> Ratios:
    """error / allowed; inf where not finite or not trusted (BLAS may skip a NaN times zero)."""
    ratio = np.where(error == 0, 0.0, error / allowed)
    return np.where(trusted & np.isfinite(error) & np.isfinite(allowed), ratio, np.inf)


def _permutation(pivots: NDArray[Any], m: int) -> NDArray[np.int64]:
    """Row order that the swaps i <-> pivots[i] - 1, in turn, lead to."""
    rows = np.tile(np.arange(m), (*pivots.shape[:-1], 1))
    for i in range(pivots.shape[-1]):
        other = pivots[..., i, None].astype(np.int64) - 1
        moved = np.take_along_axis(rows, other, -1)
        np.put_along_axis(rows, other, rows[..., i, None], -1)
        rows[..., i, None] = moved
    return rows


def _system(A: NDArray[Any], trans: Trans, left: bool) -> NDArray[Any]:
    """The matrix M of M x = b: X op(A) = B is op(A)^T X^T = B^T."""
    if trans not in ("N", "T", "C"):
        raise ValueError(f"trans must be 'N', 'T' or 'C', but got {trans!r}")
    if trans == "C":
        A = A.conj()
    return A.swapaxes(-2, -1) if (trans != "N") == left else A


def _columns(X: NDArray[Any], vector: bool, left: bool) -> NDArray[Any]:
    if vector:
        return X[..., None]
    return X if left else X.swapaxes(-2, -1)


def _determinant(A: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Mantissa and exponent of det A, from LU; anything for a matrix that is not finite."""
    n = A.shape[-1]
    of_A = _exponent(A)
    scaled = np.where(np.isfinite(A), _ldexp(A, -of_A), 0.0)
    (getrf,) = scipy.linalg.get_lapack_funcs(("getrf",), dtype=A.dtype)
    mantissa = np.ones(A.shape[:-2], A.dtype)
    exponent = n * of_A[..., 0, 0]
    if n:
        factors = np.empty((*A.shape[:-2], n), A.dtype)
        for index in np.ndindex(A.shape[:-2]):
            LU, pivots, _ = getrf(scaled[index])
            factors[index] = np.diagonal(LU) * np.where(pivots == np.arange(n), 1.0, -1.0)
        for i in range(n):
            mantissa = mantissa * factors[..., i]
            carry = _exponent(mantissa, axis=())
            mantissa, exponent = _ldexp(mantissa, -carry), exponent + carry
    return mantissa, exponent


def _log2_determinant_bound(A: NDArray[Any], eps: float) -> NDArray[np.float64]:
    """log2 of prod(s_i + delta) - prod(s_i), delta = eps s_1; anything if A is not finite."""
    of_A = _exponent(A)
    s = np.linalg.svd(np.where(np.isfinite(A), _ldexp(A, -of_A), 0.0), compute_uv=False)
    # Not 0 for a zero matrix, whose bound would be 0 / 0.
    delta = np.maximum(eps * s.max(-1, initial=0.0, keepdims=True), np.finfo(np.float64).tiny)
    share = -np.expm1(-np.log1p(delta / s).sum(-1))
    scale = A.shape[-1] * of_A[..., 0, 0]
    return np.asarray(np.log2(s + delta).sum(-1) + np.log2(share) + scale, np.float64)


def _normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> NDArray[Any]:
    if dtype.is_complex:
        return np.asarray(
            (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)) / np.sqrt(2.0)
        )
    return np.asarray(rng.standard_normal(shape))


def _orthonormal(rng: np.random.Generator, m: int, k: int, dtype: torch.dtype) -> NDArray[Any]:
    """k orthonormal columns, uniformly distributed once R's diagonal is made positive."""
    Q, R = np.linalg.qr(_normal(rng, (m, k), dtype))
    diagonal = np.diagonal(R)
    return np.asarray(Q * (diagonal / np.abs(diagonal)))


def _unit_triangle(noise: NDArray[Any], condition: float) -> NDArray[Any]:
    """1 + s N for a strictly upper N, with s such that the condition is what is asked for."""
    identity = np.eye(len(noise))
    low, high = 0.0, 4.0
    for _ in range(12 if noise.any() else 0):
        middle = (low + high) / 2
        enough = np.linalg.cond(identity + middle * noise, 1) >= condition
        low, high = (low, middle) if enough else (middle, high)
    return np.asarray(identity + low * noise)


def _upper(A: NDArray[Any]) -> NDArray[Any]:
    upper = np.zeros_like(A)
    upper[: min(A.shape)] = np.linalg.qr(A, mode="r")
    return upper


def _rounded(A: NDArray[Any], dtype: torch.dtype, tiny: float) -> torch.Tensor:
    rounded = torch.from_numpy(np.ascontiguousarray(A)).to(dtype)
    parts = torch.view_as_real(rounded) if dtype.is_complex else rounded
    parts[parts.abs() < tiny] = 0.0
    return rounded
