"""What `torch.mps.compile_shader` calls, played by the CPU engine under the real call's rules.

Tensors of the CPU play those of an Apple GPU; `host` marks one that plays itself. Errors of the
real call have its classes and words. What it would take and read wrongly is `Misbound`.
"""

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mpslinalg._engines import ShaderError, cpu
from mpslinalg._engines.source import Buffer, Signature, signatures

# Whatever a shader needs of Metal before its first line, and the one macro that it uses.
PROLOGUE = (
    "#include <metal_stdlib>\nusing namespace metal;\n"
    "#define THREADGROUP_ARRAY(T, name, count) threadgroup T name[count]\n"
)
INSTANTIATION = re.compile(
    r'^template \[\[host_name\("(\w+)"\)\]\] \[\[kernel\]\] '
    r"decltype\((\w+)<(.*)>\) (\w+)<(.*)>;\n",
    re.MULTILINE,
)
BUFFER = re.compile(r"(\w+)\s*\[\[buffer\((\d+)\)\]\]")
MAX_BUFFERS = 31
CASTS = {
    "fp16": "half",
    "bf16": "bfloat",
    "int32": "int",
    "int16": "short",
    "int8": "char",
    "uint8": "uchar",
}
# What a value of some type in memory may be read as.
READABLE = {"long": ("long", "ulong"), "int": ("int", "uint"), "float": ("float",)}
BITS = {
    "int": (-(2**31), 2**31),
    "uint": (0, 2**32),
    "long": (-(2**63), 2**63),
    "ulong": (0, 2**64),
}


class Misbound(AssertionError):
    """A launch that the real call would let pass, and that would read or write something else."""


class Bound(NamedTuple):
    """What lies at one buffer index."""

    type: str
    value: Any


def host(tensor: Tensor) -> Tensor:
    """The tensor, playing one on the CPU."""
    tensor.on_host = True  # type: ignore[attr-defined]
    return tensor


def compile_shader(source: str) -> "Library":
    """The library of a text, which is all that Apple's compiler sees.

    Raises:
        SyntaxError: it does not compile.
    """
    if not source.isascii():
        raise SyntaxError("the text is not ASCII: torch loses it on the way")
    if not source.startswith(PROLOGUE):
        raise SyntaxError("names of Metal or of the prologue are not declared")
    shader = shader_of(source)
    kernels: dict[str, Kernel] = {}
    for name, declared, types, instantiated, arguments in INSTANTIATION.findall(source):
        if (declared, types) != (instantiated, arguments) or name in kernels:
            raise SyntaxError(f"instantiation of {name}: it is declared otherwise or before")
        kernels[name] = _kernel(shader, declared, tuple(arguments.split(", ")))
    return Library(kernels)


def shader_of(source: str) -> str:
    """Without the engine's lines, the shader to the byte: so the CPU engine has it in its cache."""
    rest = INSTANTIATION.sub("", source.removeprefix(PROLOGUE))
    return re.sub(r"\s*(\n#line .*)?\s*\Z", "\n", rest, count=1)


def _kernel(shader: str, name: str, template: tuple[str, ...]) -> "Kernel":
    try:
        signature = signatures(shader)[name]
        launcher = cpu.ENGINE.compile_text(shader, f"stand-in: {name}", name, template)
        launcher._entry(cpu.checking())
    except (ShaderError, KeyError) as error:
        raise SyntaxError(f"program_source: error: {error}") from error
    start = re.search(rf"kernel\s+void\s+{name}\s*\(", shader)
    assert start is not None
    parameters = shader[start.end() : shader.index("{", start.end())]
    if "[[threadgroup(" in parameters:
        raise SyntaxError(f"{name}: torch has no way to set the size of threadgroup memory")
    numbers = {parameter: int(number) for parameter, number in BUFFER.findall(parameters)}
    order = [numbers[argument.name] for argument in signature.arguments]
    if max(order, default=0) >= MAX_BUFFERS or len(set(order)) != len(order):
        raise SyntaxError(f"{name}: buffer indices {order} repeat or exceed {MAX_BUFFERS - 1}")
    return Kernel(signature, order, launcher)


class Library:
    """The kernels of a text, by the names that it gives to the host."""

    def __init__(self, kernels: dict[str, "Kernel"]) -> None:
        self._kernels = kernels

    def __getattr__(self, name: str) -> "Kernel":
        if name not in self._kernels:
            raise RuntimeError(f"Failed to create function state object for: {name}")
        return self._kernels[name]

    def __dir__(self) -> list[str]:
        return list(self._kernels)


class Kernel:
    """One kernel, called as torch's are. (Theirs also know their static threadgroup memory.)"""

    thread_execution_width = 32

    def __init__(
        self, signature: Signature, order: list[int], launcher: Callable[..., None]
    ) -> None:
        self.max_threads_per_threadgroup = signature.max_threads
        self._signature, self._order, self._launcher = signature, order, launcher

    def __call__(
        self,
        *args: Any,
        threads: int | Sequence[int] | None = None,
        group_size: int | Sequence[int] | None = None,
        arg_casts: str | dict[int, str] | None = None,
    ) -> None:
        """Launch. (The real call also has `error_buf_idx`.)"""
        grid, group = _sizes("threads", threads), _sizes("group_size", group_size)
        if not (arg_casts is None or isinstance(arg_casts, str | dict)):
            raise RuntimeError(f"Unexpected caster arg type {type(arg_casts).__name__}")
        if len(args) > MAX_BUFFERS:
            raise RuntimeError(f"{len(args)} arguments, and Metal has {MAX_BUFFERS} buffers")
        bound = []
        for i, argument in enumerate(args):
            bound.append(
                _bind(argument, arg_casts.get(i) if isinstance(arg_casts, dict) else arg_casts)
            )
            if grid is None and isinstance(argument, Tensor):
                grid = (argument.numel(),)
        if grid is None:
            raise RuntimeError("Number of threads is undefined or has wrong dimension")
        if group is None:
            group = (min(grid[0], self.max_threads_per_threadgroup), 1, 1)[: len(grid)]
        if len(group) != len(grid):
            raise RuntimeError("size and group_size must have same number of dimensions")
        if prod(group) > self.max_threads_per_threadgroup:
            raise ValueError(f"Threadgroup size exceeds {self.max_threads_per_threadgroup} limit")
        if not all(0 < size < 2**32 for size in (*grid, *group)):
            raise Misbound(f"{self._signature.name}: a grid of {grid} threads by {group}")
        self._launcher(self._arguments(bound), grid, group)

    def _arguments(self, bound: list[Bound]) -> list[Any]:
        """What the parameters read, in their order."""
        if sorted(self._order) != list(range(len(bound))):
            raise Misbound(f"{self._signature.name}: {len(bound)} arguments at {self._order}")
        values = []
        for parameter, index in zip(self._signature.arguments, self._order, strict=True):
            kind, value = bound[index]
            if isinstance(parameter, Buffer):
                fits = kind == "tensor"
            else:
                fits = parameter.type in READABLE.get(kind, ())
                low, high = BITS.get(parameter.type, (None, None))
                if fits and low is not None and not low <= value < high:
                    raise Misbound(f"{parameter.name}: {parameter.type} cannot hold {value}")
            if not fits:
                raise Misbound(f"{parameter.name} is read as {parameter.type}, bound as {kind}")
            values.append(value)
        return values


def _sizes(name: str, given: int | Sequence[int] | None) -> tuple[int, ...] | None:
    if given is None:
        return None
    sizes = (given,) if isinstance(given, int) else tuple(given)
    if not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise RuntimeError(f"Unable to cast {name} {given} to uint64_t")
    if not 0 < len(sizes) < 4:
        raise RuntimeError(f"Expected vec.size() > 0 && vec.size() < 4 for {name}")
    return sizes


def _bind(argument: Any, cast: str | None) -> Bound:
    if isinstance(argument, Tensor):
        return _bind_tensor(argument)
    element, array = argument, ""
    if isinstance(argument, list | tuple):
        if not argument:
            raise RuntimeError("Empty list/tuple can not be an argument to metal kernel")
        element, array = argument[0], " array"
        if isinstance(element, Tensor):
            return Bound("addresses", argument)
    if not isinstance(element, int | float):
        raise RuntimeError("Unexpected argument types" if array else "Unsupported argument type")
    if cast is not None and cast not in CASTS:
        raise RuntimeError(f"Unsupported cast instruction {cast}")
    kind = CASTS[cast] if cast else "float" if isinstance(element, float) else "long"
    return Bound(kind + array, argument)


def _bind_tensor(tensor: Tensor) -> Bound:
    wide = tensor.dtype in (torch.float64, torch.complex128)
    if getattr(tensor, "on_host", False):
        if tensor.dim() != 0:
            raise RuntimeError("Passed CPU tensor to MPS op")
        if wide:
            tensor = tensor.to(torch.complex64 if tensor.is_complex() else torch.float32)
    elif wide:
        raise TypeError(f"Cannot convert a MPS Tensor to {tensor.dtype}: MPS has no float64")
    return Bound("tensor", tensor)
