"""eigh and eigvalsh of symmetric and Hermitian matrices."""

from typing import Any

import torch
from torch import Tensor

from mpslinalg import testing
from mpslinalg._bench import judging
from mpslinalg._bench.cases import (
    BATCHED,
    Bars,
    Case,
    Family,
    Operation,
    Tensors,
    randn,
)


def _hermitian(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    A = randn((batch, n, n), dtype, device)
    return (A + A.mH,)


def _eigh(library: Any, A: Tensor) -> Any:
    return library.eigh(A)


def _ratio(inputs: Tensors, result: Tensors) -> float:
    return judging.eigh_ratio(inputs[0], *result)


def _eigvalsh(library: Any, A: Tensor) -> Any:
    return library.eigvalsh(A)


def _values_ratio(inputs: Tensors, result: Tensors) -> float:
    return float(testing.eigvalsh_ratio(inputs[0], *result).max())


_EIGH = Operation("eigh", _hermitian, _eigh, _ratio)
_EIGVALSH = Operation("eigvalsh", _hermitian, _eigvalsh, _values_ratio)

FAMILY = Family(
    operations=(_EIGH, _EIGVALSH),
    batched=BATCHED,
    single=(256, 1024, 2048),
    quick=((1024, 4), (64, 8), (16, 16), (8, 32)),
    stream=Case(_EIGH, batch=2**18, n=4, dtype=torch.float32),
    overhead=(Case(_EIGH, 1, 8, torch.float32), 5.0),
    # On a CPU both sides are torch.
    gain=(Case(_EIGH, 1024, 8, torch.float32), 0.8),
    bars=Bars(mean=20.0, single=0.7),
)
