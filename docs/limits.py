"""How far kernels and calls are from what an H200 could do, for docs/limits.md.

`python docs/generate.py limits docs/data/registers-sm_90.json docs/data/h200.json`
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from docs.cost_model import Measured, cells, is_profile, table
from mpslinalg._cost import H200, Plan, plan, price
from mpslinalg._cost.recorded import profiled

# Of a multiprocessor of compute capability 9.0 (CUDA C++ Programming Guide, technical
# specifications); registers are given out to a warp by 256, and a group costs 1 KiB of its own.
REGISTERS, THREADS, GROUPS, SHARED = 65536, 2048, 32, 228 * 1024
REGISTER_UNIT, SHARED_OF_GROUP = 256, 1024
# Of one threadgroup, by Metal's rules.
APPLE_SHARED = 32 * 1024
# Of the time of all kernels of a call: what takes less is not shown.
SHOWN = 0.05


def resident(variant: dict[str, Any]) -> int:
    """Threads of a variant that a multiprocessor runs at once."""
    warps = -(-variant["group"] // 32)
    of_warp = -(-variant["registers"] * 32 // REGISTER_UNIT) * REGISTER_UNIT
    groups = min(
        REGISTERS // (of_warp * warps),
        SHARED // (variant["threadgroup_bytes"] + SHARED_OF_GROUP),
        THREADS // (32 * warps),
        GROUPS,
    )
    return int(32 * warps * groups)


def _resources(file: Path) -> str:
    by_kernel: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for variant in json.loads(file.read_text())["variants"]:
        by_kernel[variant["kernel"]].append(variant)
    rows = []
    for kernel, variants in by_kernel.items():
        registers = [variant["registers"] for variant in variants]
        spilled = [v for v in variants if v["spilled_bytes"]]
        least = min(variants, key=resident)
        shared = max(variant["threadgroup_bytes"] for variant in variants)
        rows.append(
            (
                f"`{kernel}`",
                len(variants),
                _range(variant["group"] for variant in variants),
                _range(registers),
                f"{max(v['spilled_bytes'] for v in spilled)} ({_name(spilled)})" if spilled else 0,
                f"{shared / 1024:.1f}",
                f"{100 * resident(least) / THREADS:.0f} % ({', '.join(least['template'])})",
                APPLE_SHARED // shared if shared else "-",
            )
        )
    head = ("kernel", "variants", "threads a group", "registers", "bytes spilled",
            "threadgroup KiB", "least occupancy", "groups in 32 KiB")  # fmt: skip
    return table(head, rows)


def _range(numbers: Iterable[int]) -> str:
    found = sorted(set(numbers))
    return str(found[0]) if len(found) == 1 else f"{found[0]} - {found[-1]}"


def _name(variants: Sequence[dict[str, Any]]) -> str:
    worst = max(variants, key=lambda variant: variant["spilled_bytes"])
    return ", ".join(worst["template"])


def _shares(nbytes: float, operations: float, microseconds: float) -> tuple[str, str]:
    return (
        f"{100 * nbytes / H200.bytes / microseconds:.0f} %",
        f"{100 * operations / H200.flops / microseconds:.0f} %",
    )


def _call(cell: Measured) -> tuple[Any, ...]:
    found, taken = cell.plan, cell.taken
    priced = price(found, H200)
    return (
        cell.case.operation.name.partition(";")[0],
        cell.case.batch,
        cell.case.n,
        f"{taken:.0f}",
        *_shares(found.needed, found.operations, taken),
        f"{found.moved / found.needed:.1f}",
        f"{100 * min(priced.fixed / taken, 1):.0f} %",
        f"{taken / priced.total:.1f}",
        f"`{priced.kernel}`",
    )


def _calls(cases: Sequence[Measured], dtype: str) -> str:
    head = ("", "batch", "n", "us", "bandwidth", "arithmetic", "moved", "host, waits, launches",
            "times the model", "most work in")  # fmt: skip
    return table(head, [_call(cell) for cell in cases if cell.case.dtype_name == dtype])


def _bytes(found: Plan, kernel: str) -> float:
    return sum(step.bytes for step in found.steps if step.kernel == kernel)


def _kernels(file: Path) -> str:
    rows = []
    for case, kernels in profiled(json.loads(file.read_text())):
        found = plan(case)
        work = price(found, H200).work
        whole = sum(kernels.values())
        for kernel, taken in kernels.items():
            if taken < SHOWN * whole:
                continue
            launches = sum(step.kernel == kernel for step in found.steps)
            moved = _bytes(found, kernel)
            rows.append(
                (
                    f"{case}",
                    f"`{kernel}`",
                    launches,
                    f"{taken:.1f}",
                    f"{100 * taken / whole:.0f} %",
                    f"{taken / max(launches, 1):.1f}",
                    f"{100 * moved / H200.bytes / taken:.0f} %" if taken > 0 else "-",
                    f"{taken / work[kernel]:.1f}" if work.get(kernel) else "-",
                )
            )
    head = ("", "kernel", "launches", "us on the GPU", "share", "us a launch", "bandwidth",
            "times the model")  # fmt: skip
    return table(head, rows, left=2)


def page(files: Sequence[Path]) -> str:
    """Of a file of docs/registers.py, named registers-ARCH.json, and of runs."""
    cases = cells(files)
    pieces = []
    for file in files:
        if file.stem.startswith("registers-"):
            arch = json.loads(file.read_text())["arch"]
            pieces.append(
                "## Registers, spills, threadgroup memory\n\n"
                f"As NVRTC and ptxas compile them for {arch}.\n\n"
            )
            pieces.append(_resources(file))
    for dtype in ("float32", "complex64"):
        pieces.append(
            f"\n## Calls, {dtype}\n\nShares are of the bytes and operations that the result needs "
            "at least, over the whole call as the benchmark times it; `moved` is how many times "
            "more the launches move if each reads and writes its part once.\n\n"
        )
        pieces.append(_calls(cases, dtype))
    for file in files:
        if is_profile(file):
            pieces.append(
                "\n## Kernels\n\nTime on the GPU alone, by CUPTI, of those that take "
                "a twentieth of a call or more.\n\n"
            )
            pieces.append(_kernels(file))
    return "".join(pieces)
