"""geqrf, householder_product and ormqr, held against torch on the CPU and SciPy."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import mpslinalg as LA
from mpslinalg import testing
from tests.inputs import DOUBLES, SINGLES, VIEWS, name, on

pytestmark = pytest.mark.usefixtures("kernels")

SHAPES = ((1, 1), (5, 3), (3, 5), (40, 40), (2, 3, 4, 2), (2, 33, 34), (2, 70, 33))
TALL = [shape for shape in SHAPES if shape[-2] >= shape[-1]]
each_dtype = pytest.mark.parametrize("dtype", [*SINGLES, *DOUBLES], ids=name)
each_single = pytest.mark.parametrize("dtype", SINGLES, ids=name)
each_tall = pytest.mark.parametrize("shape", TALL, ids=name)


def double(A: Tensor) -> NDArray[Any]:
    return A.numpy(force=True).astype(np.complex128 if A.is_complex() else np.float64)


def reflectors(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Of LAPACK."""
    a, tau = torch.geqrf(testing.random(shape, dtype))
    return a, tau


def product(a: Tensor, tau: Tensor) -> NDArray[Any]:
    """H_1 H_2 ... in double precision, reflector by reflector."""
    A, t = double(a), double(tau)
    m = A.shape[-2]
    Q = np.broadcast_to(np.eye(m, dtype=A.dtype), (*A.shape[:-2], m, m)).copy()
    for k in range(t.shape[-1]):
        v = A[..., k] * (np.arange(m) > k) + (np.arange(m) == k)
        Q -= t[..., k, None, None] * (Q @ v[..., None]) * v.conj()[..., None, :]
    return Q


def near(ours: Tensor, expected: NDArray[Any], m: int) -> bool:
    error = np.abs(double(ours) - expected).sum(-2).max(initial=0.0)
    allowed = 5 * m * torch.finfo(ours.dtype).eps * np.abs(expected).sum(-2).max(initial=0.0)
    return bool(error <= allowed)


@pytest.mark.parametrize("shape", SHAPES, ids=name)
@each_dtype
def test_geqrf(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    A = testing.random(shape, dtype)
    result, expected = LA.geqrf(on(device, A)), torch.geqrf(A)
    assert type(result) is type(expected)
    for ours, theirs in zip(result, expected, strict=True):
        assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())
    k = min(shape[-2:])
    Q = product(*result)[..., :k]
    R = np.triu(result[0].numpy(force=True)[..., :k, :])
    # Not less than the rounding of Q, which is in double.
    assert testing.qr_ratio(A, Q.astype(R.dtype), R).max() < 30
    assert near(result[0], double(expected[0]), 10 * k)
    assert near(result[1].unsqueeze(-1), double(expected[1])[..., None], 10 * k)


@each_tall
@each_dtype
def test_householder_product(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    m, n = shape[-2:]
    a, tau = reflectors(shape, dtype)
    for k in {n, n // 2, 0}:
        Q = LA.householder_product(on(device, a), on(device, tau[..., :k]))
        assert Q.stride() == torch.linalg.householder_product(a, tau[..., :k]).stride()
        assert near(Q, product(a, tau[..., :k])[..., :n], m)
        again = LA.householder_product(on(device, a), on(device, tau[..., :k]))
        assert torch.equal(Q, again)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
@each_tall
@each_single
def test_ormqr(
    dtype: torch.dtype, shape: tuple[int, ...], transpose: bool, left: bool, device: str
) -> None:
    a, tau = reflectors(shape, dtype)
    Q = product(a, tau)
    m = shape[-2]
    if transpose:
        Q = Q.conj().swapaxes(-2, -1)
    for columns in (1, 35):
        C = testing.random((*shape[:-2], *((m, columns) if left else (columns, m))), dtype, seed=1)
        X = LA.ormqr(on(device, a), on(device, tau), on(device, C), left, transpose)
        assert X.stride() == torch.ormqr(a, tau, C, left, transpose).stride()
        assert near(X, Q @ double(C) if left else double(C) @ Q, m)


@pytest.mark.parametrize("view", VIEWS)
@each_single
def test_views(dtype: torch.dtype, view: str, device: str) -> None:
    A = on(device, testing.random((2, 3, 5, 4), dtype))
    a, tau = LA.geqrf(A)
    assert torch.equal(LA.geqrf(VIEWS[view](A)).a, a)
    strided = VIEWS[view](tau)
    Q = LA.householder_product(a, tau)
    assert torch.equal(LA.householder_product(VIEWS[view](a), strided), Q)
    X = LA.ormqr(a, tau, A)
    assert torch.equal(LA.ormqr(VIEWS[view](a), strided, VIEWS[view](A)), X)


def test_out(device: str) -> None:
    A = on(device, testing.random((2, 5, 4), torch.complex64))
    a, tau = LA.geqrf(A)
    outs = (a.new_empty(0), a.new_empty(0))
    LA.geqrf(A, out=outs)
    assert torch.equal(outs[0], a)
    assert torch.equal(outs[1], tau)
    for function, args in ((LA.householder_product, (a, tau)), (LA.ormqr, (a, tau, A))):
        expected = function(*args)
        out = a.new_empty(0)
        assert function(*args, out=out) is out
        assert torch.equal(out, expected)
        assert out.stride() == expected.stride()


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (2, 0, 3), (0, 4, 3)], ids=name)
def test_empty(shape: tuple[int, ...], device: str) -> None:
    A = torch.empty(shape)
    for ours, theirs in zip(LA.geqrf(on(device, A)), torch.geqrf(A), strict=True):
        assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())
    if shape[-2] >= shape[-1]:
        tau = torch.empty(*shape[:-2], shape[-1])
        Q = LA.householder_product(on(device, A), on(device, tau))
        assert Q.stride() == torch.linalg.householder_product(A, tau).stride()
        C = torch.ones(*shape[:-1], 2)
        assert torch.equal(LA.ormqr(on(device, A), on(device, tau), on(device, C)).cpu(), C)


def test_geqrf_has_no_derivative(device: str) -> None:
    A = torch.ones(3, 2, device=device, requires_grad=True)
    with pytest.raises(NotImplementedError, match="the derivative for 'geqrf' is not implemented"):
        torch.autograd.grad(LA.geqrf(A).a.sum(), A)


@pytest.mark.parametrize("dtype", DOUBLES, ids=name)
def test_gradients_are_torchs(dtype: torch.dtype, device: str) -> None:
    a, tau = (on(device, x).requires_grad_() for x in reflectors((2, 5, 3), dtype))
    C = on(device, testing.random((2, 5, 2), dtype)).requires_grad_()
    weights = on(device, testing.random((2, 5, 3), dtype, seed=1))
    for ours, theirs, inputs in (
        (LA.householder_product, torch.linalg.householder_product, (a, tau)),
        (LA.ormqr, torch.ormqr, (a, tau, C)),
    ):
        results = []
        for function in (ours, theirs):
            result = function(*inputs)
            given = weights[..., : result.shape[-1]]
            results.append((result, *torch.autograd.grad(result, inputs, given)))
        for mine, his in zip(*results, strict=True):
            torch.testing.assert_close(mine, his)


def test_watched_within_autocast(device: str) -> None:
    A = testing.random((40, 36), torch.float32)
    a, tau = torch.geqrf(A)
    C = testing.random((40, 5), torch.float32)
    watched = a.to(device).requires_grad_()
    with torch.autocast(device, dtype=torch.bfloat16):
        Q = LA.householder_product(watched, tau.to(device)).detach().cpu()
        X = LA.ormqr(watched, tau.to(device), C.to(device)).detach().cpu()
    assert testing.qr_ratio(A, Q, a.triu()[:36]) < 30
    exact = torch.ormqr(a.double(), tau.double(), C.double())
    allowed = 30 * 40 * torch.finfo(torch.float32).eps * C.norm()
    assert (X - exact).norm() < allowed


def test_geqrf_of_rank_one_on_the_cpu() -> None:
    A = 1j * torch.ones(7, 7, dtype=torch.complex64)
    with LA.use("auto"):
        a, tau = LA.geqrf(A)
        assert isinstance(LA.geqrf(A), torch.return_types.geqrf)
        Q = LA.householder_product(a, tau)
    assert testing.qr_ratio(A, Q, a.triu()) < 30
