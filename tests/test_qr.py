"""qr held against SciPy and torch."""

from typing import Any

import pytest
import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg import _qr_plan, testing
from mpslinalg._engines import cpu
from mpslinalg.testing import compare
from tests import lapack
from tests.inputs import DOUBLES, SINGLES, VIEWS, name, on

MODES = ("reduced", "complete", "r")
SHAPES = (
    *((1, 1), (5, 3), (3, 5), (40, 40), (70, 20)),
    *((1, 4, 4), (2, 3, 4, 2), (2, 1, 2, 33, 34), (6, 8, 8)),
)
each_mode = pytest.mark.parametrize("mode", MODES)
each_single = pytest.mark.parametrize("dtype", SINGLES, ids=name)
kernels = pytest.mark.usefixtures("kernels")


def judge(A: Tensor, Q: Tensor, R: Tensor, mode: str) -> None:
    ours, theirs = testing.qr_ratio(A, Q, R), testing.qr_ratio(A, *lapack.qr(A, mode))
    compare(ours.max(), theirs.max())


@kernels
@each_mode
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [*((d, s) for d in SINGLES for s in SHAPES), *((d, (2, 5, 4)) for d in DOUBLES)],
    ids=name,
)
def test_qr(dtype: torch.dtype, shape: tuple[int, ...], mode: str, device: str) -> None:
    A = testing.random(shape, dtype)
    Q, R = result = LA.qr(on(device, A), mode=mode)
    expected = torch.linalg.qr(A, mode=mode)
    assert type(result) is type(expected)
    for ours, theirs in zip(result, expected, strict=True):
        assert ours.dtype == dtype
        assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())
    if mode == "r":
        assert torch.equal(R, LA.qr(on(device, A)).R)
    else:
        judge(A, Q, R, mode)


@kernels
@each_mode
@pytest.mark.parametrize(
    "shape", [(0, 0), (0, 3), (3, 0), (2, 0, 3), (2, 40, 0), (0, 3, 3), (2, 0, 40, 2)], ids=name
)
@each_single
def test_empty(dtype: torch.dtype, shape: tuple[int, ...], mode: str, device: str) -> None:
    A = torch.empty(shape, dtype=dtype)
    result, expected = LA.qr(on(device, A), mode=mode), torch.linalg.qr(A, mode=mode)
    for ours, theirs in zip(result, expected, strict=True):
        assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())
        assert torch.equal(ours.cpu(), theirs)


@kernels
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (2, 2, 40, 35)], ids=name)
@each_single
def test_views(dtype: torch.dtype, shape: tuple[int, ...], view: str, device: str) -> None:
    A = on(device, testing.random(shape, dtype))
    for ours, plain in zip(LA.qr(VIEWS[view](A)), LA.qr(A), strict=True):
        assert torch.equal(ours, plain)
        assert not ours.is_conj()
    single = A[:, :1]
    for ours, plain in zip(LA.qr(single.expand(shape)), LA.qr(single), strict=True):
        assert torch.equal(ours, plain.expand(ours.shape))


@kernels
@each_mode
@pytest.mark.parametrize("shape", [(2, 5, 4), (40, 33)], ids=name)
def test_out(shape: tuple[int, ...], mode: str, device: str) -> None:
    A = on(device, testing.random(shape, torch.complex64))
    expected = LA.qr(A, mode=mode)
    outs = tuple(x.new_empty(0) for x in expected)
    result = LA.qr(A, mode=mode, out=outs)
    assert type(result).__name__ == "linalg_qr_out"
    for given, got, wanted in zip(outs, result, expected, strict=True):
        assert got is given
        assert torch.equal(got, wanted)
        assert got.stride() == wanted.stride()


@kernels
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [(torch.float32, (4000, 36)), (torch.complex64, (600, 40)), (torch.float32, (9000, 8))],
    ids=name,
)
def test_tall(dtype: torch.dtype, shape: tuple[int, int], device: str) -> None:
    A = testing.random(shape, dtype)
    Q, R = LA.qr(on(device, A))
    judge(A, Q, R, "reduced")
    assert torch.equal(LA.qr(on(device, A), mode="r").R, R)


@kernels
@each_single
def test_constant_and_scaled_columns(dtype: torch.dtype, device: str) -> None:
    A = torch.ones(600, 64, dtype=dtype)
    scaled = testing.random((600, 64), dtype) * torch.logspace(-30, 30, 64)
    scaled[:, 5] = 0
    scaled[:, 9:12] = scaled[:, 8:9]
    for M in (A * 1e-30, scaled):
        Q, R = LA.qr(on(device, M))
        assert testing.qr_ratio(M, Q, R) < 3
        assert not R[:, 5].any() or M is not scaled


@pytest.mark.parametrize(("mode", "shape"), [("r", (4, 3)), ("complete", (4, 3))])
def test_what_has_no_derivative(mode: str, shape: tuple[int, int], device: str) -> None:
    def error(library: Any, where: str) -> str:
        A = torch.ones(shape, device=where, requires_grad=True)
        with pytest.raises(RuntimeError) as caught, LA.use("kernels"):
            torch.autograd.grad(torch.stack([x.sum() for x in library.qr(A, mode=mode)]).sum(), A)
        return str(caught.value)

    assert error(LA, device) == error(torch.linalg, "cpu")


@pytest.mark.parametrize(("scale", "mode"), [(1.0, "reduced"), (1e-30, "complete"), (1e-10, "r")])
def test_rank_one_on_the_cpu(scale: float, mode: str) -> None:
    """Where MKL returns NaN: the default mode must not."""
    for n in (2, 4, 7, 8, 17):
        for A in (
            torch.ones(n + 1, n, dtype=torch.complex64),
            1j * torch.ones(n, n, dtype=torch.complex64),
            testing.random((n, 1), torch.complex64).expand(n, n),
            testing.random((n, 2), torch.complex64) @ testing.random((2, n), torch.complex64),
        ):
            Q, R = LA.qr(A * scale, mode=mode)
            assert R.isfinite().all()
            if mode != "r":
                assert testing.qr_ratio(A * scale, Q, R) < 10


def test_rank_one_on_the_cpu_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    A = 1j * torch.ones(8, 7, dtype=torch.complex64)
    monkeypatch.setattr(cpu, "compiler_found", lambda: False)
    assert testing.qr_ratio(A, *LA.qr(A)) < 10
    Q, R = torch.vmap(LA.qr)(A[None])
    assert testing.qr_ratio(A[None], Q, R) < 10


def test_regimes() -> None:
    for n, m, text in (
        (4, 4, "qr_simd"),
        (20, 100, "qr_group"),
        (40, 256, "qr_group"),
        (8, 65536, "qr_group, qr_combine"),
        (36, 4000, "qr_group, qr_signs, qr_combine"),
        (300, 300, "qr_panel of 32 columns, qr_update, qr_apply"),
    ):
        assert _qr_plan.regime("qr", torch.float32, 1, m, n, 1) == text
        with LA.use("kernels"):
            assert LA.which("qr", torch.empty(m, n)).endswith(f" {text}")


@pytest.mark.parametrize(("m", "n"), [(50000, 13), (65536, 8)])
def test_no_block_of_a_tall_matrix_is_empty(m: int, n: int, device: str) -> None:
    A = testing.random((m, n), torch.float32)
    Q, R = (x.cpu().double() for x in LA.qr(on(device, A)))
    eps = torch.finfo(torch.float32).eps
    assert (Q @ R - A).norm() <= 10 * eps * A.norm()
    assert (Q.mH @ Q - torch.eye(n)).norm() <= 10 * eps * n
