"""Eigenvalues and eigenvectors of general matrices."""

import torch

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg._doctor.family import Family


def _ratios(device: torch.device, dtype: torch.dtype, n: int) -> dict[str, float]:
    A = testing.random((2, n, n), dtype, seed=n).to(device)
    values, vectors = LA.eig(A)
    return {
        "vectors": testing.eig_ratio(A, values, vectors).max(),
        "values": testing.eig_ratio(A, LA.eigvals(A), vectors).max(),
    }


FAMILY = Family(sizes=(3, 17, 40), ratios=_ratios)
