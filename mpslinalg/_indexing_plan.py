"""Launch plans of take, put and bincount."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from mpslinalg import _check, _op, _route
from mpslinalg._engines import ENGINES, empty, kernel, scalar, sort
from mpslinalg._repeat import repeated

# Threads that share the indices of a tensor: enough to wait for memory together on a large GPU.
THREADS = 1 << 17
# Elements that 32 bits number, from 1.
MAX_PUT = 2**32 - 1
# Threads of a launch, of which each copies an element.
MAX_COPIED = 2**31
# Elements of a tensor whose numbers are sorted as int32, in half the passes; one number more says
# that an index is outside.
NARROW = 2**31 - 1
# Entries that one thread adds up, in the order of the index.
RUN = 64
# Bins whose counters fit into half of a threadgroup's memory, so that a core runs two.
BINS = 4096
# Values that a threadgroup counts, and threadgroups at most: each writes a row of counts.
COUNTED = 8192
GROUPS = 512

# What is moved, not computed with, by its size in bytes: a type of the shader, a dtype of torch.
MOVED = {
    1: ("uchar", torch.uint8),
    2: ("half", torch.float16),
    4: ("uint", torch.int32),
    8: ("ulong", torch.int64),
    16: ("double2", torch.complex128),
}
# What the kernels add. Narrower numbers are added in these, and rounded once.
_WIDE = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.bool: torch.int32,
    torch.uint8: torch.int32,
    torch.int8: torch.int32,
    torch.int16: torch.int32,
}
# Sums of integers wrap around, which only unsigned ones may.
_ADDED = {torch.int32: "uint", torch.int64: "ulong"}


def moved(tensor: Tensor) -> Tensor:
    """The tensor as numbers of MOVED."""
    tensor = tensor.resolve_conj().resolve_neg()
    dtype = MOVED[tensor.element_size()][1]
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


def _index(index: Tensor) -> tuple[Tensor, str]:
    """The index as a kernel reads it, and its type in the shader."""
    return index.contiguous(), "int" if index.dtype == torch.int32 else "long"


def layout(tensor: Tensor) -> tuple[int, ...] | None:
    """Three sizes and four strides, after sides are joined that one stride walks.

    None for a tensor that four sides do not describe.
    """
    sides: list[tuple[int, int]] = []
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if size == 1:
            continue
        if sides and sides[-1][1] == size * stride:
            sides[-1] = (sides[-1][0] * size, stride)
        else:
            sides.append((size, stride))
    if len(sides) > 4:
        return None
    sides = [(1, 0)] * (4 - len(sides)) + sides
    return (*(size for size, _ in sides[1:]), *(stride for _, stride in sides))


def _sides(layout: tuple[int, ...]) -> int:
    return 1 if layout[:2] == (1, 1) and layout[3:6] == (0, 0, 0) else 4


def raise_outside(outside: Tensor, length: int) -> None:
    """Raise torch's error if a kernel met an index out of range; reads the device."""
    engine = ENGINES[outside.device.type]
    if engine.any_nonzero(outside):
        found = outside.cpu().view(torch.int64).flatten()
        # torch checks an index before it reads the element.
        with _route.use("torch"):
            torch.take(torch.zeros(1).expand(length), found[found.nonzero()[0]])


def take(input: Tensor, index: Tensor, sides: int, index_sides: int) -> Tensor:
    """Elements of the last `sides` dimensions of the input, counted row-major."""
    result = _take_fake(input, index, sides, index_sides)
    if result.numel() == 0:
        return result
    batch, length, count = _sizes(input, index, sides, index_sides)
    elements, (index, kind) = moved(input), _index(index)
    where = layout(elements)
    if where is None:
        elements = elements.contiguous()
        where = layout(elements)
    assert where is not None
    threads = min(count, THREADS)
    outside = empty((batch, threads, 2), index, torch.int32, row_major=True)
    kernel("indexing", "indexing_take", MOVED[elements.element_size()][0], kind, _sides(where))(
        elements, index, result.view(elements.dtype), outside, length, count, *where,
        threads=(threads, batch), group=(256, 1),
    )  # fmt: skip
    _check.at_the_end(outside, partial(raise_outside, length=length))
    return result


def _sizes(input: Tensor, index: Tensor, sides: int, index_sides: int) -> tuple[int, int, int]:
    """Batches, elements and indices of each."""
    first = input.dim() - sides
    batch, length = math.prod(input.shape[:first]), math.prod(input.shape[first:])
    return batch, length, math.prod(index.shape[index.dim() - index_sides :])


def _take_fake(input: Tensor, index: Tensor, sides: int, index_sides: int) -> Tensor:
    return empty(index.shape, input, row_major=True)


def put(
    input: Tensor, index: Tensor, source: Tensor, accumulate: bool, sides: int, index_sides: int
) -> tuple[Tensor, Tensor]:
    """A copy of the input with elements of the source, and which of those were the last."""
    result = _copy(input)
    return result, put_into(result, index, source, accumulate, sides, index_sides)


def _copy(input: Tensor) -> Tensor:
    """A copy with torch's strides: by a launch that can be recorded if no memory is left out."""
    plain = input.resolve_conj().resolve_neg()
    if plain is not input:
        return plain
    count = input.numel()
    if not 0 < count <= MAX_COPIED or not dense(input):
        return input.clone()
    copied = empty((count,), input, row_major=True)
    elements = moved(input).as_strided((count,), (1,))
    kernel("copy", "copy_strided", MOVED[input.element_size()][0])(
        elements, moved(copied), 1, 1, count, 0, 0, 0, 1, threads=(count,), group=(256,)
    )
    return copied.as_strided(input.shape, input.stride())


def dense(x: Tensor) -> bool:
    """Whether the elements of x fill their memory."""
    return x.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense(x)


def _put_into(
    input: Tensor, index: Tensor, source: Tensor, accumulate: bool, sides: int, index_sides: int
) -> Tensor:
    """The same in place, if no index is outside; source has the index's elements."""
    if not accumulate and index.numel() > MAX_PUT:
        raise RuntimeError(
            f"mpslinalg: put_ of {index.numel()} elements, but at most {MAX_PUT} are put at once; "
            "put parts of them"
        )
    kept = _kept(input, index, accumulate)
    if index.numel() == 0:
        return kept
    sizes = _sizes(input, index, sides, index_sides)
    wide = _WIDE.get(input.dtype, input.dtype) if accumulate else input.dtype
    where = layout(input)
    target = input
    if wide != input.dtype or where is None or input.is_conj() or input.is_neg():
        target = input.resolve_conj().resolve_neg().to(wide).contiguous()
        where = layout(target)
    assert where is not None
    values = source.to(wide).resolve_conj().resolve_neg().contiguous()
    if accumulate:
        _add(target, index, values, where, *sizes)
    else:
        _replace(target, index, values, kept, where, *sizes)
    if target is not input:
        input.copy_(target)
    return kept


put_into = repeated(_put_into, _put_into, in_place=True)


def _replace(
    target: Tensor,
    index: Tensor,
    values: Tensor,
    kept: Tensor,
    where: tuple[int, ...],
    batch: int,
    length: int,
    count: int,
) -> None:
    """target[index[i]] = values[i], of equal indices the last."""
    index, kind = _index(index)
    elements = batch * length
    claims = empty((elements + 1,), index, torch.int32)
    threads = min(count, THREADS)
    outside = empty((batch, threads, 2), index, torch.int32, row_major=True)

    def launch(name: str, *template: str | int) -> Callable[..., None]:
        variant = kernel("indexing", name, *template)
        return partial(variant, threads=(threads, batch), group=(256, 1))

    launch("indexing_clear", kind)(index, claims, length, count, elements)
    launch("indexing_claim", kind)(index, claims, outside, length, count, elements)
    target = moved(target)
    launch("indexing_put", MOVED[target.element_size()][0], kind, _sides(where))(
        moved(values), index, claims, target, kept.view(torch.uint8), length, count, elements,
        *where,
    )  # fmt: skip
    _check.at_the_end(outside, partial(raise_outside, length=length))


def _add(
    target: Tensor,
    index: Tensor,
    values: Tensor,
    where: tuple[int, ...],
    batch: int,
    length: int,
    count: int,
) -> None:
    """target[index[i]] += values[i], by partial sums of partial sums."""
    index, index_kind = _index(index)
    elements = batch * length
    dtype, key = (torch.int32, "int") if elements <= NARROW else (torch.int64, "long")
    unsorted, keys = (empty((batch * count,), index, dtype) for _ in range(2))
    order = empty((batch * count,), index, torch.int64)
    threads = min(count, THREADS)
    outside = empty((batch, threads, 2), index, torch.int32, row_major=True)
    kernel("indexing", "indexing_keys", index_kind, key)(
        index, unsorted, outside, length, count, elements, threads=(threads, batch), group=(256, 1)
    )
    sort(unsorted, keys, order)
    kind = _ADDED.get(target.dtype) or scalar(target.dtype)
    ordered = True
    while True:
        count = keys.numel()
        runs = -(-count // RUN)
        partial_values = empty((runs,), values)
        partial_keys = empty((runs,), keys)
        kernel("indexing", "indexing_add", kind, key, RUN, _sides(where))(
            values, keys, order, target, partial_values, partial_keys, ordered, count, elements,
            *where, threads=(runs,), group=(256,),
        )  # fmt: skip
        if runs == 1:
            break
        values, keys, ordered = partial_values, partial_keys, False
    _check.at_the_end(outside, partial(raise_outside, length=length))


def _kept(input: Tensor, index: Tensor, accumulate: bool) -> Tensor:
    return empty((0,) if accumulate else index.shape, input, torch.bool, row_major=True)


def _put_fake(
    input: Tensor, index: Tensor, source: Tensor, accumulate: bool, sides: int, index_sides: int
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(input), _kept(input, index, accumulate)


def bincount(input: Tensor, weights: Tensor | None, minlength: int) -> Tensor:
    """How often each value occurs, or the sums of its weights."""
    if input.dim() != 1:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if input.numel() == 0:
        return torch.zeros(minlength, dtype=torch.int64, device=input.device)
    values = (input if input.dtype in (torch.int32, torch.int64) else input.int()).contiguous()
    counts: Tensor
    counts, largest = _counts(values)
    high, low = int(largest.item()), 0
    if high > BINS:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if high == BINS:
        low, high = torch.stack((input.min(), input.max())).tolist()
    bins, span = max(high + 1, minlength), high - low + 1
    if weights is not None:
        sums = torch.zeros(bins, dtype=weights.dtype, device=input.device)
        put_into(sums, input.long(), weights, True, 1, 1)
        return sums
    if bins <= BINS:
        counts.resize_(bins)
    elif span <= BINS:
        counts, _ = counts_in_range(values, low, span, bins)
    else:
        counts = counts_of_many(values, bins)
    return counts


def counts_of_many(values: Tensor, bins: int) -> Tensor:
    counts = empty((bins,), values, torch.int64)
    kernel("indexing", "indexing_runs", "int" if values.dtype == torch.int32 else "long")(
        torch.sort(values)[0], counts, values.numel(), threads=(bins,), group=(256,)
    )
    return counts


def counts_in_range(values: Tensor, low: int, span: int, bins: int) -> tuple[Tensor, Tensor]:
    """How often 0, 1, ..., bins - 1 occur among low, ..., low + span - 1, and the largest value.

    That is less low; span where it is outside, span + 1 where a value is less than low.
    """
    groups = min(-(-values.numel() // COUNTED), GROUPS)
    rows = empty((groups, span + 1), values, torch.int32, row_major=True)
    kernel("indexing", "indexing_count", "int" if values.dtype == torch.int32 else "long", BINS)(
        values, rows, low, span, values.numel(), threads=(256 * groups,), group=(256,)
    )
    counts = empty((bins,), values, torch.int64)
    largest = empty((1,), values, torch.int32)
    kernel("indexing", "indexing_total", "int")(
        rows, counts, largest, low, span, groups, bins, threads=(bins + 1,), group=(256,)
    )
    return counts, largest


def _counts_of_few(values: Tensor) -> tuple[Tensor, Tensor]:
    """Counts of the numbers below BINS, and the largest value as `counts_in_range` has it."""
    return counts_in_range(values, 0, BINS, BINS)


_counts = repeated(_counts_of_few, _counts_of_few)


def _bincount_fake(input: Tensor, weights: Tensor | None, minlength: int) -> Tensor:
    bins = torch.library.get_ctx().new_dynamic_size()
    return input.new_empty(bins, dtype=torch.int64 if weights is None else weights.dtype)


take_op = _op.define(
    "take(Tensor input, Tensor index, int sides, int index_sides) -> Tensor", take, _take_fake
)
put_op = _op.define(
    "put(Tensor input, Tensor index, Tensor source, bool accumulate, int sides, int index_sides)"
    " -> (Tensor, Tensor)",
    put,
    _put_fake,
)
bincount_op = _op.define(
    "bincount(Tensor input, Tensor? weights, int minlength) -> Tensor",
    bincount,
    _bincount_fake,
    shape_depends_on_values=True,
)
