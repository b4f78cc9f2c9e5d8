"""Vibrations of water, light and heavy: the eigenproblems of 18 isotopologues in one batch.

A molecule near its equilibrium is a system of springs. With B the derivatives of both bond lengths
and of the angle by the nine coordinates, the force matrix is B^T F B; scaled by the roots of the
masses, its eigenvalues are squares of frequencies: three of vibrations, and zero for six motions of
the whole.

Force constants and geometry: Hoy, Mills, Strey, "Anharmonic force constant calculations", Molecular
Physics 24 (1972). Masses: the atomic mass evaluation of 2020. Harmonic frequencies from spectra:
Benedict, Gailar, Plyler, "Rotation-vibration spectra of deuterated water vapor", Journal of
Chemical Physics 24 (1956). Method: Wilson, Decius, Cross, "Molecular Vibrations" (1955).
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg._demo.report import Check, Report, Section

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Angstrom and degrees; forces in mdyn = 1e-8 N, with angles in radians.
LENGTH, ANGLE = 0.9572, 104.52
STRETCH, STRETCHES, STRETCH_BEND, BEND = 8.454, -0.101, 0.219, 0.697
HYDROGEN = {"H": 1.00782503, "D": 2.01410178, "T": 3.01604928}
OXYGEN = {16: 15.99491462, 17: 16.99913176, 18: 17.99915961}
# From mdyn / (angstrom u) to wave numbers in 1 / cm.
WAVE_NUMBER = math.sqrt(100 / 1.66053906660e-27) / (2 * math.pi * 2.99792458e10)
# Bend, symmetric and antisymmetric stretch (of the D and of the H).
MEASURED = {
    "HH16": (1648.47, 3832.17, 3942.53),
    "HD16": (1440.21, 2824.32, 3889.84),
    "DD16": (1206.39, 2763.80, 2888.78),
}
# A harmonic force field that is common to all isotopologues.
MEASURED_BAR = 5e-3
# Of a vibration, at least a twentieth of the largest eigenvalue: 20 eps, for its root half of that.
FREQUENCY_BAR = 1e-5
EPS = 2.0**-24

Array = NDArray[np.float64]


def force_matrix() -> Array:
    """Second derivatives of the energy by the coordinates of O, H and H, in the plane z = 0."""
    angle = math.radians(ANGLE)
    first, second = np.eye(3)[0], np.array([math.cos(angle), math.sin(angle), 0])
    # Across each bond, in the direction in which the angle opens.
    opens = [
        (e * math.cos(angle) - f) / math.sin(angle) for e, f in ((first, second), (second, first))
    ]
    of_first, of_second = (o / LENGTH for o in opens)
    none = np.zeros(3)
    B = np.stack(
        [
            np.concatenate((-first, first, none)),
            np.concatenate((-second, none, second)),
            np.concatenate((-of_first - of_second, of_first, of_second)),
        ]
    )
    F = np.array(
        [
            [STRETCH, STRETCHES, STRETCH_BEND],
            [STRETCHES, STRETCH, STRETCH_BEND],
            [STRETCH_BEND, STRETCH_BEND, BEND],
        ]
    )
    return np.asarray(B.T @ F @ B)


def isotopologues() -> tuple[list[str], Array]:
    """Names and masses of O, H and H."""
    pairs = ("HH", "HD", "HT", "DD", "DT", "TT")
    names = [f"{pair}{oxygen}" for oxygen in OXYGEN for pair in pairs]
    masses = [[OXYGEN[int(name[2:])], *(HYDROGEN[h] for h in name[:2])] for name in names]
    return names, np.array(masses)


def run(device: torch.device) -> Report:
    names, masses = isotopologues()
    weights = np.repeat(masses**-0.5, 3, axis=1)
    exact = weights[:, :, None] * force_matrix() * weights[:, None, :]
    A = torch.from_numpy(exact).to(device, torch.float32)
    with LA.use("kernels"):
        engine = LA.which("eigh", A)
        L, V = (x.cpu() for x in LA.eigh(A))
    scipys = np.stack([scipy.linalg.eigvalsh(a) for a in exact])
    found, correct = (WAVE_NUMBER * np.sqrt(x[:, 6:]) for x in (L.double().numpy(), scipys))
    largest = scipys[:, -1:]
    measured = np.array(list(MEASURED.values()))
    of_measured = found[[names.index(name) for name in MEASURED]]
    symmetric = A.cpu().tril() + A.cpu().tril(-1).mT
    return Report(
        case="water",
        title="Vibrations of water: harmonic frequencies of 18 isotopologues",
        sections=[Section(engine), _frequencies(names, found, correct)],
        checks=[
            Check(
                "eigh ratio",
                float(testing.eigh_ratio(symmetric, L, V).max()),
                testing.EIGH_THRESHOLD,
            ),
            Check(
                "relative error of a frequency",
                float(np.abs(found / correct - 1).max()),
                FREQUENCY_BAR,
            ),
            Check(
                "motions of the whole / (9 eps of the largest)",
                float((np.abs(L.numpy()[:, :6]) / largest).max() / (9 * EPS)),
                testing.EIGH_THRESHOLD,
            ),
            Check(
                "relative distance from spectra",
                float(np.abs(of_measured / measured - 1).max()),
                MEASURED_BAR,
            ),
        ],
        plot=_plotter(names, found),
        data={
            "engine": engine,
            "frequencies": dict(zip(names, found.tolist(), strict=True)),
            "scipy": dict(zip(names, correct.tolist(), strict=True)),
        },
    )


def _frequencies(names: list[str], found: Array, exact: Array) -> Section:
    rows = []
    for name, ours, scipys in zip(names, found, exact, strict=True):
        spectra = MEASURED.get(name)
        row = [f"{name[:2]}-{name[2:]}O"]
        for k in range(3):
            row += [f"{ours[k]:.3f}", f"{scipys[k]:.3f}", f"{spectra[k]:.2f}" if spectra else "-"]
        rows.append(row)
    modes = ("bend", "SciPy", "spectrum", "stretch", "SciPy", "spectrum")
    header = ("", *modes, "stretch", "SciPy", "spectrum")
    return Section("Wave numbers in 1 / cm, float32 beside SciPy's float64", header, rows)


def _plotter(names: list[str], found: Array) -> Callable[["Axes"], None]:
    def plot(axes: "Axes") -> None:
        places = np.arange(6)
        for k, name in enumerate(("bend", "first stretch", "second stretch")):
            axes.plot(places, found[:6, k], "o-", label=name)
        axes.set_xticks(places, [f"{name[:2]}O" for name in names[:6]])
        axes.set_title("Vibrations of water with oxygen 16")
        axes.set_ylabel("wave number (1 / cm)")
        axes.legend()

    return plot
