"""The launch plan of the triangular solve on the checked engine."""

import functools

import pytest
import torch
from torch import Tensor

from mpslinalg import _triangular_plan, testing
from mpslinalg.testing import compare
from tests import lapack
from tests.inputs import DOUBLES, SINGLES, VIEWS, name, on
from tests.lapack import TRANS, Trans

pytestmark = pytest.mark.usefixtures("checked")

# Around every number of rows at which something changes: 4, 16, 32, 64, 128.
SIZES = (1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
COUNTS = (1, 7, 8, 9, 64)

each_dtype = pytest.mark.parametrize("dtype", SINGLES, ids=name)
each_upper = pytest.mark.parametrize("upper", [False, True], ids=["lower", "upper"])
each_unit = pytest.mark.parametrize("unit", [False, True], ids=["non_unit", "unit"])
each_plan = pytest.mark.parametrize("steps", [False, True], ids=["alone", "steps"], indirect=True)
each_size = pytest.mark.parametrize("n", [1, 5, 32, 40])


@pytest.fixture(autouse=True)
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether few matrices are solved in steps, as where groups run side by side."""
    chosen: bool = getattr(request, "param", False)
    monkeypatch.setattr(_triangular_plan, "side_by_side", lambda X: chosen)
    return chosen


@functools.cache
def families(n: int, dtype: torch.dtype, upper: bool) -> list[testing.Triangle]:
    return list(testing.triangular(n, dtype, upper, seed=n))


def triangles(n: int, dtype: torch.dtype, upper: bool, unit: bool) -> Tensor:
    """The families whose solutions are finite, as one batch."""
    made = [T.A for T in families(n, dtype, upper) if T.unit == unit and not T.zero]
    return torch.stack(made)


def with_other_triangle(A: Tensor, upper: bool, unit: bool, value: float) -> Tensor:
    """The other triangle, and a diagonal that is taken as 1, hold what must not be read."""
    mask = torch.ones(A.shape[-2:])
    read = mask.triu(int(unit)) if upper else mask.tril(-int(unit))
    return torch.where(read.bool(), A, value)


def solve(
    A: Tensor,
    B: Tensor,
    upper: bool,
    unit: bool,
    trans: Trans,
    device: str,
    row_major: bool = False,
) -> Tensor:
    X = _triangular_plan.solve_triangular(
        on(device, A), on(device, B), upper, unit, TRANS.index(trans), row_major
    ).cpu()
    assert (X if row_major else X.mT).is_contiguous()
    return X


def column_major(A: Tensor) -> Tensor:
    return A.mT.contiguous().mT


def judge(A: Tensor, k: int, upper: bool, unit: bool, trans: Trans, bits: int, device: str) -> None:
    """`bits` choose how A, B and X are stored."""
    X_true = testing.random((len(A), A.shape[-1], k), A.dtype, seed=2)
    op = A if trans == "N" else A.mT if trans == "T" else A.mH
    exact = op.to(torch.complex128) @ X_true.to(torch.complex128)
    B = (exact if A.dtype.is_complex else exact.real).to(A.dtype)
    stored = with_other_triangle(A, upper, unit, torch.nan)
    a, b = column_major(stored) if bits & 1 else stored, column_major(B) if bits & 2 else B
    X = solve(a, b, upper, unit, trans, device, bool(bits & 4))
    X_lapack = lapack.trtrs(A, B, upper, unit, trans)
    compare(testing.solve_ratio(A, X, B, trans), testing.solve_ratio(A, X_lapack, B, trans))
    compare(
        testing.forward_ratio(A, X, X_true, trans),
        testing.forward_ratio(A, X_lapack, X_true, trans),
    )


@pytest.mark.parametrize("n", SIZES)
@each_dtype
def test_families(dtype: torch.dtype, n: int, device: str) -> None:
    # All counts at every size, all flags and layouts over the counts and sizes.
    for position, k in enumerate(COUNTS):
        case = 7 * n + 3 * position
        for unit in (False, True):
            upper = bool(case & 1) != unit
            A = triangles(n, dtype, upper, unit)
            if k > 8 and n > 33:
                A = A[position % 2 :: 4]
            judge(A, k, upper, unit, TRANS[case % 3], case >> 1, device)


@each_unit
@each_upper
@pytest.mark.parametrize("n", [4, 33])
@pytest.mark.parametrize("dtype", SINGLES + DOUBLES, ids=name)
def test_every_flag(dtype: torch.dtype, n: int, upper: bool, unit: bool, device: str) -> None:
    A = triangles(n, dtype, upper, unit)[:4]
    for trans in TRANS:
        for bits in range(8):
            judge(A, 3 if bits & 2 else 9, upper, unit, trans, bits, device)


@pytest.mark.parametrize(("n", "k"), [(257, 33), (1025, 1), (513, 8)])
@each_dtype
def test_parts(dtype: torch.dtype, n: int, k: int, device: str) -> None:
    # One row more than one launch takes, of many columns and of few.
    A = testing.random((1, n, n), dtype) / n**0.5 + 3 * torch.eye(n)
    B = testing.random((1, n, k), dtype, seed=2)
    cases: list[tuple[bool, Trans]] = [(False, "N"), (True, "C")]
    for upper, trans in cases:
        T = A.triu() if upper else A.tril()
        X, X_lapack = (
            solve(A, B, upper, False, trans, device),
            lapack.trtrs(A, B, upper, False, trans),
        )
        compare(testing.solve_ratio(T, X, B, trans), testing.solve_ratio(T, X_lapack, B, trans))


in_steps = pytest.mark.parametrize("steps", [True], ids=["steps"], indirect=True)


# A square more or less, a step more or less.
@in_steps
@pytest.mark.parametrize("n", [33, 64, 97, 128, 129, 161])
@each_dtype
def test_steps(dtype: torch.dtype, n: int, device: str) -> None:
    for case, k in enumerate((1, 2, 5)):
        for unit in (False, True):
            upper = bool((n + case) & 1) != unit
            A = triangles(n, dtype, upper, unit)
            judge(A[case % 2 :: 2], k, upper, unit, TRANS[(n + case) % 3], n + 3 * case, device)


@in_steps
@each_upper
@pytest.mark.parametrize("dtype", SINGLES + DOUBLES, ids=name)
def test_every_flag_in_steps(dtype: torch.dtype, upper: bool, device: str) -> None:
    for unit in (False, True):
        A = triangles(33, dtype, upper, unit)[2:4]
        for trans in TRANS:
            for bits in range(8):
                judge(A, 3 if bits & 2 else 1, upper, unit, trans, bits, device)


@in_steps
@pytest.mark.parametrize("k", [1, 5])
@each_dtype
def test_steps_of_a_matrix_are_its_own(
    dtype: torch.dtype, k: int, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    # Three steps, whose launches hand over what is left in turn; then the same in two parts.
    A = testing.random((2, 290, 290), dtype) / 17 + 3 * torch.eye(290)
    B = testing.random((2, 290, k), dtype, seed=2)
    X = solve(A, B, True, False, "N", device)
    assert torch.equal(X[1:], solve(A[1:], B[1:], True, False, "N", device))
    groups = 2 * -(-k // 4)
    monkeypatch.setattr(
        _triangular_plan, "STEP_GROUPS", groups if A.element_size() <= 4 else 2 * groups
    )
    for result in (X, solve(A, B, True, False, "N", device)):
        compare(
            testing.solve_ratio(A.triu(), result, B),
            testing.solve_ratio(A.triu(), lapack.trtrs(A, B, True, False), B),
        )


# Fewer chunks than squares on the diagonal, and more, the last one not full; rows below and none.
@in_steps
@pytest.mark.parametrize(("n", "k"), [(33, 9), (97, 23), (128, 7), (161, 21)])
@each_dtype
def test_chunks_of_a_group(
    dtype: torch.dtype, n: int, k: int, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    for unit in (False, True):
        upper = bool(n & 1) != unit
        A = triangles(n, dtype, upper, unit)[:3]
        B = testing.random((len(A), n, k), dtype, seed=2)
        with monkeypatch.context() as room:
            alone = solve(A, B, upper, unit, TRANS[k % 3], device)
            room.setattr(_triangular_plan, "STEP_SIMDGROUPS", 0)
            X = solve(A, B, upper, unit, TRANS[k % 3], device)
            judge(A[2:], k, upper, unit, TRANS[n % 3], n + k, device)
        assert torch.equal(X, alone)


@pytest.mark.parametrize("batch", [31, 33])
@pytest.mark.parametrize(("n", "k"), [(3, 1), (4, 5), (8, 2), (7, 8), (13, 4)])
@each_dtype
def test_matrices_that_share_a_simdgroup(
    dtype: torch.dtype, n: int, k: int, batch: int, device: str
) -> None:
    A = testing.random((batch, n, n), dtype) + 4 * n**0.5 * torch.eye(n)
    B = testing.random((batch, n, k), dtype, seed=1)
    X = solve(A, B, True, False, "N", device)
    one = torch.cat(
        [solve(a[None], b[None], True, False, "N", device) for a, b in zip(A, B, strict=True)]
    )
    assert torch.equal(X, one)
    compare(
        testing.solve_ratio(A.triu(), X, B),
        testing.solve_ratio(A.triu(), lapack.trtrs(A, B, True, False), B),
    )


@pytest.mark.parametrize(("n", "k"), [(17, 9), (33, 2), (48, 8), (64, 7), (64, 16), (129, 33)])
@each_dtype
def test_many_simdgroups(
    dtype: torch.dtype, n: int, k: int, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(_triangular_plan, "FEW_SIMDGROUPS", 0)
    for unit in (False, True):
        for case in range(6):
            upper = bool(case & 1)
            A = triangles(n, dtype, upper, unit)
            judge(A[case // 2 :: 3], k, upper, unit, TRANS[(case + n) % 3], case + n, device)


@pytest.mark.parametrize("trans", TRANS)
@each_upper
@each_size
@each_dtype
def test_powers_of_two_are_exact(
    dtype: torch.dtype, n: int, upper: bool, trans: Trans, device: str
) -> None:
    exponents = torch.arange(-60, 61, 20)
    scale = torch.exp2(exponents.float())[:, None, None]
    A = testing.random((n, n), dtype) + 4 * n**0.5 * torch.eye(n)
    B = testing.random((n, 3), dtype, seed=1).expand(len(scale), n, 3)
    X = solve(A * scale, B, upper, False, trans, device)
    assert torch.equal(X, X[exponents == 0] / scale)
    X = solve(A.expand(len(scale), n, n), B * scale, upper, False, trans, device)
    assert torch.equal(X, X[exponents == 0] * scale)


@each_plan
@pytest.mark.parametrize("n", [4, 40])
@each_dtype
def test_a_divisor_whose_inverse_overflows(dtype: torch.dtype, n: int, device: str) -> None:
    # Smallest normal numbers: their quotients are representable.
    tiny = torch.finfo(dtype).tiny
    A = (2 * tiny * torch.eye(n, dtype=dtype)).expand(2, n, n)
    B = testing.random((2, n, 2), dtype) * 2.0**-70
    for k in (1, 2):
        X = solve(A, B[..., :k], False, False, "N", device)
        assert torch.equal(X, B[..., :k] * 2.0**125)


@each_plan
@pytest.mark.parametrize("k", [2, 9])
@each_upper
@pytest.mark.parametrize("n", [1, 5, 32, 65])
@each_dtype
def test_a_zero_on_the_diagonal(
    dtype: torch.dtype, n: int, upper: bool, k: int, device: str
) -> None:
    (T,) = (T for T in families(n, dtype, upper) if T.zero)
    A = torch.stack([T.A + torch.eye(n), T.A, T.A + torch.eye(n)])
    B = testing.random((3, n, k), dtype, seed=1)
    X = solve(A, B, upper, False, "N", device)
    expected = solve(A + torch.eye(n) * (A == 0), B, upper, False, "N", device)
    assert torch.equal(X[[0, 2]], expected[[0, 2]])
    before = slice(T.zero, None) if upper else slice(T.zero - 1)
    assert torch.equal(X[1, before], expected[1, before])
    assert not X[1, T.zero - 1].isfinite().any()
    if not dtype.is_complex:
        assert X[1, T.zero - 1].isinf().all()
    assert solve(A, B, upper, True, "N", device).isfinite().all()


@each_plan
@pytest.mark.parametrize("n", [1, 5, 32, 65])
@each_dtype
def test_a_bad_column_spoils_itself_only(dtype: torch.dtype, n: int, device: str) -> None:
    A = testing.random((2, n, n), dtype) + 4 * n**0.5 * torch.eye(n)
    for k in (5, 9):
        B = testing.random((2, n, k), dtype, seed=1)
        expected = solve(A, B, True, False, "N", device)
        good = [0, 1, *range(3, k)]
        for value in (torch.nan, torch.inf):
            B[0, n - 1, 2] = value
            X = solve(A, B, True, False, "N", device)
            assert torch.equal(X[1], expected[1])
            assert not X[0, :, 2].isfinite().any()
            assert torch.equal(X[0][:, good], expected[0][:, good])


@each_plan
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 5), (32, 2), (65, 3), (40, 9)])
@each_dtype
def test_strides(dtype: torch.dtype, n: int, k: int, view: str, device: str) -> None:
    A = testing.random((3, n, n), dtype) + 4 * n**0.5 * torch.eye(n)
    B = testing.random((3, n, k), dtype, seed=1)
    a, b = (VIEWS[view](on(device, x)) for x in (A, B))
    for trans in TRANS:
        X = _triangular_plan.solve_triangular(a, b, True, False, TRANS.index(trans))
        compare(
            testing.solve_ratio(A.triu(), X, B, trans),
            testing.solve_ratio(A.triu(), lapack.trtrs(A, B, True, False, trans), B, trans),
        )


@pytest.mark.parametrize(
    "shapes", [((0, 0), (0, 2)), ((3, 0, 0), (3, 0, 2)), ((0, 3, 3), (0, 3, 2))]
)
@each_dtype
def test_empty(
    dtype: torch.dtype, shapes: tuple[tuple[int, ...], tuple[int, ...]], device: str
) -> None:
    A, B = (torch.empty(s, dtype=dtype) for s in shapes)
    for trans in TRANS:
        assert solve(A, B, True, False, trans, device).shape == B.shape
    A, B = torch.ones(2, 3, 3, dtype=dtype), torch.empty(2, 3, 0, dtype=dtype)
    assert solve(A, B, True, False, "N", device).shape == B.shape
