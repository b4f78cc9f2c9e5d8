"""The aten operations that our plans do: for each a function of aten's arguments.

It returns what the operation returns, with the strides of torch's meta functions, or NotImplemented
for arguments that only torch takes. Autograd lies above: the functions see no derivative.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from mpslinalg import (
    _check,
    _cholesky_plan,
    _eig,
    _eig_plan,
    _eigh,
    _eigh_plan,
    _householder,
    _inverse_plan,
    _ldl,
    _ldl_plan,
    _lstsq,
    _lu_plan,
    _matrix_exp_plan,
    _op,
    _out,
    _qr,
    _qr_plan,
    _route,
    _solve,
    _svd_plan,
    _triangular_plan,
)


class Operation(NamedTuple):
    run: Callable[..., Any]
    # What routes know it by; None where `run` itself asks whether it is wanted.
    route: str | None
    # Whether the kernels take its first argument.
    takes: Callable[[Tensor], bool]
    # How a result goes to a tensor of out=.
    write: Callable[[Tensor, Tensor], Tensor]
    # Whether a tensor of out= of another dtype takes the results, cast.
    casts: bool = False
    # Whether a tensor of out= may be written after the results were computed of these tensors.
    apart: Callable[..., bool] = lambda out, *tensors: True
    # Whether dtype and device are those of out=.
    typed_by_out: bool = False
    # If there are any, calls without a tensor of these dtypes are torch's.
    dtypes: frozenset[torch.dtype] = frozenset()


OPERATIONS: dict[str, Operation] = {}


def _does(
    name: str,
    route: str,
    takes: Callable[[Tensor], bool] = _check.square,
    write: Callable[[Tensor, Tensor], Tensor] = _out.write,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def enter(run: Callable[..., Any]) -> Callable[..., Any]:
        OPERATIONS[name] = Operation(run, route, takes, write)
        return run

    return enter


def _raise_if(check_errors: bool, info: Tensor, name: str, A: Tensor) -> None:
    if check_errors:
        _check.errors(info, name, A.dim() == 2)


@_does("linalg_lu_factor_ex", "lu_factor_ex", _check.matrix)
def _lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> Any:
    LU, pivots, info = _lu_plan.lu_factor_op(A, pivot)
    _raise_if(check_errors, info, "torch.linalg.lu_factor_ex", A)
    return LU, pivots, info


@_does("linalg_lu", "lu", _check.matrix)
def _lu(A: Tensor, *, pivot: bool = True) -> Any:
    LU, pivots, _ = _lu_plan.lu_factor_op(A, pivot)
    return _lu_plan.lu_unpack_op(LU, pivots, True, pivot)


@_does("lu_unpack", "lu_unpack", _check.matrix)
def _lu_unpack(
    LU: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> Any:
    *batch, m, n = LU.shape
    if pivots.dtype != torch.int32 or pivots.shape != (*batch, min(m, n)):
        return NotImplemented
    return _lu_plan.lu_unpack_op(LU, pivots, unpack_data, unpack_pivots)


def _solve_sided(LU: Tensor, pivots: Tensor, B: Tensor, left: bool, adjoint: bool) -> Any:
    LU, pivots, B = _op.broadcast((LU, 2), (pivots, 1), (B, 2))
    if left:
        return _lu_plan.lu_solve_op(LU, pivots, B, 2 if adjoint else 0)
    if adjoint:
        return _lu_plan.lu_solve_op(LU, pivots, B.mH, 0).mH.resolve_conj()
    return _lu_plan.lu_solve_op(LU, pivots, B.mT, 1).mT


@_does("linalg_lu_solve", "lu_solve")
def _lu_solve(
    LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False
) -> Any:
    if pivots.dtype != torch.int32 or pivots.shape != LU.shape[:-1] or not _check.fits(LU, B, left):
        return NotImplemented
    return _solve_sided(LU, pivots, B, left, adjoint)


@_does("linalg_solve_triangular", "solve_triangular")
def _solve_triangular(
    A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    if not _check.fits(A, B, left):
        return NotImplemented
    A, B = _op.broadcast((A, 2), (B, 2))
    solve = _triangular_plan.solve_triangular_op
    # As in _triangular.py: the strides of X where torch makes no copy of a conjugate view.
    row_major = A.is_conj() and A.mT.is_contiguous()
    if left:
        return solve(A, B, upper, unitriangular, 0, row_major)
    return solve(A, B.mT, upper, unitriangular, 1, not row_major).mT


# The older one, which is deprecated, and returns a copy of A too.
@_does("triangular_solve", "solve_triangular", _check.matrix)
def _triangular_solve(
    B: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Any:
    if not (_check.square(A) and _check.fits(A, B, True)):
        return NotImplemented
    A, B = _op.broadcast((A, 2), (B, 2))
    copy = torch.empty_like(A.mT, memory_format=torch.contiguous_format).mT.copy_(A)
    form = copy.mT if transpose else copy
    solve = _triangular_plan.solve_triangular_op
    return solve(form, B, upper != transpose, unitriangular, 0, False), copy


@functools.cache
def _takes_transpose(name: str) -> bool:
    """Whether torch's derivatives expect the factors of A^T where A is real and row-major.

    That differs from version to version and is written nowhere: torch's own kernel is asked.
    """
    A = torch.tensor([[2.0, 0.0], [1.0, 1.0]], device="cpu")
    operation = getattr(torch.ops.aten, name)
    with _route.use("torch"):
        LU = operation(A, A)[1] if name == "_linalg_solve_ex" else operation(A)[-2]
    return bool(LU[0, 1] != 0)


def _factored(name: str, A: Tensor) -> tuple[Tensor, Tensor, Tensor, bool]:
    """LU, pivots and info as torch's derivatives take them, and whether they are of A^T."""
    transposed = A.is_contiguous() and not A.is_complex() and _takes_transpose(name)
    return (*_lu_plan.lu_factor_op(A.mT if transposed else A, True), transposed)


@_does("_linalg_solve_ex", "solve_ex")
def _solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
    vector = _solve.is_vector(A, B)
    if not _solve.accepts(A, B, left):
        return NotImplemented
    LU, pivots, info, transposed = _factored("_linalg_solve_ex", A)
    _raise_if(check_errors, info, "torch.linalg.solve_ex", A)
    X = _solve_sided(LU, pivots, B.unsqueeze(-1) if vector else B, left, transposed)
    return _solve.as_vectors(X) if vector else X, LU, pivots, info


@_does("linalg_inv_ex", "inv_ex")
def _inv_ex(A: Tensor, *, check_errors: bool = False) -> Any:
    X, info = _inverse_plan.inv_op(A)
    _raise_if(check_errors, info, "linalg.inv_ex", A)
    return X, info


@_does("_linalg_det", "det")
def _det(A: Tensor) -> Any:
    LU, pivots, _, _ = _factored("_linalg_det", A)
    return _lu_plan.lu_det_op(LU, pivots)[0], LU, pivots


@_does("_linalg_slogdet", "slogdet")
def _slogdet(A: Tensor) -> Any:
    LU, pivots, _, _ = _factored("_linalg_slogdet", A)
    _, sign, logabsdet = _lu_plan.lu_det_op(LU, pivots)
    return sign, logabsdet, LU, pivots


@_does("linalg_cholesky_ex", "cholesky_ex")
def _cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> Any:
    L, info = _cholesky_plan.cholesky_op(A, upper)
    _raise_if(check_errors, info, "linalg.cholesky_ex", A)
    return L, info


# torch.cholesky, which is deprecated.
@_does("cholesky", "cholesky_ex", write=lambda L, out: _out.write(L.contiguous(), out))
def _cholesky(A: Tensor, upper: bool = False) -> Any:
    if A.numel() == 0:
        return torch.empty_like(A, memory_format=torch.contiguous_format)
    L, info = _cholesky_plan.cholesky_op(A, upper)
    _check.errors(info, "cholesky", A.dim() == 2)
    return L


# What cholesky_solve calls when it has checked and broadcast its arguments.
@_does("_cholesky_solve_helper", "cholesky_solve", _check.matrix)
def _cholesky_solve(B: Tensor, L: Tensor, upper: bool) -> Any:
    if not (_check.square(L) and _check.fits(L, B, True) and L.shape[:-2] == B.shape[:-2]):
        return NotImplemented
    return _cholesky_plan.cholesky_solve_op(B, L, upper)


@_does("cholesky_inverse", "cholesky_inverse", write=_householder.write)
def _cholesky_inverse(L: Tensor, upper: bool = False) -> Any:
    X, info = _cholesky_plan.cholesky_inverse_op(L, upper)
    _check.errors(info, "cholesky_inverse", L.dim() == 2)
    return X


@_does("linalg_ldl_factor_ex", "ldl_factor_ex")
def _ldl_factor_ex(A: Tensor, *, hermitian: bool = False, check_errors: bool = False) -> Any:
    LD, pivots, info = _ldl_plan.ldl_factor_op(A, hermitian)
    if check_errors:
        _ldl.check_info(info, "torch.linalg.ldl_factor_ex", A.dim() == 2)
    return LD, pivots, info


@_does("linalg_ldl_solve", "ldl_solve")
def _ldl_solve(LD: Tensor, pivots: Tensor, B: Tensor, *, hermitian: bool = False) -> Any:
    integers = pivots.dtype in _ldl.INTEGERS
    if not (integers and pivots.shape == LD.shape[:-1] and _check.fits(LD, B, True)):
        return NotImplemented
    LD, pivots, B = _op.broadcast((LD, 2), (pivots.to(torch.int32), 1), (B, 2))
    return _ldl_plan.ldl_solve_op(LD, pivots, B, hermitian)


@_does("linalg_qr", "qr", _check.matrix)
def _qr_of(A: Tensor, mode: str = "reduced") -> Any:
    return _qr_plan.qr_op(A, mode) if mode in _qr.MODES else NotImplemented


@_does("geqrf", "geqrf", _check.matrix, _householder.write)
def _geqrf(A: Tensor) -> Any:
    return _qr_plan.geqrf_op(A)


@_does("linalg_householder_product", "householder_product", _check.matrix, _householder.write)
def _householder_product(A: Tensor, tau: Tensor) -> Any:
    if not _householder.belongs(A, tau) or not A.shape[-2] >= A.shape[-1] >= tau.shape[-1]:
        return NotImplemented
    return _qr_plan.householder_product_op(A, tau)


@_does("ormqr", "ormqr", _check.matrix, _householder.write)
def _ormqr(A: Tensor, tau: Tensor, C: Tensor, left: bool = True, transpose: bool = False) -> Any:
    if not _householder.applies(A, tau, C, left):
        return NotImplemented
    return _qr_plan.ormqr_op(A, tau, C, left, transpose)


def _as_cusolver_leaves_it(V: Tensor) -> Tensor:
    """Row-major on CUDA, where the meta functions promise that of two results."""
    return V.contiguous() if V.is_cuda else V


@_does("_linalg_svd", "svd", _check.matrix)
def _svd(
    A: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> Any:
    if driver is not None:
        # Who names a routine of cuSOLVER is to get it, or torch's complaint.
        return NotImplemented
    if compute_uv:
        U, S, Vh, info = _svd_plan.svd_op(A, full_matrices)
        Vh = _as_cusolver_leaves_it(Vh)
    else:
        U, Vh = A.new_empty(0), A.new_empty(0)
        S, info = _svd_plan.svdvals_op(A)
    _check.errors(info, "linalg.svd", A.dim() == 2)
    return U, S, Vh


@_does("_linalg_eigh", "eigh")
def _eigh_of(A: Tensor, UPLO: str = "L", compute_v: bool = True) -> Any:
    if not _eigh.triangle(UPLO):
        return NotImplemented
    L, V, info = _eigh_plan.eigh_op(A, UPLO in ("L", "l"), compute_v)
    _check.errors(info, "linalg.eigh", A.dim() == 2)
    return L, V


@_does("linalg_eig", "eig", write=_householder.write)
def _eig_of(A: Tensor) -> Any:
    L, V, info = _eig_plan.eig_op(A, True)
    _eig.check_info(info, "linalg.eig", A)
    return L, _as_cusolver_leaves_it(V)


# torch composes linalg_eigvals of one or the other operation, except for out=.
@_does("linalg_eigvals", "eigvals")
@_does("_linalg_eigvals", "eigvals")
def _eigvals(A: Tensor) -> Any:
    L, _, info = _eig_plan.eig_op(A, False)
    _eig.check_info(info, "linalg.eigvals", A)
    return L


@_does("linalg_matrix_exp", "matrix_exp")
def _matrix_exp(A: Tensor) -> Any:
    return _matrix_exp_plan.matrix_exp_op(A)


@_does("linalg_lstsq", "lstsq", _check.matrix)
def _lstsq_of(
    A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> Any:
    known = _lstsq.operation("lstsq", {"A": A, "driver": driver})
    if known is None or (A.is_cuda and known != "lstsq") or not _lstsq.accepts(A, B):
        return NotImplemented
    # It is composed of operations, which in forward mode would see the tangents.
    with forward_ad._set_fwd_grad_enabled(False), _route.use("kernels"):
        return tuple(_lstsq.lstsq(A, B, rcond, driver=driver))
