"""What holds for any entries: indexing, comparisons, powers of two, special functions."""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from torch import Tensor

import mpslinalg as LA
from tests.cases import Case, cases, close, eps, given
from tests.inputs import on
from tests.ratios import double

pytestmark = pytest.mark.usefixtures("kernels")

lengths = st.tuples(st.integers(0, 6), st.integers(0, 9))
real_cases = cases.map(
    lambda case: case._replace(dtype=torch.float32, view=None if case.view == "conj" else case.view)
)
degrees = st.one_of(st.integers(1, 12), st.sampled_from((30, 100)))


@given(case=cases, shape=lengths, data=st.data())
def test_take_and_put_are_inverse(
    case: Case, shape: tuple[int, int], data: st.DataObject, device: str
) -> None:
    X = case.matrices(*shape, device)
    count = X.numel()
    order = torch.from_numpy(np.random.default_rng(case.seed).permutation(count))
    # Counted from the front or the end.
    at = on(device, torch.where(order % 2 == 0, order, order - count))
    taken = LA.take(X, at)
    assert torch.equal(taken, X.flatten()[on(device, order)])
    assert torch.equal(LA.put(torch.zeros_like(X), at, taken), X)
    target = case.stored(torch.zeros_like(X).contiguous())
    assert LA.put_(target, at, taken) is target
    assert torch.equal(target, X)
    LA.put_(target, at, taken, accumulate=True)
    assert torch.equal(target, 2 * X)
    if count:
        some = on(device, torch.tensor(data.draw(st.lists(st.integers(0, count - 1)))).long())
        ones = torch.ones(len(some), dtype=X.dtype, device=X.device)
        counts = LA.put(torch.zeros_like(X), some, ones, accumulate=True)
        assert torch.equal(counts.real.flatten().long(), LA.bincount(some, minlength=count))


@given(
    values=st.lists(st.integers(0, 50), max_size=40),
    minlength=st.integers(0, 60),
    seed=st.integers(0, 2**32 - 1),
)
def test_bincount_counts_all(values: list[int], minlength: int, seed: int, device: str) -> None:
    given_values = on(device, torch.tensor(values, dtype=torch.int64))
    counts = LA.bincount(given_values, minlength=minlength)
    assert len(counts) == max(minlength, max(values, default=-1) + 1)
    assert counts.sum() == len(values)
    gaps = torch.stack((given_values, torch.full_like(given_values, 99)), -1)[:, 0]
    assert torch.equal(LA.bincount(gaps, minlength=minlength), counts)
    weights = on(device, torch.from_numpy(np.random.default_rng(seed).integers(-9, 9, len(values))))
    sums = LA.bincount(given_values, weights.float(), minlength)
    assert sums.sum() == weights.sum()
    assert torch.equal(
        LA.bincount(given_values, torch.ones_like(weights).float()).long(),
        LA.bincount(given_values),
    )


@given(
    case=real_cases,
    shape=lengths,
    dtype=st.sampled_from((torch.float32, torch.float16, torch.bfloat16)),
    exponent=st.integers(-140, 120),
)
def test_frexp(
    case: Case, shape: tuple[int, int], dtype: torch.dtype, exponent: int, device: str
) -> None:
    plain = case._replace(scale=1.0, view=None).matrices(*shape, "cpu").double()
    x = case.stored(on(device, torch.ldexp(plain, torch.tensor(exponent)).to(dtype)))
    mantissa, power = LA.frexp(x)
    assert (mantissa.dtype, power.dtype) == (dtype, torch.int32)
    m, e = mantissa.cpu().double(), power.cpu()
    assert torch.equal(torch.ldexp(m, e), x.cpu().double())
    regular = x.cpu().isfinite() & (x.cpu() != 0)
    assert ((m.abs() >= 0.5) & (m.abs() < 1))[regular].all()
    assert not e[x.cpu() == 0].any()


@given(case=real_cases, shape=lengths)
def test_heaviside_and_comparisons(case: Case, shape: tuple[int, int], device: str) -> None:
    x = case.stored(
        case.matrices(*shape, device).round(decimals=0)
        if case.scale == 1
        else case.matrices(*shape, device)
    )
    values = case._replace(seed=case.seed + 1).matrices(*shape, device)
    H = LA.heaviside(x, values)
    assert torch.equal(H[x == 0], values[x == 0])
    assert torch.equal((H + LA.heaviside(-x, values))[x != 0], torch.ones_like(x)[x != 0])
    a, b = ((v.nan_to_num().abs() / case.scale).to(torch.uint16) for v in (x, values))
    less, equal, greater = LA.lt(a, b), LA.eq(a, b), LA.gt(a, b)
    assert (less.int() + equal.int() + greater.int() == 1).all()
    for one, other in (
        (greater, LA.lt(b, a)),
        (LA.le(a, b), ~greater),
        (LA.ge(a, b), ~less),
        (LA.ne(a, b), ~equal),
    ):
        assert torch.equal(one, other)


@given(
    start=st.integers(-8, 8),
    end=st.integers(-8, 8),
    steps=st.integers(0, 40),
    base=st.sampled_from((2.0, 10.0, 0.5, 3.0)),
)
def test_logspace(start: int, end: int, steps: int, base: float, device: str) -> None:
    x = LA.logspace(start, end, steps, base, device=device)
    assert x.shape == (steps,)
    if steps:
        close(x[0], base**start, 4 * eps(x.dtype))
    if steps > 1:
        close(x[-1], base**end, 4 * eps(x.dtype))
        rising = (base > 1) == (end > start)
        assert ((x.diff() > 0) == rising).all() or start == end
        back = LA.logspace(end, start, steps, base, device=device).flip(0)
        close(back, double(x), 8 * eps(x.dtype), x)
    squares = LA.logspace(2 * start, 2 * end, steps, base, device=device)
    close(squares, double(x) ** 2, 20 * eps(x.dtype), squares)


# a and b of p(n) = a p(n - 1) - b p(n - 2).
RECURRENCES: dict[str, Callable[[int, Any], tuple[Any, float]]] = {
    "chebyshev_polynomial_t": lambda n, x: (2 * x, 1.0),
    "chebyshev_polynomial_u": lambda n, x: (2 * x, 1.0),
    "chebyshev_polynomial_v": lambda n, x: (2 * x, 1.0),
    "chebyshev_polynomial_w": lambda n, x: (2 * x, 1.0),
    "shifted_chebyshev_polynomial_t": lambda n, x: (2 * (2 * x - 1), 1.0),
    "shifted_chebyshev_polynomial_u": lambda n, x: (2 * (2 * x - 1), 1.0),
    "shifted_chebyshev_polynomial_v": lambda n, x: (2 * (2 * x - 1), 1.0),
    "shifted_chebyshev_polynomial_w": lambda n, x: (2 * (2 * x - 1), 1.0),
    "legendre_polynomial_p": lambda n, x: ((2 * n - 1) / n * x, (n - 1) / n),
    "laguerre_polynomial_l": lambda n, x: ((2 * n - 1 - x) / n, (n - 1) / n),
    "hermite_polynomial_h": lambda n, x: (2 * x, 2.0 * (n - 1)),
    "hermite_polynomial_he": lambda n, x: (x, n - 1.0),
}


@pytest.mark.parametrize("name", RECURRENCES)
@given(n=degrees, points=st.lists(st.integers(-1024, 1024), min_size=1, max_size=20))
def test_polynomials(name: str, n: int, points: list[int], device: str) -> None:
    if name.startswith("hermite"):
        n = min(n, 12)
    # Multiples of 2^-10, so that 2 x - 1 is exact.
    x = on(device, torch.tensor(points) / 1024)
    if name.startswith("shifted"):
        x = x.abs()
    function: Callable[[Tensor, Any], Tensor] = getattr(LA.special, name)
    p, before, first = (function(x, k) for k in (n, n - 1, n - 2))
    if n > 1:
        a, b = RECURRENCES[name](n, double(x))
        terms = np.abs(a * double(before)) + b * np.abs(double(first)) + np.abs(double(p))
        envelope = np.maximum(terms, (n + 1) ** 0.5 if "chebyshev" in name else 1)
        error = np.abs(a * double(before) - b * double(first) - double(p))
        assert (error <= 8 * eps(x.dtype) * envelope).all()
    degree = torch.full_like(x, n)
    assert torch.equal(function(x, degree), p)
    if name.startswith(("hermite", "legendre", "chebyshev_polynomial_t", "chebyshev_polynomial_u")):
        assert torch.equal(function(-x, n), (-1) ** n * p)
    if name.startswith("shifted"):
        plain = getattr(LA.special, name.removeprefix("shifted_"))(2 * x - 1, n)
        close(p, double(plain), 8 * eps(x.dtype), np.maximum(np.abs(double(plain)), 1))


@given(points=st.lists(st.integers(1, 2**20 - 1), min_size=1, max_size=20))
def test_the_normal_distribution(points: list[int], device: str) -> None:
    p = on(device, torch.tensor(points) / 2.0**20)
    x = LA.special.ndtri(p)
    # 1 - p is exact.
    other = LA.special.ndtri(1 - p)
    close(other, -double(x), 8 * eps(x.dtype), x.abs())
    log = double(LA.special.log_ndtr(x))
    # d log Phi / d log x = x phi / Phi.
    density = np.exp(-(double(x) ** 2) / 2) / np.sqrt(2 * np.pi)
    slope = np.abs(double(x)) * density / double(p)
    allowed = 8 * eps(x.dtype) * (np.abs(log) + slope)
    assert (np.abs(log - np.log(double(p))) <= allowed).all()
    both = np.exp(log) + np.exp(double(LA.special.log_ndtr(-x)))
    assert (np.abs(both - 1) <= 32 * eps(x.dtype)).all()
