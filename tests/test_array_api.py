"""What the array API standard asks of its linalg extension, where torch.linalg says the same.

https://data-apis.org/array-api/latest/extensions/linear_algebra_functions.html

Where the two differ, torch is followed:

- `matrix_transpose`, `outer`, `tensordot` and `trace` are no functions of torch.linalg: `A.mT`,
  torch.outer, torch.tensordot and torch.trace are.
- `axis` and `keepdims` are `dim` and `keepdim`. `diagonal` takes dim1 and dim2 besides offset,
  `eigh` and `eigvalsh` UPLO, and they read one triangle only; `qr` has a mode "r" too.
- `vecdot` and the norms refuse integers, where the standard has a vecdot of them, and so do all
  factorizations. Types are not promoted: both arguments of `solve`, `vecdot`, `cross` have one.
- `cross` broadcasts shapes of as many dimensions as each other only.
- `solve`: the standard takes x2 for a vector if it has one dimension, and so does torch; but torch
  takes it for a batch of vectors too if its shape is that of x1 without the last dimension.
- `matrix_rank` and `pinv`: besides rtol there is an atol, and the larger tolerance holds.
- Tuples are torch's return types: named as the standard has them, but without `_fields`.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg import testing
from tests.inputs import SINGLES, name, on, random_definite, random_hermitian
from tests.ratios import double

pytestmark = pytest.mark.usefixtures("kernels")

REAL = {torch.float32: torch.float32, torch.complex64: torch.float32}
each_single = pytest.mark.parametrize("dtype", SINGLES, ids=name)


def each(result: Any) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def close(ours: Tensor, expected: Any, factor: float = 60) -> None:
    expected = np.asarray(expected)
    assert tuple(ours.shape) == expected.shape
    allowed = factor * torch.finfo(ours.dtype).eps * np.abs(expected).max(initial=0)
    assert (np.abs(double(ours) - expected) <= allowed).all()


def identity(A: Tensor) -> Any:
    return np.broadcast_to(np.eye(A.shape[-1]), A.shape)


def definite(A: Tensor) -> Tensor:
    return A + A.mH + 30 * torch.eye(A.shape[-1], device=A.device)


# What takes matrices and is independent for each of a stack.
OF_MATRICES: dict[str, Callable[[Tensor], Any]] = {
    "cholesky": lambda A: LA.cholesky(definite(A)),
    "cholesky upper": lambda A: LA.cholesky(definite(A), upper=True),
    "det": LA.det,
    "diagonal": LA.diagonal,
    "eigh": lambda A: LA.eigh(A + A.mH),
    "eigvalsh": lambda A: LA.eigvalsh(A + A.mH),
    "inv": LA.inv,
    "matmul": lambda A: LA.matmul(A, A),
    "matrix_norm": LA.matrix_norm,
    "matrix_norm nuc": lambda A: LA.matrix_norm(A, ord="nuc"),
    "matrix_power": lambda A: LA.matrix_power(A, 3),
    "matrix_power -2": lambda A: LA.matrix_power(A, -2),
    "matrix_rank": LA.matrix_rank,
    "pinv": LA.pinv,
    "qr": LA.qr,
    "qr complete": lambda A: LA.qr(A, mode="complete"),
    "slogdet": LA.slogdet,
    "solve": lambda A: LA.solve(A, A[..., :2]),
    "svd": LA.svd,
    "svd reduced": lambda A: LA.svd(A, full_matrices=False),
    "svdvals": LA.svdvals,
    "vecdot": lambda A: LA.vecdot(A, A),
    "vector_norm": lambda A: LA.vector_norm(A, dim=-1),
}

# BLAS sums a product alone in another order than one of a batch.
PRODUCTS = ("matmul", "matrix_power", "matrix_power -2", "pinv", "vecdot")


@pytest.mark.parametrize("function", OF_MATRICES)
@each_single
def test_a_stack_is_its_matrices(dtype: torch.dtype, function: str, device: str) -> None:
    A = on(device, testing.random((2, 3, 5, 5), dtype))
    call = OF_MATRICES[function]
    whole = each(call(A))
    for at in (*np.ndindex(2), *np.ndindex(2, 3)):
        for ours, theirs in zip(each(call(A[at])), whole, strict=True):
            assert ours.dtype == theirs.dtype
            if function in PRODUCTS:
                close(ours, double(theirs[at]))
            else:
                assert torch.equal(ours, theirs[at])


@pytest.mark.parametrize("function", [f for f in OF_MATRICES if f not in ("vecdot", "vector_norm")])
@pytest.mark.parametrize("shape", [(0, 5, 5), (2, 0, 5, 5)], ids=name)
def test_a_stack_of_none(shape: tuple[int, ...], function: str, device: str) -> None:
    result = each(OF_MATRICES[function](torch.empty(shape, device=device)))
    alone = each(OF_MATRICES[function](torch.eye(5, device=device)))
    for ours, plain in zip(result, alone, strict=True):
        assert ours.shape == (*shape[:-2], *plain.shape)
        assert ours.dtype == plain.dtype


@each_single
def test_cholesky(dtype: torch.dtype, device: str) -> None:
    A = random_definite((2, 5, 5), dtype)
    L, U = LA.cholesky(on(device, A)), LA.cholesky(on(device, A), upper=True)
    assert not L.triu(1).any()
    assert not U.tril(-1).any()
    close(L @ L.mH, double(A))
    close(U.mH @ U, double(A))


@each_single
def test_cross(dtype: torch.dtype, device: str) -> None:
    a, b = testing.random((4, 1, 3), dtype), testing.random((1, 5, 3), dtype, seed=1)
    c = LA.cross(on(device, a), on(device, b))
    close(c, np.cross(double(a), double(b)))
    a, b = a.movedim(-1, 0), b.movedim(-1, 0)
    close(LA.cross(on(device, a), on(device, b), dim=0), np.cross(a, b, axis=0))
    with pytest.raises(RuntimeError, match="dimension"):
        LA.cross(on(device, a), on(device, b))


@pytest.mark.parametrize("offset", range(-6, 7))
def test_diagonal(offset: int, device: str) -> None:
    A = on(device, testing.random((2, 3, 5), torch.float32))
    expected = np.diagonal(A.numpy(force=True), offset, -2, -1)
    assert torch.equal(LA.diagonal(A, offset=offset).cpu(), torch.tensor(expected))


@each_single
def test_eigenvalues_are_real_and_ascend(dtype: torch.dtype, device: str) -> None:
    A = random_hermitian((3, 5, 5), dtype)
    result = LA.eigh(on(device, A))
    values, vectors = result.eigenvalues, result.eigenvectors
    assert values.dtype == LA.eigvalsh(on(device, A)).dtype == REAL[dtype]
    assert vectors.dtype == dtype
    assert (values.diff() >= 0).all()
    close(vectors.mH @ vectors, identity(A))
    close((vectors * values.unsqueeze(-2)) @ vectors.mH, double(A))


@each_single
def test_inverse_and_powers(dtype: torch.dtype, device: str) -> None:
    A = on(device, random_definite((2, 5, 5), dtype))
    X = LA.inv(A)
    close(A @ X, identity(A))
    assert torch.equal(LA.matrix_power(A, 0).cpu(), torch.eye(5, dtype=dtype).expand(2, 5, 5))
    assert torch.equal(LA.matrix_power(A, 1), A)
    close(LA.matrix_power(A, 2), double(A) @ double(A))
    assert torch.equal(LA.matrix_power(A, -1), X)
    close(LA.matrix_power(A, -2), double(X) @ double(X))
    for shape in ((0, 0), (3, 0, 0)):
        empty = torch.empty(shape, dtype=dtype, device=device)
        for result in (LA.inv(empty), LA.matrix_power(empty, 0), LA.matrix_power(empty, -3)):
            assert result.shape == shape
        assert (LA.det(empty) == 1).all()
        sign, log = LA.slogdet(empty)
        assert (sign == 1).all()
        assert (log == 0).all()


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf])
@each_single
def test_matrix_norm(dtype: torch.dtype, order: Any, keepdim: bool, device: str) -> None:
    A = testing.random((2, 5, 3), dtype)
    N = LA.matrix_norm(on(device, A), ord=order, keepdim=keepdim)
    assert N.dtype == REAL[dtype]
    close(N, np.linalg.norm(double(A), order, (-2, -1), keepdims=keepdim))


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [None, 0, -1, (0, 2), (2, 1, 0), (1,)], ids=str)
@pytest.mark.parametrize("order", [0, 1, 2, 3, -1, -2, 2.5, math.inf, -math.inf])
@each_single
def test_vector_norm(
    dtype: torch.dtype, order: float, dim: Any, keepdim: bool, device: str
) -> None:
    x = testing.random((2, 3, 4), dtype)
    x[0, 0, 0] = 0
    N = LA.vector_norm(on(device, x), ord=order, dim=dim, keepdim=keepdim)
    assert N.dtype == REAL[dtype]
    axes = tuple(range(3)) if dim is None else dim if isinstance(dim, tuple) else (dim,)
    with np.errstate(divide="ignore"):
        a = np.abs(double(x))
        if order == 0:
            expected = (a != 0).sum(axes, keepdims=keepdim)
        elif math.isinf(order):
            expected = (a.max if order > 0 else a.min)(axes, keepdims=keepdim)
        else:
            expected = (a**order).sum(axes, keepdims=keepdim) ** (1 / order)
    close(N, expected)


@pytest.mark.parametrize("hermitian", [False, True])
def test_a_tolerance_for_each_matrix(hermitian: bool, device: str) -> None:
    A = on(device, torch.diag(torch.tensor([8.0, 4.0, 2.0, 1.0])).expand(2, 3, 4, 4))
    rtol = on(device, torch.tensor([[0.01, 0.2, 0.3], [0.6, 0.9, 2.0]]))
    rank = LA.matrix_rank(A, rtol=rtol, hermitian=hermitian)
    assert rank.dtype == torch.int64
    assert rank.tolist() == [[4, 3, 2], [1, 1, 0]]
    X = LA.pinv(A, rtol=rtol, hermitian=hermitian)
    kept = torch.arange(4) < rank.cpu().unsqueeze(-1)
    close(X, torch.diag_embed(torch.tensor([0.125, 0.25, 0.5, 1]) * kept))
    assert (LA.matrix_rank(torch.zeros_like(A)) == 0).all()
    assert LA.matrix_rank(on(device, torch.tensor([[1.0, 0], [0, 1e-6]]))) == 2
    assert LA.matrix_rank(on(device, torch.tensor([[1.0, 0], [0, 1e-7]]))) == 1


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 4, 4), (0, 3), (3, 0)], ids=name)
@each_single
def test_shapes_of_factors(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    A = on(device, testing.random(shape, dtype))
    *batch, m, n = shape
    for mode, k in (("reduced", min(m, n)), ("complete", m)):
        Q, R = LA.qr(A, mode=mode)  # type: ignore[arg-type, unused-ignore]
        assert Q.shape == (*batch, m, k)
        assert R.shape == (*batch, k, n)
        assert not R.tril(-1).any()
        close(Q.mH @ Q, np.broadcast_to(np.eye(k), (*batch, k, k)))
        close(Q @ R, double(A))
    for full, (rows, columns) in ((True, (m, n)), (False, (min(m, n),) * 2)):
        U, S, Vh = LA.svd(A, full_matrices=full)
        assert U.shape == (*batch, m, rows)
        assert S.shape == (*batch, min(m, n))
        assert Vh.shape == (*batch, columns, n)
        assert S.dtype == REAL[dtype]
        assert (S.diff() <= 0).all()
        assert (S >= 0).all()
        k = min(m, n)
        close((U[..., :k] * S.unsqueeze(-2)) @ Vh[..., :k, :], double(A))
        close(U.mH @ U, np.broadcast_to(np.eye(rows), (*batch, rows, rows)))
        close(Vh @ Vh.mH, np.broadcast_to(np.eye(columns), (*batch, columns, columns)))
    assert torch.equal(LA.svdvals(A), LA.svd(A).S)


@each_single
def test_slogdet(dtype: torch.dtype, device: str) -> None:
    A = testing.random((3, 5, 5), dtype)
    result = LA.slogdet(on(device, A))
    assert (result.sign.dtype, result.logabsdet.dtype) == (dtype, REAL[dtype])
    close(result.sign * result.logabsdet.exp(), np.linalg.det(double(A)), 1000)
    singular = LA.slogdet(on(device, torch.zeros(2, 2, dtype=dtype)))
    assert singular.sign == 0
    assert singular.logabsdet == -math.inf


@pytest.mark.parametrize(
    ("a", "b", "x"),
    [
        ((3, 3), (3,), (3,)),
        ((2, 3, 3), (3,), (2, 3)),
        ((4, 2, 3, 3), (3,), (4, 2, 3)),
        ((2, 3, 3), (3, 2), (2, 3, 2)),
        ((3, 3), (2, 3, 5), (2, 3, 5)),
        ((4, 1, 3, 3), (2, 3, 1), (4, 2, 3, 1)),
        ((2, 3, 3), (2, 3, 0), (2, 3, 0)),
        ((0, 3, 3), (3,), (0, 3)),
        ((0, 0), (0, 2), (0, 2)),
    ],
    ids=name,
)
@each_single
def test_solve(
    dtype: torch.dtype, a: tuple[int, ...], b: tuple[int, ...], x: tuple[int, ...], device: str
) -> None:
    A = testing.random(a, dtype) + 3 * torch.eye(a[-1])
    B = testing.random(b, dtype, seed=1)
    X = LA.solve(on(device, A), on(device, B))
    assert X.dtype == dtype
    vector = len(b) == 1
    expected = np.linalg.solve(double(A), double(B)[:, None] if vector else double(B))
    assert X.shape == x
    close(X, expected[..., 0] if vector else expected)


@pytest.mark.parametrize(
    ("a", "b"),
    [((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((4, 2, 3), (3, 5)), ((4, 1, 2, 3), (6, 3, 2))],
    ids=name,
)
@each_single
def test_matmul(dtype: torch.dtype, a: tuple[int, ...], b: tuple[int, ...], device: str) -> None:
    A, B = testing.random(a, dtype), testing.random(b, dtype, seed=1)
    close(LA.matmul(on(device, A), on(device, B)), double(A) @ double(B))


@each_single
def test_vecdot_conjugates_its_first_argument(dtype: torch.dtype, device: str) -> None:
    a, b = testing.random((4, 1, 3), dtype), testing.random((5, 3), dtype, seed=1)
    close(LA.vecdot(on(device, a), on(device, b)), (double(a).conj() * double(b)).sum(-1))
    a = testing.random((3, 2), dtype, seed=2)
    expected = (double(a).conj() * double(b[:3, :2])).sum(0)
    close(LA.vecdot(on(device, a), on(device, b[:3, :2]), dim=0), expected)
    with pytest.raises(RuntimeError, match="size"):
        LA.vecdot(on(device, a), on(device, b))


@pytest.mark.parametrize(
    "function", ["cholesky", "det", "eigh", "eigvalsh", "inv", "slogdet", "matrix_power", "solve"]
)
def test_what_is_not_square_is_refused(function: str, device: str) -> None:
    A = torch.ones(2, 3, device=device)
    rest = {"matrix_power": (2,), "solve": (A,)}.get(function, ())
    with pytest.raises(RuntimeError, match="square"):
        getattr(LA, function)(A, *rest)


@pytest.mark.parametrize("function", ["det", "inv", "qr", "svd", "svdvals", "pinv", "matrix_rank"])
def test_what_has_one_dimension_is_refused(function: str, device: str) -> None:
    with pytest.raises(RuntimeError, match=r"at least 2 dim|2 or more dim"):
        getattr(LA, function)(torch.ones(3, device=device))
