"""`python -m mpslinalg cost`: what a family is predicted to take, a report held against that."""

from collections.abc import Sequence

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mpslinalg._bench import Case, Family
from mpslinalg._cost.machines import H200, MACHINES, Machine
from mpslinalg._cost.plan import plan
from mpslinalg._cost.prediction import predict

KNOWN = {**MACHINES, H200.name: H200}
SHOWN = ("M1", "M2 Max", "M3 Ultra", "M4 Max", "M5", "M5 Max")


def _grid(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def cases(family: Family, dtype: torch.dtype, batch: int | None, n: int | None) -> list[Case]:
    """Those of the benchmarks, or each operation for the given size."""
    if batch is not None and n is not None:
        return [Case(operation, batch, n, dtype) for operation in family.operations]
    return family.cases([dtype], quick=False)


def predictions(cases: Sequence[Case], machines: Sequence[Machine], console: Console) -> None:
    """Microseconds of each case; for one machine with their range, which the error on an H200 and
    the reported costs of a launch give.
    """
    if len(machines) == 1:
        columns: Sequence[str] = (machines[0].name, "least", "most", "limit")
    else:
        columns = [machine.name for machine in machines]
    table = _grid("microseconds", "launches", "waits", "MB", "Mflop", *columns)
    for case in cases:
        found = plan(case)
        expected = [predict(found, machine) for machine in machines]
        row = [str(case), str(len(found.steps)), str(found.waits)]
        row += [f"{found.needed / 1e6:.3g}", f"{found.operations / 1e6:.3g}"]
        row += [f"{p.expected:.0f}" for p in expected]
        if len(machines) == 1:
            row += [f"{expected[0].least:.0f}", f"{expected[0].most:.0f}", expected[0].limit]
        table.add_row(*map(Text, row))
    console.print(table)
    console.print(
        "By the model of docs/cost_model.md. No figure was measured on an Apple GPU.",
        highlight=False,
    )


def against(timed: Sequence[tuple[Case, float]], machine: Machine, console: Console) -> None:
    """Print what was measured, in microseconds, beside what was predicted."""
    table = _grid("", "measured", "predicted", "least", "most", "measured / predicted", "")
    within = 0
    for case, taken in timed:
        p = predict(plan(case), machine)
        inside = p.least <= taken <= p.most
        within += inside
        figures = (f"{taken:.0f}", f"{p.expected:.0f}", f"{p.least:.0f}", f"{p.most:.0f}")
        verdict = "" if inside else "outside"
        table.add_row(*map(Text, (str(case), *figures, f"{taken / p.expected:.2f}", verdict)))
    console.print(table)
    console.print(f"{within} of {len(timed)} within the predicted range", highlight=False)
