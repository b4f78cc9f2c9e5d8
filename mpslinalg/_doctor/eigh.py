"""Eigenvalues and eigenvectors of symmetric and Hermitian matrices."""

import torch

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg._doctor.family import Family


def _ratios(device: torch.device, dtype: torch.dtype, n: int) -> dict[str, float]:
    A = testing.random((2, n, n), dtype, seed=n).to(device)
    A = A + A.mH
    values, vectors = LA.eigh(A)
    return {
        "vectors": testing.eigh_ratio(A, values, vectors).max(),
        "values": testing.eigh_ratio(A, LA.eigvalsh(A, "U"), vectors).max(),
    }


FAMILY = Family(sizes=(3, 8, 16, 32, 100, 300), ratios=_ratios)
