"""Inverse: derivatives and public functions."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mpslinalg import _check, _inverse_plan, _op, _out, _route
from mpslinalg._repeat import public

regime = _inverse_plan.regime

_inv = _inverse_plan.inv_op


class _Inverse(Function):
    """dX = -X dA X, gA = -X^H gX X^H (Giles 2008)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor) -> tuple[Tensor, Tensor]:
        X, info = _inv(A)
        return X, info

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        X, info = output
        ctx.mark_non_differentiable(info)
        ctx.save_for_backward(X)
        ctx.save_for_forward(X)

    @staticmethod
    def backward(ctx: Any, gX: Tensor, _: Any) -> Tensor:
        (X,) = ctx.saved_tensors
        gA: Tensor = -X.mH @ gX @ X.mH
        return gA

    @staticmethod
    def jvp(ctx: Any, dA: Tensor) -> tuple[Tensor, None]:
        (X,) = ctx.saved_tensors
        return -X @ dA @ X, None


_differentiable_inv = _op.applied(_Inverse)


def _inverse(A: Tensor) -> tuple[Tensor, Tensor]:
    X, info = _differentiable_inv(A) if _op.tracked(A) else _inv(A)
    return X, info


@public
def inv(A: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Invert a square matrix: X with A X = X A = I.

    Same contract as `torch.linalg.inv`. Differences: none.

    Args:
        A: (*, n, n), float32, float64, complex64 or complex128.
        out: a tensor to write to.

    Returns:
        X, shape and dtype of A, column-major matrices.

    Raises:
        torch.linalg.LinAlgError: a matrix is singular; names the first one. Reads the device once
            to know, `inv_ex` does not.
        RuntimeError: what is no square matrix, other dtypes.

    n <= 4 is one fused kernel, one thread a matrix, pivoting included; n <= 32 a simdgroup a
    matrix; beyond, LU and two triangular solves. ||I - X A|| <= c n eps ||A|| ||X||: LAPACK's
    test ratio stays below its threshold of 30. For A X = B, `solve` is faster and more accurate.

    Source: Higham, "Accuracy and Stability of Numerical Algorithms", chapter 14; LAPACK's getri.
    """
    if not _route.kernels("inv", A):
        result: Tensor = torch.linalg.inv(A) if out is None else torch.linalg.inv(A, out=out)
        return result
    _check.same_device("linalg_inv_ex", A=A, out=out)
    if not (_check.square(A) and _check.out(out, (A,), A.dtype)):
        refused: Tensor = _check.refuse(torch.linalg.inv, A, out=out)
        return refused
    X, info = _inverse(A)
    _check.errors(info, "linalg.inv", is_matrix=A.dim() == 2)
    return X if out is None else _out.write(X, out)


@public
def inv_ex(A: Tensor, *, check_errors: bool = False, out: Any = None) -> Any:
    """Invert a square matrix and return LAPACK's `info` instead of raising an error.

    Same contract as `torch.linalg.inv_ex`. Differences: none.

    Args:
        A: (*, n, n), float32, float64, complex64 or complex128.
        check_errors: raise the error all the same, at the price of reading the device.
        out: two tensors to write to.

    Returns:
        inverse, shape and dtype of A, column-major matrices, and info, int32 (*): 0, or i > 0 when
        the i-th pivot, counted from 1, is zero. Other matrices of the batch are untouched by it.

    Raises:
        RuntimeError: what is no square matrix, other dtypes.
        torch.linalg.LinAlgError: with check_errors, a singular matrix.

    Sizes, error bound and source: see `inv`.
    """
    if not _route.kernels("inv_ex", A):
        return torch.linalg.inv_ex(A, check_errors=check_errors, out=out)
    _check.same_device("linalg_inv_ex", A=A, out=out)
    accepted = _check.square(A) and _check.flags(check_errors)
    if not (accepted and _check.out(out, (A,), A.dtype, torch.int32)):
        return _check.refuse(torch.linalg.inv_ex, A, check_errors=check_errors, out=out)
    X, info = _inverse(A)
    if check_errors:
        _check.errors(info, "linalg.inv_ex", is_matrix=A.dim() == 2)
    return _out.named("linalg_inv_ex", (X, info), out)
