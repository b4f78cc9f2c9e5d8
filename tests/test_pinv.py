"""pinv and matrix_rank held against SciPy and torch."""

from collections.abc import Callable
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
from tests.inputs import DOUBLES, SINGLES, VIEWS, all_on, name, on, random_hermitian
from tests.ratios import double, pinv_ratio

pytestmark = pytest.mark.usefixtures("kernels")

SHAPES = ((1, 1), (5, 3), (3, 5), (40, 6), (2, 3, 4, 4), (6, 40))
each_single = pytest.mark.parametrize("dtype", SINGLES, ids=name)
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=name)
both = pytest.mark.parametrize("function", [LA.pinv, LA.matrix_rank])


def of_rank(shape: tuple[int, ...], rank: int, dtype: torch.dtype) -> Tensor:
    """Singular values 1, or the same for all."""
    *batch, m, n = shape
    wide = torch.complex128 if dtype.is_complex else torch.float64
    U, V = (np.linalg.qr(testing.random((*batch, s, rank), wide, s).numpy())[0] for s in (m, n))
    return torch.from_numpy(U @ V.conj().swapaxes(-2, -1)).to(dtype)


@each_shape
@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e25])
@each_single
def test_pinv(dtype: torch.dtype, scale: float, shape: tuple[int, ...], device: str) -> None:
    A = testing.random(shape, dtype) * scale
    X = LA.pinv(on(device, A))
    theirs = torch.linalg.pinv(A)
    assert (X.dtype, X.shape, X.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
    compare(pinv_ratio(A, X), pinv_ratio(A, scipys(A)))


def scipys(A: Tensor) -> NDArray[Any]:
    flat = A.reshape(-1, *A.shape[-2:]).numpy()
    return np.stack([scipy.linalg.pinv(a) for a in flat]).reshape(A.mT.shape)


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("shape", [(5, 4), (2, 3, 6)], ids=name)
@each_single
def test_deficient(dtype: torch.dtype, shape: tuple[int, ...], rank: int, device: str) -> None:
    A = of_rank(shape, rank, dtype)
    X = LA.pinv(on(device, A))
    # All kept singular values are 1.
    torch.testing.assert_close(X.cpu(), A.mH, rtol=0, atol=1e-5)
    assert LA.matrix_rank(on(device, A)).tolist() == np.full(shape[:-2], rank).tolist()


@each_single
def test_hermitian(dtype: torch.dtype, device: str) -> None:
    A = random_hermitian((3, 5, 5), dtype)
    A[1] = of_rank((5, 2), 2, dtype) @ of_rank((5, 2), 2, dtype).mH
    # Only the lower triangle is read.
    given = on(device, A.tril() + testing.random(A.shape, dtype).triu(1))
    X = LA.pinv(given, rtol=1e-4, hermitian=True)
    compare(pinv_ratio(A[::2], X[::2]), pinv_ratio(A[::2], scipys(A[::2])))
    torch.testing.assert_close(X[1].cpu(), A[1], rtol=0, atol=1e-5)
    assert LA.matrix_rank(given, rtol=1e-4, hermitian=True).tolist() == [5, 2, 5]
    assert LA.pinv(given, 1e-4, True).equal(X)


TOLERANCES: list[dict[str, Any]] = [
    {},
    {"rtol": 0.3},
    {"atol": 0.3},
    {"atol": 0.0},
    {"atol": 1},
    {"atol": 0.05, "rtol": 0.3},
    {"atol": torch.tensor(0.3)},
    {"atol": torch.tensor([0.0, 0.3, 3.0])},
    {"atol": torch.zeros(3)},
    {"rtol": torch.tensor([0.3, 0.6, 0.1]).double()},
    {"atol": torch.tensor([0.3, 0.3, 0.0]), "rtol": torch.tensor([0.0, 0.1, 0.6])},
]


@pytest.mark.parametrize("options", TOLERANCES, ids=str)
@each_single
def test_tolerances(dtype: torch.dtype, options: dict[str, Any], device: str) -> None:
    values = torch.tensor([[2.0, 0.9, 0.2], [0.4, 0.1, 1e-9], [0.0, 0.0, 0.0]])
    # Columns that are orthogonal, so that LAPACK's small values are as right as ours.
    A = torch.linalg.qr(testing.random((3, 5, 3), dtype)).Q * values.unsqueeze(-2)
    given = {k: on(device, v) if isinstance(v, Tensor) else v for k, v in options.items()}
    X, rank = LA.pinv(on(device, A), **given), LA.matrix_rank(on(device, A), **given)
    torch.testing.assert_close(X.cpu(), torch.linalg.pinv(A, **options), rtol=1e-4, atol=1e-4)
    assert torch.equal(rank.cpu(), torch.linalg.matrix_rank(A, **options))
    assert rank.dtype == torch.int64


def test_more_tolerances_than_matrices(device: str) -> None:
    A = testing.random((3, 5, 4), torch.float32)
    rtol = torch.tensor([[0.3], [0.6]])
    given = on(device, A).requires_grad_()
    X = LA.pinv(given, rtol=on(device, rtol))
    expected = torch.linalg.pinv(A.expand(2, 3, 5, 4), rtol=rtol)
    torch.testing.assert_close(X.detach().cpu(), expected, rtol=1e-4, atol=1e-4)
    assert torch.autograd.grad(X.sum(), given)[0].shape == A.shape
    ranks = torch.linalg.matrix_rank(A.expand(2, 3, 5, 4), rtol=rtol)
    assert torch.equal(LA.matrix_rank(given, rtol=on(device, rtol)).cpu(), ranks)


@pytest.mark.parametrize("tolerance", [0.3, torch.tensor([0.3, 1.0])], ids=["number", "tensor"])
def test_one_tolerance_by_position(tolerance: Any, device: str) -> None:
    A = testing.random((2, 4, 3), torch.float32)
    given = on(device, tolerance) if isinstance(tolerance, Tensor) else tolerance
    ours = LA.pinv(on(device, A), given)
    assert torch.equal(ours, LA.pinv(on(device, A), rcond=given))
    torch.testing.assert_close(ours.cpu(), torch.linalg.pinv(A, tolerance), rtol=1e-4, atol=1e-4)
    tol = 4 * given
    for rank in (LA.matrix_rank(on(device, A), tol), LA.matrix_rank(on(device, A), tol=tol)):
        assert torch.equal(rank.cpu(), torch.linalg.matrix_rank(A, 4 * tolerance))


@both
@pytest.mark.parametrize(
    ("args", "options"),
    [
        ((0.1, True, 3), {}),
        ((0.1,), {"atol": 0.1}),
        ((None,), {}),
        ((0.1,), {"rcond": 0.1, "tol": 0.1}),
        ((), {"atol": torch.tensor(1j)}),
        ((), {"rtol": torch.tensor(1j)}),
        ((), {"atol": torch.tensor(1.0), "rtol": "a"}),
        ((), {"hermitian": 1}),
        ((), {"atol": torch.ones(3)}),
    ],
    ids=str,
)
def test_bad_tolerances(
    function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], device: str
) -> None:
    A = testing.random((2, 4, 4), torch.float32)

    def error(function: Callable[..., Any], A: Tensor, options: Any) -> tuple[type, str]:
        with pytest.raises((RuntimeError, TypeError)) as caught:
            function(A, *args, **options)
        return caught.type, str(caught.value)

    ours = error(function, *all_on(device, (A, options)))
    assert ours == error(getattr(torch.linalg, function.__name__), A, options)


@both
@pytest.mark.parametrize(
    "shape", [(0, 0), (0, 3), (3, 0), (2, 3, 0), (0, 3, 2), (2, 0, 40, 2)], ids=name
)
@each_single
def test_empty(
    dtype: torch.dtype, shape: tuple[int, ...], function: Callable[..., Any], device: str
) -> None:
    A = torch.empty(shape, dtype=dtype)
    ours, theirs = function(on(device, A)), getattr(torch.linalg, function.__name__)(A)
    assert (ours.shape, ours.stride(), ours.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
    assert torch.equal(ours.cpu(), theirs)


@both
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 3, 2)], ids=name)
def test_empty_ones_need_not_fit(
    shape: tuple[int, ...], function: Callable[..., Any], device: str
) -> None:
    A = torch.empty(shape)
    for options in ({"hermitian": True}, {"rtol": torch.tensor([0.1, 0.2])}):
        ours = function(on(device, A), **all_on(device, options))
        theirs = getattr(torch.linalg, function.__name__)(A, **options)
        assert ours.shape == theirs.shape
        assert torch.equal(ours.cpu(), theirs)


@both
@pytest.mark.parametrize(
    "options",
    [
        {"atol": 0.5, "rtol": torch.tensor(0.1)},
        {"atol": torch.tensor(2.5), "rtol": 0},
        {"atol": torch.tensor(1), "rtol": np.float32(0.8)},
        {"rtol": np.float32(0.8)},
        {"atol": True},
        {"rtol": torch.tensor([torch.nan, 0.1])},
        {"atol": torch.tensor([torch.nan, 0.1])},
        {"atol": torch.tensor(torch.nan), "rtol": 0.1},
    ],
    ids=str,
)
def test_tolerances_of_any_kind(
    function: Callable[..., Any], options: dict[str, Any], device: str
) -> None:
    A = torch.stack([torch.diag(torch.tensor([3.0, 2.0, 1e-9]))] * 2)
    ours = function(*all_on(device, (A,)), **all_on(device, options))
    theirs = getattr(torch.linalg, function.__name__)(A, **options)
    torch.testing.assert_close(ours.cpu(), theirs)


@pytest.mark.parametrize("view", VIEWS)
@each_single
def test_views(dtype: torch.dtype, view: str, device: str) -> None:
    A = on(device, testing.random((2, 5, 4), dtype))
    assert torch.equal(LA.pinv(VIEWS[view](A)), LA.pinv(A))
    assert torch.equal(LA.matrix_rank(VIEWS[view](A)), LA.matrix_rank(A))


@both
def test_not_finite(function: Callable[..., Any], device: str) -> None:
    A = testing.random((3, 4, 3), torch.float32)
    A[1, 2, 1] = torch.nan
    for hermitian, given in ((False, A), (True, A[:, :3])):
        with pytest.raises(LA.LinAlgError, match="Batch element 1"):
            function(on(device, given), hermitian=hermitian)


def test_larger_ones_in_auto(device: str) -> None:
    A = testing.random((50, 45), torch.float32)
    with LA.use("auto"):
        compare(pinv_ratio(A, LA.pinv(on(device, A))), pinv_ratio(A, scipys(A)))


@pytest.mark.parametrize("dtype", DOUBLES, ids=name)
@pytest.mark.parametrize("shape", [(5, 3), (3, 4)], ids=name)
def test_gradients_of_equal_singular_values(
    shape: tuple[int, int], dtype: torch.dtype, device: str
) -> None:
    """Against differences of SciPy's pinv along directions that keep the rank, 2 of values 1."""
    A = of_rank(shape, 2, dtype)
    numbers = np.random.default_rng(0)
    W = double(testing.random((shape[1], shape[0]), dtype, seed=5))
    a = A.numpy()
    given = on(device, A).requires_grad_()
    loss = (on(device, torch.from_numpy(W.conj())) * LA.pinv(given, rtol=1e-8)).sum().real
    (gradient,) = torch.autograd.grad(loss, given)
    for _ in range(4):
        left, right = (
            numbers.standard_normal((s, s))
            + 1j * dtype.is_complex * numbers.standard_normal((s, s))
            for s in shape
        )

        def changed(h: float, left: Any = left, right: Any = right) -> float:
            moved = (np.eye(len(left)) + h * left) @ a @ (np.eye(len(right)) + h * right)
            return float(np.sum(W.conj() * scipy.linalg.pinv(moved, rtol=1e-4)).real)

        h = 1e-5
        expected = (changed(h) - changed(-h)) / (2 * h)
        direction = left @ a + a @ right
        got = np.sum(gradient.numpy(force=True).conj() * direction).real
        assert abs(got - expected) <= 1e-7 * np.linalg.norm(direction) * np.linalg.norm(W)


def test_within_autocast(device: str) -> None:
    A = on(device, testing.random((6, 4), torch.float32))
    expected = LA.pinv(A)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert torch.equal(LA.pinv(A), expected)
        assert torch.equal(LA.pinv(A.clone().requires_grad_()), expected)


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast(compiled: bool) -> None:
    A = torch.tensor([[3.0, 1.0], [1.0, 2.0]]) / 7
    pinv = torch.compile(LA.pinv, fullgraph=True, backend="aot_eager") if compiled else LA.pinv
    with LA.use("kernels"), torch.autocast("cpu", torch.bfloat16):
        X = pinv(A)
    torch.testing.assert_close(X, torch.linalg.inv(A))


@pytest.mark.parametrize("name", ["pinv", "matrix_exp"])
def test_meta_has_no_autocast(name: str) -> None:
    with LA.use("kernels"):
        result = getattr(LA, name)(torch.ones(3, 3, device="meta"))
    assert (result.shape, result.device.type) == ((3, 3), "meta")
