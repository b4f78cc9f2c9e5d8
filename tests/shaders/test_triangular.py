"""The launch plan of the triangular solve on the checked engine."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from mpslinalg import _triangular_plan, testing
from mpslinalg.testing import compare
from tests import lapack
from tests.inputs import DOUBLES, SINGLES, VIEWS, name, on
from tests.lapack import TRANS, Trans

pytestmark = pytest.mark.usefixtures("checked")

# The rows of one launch.
ROWS = _triangular_plan.ROWS
SIZES = (1, 3, 8, 31, 32, 33, 65)
ORDERS = [
    *((dtype, n) for dtype in SINGLES for n in SIZES),
    *((dtype, n) for dtype in DOUBLES for n in (3, 33)),
]
FAMILIES = (
    "well_conditioned",
    "near_singular",
    "near_underflow",
    "near_overflow",
)

each_dtype = pytest.mark.parametrize("dtype", SINGLES, ids=name)
each_upper = pytest.mark.parametrize("upper", [False, True], ids=["lower", "upper"])
each_unit = pytest.mark.parametrize("unit", [False, True], ids=["non_unit", "unit"])
each_size = pytest.mark.parametrize("n", [1, 5, 32, 40])


def triangles(n: int, dtype: torch.dtype, upper: bool, unit: bool) -> Tensor:
    """Triangles of every conditioning and scale; a unit one has multipliers of at most 1."""
    A = torch.stack([M.A for M in testing.general(n, n, dtype, seed=n) if M.name in FAMILIES])
    if unit:
        L = torch.from_numpy(lapack.getrf(A)[0]).tril(-1) + torch.eye(n, dtype=dtype)
        return L.mT if upper else L
    _, R = np.linalg.qr(A.to(torch.complex128 if dtype.is_complex else torch.float64).numpy())
    U = torch.from_numpy(R).to(dtype)
    return U if upper else U.mT


def with_other_triangle(A: Tensor, upper: bool, unit: bool, value: float) -> Tensor:
    """The other triangle, and a diagonal that is taken as 1, hold what must not be read."""
    read = A.triu(int(unit)) if upper else A.tril(-int(unit))
    mask = torch.ones(A.shape[-2:]).triu(int(unit)).bool()
    return torch.where(mask if upper else mask.mT, read, value)


def solve(A: Tensor, B: Tensor, upper: bool, unit: bool, trans: Trans, device: str) -> Tensor:
    return _triangular_plan.solve_triangular(
        on(device, A), on(device, B), upper, unit, TRANS.index(trans)
    ).cpu()


@each_upper
@each_unit
@pytest.mark.parametrize(("dtype", "n"), ORDERS, ids=name)
def test_solve(dtype: torch.dtype, n: int, upper: bool, unit: bool, device: str) -> None:
    A = triangles(n, dtype, upper, unit)
    stored = with_other_triangle(A, upper, unit, torch.nan)
    if not upper:
        # Column-major: each way to store A has its kernel for few columns.
        stored = stored.mT.contiguous().mT
    # Few columns share a threadgroup, many are taken 32 at a time.
    counts = (1, 2, 3, 4, 5, 32, 33) if n <= 33 else (1, 4, 5, 33)
    X_true = testing.random((len(A), n, sum(counts)), dtype, seed=2)
    for trans in TRANS:
        op = A if trans == "N" else A.mT if trans == "T" else A.mH
        exact = op.to(torch.complex128) @ X_true.to(torch.complex128)
        B = (exact if dtype.is_complex else exact.real).to(dtype)
        parts = [
            solve(stored, b, upper, unit, trans, device)
            for b in B.tensor_split(tuple(itertools.accumulate(counts[:-1])), -1)
        ]
        X, X_lapack = torch.cat(parts, -1), lapack.trtrs(A, B, upper, unit, trans)
        compare(testing.solve_ratio(A, X, B, trans), testing.solve_ratio(A, X_lapack, B, trans))
        compare(
            testing.forward_ratio(A, X, X_true, trans),
            testing.forward_ratio(A, X_lapack, X_true, trans),
        )


@each_upper
@pytest.mark.parametrize(("n", "k"), [(ROWS, 5), (ROWS + 1, 5), (_triangular_plan.FEW_ROWS + 1, 1)])
@each_dtype
def test_solve_large(dtype: torch.dtype, n: int, k: int, upper: bool, device: str) -> None:
    # One row more than one launch takes, of many columns and of few.
    A = testing.random((1, n, n), dtype) / n**0.5 + 3 * torch.eye(n)
    A = (A.triu() if upper else A.tril()).mT.contiguous().mT
    B = testing.random((1, n, k), dtype, seed=2)
    for trans in TRANS:
        X, X_lapack = (
            solve(A, B, upper, False, trans, device),
            lapack.trtrs(A, B, upper, False, trans),
        )
        compare(testing.solve_ratio(A, X, B, trans), testing.solve_ratio(A, X_lapack, B, trans))


@pytest.mark.parametrize("trans", TRANS)
@each_upper
@each_size
@each_dtype
def test_powers_of_two_are_exact(
    dtype: torch.dtype, n: int, upper: bool, trans: Trans, device: str
) -> None:
    exponents = torch.arange(-60, 61, 20)
    scale = torch.exp2(exponents.float())[:, None, None]
    A = testing.random((n, n), dtype) + 4 * n**0.5 * torch.eye(n)
    B = testing.random((n, 3), dtype, seed=1).expand(len(scale), n, 3)
    X = solve(A * scale, B, upper, False, trans, device)
    assert torch.equal(X, X[exponents == 0] / scale)
    X = solve(A.expand(len(scale), n, n), B * scale, upper, False, trans, device)
    assert torch.equal(X, X[exponents == 0] * scale)


@each_upper
@each_size
@each_dtype
def test_a_zero_on_the_diagonal(dtype: torch.dtype, n: int, upper: bool, device: str) -> None:
    A = testing.random((3, n, n), dtype) + 4 * n**0.5 * torch.eye(n)
    B = testing.random((3, n, 2), dtype, seed=1)
    expected = solve(A, B, upper, False, "N", device)
    A[1, n // 2, n // 2] = 0
    X = solve(A, B, upper, False, "N", device)
    assert torch.equal(X[[0, 2]], expected[[0, 2]])
    assert not X[1].isfinite().all(0).any()
    assert solve(A, B, upper, True, "N", device).isfinite().all()


@each_size
@each_dtype
def test_a_bad_column_spoils_itself_only(dtype: torch.dtype, n: int, device: str) -> None:
    A = testing.random((2, n, n), dtype) + 4 * n**0.5 * torch.eye(n)
    B = testing.random((2, n, 5), dtype, seed=1)
    expected = solve(A, B, True, False, "N", device)
    for value in (torch.nan, torch.inf):
        B[0, n - 1, 2] = value
        X = solve(A, B, True, False, "N", device)
        assert torch.equal(X[1], expected[1])
        assert not X[0, :, 2].isfinite().any()
        good = [0, 1, 3, 4]
        assert torch.equal(X[0][:, good], expected[0][:, good])


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("trans", TRANS)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 5), (32, 2), (40, 3), (40, 6)])
@each_dtype
def test_strides(dtype: torch.dtype, n: int, k: int, trans: Trans, view: str, device: str) -> None:
    A = testing.random((3, n, n), dtype) + 4 * n**0.5 * torch.eye(n)
    B = testing.random((3, n, k), dtype, seed=1)
    a, b = (VIEWS[view](on(device, x)) for x in (A, B))
    X = _triangular_plan.solve_triangular(a, b, True, False, TRANS.index(trans)).cpu()
    triangle = A.triu()
    compare(
        testing.solve_ratio(triangle, X, B, trans),
        testing.solve_ratio(triangle, lapack.trtrs(A, B, True, False, trans), B, trans),
    )


@pytest.mark.parametrize(
    "shapes", [((0, 0), (0, 2)), ((3, 0, 0), (3, 0, 2)), ((0, 3, 3), (0, 3, 2))]
)
@each_dtype
def test_empty(
    dtype: torch.dtype, shapes: tuple[tuple[int, ...], tuple[int, ...]], device: str
) -> None:
    A, B = (torch.empty(s, dtype=dtype) for s in shapes)
    for trans in TRANS:
        assert solve(A, B, True, False, trans, device).shape == B.shape
    A, B = torch.ones(2, 3, 3, dtype=dtype), torch.empty(2, 3, 0, dtype=dtype)
    assert solve(A, B, True, False, "N", device).shape == B.shape
