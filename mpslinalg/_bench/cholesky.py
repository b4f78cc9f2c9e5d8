"""cholesky and cholesky_solve."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg._bench import judging
from mpslinalg._bench.cases import BATCHED, QUICK, Bars, Case, Family, Operation, Tensors, randn


def _definite(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    A = randn((batch, n, n), dtype, device)
    return (A @ A.mH / n + torch.eye(n, dtype=dtype, device=device),)


def _factored(
    batch: int, n: int, dtype: torch.dtype, device: torch.device, columns: int | None = None
) -> Tensors:
    L = torch.linalg.cholesky(*_definite(batch, n, dtype, device))
    return randn((batch, n, columns or n), dtype, device, seed=1), L


def _cholesky_solve(library: Any, B: Tensor, L: Tensor) -> Tensor:
    # torch has it outside torch.linalg.
    X: Tensor = (LA if library is LA else torch).cholesky_solve(B, L)
    return X


def _cholesky_ratio(inputs: Tensors, result: Tensors) -> float:
    return judging.cholesky_ratio(inputs[0], result[0])


def _cholesky_solve_ratio(inputs: Tensors, result: Tensors) -> float:
    B, L = inputs
    wide = judging.wide(L)
    return judging.solve_ratio(wide @ wide.mH, result[0], B)


_CHOLESKY = Operation(
    "cholesky", _definite, lambda library, A: library.cholesky(A), _cholesky_ratio
)

FAMILY = Family(
    operations=(
        _CHOLESKY,
        *(
            Operation(
                f"cholesky_solve k={columns or 'n'}",
                partial(_factored, columns=columns),
                _cholesky_solve,
                _cholesky_solve_ratio,
                allowed=judging.solve_allowed,
            )
            for columns in (1, 8, None)
        ),
    ),
    batched=(*BATCHED[:5], (4096, 48), *BATCHED[5:]),
    single=(1024, 4096),
    quick=QUICK,
    stream=Case(
        Operation(
            "cholesky_ex", _definite, lambda library, A: library.cholesky_ex(A), _cholesky_ratio
        ),
        batch=2**20,
        n=4,
        dtype=torch.float32,
    ),
    overhead=(Case(_CHOLESKY, 1, 8, torch.float32), 5.0),
    # On a CPU both sides are torch.
    gain=(Case(_CHOLESKY, 65536, 8, torch.float32), 0.8),
    bars=Bars(mean=4.0),
)
