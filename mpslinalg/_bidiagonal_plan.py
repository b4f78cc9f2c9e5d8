"""Launch plans of the SVD by bidiagonalisation: of matrices too large for Jacobi's rotations."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mpslinalg import _divide_plan, _qr_plan, _tridiagonal_plan
from mpslinalg._engines import empty, kernel, scalar, strides
from mpslinalg._products import copy

# Columns that a group of bidiagonal_columns takes.
COLUMNS = 8
# Rows that a group of bidiagonal_rows takes: whole lines of memory where that leaves enough groups.
ROWS = 32
FEW_ROWS = 8
# Simdgroups of such a group, and the columns of the matrix that a thread of it reads at once.
SHARING = 8
BATCH = 8
# Rows of what a threadgroup holds in registers, 32 or 64 numbers a thread, by the bytes of each.
SMALL_GROUP = 64
LARGEST_GROUP = {4: 128, 8: 96, 16: 64}


def regime(name: str, dtype: torch.dtype, m: int, n: int) -> str:
    """What runs for these sizes, m >= n, in a few words for `which`."""
    rows = n if tall(m, n) else m
    launched = launches(dtype, rows, n)
    return ", ".join(
        (
            *(("qr",) if tall(m, n) else ()),
            *(("bidiagonal_columns, bidiagonal_rows",) if launched > 0 else ()),
            *(("bidiagonal_group",) if launched < n else ()),
            "tridiagonal_values" if name == "svdvals" else "divide, qr_apply",
        )
    )


def tall(m: int, n: int) -> bool:
    """Whether a QR decomposition first takes less work."""
    return 5 * m >= 8 * n


def launches(dtype: torch.dtype, m: int, n: int) -> int:
    """Steps that are launches of their own, before a threadgroup takes the rest."""
    return min(max(m - LARGEST_GROUP[dtype.itemsize], 0), n)


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
    (batch, n) and e (batch, n - 1) are contiguous. info is -4, and B zero, for a matrix that is not
    finite.
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
    threads = 32 * min(SHARING, -(-n * rows // (32 * BATCH)))
    columns_launch = kernel("bidiagonal", "bidiagonal_columns", T)
    rows_launch = kernel("bidiagonal", "bidiagonal_rows", T, rows)
    launched = launches(A.dtype, m, n)
    for i in range(launched):
        groups = -(-(n - 1 - i) // COLUMNS)
        columns_launch(
            A, right, w, x, inverses, tau, d, m, n, i,
            threads=(128 * groups or 32, batch), group=(128 if groups else 32, 1),
        )  # fmt: skip
        if i + 1 < n:
            groups = -(-m // rows) - (i + 1) // rows
            rows_launch(
                A, right, w, x, inverses, right_tau, e, m, n, i,
                threads=(threads * groups, batch), group=(threads, 1),
            )  # fmt: skip
    if launched < n:
        size = SMALL_GROUP if m - launched <= SMALL_GROUP else LARGEST_GROUP[A.dtype.itemsize]
        kernel("bidiagonal", "bidiagonal_group", T, size)(
            A, right, w, x, inverses, tau, right_tau, d, e, m, n, launched,
            threads=(4 * size * batch,), group=(4 * size,),
        )  # fmt: skip
    return Reflectors(A, tau, right, right_tau), exponents


def svd(A: Tensor, X: Tensor, S: Tensor, Y: Tensor, info: Tensor) -> None:
    """A = X diag(S) Y^H, Y conjugated, for A (batch, m, n) with m >= n > 1 and any strides.

    Args:
        X: (batch, m, n), or (batch, m, m) for all of a basis; any strides.
        S: (batch, n), contiguous.
        Y: (batch, n, n), any strides, gets conj(Y): with Y = Vh.mT, Vh gets the adjoint.
        info: (batch,), -4 for a matrix that is not finite, whose results are NaN; else 0.
    """
    batch, m, n = A.shape
    outer = _qr_plan.geqrf(A) if tall(m, n) else None
    inner = empty((batch, n, n) if outer else A.shape, A)
    if outer:
        kernel("qr", "qr_upper", scalar(A.dtype))(
            outer[0], inner, m, n, n, threads=(n, n, batch), group=(32, 8, 1)
        )
    else:
        copy(inner, A)
    d, e = (empty((batch, k), A, A.dtype.to_real(), row_major=True) for k in (n, n - 1))
    reflectors, exponents = reduce(inner, d, e, info)
    U, values, V = _divide_plan.bidiagonal(d, e)
    _finish(values, exponents, info, S, reversed=False)
    for B, of_B in ((U, X), (V, Y)):
        kernel("bidiagonal", "bidiagonal_embed", scalar(A.dtype))(
            B, info, of_B, n, *strides(of_B), threads=(*of_B.shape[1:], batch), group=(32, 8, 1)
        )
    within = X[:, :n, :n] if outer else X
    _qr_plan.apply_reflectors(reflectors.left, reflectors.tau, within, False, False)
    _qr_plan.apply_reflectors(reflectors.right, reflectors.right_tau, Y[:, 1:], False, True)
    if outer:
        _qr_plan.apply_reflectors(*outer, X, False, False)


def svdvals(A: Tensor, S: Tensor, info: Tensor) -> None:
    """The same S (batch, n), contiguous, and info up to roundings, by bisection."""
    batch, m, n = A.shape
    if tall(m, n):
        _, inner = _qr_plan.qr(A, "r")
    else:
        inner = empty(A.shape, A)
        copy(inner, A)
    d, e = (empty((batch, k), S, row_major=True) for k in (n, n - 1))
    _, exponents = reduce(inner, d, e, info)
    zeros, beside = (empty((batch, k), S, row_major=True) for k in (2 * n, 2 * n - 1))
    kernel("bidiagonal", "bidiagonal_interleave", scalar(S.dtype))(
        d, e, zeros, beside, n, threads=(2 * n, batch), group=(32, 8)
    )
    values = _tridiagonal_plan.values(zeros, beside, n)
    _finish(values, exponents, info, S, reversed=True)


def _finish(values: Tensor, exponents: Tensor, info: Tensor, S: Tensor, reversed: bool) -> None:
    batch, n = values.shape
    kernel("bidiagonal", "bidiagonal_values", scalar(S.dtype))(
        values, exponents, info, S, n, reversed, threads=(n, batch), group=(32, 8)
    )
