"""Norms of matrices and condition numbers: derivatives and public functions."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mpslinalg import _check, _inverse, _op, _out, _route, _svd
from mpslinalg._names import named_as_torchs
from mpslinalg._shards import over_batches

# By sums of absolute values along rows or columns, then by singular values.
SUMS = (1, -1, math.inf, -math.inf)
SPECTRAL = ("nuc", 2, -2)


def operation(name: str, given: Mapping[str, Any]) -> str:
    """What routes know a call by."""
    if name == "cond":
        return "cond" if given["p"] in (None, *SPECTRAL) else "cond inverse"
    return "matrix_norm spectral" if given["ord"] in SPECTRAL else "matrix_norm"


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a few words for `which`."""
    if name in ("cond", "matrix_norm spectral"):
        return _svd.regime("svdvals", dtype, batch, m, n, k)
    if name == "cond inverse":
        return f"{_inverse.regime('inv_ex', dtype, batch, m, n, k)}, torch's sums"
    return "torch's sums"


class _Frobenius(Function):
    """dN = re <A, dA> / N, gA = A gN / N, zero where N is; of the last two dimensions."""

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor) -> Tensor:
        return _sum_of_squares(A)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)
        ctx.save_for_forward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, gN: Tensor) -> Tensor:
        return _direction(*ctx.saved_tensors) * gN[..., None, None]

    @staticmethod
    def jvp(ctx: Any, dA: Tensor) -> Tensor:
        product = _direction(*ctx.saved_tensors).conj() * dA
        return (product.real if product.is_complex() else product).sum((-2, -1))


def _direction(A: Tensor, N: Tensor) -> Tensor:
    return A / torch.where(N == 0, 1, N)[..., None, None]


_differentiable_frobenius = _op.applied(_Frobenius)


def _sum_of_squares(A: Tensor) -> Tensor:
    """The root of the sum of squares, of numbers near 1 whatever the scale of A."""
    parts = torch.view_as_real(A.resolve_conj()).flatten(-2) if A.is_complex() else A
    if A.numel() == 0:
        return parts.sum((-2, -1))
    limits = torch.finfo(parts.dtype)
    # Of zeros or infinities the quotients are zeros or infinities.
    scale = parts.abs().amax((-2, -1), keepdim=True).clamp(limits.tiny, limits.max)
    return (parts / scale).square().sum((-2, -1)).sqrt() * scale[..., 0, 0]


def frobenius(A: Tensor) -> Tensor:
    """The Frobenius norm, differentiable; it neither overflows nor underflows where A does not."""
    N: Tensor = (_differentiable_frobenius if _op.tracked(A) else _sum_of_squares)(A)
    return N


def _norm(A: Tensor, order: Any) -> Tensor:
    """The norm of the last two dimensions."""
    if order == "fro":
        return frobenius(A)
    if order in SPECTRAL:
        S = _svd.svdvals(A)
        if order == "nuc":
            return S.sum(-1)
        return _largest(S) if order == 2 else S.amin(-1)
    sums = A.abs().sum(-2 if abs(order) == 1 else -1)
    # Counted from the front, as in torch's error for no sums.
    return _largest(sums) if order > 0 else sums.amin(sums.dim() - 1)


def _largest(values: Tensor) -> Tensor:
    """The largest of values that are not negative; of none, zero."""
    return values.amax(-1) if values.shape[-1] > 0 else values.sum(-1)


def _known(order: Any) -> bool:
    if isinstance(order, str):
        return order in ("fro", "nuc")
    return type(order) in (bool, int, float) and order in (*SUMS, *SPECTRAL)


def _distinct(A: Tensor, dim: Any) -> bool:
    """Whether dim is two dimensions of A."""
    if not (isinstance(dim, (tuple, list)) and len(dim) == 2 and {*map(type, dim)} == {int}):
        return False
    inside = all(-A.dim() <= d < A.dim() for d in dim)
    return inside and dim[0] % A.dim() != dim[1] % A.dim()


def widens(A: Tensor, dtype: Any) -> bool:
    """Whether torch takes dtype to compute in."""
    if dtype is None:
        return True
    same_kind = isinstance(dtype, torch.dtype) and dtype.is_complex == A.dtype.is_complex
    return same_kind and torch.promote_types(A.dtype, dtype) == dtype


@named_as_torchs
def matrix_norm(
    A: Tensor,
    ord: int | float | str = "fro",
    dim: Sequence[int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Compute a norm of a matrix.

    Same contract as `torch.linalg.matrix_norm`. Differences: "fro" of entries from 1e-30 to 1e30
    neither overflows nor vanishes, nor does its gradient.

    Args:
        A: of two and more dimensions, floating point or complex; half precision without singular
            values only.
        ord: "fro", the root of the sum of squares; "nuc", the sum of the singular values; 2, -2,
            the largest and the smallest of them; inf, -inf, 1, -1, the largest and the smallest sum
            of absolute values in a row (inf) or column (1).
        dim: the dimensions of rows and of columns.
        keepdim: whether these stay, with the size 1.
        dtype: to convert A to first.
        out: a tensor to write to.

    Returns:
        A real tensor. Differentiable; "fro" of zeros has the gradient zero, and singular values may
        be equal with "nuc".

    Raises:
        torch.linalg.LinAlgError: with singular values, as `svdvals`.
        RuntimeError, IndexError: other ord, dim or dtypes, integers, the smallest of no values.

    Sums are torch's, of entries divided by the largest one for "fro"; singular values are of
    `svdvals`, at its sizes.

    Source: Higham, "Accuracy and Stability of Numerical Algorithms", chapter 6; section 27.8 for
    the scaling.
    """
    known = _known(ord)
    spectral = known and ord in SPECTRAL
    name = "matrix_norm spectral" if spectral else "matrix_norm"
    options = {"dtype": dtype, "out": out}
    if not _route.kernels(name, A):
        result: Tensor = torch.linalg.matrix_norm(A, ord, dim, keepdim, **options)
        return result
    _check.same_device("linalg_matrix_norm", A=A, out=out)
    accepted = (
        known
        and A.dim() >= 2
        and (A.is_floating_point() or A.is_complex())
        and _distinct(A, dim)
        and _check.flags(keepdim)
        and widens(A, dtype)
        and (not spectral or (A.dtype if dtype is None else dtype) in _check.DTYPES)
    )
    if not (accepted and _check.out(out, (A,), real_dtype(A.dtype if dtype is None else dtype))):
        refused: Tensor = _check.refuse(
            torch.linalg.matrix_norm, A, ord, dim, keepdim, dtype=dtype, out=out
        )
        return refused
    matrices = A.to(dtype).movedim(tuple(dim), (-2, -1))
    N = _norm(matrices, ord)
    if keepdim and spectral and out is None:
        N = N[..., None, None].movedim((-2, -1), tuple(dim))
    elif keepdim:
        kept = {d % A.dim() for d in dim}
        N = N.reshape([1 if d in kept else size for d, size in enumerate(A.shape)])
    return N if out is None else _out.write(N, out)


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    # torch.compile does not know dtype.to_real().
    return {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)


@over_batches
def cond(A: Tensor, p: int | float | str | None = None, *, out: Tensor | None = None) -> Tensor:
    """Compute the condition number of a matrix with regard to inversion.

    Same contract as `torch.linalg.cond`. Differences: those of `matrix_norm`.

    Args:
        A: (*, m, n), for other p than None, 2 and -2 square; float32, float64, complex64 or
            complex128.
        p: the norm, see `matrix_norm`; None is 2.
        out: a tensor to write to.

    Returns:
        A real tensor (*): with 2 and -2 the largest singular value divided by the smallest, or the
        inverse of that; with "nuc" the sum of the singular values times that of their inverses;
        else the norm of A times that of its inverse. inf if A is singular, though NaN if it is zero
        and p is 2, -2 or "nuc". Differentiable.

    Raises:
        torch.linalg.LinAlgError: with singular values, as `svdvals`.
        RuntimeError: what is no matrix, other p or dtypes.

    Sizes: those of `svdvals` or of `inv_ex`. For 2 a relative error of some max(m, n) eps cond(A).

    Source: Higham, "Accuracy and Stability of Numerical Algorithms", chapter 6.
    """
    known = p is None or _known(p)
    spectral = p is None or (known and p in SPECTRAL)
    name = "cond" if spectral else "cond inverse"
    if isinstance(A, Tensor) and not _route.kernels(name, A):
        result: Tensor = torch.linalg.cond(A, p, out=out)
        return result
    _check.same_device("linalg_cond", A=A, out=out)
    rectangular = p in (None, 2, -2)
    if not (
        isinstance(A, Tensor)
        and known
        and (_check.matrix(A) if rectangular or A.numel() == 0 else _check.square(A))
        and _check.out_to_cast(out, (A,), real_dtype(A.dtype))
        and not (isinstance(p, str) and not _check.square(A))
    ):
        given = () if p is None else (p,)
        refused: Tensor = _check.refuse(torch.linalg.cond, A, *given, out=out)
        return refused
    C = _condition(A, 2 if p is None else p)
    return C if out is None else _out.write(C, out)


def _condition(A: Tensor, order: Any) -> Tensor:
    if A.numel() == 0:
        return A.new_zeros(A.shape[:-2], dtype=real_dtype(A.dtype))
    if order in SPECTRAL:
        S = _svd.svdvals(A)
        if order == "nuc":
            return S.sum(-1) * (1 / S).sum(-1)
        return S[..., 0] / S[..., -1] if order == 2 else S[..., -1] / S[..., 0]
    X, info = _inverse.inv_ex(A)
    X = torch.where((info > 0)[..., None, None], math.inf, X)
    return (_norm(A, order) * _norm(X, order)).nan_to_num(math.inf, math.inf, -math.inf)
