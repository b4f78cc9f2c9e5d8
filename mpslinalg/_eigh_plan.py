"""Launch plans of the symmetric and Hermitian eigenproblem: which kernels run for which sizes."""

from __future__ import annotations

import torch
from torch import Tensor

from mpslinalg import _op
from mpslinalg._engines import empty, flattened, kernel, scalar, strides
from mpslinalg._simdgroups import lanes, whole

# A column in each lane of a simdgroup.
MAX_ROWS = 32
# Jacobi needs fewer instructions than QL up to here: 4100 beside some 6000 a matrix of 8 rows, by
# the time of 65536 on an H200; at 16 rows 45000 beside 20000.
JACOBI_ROWS = 8


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a few words for `which`."""
    return "eigh_simd" if n <= JACOBI_ROWS else "eigh_ql"


def eigh(A: Tensor, lower: bool, vectors: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues, eigenvectors (empty if not wanted) and info of matrices of at most MAX_ROWS."""
    values, V, info = _eigh_fake(A, lower, vectors)
    if A.numel() == 0:
        return values, V, info.fill_(0)
    matrices = flattened(A)
    batch, n, _ = matrices.shape
    outputs = (values, V if vectors else empty((1,), A), info)
    layout, width = strides(matrices), lanes(n)
    if n <= JACOBI_ROWS:
        kernel("eigh", "eigh_simd", scalar(A.dtype), width)(
            matrices, *outputs, n, batch, *layout, lower, vectors,
            threads=(whole(width * batch),), group=(32,),
        )  # fmt: skip
    else:
        kernel("eigh_ql", "eigh_ql", scalar(A.dtype), width)(
            matrices, *outputs, n, *layout, lower, vectors, threads=(32 * batch,), group=(32,)
        )
    return values, V, info


def _eigh_fake(A: Tensor, lower: bool, vectors: bool) -> tuple[Tensor, Tensor, Tensor]:
    values = empty(A.shape[:-1], A, A.dtype.to_real(), row_major=True)
    V = empty(A.shape if vectors else (0,), A)
    return values, V, empty(A.shape[:-2], A, torch.int32, row_major=True)


eigh_op = _op.define(
    "eigh(Tensor A, bool lower, bool vectors) -> (Tensor, Tensor, Tensor)", eigh, _eigh_fake
)
