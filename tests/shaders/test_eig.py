"""The launch plans of eig on the checked engine, at every boundary."""

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

from mpslinalg import _eig_plan, testing
from mpslinalg.testing import EIG_THRESHOLD, compare
from tests import lapack
from tests.inputs import DOUBLES, SINGLES, VIEWS, name, nonsymmetric, on

pytestmark = pytest.mark.usefixtures("checked")

# A simdgroup of either capacity; a threadgroup of two simdgroups.
SIZES = (3, 17, 33)
each_dtype = pytest.mark.parametrize("dtype", SINGLES, ids=name)
each_size = pytest.mark.parametrize("n", SIZES)


def decompose(A: Tensor, device: str) -> tuple[Tensor, Tensor, Tensor]:
    L, V, info = _eig_plan.eig(on(device, A), True)
    return L.cpu(), V.cpu(), info.cpu()


def judge(A: Tensor, device: str) -> tuple[Tensor, Tensor]:
    """The ratio against SciPy's; conjugate pairs; the same values without vectors."""
    L, V, info = decompose(A, device)
    assert not info.any()
    compare(testing.eig_ratio(A, L, V), testing.eig_ratio(A, *lapack.eig(A)), EIG_THRESHOLD)
    if not A.is_complex():
        assert_conjugate(L, V)
    values, none, info = _eig_plan.eig(on(device, A), False)
    assert torch.equal(values.cpu(), L)
    assert none.shape == (0,)
    assert not info.any()
    return L, V


def assert_conjugate(L: Tensor, V: Tensor) -> None:
    """Pairs stand together, the positive imaginary part first; other vectors are real."""
    for values, vectors in zip(L.view(-1, L.shape[-1]), V.mT.flatten(0, -3), strict=True):
        k = 0
        while k < len(values):
            if values[k].imag == 0:
                assert not vectors[k].imag.any()
                k += 1
                continue
            assert values[k].imag > 0
            assert values[k + 1] == values[k].conj()
            assert torch.equal(vectors[k + 1], vectors[k].conj())
            assert (vectors[k].imag == 0).any()
            k += 2


@pytest.mark.parametrize(
    ("dtype", "n"),
    [
        *((dtype, n) for dtype in SINGLES for n in (1, 2, 3, 4, 8, 10, 16, 17, 32, 33)),
        *((dtype, 7) for dtype in DOUBLES),
    ],
    ids=name,
)
def test_families(dtype: torch.dtype, n: int, device: str) -> None:
    A = nonsymmetric(n, dtype)
    if n > 17:
        # Dense ones, and one of each other kind.
        A = A[[2, 9, 11, 14, 15, 20]]
    judge(A, device)


def special(n: int, dtype: torch.dtype) -> Tensor:
    """Matrices that have been hard for eigenvalue programs."""
    i = np.arange(n)
    rng = np.random.default_rng(n)
    X = rng.standard_normal((n, n))
    if dtype.is_complex:
        X = X + 1j * rng.standard_normal((n, n))
    frank = np.where(i[:, None] - 1 <= i, n - np.maximum(i[:, None], i), 0)
    made = [
        # A cycle: no shift but an exceptional one moves it.
        np.roll(np.eye(n), 1, 0),
        np.eye(n)[rng.permutation(n)],
        # Blocks of zeros on the diagonal.
        scipy.linalg.block_diag(*[[[0.0, 1.0], [-1.0, 0.0]]] * (n // 2), *[[[0.0]]] * (n % 2)),
        np.eye(n, k=1) - np.eye(n, k=-1),
        # Nilpotent, and defective with one eigenvalue.
        np.eye(n, k=1),
        3.0 * np.eye(n) + np.eye(n, k=1),
        np.triu(X),
        np.tril(X),
        np.linalg.qr(X)[0],
        X - X.conj().T,
        X + X.conj().T,
        # Two equal halves, so that every pair occurs twice.
        scipy.linalg.block_diag(X[: n // 2, : n // 2], X[: n // 2, : n // 2], np.eye(n % 2)),
        np.ones((n, n)),
        frank,
        sum(np.eye(n, k=k) for k in range(4)) - np.eye(n, k=-1),  # Grcar's
        scipy.linalg.companion(np.poly(1.0 + i[: min(n, 10)])),
        X * 2.0 ** np.minimum(i, 20)[:, None] / 2.0 ** np.minimum(i, 20),
    ]
    square = [np.asarray(a) for a in made if a.shape == (n, n)]
    return torch.stack([torch.from_numpy(a.astype(X.dtype)).to(dtype) for a in square])


@each_dtype
@pytest.mark.parametrize("n", [2, 10, 18, 33])
def test_special_matrices(dtype: torch.dtype, n: int, device: str) -> None:
    A = special(n, dtype)
    judge(A if n < 33 else A[[0, 1, 3, 5, 11]], device)


@each_dtype
@each_size
def test_powers_of_two_only_scale(dtype: torch.dtype, n: int, device: str) -> None:
    A = testing.random((n, n), dtype)
    L, V, _ = decompose(A, device)
    for k in (-80, -1, 80):
        values, vectors, info = decompose(A * 2.0**k, device)
        assert torch.equal(values, L * 2.0**k)
        assert torch.equal(vectors, V)
        assert info == 0


@each_dtype
@each_size
def test_a_bad_matrix_spoils_itself_only(dtype: torch.dtype, n: int, device: str) -> None:
    A = testing.random((5, n, n), dtype)
    good = decompose(A, device)
    A[1, 1, 0] = torch.nan
    A[2, 2, 2] = -torch.inf
    if dtype.is_complex:
        A[2, 2, 2] = torch.tensor(complex(0, torch.nan))
    L, V, info = decompose(A, device)
    assert info.tolist() == [0, n + 1, n + 1, 0, 0]
    for ours, theirs in zip((L, V), good, strict=False):
        assert torch.equal(ours[[0, 3, 4]], theirs[[0, 3, 4]])
        assert ours[1:3].isnan().all()


@each_dtype
@each_size
def test_batches_are_their_matrices(dtype: torch.dtype, n: int, device: str) -> None:
    A = testing.random((3, n, n), dtype)
    together = decompose(A, device)
    for all_of_them, one in zip(together, decompose(A[2], device), strict=True):
        assert torch.equal(all_of_them[2], one)


@pytest.mark.parametrize("n", [6, 33])
@pytest.mark.parametrize("view", VIEWS)
@each_dtype
def test_strides(dtype: torch.dtype, view: str, n: int, device: str) -> None:
    A = on(device, testing.random((1, 2, n, n), dtype))
    plain = _eig_plan.eig(A, False)
    for ours, expected in zip(_eig_plan.eig(VIEWS[view](A), False), plain, strict=True):
        assert torch.equal(ours, expected)


@each_dtype
def test_launches_share_the_work(
    dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 34
    A = testing.random((2, n, n), dtype)
    expected = decompose(A, device)
    monkeypatch.setattr(_eig_plan, "PASSES", 7 * n)
    monkeypatch.setattr(_eig_plan, "ENTRIES", 9 * n**2)
    for ours, theirs in zip(decompose(A, device), expected, strict=True):
        assert torch.equal(ours, theirs)


def judge_balance(dtype: torch.dtype, n: int, device: str) -> None:
    """Small eigenvalues of D B D^-1 would drown in the rounding of its large entries."""
    B = testing.random((n, n), dtype)
    scales = 2.0 ** torch.linspace(-20, 20, n).round()
    A = scales[:, None] * B / scales
    L, _, info = decompose(A, device)
    assert info == 0
    exact = torch.from_numpy(np.linalg.eigvals(B.to(torch.complex128).numpy()))
    distances = (L[:, None].to(torch.complex128) - exact).abs()
    assert distances.amin(0).max() <= 1e-4
    assert distances.amin(1).max() <= 1e-4


@each_dtype
@each_size
def test_scales_of_rows_and_columns_are_undone(dtype: torch.dtype, n: int, device: str) -> None:
    judge_balance(dtype, n, device)


@each_dtype
def test_what_did_not_converge_says_so(
    dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too few launches, as none of these matrices needs the sweeps that they may take."""
    n = 34
    A = torch.stack([testing.random((n, n), dtype), torch.eye(n, dtype=dtype)])
    monkeypatch.setattr(_eig_plan, "SWEEPS_A_ROW", 0)
    monkeypatch.setattr(_eig_plan, "PASSES", n)
    L, V, info = decompose(A, device)
    assert 0 < info[0] <= n
    assert info[1] == 0
    assert L[0].isnan().all()
    assert V[0].isnan().all()
    assert (L[1] == 1).all()
