"""Launch plans of tridiagonal form: the reduction of hermitian matrices to it, and its values."""

from typing import NamedTuple

import torch
from torch import Tensor

from mpslinalg._engines import empty, kernel, scalar, strides
from mpslinalg._products import subtract_product
from mpslinalg._simdgroups import LANES, whole

# Rows that one threadgroup reduces: larger matrices spend two launches a column, some 8 us on an
# H200, and a threadgroup some 3 us a column of so many rows.
GROUP_ROWS = 256
# Columns of a panel.
WIDTH = 32
# Lanes share the search for an eigenvalue while that leaves no more simdgroups than this: twice the
# lanes save a step in three to five, and an H200 has 528 places, an M4 Max 160, for a chain of
# divisions to wait in.
VALUES_SIMDGROUPS = 256


class Form(NamedTuple):
    """A = 2^exponents Q T Q^H, as LAPACK's hetrd: d and e of T, reflectors and tau of Q.

    Q has a first row and column of the identity; reflectors (batch, n - 1, n - 1) and tau are those
    of the rest, as geqrf's. info is n - 1, and T zero, where an entry is not finite.
    """

    d: Tensor
    e: Tensor
    reflectors: Tensor
    tau: Tensor
    exponents: Tensor
    info: Tensor


def regime(n: int) -> str:
    """What reduces matrices of n rows, in a few words for `which`."""
    group = "tridiagonal_group"
    if n <= GROUP_ROWS:
        return group
    panels = f"tridiagonal_products, tridiagonal_column for panels of {WIDTH} columns, matmul"
    return f"{panels}, {group} for the last {GROUP_ROWS}"


def reduce(matrices: Tensor, lower: bool, info: Tensor) -> Form:
    """Reduce hermitian matrices (batch, n, n), n > 1, of any strides to tridiagonal form."""
    batch, n, _ = matrices.shape
    blocks = -(-n // 32)
    layout = (n, *strides(matrices), lower)
    real = matrices.dtype.to_real()
    maxima = empty((batch, blocks), matrices, real, row_major=True)
    kernel("tridiagonal", "tridiagonal_largest", scalar(matrices.dtype))(
        matrices, maxima, *layout, threads=(256 * blocks, batch), group=(256, 1)
    )
    A = empty(matrices.shape, matrices)
    form = Form(
        empty((batch, n), A, real, row_major=True),
        empty((batch, n - 1), A, real, row_major=True),
        empty((batch, n - 1, n - 1), A),
        empty((batch, n - 1), A, row_major=True),
        empty((batch,), A, torch.int32),
        info,
    )
    kernel("tridiagonal", "tridiagonal_copy", scalar(A.dtype))(
        matrices, maxima, A, form.exponents, info, *layout,
        threads=(256 * blocks, blocks, batch), group=(256, 1, 1),
    )  # fmt: skip
    first = _reduce_panels(A, form) if n > GROUP_ROWS else 0
    kernel("tridiagonal", "tridiagonal_group", scalar(A.dtype))(
        A, *form[:4], n, first,
        threads=(batch * _threads(n - first),), group=(_threads(n - first),),
    )  # fmt: skip
    return form


def _threads(rows: int) -> int:
    """Two simdgroups for each 32 rows: at first they halve the columns, later there are more."""
    return 64 * -(-rows // 32)


def _reduce_panels(A: Tensor, form: Form) -> int:
    """The first columns, until a threadgroup can do the rest; returns how many."""
    batch, n, _ = A.shape
    panel, swapped = (empty((batch, n, 2 * WIDTH), A) for _ in range(2))
    products = empty((batch, n + 2 * WIDTH + 1), A, row_major=True)
    columns = [empty((batch, n), A, row_major=True) for _ in range(2)]
    multiply = kernel("tridiagonal", "tridiagonal_products", scalar(A.dtype))
    step = kernel("tridiagonal", "tridiagonal_column", scalar(A.dtype))
    count = WIDTH * -(-(n - GROUP_ROWS) // WIDTH)
    for first in range(0, count, WIDTH):
        column = A[:, :, first]
        for done in range(WIDTH):
            k = first + done
            following = columns[done % 2]
            at = (n, k, done, column.stride(0))
            dots = n - k + 2 * done
            multiply(
                A, column, panel, products, *at,
                threads=(256 * -(-dots // 8), batch), group=(256, 1),
            )  # fmt: skip
            step(
                A, column, products, panel, swapped, following, *form[:4], *at, done + 1 < WIDTH,
                threads=(256 * -(-(n - k - 1) // 32), batch), group=(256, 1),
            )  # fmt: skip
            column = following
        rest = slice(first + WIDTH, None)
        subtract_product(A[:, rest, rest], panel[:, rest], swapped[:, rest].mH)
    return count


def finish(
    form: Form, found: Tensor, Z: Tensor | None, values: Tensor, vectors: Tensor | None
) -> None:
    """Scale eigenvalues back, and write Z, real, as vectors of the matrix's kind."""
    batch, n = found.shape
    V = form.tau if vectors is None else vectors
    kernel("tridiagonal", "tridiagonal_finish", scalar(form.tau.dtype))(
        found, found if Z is None else Z, form.exponents, form.info, values, V,
        n, vectors is not None,
        threads=(n, 1 if vectors is None else n, batch), group=(32, 8, 1),
    )  # fmt: skip


def values(d: Tensor, e: Tensor, first: int = 0) -> Tensor:
    """Eigenvalues number `first` to n - 1, ascending, of symmetric tridiagonal matrices.

    Args:
        d: (batch, n), real, contiguous: the diagonals.
        e: (batch, n - 1), contiguous: what is beside them.

    Where the diagonal is zero the eigenvalues have high relative accuracy: those of
    [[0, B^T], [B, 0]], permuted, are the singular values of a bidiagonal B, from n / 2 on.
    """
    batch, n = d.shape
    wanted = n - first
    lanes = values_lanes(batch * wanted)
    found = empty((batch, wanted), d, row_major=True)
    kernel("tridiagonal_values", "tridiagonal_values", scalar(d.dtype), lanes)(
        d, e, found, n, first, threads=(whole(lanes * wanted), batch), group=(32, 1)
    )
    return found


def values_lanes(wanted: int) -> int:
    """Lanes that search for each of so many eigenvalues."""
    lanes = 16
    while lanes > 1 and lanes * wanted > VALUES_SIMDGROUPS * LANES:
        lanes //= 2
    return lanes
