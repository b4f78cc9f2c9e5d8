"""Launch plans of elementwise operations, and what those of special functions share with them."""

import torch
from torch import Tensor

from mpslinalg._engines import Kernel, empty

# Threads of one launch; larger tensors take several.
MAX_THREADS = 2**31
GROUP = 256


def _dense(x: Tensor) -> bool:
    """Whether the elements of x fill their memory."""
    return x.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense(x)


def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors of one shape for kernels that walk memory: of the same strides, without gaps."""
    tensors = tuple(t.resolve_neg() if t.is_neg() else t for t in tensors)
    first = tensors[0]
    if all(t.is_contiguous() for t in tensors):
        return tensors
    if _dense(first) and all(t.stride() == first.stride() for t in tensors):
        return tensors
    strides = _result_strides(*tensors)
    return tuple(_with_strides(t, strides) for t in tensors)


def _result_strides(*tensors: Tensor) -> tuple[int, ...]:
    # Imported late: it takes a second, and few calls need it.
    from torch._prims_common import compute_elementwise_output_strides

    return tuple(compute_elementwise_output_strides(*tensors))


def _with_strides(x: Tensor, strides: tuple[int, ...]) -> Tensor:
    if x.stride() == strides:
        return x
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)


def result_like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Uninitialised memory of the shape and strides of what `flat` returned."""
    if x.is_contiguous():
        return empty(x.shape, x, dtype, row_major=True)
    return empty((x.numel(),), x, dtype, row_major=True).as_strided(x.shape, x.stride())


def fake_like(*tensors: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """An empty tensor with the strides that results have."""
    first = tensors[0]
    strides = first.stride() if first.is_contiguous() else _result_strides(*tensors)
    return torch.empty_strided(
        first.shape, strides, dtype=dtype or first.dtype, device=first.device
    )


def run(variant: Kernel, tensors: tuple[Tensor, ...], *values: int | float) -> None:
    """Launch a kernel with a thread for each element."""
    count = tensors[0].numel()
    if count <= MAX_THREADS:
        variant(*tensors, *values, threads=(count,), group=(GROUP,))
        return
    lines = [t.as_strided((count,), (1,)) for t in tensors]
    for start in range(0, count, MAX_THREADS):
        part = [line[start : start + MAX_THREADS] for line in lines]
        variant(*part, *values, threads=(part[0].numel(),), group=(GROUP,))
