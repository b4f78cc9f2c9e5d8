"""Products and copies of blocked algorithms: kernels where a launch is short, else torch's GEMM."""

from __future__ import annotations

import torch
from torch import Tensor

from mpslinalg._engines import flattened, kernel, scalar, strides

# Sides of C up to which our product is launched. Beyond, a GEMM's speed outweighs what torch spends
# on a call: 25 us of the host on an H200, five times a launch of ours.
PRODUCT = 1024


def subtract_product(C: Tensor, A: Tensor, B: Tensor) -> None:
    """C := C - A B in place, for batches of strided matrices, in full float32 precision.

    Columns of C lie along memory.
    """
    if C.numel() == 0 or A.shape[-1] == 0:
        return
    if max(C.shape[-2:]) <= PRODUCT:
        _launch(C, A, B)
    elif C.is_cuda and torch.backends.cuda.matmul.allow_tf32:
        # TF32 keeps 11 bits of each factor: a factorisation would lose a thousandfold.
        torch.backends.cuda.matmul.allow_tf32 = False
        try:
            C.baddbmm_(A, B, alpha=-1)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = True
    else:
        C.baddbmm_(A, B, alpha=-1)


def _launch(C: Tensor, A: Tensor, B: Tensor) -> None:
    batch, m, n = C.shape
    conjugated = A.is_conj()
    if conjugated:
        A = A.conj()
    c_batch, c_row, c_column = C.stride()
    assert c_row == 1 or m == 1
    kernel("products", "products_subtract", scalar(C.dtype))(
        A, B, C, m, n, A.shape[-1], *strides(A), *strides(B), c_column, c_batch, conjugated,
        threads=(256 * -(-m // 64), -(-n // 64), batch), group=(256, 1, 1),
    )  # fmt: skip


def copy(X: Tensor, B: Tensor) -> None:
    """X := B for a column-major X without gaps."""
    if X.numel() == 0:
        return
    matrices = flattened(B)
    batch, m, n = matrices.shape
    kernel("products", "products_copy", scalar(X.dtype))(
        matrices, X, m, n, *strides(matrices),
        threads=(256 * -(-m // 32), -(-n // 32), batch), group=(256, 1, 1),
    )  # fmt: skip
