"""The launch plan of the exponential on the checked engine, at every boundary of its regimes."""

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

from mpslinalg import _matrix_exp_plan, testing
from tests.inputs import SINGLES, VIEWS, name, on
from tests.ratios import double

pytestmark = pytest.mark.usefixtures("checked")

SIZES = (1, 7, 8, 9, 16, 17, 32, 33, 64, 65)
# A whole and a part of a group, and products.
each_regime = pytest.mark.parametrize("n", [3, 13, 27, 40, 70])
each_dtype = pytest.mark.parametrize("dtype", SINGLES, ids=name)


def exponential(A: Tensor, device: str) -> Tensor:
    return _matrix_exp_plan.matrix_exp(on(device, A)).cpu()


@pytest.mark.parametrize("n", SIZES)
@each_dtype
def test_scales_of_one_batch(dtype: torch.dtype, n: int, device: str) -> None:
    # Each with squarings of its own: none, some before the I joins, some after.
    sizes = torch.tensor([0, 1e-30, 0.5, 1.0, 2.0, 9.0])
    A = testing.random((len(sizes), n, n), dtype)
    A = A * (sizes / A.abs().sum(-2).amax(-1))[:, None, None]
    X = exponential(A, device)
    assert torch.equal(X[0], torch.eye(n, dtype=dtype))
    assert torch.equal(X[1], torch.eye(n, dtype=dtype) + A[1])
    exact = scipy.linalg.expm(double(A))
    allowed = np.maximum(sizes.numpy(), 1) * np.linalg.norm(exact, axis=(-2, -1))
    errors = np.linalg.norm(double(X) - exact, axis=(-2, -1))
    assert (errors <= 2 * allowed * torch.finfo(dtype).eps).all()


@each_regime
@each_dtype
def test_nilpotent_is_exact_at_every_size(dtype: torch.dtype, n: int, device: str) -> None:
    A = torch.zeros(3, n, n, dtype=dtype)
    # The norm of the last is infinite in float32 if it is formed as it is.
    A[0, 0, n - 1], A[1, 0, n - 1], A[2, : n - 1, n - 1] = 1e-35, 1e30, 3e38
    assert torch.equal(exponential(A, device), torch.eye(n, dtype=dtype) + A)


@each_regime
@each_dtype
def test_what_is_not_finite_spoils_itself_only(dtype: torch.dtype, n: int, device: str) -> None:
    A = testing.random((5, n, n), dtype)
    expected = exponential(A, device)
    A[1, 0, n - 1], A[2, n - 1, 0], A[3, n // 2, n // 2] = torch.nan, torch.inf, -torch.inf
    X = exponential(A, device)
    assert torch.equal(X[::4], expected[::4])
    assert X[1:4].isnan().all()


@pytest.mark.parametrize("view", VIEWS)
@each_regime
def test_strides(n: int, view: str, device: str) -> None:
    A = testing.random((3, n, n), torch.complex64) / n
    X = _matrix_exp_plan.matrix_exp(VIEWS[view](on(device, A)))
    assert X.is_contiguous()
    # Sums of rows and of columns may differ by a squaring.
    torch.testing.assert_close(X.cpu(), exponential(A, device), rtol=1e-5, atol=1e-6)
