"""Singular value decomposition: derivatives and public functions."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import pad

from mpslinalg import _check, _op, _out, _route, _svd_plan
from mpslinalg._repeat import public

regime = _svd_plan.regime

_svd = _svd_plan.svd_op
_svdvals = _svd_plan.svdvals_op

# cuSOLVER's. The kernels have one way; they take the names so that code for CUDA runs elsewhere.
DRIVERS = ("gesvd", "gesvdj", "gesvda")
# torch.compile does not know dtype.to_real().
_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}


class _SVD(Function):
    """A = U S V^H with the k columns of U and V that have singular values.

    With P = U^H dA V and F_ij = 1 / (s_j^2 - s_i^2) off the diagonal, 0 on it: dS = Re diag P,
    U^H dU = F o (P S + S P^H) + D, V^H dV = F o (S P + P^H S) - D, where only
    2 D = i Im diag(P) / S matters of the phases; outside of their spans dU = dA V / S and
    dV = dA^H U / S. Backward is the adjoint, with D all in U, as the loss may not see phases.

    Source: Townsend, "Differentiating the singular value decomposition" (2016); Wan, Zhang,
    "Automatic differentiation for complex valued SVD" (2019).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor, full: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        U, S, Vh, info = _svd(A, full)
        return U, S, Vh, info

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        U, S, Vh, info = output
        ctx.mark_non_differentiable(info)
        ctx.save_for_backward(U, S, Vh)
        ctx.save_for_forward(U, S, Vh)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, gU: Tensor | None, gS: Tensor | None, gVh: Tensor | None, _: Any
    ) -> tuple[Tensor | None, None]:
        U, S, Vh = _thin(*ctx.saved_tensors)
        k = S.shape[-1]
        parts = []
        if gS is not None:
            parts.append(_weighted(U, gS) @ Vh)
        if gU is not None or gVh is not None:
            of_U = torch.zeros_like(U) if gU is None else gU.narrow(-1, 0, k)
            of_Vh = torch.zeros_like(Vh) if gVh is None else gVh.narrow(-2, 0, k)
            parts.append(_pull_back(U, S, Vh, of_U, of_Vh.mH))
        return (sum(parts[1:], parts[0]) if parts else None), None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, _: None) -> tuple[Tensor, Tensor, Tensor, None]:
        U_full, S, Vh_full = ctx.saved_tensors
        U, S, Vh = _thin(U_full, S, Vh_full)
        dU, dS, dVh = _push_forward(U, S, Vh, dA)
        # Of the other columns torch takes no derivative either.
        dU = pad(dU, (0, U_full.shape[-1] - U.shape[-1]))
        return dU, dS, pad(dVh, (0, 0, 0, Vh_full.shape[-2] - Vh.shape[-2])), None


class _SVDVals(Function):
    """dS = Re diag(U^H dA V), also where singular values are equal; gA = U gS V^H."""

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor) -> tuple[Tensor, Tensor]:
        S, info = _svdvals(A)
        return S, info

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, gS: Tensor, _: Any) -> Tensor:
        (A,) = ctx.saved_tensors
        U, _, Vh, _ = _decomposed(A, False)
        return _weighted(U, gS) @ Vh

    @staticmethod
    def jvp(ctx: Any, dA: Tensor) -> tuple[Tensor, None]:
        (A,) = ctx.saved_tensors
        U, _, Vh, _ = _decomposed(A, False)
        return _real_diagonal(U.mH @ dA @ Vh.mH), None


_differentiable_svd = _op.applied(_SVD)
_differentiable_svdvals = _op.applied(_SVDVals)


def _decomposed(A: Tensor, full: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    U, S, Vh, info = _differentiable_svd(A, full) if _op.tracked(A) else _svd(A, full)
    return U, S, Vh, info


def decompose(A: Tensor, full: bool) -> tuple[Tensor, Tensor, Tensor]:
    """U, S and V^H by kernels, whatever the mode: a thread of autograd has the default one."""
    U, S, Vh, info = _decomposed(A, full)
    _check.errors(info, "linalg.svd", is_matrix=A.dim() == 2)
    return U, S, Vh


def _thin(U: Tensor, S: Tensor, Vh: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    k = S.shape[-1]
    return U.narrow(-1, 0, k), S, Vh.narrow(-2, 0, k)


def _weighted(U: Tensor, weights: Tensor) -> Tensor:
    return U * weights.unsqueeze(-2)


def _real_diagonal(P: Tensor) -> Tensor:
    diagonal = P.diagonal(dim1=-2, dim2=-1)
    return diagonal.real if P.is_complex() else diagonal


def _turns(P: Tensor, S: Tensor) -> Tensor:
    """i Im diag(P) / S as a matrix, for complex P."""
    imaginary = P.diagonal(dim1=-2, dim2=-1).imag / S
    return torch.diag_embed(torch.complex(torch.zeros_like(imaginary), imaginary))


def _gaps(S: Tensor) -> Tensor:
    """F_ij = 1 / (s_j^2 - s_i^2), and 0 on the diagonal."""
    row, column = S.unsqueeze(-2), S.unsqueeze(-1)
    never = torch.diag_embed(torch.full_like(S, torch.inf))
    return 1 / ((row - column) * (row + column) + never)


def _pull_back(U: Tensor, S: Tensor, Vh: Tensor, gU: Tensor, gV: Tensor) -> Tensor:
    """The gradient of A from those of U and V."""
    m, n, k = U.shape[-2], Vh.shape[-1], S.shape[-1]
    of_U, of_V, F = U.mH @ gU, Vh @ gV, _gaps(S)
    core = _weighted(F * (of_U - of_U.mH), S) + S.unsqueeze(-1) * (F * (of_V - of_V.mH))
    if U.is_complex():
        _check_phases(of_U, of_V)
        core = core + _turns(of_U, S)
    gA = U @ core @ Vh
    if m > k:
        gA = gA + _weighted(gU - U @ of_U, 1 / S) @ Vh
    if n > k:
        gA = gA + U @ _weighted(gV - Vh.mH @ of_V, 1 / S).mH
    return gA


def _push_forward(U: Tensor, S: Tensor, Vh: Tensor, dA: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The tangents of U, S and V^H from that of A."""
    m, n, k = U.shape[-2], Vh.shape[-1], S.shape[-1]
    V = Vh.mH
    AV, AU = dA @ V, dA.mH @ U
    P, F = U.mH @ AV, _gaps(S)
    in_U = F * (_weighted(P, S) + S.unsqueeze(-1) * P.mH)
    in_V = F * (S.unsqueeze(-1) * P + _weighted(P.mH, S))
    if U.is_complex():
        half = _turns(P, S) / 2
        in_U, in_V = in_U + half, in_V - half
    dU, dV = U @ in_U, V @ in_V
    if m > k:
        dU = dU + _weighted(AV - U @ P, 1 / S)
    if n > k:
        dV = dV + _weighted(AU - V @ P.mH, 1 / S)
    return dU, _real_diagonal(P), dV.mH


def _check_phases(of_U: Tensor, of_V: Tensor) -> None:
    """Raise torch's error where a loss depends on phases. What is traced cannot be looked at."""
    if not _op.visible(of_U, of_V):
        return
    u, v = (x.diagonal(dim1=-2, dim2=-1).imag for x in (of_U, of_V))
    if not torch.allclose(u, -v, _op.PHASE_TOLERANCE, _op.PHASE_TOLERANCE):
        raise RuntimeError(
            "svd_backward: The singular vectors in the complex case are specified up to "
            "multiplication by e^{i phi}. The specified loss function depends on this phase term, "
            "making it ill-defined."
        )


def _known(driver: Any) -> bool:
    return type(driver) is str and driver in DRIVERS


def _driver_for_torch(A: Any, driver: Any) -> Any:
    return None if _known(driver) and not getattr(A, "is_cuda", False) else driver


def _refuse(function: Any, A: Any, *args: Any, driver: Any, out: Any) -> Any:
    """Raise torch's error, the one of the CPU. For matrices without entries torch reads no driver:
    of an unknown one it is then what torch says of any matrix.
    """
    if _known(driver):
        driver = None
    elif type(driver) is str and A.numel() == 0 and _check.matrix(A):
        A = A.new_ones(1, 1)
    return _check.refuse(function, A, *args, driver=driver, out=out)


@public
def svd(
    A: Tensor, full_matrices: bool = True, *, driver: str | None = None, out: Any = None
) -> Any:
    """Factor A = U diag(S) V^H: orthonormal columns, singular values, orthonormal rows.

    Same contract as `torch.linalg.svd`. Differences: `driver` is accepted on every device, and
    changes nothing but on CUDA where torch runs; infinity raises as NaN does.

    Args:
        A: (*, m, n), float32, float64, complex64 or complex128; of any rank.
        full_matrices: whether U and V^H are square.
        driver: "gesvd", "gesvdj" or "gesvda".
        out: three tensors to write to, U, S and V^H.

    Returns:
        U (*, m, k), S (*, k) and Vh (*, k, n), k = min(m, n); with full_matrices U (*, m, m) and Vh
        (*, n, n); column-major matrices. S is real and does not increase. Differentiable in the
        parts that have singular values, where these are distinct; a complex loss may not depend on
        the phases of singular vectors.

    Raises:
        torch.linalg.LinAlgError: a matrix has NaN or infinity, or does not converge; names the
            first one. Reads the device once to know.
        NotImplementedError: use("kernels") with half precision.
        RuntimeError: what is no matrix, other dtypes, an unknown driver.

    One-sided Jacobi, at most 30 sweeps: to 32 columns a column a lane of a simdgroup, to 64 by
    blocks of columns; of a matrix with a side above 32 that is not square, of R of its QR. Columns
    carry exponents of their own and pairs are turned by their cosine, so where A = B D with a well
    conditioned B and a diagonal D every singular value is right to some eps cond(B), however small,
    and a power of two in A is one in S and changes
    neither U nor V. Larger matrices are reduced to bidiagonal form, whose singular values are found
    by divide and conquer, those of `svdvals` by bisection: right to some eps of the largest one.
    ||A - U S V^H|| <= c max(m, n) eps ||A||, and so for ||I - U^H U|| and ||I - V^H V||: LAPACK's
    test ratios stay below 50.

    Source: Demmel, Veselic, "Jacobi's method is more accurate than QR" (1992); de Rijk (1989);
    LAPACK's gesvj.
    """
    if not (isinstance(A, Tensor) and _route.kernels("svd", A)):
        given = _driver_for_torch(A, driver)
        return torch.linalg.svd(A, full_matrices, driver=given, out=out)
    _check.same_device("linalg_svd", A=A, out=out)
    if not (
        _check.matrix(A)
        and _check.flags(full_matrices)
        and (driver is None or driver in DRIVERS)
        and _check.out(out, (A,), A.dtype, _REAL.get(A.dtype, A.dtype), A.dtype)
    ):
        return _refuse(torch.linalg.svd, A, full_matrices, driver=driver, out=out)
    return _out.named("linalg_svd", decompose(A, full_matrices), out)


@public
def svdvals(A: Tensor, *, driver: str | None = None, out: Tensor | None = None) -> Tensor:
    """Compute the singular values of a matrix.

    Same contract as `torch.linalg.svdvals`. Differences: those of `svd`.

    Args:
        A: (*, m, n), float32, float64, complex64 or complex128; of any rank.
        driver: "gesvd", "gesvdj" or "gesvda".
        out: a tensor to write to.

    Returns:
        S (*, min(m, n)), real, not increasing; those of `svd`, but for roundings of the largest
        where there are no rotations. Differentiable, the first derivative also where singular
        values are equal.

    Raises:
        torch.linalg.LinAlgError: as `svd`.
        NotImplementedError: as `svd`.
        RuntimeError: as `svd`.

    Sizes, accuracy and source: see `svd`.
    """
    if not (isinstance(A, Tensor) and _route.kernels("svdvals", A)):
        values: Tensor = torch.linalg.svdvals(A, driver=_driver_for_torch(A, driver), out=out)
        return values
    _check.same_device("linalg_svdvals", A=A, out=out)
    if not (
        _check.matrix(A)
        and (driver is None or driver in DRIVERS)
        and _check.out(out, (A,), _REAL.get(A.dtype, A.dtype))
    ):
        refused: Tensor = _refuse(torch.linalg.svdvals, A, driver=driver, out=out)
        return refused
    S, info = _differentiable_svdvals(A) if _op.tracked(A) else _svdvals(A)
    _check.errors(info, "linalg.svd", is_matrix=A.dim() == 2)
    return S if out is None else _out.write(S, out)
