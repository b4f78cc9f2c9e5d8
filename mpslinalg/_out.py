"""Results into out=, by torch's rules."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def write(result: Tensor, out: Tensor) -> Tensor:
    """Copy a result to `out`, which takes its shape and strides when it had another shape.

    Warns as torch does when a tensor that holds elements is resized.
    """
    if out.shape != result.shape:
        # For the size and the warning; the strides that it chooses for sides of 1 may differ.
        torch.add(result, 0, out=out)
        out.as_strided_(result.shape, result.stride())
    return out.copy_(result)


def named(name: str, results: Sequence[Tensor], out: Sequence[Tensor] | None) -> Any:
    """The results as torch's named tuple, written to out= if given."""
    if out is None:
        return getattr(torch.return_types, name)(results)
    written = tuple(write(r, o) for r, o in zip(results, out, strict=True))
    return getattr(torch.return_types, f"{name}_out")(written)
