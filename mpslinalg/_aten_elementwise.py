"""The aten operations that our plans do to single elements, and by index; see _aten.py.

Here torch has its own kernels on CUDA: there ours run inside `use("kernels")`, and for what torch
lacks.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mpslinalg import (
    _check,
    _elementwise,
    _elementwise_plan,
    _indexing,
    _indexing_plan,
    _out,
    _route,
    _special_plan,
    special,
)
from mpslinalg._aten import OPERATIONS as OPERATIONS
from mpslinalg._aten import Operation
from mpslinalg._elementwise_plan import COMPARISONS, DIGITS, REALS, WIDE_UNSIGNED

WIDE = frozenset(WIDE_UNSIGNED)


def _may_write(out: Tensor, *tensors: Tensor) -> bool:
    """Whether each element of out= is that of an argument, or far from all."""
    if torch._debug_has_internal_overlap(out) == 1:
        return False
    return not any(_indexing.meet(out, x) and not _same(out, x) for x in tensors)


def _same(a: Tensor, b: Tensor) -> bool:
    return (a.data_ptr(), a.shape, a.stride()) == (b.data_ptr(), b.shape, b.stride())


def _does(
    name: str,
    write: Callable[[Tensor, Tensor], Tensor] = _out.write,
    casts: bool = False,
    apart: Callable[..., bool] = _may_write,
    typed_by_out: bool = False,
    dtypes: frozenset[torch.dtype] = frozenset(),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def enter(run: Callable[..., Any]) -> Callable[..., Any]:
        OPERATIONS[name] = Operation(
            run, None, lambda _: True, write, casts, apart, typed_by_out, dtypes
        )
        return run

    return enter


def _device(*given: Any, torch_lacks: bool = False) -> torch.device | None:
    """Where a call is to run by kernels; None where it is torch's or its tensors are apart.

    Single numbers on the CPU go with tensors that are elsewhere.
    """
    tensors = [x for x in given if isinstance(x, Tensor)]
    devices = {x.device for x in tensors if x.dim() > 0 or not x.is_cpu} or {tensors[0].device}
    if len(devices) > 1:
        return None
    (device,) = devices
    return device if _wanted(device, torch_lacks) else None


def _wanted(device: torch.device, torch_lacks: bool) -> bool:
    mode = _route.mode.name
    return mode == "kernels" or (mode == "auto" and (torch_lacks or device.type != "cuda"))


def _broadcastable(a: Any, b: Any) -> bool:
    numbers = not (isinstance(a, Tensor) and isinstance(b, Tensor))
    return numbers or _check.broadcastable(a.shape, b.shape)


def _in_place(run: Callable[..., Any]) -> Callable[..., Any]:
    """An operation whose result, cast, replaces its first argument."""

    def replace(x: Tensor, *others: Any) -> Any:
        if not _may_write(x, *(o for o in others if isinstance(o, Tensor))):
            return NotImplemented
        result = run(x, *others)
        if result is NotImplemented or result.shape != x.shape:
            return NotImplemented
        return x.copy_(result) if torch.can_cast(result.dtype, x.dtype) else NotImplemented

    return replace


@_does("frexp")
def _frexp(x: Tensor) -> Any:
    if _device(x) is None or x.dtype not in DIGITS:
        return NotImplemented
    if x.numel() == 0:
        return torch.empty_like(x), torch.empty_like(x, dtype=torch.int32)
    return _elementwise_plan.frexp_op(x)


@_does("heaviside")
def _heaviside(x: Tensor, values: Tensor) -> Any:
    device = _device(x, values, torch_lacks=x.dtype in WIDE)
    if device is None or not (
        x.dtype == values.dtype and x.dtype in REALS and _check.broadcastable(x.shape, values.shape)
    ):
        return NotImplemented
    return _elementwise_plan.heaviside_op(
        *torch.broadcast_tensors(x.to(device), values.to(device))  # type: ignore[no-untyped-call]
    )


_does("heaviside_")(_in_place(_heaviside))


def _write_flags(result: Tensor, out: Tensor) -> Tensor:
    return torch.logical_or(result, result, out=out)


def _compares(name: str) -> None:
    def run(x: Tensor, other: Any) -> Any:
        device = _device(x, other, torch_lacks=True)
        if device is None or not _broadcastable(x, other):
            return NotImplemented
        dtype = torch.result_type(x, other)
        if dtype not in REALS:
            return NotImplemented
        number: Any = 0
        if isinstance(other, Tensor):
            x, other = torch.broadcast_tensors(  # type: ignore[no-untyped-call]
                x.to(device, dtype), other.to(device, dtype)
            )
        else:
            x, other, number = x.to(device, dtype), None, other
        return _elementwise_plan.compare_op(x, other, number, name)

    # Every comparison of a program comes by here: those of other dtypes are sent on at once.
    _does(name, _write_flags, casts=True, dtypes=WIDE)(run)
    _does(f"{name}_", dtypes=WIDE)(_in_place(run))


for _name in COMPARISONS:
    _compares(_name)


def _floating(*given: Any) -> tuple[torch.device, torch.dtype, torch.dtype] | None:
    """Device, dtype of the result and dtype in which it is computed; None where it is torch's."""
    device = _device(*given)
    dtype = torch.result_type(*given) if len(given) == 2 else given[0].dtype
    if not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.get_default_dtype()
    if device is None or dtype not in special.DTYPES:
        return None
    return device, dtype, torch.float32 if dtype in _check.HALVES else dtype


def _is_polynomial(name: str) -> None:
    @_does(f"special_{name}", casts=True)
    def run(x: Any, n: Any) -> Any:
        kind = _floating(x, n) if _broadcastable(x, n) else None
        if kind is None:
            return NotImplemented
        device, dtype, computing = kind
        degree = 0
        if not isinstance(x, Tensor):
            x = torch.scalar_tensor(x, dtype=computing, device=device)
        x = x.to(device, computing)
        if isinstance(n, Tensor):
            x, n = torch.broadcast_tensors(x, n.to(device, computing))  # type: ignore[no-untyped-call]
        else:
            degree, n = special.whole(n), None
        return _special_plan.polynomial_op(x, n, degree, name, 0).to(dtype)


for _name in _special_plan.POLYNOMIALS:
    _is_polynomial(_name)


def _of_one(name: str, plan: Callable[[Tensor], Tensor]) -> None:
    @_does(f"special_{name}", casts=True)
    def run(x: Tensor) -> Any:
        kind = _floating(x)
        return NotImplemented if kind is None else plan(x.to(kind[2])).to(kind[1])


_of_one("airy_ai", lambda x: _special_plan.airy_op(x, 0))
_of_one("log_ndtr", lambda x: _special_plan.normal_op(x, "log_ndtr"))
_of_one("ndtri", lambda x: _special_plan.normal_op(x, "ndtri"))


def _fill(result: Tensor, out: Tensor) -> Tensor:
    """As torch's logspace: any shape of so many elements will do."""
    if out.numel() != result.numel():
        out.resize_(result.shape)
    return out.copy_(result.view(out.shape))


@_does("logspace", _fill, typed_by_out=True)
def _logspace(
    start: Any,
    end: Any,
    steps: int,
    base: float = 10.0,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Any:
    start, end = (x.item() if isinstance(x, Tensor) and x.dim() == 0 else x for x in (start, end))
    dtype = dtype or torch.get_default_dtype()
    device = device or torch.device("cpu")
    if (
        pin_memory
        or not _wanted(device, dtype in (torch.bool, *WIDE))
        or not _elementwise.has_kernel(start, end, steps, base, dtype, layout or torch.strided)
    ):
        return NotImplemented
    like = torch.empty(0, dtype=dtype, device=device)
    return _elementwise_plan.logspace_op(like, float(start), float(end), steps, base)


def _indexed(input: Tensor, index: Tensor, *others: Tensor) -> bool:
    devices = {x.device for x in (input, index, *others)}
    return (
        len(devices) == 1
        and _wanted(input.device, False)
        and index.dtype == torch.int64
        and _indexing.indexable(input, index)
    )


@_does("take", apart=_indexing.apart)
def _take(input: Tensor, index: Tensor) -> Any:
    if not _indexed(input, index):
        return NotImplemented
    return _indexing_plan.take_op(input, index, input.dim(), index.dim())


# Of which torch makes put, and the derivatives of take.
@_does("put_")
def _put_(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Any:
    if not (
        _indexed(input, index, source)
        and _indexing.puttable(input, index, source, accumulate)
        and _indexing.apart(input, index, source)
    ):
        return NotImplemented
    source = source.reshape(index.shape)
    _indexing_plan.put_into(input, index, source, accumulate, input.dim(), index.dim())
    return input


@_does("bincount")
def _bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Any:
    given = [input] if weights is None else [input, weights]
    device = _device(*given)
    if device is None or not _indexing.countable(input, weights, minlength):
        return NotImplemented
    return _indexing.counted(input, weights, minlength)
