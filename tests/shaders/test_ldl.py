"""The launch plans of the LDL family on the checked engine, at every boundary of their regimes."""

import functools
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from mpslinalg import _ldl_plan, testing
from mpslinalg.testing import compare
from tests import lapack
from tests.inputs import SINGLES, VIEWS, name, on

pytestmark = pytest.mark.usefixtures("checked")

# One and its neighbours of each variant.
SIZES = (1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
KINDS = ((torch.float32, False), (torch.complex64, False), (torch.complex64, True))
IN_DOUBLE = ((torch.float64, False, 3), (torch.complex128, True, 33), (torch.float64, False, 140))
ORDERS = [*((dtype, h, n) for dtype, h in KINDS for n in SIZES), *IN_DOUBLE]
REGIMES = (3, 5, 16, 32, 40, 140)

each_order = pytest.mark.parametrize(("dtype", "hermitian", "n"), ORDERS, ids=name)
each_kind = pytest.mark.parametrize(("dtype", "hermitian"), KINDS, ids=name)
each_regime = pytest.mark.parametrize("n", REGIMES)
each_dtype = pytest.mark.parametrize("dtype", SINGLES, ids=name)


class Factors(NamedTuple):
    LD: Tensor
    pivots: Tensor
    info: Tensor


def symmetric(A: Tensor, hermitian: bool) -> Tensor:
    return A + (A.mH if hermitian else A.mT)


def random(batch: int, n: int, dtype: torch.dtype, hermitian: bool, seed: int = 0) -> Tensor:
    return symmetric(testing.random((batch, n, n), dtype, seed), hermitian)


@functools.cache
def families(n: int, dtype: torch.dtype, hermitian: bool) -> dict[str, Tensor]:
    """Symmetric indefinite matrices of every kind of pivot, scale and rank."""
    A = random(1, n, dtype, hermitian, seed=n)[0]
    unit = torch.tensor(1j if dtype.is_complex else 1.0, dtype=dtype)
    off_diagonal = 1 - torch.eye(n)
    steps = torch.arange(n) / n
    lower = torch.ones(n, n).tril(-1).to(dtype) * unit
    wide = torch.complex128 if dtype.is_complex else torch.float64
    Q, _ = torch.linalg.qr(testing.random((n, n), dtype, seed=n + 1).to(wide))
    signs = (-1.0) ** torch.arange(n)
    near_singular = (Q * signs * 1e-6**steps) @ (Q.mH if hermitian else Q.mT)
    made = {
        "random": A,
        # Every pivot is 2 x 2, so that blocks lie across every boundary of panels.
        "zero_diagonal": A * off_diagonal,
        "exchange": torch.eye(n).flip(0).to(dtype) * (1 if hermitian else unit),
        "small_diagonal": A * (off_diagonal + 1e-5 * torch.eye(n)),
        "graded": A * 1e-8 ** (steps[:, None] + steps),
        "graded_up": A * 1e-8 ** (steps.flip(0)[:, None] + steps.flip(0)),
        "dominant": A + torch.diag(signs * 4 * n),
        "near_singular": near_singular.to(dtype),
        "tiny": A * 1e-30,
        "huge": A * 1e30,
        # These are exact, so that their zero pivots are, too.
        "zero": torch.zeros(n, n, dtype=dtype),
        "rank_one": torch.ones(n, n, dtype=dtype),
        "skew": symmetric(lower, hermitian),
        "ends_in_zeros": A * (torch.arange(n) < n // 2) * (torch.arange(n)[:, None] < n // 2),
    }
    return {name: matrix.to(dtype) for name, matrix in made.items()}


@functools.cache
def gallery(n: int, dtype: torch.dtype, hermitian: bool) -> Tensor:
    # Beyond a simdgroup the checked engine takes its time: neighbouring sizes share the families.
    matrices = list(families(n, dtype, hermitian).values())
    step = 1 if n <= _ldl_plan.SIMD else 2 if n <= 65 else 4
    return torch.stack(matrices[n % step :: step])


def factor(A: Tensor, hermitian: bool) -> Factors:
    return Factors(*_ldl_plan.ldl_factor(A, hermitian))


def judge(A: Tensor, hermitian: bool, ours: Factors) -> None:
    theirs = lapack.sytrf(A, hermitian)
    compare(
        testing.ldl_ratio(A, *ours[:2], hermitian), testing.ldl_ratio(A, *theirs[:2], hermitian)
    )
    assert ours.info.tolist() == theirs[2].tolist()
    assert not ours.LD.triu(1).any()
    if hermitian:
        assert not ours.LD.diagonal(dim1=-2, dim2=-1).imag.any()


@each_order
def test_factor(dtype: torch.dtype, hermitian: bool, n: int, device: str) -> None:
    A = gallery(n, dtype, hermitian)
    upper = torch.ones(n, n).triu(1).bool()
    unread = torch.where(upper, torch.nan, A)
    if hermitian:
        unread = unread + 5j * torch.eye(n)
    judge(A, hermitian, factor(on(device, unread), hermitian))


@pytest.mark.parametrize(
    ("dtype", "hermitian", "n"), [o for o in ORDERS if o[2] not in (63, 127, 128)], ids=name
)
def test_pivots_are_lapacks(dtype: torch.dtype, hermitian: bool, n: int, device: str) -> None:
    A = random(3, n, dtype, hermitian, seed=5)
    _, theirs, _ = lapack.sytrf(A, hermitian)
    # Where the precision decides on a pivot, it is a tie.
    _, exact, _ = lapack.sytrf(
        A.to(torch.complex128 if dtype.is_complex else torch.float64), hermitian
    )
    clear = (theirs == exact).all(-1)
    assert clear.sum() >= 2
    pivots = factor(on(device, A), hermitian).pivots.numpy(force=True)
    np.testing.assert_array_equal(pivots[clear], theirs[clear])


@each_order
def test_solve(dtype: torch.dtype, hermitian: bool, n: int, device: str) -> None:
    A = gallery(n, dtype, hermitian)
    LD, pivots, info = lapack.sytrf(A, hermitian)
    regular = np.flatnonzero(info == 0)
    A, LD, pivots = A[regular], LD[regular], pivots[regular]
    # Of the diagonal of a Hermitian D only the real part counts.
    given = torch.from_numpy(LD) + (5j * torch.eye(n) if hermitian else 0)
    factors = on(device, given), on(device, torch.from_numpy(pivots))
    for k in (1, 2, 15) if n <= 33 else (3,):
        X_true = testing.random((len(A), n, k), dtype, seed=2)
        exact = A.to(torch.complex128) @ X_true.to(torch.complex128)
        B = (exact if dtype.is_complex else exact.real).to(dtype)
        X = _ldl_plan.ldl_solve(*factors, on(device, B), hermitian)
        X_lapack = lapack.sytrs(LD, pivots, B, hermitian)
        compare(testing.solve_ratio(A, X, B), testing.solve_ratio(A, X_lapack, B))
        compare(testing.forward_ratio(A, X, X_true), testing.forward_ratio(A, X_lapack, X_true))


@pytest.mark.parametrize("n", [3, 8, 16, 32, 40])
@each_kind
def test_solve_many_columns(dtype: torch.dtype, hermitian: bool, n: int, device: str) -> None:
    A = on(device, random(3, n, dtype, hermitian))
    LD, pivots, _ = factor(A, hermitian)
    B = on(device, testing.random((3, n, 67), dtype, seed=1))
    X = _ldl_plan.ldl_solve(LD, pivots, B, hermitian)
    parts = [_ldl_plan.ldl_solve(LD, pivots, b, hermitian) for b in B.tensor_split((33, 66), -1)]
    assert torch.equal(X, torch.cat(parts, -1))


def same(a: Any, b: Any) -> bool:
    """Whether all tensors of two results agree to the last bit, NaN with NaN."""
    return all(
        np.array_equal(x.numpy(force=True), y.numpy(force=True), equal_nan=x.dtype != torch.int32)
        for x, y in zip(a, b, strict=True)
    )


@each_kind
def test_tall_panels(
    dtype: torch.dtype, hermitian: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows than threads: several at once, and again."""
    A = random(2, 140, dtype, hermitian)
    A[1] *= 1 - torch.eye(140)
    expected = factor(on(device, A), hermitian)
    monkeypatch.setattr(_ldl_plan, "MAX_THREADS", 32)
    assert same(factor(on(device, A), hermitian), expected)


@each_regime
@each_kind
def test_powers_of_two_are_exact(dtype: torch.dtype, hermitian: bool, n: int, device: str) -> None:
    A = random(1, n, dtype, hermitian)[0]
    scale = torch.exp2(torch.tensor([-80.0, -20.0, 0.0, 20.0, 80.0]))[:, None, None]
    LD, pivots, info = (x.cpu() for x in factor(on(device, A * scale), hermitian))
    assert not info.any()
    assert torch.equal(pivots, pivots[2].expand_as(pivots))
    D = LD.diagonal(dim1=-2, dim2=-1)
    assert torch.equal(D, D[2] * scale[:, 0])
    # Of a 2 x 2 block the corner scales with D, the rest below the diagonal is L.
    L = LD.tril(-1)
    starts = [k for k in range(n - 1) if L[0, k + 1, k] != L[2, k + 1, k]]
    for k in starts:
        assert pivots[0, k] < 0
        assert torch.equal(L[:, k + 1, k], L[2, k + 1, k] * scale[:, 0, 0])
        L[:, k + 1, k] = 0
    assert torch.equal(L, L[2].expand_as(L))
    B = testing.random((n, 2), dtype, seed=1).expand(5, n, 2)
    X = _ldl_plan.ldl_solve(on(device, LD), on(device, pivots), on(device, B), hermitian).cpu()
    assert torch.equal(X, X[2] / scale)


@each_regime
@each_dtype
def test_ties_fall_to_the_first_row(dtype: torch.dtype, n: int, device: str) -> None:
    # All below the zero diagonal are of one size, 1 or, as |re| + |im|, 3 - 4i and 5 + 2i.
    A = torch.ones(1, n, n).to(dtype)
    if dtype.is_complex:
        A *= torch.tensor([3 - 4j, 5 + 2j])[(torch.arange(n) + torch.arange(n)[:, None]) % 2]
    A = A.tril(-1) + A.tril(-1).mT
    ours = factor(on(device, A), False)
    assert ours.pivots[0, :2].tolist() == [-2, -2]
    np.testing.assert_array_equal(ours.pivots[:, :2].cpu(), lapack.sytrf(A)[1][:, :2])
    # The last row of the first column weighs more than the others, which weigh the same.
    A[:, -1, 0] *= 2
    assert factor(on(device, A), False).pivots[0, :2].tolist() == [-n, -n]


@each_regime
@each_kind
def test_nan_never_hides(dtype: torch.dtype, hermitian: bool, n: int, device: str) -> None:
    A = random(4, n, dtype, hermitian)
    A[0, -1, 0] = A[1, n // 2, n // 2] = A[2, 0, 0] = torch.nan
    LD, pivots, info = (x.cpu() for x in factor(on(device, A), hermitian))
    assert LD.isnan().flatten(1).any(1).tolist() == [True, True, True, False]
    assert info[2:].tolist() == [1, 0]
    assert pivots[0, :2].tolist() == [-n, -n]
    assert same(factor(on(device, A[3:]), hermitian), (LD[3:], pivots[3:], info[3:]))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("n", [3, 8, 32, 40, 140])
@each_dtype
def test_strides(dtype: torch.dtype, n: int, view: str, device: str) -> None:
    A = on(device, random(3, n, dtype, True))
    B = on(device, testing.random((3, n, 3), dtype, seed=1))
    LD, pivots, info = factor(A, True)
    assert same(factor(VIEWS[view](A), True), (LD, pivots, info))
    X = _ldl_plan.ldl_solve(LD, pivots, B, True)
    swaps = pivots.mT.contiguous().mT
    Y = _ldl_plan.ldl_solve(VIEWS[view](LD), swaps, VIEWS[view](B), True)
    # Past 32 rows the triangular solve rounds in another order.
    compare(testing.solve_ratio(A, Y, B), testing.solve_ratio(A, X, B))
    assert n > _ldl_plan.SIMD or same((X,), (Y,))


@pytest.mark.parametrize("n", [3, 20, 40])
def test_pivots_of_the_caller(n: int, device: str) -> None:
    """Whatever they are, nothing is read or written out of range."""
    A, B = (on(device, testing.random((6, n, m), torch.float32)) for m in (n, 2))
    pivots = on(device, torch.tensor([0, -1, -n, n + 1, -n - 5, 2**31 - 1], dtype=torch.int32))
    X = _ldl_plan.ldl_solve(A, pivots[:, None].expand(6, n), B, False)
    assert X.shape == B.shape


@pytest.mark.parametrize("shape", [(0, 0), (3, 0, 0), (0, 3, 3), (0, 40, 40), (0, 140, 140)])
@each_dtype
def test_empty(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    A = torch.empty(shape, dtype=dtype, device=device)
    LD, pivots, info = factor(A, False)
    assert LD.shape == A.shape
    assert pivots.shape == shape[:-1]
    assert info.tolist() == torch.zeros(shape[:-2]).tolist()
    assert _ldl_plan.ldl_solve(LD, pivots, A, False).shape == shape
    assert _ldl_plan.ldl_solve(LD, pivots, A[..., :0], False).shape == (*shape[:-1], 0)
