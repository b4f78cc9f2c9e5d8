"""The launch plans of QR with column pivoting on the checked engine, at every boundary."""

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

from mpslinalg import _qr_pivoted_plan, testing
from mpslinalg.testing import compare
from tests import lapack
from tests.inputs import DOUBLES, SINGLES, VIEWS, full_rank, name, on

pytestmark = pytest.mark.usefixtures("checked")

SHAPES = (
    *((n, n) for n in (1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 32)),
    *((2, 1), (1, 2), (4, 3), (3, 4), (2, 8), (9, 3), (12, 16), (32, 1), (1, 32), (20, 31)),
    # A threadgroup.
    *((33, 1), (1, 33), (33, 32), (32, 33), (33, 33), (65, 9), (9, 65), (40, 70)),
)
CASES = [
    *((dtype, *shape) for dtype in SINGLES for shape in SHAPES),
    *((dtype, *shape) for dtype in DOUBLES for shape in ((7, 6), (40, 35))),
]
# Each kernel.
REGIMES = ((3, 3), (6, 7), (17, 32), (40, 20), (20, 40), (34, 33))
each_regime = pytest.mark.parametrize("shape", REGIMES, ids=name)
each_dtype = pytest.mark.parametrize("dtype", SINGLES, ids=name)


def factor(A: Tensor, device: str, mode: str = "reduced") -> tuple[Tensor, Tensor, Tensor]:
    Q, R, P = _qr_pivoted_plan.qr_pivoted(on(device, A), mode)
    return Q.cpu(), R.cpu(), P.cpu().long()


def permuted(A: Tensor, P: Tensor) -> Tensor:
    assert torch.equal(P.sort(-1).values, torch.arange(A.shape[-1]).expand(P.shape))
    return A.gather(-1, P[..., None, :].expand(A.shape))


def leading_norms_are_largest(R: Tensor) -> bool:
    """Whether |r_kk| is the largest norm of what step k finds of any column. As much as downdating
    may lose of a norm, half the digits, is allowed."""
    sizes = R.to(torch.complex128).abs()
    squares = (sizes / sizes.amax((-2, -1), keepdim=True).clamp(min=1e-300)).square()
    # Entry (k, j) is the norm of column j from row k on.
    norms = squares.flip(-2).cumsum(-2).flip(-2).sqrt()
    k = min(R.shape[-2:])
    allowed = norms.diagonal(dim1=-2, dim2=-1) * (1 + torch.finfo(R.dtype).eps ** 0.5)
    return bool((norms[..., :k, :].triu() <= allowed[..., None]).all())


def judge(A: Tensor, device: str, mode: str = "reduced") -> tuple[Tensor, Tensor, Tensor]:
    Q, R, P = factor(A, device, mode)
    assert leading_norms_are_largest(R)
    ours = testing.qr_ratio(permuted(A, P), Q, R)
    theirs = np.empty_like(ours)
    for i in np.ndindex(*theirs.shape):
        q, r, p = lapack.qr_pivoted(A[i], mode)
        theirs[i] = testing.qr_ratio(A[i][:, p], q, r)
    if min(A.shape[-2:]) <= 8:
        # Of some ten roundings one matrix says little: LAPACK's own ratios vary by a factor of 5,
        # over 60 matrices of 5 x 5 ours and its have the same mean.
        ours, theirs = ours.max(), theirs.max()
    compare(ours, theirs)
    return Q, R, P


@pytest.mark.parametrize(("dtype", "m", "n"), CASES, ids=name)
def test_factor(dtype: torch.dtype, m: int, n: int, device: str) -> None:
    # All families in one launch; of the larger ones two that are dense, one of them scaled.
    A = full_rank(m, n, dtype)
    A = A[:: 1 if n <= 16 else 2] if max(m, n) <= 32 else A[[-3, -1]]
    Q, R, P = judge(A, device)
    _, R_alone, P_alone = factor(A, device, "r")
    assert torch.equal(R_alone, R)
    assert torch.equal(P_alone, P)
    if m > n:
        complete, below, _ = judge(A, device, "complete")
        assert complete.shape == (len(A), m, m)
        assert not below[:, n:].any()
    else:
        assert torch.equal(factor(A[:1], device, "complete")[0], Q[:1])


@pytest.mark.parametrize("shape", [*REGIMES, (1, 5), (5, 1), (32, 32), (9, 65)], ids=name)
@each_dtype
def test_the_order_is_lapacks(dtype: torch.dtype, shape: tuple[int, int], device: str) -> None:
    m, n = shape
    A = testing.random((2, m, n), dtype, seed=m + n)
    compared = 0
    for a, p in zip(A, factor(A, device, "r")[2], strict=True):
        exact = a.to(torch.complex128 if dtype.is_complex else torch.float64)
        _, r, expected = lapack.qr_pivoted(exact, "reduced")
        # Norms that lie so close that rounding may choose.
        k = min(m, n)
        norms = np.sqrt(np.cumsum(np.abs(r[::-1]) ** 2, axis=0))[::-1]
        second = np.array([norms[i, i + 1 :].max(initial=0) for i in range(k)])
        if (second < np.abs(np.diagonal(r)) * (1 - 1e-5)).all():
            assert p.tolist() == expected.tolist()
            compared += 1
    assert compared > 0


@each_dtype
@pytest.mark.parametrize("shape", [(3, 3), (4, 8), (9, 16), (40, 2)], ids=name)
def test_batches_are_their_matrices(
    dtype: torch.dtype, shape: tuple[int, int], device: str
) -> None:
    A = testing.random((11, *shape), dtype)
    together = factor(A, device)
    for i in (0, 7, 10):
        for all_of_them, one in zip(together, factor(A[i], device), strict=True):
            assert torch.equal(all_of_them[i], one)


@each_regime
@each_dtype
def test_a_bad_matrix_spoils_itself_only(
    dtype: torch.dtype, shape: tuple[int, int], device: str
) -> None:
    A = testing.random((4, *shape), dtype)
    good = factor(A, device)
    A[1, 1, 0] = torch.nan
    A[2, 0, 1] = torch.inf
    bad = factor(A, device)
    for ours, theirs in zip(bad, good, strict=True):
        assert torch.equal(ours[[0, 3]], theirs[[0, 3]])
    for ours in bad[:2]:
        assert not ours[1:3].isfinite().flatten(1).all(1).any()
    permuted(A, bad[2])


@each_regime
@each_dtype
def test_columns_may_have_any_scale(
    dtype: torch.dtype, shape: tuple[int, int], device: str
) -> None:
    A = testing.random((4, *shape), dtype)
    A[1] *= 1e-30
    A[2] *= 1e30
    A[3] *= torch.logspace(-30, 30, shape[1])
    Q, R, P = judge(A, device)
    assert P[3].tolist() == list(reversed(range(shape[1]))) or shape[1] > 3
    Q_scaled, R_scaled, P_scaled = factor(A[0] * 2.0**-90, device)
    assert torch.equal(Q_scaled, Q[0])
    assert torch.equal(R_scaled, R[0] * 2.0**-90)
    assert torch.equal(P_scaled, P[0])


@each_regime
@each_dtype
def test_columns_may_depend_on_each_other(
    dtype: torch.dtype, shape: tuple[int, int], device: str
) -> None:
    A = testing.random((7, *shape), dtype)
    A[0] = 0
    A[1] = 1
    A[2, :, shape[1] // 2] = 0
    A[3, :, 1:] = A[3, :, :1]
    A[4] = A[4, :, :1] @ A[4, :1]
    A[5] = A[1] * (1j if dtype.is_complex else -1)
    A[6, :, 0] = 2.0**-20 * A[6, :, 1]
    for scale in (1.0, 1e-25) if max(shape) <= 32 else (1e-25,):
        _, R, P = judge(A * scale, device)
        assert not R[0].any()
        # Of columns of equal norms the first goes first, unless a QR before made them differ.
        if shape != (40, 20):
            assert not P[[0, 1, 3, 5], 0].any()
        assert P[2, -1] == shape[1] // 2 or shape[0] < shape[1]
        eps = torch.finfo(dtype).eps
        for i in (1, 3, 4, 5):
            assert R[i, 1:].abs().max() <= 30 * eps * R[i].abs().max()


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("shape", [(7, 6), (40, 20), (34, 33)], ids=name)
@each_dtype
def test_strides(dtype: torch.dtype, shape: tuple[int, int], view: str, device: str) -> None:
    A = on(device, testing.random((1, 2, *shape), dtype))
    plain = _qr_pivoted_plan.qr_pivoted(A, "reduced")
    for ours, expected in zip(
        _qr_pivoted_plan.qr_pivoted(VIEWS[view](A), "reduced"), plain, strict=True
    ):
        assert torch.equal(ours, expected)


@each_dtype
@pytest.mark.parametrize("shape", [(35, 33), (20, 35), (1, 33)], ids=name)
def test_many_groups_do_what_one_does(
    dtype: torch.dtype, shape: tuple[int, int], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    A = full_rank(*shape, dtype)[-3:-1]
    alone = factor(A, device)
    monkeypatch.setattr(_qr_pivoted_plan, "GROUP_ENTRIES", 0)
    monkeypatch.setattr(_qr_pivoted_plan, "side_by_side", lambda tensor: True)
    for ours, expected in zip(factor(A, device), alone, strict=True):
        assert torch.equal(ours, expected)


@each_dtype
def test_norms_are_computed_anew_where_digits_cancel(dtype: torch.dtype, device: str) -> None:
    """Kahan's matrix, and columns that differ by less than a downdated norm can tell."""
    n = 40
    sine, cosine = 0.6, 0.8
    powers = sine ** torch.arange(n)
    kahan = (powers[:, None] * (torch.eye(n) - cosine * torch.ones(n, n).triu(1))).to(dtype)
    # Falling norms make the order unique.
    kahan *= 1 - 3e-3 * torch.arange(n)
    close = testing.random((n, 1), dtype) + 1e-5 * testing.random((n, n), dtype, seed=1)
    _, _, P = judge(torch.stack((kahan, close)), device)
    assert P[0].tolist() == list(range(n))
    exact = close.to(torch.complex128 if dtype.is_complex else torch.float64)
    expected = np.asarray(scipy.linalg.qr(exact.numpy(), pivoting=True)[2])
    # Beyond, norms lie closer than rounding.
    assert P[1, :8].tolist() == expected[:8].tolist()


@each_dtype
@pytest.mark.parametrize("n", [3, 34])
def test_nothing_is_less_than_little(dtype: torch.dtype, n: int, device: str) -> None:
    """What was large and has become zero, against what was small all along."""
    A = torch.zeros(n, n, dtype=dtype)
    A[0, :2] = 1e30
    A[1, 2] = 1e-30
    _, R, P = factor(A, device)
    assert P[:2].tolist() == [0, 2]
    assert R[1, 1].abs() == A[1, 2].abs()
