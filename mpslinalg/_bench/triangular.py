"""solve_triangular."""

from collections.abc import Callable
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


def _triangles(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Lower triangles with a diagonal near 1, so that no solution grows with n."""
    A = randn((batch, n, n), dtype, device) / n
    return A + torch.eye(n, dtype=dtype, device=device)


def _triangular(columns: int | None) -> Callable[..., Tensors]:
    """Systems with so many right-hand sides, as many as rows for None."""

    def inputs(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
        shape = (batch, n, n if columns is None else columns)
        return _triangles(batch, n, dtype, device), randn(shape, dtype, device, seed=1)

    return inputs


def _solve_lower(library: Any, A: Tensor, B: Tensor) -> Tensor:
    result: Tensor = library.solve_triangular(A, B, upper=False)
    return result


def _lower_ratio(inputs: Tensors, result: Tensors) -> float:
    return judging.solve_ratio(inputs[0].tril(), result[0], inputs[1])


_SOLVES = {
    name: Operation(
        f"solve_triangular k={name}",
        _triangular(count),
        _solve_lower,
        _lower_ratio,
        allowed=judging.solve_allowed,
    )
    for name, count in {"1": 1, "8": 8, "n": None, "128": 128}.items()
}

FAMILY = Family(
    operations=tuple(_SOLVES[name] for name in ("1", "8", "n")),
    batched=(*BATCHED[:5], (4096, 48), *BATCHED[5:]),
    single=SINGLE,
    quick=(*QUICK[:4], (64, 48), *QUICK[4:]),
    stream=Case(_SOLVES["n"], batch=2**15, n=32, dtype=torch.float32),
    overhead=(Case(_SOLVES["1"], 1, 8, torch.float32), 5.0),
    gain=(Case(_SOLVES["n"], 4096, 64, torch.float32), 4.0),
    bars=Bars(mean=4.0, share=0.6),
    # A Gated DeltaNet layer: 32 heads, 64 chunks of 64 tokens, keys of 128.
    extra=((_SOLVES["128"], 2048, 64),),
)
