"""The cost model held against recorded runs, and what it predicts for Apple GPUs.

`python docs/generate.py cost_model docs/data/h200.json` writes the page and, from the same runs,
mpslinalg/_cost/factors.json.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from mpslinalg._bench import Case
from mpslinalg._cost import H200, MACHINES, Plan, plan, predict, price
from mpslinalg._cost.factors import ANY, FILE, Factor, factors, written
from mpslinalg._cost.recorded import measured, profiled, streamed
from mpslinalg._cost.table import SHOWN

# A kernel's factor is taken from a whole call where the model gives it so much of the work, where
# work was so much of the time and was to take so many microseconds: else what was measured is the
# host, which disturbs a call by some 50 us now and then, or another kernel.
LEADING = 0.6
WORKING = 0.5
WORTH = 8.0
# A file of docs/profile_kernels.py is named MACHINE-kernels.json.
KERNELS = "kernels"
# Cases of a kernel that show its spread.
OFTEN = 4


@dataclass(frozen=True)
class Measured:
    """A case of a run on the H200, in microseconds."""

    family: str
    case: Case
    plan: Plan
    taken: float


def is_profile(file: Path) -> bool:
    return file.stem.endswith(f"-{KERNELS}")


def cells(files: Iterable[Path]) -> list[Measured]:
    return [
        Measured(family, case, plan(case), taken)
        for file in files
        for family, case, taken in measured(json.loads(file.read_text()))
    ]


def samples(files: Iterable[Path], cases: Iterable[Measured]) -> dict[str, list[float]]:
    """Measured over modelled work by kernel: as profiled, else as whole calls show it."""
    found: dict[str, list[float]] = defaultdict(list)
    whole: dict[str, list[float]] = defaultdict(list)

    def of_call(of_case: Plan, taken: float) -> None:
        priced = price(of_case, H200)
        work = sum(priced.work.values())
        if work >= WORTH and priced.work[priced.kernel] >= LEADING * work:
            whole[priced.kernel].append(taken / work)

    for cell in cases:
        left = cell.taken - price(cell.plan, H200).fixed
        if left >= WORKING * cell.taken:
            of_call(cell.plan, left)
    for file in files:
        run = json.loads(file.read_text())
        for case, rate in streamed(run):
            of_case = plan(case)
            of_call(of_case, of_case.needed / (1e3 * rate) - H200.launch * len(of_case.steps))
        for case, kernels in profiled(run) if is_profile(file) else ():
            work = price(plan(case), H200).work
            for kernel, taken in kernels.items():
                if work.get(kernel, 0) > 0:
                    found[kernel].append(taken / work[kernel])
    return whole | found


def _factor(ratios: Sequence[float]) -> Factor:
    """Median and spread, a tenth left out at both ends: the host disturbs a timing now and then."""
    tenth = len(ratios) // 10
    inner = sorted(ratios)[tenth : len(ratios) - tenth]
    return Factor(median(ratios), inner[0], inner[-1], len(ratios))


def calibrate(files: Sequence[Path], cases: Sequence[Measured]) -> None:
    """Write the factors of kernels, for the model to read.

    A kernel that few cases show has at least the spread that others have in the middle.
    """
    found = {kernel: _factor(ratios) for kernel, ratios in sorted(samples(files, cases).items())}
    often = [factor for factor in found.values() if factor.cases >= OFTEN] or [*found.values()]
    low = median(factor.least / factor.median for factor in often)
    high = median(factor.most / factor.median for factor in often)
    widened = {
        kernel: factor._replace(
            least=min(factor.least, low * factor.median),
            most=max(factor.most, high * factor.median),
        )
        for kernel, factor in found.items()
    }
    medians = sorted(factor.median for factor in found.values())
    tenth = len(medians) // 10
    # What led no case is left as modelled.
    widened[ANY] = Factor(1.0, min(medians[tenth], 1.0), medians[-1 - tenth], 0)
    FILE.write_text(written({kernel: _short(factor) for kernel, factor in widened.items()}))
    factors.cache_clear()


def _short(factor: Factor) -> Factor:
    middle, least, most = (float(f"{number:.3g}") for number in factor[:3])
    return Factor(middle, least, most, factor.cases)


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], left: int = 1) -> str:
    align = ["---"] * left + ["---:"] * (len(head) - left)
    lines = [head, align, *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def _spread(ratios: Sequence[float]) -> list[str]:
    return [f"{number:.2f}" for number in (median(ratios), min(ratios), max(ratios))]


def _validation(cases: Sequence[Measured]) -> str:
    rows = []
    for name in dict.fromkeys(cell.family for cell in cases):
        of_family = [cell for cell in cases if cell.family == name]
        raw = [cell.taken / price(cell.plan, H200).total for cell in of_family]
        fitted = [cell.taken / predict(cell.plan, H200).expected for cell in of_family]
        rows.append((name, len(of_family), *_spread(raw), *_spread(fitted)))
    head = ("family", "cases", "median", "least", "most", "with factors", "least", "most")
    return table(head, rows)


def _kernels() -> str:
    rows = [
        (f"`{kernel}`" if kernel != ANY else kernel, *(f"{x:.2f}" for x in numbers[:3]), numbers[3])
        for kernel, numbers in factors().items()
    ]
    return table(("kernel", "factor", "least", "most", "cases"), rows)


def _machines() -> str:
    rows = [
        (m.name, m.cores, f"{m.ghz:.2f}", f"{m.flops / 1e6:.1f}", f"{m.gb_per_s:.0f}", m.launch,
         m.host, m.call, m.wait)
        for m in (*MACHINES.values(), H200)
    ]  # fmt: skip
    head = ("chip", "cores", "GHz", "Tflop/s", "GB/s", "launch", "host", "call", "wait")
    return table(head, rows)


def _figure(number: float) -> str:
    """Two digits, for what is known to no more."""
    return f"{number:.2g}" if number < 100 else f"{float(f'{number:.2g}'):.0f}"


def _predictions(cases: Sequence[Measured]) -> str:
    rows = []
    for cell in cases:
        step_count = len(cell.plan.steps)
        expected = [predict(cell.plan, MACHINES[name]) for name in SHOWN]
        rows.append(
            (
                cell.case.operation.name.partition(";")[0],
                cell.case.batch,
                cell.case.n,
                f"{step_count} + {cell.plan.waits}",
                _figure(cell.plan.needed / 1e6),
                f"{cell.plan.moved / cell.plan.needed:.1f}",
                _figure(cell.plan.operations / 1e9),
                _figure(cell.taken / 1e3),
                *(
                    f"{_figure(p.expected / 1e3)} ({_figure(p.least / 1e3)} - "
                    f"{_figure(p.most / 1e3)})"
                    for p in expected
                ),
                predict(cell.plan, MACHINES["M4 Max"]).limit,
            )
        )
    head = ("", "batch", "n", "launches + waits", "MB", "moved", "Gflop", "H200, measured", *SHOWN,
            "limit on M4 Max")  # fmt: skip
    return table(head, rows)


def page(files: Sequence[Path]) -> str:
    cases = cells(files)
    calibrate(files, cases)
    pieces = [
        "### Machines\n\nMicroseconds for a launch that waits for another, the host's part of a "
        "launch, of a call, and a wait for the device.\n\n",
        _machines(),
        "\n### Against the H200\n\nMeasured time over modelled time, as the model stands and with "
        "the factors below, which come from the same runs.\n\n",
        _validation(cases),
        "\n### Factors\n\nMeasured over modelled time of a kernel's launches: median, and the "
        "spread without a tenth of the cases at both ends.\n\n",
        _kernels(),
    ]
    for name in dict.fromkeys(cell.family for cell in cases):
        pieces.append(f"\n### Predictions: {name}, float32\n\n")
        of_family = [cell for cell in cases if cell.family == name]
        pieces.append(_predictions([c for c in of_family if c.case.dtype_name == "float32"]))
    return "".join(pieces)
