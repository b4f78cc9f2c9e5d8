"""eig, of random matrices and of the companion matrices of polynomials."""

from typing import Any

import torch
from torch import Tensor

from mpslinalg import testing
from mpslinalg._bench.cases import Bars, Case, Family, Operation, Tensors, randn


def _random(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    return (randn((batch, n, n), dtype, device),)


def _companion(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    """Of polynomials of degree n with random coefficients, the first of them 1."""
    ones = torch.ones((batch, n - 1), dtype=dtype, device=device)
    A = torch.diag_embed(ones, offset=-1)
    A[:, :, -1] = randn((batch, n), dtype, device)
    return (A,)


def _eig(library: Any, A: Tensor) -> Any:
    return library.eig(A)


def _ratio(inputs: Tensors, result: Tensors) -> float:
    return float(testing.eig_ratio(inputs[0], *result).max())


_EIG = Operation("eig", _random, _eig, _ratio)
_ROOTS = Operation("eig companion", _companion, _eig, _ratio)

FAMILY = Family(
    operations=(_EIG,),
    batched=((512, 32), (64, 64), (64, 256)),
    single=(),
    quick=((64, 10), (16, 16), (2, 40)),
    stream=Case(_EIG, batch=2**14, n=4, dtype=torch.float32),
    overhead=(Case(_EIG, 1, 4, torch.float32), 5.0),
    # On a CPU both sides are torch.
    gain=(Case(_EIG, 64, 10, torch.float32), 0.8),
    bars=Bars(mean=20.0),
    extra=((_ROOTS, 4096, 10),),
)
