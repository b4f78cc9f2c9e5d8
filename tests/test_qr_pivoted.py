"""qr_pivoted held against SciPy."""

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg import _qr_pivoted_plan, testing
from mpslinalg.testing import compare
from tests import lapack
from tests.inputs import DOUBLES, SINGLES, VIEWS, name, on

MODES = ("reduced", "complete", "r")
SHAPES = ((1, 1), (5, 3), (3, 5), (2, 3, 4, 2), (2, 1, 2, 33, 34), (6, 8, 8))
each_mode = pytest.mark.parametrize("mode", MODES)
each_single = pytest.mark.parametrize("dtype", SINGLES, ids=name)


def permuted(A: Tensor, P: Tensor) -> Tensor:
    return A.gather(-1, P[..., None, :].cpu().expand(A.shape))


@each_mode
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [*((d, s) for d in SINGLES for s in SHAPES), *((d, (2, 5, 4)) for d in DOUBLES)],
    ids=name,
)
def test_qr_pivoted(dtype: torch.dtype, shape: tuple[int, ...], mode: str, device: str) -> None:
    A = testing.random(shape, dtype)
    result = LA.qr_pivoted(on(device, A), mode)
    assert type(result).__name__ == "QRPivoted"
    Q, R, P = result
    assert P.dtype == torch.int64
    assert P.is_contiguous()
    assert P.shape == shape[:-2] + shape[-1:]
    for part, theirs in zip((Q, R), torch.linalg.qr(A, mode=mode), strict=True):
        assert part.dtype == dtype
        assert (part.shape, part.stride()) == (theirs.shape, theirs.stride())
    for i in np.ndindex(*shape[:-2]):
        exact = A[i].numpy().astype(np.complex128 if dtype.is_complex else np.float64)
        expected = scipy.linalg.qr(exact, mode="economic", pivoting=True)[2]
        assert P[i].tolist() == expected.tolist()
        if mode == "complete":
            ours = testing.qr_ratio(permuted(A[i], P[i]), Q[i], R[i])
            q, r, p = lapack.qr_pivoted(A[i], mode)
            # Of some ten roundings one matrix says little.
            compare(ours, max(testing.qr_ratio(A[i][:, p], q, r), 5.0 / min(shape[-2:])))


@each_mode
@pytest.mark.parametrize(
    "shape", [(0, 0), (0, 3), (3, 0), (2, 0, 3), (2, 40, 0), (0, 3, 3), (2, 0, 40, 2)], ids=name
)
@each_single
def test_empty(dtype: torch.dtype, shape: tuple[int, ...], mode: str, device: str) -> None:
    A = torch.empty(shape, dtype=dtype)
    Q, R, P = LA.qr_pivoted(on(device, A), mode)
    for ours, theirs in zip((Q, R), torch.linalg.qr(A, mode=mode), strict=True):
        assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())
        assert torch.equal(ours.cpu(), theirs)
    assert P.dtype == torch.int64
    assert torch.equal(P.cpu(), torch.arange(shape[-1]).expand(*shape[:-2], -1))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (2, 2, 40, 35)], ids=name)
@each_single
def test_views(dtype: torch.dtype, shape: tuple[int, ...], view: str, device: str) -> None:
    A = on(device, testing.random(shape, dtype))
    for ours, plain in zip(LA.qr_pivoted(VIEWS[view](A)), LA.qr_pivoted(A), strict=True):
        assert torch.equal(ours, plain)
        assert not ours.is_conj()
    single = A[:, :1]
    for ours, plain in zip(LA.qr_pivoted(single.expand(shape)), LA.qr_pivoted(single), strict=True):
        assert torch.equal(ours, plain.expand(ours.shape))


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        (torch.float32, (300, 300)),
        (torch.complex64, (120, 200)),
        (torch.float32, (4000, 36)),
        (torch.complex64, (600, 64)),
        (torch.float32, (9000, 8)),
    ],
    ids=name,
)
def test_large(dtype: torch.dtype, shape: tuple[int, int], device: str) -> None:
    A = testing.random(shape, dtype)
    if shape == (600, 64):
        A *= torch.logspace(-30, 30, 64)
        A[:, 5] = 0
        A[:, 9:12] = A[:, 8:9]
    Q, R, P = LA.qr_pivoted(on(device, A))
    q, r, p = lapack.qr_pivoted(A)
    compare(testing.qr_ratio(permuted(A, P), Q, R), testing.qr_ratio(A[:, p], q, r))
    if shape == (600, 64):
        # What is left of columns that depend on each other is noise, larger than the smallest ones.
        assert P[-1] == 5
        assert not R[:, -1].any()
        return
    exact = A.numpy().astype(np.complex128 if dtype.is_complex else np.float64)
    _, r, p = scipy.linalg.qr(exact, mode="economic", pivoting=True)
    diagonal = np.abs(np.diagonal(r))
    ours = R.diagonal().abs().numpy(force=True).astype(np.float64)
    # Where norms lie as close as rounding the order may differ, the diagonal hardly.
    noise = 1e-5 * np.abs(r).max(-1)
    assert (np.abs(ours - diagonal) <= 2e-2 * diagonal + noise).all()
    assert (P.numpy(force=True)[:4] == p[:4]).all()


@pytest.mark.parametrize(("mode", "shape"), [("r", (4, 3)), ("complete", (4, 3))])
def test_what_has_no_derivative(mode: str, shape: tuple[int, int], device: str) -> None:
    def error(function: Any, where: str) -> str:
        A = torch.ones(shape, device=where, requires_grad=True)
        R = function(A, mode=mode)[1]
        with pytest.raises(RuntimeError) as caught:
            torch.autograd.grad(R.sum(), A)
        return str(caught.value)

    assert error(LA.qr_pivoted, device) == error(torch.linalg.qr, "cpu")


@pytest.mark.parametrize(
    ("A", "mode", "words"),
    [
        (torch.ones(3), "reduced", r"expected matrices of .* but got torch.float32 \[3\]"),
        (torch.ones(3, 3).half(), "reduced", r"but got torch.float16 \[3, 3\]"),
        (torch.ones(3, 3), "economic", "expected mode .* but got 'economic'"),
        (np.ones((3, 3)), "reduced", "neither can what is no tensor"),
    ],
)
def test_bad_input(A: Any, mode: str, words: str, device: str) -> None:
    given = on(device, A) if isinstance(A, Tensor) else A
    with pytest.raises(RuntimeError, match=rf"^mpslinalg\.qr_pivoted: .*{words}"):
        LA.qr_pivoted(given, mode)


def test_where_it_runs(device: str) -> None:
    """On the kernels in every mode but torch's, which has no such function."""
    for n, m, text in (
        (4, 4, "qr_pivoted_simd"),
        (64, 64, "qr_pivoted_steps in one launch, qr_triangle, qr_apply"),
        (300, 300, "qr_pivoted_steps a launch a step, qr_triangle, qr_apply"),
    ):
        assert _qr_pivoted_plan.regime("qr_pivoted", torch.float32, 1, m, n, 1) == text
        for mode in ("auto", "kernels"):
            with LA.use(mode):
                assert LA.which("qr_pivoted", torch.empty(m, n, device=device)).endswith(text)
    with LA.use("torch"), pytest.raises(RuntimeError, match="no QR with column pivoting"):
        LA.qr_pivoted(torch.ones(3, 3, device=device))
