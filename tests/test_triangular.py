"""solve_triangular through the kernels, held against SciPy and torch."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg import _products, _triangular_plan, testing
from mpslinalg.testing import compare
from tests import lapack
from tests.inputs import SINGLES, VIEWS, name, on, random_definite

pytestmark = pytest.mark.usefixtures("kernels")

each_single = pytest.mark.parametrize("dtype", SINGLES, ids=name)
each_upper = pytest.mark.parametrize("upper", [False, True], ids=["lower", "upper"])
each_left = pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
each_unit = pytest.mark.parametrize("unit", [False, True], ids=["non_unit", "unit"])


def system(
    batch: tuple[int, ...], n: int, k: int, dtype: torch.dtype, left: bool = True
) -> tuple[Tensor, Tensor]:
    A = testing.random((*batch, n, n), dtype) / max(n, 1) ** 0.5 + 3 * torch.eye(n)
    shape = (n, k) if left else (k, n)
    return A, testing.random((*batch, *shape), dtype, seed=1)


def judge(A: Tensor, X: Tensor, B: Tensor, upper: bool, left: bool, unit: bool) -> None:
    T = A.triu() if upper else A.tril()
    if unit:
        T = T - torch.diag_embed(T.diagonal(dim1=-2, dim2=-1) - 1)
    T = T.expand(*B.shape[:-2], *T.shape[-2:])
    X_lapack: Any
    if left:
        X_lapack = lapack.trtrs(T, B, upper, unit)
    else:
        X_lapack = lapack.trtrs(T, B.mT, upper, unit, "T").swapaxes(-2, -1)
    compare(testing.solve_ratio(T, X, B, left=left), testing.solve_ratio(T, X_lapack, B, left=left))


@each_unit
@each_left
@each_upper
@pytest.mark.parametrize(
    ("batch", "n", "k"),
    [((2, 3), 1, 1), ((), 5, 3), ((2,), 13, 9), ((2, 3), 40, 2), ((), 40, 70), ((2,), 100, 4)],
    ids=name,
)
@pytest.mark.parametrize("dtype", SINGLES, ids=name)
def test_solve_triangular(
    dtype: torch.dtype,
    batch: tuple[int, ...],
    n: int,
    k: int,
    upper: bool,
    left: bool,
    unit: bool,
    device: str,
) -> None:
    A, B = system(batch, n, k, dtype, left)
    X = LA.solve_triangular(
        on(device, A), on(device, B), upper=upper, left=left, unitriangular=unit
    )
    assert X.dtype == dtype
    assert X.stride() == torch.linalg.solve_triangular(A, B, upper=upper, left=left).stride()
    judge(A, X, B, upper, left, unit)


@pytest.mark.parametrize(
    ("of_A", "of_B"),
    [((), (3,)), ((2,), ()), ((2, 1), (3,)), ((1, 3), (2, 1)), ((4, 1, 1), (2, 3))],
    ids=name,
)
@each_left
@each_single
def test_broadcasting(
    dtype: torch.dtype, left: bool, of_A: tuple[int, ...], of_B: tuple[int, ...], device: str
) -> None:
    for n in (3, 40):
        A, B = system(of_A, n, 2, dtype)[0], system(of_B, n, 2, dtype, left)[1]
        X = LA.solve_triangular(on(device, A), on(device, B), upper=True, left=left)
        expected = torch.linalg.solve_triangular(A, B, upper=True, left=left)
        assert (X.shape, X.stride()) == (expected.shape, expected.stride())
        judge(A, X, B.expand(*X.shape[:-2], *B.shape[-2:]), True, left, False)


@pytest.mark.parametrize("view", VIEWS)
@each_left
@pytest.mark.parametrize("n", [4, 40])
@each_single
def test_views(dtype: torch.dtype, n: int, left: bool, view: str, device: str) -> None:
    A, B = system((2, 3), n, 9, dtype, left)
    a, b = on(device, A), on(device, B)
    for x, y in ((VIEWS[view](a), b), (a, VIEWS[view](b))):
        X = LA.solve_triangular(x, y, upper=True, left=left)
        assert not X.is_conj()
        judge(A, X, B, True, left, False)


@each_single
def test_expanded(dtype: torch.dtype, device: str) -> None:
    for n in (5, 40):
        A, B = system((1,), n, 4, dtype)
        a, b = on(device, A).expand(3, n, n), on(device, B)[..., :1].expand(3, n, 4)
        X = LA.solve_triangular(a, b, upper=False)
        judge(A.expand(3, n, n), X, B[..., :1].expand(3, n, 4), False, True, False)


@each_left
@pytest.mark.parametrize("n", [1, 3, 40])
def test_the_adjoint_as_a_view(n: int, left: bool, device: str) -> None:
    A, B = system((2,), n, 3, torch.complex64, left)
    X = LA.solve_triangular(on(device, A).mH, on(device, B), upper=True, left=left)
    expected = torch.linalg.solve_triangular(on(device, A).mH, on(device, B), upper=True, left=left)
    assert X.stride() == expected.stride()
    judge(A.mH.resolve_conj(), X, B, True, left, False)


@each_unit
@each_left
@each_upper
@pytest.mark.parametrize("n", [3, 40])
def test_what_is_not_read(n: int, upper: bool, left: bool, unit: bool, device: str) -> None:
    for value in (torch.nan, torch.inf):
        A, B = system((2,), n, 9, torch.float32, left)
        kept = torch.ones(n, n).triu(int(unit)) if upper else torch.ones(n, n).tril(-int(unit))
        stored = torch.where(kept.bool(), A, value)
        X = LA.solve_triangular(
            on(device, stored), on(device, B), upper=upper, left=left, unitriangular=unit
        )
        judge(A, X, B, upper, left, unit)


@pytest.mark.parametrize("strided", [False, True])
@each_left
@each_single
def test_out(dtype: torch.dtype, left: bool, strided: bool, device: str) -> None:
    A, B = (on(device, x) for x in system((2,), 5, 3, dtype, left))
    X = LA.solve_triangular(A, B, upper=True, left=left)
    out = torch.stack((X, X), -1).zero_()[..., 0] if strided else X.new_empty(0)
    stride = out.stride() if strided else X.stride()
    assert LA.solve_triangular(A, B, upper=True, left=left, out=out) is out
    assert torch.equal(out, X)
    assert out.stride() == stride
    LA.solve_triangular(A, B, upper=True, left=left, out=B)
    assert torch.equal(B, X)


@pytest.mark.parametrize(
    ("of_A", "of_B"),
    [
        ((0, 0), (0, 2)),
        ((2, 0, 0), (2, 0, 2)),
        ((0, 3, 3), (3, 2)),
        ((2, 40, 40), (2, 40, 0)),
        ((3, 3), (0, 3, 1)),
    ],
    ids=name,
)
@each_single
def test_empty(
    dtype: torch.dtype, of_A: tuple[int, ...], of_B: tuple[int, ...], device: str
) -> None:
    A, B = torch.ones(of_A, dtype=dtype), torch.ones(of_B, dtype=dtype)
    X = LA.solve_triangular(on(device, A), on(device, B), upper=True)
    expected = torch.linalg.solve_triangular(A, B, upper=True)
    assert (X.shape, X.stride()) == (expected.shape, expected.stride())


@pytest.mark.parametrize("n", [1, 4, 40])
def test_a_zero_on_the_diagonal_is_no_error(n: int, device: str) -> None:
    A, B = system((3,), n, 2, torch.float32)
    A[1, n // 2, n // 2] = 0
    X = LA.solve_triangular(on(device, A), on(device, B), upper=False).cpu()
    expected = torch.linalg.solve_triangular(A, B, upper=False)
    torch.testing.assert_close(X[[0, 2]], expected[[0, 2]])
    torch.testing.assert_close(X[1, : n // 2 + 1], expected[1, : n // 2 + 1])
    assert X[1, n // 2].isinf().all()


@each_single
def test_solves_of_one_system_in_steps(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    # No other test solves 163 rows: a plan that was recorded before would be repeated.
    monkeypatch.setattr(_triangular_plan, "side_by_side", lambda X: True)
    A = random_definite((163, 163), dtype)
    B = testing.random((163, 1), dtype, seed=1)
    a, b = on(device, A), on(device, B)
    L = LA.cholesky(a)
    LU, pivots = LA.lu_factor(a)
    solved = (
        LA.solve(a, b),
        LA.cholesky_solve(b, L),
        LA.cholesky_solve(b, L.mH, upper=True),
        LA.lu_solve(LU, pivots, b),
        LA.lu_solve(LU, pivots, b, adjoint=True),
    )
    X_lapack = lapack.potrs(lapack.potrf(A, False)[0], B, False)
    for X in solved:
        compare(testing.solve_ratio(A, X, B), testing.solve_ratio(A, X_lapack, B))


@pytest.mark.parametrize("of_B", [torch.float64, torch.int32, torch.complex64, torch.half])
def test_the_right_hand_side_takes_the_dtype_of_the_matrix(of_B: torch.dtype, device: str) -> None:
    A, B = torch.eye(3).mul(2).to(device), torch.ones(3, 2).to(of_B)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        X = LA.solve_triangular(A, on(device, B), upper=True)
        expected = torch.linalg.solve_triangular(A.cpu(), B, upper=True)
    assert X.dtype == expected.dtype == torch.float32
    assert torch.equal(X.cpu(), expected)


def raised(function: Any, *args: Any, **kwargs: Any) -> tuple[type, str]:
    with pytest.raises(Exception) as error:  # noqa: PT011
        function(*args, **kwargs)
    return error.type, str(error.value)


@pytest.mark.parametrize("flag", ["upper", "left", "unitriangular"])
@pytest.mark.parametrize("value", [1, None, "no"])
def test_flags_are_bool(flag: str, value: Any) -> None:
    args, flags = (torch.eye(2), torch.eye(2)), {"upper": True, flag: value}
    ours = raised(LA.solve_triangular, *args, **flags)
    assert ours[0] is TypeError
    assert ours == raised(torch.linalg.solve_triangular, *args, **flags)


@pytest.mark.parametrize("wrong", [torch.float64, torch.int32, torch.complex64])
def test_out_of_another_dtype(wrong: torch.dtype) -> None:
    args, out = (torch.eye(2), torch.eye(2)), torch.full((2,), 7, dtype=wrong)
    ours = raised(LA.solve_triangular, *args, upper=True, out=out)
    assert out.tolist() == [7, 7]
    assert ours == raised(torch.linalg.solve_triangular, *args, upper=True, out=out)


@pytest.mark.parametrize("of_out", [False, True])
def test_out_with_a_gradient(of_out: bool) -> None:
    A, out = torch.eye(3).requires_grad_(not of_out), torch.zeros(2).requires_grad_(of_out)
    ours = raised(LA.solve_triangular, A, torch.eye(3), upper=True, out=out)
    assert ours == raised(torch.linalg.solve_triangular, A, torch.eye(3), upper=True, out=out)


@pytest.mark.parametrize(
    ("batch", "n", "k", "chosen"),
    [
        (1, 16, 1, "triangular_columns"),
        (1, 17, 1, "triangular_few"),
        (1, 32, 8, "triangular_columns"),
        (1, 33, 8, "triangular_step"),
        (1, 600, 1, "triangular_step"),
        (1, 600, 600, "triangular_step in parts of 128, products"),
        (4096, 33, 1, "triangular_step"),
        (4097, 33, 1, "triangular_few"),
        (4097, 64, 8, "triangular_columns"),
        (4097, 65, 8, "triangular_few"),
        (4097, 33, 9, "triangular_columns"),
        (64, 256, 256, "triangular_step in parts of 128, products"),
        (64, 256, 257, "triangular_columns in parts of 64, products"),
        (4097, 600, 1, "triangular_few in parts of 512, products"),
    ],
)
def test_which_names_the_kernels(batch: int, n: int, k: int, chosen: str) -> None:
    A, B = torch.ones(()).expand(batch, n, n), torch.ones(()).expand(batch, n, k)
    for right, left in ((B, True), (B.mT, False)):
        which = LA.which("solve_triangular", A, right, upper=True, left=left)
        assert which.endswith(f" {chosen}")


def test_sums_of_a_gemm_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in sums as a GPU does, in one chain; 8 chains have a third of the error."""

    def chain(C: Tensor, D: Tensor, A: Tensor, B: Tensor, beta: float, alpha: float) -> None:
        total = torch.zeros_like(C)
        for k in range(A.shape[-1]):
            total += A[:, :, k, None] * B[:, None, k]
        C.copy_(beta * D + alpha * total)

    shape = (1, _products.PRODUCT + 1, _products.FEW + 1)
    inner = 8 * _products.TERMS
    A = testing.random((1, shape[1], inner), torch.float32)
    B = testing.random((1, inner, shape[2]), torch.float32, seed=1)
    D = testing.random(shape, torch.float32, seed=2)
    exact = D.double() - A.double() @ B.double()
    parts, whole = (torch.empty(shape).mT.contiguous().mT for _ in range(2))
    monkeypatch.setattr(_products, "gemm", chain)
    _products.difference(parts, D, A, B)
    chain(whole, D, A, B, 1, -1)
    errors = [float((C - exact).norm()) for C in (parts, whole)]
    assert errors[0] <= 0.5 * errors[1]
