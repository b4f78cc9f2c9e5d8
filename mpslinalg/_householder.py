"""Householder reflectors as LAPACK stores them: geqrf, householder_product, ormqr."""

from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import Function

from mpslinalg import _check, _op, _out, _qr_plan, _route
from mpslinalg._qr import may_be_repaired, repaired
from mpslinalg._repeat import public
from mpslinalg._triangular import solve_operator

regime = _qr_plan.regime

_factor = _qr_plan.geqrf_op
_form = _qr_plan.householder_product_op
_apply = _qr_plan.ormqr_op


class _Geqrf(Function):
    """A function of A that, as in torch, has no derivative, and says so when asked for one."""

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor) -> tuple[Tensor, Tensor]:
        factor, tau = _factor(A)
        return factor, tau

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> NoReturn:
        raise NotImplementedError("the derivative for 'geqrf' is not implemented.")

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> NoReturn:
        raise NotImplementedError(
            "Trying to use forward AD with geqrf that does not support it because it has not been "
            "implemented yet."
        )


_undifferentiable_factor = _op.applied(_Geqrf)


def _block(A: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """V and V T of H_0 H_1 ... = I - V T V^H, T = (I + D S)^-1 D with D = diag(tau) and S the
    strict upper triangle of V^H V (Puglisi 1992), which holds for reflectors without effect too.
    """
    count = tau.shape[-1]
    one = torch.eye(A.shape[-2], count, dtype=A.dtype, device=A.device)
    V = A[..., :count].tril(-1) + one
    D = tau.unsqueeze(-1)
    unit = D * (V.mH @ V).triu(1)
    T = solve_operator(unit, torch.diag_embed(tau), True, True, 0)
    return V, V @ T


def _householder_product(A: Tensor, tau: Tensor) -> Tensor:
    if not _op.tracked(A, tau):
        Q: Tensor = _form(A, tau)
        return Q
    m, n = A.shape[-2:]
    with _op.without_autocast(A):
        V, VT = _block(A, tau)
        return torch.eye(m, n, dtype=A.dtype, device=A.device) - VT @ V[..., :n, :].mH


def _ormqr(A: Tensor, tau: Tensor, C: Tensor, left: bool, adjoint: bool) -> Tensor:
    if not _op.tracked(A, tau, C):
        X: Tensor = _apply(A, tau, C, left, adjoint)
        return X
    with _op.without_autocast(A):
        V, VT = _block(A, tau)
        if adjoint:
            V, VT = VT, V
        return C - VT @ (V.mH @ C) if left else C - (C @ VT) @ V.mH


@public
def geqrf(input: Tensor, *, out: Any = None) -> Any:
    """Factor A = Q R and keep Q as Householder reflectors.

    Same contract as `torch.geqrf`. Differences: none.

    Args:
        input: A (*, m, n), float32, float64, complex64 or complex128.
        out: two tensors to write to.

    Returns:
        a, (*, m, n) with column-major matrices: R, and below its diagonal the reflectors; tau
        (*, min(m, n)). Q is `householder_product(a, tau)`. As in torch without derivatives.

    Raises:
        RuntimeError: what is no matrix.
        NotImplementedError: other dtypes; backward.

    Never waits for the device. Sizes, error bound and source: see `qr`; LAPACK's geqrf.
    """
    if not _route.kernels("geqrf", input):
        if may_be_repaired(input, out):
            return torch.return_types.geqrf(repaired(torch.geqrf, _factor, input))
        return torch.geqrf(input, out=out)
    _check.same_device("geqrf", input=input, out=out)
    if not (_check.matrix(input) and _check.out_to_cast(out, (input,), input.dtype, input.dtype)):
        return _check.refuse(torch.geqrf, input, out=out)
    results = _undifferentiable_factor(input) if _op.tracked(input) else _factor(input)
    if out is None:
        return torch.return_types.geqrf(results)
    return torch.return_types.geqrf_out(map(write, results, out))  # type: ignore[attr-defined]


@public
def householder_product(A: Tensor, tau: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Multiply Householder reflectors: the first n columns of H_1 H_2 ... H_k.

    Same contract as `torch.linalg.householder_product`. Differences: none.

    Args:
        A: (*, m, n), m >= n; below the diagonal of its first k columns the vectors, whose first
            entry 1 is not stored. The rest is not read.
        tau: (*, k), k <= n, dtype of A: H = I - tau v v^H.
        out: a tensor to write to.

    Returns:
        Q, shape and dtype of A, column-major matrices. Differentiable in A and tau.

    Raises:
        RuntimeError: shapes that do not fit, mixed dtypes.
        NotImplementedError: other dtypes.

    Never waits for the device; the same bits every time. Blocks of 32 reflectors are applied at
    once, last block first. ||I - Q^H Q|| <= c m eps for the reflectors of `geqrf`.

    Source: Schreiber, Van Loan, "A storage-efficient WY representation for products of Householder
    transformations" (1989); LAPACK's ungqr.
    """
    if not _route.kernels("householder_product", A):
        Q: Tensor = (
            torch.linalg.householder_product(A, tau)
            if out is None
            else torch.linalg.householder_product(A, tau, out=out)
        )
        return Q
    _check.same_device("linalg_householder_product", input=A, tau=tau, out=out)
    if not (
        _check.matrix(A)
        and belongs(A, tau)
        and A.shape[-2] >= A.shape[-1] >= tau.shape[-1]
        and _check.out_to_cast(out, (A, tau), A.dtype)
    ):
        refused: Tensor = _check.refuse(torch.linalg.householder_product, A, tau, out=out)
        return refused
    Q = _householder_product(A, tau)
    return Q if out is None else write(Q, out)


@public
def ormqr(
    input: Tensor,
    tau: Tensor,
    other: Tensor,
    left: bool = True,
    transpose: bool = False,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Multiply a matrix by Q = H_1 H_2 ... H_k, the square product of reflectors, unformed.

    Same contract as `torch.ormqr`. Differences: none.

    Args:
        input, tau: reflectors as `geqrf` returns them, (*, m, k) and (*, k), of its dtypes.
        other: C, (*, m, n), or (*, n, m) with left=False.
        left: Q C, else C Q.
        transpose: Q^H in place of Q.
        out: a tensor to write to.

    Returns:
        The product, shape and dtype of other, column-major matrices. Differentiable in all three.

    Raises:
        RuntimeError: shapes that do not fit, mixed dtypes.
        NotImplementedError: other dtypes.

    Never waits for the device. Sizes and source: see `householder_product`; LAPACK's unmqr.
    """
    if not _route.kernels("ormqr", input):
        X: Tensor = (
            torch.ormqr(input, tau, other, left, transpose)
            if out is None
            else torch.ormqr(input, tau, other, left, transpose, out=out)
        )
        return X
    _check.same_device("ormqr", input=input, tau=tau, other=other, out=out)
    if not (
        _check.matrix(input)
        and _check.flags(left, transpose)
        and applies(input, tau, other, left)
        and _check.out(out, (input, tau, other), input.dtype)
    ):
        refused: Tensor = _check.refuse(torch.ormqr, input, tau, other, left, transpose, out=out)
        return refused
    X = _ormqr(input, tau, other, left, transpose)
    return X if out is None else write(X, out)


def applies(A: Tensor, tau: Any, C: Any, left: bool) -> bool:
    """Whether the reflectors are for a matrix like C."""
    return (
        belongs(A, tau)
        and isinstance(C, Tensor)
        and C.dtype == A.dtype
        and C.dim() == A.dim()
        and C.shape[:-2] == A.shape[:-2]
        and (side := C.shape[-2 if left else -1]) == A.shape[-2]
        and tau.shape[-1] == min(side, A.shape[-1])
    )


def belongs(A: Tensor, tau: Any) -> bool:
    """Whether there are scales for reflectors of a batch like A."""
    if not (isinstance(tau, Tensor) and tau.dtype == A.dtype and tau.dim() == A.dim() - 1):
        return False
    return tau.shape[:-1] == A.shape[:-2]


def write(result: Tensor, out: Tensor) -> Tensor:
    """An output without elements takes the strides of the result, another shape is row-major."""
    if out.numel() == 0:
        return _out.write(result, out.resize_(0))
    return _out.write(result.clone(memory_format=torch.contiguous_format), out)
