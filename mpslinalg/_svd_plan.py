"""Launch plans of the singular value decomposition: which kernels run for which sizes."""

from __future__ import annotations

import torch
from torch import Tensor

from mpslinalg import _op, _qr_plan
from mpslinalg._engines import empty, flattened, gemm, kernel, scalar, strides
from mpslinalg._simdgroups import lanes, whole

# The shorter side of what one simdgroup takes, a column a lane; a longer one is reduced by QR.
WIDTH = _qr_plan.WIDTH


def built(m: int, n: int) -> bool:
    """Whether there are kernels for matrices of this size."""
    return min(m, n) <= WIDTH


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a few words for `which`."""
    if max(m, n) <= WIDTH:
        return "svd_simd"
    long, short = max(m, n), min(m, n)
    first = _qr_plan.regime("qr", dtype, batch, long, short, k)
    return f"{first}, svd_simd of R" if name == "svdvals" else f"{first}, svd_simd of R, matmul"


def svd(A: Tensor, full: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """U, S, V^H and info."""
    U, S, Vh, info = _svd_fake(A, full)
    *batch, m, n = A.shape
    k = min(m, n)
    if A.numel() == 0:
        info.zero_()
        for of_none in (U, Vh):
            _qr_plan.multiply_reflectors(A, A.new_empty((*batch, 0)), of_none)
        return U, S, Vh, info
    matrices, left, right = flattened(A), flattened(U), flattened(Vh)
    # A^T = X S Y^H, which needs no conjugate of A, makes A = conj(Y) S X^T.
    tall, X, Y = (matrices, left, right.mT) if m >= n else (matrices.mT, right.mT, left)
    if max(m, n) <= WIDTH:
        _simd(tall, X, S, Y, info, X.shape[-1])
        return U, S, Vh, info
    Q, R = _qr_plan.qr(tall, "complete" if full else "reduced")
    inner = empty((tall.shape[0], k, k), A)
    _simd(R[:, :k], inner, S, Y, info, k)
    first = X[..., :k]
    gemm(first, first, Q[..., :k], inner, 0, 1)
    if full:
        X[..., k:].copy_(Q[..., k:])
    return U, S, Vh, info


def _svd_fake(A: Tensor, full: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *batch, m, n = A.shape
    k = min(m, n)
    U = empty((*batch, m, m if full else k), A)
    Vh = empty((*batch, n if full else k, n), A)
    return U, _values(A), Vh, empty(batch, A, torch.int32, row_major=True)


def _values(A: Tensor) -> Tensor:
    *batch, m, n = A.shape
    return empty((*batch, min(m, n)), A, A.dtype.to_real(), row_major=True)


def _simd(A: Tensor, X: Tensor, S: Tensor, Y: Tensor, info: Tensor, columns: int) -> None:
    """A = X S Y^H, Y conjugated, for matrices of no more columns than rows; 0 columns: S alone."""
    batch, m, n = A.shape
    width = lanes(m)
    kernel("svd", "svd_simd", scalar(A.dtype), width)(
        A, X, S, Y, info, m, n, batch, *strides(A), columns, *X.stride()[1:], *Y.stride()[1:],
        threads=(whole(width * batch),), group=(32,),
    )  # fmt: skip


def svdvals(A: Tensor) -> tuple[Tensor, Tensor]:
    """S and info."""
    S, info = _svdvals_fake(A)
    if A.numel() == 0:
        info.zero_()
        return S, info
    tall = flattened(A)
    m, n = tall.shape[-2:]
    if m < n:
        tall = tall.mT
    if max(m, n) > WIDTH:
        _, tall = _qr_plan.qr(tall, "r")
    X, Y = (empty((1, 1, 1), A) for _ in range(2))
    _simd(tall, X, S, Y, info, 0)
    return S, info


def _svdvals_fake(A: Tensor) -> tuple[Tensor, Tensor]:
    return _values(A), empty(A.shape[:-2], A, torch.int32, row_major=True)


svd_op = _op.define("svd(Tensor A, bool full) -> (Tensor, Tensor, Tensor, Tensor)", svd, _svd_fake)
svdvals_op = _op.define("svdvals(Tensor A) -> (Tensor, Tensor)", svdvals, _svdvals_fake)
