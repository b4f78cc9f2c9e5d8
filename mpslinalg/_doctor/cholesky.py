"""Cholesky: factor, solve and inverse."""

import torch

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg._doctor.family import Family


def _ratios(device: torch.device, dtype: torch.dtype, n: int) -> dict[str, float]:
    G, B = testing.random((2, 3, n, n), dtype, seed=n).to(device).unbind()
    A = G @ G.mH + n * torch.eye(n, device=device)
    L = LA.cholesky(A)
    return {
        "factor": testing.cholesky_ratio(A, L).max(),
        "solve": testing.solve_ratio(A, LA.cholesky_solve(B, L), B).max(),
        "inverse": testing.inverse_ratio(A, LA.cholesky_inverse(L)).max(),
    }


FAMILY = Family(sizes=(3, 8, 16, 32, 64, 100, 200, 300), ratios=_ratios)
