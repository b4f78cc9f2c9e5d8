"""The launch plans of eigh on the checked engine, at every boundary."""

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from mpslinalg import _eigh_plan, _tridiagonal_plan, testing
from mpslinalg.testing import EIGH_THRESHOLD, compare
from tests import lapack
from tests.inputs import DOUBLES, SINGLES, VIEWS, hermitian, name, on, random_hermitian

pytestmark = pytest.mark.usefixtures("checked")

# Beyond 32 rows: tridiagonal form by one threadgroup.
SIZES = (0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 32, 33, 64, 65)
CASES = [
    *((dtype, n) for dtype in SINGLES for n in SIZES),
    *((dtype, n) for dtype in DOUBLES for n in (7, 35)),
]
# Each width of a team, none of them full, and a threadgroup.
WIDTHS = (3, 6, 13, 19, 40)
each_dtype = pytest.mark.parametrize("dtype", SINGLES, ids=name)
each_width = pytest.mark.parametrize("n", WIDTHS)


def decompose(A: Tensor, device: str, lower: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    L, V, info = _eigh_plan.eigh(on(device, A), lower, True)
    return L.cpu(), V.cpu(), info.cpu()


def judge(A: Tensor, device: str) -> tuple[Tensor, Tensor]:
    """The ratio against SciPy's, and single eigenvalues against those in double precision."""
    L, V, info = decompose(A, device)
    assert not info.any()
    compare(testing.eigh_ratio(A, L, V), testing.eigh_ratio(A, *lapack.eigh(A)), EIGH_THRESHOLD)
    n = A.shape[-1]
    if A.dtype in SINGLES and n > 0:
        exact = A.to(torch.complex128)
        error = np.abs(L.double().numpy() - lapack.eigh(exact)[0])
        size = exact.abs().sum(-2).amax(-1, keepdim=True).numpy()
        assert (error <= max(n, 4) * 2.0**-24 * size).all()
    return L, V


@pytest.mark.parametrize(("dtype", "n"), CASES, ids=name)
def test_families(dtype: torch.dtype, n: int, device: str) -> None:
    A = hermitian(n, dtype)
    if n > 17:
        # Dense ones, and one of each other kind.
        A = A[[0, 2, 8, 9, 10, 12, 15]] if n <= 33 else A[[3, 9, 15]]
    L, _ = judge(A, device)
    values, vectors, info = _eigh_plan.eigh(on(device, A[:2]), False, False)
    assert vectors.shape == (0,)
    assert not info.any()
    if n <= _eigh_plan.SIMD_ROWS:
        assert torch.equal(values.cpu(), L[:2])
    else:
        eps, size = torch.finfo(L.dtype).eps, L[:2].abs().amax(-1, keepdim=True)
        assert ((values.cpu() - L[:2]).abs() <= 8 * eps * size).all()


@each_dtype
@pytest.mark.parametrize("n", [33, 67])
def test_panels(dtype: torch.dtype, n: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What only more than 256 rows take by default: one and two of them, few rows left."""
    monkeypatch.setattr(_tridiagonal_plan, "GROUP_ROWS", 32)
    A = hermitian(n, dtype)[[4, 8, 15]]
    A[0] += random_hermitian((n, n), dtype)
    judge(A, device)


@each_dtype
@each_width
def test_only_one_triangle_is_read(dtype: torch.dtype, n: int, device: str) -> None:
    A = random_hermitian((3, n, n), dtype)
    expected = decompose(A, device)
    for lower in (True, False):
        other = torch.full_like(A, torch.nan)
        half = A.tril() + other.triu(1) if lower else A.triu() + other.tril(-1)
        if dtype.is_complex:
            torch.view_as_real(half).diagonal(dim1=1, dim2=2)[:, 1] = torch.nan
        for ours, theirs in zip(decompose(half, device, lower), expected, strict=True):
            assert torch.equal(ours, theirs)


@each_dtype
@each_width
def test_powers_of_two_only_scale(dtype: torch.dtype, n: int, device: str) -> None:
    A = random_hermitian((n, n), dtype)
    L, V, _ = decompose(A, device)
    for k in (-80, -1, 3, 80):
        values, vectors, info = decompose(A * 2.0**k, device)
        assert torch.equal(values, L * 2.0**k)
        assert torch.equal(vectors, V)
        assert info == 0


@each_dtype
@pytest.mark.parametrize("n", [3, 6, 13])
def test_batches_are_their_matrices(dtype: torch.dtype, n: int, device: str) -> None:
    A = random_hermitian((11, n, n), dtype)
    # One that is done long before the others of its simdgroup.
    A[7] = torch.eye(n)
    together = decompose(A, device)
    for i in (0, 7, 10):
        for all_of_them, one in zip(together, decompose(A[i], device), strict=True):
            assert torch.equal(all_of_them[i], one)


@each_dtype
@each_width
def test_a_bad_matrix_spoils_itself_only(dtype: torch.dtype, n: int, device: str) -> None:
    A = random_hermitian((4, n, n), dtype)
    good = decompose(A, device)
    # Of a complex entry in the imaginary part alone.
    parts = torch.view_as_real(A) if dtype.is_complex else A[..., None]
    parts[1, 1, 0, -1] = torch.nan
    A[2, 2, 2] = -torch.inf
    L, V, info = decompose(A, device)
    assert info.tolist() == [0, n - 1, n - 1, 0]
    for ours, theirs in zip((L, V), good, strict=False):
        assert torch.equal(ours[[0, 3]], theirs[[0, 3]])
        assert ours[1:3].isnan().all()


@each_dtype
def test_one_number_is_its_own_eigenvalue(dtype: torch.dtype, device: str) -> None:
    A = torch.tensor([2.0, -3e-30, torch.inf, torch.nan]).to(dtype).view(4, 1, 1)
    L, V, info = decompose(A, device)
    assert torch.equal(L.nan_to_num(7), A.real.view(4, 1).nan_to_num(7))
    assert (V == 1).all()
    assert not info.any()


@pytest.mark.parametrize("view", VIEWS)
@each_dtype
def test_strides(dtype: torch.dtype, view: str, device: str) -> None:
    A = on(device, random_hermitian((1, 2, 6, 6), dtype))
    plain = _eigh_plan.eigh(A, True, True)
    for ours, expected in zip(_eigh_plan.eigh(VIEWS[view](A), True, True), plain, strict=True):
        assert torch.equal(ours, expected)


@each_dtype
def test_many_rotations_leave_vectors_orthonormal(dtype: torch.dtype, device: str) -> None:
    """Without the last pass the worst of these has 2.2 (float32) and 3.2 (complex64)."""
    A = random_hermitian((48, 8, 8), dtype)
    L, V, _ = decompose(A, device)
    assert testing.eigh_ratio(A, L, V).max() < 1.5


def special(n: int) -> list[Tensor]:
    """Repeated eigenvalues, and angles of a quarter turn everywhere."""
    i = torch.arange(n)
    apart = (i - i[:, None]).abs()
    ring = (apart == 1) | (apart == n - 1)
    cube = torch.tensor([[float((int(a) ^ int(b)).bit_count() == 1) for a in i] for b in i])
    return [
        torch.ones(n, n),
        torch.ones(n, n) - torch.eye(n),
        torch.eye(n).flip(0),
        ring.float(),
        cube,
        torch.diag((i - (n - 1) / 2).abs()) + (apart == 1),
        torch.minimum(i, i[:, None]) + 1.0,
        1 / (1.0 + i + i[:, None]),
    ]


@each_dtype
@pytest.mark.parametrize("n", [4, 13, 32, 48])
def test_special(dtype: torch.dtype, n: int, device: str) -> None:
    A = torch.stack(special(n)).to(dtype)
    if dtype.is_complex:
        # The same eigenvalues, with phases.
        phases = torch.polar(torch.ones(n), torch.arange(1.0, n + 1))
        A = (phases[:, None] * A * phases.conj()).tril()
        A = A.tril(-1) + A.tril(-1).mH + torch.diag_embed(A.diagonal(dim1=-2, dim2=-1).real)
    judge(A, device)


@each_dtype
@pytest.mark.parametrize("n", [3, 7])
def test_small_eigenvalues_of_a_graded_matrix(dtype: torch.dtype, n: int, device: str) -> None:
    """A = D B D with B well conditioned determines every eigenvalue; Jacobi finds them."""
    scale = torch.logspace(-5, 5, n)
    A = scale[:, None] * (torch.eye(n) + 0.3 / n * random_hermitian((n, n), dtype)) * scale
    A = A.tril(-1) + A.tril(-1).mH + torch.diag(A.diagonal().real)
    L, _, _ = decompose(A, device)
    with mpmath.workdps(50):
        expected = sorted(map(float, mpmath.eigh(mpmath.matrix(A.tolist()), eigvals_only=True)))
    assert (np.abs(L.numpy() - expected) <= n * 2.0**-22 * np.abs(expected)).all()
