"""Functions of matrices: derivatives and public functions."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mpslinalg import _check, _eigh, _matrix_exp_plan, _op, _route, _sylvester
from mpslinalg._shards import over_batches


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a few words for `which`."""
    if name == "matrix_exp":
        return _matrix_exp_plan.regime(n)
    return f"{_eigh.regime('eigh', dtype, batch, m, n, k)}, matmul"


class _Root(Function):
    """X X = A, so X dX + dX X = dA; backward is the same equation, for it is its own adjoint."""

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return _root(A)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)

    @staticmethod
    def backward(ctx: Any, gX: Tensor, *_: Any) -> Tensor:
        X, roots, V = ctx.saved_tensors
        return _sylvester.solve(X, (gX + gX.mH) / 2, roots, V)

    @staticmethod
    def jvp(ctx: Any, dA: Tensor) -> tuple[Tensor, None, None]:
        X, roots, V = ctx.saved_tensors
        return _sylvester.solve(X, (dA + dA.mH) / 2, roots, V), None, None


_differentiable_root = _op.applied(_Root)


@_op.outside_autocast
def _root(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The root of A with its eigenvalues and eigenvectors."""
    within = _route.kernels_within("matrix_sqrth", A)
    L, V = _eigh.decompose(A) if within else torch.linalg.eigh(A)
    # What rounding makes of eigenvalues of zero.
    noise = L.shape[-1] * torch.finfo(L.dtype).eps * L.abs().amax(-1, keepdim=True)
    roots = torch.where(-noise > L, L, L.clamp_min(0)).sqrt()
    X = (V * roots.unsqueeze(-2)) @ V.mH
    return (X + X.mH) / 2, roots, V


def _refuse(A: Any) -> Any:
    """Raise torch's error, in the words of `eigh` where torch has no `matrix_sqrth`."""
    function = getattr(torch.linalg, "matrix_sqrth", None)
    if function is not None:
        return _check.refuse(function, A)
    return _check.refuse_as("linalg.matrix_sqrth", torch.linalg.eigh, A)


@over_batches
def matrix_sqrth(A: Tensor) -> Tensor:
    """Compute the square root of a symmetric or Hermitian positive semidefinite matrix: X X = A.

    Same contract as `torch.linalg.matrix_sqrth`. Differences: it is there with every torch, though
    `use("torch")` raises an error before 2.15.

    Args:
        A: (*, n, n), float32, float64, complex64 or complex128. Only the lower triangle is read.

    Returns:
        X, shape and dtype of A, exactly hermitian and positive semidefinite. Eigenvalues of A of
        -n eps ||A|| and more count as zero; with a smaller one A has no such root, and its X is
        NaN. Differentiable where A is definite, however close its eigenvalues are.

    Raises:
        torch.linalg.LinAlgError: as `eigh`.
        RuntimeError: what is no square matrix, other dtypes.

    A = V L V^H by `eigh`, at its sizes; X = V sqrt(L) V^H. ||A - X X|| <= c n eps ||A||.

    Source: Higham, "Functions of Matrices" (2008), chapter 6.
    """
    if isinstance(A, Tensor) and A.dim() >= 2 and not _route.kernels("matrix_sqrth", A):
        result: Tensor = _route.torchs("matrix_sqrth")(A)
        return result
    if not (isinstance(A, Tensor) and _check.square(A)):
        refused: Tensor = _refuse(A)
        return refused
    if A.numel() == 0:
        return A.clone()
    X: Tensor = (_differentiable_root(A) if _op.tracked(A) else _root(A))[0]
    return X


_exp_op = _matrix_exp_plan.matrix_exp_op


class _Exp(Function):
    """dX = L(A, dA), gA = L(A^H, gX): the upper right block of exp([[A, E], [0, A]])."""

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor) -> Tensor:
        X: Tensor = _exp_op(A)
        return X

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, gX: Tensor) -> Tensor:
        (A,) = ctx.saved_tensors
        return _frechet(A.mH, gX)

    @staticmethod
    def jvp(ctx: Any, dA: Tensor) -> Tensor:
        (A,) = ctx.saved_tensors
        return _frechet(A, dA)


_differentiable_exp = _op.applied(_Exp)


def _exp(A: Tensor) -> Tensor:
    X: Tensor = _differentiable_exp(A) if _op.tracked(A) else _exp_op(A)
    return X


def _frechet(A: Tensor, E: Tensor) -> Tensor:
    """The derivative of exp at A in the direction E."""
    n = A.shape[-1]
    if A.numel() == 0:
        return torch.zeros_like(A)
    # It is linear in E, whose size must not decide on the scale of the whole.
    with torch.no_grad():
        largest = E.abs().amax((-2, -1), keepdim=True)
        scale = torch.where((largest == 0) | largest.isinf(), 1, largest)
    top = torch.cat((A, E / scale), -1)
    bottom = torch.cat((torch.zeros_like(A), A), -1)
    return _exp(torch.cat((top, bottom), -2))[..., :n, n:] * scale


@over_batches
def matrix_exp(A: Tensor) -> Tensor:
    """Compute the exponential of a square matrix: the sum of A^k / k!.

    Same contract as `torch.linalg.matrix_exp`. Differences: half precision is computed in float32
    and rounded once.

    Args:
        A: (*, n, n), floating point or complex.

    Returns:
        exp(A), shape and dtype of A, row-major; NaN where A is not finite. Differentiable.

    Raises:
        RuntimeError: what is no square matrix, other dtypes.

    Scaling by a power of two, the Taylor polynomial of degree 8 in three products, and squares, as
    often as each matrix's own norm asks for. Up to n = 64 in one launch; larger ones by products,
    between which the device is read once. The backward error is some n eps for normal matrices;
    the squares of others may add to it. Derivatives by the exponential of [[A, E], [0, A]].

    Source: Bader, Blanes, Casas, "Computing the matrix exponential with an optimized Taylor
    polynomial approximation" (2019); Al-Mohy, Higham, "Computing the Frechet derivative of the
    matrix exponential" (2009).
    """
    if not _route.kernels("matrix_exp", A):
        result: Tensor = torch.linalg.matrix_exp(A)
        return result
    if not (
        (A.is_floating_point() or A.is_complex())
        and A.dim() >= 2
        and A.shape[-2] == A.shape[-1]
        and A.dtype in (*_check.DTYPES, *_check.HALVES)
    ):
        refused: Tensor = _check.refuse(torch.linalg.matrix_exp, A)
        return refused
    with _op.without_autocast(A):
        return _exp(A.float()).to(A.dtype) if A.dtype in _check.HALVES else _exp(A)
