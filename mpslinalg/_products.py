"""The matrix products that blocked algorithms leave to torch's GEMM."""

from __future__ import annotations

import torch
from torch import Tensor


def subtract_product(C: Tensor, A: Tensor, B: Tensor) -> None:
    """C := C - A B in place, for batches of strided matrices, in full float32 precision."""
    if C.is_cuda and torch.backends.cuda.matmul.allow_tf32:
        # TF32 keeps 11 bits of each factor: a factorisation would lose a thousandfold.
        torch.backends.cuda.matmul.allow_tf32 = False
        try:
            _subtract(C, A, B)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = True
    else:
        _subtract(C, A, B)


def _subtract(C: Tensor, A: Tensor, B: Tensor) -> None:
    C.baddbmm_(A, B, alpha=-1)
