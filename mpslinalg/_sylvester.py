"""The Sylvester equation of a matrix whose eigenvectors are known, for derivatives."""

from typing import Any

from torch import Tensor
from torch.autograd import Function

from mpslinalg import _op


class _Sylvester(Function):
    """X of H X + X H = R for H = V diag(L) V^H: divided by sums of eigenvalues, never differences.

    dX solves the equation for dR - dH X - X dH. With Y that of gX, gR = Y, gH = -(Y X^H + X^H Y).
    L and V are what is known of H, whose derivatives are all in H.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(H: Tensor, R: Tensor, L: Tensor, V: Tensor) -> Tensor:
        sums = L.unsqueeze(-1) + L.unsqueeze(-2)
        return V @ ((V.mH @ R @ V) / sums) @ V.mH

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        H, _, L, V = inputs
        ctx.save_for_backward(H, L, V, output)
        ctx.save_for_forward(H, L, V, output)

    @staticmethod
    def backward(ctx: Any, gX: Tensor) -> tuple[Tensor, Tensor, None, None]:
        H, L, V, X = ctx.saved_tensors
        Y = solve(H, gX, L, V)
        return -(Y @ X.mH + X.mH @ Y), Y, None, None

    @staticmethod
    def jvp(ctx: Any, dH: Tensor, dR: Tensor, *_: Any) -> Tensor:
        H, L, V, X = ctx.saved_tensors
        return solve(H, dR - dH @ X - X @ dH, L, V)


_differentiable = _op.applied(_Sylvester)


def solve(H: Tensor, R: Tensor, L: Tensor, V: Tensor) -> Tensor:
    """X of H X + X H = R for hermitian H = V diag(L) V^H, no two of whose L add up to zero.

    Differentiable in H and R, any number of times, where eigenvalues are equal too.
    """
    X: Tensor = _differentiable(H, R, L, V)
    return X
