"""SVD by bidiagonalisation on the checked engine, and of large matrices on the plain one."""

import numpy as np
import pytest
import torch
from torch import Tensor

from mpslinalg import _bidiagonal_plan, _qr_plan, testing
from mpslinalg._engines import empty
from mpslinalg._products import copy
from mpslinalg.testing import compare
from tests import lapack
from tests.inputs import DOUBLES, SINGLES, VIEWS, name, on

checked = pytest.mark.usefixtures("checked")
each_dtype = pytest.mark.parametrize("dtype", SINGLES, ids=name)
# Square, tall, QR first, and the adjoint of each.
REGIMES = ((34, 34), (14, 12), (20, 9), (12, 14), (9, 20))
each_regime = pytest.mark.parametrize("shape", REGIMES, ids=name)


def reduced(A: Tensor, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Q, B and P of A = Q B P^H, B in double precision."""
    batch, _, n = A.shape
    A = on(device, A)
    factor, real = empty(A.shape, A), A.dtype.to_real()
    copy(factor, A)
    d, e = (empty((batch, k), A, real, row_major=True) for k in (n, n - 1))
    info = empty((batch,), A, torch.int32)
    form, exponents = _bidiagonal_plan.reduce(factor, d, e, info)
    assert not info.any()
    P = torch.zeros((batch, n, n), dtype=A.dtype)
    P[:, 0, 0] = 1
    P[:, 1:, 1:] = _qr_plan.householder_product(form.right, form.right_tau).cpu()
    B = torch.diag_embed(d.cpu().double()) + torch.diag_embed(e.cpu().double(), 1)
    Q = _qr_plan.householder_product(form.left, form.tau).cpu()
    return Q, torch.ldexp(B, exponents.cpu().view(-1, 1, 1)), P


def decompose(A: Tensor, device: str, full: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """U, S, V^H and info, wide matrices by their transposes as _svd_plan does."""
    A = on(device, A)
    batch, m, n = A.shape
    k = min(m, n)
    U, Vh = empty((batch, m, m if full else k), A), empty((batch, n if full else k, n), A)
    S = empty((batch, k), A, A.dtype.to_real(), row_major=True)
    info = empty((batch,), A, torch.int32)
    if m >= n:
        _bidiagonal_plan.svd(A, U, S, Vh.mT, info)
    else:
        _bidiagonal_plan.svd(A.mT, Vh.mT, S, U, info)
    return U.cpu(), S.cpu(), Vh.cpu(), info.cpu()


def values_of(A: Tensor, device: str) -> tuple[Tensor, Tensor]:
    A = on(device, A if A.shape[1] >= A.shape[2] else A.mT)
    S = empty((len(A), A.shape[2]), A, A.dtype.to_real(), row_major=True)
    info = empty((len(A),), A, torch.int32)
    _bidiagonal_plan.svdvals(A, S, info)
    return S.cpu(), info.cpu()


def assert_near(A: Tensor, S: Tensor) -> None:
    """Weyl: no further from the singular values of A than the residual."""
    exact = A.numpy().astype(np.complex128 if A.is_complex() else np.float64)
    values = np.linalg.svd(exact, compute_uv=False)
    allowed = max(A.shape[-2:]) * torch.finfo(A.dtype).eps * values.max(-1, keepdims=True)
    assert (np.abs(S.numpy() - values) <= allowed).all()
    assert (S >= 0).all()
    assert (S.diff() <= 0).all()


def judge(A: Tensor, device: str, full: bool = False) -> Tensor:
    """S, after all results were held against LAPACK's."""
    *parts, info = decompose(A, device, full)
    assert not info.any()
    compare(testing.svd_ratio(A, *parts), testing.svd_ratio(A, *lapack.svd(A, full)))
    assert_near(A, parts[1])
    values, info = values_of(A, device)
    assert not info.any()
    assert_near(A, values)
    return parts[1]


def families(m: int, n: int, dtype: torch.dtype) -> Tensor:
    """LAPACK's, and a random matrix."""
    matrices = [M.A for M in testing.singular_values(m, n, dtype, seed=100 * m + n)]
    return torch.stack((*matrices, testing.random((m, n), dtype, seed=1)))


def groups_of(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets no threadgroup take more rows: with none, every step is launched."""
    limits = dict.fromkeys(_bidiagonal_plan.LARGEST_GROUP, rows)
    monkeypatch.setattr(_bidiagonal_plan, "LARGEST_GROUP", limits)


def judge_reduction(A: Tensor, device: str) -> None:
    Q, B, P = reduced(A, device)
    u, s, vh = np.linalg.svd(B.numpy())
    ours = (Q.numpy() @ u, vh @ P.numpy().conj().swapaxes(-2, -1))
    # Of the dtype whose roundings count.
    U, Vh = (torch.from_numpy(x).to(A.dtype) for x in ours)
    compare(testing.svd_ratio(A, U, s, Vh), testing.svd_ratio(A, *lapack.svd(A, False)))


@checked
@pytest.mark.parametrize(
    ("dtype", "m", "n"),
    [
        # The small group, to its bounds, and the large one.
        *((t, *s) for t in SINGLES for s in ((2, 2), (3, 2), (33, 33), (64, 63), (65, 65))),
        (torch.float32, 128, 90),
        (torch.complex64, 96, 80),
        *((t, *s) for t in DOUBLES for s in ((4, 3), (34, 33))),
    ],
    ids=name,
)
def test_reduction_by_groups(dtype: torch.dtype, m: int, n: int, device: str) -> None:
    A = families(m, n, dtype)
    judge_reduction(A if m < 64 else A[[4, 5]], device)


@checked
@pytest.mark.parametrize("rows", [0, 9], ids=["launches", "launches and groups"])
@pytest.mark.parametrize(
    ("dtype", "m", "n"),
    [
        *((t, *s) for t in SINGLES for s in ((2, 2), (9, 8), (10, 10), (33, 33), (50, 34))),
        *((t, *s) for t in DOUBLES for s in ((4, 3), (20, 13))),
    ],
    ids=name,
)
def test_reduction_by_launches(
    dtype: torch.dtype, m: int, n: int, rows: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups_of(rows, monkeypatch)
    judge_reduction(families(m, n, dtype), device)


@checked
@each_dtype
def test_whole_lines_of_rows_for_many_matrices(
    dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups_of(0, monkeypatch)
    monkeypatch.setattr(_bidiagonal_plan, "FEW_ROWS", _bidiagonal_plan.ROWS)
    judge_reduction(testing.random((2, 40, 37), dtype), device)


@checked
@pytest.mark.parametrize(("m", "n"), [(33, 33), (64, 64), (100, 40), (40, 50)], ids=name)
@each_dtype
def test_svd(dtype: torch.dtype, m: int, n: int, device: str) -> None:
    A = families(m, n, dtype)
    judge(A[[2, 5]] if n == 64 else A, device, full=m != n)


@checked
def test_steps_and_a_group(device: str) -> None:
    judge(testing.random((1, 100, 100), torch.complex64), device)


@pytest.mark.parametrize(
    ("dtype", "m", "n"),
    [
        (torch.complex64, 160, 160),
        (torch.complex64, 300, 100),
    ],
    ids=name,
)
def test_large(dtype: torch.dtype, m: int, n: int, device: str) -> None:
    judge(families(m, n, dtype)[[2]], device)


def test_zeros_are_zeros(device: str) -> None:
    """Of this size divide and conquer has a separating row that is padding."""
    U, S, Vh, _ = decompose(torch.zeros(1, 300, 300), device)
    assert not S.any()
    assert testing.svd_ratio(torch.zeros(1, 300, 300), U, S, Vh) == 0


def test_larger_still(device: str) -> None:
    A = families(512, 512, torch.float32)[[2]]
    *parts, _ = decompose(A, device)
    compare(testing.svd_ratio(A, *parts), testing.svd_ratio(A, *lapack.svd(A, False)))


@each_dtype
def test_batches_are_their_matrices(dtype: torch.dtype, device: str) -> None:
    A = testing.random((5, 40, 36), dtype)
    A[1] = 0
    A[2] = torch.eye(40, 36)
    together = decompose(A, device)
    for i in range(5):
        for all_of_them, one in zip(together, decompose(A[i : i + 1], device), strict=True):
            assert torch.equal(all_of_them[i], one[0])


@each_regime
@each_dtype
def test_a_bad_matrix_spoils_itself_only(
    dtype: torch.dtype, shape: tuple[int, int], device: str
) -> None:
    A = testing.random((4, *shape), dtype)
    good, good_values = decompose(A, device, full=True), values_of(A, device)
    A[1, 1, 0] = torch.nan
    A[2, 0, 1] = -torch.inf
    bad, bad_values = decompose(A, device, full=True), values_of(A, device)
    for ours, before in ((bad, good), (bad_values, good_values)):
        assert ours[-1].tolist() == [0, -4, -4, 0]
        for part, expected in zip(ours[:-1], before[:-1], strict=True):
            assert torch.equal(part[[0, 3]], expected[[0, 3]])
            assert part[1:3].isnan().all()


@each_regime
@each_dtype
def test_a_power_of_two_is_one_of_the_values(
    dtype: torch.dtype, shape: tuple[int, int], device: str
) -> None:
    A = testing.random((1, *shape), dtype)
    U, S, Vh, _ = decompose(A, device)
    values, _ = values_of(A, device)
    for exponent in (-80, -1, 80):
        scaled = A * 2.0**exponent
        U_scaled, S_scaled, Vh_scaled, _ = decompose(scaled, device)
        assert torch.equal(U_scaled, U)
        assert torch.equal(S_scaled, S * 2.0**exponent)
        assert torch.equal(Vh_scaled, Vh)
        assert torch.equal(values_of(scaled, device)[0], values * 2.0**exponent)


@each_regime
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
    eps = torch.finfo(dtype).eps
    for scale in (1.0, 1e-30, 1e30):
        S = judge(A * scale, device)
        for i in (1, 3, 4, 6):
            assert (S[i, 1:] <= 30 * eps * S[i, 0]).all()
        for i in (5, 7):
            assert S[i, 0] - S[i, -1] <= 30 * eps * S[i, 0]


@pytest.mark.parametrize("view", ["column_major", "gaps", "offset", "batch_inside"])
@each_regime
def test_strides(shape: tuple[int, int], view: str, device: str) -> None:
    A = testing.random((2, 1, *shape), torch.complex64)
    for plan in (decompose, values_of):
        for ours, expected in zip(
            plan(VIEWS[view](A)[:, 0], device), plan(A[:, 0], device), strict=True
        ):
            assert torch.equal(ours, expected)


@checked
def test_graded_and_clustered(device: str) -> None:
    n = 41
    index = torch.arange(n, dtype=torch.float64)
    wilkinson = torch.diag((index - 20).abs()) + torch.diag(torch.ones(n - 1), 1).double()
    wilkinson = wilkinson + torch.diag(torch.ones(n - 1), -1)
    hilbert = 1 / (index[:, None] + index + 1)
    graded = testing.random((n, n), torch.float64) * torch.logspace(0, -35, n)
    judge(torch.stack((wilkinson, hilbert, graded, graded.mT.flip(0))).float(), device)
