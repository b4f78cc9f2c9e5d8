"""polar held against SciPy."""

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg.testing import compare
from tests.inputs import DOUBLES, SINGLES, VIEWS, name, on
from tests.ratios import double, polar_ratio

pytestmark = pytest.mark.usefixtures("kernels")

SHAPES = ((1, 1), (4, 4), (5, 3), (40, 6), (2, 3, 6, 4))
each_single = pytest.mark.parametrize("dtype", SINGLES, ids=name)
torch_lacks_it = pytest.mark.skipif(hasattr(torch.linalg, "polar"), reason="torch has polar")


def scipys(A: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
    pairs = [scipy.linalg.polar(a) for a in A.reshape(-1, *A.shape[-2:]).numpy()]
    U, H = (np.stack(parts) for parts in zip(*pairs, strict=True))
    return U.reshape(A.shape), H.reshape(*A.shape[:-2], *H.shape[1:])


@pytest.mark.parametrize("shape", SHAPES, ids=name)
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
@each_single
def test_polar(dtype: torch.dtype, scale: float, shape: tuple[int, ...], device: str) -> None:
    A = testing.random(shape, dtype) * scale
    result = LA.polar(on(device, A))
    assert type(result)._fields == ("U", "H")
    U, H = result
    assert (U.shape, H.shape) == (A.shape, (*A.shape[:-2], A.shape[-1], A.shape[-1]))
    assert U.dtype == H.dtype == dtype
    assert torch.equal(H, H.mH)
    compare(polar_ratio(A, U, H), polar_ratio(A, *scipys(A)))


@each_single
def test_deficient_and_equal_singular_values(dtype: torch.dtype, device: str) -> None:
    A = torch.stack([torch.zeros(5, 4), torch.ones(5, 4), torch.eye(5, 4)]).to(dtype)
    U, H = LA.polar(on(device, A))
    compare(polar_ratio(A, U, H), polar_ratio(A, *scipys(A)))
    torch.testing.assert_close(U[2].cpu(), A[2])


@pytest.mark.parametrize("shape", [(0, 0), (3, 0), (2, 3, 0), (0, 3, 2)], ids=name)
def test_empty(shape: tuple[int, ...], device: str) -> None:
    U, H = LA.polar(on(device, torch.empty(shape)))
    assert U.shape == shape
    assert H.shape == (*shape[:-2], shape[-1], shape[-1])


@pytest.mark.parametrize("view", VIEWS)
def test_views(view: str, device: str) -> None:
    A = on(device, testing.random((2, 5, 4), torch.complex64))
    for ours, plain in zip(LA.polar(VIEWS[view](A)), LA.polar(A), strict=True):
        assert torch.equal(ours, plain)


def test_out(device: str) -> None:
    A = on(device, testing.random((2, 5, 4), torch.float32))
    outs = A.new_empty(0), A.new_empty(0)
    result = LA.polar(A, out=outs)
    for given, got, expected in zip(outs, result, LA.polar(A), strict=True):
        assert given is got
        assert torch.equal(got, expected)
    with pytest.raises(RuntimeError, match="Expected out tensor to have dtype"):
        LA.polar(A, out=(outs[0], outs[1].int()))


@torch_lacks_it
@pytest.mark.parametrize(
    ("A", "error", "words"),
    [
        (torch.ones(3), RuntimeError, "linalg.polar: The input tensor A must have at least 2 dim"),
        (torch.ones(3, 4), RuntimeError, "linalg.polar: input must have at least as many rows"),
        (
            torch.ones(3, 3).int(),
            RuntimeError,
            "linalg.polar: Expected a floating point or complex",
        ),
        (torch.ones(3, 3).half(), NotImplementedError, "'Half'"),
        ([1.0], TypeError, "linalg_polar(): argument 'A' (position 1) must be Tensor, not list"),
    ],
)
def test_bad_input(A: Any, error: type[Exception], words: str, device: str) -> None:
    with pytest.raises(error) as caught:
        LA.polar(on(device, A) if isinstance(A, Tensor) else A)
    assert words in str(caught.value)


def test_not_finite(device: str) -> None:
    A = testing.random((3, 4, 3), torch.float32)
    A[1, 2, 1] = torch.nan
    with pytest.raises(LA.LinAlgError, match="Batch element 1"):
        LA.polar(on(device, A))


@torch_lacks_it
def test_what_runs_where_torch_has_none(device: str) -> None:
    A = on(device, testing.random((4, 3), torch.float32))
    with LA.use("torch"):
        assert LA.which("polar", A) == "polar: raises an error: torch.linalg has no such function"
        with pytest.raises(RuntimeError, match=r"has no torch\.linalg\.polar"):
            LA.polar(A)
    with LA.use("auto"):
        if device == "cpu":
            expected = "polar: torch.linalg.svd on cpu, and products: torch has no polar"
            assert LA.which("polar", A) == expected
        else:
            assert LA.which("polar", A).endswith("svd_simd, matmul")
    assert LA.which("polar", A).endswith("svd_simd, matmul")


def test_within_autocast(device: str) -> None:
    A = on(device, testing.random((6, 4), torch.float32))
    expected = LA.polar(A)
    with torch.autocast(device, dtype=torch.bfloat16):
        for given in (A, A.clone().requires_grad_()):
            for ours, same in zip(LA.polar(given), expected, strict=True):
                assert torch.equal(ours, same)


def test_larger_ones_in_auto(device: str) -> None:
    A = testing.random((50, 45), torch.float32)
    with LA.use("auto"):
        compare(polar_ratio(A, *LA.polar(on(device, A))), polar_ratio(A, *scipys(A)))


@pytest.mark.parametrize("shape", [(3, 3), (5, 3)], ids=name)
@pytest.mark.parametrize("dtype", DOUBLES, ids=name)
def test_gradients_of_equal_singular_values(
    shape: tuple[int, int], dtype: torch.dtype, device: str
) -> None:
    """All singular values are 2: against differences of SciPy's polar."""
    Q = np.linalg.qr(testing.random(shape, dtype).numpy())[0]
    a = 2 * Q
    WU, WH = (double(testing.random(s, dtype, seed=7)) for s in (shape, (shape[1], shape[1])))
    A = on(device, torch.from_numpy(a)).requires_grad_()
    U, H = LA.polar(A)
    loss = ((on(device, torch.from_numpy(WU.conj())) * U).sum()).real
    loss = loss + ((on(device, torch.from_numpy(WH.conj())) * H).sum()).real
    (gradient,) = torch.autograd.grad(loss, A)

    def changed(step: NDArray[Any]) -> float:
        u, h = scipy.linalg.polar(a + step)
        return float((np.sum(WU.conj() * u) + np.sum(WH.conj() * h)).real)

    for seed in range(4):
        D = 1e-5 * double(testing.random(shape, dtype, seed))
        expected = (changed(D) - changed(-D)) / 2
        got = np.sum(gradient.numpy(force=True).conj() * D).real
        assert abs(got - expected) <= 1e-7 * np.linalg.norm(D)
