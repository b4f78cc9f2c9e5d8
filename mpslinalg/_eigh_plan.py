"""Launch plans of the symmetric and Hermitian eigenproblem: which kernels run for which sizes."""

from __future__ import annotations

import torch
from torch import Tensor

from mpslinalg import _op
from mpslinalg._engines import empty, flattened, kernel, scalar, strides
from mpslinalg._simdgroups import lanes, whole

# A column in each lane of a simdgroup.
MAX_ROWS = 32


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a few words for `which`."""
    return "eigh_simd"


def eigh(A: Tensor, lower: bool, vectors: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues, eigenvectors (empty if not wanted) and info of matrices of at most MAX_ROWS."""
    values, V, info = _eigh_fake(A, lower, vectors)
    if A.numel() == 0:
        return values, V, info.fill_(0)
    matrices = flattened(A)
    batch, n, _ = matrices.shape
    width = lanes(n)
    kernel("eigh", "eigh_simd", scalar(A.dtype), width)(
        matrices, values, V if vectors else empty((1,), A), info,
        n, batch, *strides(matrices), lower, vectors,
        threads=(whole(width * batch),), group=(32,),
    )  # fmt: skip
    return values, V, info


def _eigh_fake(A: Tensor, lower: bool, vectors: bool) -> tuple[Tensor, Tensor, Tensor]:
    values = empty(A.shape[:-1], A, A.dtype.to_real(), row_major=True)
    V = empty(A.shape if vectors else (0,), A)
    return values, V, empty(A.shape[:-2], A, torch.int32, row_major=True)


eigh_op = _op.define(
    "eigh(Tensor A, bool lower, bool vectors) -> (Tensor, Tensor, Tensor)", eigh, _eigh_fake
)
