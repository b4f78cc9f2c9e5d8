"""svd and svdvals, square and tall."""

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
    rows,
)


def _svd(library: Any, A: Tensor) -> Any:
    return library.svd(A, full_matrices=False)


def _ratio(inputs: Tensors, result: Tensors) -> float:
    return judging.svd_ratio(inputs[0], *result)


def _svdvals(library: Any, A: Tensor) -> Any:
    return library.svdvals(A)


def _values_ratio(inputs: Tensors, result: Tensors) -> float:
    return float(testing.svdvals_ratio(inputs[0], *result).max())


_SVD = Operation("svd", rows(None), _svd, _ratio)
_SVDVALS = Operation("svdvals", rows(None), _svdvals, _values_ratio)
_TALL = {m: Operation(f"svd {m} rows", rows(m), _svd, _ratio) for m in (64, 128)}

FAMILY = Family(
    operations=(_SVD, _SVDVALS),
    batched=BATCHED,
    single=(256, 1024, 2048),
    quick=((1024, 4), (64, 8), (16, 16), (8, 32)),
    stream=Case(_SVD, batch=2**18, n=4, dtype=torch.float32),
    overhead=(Case(_SVD, 1, 8, torch.float32), 5.0),
    # On a CPU both sides are torch.
    gain=(Case(_SVD, 1024, 8, torch.float32), 0.8),
    bars=Bars(mean=20.0, single=1.0),
    extra=((_TALL[64], 4096, 16), (_TALL[128], 256, 64)),
    note="n counts columns; full_matrices=False.",
)
