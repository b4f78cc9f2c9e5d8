"""Launch plan of the triangular solve."""

from __future__ import annotations

import torch
from torch import Tensor

from mpslinalg import _op
from mpslinalg._engines import empty, flattened, kernel, scalar, strides
from mpslinalg._products import subtract_product

# Bytes of a column that a lane keeps in registers: 64 rows of float32, 32 of complex64, are 64 of
# the 104 registers that an Apple GPU gives each thread of a large group.
COLUMN_BYTES = 256
# Rows that one launch of triangular_columns solves; beyond, products take over.
ROWS = 512
# Threads of a group: columns that share what it reads of A.
THREADS = 128
# Right-hand sides up to which all threads of a group share the rows of a matrix, where its columns
# do not fit into a lane's registers.
FEW = 8
# Bytes of right-hand sides in threadgroup memory then, half of what there is, and the most rows.
FEW_BYTES = 16384
FEW_ROWS = 512
# Strides up to which 32 bits hold an offset within a block.
NEAR = 2**24


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a word for `which`."""
    few = _few(n, k, dtype.itemsize)
    name = "triangular_few" if few else "triangular_columns"
    rows = _few_rows(k, dtype.itemsize) if few else ROWS
    return name if n <= rows else f"{name} in parts of {rows}, matmul"


def solve_into(A: Tensor, B: Tensor, X: Tensor, lower: bool, unit: bool, conjugated: bool) -> None:
    """X := op(A)^-1 B for flattened A (batch, n, n), B and X (batch, n, k); X is not B.

    `A` is op(A) but for the conjugation; `lower` is of op(A). The blocked recursion turns all but
    the diagonal blocks into products.
    """
    batch, n, k = X.shape
    itemsize = A.element_size()
    few = _few(n, k, itemsize)
    rows = _few_rows(k, itemsize) if few else ROWS
    if n > rows:
        middle = -(-n // rows) // 2 * rows
        first, second = slice(middle), slice(middle, n)
        if not lower:
            first, second = second, first
        solve_into(A[:, first, first], B[:, first], X[:, first], lower, unit, conjugated)
        rest = empty(X[:, second].shape, X)
        rest.copy_(B[:, second])
        off_diagonal = A[:, second, first]
        subtract_product(rest, off_diagonal.conj() if conjugated else off_diagonal, X[:, first])
        solve_into(A[:, second, second], rest, X[:, second], lower, unit, conjugated)
        return
    A, B = _near(A), _near(B)
    layout = (*strides(A), *strides(B), *strides(X), lower, unit, conjugated)
    if few:
        threads = min(-(-n // 32) * 32, FEW_ROWS)
        kernel("triangular", "triangular_few", scalar(A.dtype), 1 if k == 1 else FEW)(
            A, B, X, n, k, *layout, threads=(threads * batch,), group=(threads,)
        )
        return
    height, tiles = _tiles(n, k, itemsize)
    width = 32 // tiles
    threads = 32 if tiles > 1 else min(-(-k // 32) * 32, THREADS)
    kernel("triangular", "triangular_columns", scalar(A.dtype), height, tiles)(
        A, B, X, n, k, batch, *layout,
        threads=(threads * -(-k // (threads // 32 * width)), -(-batch // tiles)),
        group=(threads, 1),
    )  # fmt: skip


def _near(matrices: Tensor) -> Tensor:
    return matrices.contiguous() if max(strides(matrices)[:2]) > NEAR else matrices


def _few(n: int, k: int, itemsize: int) -> bool:
    return k <= FEW and n * itemsize > COLUMN_BYTES


def _few_rows(k: int, itemsize: int) -> int:
    return min(FEW_BYTES // ((1 if k == 1 else FEW) * itemsize), FEW_ROWS)


def _tiles(n: int, k: int, itemsize: int) -> tuple[int, int]:
    """Rows that a lane keeps in registers, and matrices that share a simdgroup."""
    height = next(h for h in (4, 8, 16, 32, 64) if h >= n or h * itemsize == COLUMN_BYTES)
    if k <= 2 and height <= 8 and height * itemsize <= 64:
        return height, 32
    return height, max(32 // height, 1) if n <= height else 1


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


_op.define(
    "solve_triangular(Tensor A, Tensor B, bool upper, bool unitriangular, int trans,"
    " bool row_major=False) -> Tensor",
    solve_triangular,
    _solve_triangular_fake,
)
