"""Harmonic analysis of a tide: a mean, a trend and five constituents fitted to a million minutes.

The constituents have known speeds; a least squares problem with 12 columns and a row for each
sample finds their amplitudes and phases. The water level is made: constituents of the size found on
the coast of California, a mean, a rise, and noise. The CPU engine runs the threads of a GPU one
after another, some 0.02 ms a sample: there the same 694 days have fewer samples.

Speeds: Schureman, "Manual of Harmonic Analysis and Prediction of Tides", U.S. Coast and Geodetic
Survey, Special Publication 98 (1958).
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor

import mpslinalg as LA
from mpslinalg._demo.report import Check, Report, Section
from mpslinalg._timing import medians

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

# Degrees an hour, then the amplitude in metres and the phase in degrees of the made tide.
CONSTITUENTS = {
    "M2": (28.9841042, 0.58, 210.0),
    "S2": (30.0, 0.14, 219.0),
    "N2": (28.4397295, 0.12, 186.0),
    "K1": (15.0410686, 0.37, 226.0),
    "O1": (13.9430356, 0.23, 211.0),
}
MEAN, RISE, NOISE = 0.95, 0.03, 0.05  # metres; RISE over the whole time
MINUTES = 1_000_000
SAMPLES = {"cpu": 50_000}
EPS = 2.0**-24
# 2e-7 m was measured with 4000 and with all minutes, on a CPU; LAPACK in float32 has up to 1e-5.
ERROR_BAR = 1e-6
DEVIATIONS_BAR = 5.0  # of twelve normal numbers one in 10^5 times


def hours(samples: int) -> Array:
    return np.linspace(0, (MINUTES - 1) / 60, samples)


def design(t: Array) -> Array:
    """A row for each time: 1, a trend from -1 to 1, cosine and sine of each constituent."""
    trend = 2 * t / (MINUTES / 60) - 1
    angles = [np.deg2rad(speed * t) for speed, *_ in CONSTITUENTS.values()]
    waves = [wave(angle) for angle in angles for wave in (np.cos, np.sin)]
    return np.column_stack([np.ones_like(t), trend, *waves])


def made() -> Array:
    """The coefficients that the level is made of."""
    parts = [
        amplitude * part(math.radians(phase))
        for _, amplitude, phase in CONSTITUENTS.values()
        for part in (math.cos, math.sin)
    ]
    return np.array([MEAN, RISE / 2, *parts])


def level(A: Array) -> Array:
    return np.asarray(A @ made() + NOISE * np.random.default_rng(0).standard_normal(len(A)))


def run(device: torch.device) -> Report:
    samples = SAMPLES.get(device.type, MINUTES)
    t = hours(samples)
    made_of = design(t)
    A, b = (torch.from_numpy(x.astype(np.float32)) for x in (made_of, level(made_of)[:, None]))
    exact = scipy.linalg.lstsq(A.double().numpy(), b.double().numpy(), lapack_driver="gelsy")[0]
    A_there, b_there = A.to(device), b.to(device)
    calls: dict[str, Callable[[], Tensor]] = {
        "kernels": lambda: LA.lstsq(A_there, b_there, driver="gels").solution,
        "torch": lambda: torch.linalg.lstsq(A_there, b_there, driver="gels").solution,
    }
    with LA.use("kernels"):
        found = {name: call()[:, 0].double().numpy(force=True) for name, call in calls.items()}
        engine = LA.which("lstsq", A_there, b_there)
        seconds = medians(calls, device)
    errors = {name: float(np.max(np.abs(x - exact[:, 0]))) for name, x in found.items()}
    # What the noise leaves of a coefficient: the columns are nearly orthogonal.
    uncertainty = NOISE / np.linalg.norm(made_of, axis=0)
    off = float(np.max(np.abs(found["kernels"] - made()) / uncertainty))
    rows = [[name, f"{1e3 * seconds[name]:.2f}", f"{errors[name]:.1e}"] for name in calls]
    return Report(
        case="tides",
        title=f"Harmonic analysis of a tide: {samples} samples of a million minutes, 12 columns",
        sections=[
            Section(
                f"{engine}.\nError of the worst coefficient in metres, beside SciPy's in float64.",
                ("", "ms", "error"),
                rows,
            ),
            _constituents(found["kernels"], exact[:, 0]),
        ],
        checks=[
            Check("error of a coefficient (m)", errors["kernels"], ERROR_BAR),
            Check("its ratio to torch's", errors["kernels"] / max(errors["torch"], EPS), 3.0),
            Check("distance from the made ones / their deviation", off, DEVIATIONS_BAR),
        ],
        plot=_plotter(found["kernels"], t, b[:, 0].double().numpy()),
        data={
            "engine": engine,
            "samples": samples,
            "milliseconds": {name: 1e3 * value for name, value in seconds.items()},
            "errors": errors,
            "coefficients": found["kernels"].tolist(),
            "scipy": exact[:, 0].tolist(),
        },
    )


def _amplitude(coefficients: Array, k: int) -> tuple[float, float]:
    """Amplitude and phase in degrees of the k-th constituent."""
    c, s = coefficients[2 + 2 * k : 4 + 2 * k]
    return math.hypot(c, s), math.degrees(math.atan2(s, c)) % 360


def _constituents(found: Array, exact: Array) -> Section:
    rows = []
    for k, (name, (_, amplitude, phase)) in enumerate(CONSTITUENTS.items()):
        (a, p), (a_exact, p_exact) = _amplitude(found, k), _amplitude(exact, k)
        of_amplitude = [f"{a:.6f}", f"{a_exact:.6f}", f"{amplitude:g}"]
        rows.append([name, *of_amplitude, f"{p:.4f}", f"{p_exact:.4f}", f"{phase:g}"])
    return Section(
        "Amplitude in metres and phase in degrees",
        ("", "amplitude", "SciPy", "made", "phase", "SciPy", "made"),
        rows,
    )


def _plotter(found: Array, t: Array, levels: Array) -> Callable[["Axes"], None]:
    def plot(axes: "Axes") -> None:
        days = 14
        fine = np.linspace(0, 24 * days, 2000)
        axes.plot(t[t <= fine[-1]] / 24, levels[t <= fine[-1]], ".", color="0.6", label="samples")
        axes.plot(fine / 24, design(fine) @ found, lw=1, label="fit")
        axes.set_title(f"A tide of five constituents: the first {days} days")
        axes.set_xlabel("day")
        axes.set_ylabel("level (m)")
        axes.legend()

    return plot
