"""Elements by their numbers, sums over equal numbers, counts."""

import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg._doctor.family import Family


def _wrong(ours: Tensor, expected: Tensor) -> float:
    """A ratio that fails if any element differs."""
    return testing.LU_THRESHOLD * float((ours.cpu() != expected).sum())


def _ratios(device: torch.device, dtype: torch.dtype, n: int) -> dict[str, float]:
    A, B = testing.random((n, 2 * n), dtype, seed=n), testing.random((8 * n,), dtype, seed=n + 1)
    index = (torch.arange(8 * n) * 7919 - 3 * n) % A.numel()
    last, wide = dict(zip(index.tolist(), B, strict=True)), torch.complex128
    put = A.flatten().index_copy(0, torch.tensor([*last]), torch.stack([*last.values()]))
    # Every fourth number, so that each is there several times.
    few = index // 4 * 4
    exact = A.to(wide).put(few, B.to(wide), accumulate=True)
    x, i, values = A.to(device), index.to(device), B.to(device)
    error = (LA.put(x, few.to(device), values, True).cpu() - exact).abs().max()
    return {
        "take": _wrong(LA.take(x, i - A.numel()), A.flatten()[index]),
        "put": _wrong(LA.put(x, i, values), put.view_as(A)),
        "sums": float(error / (torch.finfo(dtype).eps * exact.abs().max())),
        "counts": _wrong(LA.bincount(i), torch.bincount(index)),
    }


FAMILY = Family(sizes=(3, 200), ratios=_ratios)
