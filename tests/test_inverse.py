"""inv and inv_ex through the kernels, held against SciPy."""

import numpy as np
import pytest
import torch

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg.testing import compare
from tests import lapack
from tests.inputs import DOUBLES, SINGLES, VIEWS, gallery, name, on

pytestmark = pytest.mark.usefixtures("kernels")

SHAPES = (
    *((1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (40, 40)),
    *((1, 4, 4), (2, 5, 5), (2, 3, 3, 3), (2, 1, 2, 40, 40)),
)

each_case = pytest.mark.parametrize(
    ("dtype", "shape"),
    [*((d, s) for d in SINGLES for s in SHAPES), *((d, (2, 5, 5)) for d in DOUBLES)],
    ids=name,
)
each_single = pytest.mark.parametrize("dtype", SINGLES, ids=name)


@each_case
def test_inv(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    A = testing.random(shape, dtype)
    X = LA.inv(on(device, A))
    assert X.dtype == dtype
    assert X.stride() == torch.linalg.inv(A).stride()
    X_lapack = lapack.getri(*lapack.getrf(A)[:2])
    exact = np.linalg.inv(A.to(torch.complex128 if dtype.is_complex else torch.float64).numpy())
    compare(testing.inverse_ratio(A, X), testing.inverse_ratio(A, X_lapack))
    compare(testing.forward_ratio(A, X, exact), testing.forward_ratio(A, X_lapack, exact))
    result = LA.inv_ex(on(device, A))
    assert type(result) is type(torch.linalg.inv_ex(A))
    assert torch.equal(result.inverse, X)
    assert result.info.dtype == torch.int32
    assert result.info.shape == shape[:-2]
    assert not result.info.any()


@pytest.mark.parametrize("n", [3, 5, 40])
@each_single
def test_inv_ex_says_where_it_is_singular(dtype: torch.dtype, n: int, device: str) -> None:
    A, expected = gallery(n, n, dtype)
    X, info = LA.inv_ex(on(device, A))
    assert info.tolist() == expected.tolist()
    good = torch.from_numpy(expected == 0)
    X_lapack = lapack.getri(*lapack.getrf(A[good])[:2])
    compare(testing.inverse_ratio(A[good], X[good]), testing.inverse_ratio(A[good], X_lapack))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("n", [2, 3, 4, 5, 40])
@each_single
def test_views(dtype: torch.dtype, n: int, view: str, device: str) -> None:
    A = on(device, testing.random((2, 3, n, n), dtype))
    X = LA.inv(VIEWS[view](A))
    assert torch.equal(X, LA.inv(A))
    assert not X.is_conj()


@pytest.mark.parametrize("n", [2, 4, 5])
@each_single
def test_expanded(dtype: torch.dtype, n: int, device: str) -> None:
    A = on(device, testing.random((2, 1, n, n), dtype))
    X = LA.inv(A.expand(2, 3, n, n))
    assert torch.equal(X, LA.inv(A).expand(2, 3, n, n))
    assert X.is_contiguous() or X.mT.is_contiguous()


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 5), (40, 40)], ids=name)
@each_single
def test_out(dtype: torch.dtype, shape: tuple[int, ...], strided: bool, device: str) -> None:
    A = on(device, testing.random(shape, dtype))
    X, info = LA.inv_ex(A)
    out, of_info = (
        torch.stack((x, x), -1).zero_()[..., 0] if strided else x.new_empty(0) for x in (X, info)
    )
    stride = out.stride() if strided else X.stride()
    assert LA.inv(A, out=out) is out
    assert torch.equal(out, X)
    assert out.stride() == stride
    out.zero_()
    result = LA.inv_ex(A, out=(out, of_info))
    assert result[0] is out
    assert result[1] is of_info
    assert torch.equal(out, X)
    assert torch.equal(of_info, info)
    LA.inv(A, out=A)
    assert torch.equal(A, X)


@pytest.mark.parametrize(
    "shape", [(0, 0), (2, 0, 0), (0, 3, 3), (0, 40, 40), (2, 0, 5, 5)], ids=name
)
@each_single
def test_empty(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    A = torch.empty(shape, dtype=dtype)
    X, info = LA.inv_ex(on(device, A))
    expected = torch.linalg.inv_ex(A)
    assert X.shape == shape
    assert X.stride() == expected.inverse.stride()
    assert info.shape == shape[:-2]
    assert not info.any()
    assert LA.inv(on(device, A)).shape == shape


@each_single
def test_large(dtype: torch.dtype, device: str) -> None:
    for n in (200, 300):
        A = testing.random((n, n), dtype)
        X_lapack = lapack.getri(*lapack.getrf(A)[:2])
        X = LA.inv(on(device, A))
        compare(testing.inverse_ratio(A, X), testing.inverse_ratio(A, X_lapack))


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@each_single
def test_many_tiny(dtype: torch.dtype, n: int, device: str) -> None:
    # More than one thread of the CPU and one threadgroup of a GPU: every matrix is its own.
    A = testing.random((5000, n, n), dtype)
    X = LA.inv(on(device, A))
    X_lapack = lapack.getri(*lapack.getrf(A)[:2])
    # Of 5000 random matrices a few are so ill-conditioned that both sides lose all digits.
    compare(testing.inverse_ratio(A, X), testing.inverse_ratio(A, X_lapack))
