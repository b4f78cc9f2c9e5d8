"""matrix_norm and cond held against NumPy and torch."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import mpslinalg as LA
from mpslinalg import testing
from tests.inputs import DOUBLES, SINGLES, VIEWS, all_on, name, on

pytestmark = [
    pytest.mark.usefixtures("kernels"),
    # torch's own forward mode does what they warn of.
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

ORDERS: list[Any] = ["fro", "nuc", math.inf, -math.inf, 1, -1, 2, -2]
each_order = pytest.mark.parametrize("order", ORDERS)
each_single = pytest.mark.parametrize("dtype", SINGLES, ids=name)


def double(A: Tensor) -> NDArray[Any]:
    return A.numpy().astype(np.complex128 if A.is_complex() else np.float64)


def close(ours: Tensor, expected: Any, factor: float = 20) -> None:
    """To some roundings, relative to the largest."""
    eps = torch.finfo(ours.dtype).eps
    expected = np.asarray(expected)
    error = np.abs(ours.numpy(force=True).astype(np.float64) - expected)
    assert error.max(initial=0) <= factor * eps * np.abs(expected).max(initial=0)


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (2, 3, 4, 7), (40, 6)], ids=name)
@each_order
@each_single
def test_matrix_norm(dtype: torch.dtype, order: Any, shape: tuple[int, ...], device: str) -> None:
    A = testing.random(shape, dtype)
    expected = np.linalg.norm(double(A), order, axis=(-2, -1))
    close(LA.matrix_norm(on(device, A), order), expected)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [(0, 2), (-1, 0), (2, 1), [1, -1]], ids=str)
@each_order
def test_dimensions(order: Any, dim: Any, keepdim: bool, device: str) -> None:
    A = testing.random((3, 4, 2), torch.complex64)
    ours = LA.matrix_norm(on(device, A), order, dim, keepdim, dtype=torch.complex64)
    theirs = torch.linalg.matrix_norm(A, order, dim, keepdim)
    assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
    torch.testing.assert_close(ours.cpu(), theirs)


@pytest.mark.parametrize("scale", [1e-30, 1e20, 1e37])
@each_single
def test_the_norm_of_large_and_small_entries(dtype: torch.dtype, scale: float, device: str) -> None:
    A = testing.random((2, 3, 4), dtype) * (0.1 * scale)
    A[1, 1:] *= 1e-8
    given = on(device, A.clone()).requires_grad_()
    N = LA.matrix_norm(given)
    expected = np.linalg.norm(double(A), axis=(-2, -1))
    close(N[0].detach(), expected[0])
    close(N[1].detach(), expected[1])
    (gradient,) = torch.autograd.grad(N.sum(), given)
    error = gradient.numpy(force=True) - double(A) / expected[:, None, None]
    assert np.abs(error).max() < 1e-6
    tangent: Tensor = torch.func.jvp(LA.matrix_norm, (given.detach(),), (given.detach(),))[1]
    close(tangent[0], expected[0])


@each_single
def test_no_entries_zeros_and_what_is_not_finite(dtype: torch.dtype, device: str) -> None:
    A = torch.zeros((4, 3, 3), dtype=dtype)
    A[1, 0, 0], A[2, 1, 1], A[3] = math.inf, math.nan, 1
    given = on(device, A.clone()).requires_grad_()
    N = LA.matrix_norm(given)
    torch.testing.assert_close(N.detach().cpu(), torch.linalg.matrix_norm(A), equal_nan=True)
    (gradient,) = torch.autograd.grad(N[[0, 3]].sum(), given)
    assert not gradient[0].any()
    torch.testing.assert_close(gradient[3], torch.full_like(gradient[3], 1 / 3))


@pytest.mark.parametrize("function", ["matrix_norm", "norm", "cond"])
def test_true_is_a_number(function: str, device: str) -> None:
    A = testing.random((3, 3), torch.float32)
    ours = getattr(LA, function)(on(device, A), True)
    torch.testing.assert_close(ours.cpu(), getattr(torch.linalg, function)(A, True))


@pytest.mark.parametrize("shape", [(2, 0, 3), (2, 3, 0), (0, 3, 3), (2, 0, 0)], ids=name)
@each_order
def test_empty(order: Any, shape: tuple[int, ...], device: str) -> None:
    A = torch.empty(shape)

    def result(function: Any, A: Tensor) -> Any:
        try:
            value = function(A, order).cpu()
        except Exception as error:
            return type(error), str(error)
        return value.tolist(), value.dtype

    for ours, theirs in (
        (LA.matrix_norm, torch.linalg.matrix_norm),
        (LA.cond, torch.linalg.cond),
    ):
        assert result(ours, on(device, A)) == result(theirs, A)


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16], ids=name)
@pytest.mark.parametrize("order", ["fro", 1, -math.inf])
def test_half_precision(order: Any, dtype: torch.dtype, device: str) -> None:
    A = testing.random((2, 3, 4), torch.float32).to(dtype)
    ours, theirs = LA.matrix_norm(on(device, A), order), torch.linalg.matrix_norm(A, order)
    torch.testing.assert_close(ours.cpu(), theirs)
    wide = LA.matrix_norm(on(device, A), order, dtype=torch.float32)
    torch.testing.assert_close(wide.cpu(), torch.linalg.matrix_norm(A, order, dtype=torch.float32))


@pytest.mark.parametrize(
    ("args", "options"),
    [
        ((3,), {}),
        (("x",), {}),
        ((None,), {}),
        ((1j,), {}),
        (("fro", (0,)), {}),
        (("fro", 0), {}),
        (("fro", (0, 0)), {}),
        ((2, (1, -1)), {}),
        ((2, (0, 3)), {}),
        (("fro", (0, 1), 1), {}),
        ((), {"dtype": torch.half}),
        ((), {"dtype": torch.complex64}),
        ((), {"dtype": torch.int64}),
        ((), {"dtype": "float32"}),
        ((), {"out": torch.empty(0, dtype=torch.float64)}),
        (("nuc",), {"out": torch.empty(0, dtype=torch.complex64)}),
    ],
    ids=str,
)
def test_bad_arguments(args: tuple[Any, ...], options: dict[str, Any], device: str) -> None:
    A = testing.random((3, 4), torch.float32)

    def error(function: Any, A: Tensor, options: dict[str, Any]) -> tuple[type, str]:
        with pytest.raises((RuntimeError, TypeError, IndexError)) as caught:
            function(A, *args, **options)
        # What torch got is in its words, and we pass it all arguments.
        return caught.type, str(caught.value).partition(" - got")[0]

    ours = error(LA.matrix_norm, *all_on(device, (A, options)))
    assert ours == error(torch.linalg.matrix_norm, A, options)


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (2, 3, 4, 4), (5, 3), (2, 4, 6)], ids=name)
@pytest.mark.parametrize("order", [None, *ORDERS])
@each_single
def test_cond(dtype: torch.dtype, order: Any, shape: tuple[int, ...], device: str) -> None:
    A = testing.random(shape, dtype)
    if shape[-1] != shape[-2]:
        if order in (None, 2, -2):
            S = np.linalg.svd(double(A), compute_uv=False)
            expected = S[..., 0] / S[..., -1]
            close(LA.cond(on(device, A), order), 1 / expected if order == -2 else expected, 300)
        return
    a = double(A)
    of_norm = 2 if order is None else order
    norms = (np.linalg.norm(x, of_norm, axis=(-2, -1)) for x in (a, np.linalg.inv(a)))
    expected = math.prod(norms)
    # The smallest singular value has a relative error of some eps cond.
    close(LA.cond(on(device, A), order), expected, 20 * np.linalg.cond(a).max())


@pytest.mark.parametrize("order", [None, *ORDERS])
def test_cond_of_singular_matrices(order: Any, device: str) -> None:
    A = torch.stack((torch.zeros(3, 3), torch.eye(3), torch.diag(torch.tensor([2.0, 1.0, 0.0]))))
    ours = LA.cond(on(device, A), order)
    torch.testing.assert_close(ours.cpu(), torch.linalg.cond(A, order), equal_nan=True)
    assert order == -2 or ours[2].isinf()


@pytest.mark.parametrize(
    ("A", "p"),
    [
        (torch.ones(3), None),
        (torch.ones(3, 4), 1),
        (torch.ones(3, 4), "fro"),
        (torch.ones(0, 4), "nuc"),
        (torch.ones(3, 3), 3),
        (torch.ones(3, 3), "x"),
        (torch.ones(3, 3, dtype=torch.int64), None),
        (torch.ones(3, 3).half(), 1),
    ],
)
def test_cond_of_bad_arguments(A: Tensor, p: Any, device: str) -> None:
    def error(function: Any, A: Tensor) -> tuple[type, str]:
        with pytest.raises((RuntimeError, TypeError)) as caught:
            function(A, p)
        return caught.type, str(caught.value)

    assert error(LA.cond, on(device, A)) == error(torch.linalg.cond, A)


@pytest.mark.parametrize("view", VIEWS)
def test_views(view: str, device: str) -> None:
    A = on(device, testing.random((2, 4, 4), torch.complex64))
    for order in ("fro", "nuc", 1):
        assert torch.equal(LA.matrix_norm(VIEWS[view](A), order), LA.matrix_norm(A, order))
        assert torch.equal(LA.cond(VIEWS[view](A), order), LA.cond(A, order))


@pytest.mark.parametrize("dtype", DOUBLES, ids=name)
def test_gradients_are_torchs(dtype: torch.dtype, device: str) -> None:
    A = on(device, testing.random((4, 4), dtype)).requires_grad_()

    def cond(A: Tensor, order: Any) -> Tensor:
        # torch 2.13 cannot differentiate its own.
        result: Tensor = math.prod(
            torch.linalg.matrix_norm(X, order) for X in (A, torch.linalg.inv(A))
        )
        return result

    for order in ORDERS:
        for ours, theirs in ((LA.matrix_norm, torch.linalg.matrix_norm), (LA.cond, cond)):
            got, expected = (torch.autograd.grad(f(A, order), A)[0] for f in (ours, theirs))
            torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-8)


def test_which_says_whose_sums(device: str) -> None:
    A = torch.ones(3, 3, device=device)
    assert LA.which("matrix_norm", A).endswith(", torch's sums")
    assert LA.which("matrix_norm", A, "nuc").endswith(", svd_simd")
    assert LA.which("cond", A).endswith(", svd_simd")
    assert LA.which("cond", A, 1).endswith(", inverse_tiny, torch's sums")
