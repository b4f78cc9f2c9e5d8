"""vector_norm and norm held against NumPy: what torch's own samples leave open."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import mpslinalg as LA
from mpslinalg import testing
from tests.inputs import DOUBLES, SINGLES, name, on

pytestmark = [
    pytest.mark.usefixtures("kernels"),
    # torch's own forward mode does what they warn of.
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

ORDERS: list[Any] = [0, 1, 2, 3.5, 0.5, -0.5, -1, -3, math.inf, -math.inf]
each_order = pytest.mark.parametrize("order", ORDERS)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e20, 1e37])
@each_order
@pytest.mark.parametrize("dtype", SINGLES, ids=name)
def test_every_scale(dtype: torch.dtype, order: Any, scale: float, device: str) -> None:
    x = testing.random((40,), dtype) * (0.1 * scale)
    x[0] *= 1e-7
    given = on(device, x.clone()).requires_grad_()
    N = LA.vector_norm(given, order)
    a = x.numpy().astype(np.complex128)
    expected = np.linalg.norm(a, order)
    if expected > torch.finfo(torch.float32).max:
        assert N.item() == math.inf
        return
    assert (
        abs(N.item() - expected)
        <= 1e-6 * max(1, abs(order) if math.isfinite(order) else 1) * expected
    )
    (gradient,) = torch.autograd.grad(N, given)
    if order not in (0, 1, math.inf, -math.inf):
        exact = a / np.abs(a) * (np.abs(a) / expected) ** (order - 1)
        assert np.abs(gradient.numpy(force=True) - exact).max() <= 2e-5 * np.abs(exact).max()


def test_large_and_small_together(device: str) -> None:
    x = on(device, torch.tensor([1e20, 1, 1])).requires_grad_()
    for N in (LA.vector_norm(x), LA.norm(x), LA.vector_norm(x, 3.5), LA.norm(x[None], "fro")):
        assert N.item() == pytest.approx(1e20, rel=1e-6)
        (gradient,) = torch.autograd.grad(N, x)
        assert gradient[0].item() == pytest.approx(1, rel=1e-6)
        assert gradient[1:].abs().max() <= 2e-20


@each_order
def test_zeros_and_what_is_not_finite(order: Any, device: str) -> None:
    x = torch.tensor([[0, 0], [0, 2], [3, math.inf], [-math.inf, math.inf], [math.nan, 1]])
    given = on(device, x).requires_grad_()
    N = LA.vector_norm(given, order, 1)
    torch.testing.assert_close(
        N.cpu().detach(), torch.linalg.vector_norm(x, order, 1), equal_nan=True
    )
    (gradient,) = torch.autograd.grad(N[:2].sum(), given)
    theirs = x.clone().requires_grad_()
    expected = torch.autograd.grad(
        torch.linalg.vector_norm(theirs, order, 1)[:2].sum(), theirs, allow_unused=True
    )[0]
    torch.testing.assert_close(
        gradient.cpu()[:2], torch.zeros(2, 2) if expected is None else expected[:2]
    )


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16], ids=name)
@each_order
def test_half_precision(order: Any, dtype: torch.dtype, device: str) -> None:
    x = (testing.random((300,), torch.float32) * 100).to(dtype)
    N = LA.vector_norm(on(device, x), order)
    expected = np.linalg.norm(x.double().numpy(), order)
    if expected < torch.finfo(dtype).max:
        assert N.item() == pytest.approx(expected, rel=torch.finfo(dtype).eps)
    assert N.dtype == dtype
    wide = LA.vector_norm(on(device, x), order, dtype=torch.float32)
    assert wide.item() == pytest.approx(expected, rel=1e-5)


@each_order
@pytest.mark.parametrize("dtype", DOUBLES, ids=name)
def test_derivatives(dtype: torch.dtype, order: Any, device: str) -> None:
    x = on(device, testing.random((3, 4), dtype)).requires_grad_()
    for dim in (None, 1):
        function = lambda x, d=dim: LA.vector_norm(x, order, d)  # noqa: E731
        assert torch.autograd.gradcheck(function, x, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(function, x, fast_mode=True)


def test_vmap(device: str) -> None:
    x = on(device, testing.random((3, 4, 5), torch.float32))
    for order in ORDERS:
        rows = torch.func.vmap(lambda x, o=order: LA.norm(x, o, 1))(x)
        torch.testing.assert_close(rows, LA.vector_norm(x, order, -1))


def test_which(device: str) -> None:
    x = torch.ones(3, device=device)
    assert LA.which("vector_norm", x).endswith("engine): torch's sums")
    assert LA.which("norm", x, 2).endswith("svdvals for two dimensions, else torch's sums")
    with LA.use("auto"):
        assert LA.which("norm", x.cpu()) == "norm: torch on cpu: its own kernels do"
