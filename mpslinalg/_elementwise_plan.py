"""Launch plans of elementwise operations, and what those of special functions share with them."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from mpslinalg import _op
from mpslinalg._engines import Kernel, empty, kernel, scalar
from mpslinalg._indexing_plan import MOVED, dense, layout, moved

# Threads, or elements, of one launch; larger tensors take several.
MAX_THREADS = 2**31
GROUP = 256
# Elements of a thread, one by one with those of the rest of its simdgroup; as in elementwise.metal.
PER_THREAD = 8


def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors of one shape for kernels that walk memory: of the same strides, without gaps."""
    tensors = tuple(t.resolve_neg() if t.is_neg() else t for t in tensors)
    first = tensors[0]
    if all(t.is_contiguous() for t in tensors):
        return tensors
    if dense(first) and all(t.stride() == first.stride() for t in tensors):
        return tensors
    strides = _result_strides(*tensors)
    return tuple(_with_strides(t, strides) for t in tensors)


def _result_strides(*tensors: Tensor) -> tuple[int, ...]:
    # Imported late: it takes a second, and few calls need it.
    from torch._prims_common import compute_elementwise_output_strides

    return tuple(compute_elementwise_output_strides(*tensors))


def _with_strides(x: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The elements of x at other strides without gaps, by a launch that can be recorded."""
    if x.stride() == strides:
        return x
    outer_first = sorted(range(x.dim()), key=strides.__getitem__, reverse=True)
    where = layout(x.permute(outer_first))
    count = x.numel()
    if where is None or count > MAX_THREADS:
        return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)
    elements = moved(x)
    result = empty((count,), x, row_major=True)
    kernel("copy", "copy_strided", MOVED[x.element_size()][0])(
        elements, result.view(elements.dtype), *where, threads=(count,), group=(GROUP,)
    )
    return result.as_strided(x.shape, strides)


def result_like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Uninitialised memory of the shape and strides of what `flat` returned."""
    if x.is_contiguous():
        return empty(x.shape, x, dtype, row_major=True)
    return empty((x.numel(),), x, dtype, row_major=True).as_strided(x.shape, x.stride())


def fake_like(*tensors: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """An empty tensor with the strides that results have."""
    first = tensors[0]
    strides = first.stride() if first.is_contiguous() else _result_strides(*tensors)
    return torch.empty_strided(
        first.shape, strides, dtype=dtype or first.dtype, device=first.device
    )


def run(variant: Kernel, tensors: tuple[Tensor, ...], *values: int | float) -> None:
    """Launch a kernel with a thread for each element."""
    for part in _parts(tensors):
        variant(*part, *values, threads=(part[0].numel(),), group=(GROUP,))


def run_several(variant: Kernel, tensors: tuple[Tensor, ...], *values: int | float) -> None:
    """Launch a kernel whose threads have PER_THREAD elements; it takes their number as well."""
    for part in _parts(tensors):
        count = part[0].numel()
        threads = 32 * -(-count // (32 * PER_THREAD))
        variant(*part, count, *values, threads=(threads,), group=(GROUP,))


def _parts(tensors: tuple[Tensor, ...]) -> Iterator[Sequence[Tensor]]:
    """The tensors, or what is to be launched of them at a time."""
    count = tensors[0].numel()
    if count <= MAX_THREADS:
        yield tensors
        return
    lines = [t.as_strided((count,), (1,)) for t in tensors]
    for start in range(0, count, MAX_THREADS):
        yield [line[start : start + MAX_THREADS] for line in lines]


# Whether they hold, as bits: of less, equal, greater, and of what is no number.
COMPARISONS = {"eq": 0b0010, "ne": 0b1101, "lt": 0b0001, "le": 0b0011, "gt": 0b0100, "ge": 0b0110}
UNSIGNED, SIGNED, FLOATING = range(3)
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_NUMPY = {torch.float16: np.float16, torch.float32: np.float32, torch.float64: np.float64}
_NAMES = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong"}
# Bits behind the point.
DIGITS = {torch.float16: 10, torch.bfloat16: 7, torch.float32: 23, torch.float64: 52}
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
REALS = (*DIGITS, *INTEGERS, *WIDE_UNSIGNED, torch.bool)
# log2 of more than any dtype holds: the fixed point of the kernel ends at 2^31.
MAX_EXPONENT = 2**30
FRACTION_BITS = 96


def _bits(x: Tensor) -> Tensor:
    return x.view(_WORDS[x.element_size()])


def _name(dtype: torch.dtype) -> str:
    return _NAMES[dtype.itemsize]


def _kind(dtype: torch.dtype) -> int:
    if dtype.is_floating_point:
        return FLOATING
    return SIGNED if dtype.is_signed else UNSIGNED


def bits_of(value: complex, dtype: torch.dtype) -> int:
    """A number of this dtype as a signed integer of the same bits; integers wrap, as in torch."""
    width = 8 * dtype.itemsize
    if dtype == torch.bool:
        bits = int(bool(value))
    elif dtype.is_floating_point:
        wide = np.array([value], np.float32 if dtype == torch.bfloat16 else _NUMPY[dtype])
        bits = int(wide.view(f"u{wide.itemsize}")[0])
        if dtype == torch.bfloat16:
            bits = 0x7FC0 if value != value else bits + 0x7FFF + (bits >> 16 & 1) >> 16
    else:
        assert isinstance(value, int)
        bits = value & (2**width - 1)
    return bits - 2**width if bits >= 2 ** (width - 1) else bits


def _infinity(dtype: torch.dtype) -> int:
    return bits_of(math.inf, dtype) if dtype.is_floating_point else 0


def frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mantissa and exponent."""
    (x,) = flat(x)
    mantissa, exponent = result_like(x), result_like(x, torch.int32)
    variant = kernel("elementwise", "elementwise_frexp", _name(x.dtype), DIGITS[x.dtype])
    run_several(variant, (_bits(x), _bits(mantissa), exponent))
    return mantissa, exponent


def _frexp_fake(x: Tensor) -> tuple[Tensor, Tensor]:
    return fake_like(x), fake_like(x, dtype=torch.int32)


def compare(x: Tensor, other: Tensor | None, number: float, name: str) -> Tensor:
    """Whether x compares so with other, or without it with the number."""
    x, *others = flat(x) if other is None else flat(x, other)
    result = result_like(x, torch.bool)
    run_several(
        kernel("elementwise", "elementwise_compare", _name(x.dtype)),
        (_bits(x), _bits(others[0] if others else x), _bits(result)),
        len(others), bits_of(number, x.dtype), COMPARISONS[name],
        _kind(x.dtype), _infinity(x.dtype),
    )  # fmt: skip
    return result


def _compare_fake(x: Tensor, other: Tensor | None, number: float, name: str) -> Tensor:
    tensors = (x,) if other is None else (x, other)
    return fake_like(*tensors, dtype=torch.bool)


def heaviside(x: Tensor, values: Tensor) -> Tensor:
    """0, values or 1."""
    x, values = flat(x, values)
    result = result_like(x)
    run_several(
        kernel("elementwise", "elementwise_heaviside", _name(x.dtype)),
        (_bits(x), _bits(values), _bits(result)),
        _kind(x.dtype), _infinity(x.dtype), bits_of(1, x.dtype),
    )  # fmt: skip
    return result


def _heaviside_fake(x: Tensor, values: Tensor) -> Tensor:
    return fake_like(x, values)


def has_exponents(start: float, end: float, base: float) -> bool:
    """Whether the powers of a base are powers of two whose exponents the kernel can hold."""
    if not (0 < base < math.inf and math.isfinite(start) and math.isfinite(end)):
        return False
    return max(abs(start), abs(end)) * abs(math.log2(base)) < MAX_EXPONENT


@functools.lru_cache(128)
def _exponents(start: float, end: float, steps: int, base: float) -> tuple[int, int]:
    """The first exponent of two and the step in fixed point."""
    # Imported late: `import mpslinalg` is to be quick.
    from decimal import Decimal, localcontext
    from fractions import Fraction

    with localcontext() as context:
        context.prec = 60
        logarithm = Fraction(Decimal(base).ln() / Decimal(2).ln())
    # So that powers of a power of two have no error at all.
    mantissa, exponent = math.frexp(base)
    if mantissa == 0.5:
        logarithm = Fraction(exponent - 1)
    first, last = Fraction(start) * logarithm, Fraction(end) * logarithm
    step = (last - first) / max(steps - 1, 1)
    return round(first * 2**FRACTION_BITS), round(step * 2**FRACTION_BITS)


def _words(fixed: int) -> tuple[int, int]:
    """The halves of 128 bits, as signed integers."""
    low, high = fixed & (2**64 - 1), fixed >> 64
    return high, low - 2**64 if low >= 2**63 else low


def logspace(like: Tensor, start: float, end: float, steps: int, base: float) -> Tensor:
    """Powers of a base that `exponents` knows, with the dtype and device of `like`."""
    dtype = like.dtype
    values = empty((steps,), like, row_major=True)
    if not dtype.is_floating_point:
        # Cut off before, as torch does.
        start, end = int(start), int(end)
    first, step = _exponents(start, end, steps, base)
    if dtype == torch.bool:
        first = step = 0  # every power of a positive number is true
    if dtype.is_floating_point:
        name = scalar(dtype)
        computing = name if dtype.itemsize > 2 else "float"
        digits = DIGITS[dtype] if dtype.itemsize > 2 else DIGITS[torch.float32]
        variant = kernel("elementwise", "elementwise_logspace", name, computing, digits + 1)
        memory = values
    else:
        variant = kernel("elementwise", "elementwise_logspace_integer", _name(dtype))
        memory = _bits(values)
    for begin in range(0, steps, MAX_THREADS):
        part = memory[begin : begin + MAX_THREADS]
        run(variant, (part,), *_words(first + begin * step), *_words(step))
    return values


def _logspace_fake(like: Tensor, start: float, end: float, steps: int, base: float) -> Tensor:
    return like.new_empty((steps,))


frexp_op = _op.define("frexp(Tensor x) -> (Tensor, Tensor)", frexp, _frexp_fake)
compare_op = _op.define(
    "compare(Tensor x, Tensor? other, Scalar number, str name) -> Tensor", compare, _compare_fake
)
heaviside_op = _op.define(
    "heaviside(Tensor x, Tensor values) -> Tensor", heaviside, _heaviside_fake
)
logspace_op = _op.define(
    "logspace(Tensor like, float start, float end, int steps, float base) -> Tensor",
    logspace,
    _logspace_fake,
)
