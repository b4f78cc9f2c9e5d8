"""Linear least squares by QR."""

from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import pad

from mpslinalg import _check, _lstsq_plan, _op, _qr_pivoted_plan, _qr_plan, _route
from mpslinalg._engines import empty
from mpslinalg._products import product_op
from mpslinalg._qr import factor
from mpslinalg._repeat import public
from mpslinalg._triangular import solve_operator


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a few words for `which`."""
    if name == "gelsy":
        pivoted = _qr_pivoted_plan.regime(name, dtype, batch, m, n, k)
        rows = _qr_plan.regime("qr", dtype, batch, n, min(m, n), k)
        return f"gelsy: {pivoted}, then {rows}, solve_triangular, matmul"
    if m >= n:
        return f"gels: {_lstsq_plan.regime(dtype, batch, m, n, k)}"
    panels = _qr_plan.regime("geqrf", dtype, batch, n, m, k)
    return f"gels: {panels}, solve_triangular, {_qr_plan.regime('ormqr', dtype, batch, n, m, k)}"


def operation(A: Any, driver: str | None) -> str | None:
    """What routes know the driver by; None for those that only torch has."""
    if driver not in (None, "gels", "gelsy"):
        return None
    if driver == "gelsy" or (driver is None and not getattr(A, "is_cuda", False)):
        return "gelsy"
    return "lstsq"


def _solve(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """X, the squared norms of B - A X, and info."""
    m, n = A.shape[-2:]
    if _op.tracked(A, B):
        return _solve_differentiably(A, B)
    if m >= n:
        X, residuals, info = _lstsq_plan.gels_op(A, B)
        return X, residuals, info
    a, tau = _qr_plan.geqrf_op(A.mH.resolve_conj())
    R = a[..., :m, :]
    Y = solve_operator(R, B, True, False, 2)
    X, info = _finish(_qr_plan.ormqr_op(a, tau, pad(Y, (0, 0, 0, n - m)), True, False), R)
    return X, _squares(B[..., :0, :]), info


def _finish(X: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
    """X, and info: where the diagonal of R has its first zero, counted from 1, or 0.

    A matrix of zeros has the solution zero, as in LAPACK; one whose R overflowed has none.
    """
    R = R.detach()
    diagonal = R.diagonal(dim1=-2, dim2=-1)
    n = diagonal.shape[-1]
    count = torch.arange(1, n + 1, dtype=torch.int32, device=R.device)
    place = torch.where(diagonal == 0, count, n + 1).amin(-1)
    empty_matrix = (R == 0).flatten(-2).all(-1)
    info = torch.where(empty_matrix | (place > n), 0, place)
    lost = ~diagonal.isfinite().all(-1)
    X = X.masked_fill(empty_matrix[..., None, None], 0)
    return X.masked_fill(lost[..., None, None], torch.nan), info.int()


def _solve_differentiably(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    with _op.without_autocast(A):
        if A.shape[-2] >= A.shape[-1]:
            Q, R = factor(A, "reduced")
            X = solve_operator(R, Q.mH @ B, True, False, 0)
        else:
            Q, R = factor(A.mH, "reduced")
            X = Q @ solve_operator(R, B, True, False, 2)
        X, info = _finish(X, R)
        return X, _squares(B - A @ X), info


def _solve_deficient(A: Tensor, B: Tensor, rcond: float) -> tuple[Tensor, Tensor]:
    """The X of smallest norm, and the rank of A, by a complete orthogonal factorisation.

    A P = Q R and R[:rank]^H = Z T, so X = P Z T^-H (Q^H B)[:rank]. Ranks differ in a batch: rows
    from the rank on are zero, and T has ones there.
    """
    Q, R, P = _qr_pivoted_plan.qr_pivoted_op(A, "reduced")
    diagonal = R.diagonal(dim1=-2, dim2=-1).abs()
    first = diagonal[..., :1]
    # The first row counts unless it is zero, the others by LAPACK's comparison, which a NaN fails.
    # What is not finite is kept, so that it spreads.
    dropped = ~(diagonal > rcond * first)
    dropped = torch.cat((first == 0, dropped[..., 1:]), -1) & diagonal.isfinite() & first.isfinite()
    beyond = dropped.cumsum(-1) > 0
    rows = beyond.unsqueeze(-1)
    Z, T = _qr_plan.qr_op(R.masked_fill(rows, 0).mH, "reduced")
    T = T + torch.diag_embed(beyond).to(T.dtype)
    C = product_op(Q.mH, B).masked_fill(rows, 0)
    X = product_op(Z, solve_operator(T, C, True, False, 2))
    order = P.long().unsqueeze(-1).expand(X.shape)
    return X.scatter(-2, order, X), (~beyond).sum(-1)


class _MinimumNorm(Function):
    """X = A^+ B for the pseudo-inverse A^+ of an A that keeps its rank.

    With E = B - A X and N = A^+H X: dX = A^+ (dB - dA X + A^+H dA^H E - A dA^H N) + dA^H N, and
    backward gB = A^+H gX, gA = E (A^+ gB)^H + N (gX - A^+ A gX)^H - gB X^H.

    Source: Golub, Pereyra, "The differentiation of pseudo-inverses and nonlinear least squares
    problems whose variables separate" (1973).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor, B: Tensor, rcond: float) -> tuple[Tensor, Tensor]:
        return _solve_deficient(A, B, rcond)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        A, B, ctx.rcond = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(A, B, output[0])
        ctx.save_for_forward(A, B, output[0])

    @staticmethod
    def backward(ctx: Any, gX: Tensor, _: Any) -> tuple[Tensor, Tensor, None]:
        A, B, X = ctx.saved_tensors
        gB, N = _halves(_minimum_norm(A.mH, torch.cat((gX, X), -1), ctx.rcond)[0])
        U, V = _halves(_minimum_norm(A, torch.cat((gB, A @ gX), -1), ctx.rcond)[0])
        return (B - A @ X) @ U.mH + N @ (gX - V).mH - gB @ X.mH, gB, None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, dB: Tensor, _: None) -> tuple[Tensor, None]:
        A, B, X = ctx.saved_tensors
        D = dA.mH @ (B - A @ X)
        N, F = _halves(_minimum_norm(A.mH, torch.cat((X, D), -1), ctx.rcond)[0])
        G = dA.mH @ N
        return _minimum_norm(A, dB - dA @ X + F - A @ G, ctx.rcond)[0] + G, None


_differentiable_minimum_norm = _op.applied(_MinimumNorm)


def _minimum_norm(A: Tensor, B: Tensor, rcond: float) -> tuple[Tensor, Tensor]:
    """The X of smallest norm, differentiable, and the rank."""
    if not _op.tracked(A, B):
        return _solve_deficient(A, B, rcond)
    X, rank = _differentiable_minimum_norm(A, B, rcond)
    return X, rank


def _halves(A: Tensor) -> tuple[Tensor, Tensor]:
    left, right = A.tensor_split(2, -1)
    return left, right


def _squares(A: Tensor) -> Tensor:
    return (A * A.conj()).real.sum(-2)


@public
def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """Solve a least squares problem: X that minimises ||A X - B||, of all X the smallest.

    Same contract as `torch.linalg.lstsq`. Differences: gelsy runs on CUDA too; gelsd and gelss are
    torch's, where torch has them. X lies in memory without gaps.

    Args:
        A: (*, m, n), float32, float64, complex64 or complex128; of full rank with gels.
        B: (*, m, k), or (*, m) for vectors; batches broadcast.
        rcond: with gelsy rows of R with a diagonal of at most rcond times the first one count as
            zero; eps max(m, n) by default. Not used by gels.
        driver: "gels", "gelsy", "gelsd" or "gelss"; by default as in torch gels on CUDA, gelsy
            elsewhere, on an Apple GPU too.

    Returns:
        solution, (*, n, k) or (*, n); residuals (*, k), the squared norms of the columns of
        B - A X, with gels where m > n, else empty; rank, int64 of the batch of A, empty with gels;
        singular_values, empty. Differentiable in A and B; with gelsy as A^+ B for an A that keeps
        its rank.

    Raises:
        torch.linalg.LinAlgError: with gels R has a zero on its diagonal; names the first such
            matrix. Reads the device once to know; gelsy never waits.
        RuntimeError: shapes that do not fit, mixed dtypes, other dtypes, an unknown driver.

    gels: A = Q R, or A^H = Q R where m < n. gelsy: A P = Q R with column pivoting, and R[:rank]^H =
    Z T. No normal equations. Sizes: see `qr` and `qr_pivoted`.
    ||A^H (B - A X)|| <= c max(m, n) eps ||A|| ||B||: LAPACK's test ratio stays below 30.

    Source: Golub, Van Loan, "Matrix Computations", sections 5.3 to 5.6; LAPACK's gels and gelsy.
    """
    runs = operation(A, driver)
    if runs is None or not _route.kernels(runs, A):
        return torch.linalg.lstsq(A, B, rcond, driver=driver)
    _check.same_device("linalg_lstsq", input=A, other=B)
    vector = isinstance(B, Tensor) and B.dim() > 0 and B.shape == A.shape[:-1]
    if not (
        _check.matrix(A)
        and isinstance(B, Tensor)
        and B.dtype == A.dtype
        and _is_number(rcond)
        and (vector or _fits(A, B))
    ):
        return _check.refuse(torch.linalg.lstsq, A, B, rcond, driver=driver)
    right = B.unsqueeze(-1) if vector else B
    X, residuals, rank = (_gels if runs == "lstsq" else _gelsy)(A, right, rcond)
    none = empty((0,), residuals)
    results = (X.squeeze(-1) if vector else X, residuals, rank, none)
    return torch.return_types.linalg_lstsq(results)  # type: ignore[attr-defined]


def _gels(A: Tensor, B: Tensor, rcond: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """Solution, residuals and rank as torch returns them."""
    A, B = _op.broadcast((A, 2), (B, 2))
    m, n = A.shape[-2:]
    if min(m, n) == 0:
        X = A.mH @ B
        residuals = _squares(X[..., :0, :])
    else:
        X, residuals, info = _solve(A, B)
        _check.errors(info, "torch.linalg.lstsq", is_matrix=A.dim() == 2)
    none = empty((0,), residuals)
    return X, residuals if m > n else none, empty((0,), none, torch.int64)


def _gelsy(A: Tensor, B: Tensor, rcond: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """Solution, no residuals, and rank, as torch returns them."""
    batch = A.shape[:-2]
    A, B = _op.broadcast((A, 2), (B, 2))
    m, n = A.shape[-2:]
    none = A.real.new_empty(0)
    if A.numel() == 0:
        return A.mH @ B, none, none.new_zeros(batch, dtype=torch.int64)
    eps = torch.finfo(A.dtype).eps
    if rcond is None:
        rcond = eps * max(m, n)
    X, rank = _minimum_norm(A, B, max(float(rcond), 0.0) if rcond == rcond else float(rcond))
    for axis, size in enumerate(batch):
        # A was expanded here.
        rank = rank.narrow(axis, 0, size)
    return X, none, rank


def _is_number(rcond: Any) -> bool:
    scalar = isinstance(rcond, Tensor) and rcond.numel() == 1 and not rcond.is_complex()
    return rcond is None or isinstance(rcond, Real) or scalar


def _fits(A: Tensor, B: Tensor) -> bool:
    same_rows = B.dim() == A.dim() and B.shape[-2] == A.shape[-2]
    return same_rows and _check.broadcastable(A.shape[:-2], B.shape[:-2])
