"""What holds for the factors of any matrix: hypothesis over shapes, batches, storage and scales."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import assume
from torch import Tensor

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg.testing import EIG_THRESHOLD, EIGH_THRESHOLD, LU_THRESHOLD
from tests.cases import Case, cases, close, eps, given, partners, sizes
from tests.ratios import double, pinv_ratio, polar_ratio

pytestmark = pytest.mark.usefixtures("kernels")

# Stored as what it multiplies, for BLAS sums in an order of its own where memory is not aligned.
# A power of 4, so that the roots of matrices are scaled without an error too.
STEP = 2.0**10
shapes = st.tuples(sizes, sizes)
# A width of a team each, tall and wide, QR first, and blocks of columns.
narrow = st.sampled_from(((1, 1), (4, 2), (5, 3), (3, 5), (8, 8), (40, 4), (9, 34), (36, 34)))
orders = st.sampled_from((1, 2, 5, 12, 32, 40))
tall = st.sampled_from(((1, 1), (4, 4), (5, 3), (6, 4), (40, 6)))


@given(case=cases, n=sizes, k=st.integers(1, 5), of_B=partners)
def test_cholesky(case: Case, n: int, k: int, of_B: str, device: str) -> None:
    A = case.definite(n, device)
    L, U = LA.cholesky(A), LA.cholesky(A, upper=True)
    assert (testing.cholesky_ratio(A, L) < LU_THRESHOLD).all()
    assert (testing.cholesky_ratio(A, U, upper=True) < LU_THRESHOLD).all()
    # The condition is below 10.
    close(U.mH, L, 10 * n * eps(case.dtype))
    diagonal = torch.diagonal(L, dim1=-2, dim2=-1)
    assert (diagonal.real > 0).all()
    assert diagonal.is_complex() is False or not diagonal.imag.any()
    assert torch.equal(LA.cholesky(case.stored(STEP * A)), L * STEP**0.5)
    B = case.partner(of_B).matrices(n, k, device)
    for factor, upper in ((L, False), (U, True)):
        X = LA.cholesky_solve(B, factor, upper=upper)
        assert (testing.solve_ratio(A, X, B) < LU_THRESHOLD).all()
        inverse = LA.cholesky_inverse(factor, upper=upper)
        assert (testing.inverse_ratio(A, inverse) < LU_THRESHOLD).all()


@given(case=cases, n=sizes, k=st.integers(1, 3), hermitian=st.booleans())
def test_ldl(case: Case, n: int, k: int, hermitian: bool, device: str) -> None:
    A = case.symmetric(n, device, hermitian)
    LD, pivots, info = LA.ldl_factor_ex(A, hermitian=hermitian)
    assert not info.any()
    assert (testing.ldl_ratio(A, LD, pivots, hermitian) < LU_THRESHOLD).all()
    assert torch.equal(LA.ldl_factor(-A, hermitian=hermitian).pivots, pivots)
    B = case._replace(seed=case.seed + 1).matrices(n, k, device)
    X = LA.ldl_solve(LD, pivots, B, hermitian=hermitian)
    assert (testing.solve_ratio(A, X, B) < LU_THRESHOLD).all()


@given(case=cases, shape=shapes, k=st.integers(1, 3))
def test_qr(case: Case, shape: tuple[int, int], k: int, device: str) -> None:
    A = case.matrices(*shape, device)
    Q, R = LA.qr(A)
    complete = LA.qr(A, mode="complete")
    for factors in ((Q, R), complete):
        assert (testing.qr_ratio(A, *factors) < LU_THRESHOLD).all()
    assert torch.equal(LA.qr(A, mode="r").R, R)
    rows = min(shape)
    allowed = LU_THRESHOLD * max(shape) * eps(case.dtype)
    close(complete.Q[..., :rows], Q, allowed, 1)
    assert not complete.R[..., rows:, :].any()
    scaled = LA.qr(case.stored(STEP * A))
    assert torch.equal(scaled.Q, Q)
    assert torch.equal(scaled.R, STEP * R)
    factor, tau = LA.geqrf(A)
    close(LA.householder_product(factor[..., :rows], tau), Q, allowed, 1)
    C = case._replace(scale=1.0, seed=case.seed + 1).matrices(shape[0], k, device)
    size = np.linalg.norm(double(C), axis=-2, keepdims=True)
    for transpose, full in ((False, complete.Q), (True, complete.Q.mH)):
        turned = LA.ormqr(factor[..., :rows], tau, C, transpose=transpose)
        close(turned, double(full) @ double(C), allowed, size)


@given(case=cases, shape=shapes, data=st.data())
def test_qr_pivoted(case: Case, shape: tuple[int, int], data: st.DataObject, device: str) -> None:
    rank = data.draw(st.integers(0, min(shape)))
    A = case.isometries(*shape, rank, device)
    Q, R, P = LA.qr_pivoted(A)
    permuted = torch.gather(A.resolve_neg(), -1, P.unsqueeze(-2).expand(A.shape))
    assert (testing.qr_ratio(permuted, Q, R) < LU_THRESHOLD).all()
    diagonal = np.abs(double(torch.diagonal(R, dim1=-2, dim2=-1)))
    rounding = LU_THRESHOLD * max(shape) * eps(case.dtype) * case.scale
    assert (np.diff(diagonal) <= rounding).all()
    # Each column of what is left is as long as the diagonal says, or shorter.
    assert (diagonal[..., rank:] <= rounding).all()


# torch's B has as many dimensions as A.
@given(
    case=cases,
    shape=shapes,
    k=st.integers(1, 3),
    alike=st.booleans(),
    of_B=st.sampled_from(("alike", "ones")),
)
def test_least_squares(
    case: Case, shape: tuple[int, int], k: int, alike: bool, of_B: str, device: str
) -> None:
    A = case.matrices(*shape, device, shift=3 * max(shape) ** 0.5)
    right = case.partner(of_B, case.scale if alike else 1.0)
    B = right.matrices(shape[0], k, device)
    # Of such a shape torch takes B for a batch of vectors.
    assume(B.shape != A.shape[:-1])
    for driver in ("gels", "gelsy"):
        X = LA.lstsq(A, B, driver=driver).solution
        assert (testing.lstsq_ratio(A, X, B) < LU_THRESHOLD).all()
        scaled = LA.lstsq(A, right.stored(STEP * B), driver=driver).solution / STEP
        # But for rounding, for torch's products may sum in another order.
        size = X.abs().amax((-2, -1), keepdim=True)
        assert ((scaled - X).abs() <= 100 * torch.finfo(case.dtype).eps * size).all()


@given(case=cases, shape=narrow, k=st.integers(1, 3), data=st.data())
def test_the_smallest_of_least_squares(
    case: Case, shape: tuple[int, int], k: int, data: st.DataObject, device: str
) -> None:
    rank = data.draw(st.integers(0, min(shape)))
    A = case.isometries(*shape, rank, device)
    B = case._replace(seed=case.seed + 1).matrices(shape[0], k, device)
    # All singular values are 0 or the scale.
    a, b = double(A) / case.scale, double(B) / case.scale
    expected = a.conj().swapaxes(-2, -1) @ b
    size = np.abs(b).max() * sum(shape)
    for driver in ("gelsy", "gelsd"):
        result = LA.lstsq(A, B, rcond=1e-3, driver=driver)
        assert (result.rank == rank).all()
        close(result.solution, expected, LU_THRESHOLD * eps(case.dtype), size)


@given(case=cases, shape=narrow)
def test_svd(case: Case, shape: tuple[int, int], device: str) -> None:
    A = case.matrices(*shape, device)
    U, S, Vh = LA.svd(A)
    assert (U.shape[-1], Vh.shape[-2]) == shape
    for factors in ((U, S, Vh), LA.svd(A, full_matrices=False)):
        assert (testing.svd_ratio(A, *factors) < LU_THRESHOLD).all()
    for turned in (A, A.conj(), -A, A.mT, A.mH, A.flip(-1), product_with(U, A)):
        assert (testing.svdvals_ratio(A, LA.svdvals(turned)) < LU_THRESHOLD).all()
    scaled = LA.svd(case.stored(STEP * A))
    for ours, plain in zip(scaled, (U, STEP * S, Vh), strict=True):
        assert torch.equal(ours, plain)


def product_with(U: Tensor, A: Tensor) -> Tensor:
    """U^H A, whose rounding errors are some eps ||A||."""
    scale = A.abs().max()
    return (U.mH @ (A / scale)) * scale


@given(case=cases, n=orders)
def test_eigh(case: Case, n: int, device: str) -> None:
    A = case.symmetric(n, device)
    noise = case._replace(seed=case.seed + 1).matrices(n, n, device)
    values, vectors = LA.eigh(A)
    assert (testing.eigh_ratio(A, values, vectors) < EIGH_THRESHOLD).all()
    for given_A, UPLO in (
        (A, "L"),
        (A.tril() + noise.triu(1), "L"),
        (A.triu() + noise.tril(-1), "U"),
        (A.mT, "L"),
        (A.flip(-1, -2), "U"),
    ):
        own = LA.eigvalsh(given_A, UPLO=UPLO)
        assert (testing.eigvalsh_ratio(A, own) < EIGH_THRESHOLD).all()
    upper = LA.eigh(A.triu() + noise.tril(-1), "U")
    assert (testing.eigh_ratio(A, *upper) < EIGH_THRESHOLD).all()
    negative = -LA.eigvalsh(-A).flip(-1)
    assert (testing.eigvalsh_ratio(A, negative) < EIGH_THRESHOLD).all()
    scaled = LA.eigh(case.stored(STEP * A))
    assert torch.equal(scaled.eigenvalues, STEP * values)
    assert torch.equal(scaled.eigenvectors, vectors)


@given(case=cases, n=orders)
def test_eig(case: Case, n: int, device: str) -> None:
    A = case.matrices(n, n, device)
    values, vectors = LA.eig(A)
    assert (testing.eig_ratio(A, values, vectors) < EIG_THRESHOLD).all()
    a = double(A) / case.scale
    allowed = EIG_THRESHOLD * n * eps(case.dtype) * np.linalg.norm(a, axis=(-2, -1))
    # |det(A + E) - det A| of backward errors E.
    sigma = np.linalg.svd(a, compute_uv=False)
    change = (sigma + allowed[..., None]).prod(-1) - sigma.prod(-1)
    trace = np.trace(a, axis1=-2, axis2=-1)
    of_turned = LA.eigvals(A.mT), LA.eigvals(A.mH).conj(), -LA.eigvals(-A)
    for own in (values, LA.eigvals(A), *of_turned):
        found = double(own) / case.scale
        assert (np.abs(found.sum(-1) - trace) <= allowed).all()
        # Each is an eigenvalue of a matrix as near as that.
        shifted = a[..., None, :, :] - found[..., None, None] * np.eye(n)
        smallest = np.linalg.svd(shifted, compute_uv=False)[..., -1]
        assert (smallest <= allowed[..., None]).all()
        product = found.prod(-1)
        assert (np.abs(product - np.linalg.det(a)) <= change).all()
    if not case.dtype.is_complex:
        # In pairs.
        assert torch.equal(values.imag.sort().values, (-values.imag).sort().values)


@given(case=cases, shape=narrow, data=st.data())
def test_pinv(case: Case, shape: tuple[int, int], data: st.DataObject, device: str) -> None:
    A = case.matrices(*shape, device, shift=3 * max(shape) ** 0.5)
    X = LA.pinv(A)
    for inverse in (X, LA.pinv(A.mH).mH, LA.pinv(A.mT).mT):
        assert (pinv_ratio(A, inverse) < LU_THRESHOLD).all()
    # Away from where the inverse leaves the range.
    step = STEP if case.scale < 1 else 1 / STEP
    assert torch.equal(LA.pinv(case.stored(step * A)), X / step)
    assert (LA.matrix_rank(A) == min(shape)).all()
    rank = data.draw(st.integers(0, min(shape)))
    A = case.isometries(*shape, rank, device)
    assert (LA.matrix_rank(A, rtol=1e-3) == rank).all()
    expected = double(A).conj().swapaxes(-2, -1) / case.scale
    allowed = LU_THRESHOLD * max(shape) * eps(case.dtype) / case.scale
    close(LA.pinv(A, rtol=1e-3), expected / case.scale, allowed, 1)


@given(case=cases, n=st.sampled_from((1, 4, 5, 12, 34)), rank=st.integers(1, 4))
def test_hermitian_pinv(case: Case, n: int, rank: int, device: str) -> None:
    A = case.symmetric(n, device)
    x, a = double(LA.pinv(A, hermitian=True)), double(A)
    condition = np.linalg.cond(a / case.scale)[..., None, None]
    allowed = LU_THRESHOLD * n * eps(case.dtype) * condition
    assert (np.abs(a @ x - np.eye(n)) <= allowed).all()


@given(case=cases, shape=tall)
def test_polar(case: Case, shape: tuple[int, int], device: str) -> None:
    A = case.matrices(*shape, device)
    U, H = LA.polar(A)
    assert (polar_ratio(A, U, H) < LU_THRESHOLD).all()
    assert torch.equal(H, H.mH)
    assert torch.equal(LA.polar(case.stored(STEP * A)).H, STEP * H)
    # Of what has orthonormal columns nothing is left.
    again, identity = LA.polar(U)
    allowed = LU_THRESHOLD * max(shape) * eps(case.dtype)
    close(again, U, allowed, 1)
    close(identity, np.broadcast_to(np.eye(shape[1]), H.shape), allowed, 1)


@given(case=cases, n=st.sampled_from((1, 5, 9, 32)))
def test_square_root(case: Case, n: int, device: str) -> None:
    A = case.definite(n, device)
    X = LA.matrix_sqrth(A)
    x, a = double(X), double(A)
    size = np.abs(a).max((-2, -1), keepdims=True)
    assert (np.abs(x @ x - a) <= LU_THRESHOLD * n * eps(case.dtype) * size).all()
    assert torch.equal(X, X.mH)
    assert (np.linalg.eigvalsh(x) > 0).all()
    assert torch.equal(LA.matrix_sqrth(case.stored(STEP * A)), STEP**0.5 * X)
