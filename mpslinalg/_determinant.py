"""Determinants from the LU factorisation: derivatives and public functions."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mpslinalg import _check, _determinant_plan, _lu_plan, _op, _out, _route
from mpslinalg._lu import factor_constant, permute, solve_factored
from mpslinalg._repeat import public

regime = _determinant_plan.regime

_lu_det = _lu_plan.lu_det_op
_plain_det = _determinant_plan.det_op
_plain_slogdet = _determinant_plan.slogdet_op


class _Determinant(Function):
    """d det(A) = tr(adj(A) dA), gA = g adj(A)^H, for singular A too (Jacobi's formula).

    LU and pivots carry the values of A; A itself only carries its derivative.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor, LU: Tensor, pivots: Tensor) -> Tensor:
        det: Tensor = _lu_det(LU, pivots)[0]
        return det

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return g[..., None, None] * _adjugate(*ctx.saved_tensors).mH, None, None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, *_: None) -> Tensor:
        return _trace(_adjugate(*ctx.saved_tensors) @ dA)


def _slogdet(A: Tensor, LU: Tensor, pivots: Tensor) -> tuple[Tensor, Tensor]:
    _, sign, logabsdet = _lu_det(LU, pivots)
    return sign, logabsdet


class _SlogDeterminant(Function):
    """With t = tr(A^-1 dA): d log|det(A)| = re(t), d sign = sign i im(t)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor, LU: Tensor, pivots: Tensor) -> tuple[Tensor, Tensor]:
        return _slogdet(A, LU, pivots)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs, output[0])
        ctx.save_for_forward(*inputs, output[0])

    @staticmethod
    def backward(ctx: Any, gsign: Tensor, glog: Tensor) -> tuple[Tensor, None, None]:
        A, LU, pivots, sign = ctx.saved_tensors
        g = torch.complex(glog, (gsign * sign.conj()).imag) if A.is_complex() else glog
        gI = torch.diag_embed(g.unsqueeze(-1).expand(A.shape[:-1]))
        return solve_factored(A, gI, LU, pivots, 2), None, None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, *_: None) -> tuple[Tensor, Tensor]:
        A, LU, pivots, sign = ctx.saved_tensors
        t = _trace(solve_factored(A, dA, LU, pivots, 0))
        if A.is_complex():
            return sign * torch.complex(torch.zeros_like(t.imag), t.imag), t.real
        return torch.zeros_like(sign), t


_differentiable_det = _op.applied(_Determinant)
_differentiable_slogdet = _op.applied(_SlogDeterminant)


def _trace(A: Tensor) -> Tensor:
    return A.diagonal(dim1=-2, dim2=-1).sum(-1)


def _adjugate(A: Tensor, LU: Tensor, pivots: Tensor) -> Tensor:
    """adj(A) = det(A) A^-1, differentiable, and right where A is singular of rank n - 1.

    The first zero pivot is moved away by a constant rank-one term, M = A + w v^T, which leaves
    adj(A) = det(M) ((1 - v^T M^-1 w) M^-1 + M^-1 w v^T M^-1) without a division by zero; v = 0 if
    there is none. A second zero pivot at rank n - 1 takes a small value instead: its error is
    eps in adj(A).
    """
    if A.numel() == 0:
        return torch.zeros_like(A)
    zero = LU.diagonal(dim1=-2, dim2=-1) == 0
    first = zero & (zero.cumsum(-1) == 1)
    size = LU.abs().amax((-2, -1)).unsqueeze(-1)
    size = torch.where(size == 0, 1, size)
    small = size * torch.finfo(LU.dtype).eps
    shift = torch.where(first, size, torch.where(zero, small, 0)).to(LU.dtype)
    L = LU.tril(-1) + torch.eye(LU.shape[-1], dtype=LU.dtype, device=LU.device)
    v = first.to(LU.dtype).unsqueeze(-1)
    w = permute(LU, pivots, L @ (size.unsqueeze(-1) * v))
    LU = LU + torch.diag_embed(shift)
    X = solve_factored(A, torch.diag_embed(torch.ones_like(shift)), LU, pivots, 0)
    Xw, vX = X @ w, v.mT @ X
    return _det(A, LU, pivots)[..., None, None] * ((1 - v.mT @ Xw) * X + Xw @ vX)


def _det(A: Tensor, LU: Tensor, pivots: Tensor) -> Tensor:
    if _op.tracked(A):
        det: Tensor = _differentiable_det(A, LU, pivots)
    else:
        det = _lu_det(LU, pivots)[0]
    return det


@public
def det(A: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Compute the determinant of a square matrix, (-1)^swaps times the product of U's diagonal.

    Same contract as `torch.linalg.det`. Differences: the gradient of a singular matrix is right.

    Args:
        A: (*, n, n), float32, float64, complex64 or complex128; singular matrices too.
        out: a tensor to write to.

    Returns:
        (*), dtype of A.

    Raises:
        RuntimeError: what is no square matrix, integers.
        NotImplementedError: other dtypes.

    Never waits for the device. Sizes as `lu_factor`. The result is the determinant of A + E with
    ||E|| <= c n eps ||A||, times (1 + c n eps). It overflows where `slogdet` does not.

    Source: Higham, "Accuracy and Stability of Numerical Algorithms", section 14.6. Derivatives:
    Giles (2008).
    """
    if not _route.kernels("det", A):
        result: Tensor = torch.linalg.det(A) if out is None else torch.linalg.det(A, out=out)
        return result
    _check.same_device("linalg_det", A=A, out=out)
    if not (_check.square(A) and _check.out(out, (A,), A.dtype)):
        refused: Tensor = _check.refuse(torch.linalg.det, A, out=out)
        return refused
    result = _det(A, *factor_constant(A)[:2]) if _op.tracked(A) else _plain_det(A)
    return result if out is None else _out.write(result, out)


@public
def slogdet(A: Tensor, *, out: Any = None) -> Any:
    """Compute sign and logarithm of the determinant: det(A) = sign exp(logabsdet).

    Same contract as `torch.linalg.slogdet`. Differences: none.

    Args:
        A: (*, n, n), float32, float64, complex64 or complex128.
        out: two tensors to write to.

    Returns:
        sign (*), dtype of A, of absolute value 1, or 0 for a singular matrix; logabsdet (*), real,
        -inf for a singular matrix.

    Raises:
        RuntimeError: what is no square matrix, other dtypes.

    Never waits for the device. Sizes, error bound and source: see `det`.
    """
    if not _route.kernels("slogdet", A):
        result: Any = torch.linalg.slogdet(A) if out is None else torch.linalg.slogdet(A, out=out)
        return result
    _check.same_device("linalg_slogdet", A=A, out=out)
    if not (_check.square(A) and _check.out(out, (A,), A.dtype, A.real.dtype)):
        return _check.refuse(torch.linalg.slogdet, A, out=out)
    if _op.tracked(A):
        results = _differentiable_slogdet(A, *factor_constant(A)[:2])
    else:
        results = _plain_slogdet(A)
    return _out.named("linalg_slogdet", results, out)
