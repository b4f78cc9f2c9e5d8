"""Symmetric and Hermitian eigenproblem: derivatives and public functions."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mpslinalg import _check, _eigh_plan, _op, _out, _route
from mpslinalg._repeat import public

regime = _eigh_plan.regime

_decompose = _eigh_plan.eigh_op


class _Eigh(Function):
    """A = V diag(L) V^H. With P = V^H dA V of the hermitian part of dA and E_ij = L_j - L_i:
    dL = re diag(P), dV = V (P / E) without the diagonal; gA = V (diag(gL) + S / E) V^H with S the
    skew part of V^H gV.

    Repeated eigenvalues have no derivative of V: the quotient is infinite or NaN. Where V is not
    used only the eigenvalues count.

    Source: Giles, "Collected matrix derivative results for forward and reverse mode AD" (2008).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor, lower: bool) -> tuple[Tensor, Tensor, Tensor]:
        L, V, info = _decompose(A, lower, True)
        return L, V, info

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        L, V, info = output
        ctx.mark_non_differentiable(info)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(L, V)
        ctx.save_for_forward(L, V)

    @staticmethod
    def backward(
        ctx: Any, gL: Tensor | None, gV: Tensor | None, _: Any
    ) -> tuple[Tensor | None, None]:
        L, V = ctx.saved_tensors
        return _pull_back(L, V, gL, gV), None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, _: None) -> tuple[Tensor, Tensor, None]:
        L, V = ctx.saved_tensors
        P = V.mH @ ((dA + dA.mH) / 2) @ V
        dL = P.diagonal(dim1=-2, dim2=-1).real
        return dL, V @ _over_differences(P, L), None


_differentiable = _op.applied(_Eigh)


def _pull_back(L: Tensor, V: Tensor, gL: Tensor | None, gV: Tensor | None) -> Tensor | None:
    if gV is None:
        return None if gL is None else (V * gL.unsqueeze(-2)) @ V.mH
    P = V.mH @ gV
    _refuse_phase(P)
    inner = _over_differences((P - P.mH) / 2, L)
    if gL is not None:
        inner = inner + torch.diag_embed(gL).to(V.dtype)
    return V @ inner @ V.mH


def _over_differences(P: Tensor, L: Tensor) -> Tensor:
    """P_ij / (L_j - L_i), and zeros on the diagonal."""
    one = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)
    off_diagonal = P - torch.diag_embed(P.diagonal(dim1=-2, dim2=-1))
    return off_diagonal / (L.unsqueeze(-2) - L.unsqueeze(-1) + one)


def _refuse_phase(P: Tensor) -> None:
    """torch's error for a loss that depends on the phases of complex eigenvectors.

    Tracing and transforms cannot look at the gradient.
    """
    if not (P.is_complex() and _op.visible(P)):
        return
    turning = P.detach().diagonal(dim1=-2, dim2=-1).imag
    if bool((turning.abs() > _op.PHASE_TOLERANCE).any()):
        raise RuntimeError(
            "linalg_eigh_backward: The eigenvectors in the complex case are specified up to "
            "multiplication by e^{i phi}. The specified loss function depends on this quantity, "
            "so it is ill-defined."
        )


def _eigh(A: Tensor, UPLO: str, vectors: bool) -> tuple[Tensor, Tensor]:
    lower = UPLO in ("L", "l")
    L, V, info = _differentiable(A, lower) if _op.tracked(A) else _decompose(A, lower, vectors)
    _check.errors(info, "linalg.eigh", is_matrix=A.dim() == 2)
    return L, V


def decompose(A: Tensor) -> tuple[Tensor, Tensor]:
    """L and V by kernels, whatever the mode."""
    return _eigh(A, "L", True)


def triangle(UPLO: Any) -> bool:
    return type(UPLO) is str and UPLO in ("L", "l", "U", "u")


@public
def eigh(A: Tensor, UPLO: str = "L", *, out: Any = None) -> Any:
    """Compute eigenvalues and eigenvectors of a symmetric or Hermitian matrix, A = V diag(L) V^H.

    Same contract as `torch.linalg.eigh`. Differences: an A of more than one row with an entry that
    is NaN or infinite always raises, where LAPACK may return NaN.

    Args:
        A: (*, n, n), float32, float64, complex64 or complex128. Only the triangle UPLO is read, and
            of the diagonal the real part.
        UPLO: "L" or "U".
        out: two tensors to write to.

    Returns:
        eigenvalues (*, n), real, ascending, and eigenvectors (*, n, n), column-major matrices with
        orthonormal columns. The signs, or phases, of the columns are arbitrary. Differentiable
        where no eigenvalue is repeated; the loss must not depend on signs or phases.

    Raises:
        torch.linalg.LinAlgError: NaN or infinite entries, or, of at most 32 rows, no convergence
            within 30 sweeps or QL steps an eigenvalue; names the first matrix. Reads the device
            once to know.
        RuntimeError: what is no square matrix, another UPLO.
        NotImplementedError: other dtypes.

    Up to 32 rows one launch, a column a lane of a simdgroup: cyclic Jacobi rotations up to 8, then
    tridiagonal form and implicit QL. More rows are reduced to tridiagonal form too, up to 256 by a
    threadgroup a matrix, beyond in panels of two launches a column; then divide and conquer.
    Matrices are scaled by powers of two, so entries from 1e-30 to 1e30 cost no accuracy, and
    scaling A by a power of two leaves V as it is.
    ||A - V diag(L) V^H|| <= c n eps ||A||, ||I - V^H V|| <= c n eps: LAPACK's test ratios stay
    below its threshold of 60.

    Source: Rutishauser, "The Jacobi method for real symmetric matrices" (1966); Golub, Van Loan,
    "Matrix Computations", sections 8.3 to 8.5; Dongarra, Sorensen, Hammarling, "Block reduction of
    matrices to condensed forms" (1989). Derivatives: Giles (2008).
    """
    if not (isinstance(A, Tensor) and _route.kernels("eigh", A)):
        return torch.linalg.eigh(A, UPLO, out=out)
    _check.same_device("linalg_eigh", A=A, out=out)
    if not (_check.square(A) and triangle(UPLO) and _check.out(out, (A,), A.real.dtype, A.dtype)):
        return _check.refuse(torch.linalg.eigh, A, UPLO, out=out)
    return _out.named("linalg_eigh", _eigh(A, UPLO, True), out)


@public
def eigvalsh(A: Tensor, UPLO: str = "L", *, out: Tensor | None = None) -> Tensor:
    """Compute the eigenvalues of a symmetric or Hermitian matrix.

    Same contract as `torch.linalg.eigvalsh`. Differences: those of `eigh`.

    Args:
        A, UPLO: see `eigh`.
        out: a tensor to write to.

    Returns:
        eigenvalues (*, n), real, ascending; up to 32 rows those of `eigh`, bit for bit.
        Differentiable, also where they are repeated: the gradient is V diag(g) V^H.

    Raises:
        torch.linalg.LinAlgError, RuntimeError, NotImplementedError: as `eigh`.

    Sizes and source: see `eigh`; beyond 32 rows the tridiagonal form is bisected. Every eigenvalue
    has an error of at most c n eps ||A||.
    """
    if not (isinstance(A, Tensor) and _route.kernels("eigvalsh", A)):
        result: Tensor = torch.linalg.eigvalsh(A, UPLO, out=out)
        return result
    _check.same_device("linalg_eigvalsh", A=A, out=out)
    if not (_check.square(A) and triangle(UPLO) and _check.out(out, (A,), A.real.dtype)):
        refused: Tensor = _check.refuse(torch.linalg.eigvalsh, A, UPLO, out=out)
        return refused
    L, _ = _eigh(A, UPLO, False)
    return L if out is None else _out.write(L, out)
