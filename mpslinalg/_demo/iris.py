"""Principal components of Fisher's iris: 150 flowers, four lengths of each.

The table less its means is U S V^H: columns of V are the directions in which the flowers differ
most, S^2 / 149 the variances along them. Signs are arbitrary; here the largest entry is positive.

Data: Fisher, "The use of multiple measurements in taxonomic problems", Annals of Eugenics 7 (1936),
in centimetres, as printed there (copies with two wrong flowers are about).
"""

import csv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg._demo.report import Check, Report, Section

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILE = Path(__file__).with_name("iris.csv")
NAMES = ("sepal length", "sepal width", "petal length", "petal width")
SPECIES = ("setosa", "versicolor", "virginica")
THRESHOLD = 50.0  # LAPACK's
# What 50 eps of the largest singular value make of the smallest, which is 13 times smaller.
BAR = 1e-5

Array = NDArray[np.float64]


def table() -> tuple[Array, list[str]]:
    """Lengths, and the species of each flower."""
    with FILE.open() as lines:
        rows = list(csv.DictReader(lines))
    lengths = [[float(row[name.replace(" ", "_")]) for name in NAMES] for row in rows]
    return np.array(lengths), [row["species"] for row in rows]


def _oriented(Vh: Array) -> Array:
    """Rows with a positive largest entry."""
    largest = np.take_along_axis(Vh, np.abs(Vh).argmax(1)[:, None], 1)
    return np.asarray(Vh * np.sign(largest))


def run(device: torch.device) -> Report:
    lengths, species = table()
    centred = lengths - lengths.mean(0)
    A = torch.from_numpy(centred).to(device, torch.float32)
    with LA.use("kernels"):
        engine = LA.which("svd", A, full_matrices=False)
        U, S, Vh = (x.cpu() for x in LA.svd(A, full_matrices=False))
        rank = int(LA.matrix_rank(A))
    _, values, exact = scipy.linalg.svd(centred, full_matrices=False)
    exact, found = _oriented(exact), _oriented(Vh.double().numpy())
    variances = S.double().numpy() ** 2 / (len(lengths) - 1)
    return Report(
        case="iris",
        title="Principal components of Fisher's iris: 150 flowers, 4 lengths",
        sections=[
            Section(engine),
            _components(found, exact, variances, values**2 / (len(lengths) - 1)),
        ],
        checks=[
            Check("SVD ratio", float(testing.svd_ratio(A.cpu(), U, S, Vh)), THRESHOLD),
            Check(
                "relative error of a singular value",
                float(np.abs(S.double().numpy() / values - 1).max()),
                BAR,
            ),
            Check("error of a direction", float(np.abs(found - exact).max()), BAR),
            Check("missing rank", 4 - rank, 0),
        ],
        plot=_plotter(centred @ found.T, species),
        data={
            "engine": engine,
            "variances": variances.tolist(),
            "directions": found.tolist(),
            "scipy": {"singular_values": values.tolist(), "directions": exact.tolist()},
        },
    )


def _components(found: Array, exact: Array, variances: Array, scipys: Array) -> Section:
    def row(name: str, numbers: Iterable[Any], format: str) -> list[str]:
        return [name, *(f"{x:{format}}" for pair in numbers for x in pair)]

    rows = [row(NAMES[i], zip(found[:, i], exact[:, i], strict=True), ".5f") for i in range(4)]
    rows.append(row("variance", zip(variances, scipys, strict=True), ".6f"))
    shares = (x / x.sum() for x in (variances, scipys))
    rows.append(row("share", zip(*shares, strict=True), ".2%"))
    header = ["", *(name for k in range(1, 5) for name in (f"component {k}", "SciPy"))]
    return Section("Directions, float32 by the kernels beside SciPy's in float64", header, rows)


def _plotter(scores: Array, species: list[str]) -> Callable[["Axes"], None]:
    def plot(axes: "Axes") -> None:
        for name in SPECIES:
            of_species = scores[[s == name for s in species]]
            axes.plot(of_species[:, 0], of_species[:, 1], ".", label=name)
        axes.set_title("Fisher's iris")
        axes.set_xlabel("first principal component (cm)")
        axes.set_ylabel("second principal component (cm)")
        axes.set_aspect("equal")
        axes.legend()

    return plot
