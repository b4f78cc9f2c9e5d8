"""matrix_exp, pinv, polar and the spectral matrix_norm."""

from typing import Any

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg._bench import judging
from mpslinalg._bench.cases import Case, Family, Operation, Tensors, randn


def _moderate(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    """Of norm about 2."""
    return (randn((batch, n, n), dtype, device) / n**0.5,)


def _tall(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    """Twice as many rows as columns: of full rank, and well conditioned."""
    return (randn((batch, 2 * n, n), dtype, device),)


def _polar(library: Any, A: Tensor) -> Any:
    """torch has none: what its users write."""
    if library is LA:
        return LA.polar(A)
    U, S, Vh = library.svd(A, full_matrices=False)
    return U @ Vh, Vh.mH @ (S[..., None] * Vh)


def _on_host(*tensors: Tensor) -> list[Any]:
    return [judging.wide(x).numpy(force=True) for x in tensors]


def _norm(A: Any) -> Any:
    return np.linalg.norm(A, axis=(-2, -1))


def _error(found: Tensor, exact: Any, condition: Any = 1.0) -> float:
    """||X - X'|| / (n ||X'|| cond eps)."""
    (X,) = _on_host(found)
    allowed = X.shape[-1] * condition * torch.finfo(found.dtype).eps / 2
    return float((_norm(X - exact) / (allowed * _norm(exact))).max())


def _exp_ratio(inputs: Tensors, result: Tensors) -> float:
    return _error(result[0], np.stack([scipy.linalg.expm(a) for a in _on_host(*inputs)[0]]))


def _pinv_ratio(inputs: Tensors, result: Tensors) -> float:
    (A,) = _on_host(*inputs)
    return _error(result[0], np.linalg.pinv(A), np.linalg.cond(A))


def _polar_ratio(inputs: Tensors, result: Tensors) -> float:
    """The larger of ||A - U H|| / (n ||A|| eps) and ||I - U^H U|| / (n eps)."""
    A, U, H = _on_host(*inputs, *result)
    n = A.shape[-1]
    departure = _norm(U.conj().swapaxes(-2, -1) @ U - np.eye(n))
    worst = np.maximum(_norm(A - U @ H) / _norm(A), departure)
    return float(worst.max() / (n * torch.finfo(inputs[0].dtype).eps / 2))


def _norm_ratio(inputs: Tensors, result: Tensors) -> float:
    (A,), (found,) = _on_host(*inputs), _on_host(*result)
    exact = np.linalg.norm(A, 2, axis=(-2, -1))
    allowed = A.shape[-1] * torch.finfo(inputs[0].dtype).eps / 2 * exact
    return float((np.abs(found - exact) / allowed).max())


_EXP = Operation("matrix_exp", _moderate, lambda library, A: library.matrix_exp(A), _exp_ratio)

FAMILY = Family(
    operations=(
        _EXP,
        Operation("pinv", _tall, lambda library, A: library.pinv(A), _pinv_ratio),
        Operation("polar", _tall, _polar, _polar_ratio),
        Operation(
            "matrix_norm 2", _tall, lambda library, A: library.matrix_norm(A, 2), _norm_ratio
        ),
    ),
    # torch's svd of larger ones in large batches takes seconds: the family svd has some.
    batched=((16384, 4), (4096, 16), (1024, 32), (64, 128)),
    single=(512,),
    quick=((64, 4), (8, 16), (1, 24)),
    stream=Case(_EXP, batch=2**17, n=4, dtype=torch.float32),
    overhead=(Case(_EXP, 1, 8, torch.float32), 20.0),
    # On a CPU both sides are torch.
    gain=(Case(_EXP, 1024, 16, torch.float32), 0.8),
    extra=((_EXP, 4096, 64), (_EXP, 64, 256)),
    note="n counts columns; but for matrix_exp there are twice as many rows.",
)
