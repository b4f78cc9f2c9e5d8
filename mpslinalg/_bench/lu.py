"""lu_factor, solve, inv and det."""

import math
from typing import Any

import torch
from torch import Tensor

from mpslinalg._bench import judging
from mpslinalg._bench.cases import (
    BATCHED,
    QUICK,
    SINGLE,
    Bars,
    Case,
    Family,
    Operation,
    Tensors,
    randn,
)


def _matrices(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    return (randn((batch, n, n), dtype, device),)


def _vectors(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    return *_matrices(batch, n, dtype, device), randn((batch, n, 1), dtype, device, seed=1)


def _systems(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    return *_matrices(batch, n, dtype, device), randn((batch, n, n), dtype, device, seed=1)


def _volumes(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    """Perturbed permutations: rows are swapped, yet no determinant overflows at any size."""
    A = randn((batch, n, n), dtype, device) / (2 * math.sqrt(n))
    A += torch.eye(n, dtype=dtype, device=device)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(n))
    return (A[:, order.to(device)],)


def _lu_ratio(inputs: Tensors, result: Tensors) -> float:
    return judging.lu_ratio(inputs[0], *result)


def _solve(library: Any, A: Tensor, B: Tensor) -> Any:
    return library.solve(A, B)


def _solve_ratio(inputs: Tensors, result: Tensors) -> float:
    return judging.solve_ratio(inputs[0], result[0], inputs[1])


def _inverse_ratio(inputs: Tensors, result: Tensors) -> float:
    return judging.inverse_ratio(inputs[0], result[0])


def _volume_ratio(inputs: Tensors, result: Tensors) -> float:
    """|det - det A| / (n |det A| eps), which has no condition in it, because _volumes are well
    conditioned. testing.determinant_ratio needs singular values: minutes for one matrix of 4096.
    """
    (A,), (det,) = inputs, result
    exact = torch.linalg.det(judging.wide(A)).cpu()
    error = (det.cpu() - exact).abs() / exact.abs()
    return float(error.max()) / (A.shape[-1] * torch.finfo(A.dtype).eps / 2)


_INVERSE = Operation("inv", _matrices, lambda library, A: library.inv(A), _inverse_ratio)

FAMILY = Family(
    operations=(
        Operation("lu_factor", _matrices, lambda library, A: library.lu_factor(A), _lu_ratio),
        *(
            Operation(name, inputs, _solve, _solve_ratio, allowed=judging.solve_allowed)
            for name, inputs in (("solve k=1", _vectors), ("solve k=n", _systems))
        ),
        _INVERSE,
        Operation("det", _volumes, lambda library, A: library.det(A), _volume_ratio),
    ),
    batched=BATCHED,
    single=SINGLE,
    quick=QUICK,
    stream=Case(
        # Not inv, which waits for info: that would time the host.
        Operation("inv_ex", _matrices, lambda library, A: library.inv_ex(A), _inverse_ratio),
        batch=2**20,
        n=4,
        dtype=torch.float32,
    ),
    overhead=(Case(_INVERSE, 1, 8, torch.float32), 5.0),
    gain=(Case(_INVERSE, 65536, 4, torch.float32), 5.0),
    bars=Bars(mean=4.0, single=0.8, share=0.6),
)
