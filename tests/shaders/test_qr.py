"""The launch plans of the QR family on the checked engine, at every boundary."""

import pytest
import torch
from torch import Tensor

from mpslinalg import _qr_plan, testing
from mpslinalg._products import PRODUCT
from mpslinalg.testing import compare
from tests import lapack
from tests.inputs import DOUBLES, SINGLES, VIEWS, full_rank, name, on

pytestmark = pytest.mark.usefixtures("checked")

SIDES = (1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 32)
SHAPES = (
    *((n, n) for n in SIDES),
    *((2, 1), (1, 2), (4, 3), (3, 4), (5, 2), (2, 8), (9, 3), (12, 16), (32, 1), (1, 32), (20, 31)),
    # A threadgroup, of up to 40 columns too, and panels.
    *((33, 1), (33, 32), (65, 5), (129, 31)),
    *((33, 33), (40, 40), (97, 34), (160, 40)),
    *((41, 41), (32, 33), (1, 33), (65, 64), (64, 65), (40, 100)),
)
CASES = [
    *((dtype, *shape) for dtype in SINGLES for shape in SHAPES),
    *((dtype, *shape) for dtype in DOUBLES for shape in ((7, 6), (40, 35), (50, 45))),
]
# Each kernel, and the last of several panels.
REGIMES = ((3, 3), (7, 6), (32, 32), (40, 20), (40, 35), (50, 45))
each_regime = pytest.mark.parametrize("shape", REGIMES, ids=name)
each_dtype = pytest.mark.parametrize("dtype", SINGLES, ids=name)


def factor(A: Tensor, device: str, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    Q, R = _qr_plan.qr(on(device, A), mode)
    return Q.cpu(), R.cpu()


def judge(A: Tensor, device: str, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    Q, R = factor(A, device, mode)
    ours, theirs = testing.qr_ratio(A, Q, R), testing.qr_ratio(A, *lapack.qr(A, mode))
    if min(A.shape[-2:]) <= 4:
        # Of some ten roundings one matrix says little: LAPACK's own ratios vary by a factor of 5.
        ours, theirs = ours.max(), theirs.max()
    compare(ours, theirs)
    return Q, R


@pytest.mark.parametrize(("dtype", "m", "n"), CASES, ids=name)
def test_factor(dtype: torch.dtype, m: int, n: int, device: str) -> None:
    # All families in one launch; of the larger ones two that are dense, one of them scaled.
    A = full_rank(m, n, dtype)
    A = A if max(m, n) <= 32 else A[[-3, -1]]
    Q, R = judge(A, device)
    assert torch.equal(factor(A, device, "r")[1], R)
    complete, below = judge(A, device, "complete")
    k = min(m, n)
    assert complete.shape == (len(A), m, m)
    assert not below[:, k:].any()
    if m <= n:
        assert torch.equal(complete, Q)
    if k > 1:
        assert alike(A, R).float().mean() > 0.9


def alike(A: Tensor, R: Tensor) -> Tensor:
    """Whether LAPACK chooses the same signs, but for the last, which may have no rows to sum."""
    theirs = torch.from_numpy(lapack.qr(A, "reduced")[1])
    signs = (X.diagonal(dim1=-2, dim2=-1).real.sign() for X in (theirs, R))
    return torch.eq(*signs)[:, : min(A.shape[-2:]) - 1]


@each_dtype
@pytest.mark.parametrize("shape", [(3, 3), (4, 8), (9, 16), (40, 2)], ids=name)
def test_batches_are_their_matrices(
    dtype: torch.dtype, shape: tuple[int, int], device: str
) -> None:
    A = testing.random((11, *shape), dtype)
    Q, R = factor(A, device)
    for i in (0, 7, 10):
        assert torch.equal(Q[i], factor(A[i], device)[0])
        assert torch.equal(R[i], factor(A[i], device)[1])


@each_regime
@each_dtype
def test_a_bad_matrix_spoils_itself_only(
    dtype: torch.dtype, shape: tuple[int, int], device: str
) -> None:
    A = testing.random((4, *shape), dtype)
    Q, R = factor(A, device)
    A[1, 1, 0] = torch.nan
    A[2, 0, 1] = torch.inf
    Q_bad, R_bad = factor(A, device)
    assert torch.equal(Q_bad[[0, 3]], Q[[0, 3]])
    assert torch.equal(R_bad[[0, 3]], R[[0, 3]])
    assert not Q_bad[1:3].isfinite().flatten(1).all(1).any()
    assert not R_bad[1:3].isfinite().flatten(1).all(1).any()


@each_regime
@each_dtype
def test_columns_may_have_any_scale(
    dtype: torch.dtype, shape: tuple[int, int], device: str
) -> None:
    A = testing.random((4, *shape), dtype)
    A[1] *= 1e-30
    A[2] *= 1e30
    A[3] *= torch.logspace(-30, 30, shape[1])
    Q, R = factor(A, device)
    ratios = testing.qr_ratio(A, Q, R)
    assert ratios.max() < 3 * max(ratios[0], 1)
    if shape[1] <= 32:
        powers = torch.exp2(torch.linspace(-90, 90, shape[1]).round())
        Q_scaled, R_scaled = factor(A[0] * powers, device)
        assert torch.equal(Q_scaled, Q[0])
        assert torch.equal(R_scaled, R[0] * powers)


@each_regime
@each_dtype
def test_columns_may_depend_on_each_other(
    dtype: torch.dtype, shape: tuple[int, int], device: str
) -> None:
    A = testing.random((6, *shape), dtype)
    A[0] = 0
    A[1] = 1
    A[2, :, shape[1] // 2] = 0
    A[3, :, 1:] = A[3, :, :1]
    A[4] = A[4, :, :1] @ A[4, :1]
    A[5] = A[1] * (1j if dtype.is_complex else -1)
    for scale in (1.0, 1e-25):
        Q, R = factor(A * scale, device)
        assert testing.qr_ratio(A * scale, Q, R).max() < 10
        assert not R[0].any()


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("shape", [(7, 6), (40, 20), (40, 33), (50, 45)], ids=name)
@each_dtype
def test_strides(dtype: torch.dtype, shape: tuple[int, int], view: str, device: str) -> None:
    A = on(device, testing.random((1, 2, *shape), dtype))
    Q, R = _qr_plan.qr(A, "reduced")
    Q_view, R_view = _qr_plan.qr(VIEWS[view](A), "reduced")
    assert torch.equal(Q_view, Q)
    assert torch.equal(R_view, R)


def test_levels_of_a_tree_leave_the_same_part() -> None:
    def levels(batch: int, m: int, n: int, height: int) -> list[int]:
        blocks = _qr_plan._blocks(batch, m, n, height)
        rows = -(-m // blocks)
        assert rows <= height
        return [rows] if blocks == 1 else [rows, *levels(batch, blocks * n, n, height)]

    assert levels(1, 512, 32, 512) == [512]
    assert levels(1, 4000, 32, 512) == [364, 352]
    assert levels(1, 4000, 36, 256) == [174, 207, 144]
    assert levels(100, 4000, 32, 512) == [500, 256]


@pytest.mark.parametrize("product", [0, PRODUCT], ids=["gemm", "kernels"])
@each_dtype
def test_tall_panels(
    dtype: torch.dtype, product: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of rows factored apart, to three levels, and the reflectors made of the result."""
    monkeypatch.setattr(_qr_plan, "MAX_ROWS", 64)
    monkeypatch.setattr(_qr_plan, "WIDE_ROWS", 96)
    monkeypatch.setattr(_qr_plan, "PRODUCT", product)
    for m, n in ((65, 1), (180, 30), (300, 40), (129, 45), (300, 70)):
        # Nearly diagonal, so that only the right signs give pivots; and of low rank.
        A = full_rank(m, n, dtype)[[0, 4, 5]]
        A[0] += 1e-3 * testing.random((m, n), dtype)
        A[2, :, n // 2 :] = A[2, :, :1]
        Q, R = factor(A, device)
        assert testing.qr_ratio(A, Q, R).max() < 3
        assert torch.equal(factor(A, device, "r")[1], R)
        if n > 32:
            assert alike(A[:2], R[:2]).all()
