"""Longley's regression of US employment, on which the programs of 1967 disagreed.

Total employment on six economic series and a constant, 1947-1962: columns that are nearly
dependent, with a condition of 5e9. In float64 the table goes into `lstsq` as it is. In float32 its
columns are centred and scaled first, in float64, which takes the condition down to 110.

Data and certified values: NIST, Statistical Reference Datasets, "Longley"; from Longley, "An
appraisal of least squares programs for the electronic computer from the point of view of the user",
Journal of the American Statistical Association 62 (1967).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import mpslinalg as LA
from mpslinalg._demo.report import Check, Report, Section

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Employment, then the price deflator, gross national product, unemployment, the armed forces, the
# population from 14 years on, and the year.
DATA = """
60323  83.0 234289 2356 1590 107608 1947
61122  88.5 259426 2325 1456 108632 1948
60171  88.2 258054 3682 1616 109773 1949
61187  89.5 284599 3351 1650 110929 1950
63221  96.2 328975 2099 3099 112075 1951
63639  98.1 346999 1932 3594 113270 1952
64989  99.0 365385 1870 3547 115094 1953
63761 100.0 363112 3578 3350 116219 1954
66019 101.2 397469 2904 3048 117388 1955
67857 104.6 419180 2822 2857 118734 1956
68169 108.4 442769 2936 2798 120445 1957
66513 110.8 444546 4681 2637 121950 1958
68655 112.6 482704 3813 2552 123366 1959
69564 114.2 502601 3931 2514 125368 1960
69331 115.7 518173 4806 2572 127852 1961
70551 116.9 554894 4007 2827 130081 1962
"""
NAMES = ("constant", "deflator", "GNP", "unemployed", "forces", "population", "year")
CERTIFIED = np.array(
    [
        *(-3482258.63459582, 15.0618722713733, -0.0358191792925910, -2.02022980381683),
        *(-1.03322686717359, -0.0511041056535807, 1829.15146461355),
    ]
)
CERTIFIED_DEVIATIONS = np.array(
    [
        *(890420.383607373, 84.9149257747669, 0.0334910077722432, 0.488399681651699),
        *(0.214274163161675, 0.226073200069370, 455.478499142212),
    ]
)
CERTIFIED_RESIDUAL_DEVIATION = 304.854073561965
CERTIFIED_DIGITS = 15
FREEDOM = 9  # years less coefficients

# Digits that must agree. The worst coefficient has 13.2 from the kernels on a CPU and 10.9 from
# LAPACK in float64, 4.9 and 4.7 in float32; the deviations have more.
DIGITS = {torch.float64: 10.0, torch.float32: 4.0}

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    """Coefficients and their standard deviations, in the units of the table."""

    coefficients: list[float]
    deviations: list[float]
    residual_deviation: float


def table() -> Array:
    return np.array([list(map(float, line.split())) for line in DATA.split("\n") if line])


def regression(X: Tensor, y: Tensor) -> tuple[Array, Array, float]:
    """Coefficients, the inverse of R, and the norm of the residual; all further work is float64."""
    result = LA.lstsq(X, y.unsqueeze(-1), driver="gels")
    R = LA.qr(X, mode="r").R
    inverse = LA.solve_triangular(R, torch.eye(len(R), dtype=R.dtype, device=R.device), upper=True)
    solution, inverse = (x.double().cpu() for x in (result.solution[:, 0], inverse))
    return solution.numpy(), inverse.numpy(), math.sqrt(result.residuals.item())


def as_it_is(device: torch.device) -> Fit:
    """By float64."""
    data = torch.from_numpy(table()).to(device)
    X = torch.cat((torch.ones_like(data[:, :1]), data[:, 1:]), 1)
    coefficients, inverse, residual = regression(X, data[:, 0])
    deviation = residual / math.sqrt(FREEDOM)
    # The covariances are those of R^-1 R^-H.
    deviations = deviation * np.linalg.norm(inverse, axis=1)
    return Fit(coefficients.tolist(), deviations.tolist(), deviation)


def centred(device: torch.device) -> Fit:
    """By float32, the columns centred and of norm 1."""
    data = table()
    mean = data.mean(0)
    norm = np.linalg.norm(data - mean, axis=0)
    scaled = torch.from_numpy((data - mean) / norm).to(device, torch.float32)
    slopes, inverse, residual = regression(scaled[:, 1:], scaled[:, 0])
    deviation = norm[0] * residual / math.sqrt(FREEDOM)
    # The slopes of the table, and what the constant takes of them.
    back = np.vstack((-mean[1:], np.eye(len(slopes)))) / norm[1:]
    coefficients = norm[0] * back @ slopes
    coefficients[0] += mean[0]
    of_mean = np.eye(len(back), 1) / math.sqrt(len(data))
    deviations = deviation * np.linalg.norm(np.hstack((of_mean, back @ inverse)), axis=1)
    return Fit(coefficients.tolist(), deviations.tolist(), float(deviation))


def digits(values: Sequence[float] | Array, certified: Array) -> Array:
    """Decimal digits that agree, at most as many as are certified."""
    error = np.abs(np.asarray(values) / certified - 1)
    return np.asarray(-np.log10(np.maximum(error, 10.0**-CERTIFIED_DIGITS)))


def run(device: torch.device) -> Report:
    # An Apple GPU has no double precision.
    double = torch.device("cpu") if device.type == "mps" else device
    with LA.use("kernels"):
        fits = {torch.float64: as_it_is(double), torch.float32: centred(device)}
    agree = {
        dtype: (
            digits(fit.coefficients, CERTIFIED),
            digits(fit.deviations, CERTIFIED_DEVIATIONS),
            digits([fit.residual_deviation], np.array([CERTIFIED_RESIDUAL_DEVIATION])),
        )
        for dtype, fit in fits.items()
    }
    worst = {dtype: float(min(map(np.min, found))) for dtype, found in agree.items()}
    return Report(
        case="longley",
        title="Longley's regression: US employment 1947-1962, 16 years and 7 coefficients",
        sections=[
            _table(dtype, where, fits[dtype], agree[dtype])
            for dtype, where in (
                (torch.float64, f"the table as it is, kernels on {double.type}"),
                (torch.float32, f"columns centred and scaled, kernels on {device.type}"),
            )
        ],
        checks=[
            Check(f"worst relative error, {_name(dtype)}", 10.0**-found, 10.0 ** -DIGITS[dtype])
            for dtype, found in worst.items()
        ],
        plot=_plotter(fits),
        data={_name(dtype): asdict(fit) | {"digits": worst[dtype]} for dtype, fit in fits.items()},
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _table(dtype: torch.dtype, where: str, fit: Fit, agree: tuple[Array, Array, Array]) -> Section:
    printed = 15 if dtype == torch.float64 else 7
    rows = [
        [
            NAMES[k],
            f"{fit.coefficients[k]:.{printed}g}",
            f"{CERTIFIED[k]:.15g}",
            f"{agree[0][k]:.1f}",
            f"{fit.deviations[k]:.{printed}g}",
            f"{agree[1][k]:.1f}",
        ]
        for k in range(len(NAMES))
    ]
    residual = f"{fit.residual_deviation:.{printed}g}"
    rows.append(["residual", "-", "-", "-", residual, f"{agree[2][0]:.1f}"])
    return Section(
        f"{_name(dtype)}, {where}; digits that agree with NIST's, {DIGITS[dtype]:g} must",
        ("", "coefficient", "NIST", "digits", "deviation", "digits"),
        rows,
    )


def _plotter(fits: dict[torch.dtype, Fit]) -> Callable[["Axes"], None]:
    def plot(axes: "Axes") -> None:
        data = table()
        for dtype, marker in ((torch.float64, "o-"), (torch.float32, "x")):
            constant, *slopes = fits[dtype].coefficients
            residuals = data[:, 0] - constant - data[:, 1:] @ np.array(slopes)
            axes.plot(data[:, -1], residuals, marker, label=_name(dtype))
        for sign in (-1, 1):
            deviation = sign * fits[torch.float64].residual_deviation
            axes.axhline(deviation, color="0.7", ls="--", lw=1)
        axes.axhline(0, color="0.7", lw=1)
        axes.set_title("Longley: residuals, and their standard deviation")
        axes.set_xlabel("year")
        axes.set_ylabel("employment (thousands)")
        axes.legend()

    return plot
