"""Launch plans of the nonsymmetric eigenproblem: which kernels run for which sizes."""

from __future__ import annotations

import torch
from torch import Tensor

from mpslinalg import _eig_large_plan, _op
from mpslinalg._engines import empty, flattened, kernel, scalar, strides
from mpslinalg._simdgroups import lanes, whole

# Threadgroup memory holds the Schur form, the unitary matrix and the eigenvectors of so many rows.
SIMD_ROWS = 32
SIMD_ROWS_OF_DOUBLES = 16
# From the shader: rows of the largest matrix that a threadgroup takes, whose threads own one each.
MAX_ROWS = 512
# What bounds the time of a launch: entries of all columns that it reduces, rows that all its sweeps
# pass.
ENTRIES = 2**22
PASSES = 8192
# From the shader: sweeps a row after which a matrix counts as one that does not converge, and the
# numbers of its state.
SWEEPS_A_ROW = 30
STATE = 5


def simd_rows(dtype: torch.dtype) -> int:
    """Rows of the largest matrix that a simdgroup takes in threadgroup memory."""
    return SIMD_ROWS if dtype.to_real() == torch.float32 else SIMD_ROWS_OF_DOUBLES


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a few words for `which`."""
    if n > MAX_ROWS:
        return _eig_large_plan.regime(name == "eig")
    return "eig_simd" if n <= simd_rows(dtype) else "eig_reduce, eig_iterate, eig_finish"


def eig(A: Tensor, vectors: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues, eigenvectors (empty if not wanted) and info."""
    values, V, info = _eig_fake(A, vectors)
    if A.numel() == 0:
        return values, V, info.fill_(0)
    matrices = flattened(A)
    batch, n, _ = matrices.shape
    types = scalar(A.dtype), scalar(values.dtype)
    if n > MAX_ROWS:
        _eig_large_plan.eig(matrices, values, flattened(V) if vectors else None, info)
        return values, V, info
    out = V if vectors else empty((1,), A, values.dtype)
    if n <= simd_rows(A.dtype):
        kernel("eig", "eig_simd", *types, lanes(n, 16))(
            matrices, values, out, info, n, *strides(matrices), vectors,
            threads=(32 * batch,), group=(32,),
        )  # fmt: skip
    else:
        _by_groups(matrices, values, out, info, vectors)
    return values, V, info


def _by_groups(A: Tensor, values: Tensor, V: Tensor, info: Tensor, vectors: bool) -> None:
    batch, n, _ = A.shape
    H = empty(A.shape, A)
    Z = empty(A.shape if vectors else (1,), A)
    scales, state = (empty((batch, size), A, torch.int32, row_major=True) for size in (n, STATE))
    threads = whole(n)
    columns = ENTRIES // n**2
    reduce = kernel("eig", "eig_reduce", scalar(A.dtype))
    for first in range(0, n - 2, columns):
        reduce(
            A, H, Z, scales, state, n, *strides(A), first, min(first + columns, n - 2), vectors,
            threads=(threads * batch,), group=(threads,),
        )  # fmt: skip
    sweeps = PASSES // n
    iterate = kernel("eig", "eig_iterate", scalar(A.dtype))
    # A deflation takes a turn too.
    for _ in range(0, (SWEEPS_A_ROW + 1) * n, sweeps):
        iterate(H, Z, state, n, sweeps, vectors, threads=(threads * batch,), group=(threads,))
    workspace = empty(V.shape, V)
    kernel("eig", "eig_finish", scalar(A.dtype), scalar(V.dtype))(
        H, Z, scales, state, workspace, values, V, info, n, vectors,
        threads=(threads, batch), group=(32, 1),
    )  # fmt: skip


def _eig_fake(A: Tensor, vectors: bool) -> tuple[Tensor, Tensor, Tensor]:
    dtype = A.dtype.to_complex()
    values = empty(A.shape[:-1], A, dtype, row_major=True)
    V = empty(A.shape if vectors else (0,), A, dtype)
    return values, V, empty(A.shape[:-2], A, torch.int32, row_major=True)


eig_op = _op.define("eig(Tensor A, bool vectors) -> (Tensor, Tensor, Tensor)", eig, _eig_fake)
