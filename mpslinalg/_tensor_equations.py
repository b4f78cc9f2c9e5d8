"""Inverses of tensors and equations between them: matrices whose sides are several dimensions."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mpslinalg import _check, _inverse, _out, _route, _solve
from mpslinalg._names import named_as_torchs


def what_runs(name: str, given: Mapping[str, Any]) -> str:
    """What runs for a call, in a few words for `which`."""
    return "inv" if name == "tensorinv" else "solve"


@named_as_torchs
def tensorinv(A: Tensor, ind: int = 2, *, out: Tensor | None = None) -> Tensor:
    """Invert a tensor as a linear map: X with tensordot(X, A, dims=A.dim() - ind) the identity.

    Same contract as `torch.linalg.tensorinv`. Differences: none.

    Args:
        A: the product of its first `ind` sizes is that of the others; dtypes as in `inv`.
        ind: how many dimensions are rows.
        out: a tensor to write to.

    Returns:
        X, shape A.shape[ind:] + A.shape[:ind]. Differentiable.

    Raises:
        torch.linalg.LinAlgError: A is singular.
        RuntimeError: sizes or dtypes that do not fit.

    `inv` of one matrix.
    """
    if not _route.kernels_for_any_shape(A):
        result: Tensor = torch.linalg.tensorinv(A, ind, out=out)
        return result
    _check.same_device("linalg_tensorinv", A=A, out=out)
    accepted = type(ind) is int and 0 < ind <= A.dim() and A.dtype in _check.DTYPES
    if not (
        accepted
        and math.prod(A.shape[:ind]) == math.prod(A.shape[ind:])
        and _check.out_to_cast(out, (A,), A.dtype)
    ):
        refused: Tensor = _check.refuse(torch.linalg.tensorinv, A, ind, out=out)
        return refused
    size = math.prod(A.shape[:ind])
    X, info = _inverse.inv_ex(A.reshape(size, size))
    _check.errors(info, "inv", is_matrix=True)
    X = X.reshape(A.shape[ind:] + A.shape[:ind])
    return X if out is None else _out.write(X.contiguous(), out)


@named_as_torchs
def tensorsolve(
    A: Tensor, B: Tensor, dims: Sequence[int] | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Solve a linear equation between tensors: X with tensordot(A, X, dims=X.dim()) = B.

    Same contract as `torch.linalg.tensorsolve`. Differences: none.

    Args:
        A: shape B.shape + X.shape, of as many entries in B as in X; dtypes as in `solve`.
        B: the right-hand side, dtype of A.
        dims: dimensions of A to move to its end first.
        out: a tensor to write to.

    Returns:
        X. Differentiable.

    Raises:
        torch.linalg.LinAlgError: A is singular.
        RuntimeError, IndexError: sizes, dims or dtypes that do not fit.

    `solve` with one matrix.
    """
    if not _route.kernels_for_any_shape(A):
        result: Tensor = torch.linalg.tensorsolve(A, B, dims, out=out)
        return result
    _check.same_device("linalg_tensorsolve", A=A, B=B, out=out)
    if not _accepts(A, B, dims, out):
        refused: Tensor = _check.refuse(torch.linalg.tensorsolve, A, B, dims, out=out)
        return refused
    moved = A if dims is None else A.movedim(tuple(dims), tuple(range(-len(dims), 0)))
    shape = moved.shape[B.dim() :]
    X = _solve.solve(moved.reshape(B.numel(), B.numel()), B.flatten()).reshape(shape)
    return X if out is None else _out.write(X.contiguous(), out)


def _accepts(A: Tensor, B: Any, dims: Any, out: Any) -> bool:
    if not (isinstance(B, Tensor) and A.dtype == B.dtype and A.dtype in _check.DTYPES):
        return False
    shape = list(A.shape)
    if dims is not None:
        if not (isinstance(dims, (tuple, list)) and all(type(d) is int for d in dims)):
            return False
        if not all(-A.dim() <= d < A.dim() for d in dims):
            return False
        last = [d % A.dim() for d in dims]
        if len(set(last)) != len(last):
            return False
        first = [d for d in range(A.dim()) if d not in last]
        shape = [shape[d] for d in first + last]
    sides = [math.prod(shape[: B.dim()]), math.prod(shape[B.dim() :])]
    return (
        B.dim() <= A.dim() and sides == [B.numel()] * 2 and _check.out_to_cast(out, (A, B), A.dtype)
    )
