"""Launch plans of the QR family: which kernels run for which sizes."""

from __future__ import annotations

import torch
from torch import Tensor

from mpslinalg import _op
from mpslinalg._engines import empty, flattened, kernel, scalar, strides
from mpslinalg._products import copy

# A column in each lane of a simdgroup, and the columns of a panel.
WIDTH = 32
# Bytes of the rows of one column of a panel, in one threadgroup: 512 threads of 32 rows.
COLUMN_BYTES = 4096
MAX_ROWS = 512


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a few words for `which`."""
    if max(m, n) <= WIDTH:
        return "qr_simd"
    if n <= WIDTH:
        return "qr_group" if m <= _rows(dtype) else "qr_group, qr_combine"
    return f"qr_panel of {WIDTH} columns, qr_triangle, qr_update, qr_apply"


def _rows(dtype: torch.dtype) -> int:
    """Rows of a panel that one threadgroup holds."""
    return min(COLUMN_BYTES // dtype.itemsize, MAX_ROWS)


def _sides(m: int, n: int, mode: str) -> tuple[int, int]:
    """Columns of Q and rows of R."""
    k = m if mode == "complete" else min(m, n)
    return 0 if mode == "r" else k, k


def qr(A: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """Q and R of A = Q R; Q is empty in mode r."""
    *_, m, n = A.shape
    Q, R = _qr_fake(A, mode)
    if A.numel() == 0:
        if Q.numel() != 0:
            _identity(flattened(Q))
        return Q, R
    matrices = flattened(A)
    columns, rows = _sides(m, n, mode)
    if max(m, n) <= WIDTH:
        _simd(matrices, Q if columns else empty((1,), A), R, columns, rows)
    elif n <= WIDTH and rows == n:
        _tall(matrices, flattened(Q) if columns else empty((1,), A), flattened(R), columns != 0)
    else:
        factor, _, triangles = _factored(matrices)
        kernel("qr", "qr_upper", scalar(A.dtype))(
            factor, R, m, n, rows, threads=(rows, n, len(factor)), group=(32, 1, 1)
        )
        if columns:
            _form(factor, triangles, flattened(Q))
    return Q, R


def _qr_fake(A: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    *batch, m, n = A.shape
    columns, rows = _sides(m, n, mode)
    Q = empty((0,) if mode == "r" else (*batch, m, columns), A)
    return Q, empty((*batch, rows, n), A)


def _simd(matrices: Tensor, Q: Tensor, R: Tensor, columns: int, rows: int) -> None:
    batch, m, n = matrices.shape
    width = next(width for width in (4, 8, 16, 32) if max(m, n) <= width)
    kernel("qr", "qr_simd", scalar(Q.dtype), width)(
        matrices, Q, R, m, n, batch, *strides(matrices), columns, rows,
        threads=(-(-width * batch // 32) * 32,), group=(32,),
    )  # fmt: skip


def _threads(rows: int) -> int:
    return -(-rows // 32) * 32


def _tall(matrices: Tensor, Q: Tensor, R: Tensor, wanted: bool) -> None:
    """Q and R of at most WIDTH columns: of blocks of rows, then of the R of those (TSQR)."""
    batch, m, n = matrices.shape
    blocks = -(-m // _rows(Q.dtype))
    rows = -(-m // blocks)
    tops = R if blocks == 1 else empty((batch, blocks * n, n), R)
    threads = _threads(rows)
    kernel("qr", "qr_group", scalar(Q.dtype))(
        matrices, Q, tops, m, n, rows, *strides(matrices), wanted,
        threads=(threads * blocks, batch), group=(threads, 1),
    )  # fmt: skip
    if blocks == 1:
        return
    factor = empty(tops.shape, tops) if wanted else empty((1,), R)
    _tall(tops, factor, R, wanted)
    if wanted:
        kernel("qr", "qr_combine", scalar(Q.dtype))(
            factor, Q, m, n, rows, threads=(128 * -(-rows // 128), blocks, batch), group=(128, 1, 1)
        )


def _factored(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Reflectors below R, tau and the triangular factors of the blocks of reflectors."""
    batch, m, n = matrices.shape
    steps = min(m, n)
    blocks = -(-steps // WIDTH)
    factor = empty(matrices.shape, matrices)
    tau = empty((batch, steps), matrices, row_major=True)
    triangles = empty((batch, blocks, WIDTH, WIDTH), matrices)
    copy(factor, matrices)
    workspace = empty((batch * m * WIDTH,), matrices) if m > _rows(matrices.dtype) else tau
    update = kernel("qr", "qr_update", scalar(factor.dtype))
    for block in range(blocks):
        first = block * WIDTH
        last = min(first + WIDTH, steps)
        _panel(factor, tau, workspace, first, last)
        _triangles(factor, tau, triangles, block, 1)
        if last < n:
            update(
                factor, triangles, m, n, first, last, blocks,
                threads=(256 * -(-(n - last) // WIDTH), batch), group=(256, 1),
            )  # fmt: skip
    return factor, tau, triangles


def _panel(factor: Tensor, tau: Tensor, workspace: Tensor, first: int, last: int) -> None:
    batch, m, n = factor.shape
    height, width = m - first, last - first
    if height <= _rows(factor.dtype):
        threads = _threads(height)
        kernel("qr", "qr_panel", scalar(factor.dtype))(
            factor, tau, m, n, first, last, threads=(threads * batch,), group=(threads,)
        )
        return
    Y = workspace[: batch * height * width].view(batch, width, height).mT
    R = empty((batch, width, width), factor)
    _tall(factor[:, first:, first:last], Y, R, True)
    kernel("qr", "qr_reconstruct", scalar(factor.dtype))(
        Y, R, factor, tau, m, n, first, width,
        threads=(128 * -(-height // 128), batch), group=(128, 1),
    )  # fmt: skip


def _triangles(factor: Tensor, tau: Tensor, triangles: Tensor, block: int, count: int) -> None:
    batch, m, n = factor.shape
    kernel("qr", "qr_triangle", scalar(factor.dtype))(
        factor, tau, triangles, m, n, tau.shape[-1], block, triangles.shape[1],
        threads=(256 * count, batch), group=(256, 1),
    )  # fmt: skip


def _identity(Q: Tensor) -> None:
    batch, m, columns = Q.shape
    kernel("qr", "qr_identity", scalar(Q.dtype))(
        Q, m, columns, threads=(m, columns, batch), group=(64, 1, 1)
    )


def _form(factor: Tensor, triangles: Tensor, Q: Tensor) -> None:
    """Q := the first columns of the product of the reflectors."""
    _, m, n = factor.shape
    _identity(Q)
    steps = min(m, n)
    for first in reversed(range(0, steps, WIDTH)):
        _apply(factor, triangles, Q[:, first:, first:], first, min(WIDTH, steps - first), False)


def _apply(
    factor: Tensor, triangles: Tensor, C: Tensor, first: int, width: int, adjoint: bool
) -> None:
    batch, m, n = factor.shape
    columns = C.shape[-1]
    kernel("qr", "qr_apply", scalar(factor.dtype))(
        factor, triangles, C, m, n, first, width, triangles.shape[1], columns, *strides(C),
        adjoint, False,
        threads=(256 * -(-columns // WIDTH), batch), group=(256, 1),
    )  # fmt: skip


qr_op = _op.define("qr(Tensor A, str mode) -> (Tensor, Tensor)", qr, _qr_fake)
