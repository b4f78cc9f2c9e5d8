"""Launch plans of the Gated DeltaNet solves."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mpslinalg import _op
from mpslinalg._engines import empty, kernel, scalar

# Rows of a chunk that the kernels are made for, and the threads of a group that shares them.
CHUNK_SIZES = (16, 32, 64)
THREADS = 64
# Rows of a chunk whose system one kernel builds and inverts, and the threads of its group.
SYSTEM_SIZE = 64
SYSTEM_THREADS = 96


def working(*dtypes: torch.dtype) -> torch.dtype:
    """What dtypes are computed in: halves are storage alone."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


def slots(length: int, sequences: int, size: int) -> int:
    """Numbers given to the chunks of packed sequences, of which some stay unused."""
    return length // size + sequences


def solve_tril(A: Tensor, cu_seqlens: Tensor | None, dtype: torch.dtype) -> Tensor:
    """(I + A)^-1 of each chunk of A (*, T, H, BT); cu_seqlens (*, sequences + 1), int32."""
    X = _solve_tril_fake(A, cu_seqlens, dtype)
    if X.numel() == 0:
        return X
    *batches, length, heads, size = A.shape
    batch = math.prod(batches)
    A = A.resolve_neg().reshape(batch, length, heads, size)
    template = (scalar(A.dtype), scalar(dtype), scalar(working(A.dtype, dtype)), size)
    buffers: tuple[Tensor, ...] = (A, X)
    sequences: tuple[int, ...] = ()
    name, chunks = "gated_delta_solve", -(-length // size)
    if cu_seqlens is not None:
        starts = cu_seqlens.reshape(-1, cu_seqlens.shape[-1]).contiguous()
        batches_of_starts, count = starts.shape[0], starts.shape[1] - 1
        buffers = (A, starts, X)
        sequences = (count, count + 1 if batches_of_starts > 1 else 0)
        name, chunks = "gated_delta_solve_packed", slots(length, count, size)
    matrices = batch * chunks * heads
    kernel("gated_delta", name, *template)(
        *buffers, matrices, length, heads, *A.stride(), *sequences,
        threads=(-(-matrices * size // THREADS) * THREADS,), group=(THREADS,),
    )  # fmt: skip
    return X


def _solve_tril_fake(A: Tensor, cu_seqlens: Tensor | None, dtype: torch.dtype) -> Tensor:
    return empty(A.shape, A, dtype, row_major=True)


_op.define(
    "gated_delta_solve_tril(Tensor A, Tensor? cu_seqlens, ScalarType dtype) -> Tensor",
    solve_tril,
    _solve_tril_fake,
)


def system(keys: Tensor, beta: Tensor, total: Tensor) -> Tensor:
    """(I + A)^-1 for A[i, j] = beta[i] exp(total[i] - total[j]) keys[i] . keys[j], i > j.

    For chunks of 64 tokens: keys (*, 64, K), beta and total (*, 64), all of one dtype.
    """
    X = _system_fake(keys, beta, total)
    if X.numel() == 0:
        return X
    keys, beta, total = (x.resolve_neg().contiguous() for x in (keys, beta, total))
    chunks = beta.numel() // SYSTEM_SIZE
    kernel("gated_delta", "gated_delta_system", scalar(keys.dtype))(
        keys, beta, total, X, keys.shape[-1],
        threads=(SYSTEM_THREADS * chunks,), group=(SYSTEM_THREADS,),
    )  # fmt: skip
    return X


def _system_fake(keys: Tensor, beta: Tensor, total: Tensor) -> Tensor:
    return empty((*keys.shape[:-1], SYSTEM_SIZE), keys, row_major=True)


_op.define(
    "gated_delta_system(Tensor keys, Tensor beta, Tensor total) -> Tensor", system, _system_fake
)
