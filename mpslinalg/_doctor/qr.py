"""QR of square and tall matrices, also with column pivoting."""

import torch

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg._doctor.family import Family


def _ratios(device: torch.device, dtype: torch.dtype, n: int) -> dict[str, float]:
    ratios = {}
    for kind, rows in (("square", n), ("tall", 20 * n)):
        A = testing.random((2, rows, n), dtype, seed=n).to(device)
        ratios[kind] = testing.qr_ratio(A, *LA.qr(A)).max()
        Q, R, P = LA.qr_pivoted(A)
        permuted = A.gather(-1, P.unsqueeze(-2).expand(A.shape))
        ratios[f"{kind}, pivoted"] = testing.qr_ratio(permuted, Q, R).max()
    return ratios


FAMILY = Family(sizes=(3, 8, 16, 32, 50), ratios=_ratios)
