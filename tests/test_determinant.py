"""det and slogdet through the kernels, held against SciPy."""

import numpy as np
import pytest
import torch

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg.testing import compare
from tests.inputs import DOUBLES, SINGLES, VIEWS, gallery, name, on

pytestmark = pytest.mark.usefixtures("kernels")

SHAPES = (
    *((1, 1), (3, 3), (5, 5), (40, 40)),
    *((1, 3, 3), (2, 5, 5), (2, 3, 3, 3), (2, 1, 2, 40, 40)),
)

each_dtype = pytest.mark.parametrize("dtype", [*SINGLES, *DOUBLES], ids=name)
each_single = pytest.mark.parametrize("dtype", SINGLES, ids=name)


@pytest.mark.parametrize("shape", SHAPES, ids=name)
@each_dtype
def test_determinants(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    A = testing.random(shape, dtype)
    det, slogdet = LA.det(on(device, A)), LA.slogdet(on(device, A))
    assert type(slogdet) is type(torch.linalg.slogdet(A))
    assert det.dtype == slogdet.sign.dtype == dtype
    assert slogdet.logabsdet.dtype == dtype.to_real()
    assert det.shape == slogdet.sign.shape == slogdet.logabsdet.shape == shape[:-2]
    compare(
        testing.determinant_ratio(A, det), testing.determinant_ratio(A, np.linalg.det(A.numpy()))
    )
    compare(
        testing.slogdet_ratio(A, *slogdet),
        testing.slogdet_ratio(A, *np.linalg.slogdet(A.numpy())),
    )


@pytest.mark.parametrize("n", [3, 5, 40])
@each_single
def test_singular(dtype: torch.dtype, n: int, device: str) -> None:
    A, info = gallery(n, n, dtype)
    singular = torch.from_numpy(info > 0)
    det, (sign, logabsdet) = LA.det(on(device, A)).cpu(), LA.slogdet(on(device, A))
    assert (det[singular] == 0).all()
    assert (sign.cpu()[singular] == 0).all()
    assert (logabsdet.cpu()[singular] == -torch.inf).all()
    assert (sign.cpu()[~singular].abs() - 1).abs().max() <= n * torch.finfo(dtype).eps


@pytest.mark.parametrize("n", [3, 5, 40])
@pytest.mark.parametrize("entry", [torch.inf, -torch.inf, torch.nan])
@each_single
def test_what_is_not_finite(dtype: torch.dtype, entry: float, n: int, device: str) -> None:
    A = torch.eye(n, dtype=dtype).repeat(2, 1, 1)
    A[:, 1, 1] = entry
    A[1, 0, 0] = -2
    sign, logabsdet = LA.slogdet(on(device, A))
    expected = torch.linalg.slogdet(A)
    assert torch.equal(sign.isnan().cpu(), expected.sign.isnan())
    assert torch.equal(sign.nan_to_num().cpu(), expected.sign.nan_to_num())
    torch.testing.assert_close(logabsdet.cpu(), expected.logabsdet, equal_nan=True)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("n", [3, 5, 40])
@each_single
def test_views(dtype: torch.dtype, n: int, view: str, device: str) -> None:
    A = on(device, testing.random((2, 3, n, n), dtype))
    strided = VIEWS[view](A)
    assert torch.equal(LA.det(strided), LA.det(A))
    for x, y in zip(LA.slogdet(strided), LA.slogdet(A), strict=True):
        assert torch.equal(x, y)
    expanded = A[:1, :1].expand(2, 3, n, n)
    assert torch.equal(LA.det(expanded), LA.det(A[:1, :1]).expand(2, 3))


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("shape", [(3, 3), (2, 5, 5), (2, 40, 40)], ids=name)
@each_single
def test_out(dtype: torch.dtype, shape: tuple[int, ...], strided: bool, device: str) -> None:
    A = on(device, testing.random(shape, dtype))
    expected = (LA.det(A), *LA.slogdet(A))
    det, sign, logabsdet = (
        torch.stack((x, x), -1).zero_()[..., 0] if strided else x.new_empty(3) for x in expected
    )
    if not strided:
        for x in (det, sign, logabsdet):
            x.resize_(0)
    assert LA.det(A, out=det) is det
    result = LA.slogdet(A, out=(sign, logabsdet))
    assert result[0] is sign
    assert result[1] is logabsdet
    for x, y in zip((det, sign, logabsdet), expected, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize(
    "shape", [(0, 0), (2, 0, 0), (0, 3, 3), (0, 40, 40), (2, 0, 5, 5)], ids=name
)
@each_single
def test_empty(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    A = on(device, torch.empty(shape, dtype=dtype))
    det, (sign, logabsdet) = LA.det(A), LA.slogdet(A)
    assert det.shape == sign.shape == logabsdet.shape == shape[:-2]
    # The product of no numbers.
    assert (det == 1).all()
    assert (sign == 1).all()
    assert (logabsdet == 0).all()


@pytest.mark.parametrize("n", [3, 5, 40])
@each_dtype
def test_an_overflow_on_the_way_is_none(dtype: torch.dtype, n: int, device: str) -> None:
    # Row i times 2^e[i], where the sum of e is 0: the determinant stays what it was.
    huge = 100 if dtype in SINGLES else 900
    exponents = torch.tensor([huge, *((huge, -huge) * (n // 2 - 1)), *([0] * (n % 2)), -huge])
    A = testing.random((4, n, n), dtype)
    scaled = A * torch.exp2(exponents.double()).to(dtype.to_real())[:, None]
    assert exponents.sum() == 0
    assert len(exponents) == n
    det, (sign, logabsdet) = LA.det(on(device, A)), LA.slogdet(on(device, A))
    for matrices in (scaled, scaled.flip(-2), scaled.mT):
        determinant = LA.det(on(device, matrices))
        assert determinant.isfinite().all()
        assert (determinant != 0).all()
    # Columns scaled by powers of two change no pivot and round nothing.
    columns = on(device, A * torch.exp2(exponents.double()).to(dtype.to_real()))
    assert torch.equal(LA.det(columns), det)
    assert torch.equal(LA.slogdet(columns).sign, sign)
    assert torch.equal(LA.slogdet(columns).logabsdet, logabsdet)


@pytest.mark.parametrize("n", [3, 5, 40])
@each_dtype
def test_determinants_beyond_the_range(dtype: torch.dtype, n: int, device: str) -> None:
    # slogdet has no limit, det becomes infinite or 0.
    exponent = 60 if dtype in SINGLES else 500
    A = testing.random((3, n, n), dtype)
    sign = LA.slogdet(on(device, A)).sign
    for e in (exponent, -exponent):
        scaled = A * 2.0**e
        result = LA.slogdet(on(device, scaled))
        assert torch.equal(result.sign, sign)
        compare(testing.slogdet_ratio(scaled, *result), 0.0)
        det = LA.det(on(device, scaled))
        assert det.isinf().all() if e > 0 else (det == 0).all()


@each_single
def test_large(dtype: torch.dtype, device: str) -> None:
    for n in (200, 300):
        A = testing.random((n, n), dtype)
        compare(
            testing.slogdet_ratio(A, *LA.slogdet(on(device, A))),
            testing.slogdet_ratio(A, *np.linalg.slogdet(A.numpy())),
        )
