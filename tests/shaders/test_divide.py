"""The launch plans of divide and conquer: at every boundary on the checked engine, then larger."""

import numpy as np
import pytest
import torch
from torch import Tensor

from mpslinalg import _divide_plan, testing
from mpslinalg.testing import EIGH_THRESHOLD, compare
from tests import lapack
from tests.inputs import name, on

FLOAT, DOUBLE = torch.float32, torch.float64
# A leaf alone; four, with and without padding; a level more.
SIZES = (1, 2, 31, 32, 33, 63, 64, 65, 100)


def families(n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Diagonals and what is beside them: of tridiagonal and of bidiagonal matrices."""
    rng = np.random.default_rng(n)
    i, ones, beside = np.arange(n), np.ones(n), np.ones(n - 1)
    normal, also_normal = rng.standard_normal(n), rng.standard_normal(n - 1)
    three = np.repeat([1.0, 0.5, -1.0], n // 3 + 1)[:n]
    half = np.where(i < n // 2, normal, 0)
    some = rng.random(n - 1) < 0.3
    pairs = [
        (normal, also_normal),
        # Wilkinson's W21, glued: clusters that are no repeated eigenvalues.
        (np.abs(i % 21 - 10.0), np.where(i[:-1] % 21 == 20, 1e-4, 1.0)),
        # Singular values at zero: half of the diagonal, then of the matrix.
        (half, also_normal),
        (2 * ones, -beside),
        (half, np.where(half[:-1] == 0, 0, also_normal)),
        (three + 1e-7 * normal, 1e-3 * also_normal * some),
        (ones, 1e-6 * beside),
        (three, 0 * beside),
        (normal, 0 * beside),
        (normal, also_normal * some),
        (normal, 10 ** (-12 * rng.random(n - 1))),
        (10 ** (-20 * i / n), 0.5 * 10 ** (-20 * i[1:] / n)),
        (10 ** (-20 * i[::-1] / n), 0.5 * 10 ** (-20 * i[:0:-1] / n)),
        # In double precision a root is as near to its pole as any.
        (np.where(i % 2 == 1, 1.0, 1e-6), np.where(i[:-1] % 2 == 1, 1e-14, 0)),
        (0 * ones, beside),
        (0 * ones, 0 * beside),
        (1e-5 * ones, beside),
        (np.where(i == 0, 0, ones), beside),
        (np.where(i == n - 1, 0, ones), beside),
        (np.where(rng.random(n) < 0.3, 0, normal), also_normal),
    ]
    d, e = (torch.from_numpy(np.stack(x)).to(dtype) for x in zip(*pairs, strict=True))
    return d, e


def judge_tridiagonal(d: Tensor, e: Tensor, device: str) -> None:
    w, Z = (x.cpu() for x in _divide_plan.tridiagonal(on(device, d), on(device, e)))
    T = torch.diag_embed(d) + torch.diag_embed(e, 1) + torch.diag_embed(e, -1)
    assert Z.stride()[1:] == T[0].T.stride()
    compare(testing.eigh_ratio(T, w, Z), testing.eigh_ratio(T, *lapack.eigh(T)), EIGH_THRESHOLD)


def judge_bidiagonal(d: Tensor, e: Tensor, device: str) -> None:
    U, s, V = (x.cpu() for x in _divide_plan.bidiagonal(on(device, d), on(device, e)))
    B = torch.diag_embed(d) + torch.diag_embed(e, 1)
    assert U.stride()[1:] == V.stride()[1:] == B[0].T.stride()
    compare(testing.svd_ratio(B, U, s, V.mT), testing.svd_ratio(B, *lapack.svd(B)))


JUDGES = {"tridiagonal": judge_tridiagonal, "bidiagonal": judge_bidiagonal}
each_problem = pytest.mark.parametrize("problem", JUDGES)


@each_problem
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.usefixtures("checked")
def test_boundaries(problem: str, n: int, device: str) -> None:
    d, e = families(n, FLOAT)
    few = 3 if n < 100 else 2
    JUDGES[problem](d[:few], e[:few], device)


@each_problem
@pytest.mark.usefixtures("checked")
def test_large_nodes(problem: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nodes of more rows launch, with little for the checker to do."""
    monkeypatch.setattr(_divide_plan, "SMALL", 0)
    d, e = families(50, FLOAT)
    JUDGES[problem](d[:3], e[:3], device)


@each_problem
@pytest.mark.parametrize(("dtype", "n"), [(FLOAT, 33), (FLOAT, 128), (DOUBLE, 70)], ids=name)
def test_families(problem: str, dtype: torch.dtype, n: int, device: str) -> None:
    JUDGES[problem](*families(n, dtype), device)


@each_problem
def test_large(problem: str, device: str) -> None:
    d, e = families(1024, FLOAT)
    JUDGES[problem](d[1:2], e[1:2], device)


@each_problem
def test_powers_of_two_only_scale(problem: str, device: str) -> None:
    d, e = families(70, FLOAT)
    d, e = on(device, d[:3]), on(device, e[:3])
    run = getattr(_divide_plan, problem)
    plain = run(d, e)
    for k in (-40, 41):
        for scaled, one in zip(run(d * 2.0**k, e * 2.0**k), plain, strict=True):
            assert torch.equal(scaled, one * 2.0**k if one.dim() == 2 else one)


@each_problem
def test_batches_are_their_matrices(problem: str, device: str) -> None:
    d, e = (on(device, x) for x in families(40, FLOAT))
    run = getattr(_divide_plan, problem)
    together = run(d, e)
    for i in (0, 1, 8):
        for all_of_them, one in zip(together, run(d[i : i + 1], e[i : i + 1]), strict=True):
            assert torch.equal(all_of_them[i], one[0])


@each_problem
def test_what_is_not_finite_counts_as_zero(problem: str, device: str) -> None:
    d, e = (x[:3] for x in families(70, FLOAT))
    d[1, 4] = e[1, 17] = 0
    run = getattr(_divide_plan, problem)
    expected = run(on(device, d), on(device, e))
    d[1, 4], e[1, 17] = torch.nan, -torch.inf
    for ours, theirs in zip(run(on(device, d), on(device, e)), expected, strict=True):
        assert torch.equal(ours, theirs)
