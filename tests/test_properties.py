"""What holds for any matrices: hypothesis over shapes, batches, storage, scales and bad entries."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import assume, given

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg.testing import LU_THRESHOLD
from tests.cases import Case, batches, cases, product, scales, sizes

pytestmark = pytest.mark.usefixtures("kernels")


@given(case=cases, m=sizes, n=sizes)
def test_factors_give_the_matrix(case: Case, m: int, n: int, device: str) -> None:
    A = case.matrices(m, n, device)
    LU, pivots, info = LA.lu_factor_ex(A)
    assert info.shape == case.batch
    assert (testing.lu_ratio(A, LU, pivots) < LU_THRESHOLD).all()
    P, L, U = LA.lu(A)
    error = np.abs((P @ (L @ (U / case.scale)) - A / case.scale).numpy(force=True)).sum(-2).max(-1)
    eps = torch.finfo(case.dtype).eps
    size = (A / case.scale).abs().sum(-2).amax(-1).numpy(force=True)
    assert (error <= LU_THRESHOLD * (m + n) * eps * size).all()


@given(
    case=cases, n=sizes, k=st.integers(1, 5), of_B=batches, scale_of_B=scales, left=st.booleans()
)
def test_solutions_solve(
    case: Case, n: int, k: int, of_B: tuple[int, ...], scale_of_B: float, left: bool, device: str
) -> None:
    A = case.regular(n, device)
    try:
        batch = np.broadcast_shapes(case.batch, of_B)
    except ValueError:
        of_B = batch = case.batch
    right = Case(case.dtype, of_B, scale_of_B, case.view, case.seed + 1)
    B = right.matrices(n, k, device) if left else right.matrices(k, n, device)
    # Of such a shape torch takes B for a batch of vectors.
    assume(B.shape != A.shape[:-1])
    matrices = A.expand(*batch, n, n)
    # B / A leaves the range of float32 from one end to the other.
    if case.scale == 1.0 or scale_of_B in (1.0, case.scale):
        X = LA.solve(A, B, left=left)
        assert X.shape == (*batch, n, k) if left else (*batch, k, n)
        assert (testing.solve_ratio(matrices, X, B, left=left) < LU_THRESHOLD).all()
        LU, pivots = LA.lu_factor(A)
        X = LA.lu_solve(LU, pivots, B, left=left, adjoint=True)
        assert (testing.solve_ratio(matrices, X, B, "C", left) < LU_THRESHOLD).all()


@given(case=cases, n=sizes)
def test_determinant_of_a_product(case: Case, n: int, device: str) -> None:
    A = case.regular(n, device)
    B = Case(case.dtype, case.batch, 1.0, case.view, case.seed + 1).regular(n, device)
    (sign, log), (sign_A, log_A), (sign_B, log_B) = map(LA.slogdet, (product(A, B), A, B))
    condition = torch.linalg.cond(torch.stack((A, B)).cpu() / A.abs().max().cpu(), 2).amax(0)
    eps = torch.finfo(case.dtype).eps
    allowed = LU_THRESHOLD * n * eps * condition**2
    # The logarithms are rounded relative to themselves.
    rounding = 4 * eps * (log_A.abs() + log_B.abs()).cpu()
    assert ((log - log_A - log_B).abs().cpu() <= allowed + rounding).all()
    assert ((sign - sign_A * sign_B).abs().cpu() <= allowed).all()


@given(case=cases, n=sizes)
def test_the_inverse_inverts(case: Case, n: int, device: str) -> None:
    A = case.regular(n, device)
    X = LA.inv(A)
    assert (testing.inverse_ratio(A, X) < LU_THRESHOLD).all()
    # Either inverse may be off by the threshold times n eps cond(A).
    assert (testing.forward_ratio(X, LA.inv(X), A) < 2 * n * LU_THRESHOLD).all()


@given(case=cases, n=sizes)
def test_transposes(case: Case, n: int, device: str) -> None:
    A = case.regular(n, device)
    for turned in (A.mT, A.mH, A.conj()):
        assert (testing.inverse_ratio(turned, LA.inv(turned)) < LU_THRESHOLD).all()
        assert (testing.slogdet_ratio(turned, *LA.slogdet(turned)) < LU_THRESHOLD).all()
    # The same elimination on the same numbers.
    assert torch.equal(LA.inv(A.conj()), LA.inv(A).conj())
    assert torch.equal(LA.det(A.conj()), LA.det(A).conj())
    assert torch.equal(LA.lu_factor(-A).LU.triu(), -LA.lu_factor(A).LU.triu())
    B = case.matrices(n, 3, device)
    X, Y = LA.solve(A, B), LA.solve(A.mT, B.mT, left=False).mT
    assert (testing.solve_ratio(A, X, B) < LU_THRESHOLD).all()
    assert (testing.solve_ratio(A, Y, B) < LU_THRESHOLD).all()


@given(
    case=cases,
    n=sizes,
    count=st.integers(2, 6),
    value=st.sampled_from((0.0, torch.nan, torch.inf)),
    data=st.data(),
)
def test_bad_matrices_keep_to_themselves(
    case: Case, n: int, count: int, value: float, data: st.DataObject, device: str
) -> None:
    case = case._replace(batch=(count,))
    A, B = case.regular(n, device), case.matrices(n, 2, device)
    bad, column = data.draw(st.integers(0, count - 1)), data.draw(st.integers(0, n - 1))
    good = [i for i in range(count) if i != bad]
    spoilt = A.clone()
    spoilt[bad, :, column] = value
    functions = (
        LA.lu_factor_ex,
        LA.inv_ex,
        LA.slogdet,
        lambda A: (LA.det(A),),
        lambda A: LA.solve_ex(A, B),
    )
    for function in functions:
        for x, y in zip(function(case.stored(spoilt)), function(A), strict=True):
            assert torch.equal(x[good], y[good])
    info = LA.lu_factor_ex(spoilt).info
    assert not info[good].any()
    if value == 0.0:
        assert info[bad] == column + 1
        assert LA.det(spoilt)[bad] == 0
    else:
        assert not LA.det(spoilt)[bad].isfinite()


@given(case=cases, n=st.integers(2, 40), data=st.data())
def test_repeated_rows_have_no_determinant(
    case: Case, n: int, data: st.DataObject, device: str
) -> None:
    A = case.matrices(n, n, device).clone()
    first, second = data.draw(st.lists(st.integers(0, n - 1), min_size=2, max_size=2, unique=True))
    A[..., second, :] = A[..., first, :]
    LU, pivots, info = LA.lu_factor_ex(case.stored(A))
    assert (testing.lu_ratio(A, LU, pivots) < LU_THRESHOLD).all()
    det = LA.det(A)
    assert (testing.determinant_ratio(A, det) < LU_THRESHOLD).all()
    if not case.dtype.is_complex:
        # Such rows stay equal to the last bit until one is the pivot: that leaves zeros of the
        # other. A complex a / a may be off 1 by its rounding.
        assert (info > 0).all()
        assert (det == 0).all()
