"""solve, solve_ex and lu_solve through the kernels, held against SciPy."""

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg.testing import LU_THRESHOLD
from tests import lapack
from tests.inputs import DOUBLES, SINGLES, VIEWS, gallery, name, on
from tests.lapack import Trans

pytestmark = pytest.mark.usefixtures("kernels")

# Batches of A and of B.
BATCHES = (
    *(((), ()), ((2,), (2,)), ((2,), ()), ((), (2,)), ((1,), (3,)), ((3,), (1,))),
    *(((2, 1), (3,)), ((3,), (2, 1)), ((1, 3), (2, 1)), ((2, 3), (2, 3)), ((2, 1, 3), (4, 1))),
    *(((0,), ()), ((), (0,)), ((0,), (1,)), ((2, 0), (1, 1)), ((1,), (2, 0, 1))),
)
# A and B of which one is a batch of vectors or a vector, by torch's rule.
VECTORS = (
    *(((3, 3), (3,)), ((2, 3, 3), (2, 3)), ((2, 4, 3, 3), (2, 4, 3)), ((2, 3, 3), (3,))),
    *(((2, 2, 2), (2, 2)), ((3, 3, 3), (3, 3)), ((1, 1), (1,)), ((40, 40), (40,))),
    *(((2, 40, 40), (2, 40)), ((0, 0), (0,)), ((2, 0, 0), (2, 0)), ((0, 3, 3), (0, 3))),
)

each_single = pytest.mark.parametrize("dtype", SINGLES, ids=name)
each_batch = pytest.mark.parametrize("batches", BATCHES, ids=name)
each_side = pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
each_adjoint = pytest.mark.parametrize("adjoint", [False, True], ids=["plain", "adjoint"])


def system(
    batches: tuple[tuple[int, ...], tuple[int, ...]],
    dtype: torch.dtype,
    n: int = 4,
    k: int = 3,
    left: bool = True,
) -> tuple[Tensor, Tensor]:
    of_A, of_B = batches
    A = testing.random((*of_A, n, n), dtype)
    return A, testing.random((*of_B, n, k) if left else (*of_B, k, n), dtype, seed=1)


def double(A: Tensor) -> NDArray[Any]:
    return A.numpy(force=True).astype(np.complex128 if A.is_complex() else np.float64)


def exact(A: Tensor, B: Tensor, left: bool = True, adjoint: bool = False) -> NDArray[Any]:
    """The solution by SciPy in double precision, system by system."""
    a, b = double(A), double(B)
    if adjoint:
        a = a.conj().swapaxes(-2, -1)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a = np.broadcast_to(a, (*batch, *a.shape[-2:]))
    b = np.broadcast_to(b, (*batch, *b.shape[-2:]))
    X = np.empty(b.shape, b.dtype)
    for i in np.ndindex(*batch):
        X[i] = scipy.linalg.solve(a[i], b[i]) if left else scipy.linalg.solve(a[i].T, b[i].T).T
    return X


def judge(A: Tensor, X: Tensor, B: Tensor, left: bool = True, adjoint: bool = False) -> None:
    expected = exact(A, B, left, adjoint)
    assert X.shape == expected.shape
    trans: Trans = "C" if adjoint else "N"
    batch = X.shape[:-2]
    matrices = A.expand(*batch, *A.shape[-2:])
    assert (testing.solve_ratio(matrices, X, B, trans, left) < LU_THRESHOLD).all()
    assert (testing.forward_ratio(matrices, X, expected, trans, left) < LU_THRESHOLD).all()


@each_side
@each_batch
@each_single
def test_solve_broadcasts(
    dtype: torch.dtype, batches: tuple[tuple[int, ...], tuple[int, ...]], left: bool, device: str
) -> None:
    A, B = system(batches, dtype, left=left)
    X = LA.solve(on(device, A), on(device, B), left=left)
    judge(A, X, B, left)
    assert X.dtype == dtype
    assert X.stride() == torch.linalg.solve(A, B, left=left).stride()
    result, info = LA.solve_ex(on(device, A), on(device, B), left=left)
    assert torch.equal(result, X)
    assert info.shape == batches[0]
    assert not info.any()


@each_adjoint
@each_side
@each_batch
@each_single
def test_lu_solve_broadcasts(
    dtype: torch.dtype,
    batches: tuple[tuple[int, ...], tuple[int, ...]],
    left: bool,
    adjoint: bool,
    device: str,
) -> None:
    A, B = system(batches, dtype, left=left)
    LU, pivots = LA.lu_factor(on(device, A))
    X = LA.lu_solve(LU, pivots, on(device, B), left=left, adjoint=adjoint)
    judge(A, X, B, left, adjoint)
    expected = torch.linalg.lu_solve(*torch.linalg.lu_factor(A), B, left=left, adjoint=adjoint)
    assert X.dtype == dtype
    assert X.stride() == expected.stride()
    assert not X.is_conj()


@each_adjoint
@each_side
@pytest.mark.parametrize("k", [1, 7, 70])
@pytest.mark.parametrize(
    ("dtype", "n"),
    [*((d, n) for d in SINGLES for n in (1, 3, 5, 40)), *((d, 5) for d in DOUBLES)],
    ids=name,
)
def test_sizes(dtype: torch.dtype, n: int, k: int, left: bool, adjoint: bool, device: str) -> None:
    A, B = system(((2,), (2,)), dtype, n, k, left)
    LU, pivots = LA.lu_factor(on(device, A))
    judge(A, LA.lu_solve(LU, pivots, on(device, B), left=left, adjoint=adjoint), B, left, adjoint)
    if not adjoint:
        judge(A, LA.solve(on(device, A), on(device, B), left=left), B, left)


@pytest.mark.parametrize(("of_A", "of_B"), VECTORS, ids=name)
@each_single
def test_vectors(
    dtype: torch.dtype, of_A: tuple[int, ...], of_B: tuple[int, ...], device: str
) -> None:
    A, B = testing.random(of_A, dtype), testing.random(of_B, dtype, seed=1)
    expected = torch.linalg.solve(A, B)
    X = LA.solve(on(device, A), on(device, B))
    assert X.shape == expected.shape
    assert X.stride() == expected.stride()
    vector = len(of_B) == 1 or of_B == of_A[:-1]
    columns = B.unsqueeze(-1) if vector else B
    judge(A, X.unsqueeze(-1) if vector else X, columns)
    result = LA.solve_ex(on(device, A), on(device, B))
    assert type(result) is type(torch.linalg.solve_ex(A, B))
    assert torch.equal(result.result, X)
    assert result.info.shape == of_A[:-2]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("n", [3, 5, 40])
@each_single
def test_views(dtype: torch.dtype, n: int, view: str, device: str) -> None:
    A, B = system(((2, 3), (2, 3)), dtype, n)
    a, b = on(device, A), on(device, B)
    strided_a, strided_b = VIEWS[view](a), VIEWS[view](b)
    judge(A, LA.solve(strided_a, strided_b), B)
    judge(A, LA.solve(strided_a, b), B)
    judge(A, LA.solve(a, strided_b), B)
    judge(A, LA.solve(strided_a, strided_b.mT, left=False), B.mT, left=False)
    LU, pivots = LA.lu_factor(a)
    inside = pivots.movedim(-1, 0).contiguous().movedim(0, -1)
    gaps = torch.stack((pivots, pivots), -1)[..., 0]
    for adjoint in (False, True):
        judge(A, LA.lu_solve(VIEWS[view](LU), pivots, strided_b, adjoint=adjoint), B, True, adjoint)
        judge(A, LA.lu_solve(LU, inside, b, adjoint=adjoint), B, True, adjoint)
        judge(A, LA.lu_solve(LU, gaps, b, adjoint=adjoint), B, True, adjoint)


@each_single
def test_expanded(dtype: torch.dtype, device: str) -> None:
    A, B = system(((), ()), dtype)
    a, b = on(device, A).expand(2, 3, 4, 4), on(device, B).expand(2, 3, 4, 3)
    judge(A.expand(2, 3, 4, 4), LA.solve(a, b), B)
    LU, pivots = LA.lu_factor(on(device, A))
    X = LA.lu_solve(LU.expand(2, 3, 4, 4), pivots.expand(2, 3, 4), b)
    judge(A.expand(2, 3, 4, 4), X, B)


@each_side
@each_single
def test_inputs_are_not_written(dtype: torch.dtype, left: bool, device: str) -> None:
    for n in (3, 5, 40):
        A, B = (on(device, x) for x in system(((2,), (2,)), dtype, n, n))
        LU, pivots = LA.lu_factor(A)
        given = (A, B.mT.contiguous().mT, LU, pivots)
        copies = [x.clone() for x in given]
        LA.solve(given[0], given[1], left=left)
        LA.lu_solve(given[2], given[3], given[1], left=left)
        assert all(torch.equal(x, y) for x, y in zip(given, copies, strict=True))


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("n", [3, 40])
@each_side
def test_out(n: int, left: bool, strided: bool, device: str) -> None:
    A, B = (on(device, x) for x in system(((2,), (2,)), torch.complex64, n, n, left))

    def out(x: Tensor) -> Tensor:
        return torch.stack((x, x), -1).zero_()[..., 0] if strided else x.new_empty(0)

    def check(written: Tensor, given: Tensor, expected: Tensor) -> None:
        assert written is given
        assert torch.equal(written, expected)
        assert written.stride() == (out(expected) if strided else expected).stride()

    X, info = LA.solve_ex(A, B, left=left)
    one, two, three = out(X), out(X), out(info)
    check(LA.solve(A, B, left=left, out=one), one, X)
    result = LA.solve_ex(A, B, left=left, out=(two, three))
    check(result[0], two, X)
    check(result[1], three, info)
    LU, pivots = LA.lu_factor(A)
    for adjoint in (False, True):
        X, one = LA.lu_solve(LU, pivots, B, left=left, adjoint=adjoint), out(X)
        check(LA.lu_solve(LU, pivots, B, left=left, adjoint=adjoint, out=one), one, X)


def test_out_may_be_an_input(device: str) -> None:
    A, B = (on(device, x) for x in system(((2,), (2,)), torch.float32))
    expected = LA.solve(A, B)
    LA.solve(A, B, out=B)
    assert torch.equal(B, expected)


@pytest.mark.parametrize(
    "sizes", [((0, 0), (0, 2)), ((0, 0), (0, 0)), ((3, 3), (3, 0)), ((40, 40), (40, 0))], ids=name
)
@pytest.mark.parametrize(
    "batches", [((), ()), ((2,), (2,)), ((2, 1), (3,)), ((0,), (1,))], ids=name
)
@each_side
@each_single
def test_empty(
    dtype: torch.dtype,
    batches: tuple[tuple[int, ...], tuple[int, ...]],
    sizes: tuple[tuple[int, int], tuple[int, int]],
    left: bool,
    device: str,
) -> None:
    A = torch.eye(sizes[0][0], dtype=dtype).expand(*batches[0], *sizes[0])
    B = torch.ones(*batches[1], *(sizes[1] if left else sizes[1][::-1]), dtype=dtype)
    expected = torch.linalg.solve(A, B, left=left)
    result, info = LA.solve_ex(on(device, A), on(device, B), left=left)
    LU, pivots = LA.lu_factor(on(device, A))
    for X in (result, LA.lu_solve(LU, pivots, on(device, B), left=left)):
        assert X.shape == expected.shape
        assert X.numel() == 0
    assert result.stride() == expected.stride()
    assert info.shape == batches[0]
    assert not info.any()


@pytest.mark.parametrize("n", [3, 5, 40])
@each_single
def test_solve_ex_says_where_it_is_singular(dtype: torch.dtype, n: int, device: str) -> None:
    A, expected = gallery(n, n, dtype)
    B = testing.random((n, 2), dtype, seed=1)
    X, info = LA.solve_ex(on(device, A), on(device, B))
    assert info.tolist() == expected.tolist()
    good = torch.from_numpy(expected == 0)
    X_lapack = lapack.getrs(*lapack.getrf(A[good])[:2], B.expand(int(good.sum()), n, 2))
    testing.compare(
        testing.solve_ratio(A[good], X.cpu()[good], B), testing.solve_ratio(A[good], X_lapack, B)
    )


@pytest.mark.parametrize("n", [200, 300])
@each_side
@each_single
def test_large(dtype: torch.dtype, n: int, left: bool, device: str) -> None:
    A, B = system(((), ()), dtype, n, 5, left)
    LU, pivots = LA.lu_factor(on(device, A))
    judge(A, LA.solve(on(device, A), on(device, B), left=left), B, left)
    for adjoint in (False, True):
        X = LA.lu_solve(LU, pivots, on(device, B), left=left, adjoint=adjoint)
        judge(A, X, B, left, adjoint)
