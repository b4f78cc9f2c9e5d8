"""frexp, heaviside, logspace and comparisons of unsigned integers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg._bench.cases import Case, Family, Operation, Tensors, randn

DECADES = 6


def _library(library: Any) -> Any:
    """These stand outside of torch.linalg."""
    return LA if library is LA else torch


def _numbers(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    return (randn((batch, n), dtype, device),)


def _steps(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    """A third of them zero."""
    A = randn((batch, n), dtype, device)
    return A * (A.abs() > 0.43), randn((batch, n), dtype, device, seed=1)


def _integers(integer: torch.dtype) -> Callable[..., Tensors]:
    def inputs(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
        generator = torch.Generator(device).manual_seed(0)
        A = torch.randint(256, (2, batch, n), generator=generator, device=device)
        return tuple(A.to(integer).unbind())

    return inputs


def _logspace(library: Any, like: Tensor) -> Tensor:
    R: Tensor = _library(library).logspace(
        0.0, DECADES, like.shape[-1], dtype=like.dtype, device=like.device
    )
    return R.expand(like.shape)


def _numpy(*tensors: Tensor) -> list[Any]:
    return [tensor.numpy(force=True) for tensor in tensors]


def _differing(*pairs: tuple[Any, Any]) -> float:
    """A ratio that fails if any element differs."""
    return testing.LU_THRESHOLD * float(sum((found != exact).sum() for found, exact in pairs))


def _frexp_ratio(inputs: Tensors, result: Tensors) -> float:
    (A,) = _numpy(*inputs)
    return _differing(*zip(_numpy(*result), np.frexp(A), strict=True))


def _heaviside_ratio(inputs: Tensors, result: Tensors) -> float:
    return _differing((_numpy(*result)[0], np.heaviside(*_numpy(*inputs))))


def _less_ratio(inputs: Tensors, result: Tensors) -> float:
    A, B = _numpy(*inputs)
    return _differing((_numpy(*result)[0], A < B))


def _logspace_ratio(inputs: Tensors, result: Tensors) -> float:
    """The relative error in units of what rounding the exponent causes."""
    (found,) = _numpy(*result)
    exact = np.logspace(0.0, DECADES, found.shape[-1])
    allowed = exact * DECADES * np.log(10) * torch.finfo(inputs[0].dtype).eps / 2
    return float((np.abs(found - exact) / allowed).max())


def _operation(name: str, inputs: Any, call: Any, ratio: Any) -> Operation:
    return Operation(name, inputs, call, ratio, cheap=True, order=1)


_FREXP = _operation(
    "frexp", _numbers, lambda library, A: tuple(_library(library).frexp(A)), _frexp_ratio
)

FAMILY = Family(
    operations=(
        _FREXP,
        _operation(
            "heaviside",
            _steps,
            lambda library, A, B: _library(library).heaviside(A, B),
            _heaviside_ratio,
        ),
        _operation("logspace", _numbers, _logspace, _logspace_ratio),
        *(
            _operation(
                f"lt {integer}".replace("torch.", ""),
                _integers(integer),
                lambda library, A, B: _library(library).lt(A, B),
                _less_ratio,
            )
            for integer in (torch.uint8, torch.uint16, torch.uint32)
        ),
    ),
    batched=(),
    single=(2**12, 2**18, 2**24),
    quick=((1, 2**8), (1, 2**14)),
    stream=Case(_FREXP, batch=2**12, n=2**14, dtype=torch.float32),
    overhead=(Case(_FREXP, 1, 2**10, torch.float32), 5.0),
    # Both sides are as fast as memory.
    gain=(Case(_FREXP, 1, 2**22, torch.float32), 0.9),
    dtypes=("float32",),
    note="n counts elements.",
)
