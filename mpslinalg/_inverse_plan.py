"""Launch plan of the inverse."""

from __future__ import annotations

import torch
from torch import Tensor

from mpslinalg import _lu_plan, _op, _triangular_plan
from mpslinalg._engines import empty, flattened, kernel, scalar, strides
from mpslinalg._lu_plan import SIMD, TINY
from mpslinalg._simdgroups import lanes, whole


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a word for `which`."""
    if n <= SIMD:
        return "inverse_tiny" if n <= TINY else "inverse_simd"
    if _lu_plan.rows_shape(dtype, n, n) is not None:
        return "inverse_rows"
    solve = _triangular_plan.regime(name, dtype, batch, n, n, n)
    return f"{_lu_plan.regime(name, dtype, batch, m, n, n)}, {solve}"


def inv(A: Tensor) -> tuple[Tensor, Tensor]:
    """A^-1 and info."""
    n = A.shape[-1]
    X, info = _inv_fake(A)
    if X.numel() == 0:
        return X, info.zero_()
    matrices = flattened(A)
    batch = matrices.shape[0]
    if n <= TINY:
        row, column, step = strides(matrices)
        if _lu_plan.packed(matrices):
            kernel("inverse", "inverse_packed", scalar(A.dtype), n)(
                matrices, X, info, row, column, batch,
                threads=(whole(batch),), group=(32,),
            )  # fmt: skip
        else:
            kernel("inverse", "inverse_tiny", scalar(A.dtype), n)(
                matrices, X, info, row, column, step, threads=(batch,), group=(64,)
            )
    elif n <= SIMD:
        width = lanes(n, 8)
        kernel("inverse", "inverse_simd", scalar(A.dtype), width)(
            matrices, X, info, n, batch, *strides(matrices),
            threads=(whole(width * batch),), group=(32,),
        )  # fmt: skip
    elif (shape := _lu_plan.rows_shape(A.dtype, n, n)) is not None:
        width, team, threads = shape
        kernel("inverse", "inverse_rows", scalar(A.dtype), width, team)(
            matrices, X, info, n, *strides(matrices), threads=(threads * batch,), group=(threads,)
        )
    else:
        LU, pivots, info = _lu_plan.lu_factor(A, True)
        permutation = _lu_plan.row_permutation(pivots, n)
        solution = flattened(X)
        workspace = empty(solution.shape, solution)
        kernel("inverse", "inverse_start", scalar(A.dtype))(
            permutation, solution, n, threads=(n, n, batch), group=(64, 1, 1)
        )
        _lu_plan.solve_triangles(flattened(LU), solution, workspace, solution, False, False)
    return X, info


def _inv_fake(A: Tensor) -> tuple[Tensor, Tensor]:
    return empty(A.shape, A), empty(A.shape[:-2], A, torch.int32, row_major=True)


inv_op = _op.define("inv(Tensor A) -> (Tensor, Tensor)", inv, _inv_fake)
