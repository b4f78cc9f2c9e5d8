"""lu_factor, lu_factor_ex, lu and lu_unpack through the kernels, held against SciPy."""

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg.testing import compare
from tests import lapack
from tests.inputs import DOUBLES, SINGLES, VIEWS, gallery, name, on

pytestmark = pytest.mark.usefixtures("kernels")

SHAPES = (
    *((1, 1), (3, 3), (5, 5), (40, 40), (3, 5), (5, 3), (40, 5), (5, 40)),
    *((1, 3, 3), (2, 5, 5), (2, 3, 5, 4), (2, 1, 3, 40, 33)),
)
EMPTY = ((0, 0), (0, 3), (3, 0), (2, 0, 0), (2, 0, 3), (0, 3, 3), (0, 40, 40), (2, 0, 3, 5))

each_case = pytest.mark.parametrize(
    ("dtype", "shape"),
    [*((d, s) for d in SINGLES for s in SHAPES), *((d, (2, 5, 5)) for d in DOUBLES)],
    ids=name,
)
each_single = pytest.mark.parametrize("dtype", SINGLES, ids=name)
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=name)
each_empty = pytest.mark.parametrize("shape", EMPTY, ids=name)


def assert_like_torchs(ours: Any, theirs: Any) -> None:
    """The same type, and in it the same shapes, dtypes and strides."""
    assert type(ours) is type(theirs)
    for x, y in zip(ours, theirs, strict=True):
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        assert x.stride() == y.stride()


@each_case
def test_lu_factor(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    A = testing.random(shape, dtype)
    result = LA.lu_factor(on(device, A))
    assert_like_torchs(result, torch.linalg.lu_factor(A))
    LU, pivots, _ = lapack.getrf(A)
    compare(testing.lu_ratio(A, *result), testing.lu_ratio(A, LU, pivots))
    np.testing.assert_array_equal(result.pivots.numpy(force=True), pivots)


@each_case
def test_lu(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    A = testing.random(shape, dtype)
    result = LA.lu(on(device, A))
    assert_like_torchs(result, torch.linalg.lu(A))
    P, L, U = (x.numpy(force=True) for x in result)
    # The same permutation, so the factors are SciPy's but for rounding.
    double = A.numpy().astype(np.complex128 if dtype.is_complex else np.float64)
    eps = torch.finfo(dtype).eps
    for i in np.ndindex(*shape[:-2]):
        expected_P, expected_L, expected_U = scipy.linalg.lu(double[i])
        np.testing.assert_array_equal(P[i], expected_P)
        scale = np.linalg.norm(expected_L) * np.linalg.norm(expected_U)
        assert np.linalg.norm(expected_P @ L[i] @ U[i] - double[i]) <= eps * scale
        np.testing.assert_array_equal(np.diagonal(L[i]), 1)
        np.testing.assert_array_equal(np.triu(L[i], 1), 0)
        np.testing.assert_array_equal(np.tril(U[i], -1), 0)
        largest = 2**0.5 if dtype.is_complex else 1.0
        assert (np.abs(L[i]) <= largest * (1 + 4 * eps)).all()


@pytest.mark.parametrize("shape", [(5, 5), (2, 5, 3), (3, 5), (40, 40), (2, 33, 140)], ids=name)
@each_single
def test_without_pivoting(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    A = testing.random(shape, dtype) + 2 * sum(shape[-2:]) * torch.eye(*shape[-2:])
    P, L, U = LA.lu(on(device, A), pivot=False)
    assert P.shape == (0,)
    assert P.dtype == dtype
    LU, pivots = LA.lu_factor(on(device, A), pivot=False)
    k = min(shape[-2:])
    assert (pivots.cpu() == torch.arange(1, k + 1)).all()
    LU_lapack, pivots_lapack, _ = lapack.getrf(A)
    np.testing.assert_array_equal(pivots_lapack, pivots.numpy(force=True))
    compare(testing.lu_ratio(A, LU, pivots), testing.lu_ratio(A, LU_lapack, pivots_lapack))
    assert torch.equal(L.tril(-1), LU[..., :k].tril(-1))
    assert torch.equal(U, LU[..., :k, :].triu())
    ex = LA.lu_factor_ex(on(device, A), pivot=False)
    assert torch.equal(ex.LU, LU)
    assert not ex.info.any()


@pytest.mark.parametrize("n", [3, 5, 40])
@each_single
def test_lu_factor_ex_says_where_it_is_singular(dtype: torch.dtype, n: int, device: str) -> None:
    A, info = gallery(n, n, dtype)
    result = LA.lu_factor_ex(on(device, A))
    assert_like_torchs(result, torch.linalg.lu_factor_ex(A))
    assert result.info.tolist() == info.tolist() == lapack.getrf(A)[2].tolist()
    LU, pivots, _ = result
    compare(testing.lu_ratio(A, LU, pivots), testing.lu_ratio(A, *lapack.getrf(A)[:2]))


@each_shape
@each_single
def test_lu_unpack(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    LU, pivots = torch.linalg.lu_factor(testing.random(shape, dtype))
    expected = torch.lu_unpack(LU, pivots)
    result = LA.lu_unpack(on(device, LU), on(device, pivots))
    assert_like_torchs(result, expected)
    assert all(torch.equal(x.cpu(), y) for x, y in zip(result, expected, strict=True))


@pytest.mark.parametrize("data", [False, True])
@pytest.mark.parametrize("pivot", [False, True])
def test_lu_unpack_gives_what_is_asked_for(data: bool, pivot: bool, device: str) -> None:
    LU, pivots = torch.linalg.lu_factor(testing.random((2, 5, 3), torch.float32))
    expected = torch.lu_unpack(LU, pivots, data, pivot)
    result = LA.lu_unpack(on(device, LU), on(device, pivots), data, pivot)
    assert_like_torchs(result, expected)
    assert all(torch.equal(x.cpu(), y) for x, y in zip(result, expected, strict=True))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("shape", [(2, 3, 3), (2, 3, 5, 4), (2, 2, 33, 40)], ids=name)
@each_single
def test_views(dtype: torch.dtype, shape: tuple[int, ...], view: str, device: str) -> None:
    A = on(device, testing.random(shape, dtype))
    strided = VIEWS[view](A)
    assert torch.equal(strided, A)
    for function in (LA.lu_factor, LA.lu_factor_ex, LA.lu):
        for x, y in zip(function(strided), function(A), strict=True):
            assert torch.equal(x, y)
    LU, pivots = LA.lu_factor(A)
    pivots_inside = pivots.movedim(0, -1).contiguous().movedim(-1, 0)
    for x, y in zip(
        LA.lu_unpack(VIEWS[view](LU), pivots_inside), LA.lu_unpack(LU, pivots), strict=True
    ):
        assert torch.equal(x, y)


@each_single
def test_expanded(dtype: torch.dtype, device: str) -> None:
    A = on(device, testing.random((2, 1, 4, 4), dtype))
    expanded = A.expand(2, 3, 4, 4)
    for function in (LA.lu_factor, LA.lu_factor_ex, LA.lu):
        result = function(expanded)
        assert_like_torchs(result, function(expanded.contiguous()))
        for x, y in zip(result, function(A), strict=True):
            assert torch.equal(x, y.expand(x.shape))


def outs(results: Any, strided: bool) -> tuple[Tensor, ...]:
    """Memory for results: empty, to be resized, or of the right shape with gaps."""
    if not strided:
        return tuple(x.new_empty(0) for x in results)
    return tuple(torch.stack((x, x), -1).zero_()[..., 0] for x in results)


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("function", [LA.lu_factor, LA.lu_factor_ex, LA.lu])
@pytest.mark.parametrize("shape", [(3, 3), (2, 5, 3), (40, 33)], ids=name)
def test_out(function: Any, shape: tuple[int, ...], strided: bool, device: str) -> None:
    A = on(device, testing.random(shape, torch.complex64))
    expected = function(A)
    out = outs(expected, strided)
    steps = [x.stride() for x in (out if strided else expected)]
    result = function(A, out=out)
    for x, y, z, step in zip(result, out, expected, steps, strict=True):
        assert x is y
        assert torch.equal(x, z)
        assert x.stride() == step


@pytest.mark.parametrize("strided", [False, True])
def test_lu_unpack_out(strided: bool, device: str) -> None:
    factors = LA.lu_factor(on(device, testing.random((2, 5, 3), torch.float32)))
    expected = LA.lu_unpack(*factors)
    out = outs(expected, strided)
    result = LA.lu_unpack(*factors, out=out)
    for x, y, z in zip(result, out, expected, strict=True):
        assert x is y
        assert torch.equal(x, z)


@each_empty
@each_single
def test_empty(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    A = torch.empty(shape, dtype=dtype)
    ours = A.to(device)
    for function in ("lu_factor", "lu_factor_ex", "lu"):
        assert_like_torchs(getattr(LA, function)(ours), getattr(torch.linalg, function)(A))
    # What an empty matrix leaves to compute: info, and P.
    assert not LA.lu_factor_ex(ours).info.any()
    unpacked = LA.lu_unpack(*LA.lu_factor(ours))
    expected = torch.lu_unpack(*torch.linalg.lu_factor(A))
    assert_like_torchs(unpacked, expected)
    assert all(torch.equal(x.cpu(), y) for x, y in zip(unpacked, expected, strict=True))


@pytest.mark.parametrize("shape", [(200, 200), (300, 300), (2, 200, 150), (150, 300)], ids=name)
@each_single
def test_large(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    A = testing.random(shape, dtype)
    LU, pivots, info = LA.lu_factor_ex(on(device, A))
    theirs = lapack.getrf(A)
    assert not info.any()
    compare(testing.lu_ratio(A, LU, pivots), testing.lu_ratio(A, *theirs[:2]))
    np.testing.assert_array_equal(pivots.numpy(force=True), theirs[1])
    P, L, U = (x.cpu() for x in LA.lu(on(device, A)))
    k = min(shape[-2:])
    assert torch.equal(L.tril(-1), LU[..., :k].tril(-1).cpu())
    assert torch.equal(U, LU[..., :k, :].triu().cpu())
    assert torch.equal(P, torch.lu_unpack(LU.cpu(), pivots.cpu())[0])
