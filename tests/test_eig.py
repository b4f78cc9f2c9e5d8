"""eig and eigvals held against SciPy and torch."""

import itertools
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg import _eig_plan, testing
from mpslinalg.testing import EIG_THRESHOLD, compare
from tests import lapack
from tests.inputs import DOUBLES, SINGLES, VIEWS, name, nonsymmetric, on

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

# torch's own forward mode does what it warns of.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

each_single = pytest.mark.parametrize("dtype", SINGLES, ids=name)
each_double = pytest.mark.parametrize("dtype", DOUBLES, ids=name)
each_function = pytest.mark.parametrize("function", [LA.eig, LA.eigvals])
kernels = pytest.mark.usefixtures("kernels")


@kernels
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        *((d, s) for d in SINGLES for s in ((1, 1), (2, 3, 12, 12), (2, 1, 32, 32), (2, 40, 40))),
        *((d, s) for d in DOUBLES for s in ((2, 6, 6), (17, 17))),
    ],
    ids=name,
)
def test_eig(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    A = testing.random(shape, dtype)
    result = LA.eig(on(device, A))
    theirs = torch.linalg.eig(A)
    assert type(result) is type(theirs)
    for ours, expected in zip(result, theirs, strict=True):
        assert ours.dtype == expected.dtype
        assert (ours.shape, ours.stride()) == (expected.shape, expected.stride())
    compare(testing.eig_ratio(A, *result), testing.eig_ratio(A, *lapack.eig(A)), EIG_THRESHOLD)
    values = LA.eigvals(on(device, A))
    assert torch.equal(values, result.eigenvalues)
    assert values.stride() == torch.linalg.eigvals(A).stride()
    # In some order they are LAPACK's.
    for own, expected in zip(
        values.cpu().view(-1, shape[-1]), theirs[0].view(-1, shape[-1]), strict=True
    ):
        distances = (own[:, None] - expected).abs()
        tolerance = 1e3 * shape[-1] * torch.finfo(dtype).eps
        assert distances.amin(0).max() <= tolerance
        assert distances.amin(1).max() <= tolerance


@kernels
@pytest.mark.parametrize(("n", "families"), [(64, [11, 14, 18]), (100, [18])])
@each_single
def test_threadgroups(dtype: torch.dtype, n: int, families: list[int], device: str) -> None:
    A = nonsymmetric(n, dtype)[families]
    result = LA.eig(on(device, A))
    compare(testing.eig_ratio(A, *result), testing.eig_ratio(A, *lapack.eig(A)), EIG_THRESHOLD)


@kernels
@pytest.mark.parametrize("shape", [(16, 5, 5), (16, 12, 12), (4, 40, 40)], ids=name)
@each_single
def test_columns_of_other_scales(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    A = testing.random(shape, dtype)
    grades = torch.logspace(0, -20, shape[-1])
    every_other = torch.arange(shape[-1]) % 2
    for columns in (A * grades, A * every_other):
        result = LA.eig(on(device, columns))
        theirs = testing.eig_ratio(columns, *lapack.eig(columns))
        compare(testing.eig_ratio(columns, *result), theirs, EIG_THRESHOLD)


@kernels
@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (0, 3, 3), (0, 600, 600)], ids=name)
@each_single
def test_empty(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    A = torch.empty(shape, dtype=dtype)
    pairs = zip(LA.eig(on(device, A)), torch.linalg.eig(A), strict=True)
    for ours, theirs in (*pairs, (LA.eigvals(on(device, A)), torch.linalg.eigvals(A))):
        assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())
        assert ours.dtype == theirs.dtype


@kernels
@pytest.mark.parametrize("view", VIEWS)
@each_single
def test_views(dtype: torch.dtype, view: str, device: str) -> None:
    A = on(device, testing.random((2, 3, 5, 5), dtype))
    for ours, plain in zip(LA.eig(VIEWS[view](A)), LA.eig(A), strict=True):
        assert torch.equal(ours, plain)
        assert not ours.is_conj()
        assert not ours.is_neg()


@kernels
@pytest.mark.parametrize("n", [3, 40])
@each_single
def test_phases_are_lapacks(dtype: torch.dtype, n: int, device: str) -> None:
    """Up to the sign of real vectors, and of pairs."""
    A = testing.random((n, n), dtype)
    L, V = (x.cpu() for x in LA.eig(on(device, A)))
    values, vectors = torch.linalg.eig(A)
    for k in range(n):
        j = int((values - L[k]).abs().argmin())
        product = (vectors[:, j].conj() * V[:, k]).sum()
        if not dtype.is_complex:
            product = product * product.real.sign()
        assert abs(complex(product) - 1) <= 1e-3
        largest = V[int(V[:, k].abs().argmax()), k]
        assert largest.imag == 0
        assert largest.real > 0 or not (dtype.is_complex or L[k].imag != 0)


@kernels
@each_single
@pytest.mark.parametrize("n", [3, 6])
def test_many_small_integers(dtype: torch.dtype, n: int, device: str) -> None:
    """Sparse, skew and defective matrices, and triangles with rounding errors below."""
    rng = np.random.default_rng(n)
    size = (500, n, n)
    X = rng.integers(-3, 4, size)
    sparse = rng.integers(-1, 2, size) * (rng.random(size) < 0.25)
    triangles = np.triu(rng.standard_normal(size)) + 1e-7 * rng.standard_normal(size)
    made = (rng.integers(0, 2, size), sparse, X - X.swapaxes(1, 2), np.triu(X, 1), triangles)
    A = torch.from_numpy(np.concatenate(made)).to(dtype)
    if dtype.is_complex:
        A[500:1000] *= torch.from_numpy(1j ** rng.integers(0, 4, size)).to(dtype)
    ratios = testing.eig_ratio(A, *LA.eig(on(device, A)))
    assert ratios[:2000].max() < EIG_THRESHOLD
    # LAPACK's, too, are above where balancing scales a triangle.
    assert np.sort(ratios[2000:])[-10] < EIG_THRESHOLD


@kernels
@each_single
def test_roots_of_polynomials(dtype: torch.dtype, device: str) -> None:
    """Companion matrices: the polynomials of the computed roots are near the given ones."""
    n = 10
    coefficients = testing.random((50, n), dtype)
    A = torch.diag_embed(torch.ones(50, n - 1, dtype=dtype), offset=-1)
    A[:, :, -1] = -coefficients
    L, V = LA.eig(on(device, A))
    compare(testing.eig_ratio(A, L, V), testing.eig_ratio(A, *lapack.eig(A)), EIG_THRESHOLD)
    for roots, given in zip(L.cpu().to(torch.complex128), coefficients, strict=True):
        found = np.poly(roots.numpy())[:0:-1]
        size = max(1.0, float(given.abs().max()))
        assert np.abs(found - given.numpy()).max() <= 1e-5 * size**2


@kernels
def test_wilkinsons_polynomial(device: str) -> None:
    """(x - 1) ... (x - 10), whose roots a change of 1e-7 in a coefficient moves by 1e-2."""
    coefficients = np.poly(np.arange(1.0, 11.0))
    A = torch.diag(torch.ones(9, dtype=torch.float64), -1)
    A[:, -1] = -torch.from_numpy(coefficients[:0:-1].copy())
    dtype = torch.float32 if device == "mps" else torch.float64
    roots = LA.eigvals(A.to(device, dtype)).cpu().to(torch.complex128)
    error = np.abs(np.sort(roots.real.numpy()) - np.arange(1.0, 11.0)).max()
    assert error <= (0.5 if device == "mps" else 1e-6)


@kernels
@each_single
def test_roots_that_are_whole_numbers(dtype: torch.dtype, device: str) -> None:
    """All sextics with roots among 1 ... 12, as accurate as their coefficients.

    Of a single companion matrix the error is chance, up to five times the median. LAPACK's
    medians are 1.3 and 1.0, and 1 % of its errors are above 4.8 and 2.8.
    """
    roots = np.array(list(itertools.combinations(range(1, 13), 6)), float)
    polynomials = [np.poly(r) for r in roots]
    A = np.zeros((len(roots), 6, 6))
    A[:, 0] = [-p[1:] for p in polynomials]
    A[:, range(1, 6), range(5)] = 1
    moved = [
        np.polyval(np.abs(p), r) / np.abs(np.polyval(np.polyder(p), r))
        for p, r in zip(polynomials, roots, strict=True)
    ]
    found = LA.eigvals(on(device, torch.from_numpy(A).to(dtype))).cpu().to(torch.complex128).numpy()
    errors = (np.abs(np.sort_complex(found) - roots) / moved).max(-1) / 2.0**-24
    assert np.median(errors) <= 1.5
    assert np.quantile(errors, 0.99) <= 5


@kernels
@each_single
def test_scaled_rows_and_columns_leave_eigenvalues(dtype: torch.dtype, device: str) -> None:
    """D^-1 A D with powers of two from 2^-20 to 2^20: as accurate as LAPACK's, which balances."""
    exponents = np.random.default_rng(0).integers(-20, 21, (200, 8))
    A = testing.random((200, 8, 8), dtype)
    scaled = A * torch.from_numpy(2.0 ** (exponents[:, None] - exponents[:, :, None])).to(dtype)
    exact, V = np.linalg.eig(A.to(torch.complex128).numpy())
    # How far a change of A of norm 1 moves each: its vectors, and those from the left.
    moved = np.linalg.norm(np.linalg.inv(V), axis=-1) * np.linalg.norm(V, axis=-2)
    moved *= np.linalg.norm(A.numpy(), axis=(-2, -1))[:, None]

    def errors(found: Any) -> Any:
        distances = np.abs(found[:, None, :] - exact[:, :, None]).min(-1)
        return (distances / moved).max(-1) / 2.0**-24

    ours = errors(LA.eigvals(on(device, scaled)).cpu().to(torch.complex128).numpy())
    lapacks = errors(lapack.eig(scaled)[0])
    assert np.median(ours) <= 1.25 * np.median(lapacks)
    assert np.quantile(ours, 0.9) <= min(1.5 * np.quantile(lapacks, 0.9), 7)


@kernels
@each_function
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("shape", [(3, 3), (4, 3, 3), (1, 1), (2, 40, 40)], ids=name)
def test_not_finite(
    function: Callable[..., Any], bad: float, shape: tuple[int, ...], device: str
) -> None:
    A = testing.random(shape, torch.float32)
    A.view(-1, *shape[-2:])[-1, -1, 0] = bad
    outs = [torch.full((2,), 7, dtype=torch.complex64, device=device) for _ in range(2)]
    out = tuple(outs) if function is LA.eig else outs[0]
    with pytest.raises(RuntimeError) as theirs:
        torch.linalg.eig(A)
    words = str(theirs.value).replace("eig:", f"{function.__name__}:")
    for given in ({}, {"out": out}):
        with pytest.raises(RuntimeError, match=f"^{re.escape(words)}$") as ours:
            function(on(device, A), **given)
        assert ours.type is theirs.type
    assert all(o.tolist() == [7, 7] for o in outs)


@kernels
@each_function
@pytest.mark.parametrize("batch", [(), (2, 2)])
def test_what_does_not_converge_raises(
    function: Callable[..., Any],
    batch: tuple[int, ...],
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_eig_plan, "SWEEPS_A_ROW", 0)
    monkeypatch.setattr(_eig_plan, "PASSES", 35)
    A = torch.eye(35).repeat(*batch, 1, 1)
    A.view(-1, 35, 35)[-1] = testing.random((35, 35), torch.float32)
    torchs_name = f"linalg.{function.__name__}"
    info = torch.zeros(batch, dtype=torch.int32)
    info.view(-1)[-1] = 1
    with pytest.raises(LA.LinAlgError) as theirs:
        torch._linalg_check_errors(info, torchs_name, is_matrix=not batch)
    code = r"\(error code: [1-9]\d*\)"
    with pytest.raises(LA.LinAlgError) as ours:
        function(on(device, A))
    assert re.sub(code, "", str(ours.value)) == re.sub(code, "", str(theirs.value))


@kernels
@each_single
@pytest.mark.parametrize("result_dtype", [torch.complex64, torch.complex128])
def test_out(dtype: torch.dtype, result_dtype: torch.dtype, device: str) -> None:
    A = on(device, testing.random((2, 4, 4), dtype))
    L, V = LA.eig(A)
    outs = tuple(on(device, torch.empty(0, dtype=result_dtype)) for _ in range(2))
    result = LA.eig(A, out=outs)
    assert type(result).__name__ == "linalg_eig_out"
    assert all(r is o for r, o in zip(result, outs, strict=True))
    assert torch.equal(outs[0], L.to(result_dtype))
    assert torch.equal(outs[1], V.to(result_dtype))
    assert outs[1].stride() == V.stride()
    values = on(device, torch.zeros(2, 4, dtype=result_dtype))
    assert LA.eigvals(A, out=values) is values
    assert torch.equal(values, L.to(result_dtype))


@kernels
@pytest.mark.parametrize("dtype", [*SINGLES, *DOUBLES], ids=name)
def test_torchs_samples(dtype: torch.dtype, device: str) -> None:
    """Eigenvalues may come in another order: each result is judged by itself."""
    op: Any = next(op for op in op_db if op.name == "linalg.eig")
    torch.manual_seed(0)
    count = 0
    for sample in op.sample_inputs("cpu", dtype):
        for A in (sample.input, sample.noncontiguous().input):
            result, theirs = LA.eig(on(device, A)), torch.linalg.eig(A)
            for ours, expected in zip(result, theirs, strict=True):
                assert (ours.dtype, ours.shape) == (expected.dtype, expected.shape)
                assert ours.stride() == expected.stride()
            ratios = testing.eig_ratio(A, *result), testing.eig_ratio(A, *lapack.eig(A))
            compare(*ratios, EIG_THRESHOLD)
            assert torch.equal(LA.eigvals(on(device, A)), result[0])
            count += 1
    assert count >= 12


def loss(L: Tensor, V: Tensor) -> Tensor:
    """Of eigenvalues and of projectors, which no phase changes; eigenvalues come in any order."""
    projectors = V[..., :, None, :] * V[..., None, :, :].conj()
    weights = (L.real + 2 * L.imag.square()).unsqueeze(-2).unsqueeze(-2)
    pattern = torch.arange(9.0, dtype=weights.dtype, device=L.device).view(3, 3, 1).cos()
    return (projectors.abs().square() * weights * pattern).sum() + L.pow(3).real.sum()


@kernels
@each_double
def test_gradients_are_torchs(dtype: torch.dtype, device: str) -> None:
    A = on(device, testing.random((2, 3, 3), dtype)).requires_grad_()
    ours, theirs = (torch.autograd.grad(loss(*f(A)), A)[0] for f in (LA.eig, torch.linalg.eig))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    direction = on(device, testing.random((2, 3, 3), dtype, seed=2))
    tangents = [
        torch.func.jvp(lambda X, f=f: loss(*f(X)), (A.detach(),), (direction,))[1]
        for f in (LA.eig, torch.linalg.eig)
    ]
    torch.testing.assert_close(*tangents, rtol=1e-9, atol=1e-9)
    values = [
        torch.autograd.grad(f(A).pow(3).real.sum(), A)[0]
        for f in (LA.eigvals, torch.linalg.eigvals)
    ]
    torch.testing.assert_close(*values, rtol=1e-9, atol=1e-9)


@kernels
@each_double
def test_gradient_of_a_sum_of_powers(dtype: torch.dtype, device: str) -> None:
    """The sum of the cubes of all eigenvalues is the trace of A^3: its gradient is 3 (A^2)^H."""
    A = on(device, testing.random((18, 18), dtype) / 4).requires_grad_()
    (gradient,) = torch.autograd.grad(LA.eigvals(A).pow(3).real.sum(), A)
    expected = 3 * torch.linalg.matrix_power(A.detach(), 2).mH
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-9)


@kernels
@each_single
def test_a_loss_of_phases_is_refused(dtype: torch.dtype, device: str) -> None:
    def error(function: Callable[..., Any], where: str) -> str:
        X = testing.random((4, 4), dtype).to(where).requires_grad_()
        with pytest.raises(RuntimeError) as caught:
            torch.autograd.grad((function(X).eigenvectors * (1 + 2j)).sum().real, X)
        return str(caught.value)

    assert error(LA.eig, device) == error(torch.linalg.eig, "cpu")


@kernels
def test_more_rows_than_a_threadgroup_has(device: str) -> None:
    """The first size of the kernels that share a matrix; small ones have tests/shaders."""
    A = testing.random((_eig_plan.MAX_ROWS + 1,) * 2, torch.float32)
    L, V = LA.eig(on(device, A))
    compare(testing.eig_ratio(A, L, V), testing.eig_ratio(A, *lapack.eig(A)), EIG_THRESHOLD)


@kernels
@each_single
def test_which_kernels_run(dtype: torch.dtype, device: str) -> None:
    A = torch.empty(600, 600, dtype=dtype, device=device)
    assert LA.which("eig", A[:32, :32]).endswith("eig_simd")
    assert LA.which("eig", A[:33, :33]).endswith("eig_reduce, eig_iterate, eig_finish")
    assert "the host reads how far it is" in LA.which("eig", A)
    assert LA.which("eigvals", A).endswith("the host reads how far it is")
