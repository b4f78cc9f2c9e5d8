"""LAPACK in the precision of its input, through SciPy: what our results are held against.

Every function takes a batch, (*, m, n), as a tensor on any device, and loops over its matrices.
"""

from typing import Any, Literal, TypeAlias

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from torch import Tensor

Array: TypeAlias = NDArray[Any]
Trans: TypeAlias = Literal["N", "T", "C"]

TRANS: tuple[Trans, ...] = ("N", "T", "C")


def getrf(A: Tensor) -> tuple[Array, Array, Array]:
    """LU, pivots counted from 1, and info."""
    a = A.numpy(force=True)
    (routine,) = scipy.linalg.get_lapack_funcs(("getrf",), (a,))
    *batch, m, n = a.shape
    LU = np.empty_like(a)
    pivots = np.empty((*batch, min(m, n)), np.int32)
    info = np.empty(batch, np.int32)
    for i in np.ndindex(*batch):
        LU[i], swaps, info[i] = routine(a[i])
        pivots[i] = swaps + 1
    return LU, pivots, info


def getrs(LU: Array, pivots: Array, B: Tensor, trans: Trans = "N") -> Array:
    """X of op(A) X = B from the results of getrf."""
    b = B.numpy(force=True)
    (routine,) = scipy.linalg.get_lapack_funcs(("getrs",), (b,))
    X = np.empty_like(b)
    for i in np.ndindex(*b.shape[:-2]):
        X[i], _ = routine(LU[i], pivots[i] - 1, b[i], trans=TRANS.index(trans))
    return X


def getri(LU: Array, pivots: Array) -> Array:
    """A^-1 from the results of getrf."""
    (routine,) = scipy.linalg.get_lapack_funcs(("getri",), (LU,))
    X = np.empty_like(LU)
    for i in np.ndindex(*LU.shape[:-2]):
        X[i], _ = routine(LU[i], pivots[i] - 1)
    return X


def trtrs(A: Tensor, B: Tensor, upper: bool, unit: bool, trans: Trans = "N") -> Array:
    """X of op(A) X = B for triangular A."""
    a, b = A.numpy(force=True), B.numpy(force=True)
    (routine,) = scipy.linalg.get_lapack_funcs(("trtrs",), (a, b))
    X = np.empty_like(b)
    for i in np.ndindex(*b.shape[:-2]):
        X[i], _ = routine(a[i], b[i], lower=not upper, trans=TRANS.index(trans), unitdiag=unit)
    return X


def potrf(A: Tensor, upper: bool) -> tuple[Array, Array]:
    """The Cholesky factor, zero in the other triangle, and info."""
    a = A.numpy(force=True)
    (routine,) = scipy.linalg.get_lapack_funcs(("potrf",), (a,))
    L = np.empty_like(a)
    info = np.empty(a.shape[:-2], np.int32)
    for i in np.ndindex(*a.shape[:-2]):
        L[i], info[i] = routine(a[i], lower=not upper, clean=True)
    return L, info


def potrs(L: Array, B: Tensor, upper: bool) -> Array:
    """X of A X = B from the factor of potrf."""
    b = B.numpy(force=True)
    (routine,) = scipy.linalg.get_lapack_funcs(("potrs",), (L, b))
    X = np.empty_like(b)
    for i in np.ndindex(*b.shape[:-2]):
        X[i], _ = routine(L[i], b[i], lower=not upper)
    return X


def potri(L: Array, upper: bool) -> Array:
    """A^-1, both triangles, from the factor of potrf."""
    (routine,) = scipy.linalg.get_lapack_funcs(("potri",), (L,))
    X = np.empty_like(L)
    for i in np.ndindex(*L.shape[:-2]):
        half, _ = routine(L[i], lower=not upper)
        half = np.triu(half) if upper else np.tril(half)
        X[i] = half + np.triu(half, 1).conj().T + np.tril(half, -1).conj().T
    return X


def sytrf(A: Tensor, hermitian: bool = False) -> tuple[Array, Array, Array]:
    """LD of the lower triangle, pivots and info."""
    a = A.numpy(force=True)
    name = "hetrf" if hermitian and A.is_complex() else "sytrf"
    (routine,) = scipy.linalg.get_lapack_funcs((name,), (a,))
    LD = np.empty_like(a)
    pivots = np.empty(a.shape[:-1], np.int32)
    info = np.empty(a.shape[:-2], np.int32)
    for i in np.ndindex(*a.shape[:-2]):
        LD[i], pivots[i], info[i] = routine(np.tril(a[i]), lower=1)
    return LD, pivots, info


def sytrs(LD: Array, pivots: Array, B: Tensor, hermitian: bool = False) -> Array:
    """X of A X = B from the results of sytrf."""
    b = B.numpy(force=True)
    name = "hetrs" if hermitian and B.is_complex() else "sytrs"
    (routine,) = scipy.linalg.get_lapack_funcs((name,), (b,))
    X = np.empty_like(b)
    for i in np.ndindex(*b.shape[:-2]):
        X[i], _ = routine(LD[i], pivots[i], b[i], lower=1)
    return X


def qr(A: Tensor, mode: str = "reduced") -> tuple[Array, Array]:
    """Q and R of A = Q R; "complete" for all columns of Q."""
    a = A.numpy(force=True)
    *batch, m, n = a.shape
    k = m if mode == "complete" else min(m, n)
    Q, R = np.empty((*batch, m, k), a.dtype), np.empty((*batch, k, n), a.dtype)
    for i in np.ndindex(*batch):
        Q[i], R[i] = scipy.linalg.qr(a[i], mode="full" if mode == "complete" else "economic")
    return Q, R


def svd(A: Tensor, full: bool = True) -> tuple[Array, Array, Array]:
    """U, S and V^H by gesdd."""
    a = A.numpy(force=True)
    *batch, m, n = a.shape
    k = min(m, n)
    U, Vh = (
        np.empty((*batch, *s), a.dtype) for s in ((m, m if full else k), (n if full else k, n))
    )
    S = np.empty((*batch, k), a.real.dtype)
    for i in np.ndindex(*batch):
        U[i], S[i], Vh[i] = scipy.linalg.svd(a[i], full_matrices=full)
    return U, S, Vh


def jacobi_values(A: Tensor) -> Array:
    """Singular values by dgejsv, right to their last digits where columns are graded.

    Those of a complex A are every other one of [[Re A, -Im A], [Im A, Re A]].
    """
    a = A.numpy(force=True).astype(np.complex128 if A.is_complex() else np.float64)
    if A.is_complex():
        a = np.block([[a.real, -a.imag], [a.imag, a.real]])
    S, _, _, work, _, info = scipy.linalg.lapack.dgejsv(a, joba=0, jobu=3, jobv=3, jobr=0, jobt=0)
    assert info == 0
    return np.asarray(S[:: 2 if A.is_complex() else 1] * (work[0] / work[1]))


def geqrf(A: Tensor) -> tuple[Array, Array]:
    """R with the reflectors below it, and tau."""
    a = A.numpy(force=True)
    (routine,) = scipy.linalg.get_lapack_funcs(("geqrf",), (a,))
    *batch, m, n = a.shape
    factor, tau = np.empty_like(a), np.empty((*batch, min(m, n)), a.dtype)
    for i in np.ndindex(*batch):
        factor[i], tau[i], *_ = routine(a[i])
    return factor, tau


def orgqr(factor: Array, tau: Array) -> Array:
    """Q of the results of geqrf, with as many columns as reflectors."""
    name = "ungqr" if np.iscomplexobj(factor) else "orgqr"
    (routine,) = scipy.linalg.get_lapack_funcs((name,), (factor,))
    Q = np.empty((*factor.shape[:-1], tau.shape[-1]), factor.dtype)
    for i in np.ndindex(*factor.shape[:-2]):
        Q[i], *_ = routine(factor[i][:, : tau.shape[-1]], tau[i])
    return Q


def gels(A: Tensor, B: Tensor) -> Array:
    """X that minimises ||A X - B||, of all X the smallest."""
    a, b = A.numpy(force=True), B.numpy(force=True)
    m, n = a.shape[-2:]
    (routine,) = scipy.linalg.get_lapack_funcs(("gels",), (a,))
    X = np.empty((*b.shape[:-2], n, b.shape[-1]), b.dtype)
    for i in np.ndindex(*b.shape[:-2]):
        padded = np.zeros((max(m, n), b.shape[-1]), b.dtype)
        padded[:m] = b[i]
        _, solution, _ = routine(a[i], padded)
        X[i] = solution[:n]
    return X


def minimum_norm(A: Tensor, B: Tensor, rcond: float, driver: str) -> tuple[Array, list[int]]:
    """Of all X that minimise ||A X - B|| the smallest, and ranks, by gelsy, gelsd or gelss.

    The routines themselves take any rcond, and nobody squares the residuals, which may overflow.
    Torch passes gelsy an order of columns that nobody set.
    """
    a, b = A.numpy(force=True), B.numpy(force=True)
    *batch, m, n = a.shape
    k = b.shape[-1]
    routine, lwork = scipy.linalg.get_lapack_funcs((driver, f"{driver}_lwork"), (a, b))
    query = (m, n, k, rcond) if driver == "gelsy" else (m, n, k)
    sizes = [int(size.real) for size in lwork(*query)[:-1]]
    X, ranks = np.empty((*batch, n, k), b.dtype), []
    for i in np.ndindex(*batch):
        padded = np.zeros((max(m, n), k), b.dtype)
        padded[:m] = b[i]
        if driver == "gelsy":
            _, x, _, rank, info = routine(a[i], padded, np.zeros((n, 1), np.int32), rcond, *sizes)
        elif driver == "gelsd":
            x, _, rank, info = routine(a[i], padded, *sizes, cond=rcond)
        else:
            _, x, _, rank, _, info = routine(a[i], padded, rcond, *sizes)
        assert info == 0
        X[i] = x[:n]
        ranks.append(int(rank))
    return X, ranks


def eigh(A: Tensor) -> tuple[Array, Array]:
    """Ascending eigenvalues, and eigenvectors, of the lower triangle, by syevd or heevd."""
    a = A.numpy(force=True)
    values, vectors = np.empty(a.shape[:-1], a.real.dtype), np.empty_like(a)
    for i in np.ndindex(*a.shape[:-2]):
        if a.shape[-1] != 0:
            values[i], vectors[i] = scipy.linalg.eigh(a[i], driver="evd")
    return values, vectors


def eig(A: Tensor) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of general matrices by geev.

    Matrices are scaled by a power of two first: OpenBLAS's geev returns eigenvalues without their
    scale where the largest entry of a single precision matrix is not within 1e-12 ... 1e12.
    """
    a = A.numpy(force=True)
    complex_type = np.result_type(a.dtype, np.complex64)
    values, vectors = np.empty(a.shape[:-1], complex_type), np.empty(a.shape, complex_type)
    for i in np.ndindex(*a.shape[:-2]):
        if a.shape[-1] != 0:
            _, exponent = np.frexp(np.abs(a[i]).max())
            step = np.ldexp(np.ones((), a.real.dtype), exponent // 2)
            scaled = a[i] / step / np.ldexp(np.ones_like(step), exponent - exponent // 2)
            L, vectors[i] = scipy.linalg.eig(scaled)
            values[i] = L * step * np.ldexp(np.ones_like(step), exponent - exponent // 2)
    return values, vectors


def qr_pivoted(A: Tensor, mode: str = "reduced") -> tuple[Array, Array, Array]:
    """Q, R and the order of the columns of one matrix."""
    kind: Any = "full" if mode == "complete" else "economic"
    Q, R, P = scipy.linalg.qr(A.numpy(force=True), mode=kind, pivoting=True)
    return Q, R, P
