"""Test ratios of functions that LAPACK has not: errors over what backward stability allows."""

import functools
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def double(A: Any) -> NDArray[Any]:
    """A in double precision."""
    a = A.numpy(force=True) if isinstance(A, Tensor) else np.asarray(A)
    return np.asarray(a.astype(np.complex128 if np.iscomplexobj(a) else np.float64))


def norm(A: NDArray[Any]) -> NDArray[Any]:
    """1-norms."""
    return np.asarray(np.abs(A).sum(-2).max(-1))


def adjoint(A: NDArray[Any]) -> NDArray[Any]:
    return A.conj().swapaxes(-2, -1)


def product_ratio(A: Tensor, *factors: Any) -> NDArray[Any]:
    """||A - F G ...|| / (n ||A|| eps)."""
    a = double(A)
    scale = np.where(norm(a) == 0, 1, norm(a))[..., None, None]
    error = norm((a - functools.reduce(np.matmul, map(double, factors))) / scale)
    return np.asarray(error / (a.shape[-1] * torch.finfo(A.dtype).eps / 2))


def pinv_ratio(A: Tensor, X: Any) -> NDArray[Any]:
    """The largest of the four conditions of Penrose, each over max(m, n) eps and its norms."""
    a, x = double(A), double(X)
    eps = torch.finfo(A.dtype).eps / 2 * max(a.shape[-2:])
    ax, xa, condition = a @ x, x @ a, norm(a) * norm(x)
    errors = (
        norm(ax @ a - a) / (norm(a) * condition),
        norm(xa @ x - x) / (norm(x) * condition),
        norm(ax - adjoint(ax)) / condition,
        norm(xa - adjoint(xa)) / condition,
    )
    return np.asarray(np.max(errors, 0) / eps)


def polar_ratio(A: Tensor, U: Any, H: Any) -> NDArray[Any]:
    """The largest of ||A - U H|| / (m ||A|| eps), ||I - U^H U|| / (m eps), and what H has of
    negative eigenvalues, / (n ||A|| eps).
    """
    eps = torch.finfo(A.dtype).eps / 2
    a, u, h = double(A), double(U), double(H)
    m, n = a.shape[-2:]
    scale = np.where(norm(a) == 0, 1, norm(a))[..., None, None]
    a, h = a / scale, h / scale
    residual = norm(a - u @ h) / (m * eps)
    orthonormal = norm(np.eye(n) - adjoint(u) @ u) / (m * eps)
    negative = np.maximum(-np.linalg.eigvalsh(h)[..., 0], 0) / (n * eps)
    return np.asarray(np.max((residual, orthonormal, negative), 0))


def root_ratio(A: Tensor, X: Any) -> NDArray[Any]:
    """||A - X X|| / (n ||A|| eps), and what X has of negative eigenvalues, / (n ||X|| eps)."""
    eps = torch.finfo(A.dtype).eps / 2 * A.shape[-1]
    a, x = double(A), double(X)
    negative = np.maximum(-np.linalg.eigvalsh(x)[..., 0], 0)
    residual = norm(a - x @ x)
    return np.asarray(np.maximum(residual / (norm(a) * eps), negative / (norm(x) * eps)))
