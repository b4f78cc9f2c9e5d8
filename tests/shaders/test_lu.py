"""The launch plans of the LU family on the checked engine, at every boundary of their regimes."""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from mpslinalg import _lu_plan, testing
from mpslinalg._engines import cpu
from mpslinalg.testing import compare
from tests import lapack
from tests.inputs import DOUBLES, SINGLES, VIEWS, gallery, name, on, regular
from tests.lapack import TRANS

pytestmark = pytest.mark.usefixtures("checked")


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices without a gap take the kernels of GPUs; the others are held against them."""
    monkeypatch.setattr(cpu.ENGINE, "side_by_side", True)


# The largest matrix of one threadgroup.
ROWS = _lu_plan.ROWS
SMALL = (1, 2, 3, 4, 5, 8, 9, 10, 16, 17, 31, 32, 33, 50, 64, 65)
SIZES = (*SMALL, ROWS - 1, ROWS, ROWS + 1)
RECTANGLES = (
    *((1, 4), (4, 1), (3, 4), (4, 3), (1, 8), (9, 1), (5, 8), (9, 8), (8, 16), (17, 16)),
    *((3, 32), (32, 3), (31, 32), (33, 32), (32, 33), (33, 64), (65, 64), (1, 120), (120, 1)),
    *((5, ROWS), (ROWS, 33), (2, ROWS + 1), (ROWS + 1, 65), (40, ROWS + 1)),
)
# A thread of a panel holds 1, 2, 4, 8 or 16 rows, with fewer columns to a sub-panel each time.
TALL = ((512, 5), (513, 33), (1024, 9), (1025, 17), (2048, 3), (2049, 9), (4096, 2), (4097, 5))
IN_DOUBLE = ((3, 3), (8, 8), (32, 17), (33, 33), (64, 40), (40, ROWS + 1), (513, 3))
SQUARE = tuple((n, n) for n in SIZES)
SHAPES = [
    *((dtype, shape) for dtype in SINGLES for shape in (*SQUARE, *RECTANGLES, *TALL)),
    *((dtype, shape) for dtype in DOUBLES for shape in IN_DOUBLE),
]
ORDERS = [
    *((dtype, n) for dtype in SINGLES for n in SIZES),
    *((dtype, m) for dtype in DOUBLES for m, n in IN_DOUBLE if m == n),
]
# One of each kernel, and of each count of rows to a thread.
REGIMES = (
    (1, 1),
    (2, 2),
    (3, 3),
    (4, 4),
    (8, 8),
    (13, 16),
    (32, 27),
    (40, 40),
    (40, ROWS + 1),
    (513, 3),
    (1025, 3),
)

each_shape = pytest.mark.parametrize(("dtype", "shape"), SHAPES, ids=name)
each_small_shape = pytest.mark.parametrize(
    ("dtype", "shape"), [(d, (m, n)) for d, (m, n) in SHAPES if m * n <= 4500], ids=name
)
each_order = pytest.mark.parametrize(("dtype", "n"), ORDERS, ids=name)
each_regime = pytest.mark.parametrize("shape", REGIMES, ids=name)
each_square_regime = pytest.mark.parametrize("n", [1, 3, 4, 8, 11, 32, 40])
each_dtype = pytest.mark.parametrize("dtype", SINGLES, ids=name)


class Factors(NamedTuple):
    LU: Tensor
    pivots: Tensor
    info: Tensor


def factor(A: Tensor, pivot: bool = True) -> Factors:
    return Factors(*_lu_plan.lu_factor(A, pivot))


@functools.cache
def gallery_factors(dtype: torch.dtype, m: int, n: int, device: str) -> Factors:
    return factor(on(device, gallery(m, n, dtype).A))


def same(a: Any, b: Any) -> bool:
    """Whether all tensors of two results agree to the last bit, NaN with NaN."""
    return all(
        np.array_equal(x.numpy(force=True), y.numpy(force=True), equal_nan=x.dtype != torch.int32)
        for x, y in zip(a, b, strict=True)
    )


def dominant(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Every diagonal entry outweighs its column: partial pivoting would swap nothing."""
    A = testing.random(shape, dtype, seed=3)
    weight = A.abs().sum(-2, keepdim=True) + 1
    return A + torch.eye(*shape[-2:]) * weight * A.new_tensor(-1j if dtype.is_complex else -1)


def weights(A: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(np.abs(A.real) + np.abs(A.imag))


def judge_factors(A: Tensor, info: list[int], ours: Factors) -> None:
    theirs = lapack.getrf(A)
    assert ours.info.tolist() == info == theirs[2].tolist()
    compare(testing.lu_ratio(A, *ours[:2]), testing.lu_ratio(A, *theirs[:2]))


@each_shape
def test_factor(dtype: torch.dtype, shape: tuple[int, int], device: str) -> None:
    A, info = gallery(*shape, dtype)
    judge_factors(A, info.tolist(), gallery_factors(dtype, *shape, device))


# More rows than the threads of a group hold in registers.
@pytest.mark.parametrize(
    ("dtype", "m"),
    [(torch.float32, 32769), (torch.complex64, 16385), (torch.complex128, 8193)],
    ids=name,
)
def test_factor_streams_what_no_group_holds(dtype: torch.dtype, m: int, device: str) -> None:
    A = testing.random((1, m, 3), dtype)
    judge_factors(A, [0], factor(on(device, A)))


# Three panels and more, the last of them narrow; several tiles of the update either way; a thread
# of the second panel with two rows.
@pytest.mark.parametrize(
    ("shape", "ahead"),
    [((70, 200), 0), ((70, 200), 3), ((161, 150), 0), ((161, 150), 3), ((550, 70), 3)],
    ids=name,
)
@each_dtype
def test_panels(
    dtype: torch.dtype,
    shape: tuple[int, int],
    ahead: int,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_lu_plan, "LOOKAHEAD", ahead)
    monkeypatch.setattr(_lu_plan, "LOOKAHEAD_ROWS", 1)
    monkeypatch.setattr(_lu_plan, "LOOKAHEAD_ENTRIES", 1)
    words = _lu_plan.regime("lu_factor", dtype, 3, *shape, 1)
    assert ("lu_panel_next" in words) == (ahead != 0)
    # A zero in the last column, one in the middle, and none.
    family, where = gallery(*shape, dtype)
    A = torch.cat((family[5:7], testing.random((1, *shape), dtype, seed=7)))
    info = [*where[5:7].tolist(), 0]
    assert min(info[:2]) > 0
    ours = factor(on(device, A))
    judge_factors(A, info, ours)
    _, theirs, _ = lapack.getrf(A[2:].to(torch.complex128 if dtype.is_complex else torch.float64))
    np.testing.assert_array_equal(ours.pivots[2:].numpy(force=True), theirs)
    A = dominant((1, *shape), dtype)
    LU, pivots, zero = factor(on(device, A), pivot=False)
    assert (pivots.cpu() == torch.arange(1, min(shape) + 1)).all()
    assert not zero.any()
    compare(testing.lu_ratio(A, LU, pivots), testing.lu_ratio(A, *lapack.getrf(A)[:2]))


def test_more_matrices_are_updated_by_products_alone() -> None:
    many = _lu_plan.LOOKAHEAD + 1
    for n, words in ((200, "lu_swap, products"), (2000, "lu_swap, matmul")):
        assert _lu_plan.regime("lu_factor", torch.float32, many, n, n, 1).endswith(words)


@each_small_shape
def test_pivots_are_lapacks(dtype: torch.dtype, shape: tuple[int, int], device: str) -> None:
    A = testing.random((3, *shape), dtype, seed=5)
    _, theirs, _ = lapack.getrf(A)
    # Where the precision decides on a pivot, it is a tie.
    _, exact, _ = lapack.getrf(A.to(torch.complex128 if dtype.is_complex else torch.float64))
    clear = (theirs == exact).all(-1)
    assert clear.sum() >= 2
    pivots = factor(on(device, A)).pivots.numpy(force=True)
    np.testing.assert_array_equal(pivots[clear], theirs[clear])


@each_small_shape
def test_without_pivoting(dtype: torch.dtype, shape: tuple[int, int], device: str) -> None:
    steps = np.arange(1, min(shape) + 1)
    A = dominant((2, *shape), dtype)
    LU, pivots, _ = lapack.getrf(A)
    assert (pivots == steps).all()
    ours = factor(on(device, A), pivot=False)
    assert (ours.pivots.numpy(force=True) == steps).all()
    assert not ours.info.any()
    compare(testing.lu_ratio(A, *ours[:2]), testing.lu_ratio(A, LU, pivots))


@each_regime
@each_dtype
def test_without_pivoting_takes_the_diagonal(
    dtype: torch.dtype, shape: tuple[int, int], device: str
) -> None:
    # Small integers, twice the diagonal below it: pivoting would swap.
    m, n = shape
    k = min(m, n)
    L = torch.eye(m, k) + 2 * torch.eye(m, k + 1)[:, 1:]
    U = torch.eye(k, n) + torch.eye(k + 1, n)[1:]
    A = (L @ U).to(dtype)
    LU, pivots, info = factor(on(device, A.expand(3, m, n)), pivot=False)
    packed = torch.zeros(m, n)
    packed[:, :k] += L.tril(-1)
    packed[:k] += U
    assert torch.equal(LU.cpu(), packed.to(dtype).expand(3, m, n))
    assert (pivots.cpu() == torch.arange(1, k + 1)).all()
    assert not info.any()
    A[0, 0] = 0
    assert factor(on(device, A.expand(3, m, n)), pivot=False).info.tolist() == [1, 1, 1]


def judge_solutions(A: Tensor, X_true: Tensor, parts: tuple[int, ...], device: str) -> None:
    """Solve for the columns of op(A) X_true, in parts that start at these columns."""
    LU, pivots, _ = factor(on(device, A))
    theirs = lapack.getrf(A)
    for trans in TRANS:
        op = A if trans == "N" else A.mT if trans == "T" else A.mH
        exact = op.to(torch.complex128) @ X_true.to(torch.complex128)
        B = (exact if A.is_complex() else exact.real).to(A.dtype)
        X = torch.cat(
            [
                _lu_plan.lu_solve(LU, pivots, part, TRANS.index(trans))
                for part in on(device, B).tensor_split(parts, -1)
            ],
            -1,
        )
        X_lapack = lapack.getrs(*theirs[:2], B, trans)
        compare(testing.solve_ratio(A, X, B, trans), testing.solve_ratio(A, X_lapack, B, trans))
        compare(
            testing.forward_ratio(A, X, X_true, trans),
            testing.forward_ratio(A, X_lapack, X_true, trans),
        )


@pytest.mark.parametrize(
    ("dtype", "n"), [(d, n) for d, n in ORDERS if n not in (ROWS - 1, ROWS)], ids=name
)
def test_solve(dtype: torch.dtype, n: int, device: str) -> None:
    # Beyond a simdgroup the checked engine takes its time: every other family.
    A = regular(n, dtype)[:: 1 if n <= _lu_plan.SIMD else 2]
    X_true = testing.random((len(A), n, 1 + 2 + 15 + 33), dtype, seed=2)
    judge_solutions(A, X_true, (1, 3, 18), device)


@pytest.mark.parametrize("columns", [64, 65])
@pytest.mark.parametrize("n", [1, 4, 8, 33])
@each_dtype
def test_solve_many_columns(dtype: torch.dtype, n: int, columns: int, device: str) -> None:
    A = testing.random((3, n, n), dtype)
    judge_solutions(A, testing.random((3, n, columns), dtype, seed=1), (), device)


@each_order
def test_determinant(dtype: torch.dtype, n: int, device: str) -> None:
    A = gallery(n, n, dtype).A
    LU, pivots, _ = gallery_factors(dtype, n, n, device)
    det, sign, logabsdet = _lu_plan.lu_det(LU, pivots)
    with np.errstate(all="ignore"):
        theirs = np.linalg.det(A.numpy())
        theirs_sign, theirs_log = np.linalg.slogdet(A.numpy())
    compare(testing.determinant_ratio(A, det), testing.determinant_ratio(A, theirs))
    compare(
        testing.slogdet_ratio(A, sign, logabsdet), testing.slogdet_ratio(A, theirs_sign, theirs_log)
    )


@pytest.mark.parametrize("shape", [*SQUARE[:16:3], *RECTANGLES[::2]], ids=name)
@each_dtype
def test_unpack(dtype: torch.dtype, shape: tuple[int, int], device: str) -> None:
    m, n = shape
    k = min(m, n)
    LU, pivots, _ = gallery_factors(dtype, m, n, device)
    P, L, U = (x.cpu() for x in _lu_plan.lu_unpack(LU, pivots, True, True))
    factors = LU.cpu()
    assert torch.equal(L, factors[..., :k].tril(-1) + torch.eye(m, k, dtype=dtype))
    assert torch.equal(U, factors[..., :k, :].triu())
    for matrix, swaps in zip(P, pivots.tolist(), strict=True):
        assert torch.equal(matrix.mT, torch.eye(m, dtype=dtype)[exchanged(swaps, m)])


def exchanged(swaps: list[int], m: int) -> list[int]:
    rows = list(range(m))
    for i, p in enumerate(swaps):
        rows[i], rows[p - 1] = rows[p - 1], rows[i]
    return rows


# Fewer pivots than are staged at a time, and more; no multiple of what is compared at once. Pivots
# above their row are no factorisation's, but LAPACK's exchanges all the same.
@pytest.mark.parametrize(("m", "count"), [(33, 33), (700, 9), (1100, 1025)])
@pytest.mark.parametrize("above", [False, True])
def test_permutation(m: int, count: int, above: bool, device: str) -> None:
    generator = torch.Generator().manual_seed(m)
    every = torch.randint(1, m + 1, (3, count), generator=generator, dtype=torch.int32)
    nearest = torch.zeros(count) if above else torch.arange(1, count + 1)
    pivots = every.maximum(nearest.int())
    pivots[1] = m
    permutation = _lu_plan.row_permutation(on(device, pivots), m)
    assert permutation.tolist() == [exchanged(swaps, m) for swaps in pivots.tolist()]


@pytest.mark.parametrize("groups", [0, _lu_plan.PERMUTE_GROUPS])
@pytest.mark.parametrize(("n", "k"), [(33, 1), (129, 70), (600, 33)])
@each_dtype
def test_permute(
    dtype: torch.dtype,
    n: int,
    k: int,
    groups: int,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
) -> None:
    monkeypatch.setattr(_lu_plan, "PERMUTE_GROUPS", groups)
    generator = torch.Generator().manual_seed(n)
    pivots = torch.randint(1, n + 1, (2, n), generator=generator, dtype=torch.int32)
    rows = torch.tensor([exchanged(swaps, n) for swaps in pivots.tolist()], dtype=torch.int32)
    B = on(device, testing.random((2, n, k), dtype))
    expected = torch.stack([b[r.long()] for b, r in zip(B, on(device, rows), strict=True)])
    X = torch.full((2, k, n), torch.nan, dtype=dtype, device=device).mT
    for right in (B, B.mT.contiguous().mT):
        for given, count in ((rows, 0), (pivots, n)):
            _lu_plan.permute(right, on(device, given), X.fill_(torch.nan), count)
            assert torch.equal(X, expected)
    for right in (expected, expected.mT.contiguous().mT):
        _lu_plan.permute(right, on(device, pivots), X.fill_(torch.nan), n, inverse=True)
        assert torch.equal(X, B)


@each_dtype
def test_unpack_gives_what_is_asked_for(dtype: torch.dtype, device: str) -> None:
    LU, pivots, _ = gallery_factors(dtype, 5, 8, device)
    every = _lu_plan.lu_unpack(LU, pivots, True, True)
    P, L, U = _lu_plan.lu_unpack(LU, pivots, True, False)
    assert P.shape == (0,)
    assert same((L, U), every[1:])
    P, L, U = _lu_plan.lu_unpack(LU, pivots, False, True)
    assert L.shape == U.shape == (0,)
    assert same((P,), every[:1])


def solve_all(LU: Tensor, pivots: Tensor, B: Tensor) -> Iterator[Tensor]:
    yield from (_lu_plan.lu_solve(LU, pivots, B, trans) for trans in range(3))


def everything(A: Tensor, B: Tensor) -> tuple[Tensor, ...]:
    """All that the plans compute of a batch of square matrices."""
    LU, pivots, info = factor(A)
    return LU, pivots, info, *solve_all(LU, pivots, B), *_lu_plan.lu_det(LU, pivots)


@pytest.mark.parametrize("n", [1, 3, 4, 5, 8, 9, 16, 17, 32])
@pytest.mark.parametrize("batch", [1, 2, 3, 5, 33])
@each_dtype
def test_batches_are_their_matrices(dtype: torch.dtype, batch: int, n: int, device: str) -> None:
    A = on(device, testing.random((batch, n, n), dtype))
    B = on(device, testing.random((batch, n, 3), dtype, seed=1))
    together = everything(A, B)
    for i in {0, batch // 2, batch - 1}:
        alone = everything(A[i : i + 1], B[i : i + 1])
        assert same([x[i : i + 1] for x in together], alone)


@pytest.mark.parametrize(
    "shape", [(5, 8), (16, 9), (20, 32), (33, 33), (65, 128), (513, 3)], ids=name
)
@each_dtype
def test_batches_of_rectangles(dtype: torch.dtype, shape: tuple[int, int], device: str) -> None:
    A = on(device, testing.random((5, *shape), dtype))
    together = factor(A)
    for i in range(5):
        assert same([x[i : i + 1] for x in together], factor(A[i : i + 1]))


@each_square_regime
@each_dtype
def test_a_bad_matrix_spoils_itself_only(dtype: torch.dtype, n: int, device: str) -> None:
    A = testing.random((5, n, n), dtype)
    B = on(device, testing.random((5, n, 2), dtype, seed=1))
    good, bad = [0, 4], [1, 2, 3]
    expected = [x[good] for x in everything(on(device, A), B)]
    for value in (torch.nan, torch.inf, -torch.inf, 0.0):
        A[1, :, n // 2] = value
        A[2, n - 1] = value
        A[3] = value
        results = everything(on(device, A), B)
        assert same([x[good] for x in results], expected)
        LU, pivots, info, *_, det, _, _ = (x.cpu()[bad] for x in results)
        assert ((torch.arange(1, n + 1) <= pivots) & (pivots <= n)).all()
        if value == 0.0:
            assert info.tolist() == lapack.getrf(A[bad])[2].tolist()
            assert not det.any()
        else:
            assert not LU.isfinite().flatten(1).all(1).any()
            assert not det.isfinite().any()


@each_regime
@each_dtype
def test_nan_never_hides(dtype: torch.dtype, shape: tuple[int, int], device: str) -> None:
    A = testing.random((3, *shape), dtype)
    A[0, -1, 0] = torch.nan
    A[1, 0, 0] = torch.nan
    A[2, shape[0] // 2, shape[1] - 1] = torch.nan
    LU, pivots, _ = factor(on(device, A))
    assert pivots[:2, 0].tolist() == [shape[0], 1]
    assert LU.isnan().flatten(1).any(1).all()


@each_regime
@each_dtype
def test_powers_of_two_are_exact(dtype: torch.dtype, shape: tuple[int, int], device: str) -> None:
    exponents = torch.arange(-80, 81, 1 if max(shape) <= 16 else 20)
    A = testing.random(shape, dtype)
    scale = torch.exp2(exponents.float())[:, None, None]
    LU, pivots, info = factor(on(device, A * scale))
    L, U, P, unscaled = LU.cpu().tril(-1), LU.cpu().triu(), pivots.cpu(), exponents == 0
    assert not info.any()
    assert torch.equal(P, P[unscaled].expand_as(P))
    assert torch.equal(L, L[unscaled].expand_as(L))
    assert torch.equal(U, U[unscaled] * scale)
    if shape[0] == shape[1]:
        B = testing.random((len(exponents), shape[0], 2), dtype)[:1].expand(len(exponents), -1, -1)
        for X in solve_all(LU, pivots, on(device, B)):
            assert torch.equal(X.cpu(), X[unscaled.to(device)].cpu() / scale)


@each_regime
@pytest.mark.parametrize("exponent", [-126, -101, -100, 100, 101, 126])
@each_dtype
def test_pivots_at_the_ends_of_the_range(
    dtype: torch.dtype, exponent: int, shape: tuple[int, int], device: str
) -> None:
    # The first column has entries of one size, so that none of its multiples is a denormal.
    A = testing.random((2, *shape), dtype)
    A[..., 0] = (
        A[..., 0].sgn()
        if not dtype.is_complex
        else torch.complex(A[..., 0].real.sgn(), A[..., 0].imag.sgn())
    )
    LU, pivots, info = factor(on(device, A))
    A[1, :, 0] *= 2.0**exponent
    scaled = factor(on(device, A))
    LU[1, 0, 0] *= 2.0**exponent
    assert same(scaled, (LU, pivots, info))


@each_regime
def test_pivots_without_a_real_part(shape: tuple[int, int], device: str) -> None:
    A = testing.random((3, *shape), torch.float32) * 1j
    judge_factors(A, [0, 0, 0], factor(on(device, A)))
    if shape[0] == shape[1]:
        judge_solutions(A, testing.random((3, shape[0], 2), torch.complex64, seed=2), (), device)


def hadamard(n: int, dtype: torch.dtype) -> Tensor:
    """Entries of equal size with orthogonal rows: the elimination is exact and full of ties."""
    corner = [[1, 1], [1, 1j]] if dtype.is_complex else [[1, 1], [1, -1]]
    H = torch.tensor(corner, dtype=dtype)
    while len(H) < n:
        H = torch.kron(H, torch.tensor([[1, 1], [1, -1]], dtype=dtype))
    return H


def exact_factors(A: NDArray[Any]) -> tuple[NDArray[Any], list[int]]:
    """LU and pivots of one matrix whose elimination rounds nothing; ties fall to the first row."""
    LU = A.copy()
    pivots = []
    for k in range(min(LU.shape)):
        p = k + int(weights(LU[k:, k]).argmax())
        pivots.append(p + 1)
        LU[[k, p]] = LU[[p, k]]
        if LU[k, k] != 0:
            LU[k + 1 :, k] /= LU[k, k]
            LU[k + 1 :, k + 1 :] -= np.outer(LU[k + 1 :, k], LU[k, k + 1 :])
    return LU, pivots


def with_ties(shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    if shape[0] == shape[1]:
        H = hadamard(shape[0], dtype)
        return H[torch.randperm(shape[0], generator=torch.Generator().manual_seed(shape[0]))]
    return testing.random(shape, dtype).real.sign().to(dtype)


@pytest.mark.parametrize(
    "shape",
    [
        *((2**e, 2**e) for e in range(1, 8)),
        (30, 3),
        (100, 3),
        (512, 3),
        (513, 3),
        (1025, 3),
        (2049, 3),
    ],
    ids=name,
)
@each_dtype
def test_ties_fall_to_the_first_row(
    dtype: torch.dtype, shape: tuple[int, int], device: str
) -> None:
    A = with_ties(shape, dtype)
    LU, pivots, info = factor(on(device, A[None]))
    expected_LU, expected_pivots = exact_factors(A.numpy())
    assert pivots.tolist() == [expected_pivots]
    np.testing.assert_array_equal(LU[0].numpy(force=True), expected_LU)
    assert not info.any()


@each_regime
def test_complex_pivots_weigh_real_and_imaginary_part(shape: tuple[int, int], device: str) -> None:
    # 5 - 2i has the larger modulus, 6 i too, but |re| + |im| are 7, 7 and 6: the first row wins.
    A = torch.zeros(2, *shape, dtype=torch.complex64)
    A[:, 0, 0] = torch.tensor(3 - 4j)
    A[:, -1, 0] = torch.tensor([5 - 2j, 6j])
    assert factor(on(device, A)).pivots[:, 0].tolist() == [1, 1]


@pytest.mark.parametrize("n", [3, 8, 16, 20, 40])
@pytest.mark.parametrize("scale", [1e-30, 1e30])
@each_dtype
def test_no_scale_costs_accuracy(dtype: torch.dtype, scale: float, n: int, device: str) -> None:
    A = testing.random((5, n, n), dtype) * scale
    LU, pivots, info = factor(on(device, A))
    theirs = lapack.getrf(A)
    assert not info.any()
    compare(testing.lu_ratio(A, LU, pivots), testing.lu_ratio(A, *theirs[:2]))
    for of_B in (scale, 1.0):
        B = testing.random((5, n, 2), dtype, seed=1) * of_B
        for trans, X in zip(TRANS, solve_all(LU, pivots, on(device, B)), strict=True):
            X_lapack = lapack.getrs(*theirs[:2], B, trans)
            compare(testing.solve_ratio(A, X, B, trans), testing.solve_ratio(A, X_lapack, B, trans))
    _, sign, logabsdet = _lu_plan.lu_det(LU, pivots)
    compare(
        testing.slogdet_ratio(A, sign, logabsdet),
        testing.slogdet_ratio(A, *np.linalg.slogdet(A.numpy())),
    )


@pytest.mark.parametrize(
    "diagonal",
    [
        (1e30, 1e30, 1e-30, 1e-30),
        (1e-30, 1e-30, 1e30, 1e30),
        (1e30, 1e-30, 1e30, 1e-30),
        (1e30,) * 20 + (1e-30,) * 20,
        (1e-30,) * 40 + (1e30,) * 40,
        (2.0**126, 2.0**-126, -(2.0**127), 2.0**-126),
        (1e38, 1e38),
        (2e-38, 2e-38),
        (1e38, 1e38, 0.0),
    ],
    ids=["up", "down", "alternating", "up_40", "down_80", "ends", "over", "under", "zero"],
)
@each_dtype
def test_determinant_of_any_range(
    dtype: torch.dtype, diagonal: tuple[float, ...], device: str
) -> None:
    unit = torch.tensor(0.6 + 0.8j if dtype.is_complex else -1.0, dtype=dtype)
    A = torch.diag(torch.tensor(diagonal, dtype=dtype) * unit)[None]
    LU, pivots, _ = factor(on(device, A))
    det, sign, logabsdet = _lu_plan.lu_det(LU, pivots)
    compare(testing.determinant_ratio(A, det), 0.0)
    compare(testing.slogdet_ratio(A, sign, logabsdet), 0.0)


@pytest.mark.parametrize("view", VIEWS)
@each_regime
@each_dtype
def test_strides(dtype: torch.dtype, shape: tuple[int, int], view: str, device: str) -> None:
    A = on(device, testing.random((3, *shape), dtype))
    assert same(factor(VIEWS[view](A)), factor(A))


@pytest.mark.parametrize("view", VIEWS)
@each_square_regime
@each_dtype
def test_strides_of_factors(dtype: torch.dtype, n: int, view: str, device: str) -> None:
    A, B = testing.random((3, n, n), dtype), testing.random((3, n, 5), dtype, seed=1)
    LU, pivots, _ = factor(on(device, A))
    strided = VIEWS[view](LU), pivots.mT.contiguous().mT
    assert same(_lu_plan.lu_det(*strided), _lu_plan.lu_det(LU, pivots))
    assert same(
        _lu_plan.lu_unpack(*strided, True, True), _lu_plan.lu_unpack(LU, pivots, True, True)
    )
    theirs = lapack.getrf(A)
    for trans, X in zip(TRANS, solve_all(*strided, VIEWS[view](on(device, B))), strict=True):
        X_lapack = lapack.getrs(*theirs[:2], B, trans)
        compare(testing.solve_ratio(A, X, B, trans), testing.solve_ratio(A, X_lapack, B, trans))


@each_square_regime
@each_dtype
def test_one_matrix_as_a_batch(dtype: torch.dtype, n: int, device: str) -> None:
    A = on(device, testing.random((1, n, n), dtype))
    B = on(device, testing.random((4, n, 3), dtype, seed=1))
    assert same(factor(A.expand(4, n, n)), (x[[0] * 4] for x in factor(A[[0] * 4])))
    LU, pivots, _ = factor(A)
    expanded, copied = ([x.expand(4, *x.shape[1:]), x[[0] * 4]] for x in (LU, pivots))
    for factors in zip(expanded, copied, strict=True):
        assert same(_lu_plan.lu_det(*factors), (x[[0] * 4] for x in _lu_plan.lu_det(LU, pivots)))
        for trans, X in zip(TRANS, solve_all(*factors, B), strict=True):
            X_lapack = lapack.getrs(*lapack.getrf(A.expand(4, n, n))[:2], B, trans)
            compare(testing.solve_ratio(A, X, B, trans), testing.solve_ratio(A, X_lapack, B, trans))


@pytest.mark.parametrize("shape", [(0, 0), (3, 0, 0), (2, 0, 3), (2, 3, 0), (0, 3, 3), (0, 40, 40)])
@each_dtype
def test_empty(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    *batch, m, n = shape
    A = torch.empty(shape, dtype=dtype, device=device)
    LU, pivots, info = factor(A)
    assert LU.shape == A.shape
    assert pivots.shape == (*batch, min(m, n))
    assert info.tolist() == torch.zeros(batch, dtype=torch.int32).tolist()
    P, L, U = _lu_plan.lu_unpack(LU, pivots, True, True)
    assert torch.equal(P.cpu(), torch.eye(m, dtype=dtype).expand(*batch, m, m))
    assert L.shape == (*batch, m, min(m, n))
    assert U.shape == (*batch, min(m, n), n)
    if m == n:
        assert all((x == 1).all() for x in _lu_plan.lu_det(LU, pivots)[:2])
        assert all(
            X.shape == (*batch, n, 2) for X in solve_all(LU, pivots, A.new_empty(*batch, n, 2))
        )
        assert all(
            X.shape == (*batch, n, 0) for X in solve_all(LU, pivots, A.new_empty(*batch, n, 0))
        )
