"""Gated DeltaNet: the inverse of a chunk."""

import torch

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg._doctor.family import Family
from mpslinalg._gated_delta_plan import CHUNK_SIZES


def _ratios(device: torch.device, dtype: torch.dtype, n: int) -> dict[str, float]:
    A = testing.random((1, 3 * n, 2, n), dtype, seed=n).to(device)
    L, X = (x.view(3, n, 2, n).transpose(1, 2) for x in (A, LA.gated_delta.solve_tril(A)))
    return {"solve_tril": testing.inverse_ratio(L.tril(-1) + torch.eye(n, device=device), X).max()}


FAMILY = Family(sizes=CHUNK_SIZES, ratios=_ratios, dtypes=(torch.float32,))
