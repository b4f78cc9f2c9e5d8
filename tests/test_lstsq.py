"""lstsq held against SciPy."""

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg.testing import compare
from tests.inputs import DOUBLES, SINGLES, name, on

pytestmark = pytest.mark.usefixtures("kernels")

SIZES = ((1, 1), (4, 4), (5, 3), (3, 5), (50, 30), (35, 40))
each_dtype = pytest.mark.parametrize("dtype", SINGLES, ids=name)


def double(A: Any) -> NDArray[Any]:
    a = A.numpy(force=True) if isinstance(A, Tensor) else A
    return np.asarray(a.astype(np.complex128 if np.iscomplexobj(a) else np.float64))


def gels(A: Tensor, B: Tensor) -> NDArray[Any]:
    """LAPACK in the precision of A."""
    a, b = A.numpy(), B.numpy()
    m, n = a.shape[-2:]
    (routine,) = scipy.linalg.get_lapack_funcs(("gels",), (a,))
    X = np.empty((*b.shape[:-2], n, b.shape[-1]), b.dtype)
    for i in np.ndindex(*b.shape[:-2]):
        padded = np.zeros((max(m, n), b.shape[-1]), b.dtype)
        padded[:m] = b[i]
        _, x, info = routine(a[i], padded)
        assert info == 0
        X[i] = x[:n]
    return X


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
    result = LA.lstsq(on(device, A), on(device, B))
    X = result.solution
    assert X.shape == (6, n, columns)
    ours, theirs = ratio(A, X, B), ratio(A, gels(A, B), B)
    compare(ours.max(), theirs.max())
    alone = LA.lstsq(on(device, A[3]), on(device, B[3]), driver="gels").solution
    assert torch.equal(alone, X[3])
    assert result.rank.shape == result.singular_values.shape == (0,)
    if m > n:
        exact = [np.linalg.lstsq(double(A[i]), double(B[i]), rcond=None)[1] for i in (0, 5)]
        np.testing.assert_allclose(double(result.residuals[[0, 5]]), exact, rtol=1e-4)
    else:
        assert result.residuals.shape == (0,)


@pytest.mark.parametrize("size", [(5, 3), (3, 5)], ids=name)
@pytest.mark.parametrize("dtype", [*SINGLES, *DOUBLES], ids=name)
def test_vectors_and_broadcasts(dtype: torch.dtype, size: tuple[int, int], device: str) -> None:
    m, n = size
    A = testing.random((2, 1, m, n), dtype)
    for B in (testing.random((1, 3, m, 2), dtype), testing.random((2, 3, m, 1), dtype)):
        got, expected = LA.lstsq(on(device, A), on(device, B)), torch.linalg.lstsq(A, B)
        torch.testing.assert_close(got.solution.cpu(), expected.solution, rtol=1e-4, atol=1e-5)
    for a, b in ((A[0, 0], B[0, 0, :, 0]), (A, B[:, :1, :, 0])):
        got = LA.lstsq(on(device, a), on(device, b))
        expected = torch.linalg.lstsq(a, b, driver="gels")
        assert got.residuals.shape == expected.residuals.shape
        torch.testing.assert_close(got.solution.cpu(), expected.solution, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 3), (0, 3, 2), (0, 0)], ids=name)
def test_empty(shape: tuple[int, ...], device: str) -> None:
    A, B = torch.empty(shape), torch.ones(*shape[:-1], 2)
    got = LA.lstsq(on(device, A), on(device, B), driver="gels")
    expected = torch.linalg.lstsq(A, B, driver="gels")
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
    ],
)
def test_bad_input(A: Tensor, B: Any, options: dict[str, str], device: str) -> None:
    def error(function: Any, *args: Any) -> tuple[type, str]:
        with pytest.raises((RuntimeError, TypeError)) as caught:
            function(*args, **options)
        return caught.type, str(caught.value)

    given = on(device, A), on(device, B) if B is not None else None
    assert error(LA.lstsq, *given) == error(torch.linalg.lstsq, A, B)


@pytest.mark.parametrize("driver", ["gelsy", "gelsd", "gelss"])
def test_other_drivers_are_torchs(driver: str) -> None:
    A, B = testing.random((5, 3), torch.float32), testing.random((5, 2), torch.float32)
    for ours, theirs in zip(
        LA.lstsq(A, B, driver=driver), torch.linalg.lstsq(A, B, driver=driver), strict=True
    ):
        # LAPACK sums in an order that depends on where the memory begins.
        torch.testing.assert_close(ours, theirs)
