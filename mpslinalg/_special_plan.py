"""Launch plans of the special functions."""

import math
from typing import NamedTuple

from torch import Tensor

from mpslinalg import _op
from mpslinalg._elementwise_plan import fake_like, flat, result_like, run
from mpslinalg._engines import kernel, scalar

# Degrees from here on have no answer: a recurrence would run for minutes.
MAX_DEGREE = 2**30
TOO_LARGE = -2

GEGENBAUER, LAGUERRE, HERMITE = range(3)
FIRST, SECOND, THIRD, FOURTH = range(4)
CHEBYSHEV = {
    f"{prefix}chebyshev_polynomial_{letter}": (kind, shifted)
    for shifted, prefix in enumerate(("", "shifted_"))
    for kind, letter in enumerate("tuvw")
}
POLYNOMIALS = (
    *CHEBYSHEV,
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
)


class Recurrence(NamedTuple):
    """What the derivative of an order is a multiple of; see the shader."""

    family: int
    parameter: int
    previous: int = 0
    falling: int = 0
    factor: float = 1.0


def recurrence(name: str, order: int) -> Recurrence:
    """The derivative of a polynomial as another one, of a degree that is less by `order`."""
    if name == "laguerre_polynomial_l":
        return Recurrence(LAGUERRE, order, factor=(-1.0) ** order)
    if name == "hermite_polynomial_h":
        return Recurrence(HERMITE, 2, falling=order, factor=2.0**order)
    if name == "hermite_polynomial_he":
        return Recurrence(HERMITE, 1, falling=order)
    if name == "legendre_polynomial_p":
        odd = float(math.prod(range(1, 2 * order, 2)))
        return Recurrence(GEGENBAUER, 2 * order + 1, factor=odd)
    kind, shifted = CHEBYSHEV[name]
    inner = 2.0**order if shifted else 1.0
    if kind == FIRST:
        factor = inner * 2 ** (order - 1) * math.factorial(order - 1)
        return Recurrence(GEGENBAUER, 2 * order, falling=1, factor=factor)
    previous = {SECOND: 0, THIRD: -1, FOURTH: 1}[kind]
    factor = inner * 2**order * math.factorial(order)
    return Recurrence(GEGENBAUER, 2 * order + 2, previous, factor=factor)


def by_powers(name: str, order: int) -> bool:
    """Whether a derivative of this order is computed in a number of steps like log n."""
    return name in CHEBYSHEV and (order == 0 or (order == 1 and CHEBYSHEV[name][0] == FIRST))


def polynomial(x: Tensor, n: Tensor | None, degree: int, name: str, order: int) -> Tensor:
    """The derivative of an order of the polynomial of degree n, or of `degree` without n."""
    if n is None:
        (x,) = flat(x)
        n = x
        several = 0
    else:
        x, n = flat(x, n)
        several = 1
    degree = TOO_LARGE if degree >= MAX_DEGREE else max(degree, -1)
    values = result_like(x)
    kind, shifted = CHEBYSHEV.get(name, (0, 0))
    if by_powers(name, order):
        variant = kernel("special_polynomial", "special_chebyshev", scalar(x.dtype))
        run(variant, (x, n, values), several, degree, kind, shifted, order)
    else:
        row = recurrence(name, order)
        variant = kernel("special_polynomial", "special_recurrence", scalar(x.dtype), row.family)
        run(
            variant, (x, n, values),
            several, degree, shifted, order, row.parameter, row.previous, row.falling, row.factor,
        )  # fmt: skip
    return values


def _polynomial_fake(x: Tensor, n: Tensor | None, degree: int, name: str, order: int) -> Tensor:
    return fake_like(x) if n is None else fake_like(x, n)


polynomial_op = _op.define(
    "special_polynomial(Tensor x, Tensor? n, int degree, str name, int order) -> Tensor",
    polynomial,
    _polynomial_fake,
)


def airy(x: Tensor, order: int) -> Tensor:
    """Ai, or of order 1 its derivative."""
    (x,) = flat(x)
    values = result_like(x)
    run(kernel("special_airy", "special_airy", scalar(x.dtype)), (x, values), order)
    return values


def _airy_fake(x: Tensor, order: int) -> Tensor:
    return fake_like(x)


def normal(x: Tensor, name: str) -> Tensor:
    """log_ndtr, ndtri or hazard."""
    (x,) = flat(x)
    values = result_like(x)
    run(kernel("special_normal", f"special_{name}", scalar(x.dtype)), (x, values))
    return values


def _normal_fake(x: Tensor, name: str) -> Tensor:
    return fake_like(x)


airy_op = _op.define("special_airy(Tensor x, int order) -> Tensor", airy, _airy_fake)
normal_op = _op.define("special_normal(Tensor x, str name) -> Tensor", normal, _normal_fake)
