"""LAPACK's test ratios for the bench: those of mpslinalg.testing, but of large matrices on the GPU.

One ratio of a matrix of 4096 takes the host seconds. From LARGE_N on, the products of the residual
are therefore float64 products of torch on the GPU that holds the result: the formulas are the same,
without the powers of two that keep extreme entries from overflow, which the bench has none of. An
Apple GPU has no float64, and leaves all of it to the host.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from mpslinalg import testing

LARGE_N = 1024


def _allowed(of_real: float, of_complex: float) -> Callable[[int, torch.dtype], float]:
    """LAPACK's threshold, or three times what LAPACK itself reaches where that is more.

    Its tests stop at n = 132, but the ratio of a solution has no n in its denominator, and grows:
    LAPACK's own is about this much times sqrt(n), for random matrices and n right-hand sides.
    """

    def allowed(n: int, dtype: torch.dtype) -> float:
        own = (of_complex if dtype.is_complex else of_real) * math.sqrt(n)
        return max(testing.LU_THRESHOLD, testing.ALLOWED_FACTOR * own)

    return allowed


# OpenBLAS at n = 512, 1024, 2048, 4096: sgesv 4.4, 7.1, 9.8, 12.3, cgesv 8.4, 12.5, 17.9, 24.1.
solve_allowed = _allowed(0.22, 0.39)
# ssysv 5.7, 9.0, 13.6, csysv 10.9, 16.6, 25.2 at n = 512, 1024, 2048.
ldl_solve_allowed = _allowed(0.30, 0.55)


def _on_gpu(A: Tensor) -> bool:
    return A.is_cuda and min(A.shape[-2:]) >= LARGE_N


def wide(A: Tensor) -> Tensor:
    """In double precision; of an Apple GPU on the host."""
    A = A.cpu() if A.device.type == "mps" else A
    return A.to(torch.complex128 if A.is_complex() else torch.float64)


def _sums(A: Tensor) -> Tensor:
    """The 1-norm of each column."""
    return A.abs().sum(-2)


def _norm(A: Tensor) -> Tensor:
    return _sums(A).amax(-1)


def _eps(computed: Tensor) -> float:
    return torch.finfo(computed.dtype).eps / 2


def _worst(*ratios: Tensor) -> float:
    """NaN where one is."""
    return float(torch.cat([ratio.flatten() for ratio in ratios]).amax())


def _departure(Q: Tensor) -> Tensor:
    """||I - Q^H Q||."""
    return _norm(Q.mH @ Q - torch.eye(Q.shape[-1], dtype=Q.dtype, device=Q.device))


def lu_ratio(A: Tensor, LU: Tensor, pivots: Tensor) -> float:
    """testing.lu_ratio, the worst of the batch."""
    if not _on_gpu(A):
        return float(testing.lu_ratio(A, LU, pivots).max())
    A, (P, L, U) = wide(A), torch.lu_unpack(wide(LU), pivots)
    # The rows of a column may be added in any order.
    return _worst(_norm(P @ (L @ U) - A) / (A.shape[-1] * _eps(LU) * _norm(A)))


def cholesky_ratio(A: Tensor, L: Tensor) -> float:
    """testing.cholesky_ratio, the worst of the batch."""
    if not _on_gpu(A):
        return float(testing.cholesky_ratio(A, L).max())
    allowed = A.shape[-1] * _eps(L)
    A, L = wide(A), wide(L)
    return _worst(_norm(L @ L.mH - A) / (allowed * _norm(A)))


def solve_ratio(A: Tensor, X: Tensor, B: Tensor) -> float:
    """testing.solve_ratio, the worst of the batch."""
    if not _on_gpu(A):
        return float(testing.solve_ratio(A, X, B).max())
    eps = _eps(X)
    A, X, B = wide(A), wide(X), wide(B)
    return _worst(_sums(B - A @ X) / (_norm(A)[..., None] * _sums(X) * eps))


def inverse_ratio(A: Tensor, X: Tensor) -> float:
    """testing.inverse_ratio, the worst of the batch."""
    if not _on_gpu(A):
        return float(testing.inverse_ratio(A, X).max())
    allowed = A.shape[-1] * _eps(X)
    A, X = wide(A), wide(X)
    error = _norm(X @ A - torch.eye(A.shape[-1], dtype=A.dtype, device=A.device))
    return _worst(error / (allowed * _norm(A) * _norm(X)))


def qr_ratio(A: Tensor, Q: Tensor, R: Tensor) -> float:
    """testing.qr_ratio, the worst of the batch."""
    if not _on_gpu(A):
        return float(testing.qr_ratio(A, Q, R).max())
    if R.tril(-1).any() or (R.is_complex() and R.diagonal(dim1=-2, dim2=-1).imag.any()):
        return math.inf
    size = A.shape[-2] * _eps(Q)
    A, Q, R = wide(A), wide(Q), wide(R)
    return _worst(_sums(R - Q.mH @ A) / (size * _sums(A)), _departure(Q) / size)


def eigh_ratio(A: Tensor, values: Tensor, vectors: Tensor) -> float:
    """testing.eigh_ratio, the worst of the batch."""
    if not _on_gpu(A):
        return float(testing.eigh_ratio(A, values, vectors).max())
    if not (values.diff() >= 0).all():
        return math.inf
    size = A.shape[-1] * _eps(vectors)
    A, L, V = wide(A), wide(values), wide(vectors)
    return _worst(_norm(A - V * L[..., None, :] @ V.mH) / (size * _norm(A)), _departure(V) / size)


def svd_ratio(A: Tensor, U: Tensor, S: Tensor, Vh: Tensor) -> float:
    """testing.svd_ratio, the worst of the batch."""
    if not _on_gpu(A):
        return float(testing.svd_ratio(A, U, S, Vh).max())
    if not ((S >= 0).all() and (S.diff() <= 0).all()):
        return math.inf
    eps, (m, n) = _eps(U), A.shape[-2:]
    A, U, S, Vh = wide(A), wide(U), wide(S), wide(Vh)
    residual = _norm(A - U * S[..., None, :] @ Vh) / (max(m, n) * eps * _norm(A))
    return _worst(residual, _departure(U) / (m * eps), _departure(Vh.mH) / (n * eps))
