"""`bench --report`: one file about one machine, to be attached to an issue."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import rich.table
from rich.console import Console
from rich.text import Text

from mpslinalg import _bench_overall
from mpslinalg._bench import CPU_TIMINGS
from mpslinalg._bench_report import document, plots
from mpslinalg._bench_report.document import Block, Heading, Lines, Paragraph, Table
from mpslinalg._timing import MINIMUM_TIMINGS

Content = Mapping[str, Any]

WORDS = (
    "Microseconds are medians; a number in brackets says of how many timings, where a slow call "
    f"has fewer than {MINIMUM_TIMINGS}. The speed is torch's time over the kernels', on the same "
    "device and inputs. Errors are LAPACK's test ratios of the kernels and of torch: no time "
    "counts before its result passed."
)


# By the end of a file's name. Markdown holds no plots.
WRITERS = {".html": document.html, ".htm": document.html, ".md": document.markdown}


def provenance(run: Content) -> str:
    """Machine, versions, date and command of a run."""
    environment = run["environment"]
    return (
        f"`{run['command']}` on {run['date'][:10]}: {environment['device']}, torch "
        f"{environment['torch']}, Python {environment['python']}, {environment['system']}."
    )


def cells_table(cells: list[Content]) -> Table:
    """A row for each cell of one dtype."""
    headings = ("", "batch", "n", "kernels", "torch", "speed", "CPU", "errors")
    return Table(headings, [_cell_row(cell) for cell in cells])


def _cell_row(cell: Content) -> tuple[str, ...]:
    times, counts, speedup = cell["microseconds"], cell.get("timings", {}), cell["speedup"]

    def figure(provider: str, enough: int = MINIMUM_TIMINGS) -> str:
        if provider not in times:
            return "-"
        count = counts.get(provider, enough)
        return f"{times[provider]:.1f}" + (f" ({count})" if count < enough else "")

    refused = (
        f"{who} refused: {why.partition(', when calling')[0]}"
        for who, why in cell["refused"].items()
    )
    speed = f"{speedup:.2f}" if speedup else "; ".join(refused)
    errors = cell["lapack_ratios"]
    both = ", ".join(f"{errors[who]:.2g}" for who in ("kernels", "torch") if who in errors)
    size = (cell["op"], str(cell["batch"]), str(cell["n"]))
    return *size, figure("kernels"), figure("torch"), speed, figure("torch cpu", CPU_TIMINGS), both


def overall_blocks(families: Content) -> Iterator[Block]:
    """The bars, in one table and in words."""
    yield Table(_bench_overall.HEADINGS, list(_bench_overall.rows(families)))
    yield Lines("\n".join(_bench_overall.verdicts(_bench_overall.overall(families))))


def family_blocks(name: str, family: Content) -> Iterator[Block]:
    """Figures and plots of a family."""
    if "error" in family:
        yield Paragraph(f"failed: {family['error']}")
        return
    if family.get("note"):
        yield Paragraph(family["note"])
    yield from plots.of_family(name, family)
    yield from _tables(name, family)


def _tables(name: str, family: Content) -> Iterator[Block]:
    for dtype in dict.fromkeys(cell["dtype"] for cell in family["cells"]):
        yield Heading(f"{name}, {dtype}", 4)
        yield cells_table([cell for cell in family["cells"] if cell["dtype"] == dtype])
    mean, stream = family["summary"]["geometric_mean"], family["stream"]
    if mean:
        yield Paragraph(f"Geometric mean over the batched cells: {mean:.2f}.")
    yield Paragraph(
        f"{stream['op']}, batch {stream['batch']}, n = {stream['n']}, {stream['dtype']}: "
        f"{100 * stream['share']:.0f} % of the bytes a second that a copy moved in the same run."
    )


def check(run: Content) -> None:
    """LookupError, TypeError or AttributeError where a report would miss what it says."""
    provenance(run)
    for _ in overall_blocks(run["families"]):
        pass
    for name, family in run["families"].items():
        for _ in _tables(name, family) if "error" not in family else ():
            pass


def _key(name: str, cell: Content) -> tuple[Any, ...]:
    return name, cell["op"], cell["batch"], cell["n"], cell["dtype"]


def compared(here: Content, there: Content) -> Iterator[Block]:
    """Two runs side by side, by the cells that both have."""
    yield Paragraph(f"Here: {provenance(here)}")
    yield Paragraph(f"There: {provenance(there)}")
    other = {
        _key(name, cell): cell
        for name, family in there["families"].items()
        for cell in family.get("cells", ())
    }
    faster: dict[str, list[float]] = {}
    rows = []
    for name, family in here["families"].items():
        for cell in family.get("cells", ()):
            theirs = other.get(_key(name, cell))
            if theirs is None or not all("kernels" in c["microseconds"] for c in (cell, theirs)):
                continue
            ours_us, their_us = (c["microseconds"]["kernels"] for c in (cell, theirs))
            faster.setdefault(name, []).append(their_us / ours_us)
            speeds = (f"{c['speedup']:.2f}" if c["speedup"] else "-" for c in (cell, theirs))
            rows.append(
                (
                    *map(str, _key(name, cell)),
                    f"{ours_us:.1f}",
                    f"{their_us:.1f}",
                    f"{their_us / ours_us:.2f}",
                    *speeds,
                )
            )
    if not rows:
        yield Paragraph("There is no cell in which both timed the kernels.")
        return
    headings = ("family", "cells", "kernels here, times there")
    means = [(name, str(len(x)), f"{geometric_mean(x):.2f}") for name, x in faster.items()]
    yield Table(headings, means)
    yield Table(
        (
            *("family", "", "batch", "n", "dtype", "kernels here", "kernels there"),
            *("here, times there", "times torch here", "times torch there"),
        ),
        rows,
    )


def blocks(run: Content, other: Content | None, doctor: str) -> Iterator[Block]:
    """All that a report says; `doctor` is what that command printed, nothing for no such part."""
    yield Paragraph(provenance(run))
    yield Table(("", ""), list(run["environment"].items()))
    yield Paragraph(WORDS)
    yield Heading("All families, times torch on the same device")
    yield from overall_blocks(run["families"])
    yield from plots.of_all(run["families"])
    if other is not None:
        yield Heading("Two runs side by side")
        yield from compared(run, other)
    if doctor:
        yield Heading("Doctor")
        yield Lines(doctor)
    for name, family in run["families"].items():
        yield Heading(name)
        yield from family_blocks(name, family)


def show(run: Content, other: Content, console: Console) -> None:
    """Print two runs side by side."""
    for block in compared(run, other):
        if isinstance(block, Table):
            table = rich.table.Table(box=None, pad_edge=False)
            for heading in block.headings:
                table.add_column(heading, justify="right")
            for row in block.rows:
                table.add_row(*map(Text, row))
            console.print(table)
        elif isinstance(block, Paragraph):
            console.print(block.text, highlight=False, markup=False)


def write(path: Path, run: Content, other: Content | None = None, doctor: str = "") -> None:
    """One file, by its name of HTML or Markdown."""
    title = f"mpslinalg on {run['environment']['device']}"
    render = WRITERS[path.suffix.lower()]
    path.write_text(render(title, list(blocks(run, other, doctor))), encoding="utf-8")
