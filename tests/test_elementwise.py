"""frexp, logspace, heaviside and comparisons: torch's results, derivatives, errors."""

import inspect
import itertools
import math
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg._elementwise_plan import COMPARISONS, INTEGERS, REALS, WIDE_UNSIGNED
from mpslinalg._elementwise_route import result_type
from tests.inputs import on
from tests.test_namespace import torch_signature

with warnings.catch_warnings():
    warnings.simplefilter("ignore")

pytestmark = [
    pytest.mark.usefixtures("kernels"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
]

NAMES = ["frexp", "heaviside", "logspace", *COMPARISONS]
EXACT = {"rtol": 0, "atol": 0, "equal_nan": True}


def same(got: Any, expected: Any, **tolerance: Any) -> None:
    """Equal values, dtypes, shapes and strides."""
    pairs = zip(got, expected, strict=True) if isinstance(expected, tuple) else [(got, expected)]
    assert type(got) is type(expected)
    for ours, theirs in pairs:
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.stride() == theirs.stride() or theirs.numel() == 0
        torch.testing.assert_close(ours.cpu(), theirs, **(tolerance or EXACT))


def bad_calls() -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    x, whole, grad = torch.ones(3), torch.ones(3, dtype=torch.int64), torch.ones(3).requires_grad_()
    unsigned = whole.to(torch.uint32)
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("frexp", (whole,), {}),
        ("frexp", (x + 0j,), {}),
        ("frexp", (None,), {}),
        ("frexp", (x,), {"out": (x, whole)}),
        ("frexp", (x,), {"out": (x.double(), whole.int())}),
        ("frexp", (x,), {"out": (x,)}),
        ("frexp", (grad,), {"out": (x, whole.int())}),
        ("heaviside", (x, 0.5), {}),
        ("heaviside", (x, whole), {}),
        ("heaviside", (x + 0j, x + 0j), {}),
        ("heaviside", (x, torch.ones(2)), {}),
        ("heaviside", (x, x), {"out": whole}),
        ("logspace", (0, 1, -1), {}),
        ("logspace", (0, 1, 2.5), {}),
        ("logspace", (0, 1, 2**63), {}),
        ("logspace", (x, 1, 3), {}),
        ("logspace", (0, 1, 3), {"out": x, "dtype": torch.float64}),
        ("logspace", (0, 300, 3), {"dtype": torch.uint8}),
        ("logspace", (0, 1, 3), {"dtype": torch.int32, "requires_grad": True}),
        ("logspace", ("0", 1, 3), {}),
    ]
    for name in COMPARISONS:
        calls += [
            (name, (x, torch.ones(2)), {}),
            (name, (x, None), {}),
            (name, (2.0, x), {}),
            (name, (unsigned, whole), {}),
            (name, (unsigned, unsigned.to(torch.uint64)), {}),
            (name, (x, x), {"out": [x]}),
            (name, (x, 2**64), {}),
            (name, (whole, -(2**63) - 1), {}),
        ]
        if name not in ("eq", "ne"):
            calls += [(name, (x + 0j, x), {}), (name, (x, 1j), {})]
    return calls


@pytest.mark.parametrize("call", bad_calls(), ids=lambda c: c[0])
def test_bad_input(call: tuple[str, tuple[Any, ...], dict[str, Any]]) -> None:
    name, args, kwargs = call
    with pytest.raises(Exception, match=r".") as torchs:
        getattr(torch, name)(*args, **kwargs)
    with pytest.raises(type(torchs.value)) as ours:
        getattr(LA, name)(*args, **kwargs)
    # Dynamic values and the name of a list in a call are all that may differ.
    plain = [re.sub(r"out=(list|tuple|NoneType)", "out=", str(e.value)) for e in (ours, torchs)]
    assert plain[0] == plain[1]


@pytest.mark.parametrize("name", COMPARISONS)
def test_out_that_requires_grad(name: str, device: str) -> None:
    x = on(device, torch.tensor([1.0, 2, 3])).requires_grad_()
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            ours, theirs = (torch.empty(3, device=device, requires_grad=True) for _ in range(2))
            assert getattr(LA, name)(x, 2, out=ours) is ours
            same(ours, getattr(torch, name)(x, 2, out=theirs).cpu())
            assert ours.requires_grad


def test_promotion_is_torchs() -> None:
    dtypes = (*REALS, torch.complex64, torch.complex128, torch.complex32)
    tensors = [torch.zeros(shape, dtype=d) for d in dtypes for shape in ((), (2,))]
    others: list[Any] = [*tensors, True, 2, 2.5, 1j]
    for a, b in itertools.product(tensors, others):
        try:
            expected: Any = torch.result_type(a, b)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=re.escape(str(error).splitlines()[0])):
                result_type(a, b)
        else:
            assert result_type(a, b) == expected
            if not isinstance(b, Tensor):
                assert result_type(b, a) == expected


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons(name: str, device: str) -> None:
    """Every dtype beside tensors and numbers, as torch has it where it has it."""
    ours, theirs = getattr(LA, name), getattr(torch, name)
    for dtype in (torch.float32, torch.float16, torch.int8, torch.int64, torch.bool):
        x = torch.tensor([[0, 1, 3], [-2, 0, 44]]).to(dtype)
        others: tuple[Any, ...] = (x[:1], x[0, 1], x.mT.contiguous().mT, 1, -2, 1.0, 0.5, 300, True)
        others += (torch.tensor([0.0, 2.5, 1]), torch.tensor(3, dtype=torch.uint8))
        for other in others:
            there = other.to(device) if isinstance(other, Tensor) else other
            same(ours(x.to(device), there), theirs(x, other))
    for dtype in WIDE_UNSIGNED:
        x = torch.tensor([[0, 1, 3], [65535, 0, 44]]).to(dtype)
        wide = x.to(torch.int64)
        for other in (x[1:], x[1, 0], 3, True):
            as_int = other.to(torch.int64) if isinstance(other, Tensor) else other
            there = other.to(device) if isinstance(other, Tensor) else other
            same(ours(x.to(device), there), theirs(wide, as_int))
        same(ours(x.to(device), 2.5), theirs(wide, 2.5))
    if name in ("eq", "ne"):
        z = torch.tensor([1 + 2j, 1 - 2j, 3])
        others = (z.conj(), z.real, z[:1], 3, 1 + 2j, z[:, None])
        for other in others:
            there = other.to(device) if isinstance(other, Tensor) else other
            same(ours(z.to(device), there), theirs(z, other))


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_to_out(name: str, device: str) -> None:
    x = torch.tensor([[0.0, 1, 3], [-2, 0, 44]])
    for dtype in (torch.bool, torch.uint8, torch.float32):
        for shape in ((0,), (2, 3)):
            out = torch.empty(shape, dtype=dtype, device=device)
            assert getattr(LA, name)(x.to(device), 1.0, out=out) is out
            same(out, getattr(torch, name)(x, 1.0, out=torch.empty(shape, dtype=dtype)))


def test_auto_compares_what_torch_cannot() -> None:
    with LA.use("auto"):
        x = torch.tensor([1, 70000, 2**32 - 1], dtype=torch.uint32)
        assert LA.lt(x, 70001).tolist() == [True, True, False]
        assert "kernels" in LA.which("lt", x, 1)
        for call in (("eq", x, 1), ("lt", x.to(torch.int64), 1), ("lt", torch.ones(2), 1)):
            assert "torch on cpu" in LA.which(*call)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_frexp_derivatives(dtype: torch.dtype, device: str) -> None:
    x = on(device, torch.tensor([3.0, -0.1, 1000.0], dtype=dtype)).requires_grad_()
    mantissa, exponent = LA.frexp(x)
    assert not exponent.requires_grad
    mantissa.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1 / 4, 8, 1 / 1024]


def test_frexp_to_out(device: str) -> None:
    x = torch.randn(3, 4)
    out = torch.empty(0, device=device), torch.empty(0, dtype=torch.int32, device=device)
    got = LA.frexp(x.to(device), out=out)
    expected = torch.frexp(x, out=(torch.empty(0), torch.empty(0, dtype=torch.int32)))
    same(got, expected)
    assert got.mantissa is out[0]


def test_heaviside_derivatives(device: str) -> None:
    """Zero for x, and what falls on values where x is zero."""
    x = on(device, torch.tensor([-1.0, 0, -0.0, 2], dtype=torch.float64)).requires_grad_()
    values = on(device, torch.tensor(0.3, dtype=torch.float64)).requires_grad_()
    weights = torch.tensor([1.0, 10, 100, 1000], dtype=torch.float64, device=device)
    (LA.heaviside(x, values) * weights).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert values.grad is not None
    assert x.grad.tolist() == [0] * 4
    assert values.grad.item() == 110
    with LA.use("auto"):
        assert LA.heaviside(x, values).requires_grad


def test_views(device: str) -> None:
    x = torch.randn(4, 6)
    for view in (
        x.mT,
        x[:, ::2],
        x[:1].expand(4, 6),
        torch._neg_view(x),
        x[1:, 1:],
        x[0, 0],
        x[:0],
    ):
        same(LA.frexp(view.to(device)), torch.frexp(view))
        there = view.to(device)
        same(LA.heaviside(there, there), torch.heaviside(view, view))
        same(LA.ge(there, there), torch.ge(view, view))
    strided = torch.randn(6, 4, device=device).mT
    for other in (strided[:1], strided.contiguous(), strided[:, ::2].repeat(1, 2)):
        same(LA.lt(strided, other), torch.lt(strided.cpu(), other.cpu()))
        same(LA.heaviside(strided, other), torch.heaviside(strided.cpu(), other.cpu()))


def test_vmap(device: str) -> None:
    x, y = torch.randn(3, 4, device=device), torch.randn(3, device=device)
    assert torch.func.vmap(LA.lt)(x, y).equal(x < y[:, None])
    assert torch.func.vmap(LA.heaviside, in_dims=(1, None))(x, y).equal(LA.heaviside(x.mT, y))
    mantissa, exponent = torch.func.vmap(LA.frexp, in_dims=1, out_dims=1)(x)
    assert mantissa.equal(LA.frexp(x).mantissa)
    assert exponent.equal(LA.frexp(x).exponent)


def functions() -> dict[str, Callable[[Tensor], Any]]:
    return {
        "lt": lambda x: LA.lt(x, 0.5),
        "ge": lambda x: LA.ge(x, x[0]),
    }


@pytest.mark.parametrize("name", functions())
def test_compile(name: str, device: str) -> None:
    function = functions()[name]
    x = torch.randn(3, 4, device=device).mT
    got = torch.compile(function, fullgraph=True, backend="aot_eager")(x)
    same(got, torch.utils._pytree.tree_map(Tensor.cpu, function(x)))


def test_ops(device: str) -> None:
    x = torch.randn(3, 4, device=device).mT
    ops = torch.ops.mpslinalg
    torch.library.opcheck(ops.frexp.default, (x,))
    torch.library.opcheck(ops.compare.default, (x, None, 0.5, "lt"))
    torch.library.opcheck(ops.compare.default, (x, x.contiguous(), 0, "eq"))
    torch.library.opcheck(ops.heaviside.default, (x, x))
    torch.library.opcheck(ops.logspace.default, (x[:0, 0], 0.0, 1.0, 5, 10.0))


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.float32, torch.bfloat16], ids=str)
def test_logspace(dtype: torch.dtype, device: str) -> None:
    tolerance: dict[str, Any] = {"rtol": 0.02 if dtype == torch.bfloat16 else 1e-5, "atol": 0}
    tolerance = tolerance if dtype.is_floating_point else EXACT
    for args in ((0, 2, 1000), (2, 0, 17), (0.4, 1.9, 5), (0, 6, 7, 2.0), (1, 1, 1), (0, 2, 0)):
        got = LA.logspace(*args, dtype=dtype, device=device)
        same(got, torch.logspace(*args, dtype=dtype), **tolerance)
    tensors = torch.tensor(0.5), torch.tensor(1.5)
    same(
        LA.logspace(*tensors, 4, dtype=dtype, device=device),
        torch.logspace(*tensors, 4, dtype=dtype),
        **tolerance,
    )
    out = torch.empty(0, dtype=dtype, device=device)
    assert LA.logspace(0, 2, 9, out=out) is out
    same(out, torch.logspace(0, 2, 9, dtype=dtype), **tolerance)


def test_logspace_without_a_kernel() -> None:
    """No positive base, complex numbers: torch's own, and `which` says so."""
    for base in (-2.0, 0.0, math.inf, math.nan):
        same(LA.logspace(0, 3, 4, base), torch.logspace(0, 3, 4, base))
        assert "no kernel" in LA.which("logspace", 0, 3, 4, base)
    imaginary: Any = 1j
    same(LA.logspace(0, imaginary, 4), torch.logspace(0, imaginary, 4))
    same(LA.logspace(0, math.inf, 3), torch.logspace(0, math.inf, 3))
    assert "kernels (cpu engine)" in LA.which("logspace", 0, 3, 4)
    with LA.use("auto"):
        assert "torch on cpu" in LA.which("logspace", 0, 3, 4)
        assert LA.logspace(0, 3, 40, dtype=torch.bool).all()
    leaf = LA.logspace(0, 1, 3, requires_grad=True)
    assert leaf.is_leaf
    assert leaf.requires_grad


@pytest.mark.parametrize("name", NAMES)
def test_documentation_and_signature(name: str) -> None:
    text = inspect.getdoc(getattr(LA, name))
    assert text is not None
    assert f"Same contract as `torch.{name}`. Differences: " in text
    assert all(section in text for section in ("Args:", "Returns:", "Raises:"))
    ours = inspect.signature(getattr(LA, name)).parameters.values()
    assert [p.name for p in ours] == list(torch_signature(name).parameters)
