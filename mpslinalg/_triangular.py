"""Triangular systems: derivatives."""

from typing import Any

from torch import Tensor
from torch.autograd import Function

from mpslinalg import _op, _triangular_plan

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
    def forward(A: Tensor, B: Tensor, upper: bool, unit: bool, trans: int) -> Tensor:
        X: Tensor = _solve(A, B, upper, unit, trans)
        return X

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        A, _, *ctx.options = inputs
        ctx.save_for_backward(A, output)
        ctx.save_for_forward(A, output)

    @staticmethod
    def backward(ctx: Any, gX: Tensor) -> tuple[Tensor | None, ...]:
        A, X = ctx.saved_tensors
        upper, unit, trans = ctx.options
        if trans == 1:
            gB = solve_triangular(A, gX.conj(), upper, unit, 0).conj()
        else:
            gB = solve_triangular(A, gX, upper, unit, 2 - trans)
        gA = None
        if ctx.needs_input_grad[0]:
            gA = -_triangle(operator(gB @ X.mH, trans), upper, unit)
        return gA, gB, None, None, None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, dB: Tensor, *_: None) -> Tensor:
        A, X = ctx.saved_tensors
        upper, unit, trans = ctx.options
        dR = dB - operator(_triangle(dA, upper, unit), trans) @ X
        return solve_triangular(A, dR, upper, unit, trans)


_differentiable_solve = _op.applied(_SolveTriangular)


def solve_triangular(A: Tensor, B: Tensor, upper: bool, unit: bool, trans: int) -> Tensor:
    """X of op(A) X = B, differentiable, where op is plain, transpose, adjoint for trans = 0, 1, 2.

    Only that triangle of A is read, its diagonal only if it is not taken as 1.
    """
    if _op.tracked(A, B):
        X: Tensor = _differentiable_solve(A, B, upper, unit, trans)
    else:
        X = _solve(A, B, upper, unit, trans)
    return X


def _triangle(A: Tensor, upper: bool, unit: bool) -> Tensor:
    return A.triu(int(unit)) if upper else A.tril(-int(unit))
