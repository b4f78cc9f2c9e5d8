"""lstsq by QR, of tall matrices."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mpslinalg import testing
from mpslinalg._bench.cases import Bars, Case, Family, Operation, Tensors, randn

# Batch, rows and columns.
TALL = (
    *((4096, 64, 16), (512, 128, 32), (1024, 128, 32), (256, 1024, 64), (64, 1000, 36)),
    *((1, 4000, 36), (1, 65536, 8), (1, 1_000_000, 8)),
)
SIDES = (1, 8)


def _fits(rows: int, sides: int) -> Callable[[int, int, torch.dtype, torch.device], Tensors]:
    """Noisy values of known functions, the sum of the columns; n counts columns."""

    def inputs(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
        A = randn((batch, rows, n), dtype, device)
        return A, A.sum(-1, keepdim=True) + randn((batch, rows, sides), dtype, device, seed=1)

    return inputs


def _lstsq(library: Any, A: Tensor, B: Tensor) -> Tensor:
    X: Tensor = library.lstsq(A, B, driver="gels").solution
    return X


def _ratio(inputs: Tensors, result: Tensors) -> float:
    A, B = inputs
    return float(testing.lstsq_ratio(A, result[0], B).max())


def _operation(rows: int, sides: int) -> Operation:
    return Operation(f"lstsq {rows} rows k={sides}", _fits(rows, sides), _lstsq, _ratio)


_SMALL, _FIRST = _operation(16, 1), tuple(_operation(TALL[0][1], sides) for sides in SIDES)

FAMILY = Family(
    operations=_FIRST,
    batched=((TALL[0][0], TALL[0][2]),),
    single=(),
    quick=((16, 4), (16, 16), (1, 16)),
    stream=Case(_SMALL, batch=2**14, n=4, dtype=torch.float32),
    overhead=(Case(_SMALL, 1, 4, torch.float32), 5.0),
    # On a CPU both sides are torch.
    gain=(Case(_FIRST[0], 1024, 16, torch.float32), 0.8),
    bars=Bars(single=1.0),
    extra=tuple(
        (_operation(rows, sides), batch, n) for batch, rows, n in TALL[1:] for sides in SIDES
    ),
    note="n counts columns, k right-hand sides; driver gels.",
)
