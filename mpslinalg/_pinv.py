"""Pseudoinverse and rank: derivatives and public functions."""

import functools
from collections.abc import Callable, Mapping
from contextlib import suppress
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mpslinalg import _check, _eigh, _op, _out, _route, _svd
from mpslinalg._names import named_as_torchs

Tolerance = float | Tensor | None


def operation(name: str, given: Mapping[str, Any]) -> str:
    """What routes know a call by."""
    return f"{name} hermitian" if given["hermitian"] is True else name


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a few words for `which`."""
    built_on = _route.BUILT_ON[name]
    family = _eigh if "hermitian" in name else _svd
    kernels = family.regime(built_on, dtype, batch, m, n, k)
    return kernels if name.startswith("matrix_rank") else f"{kernels}, matmul"


class _Pinv(Function):
    """X = A^+ of an A that keeps its rank. With E = I - A X and F = I - X A:
    dX = -X dA X + X X^H dA^H E + F dA^H X^H X,
    gA = -X^H gX X^H + E gX^H X X^H + X^H X gX^H F.

    Source: Golub, Pereyra, "The differentiation of pseudo-inverses and nonlinear least squares
    problems whose variables separate" (1973).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor, atol: Tolerance, rtol: Tolerance, hermitian: bool) -> Tensor:
        return _invert(A, atol, rtol, hermitian)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)
        ctx.save_for_forward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, gX: Tensor) -> tuple[Tensor, None, None, None]:
        A, X = ctx.saved_tensors
        outer, inner = _between(X, gX.mH)
        gA: Tensor = -X.mH @ gX @ X.mH + (outer - A @ (X @ outer)) + (inner - (inner @ X) @ A)
        return gA, None, None, None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, *_: Any) -> Tensor:
        A, X = ctx.saved_tensors
        outer, inner = _between(X.mH, dA.mH)
        dX: Tensor = -X @ dA @ X + (inner - (inner @ A) @ X) + (outer - X @ (A @ outer))
        return dX


_differentiable = _op.applied(_Pinv)


def _between(X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    """Y X X^H and X^H X Y, of which the smaller products come first."""
    if X.shape[-2] <= X.shape[-1]:
        return Y @ (X @ X.mH), X.mH @ (X @ Y)
    return (Y @ X) @ X.mH, (X.mH @ X) @ Y


@_op.outside_autocast
def _invert(A: Tensor, atol: Tolerance, rtol: Tolerance, hermitian: bool) -> Tensor:
    if hermitian:
        S, U = _eigh.eigh(A)
        V = U
        kept = _counts(S.abs(), A, atol, rtol, S.abs().amax(-1, keepdim=True))
    else:
        U, S, Vh = _svd.svd(A, full_matrices=False)
        V = Vh.mH
        kept = _counts(S, A, atol, rtol, S[..., :1])
    X: Tensor = (V * torch.where(kept, 1 / S, 0).unsqueeze(-2)) @ U.mH
    return X


def _counts(S: Tensor, A: Tensor, atol: Tolerance, rtol: Tolerance, largest: Tensor) -> Tensor:
    """Which singular values of A are above max(atol, rtol largest)."""
    default = torch.finfo(A.dtype).eps * max(A.shape[-2:])
    if rtol is None:
        if isinstance(atol, Tensor):
            rtol = torch.where(atol > 0, 0.0, default)
        else:
            rtol = default if atol is None or atol <= 0 else 0.0
    if isinstance(rtol, Tensor):
        rtol = rtol.unsqueeze(-1)
    kept = rtol * largest < S
    if isinstance(atol, Tensor):
        return kept & (atol.unsqueeze(-1) < S)
    return kept if atol is None or atol == 0 else kept & (atol < S)


def _tolerances(A: Any, *given: Any) -> bool:
    """Whether torch takes these together: real tensors that fit the batch, or numbers, with which
    tensors of no dimensions may be mixed.
    """
    given = tuple(t for t in given if t is not None)
    shapes = [t.shape for t in given if isinstance(t, Tensor) and not t.is_complex()]
    numbers = sum(isinstance(t, Real) for t in given)
    if not isinstance(A, Tensor) or len(shapes) + numbers < len(given):
        return False
    if numbers > 0:
        return all(len(shape) == 0 for shape in shapes)
    # Of a tensor without entries torch looks at no tolerance.
    shapes = [*shapes, A.shape[:-2]] if A.numel() > 0 else []
    return all(_check.broadcastable(a, b) for a in shapes for b in shapes)


def _fits(A: Any, hermitian: Any) -> bool:
    """Whether A has the shape and dtype; torch decomposes no matrices without entries."""
    if not isinstance(A, Tensor):
        return False
    return _check.square(A) if hermitian and A.numel() > 0 else _check.matrix(A)


def _plain(tolerance: Tolerance) -> Tolerance:
    """NumPy's numbers would take the products with tensors for themselves."""
    return tolerance if tolerance is None or isinstance(tolerance, Tensor) else float(tolerance)


def _broadcast(A: Tensor, *tolerances: Tolerance) -> Tensor:
    """A, as often as there are tolerances for it."""
    tensors = [t for t in tolerances if isinstance(t, Tensor)]
    return _op.broadcast((A, 2), *((t, 0) for t in tensors))[0] if tensors else A


def _refuse(function: Callable[..., Any], A: Any, out: Any, **options: Any) -> Any:
    """Raise torch's error; which options it got is in its words."""
    given = {k: v for k, v in options.items() if not (v is None or v is False)}
    return _check.refuse(function, A, out=out, **given)


def _older(translate: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    """Take the arguments of torch's older signature too: one tolerance, by position as well."""

    def wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def either(A: Any, *args: Any, **kwargs: Any) -> Any:
            if not args and kwargs.keys() <= {"atol", "rtol", "hermitian", "out"}:
                return function(A, **kwargs)
            with suppress(TypeError):
                options = translate(*args, **kwargs)
                tolerances = options["atol"], options["rtol"]
                if None not in tolerances and _tolerances(A, *tolerances):
                    return function(A, **options)
            return _check.refuse(getattr(torch.linalg, function.__name__), A, *args, **kwargs)

        return either

    return wrapper


def _zero(like: Any) -> Tolerance:
    return like.new_zeros(()) if isinstance(like, Tensor) else 0.0


@named_as_torchs
@_older(
    lambda rcond, hermitian=False, *, out=None: {
        "atol": _zero(rcond),
        "rtol": rcond,
        "hermitian": hermitian,
        "out": out,
    }
)
def pinv(
    A: Tensor,
    *,
    atol: Tolerance = None,
    rtol: Tolerance = None,
    hermitian: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Compute the pseudoinverse A^+ of Moore and Penrose.

    Same contract as `torch.linalg.pinv`. Differences: none.

    Args:
        A: (*, m, n), float32, float64, complex64 or complex128; of any rank.
        atol, rtol: singular values of at most max(atol, rtol times the largest one) count as zero.
            Numbers, or tensors that broadcast with the batch; with a number, of no dimensions. rtol
            is eps max(m, n) by default, 0 if atol is above 0; `pinv(A, rcond)` means rtol=rcond.
        hermitian: take A as symmetric or Hermitian, and read its lower triangle only.
        out: a tensor to write to.

    Returns:
        X (*, n, m), row-major matrices. Differentiable where A keeps its rank, as the derivative
        supposes, however close singular values are.

    Raises:
        torch.linalg.LinAlgError: as `svd`, or `eigh` if hermitian.
        RuntimeError: what is no matrix, other dtypes, complex tolerances.

    A = U S V^H by `svd`, at its sizes, or `eigh`; X = V S^+ U^H. ||X - A^+|| <= c max(m, n) eps
    cond(A) ||A^+|| for the condition that the kept singular values have.

    Source: Golub, Van Loan, "Matrix Computations", section 5.5. Derivatives: Golub, Pereyra (1973).
    """
    name = "pinv hermitian" if hermitian is True else "pinv"
    options = {"atol": atol, "rtol": rtol, "hermitian": hermitian}
    if isinstance(A, Tensor) and not _route.kernels(name, A):
        result: Tensor = torch.linalg.pinv(A, **options, out=out)
        return result
    _check.same_device("linalg_pinv", A=A, atol=atol, rtol=rtol, out=out)
    if not (
        _fits(A, hermitian)
        and _check.flags(hermitian)
        and _tolerances(A, atol, rtol)
        and _check.out_to_cast(out, (A,), A.dtype)
    ):
        refused: Tensor = _refuse(torch.linalg.pinv, A, out, **options)
        return refused
    atol, rtol = _plain(atol), _plain(rtol)
    if A.numel() == 0:
        # With a gradient, which is as empty.
        X = A.mT.resolve_conj().clone(memory_format=torch.contiguous_format)
    else:
        A = _broadcast(A, atol, rtol)
        X = (_differentiable if _op.tracked(A) else _invert)(A, atol, rtol, hermitian)
    return X if out is None else _out.write(X, out)


@named_as_torchs
@_older(
    lambda tol, hermitian=False, *, out=None: {
        "atol": tol,
        "rtol": _zero(tol),
        "hermitian": hermitian,
        "out": out,
    }
)
def matrix_rank(
    A: Tensor,
    *,
    atol: Tolerance = None,
    rtol: Tolerance = None,
    hermitian: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Count the singular values of A that are not negligible.

    Same contract as `torch.linalg.matrix_rank`. Differences: none.

    Args:
        A: (*, m, n), float32, float64, complex64 or complex128.
        atol, rtol, hermitian: see `pinv`; `matrix_rank(A, tol)` means atol=tol, rtol=0.
        out: a tensor to write to.

    Returns:
        int64, the batch of A and of the tolerances.

    Raises:
        torch.linalg.LinAlgError: as `svdvals`, or `eigvalsh` if hermitian.
        RuntimeError: what is no matrix, other dtypes, complex tolerances.

    Sizes: those of `svdvals`, or of `eigvalsh`. A singular value is wrong by some max(m, n) eps
    ||A||, and so is what the default tolerance drops.

    Source: Golub, Van Loan, "Matrix Computations", section 5.4.
    """
    name = "matrix_rank hermitian" if hermitian is True else "matrix_rank"
    options = {"atol": atol, "rtol": rtol, "hermitian": hermitian}
    if isinstance(A, Tensor) and not _route.kernels(name, A):
        result: Tensor = torch.linalg.matrix_rank(A, **options, out=out)
        return result
    _check.same_device("linalg_matrix_rank", A=A, atol=atol, rtol=rtol, out=out)
    if not (
        _fits(A, hermitian)
        and _check.flags(hermitian)
        and _tolerances(A, atol, rtol)
        and _check.out_to_cast(out, (), torch.int64)
    ):
        refused: Tensor = _refuse(torch.linalg.matrix_rank, A, out, **options)
        return refused
    atol, rtol = _plain(atol), _plain(rtol)
    if A.numel() == 0:
        rank = torch.zeros(A.shape[:-2], dtype=torch.int64, device=A.device)
    else:
        S = _eigh.eigvalsh(A.detach()).abs() if hermitian else _svd.svdvals(A.detach())
        rank = _counts(S, A, atol, rtol, S.amax(-1, keepdim=True)).sum(-1)
    return rank if out is None else _out.write(rank, out)
