"""Short circuits in the IEEE 14-bus power grid, with each of its branches out in turn.

Each outage gives a complex admittance matrix Y; a three-phase fault at bus k then draws the current
V_k / Z_kk, with Z = Y^-1 and V the published solved voltages. All outages go through one batched
complex64 factorisation. One outage islands a bus: its matrix is singular, and `info` names the bus.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg._demo.ieee14 import (
    BRANCHES,
    BUS_4_MAGNITUDE,
    BUSES,
    MAGNITUDE,
    ComplexArray,
    admittance,
    islanded,
    power_mismatch,
    voltage,
)
from mpslinalg._demo.report import Check, Report, Section
from mpslinalg._timing import medians

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EPS = 2.0**-24
THRESHOLD = testing.LU_THRESHOLD
# V is published to 0.001 and 0.01 degrees; a branch's admittance reaches 20 per unit.
POWER_FLOW_BAR_MVA = 1.5


@dataclass(frozen=True)
class Solution:
    """Fault currents in per unit, one a bus, and how far they may be trusted."""

    currents: list[float]
    scipy_currents: list[float]
    condition: float
    solve_ratio: float
    forward_ratio: float
    current_ratio: float
    current_error: float


@dataclass(frozen=True)
class Outage:
    """One branch out; without a solution where that leaves the matrix singular."""

    branch: str
    info: int
    lapack_info: int
    islanded: list[int]
    lu_ratio: float
    scipy_lu_ratio: float
    solution: Solution | None


def impedance(library: Any, Y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    LU, pivots, info = library.lu_factor_ex(Y)
    identity = torch.eye(BUSES, dtype=Y.dtype, device=Y.device)
    return library.lu_solve(LU, pivots, identity), LU, pivots, info


def _norm(A: ComplexArray) -> float:
    return float(np.linalg.norm(A, 1))


def _fault_currents(Z: ComplexArray) -> NDArray[np.float64]:
    return MAGNITUDE / np.abs(np.diagonal(Z))


def _scipy_lu_ratio(Y: Tensor) -> float:
    """The ratio of LAPACK's own factors in the precision of Y."""
    LU, pivots, _ = scipy.linalg.lapack.cgetrf(Y.numpy())
    return float(testing.lu_ratio(Y, LU, pivots + 1))


def _solution(exact: ComplexArray, Y: Tensor, X: Tensor) -> Solution:
    Z, Z_exact = X.numpy().astype(np.complex128), scipy.linalg.inv(exact)
    condition = _norm(exact) * _norm(Z_exact)
    currents, scipy_currents = _fault_currents(Z), _fault_currents(Z_exact)
    errors = np.abs(currents / scipy_currents - 1)
    # |dZ_kk| <= |dZ| <= cond eps |Z|, and 1 / Z_kk keeps the relative error of Z_kk.
    bounds = condition * EPS * _norm(Z_exact) / np.abs(np.diagonal(Z_exact))
    return Solution(
        currents=currents.tolist(),
        scipy_currents=scipy_currents.tolist(),
        condition=condition,
        solve_ratio=float(testing.solve_ratio(Y, X, np.eye(BUSES))),
        forward_ratio=float(testing.forward_ratio(exact, X, Z_exact)),
        current_ratio=float((errors / bounds).max()),
        current_error=float(errors.max()),
    )


def _outages(
    names: Sequence[str],
    exact: Sequence[ComplexArray],
    islands: Sequence[list[int]],
    Y: Tensor,
    results: Sequence[Tensor],
) -> list[Outage]:
    X, LU, pivots, info = (tensor.cpu() for tensor in results)
    Y = Y.cpu()
    return [
        Outage(
            branch=names[k],
            info=int(info[k]),
            lapack_info=scipy.linalg.lapack.zgetrf(exact[k])[2],
            islanded=islands[k],
            lu_ratio=float(testing.lu_ratio(Y[k], LU[k], pivots[k])),
            scipy_lu_ratio=_scipy_lu_ratio(Y[k]),
            solution=_solution(exact[k], Y[k], X[k]) if info[k] == 0 else None,
        )
        for k in range(len(names))
    ]


def run(device: torch.device) -> Report:
    remaining = [tuple(b for b in BRANCHES if b is not out) for out in BRANCHES]
    exact = [admittance(branches, machines=True) for branches in remaining]
    exact_base = admittance(BRANCHES, machines=True)
    Y, Y_base = (
        torch.from_numpy(A.astype(np.complex64)).to(device)
        for A in (np.stack(exact), exact_base[None])
    )
    with LA.use("kernels"):
        engine = LA.which("lu_factor_ex", Y)
        results = impedance(LA, Y)
        results_base = impedance(LA, Y_base)
        seconds = medians(
            {"kernels": lambda: impedance(LA, Y), "torch": lambda: impedance(torch.linalg, Y)},
            device,
        )
    islands = [islanded(branches) for branches in remaining]
    outages = _outages(list(map(str, BRANCHES)), exact, islands, Y, results)
    (base,) = _outages(["none"], [exact_base], [[]], Y_base, results_base)
    if base.solution is None:
        raise RuntimeError(f"the intact grid came out singular: info = {base.info}")
    corrected = MAGNITUDE.copy()
    corrected[3] = BUS_4_MAGNITUDE
    mismatch, as_published = power_mismatch(voltage(corrected)), power_mismatch(voltage())
    batch = f"{len(outages)} x {BUSES} x {BUSES} complex64"
    return Report(
        case="power-grid",
        title="IEEE 14-bus power grid: three-phase short circuits, each branch out in turn",
        sections=[
            Section(
                f"Data: at the published voltages the buses draw the published powers to "
                f"{np.delete(as_published, 3).max():.2f} MVA, bus 4 to {as_published[3]:.2f} MVA.\n"
                f"|V| of bus 4 is printed as {MAGNITUDE[3]}, but the power flow gives "
                f"{BUS_4_MAGNITUDE}: with that all agree to {mismatch.max():.2f} MVA."
            ),
            Section(
                f"{engine}.\nAll {len(outages)} factored and solved in "
                f"{1e6 * seconds['kernels']:.0f} us, by torch.linalg on the same device in "
                f"{1e6 * seconds['torch']:.0f} us."
            ),
            _bus_table(base.solution, outages),
            _outage_table(base.solution, outages),
        ],
        checks=_checks(mismatch, base, outages),
        plot=_plotter(base.solution, outages),
        data={
            "engine": engine,
            "batch": batch,
            "prefault_voltage": MAGNITUDE.tolist(),
            "power_mismatch_mva": mismatch.tolist(),
            "microseconds": {name: 1e6 * value for name, value in seconds.items()},
            "base": asdict(base),
            "outages": [asdict(outage) for outage in outages],
        },
    )


def _checks(mismatch: NDArray[np.float64], base: Outage, outages: Sequence[Outage]) -> list[Check]:
    cases = [base, *outages]
    solutions = [case.solution for case in cases if case.solution]

    def worst(values: Iterable[float]) -> float:
        return float(np.max(list(values)))  # unlike max, keeps a NaN

    return [
        Check("published power at every bus, MVA", worst(mismatch), POWER_FLOW_BAR_MVA),
        Check("outages whose info is not LAPACK's", sum(c.info != c.lapack_info for c in cases), 0),
        Check(
            "outages singular without an island, or the reverse",
            sum((c.info > 0) != bool(c.islanded) for c in cases),
            0,
        ),
        Check("LU ratio", worst(c.lu_ratio for c in cases), THRESHOLD),
        Check("solve ratio", worst(s.solve_ratio for s in solutions), THRESHOLD),
        Check("error of Z / (cond eps)", worst(s.forward_ratio for s in solutions), THRESHOLD),
        Check(
            "error of a current / (its condition eps)",
            worst(s.current_ratio for s in solutions),
            THRESHOLD,
        ),
    ]


def _bus_table(base: Solution, outages: Sequence[Outage]) -> Section:
    rows = []
    for bus in range(BUSES):
        spread = sorted((o.solution.currents[bus], o.branch) for o in outages if o.solution)
        (low, low_out), (high, high_out) = spread[0], spread[-1]
        rows.append(
            [
                str(bus + 1),
                f"{MAGNITUDE[bus]:.3f}",
                f"{base.currents[bus]:.5f}",
                f"{base.scipy_currents[bus]:.5f}",
                f"{low:.5f} ({low_out})",
                f"{high:.5f} ({high_out})",
            ]
        )
    return Section(
        "Fault current |V| / |Z_kk| per unit, V the published prefault voltage",
        ("bus", "|V|", "current", "SciPy", "lowest (branch out)", "highest (branch out)"),
        rows,
    )


def _outage_table(base: Solution, outages: Sequence[Outage]) -> Section:
    rows = []
    for outage in outages:
        row = [outage.branch, str(outage.info), f"{outage.lu_ratio:.2f}"]
        row.append(f"{outage.scipy_lu_ratio:.2f}")
        if outage.solution is None:
            cut_off = ", ".join(map(str, outage.islanded)) or "none"
            rows.append([*row, "-", "-", "-", f"islands bus {cut_off}", "-"])
            continue
        change = np.divide(outage.solution.currents, base.currents) - 1
        weakest = int(change.argmin())
        rows.append(
            [
                *row,
                f"{outage.solution.solve_ratio:.2f}",
                f"{outage.solution.forward_ratio:.3f}",
                f"{outage.solution.condition:.0f}",
                f"{100 * change[weakest]:.1f} % at bus {weakest + 1}",
                f"{outage.solution.current_error:.1e}",
            ]
        )
    return Section(
        "Outages: LAPACK's test ratios, the largest fall of a fault current, its worst error "
        "against SciPy",
        ("out", "info", "LU", "SciPy's", "solve", "forward", "cond", "largest fall", "error"),
        rows,
    )


def _plotter(base: Solution, outages: Sequence[Outage]) -> Callable[["Axes"], None]:
    currents = np.array([outage.solution.currents for outage in outages if outage.solution])

    def plot(axes: "Axes") -> None:
        buses = np.arange(1, BUSES + 1)
        axes.bar(buses, base.currents, color="0.8", label="all branches in")
        axes.vlines(buses, currents.min(0), currents.max(0), lw=4, label="one branch out: range")
        axes.set_title("IEEE 14-bus: three-phase fault current")
        axes.set_xlabel("bus")
        axes.set_ylabel("current (per unit)")
        axes.set_xticks(buses)
        axes.legend()

    return plot
