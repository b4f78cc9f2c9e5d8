"""Singular values of Longley's table, whose columns have units of their own, in all their orders.

The constant, prices near 100 and a national product of 500000 make singular values from 1.7e6 down
to 3.4e-4. A method that goes through a bidiagonal matrix may err by eps times the largest in all of
them, and whether it does depends on the order of the columns. One-sided Jacobi has relative errors
of at most some eps times the condition of the columns once they are scaled alike, here 43000. One
batch takes all 5040 orders.

Data: see the study of Longley's regression. Source: Demmel, Veselic, "Jacobi's method is more
accurate than QR", SIAM Journal on Matrix Analysis and Applications 13 (1992).
"""

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray

import mpslinalg as LA
from mpslinalg._demo import longley
from mpslinalg._demo.report import Check, Report, Section

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ORDERS = math.factorial(7)
EPS = 2.0**-24

Array = NDArray[np.float64]


def design() -> NDArray[np.float32]:
    """A constant and the six series, rounded to single precision."""
    data = longley.table()
    data[:, 0] = 1
    return data.astype(np.float32)


def scaled_condition(A: Array) -> float:
    """Of columns of norm 1."""
    return float(np.linalg.cond(A / np.linalg.norm(A, axis=0)))


def run(device: torch.device) -> Report:
    table = design()
    every = itertools.permutations(range(table.shape[1]))
    orders = np.array(list(itertools.islice(every, ORDERS)))
    A = torch.from_numpy(table[:, orders].swapaxes(0, 1).copy()).to(device)
    with LA.use("kernels"):
        engine = LA.which("svdvals", A)
        ours = LA.svdvals(A).double().cpu().numpy()
    torchs = torch.linalg.svdvals(A.cpu()).double().numpy()
    # LAPACK's own one-sided Jacobi, in double precision.
    values, _, _, work, *_ = scipy.linalg.lapack.dgejsv(
        table.astype(np.float64), joba=0, jobu=3, jobv=3, jobr=0, jobt=0
    )
    exact = np.asarray(values * (work[0] / work[1]))
    errors = {
        name: np.abs(found / exact - 1).max(0)
        for name, found in (("kernels", ours), ("torch", torchs))
    }
    condition = scaled_condition(table.astype(np.float64))
    rows = [
        [f"{k + 1}", f"{exact[k]:.7g}", *(f"{error[k]:.1e}" for error in errors.values())]
        for k in range(len(exact))
    ]
    return Report(
        case="spectrum",
        title=f"Singular values of Longley's table: 16 years, 7 columns in {len(orders)} orders",
        sections=[
            Section(engine),
            Section(
                "The largest relative errors in float32, beside LAPACK's Jacobi in float64",
                ("", "exact", "kernels", "torch on the CPU"),
                rows,
            ),
        ],
        checks=[
            Check(
                "relative error / (eps cond of scaled columns)",
                float(errors["kernels"].max() / (condition * EPS)),
                1.0,
            )
        ],
        plot=_plotter(exact, ours, torchs),
        data={
            "engine": engine,
            "scaled_condition": condition,
            "singular_values": exact.tolist(),
            "errors": {name: error.tolist() for name, error in errors.items()},
        },
    )


def _plotter(exact: Array, ours: Array, torchs: Array) -> Callable[["Axes"], None]:
    def plot(axes: "Axes") -> None:
        places = np.arange(1, len(exact) + 1)
        axes.semilogy(places, exact, "ko", mfc="none", ms=9, label="float64")
        for shift, found, name in ((-0.1, ours, "kernels"), (0.1, torchs, "torch on the CPU")):
            ends = found.min(0), found.max(0)
            axes.vlines(places + shift, *ends, lw=3, color=f"C{int(shift > 0)}", label=name)
            axes.semilogy(places + shift, found[0], "_", color=f"C{int(shift > 0)}")
        axes.axhline(exact[0] * EPS, color="0.7", ls="--", lw=1, label="eps of the largest")
        axes.set_title("Singular values of Longley's table: float32, all orders of the columns")
        axes.set_xlabel("number")
        axes.legend()

    return plot
