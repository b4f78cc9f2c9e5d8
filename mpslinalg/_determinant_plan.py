"""Launch plans of the determinant where no factors are kept."""

from __future__ import annotations

import torch
from torch import Tensor

from mpslinalg import _lu_plan, _op
from mpslinalg._engines import empty, flattened, kernel, scalar, strides
from mpslinalg._lu_plan import SIMD, TINY
from mpslinalg._simdgroups import lanes, whole


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a word for `which`."""
    if n <= SIMD:
        return f"{name}_tiny" if n <= TINY else f"{name}_simd"
    return f"{_lu_plan.regime('lu_factor', dtype, batch, m, n, k)}, lu_det_simd"


def det(A: Tensor) -> Tensor:
    """The determinants of square matrices."""
    if A.numel() == 0 or A.shape[-1] > SIMD:
        return _lu_plan.lu_det(*_lu_plan.lu_factor(A, True)[:2])[0]
    result = _det_fake(A)
    _launch("det", A, result)
    return result


def slogdet(A: Tensor) -> tuple[Tensor, Tensor]:
    """Sign and logarithm of the absolute value."""
    if A.numel() == 0 or A.shape[-1] > SIMD:
        return _lu_plan.lu_det(*_lu_plan.lu_factor(A, True)[:2])[1:]
    sign, logabsdet = _slogdet_fake(A)
    _launch("slogdet", A, sign, logabsdet)
    return sign, logabsdet


def _launch(name: str, A: Tensor, *results: Tensor) -> None:
    matrices = flattened(A)
    batch, n, _ = matrices.shape
    if n <= TINY:
        kernel("determinant", f"{name}_tiny", scalar(A.dtype), n)(
            matrices, *results, *strides(matrices), threads=(batch,), group=(64,)
        )
    else:
        width = lanes(n, 8)
        kernel("determinant", f"{name}_simd", scalar(A.dtype), width)(
            matrices, *results, n, batch, *strides(matrices),
            threads=(whole(width * batch),), group=(32,),
        )  # fmt: skip


def _det_fake(A: Tensor) -> Tensor:
    return empty(A.shape[:-2], A, row_major=True)


def _slogdet_fake(A: Tensor) -> tuple[Tensor, Tensor]:
    return _det_fake(A), empty(A.shape[:-2], A, A.dtype.to_real(), row_major=True)


det_op = _op.define("det(Tensor A) -> Tensor", det, _det_fake)
slogdet_op = _op.define("slogdet(Tensor A) -> (Tensor, Tensor)", slogdet, _slogdet_fake)
