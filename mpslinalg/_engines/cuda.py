"""The CUDA engine: NVRTC compiles the text, cuda.core queues the launch in torch's stream."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import torch

from . import cache, source
from .source import Buffer, Index, ShaderError, Signature

_VALUES: dict[str, Any] = {
    "uint": numpy.uint32,
    "int": numpy.int32,
    "long": numpy.int64,
    "ulong": numpy.uint64,
    "float": numpy.float32,
}


@functools.cache
def _core() -> Any:
    """The parts of cuda.core that are used here; it left `experimental` in its version 1."""
    try:
        import cuda.core as core

        if not hasattr(core, "Program"):
            import cuda.core.experimental as core
    except ImportError as error:
        raise ShaderError(
            "mpslinalg: kernels on CUDA tensors need the package cuda-core: "
            "pip install 'mpslinalg[cuda]'"
        ) from error
    names = ("LaunchConfig", "ObjectCode", "Program", "ProgramOptions", "launch")
    return SimpleNamespace(version=core.__version__, **{name: getattr(core, name) for name in names})


def translation_unit(
    shader_text: str, signature: Signature, template: tuple[str, ...], threads: int
) -> str:
    """The whole CUDA text of one variant for groups of up to `threads`, with its entry."""
    prologue = source.inline(source.INCLUDE / "metal_cuda.h", source.INCLUDE)
    types = source.closing_types(signature, template)
    parameters, call = [], []
    for position, given in enumerate(signature.arguments):
        if isinstance(given, Buffer):
            const = "" if given.writable else "const "
            parameters.append(f"{const}void* a{position}")
            call.append(f"({const}{given.type}*)a{position}")
        else:
            parameters.append(f"{given.type} a{position}")
            call.append(f"a{position}")
    call += [_index(index) for index in signature.indices]
    # Metal's grids reach 2^32 along each axis, CUDA's only along x: axes are folded into x.
    parameters += ["uint nx", "uint ny", "uint nz", "uint gx", "uint gy"]
    guard = "" if signature.cooperative else "if (px >= nx || py >= ny || pz >= nz) return;"
    return (
        f"{prologue}\n{shader_text}\n"
        f'#line 1 "variant"\n'
        f'extern "C" __global__ void __launch_bounds__({threads}) '
        f"mpsl_entry({', '.join(parameters)}) {{\n"
        f"  {types}\n"
        "  const uint bx = blockIdx.x % gx, by = blockIdx.x / gx % gy, bz = blockIdx.x / gx / gy;\n"
        "  const uint px = bx * blockDim.x + threadIdx.x, py = by * blockDim.y + threadIdx.y,\n"
        "             pz = bz * blockDim.z + threadIdx.z;\n"
        "  const uint tid = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;\n"
        f"  {guard}\n"
        f"  {source.instance(signature)}({', '.join(call)});\n}}\n"
    )


_INDICES = {
    "thread_position_in_grid": ("px", "py", "pz"),
    "thread_position_in_threadgroup": ("threadIdx.x", "threadIdx.y", "threadIdx.z"),
    "threadgroup_position_in_grid": ("bx", "by", "bz"),
    "threads_per_grid": ("nx", "ny", "nz"),
    "threads_per_threadgroup": ("blockDim.x", "blockDim.y", "blockDim.z"),
    "threadgroups_per_grid": ("gx", "gy", "gridDim.x / gx / gy"),
}
_SCALAR_INDICES = {
    "thread_index_in_threadgroup": "tid",
    "thread_index_in_simdgroup": "tid % 32u",
    "simdgroup_index_in_threadgroup": "tid / 32u",
    "simdgroups_per_threadgroup": "(blockDim.x * blockDim.y * blockDim.z + 31u) / 32u",
}


def _index(index: Index) -> str:
    if index.attribute in _SCALAR_INDICES:
        return _SCALAR_INDICES[index.attribute]
    return source.vector(index.type, *_INDICES[index.attribute])


class _CudaLauncher:
    def __init__(
        self, shader_text: str, what: str, signature: Signature, template: tuple[str, ...]
    ) -> None:
        self._shader_text, self._what = shader_text, what
        self._signature, self._template = signature, template
        # By device and group size: the size bounds the registers that a thread may have.
        self._kernels: dict[tuple[int, int], Any] = {}
        self._converters = [
            None if isinstance(argument, Buffer) else _VALUES[argument.type]
            for argument in signature.arguments
        ]
        self._count = len(self._converters)

    def _compiled(self, device: int, threads: int) -> Any:
        bound = 1 << max(threads - 1, 31).bit_length()
        kernel = self._kernels.get((device, bound))
        if kernel is None:
            with torch.cuda.device(device):
                kernel = self._build(device, bound)
            self._kernels[device, bound] = kernel
        self._kernels[device, threads] = kernel
        return kernel

    def _build(self, device: int, bound: int) -> Any:
        core = _core()
        major, minor = torch.cuda.get_device_capability(device)
        arch = f"sm_{major}{minor}"
        text = translation_unit(self._shader_text, self._signature, self._template, bound)

        def build(target: Path) -> None:
            options = core.ProgramOptions(
                std="c++17", arch=arch, device_as_default_execution_space=True, disable_warnings=True
            )
            try:
                code = core.Program(text, code_type="c++", options=options).compile("cubin")
            except Exception as error:
                raise ShaderError(
                    f"mpslinalg: {self._what} does not compile for CUDA ({arch})\n{error}"
                ) from error
            target.write_bytes(code.code)

        parts = (text, arch, core.version, str(torch.version.cuda))
        path = cache.stored(parts, ".cubin", build)
        return core.ObjectCode.from_cubin(path.read_bytes()).get_kernel("mpsl_entry")

    def __call__(
        self,
        arguments: Sequence[torch.Tensor | int | float],
        threads: tuple[int, ...],
        group: tuple[int, ...],
    ) -> None:
        if len(arguments) != self._count:
            raise TypeError(
                f"mpslinalg: {self._what} takes {self._count} arguments, got {len(arguments)}"
            )
        first = arguments[0]
        assert isinstance(first, torch.Tensor)
        device = first.device.index
        nx, ny, nz = (*threads, 1, 1)[:3]
        block = (*group, 1, 1)[:3]
        group_threads = math.prod(block)
        kernel = self._kernels.get((device, group_threads))
        if kernel is None:
            kernel = self._compiled(device, group_threads)
        gx, gy, gz = -(-nx // block[0]), -(-ny // block[1]), -(-nz // block[2])
        converted = [
            given.data_ptr() if convert is None else convert(given)  # type: ignore[union-attr]
            for given, convert in zip(arguments, self._converters, strict=True)
        ]
        sizes = map(numpy.uint32, (nx, ny, nz, gx, gy))
        config = _config(gx * gy * gz, block)
        stream = torch.cuda.current_stream(device)
        if device == torch.cuda.current_device():
            _core().launch(stream, config, kernel, *converted, *sizes)
        else:
            with torch.cuda.device(device):
                _core().launch(stream, config, kernel, *converted, *sizes)


@functools.lru_cache(maxsize=4096)
def _config(blocks: int, block: tuple[int, int, int]) -> Any:
    return _core().LaunchConfig(grid=(blocks, 1, 1), block=block)


class CudaEngine:
    """Runs kernels on CUDA tensors."""

    name = "cuda"

    def compile(self, shader: str, name: str, template: tuple[str, ...]) -> _CudaLauncher:
        """One variant, compiled for a device at its first launch there."""
        signature = source.signature(shader, name)
        what = f"{shader}.metal: {name}<{', '.join(template)}>"
        return _CudaLauncher(source.text(shader), what, signature, template)


ENGINE = CudaEngine()
