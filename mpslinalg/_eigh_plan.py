"""Launch plans of the symmetric and Hermitian eigenproblem: which kernels run for which sizes."""

from __future__ import annotations

import torch
from torch import Tensor

from mpslinalg import _divide_plan, _op, _qr_plan, _tridiagonal_plan
from mpslinalg._engines import empty, flattened, kernel, scalar, strides
from mpslinalg._simdgroups import lanes, whole

# A column in each lane of a simdgroup. More rows are reduced to tridiagonal form.
SIMD_ROWS = 32
# Jacobi needs fewer instructions than QL up to here: 4100 beside some 6000 a matrix of 8 rows, by
# the time of 65536 on an H200; at 16 rows 45000 beside 20000.
JACOBI_ROWS = 8


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a few words for `which`."""
    if n <= SIMD_ROWS:
        return "eigh_simd" if n <= JACOBI_ROWS else "eigh_ql"
    form = _tridiagonal_plan.regime(n)
    if name == "eigvalsh":
        return f"{form}, tridiagonal_values"
    return f"{form}, divide, {_qr_plan.regime('ormqr', dtype, batch, n - 1, n - 1, n)}"


def eigh(A: Tensor, lower: bool, vectors: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues, eigenvectors (empty if not wanted) and info, n - 1 where there are none."""
    values, V, info = _eigh_fake(A, lower, vectors)
    if A.numel() == 0:
        return values, V, info.fill_(0)
    matrices = flattened(A)
    if matrices.shape[-1] <= SIMD_ROWS:
        _simd(matrices, lower, values, V if vectors else None, info)
    else:
        _reduced(matrices, lower, values, flattened(V) if vectors else None, info)
    return values, V, info


def _simd(matrices: Tensor, lower: bool, values: Tensor, V: Tensor | None, info: Tensor) -> None:
    batch, n, _ = matrices.shape
    outputs = (values, empty((1,), matrices) if V is None else V, info)
    layout, vectors, width = strides(matrices), V is not None, lanes(n)
    if n <= JACOBI_ROWS:
        kernel("eigh", "eigh_simd", scalar(matrices.dtype), width)(
            matrices, *outputs, n, batch, *layout, lower, vectors,
            threads=(whole(width * batch),), group=(32,),
        )  # fmt: skip
    else:
        kernel("eigh_ql", "eigh_ql", scalar(matrices.dtype), width)(
            matrices, *outputs, n, *layout, lower, vectors, threads=(32 * batch,), group=(32,)
        )


def _reduced(matrices: Tensor, lower: bool, values: Tensor, V: Tensor | None, info: Tensor) -> None:
    form = _tridiagonal_plan.reduce(matrices, lower, info)
    if V is None:
        found = _tridiagonal_plan.values(form.d, form.e)
        _tridiagonal_plan.finish(form, found, None, values, None)
        return
    found, Z = _divide_plan.tridiagonal(form.d, form.e)
    _tridiagonal_plan.finish(form, found, Z, values, V)
    _qr_plan.apply_reflectors(form.reflectors, form.tau, V[:, 1:], False, False)


def _eigh_fake(A: Tensor, lower: bool, vectors: bool) -> tuple[Tensor, Tensor, Tensor]:
    values = empty(A.shape[:-1], A, A.dtype.to_real(), row_major=True)
    V = empty(A.shape if vectors else (0,), A)
    return values, V, empty(A.shape[:-2], A, torch.int32, row_major=True)


eigh_op = _op.define(
    "eigh(Tensor A, bool lower, bool vectors) -> (Tensor, Tensor, Tensor)", eigh, _eigh_fake
)
