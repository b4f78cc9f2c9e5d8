"""What holds for functions of any matrix, norms and products: hypothesis as for the factors."""

import itertools
import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg.testing import LU_THRESHOLD
from tests.cases import Case, cases, close, eps, given, partners, sizes
from tests.inputs import on
from tests.ratios import double

pytestmark = pytest.mark.usefixtures("kernels")

of_exp = st.sampled_from((1, 2, 5, 9))
small_cases = cases.map(lambda case: case._replace(scale=1.0))
vector_orders = st.sampled_from((0.5, 1, 2, 3.5, math.inf, -math.inf, -1))
matrix_orders = st.sampled_from(("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf))
norm_shapes = st.sampled_from(((1, 1), (5, 3), (3, 5), (40, 4)))


def near_one(case: Case, n: int, device: str, seed: int = 0) -> Tensor:
    """Matrices of norms near 1."""
    case = case._replace(seed=case.seed + seed)
    A: Tensor = case.matrices(n, n, device) / n**0.5
    return A


@given(case=small_cases, n=of_exp, m=of_exp)
def test_matrix_exp(case: Case, n: int, m: int, device: str) -> None:
    A, B = near_one(case, n, device), near_one(case, m, device, seed=1)
    A = case.stored(A)
    X, Y = LA.matrix_exp(A), LA.matrix_exp(-A)
    allowed = LU_THRESHOLD * n * eps(case.dtype)
    norms = np.linalg.norm(double(X), axis=(-2, -1)) * np.linalg.norm(double(Y), axis=(-2, -1))
    close(X @ Y, np.broadcast_to(np.eye(n), X.shape), allowed, norms[..., None, None])
    of_X = np.linalg.norm(double(X), axis=(-2, -1))[..., None, None]
    for own in (LA.matrix_exp(A.mT).mT, LA.matrix_exp(A.mH).mH, LA.matrix_exp(A.conj()).conj()):
        close(own, double(X), allowed, of_X)
    close(LA.matrix_exp(2 * A), double(X) @ double(X), allowed, of_X**2)
    trace = np.trace(double(A), axis1=-2, axis2=-1)
    close(LA.det(X), np.exp(trace), allowed * np.max(norms, initial=1) * n)
    both = torch.zeros((*case.batch, n + m, n + m), dtype=case.dtype, device=A.device)
    both[..., :n, :n], both[..., n:, n:] = A, B
    E = LA.matrix_exp(both)
    close(E[..., :n, :n], double(X), allowed, of_X)
    assert not E[..., :n, n:].any()
    assert not E[..., n:, :n].any()


@given(case=small_cases, n=of_exp)
def test_exp_of_what_is_small(case: Case, n: int, device: str) -> None:
    A = case._replace(scale=1e-30).matrices(n, n, device)
    X = LA.matrix_exp(A)
    off = 1 - torch.eye(n, device=A.device)
    close(X * off, double(A * off), 4 * eps(case.dtype))
    assert (torch.diagonal(X, dim1=-2, dim2=-1).real == 1).all()


@given(case=small_cases, n=st.sampled_from((1, 3, 8)), p=st.integers(0, 6), q=st.integers(0, 6))
def test_matrix_power(case: Case, n: int, p: int, q: int, device: str) -> None:
    A = case.matrices(n, n, device, shift=3 * n**0.5) / n**0.5
    A = case.stored(A)
    P, Q = LA.matrix_power(A, p), LA.matrix_power(A, q)
    norm = np.linalg.norm(double(A), axis=(-2, -1))[..., None, None]
    allowed = LU_THRESHOLD * n * eps(case.dtype)
    close(LA.matrix_power(A, p + q), double(P) @ double(Q), allowed, norm ** (p + q))
    close(LA.matrix_power(A.mH, p).mH, double(P), allowed, norm**p)
    identity = np.broadcast_to(np.eye(n), A.shape)
    close(LA.matrix_power(A, 0), identity, 0)
    inverse = double(LA.matrix_power(A, -p)) @ double(P)
    condition = np.linalg.cond(double(A))[..., None, None]
    assert (np.abs(inverse - identity) <= allowed * condition ** max(p, 1)).all()


@given(case=cases, shape=norm_shapes, order=vector_orders, seed=st.integers(1, 9))
def test_vector_norms(
    case: Case, shape: tuple[int, int], order: float, seed: int, device: str
) -> None:
    x = case.matrices(*shape, device)
    N = LA.vector_norm(x, order, -1)
    rounding = 8 * eps(case.dtype) * max(1, abs(order) if math.isfinite(order) else 1)
    expected = np.linalg.norm(double(x), order, axis=-1)
    assert (np.abs(double(N) - expected) <= rounding * shape[1] * expected).all()
    for factor in (-1, 2.0**9, 1 / case.scale):
        scaled = double(LA.vector_norm(x * factor, order, -1))
        assert (np.abs(scaled - abs(factor) * expected) <= 8 * rounding * scaled).all()
    whole = LA.vector_norm(x, order, (-2, -1))
    flat = LA.vector_norm(x.flatten(-2), order, -1)
    assert (np.abs(double(whole) - double(flat)) <= 8 * rounding * double(flat)).all()
    if order >= 1:
        y = case._replace(seed=case.seed + seed).matrices(*shape, device)
        both = double(LA.vector_norm(x + y, order, -1))
        assert (both <= (1 + rounding) * (double(N) + double(LA.vector_norm(y, order, -1)))).all()


@given(case=cases, shape=norm_shapes)
def test_dual_norms(case: Case, shape: tuple[int, int], device: str) -> None:
    x = case.matrices(*shape, device)
    y = case._replace(seed=case.seed + 1, scale=1.0).matrices(*shape, device)
    largest, total = LA.vector_norm(y, math.inf, -1), LA.vector_norm(x, 1, -1)
    dot = LA.vecdot(y, x).abs()
    slack = 1 + 8 * shape[1] * eps(case.dtype)
    assert (dot <= slack * largest * total).all()
    assert (dot <= slack * LA.vector_norm(y, 2, -1) * LA.vector_norm(x, 2, -1)).all()
    close(LA.vecdot(x.sgn(), x), double(total), 8 * shape[1] * eps(case.dtype))
    columns = LA.vector_norm(x, 1, -2)
    close(LA.matrix_norm(x, 1), double(columns.amax(-1)), 8 * shape[0] * eps(case.dtype))
    close(LA.matrix_norm(x, -1), double(columns.amin(-1)), 8 * shape[0] * eps(case.dtype))
    assert torch.equal(LA.matrix_norm(x, 1), LA.matrix_norm(x.mT, math.inf))
    assert torch.equal(LA.matrix_norm(x, -1), LA.matrix_norm(x.mT, -math.inf))


@given(case=cases, shape=norm_shapes, order=matrix_orders)
def test_matrix_norms(case: Case, shape: tuple[int, int], order: Any, device: str) -> None:
    A = case.matrices(*shape, device)
    N = double(LA.matrix_norm(A, order))
    rounding = 8 * sum(shape) * eps(case.dtype)
    size = np.linalg.norm(double(A), axis=(-2, -1)) * math.prod(shape) ** 0.5
    expected = np.linalg.norm(double(A), order, axis=(-2, -1))
    assert (np.abs(N - expected) <= rounding * size).all()
    for factor in (-2.0, 2.0**-9, 1 / case.scale):
        scaled = double(LA.matrix_norm(A * factor, order))
        assert (np.abs(scaled - abs(factor) * N) <= rounding * size * abs(factor)).all()
    if order not in (-1, -2, -math.inf):
        B = case._replace(seed=case.seed + 1).matrices(*shape, device)
        both = double(LA.matrix_norm(A + B, order))
        assert (both <= (1 + rounding) * (N + double(LA.matrix_norm(B, order)))).all()


@given(case=cases, m=sizes)
def test_cross(case: Case, m: int, device: str) -> None:
    a = case.matrices(m, 3, device)
    b = case._replace(scale=1.0, seed=case.seed + 1).matrices(m, 3, device)
    c = LA.cross(a, b)
    size = np.linalg.norm(double(a), axis=-1) * np.linalg.norm(double(b), axis=-1)
    allowed = 8 * eps(case.dtype) * size
    for side in (a, b):
        along = (double(side) * double(c)).sum(-1)
        assert (np.abs(along) <= allowed * np.linalg.norm(double(side), axis=-1)).all()
    close(-LA.cross(b, a), double(c), 1, allowed[..., None])
    # Lagrange: |a x b|^2 + |a . b|^2 = |a|^2 |b|^2, with conj(a) in the product.
    dot = double(LA.vecdot(a, b))
    total = np.sqrt((np.abs(double(c)) ** 2).sum(-1) + np.abs(dot) ** 2)
    assert (np.abs(total - size) <= allowed).all()


@given(
    case=cases,
    n=sizes,
    k=st.integers(1, 5),
    upper=st.booleans(),
    left=st.booleans(),
    unit=st.booleans(),
    of_B=partners,
)
def test_solve_triangular(
    case: Case, n: int, k: int, upper: bool, left: bool, unit: bool, of_B: str, device: str
) -> None:
    # Beside a diagonal of 1 other scales overflow.
    A = (case._replace(scale=1.0) if unit else case).regular(n, device)
    B = case.partner(of_B).matrices(*((n, k) if left else (k, n)), device)
    X = LA.solve_triangular(A, B, upper=upper, left=left, unitriangular=unit)
    T = A.triu() if upper else A.tril()
    if unit:
        T = T - torch.diag_embed(torch.diagonal(T, dim1=-2, dim2=-1) - 1)
    assert (testing.solve_ratio(T, X, B, left=left) < LU_THRESHOLD).all()
    turned = LA.solve_triangular(A.mT, B.mT, upper=not upper, left=not left, unitriangular=unit)
    assert (testing.solve_ratio(T, turned.mT, B, left=left) < LU_THRESHOLD).all()


@given(case=cases, sides=st.sampled_from(((1, 1), (2, 2), (2, 3), (4, 2))))
def test_tensor_equations(case: Case, sides: tuple[int, int], device: str) -> None:
    case = case._replace(batch=())
    n = math.prod(sides)
    matrix = case._replace(view=None).regular(n, device)
    A = case.stored(matrix.view(*sides, n))
    B = case.stored(case._replace(view=None, seed=case.seed + 1).matrices(*sides, device))
    X = LA.tensorsolve(A, B)
    assert X.shape == (n,)
    assert (testing.solve_ratio(matrix, X, B.flatten()) < LU_THRESHOLD).all()
    Y = LA.tensorinv(A, ind=2)
    assert Y.shape == (n, *sides)
    assert (testing.inverse_ratio(matrix, Y.reshape(n, n)) < LU_THRESHOLD).all()
    turned = LA.tensorsolve(A.movedim(-1, 0), B, dims=(0,))
    assert (testing.solve_ratio(matrix, turned, B.flatten()) < LU_THRESHOLD).all()


@given(
    case=cases,
    lengths=st.lists(st.integers(1, 9), min_size=3, max_size=6),
    vectors=st.tuples(st.booleans(), st.booleans()),
)
def test_multi_dot(case: Case, lengths: list[int], vectors: tuple[bool, bool], device: str) -> None:
    case = case._replace(batch=())
    if vectors[0]:
        lengths[0] = 1
    if vectors[1]:
        lengths[-1] = 1
    matrices, expected = [], np.eye(lengths[0])
    for i, (m, n) in enumerate(itertools.pairwise(lengths)):
        # Scales that cancel, pair by pair; an odd one is left alone.
        scale = (1.0 if i == len(lengths) - 2 and i % 2 == 0 else case.scale) ** (-1) ** i
        A = case._replace(scale=scale, seed=case.seed + i).matrices(m, n, device)
        matrices.append(A)
        expected = expected @ double(A)
    size = math.prod(float(np.linalg.norm(double(A))) for A in matrices)
    if vectors[0]:
        matrices[0], expected = matrices[0][0], expected[0]
    if vectors[1]:
        matrices[-1], expected = matrices[-1][:, 0], expected[..., 0]
    result = LA.multi_dot(matrices)
    close(result, expected, 8 * sum(lengths) * eps(case.dtype), size)


@given(case=small_cases, length=st.sampled_from((1, 5, 40)), size=st.sampled_from((16, 32, 64)))
def test_gated_delta_solves(case: Case, length: int, size: int, device: str) -> None:
    rows = testing.random((1, length, 2, size), torch.float32, case.seed) / size**0.5
    view = case.view if case.view != "conj" else None
    A = case._replace(view=view).stored(on(device, rows))
    X = LA.gated_delta.solve_tril(A)
    a, x = double(A), double(X)
    for first in range(0, length, size):
        count = min(size, length - first)
        for head in range(2):
            matrix = np.tril(a[0, first : first + count, head, :count], -1) + np.eye(count)
            inverse = x[0, first : first + count, head, :count]
            allowed = 8 * size * eps(torch.float32)
            error = np.abs(inverse @ matrix - np.eye(count))
            assert (error <= allowed * (np.abs(inverse) @ np.abs(matrix))).all()
            assert not np.triu(inverse, 1).any()
    # A sequence of its own is what packed ones are.
    cut = case.seed % (length + 1)
    starts = torch.tensor([0, cut, length], device=A.device)
    packed = LA.gated_delta.solve_tril(A, starts)
    parts = [LA.gated_delta.solve_tril(A[:, s]) for s in (slice(cut), slice(cut, None))]
    assert torch.equal(packed, torch.cat(parts, 1))
