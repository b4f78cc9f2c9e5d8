"""Least squares: more rows than columns, and fewer."""

import torch

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg._doctor.family import Family


def _ratios(device: torch.device, dtype: torch.dtype, n: int) -> dict[str, float]:
    ratios = {}
    for kind, shape in (("tall", (2, 4 * n, n)), ("wide", (2, n, 2 * n))):
        A = testing.random(shape, dtype, seed=n).to(device)
        B = testing.random((*shape[:2], 2), dtype, seed=n + 1).to(device)
        X = LA.lstsq(A, B, driver="gels").solution
        ratios[kind] = testing.lstsq_ratio(A, X, B).max()
    return ratios


# Up to 30 columns stand beside two right-hand sides.
FAMILY = Family(sizes=(3, 16, 32, 50), ratios=_ratios)
