"""Functions of matrices: derivatives and public functions."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from mpslinalg import _check, _eigh, _op, _route, _sylvester


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a few words for `which`."""
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
    L, V = _eigh.eigh(A)
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
