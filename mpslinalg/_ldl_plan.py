"""Launch plans of the LDL family: which kernels run for which sizes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mpslinalg import _op, _triangular_plan
from mpslinalg._cholesky_plan import lower
from mpslinalg._engines import empty, flattened, kernel, scalar, strides
from mpslinalg._lu_plan import permute
from mpslinalg._simdgroups import lanes, whole
from mpslinalg._triangular_plan import solve_into

# A row in each lane of a simdgroup.
SIMD = 32
# One threadgroup holds the whole matrix, 32 entries to each of its 512 threads.
GROUP = 128
# Rows up to which a simdgroup solves for a few columns in threadgroup memory.
COLUMN_ROWS = 128
FEW = 4
# Columns of a panel beyond that, of which one more may be needed to end with a 2 x 2 block: the
# products have an inner size of 32.
PANEL = 31
MAX_THREADS = 512
# Rows that a thread of a taller panel takes at once.
ROWS = 4
# Sides of a tile of the update.
TILE = 64


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a few words for `which`."""
    if name == "ldl_solve":
        if n <= COLUMN_ROWS:
            return "ldl_solve_simd" if n <= SIMD else "ldl_solve_columns"
        return f"ldl_unpack, {_triangular_plan.regime(name, dtype, batch, n, n, k)}, ldl_divide"
    if n <= GROUP:
        return "ldl_simd" if n <= SIMD else "ldl_group"
    return f"ldl_panel of {PANEL} columns, ldl_update"


def ldl_factor(A: Tensor, hermitian: bool) -> tuple[Tensor, Tensor, Tensor]:
    """LD, pivots and info of A = L D L^T, or A = L D L^H, from the lower triangle of A."""
    LD, pivots, info = _ldl_factor_fake(A, hermitian)
    if LD.numel() == 0:
        return LD, pivots, info.zero_()
    matrices = flattened(A)
    batch, n, _ = matrices.shape
    if n <= SIMD:
        width = lanes(n)
        kernel("ldl", "ldl_simd", scalar(A.dtype), width)(
            matrices, LD, pivots, info, n, batch, *strides(matrices), hermitian,
            threads=(whole(width * batch),), group=(32,),
        )  # fmt: skip
    elif n <= GROUP:
        blocks = -(-n // 32)
        threads = 32 * blocks**2
        kernel("ldl", "ldl_group", scalar(A.dtype), blocks)(
            matrices, LD, pivots, info, n, *strides(matrices), hermitian,
            threads=(threads * batch,), group=(threads,),
        )  # fmt: skip
    else:
        lower(flattened(LD), matrices, conjugated=False)
        _factor_blocked(flattened(LD), pivots, info, hermitian)
    return LD, pivots, info


def _factor_blocked(LD: Tensor, pivots: Tensor, info: Tensor, hermitian: bool) -> None:
    batch, n, _ = LD.shape
    L, W = (empty((batch, n, PANEL + 1), LD) for _ in range(2))
    following = empty((batch,), LD, torch.int32)
    update = kernel("ldl", "ldl_update", scalar(LD.dtype), PANEL + 1)
    for first in range(0, n, PANEL):
        last = min(first + PANEL, n)
        threads = min(whole(n - first), MAX_THREADS)
        rows = 1 if n - first <= threads else ROWS
        kernel("ldl", "ldl_panel", scalar(LD.dtype), PANEL + 1, rows)(
            LD, L, W, pivots, info, following, n, last, first == 0, hermitian,
            threads=(threads * batch,), group=(threads,),
        )  # fmt: skip
        tiles = -(-(n - last) // TILE)
        update(LD, L, W, n, last, threads=(256 * tiles, tiles, batch), group=(256, 1, 1))


def _ldl_factor_fake(A: Tensor, hermitian: bool) -> tuple[Tensor, Tensor, Tensor]:
    pivots = empty(A.shape[:-1], A, torch.int32, row_major=True)
    return empty(A.shape, A), pivots, empty(A.shape[:-2], A, torch.int32, row_major=True)


def ldl_solve(LD: Tensor, pivots: Tensor, B: Tensor, hermitian: bool) -> Tensor:
    """X with A X = B from the factors of A."""
    X = empty(B.shape, B)
    if X.numel() == 0:
        return X
    factors, right = flattened(LD), flattened(B)
    swaps = pivots.reshape(math.prod(pivots.shape[:-1]), pivots.shape[-1])
    swaps = swaps if swaps.stride(-1) == 1 else swaps.contiguous()
    batch, n, k = right.shape
    if n <= SIMD:
        width = lanes(n)
        teams = 32 // width
        kernel("ldl", "ldl_solve_simd", scalar(LD.dtype), width)(
            factors, swaps, right, X, n, k, batch, *strides(factors), swaps.stride(0),
            *strides(right), hermitian,
            threads=(32 * -(-k // width), -(-batch // teams)), group=(32, 1),
        )  # fmt: skip
    elif n <= COLUMN_ROWS:
        columns = 1 if k == 1 else FEW
        kernel("ldl", "ldl_solve_columns", scalar(LD.dtype), COLUMN_ROWS, columns)(
            factors, swaps, right, X, n, k, *strides(factors), swaps.stride(0), *strides(right),
            hermitian, threads=(32 * -(-k // columns), batch), group=(32, 1),
        )  # fmt: skip
    else:
        _solve_blocked(factors, swaps, right, flattened(X), hermitian)
    return X


def _solve_blocked(LD: Tensor, pivots: Tensor, B: Tensor, X: Tensor, hermitian: bool) -> None:
    batch, n, k = B.shape
    L, Y, Z = empty(LD.shape, LD), empty(B.shape, B), empty(B.shape, B)
    permutation, roles = (empty((batch, n), pivots, row_major=True) for _ in range(2))
    kernel("ldl", "ldl_unpack", scalar(LD.dtype))(
        LD, pivots, L, permutation, roles, n, *strides(LD), pivots.stride(0),
        threads=(n, batch), group=(64, 1),
    )  # fmt: skip
    permute(B, permutation, Y)
    solve_into(L, Y, Z, lower=True, unit=True, conjugated=False)
    kernel("ldl", "ldl_divide", scalar(LD.dtype))(
        LD, roles, Z, n, k, *strides(LD), hermitian, threads=(n, k, batch), group=(64, 1, 1)
    )
    solve_into(L.mT, Z, Y, lower=False, unit=True, conjugated=hermitian)
    permute(Y, permutation, X, inverse=True)


def _ldl_solve_fake(LD: Tensor, pivots: Tensor, B: Tensor, hermitian: bool) -> Tensor:
    return empty(B.shape, B)


ldl_factor_op = _op.define(
    "ldl_factor(Tensor A, bool hermitian) -> (Tensor, Tensor, Tensor)",
    ldl_factor,
    _ldl_factor_fake,
)
ldl_solve_op = _op.define(
    "ldl_solve(Tensor LD, Tensor pivots, Tensor B, bool hermitian) -> Tensor",
    ldl_solve,
    _ldl_solve_fake,
)
