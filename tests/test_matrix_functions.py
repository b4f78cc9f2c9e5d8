"""matrix_sqrth and matrix_exp held against SciPy."""

import math
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
from tests.inputs import DOUBLES, SINGLES, VIEWS, name, on, random_definite
from tests.ratios import double, root_ratio

pytestmark = [
    pytest.mark.usefixtures("kernels"),
    # torch's own forward mode does what they warn of.
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

each_single = pytest.mark.parametrize("dtype", SINGLES, ids=name)
torch_lacks_it = pytest.mark.skipif(
    hasattr(torch.linalg, "matrix_sqrth"), reason="torch has matrix_sqrth"
)


def scipys(A: Tensor) -> NDArray[Any]:
    """By LAPACK's eigenvectors, in the precision of A."""
    roots = []
    for a in A.reshape(-1, *A.shape[-2:]).numpy():
        values, V = scipy.linalg.eigh(a)
        roots.append((V * np.sqrt(np.maximum(values, 0))) @ V.conj().T)
    return np.stack(roots).reshape(A.shape)


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (2, 3, 9, 9), (32, 32)], ids=name)
@pytest.mark.parametrize("scale", [1.0, 1e-28, 1e28])
@each_single
def test_root(dtype: torch.dtype, scale: float, shape: tuple[int, ...], device: str) -> None:
    A = random_definite(shape, dtype) * scale
    # Only the lower triangle is read.
    X = LA.matrix_sqrth(on(device, A.tril() + testing.random(shape, dtype).triu(1)))
    assert (X.dtype, X.shape) == (A.dtype, A.shape)
    assert torch.equal(X, X.mH)
    compare(root_ratio(A, X), root_ratio(A, scipys(A)))


@each_single
def test_semidefinite(dtype: torch.dtype, device: str) -> None:
    factors = testing.random((2, 6, 2), dtype)
    A = factors @ factors.mH
    A = torch.stack((*A, torch.eye(6, dtype=dtype), torch.zeros(6, 6, dtype=dtype)))
    X = LA.matrix_sqrth(on(device, A))
    compare(root_ratio(A[:3], X[:3]), root_ratio(A[:3], scipys(A[:3])))
    assert not X[3].any()


def test_an_indefinite_matrix_has_no_root(device: str) -> None:
    A = random_definite((3, 4, 4), torch.float32)
    A[1] -= 1.1 * torch.linalg.eigvalsh(A[1])[0] * torch.eye(4)
    X = LA.matrix_sqrth(on(device, A))
    assert X[1].isnan().all()
    compare(root_ratio(A[::2], X[::2]), root_ratio(A[::2], scipys(A[::2])))


@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (0, 3, 3)], ids=name)
def test_empty(shape: tuple[int, ...], device: str) -> None:
    assert LA.matrix_sqrth(on(device, torch.empty(shape))).shape == shape


@pytest.mark.parametrize("view", VIEWS)
def test_views(view: str, device: str) -> None:
    A = on(device, random_definite((2, 4, 4), torch.complex64))
    assert torch.equal(LA.matrix_sqrth(VIEWS[view](A)), LA.matrix_sqrth(A))


@torch_lacks_it
@pytest.mark.parametrize(
    ("A", "error", "words"),
    [
        (torch.ones(3), RuntimeError, "linalg.matrix_sqrth: The input tensor A must have at least"),
        (torch.ones(3, 4), RuntimeError, "linalg.matrix_sqrth: A must be batches of square matric"),
        (torch.ones(3, 3).int(), NotImplementedError, "'Int'"),
        ([1.0], TypeError, "linalg_matrix_sqrth(): argument 'input' (position 1) must be Tensor"),
    ],
)
def test_bad_input(A: Any, error: type[Exception], words: str, device: str) -> None:
    with pytest.raises(error) as caught:
        LA.matrix_sqrth(on(device, A) if isinstance(A, Tensor) else A)
    assert words in str(caught.value)


@torch_lacks_it
def test_what_runs_where_torch_has_none(device: str) -> None:
    A = on(device, random_definite((3, 3), torch.float32))
    with LA.use("torch"):
        expected = "matrix_sqrth: raises an error: torch.linalg has no such function"
        assert LA.which("matrix_sqrth", A) == expected
        with pytest.raises(RuntimeError, match=r"has no torch\.linalg\.matrix_sqrth"):
            LA.matrix_sqrth(A)
    assert LA.which("matrix_sqrth", A).endswith("eigh_simd, matmul")


def test_within_autocast(device: str) -> None:
    A = on(device, random_definite((5, 5), torch.float32))
    expected = LA.matrix_sqrth(A)
    with torch.autocast(device, dtype=torch.bfloat16):
        for given in (A, A.clone().requires_grad_()):
            assert torch.equal(LA.matrix_sqrth(given), expected)


def test_larger_ones_in_auto(device: str) -> None:
    A = random_definite((45, 45), torch.float32)
    with LA.use("auto"):
        compare(root_ratio(A, LA.matrix_sqrth(on(device, A))), root_ratio(A, scipys(A)))


@pytest.mark.parametrize("dtype", DOUBLES, ids=name)
def test_gradients_of_equal_eigenvalues(dtype: torch.dtype, device: str) -> None:
    """Of 4 I, whose root has the derivative dA / 4, and the second -dA dA / 32."""
    A = on(device, 4 * torch.eye(3, dtype=dtype)).requires_grad_()
    D = on(device, random_definite((3, 3), dtype))
    W = on(device, random_definite((3, 3), dtype, seed=3))
    loss = (W.conj() * LA.matrix_sqrth(A)).sum().real
    (gradient,) = torch.autograd.grad(loss, A, create_graph=True)
    torch.testing.assert_close(gradient, W / 4)
    (second,) = torch.autograd.grad((D.conj() * gradient).sum().real, A)
    torch.testing.assert_close(second, -(D @ W + W @ D) / 64)


@pytest.mark.parametrize("size", [0.005, 0.1, 0.3, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (2, 2, 20, 20)], ids=name)
@pytest.mark.parametrize("dtype", SINGLES + DOUBLES, ids=name)
def test_exp(dtype: torch.dtype, shape: tuple[int, ...], size: float, device: str) -> None:
    A = testing.random(shape, dtype)
    A = A * (size / torch.linalg.matrix_norm(A, 1, keepdim=True))
    # Antisymmetric, so that it is well conditioned at every size.
    A = A - A.mH
    X = LA.matrix_exp(on(device, A))
    assert (X.dtype, X.shape, X.stride()) == (A.dtype, A.shape, A.contiguous().stride())
    error = np.abs(X.numpy(force=True) - scipy.linalg.expm(double(A))).max()
    assert error <= 4 * max(size, 1) * shape[-1] ** 0.5 * torch.finfo(dtype).eps


def test_exp_of_a_batch_of_many_scales(device: str) -> None:
    scales = torch.tensor([0, 1e-30, 1e-3, 1, 30, 1e4])[:, None, None]
    A = testing.random((5, 5), torch.float32)
    A = (A - A.mT) * scales
    X = LA.matrix_exp(on(device, A))
    errors = np.abs(X.numpy(force=True) - scipy.linalg.expm(double(A))).max((1, 2))
    assert (errors <= 2e-6 * np.maximum(scales.flatten().numpy(), 1)).all()
    assert torch.equal(X[0].cpu(), torch.eye(5))


def test_what_is_not_finite_spoils_no_other_exponential(device: str) -> None:
    A = torch.zeros(4, 2, 2)
    A[0, 0, 1], A[1] = 3.0, torch.diag(torch.tensor([-1e4, 1.0]))
    A[2], A[3] = torch.nan, torch.inf
    X = LA.matrix_exp(on(device, A)).cpu()
    torch.testing.assert_close(X[0], torch.tensor([[1.0, 3.0], [0.0, 1.0]]))
    torch.testing.assert_close(X[1], torch.diag(torch.tensor([0, math.e])), rtol=1e-3, atol=1e-6)
    assert not X[2:].isfinite().any()


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16], ids=name)
def test_exp_in_half_precision(dtype: torch.dtype, device: str) -> None:
    A = on(device, testing.random((3, 4, 4), torch.float32)).to(dtype)
    assert torch.equal(LA.matrix_exp(A), LA.matrix_exp(A.float()).to(dtype))


@pytest.mark.parametrize("dtype", DOUBLES, ids=name)
@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0])
def test_derivative_of_exp(size: float, dtype: torch.dtype, device: str) -> None:
    A, E = (testing.random((2, 5, 5), dtype, seed) * size / 5 for seed in (0, 1))
    E = E * 1e-12
    dX: Tensor = torch.func.jvp(LA.matrix_exp, (on(device, A),), (on(device, E),))[1]
    pairs = zip(double(A), double(E), strict=True)
    exact = np.stack([scipy.linalg.expm_frechet(a, e)[1] for a, e in pairs])
    assert np.abs(double(dX) - exact).max() <= 1e-12 * np.abs(exact).max()


def test_exp_of_nothing(device: str) -> None:
    for shape in ((0, 0), (0, 3, 3), (2, 0, 0)):
        A = torch.empty(shape, device=device, requires_grad=True)
        X = LA.matrix_exp(A)
        assert X.shape == shape
        X.sum().backward()  # type: ignore[no-untyped-call]


def test_op_of_exp(device: str) -> None:
    A = on(device, testing.random((2, 3, 3), torch.float32))
    torch.library.opcheck(torch.ops.mpslinalg.matrix_exp.default, (A,))
    assert LA.which("matrix_exp", A).endswith("matrix_exp_fused")
