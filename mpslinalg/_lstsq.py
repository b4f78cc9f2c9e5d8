"""Linear least squares by QR."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from mpslinalg import _check, _op, _qr_plan, _route
from mpslinalg._qr import factor
from mpslinalg._triangular import solve_operator

DRIVERS = ("gels", "gelsy", "gelsd", "gelss")


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a few words for `which`."""
    if _side_by_side(m, n, k):
        return f"gels: {_qr_plan.regime('qr', dtype, batch, m, n + k, k)}, solve_triangular"
    panels = _qr_plan.regime("geqrf", dtype, batch, max(m, n), min(m, n), k)
    return f"gels: {panels}, qr_apply, solve_triangular"


def _side_by_side(m: int, n: int, k: int) -> bool:
    """Whether A and B together fit the kernels that factor tall matrices at once."""
    return m >= n and n + k <= _qr_plan.WIDTH


def _solve(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """X, the squared norms of B - A X, and the diagonal of R."""
    m, n = A.shape[-2:]
    if _op.tracked(A, B):
        return _solve_differentiably(A, B)
    if _side_by_side(m, n, B.shape[-1]):
        # R of [A B] is R of A, and Q^H B on its right: no reflectors, no Q.
        _, R = _qr_plan.qr_op(torch.cat((A, B), -1), "r")
        X = solve_operator(R[..., :n, :n], R[..., :n, n:], True, False, 0)
        return X, _squares(R[..., n:, n:]), R.diagonal(dim1=-2, dim2=-1)[..., :n]
    a, tau = _qr_plan.geqrf_op(A if m >= n else A.mH.resolve_conj())
    R = a[..., : min(m, n), :]
    if m >= n:
        C = _qr_plan.ormqr_op(a, tau, B, True, True)
        X = solve_operator(R, C[..., :n, :], True, False, 0)
        below = C[..., n:, :]
    else:
        Y = solve_operator(R, B, True, False, 2)
        X = _qr_plan.ormqr_op(a, tau, pad(Y, (0, 0, 0, n - m)), True, False)
        below = B[..., :0, :]
    return X, _squares(below), R.diagonal(dim1=-2, dim2=-1)


def _solve_differentiably(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if A.shape[-2] >= A.shape[-1]:
        Q, R = factor(A, "reduced")
        X = solve_operator(R, Q.mH @ B, True, False, 0)
    else:
        Q, R = factor(A.mH, "reduced")
        X = Q @ solve_operator(R, B, True, False, 2)
    return X, _squares(B - A @ X), R.detach().diagonal(dim1=-2, dim2=-1)


def _squares(A: Tensor) -> Tensor:
    return (A * A.conj()).real.sum(-2)


def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """Solve a least squares problem: X that minimises ||A X - B||, of all X the smallest.

    Same contract as `torch.linalg.lstsq`. Differences: the kernels are those of driver gels, which
    is also their default on the CPU; gelsy, gelsd and gelss are torch's, where torch has them. X
    lies in memory without gaps.

    Args:
        A: (*, m, n) of full rank, float32, float64, complex64 or complex128.
        B: (*, m, k), or (*, m) for vectors; batches broadcast.
        rcond: not used by gels.
        driver: "gels", "gelsy", "gelsd" or "gelss".

    Returns:
        solution, (*, n, k) or (*, n); residuals (*, k), the squared norms of the columns of
        B - A X, empty unless m > n; rank and singular_values are empty. Differentiable in A and B.

    Raises:
        torch.linalg.LinAlgError: R has a zero on its diagonal; names the first such matrix. Reads
            the device once to know.
        RuntimeError: shapes that do not fit, mixed dtypes, other dtypes, an unknown driver.

    A = Q R, or A^H = Q R where m < n: no normal equations. Sizes: see `qr`.
    ||A^H (B - A X)|| <= c max(m, n) eps ||A|| ||B||: LAPACK's test ratio stays below 30.

    Source: Golub, Van Loan, "Matrix Computations", sections 5.3 and 5.6; LAPACK's gels.
    """
    if not _route.kernels("lstsq", A, B) or driver in DRIVERS[1:]:
        return torch.linalg.lstsq(A, B, rcond, driver=driver)
    _check.same_device("linalg_lstsq", input=A, other=B)
    vector = isinstance(B, Tensor) and B.dim() > 0 and B.shape == A.shape[:-1]
    if not (
        _check.matrix(A)
        and isinstance(B, Tensor)
        and B.dtype == A.dtype
        and driver in (None, "gels")
        and (vector or _fits(A, B))
    ):
        return _check.refuse(torch.linalg.lstsq, A, B, rcond, driver=driver)
    A, right = _op.broadcast((A, 2), (B.unsqueeze(-1) if vector else B, 2))
    m, n = A.shape[-2:]
    if min(m, n) == 0:
        X = A.new_zeros((*A.shape[:-2], n, right.shape[-1]))
        residuals = _squares(X[..., :0, :])
    else:
        X, residuals, diagonal = _solve(A, right)
        zero = diagonal == 0
        info = torch.where(zero.any(-1), zero.int().argmax(-1) + 1, 0).int()
        _check.errors(info, "torch.linalg.lstsq", is_matrix=A.dim() == 2)
    none = residuals.new_empty(0)
    results = (
        X.squeeze(-1) if vector else X,
        residuals if m > n else none,
        none.new_empty(0, dtype=torch.int64),
        none.clone(),
    )
    return torch.return_types.linalg_lstsq(results)  # type: ignore[attr-defined]


def _fits(A: Tensor, B: Tensor) -> bool:
    same_rows = B.dim() == A.dim() and B.shape[-2] == A.shape[-2]
    return same_rows and _check.broadcastable(A.shape[:-2], B.shape[:-2])
