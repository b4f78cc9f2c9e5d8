"""mpslinalg.special against SciPy in double precision, and its derivatives, dtypes and errors."""

import inspect
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch
from torch import Tensor

import mpslinalg as LA
from docs import special_errors
from mpslinalg._special_plan import CHEBYSHEV, POLYNOMIALS
from tests.inputs import on

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

NAMES = LA.special.__all__
OF_ONE = ["airy_ai", "log_ndtr", "ndtri"]
MAX_ULPS = 4
POINTS = 801


def function(name: str) -> Callable[..., Tensor]:
    found: Callable[..., Tensor] = getattr(LA.special, name)
    return found


def rows() -> list[special_errors.Row]:
    """Of the table in the docs: large degrees in fewer points."""
    return [row for row in special_errors.ROWS if row.degree is None or row.degree <= 200]


@pytest.mark.parametrize("row", rows(), ids=lambda r: f"{r.name}-{r.degree}-{r.low:g}")
def test_errors(row: special_errors.Row, device: str) -> None:
    assert special_errors.error(row, POINTS, device)[0] <= MAX_ULPS


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_errors_of_large_degrees(name: str, device: str) -> None:
    large = [r for r in special_errors.ROWS if r.name == name and (r.degree or 0) > 200]
    points = 1001 if name in CHEBYSHEV else 51
    for row in large:
        assert special_errors.error(row, points, device)[0] <= MAX_ULPS
    assert large or name.startswith("hermite")


def test_the_unit_is_that_of_the_value_away_from_zeros() -> None:
    """A result that is off by five units is seen."""
    row = special_errors.Row("legendre_polynomial_p", -1.0, 1.0, 30)
    x = special_errors.grid(row, POINTS).astype(np.float64)
    exact = scipy.special.eval_legendre(30, x)
    envelope = special_errors.envelope(row, x, exact)
    large = np.abs(exact) >= special_errors.NEAR_ZERO * envelope
    assert large.mean() > 0.99
    assert (envelope <= 1).all()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials_in_double(name: str, device: str) -> None:
    x = on(device, torch.linspace(-1.2, 1.2, 101, dtype=torch.float64))
    for n in (0, 1, 2, 3, 8, 25):
        expected = special_errors._oracle(name, n, x.cpu().numpy())
        got = function(name)(x, n).cpu().numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.usefixtures("kernels")
def test_others_in_double(device: str) -> None:
    x = on(device, torch.linspace(-15, 12, 201, dtype=torch.float64))
    given = x.cpu().numpy()
    for name, expected in (
        ("airy_ai", scipy.special.airy(given)[0]),
        ("log_ndtr", scipy.special.log_ndtr(given)),
    ):
        got = function(name)(x).cpu().numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-14 if name[0] == "a" else 0)
    p = torch.linspace(0.001, 0.999, 201, dtype=torch.float64)
    np.testing.assert_allclose(
        LA.special.ndtri(on(device, p)).cpu(),
        scipy.special.ndtri(p.numpy()),
        rtol=1e-12,
        atol=1e-15,
    )


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", POLYNOMIALS)
def test_degrees(name: str, device: str) -> None:
    """Cut off to integers, of any kind; negative ones give 0, those of 2^30 and more NaN."""
    x = torch.tensor([[-0.7], [0.3], [0.9]], device=device)
    whole = [function(name)(x, n)[:, 0] for n in range(5)]
    for n in (
        torch.arange(5, device=device),
        torch.arange(5, device=device, dtype=torch.uint8),
        torch.arange(5, device=device) + 0.75,
    ):
        torch.testing.assert_close(function(name)(x, n), torch.stack(whole, 1), rtol=0, atol=0)
    assert function(name)(x, 2.75)[:, 0].equal(whole[2])
    assert function(name)(x, torch.tensor(2))[:, 0].equal(whole[2])
    assert function(name)(x, True)[:, 0].equal(whole[1])
    assert function(name)(0.3, torch.arange(5, device=device)).equal(torch.stack(whole, 1)[1])
    assert (function(name)(x, -0.5) == 1).all()
    degrees = torch.tensor([-1.0, math.nan, -math.inf, math.inf, 2.0**30], device=device)
    for n in degrees.tolist():
        expected = torch.full_like(x, math.nan if n >= 2**30 else 0)
        torch.testing.assert_close(function(name)(x, n), expected, equal_nan=True)
    several = function(name)(x, degrees)
    assert (several[:, :3] == 0).all()
    assert several[:, 3:].isnan().all()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", POLYNOMIALS)
def test_overflow_has_a_sign(name: str, device: str) -> None:
    x = torch.tensor([1e20, 3e38, math.inf], device=device)
    flips = name.startswith("laguerre")
    for n in (2, 3, 60, 61):
        expected = torch.full_like(x, math.inf) * (-1 if flips and n % 2 else 1)
        assert function(name)(x, n)[1:].equal(expected[1:])
        odd = 1 if flips else (-1) ** n
        assert function(name)(-x, n)[1:].equal(torch.full_like(x, math.inf)[1:] * odd)
    assert function(name)(x, 0).tolist() == [1, 1, 1]
    leading = {"u": 2, "v": 2, "w": 2, "h": 2, "l": -1}.get(name[-1], 1)
    leading *= 2 if name.startswith("shifted") else 1
    assert function(name)(x, 1)[0].item() == pytest.approx(leading * 1e20, rel=1e-6)
    assert function(name)(x, 1)[2].item() == leading * math.inf
    nan = torch.tensor(math.nan, device=device)
    assert function(name)(nan, 0).item() == 1
    assert all(function(name)(nan, n).isnan() for n in (1, 2, 7))


@pytest.mark.usefixtures("kernels")
def test_ends(device: str) -> None:
    """What the functions are at the ends of their ranges."""
    given = torch.tensor([math.inf, -math.inf, math.nan, 0, 1, 2, -1], device=device)
    nan, inf = math.nan, math.inf
    for name, expected in (
        ("airy_ai", [0, nan, nan]),
        ("log_ndtr", [0, -inf, nan]),
        ("ndtri", [nan, nan, nan, -inf, inf, nan, nan]),
    ):
        got = function(name)(given)[: len(expected)].cpu()
        torch.testing.assert_close(got, torch.tensor(expected), equal_nan=True)
    far = torch.tensor([-1e30, 1e30, -7e4], device=device)
    assert LA.special.log_ndtr(far)[:2].tolist() == [-inf, 0]
    assert LA.special.airy_ai(far)[2].isnan()
    assert LA.special.airy_ai(far)[1].item() == 0


def slope(of_x: Callable[[Tensor], Tensor], x: Tensor, order: int) -> Tensor:
    """A derivative of a function of single elements."""
    x = x.clone().requires_grad_()
    y = of_x(x)
    for _ in range(order):
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return y.detach().cpu()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", POLYNOMIALS)
def test_derivatives_are_numpys(name: str, device: str) -> None:
    """First, second and third, in float32, of the polynomial with coefficients from mpmath."""
    x = torch.linspace(-1.5, 1.5, 31)
    for n in (0, 1, 2, 7):
        nodes = np.cos(np.pi * (np.arange(n + 1) + 0.5) / (n + 1))
        exact = np.polynomial.Chebyshev.fit(nodes, special_errors._oracle(name, n, nodes), n)
        for order in (1, 2, 3):
            expected = exact.deriv(order)(x.numpy().astype(np.float64))
            got = slope(partial(function(name), n=n), x.to(device), order)
            scale = np.abs(expected).max()
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6 * scale + 1e-30)


@pytest.mark.usefixtures("kernels")
def test_derivatives_of_log_ndtr_far_out(device: str) -> None:
    """phi / Phi grows like -x, and its own derivative tends to -1: neither cancels."""
    x = torch.tensor([-1e3, -50.0, -12.5, -11.5, -3.0, 0.5, 4.0])
    wide = x.double().numpy()
    hazard = np.exp(-wide * wide / 2 - scipy.special.log_ndtr(wide)) / np.sqrt(2 * np.pi)
    first = slope(LA.special.log_ndtr, x.to(device), 1)
    np.testing.assert_allclose(first, hazard, rtol=1e-6)
    second = slope(LA.special.log_ndtr, x.to(device), 2).double().numpy()
    expected = -hazard * (wide + hazard)
    assert second[0] == pytest.approx(-1, rel=1e-5)
    np.testing.assert_allclose(second[1:], expected[1:], rtol=3e-5)


@pytest.mark.usefixtures("kernels")
def test_derivatives_of_airy(device: str) -> None:
    x = torch.linspace(-20, 6, 301)
    exact, prime, *_ = scipy.special.airy(x.double().numpy())
    np.testing.assert_allclose(
        slope(LA.special.airy_ai, x.to(device), 1), prime, rtol=1e-5, atol=1e-6
    )
    second = slope(LA.special.airy_ai, x.to(device), 2)
    np.testing.assert_allclose(second, x.numpy() * exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [*POLYNOMIALS, "airy_ai"])
def test_auto_has_the_derivative_that_torch_lacks(name: str) -> None:
    """On the CPU torch computes, unless a derivative is asked for."""
    x = torch.linspace(-0.9, 0.9, 7)
    args = () if name == "airy_ai" else (3,)
    assert "torch on cpu" in LA.which(f"special.{name}", x, *args)
    torchs = getattr(torch.special, name)(x, *args)
    assert function(name)(x, *args).equal(torchs)
    x.requires_grad_()
    assert "kernels (cpu engine)" in LA.which(f"special.{name}", x, *args)
    function(name)(x, *args).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    with torch.no_grad():
        assert "torch on cpu" in LA.which(f"special.{name}", x, *args)
    with LA.use("torch"):
        assert "use('torch')" in LA.which(f"special.{name}", x, *args)
        assert not function(name)(x, *args).requires_grad


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_is_rounded_once(name: str, dtype: torch.dtype, device: str) -> None:
    x = torch.linspace(0.05, 0.95, 33, device=device).to(dtype)
    args = () if name in OF_ONE else (5,)
    got = function(name)(x.requires_grad_(), *args)
    assert got.equal(function(name)(x.float(), *args).to(dtype))
    got.sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert x.grad.dtype == dtype


OPS = [op for op in op_db if op.name.removeprefix("special.") in NAMES]


def test_every_function_has_samples() -> None:
    assert sorted(op.name for op in OPS) == sorted(f"special.{name}" for name in NAMES)


def quiet(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*args, **kwargs)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name[8:])
def test_samples(op: Any, device: str) -> None:
    """torch's database: values, dtypes, shapes, strides, out=."""
    ours = function(op.name.removeprefix("special."))
    count = 0
    # What depends on the dtype is one text for all polynomials.
    others = (torch.float64, torch.bool, torch.uint8)
    every = op.name.endswith(("legendre_polynomial_p", "polynomial_t", *OF_ONE))
    for dtype in (torch.float32, torch.int32, *(others if every else ())):
        if device == "mps" and dtype == torch.float64:
            continue
        torch.manual_seed(0)
        tolerance: dict[str, Any] = {"rtol": 3e-4, "atol": 1e-4} if dtype != torch.float64 else {}
        for sample in op.sample_inputs("cpu", dtype):
            for s in (sample, sample.noncontiguous())[: 1 + (dtype == torch.float32)]:
                args = (s.input, *s.args)
                expected = op.op(*args)
                there = [a.to(device) if isinstance(a, Tensor) else a for a in args]
                got = ours(*there)
                assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
                assert got.stride() == expected.stride()
                # Torch's own float32 polynomials lose digits, and its large degrees are NaN.
                known = expected.isfinite()
                torch.testing.assert_close(got.cpu()[known], expected[known], **tolerance)
                for out in (torch.empty(0), torch.empty(0, dtype=torch.float64)):
                    out = out.to(device)
                    assert quiet(ours, *there, out=out) is out
                    assert out.equal(got.to(out.dtype)) or got.isnan().any()
                count += 1
    assert count >= 9


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.mT,
    "expanded": lambda x: x[:, :1].expand(x.shape),
    "gaps": lambda x: x[:, ::2],
    "offset": lambda x: x[1:, 1:],
    "neg": lambda x: torch._neg_view(-x),
    "number": lambda x: x[0, 0],
    "empty": lambda x: x[:0],
    "channels": lambda x: x.view(1, 2, 4, 3).to(memory_format=torch.channels_last),
}


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("view", VIEWS)
def test_strides_are_torchs(view: str, device: str) -> None:
    x = torch.linspace(0.05, 0.95, 24).view(4, 6)
    x = VIEWS[view](x)
    for name in ("airy_ai", "ndtri", "legendre_polynomial_p"):
        args = (2,) if "poly" in name else ()
        expected = getattr(torch.special, name)(x, *args)
        got = function(name)(x.to(device), *args)
        assert got.stride() == expected.stride()
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-6)
    rows = torch.arange(x.shape[-1] if x.dim() else 1).view(-1)
    expected = torch.special.legendre_polynomial_p(x, rows)
    got = LA.special.legendre_polynomial_p(x.to(device), rows.to(device))
    assert got.stride() == expected.stride()
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", NAMES)
def test_vmap(name: str, device: str) -> None:
    x = torch.linspace(0.1, 0.9, 12, device=device).view(3, 4)
    if name in OF_ONE:
        got = torch.func.vmap(function(name), in_dims=1, out_dims=1)(x)
        assert got.equal(function(name)(x))
        return
    n = torch.tensor([1, 2, 4], device=device)
    got = torch.func.vmap(function(name))(x, n)
    assert got.equal(function(name)(x, n[:, None]))
    assert torch.func.vmap(function(name), in_dims=(None, 0))(x, n).equal(
        torch.stack([function(name)(x, int(k)) for k in n])
    )
    jacobian = torch.func.vmap(torch.func.grad(lambda x: function(name)(x, 3)))(x[0])
    torch.testing.assert_close(jacobian.cpu(), slope(lambda x: function(name)(x, 3), x[0], 1))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", ["laguerre_polynomial_l", "ndtri"])
def test_compile(name: str, device: str) -> None:
    x = torch.linspace(0.1, 0.9, 12, device=device).view(3, 4).mT
    n = torch.arange(3, device=device)
    args = () if name in OF_ONE else (n,)
    compiled = torch.compile(function(name), fullgraph=True, backend="aot_eager")
    assert compiled(x, *args).equal(function(name)(x, *args))
    assert compiled(x, *args).stride() == function(name)(x, *args).stride()
    there = x.clone().requires_grad_()
    compiled(there, *args).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(
        there.grad, slope(lambda x: function(name)(x, *args), x, 1).to(device), rtol=1e-6, atol=0
    )


@pytest.mark.usefixtures("kernels")
def test_ops(device: str) -> None:
    x = on(device, torch.linspace(0.1, 0.9, 6, dtype=torch.float64)).view(2, 3).mT
    ops = torch.ops.mpslinalg
    torch.library.opcheck(ops.special_airy.default, (x, 0))
    torch.library.opcheck(ops.special_normal.default, (x, "ndtri"))
    for n in (None, x.contiguous()):
        torch.library.opcheck(ops.special_polynomial.default, (x, n, 3, POLYNOMIALS[0], 0))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", ["airy_ai", POLYNOMIALS[0]])
def test_out_that_requires_grad_where_torch_knows_no_derivative(name: str, device: str) -> None:
    degree = () if name in OF_ONE else (2,)
    x = on(device, torch.tensor([0.1, 0.2, 0.3])).requires_grad_()
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            ours, theirs = (torch.empty(3, requires_grad=True) for _ in range(2))
            ours = on(device, ours.detach()).requires_grad_()
            assert function(name)(x, *degree, out=ours) is ours
            getattr(torch.special, name)(x.cpu(), *degree, out=theirs)
            assert ours.requires_grad == theirs.requires_grad
            assert ours.is_leaf == theirs.is_leaf
            torch.testing.assert_close(ours.detach().cpu(), theirs.detach())


def bad_calls() -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    x, complex_numbers = torch.ones(3), torch.ones(3, dtype=torch.complex64)
    grad = torch.empty(3, requires_grad=True)
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    for name in NAMES:
        degree = () if name in OF_ONE else (2,)
        calls += [(name, (x, *degree), {"out": torch.empty(3, dtype=torch.int64)})]
        calls += [(name, (bad, *degree), {}) for bad in (complex_numbers, None, "1")]
        calls += [(name, (x, *degree), {"out": (x,)})]
        if name in ("log_ndtr", "ndtri"):
            calls += [(name, (grad,), {"out": x})]
        if degree:
            bad_degrees = (torch.ones(2), None, complex_numbers, 1j, 2**64, -(2**63) - 1)
            calls += [(name, (x, bad), {}) for bad in bad_degrees]
            calls += [(name, (2.0, 3), {})]
    return calls


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("call", bad_calls(), ids=lambda c: c[0])
def test_bad_input(call: tuple[str, tuple[Any, ...], dict[str, Any]]) -> None:
    name, args, kwargs = call
    with pytest.raises(Exception, match=r".") as torchs:
        getattr(torch.special, name)(*args, **kwargs)
    with pytest.raises(type(torchs.value)) as ours:
        function(name)(*args, **kwargs)
    assert str(ours.value) == str(torchs.value)


@pytest.mark.parametrize("name", NAMES)
def test_signature(name: str) -> None:
    first = "x" if name not in ("log_ndtr", "ndtri") else "input"
    expected = [first, "out"] if name in OF_ONE else ["x", "n", "out"]
    assert list(inspect.signature(function(name)).parameters) == expected
    args = {first: torch.ones(2)} | ({} if name in OF_ONE else {"n": 2})
    assert getattr(torch.special, name)(**args).equal(function(name)(**args))
