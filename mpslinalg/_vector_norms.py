"""Norms of vectors, and norm, which is one of these or of `matrix_norm`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mpslinalg import _check, _norms, _op, _out, _route
from mpslinalg._names import named_as_torchs

Number = int | float


def what_runs(name: str, given: Mapping[str, Any]) -> str:
    """What runs for a call, in a few words for `which`."""
    spectral = name == "norm" and given["ord"] in _norms.SPECTRAL
    return "svdvals for two dimensions, else torch's sums" if spectral else "torch's sums"


class _Power(Function):
    """N = (sum |x|^p)^(1/p) over the last dimension; dN = sum re(conj(D) dx) with
    D = sgn(x) (|x| / N)^(p - 1), or 0 where x or N is.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, p: float) -> Tensor:
        return _scaled(x, p)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        x, ctx.p = inputs
        ctx.save_for_backward(x, output)
        ctx.save_for_forward(x, output)

    @staticmethod
    def backward(ctx: Any, gN: Tensor) -> tuple[Tensor, None]:
        x, N = ctx.saved_tensors
        return _direction(x, N, ctx.p) * gN.unsqueeze(-1), None

    @staticmethod
    def jvp(ctx: Any, dx: Tensor, _: Any) -> Tensor:
        x, N = ctx.saved_tensors
        product = _direction(x, N, ctx.p).conj() * dx
        return (product.real if product.is_complex() else product).sum(-1)


def _direction(x: Tensor, N: Tensor, p: float) -> Tensor:
    N = N.unsqueeze(-1)
    zero = (x == 0) | (N == 0)
    size = torch.where(zero, 1, x.abs() / torch.where(N == 0, 1, N))
    return torch.where(zero, 0, x.sgn() * size.pow(p - 1))


_differentiable_power = _op.applied(_Power)


def _scaled(x: Tensor, p: float) -> Tensor:
    """The norm by numbers relative to the one that weighs most, whatever the scale of x."""
    size = x.abs()
    leading = size.amax(-1, keepdim=True) if p > 0 else size.amin(-1, keepdim=True)
    scale = torch.where((leading == 0) | leading.isinf(), 1, leading)
    return (size / scale).pow(p).sum(-1).pow(1 / p) * scale.squeeze(-1)


def _power(x: Tensor, p: float) -> Tensor:
    if x.numel() == 0:
        # The largest of none exists no more than its power.
        return x.abs().sum(-1)
    N: Tensor = _differentiable_power(x, p) if _op.tracked(x) else _scaled(x, p)
    return N


def _norm(x: Tensor, order: Number) -> Tensor:
    """The norm of the last dimension."""
    if order == 0:
        # With a gradient, of zeros.
        return torch.where(x == 0, x.abs(), 1).sum(-1)
    if order == 1:
        return x.abs().sum(-1)
    if order == math.inf:
        return x.abs().amax(-1)
    if order == -math.inf:
        return x.abs().amin(-1)
    # Halves have too few digits and too little range to add powers in.
    wide = x.float() if x.dtype in _check.HALVES else x
    N = _norms.frobenius(wide.unsqueeze(-2)) if order == 2 else _power(wide, float(order))
    return N.to(x.dtype) if x.dtype in _check.HALVES else N


def _dimensions(x: Tensor, dim: Any) -> list[int] | None:
    """The dimensions counted from the front, None where torch refuses them."""
    dims = [dim] if type(dim) is int else dim
    if dims is None or (isinstance(dims, (tuple, list)) and len(dims) == 0):
        return list(range(x.dim()))
    if not isinstance(dims, (tuple, list)) or any(type(d) is not int for d in dims):
        return None
    sides = max(x.dim(), 1)
    if not all(-sides <= d < sides for d in dims):
        return None
    dims = [d % sides for d in dims]
    return dims if len(set(dims)) == len(dims) else None


def _of_dimensions(x: Tensor, order: Number, dims: list[int], keepdim: bool) -> Tensor:
    if x.dim() == 0:
        return _norm(x.unsqueeze(0), order)
    count = len(dims)
    vectors = x.movedim(dims, list(range(-count, 0))).flatten(x.dim() - count)
    N = _norm(vectors, order)
    if not keepdim:
        return N
    return N.reshape([1 if d in dims else size for d, size in enumerate(x.shape)])


@named_as_torchs
def vector_norm(
    x: Tensor,
    ord: int | float = 2,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Compute a norm of vectors: (sum |x|^ord)^(1/ord).

    Same contract as `torch.linalg.vector_norm`. Differences: entries from 1e-30 to 1e30 neither
    overflow nor vanish, nor does the gradient.

    Args:
        x: floating point or complex.
        ord: any real number; inf, -inf the largest and the smallest absolute value; 0 the number
            of entries that are not zero.
        dim: one dimension or several, which count as one; None is all.
        keepdim: whether these stay, with the size 1.
        dtype: to convert x to first.
        out: a tensor to write to.

    Returns:
        A real tensor. Differentiable, with the gradient zero where the norm is zero.

    Raises:
        RuntimeError, IndexError, TypeError: other ord, dim or dtypes, integers, the smallest or the
            largest of no entries.

    Torch's sums of entries divided by the largest one, for negative ord by the smallest. A relative
    error of some log2(n) eps, times |ord|.

    Source: Higham, "Accuracy and Stability of Numerical Algorithms", section 27.8.
    """
    if not _route.kernels_for_any_shape(x):
        result: Tensor = torch.linalg.vector_norm(x, ord, dim, keepdim, dtype=dtype, out=out)
        return result
    _check.same_device("linalg_vector_norm", x=x, out=out)
    order: Any = int(ord) if type(ord) is bool else ord
    dims = _dimensions(x, dim)
    if not (
        type(order) in (int, float)
        and _check.number(order)
        and (x.is_floating_point() or x.is_complex())
        and dims is not None
        and _check.flags(keepdim)
        and _norms.widens(x, dtype)
        and (0 <= order < math.inf or x.dim() == 0 or all(x.shape[d] > 0 for d in dims))
        and _check.out(out, (x,), _norms.real_dtype(x.dtype if dtype is None else dtype))
    ):
        refused: Tensor = _check.refuse(
            torch.linalg.vector_norm, x, ord, dim, keepdim, dtype=dtype, out=out
        )
        return refused
    N = _of_dimensions(x.to(dtype), order, dims, keepdim)
    return N if out is None else _out.write(N, out)


@named_as_torchs
def norm(
    input: Tensor,
    ord: int | float | str | None = None,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Compute a norm of vectors or matrices.

    Same contract as `torch.linalg.norm`. Differences: those of `vector_norm` and `matrix_norm`.

    Args:
        input: floating point or complex.
        ord: None is 2 of all entries; else of a vector as in `vector_norm`, of a matrix as in
            `matrix_norm`.
        dim: one dimension, of vectors, or two, of matrices; None is all, of which there are one or
            two if ord is given.
        keepdim: whether these stay, with the size 1.
        out: a tensor to write to.
        dtype: to convert the input to first.

    Returns:
        A real tensor. Differentiable.

    Raises:
        RuntimeError, IndexError, TypeError, torch.linalg.LinAlgError: as `vector_norm` and
            `matrix_norm`.

    Sizes, error bound and source: see there.
    """
    if not _route.kernels_for_any_shape(input):
        result: Tensor = torch.linalg.norm(input, ord, dim, keepdim, dtype=dtype, out=out)
        return result
    dims = [dim] if type(dim) is int else dim
    known = dims is None or (isinstance(dims, (tuple, list)) and len(dims) in (1, 2))
    of = len(dims) if isinstance(dims, (tuple, list)) else input.dim()
    given: Any = (0, 1) if dims is None else dims
    words = _check.out(out, (input,), _norms.real_dtype(input.dtype if dtype is None else dtype))
    if known and words and ord is None:
        return vector_norm(input, 2, dims, keepdim, dtype=dtype, out=out)
    if known and words and of == 1 and not isinstance(ord, str):
        return vector_norm(input, ord, dims, keepdim, dtype=dtype, out=out)  # type: ignore[arg-type]
    if known and words and of == 2:
        return _norms.matrix_norm(input, ord, given, keepdim, dtype=dtype, out=out)  # type: ignore[arg-type]
    refused: Tensor = _check.refuse(
        torch.linalg.norm, input, ord, dim, keepdim, dtype=dtype, out=out
    )
    return refused
