"""Write shaders/special_fits.h, and print the errors of what is in it.

python docs/special_coefficients.py

Each is a polynomial or a quotient of two that meets the function at Chebyshev points, which is
close to the best one. mpmath computes the function, in 60 digits.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import mpmath as mp

mp.mp.dps = 60
Function = Callable[[mp.mpf], mp.mpf]


def fit(f: Function, low: float, high: float, top: int, bottom: int) -> list[mp.mpf]:
    """p_0 ... p_top, q_1 ... q_bottom of p / q with q_0 = 1."""
    count = top + bottom + 1
    points = [
        (mp.mpf(low) + high + (mp.mpf(high) - low) * mp.cos(mp.pi * (2 * k + 1) / (2 * count))) / 2
        for k in range(count)
    ]
    rows, right = [], []
    for t in points:
        value = f(t)
        rows.append([t**j for j in range(top + 1)] + [-value * t**j for j in range(1, bottom + 1)])
        right.append(value)
    return list(mp.lu_solve(mp.matrix(rows), mp.matrix(right)))


def error(f: Function, low: float, high: float, top: int, found: Sequence[mp.mpf]) -> float:
    worst = mp.mpf(0)
    p, q = found[: top + 1], [mp.mpf(1), *found[top + 1 :]]
    for k in range(400):
        t = mp.mpf(low) + (mp.mpf(high) - low) * (k + mp.mpf(1) / 3) / 400
        approximate = mp.polyval(p[::-1], t) / mp.polyval(q[::-1], t)
        worst = max(worst, abs(approximate / f(t) - 1))
    return float(worst)


def x_of(zeta: mp.mpf) -> mp.mpf:
    return (3 * zeta / 2) ** (mp.mpf(2) / 3)


def airy_decay(v: mp.mpf) -> mp.mpf:
    """(f - 1) / v, f = 2 sqrt(pi) x^(1/4) exp(zeta) Ai(x), v = 1 / zeta."""
    x = x_of(1 / v)
    f = 2 * mp.sqrt(mp.pi) * mp.airyai(x) * x ** mp.mpf("0.25") * mp.exp(1 / v)
    return (f - 1) / v


def airy_decay_prime(v: mp.mpf) -> mp.mpf:
    """The same, f = -2 sqrt(pi) x^(-1/4) exp(zeta) Ai'(x)."""
    x = x_of(1 / v)
    f = -2 * mp.sqrt(mp.pi) * mp.airyai(x, derivative=1) / x ** mp.mpf("0.25") * mp.exp(1 / v)
    return (f - 1) / v


def _wave(t: mp.mpf, order: int) -> tuple[mp.mpf, mp.mpf]:
    """(f - 1) / t and (phase zeta - limit) / t, t = 1 / zeta^2.

    Ai(-z) = f z^(-1/4) / sqrt(pi) sin(zeta + pi/4 - phase), or the same of the derivative,
    Ai'(-z) = -f z^(1/4) / sqrt(pi) cos(zeta + pi/4 - phase).
    """
    zeta = 1 / mp.sqrt(t)
    z = x_of(zeta)
    a = mp.airyai(-z, derivative=order)
    b = mp.airybi(-z, derivative=order)
    scale = z ** mp.mpf("0.25") if order == 0 else z ** mp.mpf("-0.25")
    angle = mp.atan2(a, b) if order == 0 else mp.atan2(b, -a)
    phase = zeta + mp.pi / 4 - angle
    limit = mp.mpf(5) / 72 if order == 0 else -mp.mpf(7) / 72
    phase -= 2 * mp.pi * mp.nint(phase / (2 * mp.pi))
    return (mp.hypot(a, b) * scale * mp.sqrt(mp.pi) - 1) / t, (phase * zeta - limit) / t


def mills(u: mp.mpf) -> mp.mpf:
    """(f(x) - f(3)) / u, f = (x + 3) exp(x^2 / 2) P(X > x) of a normal X, u = (x - 3) / (x + 3)."""

    def f(x: mp.mpf) -> mp.mpf:
        return (x + 3) * mp.exp(x * x / 2) * mp.erfc(x / mp.sqrt(2)) / 2

    return (f(3 * (1 + u) / (1 - u)) - f(mp.mpf(3))) / u


def ndtri(p: mp.mpf) -> mp.mpf:
    return mp.sqrt(2) * mp.erfinv(2 * p - 1)


def central(s: mp.mpf) -> mp.mpf:
    """(ndtri(1/2 + q) / q - sqrt(2 pi)) / q^2, s = 5/32 - q^2."""
    q = mp.sqrt(mp.mpf(5) / 32 - s)
    return (ndtri(mp.mpf(1) / 2 + q) / q - mp.sqrt(2 * mp.pi)) / q**2


def tail(w: mp.mpf) -> mp.mpf:
    """-ndtri(exp(-w^2 / 2))."""
    log_p = -w * w / 2
    x = w - mp.log(w * mp.sqrt(2 * mp.pi)) / w if w > 2 else mp.mpf(1)
    return mp.findroot(lambda x: mp.log(mp.erfc(x / mp.sqrt(2)) / 2) - log_p, x)


# Name, function, ends, where the variable has its origin, degrees of the quotient.
FITS: list[tuple[str, Function, float, float, float, int, int]] = [
    ("airy_decay", airy_decay, 1e-9, 1 / 2.25, 0, 7, 7),
    ("airy_decay_prime", airy_decay_prime, 1e-9, 1 / 2.25, 0, 7, 7),
    ("airy_modulus", lambda t: _wave(t, 0)[0], 1e-9, 2.25**-2, 0, 9, 9),
    ("airy_phase", lambda t: _wave(t, 0)[1], 1e-9, 2.25**-2, 0, 9, 9),
    ("airy_modulus_prime", lambda t: _wave(t, 1)[0], 1e-9, 2.25**-2, 0, 9, 9),
    ("airy_phase_prime", lambda t: _wave(t, 1)[1], 1e-9, 2.25**-2, 0, 9, 9),
    ("normal_mills", mills, -1, 1 - 1e-9, 0, 25, 0),
    ("normal_central", central, 0.15625 - 0.391**2, 0.15625 - 1e-9, 0, 7, 7),
    ("normal_tail", tail, 2.08, 6, 2, 8, 8),
    ("normal_far_tail", tail, 6, 39, 6, 8, 8),
]
HEADER = """\
// Quotients of polynomials that meet functions at Chebyshev points. Written by
// docs/special_coefficients.py, which says of what.
"""


def horner(letter: str, coefficients: Sequence[mp.mpf]) -> list[str]:
    """The lines that evaluate a polynomial."""
    first, *others = (mp.nstr(c, 18) for c in reversed(coefficients))
    return [f"  T {letter} = T({first});"] + [
        f"  {letter} = fma({letter}, t, T({c}));" for c in others
    ]


def function(name: str, found: Sequence[mp.mpf], top: int) -> str:
    lines = [f"template <typename T> inline T {name}(T t) {{", *horner("p", found[: top + 1])]
    if len(found) > top + 1:
        lines += [*horner("q", [mp.mpf(1), *found[top + 1 :]]), "  return p / q;", "}"]
    else:
        lines += ["  return p;", "}"]
    return "\n".join(lines) + "\n"


def main() -> None:
    pieces = [HEADER]
    for name, f, low, high, origin, top, bottom in FITS:

        def shifted(t: mp.mpf, f: Function = f, origin: float = origin) -> mp.mpf:
            return f(t + mp.mpf(origin))

        ends = mp.mpf(low) - mp.mpf(origin), mp.mpf(high) - mp.mpf(origin)
        found = fit(shifted, *ends, top, bottom)
        print(f"{name}: {error(shifted, *ends, top, found):.1e}")
        pieces.append(function(name, found, top))
    path = Path(__file__).resolve().parent.parent / "shaders" / "special_fits.h"
    path.write_text("\n".join(pieces))


if __name__ == "__main__":
    main()
