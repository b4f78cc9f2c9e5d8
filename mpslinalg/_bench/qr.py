"""qr, square and tall."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mpslinalg import testing
from mpslinalg._bench.cases import (
    BATCHED,
    QUICK,
    SINGLE,
    Case,
    Family,
    Operation,
    Tensors,
    randn,
)


def _rows(m: int | None) -> Callable[[int, int, torch.dtype, torch.device], Tensors]:
    """Matrices of m rows, square ones for None; n counts columns."""

    def inputs(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
        return (randn((batch, n if m is None else m, n), dtype, device),)

    return inputs


def _qr(library: Any, A: Tensor) -> Any:
    return library.qr(A)


def _ratio(inputs: Tensors, result: Tensors) -> float:
    return float(testing.qr_ratio(inputs[0], *result).max())


_QR = Operation("qr", _rows(None), _qr, _ratio)
_TALL = {m: Operation(f"qr {m} rows", _rows(m), _qr, _ratio) for m in (128, 1024, 4000, 65536)}

FAMILY = Family(
    operations=(_QR,),
    batched=BATCHED,
    single=SINGLE,
    quick=QUICK,
    stream=Case(_QR, batch=2**18, n=4, dtype=torch.float32),
    overhead=(Case(_QR, 1, 8, torch.float32), 5.0),
    # On a CPU both sides are torch.
    gain=(Case(_QR, 4096, 8, torch.float32), 0.8),
    extra=(
        (_TALL[128], 1024, 32),
        (_TALL[1024], 256, 64),
        (_TALL[4000], 1, 36),
        (_TALL[65536], 1, 8),
    ),
)
