"""The CUDA engine: NVRTC compiles the text, cuda.core queues the launch in torch's stream."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import struct
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch._C._dynamo import guards

from . import cache, source
from .engine import Argument, Engine, Launch, Launcher
from .graph import Graphs
from .program import Program
from .source import Buffer, Index, ShaderError, Signature

# Threads that search info for an error: enough to read as fast as memory allows.
INFO_THREADS = 16384
# CUDA_ERROR_INVALID_CONTEXT: a thread of autograd has none before its first call of the runtime.
NO_CONTEXT = 201


def _float_bits(value: float) -> int:
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return bits


# Each argument travels in a slot of eight bytes, of which the kernel reads as many as it declares.
_BITS: dict[str, Callable[[Any], int]] = {
    "uint": int,
    "int": int,
    "long": int,
    "ulong": int,
    "float": _float_bits,
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
    names = ("Device", "ObjectCode", "Program", "ProgramOptions")
    return SimpleNamespace(
        version=core.__version__, **{name: getattr(core, name) for name in names}
    )


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared_bytes")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


@functools.cache
def _launch_function() -> Callable[..., int]:
    """The driver's cuLaunchKernelEx. cuda.core's launch() does the same in some 15 us a call."""
    driver = ctypes.PyDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    function = driver.cuLaunchKernelEx
    function.argtypes = [ctypes.c_void_p] * 4
    function.restype = ctypes.c_int
    return function


@functools.cache
def _synchronize_function() -> Callable[..., int]:
    """The driver's cuStreamSynchronize, which lets other threads of Python run."""
    driver = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    function = driver.cuStreamSynchronize
    function.argtypes = [ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function


# What the entry gets besides the arguments: threads along each axis, groups along two.
_GRID = ("nx", "ny", "nz", "gx", "gy")


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
    parameters += [f"uint {name}" for name in _GRID]
    guard = "" if signature.cooperative else "if (px >= nx || py >= ny || pz >= nz) return;"
    return (
        f"{prologue}\n{shader_text}\n"
        f'#line 1 "variant"\n'
        f'extern "C" __global__ void __launch_bounds__({threads}) '
        f"mpsl_entry({', '.join(parameters)}) {{\n"
        f"  {types}\n"
        f"{_LINE if signature.one_dimensional else _SPACE}"
        f"  {guard}\n"
        f"  {source.instance(signature)}({', '.join(call)});\n}}\n"
    )


_LINE = (
    "  const uint bx = blockIdx.x, by = 0, bz = 0;\n"
    "  const uint tid = threadIdx.x, px = bx * blockDim.x + tid, py = 0, pz = 0;\n"
)
# Metal's grids reach 2^32 along each axis, CUDA's only along x: axes are folded into x.
_SPACE = (
    "  const uint bx = blockIdx.x % gx, by = blockIdx.x / gx % gy, bz = blockIdx.x / gx / gy;\n"
    "  const uint px = bx * blockDim.x + threadIdx.x, py = by * blockDim.y + threadIdx.y,\n"
    "             pz = bz * blockDim.z + threadIdx.z;\n"
    "  const uint tid = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;\n"
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


class _Slots:
    """The arguments of one kernel where the driver reads them, and the grid."""

    def __init__(self, bits: Sequence[Callable[[Any], int]], buffers: int) -> None:
        self._bits, self._buffers = bits, buffers
        count = len(bits) + len(_GRID)
        self.values = (ctypes.c_uint64 * count)()
        start = ctypes.addressof(self.values)
        self._pointers = (ctypes.c_void_p * count)(*(start + 8 * i for i in range(count)))
        self.config = _LaunchConfig()
        self._addresses = ctypes.addressof(self.config), ctypes.addressof(self._pointers)
        # Held from the first slot to the launch: Python changes threads between any two steps.
        self.lock = threading.Lock()

    def set_sizes(
        self, values: Sequence[int | float], threads: tuple[int, ...], group: tuple[int, ...]
    ) -> None:
        for position, value in enumerate(values, self._buffers):
            self.values[position] = self._bits[position](value)
        nx, ny, nz = (*threads, 1, 1)[:3]
        config = self.config
        config.bx, config.by, config.bz = (*group, 1, 1)[:3]
        gx, gy, gz = -(-nx // config.bx), -(-ny // config.by), -(-nz // config.bz)
        self.values[len(self._bits) :] = [nx, ny, nz, gx, gy]
        config.gx, config.gy, config.gz = gx * gy * gz, 1, 1

    def queued(self, function: int) -> Callable[[], int]:
        """What queues the kernel in the stream of `config` and returns the driver's error code."""
        config, pointers = map(ctypes.c_void_p, self._addresses)
        return functools.partial(
            _launch_function(), config, ctypes.c_void_p(function), pointers, None
        )

    def launch(self, function: int, stream: int) -> int:
        """Queue the kernel in a stream; returns the driver's error code."""
        self.config.stream = stream
        config, pointers = self._addresses
        return _launch_function()(config, function, pointers, None)


class _CudaLauncher(Launcher):
    def __init__(
        self, shader_text: str, what: str, signature: Signature, template: tuple[str, ...]
    ) -> None:
        self._shader_text, self._what = shader_text, what
        self._signature, self._template = signature, template
        # By device and group size: the size bounds the registers that a thread may have.
        self._kernels: dict[tuple[int, int], tuple[Any, int]] = {}
        self._bits = [_BITS.get(argument.type, int) for argument in signature.arguments]
        self._buffers = sum(isinstance(argument, Buffer) for argument in signature.arguments)
        self._slots = _Slots(self._bits, self._buffers)
        # The sizes of the launch before this one: most launches repeat them.
        self._sizes: tuple[Any, ...] = ()

    def _compiled(self, device: int, threads: int) -> int:
        found = self._kernels.get((device, threads))
        if found is not None:
            return found[1]
        bound = 1 << max(threads - 1, 31).bit_length()
        if (device, bound) not in self._kernels:
            with torch.cuda.device(device):
                kernel = self._build(device, bound)
            self._kernels[device, bound] = kernel, int(kernel.handle)
        self._kernels[device, threads] = self._kernels[device, bound]
        return self._kernels[device, threads][1]

    def _build(self, device: int, bound: int) -> Any:
        core = _core()
        major, minor = torch.cuda.get_device_capability(device)
        arch = f"sm_{major}{minor}"
        text = translation_unit(self._shader_text, self._signature, self._template, bound)

        def build(target: Path) -> None:
            options = core.ProgramOptions(
                std="c++17",
                arch=arch,
                device_as_default_execution_space=True,
                disable_warnings=True,
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
        arguments: Sequence[Argument],
        threads: tuple[int, ...],
        group: tuple[int, ...],
    ) -> None:
        device: int = arguments[0].device.index  # type: ignore[union-attr]
        function = self._compiled(device, math.prod(group))
        if len(arguments) != len(self._bits):
            raise TypeError(
                f"mpslinalg: {self._what} takes {len(self._bits)} arguments, got {len(arguments)}"
            )
        slots, buffers = self._slots, self._buffers
        sizes = (arguments[buffers:], threads, group)
        with slots.lock:
            for position in range(buffers):
                slots.values[position] = arguments[position].data_ptr()  # type: ignore[union-attr]
            if sizes != self._sizes:
                slots.set_sizes(*sizes)  # type: ignore[arg-type]
                self._sizes = sizes
            self._launch(slots, function, device, _stream(device))

    def _launch(self, slots: _Slots, function: int, device: int, stream: int) -> None:
        if device == torch._C._cuda_getDevice():
            code = slots.launch(function, stream)
            if code == NO_CONTEXT:
                _core().Device(device).set_current()
                code = slots.launch(function, stream)
        else:
            with torch.cuda.device(device):
                code = slots.launch(function, stream)
        if code != 0:
            raise RuntimeError(
                f"mpslinalg: {self._what}: cuLaunchKernelEx failed with CUDA error {code}"
            )

    def bound(
        self,
        parts: Sequence[tuple[int, int]],
        values: Sequence[int | float],
        threads: tuple[int, ...],
        group: tuple[int, ...],
        device: torch.device,
    ) -> Launch:
        """The launch of these values: only pointers are left to fill in."""
        index = device.index
        function = self._compiled(index, math.prod(group))
        slots = _Slots(self._bits, self._buffers)
        slots.set_sizes(values, threads, group)
        places = [(position, i, offset) for position, (i, offset) in enumerate(parts)]
        pointers, lock = slots.values, slots.lock
        # Spelt out: a plan for one large matrix has thousands of these, 5 us each with the driver.
        current_device, config, queued = (
            torch._C._cuda_getDevice,
            slots.config,
            slots.queued(function),
        )

        def launch(tensors: Sequence[torch.Tensor], starts: Sequence[int], queue: int) -> None:
            with lock:
                for position, i, offset in places:
                    pointers[position] = starts[i] + offset
                config.stream = queue
                if current_device() != index or queued() != 0:
                    self._launch(slots, function, index, queue)

        return launch


def _stream(device: int) -> int:
    """The raw handle of torch's current stream; the public object costs 2 us to make."""
    handle: int = torch._C._cuda_getCurrentRawStream(device)
    return handle


class _Flag(threading.local):
    """One number of each thread that kernels write and the host reads: page-locked memory."""

    def __init__(self) -> None:
        self.tensor = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self.value = self.tensor.numpy()


@functools.cache
def _flag() -> _Flag:
    return _Flag()


class CudaEngine(Engine):
    """Runs kernels on CUDA tensors."""

    name = "cuda"
    side_by_side = True

    def __init__(self) -> None:
        self._graphs = Graphs()

    @functools.cached_property
    def _info_any(self) -> _CudaLauncher:
        return self.compile("info", "info_any", ("int",))

    def allocate(
        self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Uninitialised memory; inductor's way, which takes 2.4 us instead of 4.4."""
        if device.index == torch._C._cuda_getDevice():
            result: torch.Tensor = guards._empty_strided_cuda(  # type: ignore[attr-defined]
                shape, strides, dtype
            )
            return result
        return super().allocate(shape, strides, dtype, device)

    def queue(self, device: torch.device) -> int:
        return _stream(device.index)

    def run_long(
        self, program: Program, tensors: list[torch.Tensor], device: torch.device
    ) -> list[torch.Tensor]:
        """Run a program of many launches, as a graph from its second repetition on."""
        found = self._graphs.run(program, tensors, device)
        return super().run_long(program, tensors, device) if found is None else found

    def any_nonzero(self, info: torch.Tensor) -> bool:
        """Whether any entry is nonzero; waits for the stream.

        A kernel looks, and the answer needs no copy: 10 us on an H200, info.any() takes 31.
        """
        count = info.numel()
        if count == 0 or not info.is_contiguous() or info.dtype is not torch.int32:
            return super().any_nonzero(info)
        flag = _flag()
        flag.value[0] = 0
        threads = min(-(-count // 4), INFO_THREADS)
        self._info_any((info, flag.tensor, count), (threads,), (256,))
        device = info.device.index
        code = _synchronize_function()(_stream(device))
        if code != 0:
            raise RuntimeError(f"mpslinalg: cuStreamSynchronize failed with CUDA error {code}")
        return bool(flag.value[0])

    def compile(self, shader: str, name: str, template: tuple[str, ...]) -> _CudaLauncher:
        """One variant, compiled for a device at its first launch there."""
        signature = source.signature(shader, name)
        what = f"{shader}.metal: {name}<{', '.join(template)}>"
        return _CudaLauncher(source.text(shader), what, signature, template)


ENGINE = CudaEngine()
