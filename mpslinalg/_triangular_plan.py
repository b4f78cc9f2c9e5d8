"""Launch plan of the triangular solve."""

from __future__ import annotations

import torch
from torch import Tensor

from mpslinalg import _op
from mpslinalg._engines import empty, flattened, kernel, scalar, side_by_side, strides
from mpslinalg._products import difference, product_name
from mpslinalg._simdgroups import lanes, whole

# Bytes of a column that a lane keeps in registers where one block holds all of its rows, and the
# rows of a block where it does not, or where a group has fewer threads than the block would rows.
COLUMN_BYTES = 256
HEIGHT = 32
# Threads of a group: columns that share what it reads of A.
THREADS = 128
# Rows that one launch of triangular_columns solves; beyond, products take over. Sooner where so few
# simdgroups, half as many of float32, leave each alone on its part of a GPU: products then spread
# the work over more of them.
ROWS = 256
FEW_SIMDGROUPS = 2048
ROWS_OF_FEW_SIMDGROUPS = 64
# Rows up to which matrices of at most 16 right-hand sides share a simdgroup, in blocks of 16, where
# there are so many of them: a simdgroup each would leave half of its lanes without a column.
SHARED = 64
# Right-hand sides up to which all threads of a group share the rows of a matrix, and the rows from
# which they do; for one, a simdgroup those of more than half a block. On an H200 8 right-hand sides
# of 4096 matrices of 64 rows take 240 us that way.
FEW = 8
FEW_FROM = 64
# Bytes of right-hand sides in threadgroup memory then, half of what there is, and the most rows.
FEW_BYTES = 16384
FEW_ROWS = 512
# Rows that a step solves, a side of its squares, the columns that pass through its registers at a
# time, and the most bytes of a row that these are.
STEP = 128
SQUARE = 32
STEP_COLUMNS = 4
STEP_BYTES = 32
# Chunks of STEP_COLUMNS columns, of all matrices, up to which systems go in steps, of complex
# numbers a quarter: 64 of 256 x 256 with 256 right-hand sides take 142 us either way on an H200,
# complex64 367 instead of 242.
STEP_CHUNKS = 4096
# Chunks times squares below up to which a part goes in several steps, of complex numbers half as
# many: all groups of a step solve the same rows again.
STEP_GROUPS = 1024
# Simdgroups of a step that find room beside each other, of complex numbers half as many: beyond, a
# group takes several chunks. On an H200 two groups of ten simdgroups share a multiprocessor.
STEP_SIMDGROUPS = 2560
# Strides up to which 32 bits hold an offset within a block.
NEAR = 2**24


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a word for `which`."""
    rows = _rows_in_steps(batch, n, k, dtype.itemsize)
    if rows:
        name = "triangular_step"
    else:
        name = "triangular_few" if _few(n, k) else "triangular_columns"
        rows = _rows(batch, n, k, dtype.itemsize)
    return name if n <= rows else f"{name} in parts of {rows}, {product_name(n, k)}"


def solve_into(A: Tensor, B: Tensor, X: Tensor, lower: bool, unit: bool, conjugated: bool) -> None:
    """X := op(A)^-1 B for flattened A (batch, n, n), B and X (batch, n, k); X is not B.

    `A` is op(A) but for the conjugation; `lower` is of op(A). The blocked recursion turns all but
    the diagonal blocks into products.
    """
    batch, n, k = X.shape
    itemsize = A.element_size()
    steps = _rows_in_steps(batch, n, k, itemsize) if side_by_side(X) else 0
    rows = steps or _rows(batch, n, k, itemsize)
    if n > rows:
        middle = -(-n // rows) // 2 * rows
        first, second = slice(middle), slice(middle, n)
        if not lower:
            first, second = second, first
        solve_into(A[:, first, first], B[:, first], X[:, first], lower, unit, conjugated)
        rest = empty(X[:, second].shape, X)
        factor = A[:, second, first]
        difference(rest, B[:, second], factor.conj() if conjugated else factor, X[:, first])
        solve_into(A[:, second, second], rest, X[:, second], lower, unit, conjugated)
        return
    A, B = _near(A), _near(B)
    if steps:
        _solve_in_steps(A, B, X, lower, unit, conjugated)
        return
    layout = (*strides(A), *strides(B), *strides(X), lower, unit, conjugated)
    if _few(n, k):
        # Four simdgroups share the columns.
        threads = whole(n) if k == 1 else max(whole(n), THREADS)
        kernel("triangular", "triangular_few", scalar(A.dtype), 1 if k == 1 else FEW)(
            A, B, X, n, k, *layout, threads=(threads * batch,), group=(threads,)
        )
        return
    height, tiles = _tiles(batch, n, k, itemsize)
    width = 32 // tiles
    threads = 32 if tiles > 1 or n <= HEIGHT else min(whole(k), THREADS)
    kernel("triangular", "triangular_columns", scalar(A.dtype), height, tiles, int(n > height))(
        A, B, X, n, k, batch, *layout,
        threads=(threads * -(-k // (threads // 32 * width)), -(-batch // tiles)),
        group=(threads, 1),
    )  # fmt: skip


def _solve_in_steps(
    A: Tensor, B: Tensor, X: Tensor, lower: bool, unit: bool, conjugated: bool
) -> None:
    """The same by one launch for every STEP rows, which also takes them out of the others."""
    batch, n, k = X.shape
    columns = _columns_of_a_step(k, A.element_size())
    step = kernel("triangular_step", "triangular_step", scalar(A.dtype), columns)
    room = STEP_SIMDGROUPS if A.element_size() <= 4 else STEP_SIMDGROUPS // 2
    # No launch writes what it reads; the last one has nothing to write here.
    rests = [empty(X.shape, X) for _ in range(min(2, -(-n // STEP)))]
    for left in range(n, 0, -STEP):
        unsolved = slice(n - left, n) if lower else slice(left)
        given, rest, solved = B[:, unsolved], rests[0][:, unsolved], X[:, unsolved]
        squares = -(-min(left, STEP) // SQUARE)
        simdgroups = squares * (squares + 1) // 2 + (squares if left > STEP else 0)
        groups = max(-(-(left - STEP) // SQUARE), 1)
        beside = max(room // (simdgroups * groups * batch), 1)
        chunks = -(-k // (columns * beside))
        step(
            A[:, unsolved, unsolved], given, rest, solved, left, k, chunks,
            *strides(A), *strides(given), *strides(rest), *strides(solved),
            lower, unit, conjugated,
            threads=(32 * simdgroups * groups, -(-k // (columns * chunks)), batch),
            group=(32 * simdgroups, 1, 1),
        )  # fmt: skip
        B = rests[0]
        rests.reverse()


def _columns_of_a_step(k: int, itemsize: int) -> int:
    return 1 if k == 1 else min(STEP_COLUMNS, STEP_BYTES // itemsize)


def _rows_in_steps(batch: int, n: int, k: int, itemsize: int) -> int:
    """Rows that steps solve before a product, 0 where other kernels are faster."""
    chunks = batch * -(-k // _columns_of_a_step(k, itemsize))
    if n <= HEIGHT or chunks > (STEP_CHUNKS if itemsize <= 4 else STEP_CHUNKS // 4):
        return 0
    most = STEP_GROUPS if itemsize <= 4 else STEP_GROUPS // 2
    return max(most // chunks * SQUARE // STEP, 1) * STEP


def _near(matrices: Tensor) -> Tensor:
    return matrices.contiguous() if max(strides(matrices)[:2]) > NEAR else matrices


def _few(n: int, k: int) -> bool:
    return n > HEIGHT // 2 if k == 1 else k <= FEW and n > FEW_FROM


def _rows(batch: int, n: int, k: int, itemsize: int) -> int:
    """Rows that one launch solves."""
    if _few(n, k):
        return min(FEW_BYTES // ((1 if k == 1 else FEW) * itemsize), FEW_ROWS)
    return ROWS_OF_FEW_SIMDGROUPS if _few_simdgroups(batch, k, itemsize) else ROWS


def _few_simdgroups(batch: int, k: int, itemsize: int) -> bool:
    return batch * -(-k // 32) * (2 if itemsize <= 4 else 1) <= FEW_SIMDGROUPS


def _tiles(batch: int, n: int, k: int, itemsize: int) -> tuple[int, int]:
    """Rows of a block, and matrices that share a simdgroup."""
    if HEIGHT // 2 < n <= SHARED and k <= 16 and not _few_simdgroups(batch, k, itemsize):
        return HEIGHT // 2, 32 // lanes(k, 8)
    most = COLUMN_BYTES // itemsize
    if k <= 32:
        most = min(most, HEIGHT)
    if n > most:
        # Of 48 rows three blocks of 16, not one of 32 and one that is half empty.
        half = n <= HEIGHT + HEIGHT // 2
        return (HEIGHT // 2 if half else min(most, HEIGHT)), 1
    height = next(h for h in (4, 8, 16, 32, 64) if h >= n)
    # Of one or two columns a lane each, as far as threadgroup memory holds 32 matrices.
    whole_matrix = k <= 2 and height <= 8 and height * itemsize <= 64
    return height, 32 if whole_matrix else max(32 // height, 1)


def solve_triangular(
    A: Tensor, B: Tensor, upper: bool, unitriangular: bool, trans: int, row_major: bool = False
) -> Tensor:
    """X with op(A) X = B, A triangular; trans 0, 1, 2: op(A) = A, A^T, A^H."""
    X = _solve_triangular_fake(A, B, upper, unitriangular, trans, row_major)
    if X.numel() != 0:
        matrices = flattened(A)
        op = matrices.mT if trans != 0 else matrices
        lower = upper == (trans != 0)
        solve_into(op, flattened(B), flattened(X), lower, unitriangular, trans == 2)
    return X


def _solve_triangular_fake(
    A: Tensor, B: Tensor, upper: bool, unitriangular: bool, trans: int, row_major: bool = False
) -> Tensor:
    return empty(B.shape, B, row_major=row_major)


solve_triangular_op = _op.define(
    "solve_triangular(Tensor A, Tensor B, bool upper, bool unitriangular, int trans,"
    " bool row_major=False) -> Tensor",
    solve_triangular,
    _solve_triangular_fake,
)
