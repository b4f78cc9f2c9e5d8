"""Matrices that the tests of several families share."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from mpslinalg import testing

SINGLES = (torch.float32, torch.complex64)
DOUBLES = (torch.float64, torch.complex128)
# Rows of a window of eig in tests: large matrices of few rows.
SMALL_WINDOW = 20


class Gallery(NamedTuple):
    """The families of testing.general as one batch."""

    A: Tensor
    info: NDArray[np.int64]


@functools.cache
def gallery(m: int, n: int, dtype: torch.dtype) -> Gallery:
    """All families of general matrices of one size."""
    matrices = list(testing.general(m, n, dtype, seed=1000 * m + n))
    return Gallery(torch.stack([M.A for M in matrices]), np.array([M.info for M in matrices]))


@functools.cache
def regular(n: int, dtype: torch.dtype) -> Tensor:
    """The families that have an inverse."""
    A, info = gallery(n, n, dtype)
    return A[torch.from_numpy(info == 0)]


@functools.cache
def full_rank(m: int, n: int, dtype: torch.dtype) -> Tensor:
    """The families without columns of zeros."""
    return torch.stack([M.A for M in testing.full_rank(m, n, dtype, seed=1000 * m + n)])


@functools.cache
def definite(n: int, dtype: torch.dtype) -> Gallery:
    """All families of positive definite matrices of one size, and those that just are not."""
    matrices = list(testing.positive_definite(n, dtype, seed=n))
    return Gallery(torch.stack([M.A for M in matrices]), np.array([M.info for M in matrices]))


@functools.cache
def hermitian(n: int, dtype: torch.dtype) -> Tensor:
    """All families of hermitian matrices of one size."""
    return torch.stack([M.A for M in testing.hermitian(n, dtype, seed=n)])


@functools.cache
def nonsymmetric(n: int, dtype: torch.dtype) -> Tensor:
    """All families of nonsymmetric eigenproblems of one size."""
    return torch.stack([M.A for M in testing.nonsymmetric(n, dtype, seed=n)])


def random_hermitian(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Random matrices, exactly hermitian."""
    X = testing.random(shape, dtype, seed)
    return (X + X.mH) / 2


def random_definite(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Well-conditioned positive definite matrices, exactly hermitian."""
    X = testing.random(shape, dtype, seed)
    A = X @ X.mH + shape[-1] * torch.eye(shape[-1], dtype=dtype)
    return (A + A.mH) / 2


def on(device: str, A: Tensor) -> Tensor:
    """A on the device of the tests."""
    if device == "mps" and A.dtype in DOUBLES:
        pytest.skip("mps has no float64")
    return A.to(device)


def all_on(device: str, values: Any) -> Any:
    """Arguments on the device of the tests, as they lie in memory and share it."""
    storages: dict[int, torch.UntypedStorage] = {}

    def moved(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(map(moved, value))
        if isinstance(value, dict):
            return {key: moved(x) for key, x in value.items()}
        if not isinstance(value, Tensor) or value.device.type == device:
            return value
        assert not value.is_conj()
        assert not value.is_neg()
        storage = value.untyped_storage()
        if storage._cdata not in storages:
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            storages[storage._cdata] = on(device, whole).untyped_storage()
        result = on(device, torch.empty(0, dtype=value.dtype))
        layout = value.storage_offset(), value.shape, value.stride()
        return result.set_(storages[storage._cdata], *layout).requires_grad_(value.requires_grad)

    return moved(values)


def name(parameter: Any) -> str:
    """The id of a parameter: dtypes without their module, sizes as 3x4."""
    if isinstance(parameter, tuple):
        return "x".join(map(name, parameter)) or "none"
    return str(parameter).removeprefix("torch.")


def _every_other_column(A: Tensor) -> Tensor:
    gaps = torch.full_like(A, torch.nan)
    return torch.stack((A, gaps), -1).flatten(-2)[..., ::2]


def _offset(A: Tensor) -> Tensor:
    return torch.cat((A.flatten()[:1], A.flatten()))[1:].view(A.shape)


# The same values, stored in another way.
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "column_major": lambda A: A.mT.contiguous().mT,
    "gaps": _every_other_column,
    "offset": _offset,
    "batch_inside": lambda A: A.movedim(0, -1).contiguous().movedim(-1, 0),
    "conj": lambda A: A.conj().resolve_conj().conj(),
    "neg": lambda A: torch._neg_view(-A),
}
