"""SVD of square, tall and wide matrices."""

import torch

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg._doctor.family import Family


def _ratios(device: torch.device, dtype: torch.dtype, n: int) -> dict[str, float]:
    A, tall = (testing.random((2, m, n), dtype, seed=n).to(device) for m in (n, 3 * n))
    return {
        "square": testing.svd_ratio(A, *LA.svd(A)).max(),
        "tall": testing.svd_ratio(tall, *LA.svd(tall)).max(),
        "wide": testing.svd_ratio(tall.mH, *LA.svd(tall.mH, full_matrices=False)).max(),
    }


FAMILY = Family(sizes=(3, 8, 16, 32), ratios=_ratios)
