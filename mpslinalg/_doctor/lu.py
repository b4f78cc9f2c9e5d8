"""LU: factor, solve, inverse and determinant."""

import torch

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg._doctor.family import Family


def _ratios(device: torch.device, dtype: torch.dtype, n: int) -> dict[str, float]:
    A, B = testing.random((2, 3, n, n), dtype, seed=n).to(device).unbind()
    LU, pivots = LA.lu_factor(A)
    return {
        "factor": testing.lu_ratio(A, LU, pivots).max(),
        "solve": testing.solve_ratio(A, LA.lu_solve(LU, pivots, B), B).max(),
        "inverse": testing.inverse_ratio(A, LA.inv(A)).max(),
        "slogdet": testing.slogdet_ratio(A, *LA.slogdet(A)).max(),
    }


FAMILY = Family(sizes=(3, 8, 16, 32, 64, 100, 300), ratios=_ratios)
