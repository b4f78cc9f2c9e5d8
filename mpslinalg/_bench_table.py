"""`python -m mpslinalg bench`: the measurements of _bench as one table and as JSON."""

import json
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from mpslinalg import _bench_overall, _doctor
from mpslinalg._bench import (
    CPU_TIMINGS,
    DTYPES,
    Case,
    Cell,
    Family,
    Stream,
    compile_kernels,
    measure,
    measure_auto,
    measure_stream,
)
from mpslinalg._timing import MINIMUM_TIMINGS


def _case_json(case: Case) -> dict[str, Any]:
    return {
        "op": case.operation.name,
        "batch": case.batch,
        "n": case.n,
        "dtype": case.dtype_name,
    }


def _cell_json(cell: Cell) -> dict[str, Any]:
    return _case_json(cell.case) | {
        "microseconds": {provider: 1e6 * value for provider, value in cell.seconds.items()},
        "timings": cell.timings,
        "lapack_ratios": cell.ratios,
        "refused": cell.refused,
        "speedup": cell.speedup,
    }


def _short(value: float, digits: int = 1) -> str:
    """Without a fraction where that is no more than a ten-thousandth."""
    return f"{value:.{digits if value < 1e4 else 0}f}"


def _figures(cell: Cell) -> list[str]:
    def microseconds(provider: str, minimum: int = MINIMUM_TIMINGS) -> str:
        if provider not in cell.seconds:
            return "-"
        count = cell.timings[provider]
        return _short(1e6 * cell.seconds[provider]) + (f" ({count})" if count < minimum else "")

    return [
        microseconds("kernels"),
        microseconds("torch"),
        "-" if cell.speedup is None else f"{_short(cell.speedup, 2)}x",
        microseconds("torch cpu", CPU_TIMINGS),
        f"{cell.ratios['kernels']:.2f}" if "kernels" in cell.ratios else "-",
    ]


def _print_cells(cells: Sequence[Cell], dtypes: Sequence[str], console: Console) -> None:
    """A row for each operation and shape, the dtypes side by side."""
    table = Table(box=None, pad_edge=False)
    for name in ("microseconds", "batch", "n"):
        table.add_column(name, justify="right")
    for dtype in dtypes:
        for name in (dtype, "torch", "", "CPU", "ratio"):
            table.add_column(name, justify="right")
    rows: dict[tuple[str, str, str], list[str]] = {}
    for cell in cells:
        if cell.case.dtype_name in dtypes:
            key = (cell.case.operation.name, str(cell.case.batch), str(cell.case.n))
            rows.setdefault(key, []).extend(_figures(cell))
    for key, figures in rows.items():
        table.add_row(*map(Text, (*key, *figures)))
    console.print(table)
    if any("(" in figure for figures in rows.values() for figure in figures):
        console.print("(n): of so slow a call only n timings were taken", highlight=False)


def summarize(cells: Sequence[Cell]) -> dict[str, Any]:
    """Geometric mean and worst of the batched cells; every cell that is slower than torch."""
    speedups = {cell.case: cell.speedup for cell in cells if cell.speedup is not None}
    batched = {str(case): speedup for case, speedup in speedups.items() if case.batch > 1}
    single = {str(case): speedup for case, speedup in speedups.items() if case.batch == 1}
    return {
        "geometric_mean": _mean(batched),
        "worst": _worst(batched),
        "single_geometric_mean": _mean(single),
        "single_worst": _worst(single),
        "slower": {str(case): speedup for case, speedup in speedups.items() if speedup < 1},
        "refused": {
            f"{cell.case}, {provider}": reason
            for cell in cells
            for provider, reason in cell.refused.items()
        },
    }


def _mean(speedups: Mapping[str, float]) -> float | None:
    return geometric_mean(speedups.values()) if speedups else None


def _worst(speedups: Mapping[str, float]) -> tuple[str, float] | None:
    return min(speedups.items(), key=itemgetter(1)) if speedups else None


def _print_summary(summary: dict[str, Any], streamed: Stream, console: Console) -> None:
    lines = [
        f"copy: {streamed.copy:.0f} GB/s, reads and writes; {streamed.case}: "
        f"{streamed.kernel:.0f} GB/s, {100 * streamed.share:.0f} % of it"
    ]
    for kind, prefix in (("batched", ""), ("single", "single_")):
        if summary[f"{prefix}worst"]:
            worst, speedup = summary[f"{prefix}worst"]
            lines.append(
                f"{kind}: geometric mean {summary[f'{prefix}geometric_mean']:.2f}x torch on the "
                f"same device, worst {worst} {speedup:.2f}x"
            )
    slower = [f"{case} {speedup:.2f}x" for case, speedup in summary["slower"].items()]
    lines.append("slower than torch: " + ("; ".join(slower) or "none"))
    lines += [f"REFUSED {where}: {reason}" for where, reason in summary["refused"].items()]
    for line in lines:
        console.print(line, highlight=False, markup=False)


def _grid(
    family: Family, device: torch.device, console: Console, dtypes: Sequence[str], quick: bool
) -> tuple[dict[str, Any], bool]:
    cases = family.cases([DTYPES[name] for name in dtypes], quick=quick)
    progress = Console(stderr=True)
    cells = [
        measure(case, device)
        for case in track(cases, console=progress, transient=True, disable=not progress.is_terminal)
    ]
    for first in range(0, len(dtypes), 2):  # as many as fit the width
        _print_cells(cells, dtypes[first : first + 2], console)
    spent: defaultdict[str, float] = defaultdict(float)
    for cell in cells:
        for phase, took in cell.spent.items():
            spent[phase] += took
    start = time.perf_counter()
    streamed = measure_stream(family, device, quick=quick)
    spent["the copy and the stream"] = time.perf_counter() - start
    if family.note:
        console.print(family.note, highlight=False, markup=False)
    summary = summarize(cells)
    _print_summary(summary, streamed, console)
    content = {
        "cells": [_cell_json(cell) for cell in cells],
        "stream": _case_json(streamed.case)
        | {"copy_gbs": streamed.copy, "kernel_gbs": streamed.kernel, "share": streamed.share},
        "summary": summary,
        "bars": asdict(family.bars),
        "apart": family.apart,
        "note": family.note,
        "spent": dict(sorted(spent.items(), key=itemgetter(1), reverse=True)),
    }
    return content, not any("kernels" in cell.refused for cell in cells)


def _auto(family: Family, device: torch.device, console: Console) -> tuple[dict[str, Any], bool]:
    bars = measure_auto(family, device)
    for bar in bars:
        sign, verdict = "<=" if bar.at_most else ">=", "ok" if bar.held else "MISSED"
        line = f"{bar.name}: {bar.value:.2f} (bar {sign} {bar.bar:g}) {verdict}"
        console.print(line, highlight=False, markup=False)
    return {"auto": [asdict(bar) | {"held": bar.held} for bar in bars]}, True


def _measured(
    family: Family,
    device: torch.device,
    console: Console,
    mode: str,
    dtypes: Sequence[str],
    quick: bool,
) -> tuple[dict[str, Any], bool]:
    """The figures of a family, or its error: the families after it are still to come."""
    start = time.perf_counter()
    try:
        if mode == "auto":
            content, right = _auto(family, device, console)
        else:
            content, right = _grid(family, device, console, dtypes, quick)
    except Exception as error:
        reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        console.print(f"FAILED {reason}", highlight=False, markup=False)
        content, right = {"error": reason}, False
    content["seconds"] = time.perf_counter() - start
    parts = [f"{what} {took:.1f}" for what, took in content.get("spent", {}).items()]
    line = f"took {content['seconds']:.0f} s" + (f": {', '.join(parts)}" if parts else "")
    console.print(line, highlight=False)
    return content, right


def run(
    families: Mapping[str, Family],
    device: torch.device,
    console: Console,
    *,
    mode: str = "grid",
    dtypes: Sequence[str] | None = None,
    quick: bool = False,
    json_file: Path | None = None,
) -> tuple[dict[str, Any], int]:
    """Print the figures; they are returned, and 1 if a result of ours was refused, else 0.

    `dtypes` are those of each family by default. The file is written after each family: a run that
    is ended keeps what it had.
    """
    start = time.perf_counter()
    environment = _doctor.environment(device)
    for key, value in environment.items():
        console.print(f"{key}: {value}", highlight=False, markup=False)
    content: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "mpslinalg", *sys.argv[1:]]),
        "environment": environment,
        "seconds": 0.0,
        "families": {},
    }
    if device.type == "cuda" and len(families) > 1:
        compile_kernels(list(families), device, dtypes, quick=quick)
        seconds = time.perf_counter() - start
        console.print(f"compilation of the kernels took {seconds:.0f} s", highlight=False)
    right = True
    for name, family in families.items():
        if len(families) > 1:
            console.print(f"\n{name}", style="bold", highlight=False)
        figures, held = _measured(family, device, console, mode, family.taken(dtypes), quick)
        right &= held
        content["families"][name] = figures
        content["seconds"] = time.perf_counter() - start
        if mode == "grid":
            content["overall"] = _bench_overall.overall(content["families"])
        if json_file:
            json_file.write_text(json.dumps(content, indent=1) + "\n")
    if mode == "grid" and len(families) > 1:
        _bench_overall.show(content["families"], content["overall"], console)
        console.print(f"took {content['seconds']:.0f} s", highlight=False)
    return content, 0 if right else 1
