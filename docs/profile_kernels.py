"""Time on the GPU of each kernel in the cases of the benchmarks: docs/data/MACHINE-kernels.json.

python docs/profile_kernels.py docs/data/h200-kernels.json [--seconds 60] [--dtype complex64]

Needs a CUDA device; times are CUPTI's, of each launch, without what the host and the gaps between
launches take. A call reads what the one before left in the caches.
"""

import argparse
import datetime
import itertools
import json
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import mpslinalg as LA
from mpslinalg import _doctor
from mpslinalg._bench import DTYPES, FAMILIES, Case, compile_kernels
from mpslinalg._cost.recorded import families
from mpslinalg._engines.gemm import _Gemm
from mpslinalg._engines.program import record

REPEATS = 3
# Larger single matrices are thousands of launches of the same kinds, but in these families.
LARGEST = 2048
LARGEST_OF = dict.fromkeys(("cholesky", "lu", "qr", "triangular"), 4096)


def name_of(launcher: Any) -> str:
    """`lu_simd` of a launcher that says `lu.metal: lu_simd<float, 32>`."""
    if isinstance(launcher, _Gemm):
        return "gemm"
    return str(launcher._what).partition(": ")[2].partition("<")[0]


def launched(case: Case, inputs: tuple[torch.Tensor, ...]) -> list[str]:
    """The kernels of a call, in order; it is recorded, so that none is repeated as a graph."""
    with record(inputs) as recording:
        case.call(LA, inputs)
    return [name_of(launcher) for launcher, *_ in recording.launched]


def times(case: Case, inputs: tuple[torch.Tensor, ...]) -> dict[str, list[float]]:
    """Microseconds of each launch in REPEATS calls, by kernel."""
    names = []
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(REPEATS):
            names += launched(case, inputs)
        torch.cuda.synchronize()
    ours = iter([name for name in names if name != "gemm"])
    found: dict[str, list[float]] = defaultdict(list)
    kernels = [e for e in profiled.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    for event in sorted(kernels, key=lambda event: event.time_range.start):
        if event.name == "mpsl_entry":
            found[next(ours)].append(event.time_range.elapsed_us())
        elif not event.name.startswith(("Memset", "Memcpy")):
            found["gemm"].append(event.time_range.elapsed_us())
    if next(ours, None) is not None or ("gemm" in found) != ("gemm" in names):
        raise RuntimeError(f"{case}: the profiler saw other kernels than were launched")
    return found


def cell(case: Case) -> dict[str, Any]:
    inputs = case.inputs(torch.device("cuda"))
    with LA.use("kernels"):
        launched(case, inputs)
        torch.cuda.synchronize()
        found = times(case, inputs)
    kernels = {
        name: {"launches": len(taken) // REPEATS, "microseconds": sum(taken) / REPEATS}
        for name, taken in found.items()
    }
    return {
        "op": case.operation.name,
        "batch": case.batch,
        "n": case.n,
        "dtype": case.dtype_name,
        "kernels": kernels,
    }


def _without_folders(argument: str) -> str:
    """The file's name, where it lies in a folder of the machine."""
    return Path(argument).name if Path(argument).is_absolute() else argument


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, metavar="MACHINE-kernels.json")
    parser.add_argument(
        "--seconds", type=float, default=60, help="stop after so many, compilation apart"
    )
    parser.add_argument("--dtype", choices=list(DTYPES), action="append")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("needs a CUDA device")
    names = options.dtype or ["float32", "complex64"]
    compile_kernels(families(), torch.device("cuda"), names, quick=False)
    start = time.perf_counter()
    dtypes = [DTYPES[name] for name in names]
    # One case of each family in turn, so that a run cut short has some of all; batches first.
    by_family = [
        sorted(
            (
                case
                for case in FAMILIES[name].cases([dtype], quick=False)
                if case.n <= LARGEST_OF.get(name, LARGEST)
            ),
            key=lambda case: case.batch == 1,
        )
        for dtype in dtypes
        for name in families()
        if str(dtype).removeprefix("torch.") in FAMILIES[name].dtypes
    ]
    turns = itertools.zip_longest(*by_family)
    cells, left = [], 0
    for case in (case for turn in turns for case in turn if case is not None):
        if time.perf_counter() - start > options.seconds:
            left += 1
            continue
        cells.append(cell(case))
    content = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *map(_without_folders, sys.argv)]),
        "environment": _doctor.environment(torch.device("cuda")),
        "cells": cells,
    }
    options.file.write_text(json.dumps(content, indent=1) + "\n")
    print(f"{len(cells)} cases in {time.perf_counter() - start:.0f} s, {left} left out")


if __name__ == "__main__":
    main()
