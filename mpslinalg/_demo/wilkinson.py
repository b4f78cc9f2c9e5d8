"""Roots of Wilkinson's polynomial (x - 1) ... (x - 10), as eigenvalues of companion matrices.

Its coefficients are whole numbers below 2^24, so that single precision has them too, and its roots
are as sensitive as they are famous for: if all coefficients a_j change by 2^-24 of themselves, the
root x moves by up to 2^-24 sum |a_j x^j| / |p'(x)|, a unit for x = 7. So much error is allowed,
times the degree. One batch takes the polynomial and 255 others whose coefficients are changed so.

Source: Wilkinson, "The evaluation of the zeros of ill-conditioned polynomials", Numerische
Mathematik 1 (1959).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg
import scipy.optimize
import torch
from numpy.typing import NDArray

import mpslinalg as LA
from mpslinalg._demo.report import Check, Report, Section

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DEGREE = 10
POLYNOMIALS = 256
EPS = {torch.float64: 2.0**-53, torch.float32: 2.0**-24}
# Two programs on 256 polynomials in double precision, some of which have nearly double roots.
SCIPY_BAR = 1e-6

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]


def companions(change: float) -> Array:
    """Companion matrices of the polynomial, first as it is, then with changed coefficients."""
    coefficients = np.poly(np.arange(1, DEGREE + 1))[1:]
    numbers = np.random.default_rng(0)
    changes = change * numbers.standard_normal((POLYNOMIALS, DEGREE))
    changes[0] = 0
    C = np.zeros((POLYNOMIALS, DEGREE, DEGREE))
    C[:, 0] = -coefficients * (1 + changes)
    C[:, range(1, DEGREE), range(DEGREE - 1)] = 1
    return C


def distance(found: Complex, exact: Complex) -> float:
    """The largest, between pairs that make the sum of distances smallest."""
    distances = np.abs(found[:, None] - exact)
    rows, columns = scipy.optimize.linear_sum_assignment(distances)
    return float(distances[rows, columns].max())


def conditions() -> Array:
    """How far each root moves, if all coefficients change by a small part, divided by that part."""
    roots = np.arange(1.0, DEGREE + 1)
    p = np.poly(roots)
    return np.asarray(np.polyval(np.abs(p), roots) / np.abs(np.polyval(np.polyder(p), roots)))


def run(device: torch.device) -> Report:
    # An Apple GPU has no double precision.
    double = torch.device("cpu") if device.type == "mps" else device
    exact = companions(EPS[torch.float32])
    given = {
        torch.float64: torch.from_numpy(exact).to(double),
        torch.float32: torch.from_numpy(exact).to(device, torch.float32),
    }
    with LA.use("kernels"):
        engine = LA.which("eigvals", given[torch.float32])
        roots = {dtype: LA.eigvals(C) for dtype, C in given.items()}
    found = {dtype: r.to(torch.complex128).cpu().numpy() for dtype, r in roots.items()}
    scipys = np.stack([scipy.linalg.eigvals(c) for c in exact])
    first = {dtype: np.sort_complex(r[0]) for dtype, r in found.items()}
    roots_ratio = {
        dtype: float((np.abs(r - np.arange(1, DEGREE + 1)) / conditions()).max() / EPS[dtype])
        for dtype, r in first.items()
    }
    beside_scipy = max(map(distance, found[torch.float64], scipys))
    rows = [
        [
            f"{k + 1}",
            f"{_text(first[torch.float64][k], 12)}",
            f"{_text(first[torch.float32][k], 4)}",
        ]
        for k in range(DEGREE)
    ]
    return Report(
        case="wilkinson",
        title="Roots of Wilkinson's polynomial of degree 10, and of 255 near it",
        sections=[
            Section(engine),
            Section("Of the polynomial itself", ("root", "float64", "float32"), rows),
        ],
        checks=[
            *(
                Check(f"error of a root / (eps its condition), {_name(dtype)}", ratio, DEGREE)
                for dtype, ratio in roots_ratio.items()
            ),
            Check("distance from SciPy's roots, all, float64", beside_scipy, SCIPY_BAR),
        ],
        plot=_plotter(found[torch.float64]),
        data={
            "engine": engine,
            "roots": {_name(dtype): [[z.real, z.imag] for z in r] for dtype, r in first.items()},
        },
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _text(z: complex, digits: int) -> str:
    return f"{z.real:.{digits}f}" + (f" {z.imag:+.{digits}f} i" if z.imag else "")


def _plotter(roots: Complex) -> Callable[["Axes"], None]:
    def plot(axes: "Axes") -> None:
        axes.plot(
            roots[1:].real.ravel(), roots[1:].imag.ravel(), ".", ms=2, label="changed by 2^-24"
        )
        axes.plot(np.arange(1, DEGREE + 1), np.zeros(DEGREE), "k+", label="the polynomial's")
        axes.set_title("Roots of Wilkinson's polynomial, and of 255 near it")
        axes.set_xlabel("real part")
        axes.set_ylabel("imaginary part")
        axes.legend()

    return plot
