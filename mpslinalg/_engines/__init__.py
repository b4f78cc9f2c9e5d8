"""The three engines, and the one way to launch a kernel on whichever holds the tensors."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from . import cpu, cuda, metal, program, source
from .engine import Argument, Engine, Launcher
from .gemm import gemm
from .sort import sort
from .source import Buffer, ShaderError

__all__ = [
    "ENGINES",
    "Engine",
    "Kernel",
    "Launcher",
    "ShaderError",
    "checking",
    "empty",
    "flattened",
    "gemm",
    "kernel",
    "launched",
    "scalar",
    "side_by_side",
    "sort",
    "strides",
]

ENGINES: dict[str, Engine] = {"mps": metal.ENGINE, "cuda": cuda.ENGINE, "cpu": cpu.ENGINE}

# Every variant that this process has asked an engine for: what the strict Metal check must cover.
launched: set[tuple[str, str, tuple[str, ...]]] = set()

# What the checked engine leaves in integers that no kernel wrote.
UNWRITTEN = -559038737
UNWRITTEN_NARROW = 111  # what every integer type holds
# Strides inside a matrix are bound as 32-bit integers.
MAX_STRIDE = 2**31 - 1

_SCALARS = {
    torch.float32: "float",
    torch.complex64: "float2",
    torch.float64: "double",
    torch.complex128: "double2",
    torch.float16: "half",
    torch.bfloat16: "bfloat",
}
# Torch computes with few unsigned integers: tensors of signed ones are their memory too.
_INTEGERS = {
    "uchar": torch.uint8,
    "ushort": torch.int16,
    "int": torch.int32,
    "uint": torch.int32,
    "atomic_uint": torch.int32,
    "long": torch.int64,
    "ulong": torch.int64,
}
_DTYPES = {name: dtype for dtype, name in _SCALARS.items()} | _INTEGERS


class Kernel:
    """One variant of a kernel: compiled when a device first needs it, then a plain call."""

    __slots__ = ("_dtypes", "_launchers", "name", "shader", "template")

    def __init__(self, shader: str, name: str, template: tuple[str, ...]) -> None:
        self.shader, self.name, self.template = shader, name, template
        self._launchers: dict[Engine, Launcher] = {}
        # Of the buffers, which come before the values; None before the first launch.
        self._dtypes: list[torch.dtype] | None = None

    def __call__(
        self, *arguments: Argument, threads: tuple[int, ...], group: tuple[int, ...]
    ) -> None:
        """Queue the kernel: buffers and sizes in the order of its signature.

        `threads` counts threads along each axis, as torch.mps.compile_shader's does; a kernel
        with a barrier or a simd function takes a multiple of `group`.
        """
        first = arguments[0]
        if not isinstance(first, torch.Tensor):
            raise TypeError(f"mpslinalg: kernel {self.name}: the first argument is no tensor")
        if 0 in threads:
            return
        engine = ENGINES[first.device.type]
        given = [a for a in arguments if isinstance(a, torch.Tensor)]
        device = first.device
        if [a.dtype for a in given] != self._dtypes or any(a.device != device for a in given):
            self._check(arguments, device)
            self._dtypes = [a.dtype for a in given]
        launcher = self._launchers.get(engine)
        if launcher is None:
            launcher = engine.compile(self.shader, self.name, self.template)
            self._launchers[engine] = launcher
            launched.add((self.shader, self.name, self.template))
        launcher(arguments, threads, group)
        if program.current.recording is not None:
            program.current.recording.launched.append((launcher, arguments, threads, group))

    def _check(self, arguments: Sequence[Argument], device: torch.device) -> None:
        """Refuse what the signature does not take: a kernel would read other memory."""
        signature = source.signature(self.shader, self.name)
        types = dict(zip((name for _, name in signature.template), self.template, strict=True))
        for declared, given in zip(signature.arguments, arguments, strict=False):
            wanted = got = "a number"
            if isinstance(declared, Buffer):
                wanted = f"{_dtype(declared.type, types)} on {device}"
            if isinstance(given, torch.Tensor):
                got = f"{given.dtype} on {given.device}"
            if got != wanted:
                raise TypeError(
                    f"mpslinalg: kernel {self.name}: {declared.name} is to be {wanted}, got {got}"
                )


@functools.cache
def kernel(shader: str, name: str, *template: str | int) -> Kernel:
    """The variant `name<*template>` of `shaders/<shader>.metal`."""
    return Kernel(shader, name, tuple(map(str, template)))


def _dtype(written: str, types: dict[str, str]) -> torch.dtype:
    """The dtype of a buffer declared with elements of this type, `int`, `T` or `real_t<T>`."""
    of_one = written.removeprefix("real_t<").removesuffix(">")
    dtype = _DTYPES[types.get(of_one, of_one)]
    return dtype if of_one == written else dtype.to_real()


def scalar(dtype: torch.dtype) -> str:
    """The shader type of a dtype: complex is a vector of two."""
    return _SCALARS[dtype]


def empty(
    shape: Sequence[int],
    like: torch.Tensor,
    dtype: torch.dtype | None = None,
    row_major: bool = False,
) -> torch.Tensor:
    """Uninitialised memory for a kernel's output; matrices are column-major, as LAPACK's.

    The checked CPU engine fills it, so that what a kernel never wrote shows. It is no view of a
    row-major tensor, which torch.autograd.Function would treat as one.
    """
    dtype = like.dtype if dtype is None else dtype
    inner_first = list(reversed(range(len(shape))))
    if not row_major:
        inner_first[:2] = inner_first[1::-1]
    steps, step = [1] * len(shape), 1
    for axis in inner_first:
        steps[axis] = step
        step *= max(shape[axis], 1)
    result = torch.empty_strided(shape, steps, dtype=dtype, device=like.device)
    if result.is_cpu and cpu.checking():
        whole = UNWRITTEN if dtype in (torch.int32, torch.int64) else UNWRITTEN_NARROW
        result.fill_(float("nan") if dtype.is_floating_point or dtype.is_complex else whole)
    if program.current.recording is not None:
        allocation = program.Allocation(tuple(shape), tuple(steps), dtype)
        program.current.recording.allocated.append((result, allocation))
    return result


def checking(device: torch.device) -> bool:
    """Whether launches on a device are checked."""
    return device.type == "cpu" and cpu.checking()


def side_by_side(tensor: torch.Tensor) -> bool:
    """Whether the engine of a tensor runs the threads of a group at once, not one by one."""
    return ENGINES[tensor.device.type].side_by_side


def strides(matrices: torch.Tensor) -> tuple[int, int, int]:
    """Row, column and batch stride of a three-dimensional tensor, as the kernels take them."""
    batch, row, column = matrices.stride()
    return row, column, batch


def flattened(matrices: torch.Tensor) -> torch.Tensor:
    """The matrices as one batch for a kernel to read: (batch, m, n), no conj or neg bit.

    A view wherever one stride can walk the batch and the others fit in 32 bits; else a copy.
    """
    if matrices.is_conj():
        matrices = matrices.resolve_conj()
    if matrices.is_neg():
        matrices = matrices.resolve_neg()
    if matrices.dim() != 3:
        *batch, m, n = matrices.shape
        matrices = matrices.reshape(math.prod(batch), m, n)
    _, row, column = matrices.stride()
    return matrices.contiguous() if max(row, column) > MAX_STRIDE else matrices
