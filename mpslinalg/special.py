"""Functions of torch.special as kernels, with the derivatives that torch lacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import Function

from mpslinalg import _check, _elementwise_route, _op, _out, _special_plan
from mpslinalg._repeat import public

__all__ = [
    "airy_ai",
    "chebyshev_polynomial_t",
    "chebyshev_polynomial_u",
    "chebyshev_polynomial_v",
    "chebyshev_polynomial_w",
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
    "log_ndtr",
    "ndtri",
    "shifted_chebyshev_polynomial_t",
    "shifted_chebyshev_polynomial_u",
    "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w",
]

DTYPES = (torch.float32, torch.float64, *_check.HALVES)
# Where x + phi/Phi of a normal variable has lost as many digits as its series lacks.
SERIES_FROM = {torch.float32: -12.0, torch.float64: -60.0}


class _Polynomial(Function):
    """The derivative of an order with regard to x; its own is that of the next."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, n: Tensor | None, degree: int, name: str, order: int) -> Tensor:
        values: Tensor = _special_plan.polynomial_op(x, n, degree, name, order)
        return values

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, n, ctx.degree, ctx.name, ctx.order = inputs
        ctx.save_for_backward(x, n)
        ctx.save_for_forward(x, n)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        return gradient * _polynomial_slope(ctx), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *others: None) -> Tensor:
        return tangent * _polynomial_slope(ctx)


def _polynomial_slope(ctx: Any) -> Tensor:
    x, n = ctx.saved_tensors
    return _polynomial(x, n, ctx.degree, ctx.name, ctx.order + 1)


_differentiable_polynomial = _op.applied(_Polynomial)


def _polynomial(x: Tensor, n: Tensor | None, degree: int, name: str, order: int) -> Tensor:
    run = _differentiable_polynomial if _op.tracked(x) else _special_plan.polynomial_op
    values: Tensor = run(x, n, degree, name, order)
    return values


class _Airy(Function):
    """Ai'' = x Ai."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, order: int) -> Tensor:
        values: Tensor = _special_plan.airy_op(x, order)
        return values

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.order = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * _airy_slope(ctx.saved_tensors[0], ctx.order), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return tangent * _airy_slope(ctx.saved_tensors[0], ctx.order)


_differentiable_airy = _op.applied(_Airy)


def _airy(x: Tensor, order: int = 0) -> Tensor:
    values: Tensor = (_differentiable_airy if _op.tracked(x) else _special_plan.airy_op)(x, order)
    return values


def _airy_slope(x: Tensor, order: int) -> Tensor:
    return _airy(x, 1) if order == 0 else x * _airy(x, 0)


class _Normal(Function):
    """log_ndtr, ndtri, and hazard, which is phi / Phi, the derivative of the first."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, name: str) -> Tensor:
        values: Tensor = _special_plan.normal_op(x, name)
        return values

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.name = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * _normal_slope(ctx.saved_tensors[0], ctx.name), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return tangent * _normal_slope(ctx.saved_tensors[0], ctx.name)


_differentiable_normal = _op.applied(_Normal)


def _normal(x: Tensor, name: str) -> Tensor:
    run = _differentiable_normal if _op.tracked(x) else _special_plan.normal_op
    values: Tensor = run(x, name)
    return values


def _normal_slope(x: Tensor, name: str) -> Tensor:
    if name == "log_ndtr":
        return _normal(x, "hazard")
    if name == "ndtri":
        return math.sqrt(2 * math.pi) * (_normal(x, "ndtri").square() / 2).exp()
    hazard = _normal(x, "hazard")
    far = SERIES_FROM[x.dtype]
    inverse = -1 / x.clamp(max=far)
    square = inverse.square()
    series = inverse * (1 - square * (2 - square * (10 - square * (74 - square * 706))))
    return -hazard * torch.where(x < far, series, x + hazard)


class PolynomialFunction(Protocol):
    """A polynomial of degree n."""

    def __call__(
        self, x: Tensor | float, n: Tensor | float, *, out: Tensor | None = None
    ) -> Tensor: ...


def _polynomial_function(name: str, symbol: str, recurrence: str, accuracy: str) -> Any:
    """The public function of one family."""
    torchs = getattr(torch.special, name)

    def function(x: Any, n: Any, *, out: Any = None) -> Any:
        first = _elementwise_route.first_tensor(x, n)
        if not _elementwise_route.kernels(first, _lacks_derivative(x)):
            return torchs(x, n) if out is None else torchs(x, n, out=out)
        given = [g for g in (x, n) if isinstance(g, Tensor)]
        accepted = all(
            isinstance(g, Tensor) or (_check.number(g) and not isinstance(g, complex))
            for g in (x, n)
        )
        dtype = _elementwise_route.floating(x, n) if accepted else None
        _elementwise_route.one_device(f"special_{name}", given, out)
        if not (
            dtype in DTYPES
            and _check.broadcastable(given[0].shape, given[-1].shape)
            and _holds(out, dtype)
        ):
            return _check.refuse(torchs, x, n, out=out)
        computing = torch.float32 if dtype in _check.HALVES else dtype
        if isinstance(x, Tensor):
            x = x.to(first.device, computing)
        else:
            x = torch.scalar_tensor(x, dtype=computing, device=first.device)
        degree = 0
        if isinstance(n, Tensor):
            x, n = torch.broadcast_tensors(  # type: ignore[no-untyped-call]
                x, n.detach().to(first.device, computing)
            )
        else:
            degree, n = whole(n), None
        if out is not None:
            return _write(_polynomial(x.detach(), n, degree, name, 0).to(dtype), out)
        return _polynomial(x, n, degree, name, 0).to(dtype)

    function.__name__ = name
    function.__qualname__ = name
    function.__doc__ = f"""Compute the polynomial {symbol} of degree n.

    {recurrence}

    Same contract as `torch.special.{name}`. Differences: it has derivatives with regard to x of
    every order; large degrees and zeros keep their digits; half precision is taken; what overflows
    is infinite, with its sign.

    Args:
        x: real numbers in a tensor of any shape and strides, or one number.
        n: the degree, a tensor that broadcasts with x, or a number. A real degree is cut off to
            an integer, as torch does, where SciPy continues the polynomial to a function of a
            real degree. Of a negative degree the polynomial is 0, of 2^30 and more NaN.
        out: a tensor to write to.

    Returns:
        A tensor of torch's shape, strides and dtype; integers give the default dtype. half and
        bfloat16 are computed in float32.

    Raises:
        RuntimeError: shapes that do not broadcast, complex numbers, an `out` that cannot hold
            floating-point numbers.

    One thread an element. {accuracy}
    """
    return public(function)


def whole(n: float) -> int:
    if not n > -1:
        return -1
    return int(min(n, _special_plan.MAX_DEGREE))


def _holds(out: Any, dtype: torch.dtype) -> bool:
    """Whether out= can hold it, for functions of which torch knows no derivative.

    So it asks nobody for a gradient.
    """
    return out is None or (isinstance(out, Tensor) and torch.can_cast(dtype, out.dtype))


def _write(values: Tensor, out: Tensor) -> Tensor:
    """Write what has no derivative to out=, which may require one."""
    with torch.no_grad():
        return _out.write(values, out)


def _lacks_derivative(x: Any) -> bool:
    return isinstance(x, Tensor) and _op.tracked(x)


def _of_one(
    name: str, x: Any, out: Any, torch_lacks: bool, torchs: Any, kernel: Callable[[Tensor], Tensor]
) -> Any:
    """A function of one tensor, through its kernel or torch's own."""
    if not _elementwise_route.kernels(x, torch_lacks):
        return torchs(x) if out is None else torchs(x, out=out)
    dtype = _elementwise_route.floating(x)
    _elementwise_route.one_device(f"special_{name}", [x], out)
    known = name != "airy_ai"
    fits = _elementwise_route.fits(out, dtype, x) if known else _holds(out, dtype)
    if not (dtype in DTYPES and fits):
        return _check.refuse(torchs, x, out=out)
    computing = torch.float32 if dtype in _check.HALVES else dtype
    x = x.to(computing)
    if out is not None:
        return _write(kernel(x.detach()).to(dtype), out)
    return kernel(x).to(dtype)


@public
def airy_ai(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Compute the Airy function Ai(x).

    Same contract as `torch.special.airy_ai`. Differences: it has derivatives of every order; it
    oscillates on down to x = -65536, where torch gives digits that mean nothing below -1000; half
    precision is taken.

    Args:
        x: real numbers, a tensor of any shape and strides.
        out: a tensor to write to.

    Returns:
        A tensor of torch's shape, strides and dtype; integers give the default dtype, half and
        bfloat16 are computed in float32. NaN below -65536, where a float32 has no digit left of the
        phase.

    Raises:
        RuntimeError: complex numbers, an `out` that cannot hold floating-point numbers.

    One thread an element. In float32 at most 2 units in the last place from -1000 on; near a zero,
    of 1/1000 of the envelope |x|^(-1/4) / sqrt(pi).

    Source: NIST Digital Library of Mathematical Functions, sections 9.4, 9.7 and 9.8.
    """
    values: Tensor = _of_one("airy_ai", x, out, _lacks_derivative(x), torch.special.airy_ai, _airy)
    return values


@public
def log_ndtr(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Compute the logarithm of the normal distribution function.

    Same contract as `torch.special.log_ndtr`. Differences: half precision is taken.

    Args:
        input: real numbers, a tensor of any shape and strides.
        out: a tensor to write to.

    Returns:
        A tensor of torch's shape, strides and dtype; integers give the default dtype, half and
        bfloat16 are computed in float32. Differentiable to every order.

    Raises:
        RuntimeError: complex numbers, an `out` that cannot hold floating-point numbers.

    One thread an element. In float32 at most 3 units in the last place; results of less than 1e-38
    are zero.

    Source: Mills' ratio times x + 3 as a polynomial of (x - 3) / (x + 3).
    """
    values: Tensor = _of_one("log_ndtr", input, out, False, torch.special.log_ndtr, _log_ndtr)
    return values


@public
def ndtri(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Compute the quantile of the normal distribution: x such that P(X < x) is the input.

    Same contract as `torch.special.ndtri`. Differences: half precision is taken.

    Args:
        input: real numbers that are probabilities, a tensor of any shape and strides.
        out: a tensor to write to.

    Returns:
        A tensor of torch's shape, strides and dtype; integers give the default dtype, half and
        bfloat16 are computed in float32. NaN outside of [0, 1]. Differentiable to every order.

    Raises:
        RuntimeError: complex numbers, an `out` that cannot hold floating-point numbers.

    One thread an element. In float32 at most 4 units in the last place for inputs from 1e-37 on.

    Source: Wichura, "Algorithm AS 241" (1988), for the variables of the approximations.
    """
    values: Tensor = _of_one("ndtri", input, out, False, torch.special.ndtri, _ndtri)
    return values


def _log_ndtr(x: Tensor) -> Tensor:
    return _normal(x, "log_ndtr")


def _ndtri(x: Tensor) -> Tensor:
    return _normal(x, "ndtri")


_CHEBYSHEV_ACCURACY = """Powers of x + sqrt(x^2 - 1) by squaring, log2(n) steps in arithmetic of
    two numbers. In float32 at most 2 units in the last place for n up to 10^5; near a zero, of
    1/1000 of the largest value around it.

    Source: DLMF, section 18.5; Joldes, Muller and Popescu (2017) for the arithmetic."""
_RECURRENCE_ACCURACY = """The recurrence in arithmetic of two numbers, n steps. In float32 at most 2
    units in the last place for n up to 1000; near a zero, of 1/1000 of the largest value around it.

    Source: DLMF, section 18.9; Joldes, Muller and Popescu (2017) for the arithmetic."""


def _chebyshev(name: str) -> Any:
    kind, shifted = _special_plan.CHEBYSHEV[name]
    letter = "TUVW"[kind]
    meaning = (
        "T_n(cos a) = cos(n a)",
        "U_n(cos a) = sin((n + 1) a) / sin(a)",
        "V_n(cos a) = cos((n + 1/2) a) / cos(a / 2)",
        "W_n(cos a) = sin((n + 1/2) a) / sin(a / 2)",
    )[kind]
    if shifted:
        meaning = f"{letter}*_n(x) = {letter}_n(2 x - 1), {meaning}"
    return _polynomial_function(
        name, f"{letter}{'*' if shifted else ''}_n(x)", f"{meaning}.", _CHEBYSHEV_ACCURACY
    )


chebyshev_polynomial_t: PolynomialFunction = _chebyshev("chebyshev_polynomial_t")
chebyshev_polynomial_u: PolynomialFunction = _chebyshev("chebyshev_polynomial_u")
chebyshev_polynomial_v: PolynomialFunction = _chebyshev("chebyshev_polynomial_v")
chebyshev_polynomial_w: PolynomialFunction = _chebyshev("chebyshev_polynomial_w")
shifted_chebyshev_polynomial_t: PolynomialFunction = _chebyshev("shifted_chebyshev_polynomial_t")
shifted_chebyshev_polynomial_u: PolynomialFunction = _chebyshev("shifted_chebyshev_polynomial_u")
shifted_chebyshev_polynomial_v: PolynomialFunction = _chebyshev("shifted_chebyshev_polynomial_v")
shifted_chebyshev_polynomial_w: PolynomialFunction = _chebyshev("shifted_chebyshev_polynomial_w")
hermite_polynomial_h: PolynomialFunction = _polynomial_function(
    "hermite_polynomial_h",
    "H_n(x) of the physicists",
    "H_(n+1) = 2 x H_n - 2 n H_(n-1).",
    _RECURRENCE_ACCURACY,
)
hermite_polynomial_he: PolynomialFunction = _polynomial_function(
    "hermite_polynomial_he",
    "He_n(x) of the probabilists",
    "He_(n+1) = x He_n - n He_(n-1).",
    _RECURRENCE_ACCURACY,
)
laguerre_polynomial_l: PolynomialFunction = _polynomial_function(
    "laguerre_polynomial_l",
    "L_n(x)",
    "(n + 1) L_(n+1) = (2 n + 1 - x) L_n - n L_(n-1).",
    _RECURRENCE_ACCURACY,
)
legendre_polynomial_p: PolynomialFunction = _polynomial_function(
    "legendre_polynomial_p",
    "P_n(x)",
    "(n + 1) P_(n+1) = (2 n + 1) x P_n - n P_(n-1).",
    _RECURRENCE_ACCURACY,
)


def describe(name: str, given: Mapping[str, Any]) -> str:
    """What a call runs, for `which`."""
    first = _elementwise_route.first_tensor(*given.values())
    x = next(iter(given.values()))
    lacks = name not in ("log_ndtr", "ndtri") and _lacks_derivative(x)
    kernel = "special_airy" if name == "airy_ai" else f"special_{name}"
    if name in _special_plan.POLYNOMIALS:
        by_powers = _special_plan.by_powers(name, 0)
        kernel = "special_chebyshev" if by_powers else "special_recurrence"
    return _elementwise_route.describe(first, lacks, kernel)
