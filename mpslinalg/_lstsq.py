"""Linear least squares by QR and by SVD."""

from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import pad

from mpslinalg import _check, _lstsq_plan, _op, _qr_pivoted_plan, _qr_plan, _route, _svd
from mpslinalg._engines import empty
from mpslinalg._products import product_op
from mpslinalg._qr import factor
from mpslinalg._repeat import public
from mpslinalg._triangular import solve_operator

BY_SVD = ("gelsd", "gelss")


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a few words for `which`."""
    if name == "gelsy":
        pivoted = _qr_pivoted_plan.regime(name, dtype, batch, m, n, k)
        rows = _qr_plan.regime("qr", dtype, batch, n, min(m, n), k)
        return f"gelsy: {pivoted}, then {rows}, solve_triangular, matmul"
    if name in BY_SVD:
        return f"{name}: {_svd.regime('svd', dtype, batch, m, n, k)}, matmul"
    if m >= n:
        return f"gels: {_lstsq_plan.regime(dtype, batch, m, n, k)}"
    panels = _qr_plan.regime("geqrf", dtype, batch, n, m, k)
    return f"gels: {panels}, solve_triangular, {_qr_plan.regime('ormqr', dtype, batch, n, m, k)}"


def operation(name: str, given: Mapping[str, Any]) -> str | None:
    """What routes know the driver by; None for those that only torch has."""
    A, driver = given["A"], given["driver"]
    if driver not in (None, "gels", "gelsy", *BY_SVD):
        return None
    if driver is None:
        driver = "gels" if getattr(A, "is_cuda", False) else "gelsy"
    return "lstsq" if driver == "gels" else str(driver)


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


@_op.outside_autocast
def _solve_by_svd(A: Tensor, B: Tensor, rcond: float) -> tuple[Tensor, Tensor, Tensor]:
    """The X of smallest norm, the rank of A, and its singular values."""
    U, S, Vh = _svd.decompose(A, False)
    kept = rcond * S[..., :1] < S
    C = torch.where(kept.unsqueeze(-1), (U.mH @ B) / S.unsqueeze(-1), 0)
    return Vh.mH @ C, kept.sum(-1), S


def _solve_by_qr(A: Tensor, B: Tensor, rcond: float) -> tuple[Tensor, Tensor, Tensor]:
    """The X of smallest norm, the rank of A, and nothing, by a complete orthogonal factorisation.

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
    return X.scatter(-2, order, X), (~beyond).sum(-1), diagonal.new_empty(0)


def _solve_deficient(
    A: Tensor, B: Tensor, rcond: float, by_svd: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return (_solve_by_svd if by_svd else _solve_by_qr)(A, B, rcond)


class _MinimumNorm(Function):
    """X = A^+ B for the pseudo-inverse A^+ of an A that keeps its rank.

    With E = B - A X and N = A^+H X: dX = A^+ (dB - dA X + A^+H dA^H E - A dA^H N) + dA^H N, and
    backward gB = A^+H gX, gA = E (A^+ gB)^H + N (gX - A^+ A gX)^H - gB X^H.

    Source: Golub, Pereyra, "The differentiation of pseudo-inverses and nonlinear least squares
    problems whose variables separate" (1973).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor, B: Tensor, rcond: float, by_svd: bool) -> tuple[Tensor, Tensor, Tensor]:
        return _solve_deficient(A, B, rcond, by_svd)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        A, B, *ctx.how = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(A, B, output[0])
        ctx.save_for_forward(A, B, output[0])

    @staticmethod
    def backward(ctx: Any, gX: Tensor, *_: Any) -> tuple[Tensor, Tensor, None, None]:
        A, B, X = ctx.saved_tensors
        gB, N = _halves(_minimum_norm(A.mH, torch.cat((gX, X), -1), *ctx.how)[0])
        U, V = _halves(_minimum_norm(A, torch.cat((gB, A @ gX), -1), *ctx.how)[0])
        return (B - A @ X) @ U.mH + N @ (gX - V).mH - gB @ X.mH, gB, None, None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, dB: Tensor, *_: Any) -> tuple[Tensor, None, None]:
        A, B, X = ctx.saved_tensors
        D = dA.mH @ (B - A @ X)
        N, F = _halves(_minimum_norm(A.mH, torch.cat((X, D), -1), *ctx.how)[0])
        G = dA.mH @ N
        return _minimum_norm(A, dB - dA @ X + F - A @ G, *ctx.how)[0] + G, None, None


_differentiable_minimum_norm = _op.applied(_MinimumNorm)


def _minimum_norm(
    A: Tensor, B: Tensor, rcond: float, by_svd: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The X of smallest norm, differentiable, the rank, and by SVD the singular values."""
    if not _op.tracked(A, B):
        return _solve_deficient(A, B, rcond, by_svd)
    X, rank, S = _differentiable_minimum_norm(A, B, rcond, by_svd)
    return X, rank, S


def _halves(A: Tensor) -> tuple[Tensor, Tensor]:
    left, right = A.tensor_split(2, -1)
    return left, right


def _squares(A: Tensor) -> Tensor:
    return (A * A.conj()).real.sum(-2)


@public
def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """Solve a least squares problem: X that minimises ||A X - B||, of all X the smallest.

    Same contract as `torch.linalg.lstsq`. Differences: all drivers run on CUDA too. X lies in
    memory by columns, as torch's, but without gaps.

    Args:
        A: (*, m, n), float32, float64, complex64 or complex128; of full rank with gels.
        B: (*, m, k), or (*, m) for vectors; batches broadcast.
        rcond: with gelsy rows of R with a diagonal of at most rcond times the first one count as
            zero, with gelsd and gelss singular values of at most rcond times the largest one; eps
            max(m, n) by default, and eps instead of what is below 0, with gelsd instead of what is
            not between 0 and 1. Not used by gels.
        driver: "gels", "gelsy", "gelsd" or "gelss"; by default as in torch gels on CUDA, gelsy
            elsewhere, on an Apple GPU too.

    Returns:
        solution, (*, n, k) or (*, n); residuals (*, k), the squared norms of the columns of
        B - A X, where m > n with gels, and with gelsd and gelss if A has full rank (in the whole
        batch, as far as it may be looked at), else empty; rank, int64 of the batch of A, empty with
        gels; singular_values, empty but with gelsd and gelss, which are the same here. The first
        two are differentiable in A and B, but with gels as A^+ B for an A that keeps its rank.

    Raises:
        torch.linalg.LinAlgError: with gels R has a zero on its diagonal; names the first such
            matrix. Reads the device once to know; gelsy never waits. With gelsd and gelss as
            `svd`, and where m > n ranks are read too.
        RuntimeError: shapes that do not fit, mixed dtypes, other dtypes, an unknown driver.

    gels: A = Q R, or A^H = Q R where m < n. gelsy: A P = Q R with column pivoting, and R[:rank]^H =
    Z T. gelsd, gelss: A = U S V^H. No normal equations. Sizes: see `qr`, `qr_pivoted` and `svd`.
    ||A^H (B - A X)|| <= c max(m, n) eps ||A|| ||B||: LAPACK's test ratio stays below 30.

    Source: Golub, Van Loan, "Matrix Computations", sections 5.3 to 5.6; LAPACK's gels, gelsy
    and gelss.
    """
    runs = operation("lstsq", {"A": A, "driver": driver})
    if runs is None or not _route.kernels(runs, A):
        return torch.linalg.lstsq(A, B, rcond, driver=driver)
    _check.same_device("linalg_lstsq", input=A, other=B)
    if not (_check.matrix(A) and accepts(A, B) and _is_number(rcond)):
        return _check.refuse(torch.linalg.lstsq, A, B, rcond, driver=driver)
    vector = _is_vector(A, B)
    right = B.unsqueeze(-1) if vector else B
    X, *others = _gels(A, right) if runs == "lstsq" else _deficient(A, right, rcond, runs)
    X = X.mT.contiguous().mT
    results = (X.squeeze(-1) if vector else X, *others)
    return torch.return_types.linalg_lstsq(results)  # type: ignore[attr-defined]


def _gels(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Solution, residuals, no rank and no singular values, as torch returns them."""
    A, B = _op.broadcast((A, 2), (B, 2))
    m, n = A.shape[-2:]
    if min(m, n) == 0:
        X = A.mH @ B
        residuals = _squares(X[..., :0, :])
    else:
        X, residuals, info = _solve(A, B)
        _check.errors(info, "torch.linalg.lstsq", is_matrix=A.dim() == 2)
    none = empty((0,), residuals)
    return X, residuals if m > n else none, empty((0,), none, torch.int64), none


def _deficient(
    A: Tensor, B: Tensor, rcond: float | None, driver: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Solution, residuals, rank and singular values, as torch returns them."""
    batch, by_svd = A.shape[:-2], driver in BY_SVD
    A, B = _op.broadcast((A, 2), (B, 2))
    m, n = A.shape[-2:]
    if A.numel() == 0:
        X, rank = A.mH @ B, torch.zeros(A.shape[:-2], dtype=torch.int64, device=A.device)
        S = A.real.new_empty((*A.shape[:-2], min(m, n)) if by_svd else 0)
    else:
        X, rank, S = _minimum_norm(A, B, _rcond(A, rcond, driver), by_svd)
    full = m > n and by_svd and not (_op.visible(rank) and bool((rank < n).any()))
    with _op.without_autocast(A):
        residuals = _squares(B - A @ X) if full else A.real.new_empty(0)
    for axis, size in enumerate(batch):
        # A was expanded here.
        rank = rank.narrow(axis, 0, size)
        S = S.narrow(axis, 0, size) if by_svd else S
    return X, residuals, rank, S


def _rcond(A: Tensor, rcond: float | None, driver: str) -> float:
    """The bar of LAPACK's driver; what is no number stays that."""
    eps = torch.finfo(A.dtype).eps
    if rcond is None:
        return eps * max(A.shape[-2:])
    given = float(rcond)
    if driver == "gelsy":
        return 0.0 if given < 0 else given
    return eps / 2 if given < 0 or (driver == "gelsd" and (given == 0 or given >= 1)) else given


def _is_number(rcond: Any) -> bool:
    scalar = isinstance(rcond, Tensor) and rcond.numel() == 1 and not rcond.is_complex()
    return rcond is None or isinstance(rcond, Real) or scalar


def _is_vector(A: Tensor, B: Tensor) -> bool:
    return B.dim() > 0 and B.shape == A.shape[:-1]


def accepts(A: Tensor, B: Any) -> bool:
    """Whether A X = B, of a matrix A, has a right-hand side that fits."""
    return isinstance(B, Tensor) and B.dtype == A.dtype and (_is_vector(A, B) or _fits(A, B))


def _fits(A: Tensor, B: Tensor) -> bool:
    same_rows = B.dim() == A.dim() and B.shape[-2] == A.shape[-2]
    return same_rows and _check.broadcastable(A.shape[:-2], B.shape[:-2])
