"""LU factorisation: derivatives and public functions."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import pad

from mpslinalg import _check, _lu_plan, _op, _out, _route
from mpslinalg._repeat import public
from mpslinalg._triangular import operator, solve_operator

regime = _lu_plan.regime

_factor = _lu_plan.lu_factor_op
_unpack = _lu_plan.lu_unpack_op
_solve = _lu_plan.lu_solve_op


class _LUFactor(Function):
    """A = P L U, with L and U in one matrix.

    Where F = L^-1 P^T dA U^-1 on the leading square block, dL = L tril(F, -1) and dU = triu(F) U;
    the product rule gives the rest of a wide U or a tall L. Sources: de Hoog, Anderssen, Lukas,
    "Differentiation of matrix functionals using triangular factorization" (2011); Giles,
    "Collected matrix derivative results for forward and reverse mode AD" (2008).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor, pivot: bool) -> tuple[Tensor, Tensor, Tensor]:
        LU, pivots, info = _factor(A, pivot)
        return LU, pivots, info

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        LU, pivots, info = output
        ctx.mark_non_differentiable(pivots, info)
        ctx.save_for_backward(LU, pivots)
        ctx.save_for_forward(LU, pivots)

    @staticmethod
    def backward(ctx: Any, gLU: Tensor, *_: Any) -> tuple[Tensor, None]:
        LU, pivots = ctx.saved_tensors
        block, right, below = _parts(LU)
        g, gright, gbelow = _parts(gLU)
        L, U = _triangles(block)
        lower = L.mH @ g.tril(-1) - gright @ right.mH
        upper = g.triu() @ U.mH - below.mH @ gbelow
        gF = lower.tril(-1) + upper.triu()
        rows = torch.cat((_solve_L(block, gF, 2), gbelow), -2)
        gleft = _solve_U(block, rows.mH, 0).mH
        gright = pad(_solve_L(block, gright, 2), (0, 0, 0, gbelow.shape[-2]))
        gA = torch.cat((gleft, gright), -1)
        return permute(LU, pivots, gA), None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, _: None) -> tuple[Tensor, None, None]:
        LU, pivots = ctx.saved_tensors
        block, right, below = _parts(LU)
        L, U = _triangles(block)
        k = LU.shape[-2] - below.shape[-2]
        dleft, dright = permute(LU, pivots, dA, transpose=True).tensor_split((k,), -1)
        F, dbelow = _solve_U(block, dleft.mH, 2).mH.tensor_split((k,), -2)
        F = _solve_L(block, F, 0)
        dblock = L @ F.tril(-1) + F.triu() @ U
        dbelow = dbelow - below @ F.triu()
        dright = _solve_L(block, dright[..., :k, :], 0) - F.tril(-1) @ right
        dright = pad(dright, (0, 0, 0, dbelow.shape[-2]))
        return torch.cat((torch.cat((dblock, dbelow), -2), dright), -1), None, None


class _LUUnpack(Function):
    """L and U are entries of LU."""

    generate_vmap_rule = True

    @staticmethod
    def forward(LU: Tensor, pivots: Tensor, pivot: bool) -> tuple[Tensor, Tensor, Tensor]:
        P, L, U = _unpack(LU, pivots, True, pivot)
        return P, L, U

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(output[0])

    @staticmethod
    def backward(ctx: Any, _: Any, gL: Tensor, gU: Tensor) -> tuple[Tensor, None, None]:
        m, k, n = *gL.shape[-2:], gU.shape[-1]
        return pad(gL.tril(-1), (0, n - k)) + pad(gU.triu(), (0, 0, 0, m - k)), None, None

    @staticmethod
    def jvp(ctx: Any, dLU: Tensor, *_: None) -> tuple[None, Tensor, Tensor]:
        k = min(dLU.shape[-2:])
        return None, dLU[..., :k].tril(-1), dLU[..., :k, :].triu()


class _SolveFactored(Function):
    """gB = op(A)^-H gX, gA = -op(gB X^H); dX = op(A)^-1 (dB - op(dA) X) (Giles 2008).

    LU and pivots carry the values of A; A itself only carries its derivative, so a derivative of
    any order needs no other factorisation.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor, B: Tensor, LU: Tensor, pivots: Tensor, trans: int) -> Tensor:
        X: Tensor = _solve(LU, pivots, B, trans)
        return X

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        A, _, LU, pivots, ctx.trans = inputs
        ctx.save_for_backward(A, LU, pivots, output)
        ctx.save_for_forward(A, LU, pivots, output)

    @staticmethod
    def backward(ctx: Any, gX: Tensor) -> tuple[Tensor | None, ...]:
        A, LU, pivots, X = ctx.saved_tensors
        if ctx.trans == 1:
            gB = solve_factored(A, gX.conj(), LU, pivots, 0).conj()
        else:
            gB = solve_factored(A, gX, LU, pivots, 2 - ctx.trans)
        gA = -operator(gB @ X.mH, ctx.trans) if ctx.needs_input_grad[0] else None
        return gA, gB, None, None, None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, dB: Tensor, *_: None) -> Tensor:
        A, LU, pivots, X = ctx.saved_tensors
        return solve_factored(A, dB - operator(dA, ctx.trans) @ X, LU, pivots, ctx.trans)


_differentiable_factor = _op.applied(_LUFactor)
_differentiable_unpack = _op.applied(_LUUnpack)
_differentiable_solve = _op.applied(_SolveFactored)


def factor(A: Tensor, pivot: bool) -> tuple[Tensor, Tensor, Tensor]:
    """LU, pivots and info of A, LU differentiable."""
    if _op.tracked(A):
        LU, pivots, info = _differentiable_factor(A, pivot)
    else:
        LU, pivots, info = _factor(A, pivot)
    return LU, pivots, info


def factor_constant(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """LU, pivots and info of A as constants: for `solve_factored` and its kind."""
    LU, pivots, info = _factor(A.detach(), True)
    return LU, pivots, info


def solve_factored(A: Tensor, B: Tensor, LU: Tensor, pivots: Tensor, trans: int) -> Tensor:
    """X of op(A) X = B from a constant factorisation of A, differentiable in A and B."""
    if _op.tracked(A, B):
        X: Tensor = _differentiable_solve(A, B, LU, pivots, trans)
    else:
        X = _solve(LU, pivots, B, trans)
    return X


def permute(LU: Tensor, pivots: Tensor, X: Tensor, transpose: bool = False) -> Tensor:
    """P X, or P^T X. By moving rows: a product rounds on a GPU that multiplies in 11 bits."""
    if X.numel() == 0:
        return X
    P = _unpack(LU.detach(), pivots, False, True)[0]
    source = P.real.argmax(-2 if transpose else -1)
    columns = X.mT
    return columns.gather(-1, source.unsqueeze(-2).expand(columns.shape)).mT


def _parts(LU: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The leading square block, what is right of it (wide LU) and what is below (tall LU)."""
    k = min(LU.shape[-2:])
    top, bottom = LU.tensor_split((k,), -2)
    block, right = top.tensor_split((k,), -1)
    return block, right, bottom.tensor_split((k,), -1)[0]


def _triangles(LU: Tensor) -> tuple[Tensor, Tensor]:
    one = torch.eye(LU.shape[-1], dtype=LU.dtype, device=LU.device)
    return LU.tril(-1) + one, LU.triu()


def _solve_L(LU: Tensor, B: Tensor, trans: int) -> Tensor:
    return solve_operator(LU, B, False, True, trans)


def _solve_U(LU: Tensor, B: Tensor, trans: int) -> Tensor:
    return solve_operator(LU, B, True, False, trans)


def _lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, trans: int) -> Tensor:
    if not _op.tracked(LU):
        return solve_factored(LU, B, LU, pivots, trans)
    if trans == 0:
        return _solve_U(LU, _solve_L(LU, permute(LU, pivots, B, transpose=True), 0), 0)
    return permute(LU, pivots, _solve_L(LU, _solve_U(LU, B, trans), trans))


@public
def lu_factor(A: Tensor, *, pivot: bool = True, out: Any = None) -> Any:
    """Factor A = P L U: a permutation, a unit lower and an upper triangular matrix.

    Same contract as `torch.linalg.lu_factor`. Differences: `pivot=False` works on every device.

    Args:
        A: (*, m, n), float32, float64, complex64 or complex128.
        pivot: choose the entry of largest |re| + |im| of each column, as LAPACK does; else divide
            by the diagonal as it comes.
        out: two tensors to write to.

    Returns:
        LU, (*, m, n) with column-major matrices: U, and L below the diagonal. pivots, int32
        (*, min(m, n)): row i was swapped with row pivots[i], counted from 1.

    Raises:
        RuntimeError: U has a zero on its diagonal; names the first such matrix. Reads the device
            once to know. Also for what is no matrix.
        NotImplementedError: other dtypes.

    n <= 4 is one thread a matrix, n <= 32 a simdgroup a matrix, then a threadgroup with blocked
    updates, beyond that panels and matrix products. ||P A - L U|| <= c n eps ||A|| times the growth
    of the entries: LAPACK's test ratio stays below its threshold of 30.

    Source: Golub, Van Loan, "Matrix Computations", section 3.4; LAPACK's getrf.
    """
    if not _route.kernels("lu_factor", A, pivot=pivot):
        return torch.linalg.lu_factor(A, pivot=pivot, out=out)
    _check.same_device("linalg_lu_factor_ex", A=A, out=out)
    if not (
        _check.matrix(A) and _check.flags(pivot) and _check.out(out, (A,), A.dtype, torch.int32)
    ):
        return _check.refuse(torch.linalg.lu_factor, A, pivot=pivot, out=out)
    LU, pivots, info = factor(A, pivot)
    _check.errors(info, "torch.linalg.lu_factor", is_matrix=A.dim() == 2)
    return _out.named("linalg_lu_factor", (LU, pivots), out)


@public
def lu_factor_ex(
    A: Tensor, *, pivot: bool = True, check_errors: bool = False, out: Any = None
) -> Any:
    """Factor A = P L U and return LAPACK's `info` instead of raising an error.

    Same contract as `torch.linalg.lu_factor_ex`. Differences: `pivot=False` works on every device.

    Args:
        A, pivot: see `lu_factor`.
        check_errors: raise the error all the same, at the price of reading the device.
        out: three tensors to write to.

    Returns:
        LU and pivots as `lu_factor`, and info, int32 (*): 0, or i > 0 when U[i, i], counted from 1,
        is the first zero on the diagonal of U. Other matrices of the batch are untouched by it.

    Raises:
        RuntimeError: what is no matrix; with check_errors, a zero on the diagonal of U.
        NotImplementedError: other dtypes.

    Sizes, error bound and source: see `lu_factor`.
    """
    if not _route.kernels("lu_factor_ex", A, pivot=pivot):
        return torch.linalg.lu_factor_ex(A, pivot=pivot, check_errors=check_errors, out=out)
    _check.same_device("linalg_lu_factor_ex", A=A, out=out)
    if not (
        _check.matrix(A)
        and _check.flags(pivot, check_errors)
        and _check.out(out, (A,), A.dtype, torch.int32, torch.int32)
    ):
        return _check.refuse(
            torch.linalg.lu_factor_ex, A, pivot=pivot, check_errors=check_errors, out=out
        )
    LU, pivots, info = factor(A, pivot)
    if check_errors:
        _check.errors(info, "torch.linalg.lu_factor_ex", is_matrix=A.dim() == 2)
    return _out.named("linalg_lu_factor_ex", (LU, pivots, info), out)


@public
def lu(A: Tensor, *, pivot: bool = True, out: Any = None) -> Any:
    """Factor A = P L U and return the three matrices.

    Same contract as `torch.linalg.lu`. Differences: `pivot=False` works on every device.

    Args:
        A: (*, m, n), float32, float64, complex64 or complex128; singular matrices too.
        pivot: see `lu_factor`. False returns an empty P.
        out: three tensors to write to.

    Returns:
        P (*, m, m), L (*, m, k) and U (*, k, n) with k = min(m, n), dtype of A, row-major matrices.
        L and U are differentiable.

    Raises:
        RuntimeError: what is no matrix.
        NotImplementedError: other dtypes.

    Never waits for the device. Sizes, error bound and source: see `lu_factor`.
    """
    if not _route.kernels("lu", A, pivot=pivot):
        return torch.linalg.lu(A, pivot=pivot, out=out)
    _check.same_device("linalg_lu", A=A, out=out)
    if not (
        _check.matrix(A)
        and _check.flags(pivot)
        and _check.out(out, (A,), A.dtype, A.dtype, A.dtype)
    ):
        return _check.refuse(torch.linalg.lu, A, pivot=pivot, out=out)
    LU, pivots, _ = factor(A, pivot)
    PLU = _lu_unpack(LU, pivots, True, pivot)
    return _out.named("linalg_lu", PLU, out)


def _lu_unpack(LU: Tensor, pivots: Tensor, data: bool, pivot: bool) -> tuple[Tensor, ...]:
    if data and _op.tracked(LU):
        P, L, U = _differentiable_unpack(LU, pivots, pivot)
    else:
        P, L, U = _unpack(LU, pivots, data, pivot)
    return P, L, U


@public
def lu_unpack(
    LU_data: Tensor,
    LU_pivots: Tensor,
    unpack_data: bool = True,
    unpack_pivots: bool = True,
    *,
    out: Any = None,
) -> Any:
    """Write the result of `lu_factor` as three matrices with A = P L U.

    Same contract as `torch.lu_unpack`. Differences: float32, float64, complex64, complex128 only;
    pivots of another shape than `lu_factor` returns raise an error, torch reads past their end.

    Args:
        LU_data: (*, m, n), the dtypes of `lu_factor`.
        LU_pivots: int32 (*, min(m, n)).
        unpack_data: whether to return L and U, else empty tensors.
        unpack_pivots: whether to return P, else an empty tensor.
        out: three tensors to write to.

    Returns:
        P (*, m, m), L (*, m, k) and U (*, k, n) with k = min(m, n), row-major matrices.

    Raises:
        RuntimeError: what is no matrix, pivots of another dtype or shape, other dtypes.

    Never waits for the device. Exact.
    """
    if not _route.kernels("lu_unpack", LU_data):
        return torch.lu_unpack(LU_data, LU_pivots, unpack_data, unpack_pivots, out=out)
    dtype = LU_data.dtype
    _check.same_device("lu_unpack", LU_data=LU_data, LU_pivots=LU_pivots, out=out)
    if not (
        _check.matrix(LU_data)
        and _check.flags(unpack_data, unpack_pivots)
        and isinstance(LU_pivots, Tensor)
        and (LU_pivots.dtype == torch.int32 or not unpack_pivots)
        and _check.out(out, (LU_data,), dtype, dtype, dtype)
    ):
        return _check.refuse(
            torch.lu_unpack,
            LU_data,
            LU_pivots,
            unpack_data=unpack_data,
            unpack_pivots=unpack_pivots,
            out=out,
        )
    *batch, m, n = LU_data.shape
    if LU_pivots.shape != (*batch, min(m, n)):
        raise RuntimeError(
            "torch.lu_unpack: Expected LU_pivots of the shape that lu_factor returns, "
            f"{[*batch, min(m, n)]}, but got {list(LU_pivots.shape)}"
        )
    PLU = _lu_unpack(LU_data, LU_pivots, unpack_data, unpack_pivots)
    return _out.named("lu_unpack", PLU, out)


@public
def lu_solve(
    LU: Tensor,
    pivots: Tensor,
    B: Tensor,
    *,
    left: bool = True,
    adjoint: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Solve A X = B, or X A = B, or either with A^H, from the LU factorisation of A.

    Same contract as `torch.linalg.lu_solve`. Differences: none.

    Args:
        LU, pivots: results of `lu_factor` for A (*, n, n), with its dtypes.
        B: (*, n, k), or (*, k, n) with left=False; batches broadcast.
        left: solve A X = B, else X A = B.
        adjoint: A^H in place of A.
        out: a tensor to write to.

    Returns:
        X, shape of B with the broadcast batch; column-major matrices, row-major with left=False.
        Differentiable in LU and B.

    Raises:
        RuntimeError: shapes that do not fit, mixed dtypes, pivots that are not int32.
        NotImplementedError: other dtypes.

    Never waits for the device; a singular A gives infinities and NaN. Sizes as `lu_factor`.
    ||B - A X|| <= c n eps ||L|| ||U|| ||X||: LAPACK's test ratio stays below its threshold of 30.

    Source: LAPACK's getrs. Derivatives: Giles (2008).
    """
    if not _route.kernels("lu_solve", LU):
        X: Tensor = torch.linalg.lu_solve(LU, pivots, B, left=left, adjoint=adjoint, out=out)
        return X
    _check.same_device("wrapper_CUDA_linalg_lu_solve", LU=LU, pivots=pivots, B=B, out=out)
    if not (
        _check.square(LU)
        and _check.flags(left, adjoint)
        and isinstance(pivots, Tensor)
        and pivots.dtype == torch.int32
        and pivots.shape == LU.shape[:-1]
        and _check.fits(LU, B, left)
        and _check.out(out, (LU, B), LU.dtype)
    ):
        refused: Tensor = _check.refuse(
            torch.linalg.lu_solve, LU, pivots, B, left=left, adjoint=adjoint, out=out
        )
        return refused
    LU, pivots, B = _op.broadcast((LU, 2), (pivots, 1), (B, 2))
    if left:
        X = _lu_solve(LU, pivots, B, 2 if adjoint else 0)
    elif adjoint:
        X = _lu_solve(LU, pivots, B.mH, 0).mH.resolve_conj()
    else:
        X = _lu_solve(LU, pivots, B.mT, 1).mT
    return X if out is None else _out.write(X, out)
