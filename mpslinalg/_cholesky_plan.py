"""Launch plans of the Cholesky family: which kernels run for which sizes."""

from __future__ import annotations

import torch
from torch import Tensor

from mpslinalg import _lu_plan, _op, _products, _triangular_plan
from mpslinalg._engines import empty, flattened, kernel, scalar, strides
from mpslinalg._lu_plan import SIMD, TINY
from mpslinalg._products import clear_upper, copy, product_name, subtract_product, update_hermitian
from mpslinalg._simdgroups import lanes, whole
from mpslinalg._triangular_plan import solve_into

# Two rows in each lane of a simdgroup.
ROWS = 64
# Bytes of a column up to which one threadgroup factors the whole matrix in one launch: 256 rows of
# float32, 128 of complex64, each with 128 bytes of a panel of 64 columns in each thread.
GROUP_BYTES = 1024
# Matrices up to which cholesky_whole and cholesky_step, whose columns follow faster, take
# the place of kernels of a row a thread, which compute less. On an H200 64 of 256 x 256 take 131 us
# instead of 165, complex64 269 instead of 293; 256 of them 264 and 835 instead of 218 and 472.
STEP_MATRICES = 128
# Threads of a group: of cholesky_whole at most, of cholesky_step always.
THREADS = 512
# Columns between two products of torch's. Each panel of cholesky_step passes over all that it
# updates. On an H200 2048 x 2048 take 701 us in one strip, 798 in two; 4096 x 4096 2174 in one,
# 2025 in two, 2078 in four.
STRIP = 2048
# Columns of a panel beyond that, between two products.
PANEL = 128
# Threads of a panel's group, which takes all rows that are left when they are no more than that.
PANEL_THREADS = 256
# Bytes of a block's row that a thread keeps in registers.
BLOCK_BYTES = 128
# Rows below a panel that one threadgroup solves.
BELOW = 128
# Right-hand sides that leave most lanes idle where each has a lane, and the rows up to which the
# lanes share the rows instead.
FEW = 8
FEW_ROWS = 64


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a few words for `which`."""
    if name in ("cholesky_solve", "cholesky_inverse"):
        if name == "cholesky_solve" and _few(n, k, dtype.itemsize):
            return "cholesky_solve_few"
        if n <= SIMD:
            return f"{name}_simd"
        return _triangular_plan.regime(name, dtype, batch, n, n, k if name[-1] == "e" else n)
    if n <= SIMD:
        return "cholesky_packed" if n <= TINY else "cholesky_simd"
    if n <= ROWS:
        return "cholesky_rows"
    if n * dtype.itemsize <= GROUP_BYTES:
        return "cholesky_whole" if batch <= STEP_MATRICES else "cholesky_group"
    if batch <= STEP_MATRICES:
        step = f"cholesky_step of {side(dtype.itemsize)} columns"
        return step if n <= STRIP else f"{step}, matmul"
    return f"cholesky_panel of {PANEL} columns, cholesky_below, {product_name(n, n)}"


def side(itemsize: int) -> int:
    """Columns of a panel of cholesky_whole and cholesky_step, and rows of a tile."""
    return 64 if itemsize <= 8 else 32


def cholesky(A: Tensor, upper: bool) -> tuple[Tensor, Tensor]:
    """The factor, lower with A = L L^H or upper with A = U^H U, and info."""
    L, info = _cholesky_fake(A, upper)
    if L.numel() == 0:
        return L, info.zero_()
    matrices = flattened(A)
    batch, n, _ = matrices.shape
    row, column, step = strides(matrices)
    if upper:
        # The kernels read the lower triangle of A^T, whose conjugate is A's.
        row, column = column, row
    if n <= TINY and _lu_plan.packed(matrices):
        kernel("cholesky", "cholesky_packed", scalar(A.dtype), n)(
            matrices, L, info, row, column, batch, upper,
            threads=(whole(batch),), group=(32,),
        )  # fmt: skip
    elif n <= SIMD:
        width = lanes(n)
        kernel("cholesky", "cholesky_simd", scalar(A.dtype), width)(
            matrices, L, info, n, batch, row, column, step, upper,
            threads=(whole(width * batch),), group=(32,),
        )  # fmt: skip
    elif n <= ROWS:
        kernel("cholesky", "cholesky_rows", scalar(A.dtype), _block(A))(
            matrices, L, info, n, row, column, step, upper,
            threads=(32 * batch,), group=(32,),
        )  # fmt: skip
    elif n * A.element_size() <= GROUP_BYTES and batch <= STEP_MATRICES:
        parts = THREADS // (GROUP_BYTES // A.element_size())
        threads = parts * whole(n)
        kernel("cholesky", "cholesky_whole", scalar(A.dtype), parts)(
            matrices, L, info, n, row, column, step, upper,
            threads=(threads * batch,), group=(threads,),
        )  # fmt: skip
    elif n * A.element_size() <= GROUP_BYTES:
        threads = whole(n)
        simdgroups = 4 if n <= 128 else 8
        kernel("cholesky", "cholesky_group", scalar(A.dtype), _block(A), simdgroups)(
            matrices, L, info, n, row, column, step, upper,
            threads=(threads * batch,), group=(threads,),
        )  # fmt: skip
    else:
        _factor_blocked(A, L, info, upper)
    return L, info


def _block(A: Tensor) -> int:
    return BLOCK_BYTES // A.element_size()


def _factor_blocked(A: Tensor, L: Tensor, info: Tensor, upper: bool) -> None:
    factor = empty(A.shape, A) if upper else L
    matrices = flattened(factor)
    lower(matrices, flattened(A.mT if upper else A), conjugated=upper)
    if A.shape[:-2].numel() <= STEP_MATRICES:
        _factor_in_steps(matrices, info)
    else:
        _factor_in_panels(matrices, info)
    if upper:
        copy(flattened(L), factor.mH)


def _factor_in_steps(A: Tensor, info: Tensor) -> None:
    """The lower triangle of column-major hermitian matrices := their factor, a launch a panel."""
    batch, n, _ = A.shape
    width = side(A.element_size())
    tiles = -(-n // width)
    diagonal = empty((batch, tiles * width, width), A, row_major=True)
    step = kernel("cholesky", "cholesky_step", scalar(A.dtype))
    for begin in range(0, n, STRIP):
        end = min(begin + STRIP, n)
        for first in range(begin, end, width):
            # A group has two tiles of the columns that follow the panel, one of the rows below it.
            rows = max(tiles - first // width - 1, 1)
            columns = -(-(end - first - width) // (2 * width)) if first > begin else 0
            step(
                A, diagonal, info, n, max(first - width, begin), first, end,
                threads=(THREADS * rows, 1 + columns, batch), group=(THREADS, 1, 1),
            )  # fmt: skip
        for left in range(end, n, STRIP):
            L = A[:, left:, begin:end]
            subtract_product(A[:, left:, left : left + STRIP], L, L[:, :STRIP].mH)
    # Products fill squares, beyond the diagonal.
    above = tiles if n > STRIP else 1
    kernel("cholesky", "cholesky_finish", scalar(A.dtype))(
        A, diagonal, n, threads=(THREADS * above, tiles, batch), group=(THREADS, 1, 1)
    )


def _factor_in_panels(A: Tensor, info: Tensor) -> None:
    batch, n, _ = A.shape
    block = _block(A)
    below = kernel("cholesky", "cholesky_below", scalar(A.dtype), block)
    for first in range(0, n, PANEL):
        last = min(first + PANEL, n)
        whole_height = n - first <= PANEL_THREADS
        threads = whole(n - first if whole_height else last - first)
        kernel("cholesky", "cholesky_panel", scalar(A.dtype), block, PANEL_THREADS // 32)(
            A, info, n, first, last, threads=(threads * batch,), group=(threads,)
        )
        if last == n:
            break
        if not whole_height:
            below(
                A, n, first, last,
                threads=(-(-(n - last) // BELOW) * BELOW, batch), group=(BELOW, 1),
            )  # fmt: skip
        update_hermitian(A, first, last)
    if n > PANEL + _products.PRODUCT:
        # Panels leave zeros above the diagonal; torch's products reached beyond them.
        clear_upper(A)


def lower(X: Tensor, A: Tensor, *, conjugated: bool) -> None:
    """X := the lower triangle of A, zero above it, for a column-major X without gaps."""
    batch, n, _ = A.shape
    tiles = -(-n // 32)
    kernel("cholesky", "cholesky_lower", scalar(X.dtype))(
        A, X, n, *strides(A), conjugated,
        threads=(256 * tiles, tiles, batch), group=(256, 1, 1),
    )  # fmt: skip


def _cholesky_fake(A: Tensor, upper: bool) -> tuple[Tensor, Tensor]:
    return empty(A.shape, A), empty(A.shape[:-2], A, torch.int32, row_major=True)


def cholesky_solve(B: Tensor, L: Tensor, upper: bool) -> Tensor:
    """X with L L^H X = B, or U^H U X = B."""
    X = empty(B.shape, B)
    if X.numel() == 0:
        return X
    factors, right = flattened(L), flattened(B)
    batch, n, k = right.shape
    row, column, step = strides(factors)
    if upper:
        row, column = column, row
    if _few(n, k, L.element_size()):
        width, rows = (lanes(n), 1) if n <= SIMD else (SIMD, 2)
        teams = SIMD // width
        columns = 1 if k == 1 else FEW
        kernel("cholesky", "cholesky_solve_few", scalar(L.dtype), width, rows, columns)(
            factors, right, X, n, k, batch, row, column, step, *strides(right), upper,
            threads=(32 * -(-batch // teams),), group=(32,),
        )  # fmt: skip
    elif n <= SIMD:
        width = lanes(n)
        kernel("cholesky", "cholesky_solve_simd", scalar(L.dtype), width)(
            factors, right, X, n, k, batch, row, column, step, *strides(right), upper,
            threads=(32 * -(-k // width), -(-batch // (32 // width))), group=(32, 1),
        )  # fmt: skip
    else:
        _solve_both(factors, right, flattened(X), upper)
    return X


def _few(n: int, k: int, itemsize: int) -> bool:
    # A triangle of 64 rows of complex128 is more than threadgroup memory holds.
    rows = FEW_ROWS if itemsize <= 8 else SIMD
    return n <= rows and (k == 1 or (k <= FEW and n > SIMD // 2))


def _solve_both(factors: Tensor, B: Tensor, X: Tensor, upper: bool) -> None:
    """X := (L L^H)^-1 B by two triangular solves."""
    first, second = (factors.mT, factors) if upper else (factors, factors.mT)
    middle = empty(B.shape, B)
    solve_into(first, B, middle, lower=True, unit=False, conjugated=upper)
    solve_into(second, middle, X, lower=False, unit=False, conjugated=not upper)


def _cholesky_solve_fake(B: Tensor, L: Tensor, upper: bool) -> Tensor:
    return empty(B.shape, B)


def cholesky_inverse(L: Tensor, upper: bool) -> tuple[Tensor, Tensor]:
    """(L L^H)^-1, or (U^H U)^-1, and info: the first zero on the diagonal, from 1, else 0."""
    X, info = _cholesky_fake(L, upper)
    if X.numel() == 0:
        return X, info.zero_()
    factors = flattened(L)
    batch, n, _ = factors.shape
    if n <= SIMD:
        width = lanes(n)
        row, column, step = strides(factors)
        if upper:
            row, column = column, row
        kernel("cholesky", "cholesky_inverse_simd", scalar(L.dtype), width)(
            factors, X, info, n, batch, row, column, step, upper,
            threads=(-(-batch // (32 // width)) * 32,), group=(32,),
        )  # fmt: skip
    else:
        identity = empty(factors.shape, factors)
        kernel("cholesky", "cholesky_identity", scalar(L.dtype))(
            factors, identity, info, n, *strides(factors), threads=(n, n, batch), group=(64, 1, 1)
        )
        _solve_both(factors, identity, flattened(X), upper)
    return X, info


cholesky_op = _op.define(
    "cholesky(Tensor A, bool upper) -> (Tensor, Tensor)", cholesky, _cholesky_fake
)
cholesky_solve_op = _op.define(
    "cholesky_solve(Tensor B, Tensor L, bool upper) -> Tensor", cholesky_solve, _cholesky_solve_fake
)
cholesky_inverse_op = _op.define(
    "cholesky_inverse(Tensor L, bool upper) -> (Tensor, Tensor)", cholesky_inverse, _cholesky_fake
)
