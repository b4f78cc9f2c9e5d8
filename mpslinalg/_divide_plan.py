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
# Rows of nodes that one threadgroup merges in one launch, with so many lanes for a root.
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

    d (batch, n) is its diagonal, e (batch, n - 1) what is beside it, both contiguous.
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
    merges = _Merges(d, couplings, count * rows, 0)
    for level in range(1, levels):
        values, S, _ = merges.level(values, Z, 1 << level, 1 << levels - level)
        Z = _product(Z, S)
    w = empty((batch, n), d, row_major=True)
    w, S, _ = merges.level(values, Z, 1 << levels, 1, w)
    return w, _product(Z, S, n)


def bidiagonal(d: Tensor, e: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """U, s and V of the upper bidiagonal B = U diag(s) V^T: s descends, U and V are orthonormal.

    d (batch, n) is its diagonal, e (batch, n - 1) what is above it, both contiguous.
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
    merges = _Merges(d, couplings, count * rows, 1)
    for level in range(1, levels):
        values, right, left = merges.level(values, V, 1 << level, 1 << levels - level)
        U, V = _product(U, left), _product(V, right)
    s = empty((batch, n), d, row_major=True)
    s, right, left = merges.level(values, V, 1 << levels, 1, s)
    return _product(U, left, n), s, _product(V, right, n)


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


class _Merges:
    """What the levels share: each has the same number of rows in all its nodes."""

    def __init__(self, like: Tensor, couplings: Tensor, rows: int, singular: int) -> None:
        self.couplings, self.rows, self.singular = couplings, rows, singular
        self.numbers = empty((NUMBERS * rows,), like, row_major=True)
        self.integers = empty((INTEGERS * rows,), like, torch.int32, row_major=True)

    def level(
        self, values: Tensor, V: Tensor, leaves: int, nodes: int, final: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Values of nodes of so many leaves and their vectors in terms of the halves'."""
        h = V.shape[-1]
        size, count = 2 * h, self.rows // (2 * h)
        columns = size if final is None else final.shape[-1]
        new = empty((count, size), V, row_major=True) if final is None else final
        right = empty((count, size, size), V)
        left = empty((count, size, size) if self.singular else (1,), V)
        halves = (values, V, self.couplings)
        kept = (self.numbers, self.integers)
        results = (new, right, left)
        descending = self.singular and final is not None
        kind = (scalar(V.dtype), self.singular)
        if size <= SMALL:
            kernel("divide", "divide_merge", kind[0], TEAM, kind[1])(
                *halves, *kept, *results, size, leaves, nodes, columns, descending,
                threads=(THREADS * count,), group=(THREADS,),
            )  # fmt: skip
            return results
        kernel("divide", "divide_deflate", *kind)(
            *halves, *kept, size, leaves, nodes, threads=(THREADS * count,), group=(THREADS,)
        )
        roots = (ROOT_THREADS * count, -(-size * LANES // ROOT_THREADS))
        for step in ("divide_roots", "divide_weights"):
            kernel("divide", step, *kind)(*kept, size, threads=roots, group=(ROOT_THREADS, 1))
        kernel("divide", "divide_vectors", *kind)(
            *kept, *results, size, columns, descending, threads=roots, group=(ROOT_THREADS, 1)
        )
        return results


def _product(V: Tensor, S: Tensor, n: int | None = None) -> Tensor:
    """diag(V of the first half, V of the second) S for each node, its first n rows and columns."""
    count, size, _ = S.shape
    h = size // 2
    n = size if n is None else n
    product = empty((count, n, n), V)
    first, second = product[:, :h], product[:, h:]
    gemm(first, first, V[::2], S[:, :h, :n], 0, 1)
    gemm(second, second, V[1::2, : n - h], S[:, h:, :n], 0, 1)
    return product
