"""QR of square and tall matrices, with column pivoting, and Q of its reflectors."""

import torch

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg._doctor.family import Family


def _ratios(device: torch.device, dtype: torch.dtype, n: int) -> dict[str, float]:
    A, tall = (testing.random((2, m, n), dtype, seed=n).to(device) for m in (n, 20 * n))
    factor, tau = LA.geqrf(A)
    Q = LA.householder_product(factor, tau)
    pivoted = LA.qr_pivoted(A)
    permuted = A.gather(-1, pivoted.P.unsqueeze(-2).expand(A.shape))
    return {
        "square": testing.qr_ratio(A, *LA.qr(A)).max(),
        "tall": testing.qr_ratio(tall, *LA.qr(tall)).max(),
        "pivoted": testing.qr_ratio(permuted, pivoted.Q, pivoted.R).max(),
        "reflectors": testing.qr_ratio(A, Q, factor.triu()).max(),
    }


FAMILY = Family(sizes=(3, 8, 16, 32, 50), ratios=_ratios)
