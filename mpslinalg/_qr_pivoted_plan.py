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


# Rows for each column from which a QR without pivoting comes first.
TALL = 2


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a few words for `which`."""
    if max(m, n) <= _qr_plan.WIDTH:
        return "qr_pivoted_simd"
    if n <= _qr_plan.WIDTH and not name.endswith("complete"):
        return f"{_qr_plan.regime('qr', dtype, batch, m, n, k)}, qr_pivoted_simd of R"
    tall = m >= TALL * n
    steps = "in one launch" if (n if tall else m) * n <= GROUP_ENTRIES else "a launch a step"
    columns = f"qr_pivoted_steps {steps}, qr_triangle, qr_apply"
    if tall:
        return f"{_qr_plan.regime('geqrf', dtype, batch, m, n, k)}, of R {columns}"
    return columns


def qr_pivoted(A: Tensor, mode: str) -> tuple[Tensor, Tensor, Tensor]:
    """Q, R and the columns P of A[:, P] = Q R; Q is empty in mode r."""
    *batch, m, n = A.shape
    columns, rows = _qr_plan.sides(m, n, mode)
    if A.numel() != 0 and n <= _qr_plan.WIDTH < m and rows == n:
        return _tall(A, mode)
    Q, R, P = _qr_pivoted_fake(A, mode)
    if A.numel() == 0:
        _qr_plan.multiply_reflectors(A, A.new_empty((*batch, 0)), Q)
        P.copy_(torch.arange(n, dtype=P.dtype, device=P.device))
        return Q, R, P
    matrices = flattened(A)
    if max(m, n) <= _qr_plan.WIDTH:
        _simd(matrices, Q if columns else empty((1,), A), R, P, columns, rows)
        return Q, R, P
    if m >= TALL * n:
        # Of A = Q1 R1, and R1 P = Q2 R.
        first, first_tau = _qr_plan.geqrf(A)
        factor, tau = _factor(_upper(flattened(first), n), P, m)
    else:
        factor, tau = _factor(matrices, P, m)
    _upper(factor, rows, R)
    _qr_plan.multiply_reflectors(factor, tau, Q)
    if columns and m >= TALL * n:
        Q = _qr_plan.ormqr(first, first_tau, Q, True, False)
    return Q, R, P


def _tall(A: Tensor, mode: str) -> tuple[Tensor, Tensor, Tensor]:
    """Of A = Q1 R1, with few columns, and R1 P = Q2 R."""
    Q, top = _qr_plan.qr(A, mode)
    S, R, P = qr_pivoted(top, mode)
    if mode != "r":
        m, n = A.shape[-2:]
        kernel("qr", "qr_combine", scalar(A.dtype), _qr_plan.WIDTH)(
            S, Q, m, n, m,
            threads=(128 * -(-m // 128), 1, Q.numel() // (m * n)), group=(128, 1, 1),
        )  # fmt: skip
    return Q, R, P


def _upper(factor: Tensor, rows: int, R: Tensor | None = None) -> Tensor:
    """The first rows of R above the reflectors."""
    batch, m, n = factor.shape
    R = empty((batch, rows, n), factor) if R is None else R
    kernel("qr", "qr_upper", scalar(factor.dtype))(
        factor, R, m, n, rows, threads=(rows, n, batch), group=(32, 8, 1)
    )
    return R


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


def _factor(matrices: Tensor, P: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """R with the reflectors below it, and tau, of the columns in their order, which P becomes. Rows
    of the factor that the matrices do not have are zero.
    """
    batch, m, n = matrices.shape
    steps, dtype = min(m, n), scalar(matrices.dtype)
    W, factor = empty(matrices.shape, matrices), empty((batch, rows, n), matrices)
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
        W, inverses, diagonal, P, factor, m, n, rows, threads=(rows, n, batch), group=(64, 1, 1)
    )
    return factor, tau


qr_pivoted_op = _op.define(
    "qr_pivoted(Tensor A, str mode) -> (Tensor, Tensor, Tensor)", qr_pivoted, _qr_pivoted_fake
)
