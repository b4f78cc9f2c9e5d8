"""Products and copies of blocked algorithms: kernels where a launch is short, else torch's GEMM."""

from __future__ import annotations

import math

from torch import Tensor

from mpslinalg import _op
from mpslinalg._engines import empty, flattened, gemm, kernel, scalar, strides

# Sides of C up to which our product is launched. Beyond, a GEMM's speed outweighs what torch spends
# on a call: 25 us of the host on an H200, five times a launch of ours.
PRODUCT = 1024
# Columns of C up to which rows of A are summed one by one: a tile would mostly be empty.
FEW = 8

# Inner size of a GEMM: from 32767 on torch 2.15 gives wrong results on M1 and M2 without a word
# (pytorch#195163).
INNER = 16384

# Terms of a GEMM's sum that solves add to C at a time. On a GPU a sum is one chain of roundings:
# with all terms in it systems of 4096 complex64 rows have twice LAPACK's error, with 256 the same.
# C is read and written once for 256 FMAs an entry, a tenth of their time on an H200.
TERMS = 256


def product_name(m: int, n: int) -> str:
    """What multiplies m x n updates, in a word for `which`."""
    return "products" if max(m, n) <= PRODUCT or n <= FEW else "matmul"


def subtract_product(C: Tensor, A: Tensor, B: Tensor) -> None:
    """C := C - A B by torch's GEMM, for batches of strided matrices, in full float32 precision."""
    if C.numel() != 0 and A.shape[-1] != 0:
        gemm(C, C, A, B, 1, -1)


def difference(C: Tensor, D: Tensor, A: Tensor, B: Tensor) -> None:
    """C := D - A B for batches of strided matrices, in full float32 precision.

    Columns of C lie along memory, and C shares none with the others. B is no lazy conjugate.
    """
    if C.numel() == 0:
        return
    if C.shape[-1] <= FEW or max(C.shape[-2:]) <= PRODUCT:
        _launch(C, D, A, B)
        return
    for first in range(0, max(A.shape[-1], 1), TERMS):
        inner = slice(first, first + TERMS)
        gemm(C, C if first > 0 else D, A[:, :, inner], B[:, inner], 1, -1)


def product(A: Tensor, B: Tensor) -> Tensor:
    """A B by torch's GEMM, for batches of strided matrices, in full float32 precision."""
    C = empty((*A.shape[:2], B.shape[-1]), A)
    for first in range(0, max(B.shape[1], 1), INNER):
        inner = slice(first, first + INNER)
        gemm(C, C, A[:, :, inner], B[:, inner], int(first > 0), 1)
    return C


def _launch(C: Tensor, D: Tensor, A: Tensor, B: Tensor) -> None:
    batch, m, n = C.shape
    conjugated = A.is_conj()
    if conjugated:
        A = A.conj()
    c_batch, c_row, c_column = C.stride()
    assert c_row == 1 or m == 1
    layout = (*strides(A), *strides(B), *strides(D), c_column, c_batch)
    values = (A, B, D, C, m, n, A.shape[-1], *layout, conjugated)
    if n <= FEW:
        columns = 1 if n == 1 else FEW
        rows = 8 if columns * C.element_size() > 32 else 16
        kernel("products", "products_few", scalar(C.dtype), columns)(
            *values, threads=(128 * -(-m // rows), batch), group=(128, 1)
        )
        return
    kernel("products", "products_difference", scalar(C.dtype))(
        *values, threads=(256 * -(-m // 64), -(-n // 64), batch), group=(256, 1, 1)
    )


def update(A: Tensor, first: int, last: int) -> None:
    """A22 := A22 - A21 A12 in column-major matrices whose first block is [first, last) squared."""
    batch, m, n = A.shape
    if max(m - last, n - last) > PRODUCT:
        subtract_product(A[:, last:, last:], A[:, last:, first:last], A[:, first:last, last:])
    elif last < m and last < n:
        kernel("products", "products_update", scalar(A.dtype))(
            A, m, n, first, last,
            threads=(256 * -(-(m - last) // 64), -(-(n - last) // 64), batch), group=(256, 1, 1),
        )  # fmt: skip


def update_hermitian(A: Tensor, first: int, last: int) -> None:
    """A22 := A22 - A21 A21^H in the lower triangles of column-major hermitian matrices."""
    batch, n, _ = A.shape
    tiles = -(-(n - last) // 64)
    if n - last <= PRODUCT:
        kernel("products", "products_update_hermitian", scalar(A.dtype))(
            A, n, first, last, threads=(256 * tiles, tiles, batch), group=(256, 1, 1)
        )
        return
    # A product computes a full square of each strip, though only one triangle is needed.
    for begin in range(last, n, PRODUCT):
        end = min(begin + PRODUCT, n)
        rows = A[:, begin:, first:last]
        subtract_product(A[:, begin:, begin:end], rows, rows[:, : end - begin].mH)


def clear_upper(A: Tensor) -> None:
    """Zero above the diagonals of column-major matrices."""
    batch, n, _ = A.shape
    kernel("products", "products_clear_upper", scalar(A.dtype))(
        A, n, threads=(n, n, batch), group=(64, 1, 1)
    )


def copy(X: Tensor, B: Tensor) -> None:
    """X := B for column-major X without gaps between columns."""
    if X.numel() == 0:
        return
    matrices = flattened(B)
    batch, m, n = matrices.shape
    kernel("products", "products_copy", scalar(X.dtype))(
        matrices, X, m, n, *strides(matrices), X.stride(0),
        threads=(256 * -(-m // 32), -(-n // 32), batch), group=(256, 1, 1),
    )  # fmt: skip


def _product_of_batches(A: Tensor, B: Tensor) -> Tensor:
    """A B for any batch dimensions, the same for both."""
    size = math.prod(A.shape[:-2])
    A3, B3 = (x.resolve_neg().reshape(size, *x.shape[-2:]) for x in (A, B))
    return product(A3, B3).view(*A.shape[:-1], B.shape[-1])


product_op = _op.define(
    "product(Tensor A, Tensor B) -> Tensor",
    _product_of_batches,
    lambda A, B: empty((*A.shape[:-1], B.shape[-1]), A),
)
