"""All families of one run in one table, beside what each was built to reach."""

from collections.abc import Iterator, Mapping
from operator import itemgetter
from statistics import geometric_mean
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

MEAN_BAR = 5.0  # the geometric mean over the batched cells of all families
BATCHED_BAR = 1.0  # each of them

# What `bench --json` writes of a family, of all by name, and of a cell.
Content = Mapping[str, Any]


def speedups(family: Content, *, batched: bool) -> dict[str, float]:
    """Of each cell that both sides passed, by its name."""
    return {
        f"{cell['op']} {cell['batch']} x {cell['n']} {cell['dtype']}": cell["speedup"]
        for cell in family.get("cells", ())
        if cell["speedup"] is not None and (cell["batch"] > 1) == batched
    }


def _of_all(families: Content, *, batched: bool) -> dict[str, float]:
    return {
        f"{name}: {cell}": speedup
        for name, family in families.items()
        if not family.get("apart")
        for cell, speedup in speedups(family, batched=batched).items()
    }


def _below(speedups: Mapping[str, float], bar: float) -> dict[str, float]:
    return dict(sorted(((k, v) for k, v in speedups.items() if v < bar), key=itemgetter(1)))


def _missed(families: Content) -> Iterator[str]:
    """The bars of single families that their figures miss; slow batched cells have their list."""
    for name, family in families.items():
        bars = family.get("bars", {})
        mean, least, share = (bars.get(bar) for bar in ("mean", "single", "share"))
        batched, single = (speedups(family, batched=value) for value in (True, False))
        if mean and batched and geometric_mean(batched.values()) < mean:
            found = geometric_mean(batched.values())
            yield f"{name}: geometric mean of the batched cells {found:.2f}, bar {mean:g}"
        for cell, speedup in _below(single, least or 0).items():
            yield f"{name}: {cell} {speedup:.2f}, bar {least:g}"
        if share and family.get("stream", {}).get("share", share) < share:
            found = family["stream"]["share"]
            yield f"{name}: {100 * found:.0f} % of the bandwidth of a copy, bar {100 * share:.0f}"


def overall(families: Content) -> dict[str, Any]:
    """What a run of several families says about the bars."""
    batched, single = (_of_all(families, batched=value) for value in (True, False))
    return {
        "batched_cells": len(batched),
        "geometric_mean": geometric_mean(batched.values()) if batched else None,
        "geometric_mean_bar": MEAN_BAR,
        "batched_below": _below(batched, BATCHED_BAR),
        "single_cells": len(single),
        "single_geometric_mean": geometric_mean(single.values()) if single else None,
        "single_below": _below(single, 1.0),
        "missed": list(_missed(families)),
        "errors": {name: f["error"] for name, f in families.items() if "error" in f},
        "refused": {
            f"{name}: {where}": reason
            for name, family in families.items()
            for where, reason in family.get("summary", {}).get("refused", {}).items()
        },
    }


HEADINGS = (
    *("family", "batched", "mean", "bar", "worst", "worst batched cell"),
    *("single", "mean", "worst", "bar", "copy", "bar", "s"),
)


def rows(families: Content) -> Iterator[tuple[str, ...]]:
    """A row of the table for each family: figures, each with its bar where it has one."""

    def times(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}"

    for name, family in families.items():
        bars = family.get("bars", {})
        batched, single = (speedups(family, batched=value) for value in (True, False))
        worst = min(batched, key=batched.__getitem__, default="")
        stream = {} if family.get("apart") else family.get("stream", {})
        share, least = stream.get("share"), bars.get("share")
        yield (
            name,
            str(len(batched)),
            times(geometric_mean(batched.values()) if batched else None),
            times(bars.get("mean")),
            times(batched.get(worst)),
            family.get("error", worst),
            str(len(single)),
            times(geometric_mean(single.values()) if single else None),
            times(min(single.values(), default=None)),
            times(bars.get("single")),
            "" if share is None else f"{100 * share:.0f} %",
            "" if least is None else f"{100 * least:.0f} %",
            f"{family.get('seconds', 0):.0f}",
        )


def verdicts(found: Mapping[str, Any]) -> Iterator[str]:
    """The bars over all families, in words."""
    mean, bar = found["geometric_mean"], found["geometric_mean_bar"]
    if mean is not None:
        yield (
            f"geometric mean over the {found['batched_cells']} batched cells of all families: "
            f"{mean:.2f} (bar {bar:g}) {'ok' if mean >= bar else 'MISSED'}"
        )
    slow = found["batched_below"]
    yield (
        f"batched cells below {BATCHED_BAR:g}: {len(slow)} of {found['batched_cells']} (bar 0) "
        f"{'MISSED' if slow else 'ok'}"
    )
    yield from (f"  {cell} {speedup:.2f}" for cell, speedup in slow.items())
    if found["single_cells"]:
        yield (
            f"cells of one matrix or vector: geometric mean {found['single_geometric_mean']:.2f}; "
            f"below 1: {len(found['single_below'])} of {found['single_cells']}"
        )
    yield from (f"  {cell} {speedup:.2f}" for cell, speedup in found["single_below"].items())
    yield f"other bars of the families missed: {len(found['missed'])}"
    yield from (f"  {line}" for line in found["missed"])
    yield from (f"FAILED {name}: {reason}" for name, reason in found["errors"].items())
    yield from (f"REFUSED {where}: {reason}" for where, reason in found["refused"].items())


def show(families: Content, found: Mapping[str, Any], console: Console) -> None:
    """Print the table and the verdicts."""
    table = Table(box=None, pad_edge=False)
    for heading in HEADINGS:
        text = heading in ("family", "worst batched cell")
        table.add_column(heading, justify="left" if text else "right")
    for row in rows(families):
        table.add_row(*map(Text, row))
    console.print("\nall families, times torch on the same device", style="bold", highlight=False)
    console.print(table)
    for line in verdicts(found):
        console.print(line, highlight=False, markup=False)
