"""svd and svdvals held against SciPy and torch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg import _qr_plan, _svd, testing
from mpslinalg.testing import compare
from tests import lapack
from tests.inputs import DOUBLES, SINGLES, VIEWS, name, on

SHAPES = ((1, 1), (5, 3), (3, 5), (40, 4), (2, 3, 4, 2), (2, 1, 2, 9, 34), (6, 8, 8), (2, 36, 34))
each_single = pytest.mark.parametrize("dtype", SINGLES, ids=name)
each_full = pytest.mark.parametrize("full", [True, False], ids=["full", "reduced"])
kernels = pytest.mark.usefixtures("kernels")
# One width of a team, tall and wide, QR first, and blocks of columns.
REGIMES = ((5, 3), (3, 5), (40, 4), (35, 35))


@kernels
@each_full
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [*((d, s) for d in SINGLES for s in SHAPES), *((d, (2, 5, 4)) for d in DOUBLES)],
    ids=name,
)
def test_svd(dtype: torch.dtype, shape: tuple[int, ...], full: bool, device: str) -> None:
    A = testing.random(shape, dtype)
    result = LA.svd(on(device, A), full)
    expected = torch.linalg.svd(A, full)
    assert type(result) is type(expected)
    for ours, theirs in zip(result, expected, strict=True):
        assert (ours.dtype, ours.shape, ours.stride()) == (
            theirs.dtype,
            theirs.shape,
            theirs.stride(),
        )
    compare(testing.svd_ratio(A, *result), testing.svd_ratio(A, *lapack.svd(A, full)))
    values = LA.svdvals(on(device, A))
    # A complete Q of 33 to 40 columns has another plan than R alone.
    m, n = shape[-2:]
    apart = full and m != n and _qr_plan.WIDTH < min(m, n) <= _qr_plan.widest(dtype)
    allowed = max(m, n) * torch.finfo(dtype).eps * values.max().item() if apart else 0
    torch.testing.assert_close(values, result.S, rtol=0, atol=allowed)
    assert values.stride() == torch.linalg.svdvals(A).stride()


@kernels
@each_full
@pytest.mark.parametrize(
    "shape", [(0, 0), (0, 3), (3, 0), (2, 0, 3), (2, 40, 0), (0, 3, 3), (2, 0, 40, 2)], ids=name
)
@each_single
def test_empty(dtype: torch.dtype, shape: tuple[int, ...], full: bool, device: str) -> None:
    A = torch.empty(shape, dtype=dtype)
    results = (*LA.svd(on(device, A), full), LA.svdvals(on(device, A)))
    expected = (*torch.linalg.svd(A, full), torch.linalg.svdvals(A))
    for ours, theirs in zip(results, expected, strict=True):
        assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())
        assert torch.equal(ours.cpu(), theirs)


@kernels
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (2, 2, 5, 35), (1, 2, 34, 34)], ids=name)
@each_single
def test_views(dtype: torch.dtype, shape: tuple[int, ...], view: str, device: str) -> None:
    A = on(device, testing.random(shape, dtype))
    for ours, plain in zip(LA.svd(VIEWS[view](A)), LA.svd(A), strict=True):
        assert torch.equal(ours, plain)
        assert not ours.is_conj()
    single = A[:, :1]
    for ours, plain in zip(LA.svd(single.expand(shape)), LA.svd(single), strict=True):
        # A GPU's GEMM may sum a batch in another order.
        tolerance = 0 if device == "cpu" else 1e-5
        torch.testing.assert_close(ours, plain.expand(ours.shape), rtol=0, atol=tolerance)


@kernels
@each_full
@pytest.mark.parametrize("shape", [(2, 5, 4), (3, 40)], ids=name)
def test_out(shape: tuple[int, ...], full: bool, device: str) -> None:
    A = on(device, testing.random(shape, torch.complex64))
    expected = LA.svd(A, full)
    outs = tuple(x.new_empty(0) for x in expected)
    result = LA.svd(A, full, out=outs)
    assert type(result).__name__ == "linalg_svd_out"
    for given, got, wanted in zip(outs, result, expected, strict=True):
        assert got is given
        assert torch.equal(got, wanted)
        assert got.stride() == wanted.stride()
    values = expected.S.new_empty(0)
    assert LA.svdvals(A, out=values) is values
    assert torch.equal(values, expected.S)


@kernels
@pytest.mark.parametrize("shape", [(3000, 20), (8, 3000), (40, 32), (600, 40)], ids=name)
@each_single
def test_long(dtype: torch.dtype, shape: tuple[int, int], device: str) -> None:
    A = testing.random(shape, dtype) * torch.logspace(-30, 0, shape[1])
    result = LA.svd(on(device, A), full_matrices=False)
    compare(testing.svd_ratio(A, *result), 1.0)
    if shape[0] > shape[1]:
        np.testing.assert_allclose(result.S.cpu()[:3], lapack.jacobi_values(A)[:3], rtol=1e-5)


@kernels
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("shape", REGIMES, ids=name)
@pytest.mark.parametrize("function", [LA.svd, LA.svdvals])
def test_not_finite(
    function: Callable[[Tensor], Any], shape: tuple[int, int], bad: float, device: str
) -> None:
    A = testing.random((3, *shape), torch.complex64)
    A[1, 2, 1] = bad
    for given in (A, A[1]):
        with_nan = given.clone()
        with_nan.view(-1, *shape)[-2 if given is A else 0, 2, 1] = torch.nan
        with pytest.raises(LA.LinAlgError) as torchs:
            torch.linalg.svd(with_nan)
        with pytest.raises(LA.LinAlgError) as ours:
            function(on(device, given))
        assert str(ours.value) == str(torchs.value)


@kernels
def test_no_convergence(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    info = torch.tensor([0, 1], dtype=torch.int32, device=device)
    # With strides of which no call was recorded.
    A = on(device, testing.random((2, 3, 6), torch.float32))[..., ::2]
    monkeypatch.setattr(_svd, "_svdvals", lambda A: (A[..., 0], info))
    with pytest.raises(LA.LinAlgError, match=r"^linalg\.svd: \(Batch element 1\).*error code: 1"):
        LA.svdvals(A)


@kernels
@pytest.mark.parametrize("driver", [None, "gesvd", "gesvdj", "gesvda"])
def test_drivers(driver: str | None, device: str) -> None:
    A = on(device, testing.random((3, 4), torch.float32))
    for ours, expected in zip(LA.svd(A, driver=driver), LA.svd(A), strict=True):
        assert torch.equal(ours, expected)
    assert torch.equal(LA.svdvals(A, driver=driver), LA.svdvals(A))
    with LA.use("auto"):
        assert LA.svdvals(A.cpu(), driver=driver).shape == (3,)


@kernels
@pytest.mark.parametrize("function", [LA.svd, LA.svdvals])
def test_an_unknown_driver_is_refused_for_empty_matrices_too(function: Any, device: str) -> None:
    words = []
    for shape in ((2, 3), (0, 3), (0, 2, 2)):
        with pytest.raises(RuntimeError, match="driver") as error:
            function(torch.ones(shape, device=device), driver="x")
        words.append(str(error.value))
    assert len(set(words)) == 1


@pytest.mark.parametrize(
    ("shape", "of_svd", "of_svdvals"),
    [
        ((40, 20), "qr_group, svd_simd of R, matmul", "qr_group, svd_simd of R"),
        ((1, 64, 64), "svd_within, svd_between", "svd_within, svd_between"),
        ((40, 35), "svd_within, svd_between of R, matmul", "svd_within, svd_between of R"),
        ((8, 65, 65), "bidiagonal_group, divide, qr_apply", "tridiagonal_values"),
        ((8, 900, 257), "bidiagonal_group, divide, qr_apply", "tridiagonal_values"),
    ],
    ids=name,
)
def test_which(shape: tuple[int, ...], of_svd: str, of_svdvals: str, device: str) -> None:
    A = on(device, torch.empty(shape))
    with LA.use("kernels"):
        assert LA.which("svd", A).endswith(of_svd)
        assert LA.which("svdvals", A).endswith(of_svdvals)
    with LA.use("torch"):
        assert LA.which("svd", A) == f"svd: torch.linalg on {device}: use('torch')"


@kernels
def test_a_loss_that_depends_on_phases(device: str) -> None:
    def error(function: Callable[[Tensor], Any], A: Tensor) -> str:
        with pytest.raises(RuntimeError) as caught:
            torch.autograd.grad(function(A)[0].real.sum(), A)
        return str(caught.value)

    A = testing.random((3, 3), torch.complex64)
    ours = error(LA.svd, on(device, A).requires_grad_())
    assert ours == error(torch.linalg.svd, A.requires_grad_())


@kernels
@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 3), (3, 5)], ids=name)
@pytest.mark.parametrize("dtype", DOUBLES, ids=name)
@each_full
def test_gradients_are_torchs(
    shape: tuple[int, ...], dtype: torch.dtype, full: bool, device: str
) -> None:
    def loss(function: Callable[..., Any], A: Tensor) -> Tensor:
        U, S, Vh = function(A, full_matrices=full)
        k = S.shape[-1]
        weights = torch.arange(1, k + 1, device=A.device)
        product = (U[..., :k] * weights) @ Vh[..., :k, :]
        total: Tensor = (
            product.abs().square() * torch.arange(A.shape[-1], device=A.device)
        ).sum() + S.sin().sum()
        return total

    A = on(device, testing.random(shape, dtype)).requires_grad_()
    (ours,) = torch.autograd.grad(loss(LA.svd, A), A)
    (theirs,) = torch.autograd.grad(loss(torch.linalg.svd, A), A)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@kernels
@each_single
@pytest.mark.parametrize("n", [4, 7])
def test_many_small_matrices(dtype: torch.dtype, n: int, device: str) -> None:
    """Of integers, where columns change places, and of near clusters."""
    numbers = np.random.default_rng(n)
    integers = torch.from_numpy(numbers.integers(-1, 2, (1500, n, n))).to(dtype)
    clusters = torch.eye(n) + 1e-6 * testing.random((1500, n, n), dtype)
    for A in (integers, clusters):
        result = LA.svd(on(device, A))
        assert testing.svd_ratio(A, *result).max() < 6


@kernels
@each_single
def test_gradients_of_repeated_values(dtype: torch.dtype, device: str) -> None:
    """The sum of all singular values, smooth where they are equal: U V^H."""
    A = torch.eye(4, 3, dtype=dtype, device=device).requires_grad_()
    for values in (LA.svdvals(A), LA.svd(A).S, LA.svd(A, False).S):
        (gradient,) = torch.autograd.grad(values.sum(), A)
        torch.testing.assert_close(gradient, A.detach())
