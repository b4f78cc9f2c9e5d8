"""Triangular systems with one right-hand side and with many."""

import torch

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg._doctor.family import Family


def _ratios(device: torch.device, dtype: torch.dtype, n: int) -> dict[str, float]:
    A, B = testing.random((2, 3, n, n), dtype, seed=n).to(device).unbind()
    A = A / n + torch.eye(n, device=device)
    L, U, b = A.tril(), A.triu(), B[..., :1]
    return {
        "lower": testing.solve_ratio(L, LA.solve_triangular(A, B, upper=False), B).max(),
        "upper": testing.solve_ratio(U, LA.solve_triangular(A, B, upper=True), B).max(),
        "lower, one": testing.solve_ratio(L, LA.solve_triangular(A, b, upper=False), b).max(),
        "upper, one": testing.solve_ratio(U, LA.solve_triangular(A, b, upper=True), b).max(),
    }


FAMILY = Family(sizes=(3, 16, 32, 64, 100, 300, 600), ratios=_ratios)
