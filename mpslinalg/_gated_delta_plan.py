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
# Rows of a state that one group of STEP_THREADS takes, the columns that it has, and the tokens of a
# launch: some 5 us each, and a launch may not take longer than 40 ms on a slow GPU.
STEP_KEYS = 256
STEP_COLUMNS = 32
STEP_THREADS = 128
STEP_TOKENS = 1024


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a few words for `which`."""
    if name == "solve_tril":
        return "gated_delta_solve (gated_delta_solve_packed for cu_seqlens)"
    if name == "chunk_gated_delta_rule":
        return "gated_delta_system (gated_delta_solve for derivatives or small chunks), products"
    tokens = "products token by token"
    return f"gated_delta_step ({tokens} for derivatives)" if n <= STEP_KEYS else tokens


def working(*dtypes: torch.dtype) -> torch.dtype:
    """What dtypes are computed in: halves are storage alone."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


def slots(length: int, sequences: int, size: int) -> int:
    """Numbers given to the chunks of packed sequences, of which some stay unused."""
    return length // size + sequences


def _plain(x: Tensor) -> Tensor:
    """The tensor as a kernel without strides reads it."""
    return x.contiguous() if not x.is_neg() else x.resolve_neg().contiguous()


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


solve_tril_op = _op.define(
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
    keys, beta, total = map(_plain, (keys, beta, total))
    chunks = beta.numel() // SYSTEM_SIZE
    kernel("gated_delta", "gated_delta_system", scalar(keys.dtype))(
        keys, beta, total, X, keys.shape[-1],
        threads=(SYSTEM_THREADS * chunks,), group=(SYSTEM_THREADS,),
    )  # fmt: skip
    return X


def _system_fake(keys: Tensor, beta: Tensor, total: Tensor) -> Tensor:
    return empty((*keys.shape[:-1], SYSTEM_SIZE), keys, row_major=True)


system_op = _op.define(
    "gated_delta_system(Tensor keys, Tensor beta, Tensor total) -> Tensor", system, _system_fake
)


def step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    normalized: bool,
) -> tuple[Tensor, Tensor]:
    """Output and last state of the rule for at most STEP_TOKENS tokens.

    query, key (*, T, G, K), value (*, T, H, V) and beta (*, T, H) of one dtype; g (*, T, H) and
    state (*, H, K, V) of the dtype that it is computed in.
    """
    output, last = _step_fake(query, key, value, g, beta, state, normalized)
    given = map(_plain, (query, key, value, g, beta, state))
    if state.numel() == 0 or g.numel() == 0:
        return output.zero_(), last.copy_(state)
    length, groups, keys = query.shape[-3:]
    heads, values = value.shape[-2:]
    kernel("gated_delta", "gated_delta_step", scalar(query.dtype), scalar(state.dtype))(
        *given, output, last, length, groups, heads, keys, values, normalized,
        threads=(-(-values // STEP_COLUMNS) * STEP_THREADS, state.numel() // (keys * values)),
        group=(STEP_THREADS, 1),
    )  # fmt: skip
    return output, last


def _step_fake(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    normalized: bool,
) -> tuple[Tensor, Tensor]:
    return empty(value.shape, value, row_major=True), empty(state.shape, state, row_major=True)


step_op = _op.define(
    "gated_delta_step(Tensor query, Tensor key, Tensor value, Tensor g, Tensor beta, Tensor state, "
    "bool normalized) -> (Tensor, Tensor)",
    step,
    _step_fake,
)
