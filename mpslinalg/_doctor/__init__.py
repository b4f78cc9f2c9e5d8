"""What this machine can run, and whether it runs it right: `python -m mpslinalg doctor`.

A family of kernels is one module here, named by its stem, whose `FAMILY` says how to judge it.
"""

import math
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from pkgutil import iter_modules
from typing import Literal

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg._doctor.family import Family
from mpslinalg._engines import cpu

# float32 carries 24 bits and loses about two in a product of this size; TF32 carries 11.
FULL_PRECISION_BITS = 20.0

Status = Literal["ok", "note", "FAIL"]
_STYLES = {"ok": "green", "note": "yellow", "FAIL": "bold red"}


@dataclass(frozen=True)
class Row:
    name: str
    status: Status
    detail: str


def processor(device: torch.device) -> str:
    """The name of the chip behind a device, or the reason there is none."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device) if torch.cuda.is_available() else "no CUDA device"
    if sys.platform == "darwin":
        query = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    cpuinfo = Path("/proc/cpuinfo")
    names = [
        line.partition(":")[2].strip()
        for line in (cpuinfo.read_text().splitlines() if cpuinfo.exists() else [])
        if line.startswith("model name")
    ]
    return names[0] if names else platform.processor() or platform.machine()


def package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def environment(device: torch.device) -> dict[str, str]:
    """The facts that make a figure or a fault reproducible."""
    return {
        "device": f"{device} ({processor(device)})",
        "mpslinalg": package_version("mpslinalg") or "from a source tree",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"macOS {platform.mac_ver()[0]}"
        if sys.platform == "darwin"
        else platform.platform(terse=True),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
    }


def available(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_available()
    return device.type == "cpu" or torch.backends.mps.is_available()


def default_device() -> torch.device:
    return next(d for d in map(torch.device, ("mps", "cuda", "cpu")) if available(d))


def _compiler(name: str) -> Row:
    command, identity = cpu.compiler()
    return Row(name, "ok", f"{' '.join(command)}: {identity.splitlines()[0]}")


def _cuda_core(name: str) -> Row:
    installed = package_version("cuda-core")
    if installed is None:
        return Row(name, "FAIL", "not installed: pip install 'mpslinalg[cuda]'")
    return Row(name, "ok", installed)


def _compile_shader(name: str) -> Row:
    return Row(name, "ok", "part of torch")


# What turns the shaders into code for a device.
_ENGINES: dict[str, tuple[str, Callable[[str], Row]]] = {
    "cpu": ("C++ compiler", _compiler),
    "cuda": ("cuda-core", _cuda_core),
    "mps": ("torch.mps.compile_shader", _compile_shader),
}


def matmul_bits(device: torch.device) -> float:
    """Bits of a float32 product of 256 x 256 normal matrices that agree with float64."""
    generator = torch.Generator().manual_seed(0)
    A, B = torch.randn(2, 256, 256, generator=generator).unbind()
    exact = A.double() @ B.double()
    error = (A.to(device) @ B.to(device)).cpu().double() - exact
    return -math.log2((error.norm() / exact.norm()).item())


def _precision(name: str, device: torch.device) -> Row:
    bits = matmul_bits(device)
    if bits >= FULL_PRECISION_BITS:
        return Row(name, "ok", f"{bits:.1f} bits")
    reason = "below float32 (TF32, or an M5's GEMM), so large matrices lose digits"
    return Row(name, "note", f"{bits:.1f} bits: {reason}")


def _family_row(name: str, family: Family, device: torch.device, dtype: torch.dtype, n: int) -> Row:
    with LA.use("kernels"):
        ratios = family.ratios(device, dtype, n)
    right = all(ratio < testing.LU_THRESHOLD for ratio in ratios.values())
    detail = ", ".join(f"{part} {ratio:.2g}" for part, ratio in ratios.items())
    return Row(name, "ok" if right else "FAIL", detail)


_modules = (import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__))
FAMILIES: dict[str, Family] = {
    module.__name__.rpartition(".")[2]: module.FAMILY
    for module in _modules
    if hasattr(module, "FAMILY")
}


def _checked(name: str, check: Callable[..., Row], *arguments: object) -> Row:
    """A row whatever happens: the doctor is what people run when things break."""
    try:
        return check(name, *arguments)
    except Exception as error:
        first_line = next(iter(str(error).splitlines()), "")
        return Row(name, "FAIL", f"{type(error).__name__}: {first_line}")


def examine(device: torch.device) -> Iterator[Row]:
    if not available(device):
        yield Row("device", "FAIL", f"torch {torch.__version__} has no {device.type} device here")
        return
    name, check = _ENGINES[device.type]
    yield _checked(name, check)
    yield _checked("float32 matmul", _precision, device)
    for stem, family in FAMILIES.items():
        for dtype in family.dtypes:
            for n in family.sizes:
                row = f"{stem} {str(dtype).removeprefix('torch.')} {n}"
                yield _checked(row, _family_row, family, device, dtype, n)


def run(device: torch.device, console: Console) -> int:
    """Print the examination as one block for a bug report; 1 if anything failed."""
    table = Table("check", "", "found; LAPACK ratios must be below 30", box=None, pad_edge=False)
    for key, value in environment(device).items():
        table.add_row(key, "", Text(value))
    failed = 0
    for row in examine(device):
        failed += row.status == "FAIL"
        table.add_row(row.name, Text(row.status, _STYLES[row.status]), Text(row.detail))
    console.print(table)
    verdict = f"{failed} failed" if failed else "all is well"
    console.print(f"{verdict}. Paste all of the above into a bug report.", highlight=False)
    return 1 if failed else 0
