"""Launch plans of QR with column pivoting: which kernels run for which sizes."""

from __future__ import annotations

import torch
from torch import Tensor

from mpslinalg import _op, _qr_plan
from mpslinalg._engines import empty, flattened, kernel, scalar, side_by_side, strides
from mpslinalg._simdgroups import lanes, whole

# Entries up to which one threadgroup takes a matrix, all steps in a launch. Beyond, a launch is a
# step: groups hand data to each other between launches only, and a launch must stay short.
GROUP_ENTRIES = 2**16
# Threads of a group, and the columns that it works on at a time.
THREADS = 256
COLUMNS = 8


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a few words for `which`."""
    if max(m, n) <= _qr_plan.WIDTH:
        return "qr_pivoted_simd"
    steps = "in one launch" if m * n <= GROUP_ENTRIES else "a launch a step"
    return f"qr_pivoted_steps {steps}, qr_triangle, qr_apply"


def qr_pivoted(A: Tensor, mode: str) -> tuple[Tensor, Tensor, Tensor]:
    """Q, R and the columns P of A[:, P] = Q R; Q is empty in mode r."""
    *batch, m, n = A.shape
    columns, rows = _qr_plan.sides(m, n, mode)
    Q, R, P = _qr_pivoted_fake(A, mode)
    if A.numel() == 0:
        _qr_plan.multiply_reflectors(A, A.new_empty((*batch, 0)), Q)
        P.copy_(torch.arange(n, dtype=P.dtype, device=P.device))
        return Q, R, P
    matrices = flattened(A)
    if max(m, n) <= _qr_plan.WIDTH:
        _simd(matrices, Q if columns else empty((1,), A), R, P, columns, rows)
        return Q, R, P
    factor, tau = _factor(matrices, P)
    kernel("qr", "qr_upper", scalar(A.dtype))(
        factor, R, m, n, rows, threads=(rows, n, len(factor)), group=(32, 1, 1)
    )
    _qr_plan.multiply_reflectors(factor, tau, Q)
    return Q, R, P


def _qr_pivoted_fake(A: Tensor, mode: str) -> tuple[Tensor, Tensor, Tensor]:
    *batch, m, n = A.shape
    columns, rows = _qr_plan.sides(m, n, mode)
    Q = empty((0,) if mode == "r" else (*batch, m, columns), A)
    P = empty((*batch, n), A, torch.int32, row_major=True)
    return Q, empty((*batch, rows, n), A), P


def _simd(matrices: Tensor, Q: Tensor, R: Tensor, P: Tensor, columns: int, rows: int) -> None:
    batch, m, n = matrices.shape
    width = lanes(max(m, n))
    kernel("qr_pivoted", "qr_pivoted_simd", scalar(Q.dtype), width)(
        matrices, Q, R, P, m, n, batch, *strides(matrices), columns, rows,
        threads=(whole(width * batch),), group=(32,),
    )  # fmt: skip


def _factor(matrices: Tensor, P: Tensor) -> tuple[Tensor, Tensor]:
    """R with the reflectors below it, and tau, of the columns in their order, which P becomes."""
    batch, m, n = matrices.shape
    steps, dtype = min(m, n), scalar(matrices.dtype)
    W, factor = empty(matrices.shape, matrices), empty(matrices.shape, matrices)
    real = matrices.dtype.to_real()
    norms, computed = (empty((size * batch * n,), matrices, real) for size in (2, 1))
    exponents, order = (empty((2 * batch * n,), matrices, torch.int32) for _ in range(2))
    tau, inverses, diagonal = (empty((batch, steps), matrices, row_major=True) for _ in range(3))
    kernel("qr_pivoted", "qr_pivoted_start", dtype)(
        matrices, W, norms, computed, exponents, order, m, n, *strides(matrices),
        threads=(THREADS * -(-n // COLUMNS), batch), group=(THREADS, 1),
    )  # fmt: skip
    # Each group chooses the column for itself, which only those that run at once can afford.
    alone = m * n <= GROUP_ENTRIES or not side_by_side(matrices)
    groups = 1 if alone else max(1, -(-(n - 1) // COLUMNS))
    launch = kernel("qr_pivoted", "qr_pivoted_steps", dtype)
    for first in range(0, steps, steps if alone else 1):
        launch(
            W, norms, computed, exponents, order, tau, inverses, diagonal, P,
            m, n, first, steps if alone else first + 1,
            threads=(THREADS * groups, batch), group=(THREADS, 1),
        )  # fmt: skip
    kernel("qr_pivoted", "qr_pivoted_gather", dtype)(
        W, inverses, diagonal, P, factor, m, n, threads=(m, n, batch), group=(64, 1, 1)
    )
    return factor, tau


qr_pivoted_op = _op.define(
    "qr_pivoted(Tensor A, str mode) -> (Tensor, Tensor, Tensor)", qr_pivoted, _qr_pivoted_fake
)
