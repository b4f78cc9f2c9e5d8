"""Small calls of which each needs the result of the one before, with one wait for the device."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mpslinalg._bench import judging
from mpslinalg._bench.cases import Case, Family, Operation, Tensors, randn

CALLS = 20


def _near_identity(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """So that twenty solutions neither grow nor vanish."""
    noise = randn((batch, n, n), dtype, device) / (4 * math.sqrt(n))
    return noise + torch.eye(n, dtype=dtype, device=device)


def _matrices(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    return (_near_identity(batch, n, dtype, device),)


def _definite(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    A = _near_identity(batch, n, dtype, device)
    return (A @ A.mH,)


def _systems(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    A = _near_identity(batch, n, dtype, device)
    return A, randn((batch, n, n), dtype, device, seed=1)


def _chained(step: Callable[..., Any], library: Any, *inputs: Tensor) -> tuple[Any, ...]:
    """What the last call was given, then its results; a call is given the last of the one before.

    `step` takes a library, then the inputs.
    """
    *fixed, given = inputs
    for _ in range(CALLS):
        last, results = given, step(library, *fixed, given)
        given = results[-1]
    return last, *results


def _solve(library: Any, A: Tensor, B: Tensor) -> tuple[Tensor]:
    return (library.solve(A, B),)


def _solve_ex(library: Any, A: Tensor, B: Tensor) -> tuple[Tensor]:
    return (library.solve_ex(A, B)[0],)


def _solve_triangular(library: Any, A: Tensor, B: Tensor) -> tuple[Tensor]:
    return (library.solve_triangular(A, B, upper=False),)


def _inv_ex(library: Any, A: Tensor) -> tuple[Tensor]:
    return (library.inv_ex(A)[0],)


def _cholesky_ex(library: Any, A: Tensor) -> tuple[Tensor, Tensor]:
    """And the product that leads back to A, torch's on both sides."""
    L = library.cholesky_ex(A)[0]
    return L, L @ L.mH


def _qr(library: Any, A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A step of the QR algorithm."""
    Q, R = library.qr(A)
    return Q, R, R @ Q


def _solve_ratio(inputs: Tensors, result: Tensors) -> float:
    return judging.solve_ratio(inputs[0], result[1], result[0])


def _lower_ratio(inputs: Tensors, result: Tensors) -> float:
    return judging.solve_ratio(inputs[0].tril(), result[1], result[0])


def _inverse_ratio(inputs: Tensors, result: Tensors) -> float:
    return judging.inverse_ratio(*result)


def _cholesky_ratio(inputs: Tensors, result: Tensors) -> float:
    return judging.cholesky_ratio(*result[:2])


def _qr_ratio(inputs: Tensors, result: Tensors) -> float:
    return judging.qr_ratio(*result[:3])


def _operation(name: str, inputs: Any, step: Callable[..., Any], ratio: Any) -> Operation:
    return Operation(name, inputs, partial(_chained, step), ratio)


_SOLVE = _operation("solve", _systems, _solve, _solve_ratio)

FAMILY = Family(
    operations=(
        _SOLVE,
        _operation("solve_ex", _systems, _solve_ex, _solve_ratio),
        _operation("solve_triangular", _systems, _solve_triangular, _lower_ratio),
        _operation("inv_ex", _matrices, _inv_ex, _inverse_ratio),
        _operation("cholesky_ex, product", _definite, _cholesky_ex, _cholesky_ratio),
        _operation("qr, product", _matrices, _qr, _qr_ratio),
    ),
    batched=((512, 4), (1024, 8), (64, 16), (64, 32)),
    single=(8, 32),
    quick=((16, 8), (1, 8)),
    stream=Case(_SOLVE, batch=2**16, n=4, dtype=torch.float32),
    overhead=(Case(_SOLVE, 1, 8, torch.float32), 5.0 * CALLS),
    # On a CPU both sides are torch.
    gain=(Case(_SOLVE, 1024, 8, torch.float32), 0.8),
    apart=True,
    note=f"Times are those of {CALLS} calls, each with the result of the one before, and one wait "
    "for the device after them.",
)
