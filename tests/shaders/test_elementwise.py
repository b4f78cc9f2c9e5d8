"""Kernels on the bits of numbers and of special functions, in the checker."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from mpslinalg import _elementwise_plan, _special_plan
from mpslinalg._engines import kernel
from mpslinalg._engines.cpu import CheckError
from tests.inputs import on

pytestmark = pytest.mark.usefixtures("checked")

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def every_kind(dtype: torch.dtype, count: int = 2000) -> Tensor:
    """Random bits, all exponents, the smallest subnormal numbers, and what is no number."""
    bits = WORDS[dtype.itemsize]
    info = torch.iinfo(bits)
    random = torch.randint(
        info.min, info.max, (count,), dtype=bits, generator=torch.Generator().manual_seed(0)
    )
    one = torch.tensor([1], dtype=bits)
    powers = torch.cat([one << k for k in range(info.bits)])
    special = torch.tensor([0.0, -0.0, 1, -1, math.inf, -math.inf, math.nan], dtype=dtype)
    return torch.cat((random.view(dtype), powers.view(dtype), special, -special))


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d)[6:])
def test_frexp(dtype: torch.dtype, device: str) -> None:
    x = on(device, every_kind(dtype))
    mantissa, exponent = _elementwise_plan.frexp(x)
    expected = torch.frexp(x.cpu())
    torch.testing.assert_close(mantissa.cpu(), expected.mantissa, rtol=0, atol=0, equal_nan=True)
    assert exponent.cpu().equal(expected.exponent)
    assert mantissa.signbit().equal(x.signbit()) or dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d)[6:])
def test_comparisons_of_floats(dtype: torch.dtype, device: str) -> None:
    x = on(device, every_kind(dtype, 300))
    y = x.flip(0).roll(3)
    for name in _elementwise_plan.COMPARISONS:
        for a, b in ((x, y), (x, x.clone())):
            got = _elementwise_plan.compare(a, b, 0, name)
            assert got.cpu().equal(getattr(torch, name)(a.cpu(), b.cpu()))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "uint64", "int64"])
def test_comparisons_of_integers(dtype: str, device: str) -> None:
    info = np.iinfo(dtype)
    edges = [info.min, info.min + 1, 0, 1, info.max // 2, info.max // 2 + 1, info.max - 1, info.max]
    a, b = (m.ravel() for m in np.meshgrid(np.array(edges, dtype), np.array(edges, dtype)))
    x, y = torch.from_numpy(a.copy()).to(device), torch.from_numpy(b.copy()).to(device)
    functions = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)
    for name, function in zip(_elementwise_plan.COMPARISONS, functions, strict=True):
        got = _elementwise_plan.compare(x, y, 0, name).cpu().numpy()
        np.testing.assert_array_equal(got, function(a, b))
        for number in (0, int(info.max)):
            got = _elementwise_plan.compare(x, None, number, name).cpu().numpy()
            np.testing.assert_array_equal(got, function(a, np.array(number, dtype)))


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d)[6:])
def test_heaviside(dtype: torch.dtype, device: str) -> None:
    x = on(device, every_kind(dtype, 100))
    values = x.flip(0)
    got = _elementwise_plan.heaviside(x, values)
    expected = torch.heaviside(x.cpu(), values.cpu())
    torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d)[6:])
def test_logspace_is_rounded_once(dtype: torch.dtype, device: str) -> None:
    like = on(device, torch.empty(0, dtype=dtype))
    for start, end, steps, base in (
        (-2, 3, 77, 10),
        (0.3, -1.7, 32, 2.5),
        (3, 3, 1, 7),
        (0, 1, 0, 2),
    ):
        got = _elementwise_plan.logspace(like, start, end, steps, base).cpu()
        exponents = np.linspace(np.longdouble(start), np.longdouble(end), steps)
        exact = np.longdouble(base) ** exponents
        error = np.abs(got.double().numpy() - exact) / (torch.finfo(dtype).eps * exact)
        # The exponents here have errors of 2^-63 themselves.
        assert (error <= (0.51 if dtype != torch.float64 else 0.6)).all()


@pytest.mark.parametrize("dtype", _elementwise_plan.INTEGERS, ids=lambda d: str(d)[6:])
def test_logspace_of_integers_is_cut_off(dtype: torch.dtype, device: str) -> None:
    like = torch.empty(0, dtype=dtype, device=device)
    largest = torch.iinfo(dtype).max
    for base in (2, 3, 10):
        top = int(math.log(largest, base) - 1e-9)
        powers = [base**k for k in range(top + 1)]
        got = _elementwise_plan.logspace(like, 0, top, top + 1, base).cpu()
        exact = [value for value in powers if value < 2**53]
        assert got[: len(exact)].tolist() == exact
        halves = _elementwise_plan.logspace(like, 0, top, 2 * top + 1, base).cpu().tolist()
        small = [int(base**k * math.sqrt(base)) for k in range(top) if base**k < 2**40]
        assert halves[1 : 2 * len(small) : 2] == small


def test_bool_and_wide_logspace(device: str) -> None:
    like = torch.empty(0, device=device)
    many = _elementwise_plan.logspace(like.bool(), -5, 5, 5000, 10)
    assert many.dtype == torch.bool
    assert many.all()
    wide = _elementwise_plan.logspace(like.to(torch.uint64), 0, 63, 64, 2).cpu()
    assert wide.tolist() == [2**k for k in range(64)]


SPECIAL: dict[str, Callable[[Tensor], Tensor]] = {
    "chebyshev": lambda x: _special_plan.polynomial(x, None, 7, "chebyshev_polynomial_t", 0),
    "legendre": lambda x: _special_plan.polynomial(x, x, 0, "legendre_polynomial_p", 0),
    "laguerre": lambda x: _special_plan.polynomial(x, None, 6, "laguerre_polynomial_l", 1),
    "hermite": lambda x: _special_plan.polynomial(x, None, 6, "hermite_polynomial_h", 2),
    "airy": lambda x: _special_plan.airy(x, 0),
    "log_ndtr": lambda x: _special_plan.normal(x, "log_ndtr"),
    "hazard": lambda x: _special_plan.normal(x, "hazard"),
    "ndtri": lambda x: _special_plan.normal(x, "ndtri"),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions_write_each_element(name: str, device: str) -> None:
    """In arithmetic without subnormal numbers, as Apple's, too."""
    x = torch.linspace(0.03, 0.97, 257, device=device)
    checked = SPECIAL[name](x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPSLINALG_CHECK", "0")
        plain = SPECIAL[name](x)
    assert checked.isfinite().all()
    # The plain engine fuses products into sums where the text leaves it free to.
    torch.testing.assert_close(checked, plain, rtol=3e-7, atol=0)


def test_out_of_range_is_seen(device: str) -> None:
    """A launch of more threads than elements is what the checker is for."""
    if device != "cpu":
        pytest.skip("GPU engines have no checker")
    x = torch.ones(64)
    variant = kernel("special_normal", "special_ndtri", "float")
    with pytest.raises(CheckError, match="special_ndtri"):
        variant(x, torch.empty(63), threads=(64,), group=(64,))
