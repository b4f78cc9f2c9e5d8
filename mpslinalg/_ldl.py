"""LDL factorisation: derivatives and public functions."""

from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import Function
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from mpslinalg import _check, _ldl_plan, _op, _out, _route
from mpslinalg._repeat import public

regime = _ldl_plan.regime

_factor = _ldl_plan.ldl_factor_op
_solve = _ldl_plan.ldl_solve_op

# What torch takes for pivots.
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def _no_derivative(name: str) -> NoReturn:
    raise RuntimeError(f"derivative for aten::linalg_{name} is not implemented")


def _no_forward_derivative(name: str) -> NoReturn:
    raise NotImplementedError(
        f"Trying to use forward AD with aten::linalg_{name} that does not support it."
    )


class _LDLFactor(Function):
    """A function of A that, as in torch, has no derivative, and says so when asked for one."""

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor, hermitian: bool) -> tuple[Tensor, Tensor, Tensor]:
        LD, pivots, info = _factor(A, hermitian)
        return LD, pivots, info

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, *_: Any) -> NoReturn:
        _no_derivative("ldl_factor_ex")

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> NoReturn:
        _no_forward_derivative("ldl_factor_ex")


class _LDLSolve(Function):
    """gB = A^-H gX, dX = A^-1 dB. A^H is A or, if A is symmetric, its conjugate."""

    generate_vmap_rule = True

    @staticmethod
    def forward(LD: Tensor, pivots: Tensor, B: Tensor, hermitian: bool) -> Tensor:
        X: Tensor = _solve(LD, pivots, B, hermitian)
        return X

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        LD, pivots, _, ctx.hermitian = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(LD, pivots)
        ctx.save_for_forward(LD, pivots)

    @staticmethod
    def backward(ctx: Any, gX: Tensor | None) -> tuple[Tensor | None, ...]:
        LD, pivots = ctx.saved_tensors
        if ctx.needs_input_grad[0]:
            _no_derivative("ldl_solve")
        if gX is None:
            gB = None
        elif ctx.hermitian or not gX.is_complex():
            gB = _solve_factored(LD, pivots, gX, ctx.hermitian)
        else:
            gB = _solve_factored(LD, pivots, gX.conj(), False).conj()
        return None, None, gB, None

    @staticmethod
    def jvp(ctx: Any, dLD: Tensor | None, _: None, dB: Tensor, *__: None) -> Tensor:
        LD, pivots = ctx.saved_tensors
        if dLD is not None:
            _no_forward_derivative("ldl_solve")
        return _solve_factored(LD, pivots, dB, ctx.hermitian)


_undifferentiable_factor = _op.applied(_LDLFactor)
_differentiable_solve = _op.applied(_LDLSolve)


def _factor_tracked(A: Tensor, hermitian: bool) -> tuple[Tensor, Tensor, Tensor]:
    if _op.tracked(A):
        LD, pivots, info = _undifferentiable_factor(A, hermitian)
    else:
        LD, pivots, info = _factor(A, hermitian)
    return LD, pivots, info


def _solve_factored(LD: Tensor, pivots: Tensor, B: Tensor, hermitian: bool) -> Tensor:
    if _op.tracked(LD, B):
        X: Tensor = _differentiable_solve(LD, pivots, B, hermitian)
    else:
        X = _solve(LD, pivots, B, hermitian)
    return X


def _refuse_gradient_to_out(name: str, out: Any, *inputs: Tensor) -> None:
    """torch writes to out= all the same, and fails when a gradient is asked for."""
    if out is not None and torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
        raise RuntimeError(
            f"aten::linalg_{name}(): functions with out=... arguments don't support automatic "
            "differentiation, but one of the arguments requires grad."
        )


def check_info(info: Tensor, name: str, is_matrix: bool) -> None:
    _check.at_the_end(info, partial(_raise_first, name=name, is_matrix=is_matrix))


def _raise_first(info: Tensor, name: str, is_matrix: bool) -> None:
    """LinAlgError for the first zero on the diagonal of D; reads the device.

    torch takes it for an error of its own: "INTERNAL ASSERT FAILED ..., please report a bug". Under
    vmap and torch.compile, where info is not to be looked at, its words remain.
    """
    try:
        _check.raise_first(info, name, is_matrix)
    except RuntimeError:
        if torch._C._are_functorch_transforms_active():
            raise
        first = int(info.flatten().nonzero()[0])
        i = int(info.flatten()[first])
        where = "" if is_matrix else f"(Batch element {first}): "
        raise LinAlgError(
            f"{name}: {where}D[{i},{i}] is zero and using it on ldl_solve would result in a "
            "division by zero. If you still want to perform the factorization, consider calling "
            "linalg.ldl_factor_ex(A)"
        ) from None


@public
def ldl_factor(A: Tensor, *, hermitian: bool = False, out: Any = None) -> Any:
    """Factor a symmetric or Hermitian, possibly indefinite matrix: A = L D L^T or A = L D L^H.

    Same contract as `torch.linalg.ldl_factor`. Differences: a zero pivot raises LinAlgError in
    plain words, where torch's error is a failed assertion; out= with an A that requires a gradient
    is refused.

    Args:
        A: (*, n, n), float32, float64, complex64 or complex128. Only its lower triangle is read,
            of a Hermitian matrix only the real part of the diagonal.
        hermitian: whether a complex A is Hermitian, else symmetric.
        out: two tensors to write to.

    Returns:
        LD, (*, n, n) with column-major matrices: D, of 1 x 1 and 2 x 2 blocks, on and below the
        diagonal, the unit lower triangular L elsewhere below it, zeros above. pivots, int32 (*, n),
        as LAPACK's sytrf with uplo = 'L': pivots[k] = p > 0 says that rows and columns k and p,
        counted from 1, were exchanged, -p at k and k + 1 that D has a 2 x 2 block there and k + 1
        and p were exchanged. To be passed to `ldl_solve`.

    Raises:
        torch.linalg.LinAlgError: D has a zero on its diagonal; names the first such matrix. Reads
            the device once to know, `ldl_factor_ex` does not.
        RuntimeError: what is no square matrix.
        NotImplementedError: other dtypes.

    n <= 32 is a simdgroup a matrix, n <= 128 a threadgroup a matrix, both in registers; beyond,
    panels and matrix products. ||A - L D L^T|| <= c n eps ||A|| times the growth of the entries:
    LAPACK's test ratio stays below its threshold of 30. As in torch there is no derivative.

    Source: Bunch, Kaufman, "Some stable methods for calculating inertia and solving symmetric
    linear systems" (1977); LAPACK's sytrf and hetrf.
    """
    if not _route.kernels("ldl_factor", A):
        return torch.linalg.ldl_factor(A, hermitian=hermitian, out=out)
    _check.same_device("linalg_ldl_factor_ex", A=A, out=out)
    if not (
        _check.square(A) and _check.flags(hermitian) and _check.out(out, (), A.dtype, torch.int32)
    ):
        return _check.refuse(torch.linalg.ldl_factor, A, hermitian=hermitian, out=out)
    _refuse_gradient_to_out("ldl_factor_ex", out, A)
    LD, pivots, info = _factor_tracked(A, hermitian)
    check_info(info, "torch.linalg.ldl_factor", A.dim() == 2)
    return _out.named("linalg_ldl_factor", (LD, pivots), out)


@public
def ldl_factor_ex(
    A: Tensor, *, hermitian: bool = False, check_errors: bool = False, out: Any = None
) -> Any:
    """Factor a symmetric or Hermitian matrix and return LAPACK's `info` instead of an error.

    Same contract as `torch.linalg.ldl_factor_ex`. Differences: those of `ldl_factor`.

    Args:
        A, hermitian: see `ldl_factor`.
        check_errors: raise the error all the same, at the price of reading the device.
        out: three tensors to write to.

    Returns:
        LD and pivots as `ldl_factor`, and info, int32 (*): 0, or i > 0 when D[i, i], counted from
        1, is the first zero, or NaN, that was to be a pivot. Other matrices of the batch are
        untouched by it.

    Raises:
        RuntimeError: what is no square matrix.
        torch.linalg.LinAlgError: with check_errors, a zero on the diagonal of D.
        NotImplementedError: other dtypes.

    Sizes, error bound and source: see `ldl_factor`.
    """
    if not _route.kernels("ldl_factor_ex", A):
        return torch.linalg.ldl_factor_ex(
            A, hermitian=hermitian, check_errors=check_errors, out=out
        )
    _check.same_device("linalg_ldl_factor_ex", A=A, out=out)
    if not (
        _check.square(A)
        and _check.flags(hermitian, check_errors)
        and _check.out(out, (), A.dtype, torch.int32, torch.int32)
    ):
        return _check.refuse(
            torch.linalg.ldl_factor_ex, A, hermitian=hermitian, check_errors=check_errors, out=out
        )
    _refuse_gradient_to_out("ldl_factor_ex", out, A)
    LD, pivots, info = _factor_tracked(A, hermitian)
    if check_errors:
        check_info(info, "torch.linalg.ldl_factor_ex", A.dim() == 2)
    return _out.named("linalg_ldl_factor_ex", (LD, pivots, info), out)


@public
def ldl_solve(
    LD: Tensor, pivots: Tensor, B: Tensor, *, hermitian: bool = False, out: Tensor | None = None
) -> Tensor:
    """Solve A X = B from the LDL factorisation of A.

    Same contract as `torch.linalg.ldl_solve`. Differences: differentiable in B; out= with arguments
    that require a gradient is refused.

    Args:
        LD, pivots: results of `ldl_factor` for A (*, n, n), with its dtypes.
        B: (*, n, k); the batches of LD and B broadcast.
        hermitian: as in `ldl_factor`.
        out: a tensor to write to.

    Returns:
        X, shape of B with the broadcast batch, column-major matrices.

    Raises:
        RuntimeError: shapes that do not fit, mixed dtypes, pivots that are not integers.
        NotImplementedError: other dtypes.

    Never waits for the device; a singular A gives infinities and NaN. n <= 32 is one fused kernel,
    a lane a right-hand side; beyond, triangular solves. LAPACK's test ratio of the residual stays
    below its threshold of 30.

    Source: LAPACK's sytrs2 and hetrs2.
    """
    if not _route.kernels("ldl_solve", LD):
        X: Tensor = torch.linalg.ldl_solve(LD, pivots, B, hermitian=hermitian, out=out)
        return X
    _check.same_device("wrapper_CUDA_linalg_ldl_solve", LD=LD, pivots=pivots, B=B, out=out)
    if not (
        _check.square(LD)
        and _check.flags(hermitian)
        and isinstance(pivots, Tensor)
        and pivots.dtype in INTEGERS
        and pivots.shape == LD.shape[:-1]
        and _check.fits(LD, B, True)
        and _check.out(out, (), LD.dtype)
    ):
        refused: Tensor = _check.refuse(
            torch.linalg.ldl_solve, LD, pivots, B, hermitian=hermitian, out=out
        )
        return refused
    _refuse_gradient_to_out("ldl_solve", out, LD, B)
    LD, pivots, B = _op.broadcast((LD, 2), (pivots.to(torch.int32), 1), (B, 2))
    X = _solve_factored(LD, pivots, B, hermitian)
    return X if out is None else _out.write(X, out)
