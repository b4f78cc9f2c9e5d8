"""Polar decomposition: derivatives and the public function."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from mpslinalg import _check, _op, _out, _route, _svd, _sylvester
from mpslinalg._shards import over_batches
from mpslinalg._solve import solve_ex


class Polar(NamedTuple):
    """U and H of A = U H."""

    U: Tensor
    H: Tensor


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a few words for `which`."""
    return f"{_svd.regime('svd', dtype, batch, m, n, k)}, matmul"


class _Polar(Function):
    """A = U H. With M = U^H dA and W H + H W = M - M^H: dH = M - W H, dU = U W + (dA - U M) H^-1.

    Backward, with K = U^H gU - gH H and Z H + H Z = K - K^H:
    gA = U (Z + gH) + (gU - U U^H gU) H^-1. The last term is that of more rows than columns.

    Source: Higham, "Functions of Matrices" (2008), section 8.2.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return _decompose(A)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)

    @staticmethod
    def backward(ctx: Any, gU: Tensor, gH: Tensor, *_: Any) -> Tensor:
        U, H, S, Vh = ctx.saved_tensors
        P = U.mH @ gU
        K = P - gH @ H
        gA: Tensor = U @ (_sylvester.solve(H, K - K.mH, S, Vh.mH) + gH)
        if U.shape[-2] > U.shape[-1]:
            gA = gA + _times_inverse(gU - U @ P, H)
        return gA

    @staticmethod
    def jvp(ctx: Any, dA: Tensor) -> tuple[Tensor, Tensor, None, None]:
        U, H, S, Vh = ctx.saved_tensors
        M = U.mH @ dA
        W = _sylvester.solve(H, M - M.mH, S, Vh.mH)
        dH, dU = M - W @ H, U @ W
        if U.shape[-2] > U.shape[-1]:
            dU = dU + _times_inverse(dA - U @ M, H)
        return dU, (dH + dH.mH) / 2, None, None


_differentiable = _op.applied(_Polar)


@_op.outside_autocast
def _decompose(A: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """U, H, and S and V^H of H = V S V^H."""
    if _route.kernels_within("polar", A):
        X, S, Vh = _svd.decompose(A, False)
    else:
        X, S, Vh = torch.linalg.svd(A, full_matrices=False)
    H = Vh.mH @ (S.unsqueeze(-1) * Vh)
    return X @ Vh, (H + H.mH) / 2, S, Vh


def _times_inverse(X: Tensor, H: Tensor) -> Tensor:
    """X H^-1 for hermitian H."""
    quotient: Tensor = solve_ex(H, X.mH).result.mH
    return quotient


def _refuse(A: Any, out: Any) -> Any:
    """Raise torch's error, in the words of `qr` where torch has no `polar`."""
    function = getattr(torch.linalg, "polar", None)
    if function is not None:
        return _check.refuse(function, A, out=out)
    if isinstance(A, Tensor) and _check.matrix(A) and A.shape[-2] < A.shape[-1]:
        raise RuntimeError(
            "linalg.polar: input must have at least as many rows as columns, but got "
            f"{A.shape[-2]} by {A.shape[-1]} matrices"
        )
    return _check.refuse_as("linalg.polar", torch.linalg.qr, A, out=out)


@over_batches
def polar(A: Tensor, *, out: Any = None) -> Any:
    """Factor A = U H: orthonormal columns, and a hermitian positive semidefinite matrix.

    Same contract as `torch.linalg.polar`. Differences: it is there with every torch, though
    `use("torch")` raises an error before 2.15.

    Args:
        A: (*, m, n), m >= n, float32, float64, complex64 or complex128.
        out: two tensors to write to, U and H.

    Returns:
        U (*, m, n), of all matrices with orthonormal columns the nearest to A, and H (*, n, n),
        exactly hermitian. Differentiable where A has full rank, however close its singular values
        are.

    Raises:
        torch.linalg.LinAlgError: as `svd`.
        RuntimeError: more columns than rows, what is no matrix, other dtypes.

    A = X S V^H by `svd`, at its sizes; U = X V^H, H = V S V^H. ||A - U H|| <= c max(m, n) eps ||A||
    and ||I - U^H U|| <= c m eps, as for `svd`.

    Source: Higham, "Functions of Matrices" (2008), chapter 8.
    """
    if isinstance(A, Tensor) and A.dim() >= 2 and not _route.kernels("polar", A):
        return _route.torchs("polar")(A, out=out)
    _check.same_device("linalg_polar", A=A, out=out)
    if not (
        isinstance(A, Tensor)
        and _check.matrix(A)
        and A.shape[-2] >= A.shape[-1]
        and _check.out(out, (A,), A.dtype, A.dtype)
    ):
        return _refuse(A, out)
    U, H, *_ = _differentiable(A) if _op.tracked(A) else _decompose(A)
    if hasattr(torch.return_types, "linalg_polar"):
        return _out.named("linalg_polar", (U, H), out)
    return Polar(U, H) if out is None else Polar(_out.write(U, out[0]), _out.write(H, out[1]))
