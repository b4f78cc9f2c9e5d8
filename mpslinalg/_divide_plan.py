"""Launch plans of divide and conquer: tridiagonal eigenproblems and bidiagonal SVDs on the GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from mpslinalg._engines import empty, gemm, kernel, scalar, strides
from mpslinalg._simdgroups import LANES, lanes, whole

# Rows of a matrix that is one leaf, which a simdgroup solves, a column a lane.
ALONE = 32
# Rows of a leaf of others: it takes a quarter of the time of one of twice as many rows, which is
# more than one more level takes.
LEAF = 16
# Rows of nodes that one threadgroup merges in one launch, products and all, with so many lanes for
# a root: beyond, torch's GEMM is faster.
SMALL = 128
TEAM = 8
THREADS = 256
# Threads of a group where a simdgroup has one root.
ROOT_THREADS = 128
# Arrays of a node in `numbers` and in `integers`: see secular.h.
NUMBERS = 8
INTEGERS = 8


def leaves(n: int) -> tuple[int, int]:
    """Levels of merges and rows of a leaf; rows beyond n are padding, less than one a leaf."""
    levels = 0
    while n > ALONE and LEAF << levels < n:
        levels += 1
    return levels, -(-n >> levels)


def tridiagonal(d: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """Ascending w and orthonormal Z of the tridiagonal T = Z diag(w) Z^T.

    d (batch, n) is its diagonal, e (batch, n - 1) what is beside it, both contiguous;
    the largest entry is near 1, and what is not finite counts as zero.
    """
    batch, n = d.shape
    levels, rows = leaves(n)
    count = batch << levels
    dense, couplings = _leaves(d, e, levels, rows, 0)
    values = empty((count, rows), d, row_major=True)
    Z = empty((count, rows, rows), d)
    kernel("eigh_ql", "eigh_ql", scalar(d.dtype), lanes(rows))(
        dense, values, Z, empty((count,), d, torch.int32, row_major=True),
        rows, *strides(dense), True, True, threads=(32 * count,), group=(32,),
    )  # fmt: skip
    if levels == 0:
        return values, Z
    w, Z, _ = _merged(values, Z, None, couplings, levels, n)
    return w, Z


def bidiagonal(d: Tensor, e: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """U, s and V of the upper bidiagonal B = U diag(s) V^T: s descends, U and V are orthonormal.

    d (batch, n) is its diagonal, e (batch, n - 1) what is above it, both contiguous;
    the largest entry is near 1, and what is not finite counts as zero.
    """
    batch, n = d.shape
    levels, rows = leaves(n)
    count = batch << levels
    dense, couplings = _leaves(d, e, levels, rows, 1)
    values = empty((count, rows), d, row_major=True)
    U, V = (empty((count, rows, rows), d) for _ in range(2))
    width = lanes(rows)
    kernel("svd", "svd_simd", scalar(d.dtype), width)(
        dense, V, values, U, empty((count,), d, torch.int32, row_major=True),
        rows, rows, count, *strides(dense), rows, *V.stride()[1:], *U.stride()[1:],
        threads=(whole(width * count),), group=(32,),
    )  # fmt: skip
    if levels == 0:
        return U, values, V
    ascending = [empty(x.shape, d, row_major=x.dim() == 2) for x in (values, V, U)]
    kernel("divide", "divide_ascending", scalar(d.dtype))(
        values, V, U, *ascending, rows, 1 << levels, threads=(32 * count,), group=(32,)
    )
    values, V, U = ascending
    s, V, left = _merged(values, V, U, couplings, levels, n)
    assert left is not None
    return left, s, V


def _leaves(d: Tensor, e: Tensor, levels: int, rows: int, singular: int) -> tuple[Tensor, Tensor]:
    """The leaves as dense matrices, and what couples each with the next."""
    batch, n = d.shape
    count = batch << levels
    dense = empty((count, rows, rows), d)
    couplings = empty((count, 2), d, row_major=True)
    kernel("divide", "divide_leaves", scalar(d.dtype), singular)(
        d, e, dense, couplings, n, rows, 1 << levels, threads=(32 * count,), group=(32,)
    )
    return dense, couplings


def _merged(
    values: Tensor, V: Tensor, U: Tensor | None, couplings: Tensor, levels: int, n: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Values and vectors of whole matrices from those of their leaves; U: of the bidiagonal."""
    count, rows, _ = V.shape
    numbers = empty((NUMBERS * count * rows,), V, row_major=True)
    integers = empty((INTEGERS * count * rows,), V, torch.int32, row_major=True)
    kind = (scalar(V.dtype), int(U is not None))
    # In the place of the left vectors that an eigenproblem does not have.
    spare = empty((3,), V, row_major=True)
    for level in range(1, levels + 1):
        last = level == levels
        size, count = 2 * V.shape[-1], count // 2
        columns = n if last else size
        halves = (values, V)
        values = empty((count, columns), V, row_major=True)
        right = empty((count, size, size), V)
        left = spare[:1] if U is None else empty((count, size, size), V)
        kept = (numbers, integers)
        results = (values, right, left)
        sizes = (size, 1 << level, 1 << levels - level)
        if size <= SMALL:
            V = empty((count, columns, columns), V)
            new_U = spare[1:2] if U is None else empty(V.shape, V)
            kernel("divide", "divide_merge", kind[0], TEAM, kind[1])(
                *halves, spare[2:] if U is None else U, couplings, *kept, *results, V, new_U,
                *sizes, columns, last, threads=(THREADS * count,), group=(THREADS,),
            )  # fmt: skip
            U = None if U is None else new_U
            continue
        kernel("divide", "divide_deflate", *kind)(
            *halves, couplings, *kept, *sizes, threads=(THREADS * count,), group=(THREADS,)
        )
        roots = (ROOT_THREADS * count, -(-size * LANES // ROOT_THREADS))
        for step in ("divide_roots", "divide_weights"):
            kernel("divide", step, *kind)(*kept, size, threads=roots, group=(ROOT_THREADS, 1))
        kernel("divide", "divide_vectors", *kind)(
            *kept, *results, size, columns, last, threads=roots, group=(ROOT_THREADS, 1)
        )
        V = _product(V, right, columns)
        U = None if U is None else _product(U, left, columns)
    return values, V, U


def _product(V: Tensor, S: Tensor, n: int) -> Tensor:
    """diag(V of the first half, V of the second) S for each node, its first n rows and columns."""
    count, size, _ = S.shape
    h = size // 2
    product = empty((count, n, n), V)
    first, second = product[:, :h], product[:, h:]
    gemm(first, first, V[::2], S[:, :h, :n], 0, 1)
    gemm(second, second, V[1::2, : n - h], S[:, h:, :n], 0, 1)
    return product
