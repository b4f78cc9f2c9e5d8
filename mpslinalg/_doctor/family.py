"""How the doctor judges a family of kernels."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

import mpslinalg as LA
from mpslinalg._bench import Case, Operation


@dataclass(frozen=True)
class Family:
    """`ratios` takes a device, a dtype and a size: LAPACK's test ratios by what they judge."""

    sizes: Sequence[int]  # one in each regime
    ratios: Callable[[torch.device, torch.dtype, int], Mapping[str, float]]
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.complex64)


def timed(operations: Sequence[Operation]) -> Callable[..., Mapping[str, float]]:
    """`ratios` of what the bench times, with its inputs and its judges."""

    def ratios(device: torch.device, dtype: torch.dtype, n: int) -> dict[str, float]:
        found = {}
        for operation in operations:
            case = Case(operation, 3, n, dtype)
            inputs = case.inputs(device)
            found[operation.name] = operation.ratio(inputs, case.call(LA, inputs))
        return found

    return ratios
