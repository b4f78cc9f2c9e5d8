"""The launch plans of tridiagonal form on the checked engine."""

import mpmath
import numpy as np
import pytest
import scipy.linalg
import torch

from mpslinalg import _tridiagonal_plan, testing
from tests.inputs import name, on

pytestmark = pytest.mark.usefixtures("checked")

REALS = (torch.float32, torch.float64)
each_real = pytest.mark.parametrize("dtype", REALS, ids=name)


@each_real
@pytest.mark.parametrize("n", [1, 2, 3, 33, 70])
def test_values(dtype: torch.dtype, n: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    d, e = testing.random((6, n), dtype), testing.random((6, n - 1), dtype, seed=1)
    e[1] = 0
    d[2] = 2
    # Wilkinson's, whose large eigenvalues are pairs that only rounding tells apart.
    d[3], e[3] = (torch.arange(n) - (n - 1) / 2).abs(), 1
    d[4], e[4] = 3, 0
    e[5] *= 2.0 ** -torch.arange(n - 1)
    # Squares under- and overflow.
    scales = 2.0 ** torch.tensor([[0.0], [100], [-100], [0], [80], [0]], dtype=dtype)
    found = _tridiagonal_plan.values(on(device, d * scales), on(device, e * scales)).cpu()
    for i, values in enumerate((found / scales).double().numpy()):
        entries = d[i].double().numpy(), e[i].double().numpy()
        expected = scipy.linalg.eigvalsh_tridiagonal(*entries, lapack_driver="stebz")
        bound = 4 * torch.finfo(dtype).eps * max(np.abs(expected).max(), 1)
        assert (np.abs(values - expected) <= bound).all()
    assert (found[4] == 3 * 2.0**80).all()
    upper = _tridiagonal_plan.values(on(device, d * scales), on(device, e * scales), n // 2)
    assert torch.equal(upper.cpu(), found[:, n // 2 :])
    assert (found.diff() >= 0).all()
    # One lane an eigenvalue, as in large batches, ends where 16 do, unless the reciprocals of a GPU
    # put the counts of neighbouring numbers out of order.
    monkeypatch.setattr(_tridiagonal_plan, "VALUES_SIMDGROUPS", 0)
    alone = _tridiagonal_plan.values(on(device, d * scales), on(device, e * scales))
    apart = (alone.cpu() - found).abs().amax(1)
    allowed = torch.finfo(dtype).eps * found.abs().amax(1) if device != "cpu" else 0 * apart
    assert (apart <= allowed).all()


@pytest.mark.parametrize(
    ("wanted", "lanes"), [(64, 16), (512, 16), (513, 8), (2048, 4), (8193, 1), (1 << 20, 1)]
)
def test_lanes_share_a_search_while_the_gpu_has_room(wanted: int, lanes: int) -> None:
    assert _tridiagonal_plan.values_lanes(wanted) == lanes


def test_rows_beyond_one_load(device: str) -> None:
    """More rows than are in threadgroup memory at once; the matrix has known eigenvalues."""
    n = 300
    d, e = torch.full((1, n), 2.0), torch.full((1, n - 1), -1.0)
    found = _tridiagonal_plan.values(on(device, d), on(device, e)).cpu().double().numpy()
    expected = 2 - 2 * np.cos(np.arange(1, n + 1) * np.pi / (n + 1))
    assert np.abs(found[0] - expected).max() <= 8 * torch.finfo(torch.float32).eps


@each_real
def test_pivots_that_are_zero(dtype: torch.dtype, device: str) -> None:
    """A number of the first step is an eigenvalue, of the whole or of its leading part."""
    half = 2 ** (24 if dtype == torch.float32 else 53)
    # Of the interval from -1 to 1, cut into 33 parts as for few eigenvalues.
    tried = (16 * -(-2 * half // 33) - half) / half
    d = torch.tensor([[tried, -1, -0.5, -0.25, 1], [tried, 0.5, -0.5, 1, -1]], dtype=dtype)
    e = torch.tensor([[0.0, 0, 0, 0], [0.125, 0.125, 0, 0]], dtype=dtype)
    found = _tridiagonal_plan.values(on(device, d), on(device, e)).cpu().double().numpy()
    for i in range(2):
        expected = scipy.linalg.eigvalsh_tridiagonal(d[i].double().numpy(), e[i].double().numpy())
        assert np.abs(found[i] - expected).max() <= 4 * torch.finfo(dtype).eps


@each_real
@pytest.mark.parametrize("n", [4, 17])
def test_a_zero_diagonal_defines_small_values(dtype: torch.dtype, n: int, device: str) -> None:
    """Singular values of a graded bidiagonal matrix, each to a few of its own roundings."""
    graded = torch.logspace(8, -20, n, dtype=torch.float64)
    q, f = graded.to(dtype), (graded[1:] * (0.5 + torch.rand(n - 1))).to(dtype)
    e = torch.zeros(3, 2 * n - 1, dtype=dtype)
    e[0, ::2], e[0, 1::2] = q, f
    # Singular: one value is zero, and the matrix splits.
    e[1] = e[0]
    e[1, 2] = 0
    d = torch.zeros(3, 2 * n, dtype=dtype)
    found = _tridiagonal_plan.values(on(device, d), on(device, e), n).cpu().double().numpy()
    with mpmath.workdps(60):
        for i in range(3):
            B = mpmath.diag(list(map(float, e[i, ::2])))
            for j in range(n - 1):
                B[j, j + 1] = float(e[i, 2 * j + 1])
            expected = np.array(sorted(map(float, mpmath.svd_r(B, compute_uv=False))))
            expected[expected < 1e-45] = 0
            assert (np.abs(found[i] - expected) <= n * torch.finfo(dtype).eps * expected).all()
    everything = _tridiagonal_plan.values(on(device, d), on(device, e)).cpu().double().numpy()
    assert (everything == np.concatenate((-found[:, ::-1], found), 1)).all()


@each_real
def test_values_that_are_not_finite(dtype: torch.dtype, device: str) -> None:
    d, e = torch.ones(3, 5, dtype=dtype), torch.ones(3, 4, dtype=dtype)
    d[0, 2] = torch.nan
    e[2, 3] = -torch.inf
    found = _tridiagonal_plan.values(on(device, d), on(device, e)).cpu()
    assert found[[0, 2]].isnan().all()
    assert found[1].isfinite().all()
