"""Launch plan of the triangular solve."""

from __future__ import annotations

import torch
from torch import Tensor

from mpslinalg import _op
from mpslinalg._engines import empty, flattened, kernel, scalar, strides
from mpslinalg._products import subtract_product

# Rows that one launch solves; beyond, products take over from one thread a column.
ROWS = 128
# Right-hand sides up to which all threads of a group share the rows instead of the columns, and
# the rows that one such launch solves: each thread then has one.
FEW = 4
FEW_ROWS = 512
# Bytes of a block's column: what a thread keeps of a right-hand side in registers.
BLOCK_BYTES = 256


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a word for `which`."""
    name, rows = ("triangular_few", FEW_ROWS) if k <= FEW else ("triangular_solve", ROWS)
    return name if n <= rows else f"{name} in parts of {rows}, matmul"


def solve_in_place(A: Tensor, X: Tensor, lower: bool, unit: bool, conjugated: bool) -> None:
    """X := op(A)^-1 X for flattened A (batch, n, n) and column-major X (batch, n, k).

    `A` is op(A) but for the conjugation; `lower` is of op(A). The blocked recursion turns all but
    the diagonal blocks into products.
    """
    _solve_rows(A, X, 0, A.shape[-1], lower, unit, conjugated)


def _solve_rows(
    A: Tensor, X: Tensor, first: int, end: int, lower: bool, unit: bool, conjugated: bool
) -> None:
    rows = FEW_ROWS if _few(A, X) else ROWS
    if end - first <= rows:
        _solve_part(A, X, first, end, lower, unit, conjugated)
        return
    middle = first + -(-(end - first) // rows) // 2 * rows
    top, bottom = (first, middle), (middle, end)
    for solved, updated in ((top, bottom),) if lower else ((bottom, top),):
        _solve_rows(A, X, *solved, lower, unit, conjugated)
        off_diagonal = A[:, slice(*updated), slice(*solved)]
        subtract_product(
            X[:, slice(*updated)],
            off_diagonal.conj() if conjugated else off_diagonal,
            X[:, slice(*solved)],
        )
        _solve_rows(A, X, *updated, lower, unit, conjugated)


def _solve_part(
    A: Tensor, X: Tensor, first: int, end: int, lower: bool, unit: bool, conjugated: bool
) -> None:
    batch, n, k = X.shape
    sizes = (first, end, *strides(A), lower, unit, conjugated)
    if _few(A, X):
        threads = -(-(end - first) // 32) * 32
        kernel("triangular", "triangular_few", scalar(A.dtype), k)(
            A, X, n, *sizes, threads=(threads * batch,), group=(threads,)
        )
    else:
        block = min(BLOCK_BYTES // A.element_size(), 32)
        kernel("triangular", "triangular_solve", scalar(A.dtype), block)(
            A, X, n, k, *sizes, threads=(32 * -(-k // 32), batch), group=(32, 1)
        )


def _few(A: Tensor, X: Tensor) -> bool:
    row, column, _ = strides(A)
    # Across memory a row a thread would read as much again for every entry.
    return X.shape[-1] <= FEW and row <= column


def solve_triangular(A: Tensor, B: Tensor, upper: bool, unitriangular: bool, trans: int) -> Tensor:
    """X with op(A) X = B, A triangular; trans 0, 1, 2: op(A) = A, A^T, A^H."""
    matrices = flattened(A)
    X = empty(B.shape, B)
    X.copy_(B)
    if X.numel() != 0:
        op = matrices.mT if trans != 0 else matrices
        solve_in_place(op, flattened(X), upper == (trans != 0), unitriangular, trans == 2)
    return X


def _solve_triangular_fake(
    A: Tensor, B: Tensor, upper: bool, unitriangular: bool, trans: int
) -> Tensor:
    return empty(B.shape, B)


solve_triangular_op = _op.define(
    "solve_triangular(Tensor A, Tensor B, bool upper, bool unitriangular, int trans) -> Tensor",
    solve_triangular,
    _solve_triangular_fake,
)
