"""ldl_factor and ldl_solve."""

from typing import Any

import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg._bench import judging
from mpslinalg._bench.cases import (
    QUICK,
    Case,
    Family,
    Operation,
    Tensors,
    randn,
)


def _symmetric(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    A = randn((batch, n, n), dtype, device)
    return (A + A.mT,)


def _ldl_vectors(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    (A,) = _symmetric(batch, n, dtype, device)
    with LA.use("kernels"):
        factors = LA.ldl_factor_ex(A)
    return A, factors.LD, factors.pivots, randn((batch, n, 1), dtype, device, seed=1)


def _ldl_systems(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    A, LD, pivots, _ = _ldl_vectors(batch, n, dtype, device)
    return A, LD, pivots, randn((batch, n, n), dtype, device, seed=1)


def _ldl_ratio(inputs: Tensors, result: Tensors) -> float:
    """Of 1024 matrices of a larger batch: the host unpacks one after the other, 60 us each."""
    step = -(-len(inputs[0]) // 1024)
    A, LD, pivots = (tensor[::step] for tensor in (inputs[0], *result[:2]))
    return float(testing.ldl_ratio(A, LD, pivots).max())


def _ldl_solve_ratio(inputs: Tensors, result: Tensors) -> float:
    return judging.solve_ratio(inputs[0], result[0], inputs[3])


def _ldl_solve(library: Any, A: Tensor, LD: Tensor, pivots: Tensor, B: Tensor) -> Any:
    return library.ldl_solve(LD, pivots, B)


_LDL_FACTOR = Operation(
    "ldl_factor", _symmetric, lambda library, A: library.ldl_factor(A), _ldl_ratio
)

# Fewer matrices than other families have: on a GPU torch factors one after the other, 65536 of
# 4 x 4 in 8 s on an H200.
_BATCHED = ((4096, 4), (2048, 8), (512, 16), (256, 32), (128, 64), (64, 128), (64, 256))

FAMILY = Family(
    operations=(
        _LDL_FACTOR,
        *(
            Operation(name, inputs, _ldl_solve, _ldl_solve_ratio, allowed=judging.ldl_solve_allowed)
            for name, inputs in (("ldl_solve k=1", _ldl_vectors), ("ldl_solve k=n", _ldl_systems))
        ),
    ),
    batched=_BATCHED,
    single=(1024, 2048),
    quick=QUICK,
    stream=Case(
        # Not ldl_factor, which waits for info: that would time the host.
        Operation(
            "ldl_factor_ex", _symmetric, lambda library, A: library.ldl_factor_ex(A), _ldl_ratio
        ),
        batch=2**20,
        n=4,
        dtype=torch.float32,
    ),
    overhead=(Case(_LDL_FACTOR, 1, 8, torch.float32), 5.0),
    # On the CPU the default mode takes no kernel, and must not be slower than torch.
    gain=(Case(_LDL_FACTOR, 1024, 4, torch.float32), 0.9),
)
