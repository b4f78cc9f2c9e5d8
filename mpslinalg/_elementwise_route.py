"""What elementwise operations run: kernels, or torch's own."""

from typing import Any

import torch
from torch import Tensor

from mpslinalg import _check, _route
from mpslinalg._engines import ENGINES


def kernels(first: Any, torch_lacks: bool, on_mps: bool = True) -> bool:
    """Whether a call runs on kernels now.

    torch_lacks: whether torch cannot do what is asked on other devices than mps; on_mps: whether
    the kernels serve there, where torch's own may do.
    """
    mode = _route.mode.name
    if not isinstance(first, Tensor) or mode == "torch":
        return False
    return mode == "kernels" or torch_lacks or (on_mps and first.device.type == "mps")


def describe(first: Any, torch_lacks: bool, kernel: str, on_mps: bool = True) -> str:
    """The same in words, for `which`."""
    if not isinstance(first, Tensor):
        return "raises torch's error: no tensor"
    device = first.device.type
    if not kernels(first, torch_lacks, on_mps):
        reason = "use('torch')" if _route.mode.name == "torch" else "it has all that is asked"
        return f"torch on {device}: {reason}"
    engine = f"{ENGINES[device].name} engine" if device in ENGINES else f"no engine for {device}"
    size = " x ".join(map(str, first.shape)) or "one number"
    dtype = str(first.dtype).removeprefix("torch.")
    return f"kernels ({engine}): {size} {dtype}, {kernel}"


def first_tensor(*given: Any) -> Any:
    """The first tensor among arguments, if any, and not one number on the CPU beside others."""
    tensors = [g for g in given if isinstance(g, Tensor)]
    return next((t for t in tensors if t.dim() > 0), tensors[0] if tensors else None)


_TO_COMPLEX = {torch.float16: torch.complex32, torch.float64: torch.complex128}


def _dtype(given: Any) -> torch.dtype:
    if isinstance(given, Tensor):
        return given.dtype
    if isinstance(given, bool):
        return torch.bool
    if isinstance(given, int):
        return torch.int64
    default = torch.get_default_dtype()
    return _TO_COMPLEX.get(default, torch.complex64) if isinstance(given, complex) else default


def _rank(given: Any) -> int:
    """Shapes with dimensions decide before single elements, these before numbers."""
    return (2 if given.dim() > 0 else 1) if isinstance(given, Tensor) else 0


def result_type(a: Any, b: Any) -> torch.dtype:
    """torch.result_type, which torch.compile does not take."""
    if _rank(a) < _rank(b):
        a, b = b, a
    high, low = _dtype(a), _dtype(b)
    if _rank(a) == _rank(b):
        return torch.promote_types(high, low)
    if high.is_complex or (high.is_floating_point and not low.is_complex):
        return high
    if high.is_floating_point:
        return _TO_COMPLEX.get(high, torch.complex64)
    if low.is_complex:
        return low
    if high == torch.bool or low.is_floating_point:
        return torch.promote_types(high, low)
    return high


def floating(*given: Any) -> torch.dtype:
    """What torch computes in for these tensors and numbers: a floating-point or complex dtype."""
    dtype = result_type(*given) if len(given) == 2 else given[0].dtype
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()


def fits(out: Any, dtype: torch.dtype, *inputs: Tensor) -> bool:
    """Whether a result of this dtype can be written to out=, cast to what that holds."""
    return out is None or (isinstance(out, Tensor) and _check.out_to_cast(out, inputs, dtype))


def one_device(method: str, given: list[Tensor], out: Any) -> None:
    """Raise torch's error where a kernel cannot reach all; single numbers on the CPU it can."""
    placed = [g for g in given if g.dim() > 0 or not g.is_cpu] or given
    _check.same_device(method, given=placed, out=out)
