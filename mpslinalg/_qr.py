"""QR factorisation: derivatives and public functions."""

import cmath
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mpslinalg import _check, _op, _out, _qr_plan, _route
from mpslinalg._engines import cpu
from mpslinalg._repeat import public
from mpslinalg._triangular import solve_operator

regime = _qr_plan.regime

_factor = _qr_plan.qr_op

MODES = ("reduced", "complete", "r")


class _QR(Function):
    """A = Q R with a real diagonal of R, A = [A1 A2] with A1 square or tall.

    With C = Q^H dA1 R1^-1 and P = phi(C), the upper triangle of C + C^H with half the diagonal:
    dR1 = P R1, dQ = dA1 R1^-1 - Q P, dR2 = Q^H dA2 - (C - P) R2. Backward, gA2 = Q gR2,
    gQ1 = gQ + A2 gR2^H, gA1 = (gQ1 + Q H) R1^-H where H is hermitian with the upper triangle of
    gR1 R1^H - Q^H gQ1.

    Source: Walter, Lehmann, "Algorithmic differentiation of linear algebra functions with
    application in optimum experimental design" (2010).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor, mode: str) -> tuple[Tensor, Tensor]:
        Q, R = _factor(A, mode)
        return Q, R

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        A, ctx.mode = inputs
        ctx.tall = A.shape[-2] > A.shape[-1]
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)
        if ctx.mode == "r":
            ctx.mark_non_differentiable(output[0])

    @staticmethod
    def backward(ctx: Any, gQ: Tensor, gR: Tensor) -> tuple[Tensor, None]:
        refuse_derivative(ctx)
        Q, R = ctx.saved_tensors
        return pull_back(Q, R, gQ, gR), None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, _: None) -> tuple[Tensor, Tensor]:
        refuse_derivative(ctx)
        Q, R = ctx.saved_tensors
        return push_forward(Q, R, dA)


_differentiable_factor = _op.applied(_QR)


def refuse_derivative(ctx: Any) -> None:
    if ctx.mode == "r":
        raise RuntimeError(
            "The derivative of linalg.qr depends on Q, which is not computed when mode='r'. "
            "Please use linalg.qr(A, mode='reduced') if you are going to differentiate through "
            "linalg.qr."
        )
    if ctx.mode == "complete" and ctx.tall:
        raise RuntimeError(
            "The QR decomposition is not differentiable when mode='complete' and nrows > ncols."
        )


def pull_back(Q: Tensor, R: Tensor, gQ: Tensor, gR: Tensor) -> Tensor:
    """The gradient of A from those of Q and R."""
    R1, R2 = _split(R)
    gR1, gR2 = _split(gR)
    gA2 = Q @ gR2
    gQ = gQ + Q @ (R2 @ gR2.mH)
    M = gR1 @ R1.mH - Q.mH @ gQ
    H = _hermitian(M)
    gA1 = solve_operator(R1, (gQ + Q @ H).mH, True, False, 0).mH
    return torch.cat((gA1, gA2), -1)


def push_forward(Q: Tensor, R: Tensor, dA: Tensor) -> tuple[Tensor, Tensor]:
    """The tangents of Q and R from that of A."""
    R1, R2 = _split(R)
    dA1, dA2 = dA.tensor_split((R1.shape[-1],), -1)
    scaled = solve_operator(R1, dA1.mH, True, False, 2).mH
    C = Q.mH @ scaled
    P = _phi(C)
    dR2 = Q.mH @ dA2 - (C - P) @ R2
    return scaled - Q @ P, torch.cat((P @ R1, dR2), -1)


def _split(R: Tensor) -> tuple[Tensor, Tensor]:
    """The leading square block and what is right of it."""
    square, right = R.tensor_split((R.shape[-2],), -1)
    return square, right


def _real_diagonal(A: Tensor) -> Tensor:
    return torch.diag_embed(A.diagonal(dim1=-2, dim2=-1).real).to(A.dtype)


def _phi(C: Tensor) -> Tensor:
    return (C + C.mH).triu(1) + _real_diagonal(C)


def _hermitian(M: Tensor) -> Tensor:
    """The hermitian matrix with the upper triangle of M, and the real part of its diagonal."""
    above = M.triu(1)
    return above + above.mH + _real_diagonal(M)


def factor(A: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """Q and R, differentiable."""
    Q, R = _differentiable_factor(A, mode) if _op.tracked(A) else _factor(A, mode)
    return Q, R


def may_be_repaired(A: Any, out: Any) -> bool:
    """Whether the default mode has torch factor this on the CPU, and is to look at the result."""
    return (
        out is None
        and _route.mode.name == "auto"
        and isinstance(A, Tensor)
        and A.is_cpu
        and A.dtype == torch.complex64
        and A.dim() >= 2
    )


def repaired(lapack: Callable[[Tensor], Any], ours: Callable[[Tensor], Any], A: Tensor) -> Any:
    """LAPACK's factorisation, on the CPU, where MKL's cgeqrf divides by norms that underflow.

    Each step of a matrix of rank 1 or 2 leaves residuals smaller by a factor of eps; once they are
    below 1e-19 the result is NaN, with entries near 1 from 7 columns on, with small ones from 2.
    The kernels have no such fault, and double precision hardly any. Tracing cannot look at the
    result.
    """
    traced = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    result = None if traced else lapack(A)
    # One sum takes 4 us where isfinite and all take 60; one that overflows costs time, no more.
    if result is not None and all(cmath.isfinite(x.sum().item()) for x in result):
        return result
    if traced or not cpu.compiler_found():
        return tuple(x.to(A.dtype) for x in lapack(A.to(torch.complex128)))
    return ours(A)


@public
def qr(A: Tensor, mode: str = "reduced", *, out: Any = None) -> Any:
    """Factor A = Q R: orthonormal columns times an upper triangular matrix.

    Same contract as `torch.linalg.qr`. Differences: none.

    Args:
        A: (*, m, n), float32, float64, complex64 or complex128; of any rank.
        mode: "reduced", "complete", or "r" for R alone.
        out: two tensors to write to.

    Returns:
        Q (*, m, k) and R (*, k, n), k = min(m, n), or k = m with "complete"; column-major matrices.
        With "r" Q is empty. R has a real diagonal, of any sign. Differentiable with "reduced", and
        with "complete" where m <= n.

    Raises:
        RuntimeError: what is no matrix, an unknown mode.
        NotImplementedError: other dtypes.

    Never waits for the device. Matrices of at most 32 rows and columns are a column a lane of a
    simdgroup, in one launch; up to 32 columns a threadgroup takes 512 rows, up to 40 it takes 256,
    and the R of several are factored again (TSQR); beyond, panels of 32 columns and blocks of
    reflectors. Columns are scaled by powers of two, so entries from 1e-30 to 1e30 cost no accuracy.
    ||R - Q^H A|| <= c m eps ||A||, ||I - Q^H Q|| <= c m eps: LAPACK's test ratios stay below 30.

    Source: Golub, Van Loan, "Matrix Computations", section 5.2; Demmel, Grigori, Hoemmen, Langou
    (2012) for TSQR; LAPACK's geqrf.
    """
    if not _route.kernels("qr", A):
        if may_be_repaired(A, out):
            lapack, ours = partial(torch.linalg.qr, mode=mode), partial(factor, mode=mode)
            return _out.named("linalg_qr", repaired(lapack, ours, A), None)
        return torch.linalg.qr(A, mode=mode, out=out)
    _check.same_device("linalg_qr", A=A, out=out)
    if not (_check.matrix(A) and mode in MODES and _check.out(out, (A,), A.dtype, A.dtype)):
        return _check.refuse(torch.linalg.qr, A, mode, out=out)
    return _out.named("linalg_qr", factor(A, mode), out)
