"""The CPU engine: shaders as C++17, compiled by the system's compiler on first use.

With MPSLINALG_CHECK=1 every launch is checked: out-of-range accesses, races, barriers that not
all threads reach, what Metal's limits forbid. MPSLINALG_CHECK=races, slower, also finds the races
in threadgroup memory that happen to do no harm. See include/runtime.cpp.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from math import prod
from operator import mod
from pathlib import Path
from typing import Any

import torch

from . import cache, source
from .engine import Argument, Engine, Launcher
from .source import Buffer, Index, ShaderError, Signature, Value

_COMPILERS = ("c++", "clang++", "g++")
_COMMON = ("-std=c++17", "-fPIC", "-shared", "-w", "-pthread", "-U_FORTIFY_SOURCE")
# A checked kernel runs three times on fibers; its compile time weighs more than its speed.
_CHECKED = ("-O1", "-g1", "-fstack-clash-protection", "-march=native", "-ffp-contract=off")
# Every access calls __tsan_..., which metal_cpu.h has: the sanitizer's own runtime stays out.
_RACES = ("-DMPSL_RACES", "-fsanitize=thread", "-nodefaultlibs", "-fno-exceptions")
_PLAIN = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math")

_VALUES: dict[str, Any] = {
    "uint": ctypes.c_uint32,
    "int": ctypes.c_int32,
    "long": ctypes.c_int64,
    "ulong": ctypes.c_uint64,
    "float": ctypes.c_float,
}


class CheckError(RuntimeError):
    """A fault that the checked engine found in a launch."""


class _BufferEntry(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_ulong),
        ("argument", ctypes.c_uint),
        ("writable", ctypes.c_uint),
        ("name", ctypes.c_char_p),
    ]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("thread", ctypes.c_void_p),
        ("range", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("buffers", ctypes.c_void_p),
        ("buffer_count", ctypes.c_uint),
        ("threads", ctypes.c_uint * 3),
        ("group", ctypes.c_uint * 3),
        ("os_threads", ctypes.c_uint),
        ("check", ctypes.c_uint),
    ]


def checking() -> bool:
    """Whether launches on CPU tensors are checked."""
    return os.environ.get("MPSLINALG_CHECK", "0") not in ("", "0")


def _flags(check: bool) -> tuple[str, ...]:
    if not check:
        return (*_COMMON, *_PLAIN)
    races = _RACES if os.environ["MPSLINALG_CHECK"] == "races" else ()
    return (*_COMMON, *_CHECKED, *races)


@functools.cache
def compiler() -> tuple[tuple[str, ...], str]:
    """The C++ compiler's command and its identity: version and the processor it compiles for."""
    wanted = os.environ.get("CXX")
    for words in (shlex.split(wanted),) if wanted else ([name] for name in _COMPILERS):
        path = shutil.which(words[0]) if words else None
        if path is not None:
            command = (path, *words[1:])
            try:
                version = subprocess.run(
                    [*command, "--version"], capture_output=True, text=True, check=True
                )
            except (OSError, subprocess.CalledProcessError):
                continue
            return command, version.stdout + _processor()
    looked = f"$CXX={wanted}" if wanted else ", ".join(_COMPILERS)
    raise ShaderError(
        f"mpslinalg: no C++17 compiler found (looked for {looked}), and kernels on CPU tensors "
        "need one. Install g++ (Debian, Ubuntu: apt-get install g++) or the Xcode command line "
        "tools (macOS: xcode-select --install), or name one in $CXX."
    )


@functools.cache
def compiler_found() -> bool:
    """Whether kernels can be compiled for CPU tensors; `auto` goes to torch where they cannot."""
    try:
        compiler()
    except ShaderError:
        return False
    return True


def _processor() -> str:
    flags = ""
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        flags = "\n".join(
            sorted({line for line in lines if line.startswith(("flags", "Features"))})
        )
    return f"{platform.system()} {platform.machine()} {platform.processor()} {flags}"


def load(text: str, flags: tuple[str, ...], what: str) -> ctypes.CDLL:
    """The shared library of a C++ text, from the cache or freshly compiled."""
    path = build(text, flags, what)
    try:
        return ctypes.CDLL(str(path))
    except OSError:
        # A full disk or a crash can leave an empty file in the cache.
        path.unlink(missing_ok=True)
        return ctypes.CDLL(str(build(text, flags, what)))


def build(text: str, flags: tuple[str, ...], what: str) -> Path:
    """The file of that library."""
    compile_command, identity = compiler()

    def run(target: Path) -> None:
        written = target.with_suffix(".cpp")
        written.write_text(text, encoding="ascii")
        command = [*compile_command, *flags, str(written), "-o", str(target)]
        english = os.environ | {"LC_ALL": "C"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=english)
        if done.returncode != 0 or not target.exists():
            raise ShaderError(
                f"mpslinalg: {what} does not compile (exit status {done.returncode})\n"
                f"{_first_errors(done.stderr)}\ncommand: {' '.join(command)}"
            )

    return cache.stored((text, *flags, *compile_command, identity), ".so", run)


def _first_errors(stderr: str, most: int = 12) -> str:
    lines = stderr.splitlines()
    start = next((i for i, line in enumerate(lines) if "error" in line), 0)
    return "\n".join(lines[start : start + most])


@functools.cache
def _runtime() -> ctypes.CDLL:
    text = source.inline(source.INCLUDE / "runtime.cpp", source.INCLUDE)
    library = load(text, (*_COMMON, "-O2"), "the CPU engine's runtime")
    library.mpsl_table.restype = ctypes.c_void_p
    return library


def translation_unit(shader_text: str, signature: Signature, template: tuple[str, ...]) -> str:
    """The whole C++ text of one variant: prologue, shader, and the function the runtime calls."""
    prologue = source.inline(source.INCLUDE / "metal_cpu.h", source.INCLUDE)
    types = source.closing_types(signature, template)
    call = ", ".join(_argument(i, given) for i, given in enumerate(signature.arguments))
    instance = source.instance(signature)
    if signature.cooperative:
        indices = "".join(", " + _place(index) for index in signature.indices)
        closing = (
            'extern "C" void mpsl_thread(void* const* a, const mpsl::Place* p) '
            f"{{ {types} {instance}({call}{indices}); }}\n"
        )
    else:
        indices = "".join(", " + _plain(index) for index in signature.indices)
        closing = (
            'extern "C" void mpsl_range(void* const* a, const unsigned* n, unsigned long begin, '
            f"unsigned long end) {{ {types}\n"
            "  while (begin < end) {\n"
            "    const unsigned long row = begin / n[0], left = end - begin;\n"
            "    const uint y = row % n[1], z = row / n[1], first = begin % n[0];\n"
            "    const uint last = left < n[0] - first ? first + left : n[0];\n"
            f"    for (uint x = first; x < last; ++x) {instance}({call}{indices});\n"
            "    begin += last - first;\n  }\n}\n"
        )
    return f'{prologue}\n{shader_text}\n#line 1 "<variant>"\n{closing}'


def _argument(position: int, given: Buffer | Value) -> str:
    if isinstance(given, Buffer):
        return f"({'' if given.writable else 'const '}{given.type}*)a[{position}]"
    return f"*(const {given.type}*)a[{position}]"


_PLACES = {
    "thread_position_in_grid": "position_in_grid",
    "thread_position_in_threadgroup": "position_in_group",
    "threadgroup_position_in_grid": "group_position",
    "threads_per_grid": "threads_per_grid",
    "threads_per_threadgroup": "threads_per_group",
    "threadgroups_per_grid": "groups_per_grid",
    "thread_index_in_threadgroup": "index_in_group",
    "thread_index_in_simdgroup": "lane",
    "simdgroup_index_in_threadgroup": "simd",
    "simdgroups_per_threadgroup": "simds",
}


def _place(index: Index) -> str:
    field = f"p->{_PLACES[index.attribute]}"
    if index.attribute.startswith(("thread_index", "simdgroup")):
        return field
    return source.vector(index.type, *(f"{field}[{axis}]" for axis in range(3)))


def _plain(index: Index) -> str:
    axes = (
        ("x", "y", "z")
        if index.attribute == "thread_position_in_grid"
        else ("n[0]", "n[1]", "n[2]")
    )
    return source.vector(index.type, *axes)


def _unrolled(text: str) -> str:
    """The text with its unrolling asked for in GCC's words, which does not know Metal's.

    Twice as fast for the inverse of 4 x 4 matrices; on fibers it would only cost compile time.
    """
    gcc = "Free Software Foundation" in compiler()[1]
    return text.replace("#pragma unroll\n", "#pragma GCC unroll 16\n") if gcc else text


class _CpuLauncher(Launcher):
    def __init__(
        self, shader_text: str, what: str, signature: Signature, template: tuple[str, ...]
    ):
        self._what = what
        self._signature = signature
        self._text = translation_unit(shader_text, signature, template)
        self._entries: dict[tuple[str, ...], int] = {}

    def _entry(self, check: bool) -> int:
        flags = _flags(check)
        entry = self._entries.get(flags)
        if entry is None:
            text = self._text if check or self._signature.cooperative else _unrolled(self._text)
            library = load(text, flags, self._what)
            library.mpsl_bind(ctypes.c_void_p(_runtime().mpsl_table()))
            function = library.mpsl_thread if self._signature.cooperative else library.mpsl_range
            entry = ctypes.cast(function, ctypes.c_void_p).value or 0
            self._entries[flags] = entry
        return entry

    def __call__(
        self,
        arguments: Sequence[Argument],
        threads: tuple[int, ...],
        group: tuple[int, ...],
    ) -> None:
        check = checking()
        signature = self._signature
        if len(arguments) != len(signature.arguments):
            raise TypeError(
                f"mpslinalg: {self._what} takes {len(signature.arguments)} arguments, "
                f"got {len(arguments)}"
            )
        if signature.cooperative and (any(map(mod, threads, group)) or prod(group) % 32 != 0):
            raise ValueError(
                f"mpslinalg: {self._what}: its threads work together, so {threads} threads are to "
                f"be whole groups of {group}, and these whole simdgroups of 32"
            )
        pointers = (ctypes.c_void_p * len(arguments))()
        buffers = (_BufferEntry * len(arguments))()
        values = []  # kept alive until the launch returns
        count = 0
        for position, (declared, given) in enumerate(
            zip(signature.arguments, arguments, strict=True)
        ):
            if isinstance(declared, Buffer):
                assert isinstance(given, torch.Tensor)
                pointers[position] = given.data_ptr()
                buffers[count] = _BufferEntry(
                    given.data_ptr(),
                    _extent(given),
                    position,
                    declared.writable,
                    declared.name.encode(),
                )
                count += 1
            else:
                value = _VALUES[declared.type](given)
                values.append(value)
                pointers[position] = ctypes.addressof(value)
        entry = self._entry(check)
        cooperative = signature.cooperative
        launch = _Launch(
            entry if cooperative else None,
            None if cooperative else entry,
            ctypes.addressof(pointers),
            ctypes.addressof(buffers),
            count,
            (ctypes.c_uint * 3)(*_three(threads)),
            (ctypes.c_uint * 3)(*_three(group)),
            torch.get_num_threads(),
            check,
        )
        message = ctypes.create_string_buffer(768)
        if _runtime().mpsl_launch(ctypes.byref(launch), message, ctypes.c_ulong(len(message))) != 0:
            raise CheckError(f"mpslinalg: {self._what}: {message.value.decode()}")


def _three(sizes: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _extent(tensor: torch.Tensor) -> int:
    """The bytes from the first to the last element of a strided tensor."""
    if tensor.numel() == 0:
        return 0
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return (last + 1) * tensor.element_size()


class CpuEngine(Engine):
    """Runs kernels on CPU tensors."""

    name = "cpu"
    side_by_side = False

    def compile(self, shader: str, name: str, template: tuple[str, ...]) -> _CpuLauncher:
        """One variant; compiled at its first launch, plain and checked separately."""
        return self.compile_text(source.text(shader), f"{shader}.metal: {name}", name, template)

    def compile_text(
        self, shader_text: str, what: str, name: str, template: tuple[str, ...]
    ) -> _CpuLauncher:
        """The same from a shader text at hand."""
        signature = source.signatures(shader_text)[name]
        return _CpuLauncher(shader_text, f"{what}<{', '.join(template)}>", signature, template)

    def any_nonzero(self, info: torch.Tensor) -> bool:
        """Whether any entry is nonzero."""
        # torch's search starts its threads, which then spin beside those of the next kernel.
        return bool(info.numpy().any())


ENGINE = CpuEngine()
