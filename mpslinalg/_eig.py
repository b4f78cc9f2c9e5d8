"""Eigenproblem of general matrices: derivatives and public functions."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils._python_dispatch import _disable_current_modes

from mpslinalg import _check, _eig_plan, _op, _out, _route
from mpslinalg._lu import factor_constant, solve_factored
from mpslinalg._repeat import public

regime = _eig_plan.regime

_decompose = _eig_plan.eig_op

# torch.compile does not know dtype.to_complex().
_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}


class _Eig(Function):
    """A = V diag(L) V^-1. With P = V^-1 dA V and E_ij = L_j - L_i: dL = diag(P), and dV = V (P / E)
    without the diagonal, less the part of each column along it, as norms stay 1. With S = V^H gV:
    gA = V^-H (diag(gL) + (S - V^H V diag(Re S)) / conj(E)) V^H, without the quotient's diagonal.

    Source: Boeddeker et al., "On the computation of complex-valued gradients" (2017), for vectors
    of norm 1; Giles (2008).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        L, V, info = _decompose(A, True)
        return L, V, info

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, ...]) -> None:
        L, V, info = output
        ctx.mark_non_differentiable(info)
        ctx.set_materialize_grads(False)
        ctx.real = not inputs[0].is_complex()
        ctx.save_for_backward(L, V)
        ctx.save_for_forward(L, V)

    @staticmethod
    def backward(ctx: Any, gL: Tensor | None, gV: Tensor | None, _: Any) -> Tensor | None:
        L, V = ctx.saved_tensors
        if gL is None and gV is None:
            return None
        gA = _pull_back(L, V, gL, gV)
        return gA.real if ctx.real else gA

    @staticmethod
    def jvp(ctx: Any, dA: Tensor) -> tuple[Tensor, Tensor, None]:
        L, V = ctx.saved_tensors
        P = _solve(V, dA.to(V.dtype) @ V, 0)
        dV = V @ _over_differences(P, L)
        along = _diagonal(V.mH @ dV).real
        return _diagonal(P), dV - V * along.unsqueeze(-2), None


class _EigVals(Function):
    """dL = diag(V^-1 dA V); gA = V^-H diag(gL) V^H."""

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor) -> tuple[Tensor, Tensor]:
        L, _, info = _decompose(A, False)
        return L, info

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, gL: Tensor, _: Any) -> Tensor:
        (A,) = ctx.saved_tensors
        L, V, _ = _decomposed(A)
        gA = _pull_back(L, V, gL, None)
        return gA if A.is_complex() else gA.real

    @staticmethod
    def jvp(ctx: Any, dA: Tensor) -> tuple[Tensor, None]:
        (A,) = ctx.saved_tensors
        _, V, _ = _decomposed(A)
        return _diagonal(_solve(V, dA.to(V.dtype) @ V, 0)), None


_differentiable = _op.applied(_Eig)
_differentiable_values = _op.applied(_EigVals)


def _decomposed(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    L, V, info = _differentiable(A) if _op.tracked(A) else _decompose(A, True)
    return L, V, info


def _diagonal(A: Tensor) -> Tensor:
    return A.diagonal(dim1=-2, dim2=-1)


def _solve(V: Tensor, B: Tensor, trans: int) -> Tensor:
    """V^-1 B, or V^-H B with trans 2."""
    LU, pivots, _ = factor_constant(V)
    return solve_factored(V, B, LU, pivots, trans)


def _over_differences(P: Tensor, L: Tensor) -> Tensor:
    """P_ij / (L_j - L_i), and zeros on the diagonal."""
    one = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)
    off_diagonal = P - torch.diag_embed(_diagonal(P))
    return off_diagonal / (L.unsqueeze(-2) - L.unsqueeze(-1) + one)


def _pull_back(L: Tensor, V: Tensor, gL: Tensor | None, gV: Tensor | None) -> Tensor:
    inner = torch.zeros_like(V) if gL is None else torch.diag_embed(gL)
    if gV is not None:
        S = V.mH @ gV
        diagonal = _diagonal(S)
        _refuse_phase(diagonal.imag)
        inner = inner + _over_differences(S - (V.mH @ V) * diagonal.real.unsqueeze(-2), L.conj())
    return _solve(V, inner @ V.mH, 2)


def _refuse_phase(turning: Tensor) -> None:
    """torch's error for a loss that depends on the phases of eigenvectors.

    Tracing and transforms cannot look at the gradient.
    """
    if _op.visible(turning) and bool((turning.abs() > _op.PHASE_TOLERANCE).any()):
        raise RuntimeError(
            "linalg_eig_backward: The eigenvectors in the complex case are specified up to "
            "multiplication by e^{i phi}. The specified loss function depends on this quantity, "
            "so it is ill-defined."
        )


def check_info(info: Tensor, name: str, A: Tensor) -> None:
    """Raise torch's errors: first for NaN or infinity, which have n + 1."""
    n, is_matrix = A.shape[-1], A.dim() == 2

    def check(info: Tensor) -> None:
        try:
            _check.raise_first(info, name, is_matrix)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            if _op.visible(info) and bool((info > n).any()):
                raise RuntimeError(
                    f"torch.{name}: input tensor should not contain infs or NaNs."
                ) from None
            raise

    _check.at_the_end(info, check)


@public
def eig(A: Tensor, *, out: Any = None) -> Any:
    """Compute eigenvalues and eigenvectors of a square matrix, A V = V diag(L).

    Same contract as `torch.linalg.eig`. Differences: within `torch.compile` and `torch.func` a
    matrix with NaN or infinity raises LinAlgError.

    Args:
        A: (*, n, n), float32, float64, complex64 or complex128.
        out: two tensors to write to.

    Returns:
        eigenvalues (*, n), complex, in no order, and eigenvectors (*, n, n), complex column-major
        matrices with columns of norm 1. Of a real matrix eigenvalues are real or in exact conjugate
        pairs, that with the positive imaginary part first, and so are their vectors. The largest
        entry of each vector is real and positive.
        Differentiable where no eigenvalue is repeated; the loss must not depend on phases.

    Raises:
        RuntimeError: NaN or infinite entries; what is no square matrix; other dtypes.
        torch.linalg.LinAlgError: no convergence within 30 n sweeps, beyond 512 rows 4 n rounds of
            several; names the first matrix. Reads the device once to know, beyond 512 rows once
            for some 12 rows (6 complex).
        NotImplementedError: half precision.

    Balancing by powers of two, Householder's reduction to Hessenberg form, Francis's double shifts,
    single ones if complex, and back substitution: up to 32 rows (16 in double precision) in one
    launch, a simdgroup a matrix; up to 512 a threadgroup a matrix and so many sweeps a launch;
    beyond, aggressive early deflation and sweeps of several bulges, by the whole GPU.
    ||A V - V diag(L)|| <= c n eps ||A|| unless balancing was to undo large differences of scale:
    LAPACK's test ratios stay below its threshold of 20.

    Source: Golub, Van Loan, "Matrix Computations", chapter 7; Braman, Byers, Mathias, "The
    multishift QR algorithm" I and II (2002); LAPACK's geev. Derivatives: Boeddeker et al. (2017),
    Giles (2008).
    """
    if not (isinstance(A, Tensor) and _route.kernels("eig", A)):
        return torch.linalg.eig(A, out=out)
    _check.same_device("linalg_eig", input=A, out=out)
    dtype = _COMPLEX.get(A.dtype, A.dtype)
    if not (_check.square(A) and _check.out_to_cast(out, (A,), dtype, dtype)):
        return _check.refuse(torch.linalg.eig, A, out=out)
    L, V, info = _decomposed(A)
    check_info(info, "linalg.eig", A)
    return _out.named("linalg_eig", (L, V), out)


@public
def eigvals(A: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Compute the eigenvalues of a square matrix.

    Same contract as `torch.linalg.eigvals`. Differences: those of `eig`.

    Args:
        A: see `eig`.
        out: a tensor to write to.

    Returns:
        eigenvalues (*, n), complex, in no order; those of `eig`, bit for bit. Differentiable where
        no eigenvalue is repeated.

    Raises:
        RuntimeError, torch.linalg.LinAlgError, NotImplementedError: as `eig`.

    Sizes and source: see `eig`. They are the eigenvalues of a matrix within c n eps ||A|| of A.
    """
    if not (isinstance(A, Tensor) and _route.kernels("eigvals", A)):
        result: Tensor = torch.linalg.eigvals(A, out=out)
        return result
    _check.same_device("linalg_eigvals", input=A, out=out)
    if not (_check.square(A) and _check.out_to_cast(out, (A,), _COMPLEX.get(A.dtype, A.dtype))):
        # Under a mode, as while a call is recorded, torch runs eig and complains in its name.
        with _disable_current_modes():
            refused: Tensor = _check.refuse(torch.linalg.eigvals, A, out=out)
        return refused
    if _op.tracked(A):
        L, info = _differentiable_values(A)
    else:
        L, _, info = _decompose(A, False)
    check_info(info, "linalg.eigvals", A)
    return L if out is None else _out.write(L, out)
