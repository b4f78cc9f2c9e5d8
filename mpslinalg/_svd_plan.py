"""Launch plans of the singular value decomposition: which kernels run for which sizes."""

from __future__ import annotations

import torch
from torch import Tensor

from mpslinalg import _bidiagonal_plan, _op, _qr_plan
from mpslinalg._engines import empty, flattened, gemm, kernel, scalar, strides
from mpslinalg._simdgroups import lanes, whole

# The shorter side of what one simdgroup takes, a column a lane; a longer side is reduced by QR.
WIDTH = _qr_plan.WIDTH
# The shorter side of what is taken by blocks of columns, 8 or 16 rows of a column a lane. Larger
# matrices become bidiagonal: on an H200 512 of 128 x 128 took 4 ms so and 30 by rotations, 4096 of
# 64 x 64 took 7 and 27; but rotations find the small singular values of graded columns.
MAX_WIDTH = 64
# Sweeps until a matrix counts as one that does not converge, as jacobi.h has it.
SWEEPS = 30


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a few words for `which`."""
    long, short = max(m, n), min(m, n)
    if short > MAX_WIDTH:
        return _bidiagonal_plan.regime(name, dtype, long, short)
    kernels = "svd_simd" if short <= WIDTH else "svd_within, svd_between"
    if long <= WIDTH or long == short:
        return kernels
    first = _qr_plan.regime("qr", dtype, batch, long, short, k)
    return f"{first}, {kernels} of R" + ("" if name == "svdvals" else ", matmul")


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
    size = tall.shape[0]
    if k > MAX_WIDTH:
        _bidiagonal_plan.svd(tall, X, S.view(size, k), Y, info.view(size))
        return U, S, Vh, info
    if max(m, n) <= WIDTH:
        _simd(tall, X, S, Y, info, X.shape[-1])
        return U, S, Vh, info
    if m == n:
        _blocks(tall, X, S, Y, info)
        return U, S, Vh, info
    Q, R = _qr_plan.qr(tall, "complete" if full else "reduced")
    inner, R = empty((size, k, k), A), R[:, :k]
    if k <= WIDTH:
        _simd(R, inner, S, Y, info, k)
    else:
        _blocks(R, inner, S, Y, info)
    first, rest = X[..., :k], X[..., k:]
    gemm(first, first, Q[..., :k], inner, 0, 1)
    if full:
        kernel("svd_blocks", "svd_copy", scalar(A.dtype))(
            Q[..., k:], rest, *strides(Q), *strides(rest),
            threads=(*rest.shape[1:], rest.shape[0]), group=(32, 8, 1),
        )  # fmt: skip
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


def _blocks(A: Tensor, X: Tensor | None, S: Tensor, Y: Tensor | None, info: Tensor) -> None:
    """A = X S Y^H, Y conjugated, for square matrices of up to MAX_WIDTH rows; no X: S alone."""
    batch, n, _ = A.shape
    vectors = X is not None
    T = scalar(A.dtype)
    # As svd_blocks.metal has them.
    team = MAX_WIDTH // (16 if A.dtype.itemsize == 4 else 8)
    width = 8 if A.dtype.itemsize > 8 else 16
    blocks = -(-n // width)
    blocks += blocks % 2
    U = empty(A.shape, A)
    V = empty(A.shape, A) if vectors else empty((1,), A)
    exponents, order, marks = (
        empty(shape, A, torch.int32, row_major=True)
        for shape in ((batch, n + 1), (batch, n), (2, batch, blocks))
    )
    kernel("svd_blocks", "svd_begin", T)(
        A, U, V, exponents, info, n, *strides(A), vectors, threads=(256 * batch,), group=(256,)
    )
    within, between = (kernel("svd_blocks", f"svd_{of}", T, team) for of in ("within", "between"))
    threads = width * team
    for sweep in range(SWEEPS):
        values = (U, V, exponents, marks, info, n, batch, sweep, vectors)
        group = (threads // 2, 1)
        within(*values, threads=(group[0] * blocks, batch), group=group)
        for meeting in range(blocks - 1):
            between(*values, meeting, threads=(threads * blocks // 2, batch), group=(threads, 1))
    kernel("svd_blocks", "svd_finish", T)(
        U, S, exponents, marks, order, info, n, batch, SWEEPS - 1, blocks, vectors,
        threads=(256 * batch,), group=(256,),
    )  # fmt: skip
    if X is None or Y is None:
        return
    # Roundings of thousands of turns add up: one step of Newton and Schulz, V (3 - V^H V) / 2,
    # takes their first order away.
    gram, twice = empty(A.shape, A), empty(A.shape, A)
    gemm(gram, gram, V.mH, V, 0, 1)
    gemm(twice, V, V, gram, 3, -1)
    kernel("svd_blocks", "svd_order", T)(
        U, twice, order, info, X, Y, n, *X.stride()[1:], *Y.stride()[1:],
        threads=(n, n, batch), group=(32, 8, 1),
    )  # fmt: skip


def svdvals(A: Tensor) -> tuple[Tensor, Tensor]:
    """S and info."""
    S, info = _svdvals_fake(A)
    if A.numel() == 0:
        info.zero_()
        return S, info
    tall = flattened(A)
    if tall.shape[-2] < tall.shape[-1]:
        tall = tall.mT
    size, m, n = tall.shape
    if n > MAX_WIDTH:
        _bidiagonal_plan.svdvals(tall, S.view(size, n), info.view(size))
        return S, info
    if m > max(n, WIDTH):
        _, tall = _qr_plan.qr(tall, "r")
    if n > WIDTH:
        _blocks(tall, None, S, None, info)
    else:
        X, Y = (empty((1, 1, 1), A) for _ in range(2))
        _simd(tall, X, S, Y, info, 0)
    return S, info


def _svdvals_fake(A: Tensor) -> tuple[Tensor, Tensor]:
    return _values(A), empty(A.shape[:-2], A, torch.int32, row_major=True)


svd_op = _op.define("svd(Tensor A, bool full) -> (Tensor, Tensor, Tensor, Tensor)", svd, _svd_fake)
svdvals_op = _op.define("svdvals(Tensor A) -> (Tensor, Tensor)", svdvals, _svdvals_fake)
