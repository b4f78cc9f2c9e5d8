"""Cholesky factorisation: derivatives and public functions."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mpslinalg import _check, _cholesky_plan, _op, _out, _route
from mpslinalg._repeat import public
from mpslinalg._triangular import solve_operator

regime = _cholesky_plan.regime

_factor = _cholesky_plan.cholesky_op
_solve = _cholesky_plan.cholesky_solve_op
_invert = _cholesky_plan.cholesky_inverse_op


class _Cholesky(Function):
    """A = L L^H. With F = L^-1 dA L^-H, dL = L phi(F), phi the lower triangle and half the
    diagonal; gA = L^-H S L^-1 with S the hermitian part of phi(L^H gL).

    Source: Murray, "Differentiation of the Cholesky decomposition" (2016); Giles, "Collected matrix
    derivative results for forward and reverse mode AD" (2008).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor, upper: bool) -> tuple[Tensor, Tensor]:
        L, info = _factor(A, upper)
        return L, info

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        L, info = output
        ctx.upper = inputs[1]
        ctx.mark_non_differentiable(info)
        ctx.save_for_backward(L)
        ctx.save_for_forward(L)

    @staticmethod
    def backward(ctx: Any, gL: Tensor, _: Any) -> tuple[Tensor, None]:
        L = _adjoint_if(ctx.upper, *ctx.saved_tensors)
        P = _phi(L.mH @ _adjoint_if(ctx.upper, gL))
        left = solve_operator(L, (P + P.mH) / 2, False, False, 2)
        return solve_operator(L, left.mH, False, False, 2), None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, _: None) -> tuple[Tensor, None]:
        L = _adjoint_if(ctx.upper, *ctx.saved_tensors)
        left = solve_operator(L, dA, False, False, 0)
        F = solve_operator(L, left.mH, False, False, 0).mH
        return _adjoint_if(ctx.upper, L @ _phi(F)), None


class _CholeskySolve(Function):
    """X = A^-1 B, A = L L^H: gB = A^-1 gX, gA = -gB X^H, gL = (gA + gA^H) L (Giles 2008)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(B: Tensor, L: Tensor, upper: bool) -> Tensor:
        X: Tensor = _solve(B, L, upper)
        return X

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, L, ctx.upper = inputs
        ctx.save_for_backward(L, output)
        ctx.save_for_forward(L, output)

    @staticmethod
    def backward(ctx: Any, gX: Tensor) -> tuple[Tensor | None, ...]:
        L, X = ctx.saved_tensors
        gB = _cholesky_solve(gX, L, ctx.upper)
        gL = None
        if ctx.needs_input_grad[1]:
            gA = -(gB @ X.mH)
            gL = _gradient_of_factor(gA, L, ctx.upper)
        return gB, gL, None

    @staticmethod
    def jvp(ctx: Any, dB: Tensor, dL: Tensor, _: None) -> Tensor:
        L, X = ctx.saved_tensors
        return _cholesky_solve(dB - _tangent_of_product(L, dL, ctx.upper) @ X, L, ctx.upper)


class _CholeskyInverse(Function):
    """X = A^-1, A = L L^H: dX = -X dA X, gA = -X gX X (Giles 2008)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(L: Tensor, upper: bool) -> tuple[Tensor, Tensor]:
        X, info = _invert(L, upper)
        return X, info

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        (L, ctx.upper), (X, info) = inputs, output
        ctx.mark_non_differentiable(info)
        ctx.save_for_backward(L, X)
        ctx.save_for_forward(L, X)

    @staticmethod
    def backward(ctx: Any, gX: Tensor, _: Any) -> tuple[Tensor, None]:
        L, X = ctx.saved_tensors
        return _gradient_of_factor(-X @ gX @ X, L, ctx.upper), None

    @staticmethod
    def jvp(ctx: Any, dL: Tensor, _: None) -> tuple[Tensor, None]:
        L, X = ctx.saved_tensors
        return -X @ _tangent_of_product(L, dL, ctx.upper) @ X, None


_differentiable_factor = _op.applied(_Cholesky)
_differentiable_solve = _op.applied(_CholeskySolve)
_differentiable_invert = _op.applied(_CholeskyInverse)


def _adjoint_if(upper: bool, L: Tensor) -> Tensor:
    """A lower factor for an upper one, or the reverse."""
    return L.mH if upper else L


def _phi(A: Tensor) -> Tensor:
    """The lower triangle with half the diagonal."""
    return (A.tril() + A.tril(-1)) / 2


def _lower(L: Tensor, upper: bool) -> Tensor:
    return L.triu().mH if upper else L.tril()


def _gradient_of_factor(gA: Tensor, L: Tensor, upper: bool) -> Tensor:
    """gL from gA where A = L L^H, on the triangle that is read."""
    gL = ((gA + gA.mH) @ _lower(L, upper)).tril()
    return _adjoint_if(upper, gL)


def _tangent_of_product(L: Tensor, dL: Tensor, upper: bool) -> Tensor:
    """d(L L^H)."""
    half = _lower(dL, upper) @ _lower(L, upper).mH
    return half + half.mH


def _cholesky(A: Tensor, upper: bool) -> tuple[Tensor, Tensor]:
    L, info = _differentiable_factor(A, upper) if _op.tracked(A) else _factor(A, upper)
    return L, info


def _cholesky_solve(B: Tensor, L: Tensor, upper: bool) -> Tensor:
    tracked = _op.tracked(B, L)
    X: Tensor = _differentiable_solve(B, L, upper) if tracked else _solve(B, L, upper)
    return X


def _cholesky_inverse(L: Tensor, upper: bool) -> tuple[Tensor, Tensor]:
    X, info = _differentiable_invert(L, upper) if _op.tracked(L) else _invert(L, upper)
    return X, info


@public
def cholesky(A: Tensor, *, upper: bool = False, out: Tensor | None = None) -> Tensor:
    """Factor a hermitian positive definite matrix: A = L L^H, or A = U^H U with upper=True.

    Same contract as `torch.linalg.cholesky`. Differences: the gradient of a complex matrix is
    hermitian; it is the hermitian part of torch's.

    Args:
        A: (*, n, n), float32, float64, complex64 or complex128. Only the lower triangle, or the
            upper one with upper=True, is read, and of the diagonal the real part.
        upper: return U = L^H.
        out: a tensor to write to.

    Returns:
        L or U, shape and dtype of A, column-major matrices, zero in the other triangle, with a
        positive diagonal.

    Raises:
        torch.linalg.LinAlgError: a matrix is not positive definite; names the first one. Reads the
            device once to know, `cholesky_ex` does not.
        RuntimeError: what is no square matrix, other dtypes.

    n <= 4 is one thread a matrix, n <= 64 a simdgroup a matrix, n <= 256 a threadgroup, all in one
    launch; beyond, a launch for each panel of 64 columns. ||A - L L^H|| <= c n eps ||A||:
    LAPACK's test ratio stays below its threshold of 30.

    Source: Golub, Van Loan, "Matrix Computations", section 4.2; LAPACK's potrf. Derivatives: Murray
    (2016), Giles (2008).
    """
    if not _route.kernels("cholesky", A):
        result: Tensor = (
            torch.linalg.cholesky(A, upper=upper)
            if out is None
            else torch.linalg.cholesky(A, upper=upper, out=out)
        )
        return result
    _check.same_device("linalg_cholesky_ex", A=A, out=out)
    if not (_check.square(A) and _check.flags(upper) and _check.out(out, (A,), A.dtype)):
        refused: Tensor = _check.refuse(torch.linalg.cholesky, A, upper=upper, out=out)
        return refused
    L, info = _cholesky(A, upper)
    _check.errors(info, "linalg.cholesky", is_matrix=A.dim() == 2)
    return L if out is None else _out.write(L, out)


@public
def cholesky_ex(
    A: Tensor, *, upper: bool = False, check_errors: bool = False, out: Any = None
) -> Any:
    """Factor a hermitian positive definite matrix and return LAPACK's `info` instead of an error.

    Same contract as `torch.linalg.cholesky_ex`. Differences: of a matrix that is not positive
    definite the rows of L from `info` on hold NaN, torch's hold what LAPACK left.

    Args:
        A, upper: see `cholesky`.
        check_errors: raise the error all the same, at the price of reading the device.
        out: two tensors to write to.

    Returns:
        L as `cholesky`, and info, int32 (*): 0, or i > 0 when the leading minor of order i is the
        first that is not positive definite. Other matrices of the batch are untouched by it.

    Raises:
        RuntimeError: what is no square matrix, other dtypes.
        torch.linalg.LinAlgError: with check_errors, a matrix that is not positive definite.

    Sizes, error bound and source: see `cholesky`.
    """
    if not _route.kernels("cholesky_ex", A):
        return torch.linalg.cholesky_ex(A, upper=upper, check_errors=check_errors, out=out)
    _check.same_device("linalg_cholesky_ex", A=A, out=out)
    if not (
        _check.square(A)
        and _check.flags(upper, check_errors)
        and _check.out(out, (A,), A.dtype, torch.int32)
    ):
        return _check.refuse(
            torch.linalg.cholesky_ex, A, upper=upper, check_errors=check_errors, out=out
        )
    L, info = _cholesky(A, upper)
    if check_errors:
        _check.errors(info, "linalg.cholesky_ex", is_matrix=A.dim() == 2)
    return _out.named("linalg_cholesky_ex", (L, info), out)


def _write(X: Tensor, out: Tensor) -> Tensor:
    """To out=, which here becomes row-major when it had another shape."""
    if out.shape != X.shape:
        X = X.clone(memory_format=torch.contiguous_format)
    return _out.write(X, out)


@public
def cholesky_solve(
    B: Tensor, L: Tensor, upper: bool = False, *, out: Tensor | None = None
) -> Tensor:
    """Solve A X = B from the Cholesky factor of A = L L^H, or A = U^H U with upper=True.

    Same contract as `torch.cholesky_solve`. Differences: the gradient of L is zero in the triangle
    that is not read.

    Args:
        B: (*, n, k).
        L: (*, n, n), the result of `cholesky`, with its dtypes; batches broadcast. The other
            triangle is not read.
        upper: L is U, upper triangular.
        out: a tensor to write to.

    Returns:
        X, shape of B with the broadcast batch, column-major matrices.

    Raises:
        RuntimeError: shapes that do not fit, mixed dtypes.
        NotImplementedError: other dtypes.

    Never waits for the device; a zero on the diagonal gives infinities and NaN. n <= 32 is one
    launch, n <= 64 for up to 8 columns, beyond two triangular solves.
    ||B - A X|| <= c n eps ||A|| ||X||: LAPACK's test ratio stays below its threshold of 30.

    Source: LAPACK's potrs. Derivatives: Giles (2008).
    """
    if not _route.kernels("cholesky_solve", L):
        X: Tensor = torch.cholesky_solve(B, L, upper, out=out)
        return X
    _check.same_device("cholesky_solve", B=B, L=L, out=out)
    if not (
        isinstance(B, Tensor)
        and _check.square(L)
        and _check.flags(upper)
        and _check.fits(L, B, True)
        and _check.out_to_cast(out, (B, L), B.dtype)
    ):
        refused: Tensor = _check.refuse(torch.cholesky_solve, B, L, upper=upper, out=out)
        return refused
    B, L = _op.broadcast((B, 2), (L, 2))
    X = _cholesky_solve(B, L, upper)
    return X if out is None else _write(X, out)


@public
def cholesky_inverse(L: Tensor, upper: bool = False, *, out: Tensor | None = None) -> Tensor:
    """Invert A = L L^H, or A = U^H U with upper=True, from its Cholesky factor.

    Same contract as `torch.cholesky_inverse`. Differences: the gradient of L is zero in the
    triangle that is not read.

    Args:
        L: (*, n, n), the result of `cholesky`, with its dtypes. The other triangle is not read.
        upper: L is U, upper triangular.
        out: a tensor to write to.

    Returns:
        A^-1, shape and dtype of L, column-major matrices.

    Raises:
        torch.linalg.LinAlgError: a zero on the diagonal of L. Reads the device once to know.
        RuntimeError: what is no square matrix.
        NotImplementedError: other dtypes.

    n <= 32 is one launch, beyond two triangular solves of the identity.
    ||I - X A|| <= c n eps ||A|| ||X||: LAPACK's test ratio stays below its threshold of 30.

    Source: LAPACK's potri. Derivatives: Giles (2008).
    """
    if not _route.kernels("cholesky_inverse", L):
        X: Tensor = torch.cholesky_inverse(L, upper, out=out)
        return X
    _check.same_device("cholesky_inverse", L=L, out=out)
    if not (_check.square(L) and _check.flags(upper) and _check.out_to_cast(out, (L,), L.dtype)):
        refused: Tensor = _check.refuse(torch.cholesky_inverse, L, upper=upper, out=out)
        return refused
    X, info = _cholesky_inverse(L, upper)
    _check.errors(info, "cholesky_inverse", is_matrix=L.dim() == 2)
    if out is None:
        return X
    if out.numel() == 0 and out.dtype == X.dtype:
        # Torch computes in place in such an output, which then takes all its strides.
        return _out.write(X, out.resize_(0))
    return _write(X, out)
