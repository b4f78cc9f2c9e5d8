"""lstsq held against SciPy."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg.testing import compare
from tests import lapack
from tests.inputs import DOUBLES, SINGLES, name, on

pytestmark = pytest.mark.usefixtures("kernels")

SIZES = ((1, 1), (4, 4), (5, 3), (3, 5), (50, 30), (35, 40))
each_driver = pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd", "gelss"])
each_dtype = pytest.mark.parametrize("dtype", SINGLES, ids=name)


def double(A: Any) -> NDArray[Any]:
    a = A.numpy(force=True) if isinstance(A, Tensor) else A
    return np.asarray(a.astype(np.complex128 if np.iscomplexobj(a) else np.float64))


def norm(A: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(np.abs(A).sum(-2).max(-1))


def ratio(A: Tensor, X: Any, B: Tensor) -> NDArray[Any]:
    """xQRT17 of m >= n, ||A^H (B - A X)|| / (||A|| ||B|| max(m, n, k) eps), else xQRT16,
    ||B - A X|| / (max(m, n) ||A|| ||X|| eps), and how far X is from the rows of A.
    """
    eps = torch.finfo(A.dtype).eps / 2
    a, x, b = double(A), double(X), double(B)
    m, n = a.shape[-2:]
    a /= norm(a)[..., None, None]
    scale = norm(double(A))[..., None, None]
    R = b - a @ (x * scale)
    if m >= n:
        allowed = norm(b) * max(m, n, b.shape[-1]) * eps
        return np.asarray(norm(a.conj().swapaxes(-2, -1) @ R) / allowed)
    rows = np.linalg.qr(a.conj().swapaxes(-2, -1))[0]
    outside = x - rows @ (rows.conj().swapaxes(-2, -1) @ x)
    backward = norm(R) / (max(m, n) * norm(x * scale) * eps)
    return np.asarray(np.maximum(backward, norm(outside) / (max(m, n) * norm(x) * eps)))


@pytest.mark.parametrize("columns", [1, 15])
@pytest.mark.parametrize("size", SIZES, ids=name)
@each_dtype
def test_gels(dtype: torch.dtype, size: tuple[int, int], columns: int, device: str) -> None:
    m, n = size
    # LAPACK's ratio of an overdetermined system is for well-conditioned matrices.
    A = testing.random((6, m, n), dtype) + 2 * max(m, n) ** 0.5 * torch.eye(m, n)
    A[1] *= 1e-25
    A[2] *= 1e25
    # A consistent system.
    B = testing.random((6, m, columns), dtype, seed=1)
    B[3] = A[3] @ testing.random((n, columns), dtype, seed=2)
    result = LA.lstsq(on(device, A), on(device, B), driver="gels")
    X = result.solution
    assert X.shape == (6, n, columns)
    ours, theirs = ratio(A, X, B), ratio(A, lapack.gels(A, B), B)
    compare(ours.max(), theirs.max())
    alone = LA.lstsq(on(device, A[3]), on(device, B[3]), driver="gels").solution
    assert torch.equal(alone, X[3])
    assert result.rank.shape == result.singular_values.shape == (0,)
    if m > n:
        exact = [np.linalg.lstsq(double(A[i]), double(B[i]), rcond=None)[1] for i in (0, 5)]
        np.testing.assert_allclose(double(result.residuals[[0, 5]]), exact, rtol=1e-4)
    else:
        assert result.residuals.shape == (0,)


def families(m: int, n: int, dtype: torch.dtype) -> tuple[Tensor, list[int]]:
    """LAPACK's 6 families for least squares (xDRVLS) and their ranks: full and 3 min(m, n) / 4,
    each plain, scaled up and scaled down."""
    k = min(m, n)
    full = testing.random((m, n), torch.complex128 if dtype.is_complex else torch.float64)
    # xQRT13: a diagonal that weighs as much as its column.
    diagonal = full.diagonal()
    diagonal += diagonal.sgn() * full.abs().sum(0)[:k]
    # xQRT15: singular values from 0.1 to 1.
    rank = max(3 * k // 4, 1)
    values = torch.linspace(1, 0.1, rank) if rank > 1 else torch.ones(1)
    U, V = (orthonormal(testing.random((side, rank), full.dtype, seed=side)) for side in (m, n))
    deficient = U * values @ V.mH
    scales = (1.0, 2.0**100, 2.0**-100)
    A = torch.stack([X * scale for X in (full, deficient) for scale in scales])
    return A.to(dtype), [k] * 3 + [rank] * 3


def orthonormal(A: Tensor) -> Tensor:
    return torch.from_numpy(np.linalg.qr(A.numpy())[0])


def deficient_ratio(A: Tensor, ranks: list[int], X: Any, B: Tensor) -> NDArray[Any]:
    """Of each matrix the largest of xQRT17, ||A^H (B - A X)|| / (||A|| ||B|| max(m, n, k) eps), and
    xQRT14, how far X is from the rows of A, / (||X|| max(m, n) eps).
    """
    eps = torch.finfo(A.dtype).eps / 2
    m, n = A.shape[-2:]
    found = []
    for a, rank, x, b in zip(double(A), ranks, double(X), double(B), strict=True):
        scale = norm(a)
        a = a / scale
        residual = norm(a.conj().T @ (b - a @ (x * scale)))
        rows = np.linalg.svd(a, full_matrices=False)[2][:rank]
        outside = norm(x - rows.conj().T @ (rows @ x))
        found.append(
            max(
                residual / (norm(b) * max(m, n, b.shape[-1]) * eps),
                outside / (norm(x) * max(m, n) * eps),
            )
        )
    return np.array(found)


@pytest.mark.parametrize("columns", [1, 15])
@pytest.mark.parametrize("size", SIZES, ids=name)
@each_dtype
def test_gelsy(dtype: torch.dtype, size: tuple[int, int], columns: int, device: str) -> None:
    m, n = size
    A, ranks = families(m, n, dtype)
    # Every other one has a consistent system.
    B = testing.random((6, m, columns), dtype, seed=1)
    B[::2] = A[::2] @ testing.random((n, columns), dtype, seed=2)
    result = LA.lstsq(on(device, A), on(device, B), driver="gelsy")
    X = result.solution
    assert X.shape == (6, n, columns)
    assert result.rank.tolist() == ranks
    assert result.rank.dtype == torch.int64
    assert result.residuals.shape == result.singular_values.shape == (0,)
    rcond = torch.finfo(dtype).eps * max(m, n)
    ours = deficient_ratio(A, ranks, X, B)
    X_lapack, lapacks_ranks = lapack.minimum_norm(A, B, rcond, "gelsy")
    assert lapacks_ranks == ranks
    theirs = deficient_ratio(A, ranks, X_lapack, B)
    compare(ours.max(), theirs.max())
    for i in (1, 5):
        alone = LA.lstsq(on(device, A[i]), on(device, B[i]), driver="gelsy")
        assert torch.equal(alone.rank, result.rank[i])
        torch.testing.assert_close(alone.solution, X[i], rtol=1e-4, atol=1e-5 * X[i].abs().max())


@pytest.mark.parametrize("driver", ["gelsd", "gelss"])
@pytest.mark.parametrize("size", [(4, 4), (30, 20), (3, 5), (40, 8), (8, 40)], ids=name)
@each_dtype
def test_by_singular_values(
    dtype: torch.dtype, size: tuple[int, int], driver: str, device: str
) -> None:
    m, n = size
    A, ranks = families(m, n, dtype)
    B = testing.random((6, m, 3), dtype, seed=1)
    B[::2] = A[::2] @ testing.random((n, 3), dtype, seed=2)
    result = LA.lstsq(on(device, A), on(device, B), driver=driver)
    assert result.rank.tolist() == ranks
    assert result.rank.dtype == torch.int64
    rcond = torch.finfo(dtype).eps * max(m, n)
    X_lapack, lapacks_ranks = lapack.minimum_norm(A, B, rcond, driver)
    assert lapacks_ranks == ranks
    ours, theirs = (deficient_ratio(A, ranks, X, B) for X in (result.solution, X_lapack))
    compare(ours.max(), theirs.max())
    values = np.linalg.svd(double(A), compute_uv=False)
    # Those that are zero are noise of the largest.
    error = np.abs(double(result.singular_values) - values)
    assert (error <= 20 * torch.finfo(dtype).eps * values[:, :1]).all()
    # Not all have full rank.
    assert result.residuals.shape == ((6, 3) if ranks[3] == n < m else (0,))
    full = LA.lstsq(on(device, A[:1]), on(device, B[1:2]), driver=driver)
    assert full.residuals.shape == ((1, 3) if m > n else (0,))
    if m > n:
        exact = np.linalg.lstsq(double(A[0]), double(B[1]), rcond=None)[1]
        np.testing.assert_allclose(double(full.residuals[0]), exact, rtol=1e-4)


@pytest.mark.parametrize("driver", ["gelsd", "gelss"])
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_columns_of_any_scale(scale: float, driver: str, device: str) -> None:
    A = testing.random((9, 4), torch.float32)
    B = testing.random((9, 2), torch.float32, seed=1)
    expected = np.linalg.lstsq(double(A), double(B), rcond=None)[0] / scale
    got = LA.lstsq(on(device, A * scale), on(device, B), driver=driver)
    np.testing.assert_allclose(double(got.solution), expected, rtol=1e-4, atol=1e-5 / scale)
    assert got.rank == 4
    # One column in other units than the rest, all of which count with rcond = 0 by gelss.
    A[:, 1] *= scale
    expected[:] *= scale
    expected[1] /= scale
    got = LA.lstsq(on(device, A), on(device, B), 0.0, driver="gelss")
    assert got.rank == 4
    np.testing.assert_allclose(double(got.solution), expected, rtol=1e-3)


@each_dtype
def test_gels_of_the_families(dtype: torch.dtype, device: str) -> None:
    for m, n in ((20, 12), (12, 20), (40, 40)):
        A = families(m, n, dtype)[0][:3]
        B = A @ testing.random((3, n, 2), dtype, seed=2)
        X = LA.lstsq(on(device, A), on(device, B), driver="gels").solution
        compare(ratio(A, X, B).max(), ratio(A, lapack.gels(A, B), B).max())


@pytest.mark.parametrize("driver", ["gelsy", "gelsd", "gelss"])
@pytest.mark.parametrize("rcond", [None, -1.0, 0.0, 1e-3, 0.5, 1.0, 2])
@pytest.mark.parametrize("dtype", SINGLES, ids=name)
def test_rank_by_rcond_is_lapacks(
    dtype: torch.dtype, rcond: float | None, driver: str, device: str
) -> None:
    values = torch.tensor([1.0, 0.3, 0.05, 1e-4, 1e-6])
    U = orthonormal(testing.random((8, 5), torch.complex128 if dtype.is_complex else torch.float64))
    V = orthonormal(testing.random((5, 5), U.dtype, seed=1))
    A = torch.stack((U * values @ V.mH, U * values.flip(0) @ V.mH)).to(dtype)
    B = testing.random((2, 8, 1), dtype)
    got = LA.lstsq(on(device, A), on(device, B), rcond, driver=driver)
    if rcond is None:
        rcond = torch.finfo(dtype).eps * 8
    X, ranks = lapack.minimum_norm(A, B, rcond, driver)
    assert got.rank.tolist() == ranks
    # Beyond a condition of 1e6 single precision has no digits to compare.
    if max(ranks) < 5:
        np.testing.assert_allclose(double(got.solution), X, rtol=1e-4, atol=1e-4)


def test_what_is_not_finite_or_zero(device: str) -> None:
    A, B = testing.random((5, 6, 4), torch.float32), torch.ones(5, 6, 1)
    good = LA.lstsq(on(device, A), on(device, B), driver="gelsy")
    A[1] = 0
    A[2, 3, 2] = torch.nan
    A[4, 3, 2] = torch.inf
    bad = LA.lstsq(on(device, A), on(device, B), driver="gelsy")
    assert torch.equal(bad.solution[[0, 3]], good.solution[[0, 3]])
    assert not bad.solution[1].any()
    assert bad.rank.tolist() == [4, 0, 4, 4, 4]
    assert bad.solution[[2, 4]].isnan().all()


@pytest.mark.parametrize("driver", ["gelsy", "gelsd"])
def test_small_ranks_within_autocast(driver: str, device: str) -> None:
    A, B = (on(device, testing.random((20, k), torch.float32)) for k in (8, 2))
    expected = LA.lstsq(A, B, driver=driver)
    with torch.autocast(device, dtype=torch.bfloat16):
        for ours, same in zip(LA.lstsq(A, B, driver=driver), expected, strict=True):
            assert torch.equal(ours, same)


def test_the_default_is_torchs(device: str) -> None:
    A, B = testing.random((5, 3), torch.float32), torch.ones(5, 1)
    got = LA.lstsq(on(device, A), on(device, B))
    assert got.rank.shape == ((0,) if device == "cuda" else ())
    for given, expected in (
        ("gels", "gels: qr_simd, solve_triangular"),
        ("gelsy", "gelsy: qr_pivoted_simd, then qr_simd, solve_triangular"),
        ("gelsd", "gelsd: svd_simd, matmul"),
        ("gelss", "gelss: svd_simd, matmul"),
        (None, "gels: " if device == "cuda" else "gelsy: "),
    ):
        assert expected in LA.which("lstsq", on(device, A), B, driver=given)
    with LA.use("torch"):
        assert LA.which("lstsq", A, B, driver="gelsy").startswith("lstsq: torch.linalg on cpu")


@each_driver
@pytest.mark.parametrize("size", [(5, 3), (3, 5)], ids=name)
@pytest.mark.parametrize("dtype", [*SINGLES, *DOUBLES], ids=name)
def test_vectors_and_broadcasts(
    dtype: torch.dtype, size: tuple[int, int], driver: str, device: str
) -> None:
    m, n = size
    A = testing.random((2, 1, m, n), dtype)
    for B in (testing.random((1, 3, m, 2), dtype), testing.random((2, 3, m, 1), dtype)):
        got = LA.lstsq(on(device, A), on(device, B), driver=driver)
        expected = torch.linalg.lstsq(A, B, driver=driver)
        assert torch.equal(got.rank.cpu(), expected.rank)
        torch.testing.assert_close(got.solution.cpu(), expected.solution, rtol=1e-4, atol=1e-5)
    for a, b in ((A[0, 0], B[0, 0, :, 0]), (A, B[:, :1, :, 0])):
        got = LA.lstsq(on(device, a), on(device, b), driver=driver)
        expected = torch.linalg.lstsq(a, b, driver=driver)
        assert got.rank.shape == expected.rank.shape
        assert got.residuals.shape == expected.residuals.shape
        torch.testing.assert_close(got.solution.cpu(), expected.solution, rtol=1e-4, atol=1e-5)


@each_driver
@pytest.mark.parametrize(
    "shape", [(0, 3), (3, 0), (2, 0, 3), (0, 3, 2), (2, 3, 0), (0, 0)], ids=name
)
def test_empty(shape: tuple[int, ...], driver: str, device: str) -> None:
    A, B = torch.empty(shape), torch.ones(*shape[:-1], 2)
    got = LA.lstsq(on(device, A), on(device, B), driver=driver)
    expected = torch.linalg.lstsq(A, B, driver=driver)
    for ours, theirs in zip(got, expected, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert torch.equal(ours.cpu(), theirs)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5)], ids=name)
def test_a_rank_deficient_matrix_is_refused(shape: tuple[int, int], device: str) -> None:
    A = testing.random((3, *shape), torch.float32)
    A.mT[1, 1] = 0
    if shape[0] < shape[1]:
        A[1, 1] = 0
    B = torch.ones(3, shape[0], 2)
    words = r"\(Batch element 1\): The least squares solution could not be computed because"
    for library, where in ((torch.linalg, "cpu"), (LA, device)):
        with pytest.raises(LA.LinAlgError, match=words):
            library.lstsq(on(where, A), on(where, B), driver="gels")


@pytest.mark.parametrize(
    ("A", "B", "options"),
    [
        (torch.ones(5, 3), torch.ones(4, 2), {}),
        (torch.ones(5), torch.ones(5, 2), {}),
        (torch.ones(5, 3), torch.ones(()), {}),
        (torch.ones(5, 3), torch.ones(5, 2).double(), {}),
        (torch.ones(5, 3).half(), torch.ones(5, 2).half(), {}),
        (torch.ones(2, 5, 3), torch.ones(5), {}),
        (torch.ones(2, 5, 3), torch.ones(3, 5, 1), {}),
        (torch.ones(5, 3), torch.ones(5, 2), {"driver": "qr"}),
        (torch.ones(5, 3), None, {}),
        (torch.ones(5, 3), torch.ones(4, 2), {"driver": "gelsy"}),
    ],
)
def test_bad_input(A: Tensor, B: Any, options: dict[str, Any], device: str) -> None:
    def error(function: Any, *args: Any) -> tuple[type, str]:
        with pytest.raises((RuntimeError, TypeError)) as caught:
            function(*args, **options)
        return caught.type, str(caught.value)

    given = on(device, A), on(device, B) if B is not None else None
    # Of a driver that nobody knows torch says other things on a GPU.
    theirs = given if options.get("driver") == "qr" else (A, B)
    assert error(LA.lstsq, *given) == error(torch.linalg.lstsq, *theirs)


@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (40, 35)], ids=name)
@each_dtype
def test_gels_of_a_matrix_of_zeros_is_zero(
    dtype: torch.dtype, shape: tuple[int, int], device: str
) -> None:
    A = testing.random((3, *shape), dtype)
    A[1] = 0
    B = testing.random((3, shape[0], 2), dtype)
    for watched in (False, True):
        given = on(device, A).requires_grad_(watched)
        X, residuals, *_ = LA.lstsq(given, on(device, B), driver="gels")
        assert not X[1].any()
        if shape[0] > shape[1]:
            expected = B[1].abs().square().sum(-2)
            torch.testing.assert_close(residuals[1].detach().cpu(), expected)
        assert ratio(A[::2], X[::2].detach(), B[::2]).max() < 30


@pytest.mark.parametrize("shape", [(600, 5), (5, 600), (40, 35)], ids=name)
@pytest.mark.parametrize("watched", [False, True])
def test_an_overflow_is_no_number(watched: bool, shape: tuple[int, int], device: str) -> None:
    A = testing.random((2, *shape), torch.float32).abs()
    A[1] *= 3e38 / A[1].max()
    given = on(device, A).requires_grad_(watched)
    X = LA.lstsq(given, on(device, torch.ones(2, shape[0], 1)), driver="gels").solution
    assert X[0].isfinite().all()
    assert X[1].isnan().all()


@pytest.mark.parametrize("shape", [(6, 3), (3, 6)], ids=name)
def test_watched_within_autocast(shape: tuple[int, int], device: str) -> None:
    A, B = (testing.random(s, torch.float32) for s in (shape, (shape[0], 1)))
    a, b = on(device, A), on(device, B)
    with torch.autocast(device, dtype=torch.bfloat16):
        X = LA.lstsq(a.clone().requires_grad_(), b, driver="gels").solution
        halves = LA.lstsq(a.bfloat16(), b.bfloat16(), driver="gels").solution
    # Products in bfloat16 give some 1e4.
    assert ratio(A, X.detach(), B).max() < 30
    assert halves.dtype == torch.float32


@each_driver
@pytest.mark.parametrize("rcond", [np.float32(1e-6), np.int64(0), torch.tensor(1e-5)], ids=repr)
def test_numbers_of_any_kind(rcond: Any, driver: str, device: str) -> None:
    A, B = (on(device, testing.random(s, torch.float32)) for s in ((6, 6), (6, 1)))
    X = LA.lstsq(A, B, rcond=rcond, driver=driver).solution
    assert ratio(A.cpu(), X, B.cpu()).max() < 30


@each_driver
@pytest.mark.parametrize("shape", [(0, 5, 3), (0, 3), (3, 0)], ids=name)
def test_gradients_of_empty_problems(shape: tuple[int, ...], driver: str, device: str) -> None:
    A = torch.zeros(shape, device=device, requires_grad=True)
    B = torch.zeros((*shape[:-1], 2), device=device)
    LA.lstsq(A, B, driver=driver).solution.sum().backward()
    assert A.grad is not None
    assert not A.grad.any()


def test_vmap_over_nothing(device: str) -> None:
    A, B = torch.zeros(0, 5, 3, device=device), torch.zeros(0, 5, 2, device=device)
    X = torch.vmap(lambda a, b: LA.lstsq(a, b, driver="gels").solution)(A, B)
    assert X.shape == (0, 3, 2)


def test_shapes_that_torch_takes_by_accident(device: str) -> None:
    with pytest.raises(RuntimeError, match=r"whose shapes fit, but got .*\[1, 3, 2\]"):
        LA.lstsq(torch.ones(1, 3, 2, device=device), torch.ones(3, 2, device=device), driver="gels")


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd", "gelss"])
@pytest.mark.parametrize("shape", [(3, 5), (4, 4)])
def test_the_solution_lies_by_columns(shape: tuple[int, int], driver: str, watched: bool) -> None:
    A = testing.random((2, *shape), torch.float64).requires_grad_(watched)
    B = testing.random((2, shape[0], 3), torch.float64)
    with LA.use("kernels"):
        X = LA.lstsq(A, B, driver=driver).solution
    assert X.stride() == torch.linalg.lstsq(A, B, driver=driver).solution.stride()
