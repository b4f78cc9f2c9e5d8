"""qr, square and tall, and geqrf, householder_product and ormqr."""

from typing import Any

import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg._bench import judging
from mpslinalg._bench.cases import (
    BATCHED,
    QUICK,
    SINGLE,
    Bars,
    Case,
    Family,
    Operation,
    Tensors,
    randn,
    rows,
)


def _qr(library: Any, A: Tensor) -> Any:
    return library.qr(A)


def _ratio(inputs: Tensors, result: Tensors) -> float:
    return judging.qr_ratio(inputs[0], *result)


def _reflectors(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    A = randn((batch, n, n), dtype, device)
    with LA.use("kernels"):
        return (A, *LA.geqrf(A))


def _householder_product(library: Any, A: Tensor, reflectors: Tensor, tau: Tensor) -> Any:
    return library.householder_product(reflectors, tau)


def _product_ratio(inputs: Tensors, result: Tensors) -> float:
    A, reflectors, _ = inputs
    return float(testing.qr_ratio(A, result[0], reflectors.triu()).max())


def _geqrf(library: Any, A: Tensor) -> Any:
    return (LA if library is LA else torch).geqrf(A)


def _geqrf_ratio(inputs: Tensors, result: Tensors) -> float:
    A, (factor, tau) = inputs[0], result
    Q = torch.linalg.householder_product(factor.cpu(), tau.cpu())
    return float(testing.qr_ratio(A, Q, factor.triu()).max())


def _sides(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    _, factor, tau = _reflectors(batch, n, dtype, device)
    return factor, tau, randn((batch, n, n), dtype, device, seed=1)


def _ormqr(library: Any, factor: Tensor, tau: Tensor, B: Tensor) -> Any:
    return (LA if library is LA else torch).ormqr(factor, tau, B)


def _ormqr_ratio(inputs: Tensors, result: Tensors) -> float:
    """||Q B - C|| / (n ||B|| eps), Q formed in double precision (LAPACK's xQRT03)."""
    wide = torch.complex128 if inputs[0].is_complex() else torch.float64
    factor, tau, B = (tensor.cpu().to(wide) for tensor in inputs)
    product = torch.linalg.householder_product(factor, tau) @ B
    error = torch.linalg.matrix_norm(result[0].cpu() - product, 1)
    allowed = B.shape[-1] * torch.finfo(inputs[0].dtype).eps / 2 * torch.linalg.matrix_norm(B, 1)
    return float((error / allowed).max())


_GEQRF = Operation("geqrf", rows(None), _geqrf, _geqrf_ratio)
_ORMQR = Operation("ormqr", _sides, _ormqr, _ormqr_ratio)
_HOUSEHOLDER_PRODUCT = Operation(
    "householder_product", _reflectors, _householder_product, _product_ratio
)
_QR = Operation("qr", rows(None), _qr, _ratio)
_TALL = {m: Operation(f"qr {m} rows", rows(m), _qr, _ratio) for m in (128, 1024, 4000, 65536)}

FAMILY = Family(
    operations=(_QR,),
    batched=BATCHED,
    single=SINGLE,
    quick=QUICK,
    stream=Case(_QR, batch=2**18, n=4, dtype=torch.float32),
    overhead=(Case(_QR, 1, 8, torch.float32), 5.0),
    # On a CPU both sides are torch.
    gain=(Case(_QR, 4096, 8, torch.float32), 0.8),
    bars=Bars(mean=20.0, single=0.8),
    extra=(
        (_TALL[128], 1024, 32),
        (_TALL[1024], 256, 64),
        (_TALL[4000], 1, 36),
        (_TALL[65536], 1, 8),
        *(
            (operation, *shape)
            for operation in (_GEQRF, _HOUSEHOLDER_PRODUCT, _ORMQR)
            for shape in ((4096, 32), (512, 128))
        ),
    ),
)
