"""frexp, logspace, heaviside and comparisons: derivatives and public functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import Function

from mpslinalg import _check, _elementwise_plan, _elementwise_route, _op, _out
from mpslinalg._elementwise_plan import COMPARISONS, DIGITS, REALS, WIDE_UNSIGNED
from mpslinalg._repeat import public


class _Frexp(Function):
    """The mantissa is x / 2^e, and e is constant but for jumps."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        parts: tuple[Tensor, Tensor] = _elementwise_plan.frexp_op(x)
        return parts

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])
        ctx.save_for_forward(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Tensor:
        (exponent,) = ctx.saved_tensors
        slope: Tensor = gradient / exponent.to(gradient.dtype).exp2()
        return slope

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> tuple[Tensor, None]:
        (exponent,) = ctx.saved_tensors
        return tangent / exponent.to(tangent.dtype).exp2(), None


_differentiable_frexp = _op.applied(_Frexp)


class _Heaviside(Function):
    """Of x it is constant but for a jump."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, values: Tensor) -> Tensor:
        result: Tensor = _elementwise_plan.heaviside_op(x, values)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (x,) = ctx.saved_tensors
        return torch.zeros_like(gradient), gradient * (x == 0)

    @staticmethod
    def jvp(ctx: Any, _: Tensor | None, tangent: Tensor | None) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.zeros_like(x) if tangent is None else tangent * (x == 0)


_differentiable_heaviside = _op.applied(_Heaviside)


@public
def frexp(input: Tensor, *, out: Any = None) -> Any:
    """Split numbers into a mantissa and a power of two, input = mantissa 2^exponent.

    Same contract as `torch.frexp`. Differences: none.

    Args:
        input: a tensor of any shape and strides; half, bfloat16, float32 or float64.
        out: two tensors to write to.

    Returns:
        mantissa, of the input's dtype, from 1/2 to 1 in magnitude, and exponent, int32. Zero,
        infinity and NaN are their own mantissa and have the exponent 0. The mantissa is
        differentiable.

    Raises:
        RuntimeError: other dtypes.

    One thread an element, on the bits: exact, subnormal numbers included, also on GPUs that flush
    them.
    """
    if not _elementwise_route.kernels(input, torch_lacks=False):
        return torch.frexp(input) if out is None else torch.frexp(input, out=out)
    _check.same_device("frexp", input=input, out=out)
    if not (input.dtype in DIGITS and _check.out(out, (input,), input.dtype, torch.int32)):
        return _check.refuse(torch.frexp, input, out=out)
    run = _differentiable_frexp if _op.tracked(input) else _elementwise_plan.frexp_op
    return _out.named("frexp", run(input), out)


@public
def heaviside(input: Tensor, values: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Compute the step function: 0 where the input is negative, values where zero, else 1.

    Same contract as `torch.heaviside`. Differences: it has a derivative, with regard to the input
    zero, with regard to values where the input is zero; uint16, uint32 and uint64 are taken.

    Args:
        input: a tensor of any shape and strides, of real numbers.
        values: a tensor of the same dtype that broadcasts with it.
        out: a tensor to write to.

    Returns:
        A tensor of the same dtype; of NaN 0, as torch has it.

    Raises:
        RuntimeError: different dtypes, complex numbers, shapes that do not broadcast.

    One thread an element, on the bits.
    """
    pair = (input, values)
    if not _elementwise_route.kernels(input, _lacks_heaviside(input, values)):
        result: Tensor = torch.heaviside(input, values, out=out)
        return result
    if not (
        isinstance(values, Tensor)
        and input.dtype == values.dtype
        and input.dtype in REALS
        and _check.broadcastable(input.shape, values.shape)
        and _check.out(out, pair, input.dtype)
    ):
        refused: Tensor = _check.refuse(torch.heaviside, input, values, out=out)
        return refused
    first = _elementwise_route.first_tensor(input, values)
    _elementwise_route.one_device("heaviside", [input, values], out)
    x, values = torch.broadcast_tensors(input.to(first.device), values.to(first.device))  # type: ignore[no-untyped-call]
    run = _differentiable_heaviside if _op.tracked(x, values) else _elementwise_plan.heaviside_op
    result = run(x, values)
    return result if out is None else _out.write(result, out)


def _lacks_heaviside(input: Any, values: Any) -> bool:
    if not (isinstance(input, Tensor) and isinstance(values, Tensor)):
        return False
    return _op.tracked(input, values) or input.dtype in WIDE_UNSIGNED


def _lacks_comparison(name: str, *given: Any) -> bool:
    """Whether torch cannot compare these; on mps no integers of these types at all."""
    wide = any(isinstance(t, Tensor) and t.dtype in WIDE_UNSIGNED for t in given)
    on_mps = any(isinstance(t, Tensor) and t.device.type == "mps" for t in given)
    return wide and (on_mps or name not in ("eq", "ne"))


def _compare(name: str, input: Any, other: Any, out: Any) -> Any:
    torchs = getattr(torch, name)
    lacks = _lacks_comparison(name, input, other)
    if not _elementwise_route.kernels(input, lacks, on_mps=False):
        return torchs(input, other) if out is None else torchs(input, other, out=out)
    accepted = isinstance(other, Tensor) or _check.number(other)
    dtype = _elementwise_route.result_type(input, other) if accepted else None
    parts = dtype is not None and dtype.is_complex and name in ("eq", "ne")
    given = [t for t in (input, other) if isinstance(t, Tensor)]
    if not (
        (dtype in REALS or parts)
        and _check.broadcastable(given[0].shape, given[-1].shape)
        and (out is None or isinstance(out, Tensor))
    ):
        return _check.refuse(torchs, input, other, out=out)
    _elementwise_route.one_device(name, given, out)
    first = _elementwise_route.first_tensor(*given)
    x = input.detach().to(first.device, dtype)
    if parts and not isinstance(other, Tensor):
        other = torch.scalar_tensor(other, dtype=dtype, device=first.device)
    number = 0
    if isinstance(other, Tensor):
        other = other.detach().to(first.device, dtype)
        x, other = torch.broadcast_tensors(x, other)  # type: ignore[no-untyped-call]
    else:
        number, other = other, None
    if parts:
        x, other = (torch.view_as_real(t.resolve_conj()) for t in (x, other))
    result: Tensor = _elementwise_plan.compare_op(x, other, number, name)
    if parts:
        result = result.all(-1) if name == "eq" else result.any(-1)
    return result if out is None else torch.ne(result, False, out=out)


_RELATIONS = {"eq": "=", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


class Comparison(Protocol):
    """A comparison, element by element."""

    def __call__(
        self, input: Tensor, other: Tensor | float, *, out: Tensor | None = None
    ) -> Tensor: ...


def _comparison(name: str) -> Any:
    """The public function of one comparison."""

    def function(input: Any, other: Any, *, out: Any = None) -> Any:
        return _compare(name, input, other, out)

    function.__name__ = name
    function.__qualname__ = name
    complex_numbers = "real or complex" if name in ("eq", "ne") else "real"
    function.__doc__ = f"""Compute input {_RELATIONS[name]} other, element by element.

    Same contract as `torch.{name}`. Differences: uint16, uint32 and uint64 are compared on every
    device.

    Args:
        input: a tensor of any shape and strides, of {complex_numbers} numbers.
        other: a tensor that broadcasts with it, or a number, which is converted to the dtype of
            the comparison; an integer out of its range wraps, as in torch.
        out: a tensor to write to.

    Returns:
        A bool tensor.

    Raises:
        RuntimeError: shapes that do not broadcast; uint16, uint32 or uint64 beside another dtype.

    One thread an element, on the bits: subnormal numbers differ from zero also on GPUs that flush
    them. On mps the kernels serve the dtypes that torch lacks there, uint16, uint32 and uint64.
    """
    return public(function)


eq: Comparison = _comparison("eq")
ne: Comparison = _comparison("ne")
lt: Comparison = _comparison("lt")
le: Comparison = _comparison("le")
gt: Comparison = _comparison("gt")
ge: Comparison = _comparison("ge")


def has_kernel(start: Any, end: Any, steps: Any, base: Any, dtype: Any, layout: Any) -> bool:
    """Whether a logspace has a kernel: real powers of a positive number."""
    numbers = all(type(x) in (int, float) for x in (start, end, base))
    return (
        numbers
        and type(steps) is int
        and 0 <= steps < 2**63
        and dtype in REALS
        and layout is torch.strided
        and _elementwise_plan.has_exponents(start, end, base)
        and (dtype.is_floating_point or _in_range(start, end, dtype))
    )


def _in_range(start: float, end: float, dtype: torch.dtype) -> bool:
    if dtype == torch.bool:
        return True
    info = torch.iinfo(dtype)
    return all(info.min <= int(x) <= info.max for x in (start, end))


def logspace(
    start: float | Tensor,
    end: float | Tensor,
    steps: int,
    base: float = 10.0,
    *,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.strided,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Compute base^start ... base^end, with exponents that are evenly spaced.

    Same contract as `torch.logspace`. Differences: bool, uint16, uint32 and uint64 are taken;
    floating-point results are rounded once, of start, end and base as they are given. Integers are
    powers rounded to 53 bits, then cut off, as torch has them, and start and end are cut off first.

    Args:
        start, end: the first and the last exponent, numbers or tensors of one number.
        steps: how many.
        base: of the powers.
        out: a tensor to write to.
        dtype: of the result; the default dtype, or the complex one beside it.
        layout, device: of the result.
        requires_grad: whether the result is a leaf that gathers gradients.

    Returns:
        A tensor of `steps` elements. An integer that the dtype does not hold has no certain value.

    Raises:
        RuntimeError: steps < 0, tensors of more than one number, an `out` of another dtype.

    One thread an element, in fixed point of 64 bits. Where base is no positive finite number or
    the powers are complex, `torch.logspace` runs on the same device, in every mode.
    """
    wanted = dtype or (torch.get_default_dtype() if out is None else out.dtype)
    # With memory, so that the call is recorded.
    like = torch.empty(
        1,
        dtype=wanted if isinstance(wanted, torch.dtype) else None,
        device=device if out is None else out.device,
    )
    if not _elementwise_route.kernels(like, _torch_lacks_dtype(out, dtype)):
        return _torchs_logspace(start, end, steps, base, out, dtype, layout, device, requires_grad)
    start, end = (x.item() if isinstance(x, Tensor) and x.dim() == 0 else x for x in (start, end))
    fits = out is None or (dtype in (None, out.dtype) and not requires_grad)
    if not (
        fits
        and has_kernel(start, end, steps, base, wanted, layout)
        and (wanted.is_floating_point or not requires_grad)
    ):
        return _torchs_logspace(start, end, steps, base, out, dtype, layout, device, requires_grad)
    powers: Tensor = _elementwise_plan.logspace_op(like, start, end, steps, base)
    if out is not None:
        # As in torch: any shape that holds as many will do, and no warning tells of another size.
        if out.numel() != powers.numel():
            out.resize_(powers.shape)
        return out.copy_(powers.view(out.shape))
    return powers.requires_grad_() if requires_grad else powers


def _torch_lacks_dtype(out: Any, dtype: Any) -> bool:
    return (dtype if out is None else out.dtype) in (torch.bool, *WIDE_UNSIGNED)


def _torchs_logspace(
    start: Any,
    end: Any,
    steps: Any,
    base: Any,
    out: Any,
    dtype: Any,
    layout: Any,
    device: Any,
    requires_grad: Any,
) -> Tensor:
    # Only what was given, so that an error names nothing else.
    options: dict[str, Any] = {"requires_grad": True} if requires_grad else {}
    for key, value in {"out": out, "dtype": dtype, "device": device}.items():
        if value is not None:
            options[key] = value
    if layout is not torch.strided:
        options["layout"] = layout
    bases = () if type(base) is float and base == 10 else (base,)
    result: Tensor = torch.logspace(start, end, steps, *bases, **options)
    return result


def describe(name: str, given: Mapping[str, Any]) -> str:
    """What a call runs, for `which`."""
    if name == "logspace":
        out, dtype = given["out"], given["dtype"]
        first = torch.empty(0, device=given["device"], dtype=dtype) if out is None else out
        wanted = dtype or (torch.get_default_dtype() if out is None else out.dtype)
        start, end, steps, base = (given[key] for key in ("start", "end", "steps", "base"))
        if not has_kernel(start, end, steps, base, wanted, given["layout"]):
            return f"torch on {first.device.type}: no kernel for this base or dtype"
        return _elementwise_route.describe(first, _torch_lacks_dtype(out, dtype), "logspace")
    tensors = [value for key, value in given.items() if key != "out"]
    if name in COMPARISONS:
        lacks = _lacks_comparison(name, *tensors)
        return _elementwise_route.describe(tensors[0], lacks, "elementwise_compare", on_mps=False)
    lacks = name == "heaviside" and _lacks_heaviside(*tensors)
    return _elementwise_route.describe(tensors[0], lacks, f"elementwise_{name}")
