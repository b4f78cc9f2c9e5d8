"""Launch plan of least squares by QR for full rank and no fewer rows than columns."""

from __future__ import annotations

import torch
from torch import Tensor

from mpslinalg import _op, _qr_plan
from mpslinalg._engines import empty, flattened, kernel, scalar
from mpslinalg._products import copy
from mpslinalg._simdgroups import whole
from mpslinalg._triangular_plan import solve_into


def regime(dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a few words for `which`."""
    name, columns = ("qr", n + k) if _at_once(dtype, n, k) else ("geqrf", n)
    panels = _qr_plan.regime(name, dtype, batch, m, columns, k)
    return f"{panels}, solve_triangular, lstsq_finish"


def _at_once(dtype: torch.dtype, n: int, k: int) -> bool:
    """Whether A and B together fit the kernels that make R of tall matrices without panels."""
    return n + k <= _qr_plan.widest(dtype)


def gels(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """X, the squared norms of B - A X, and info: where R of A has its first zero on the diagonal.

    The QR of [A B] that ends with A leaves R of A and, on its right, Q^H B: Q is never formed.
    """
    X, residuals, info = _gels_fake(A, B)
    if X.numel() == 0:
        return X, residuals.zero_(), info.zero_()
    left, right = flattened(A), flattened(B)
    batch, m, n = left.shape
    k = right.shape[-1]
    both = empty((batch, m, n + k), left)
    copy(both[:, :, :n], left)
    copy(both[:, :, n:], right)
    if _at_once(both.dtype, n, k):
        _, both = _qr_plan.qr(both, "r", False)
    else:
        _qr_plan.reduce(both, empty((batch, min(m, n + k)), both, row_major=True), n)
    solution = flattened(X)
    solve_into(both[:, :n, :n], both[:, :n, n:], solution, False, False, False)
    rows = both.shape[1]
    threads = min(whole(max(rows - n, 1)), 256)
    kernel("lstsq", "lstsq_finish", scalar(both.dtype))(
        both, solution, residuals, info, rows, n, k, both.stride(2), both.stride(0),
        threads=(threads * (k + 1), batch), group=(threads, 1),
    )  # fmt: skip
    return X, residuals, info


def _gels_fake(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    *batch, _, n = A.shape
    k = B.shape[-1]
    residuals = empty((*batch, k), A, A.dtype.to_real(), row_major=True)
    return empty((*batch, n, k), A), residuals, empty(batch, A, torch.int32, row_major=True)


gels_op = _op.define("gels(Tensor A, Tensor B) -> (Tensor, Tensor, Tensor)", gels, _gels_fake)
