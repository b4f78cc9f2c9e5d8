"""How the doctor judges a family of kernels."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Family:
    """`ratios` takes a device, a dtype and a size: LAPACK's test ratios by what they judge."""

    sizes: Sequence[int]  # one in each regime
    ratios: Callable[[torch.device, torch.dtype, int], Mapping[str, float]]
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.complex64)
