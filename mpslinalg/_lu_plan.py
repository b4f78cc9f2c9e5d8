"""Launch plans of the LU family: which kernels run for which sizes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mpslinalg import _op, _triangular_plan
from mpslinalg._engines import empty, flattened, kernel, scalar, side_by_side, strides
from mpslinalg._products import copy, product_name, update
from mpslinalg._simdgroups import lanes, whole
from mpslinalg._triangular_plan import solve_into

# A matrix in one thread's registers: 4 x 4 complex is 32 of the 128 an Apple GPU has.
TINY = 4
# A determinant's pivots in one thread.
DET_TINY = 8
# A row in each lane of a simdgroup.
SIMD = 32
# One threadgroup holds the whole matrix in registers.
ROWS = 128
# Bytes of a row that each of its threads keeps.
ROW_BYTES = 256
# Columns of a panel beyond that, between two products.
PANEL = 32
# Bytes of a panel that a thread keeps in registers, and threads of a panel: 64 of the 128 registers
# that an H200 gives each of 512 threads, of the 104 that an Apple GPU does. 4096 x 4096 complex64
# take 25.7 ms with it, 28.9 with half.
PANEL_BYTES = 256
MAX_THREADS = 512
# Sides of a tile of lu_permute, and the groups that give a GPU enough to do: beyond, a group goes
# through several tiles with the rows that it has found once.
PERMUTED = 32
PERMUTE_GROUPS = 1024
# Where a launch factors the next panels while its other groups update: up to so many matrices (more
# panels occupy a GPU by themselves), from so many rows that are left and entries of all matrices
# together. On an H200 4096 x 4096 take 10.7 ms instead of 12.8, complex64 18.5 instead of 23.0, and
# 64 of 512 x 512 1.24 instead of 1.44; but 512 x 512 642 us instead of 623, 16 of 256 x 256 326
# instead of 302.
LOOKAHEAD = 64
LOOKAHEAD_ROWS = 384
LOOKAHEAD_ENTRIES = 2**19
# A tile of the update in such a launch.
TILE = (128, 64)
# Bytes of one column chunk of lu_swap in threadgroup memory: 2 * 32 + 1 entries a column.
SWAP_BYTES = 128


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a few words for `which`."""
    if m == n <= TINY:
        factor = "lu_tiny"
    elif max(m, n) <= SIMD:
        factor = "lu_simd"
    elif rows_shape(dtype, m, n) is not None:
        factor = "lu_rows"
    else:
        ahead = looks_ahead(dtype, batch, m - PANEL, n - PANEL)
        rest = "lu_swap_next, lu_panel_next" if ahead else f"lu_swap, {product_name(m, n)}"
        factor = f"lu_panel of {PANEL} columns, {rest}"
    if n <= SIMD:
        solve = "lu_solve_tiny" if n <= TINY else "lu_solve_simd"
    else:
        solve = f"lu_permute, {_triangular_plan.regime(name, dtype, batch, n, n, k)}"
    after = {"solve": solve, "solve_ex": solve, "lu": "lu_split"}
    if name in ("lu_solve", "lu_unpack"):
        return solve if name == "lu_solve" else "lu_split"
    return f"{factor}, {after[name]}" if name in after else factor


def packed(matrices: Tensor) -> bool:
    """Whether tiny matrices lie without a gap, and threads run side by side to gain from it."""
    _, n, _ = matrices.shape
    row, column, step = strides(matrices)
    return step == n * n and {row, column} == {n, 1} and side_by_side(matrices)


def lu_factor(A: Tensor, pivot: bool) -> tuple[Tensor, Tensor, Tensor]:
    """LU, pivots and info of A = P L U; without pivoting P = I."""
    *batch_shape, m, n = A.shape
    LU = empty(A.shape, A)
    pivots = empty((*batch_shape, min(m, n)), A, torch.int32, row_major=True)
    info = empty(batch_shape, A, torch.int32, row_major=True)
    if min(m, n) == 0:
        return LU, pivots, info.zero_()
    if LU.numel() == 0:
        return LU, pivots, info
    matrices = flattened(A)
    batch = matrices.shape[0]
    if m == n <= TINY:
        row, column, step = strides(matrices)
        if packed(matrices):
            kernel("lu", "lu_packed", scalar(A.dtype), n)(
                matrices, LU, pivots, info, row, column, batch, pivot,
                threads=(whole(batch),), group=(32,),
            )  # fmt: skip
        else:
            kernel("lu", "lu_tiny", scalar(A.dtype), n)(
                matrices, LU, pivots, info, row, column, step, pivot, threads=(batch,), group=(64,)
            )
    elif max(m, n) <= SIMD:
        width = lanes(max(m, n), 8)
        kernel("lu", "lu_simd", scalar(A.dtype), width)(
            matrices, LU, pivots, info, m, n, batch, *strides(matrices), pivot,
            threads=(whole(width * batch),), group=(32,),
        )  # fmt: skip
    elif (shape := rows_shape(A.dtype, m, n)) is not None:
        width, team, threads = shape
        kernel("lu", "lu_rows", scalar(A.dtype), width, team)(
            matrices, LU, pivots, info, m, n, *strides(matrices), pivot,
            threads=(threads * batch,), group=(threads,),
        )  # fmt: skip
    else:
        copy(flattened(LU), A)
        _factor_blocked(flattened(LU), pivots, info, pivot)
    return LU, pivots, info


def rows_shape(dtype: torch.dtype, m: int, n: int) -> tuple[int, int, int] | None:
    """Columns a thread, threads a row and threads that hold a matrix in registers, if they can."""
    team = 1
    while team * (ROW_BYTES // dtype.itemsize) < n:
        team *= 2
    threads = team * whole(m)
    width = -(-n // (8 * team)) * 8
    return (width, team, threads) if max(m, n) <= ROWS and threads <= MAX_THREADS else None


def looks_ahead(dtype: torch.dtype, batch: int, m: int, n: int) -> bool:
    """Whether the next panel is factored in the launch that updates these m rows and n columns."""
    held = MAX_THREADS * PANEL_BYTES // dtype.itemsize
    enough = m >= LOOKAHEAD_ROWS and batch * m * n >= LOOKAHEAD_ENTRIES
    return enough and batch <= LOOKAHEAD and m <= held


def _factor_blocked(LU: Tensor, pivots: Tensor, info: Tensor, pivot: bool) -> None:
    batch, m, n = LU.shape
    steps = min(m, n)
    panels = empty((batch, m, PANEL), LU) if batch <= LOOKAHEAD else LU
    factored = False
    for first in range(0, steps, PANEL):
        last = min(first + PANEL, steps)
        if not factored:
            _panel(LU, pivots, info, first, last, pivot)
        factored = last < steps and looks_ahead(LU.dtype, batch, m - last, n - last)
        if factored:
            next_last = min(last + PANEL, steps)
            _swap_next(LU, pivots, panels, first, last, next_last)
            _panel_next(LU, panels, pivots, info, first, last, next_last, pivot)
        else:
            _swap(LU, pivots, first, last)
            update(LU, first, last)


def _chunk(LU: Tensor) -> int:
    return max(SWAP_BYTES // LU.element_size(), 1)


def _swap(LU: Tensor, pivots: Tensor, first: int, last: int) -> None:
    batch, m, n = LU.shape
    columns = _chunk(LU)
    chunks = -(-first // columns) + -(-(n - last) // columns)
    if chunks != 0:
        kernel("lu", "lu_swap", scalar(LU.dtype), PANEL, columns)(
            LU, pivots, m, n, first, last, threads=(128 * chunks, batch), group=(128, 1)
        )


def _swap_next(
    LU: Tensor, pivots: Tensor, panels: Tensor, first: int, last: int, next_last: int
) -> None:
    batch, m, n = LU.shape
    columns = _chunk(LU)
    chunks = -(-first // columns) + -(-(n - next_last) // columns)
    ahead = -(-(next_last - last) // columns) * -(-(m - last) // 128)
    kernel("lu", "lu_swap_next", scalar(LU.dtype), PANEL, columns)(
        LU, pivots, panels, m, n, first, last, next_last,
        threads=(128 * (chunks + ahead), batch), group=(128, 1),
    )  # fmt: skip


def _panel_next(
    LU: Tensor,
    panels: Tensor,
    pivots: Tensor,
    info: Tensor,
    first: int,
    last: int,
    next_last: int,
    pivot: bool,
) -> None:
    batch, m, n = LU.shape
    rows, width, _ = _panel_shape(LU, last)
    down, across = TILE
    tiles = -(-(m - last) // down) * -(-(n - next_last) // across)
    kernel("lu", "lu_panel_next", scalar(LU.dtype), rows, width)(
        LU, panels, pivots, info, m, n, first, last, next_last, batch, pivot,
        threads=(MAX_THREADS * batch * (1 + tiles),), group=(MAX_THREADS,),
    )  # fmt: skip


def _panel_shape(LU: Tensor, first: int) -> tuple[int, int, int]:
    """Rows a thread, columns a sub-panel and threads that hold a panel below row `first`."""
    height, itemsize = LU.shape[-2] - first, LU.element_size()
    rows = 1
    while rows * MAX_THREADS < height and rows * itemsize < PANEL_BYTES:
        rows *= 2
    width = min(PANEL_BYTES // (rows * itemsize), PANEL)
    # Several rows a thread lie MAX_THREADS apart, whatever the height.
    return rows, width, whole(height) if rows == 1 else MAX_THREADS


def _panel(LU: Tensor, pivots: Tensor, info: Tensor, first: int, last: int, pivot: bool) -> None:
    batch, m, n = LU.shape
    rows, width, threads = _panel_shape(LU, first)
    if rows * threads >= m - first:
        panel = kernel("lu", "lu_panel", scalar(LU.dtype), rows, width)
    else:
        panel = kernel("lu", "lu_streamed", scalar(LU.dtype))
    panel(LU, pivots, info, m, n, first, last, pivot, threads=(threads * batch,), group=(threads,))


def _lu_factor_fake(A: Tensor, pivot: bool) -> tuple[Tensor, Tensor, Tensor]:
    *batch, m, n = A.shape
    pivots = empty((*batch, min(m, n)), A, torch.int32, row_major=True)
    return empty(A.shape, A), pivots, empty(batch, A, torch.int32, row_major=True)


def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, trans: int) -> Tensor:
    """X with op(A) X = B from A's factors; trans 0, 1, 2: op(A) = A, A^T, A^H."""
    X = empty(B.shape, B)
    if X.numel() == 0:
        return X
    factors, right = flattened(LU), flattened(B)
    swaps = _swaps(pivots)
    batch, n, k = right.shape
    transposed, conjugated = trans != 0, trans == 2
    if n <= TINY:
        group = (64, 1) if k >= 64 else (1, 64)
        kernel("lu", "lu_solve_tiny", scalar(LU.dtype), n)(
            factors, swaps, right, X, k, *strides(factors), swaps.stride(0), *strides(right),
            transposed, conjugated, threads=(k, batch), group=group,
        )  # fmt: skip
    elif n <= SIMD:
        width = lanes(n, 8)
        teams = 32 // width
        kernel("lu", "lu_solve_simd", scalar(LU.dtype), width)(
            factors, swaps, right, X, n, k, batch, *strides(factors), swaps.stride(0),
            *strides(right), transposed, conjugated,
            threads=(32 * -(-k // width), -(-batch // teams)), group=(32, 1),
        )  # fmt: skip
    else:
        solution = flattened(X)
        workspace = empty(right.shape, right)
        if transposed:
            solve_triangles(factors.mT, right, solution, workspace, True, conjugated)
            permute(workspace, swaps, solution, pivots=n, inverse=True)
        else:
            permute(right, swaps, solution, pivots=n)
            solve_triangles(factors, solution, workspace, solution, False, conjugated)
    return X


def solve_triangles(
    factors: Tensor, B: Tensor, between: Tensor, X: Tensor, transposed: bool, conjugated: bool
) -> None:
    """X := (L U)^-1 B, or with the transposed factors; `between` holds the first solution."""
    # L has the unit diagonal: it is solved first in A, last in A^T.
    solve_into(factors, B, between, lower=True, unit=not transposed, conjugated=conjugated)
    solve_into(factors, between, X, lower=False, unit=transposed, conjugated=conjugated)


def _swaps(pivots: Tensor) -> Tensor:
    """Pivots as (batch, count); the kernels step through a matrix's own without a stride."""
    *batch, count = pivots.shape
    swaps = pivots.reshape(math.prod(batch), count)
    return swaps if swaps.stride(-1) == 1 else swaps.contiguous()


def row_permutation(pivots: Tensor, m: int) -> Tensor:
    """(batch, m): the row of A that pivoting moved to each row, from 0."""
    swaps = _swaps(pivots).contiguous()
    batch, count = swaps.shape
    permutation = empty((batch, m), swaps, row_major=True)
    kernel("lu", "lu_permutation", "int")(
        swaps, permutation, m, count, threads=(64 * -(-m // 64), batch), group=(64, 1)
    )
    return permutation


def permute(B: Tensor, rows: Tensor, X: Tensor, pivots: int = 0, inverse: bool = False) -> None:
    """X[i] := B[rows[i]], or X[rows[i]] := B[i]; `rows` may be that many pivots instead."""
    batch, n, k = B.shape
    tiles = -(-k // PERMUTED)
    groups = batch * -(-n // PERMUTED)
    turns = -(-tiles // max(PERMUTE_GROUPS // groups, 1))
    kernel("lu", "lu_permute", scalar(B.dtype))(
        B, rows, X, n, k, *strides(B), rows.stride(0), pivots, turns, inverse,
        threads=(256 * -(-n // PERMUTED), -(-tiles // turns), batch), group=(256, 1, 1),
    )  # fmt: skip


def _lu_solve_fake(LU: Tensor, pivots: Tensor, B: Tensor, trans: int) -> Tensor:
    return empty(B.shape, B)


def lu_det(LU: Tensor, pivots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """det, sign and logabsdet from the factors of square matrices."""
    det, sign, logabsdet = _lu_det_fake(LU, pivots)
    if LU.shape[-1] == 0:
        return det.fill_(1), sign.fill_(1), logabsdet.fill_(0)
    if det.numel() != 0:
        factors, swaps = flattened(LU), _swaps(pivots)
        batch, n, _ = factors.shape
        row, column, batch_stride = strides(factors)
        name, width = ("lu_det_tiny", 1) if n <= DET_TINY else ("lu_det_simd", 32)
        kernel("lu", name, scalar(LU.dtype))(
            factors, swaps, det, sign, logabsdet, n, row + column, batch_stride, swaps.stride(0),
            threads=(width * batch,), group=(32,),
        )  # fmt: skip
    return det, sign, logabsdet


def _lu_det_fake(LU: Tensor, pivots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch = LU.shape[:-2]
    det, sign = (empty(batch, LU, row_major=True) for _ in range(2))
    return det, sign, empty(batch, LU, LU.dtype.to_real(), row_major=True)


def lu_unpack(
    LU: Tensor, pivots: Tensor, unpack_data: bool, unpack_pivots: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """P, L and U from the factors; what is not asked for has the shape (0,)."""
    P, L, U = _lu_unpack_fake(LU, pivots, unpack_data, unpack_pivots)
    *_, m, n = LU.shape
    if unpack_data and L.numel() + U.numel() != 0:
        factors = flattened(LU)
        kernel("lu", "lu_split", scalar(LU.dtype))(
            factors, L, U, m, n, *strides(factors),
            threads=(n, m, factors.shape[0]), group=(32, 1, 1),
        )  # fmt: skip
    if unpack_pivots and P.numel() != 0:
        _check_range(pivots, m)
        permutation = row_permutation(pivots, m)
        kernel("lu", "lu_permutation_matrix", scalar(LU.dtype))(
            permutation, P, m, threads=(m, m, permutation.shape[0]), group=(32, 1, 1)
        )
    return P, L, U


def _check_range(pivots: Tensor, m: int) -> None:
    # Reading them is free on the CPU and a wait elsewhere, where the kernel takes the last row.
    if pivots.is_cpu and pivots.numel() != 0 and (pivots.min() < 1 or pivots.max() > m):
        raise RuntimeError(
            "pivots passed to lu_unpack must be between 1 and LU.size(-2) inclusive."
            "Did you properly pass the result of lu_factor?"
        )


def _lu_unpack_fake(
    LU: Tensor, pivots: Tensor, unpack_data: bool, unpack_pivots: bool
) -> tuple[Tensor, Tensor, Tensor]:
    *batch, m, n = LU.shape
    k = min(m, n)
    P = empty((*batch, m, m) if unpack_pivots else (0,), LU, row_major=True)
    L = empty((*batch, m, k) if unpack_data else (0,), LU, row_major=True)
    U = empty((*batch, k, n) if unpack_data else (0,), LU, row_major=True)
    return P, L, U


lu_factor_op = _op.define(
    "lu_factor(Tensor A, bool pivot) -> (Tensor, Tensor, Tensor)", lu_factor, _lu_factor_fake
)
lu_solve_op = _op.define(
    "lu_solve(Tensor LU, Tensor pivots, Tensor B, int trans) -> Tensor", lu_solve, _lu_solve_fake
)
lu_det_op = _op.define(
    "lu_det(Tensor LU, Tensor pivots) -> (Tensor, Tensor, Tensor)", lu_det, _lu_det_fake
)
lu_unpack_op = _op.define(
    "lu_unpack(Tensor LU, Tensor pivots, bool unpack_data, bool unpack_pivots)"
    " -> (Tensor, Tensor, Tensor)",
    lu_unpack,
    _lu_unpack_fake,
)
