"""What runs: the kernels, or torch.linalg."""

import inspect
import math
import sys
import threading
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from mpslinalg._engines import ENGINES

# Smallest batch for which the fused inverse beats torch.linalg.inv on the CPU, and its largest n.
INV_CPU_BATCH = 64
INV_CPU_N = 4
# Largest single matrix for which the kernels beat cuSOLVER.
CUDA_SINGLE_N = 1024


class _Mode(threading.local):
    # Set on the instance: torch.compile guards instance attributes, so that a switch recompiles.
    def __init__(self) -> None:
        self.name = "auto"


_mode = _Mode()


class use:
    """Choose in this thread what the functions of mpslinalg run on; blocks nest.

    `"auto"`, the default: kernels on an Apple GPU; elsewhere kernels where they were measured
    faster than torch.linalg. `"kernels"`: kernels on every device. `"torch"`: torch.linalg.

    Raises:
        ValueError: unknown mode.

    Example:
        >>> with mpslinalg.use("kernels"):
        ...     X = mpslinalg.inv(A)
    """

    def __init__(self, mode: str) -> None:
        if mode not in ("auto", "kernels", "torch"):
            raise ValueError(f"mpslinalg.use: expected 'auto', 'kernels' or 'torch', got {mode!r}")
        self._inner = mode
        self._outer: list[str] = []

    def __enter__(self) -> None:
        self._outer.append(_mode.name)
        _mode.name = self._inner

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _mode.name = self._outer.pop()


def kernels(name: str, A: Tensor, B: Tensor | None = None, pivot: bool = True) -> bool:
    """Whether `name` runs on kernels now. What is no tensor goes to torch, for torch's error."""
    mode = _mode.name
    if mode != "auto":
        return mode == "kernels" and isinstance(A, Tensor)
    try:
        # The CPU comes first and pays for nothing else: this is all that auto adds to torch.linalg.
        if A.is_cpu:
            # torch has no LU without pivoting on the CPU.
            return not pivot or (name == "inv" and _many_tiny(A.shape))
        shape = A.shape
    except AttributeError:
        return False
    if len(shape) < 2:
        return False
    k = 1 if B is None or B.dim() < len(shape) else B.shape[-1]
    return kernels_win(name, A.device.type, A.dtype, shape[:-2].numel(), shape[-2], shape[-1], k)


def _many_tiny(shape: torch.Size) -> bool:
    return len(shape) > 2 and shape[-1] <= INV_CPU_N and shape[:-2].numel() >= INV_CPU_BATCH


def kernels_win(
    name: str, device: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int
) -> bool:
    """Whether kernels are what `auto` runs for a batch of m x n matrices and k right-hand sides."""
    if device == "mps":
        return True
    return device == "cuda" and (batch > 1 or max(m, n) <= CUDA_SINGLE_N)


def which(name: str, *args: Any, **kwargs: Any) -> str:
    """Say in one line what a call of a function of mpslinalg with these arguments would run.

    Raises:
        ValueError: mpslinalg has no function of that name.

    Example:
        >>> mpslinalg.which("solve", torch.eye(3), torch.ones(3))
        'solve: torch.linalg on cpu: measured faster here'
    """
    function: Any = getattr(sys.modules["mpslinalg"], name, None)
    # A module of functions that run on kernels names the kernel of a size by `regime`.
    regime = getattr(sys.modules.get(getattr(function, "__module__", "")), "regime", None)
    if regime is None:
        raise ValueError(f"mpslinalg.which: mpslinalg has no function {name!r}")
    given = inspect.signature(function).bind(*args, **kwargs)
    given.apply_defaults()
    A, B = next(iter(given.arguments.values())), given.arguments.get("B")
    device = A.device.type
    if not kernels(name, A, B, given.arguments.get("pivot", True)):
        if _mode.name == "torch":
            return f"{name}: torch.linalg on {device}: use('torch')"
        reason = "measured faster here" if device in ENGINES else "no engine for this device"
        return f"{name}: torch.linalg on {device}: {reason}"
    *batch, m, n = A.shape
    k = 1 if B is None or B.dim() < A.dim() else B.shape[-1]
    size = " x ".join(map(str, (*batch, m, n)))
    dtype = str(A.dtype).removeprefix("torch.")
    kernel = regime(name, A.dtype, math.prod(batch), m, n, k)
    engine = ENGINES[device].name + " engine" if device in ENGINES else f"no engine for {device}"
    return f"{name}: kernels ({engine}): {size} {dtype}, {kernel}"
