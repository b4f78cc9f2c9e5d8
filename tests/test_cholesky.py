"""cholesky, cholesky_ex, cholesky_solve and cholesky_inverse, held against SciPy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor

import mpslinalg as LA
from mpslinalg import _cholesky_plan, _products, testing
from mpslinalg.testing import compare
from tests import lapack
from tests.inputs import DOUBLES, SINGLES, VIEWS, name, on, random_definite

pytestmark = pytest.mark.usefixtures("kernels")

SHAPES = (
    *((1, 1), (3, 3), (5, 5), (40, 40)),
    *((1, 4, 4), (2, 5, 5), (2, 3, 3, 3), (2, 1, 2, 40, 40)),
)
# Batches of B and of L.
BATCHES = (
    *(((), ()), ((2,), (2,)), ((2,), ()), ((), (2,)), ((1,), (3,)), ((2, 1), (3,))),
    *(((0,), ()), ((), (0,)), ((2, 0), (1, 1))),
)

each_case = pytest.mark.parametrize(
    ("dtype", "shape"),
    [*((d, s) for d in SINGLES for s in SHAPES), *((d, (2, 5, 5)) for d in DOUBLES)],
    ids=name,
)
each_single = pytest.mark.parametrize("dtype", SINGLES, ids=name)
each_upper = pytest.mark.parametrize("upper", [False, True], ids=["lower", "upper"])


def double(A: Tensor) -> NDArray[Any]:
    return A.numpy(force=True).astype(np.complex128 if A.is_complex() else np.float64)


def exact(B: Tensor, L: Tensor, upper: bool) -> NDArray[Any]:
    """The solution by SciPy in double precision, system by system."""
    b, c = double(B), double(L)
    batch = np.broadcast_shapes(b.shape[:-2], c.shape[:-2])
    b = np.broadcast_to(b, (*batch, *b.shape[-2:]))
    c = np.broadcast_to(c, (*batch, *c.shape[-2:]))
    X = np.empty(b.shape, b.dtype)
    for i in np.ndindex(*batch):
        X[i] = scipy.linalg.cho_solve((c[i], not upper), b[i])
    return X


@each_upper
@each_case
def test_cholesky(dtype: torch.dtype, shape: tuple[int, ...], upper: bool, device: str) -> None:
    A = random_definite(shape, dtype)
    L = LA.cholesky(on(device, A), upper=upper)
    expected = torch.linalg.cholesky_ex(A, upper=upper)
    assert L.dtype == dtype
    assert L.stride() == expected.L.stride()
    L_lapack, _ = lapack.potrf(A, upper)
    compare(testing.cholesky_ratio(A, L, upper), testing.cholesky_ratio(A, L_lapack, upper))
    for i in np.ndindex(*shape[:-2]):
        factor = scipy.linalg.cholesky(double(A)[i], lower=not upper)
        error = np.linalg.norm(double(L)[i] - factor) / np.linalg.norm(factor)
        assert error <= 2 * shape[-1] * torch.finfo(dtype).eps
    result = LA.cholesky_ex(on(device, A), upper=upper)
    assert type(result) is type(expected)
    assert torch.equal(result.L, L)
    assert result.info.dtype == torch.int32
    assert result.info.shape == shape[:-2]
    assert not result.info.any()


@each_upper
@pytest.mark.parametrize("n", [3, 5, 40])
@each_single
def test_cholesky_ex_says_where_it_fails(
    dtype: torch.dtype, n: int, upper: bool, device: str
) -> None:
    A = random_definite((4, n, n), dtype)
    A[1, n // 2, n // 2] = -1
    A[2] = -A[2]
    expected = torch.linalg.cholesky_ex(A, upper=upper)
    L, info = LA.cholesky_ex(on(device, A), upper=upper)
    assert info.tolist() == expected.info.tolist() == [0, n // 2 + 1, 1, 0]
    L_lapack, _ = lapack.potrf(A, upper)
    good = [0, 3]
    compare(
        testing.cholesky_ratio(A[good], L[good], upper),
        testing.cholesky_ratio(A[good], L_lapack[good], upper),
    )


@each_upper
@pytest.mark.parametrize("batches", BATCHES, ids=name)
@each_single
def test_cholesky_solve_broadcasts(
    dtype: torch.dtype,
    batches: tuple[tuple[int, ...], tuple[int, ...]],
    upper: bool,
    device: str,
) -> None:
    of_B, of_L = batches
    for n in (4, 40):
        L = torch.linalg.cholesky(random_definite((*of_L, n, n), dtype), upper=upper)
        B = testing.random((*of_B, n, 3), dtype, seed=1)
        X = LA.cholesky_solve(on(device, B), on(device, L), upper)
        expected = exact(B, L, upper)
        assert X.dtype == dtype
        assert X.shape == expected.shape
        assert X.stride() == torch.cholesky_solve(B, L, upper).stride()
        error = np.linalg.norm(double(X) - expected)
        assert error <= 10 * torch.finfo(dtype).eps * np.linalg.norm(expected)


@each_upper
@pytest.mark.parametrize("n", [5, 40])
def test_a_factor_may_have_a_complex_diagonal(n: int, upper: bool, device: str) -> None:
    L = testing.random((n, n), torch.complex64).tril(-1) / n + (1 + 2j) * torch.eye(n)
    given = L.mH if upper else L
    inverse = np.linalg.inv(double(L) @ double(L).conj().T)
    X = LA.cholesky_solve(on(device, torch.eye(n, dtype=L.dtype)), on(device, given), upper)
    for result in (X, LA.cholesky_inverse(on(device, given), upper)):
        assert np.linalg.norm(double(result) - inverse) <= 1e-5 * np.linalg.norm(inverse)


@each_upper
@each_case
def test_cholesky_inverse(
    dtype: torch.dtype, shape: tuple[int, ...], upper: bool, device: str
) -> None:
    A = random_definite(shape, dtype)
    L = torch.linalg.cholesky(A, upper=upper)
    X = LA.cholesky_inverse(on(device, L), upper)
    assert X.dtype == dtype
    assert X.stride() == torch.cholesky_inverse(L, upper).stride()
    X_lapack = lapack.potri(L.numpy(), upper)
    compare(testing.inverse_ratio(A, X), testing.inverse_ratio(A, X_lapack))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("n", [3, 5, 40])
@each_single
def test_views(dtype: torch.dtype, n: int, view: str, device: str) -> None:
    A = on(device, random_definite((2, 3, n, n), dtype))
    B = on(device, testing.random((2, 3, n, 2), dtype))
    L = LA.cholesky(A)
    assert torch.equal(LA.cholesky(VIEWS[view](A)), L)
    X = LA.cholesky_solve(VIEWS[view](B), VIEWS[view](L))
    # How the factor lies decides in which order a triangular solve adds.
    expected = LA.cholesky_solve(B, L)
    assert (X - expected).norm() <= 10 * torch.finfo(dtype).eps * expected.norm()
    assert torch.equal(LA.cholesky_inverse(VIEWS[view](L)), LA.cholesky_inverse(L))
    assert not any(x.is_conj() for x in (L, X))


@pytest.mark.parametrize("n", [2, 5])
@each_single
def test_expanded(dtype: torch.dtype, n: int, device: str) -> None:
    A = on(device, random_definite((2, 1, n, n), dtype))
    L = LA.cholesky(A.expand(2, 3, n, n))
    assert torch.equal(L, LA.cholesky(A).expand(2, 3, n, n))
    assert L.mT.is_contiguous()


FUNCTIONS: list[tuple[str, Callable[..., Any]]] = [
    ("cholesky", LA.cholesky),
    ("cholesky_inverse", LA.cholesky_inverse),
    ("cholesky_solve", lambda L, **kwargs: LA.cholesky_solve(L + 1, L, **kwargs)),
]


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("function", [f for _, f in FUNCTIONS], ids=[n for n, _ in FUNCTIONS])
@pytest.mark.parametrize("shape", [(2, 5, 5), (40, 40)], ids=name)
def test_out(
    function: Callable[..., Any], shape: tuple[int, ...], strided: bool, device: str
) -> None:
    A = on(device, random_definite(shape, torch.complex64))
    X = function(A)
    out = torch.stack((X, X), -1).zero_()[..., 0] if strided else X.new_empty(0)
    # Of the three, torch makes a resized output of cholesky_solve row-major.
    resized = X.contiguous() if function is FUNCTIONS[-1][1] else X
    stride = out.stride() if strided else resized.stride()
    assert function(A, out=out) is out
    assert torch.equal(out, X)
    assert out.stride() == stride
    function(A, out=A)
    assert torch.equal(A, X)


def test_out_of_cholesky_ex(device: str) -> None:
    A = on(device, random_definite((2, 5, 5), torch.float32))
    L, info = LA.cholesky_ex(A)
    outs = (L.new_empty(0), info.new_empty(0))
    result = LA.cholesky_ex(A, out=outs)
    assert result[0] is outs[0]
    assert result[1] is outs[1]
    assert torch.equal(outs[0], L)
    assert torch.equal(outs[1], info)


@pytest.mark.parametrize("wide", [torch.float64, torch.complex64, torch.complex128])
def test_out_of_a_wider_dtype(wide: torch.dtype, device: str) -> None:
    if device == "mps" and wide in DOUBLES:
        pytest.skip("mps has no float64")
    L = on(device, torch.linalg.cholesky(random_definite((3, 3), torch.float32)))
    out = torch.empty(0, dtype=wide, device=device)
    assert LA.cholesky_inverse(L, out=out) is out
    assert torch.equal(out, LA.cholesky_inverse(L).to(wide))
    assert LA.cholesky_solve(L, L, out=out) is out
    assert torch.equal(out, LA.cholesky_solve(L, L).to(wide))


@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (0, 3, 3), (2, 0, 40, 40)], ids=name)
@each_single
def test_empty(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    A = torch.empty(shape, dtype=dtype)
    ours = on(device, A)
    L, info = LA.cholesky_ex(ours)
    expected = torch.linalg.cholesky_ex(A)
    assert (L.shape, L.stride()) == (A.shape, expected.L.stride())
    assert info.shape == shape[:-2]
    assert not info.any()
    assert LA.cholesky(ours).shape == shape
    assert LA.cholesky_inverse(ours).stride() == torch.cholesky_inverse(A).stride()
    for k in (0, 2):
        B = torch.empty((*shape[:-1], k), dtype=dtype)
        X = LA.cholesky_solve(on(device, B), ours)
        assert (X.shape, X.stride()) == (B.shape, torch.cholesky_solve(B, A).stride())


@each_upper
@each_single
def test_large(dtype: torch.dtype, upper: bool, device: str) -> None:
    for shape in ((257, 257), (2, 300, 300)):
        A = random_definite(shape, dtype)
        L = LA.cholesky(on(device, A), upper=upper)
        assert L.stride() == torch.linalg.cholesky(A).stride()
        L_lapack, _ = lapack.potrf(A, upper)
        compare(testing.cholesky_ratio(A, L, upper), testing.cholesky_ratio(A, L_lapack, upper))
        A[..., 256, 256] = -1
        _, info = LA.cholesky_ex(on(device, A), upper=upper)
        assert (info == 257).all()


@each_upper
@each_single
def test_strips(
    dtype: torch.dtype, upper: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products fill squares: above the diagonal nothing of them must remain."""
    monkeypatch.setattr(_cholesky_plan, "STRIP", 192)
    A = random_definite((400, 400), dtype)
    L, info = _cholesky_plan.cholesky(on(device, A), upper)
    assert info == 0
    assert not (L.mH if upper else L).triu(1).any()
    L_lapack, _ = lapack.potrf(A, upper)
    compare(testing.cholesky_ratio(A, L, upper), testing.cholesky_ratio(A, L_lapack, upper))


@each_single
def test_of_a_large_batch_one_fails(dtype: torch.dtype, device: str) -> None:
    """In the first panel, its last column, the first of the next ones, and the last row."""
    A = random_definite((5, 300, 300), dtype)
    expected = LA.cholesky(on(device, A))
    bad = {1: 1, 2: 64, 3: 65, 4: 300}
    for i, row in bad.items():
        A[i, row - 1, row - 1] = -1
        # What fails later does not count.
        A[i, 299, 299] = -1
    L, info = LA.cholesky_ex(on(device, A))
    assert info.tolist() == [0, *bad.values()]
    assert torch.equal(L[0], expected[0])
    for i, row in bad.items():
        assert torch.equal(L[i, : row - 1, : row - 1], expected[i, : row - 1, : row - 1])
        assert L[i, row - 1 :, row - 1].isnan().all()


@each_upper
@each_single
def test_a_row_a_thread(
    dtype: torch.dtype, upper: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cholesky_plan, "STEP_MATRICES", 0)
    monkeypatch.setattr(_products, "PRODUCT", 192)
    for n in (100, 400):
        A = random_definite((n, n), dtype)
        L, info = _cholesky_plan.cholesky(on(device, A), upper)
        assert info == 0
        assert not (L.mH if upper else L).triu(1).any()
        L_lapack, _ = lapack.potrf(A, upper)
        compare(testing.cholesky_ratio(A, L, upper), testing.cholesky_ratio(A, L_lapack, upper))
