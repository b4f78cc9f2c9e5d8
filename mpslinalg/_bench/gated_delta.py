"""The chunk solve of Gated DeltaNet, beside flash-linear-attention's where that is installed."""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg import _gated_delta_solve, testing
from mpslinalg._bench.cases import Case, Family, Operation, Tensors, randn

HEADS, CHUNK, KEY_WIDTH = 16, 64, 128
# flash-linear-attention's kernel is what torch's side runs where that is installed.
_HAS_FLA = find_spec("fla") is not None


def _fla_solve_tril(A: Tensor) -> Tensor:
    from fla.ops.utils import solve_tril

    X: Tensor = solve_tril(A, output_dtype=torch.float32)
    return X


def _chunk_rows(batch: int, length: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    """What keys of norm 1 in random directions and beta = sigmoid make of a chunk."""
    A = randn((batch, length, HEADS, CHUNK), dtype, device)
    beta = randn((batch, length, HEADS, 1), dtype, device, seed=1).sigmoid_()
    below = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=device).tril_(-1)
    A *= beta.mul_(KEY_WIDTH**-0.5)
    return (A.mul_(below.repeat(-(-length // CHUNK), 1)[:length, None]),)


def _invert_chunks(library: Any, A: Tensor) -> Tensor:
    if library is LA:
        return LA.gated_delta.solve_tril(A)
    if _HAS_FLA and A.is_cuda:
        return _fla_solve_tril(A)
    return _gated_delta_solve.by_torch(A, None, A.dtype)


def _chunk_ratio(inputs: Tensors, result: Tensors) -> float:
    """Of every chunk of every eighth head."""
    L, X = (_gated_delta_solve.chunks(x[:, :, ::8], None).flatten(0, 2) for x in (*inputs, *result))
    return float(testing.inverse_ratio(L + torch.eye(CHUNK, device=L.device), X).max())


_SOLVE_TRIL = Operation(
    "solve_tril; torch: fla" if _HAS_FLA else "solve_tril",
    _chunk_rows,
    _invert_chunks,
    _chunk_ratio,
    cheap=True,
)

FAMILY = Family(
    operations=(_SOLVE_TRIL,),
    batched=tuple((batch, length) for length in (2048, 8192) for batch in (2, 16, 128)),
    single=(),
    quick=((2, 128), (2, 1024)),
    stream=Case(_SOLVE_TRIL, batch=128, n=2048, dtype=torch.float32),
    overhead=(Case(_SOLVE_TRIL, 2, 64, torch.float32), 20.0),
    gain=(Case(_SOLVE_TRIL, 16, 2048, torch.float32), 1.0),
    dtypes=("float32",),
    note=f"batch and n are B and T of A [B, T, {HEADS}, {CHUNK}]: n is the number of tokens. "
    "torch's side is flash-linear-attention's kernel where the row says so, else "
    "torch.linalg.solve_triangular of all chunks.",
)
