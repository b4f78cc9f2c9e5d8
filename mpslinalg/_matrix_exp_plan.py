"""Launch plan of the exponential of a matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from mpslinalg import _op, _products
from mpslinalg._engines import empty, flattened, gemm, kernel, scalar, strides
from mpslinalg._products import product
from mpslinalg._repeat import repeated

# A group's 32 KiB hold parts of two factors; beyond, torch's GEMM is as fast.
FUSED = 64
# Rows and columns of the matrix that a thread owns, by the width of the kernel: as many entries as
# its registers have place for, four times.
OWNED = {8: (2, 1), 16: (2, 4), 32: (4, 4), 64: (4, 4)}
OWNED_WIDE = {8: (2, 1), 16: (2, 2), 32: (4, 2), 64: (4, 2)}


def regime(n: int) -> str:
    """What runs for these sizes, in a few words for `which`."""
    return "matrix_exp_fused" if n <= FUSED else "matrix_exp, matmul"


def matrix_exp(A: Tensor) -> Tensor:
    """exp(A), row-major; of larger matrices, reads the largest number of squarings of the batch."""
    X = _matrix_exp_fake(A)
    if X.numel() == 0:
        return X
    matrices = flattened(A)
    batch, n, _ = matrices.shape
    row, column, step = strides(matrices)
    if n <= FUSED:
        width = next(width for width in OWNED if n <= width)
        rows, columns = (OWNED if A.dtype == torch.float32 else OWNED_WIDE)[width]
        threads = width // rows * (width // columns)
        # By transposes, for what is column-major of one is row-major of the other.
        kernel("matrix_exp", "matrix_exp_fused", scalar(A.dtype), width, rows, columns)(
            matrices, X, n, column, row, step, threads=(threads * batch,), group=(threads,)
        )
    else:
        _by_products(matrices, X.view(batch, n, n))
    return X


def _by_products(A: Tensor, X: Tensor) -> None:
    """In two programs, one before the host reads how many squarings there are, and one after."""
    squarings = _polynomial(A, X)
    _squared(X, squarings, most(squarings))


def _polynomial_into(A: Tensor, X: Tensor) -> Tensor:
    """X := the polynomial of A halved so often; returns how often."""
    batch, n, _ = A.shape
    row, column, step = strides(A)
    sums = empty((batch, n), A, A.dtype.to_real(), row_major=True)
    kernel("matrix_exp", "matrix_exp_sums", scalar(A.dtype))(
        A, sums, n, max(row, column), min(row, column), step,
        threads=(256 * -(-n // 8), batch), group=(256, 1),
    )  # fmt: skip
    squarings = empty((batch,), A, torch.int32, row_major=True)
    kernel("matrix_exp", "matrix_exp_halvings", scalar(sums.dtype))(
        sums, squarings, n, threads=(32 * batch,), group=(32,)
    )
    entries = _entries(X)
    kernel("matrix_exp", "matrix_exp_scale", scalar(A.dtype))(
        A, squarings, X, n, row, column, step, **entries
    )
    A2 = _product(X, X)
    B = empty(X.shape, X, row_major=True)
    kernel("matrix_exp", "matrix_exp_quartic", scalar(A.dtype))(X, A2, B, n, **entries)
    A4 = _product(A2, B)
    kernel("matrix_exp", "matrix_exp_factors", scalar(A.dtype))(X, A2, A4, n, **entries)
    for first in range(0, n, _products.INNER):
        inner = slice(first, first + _products.INNER)
        gemm(X, X, A4[:, :, inner], A2[:, inner], 1, 1)
    return squarings


def _square(X: Tensor, squarings: Tensor, count: int) -> Tensor:
    """X := exp(A), each matrix squared as often as it was halved, at most `count` times."""
    batch, n, _ = X.shape
    for remaining in range(count, 0, -1):
        kernel("matrix_exp", "matrix_exp_double", scalar(X.dtype))(
            _product(X, X), squarings, X, n, remaining, **_entries(X)
        )
    kernel("matrix_exp", "matrix_exp_join", scalar(X.dtype))(
        squarings, X, n, threads=(n, batch), group=(64, 1)
    )
    return X


_polynomial = repeated(_polynomial_into, _polynomial_into)
_squared = repeated(_square, _square)


def _entries(X: Tensor) -> dict[str, tuple[int, ...]]:
    """A thread for each."""
    batch, n, _ = X.shape
    return {"threads": (n, n, batch), "group": (64, 1, 1)}


def most(squarings: Tensor) -> int:
    """Of all matrices: the host waits."""
    return int(squarings.amax())


def _product(A: Tensor, B: Tensor) -> Tensor:
    """A B of row-major polynomials of one matrix, which commute; row-major."""
    return product(A.mT, B.mT).mT


def _matrix_exp_fake(A: Tensor) -> Tensor:
    return empty(A.shape, A, row_major=True)


matrix_exp_op = _op.define("matrix_exp(Tensor A) -> Tensor", matrix_exp, _matrix_exp_fake)
