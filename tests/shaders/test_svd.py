"""The launch plans of the singular value decomposition on the checked engine, at every boundary."""

import numpy as np
import pytest
import torch
from torch import Tensor

from mpslinalg import _qr_plan, _svd_plan, testing
from mpslinalg.testing import compare
from tests import lapack
from tests.inputs import DOUBLES, SINGLES, VIEWS, name, on

pytestmark = pytest.mark.usefixtures("checked")

SHAPES = (
    *((n, n) for n in (1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 32)),
    *((2, 1), (1, 2), (5, 3), (3, 5), (2, 8), (9, 4), (16, 12), (32, 1), (1, 32), (20, 31)),
    # QR first.
    *((33, 1), (1, 33), (33, 32), (32, 33), (70, 9), (9, 70)),
    # Blocks of columns, of the matrix and of R.
    *((n, n) for n in (33, 48, 63, 64, 65)),
    *((70, 33), (34, 50)),
)
CASES = [
    *((dtype, *shape) for dtype in SINGLES for shape in SHAPES),
    *((dtype, *shape) for dtype in DOUBLES for shape in ((7, 6), (6, 40), (33, 33))),
]
# Each width of a team, tall and wide, QR first, and blocks of columns.
REGIMES = ((3, 3), (6, 7), (16, 9), (32, 20), (40, 5), (5, 40), (40, 40))
each_regime = pytest.mark.parametrize("shape", REGIMES, ids=name)
each_dtype = pytest.mark.parametrize("dtype", SINGLES, ids=name)

Parts = tuple[Tensor, Tensor, Tensor]


@pytest.fixture(autouse=True)
def _fewer_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the matrices here may need: the checker is slow also where nothing is done."""
    monkeypatch.setattr(_svd_plan, "SWEEPS", 15)


def factor(A: Tensor, device: str, full: bool = True) -> Parts:
    U, S, Vh, info = _svd_plan.svd(on(device, A), full)
    assert not info.any()
    return U.cpu(), S.cpu(), Vh.cpu()


def judge(A: Tensor, device: str) -> Parts:
    U, S, Vh = factor(A, device)
    theirs = lapack.svd(A)
    compare(testing.svd_ratio(A, U, S, Vh), testing.svd_ratio(A, *theirs))
    # Weyl: no further from those of A than the residual.
    exact = A.numpy().astype(np.complex128 if A.is_complex() else np.float64)
    values = np.linalg.svd(exact, compute_uv=False)
    allowed = max(A.shape[-2:]) * torch.finfo(A.dtype).eps * values.max(-1, keepdims=True)
    assert (np.abs(S.numpy() - values) <= allowed).all()
    return U, S, Vh


@pytest.mark.parametrize(("dtype", "m", "n"), CASES, ids=name)
def test_svd(dtype: torch.dtype, m: int, n: int, device: str) -> None:
    A = torch.stack([M.A for M in testing.singular_values(m, n, dtype, seed=100 * m + n)])
    if max(m, n) > 64:
        A = A[2:3]
    elif max(m, n) > 16:
        A = A[[0, 2, 4]]
    if max(m, n) < 64:
        A = torch.cat((A, testing.random((2, m, n), dtype)))
    U, S, Vh = judge(A, device)
    k = min(m, n)
    # Where QR comes first, a complete Q of 33 to 40 columns has another plan than no more of them.
    apart = m != n and _qr_plan.WIDTH < k <= _qr_plan.widest(dtype)
    allowed = max(m, n) * torch.finfo(dtype).eps * S.max() if apart else 0
    if k <= 32 or m != n:
        thin = factor(A, device, full=False)
        assert (thin[1] - S).abs().max() <= allowed
        assert thin[0].shape == (len(A), m, k)
        assert thin[2].shape == (len(A), k, n)
        if max(m, n) <= 32:
            assert torch.equal(thin[0], U[..., :k])
            assert torch.equal(thin[2], Vh[..., :k, :])
        else:
            compare(testing.svd_ratio(A, *thin), 1.0)
    if k <= 64:
        values, info = _svd_plan.svdvals(on(device, A))
        assert (values.cpu() - S).abs().max() <= allowed
        if m != n:
            # R alone and R beside a thin Q have one plan.
            assert torch.equal(values.cpu(), thin[1])
        assert not info.any()


@each_dtype
@pytest.mark.parametrize("shape", [(3, 3), (8, 4), (9, 16), (40, 2)], ids=name)
def test_batches_are_their_matrices(
    dtype: torch.dtype, shape: tuple[int, int], device: str
) -> None:
    """Teams of a simdgroup do not stop together, nor are their ranks the same."""
    A = testing.random((33, *shape), dtype)
    A[3] = 0
    A[4] = torch.eye(*shape)
    A[5] = 1
    A[8::2] = torch.eye(*shape) + 1e-6 * A[8::2]
    U, S, Vh = factor(A, device)
    for i in range(33):
        U_of_one, *others = factor(A[i], device)
        assert all(map(torch.equal, (S[i], Vh[i]), others))
        # A GEMM may sum a batch in another order.
        if max(shape) <= 32 or device == "cpu":
            assert torch.equal(U[i], U_of_one)


@each_regime
@each_dtype
def test_a_bad_matrix_spoils_itself_only(
    dtype: torch.dtype, shape: tuple[int, int], device: str
) -> None:
    A = testing.random((4, *shape), dtype)
    good = factor(A, device)
    A[1, 1, 0] = torch.nan
    A[2, 0, 1] = -torch.inf
    *bad, info = _svd_plan.svd(on(device, A), True)
    assert info.tolist() == [0, -4, -4, 0]
    assert _svd_plan.svdvals(on(device, A))[1].tolist() == [0, -4, -4, 0]
    for ours, theirs in zip(bad, good, strict=True):
        assert torch.equal(ours.cpu()[[0, 3]], theirs[[0, 3]])
    assert bad[1][1:3].isnan().all()


@each_regime
@each_dtype
def test_a_power_of_two_is_one_of_the_values(
    dtype: torch.dtype, shape: tuple[int, int], device: str
) -> None:
    A = testing.random(shape, dtype)
    U, S, Vh = factor(A, device)
    for exponent in (-80, 80) if min(shape) > 32 else (-80, -1, 80):
        U_scaled, S_scaled, Vh_scaled = factor(A * 2.0**exponent, device)
        assert torch.equal(U_scaled, U)
        assert torch.equal(S_scaled, S * 2.0**exponent)
        assert torch.equal(Vh_scaled, Vh)


@each_dtype
@pytest.mark.parametrize(
    "shape", [(4, 4), (8, 7), (16, 16), (32, 32), (50, 20), (64, 64), (60, 40)], ids=name
)
def test_small_values_of_graded_columns_have_their_digits(
    dtype: torch.dtype, shape: tuple[int, int], device: str
) -> None:
    n = shape[1]
    B = torch.linalg.qr(testing.random(shape, dtype)).Q + testing.random(shape, dtype, 1) / (4 * n)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(n))
    for columns in (torch.arange(n), order):
        A = B * torch.logspace(0, -20, n)[columns]
        U, S, Vh = factor(A, device)
        compare(testing.svd_ratio(A, U, S, Vh), 1.0)
        expected = lapack.jacobi_values(A)
        assert expected[-1] < 1e-18
        np.testing.assert_allclose(S.numpy().astype(np.float64), expected, rtol=1e-5)


@each_dtype
def test_rows_of_any_scale(dtype: torch.dtype, device: str) -> None:
    A = testing.random((3, 12, 10), dtype)
    A[0] *= torch.logspace(-18, 18, 12)[:, None]
    A[1] *= torch.logspace(-18, 18, 10)
    A[2] *= torch.logspace(18, -18, 12)[:, None] * torch.logspace(18, -18, 10)
    U, S, Vh = factor(A, device)
    compare(testing.svd_ratio(A, U, S, Vh), 1.0)


@pytest.mark.parametrize("shape", [*REGIMES, (35, 44)], ids=name)
@each_dtype
def test_any_rank_and_repeated_values(
    dtype: torch.dtype, shape: tuple[int, int], device: str
) -> None:
    m, n = shape
    A = testing.random((8, m, n), dtype)
    A[0] = 0
    A[1] = 1
    A[2, :, n // 2] = 0
    A[3, :, 1:] = A[3, :, :1]
    A[4] = A[4, :, :1] @ A[4, :1]
    A[5] = torch.eye(m, n)
    A[6, 1:] = 0
    A[7] = torch.linalg.qr(A[7])[0] @ torch.eye(min(m, n), n, dtype=dtype)
    for scale in (1.0,) if min(shape) > 32 else (1.0, 1e-30, 1e30):
        _, S, _ = judge(A * scale, device)
        eps = torch.finfo(dtype).eps
        for i in (1, 3, 4, 6):
            assert (S[i, 1:] <= 30 * eps * S[i, 0]).all()
        for i in (5, 7):
            assert S[i, 0] - S[i, -1] <= 30 * eps * S[i, 0]


def test_columns_that_vanish_once_they_are_loaded_again(device: str) -> None:
    A = testing.random((24, 40, 40), torch.float32)[22:23]
    A[:, :, 3:] = A[:, :, 2:3]
    judge(A, device)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("shape", [(7, 6), (6, 7), (40, 5), (5, 40)], ids=name)
@each_dtype
def test_strides(dtype: torch.dtype, shape: tuple[int, int], view: str, device: str) -> None:
    A = on(device, testing.random((1, 2, *shape), dtype))
    for plan in (lambda A: _svd_plan.svd(A, False), _svd_plan.svdvals):
        for ours, expected in zip(plan(VIEWS[view](A)), plan(A), strict=True):
            assert torch.equal(ours, expected)


@each_dtype
def test_wilkinson_and_hilbert(dtype: torch.dtype, device: str) -> None:
    """Clusters, and values that fall to rounding."""
    n = 21
    index = torch.arange(n, dtype=torch.float64)
    wilkinson = torch.diag((index - 10).abs()) + torch.diag(torch.ones(n - 1), 1).double()
    wilkinson = wilkinson + torch.diag(torch.ones(n - 1), -1)
    hilbert = 1 / (index[:, None] + index + 1)
    judge(torch.stack((wilkinson, hilbert)).to(dtype), device)


@each_dtype
def test_pairs_inside_of_blocks_and_nearly_dependent_columns(
    dtype: torch.dtype, device: str
) -> None:
    """Marks that only one block leaves; a column that loses most of its length."""
    B = torch.eye(16) + testing.random((16, 16), dtype) / 32
    of_blocks = torch.block_diag(B, B / 16, B / 256)  # type: ignore[no-untyped-call]
    dependent = testing.random((48, 48), dtype)
    dependent[:, -1] = dependent[:, 0] + 2**-14 * dependent[:, -1]
    judge(torch.stack((of_blocks, dependent)), device)
