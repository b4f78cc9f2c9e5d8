"""Write docs/_generated/special.md: the largest errors of mpslinalg.special over dense grids.

python docs/special_errors.py [--device cuda] [--points 20001]
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.ndimage
import scipy.special
import torch
from numpy.typing import NDArray

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

import mpslinalg as LA  # noqa: E402

Values = NDArray[np.float64]
# Near a zero an error counts in units of this part of the largest value around it.
NEAR_ZERO = 2.0**-10
SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


def _chebyshev(letter: str, shifted: bool, n: int, x: Values) -> Values:
    """By angles of 64 bits, of |y|: V_n(-y) = (-1)^n W_n(y)."""
    y = 2 * np.longdouble(x) - 1 if shifted else np.longdouble(x)
    left = y < 0
    y = np.abs(y)
    inside = y <= 1
    a = 2 * np.arctan2(np.sqrt(np.where(inside, 1 - y, 0)), np.sqrt(1 + y))
    b = np.arccosh(np.where(inside, 1, y))
    a[a == 0] = np.longdouble(1e-12)  # a limit, to more digits than a double has
    b[b == 0] = np.longdouble(1e-12)

    def cosine(k: float) -> Any:
        return np.where(inside, np.cos(k * a), np.cosh(k * b))

    def sine(k: float) -> Any:
        return np.where(inside, np.sin(k * a), np.sinh(k * b))

    third, fourth = cosine(n + 0.5) / cosine(0.5), sine(n + 0.5) / sine(0.5)
    values = {
        "t": cosine(n),
        "u": sine(n + 1) / sine(1),
        "v": np.where(left, fourth, third),
        "w": np.where(left, third, fourth),
    }[letter]
    return np.asarray(np.where(left & (n % 2 == 1), -values, values), np.float64)


def _oracle(name: str, n: int, x: Values) -> Values:
    if "chebyshev" in name:
        return _chebyshev(name[-1], name.startswith("shifted"), n, x)
    functions: dict[str, Callable[..., Any]] = {
        "hermite_polynomial_h": scipy.special.eval_hermite,
        "hermite_polynomial_he": scipy.special.eval_hermitenorm,
        "laguerre_polynomial_l": scipy.special.eval_laguerre,
        "legendre_polynomial_p": scipy.special.eval_legendre,
    }
    if name in functions:
        return np.asarray(functions[name](n, x))
    one: dict[str, Callable[[Values], Any]] = {
        "airy_ai": lambda x: scipy.special.airy(x)[0],
        "log_ndtr": scipy.special.log_ndtr,
        "ndtri": scipy.special.ndtri,
    }
    return np.asarray(one[name](x))


class Row(NamedTuple):
    """A function, a degree, and where."""

    name: str
    low: float
    high: float
    degree: int | None = None


CHEBYSHEV = [f"{p}chebyshev_polynomial_{k}" for p in ("", "shifted_") for k in "tuvw"]
ROWS = [
    *(
        Row(name, -1.0 if name[0] == "c" else 0.0, 1.0, n)
        for name in CHEBYSHEV
        for n in (1, 5, 30, 1000, 100000)
    ),
    *(Row(name, -4.0, 4.0, n) for name in CHEBYSHEV for n in (2, 17)),
    *(Row("legendre_polynomial_p", -1.0, 1.0, n) for n in (2, 5, 30, 200, 1000)),
    *(Row("legendre_polynomial_p", -4.0, 4.0, n) for n in (2, 17)),
    *(Row("laguerre_polynomial_l", -10.0, 150.0, n) for n in (2, 5, 30, 200, 1000)),
    *(Row("hermite_polynomial_h", -8.0, 8.0, n) for n in (2, 5, 20, 30)),
    *(Row("hermite_polynomial_he", -8.0, 8.0, n) for n in (2, 5, 20, 45)),
    Row("airy_ai", -1000.0, -30.0),
    Row("airy_ai", -30.0, 0.0),
    Row("airy_ai", 0.0, 25.0),
    Row("log_ndtr", -10000.0, -40.0),
    Row("log_ndtr", -40.0, 0.0),
    Row("log_ndtr", 0.0, 12.5),
    Row("ndtri", 0.0, 1.0),
    Row("ndtri", 1e-37, 0.01),
]


def grid(row: Row, points: int) -> NDArray[np.float32]:
    """The points of a row, as float32; those of small probabilities evenly by their logarithm."""
    if row.name == "ndtri" and row.high < 1:
        return np.geomspace(row.low, row.high, points).astype(np.float32)
    return np.linspace(row.low, row.high, points).astype(np.float32)


def envelope(row: Row, x: Values, exact: Values) -> Values:
    """The largest value around each point."""
    if row.degree is None:
        size = np.abs(np.where(x < -2, x, -np.inf))
        return np.where(np.isfinite(size), size**-0.25 / np.sqrt(np.pi), 0.0)
    # Two oscillations, or as many points as tell the size of what no grid resolves.
    width = max(4 * len(x) // max(row.degree, 1), 64) + 1
    bounded = np.where(np.isfinite(exact), np.abs(exact), 0.0)
    return np.asarray(scipy.ndimage.maximum_filter1d(bounded, min(width, len(x))))


def error(row: Row, points: int, device: str) -> tuple[float, float]:
    """The largest error in units in the last place, and where."""
    x = grid(row, points)
    given = torch.from_numpy(x).to(device)
    function = getattr(LA.special, row.name)
    with LA.use("kernels"):
        got = function(given) if row.degree is None else function(given, row.degree)
    wide = x.astype(np.float64)
    exact = _oracle(row.name, row.degree or 0, wide)
    size = np.maximum(np.abs(exact), NEAR_ZERO * envelope(row, wide, exact))
    counts = (size >= SMALLEST) & (np.abs(exact) <= LARGEST)
    size = np.where(counts, np.minimum(size, LARGEST / 2), 1.0)
    unit = np.spacing(size.astype(np.float32)).astype(np.float64)
    difference = got.cpu().numpy().astype(np.float64) - np.where(counts, exact, 0.0)
    ulps = np.where(counts, np.abs(difference) / unit, 0.0)
    worst = int(np.argmax(ulps))
    return float(ulps[worst]), float(x[worst])


def table(points: int, device: str) -> str:
    lines = ["| function | degree | from | to | error | at |", "|---|---:|---:|---:|---:|---:|"]
    for row in ROWS:
        ulps, at = error(row, points, device)
        degree = "" if row.degree is None else row.degree
        lines.append(
            f"| `{row.name}` | {degree} | {row.low:g} | {row.high:g} | {ulps:.2f} | {at:.6g} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda", "mps"], default="cpu")
    parser.add_argument("--points", type=int, default=20001)
    options = parser.parse_args(arguments)
    text = (
        f"On {datetime.date.today()}, torch {torch.__version__}, kernels on {options.device}, "
        f"{options.points} points a row.\n\n{table(options.points, options.device)}\n"
    )
    (DOCS / "_generated" / "special.md").write_text(text)


if __name__ == "__main__":
    main()
