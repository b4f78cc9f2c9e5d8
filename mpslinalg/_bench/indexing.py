"""take, put, put_ and bincount of vectors."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg._bench.cases import Case, Family, Operation, Tensors, randn

BINS = 4096


def _integers(
    high: int, batch: int, n: int, device: torch.device, seed: int, dtype: torch.dtype = torch.int64
) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randint(high, (batch, n), generator=generator, device=device, dtype=dtype)


def _scattered(
    batch: int, n: int, dtype: torch.dtype, device: torch.device, repeats: int = 1
) -> Tensors:
    """A vector, indices of it, each about so many times, and a value for each index."""
    A, values = randn((batch, n), dtype, device), randn((batch, n), dtype, device, seed=1)
    return A, _integers(max(n // repeats, 1), batch, n, device, seed=2), values


def _looked_up(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    return _scattered(batch, n, dtype, device)[:2]


def _permuted(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    """Each index once: of one that is there twice, torch may put any value."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(3)).to(device)
    A, values = randn((batch, n), dtype, device), randn((batch, n), dtype, device, seed=1)
    return A, order.expand(batch, n).contiguous(), values


def _spread(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    return (_integers(BINS, batch, n, device, seed=0),)


def _clustered(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    """Values of a narrow bell, as of a histogram: few bins take all."""
    values = BINS / 2 + 8 * randn((batch, n), torch.float32, device)
    return (values.round().clamp(0, BINS - 1).long(),)


def _take(library: Any, A: Tensor, index: Tensor) -> Tensor:
    R: Tensor = (LA if library is LA else torch).take(A, index)
    return R


def _put(library: Any, A: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """In place: a second call changes nothing more."""
    return LA.put_(A, index, values) if library is LA else A.put_(index, values)


def _add(library: Any, A: Tensor, index: Tensor, values: Tensor) -> Tensor:
    return LA.put(A, index, values, True) if library is LA else torch.put(A, index, values, True)


def _bincount(library: Any, values: Tensor) -> Tensor:
    R: Tensor = (LA if library is LA else torch).bincount(values.flatten(), minlength=BINS)
    return R[None] if values.dim() > 1 else R


def _host(*tensors: Tensor) -> list[np.ndarray[Any, Any]]:
    return [tensor.numpy(force=True).ravel() for tensor in tensors]


def _differing(found: Any, expected: Any) -> float:
    """A ratio that fails if any element differs."""
    return testing.LU_THRESHOLD * float((found != expected).sum())


def _take_ratio(inputs: Tensors, result: Tensors) -> float:
    A, index = _host(*inputs)
    return _differing(_host(*result)[0], A[index])


def _put_ratio(inputs: Tensors, result: Tensors) -> float:
    """By the values alone: every element was replaced."""
    _, index, values = _host(*inputs)
    return _differing(_host(*result)[0][index], values)


def _add_ratio(inputs: Tensors, result: Tensors) -> float:
    """The error of an element over that of adding one after the other, worst case."""
    A, index, values = _host(*inputs)
    size = len(A)

    def added(start: Any, terms: Any) -> Any:
        sums = np.bincount(index, terms.astype(np.float64), minlength=size)
        return start.astype(np.float64) + sums

    terms = 1 + np.bincount(index, minlength=size)
    allowed = terms * added(np.abs(A), np.abs(values)) * torch.finfo(inputs[0].dtype).eps / 2
    # Of millions of normal numbers one is zero, and may have nothing added: it allows no error.
    allowed = np.maximum(allowed, np.finfo(np.float64).tiny)
    return float((np.abs(_host(*result)[0] - added(A, values)) / allowed).max())


def _counts_ratio(inputs: Tensors, result: Tensors) -> float:
    (values,) = _host(*inputs)
    return _differing(_host(*result)[0], np.bincount(values, minlength=BINS))


def _operation(
    name: str, inputs: Callable[..., Tensors], call: Callable[..., Tensor], ratio: Any
) -> Operation:
    return Operation(name, inputs, call, ratio, cheap=True, order=1)


_TAKE = _operation("take", _looked_up, _take, _take_ratio)

FAMILY = Family(
    operations=(
        _TAKE,
        _operation("put_", _permuted, _put, _put_ratio),
        _operation("put accumulate", _scattered, _add, _add_ratio),
        _operation("put accumulate, 64 each", partial(_scattered, repeats=64), _add, _add_ratio),
        _operation("bincount", _spread, _bincount, _counts_ratio),
        _operation("bincount clustered", _clustered, _bincount, _counts_ratio),
    ),
    batched=(),
    single=(2**12, 2**18, 2**23),
    quick=((1, 2**8), (1, 2**14)),
    stream=Case(_TAKE, batch=2**10, n=2**14, dtype=torch.float32),
    overhead=(Case(_TAKE, 1, 2**10, torch.float32), 5.0),
    # A GPU's own take is as fast as memory.
    gain=(Case(_TAKE, 1, 2**20, torch.float32), 0.9),
    dtypes=("float32",),
    note=f"n counts indices; those of bincount are int64 numbers below {BINS}.",
)
