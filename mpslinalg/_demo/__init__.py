"""Studies on real data, every number checked against SciPy: `python -m mpslinalg demo`."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mpslinalg import _doctor
from mpslinalg._demo import (
    gated_delta,
    iris,
    longley,
    nile,
    power_grid,
    spectrum,
    tides,
    water,
    wilkinson,
)
from mpslinalg._demo.report import Report

# One module a study.
CASES = {
    "power-grid": power_grid.run,
    "nile": nile.run,
    "longley": longley.run,
    "tides": tides.run,
    "iris": iris.run,
    "spectrum": spectrum.run,
    "water": water.run,
    "wilkinson": wilkinson.run,
    "gated-delta": gated_delta.run,
}


def _print(report: Report, console: Console) -> None:
    console.print(report.title, style="bold")
    for section in report.sections:
        console.print()
        console.print(section.title, highlight=False, markup=False)
        if section.rows:
            table = Table(box=None, pad_edge=False)
            for name in section.header:
                table.add_column(name, justify="right")
            for row in section.rows:
                table.add_row(*map(Text, row))
            console.print(table)
    console.print()
    table = Table("check", "value", "bar", "", box=None, pad_edge=False)
    for check in report.checks:
        verdict = Text("ok", "green") if check.passed else Text("FAIL", "bold red")
        table.add_row(check.name, f"{check.value:.3g}", f"{check.bar:g}", verdict)
    console.print(table)


def _plot(reports: Sequence[Report], file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5 * len(reports)), layout="constrained")
    for axes, report in zip(
        figure.subplots(len(reports), squeeze=False).flat, reports, strict=True
    ):
        report.plot(axes)
    figure.savefig(file)


def run(
    names: Iterable[str],
    device: torch.device,
    console: Console,
    json_file: Path | None = None,
    plot_file: Path | None = None,
) -> int:
    """Run the named studies; 1 if any check failed."""
    reports = []
    for name in names:
        report = CASES[name](device)
        _print(report, console)
        reports.append(report)
    if json_file:
        content = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "environment": _doctor.environment(device),
            "cases": {report.case: report.as_json() for report in reports},
        }
        json_file.write_text(json.dumps(content, indent=1) + "\n")
    if plot_file:
        _plot(reports, plot_file)
    return 0 if all(check.passed for report in reports for check in report.checks) else 1
