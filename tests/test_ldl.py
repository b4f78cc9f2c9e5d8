"""ldl_factor, ldl_factor_ex and ldl_solve through the kernels, held against SciPy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg.testing import compare
from tests import lapack
from tests.inputs import DOUBLES, VIEWS, name, on

pytestmark = pytest.mark.usefixtures("kernels")

SHAPES = ((1, 1), (3, 3), (5, 5), (40, 40), (1, 3, 3), (2, 5, 5), (2, 3, 5, 5), (2, 1, 40, 40))
KINDS = ((torch.float32, False), (torch.complex64, False), (torch.complex64, True))
EMPTY = ((0, 0), (2, 0, 0), (0, 3, 3), (0, 40, 40), (2, 0, 3, 3))

each_kind = pytest.mark.parametrize(("dtype", "hermitian"), KINDS, ids=name)
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=name)


def symmetric(shape: tuple[int, ...], dtype: torch.dtype, hermitian: bool, seed: int = 0) -> Tensor:
    A = testing.random(shape, dtype, seed)
    return A + (A.mH if hermitian else A.mT)


def assert_like_torchs(ours: Any, theirs: Any) -> None:
    """The same type, and in it the same shapes, dtypes and strides."""
    assert type(ours) is type(theirs)
    for x, y in zip(ours, theirs, strict=True):
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        assert x.stride() == y.stride()


def judge(A: Tensor, hermitian: bool, device: str) -> None:
    result = LA.ldl_factor(on(device, A), hermitian=hermitian)
    assert_like_torchs(result, torch.linalg.ldl_factor(A, hermitian=hermitian))
    LD, pivots, info = lapack.sytrf(A, hermitian)
    compare(
        testing.ldl_ratio(A, result.LD, result.pivots, hermitian),
        testing.ldl_ratio(A, LD, pivots, hermitian),
    )
    np.testing.assert_array_equal(result.pivots.numpy(force=True), pivots)
    ex = LA.ldl_factor_ex(on(device, A), hermitian=hermitian)
    assert_like_torchs(ex, torch.linalg.ldl_factor_ex(A, hermitian=hermitian))
    assert torch.equal(ex.LD, result.LD)
    assert torch.equal(ex.pivots, result.pivots)
    assert ex.info.tolist() == info.tolist()
    for k in (1, 3):
        B = testing.random((*A.shape[:-1], k), A.dtype, seed=1)
        X = LA.ldl_solve(result.LD, result.pivots, on(device, B), hermitian=hermitian)
        assert X.dtype == A.dtype
        assert X.stride() == torch.linalg.ldl_solve(ex.LD.cpu(), ex.pivots.cpu(), B).stride()
        X_lapack = lapack.sytrs(LD, pivots, B, hermitian)
        compare(testing.solve_ratio(A, X, B), testing.solve_ratio(A, X_lapack, B))


@each_shape
@each_kind
def test_ldl(dtype: torch.dtype, hermitian: bool, shape: tuple[int, ...], device: str) -> None:
    judge(symmetric(shape, dtype, hermitian), hermitian, device)


@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("dtype", DOUBLES, ids=name)
def test_double(dtype: torch.dtype, hermitian: bool, device: str) -> None:
    judge(symmetric((2, 5, 5), dtype, hermitian), hermitian, device)


@pytest.mark.parametrize("n", [200, 300])
@each_kind
def test_large(dtype: torch.dtype, hermitian: bool, n: int, device: str) -> None:
    A = symmetric((2, n, n), dtype, hermitian)
    # Without a diagonal every pivot is 2 x 2, and a block lies across the end of every panel.
    A[1] *= 1 - torch.eye(n)
    judge(A, hermitian, device)


@each_kind
def test_only_the_lower_triangle_is_read(dtype: torch.dtype, hermitian: bool, device: str) -> None:
    for n in (3, 40, 140):
        A = testing.random((n, n), dtype)
        filled = torch.where(torch.ones(n, n).triu(1).bool(), torch.nan, A)
        LD, pivots = LA.ldl_factor(on(device, filled), hermitian=hermitian)
        LD_lapack, pivots_lapack, _ = lapack.sytrf(A, hermitian)
        compare(
            testing.ldl_ratio(A, LD, pivots, hermitian),
            testing.ldl_ratio(A, LD_lapack, pivots_lapack, hermitian),
        )
        np.testing.assert_array_equal(pivots.numpy(force=True), pivots_lapack)


@pytest.mark.parametrize("n", [5, 40])
@pytest.mark.parametrize("scale", [1e-30, 1e30])
@each_kind
def test_no_scale_costs_accuracy(
    dtype: torch.dtype, hermitian: bool, scale: float, n: int, device: str
) -> None:
    A = symmetric((3, n, n), dtype, hermitian)
    judge(A * scale, hermitian, device)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("n", [5, 40])
@each_kind
def test_views(dtype: torch.dtype, hermitian: bool, n: int, view: str, device: str) -> None:
    A = on(device, symmetric((2, 3, n, n), dtype, hermitian))
    B = on(device, testing.random((2, 3, n, 2), dtype, seed=1))
    plain = LA.ldl_factor_ex(A, hermitian=hermitian)
    strided = LA.ldl_factor_ex(VIEWS[view](A), hermitian=hermitian)
    assert all(torch.equal(x, y) for x, y in zip(plain, strided, strict=True))
    LD, pivots, _ = plain
    swaps = pivots.movedim(0, -1).contiguous().movedim(-1, 0)
    X = LA.ldl_solve(VIEWS[view](LD), swaps, VIEWS[view](B), hermitian=hermitian)
    assert torch.equal(X, LA.ldl_solve(LD, pivots, B, hermitian=hermitian))
    assert not X.is_conj()


def test_expanded_and_broadcast(device: str) -> None:
    A = on(device, symmetric((2, 1, 5, 5), torch.complex64, True))
    expanded = LA.ldl_factor(A.expand(2, 3, 5, 5), hermitian=True)
    LD, pivots = LA.ldl_factor(A, hermitian=True)
    assert torch.equal(expanded.LD, LD.expand(2, 3, 5, 5))
    assert torch.equal(expanded.pivots, pivots.expand(2, 3, 5))
    B = on(device, testing.random((3, 5, 2), torch.complex64))
    X = LA.ldl_solve(LD, pivots, B, hermitian=True)
    # torch broadcasts LD but reads past the end of pivots that are not as many.
    wide = B.expand(2, 3, 5, 2)
    expected = torch.linalg.ldl_solve(
        expanded.LD.cpu(), expanded.pivots.cpu(), wide.cpu(), hermitian=True
    )
    assert X.shape == (2, 3, 5, 2)
    assert X.stride() == expected.stride()
    assert torch.equal(X, LA.ldl_solve(expanded.LD, expanded.pivots, wide, hermitian=True))
    compare(testing.solve_ratio(A, X, B), testing.solve_ratio(A, expected, B))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int64])
def test_pivots_of_any_integer_type(dtype: torch.dtype, device: str) -> None:
    A, B = (on(device, testing.random((4, m), torch.float32)) for m in (4, 2))
    LD, pivots = LA.ldl_factor(A + 9 * torch.eye(4, device=device))
    X = LA.ldl_solve(LD, pivots, B)
    assert torch.equal(LA.ldl_solve(LD, pivots.to(dtype), B), X)


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("shape", [(3, 3), (2, 5, 5), (40, 40)], ids=name)
def test_out(shape: tuple[int, ...], strided: bool, device: str) -> None:
    A = on(device, symmetric(shape, torch.complex64, False))
    B = on(device, testing.random((*shape[:-1], 2), torch.complex64))

    def memory(x: Tensor) -> Tensor:
        return torch.stack((x, x), -1).zero_()[..., 0] if strided else x.new_empty(0)

    for function in (LA.ldl_factor, LA.ldl_factor_ex):
        expected = function(A)
        out = tuple(map(memory, expected))
        steps = [x.stride() for x in (out if strided else expected)]
        result = function(A, out=out)
        for x, y, z, step in zip(result, out, expected, steps, strict=True):
            assert x is y
            assert torch.equal(x, z)
            assert x.stride() == step
    LD, pivots, _ = expected
    X = LA.ldl_solve(LD, pivots, B)
    out_X = memory(X)
    assert LA.ldl_solve(LD, pivots, B, out=out_X) is out_X
    assert torch.equal(out_X, X)


@pytest.mark.parametrize("shape", EMPTY, ids=name)
def test_empty(shape: tuple[int, ...], device: str) -> None:
    A = torch.empty(shape)
    ours, theirs = LA.ldl_factor_ex(A.to(device)), torch.linalg.ldl_factor_ex(A)
    assert_like_torchs(ours, theirs)
    assert not ours.info.any()
    for k in (0, 2):
        B = torch.empty(*shape[:-1], k)
        X = LA.ldl_solve(ours.LD, ours.pivots, B.to(device))
        assert X.shape == B.shape
        assert X.stride() == torch.linalg.ldl_solve(theirs.LD, theirs.pivots, B).stride()


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_singular(batch: tuple[int, ...], device: str) -> None:
    A = torch.eye(3).repeat(*batch, 1, 1)
    A.view(-1, 3, 3)[2 if batch else 0 :, -1] = 0
    where = r"\(Batch element 2\): " if batch else ""
    words = rf"{where}D\[3,3\] is zero and using it on ldl_solve would result in a division by zero"
    outs = tuple(torch.full((2,), 7, dtype=d, device=device) for d in (A.dtype, torch.int32))
    with pytest.raises(LA.LinAlgError, match=rf"^torch\.linalg\.ldl_factor: {words}"):
        LA.ldl_factor(on(device, A), out=outs)
    assert all(o.tolist() == [7, 7] for o in outs)
    with pytest.raises(LA.LinAlgError, match=rf"^torch\.linalg\.ldl_factor_ex: {words}"):
        LA.ldl_factor_ex(on(device, A), check_errors=True)
    # torch's error is of the class that LinAlgError extends.
    with pytest.raises(RuntimeError, match="ldl_factor"):
        torch.linalg.ldl_factor(A)
    ours, theirs = LA.ldl_factor_ex(on(device, A)), torch.linalg.ldl_factor_ex(A)
    assert all(torch.equal(x.cpu(), y) for x, y in zip(ours, theirs, strict=True))


def raised(function: Callable[[], Any]) -> tuple[type, str]:
    with pytest.raises(Exception) as error:  # noqa: PT011
        function()
    return error.type, str(error.value).splitlines()[0]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_no_derivative_where_torch_has_none(device: str) -> None:
    A, B = torch.eye(3, device=device), torch.ones(3, 2, device=device)
    tracked = A.clone().requires_grad_()
    for library in (LA, torch.linalg):
        LD, pivots = library.ldl_factor(tracked)
        assert LD.requires_grad
        assert not pivots.requires_grad

    def refused(library: Any) -> list[tuple[type, str]]:
        factor, solve = library.ldl_factor_ex, library.ldl_solve
        return [
            raised(lambda: factor(tracked).LD.sum().backward()),
            raised(lambda: factor(tracked, hermitian=True).LD.sum().backward()),
            raised(lambda: solve(tracked, pivots, B).sum().backward()),
        ]

    assert refused(LA) == refused(torch.linalg)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(A, A)  # type: ignore[no-untyped-call]

        def refused_forward(library: Any) -> list[tuple[type, str]]:
            return [
                raised(lambda: library.ldl_factor(dual)),
                raised(lambda: library.ldl_factor_ex(dual)),
                raised(lambda: library.ldl_solve(dual, pivots, B)),
            ]

        assert refused_forward(LA) == refused_forward(torch.linalg)


def test_out_with_a_gradient(device: str) -> None:
    A = torch.eye(3, device=device)
    LD, pivots = LA.ldl_factor(A)
    tracked = A.clone().requires_grad_()
    out = torch.zeros(0, device=device), torch.zeros(0, dtype=torch.int32, device=device)
    for call in (
        lambda: LA.ldl_factor(tracked, out=out),
        lambda: LA.ldl_factor_ex(tracked, out=(*out, out[1].clone())),
        lambda: LA.ldl_solve(LD, pivots, tracked, out=out[0]),
        lambda: LA.ldl_solve(LD, pivots, A, out=tracked),
    ):
        kind, words = raised(call)
        assert kind is RuntimeError
        assert "functions with out=... arguments don't support automatic differentiation" in words
