"""Triangular systems: derivatives and public function."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mpslinalg import _check, _op, _out, _route, _triangular_plan
from mpslinalg._repeat import public

regime = _triangular_plan.regime

_solve = _triangular_plan.solve_triangular_op


def operator(A: Tensor, trans: int) -> Tensor:
    """A, its transpose or its adjoint for trans = 0, 1, 2."""
    return A if trans == 0 else A.mT if trans == 1 else A.mH


class _SolveTriangular(Function):
    """gB = op(A)^-H gX, gA = -op(gB X^H) on the triangle; dX = op(A)^-1 (dB - op(dA) X).

    Source: Giles, "Collected matrix derivative results for forward and reverse mode AD" (2008).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        A: Tensor, B: Tensor, upper: bool, unit: bool, trans: int, row_major: bool
    ) -> Tensor:
        X: Tensor = _solve(A, B, upper, unit, trans, row_major)
        return X

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        A, _, *ctx.options = inputs
        ctx.save_for_backward(A, output)
        ctx.save_for_forward(A, output)

    @staticmethod
    def backward(ctx: Any, gX: Tensor) -> tuple[Tensor | None, ...]:
        A, X = ctx.saved_tensors
        upper, unit, trans, row_major = ctx.options
        if trans == 1:
            gB = solve_operator(A, gX.conj(), upper, unit, 0, row_major).conj()
        else:
            gB = solve_operator(A, gX, upper, unit, 2 - trans, row_major)
        gA = None
        if ctx.needs_input_grad[0]:
            gA = -_triangle(operator(gB @ X.mH, trans), upper, unit)
        return gA, gB, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, dB: Tensor, *_: None) -> Tensor:
        A, X = ctx.saved_tensors
        upper, unit, trans, row_major = ctx.options
        dR = dB - operator(_triangle(dA, upper, unit), trans) @ X
        return solve_operator(A, dR, upper, unit, trans, row_major)


_differentiable_solve = _op.applied(_SolveTriangular)


def _triangle(A: Tensor, upper: bool, unit: bool) -> Tensor:
    return A.triu(int(unit)) if upper else A.tril(-int(unit))


def solve_operator(
    A: Tensor, B: Tensor, upper: bool, unit: bool, trans: int, row_major: bool = False
) -> Tensor:
    """X of op(A) X = B, differentiable, where op is plain, transpose, adjoint for trans = 0, 1, 2.

    Only that triangle of A is read, its diagonal only if it is not taken as 1. A and B have the
    same batch; X is column-major, or row-major.
    """
    if _op.tracked(A, B):
        X: Tensor = _differentiable_solve(A, B, upper, unit, trans, row_major)
    else:
        X = _solve(A, B, upper, unit, trans, row_major)
    return X


@public
def solve_triangular(
    A: Tensor,
    B: Tensor,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Solve A X = B, or X A = B with left=False, for triangular A.

    Same contract as `torch.linalg.solve_triangular`. Differences: none.

    Args:
        A: (*, n, n), float32, float64, complex64 or complex128. Only the triangle that `upper`
            names is read.
        B: (*, n, k), or (*, k, n) with left=False; taken in the dtype of A. Batches broadcast.
        upper: A is upper triangular, else lower.
        left: solve A X = B, else X A = B.
        unitriangular: take the diagonal of A as 1, and do not read it.
        out: a tensor to write to.

    Returns:
        X, shape of B with the broadcast batch, dtype of A, column-major matrices; row-major where A
        is the conjugate view of column-major ones. A zero on the diagonal makes infinities and NaN
        in the unknowns that depend on it, no error.

    Raises:
        RuntimeError: shapes that do not fit, other dtypes.

    Never waits for the device. Of few matrices each launch solves 128 rows and takes them out of
    those below. In batches a right-hand side has a lane, in one launch up to 64 rows and 256 in
    large batches; matrices of n <= 16, with few right-hand sides n <= 64, share a simdgroup. One
    right-hand side of n > 16 and up to 8 of n > 64 have a threadgroup instead, one launch up to 512
    rows. Beyond, matrix products join such parts.
    ||B - A X|| <= c n eps ||A|| ||X||: LAPACK's test ratio stays below its threshold of 30.

    Source: Higham, "Accuracy and Stability of Numerical Algorithms", chapter 8; LAPACK's trtrs.
    Derivatives: Giles (2008).
    """
    if not _route.kernels("solve_triangular", A):
        result: Tensor = torch.linalg.solve_triangular(
            A, B, upper=upper, left=left, unitriangular=unitriangular, out=out
        )
        return result
    _check.same_device("wrapper_CUDA__linalg_solve_triangular", A=A, B=B, out=out)
    accepted = _check.square(A) and _check.flags(upper, left, unitriangular)
    if accepted and isinstance(B, Tensor) and B.dtype != A.dtype:
        B = B.to(A.dtype)
    if not (accepted and _check.fits(A, B, left) and _check.out(out, (A, B), A.dtype)):
        refused: Tensor = _check.refuse(
            torch.linalg.solve_triangular,
            A,
            B,
            upper=upper,
            left=left,
            unitriangular=unitriangular,
            out=out,
        )
        return refused
    A, B = _op.broadcast((A, 2), (B, 2))
    # Of the conjugate view of a column-major A torch makes no copy, and then a row-major X.
    # Not where it compiles: conjugate views cannot be told there.
    row_major = not torch.compiler.is_compiling() and A.is_conj() and A.mT.is_contiguous()
    if left:
        X = solve_operator(A, B, upper, unitriangular, 0, row_major)
    else:
        X = solve_operator(A, B.mT, upper, unitriangular, 1, not row_major).mT
    return X if out is None else _out.write(X, out)
