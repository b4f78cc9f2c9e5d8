"""Singular values and vectors of large matrices of low rank, by random projection."""

import torch
from torch import Tensor

from mpslinalg import _op, _qr, _route, _svd
from mpslinalg._shards import over_batches


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a few words for `which`."""
    return "matmul, then qr and svd of q columns"


@over_batches
def svd_lowrank(
    A: Tensor, q: int | None = 6, niter: int | None = 2, M: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Approximate the largest singular values of A, or of A - M: A ~ U diag(S) V^H.

    Same contract as `torch.svd_lowrank`. Differences: none; with the same state of torch's random
    numbers it starts from the same columns.

    Args:
        A: (*, m, n), float32, float64, complex64 or complex128; one matrix may be sparse.
        q: how many singular values, some more than are wanted.
        niter: how many times A A^H is applied.
        M: broadcasts to A.

    Returns:
        U (*, m, q), S (*, q) and V (*, n, q), column-major matrices with orthonormal columns, and
        values that do not increase. Differentiable, by way of `qr` and `svd`.

    Raises:
        torch.linalg.LinAlgError: as `svd`.
        RuntimeError: as `qr`, `svd` and torch's product.

    Orthonormal columns Q span A (A^H A)^niter R of a random R, by a `qr` after each product; then
    `svd` of Q^H A. For A of rank q and less it is exact but for rounding; beyond, the error is some
    (s_q+1 / s_q)^(2 niter) s_q+1.

    Source: Halko, Martinsson, Tropp, "Finding structure with randomness" (2011), algorithms 4.4
    and 5.1.
    """
    if not _route.kernels("svd_lowrank", A):
        result: tuple[Tensor, Tensor, Tensor] = torch.svd_lowrank(A, q, niter, M)
        return result
    return _project(A, 6 if q is None else q, 2 if niter is None else niter, M)


@_op.outside_autocast
def _project(A: Tensor, q: int, niter: int, M: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    if M is not None:
        M = M.broadcast_to(A.shape)
    m, n = A.shape[-2:]
    wide = m < n
    if wide:
        A, M = A.mH, None if M is None else M.mH

    def times(A: Tensor, M: Tensor | None, X: Tensor) -> Tensor:
        return A @ X if M is None else A @ X - M @ X

    adjoint = A.mH, None if M is None else M.mH
    # For what is no number of these, torch's product says so.
    dtype = A.dtype if A.is_floating_point() or A.is_complex() else torch.float32
    R = torch.randn(A.shape[-1], q, dtype=dtype, device=A.device)
    Q = _qr.qr(times(A, M, R)).Q
    for _ in range(niter):
        Q = _qr.qr(times(*adjoint, Q)).Q
        Q = _qr.qr(times(A, M, Q)).Q
    # Of (A^H Q)^H, for a sparse A is on the left of a product.
    U, S, Vh = _svd.svd(times(*adjoint, Q).mH, full_matrices=False)
    U, V = Q @ U, Vh.mH
    return (V, S, U) if wide else (U, S, V)
