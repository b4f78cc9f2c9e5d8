"""eigh and eigvalsh held against SciPy and torch."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg import _eigh_plan, testing
from mpslinalg.testing import EIGH_THRESHOLD, compare
from tests import lapack
from tests.inputs import DOUBLES, SINGLES, VIEWS, hermitian, name, on, random_hermitian

# torch's own forward mode does what it warns of.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

each_single = pytest.mark.parametrize("dtype", SINGLES, ids=name)
each_double = pytest.mark.parametrize("dtype", DOUBLES, ids=name)
CODE = r"\(error code: [1-9]\d*\)"
kernels = pytest.mark.usefixtures("kernels")


@kernels
@pytest.mark.parametrize("UPLO", ["L", "U", "l", "u"])
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        *((d, s) for d in SINGLES for s in ((1, 1), (5, 5), (2, 3, 12, 12), (2, 1, 32, 32))),
        *((d, (2, 1, 34, 34)) for d in SINGLES),
        *((d, (2, 6, 6)) for d in DOUBLES),
    ],
    ids=name,
)
def test_eigh(dtype: torch.dtype, shape: tuple[int, ...], UPLO: str, device: str) -> None:
    A = random_hermitian(shape, dtype)
    given = on(device, A.tril() if UPLO in "Ll" else A.triu())
    result = LA.eigh(given, UPLO)
    theirs = torch.linalg.eigh(A)
    assert type(result) is type(theirs)
    for ours, expected in zip(result, theirs, strict=True):
        assert ours.dtype == expected.dtype
        assert (ours.shape, ours.stride()) == (expected.shape, expected.stride())
    compare(testing.eigh_ratio(A, *result), testing.eigh_ratio(A, *lapack.eigh(A)), EIGH_THRESHOLD)
    values = LA.eigvalsh(given, UPLO=UPLO)
    assert values.is_contiguous()
    if shape[-1] <= _eigh_plan.SIMD_ROWS:
        assert torch.equal(values, result.eigenvalues)
    else:
        torch.testing.assert_close(values, result.eigenvalues, rtol=0, atol=1e-5)


@kernels
@pytest.mark.parametrize(("dtype", "n"), [(SINGLES[0], 128), (SINGLES[1], 257)], ids=name)
def test_larger(dtype: torch.dtype, n: int, device: str) -> None:
    A = hermitian(n, dtype)[[9, 15]]
    compare(
        testing.eigh_ratio(A, *LA.eigh(on(device, A))),
        testing.eigh_ratio(A, *lapack.eigh(A)),
        EIGH_THRESHOLD,
    )
    expected = np.linalg.eigvalsh(A.to(torch.complex128).numpy())
    error = np.abs(LA.eigvalsh(on(device, A)).numpy(force=True) - expected).max(-1)
    assert (error <= 8 * torch.finfo(dtype).eps * np.abs(expected).max(-1)).all()


@kernels
@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (0, 3, 3), (2, 0, 40, 40)], ids=name)
@each_single
def test_empty(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    A = torch.empty(shape, dtype=dtype)
    for ours, theirs in zip(LA.eigh(on(device, A)), torch.linalg.eigh(A), strict=True):
        assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())
        assert ours.dtype == theirs.dtype
    assert LA.eigvalsh(on(device, A)).shape == shape[:-1]


@kernels
@pytest.mark.parametrize("view", VIEWS)
@each_single
def test_views(dtype: torch.dtype, view: str, device: str) -> None:
    A = on(device, random_hermitian((2, 3, 5, 5), dtype))
    for ours, plain in zip(LA.eigh(VIEWS[view](A)), LA.eigh(A), strict=True):
        assert torch.equal(ours, plain)
        assert not ours.is_conj()
        assert not ours.is_neg()


@kernels
@each_single
@pytest.mark.parametrize("n", [4, 9, 32, 34])
def test_scales(dtype: torch.dtype, n: int, device: str) -> None:
    A = on(device, random_hermitian((3, n, n), dtype))
    L, V = LA.eigh(A)
    for k in (-80, 17, 80):
        values, vectors = LA.eigh(A * 2.0**k)
        assert torch.equal(values, L * 2.0**k)
        assert torch.equal(vectors, V)


@kernels
@each_single
@pytest.mark.parametrize("n", [20, 40])
def test_clusters(dtype: torch.dtype, n: int, device: str) -> None:
    """Eigenvalues that differ by rounding, or by a small multiple of it."""
    U = torch.linalg.qr(testing.random((n, n), DOUBLES[SINGLES.index(dtype)]))[0]
    d = torch.ones(4, n, dtype=torch.float64)
    d[1, n // 2 :] += 3e-7
    d[2, 0] = 1e-7
    d[3] = (d[3].cumsum(0) / 4).floor()
    A = (U * d[:, None, :] @ U.mH).to(dtype)
    A = (A + A.mH) / 2
    L, V = LA.eigh(on(device, A))
    compare(testing.eigh_ratio(A, L, V), testing.eigh_ratio(A, *lapack.eigh(A)), EIGH_THRESHOLD)
    assert (L.cpu() - d.sort().values).abs().max() <= 1e-5


@kernels
@pytest.mark.parametrize("function", [LA.eigh, LA.eigvalsh])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_not_finite(
    function: Callable[..., Any], bad: float, batch: tuple[int, ...], device: str
) -> None:
    A = random_hermitian((*batch, 3, 3), torch.float32)
    A.view(-1, 3, 3)[2 if batch else 0, 1, 0] = bad
    outs = [torch.full((2,), 7.0, device=device) for _ in range(2)]
    out = tuple(outs) if function is LA.eigh else outs[0]
    with pytest.raises(LA.LinAlgError) as ours:
        function(on(device, A))
    # Of infinities LAPACK may make NaN without an error, and its code is where it gave up.
    with pytest.raises(LA.LinAlgError) as theirs:
        torch.linalg.eigh(A.nan_to_num(torch.nan, posinf=torch.nan))
    assert re.sub(CODE, "", str(ours.value)) == re.sub(CODE, "", str(theirs.value))
    with pytest.raises(LA.LinAlgError):
        function(on(device, A), out=out)
    assert all(o.tolist() == [7.0, 7.0] for o in outs)
    # What the other triangle holds does not matter.
    if not batch:
        assert function(on(device, A), "U") is not None


@kernels
@each_single
def test_out(dtype: torch.dtype, device: str) -> None:
    A = on(device, random_hermitian((2, 4, 4), dtype))
    L, V = LA.eigh(A)
    outs = (torch.empty(0, device=device), torch.empty(0, dtype=dtype, device=device))
    result = LA.eigh(A, out=outs)
    assert type(result).__name__ == "linalg_eigh_out"
    assert all(r is o for r, o in zip(result, outs, strict=True))
    assert torch.equal(outs[0], L)
    assert torch.equal(outs[1], V)
    assert outs[1].stride() == V.stride()
    values = torch.zeros(2, 4, device=device)
    assert LA.eigvalsh(A, out=values) is values
    assert torch.equal(values, L)


@kernels
@pytest.mark.parametrize("ours", [LA.eigh, LA.eigvalsh])
@pytest.mark.parametrize("UPLO", ["X", "", "Lower", None, 1])
def test_uplo(ours: Callable[..., Any], UPLO: Any, device: str) -> None:
    def error(function: Callable[..., Any], A: Tensor) -> tuple[type, str]:
        with pytest.raises((RuntimeError, TypeError)) as caught:
            function(A, UPLO)
        return caught.type, str(caught.value)

    theirs = getattr(torch.linalg, ours.__name__)
    assert error(ours, torch.eye(3, device=device)) == error(theirs, torch.eye(3))


@kernels
@each_double
@pytest.mark.parametrize(("UPLO", "n"), [("L", 4), ("U", 4), ("U", 34)])
def test_gradients_are_torchs(dtype: torch.dtype, UPLO: str, n: int, device: str) -> None:
    A = on(device, testing.random((2, n, n), dtype)).requires_grad_()
    weights = on(device, testing.random((2, 2, n, n), dtype, seed=1))

    def loss(L: Tensor, V: Tensor) -> Tensor:
        """Of projectors, which no phase changes."""
        projectors = V[..., :, None, :2] * V[..., None, :, :2].conj()
        return (projectors.sum(-1) * weights[0]).real.sum() + (L * weights[1, :, 0].real).sum()

    ours, theirs = (
        torch.autograd.grad(loss(*f(A, UPLO)), A)[0] for f in (LA.eigh, torch.linalg.eigh)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    direction = on(device, random_hermitian((2, n, n), dtype, seed=2))
    tangents = [
        torch.func.jvp(lambda X, f=f: loss(*f(X, UPLO)), (A.detach(),), (direction,))[1]
        for f in (LA.eigh, torch.linalg.eigh)
    ]
    torch.testing.assert_close(*tangents, rtol=1e-9, atol=1e-9)


@kernels
@each_double
@pytest.mark.parametrize("function", [LA.eigvalsh, lambda A: LA.eigh(A).eigenvalues])
def test_values_have_gradients_at_clusters(
    function: Callable[[Tensor], Tensor], dtype: torch.dtype, device: str
) -> None:
    """Sums of functions of the eigenvalues are smooth: the gradient of sum(l^2) / 2 is A."""
    U = torch.linalg.qr(testing.random((6, 6), dtype))[0]
    d = torch.tensor([2.0, 2.0, 2.0, 2.0 + 1e-15, -1.0, -1.0], dtype=torch.float64)
    A = U * d @ U.mH
    for matrix in ((A + A.mH) / 2, torch.eye(6, dtype=dtype), torch.zeros(6, 6, dtype=dtype)):
        X = on(device, matrix).requires_grad_()
        (gradient,) = torch.autograd.grad(function(X).square().sum() / 2, X)
        torch.testing.assert_close(gradient, X.detach(), rtol=1e-12, atol=1e-12)


@kernels
def test_repeated_values_have_no_gradient_of_vectors(device: str) -> None:
    X = torch.eye(2, dtype=torch.float64, device=device).requires_grad_()
    (gradient,) = torch.autograd.grad(LA.eigh(X).eigenvectors.sum(), X)
    assert not gradient.isfinite().any()


@kernels
def test_a_loss_of_phases_is_refused(device: str) -> None:
    def error(function: Callable[..., Any], where: str) -> str:
        X = testing.random((3, 3), torch.complex64).to(where).requires_grad_()
        with pytest.raises(RuntimeError) as caught:
            torch.autograd.grad(function(X).eigenvectors.sum().real, X)
        return str(caught.value)

    assert error(LA.eigh, device) == error(torch.linalg.eigh, "cpu")


@kernels
def test_which(device: str) -> None:
    def kernels_of(name: str, n: int) -> str:
        A = torch.empty(n, n, device=device)
        return LA.which(name, A).split(f"{n} x {n} float32, ")[1]

    assert kernels_of("eigh", 8) == kernels_of("eigvalsh", 8) == "eigh_simd"
    assert kernels_of("eigh", 32) == kernels_of("eigvalsh", 9) == "eigh_ql"
    assert kernels_of("eigh", 33) == "tridiagonal_group, divide, qr_triangle, qr_apply"
    assert kernels_of("eigvalsh", 256) == "tridiagonal_group, tridiagonal_values"
    panels = "tridiagonal_products, tridiagonal_column for panels of 32 columns, matmul"
    assert kernels_of("eigvalsh", 257) == (
        f"{panels}, tridiagonal_group for the last 256, tridiagonal_values"
    )


@kernels
def test_vibrations_of_a_chain(device: str) -> None:
    """Equal masses and springs between walls: 2 sin(k pi / 2 (n + 1)) for k = 1 ... n."""
    n = 24
    chain = scipy.linalg.toeplitz([2.0, -1.0, *[0.0] * (n - 2)])
    L, _ = LA.eigh(torch.from_numpy(chain).float().to(device))
    expected = 2 * np.sin(np.arange(1, n + 1) * np.pi / (2 * (n + 1)))
    assert np.abs(L.sqrt().numpy(force=True) - expected).max() <= 1e-5
