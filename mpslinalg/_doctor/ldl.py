"""LDL, symmetric and Hermitian: factor and solve."""

import torch

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg._doctor.family import Family


def _ratios(device: torch.device, dtype: torch.dtype, n: int) -> dict[str, float]:
    A, B = testing.random((2, 3, n, n), dtype, seed=n).to(device).unbind()
    ratios: dict[str, float] = {}
    for kind, S in (("symmetric", A + A.mT), ("hermitian", A + A.mH)):
        hermitian = kind == "hermitian"
        LD, pivots = LA.ldl_factor(S, hermitian=hermitian)
        X = LA.ldl_solve(LD, pivots, B, hermitian=hermitian)
        ratios[kind] = testing.ldl_ratio(S, LD, pivots, hermitian).max()
        ratios[f"{kind} solve"] = testing.solve_ratio(S, X, B).max()
    return ratios


FAMILY = Family(sizes=(3, 8, 16, 32, 64, 100, 300), ratios=_ratios)
