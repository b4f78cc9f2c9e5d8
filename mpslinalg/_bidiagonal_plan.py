"""Launch plans of the SVD by bidiagonalisation: of matrices too large for Jacobi's rotations."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mpslinalg import _qr_plan
from mpslinalg._engines import empty, kernel, scalar, strides
from mpslinalg._products import copy

# Columns that a group of bidiagonal_columns takes.
COLUMNS = 8
# Rows that a group of bidiagonal_rows takes: whole lines of memory where that leaves enough groups.
ROWS = 32
FEW_ROWS = 8


class Reflectors(NamedTuple):
    """Q and P of A = Q B P^H as products of reflectors, LAPACK's gebrd.

    `left` (batch, m, n) holds those of Q below its diagonal; `right` (batch, n - 1, n - 1) in the
    same way those of P, which leave the first row alone.
    """

    left: Tensor
    tau: Tensor
    right: Tensor
    right_tau: Tensor


def reduce(A: Tensor, d: Tensor, e: Tensor, info: Tensor) -> tuple[Reflectors, Tensor]:
    """Diagonal d and superdiagonal e of B in A 2^-exponent = Q B P^H, and the exponents.

    A (batch, m, n) with m >= n > 1 is column-major without gaps and becomes the left reflectors; d
    (batch, n) and e (batch, n - 1) may have any strides. info is -4, and B zero, for a matrix that
    is not finite.
    """
    batch, m, n = A.shape
    T = scalar(A.dtype)
    real = A.dtype.to_real()
    exponents = empty((batch,), A, torch.int32)
    largest = empty((batch, n), A, real, row_major=True)
    layout = {"threads": (32 * -(-n // 4) * 4, batch), "group": (128, 1)}
    kernel("bidiagonal", "bidiagonal_largest", T)(A, largest, m, n, **layout)
    kernel("bidiagonal", "bidiagonal_scale", T)(A, largest, exponents, info, m, n, **layout)

    right = empty((batch, n - 1, n - 1), A)
    tau, right_tau = (empty((batch, k), A, row_major=True) for k in (n, n - 1))
    w, x, inverses = (empty((batch, k), A, row_major=True) for k in (n, m, 2))
    few = batch * m < _qr_plan.FEW_GROUPS * ROWS
    rows = FEW_ROWS if few else ROWS
    columns_launch = kernel("bidiagonal", "bidiagonal_columns", T)
    rows_launch = kernel("bidiagonal", "bidiagonal_rows", T, rows)
    for i in range(n):
        groups = -(-(n - 1 - i) // COLUMNS)
        columns_launch(
            A, right, w, x, inverses, tau, d, m, n, i, d.stride(1), d.stride(0),
            threads=(128 * groups or 32, batch), group=(128 if groups else 32, 1),
        )  # fmt: skip
        if i + 1 < n:
            groups = -(-m // rows) - (i + 1) // rows
            rows_launch(
                A, right, w, x, inverses, right_tau, e, m, n, i, e.stride(1), e.stride(0),
                threads=(256 * groups, batch), group=(256, 1),
            )  # fmt: skip
    return Reflectors(A, tau, right, right_tau), exponents
