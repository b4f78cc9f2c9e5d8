"""The launch plan of eig for large matrices on the checked engine, with small windows."""

import pytest
import torch

from mpslinalg import _eig_large_plan, _eig_plan, testing
from mpslinalg.testing import EIG_THRESHOLD, compare
from tests import lapack
from tests.inputs import SINGLES, SMALL_WINDOW, name, nonsymmetric, on
from tests.shaders.test_eig import assert_conjugate, decompose, judge_balance, special

pytestmark = pytest.mark.usefixtures("checked", "small")
each_dtype = pytest.mark.parametrize("dtype", SINGLES, ids=name)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps of several windows in matrices of a few dozen rows."""
    monkeypatch.setattr(_eig_plan, "MAX_ROWS", 32)
    monkeypatch.setattr(_eig_large_plan, "WINDOW", dict.fromkeys((4, 8, 16), SMALL_WINDOW))


@each_dtype
def test_families(dtype: torch.dtype, device: str) -> None:
    """Dense ones; a Jordan block, a cycle, pairs on a zero diagonal, triangles, graded rows."""
    n = 37
    A = torch.cat([nonsymmetric(n, dtype)[[2, 15]], special(n, dtype)[[0, 2, 6, -1]]])
    L, V, info = decompose(A, device)
    assert not info.any()
    compare(testing.eig_ratio(A, L, V), testing.eig_ratio(A, *lapack.eig(A)), EIG_THRESHOLD)
    if not dtype.is_complex:
        assert_conjugate(L, V)


@each_dtype
def test_a_bad_matrix_spoils_itself_only(dtype: torch.dtype, device: str) -> None:
    n = 35
    A = testing.random((3, n, n), dtype)
    good, V, _ = decompose(A[0] * 2.0**-80, device)
    A[1, 1, 0] = torch.nan
    A[2] = torch.eye(n)
    values, _, info = _eig_plan.eig(on(device, A.mT.contiguous().mT), False)
    assert info.tolist() == [0, n + 1, 0]
    assert torch.equal(values[0].cpu(), good * 2.0**80)
    assert values[1].isnan().all()
    assert (values[2] == 1).all()
    assert testing.eig_ratio(A[0], values[0], V) < EIG_THRESHOLD


@each_dtype
def test_scales_of_rows_and_columns_are_undone(
    dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By balancing that takes several launches a pass."""
    n = 34
    monkeypatch.setattr(_eig_large_plan, "ENTRIES", 30 * n)
    judge_balance(dtype, n, device)


@each_dtype
def test_windows_that_do_not_converge(
    dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sweeps go on with what shifts there are, exceptional ones if there are none."""
    n = 34
    monkeypatch.setattr(_eig_large_plan, "TURNS_A_ROW", 4 / SMALL_WINDOW)
    A = torch.stack([testing.random((n, n), dtype), special(n, dtype)[0]])
    L, V, info = decompose(A, device)
    assert not info.any()
    compare(testing.eig_ratio(A, L, V), testing.eig_ratio(A, *lapack.eig(A)), EIG_THRESHOLD)


@each_dtype
def test_what_did_not_converge_says_so(
    dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 34
    A = torch.stack([testing.random((n, n), dtype), torch.eye(n, dtype=dtype)])
    monkeypatch.setattr(_eig_large_plan, "ROUNDS_A_ROW", 2 / n)
    L, V, info = decompose(A, device)
    assert 0 < info[0] <= n
    assert info[1] == 0
    assert L[0].isnan().all()
    assert V[0].isnan().all()
    assert (L[1] == 1).all()
