"""Launch plan of one solve without factors to keep: small systems in one kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from mpslinalg import _lu_plan, _op
from mpslinalg._engines import empty, flattened, kernel, scalar, strides
from mpslinalg._lu_plan import SIMD, TINY
from mpslinalg._simdgroups import lanes, whole

# Columns up to which a lane keeps one entry of x; beyond, a column. A column of 32 costs the lanes
# together some 320 instructions the first way, a whole chunk of 32 columns 1500 the other way.
FEW = 4


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a word for `which`."""
    if n > SIMD:
        return _lu_plan.regime(name, dtype, batch, m, n, k)
    return "solve_tiny" if n <= TINY else "solve_few" if k <= FEW else "solve_simd"


def solve(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """X with A X = B, and info; for matrices of at most SIMD rows."""
    X, info = _solve_fake(A, B)
    n, k = B.shape[-2:]
    if X.numel() == 0:
        # Without right-hand sides info still tells of A.
        return X, _lu_plan.lu_factor(A, True)[2]
    matrices, right = flattened(A), flattened(B)
    batch = matrices.shape[0]
    if n <= TINY:
        kernel("solve", "solve_tiny", scalar(A.dtype), n)(
            matrices, right, X, info, k, *strides(matrices), *strides(right),
            threads=(batch,), group=(64,),
        )  # fmt: skip
    else:
        width = lanes(n, 8)
        kernel("solve", "solve_few" if k <= FEW else "solve_simd", scalar(A.dtype), width)(
            matrices, right, X, info, n, k, batch, *strides(matrices), *strides(right),
            threads=(whole(width * batch),), group=(32,),
        )  # fmt: skip
    return X, info


def _solve_fake(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    return empty(B.shape, B), empty(A.shape[:-2], A, torch.int32, row_major=True)


solve_op = _op.define("solve(Tensor A, Tensor B) -> (Tensor, Tensor)", solve, _solve_fake)
