"""The triangular solve that the LU family builds on, held against SciPy."""

import pytest
import torch
from torch import Tensor

from mpslinalg import testing
from mpslinalg._triangular import solve_triangular
from mpslinalg.testing import compare
from tests import lapack
from tests.inputs import SINGLES, VIEWS, name, on
from tests.lapack import TRANS, Trans

each_dtype = pytest.mark.parametrize("dtype", SINGLES, ids=name)
each_upper = pytest.mark.parametrize("upper", [False, True], ids=["lower", "upper"])
each_unit = pytest.mark.parametrize("unit", [False, True], ids=["non_unit", "unit"])
each_trans = pytest.mark.parametrize("trans", TRANS)


def system(batch: tuple[int, ...], n: int, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    A = testing.random((*batch, n, n), dtype) / n**0.5 + 3 * torch.eye(n)
    return A, testing.random((*batch, n, k), dtype, seed=1)


def judge(A: Tensor, X: Tensor, B: Tensor, upper: bool, unit: bool, trans: Trans) -> None:
    assert X.shape == B.shape
    triangle = A.triu() if upper else A.tril()
    if unit:
        triangle = triangle - torch.diag_embed(triangle.diagonal(dim1=-2, dim2=-1) - 1)
    X_lapack = lapack.trtrs(A, B, upper, unit, trans)
    compare(
        testing.solve_ratio(triangle, X, B, trans),
        testing.solve_ratio(triangle, X_lapack, B, trans),
    )


@each_trans
@each_unit
@each_upper
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=name)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 3), (40, 2), (40, 70), (200, 4)])
@each_dtype
def test_solve_triangular(
    dtype: torch.dtype,
    n: int,
    k: int,
    batch: tuple[int, ...],
    upper: bool,
    unit: bool,
    trans: Trans,
    device: str,
) -> None:
    A, B = system(batch, n, k, dtype)
    X = solve_triangular(on(device, A), on(device, B), upper, unit, TRANS.index(trans))
    judge(A, X, B, upper, unit, trans)


@pytest.mark.parametrize("view", VIEWS)
@each_trans
@pytest.mark.parametrize("n", [5, 40])
@each_dtype
def test_views(dtype: torch.dtype, n: int, trans: Trans, view: str, device: str) -> None:
    A, B = system((2, 3), n, 4, dtype)
    a, b = on(device, A), on(device, B)
    for x, y in ((VIEWS[view](a), b), (a, VIEWS[view](b))):
        judge(A, solve_triangular(x, y, True, False, TRANS.index(trans)), B, True, False, trans)


@each_trans
@each_dtype
def test_expanded(dtype: torch.dtype, trans: Trans, device: str) -> None:
    for n in (5, 40):
        A, B = system((1,), n, 4, dtype)
        a, b = on(device, A).expand(3, n, n), on(device, B).expand(3, n, 4)
        X = solve_triangular(a, b, False, False, TRANS.index(trans))
        judge(A.expand(3, n, n), X, B.expand(3, n, 4), False, False, trans)


@pytest.mark.parametrize("shape", [(0, 0, 2), (2, 0, 0, 2), (0, 3, 3, 2), (2, 40, 40, 0)], ids=name)
@each_dtype
def test_empty(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    *batch, m, n, k = shape
    A = torch.ones(*batch, m, n, dtype=dtype, device=device)
    B = torch.ones(*batch, n, k, dtype=dtype, device=device)
    assert solve_triangular(A, B, True, False, 0).shape == B.shape
