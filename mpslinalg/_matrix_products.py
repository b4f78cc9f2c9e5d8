"""Products: cross, diagonal, matmul, vecdot, multi_dot, matrix_power, vander."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from mpslinalg import _check, _inverse, _out, _route
from mpslinalg._names import named_as_torchs
from mpslinalg._products import INNER
from mpslinalg._shards import over_batches

INEXACT = frozenset((*_check.DTYPES, *_check.HALVES))
INTEGERS = frozenset((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))
# Torch has no arithmetic of the others.
NUMBERS = INEXACT | INTEGERS
# Those of vander, where it casts all integers.
POWERS = NUMBERS - {*_check.HALVES} | {torch.uint16, torch.uint32, torch.uint64}


def what_runs(name: str, given: Mapping[str, Any]) -> str:
    """What runs for a call, in a few words for `which`."""
    if name == "diagonal":
        return "a view"
    if name in ("cross", "vecdot", "vander"):
        return "torch's elementwise products"
    if name == "matrix_power" and isinstance(given["n"], int) and given["n"] < 0:
        return "inv, torch's matmul"
    return "torch's matmul"


def _one_dtype(*tensors: Any) -> bool:
    return all(isinstance(t, Tensor) and t.dtype == tensors[0].dtype for t in tensors)


def _has(x: Tensor, dim: Any) -> bool:
    return type(dim) is int and -max(x.dim(), 1) <= dim < max(x.dim(), 1)


@named_as_torchs
def cross(input: Tensor, other: Tensor, *, dim: int = -1, out: Tensor | None = None) -> Tensor:
    """Compute the cross product of vectors of three.

    Same contract as `torch.linalg.cross`. Differences: none.

    Args:
        input, other: numbers of one dtype, with as many dimensions, which broadcast.
        dim: the dimension of the vectors, of size 3.
        out: a tensor to write to.

    Returns:
        A tensor of the broadcast shape. Differentiable.

    Raises:
        RuntimeError, IndexError: shapes or dtypes that do not fit.

    Each entry is a difference of two products: an error of 2 eps times their sizes.
    """
    if not _route.kernels_for_any_shape(input):
        result: Tensor = torch.linalg.cross(input, other, dim=dim, out=out)
        return result
    _check.same_device("linalg_cross", input=input, other=other, out=out)
    if not (
        _one_dtype(input, other)
        and input.dtype in NUMBERS
        and input.dim() == other.dim() > 0
        and _has(input, dim)
        and input.shape[dim] == other.shape[dim] == 3
        and _check.broadcastable(input.shape, other.shape)
        and _check.out(out, (input, other), input.dtype)
    ):
        refused: Tensor = _check.refuse(torch.linalg.cross, input, other, dim=dim, out=out)
        return refused
    # A product rounded to a half may be off by more than the whole difference.
    wide = torch.float32 if input.dtype in _check.HALVES else input.dtype
    (x1, y1), (x2, y2) = ([t.to(wide).roll(-i, dim) for t in (input, other)] for i in (1, 2))
    result = (x1 * y2 - x2 * y1).to(input.dtype)
    return result if out is None else _out.write(result, out)


@named_as_torchs
def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """View a diagonal of matrices.

    Same contract as `torch.linalg.diagonal`. Differences: none.

    Args:
        A: of two and more dimensions and any dtype.
        offset: above the main diagonal if positive, below it if negative.
        dim1, dim2: the dimensions of rows and of columns.

    Returns:
        A view, whose last dimension is the diagonal. Differentiable.

    Raises:
        RuntimeError, IndexError: the same dimension twice, dimensions that are not there.
    """
    result: Tensor = torch.linalg.diagonal(A, offset=offset, dim1=dim1, dim2=dim2)
    return result


def _matmul(A: Tensor, B: Tensor) -> Tensor:
    """A B; inner sizes at which torch's product goes wrong on M1 and M2 in parts."""
    size = A.shape[-1] if A.dim() > 0 else 0
    if size <= INNER or B.dim() == 0:
        return torch.matmul(A, B)
    rows = -2 if B.dim() > 1 else -1
    if B.shape[rows] != size:
        return torch.matmul(A, B)
    product = torch.matmul(A[..., :INNER], B.narrow(rows, 0, INNER))
    for first in range(INNER, size, INNER):
        inner = min(INNER, size - first)
        product = product + torch.matmul(A.narrow(-1, first, inner), B.narrow(rows, first, inner))
    return product


@named_as_torchs
def matmul(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Multiply matrices, or vectors where a tensor has one dimension.

    Same contract as `torch.linalg.matmul`. Differences: inner sizes of 32767 and more are right on
    M1 and M2 too.

    Args:
        input, other: numbers of one dtype; batches broadcast. On CUDA torch, and so this, has no
            products of integers.
        out: a tensor to write to.

    Returns:
        The product. Differentiable.

    Raises:
        RuntimeError: shapes or dtypes that do not fit.

    torch.matmul, the inner dimension in parts of 16384. In derivatives the other sides are inner
    ones, and those are not.
    """
    if not _route.kernels_for_any_shape(input) or not isinstance(other, Tensor):
        result: Tensor = torch.linalg.matmul(input, other, out=out)
        return result
    if out is None:
        return _matmul(input, other)
    if (
        input.dim() == 0
        or input.shape[-1] <= INNER
        or not _check.out(out, (input, other), input.dtype)
    ):
        return torch.matmul(input, other, out=out)
    return _out.write(_matmul(input, other), out)


@named_as_torchs
def vecdot(x: Tensor, y: Tensor, *, dim: int = -1, out: Tensor | None = None) -> Tensor:
    """Compute the dot product of vectors: sum conj(x) y.

    Same contract as `torch.linalg.vecdot`. Differences: none.

    Args:
        x, y: floating point or complex, of one dtype; shapes broadcast.
        dim: the dimension of the vectors.
        out: a tensor to write to.

    Returns:
        The broadcast shape without dim. Differentiable.

    Raises:
        RuntimeError, IndexError: shapes or dtypes that do not fit.

    Torch's sum, of the products.
    """
    if not _route.kernels_for_any_shape(x):
        result: Tensor = torch.linalg.vecdot(x, y, dim=dim, out=out)
        return result
    _check.same_device("linalg_vecdot", x=x, y=y, out=out)
    if not (
        _one_dtype(x, y)
        and (x.is_floating_point() or x.is_complex())
        and _check.broadcastable(x.shape, y.shape)
        and _has(x if x.dim() >= y.dim() else y, dim)
        and _check.out(out, (x, y), x.dtype)
    ):
        refused: Tensor = _check.refuse(torch.linalg.vecdot, x, y, dim=dim, out=out)
        return refused
    if x.dtype in _check.HALVES:
        # A rounded product may be off by more than the whole sum.
        result = (x.float() * y.float()).sum(dim).to(x.dtype)
    else:
        result = (x.conj() * y).sum(dim)
    return result if out is None else _out.write(result, out)


def _order(sizes: list[int]) -> list[list[int]]:
    """Where to split the chain of matrices i to j, sizes[i] x sizes[i + 1] first, for the fewest
    multiplications (Cormen et al., "Introduction to Algorithms", section 15.2).
    """
    n = len(sizes) - 1
    cost, split = ([[0] * n for _ in range(n)] for _ in range(2))
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            ends = sizes[i] * sizes[j + 1]
            costs = [cost[i][k] + cost[k + 1][j] + ends * sizes[k + 1] for k in range(i, j)]
            cost[i][j] = min(costs)
            split[i][j] = i + costs.index(cost[i][j])
    return split


def _chain(tensors: Sequence[Tensor], split: list[list[int]], i: int, j: int) -> Tensor:
    if i == j:
        return tensors[i]
    k = split[i][j]
    return _matmul(_chain(tensors, split, i, k), _chain(tensors, split, k + 1, j))


def multi_dot(tensors: Sequence[Tensor], *, out: Tensor | None = None) -> Tensor:
    """Multiply several matrices in the order that takes the fewest multiplications.

    Same contract as `torch.linalg.multi_dot`. Differences: those of `matmul`.

    Args:
        tensors: two and more matrices of one dtype; the first and the last may be vectors.
        out: a tensor to write to.

    Returns:
        The product. Differentiable.

    Raises:
        RuntimeError: shapes or dtypes that do not fit, fewer than two.
        TypeError: what is no sequence of tensors.
    """
    first = tensors[0] if isinstance(tensors, (tuple, list)) and len(tensors) > 0 else None
    if not _route.kernels_for_any_shape(first):
        result: Tensor = torch.linalg.multi_dot(tensors, out=out)
        return result
    if not (
        len(tensors) > 1
        and _one_dtype(*tensors)
        and all(t.dim() == 2 for t in tensors[1:-1])
        and all(t.dim() in (1, 2) for t in (tensors[0], tensors[-1]))
        and all(a.shape[-1] == b.shape[0] for a, b in pairwise(tensors))
        and len({t.device for t in tensors}) == 1
        and _check.out(out, tuple(tensors), tensors[0].dtype)
    ):
        return _refuse_chain(tensors, out)
    rows = 1 if tensors[0].dim() == 1 else tensors[0].shape[0]
    columns = 1 if tensors[-1].dim() == 1 else tensors[-1].shape[1]
    sizes = [rows, *(t.shape[0] for t in tensors[1:]), columns]
    result = _chain(tensors, _order(sizes), 0, len(tensors) - 1)
    return result if out is None else _out.write(result, out)


def _refuse_chain(tensors: Sequence[Any], out: Tensor | None) -> Tensor:
    def multi_dot(*given: Any, **kwargs: Any) -> Tensor:
        result: Tensor = torch.linalg.multi_dot(given, **kwargs)
        return result

    refused: Tensor = _check.refuse(multi_dot, *tensors, out=out)
    return refused


def _power(A: Tensor, n: int) -> Tensor:
    """A^n for n > 0, by squares."""
    power = None
    while True:
        if n % 2 == 1:
            power = A if power is None else _matmul(power, A)
        n //= 2
        if n == 0:
            assert power is not None
            return power
        A = _matmul(A, A)


@over_batches
def matrix_power(A: Tensor, n: int, *, out: Tensor | None = None) -> Tensor:
    """Multiply a square matrix with itself n times; its inverse -n times if n < 0.

    Same contract as `torch.linalg.matrix_power`. Differences: none.

    Args:
        A: (*, k, k), numbers; with n < 0 as in `inv`.
        n: an integer.
        out: a tensor to write to.

    Returns:
        A^n, the identity if n = 0. Differentiable.

    Raises:
        torch.linalg.LinAlgError: n < 0 and a matrix is singular.
        RuntimeError: what is no square matrix, other dtypes.

    `inv` and at most 2 log2 |n| calls of torch.matmul. As A^n grows, ||A||^n eps is the error.
    """
    if not _route.kernels_for_any_shape(A):
        result: Tensor = torch.linalg.matrix_power(A, n, out=out)
        return result
    _check.same_device("linalg_matrix_power", A=A, out=out)
    accepted = A.dim() >= 2 and A.shape[-2] == A.shape[-1] and A.dtype in NUMBERS
    if not (
        accepted
        and type(n) is int
        and -(2**63) <= n < 2**63
        and (n >= 0 or A.dtype in _check.DTYPES)
        and _check.out_to_cast(out, (A,), A.dtype)
    ):
        refused: Tensor = _check.refuse(torch.linalg.matrix_power, A, n, out=out)
        return refused
    if n == 0:
        one = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
        # A's own copy, so that it has a gradient, of zeros.
        result = A.clone(memory_format=torch.contiguous_format).copy_(one)
    elif n == 1:
        result = A.clone(memory_format=torch.contiguous_format)
    else:
        result = _power(A, n) if n > 0 else _power(_inverse.inv(A), -n)
    return result if out is None else _out.write(result.contiguous(), out)


@named_as_torchs
def vander(x: Tensor, N: int | None = None) -> Tensor:
    """Compute a Vandermonde matrix: x^0, x^1, ..., x^(N - 1) in a row for each entry of x.

    Same contract as `torch.linalg.vander`. Differences: none.

    Args:
        x: (*, n), floating point, complex or integers.
        N: the number of powers, None for n.

    Returns:
        (*, n, N), int64 if x holds integers. Differentiable.

    Raises:
        RuntimeError: fewer than two powers, other dtypes.

    Powers by products of powers of half the degree: log2 N roundings each.
    """
    if not _route.kernels_for_any_shape(x):
        result: Tensor = torch.linalg.vander(x, N=N)
        return result
    number = N if N is not None or x.dim() == 0 else x.shape[-1]
    if not (type(number) is int and 1 < number < 2**63 and x.dtype in POWERS):
        refused: Tensor = _check.refuse(torch.linalg.vander, x, N=N)
        return refused
    if not (x.is_floating_point() or x.is_complex()):
        x = x.to(torch.int64)
    x = torch.atleast_1d(x)  # type: ignore[no-untyped-call]
    # What memory cannot hold fails at once, not after most of it was filled.
    x.new_empty((*x.shape, number))
    power = x.unsqueeze(-1)
    powers = torch.cat((torch.ones_like(power), power), -1)
    while (size := powers.shape[-1]) < number:
        power = power * power
        powers = torch.cat((powers, powers[..., : number - size] * power), -1)
    return powers
