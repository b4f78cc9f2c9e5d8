"""take, put, put_ and bincount: derivatives and public functions."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mpslinalg import _check, _indexing_plan, _op, _out, _route
from mpslinalg._repeat import repeated
from mpslinalg._shards import counted_by_parts, is_distributed, over_batches

COUNTED = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
# Those of torch's take and put_.
DTYPES = frozenset((torch.bool, *COUNTED, *_check.HALVES, *_check.DTYPES))
INDICES = (torch.int32, torch.int64)

_take_op = _indexing_plan.take_op
_put_op = _indexing_plan.put_op
_bincount_op = _indexing_plan.bincount_op


def what_runs(name: str, given: Mapping[str, Any]) -> str:
    """What runs for a call, in a few words for `which`."""
    if name == "take":
        return "indexing_take"
    if name == "bincount" and given["weights"] is None:
        return f"indexing_count up to {_indexing_plan.BINS} different values, torch's sort beyond"
    summed = name == "bincount" or given["accumulate"]
    return "torch's sort, indexing_add" if summed else "indexing_claim, indexing_put"


class _Take(Function):
    """dR = take(dA), gA = put(0, gR) with sums over equal indices."""

    generate_vmap_rule = True

    @staticmethod
    def forward(input: Tensor, index: Tensor) -> Tensor:
        result: Tensor = _take_op(input, index, input.dim(), index.dim())
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        input, index = inputs
        ctx.shape = input.shape
        ctx.save_for_backward(index)
        ctx.save_for_forward(index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return _put(gradient.new_zeros(ctx.shape), index, gradient, True), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: Any) -> Tensor:
        (index,) = ctx.saved_tensors
        return _take(tangent, index)


class _Put(Function):
    """R = A with elements of B: linear in both. gB is taken from gR, but zero where B was lost."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        input: Tensor, index: Tensor, source: Tensor, accumulate: bool
    ) -> tuple[Tensor, Tensor]:
        result, kept = _put_op(input, index, source, accumulate, input.dim(), index.dim())
        return result, kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, index, _, ctx.accumulate = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(index, output[1])
        ctx.save_for_forward(index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor, None, Tensor, None]:
        index, kept = ctx.saved_tensors
        of_source = _take(gradient, index)
        if ctx.accumulate:
            return gradient, None, of_source, None
        lost = _put(gradient, index, torch.zeros_like(of_source), False)
        return lost, None, torch.where(kept, of_source, 0), None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, _: Any, dB: Tensor, __: Any) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return _put(dA, index, dB, ctx.accumulate), None


_differentiable_take = _op.applied(_Take)
_differentiable_put = _op.applied(_Put)


def _take(input: Tensor, index: Tensor) -> Tensor:
    if _op.tracked(input):
        result: Tensor = _differentiable_take(input, index)
    else:
        result = _take_op(input, index, input.dim(), index.dim())
    return result


def _put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool) -> Tensor:
    source = source.reshape(index.shape)
    if _op.tracked(input, source):
        result: Tensor = _differentiable_put(input, index, source, accumulate)[0]
    else:
        result = _put_op(input, index, source, accumulate, input.dim(), index.dim())[0]
    return result


def indexable(input: Any, index: Any) -> bool:
    return (
        isinstance(index, Tensor)
        and index.dtype in INDICES
        and input.dtype in DTYPES
        and (input.numel() > 0 or index.numel() == 0)
    )


def _long(index: Any) -> Any:
    """Torch has no other indices."""
    return index.long() if isinstance(index, Tensor) and index.dtype == torch.int32 else index


def _check_apart(written: Tensor | None, *read: Tensor) -> None:
    """Raise torch's errors for elements that share memory among themselves or with what is read."""
    if written is None or not _op.visible(written, *read) or apart(written, *read):
        return
    one = torch.zeros(1)
    several = torch._debug_has_internal_overlap(written) == 1
    with _route.use("torch"):
        (one.expand(2) if several else one).put_(torch.zeros(1, dtype=torch.int64), one)


def apart(written: Tensor, *read: Tensor) -> bool:
    """Whether, as far as torch looks, no element shares memory with another or what is read."""
    if torch._debug_has_internal_overlap(written) == 1:
        return False
    return not any(meet(written, tensor) for tensor in read)


def meet(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors without gaps, which torch is sure of, have elements in common."""
    spans = []
    for tensor in (a, b):
        pairs = zip(tensor.shape, tensor.stride(), strict=True)
        span = 1 + sum((size - 1) * stride for size, stride in pairs)
        if tensor.numel() == 0 or span != tensor.numel():
            return False
        spans.append((tensor.data_ptr(), tensor.data_ptr() + span * tensor.element_size()))
    (begin, end), (other_begin, other_end) = spans
    return begin < other_end and other_begin < end


@over_batches
def take(input: Tensor, index: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Take elements of a tensor by their numbers in row-major order.

    Same contract as `torch.take`. Differences: the index may be int32 too.

    Args:
        input: of any shape and strides; bool, integers, floating point or complex.
        index: int64 or int32, from -input.numel() to input.numel() - 1; negative ones count from
            the end.
        out: a tensor to write to.

    Returns:
        A tensor of the shape of index and the dtype of input, row-major. Differentiable; the
        gradient sums over equal indices in a fixed order.

    Raises:
        IndexError: an index out of range, for which the device is read once; elements of an empty
            tensor.
        RuntimeError: other dtypes.

    One launch: a thread an index, up to four sides of input by their strides, more by a copy.
    """
    if not _route.kernels_for_any_shape(input):
        index = _long(index)
        result: Tensor = (
            torch.take(input, index) if out is None else torch.take(input, index, out=out)
        )
        return result
    if out is None:
        result = _repeated_take(input, index)
        return result
    return _taken(input, index, out)


def _taken(input: Tensor, index: Tensor, out: Tensor | None = None) -> Tensor:
    _check.same_device("take", self=input, index=index, out=out)
    if not (indexable(input, index) and _check.out(out, (input,), input.dtype)):
        refused: Tensor = _check.refuse(torch.take, input, _long(index), out=out)
        return refused
    _check_apart(out, input, index)
    result = _take(input, index)
    return result if out is None else _out.write(result, out)


_repeated_take = repeated(_taken, _taken)


def puttable(input: Any, index: Any, source: Any, accumulate: Any) -> bool:
    return (
        indexable(input, index)
        and isinstance(source, Tensor)
        and source.dtype == input.dtype
        and source.numel() == index.numel()
        and _check.flags(accumulate)
    )


@over_batches
def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Put elements into a copy of a tensor by their numbers in row-major order.

    Same contract as `torch.put`. Differences: where indices are equal the last one in the order of
    index wins, and only that one gets a gradient; with accumulate the order of summation is fixed.
    The index may be int32 too.

    Args:
        input: of any shape and strides; bool, integers, floating point or complex.
        index: int64 or int32, from -input.numel() to input.numel() - 1; negative ones count from
            the end.
        source: as many elements as index, dtype of input.
        accumulate: add to the elements instead.

    Returns:
        A tensor of the shape and dtype of input. Differentiable in input and source.

    Raises:
        IndexError: an index out of range, for which the device is read once; elements into an
            empty tensor; numbers of elements that differ.
        RuntimeError: other dtypes; 2^32 elements and more, unless they are accumulated.

    Three launches, and 4 bytes for each element of input in which an atomic maximum finds the last
    of equal indices. To accumulate, torch.sort of the index, stable, brings equal ones together,
    and some log2(index.numel()) / 6 launches follow, in which a thread sums 64 entries, half
    precision and small integers in a wider type.
    """
    if not _route.kernels_for_any_shape(input):
        result: Tensor = torch.put(input, _long(index), source, accumulate)
        return result
    result = _repeated_put(input, index, source, accumulate)
    return result


def _put_into_copy(input: Tensor, index: Tensor, source: Tensor, accumulate: bool) -> Tensor:
    _check.same_device("put_", self=input, index=index, source=source)
    if not puttable(input, index, source, accumulate):
        refused: Tensor = _check.refuse(torch.put, input, _long(index), source, accumulate)
        return refused
    return _put(input, index, source, accumulate)


_repeated_put = repeated(_put_into_copy, _put_into_copy)


def put_(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Put elements into a tensor, in place, by their numbers in row-major order.

    Same contract as `torch.Tensor.put_`. Differences: those of `put`.

    Args:
        input: of any shape, strides and dtype that `put` takes; it is written to.
        index, source, accumulate: see `put`.

    Returns:
        input. Differentiable in input and source.

    Raises:
        IndexError: see `put`; nothing is written then.
        RuntimeError: see `put`; elements of input that share memory.
    """
    if is_distributed(input, index, source):
        return input.copy_(put(input, index, source, accumulate))
    frozen = isinstance(input, Tensor) and _check.frozen(input)
    if frozen or not _route.kernels_for_any_shape(input):
        return input.put_(_long(index), source, accumulate)
    result: Tensor = _repeated_put_(input, index, source, accumulate)
    return result


def _put_in_place(input: Tensor, index: Tensor, source: Tensor, accumulate: bool) -> Tensor:
    _check.same_device("put_", self=input, index=index, source=source)
    if not puttable(input, index, source, accumulate):
        refused: Tensor = _check.refuse(_put_into_zeros, input, _long(index), source, accumulate)
        return refused
    _check_apart(input, index, source)
    if _op.tracked(input, source) or not _op.visible(input, index, source):
        return input.copy_(_put(input, index, source, accumulate))
    source = source.reshape(index.shape)
    _indexing_plan.put_into(input, index, source, accumulate, input.dim(), index.dim())
    _check.at_the_end(input, torch.autograd.graph.increment_version)
    return input


_repeated_put_ = repeated(_put_in_place, _put_in_place, in_place=True)


def _put_into_zeros(input: Tensor, *args: Any) -> Tensor:
    return torch.zeros_like(input).put_(*args)


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Count how often each value occurs, or sum the weights of each.

    Same contract as `torch.bincount`. Differences: sums of weights have a fixed order, and on mps,
    where there is no float64, they are float32.

    Args:
        input: a vector of integers that are not negative.
        weights: a vector of the same length.
        minlength: bins at least.

    Returns:
        max(input) + 1 bins or minlength, whichever is more: int64, with weights float32 if those
        are, else float64. Without derivatives, as in torch.

    Raises:
        RuntimeError: negative values, what is no vector, negative minlength.
        NotImplementedError: no integers.

    Reads the device once, for the largest value, and a second time if that is 4096 or more. Of
    smaller ones, and where values span up to 4096 numbers, threadgroups count in their own memory,
    runs of equal values at once, so that few different values cost nothing; beyond, values are
    sorted. Weights are summed as by `put_`.
    """
    if is_distributed(input, weights):
        return counted_by_parts(bincount, input, weights, minlength)
    if not _route.kernels_for_any_shape(input):
        result: Tensor = torch.bincount(input, weights, minlength)
        return result
    _check.same_device("bincount", self=input, weights=weights)
    if not countable(input, weights, minlength):
        refused: Tensor = _check.refuse(torch.bincount, input, weights, minlength)
        return refused
    return counted(input, weights, minlength)


def countable(input: Tensor, weights: Any, minlength: Any) -> bool:
    """Whether the kernels take these arguments of bincount."""
    fits = weights is None or (isinstance(weights, Tensor) and weights.shape == input.shape)
    whole = type(minlength) is int and 0 <= minlength < 2**63
    return input.dim() == 1 and input.dtype in COUNTED and fits and whole


def counted(input: Tensor, weights: Tensor | None, minlength: int) -> Tensor:
    """bincount by kernels."""
    if weights is not None and weights.dtype != torch.float32:
        weights = weights.to(torch.float32 if weights.is_mps else torch.float64)
    counts: Tensor = _bincount_op(input, None if weights is None else weights.detach(), minlength)
    return counts
