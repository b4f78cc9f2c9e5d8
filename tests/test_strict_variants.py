"""Every variant that a plan can launch in float32 or complex64 is checked as Metal.

An engine that launches nothing takes the place of the real one, so what is checked depends neither
on what other tests launch nor on their order. conftest.py asserts that nothing else was launched.
"""

import functools
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from mpslinalg import (
    _bidiagonal_plan,
    _cholesky_plan,
    _determinant_plan,
    _divide_plan,
    _eig_large_plan,
    _eig_plan,
    _eigh_plan,
    _elementwise_plan,
    _engines,
    _gated_delta_plan,
    _indexing,
    _indexing_plan,
    _inverse_plan,
    _ldl_plan,
    _lstsq_plan,
    _lu_plan,
    _matrix_exp_plan,
    _products,
    _qr_pivoted_plan,
    _qr_plan,
    _solve_plan,
    _special_plan,
    _svd_plan,
    _triangular_plan,
)
from mpslinalg._engines import metal, source
from tests.inputs import SMALL_WINDOW
from tests.strict.check import check

DTYPES = (torch.float32, torch.complex64)


class Launch(NamedTuple):
    shader: str
    name: str
    template: tuple[str, ...]
    threads: tuple[int, ...]
    group: tuple[int, ...]


class DryRun(_engines.Engine):
    """An engine that writes down what it is to launch."""

    name = "dry run"

    def __init__(self, side_by_side: bool) -> None:
        self.side_by_side = side_by_side
        self.launches: list[Launch] = []

    def compile(self, shader: str, name: str, template: tuple[str, ...]) -> _engines.Launcher:
        launches = self.launches

        class Launcher(_engines.Launcher):
            def __call__(
                self,
                arguments: Sequence[Tensor | int | float],
                threads: tuple[int, ...],
                group: tuple[int, ...],
            ) -> None:
                launches.append(Launch(shader, name, template, threads, group))

        return Launcher()


def around(*sizes: int) -> list[int]:
    """These sizes and their neighbours."""
    return sorted({size + step for size in sizes for step in (-1, 0, 1)} - {0})


def recorded(plans: Callable[[], object], side_by_side: bool) -> list[Launch]:
    """What plans would launch on an engine of that kind."""
    dry = DryRun(side_by_side)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(_engines.ENGINES, "cpu", dry)
        patch.setattr(_engines, "launched", set())
        plans()
    return dry.launches


def fits(launch: Launch) -> bool:
    """Whether Metal takes the grid of a launch, and the kernel can work in its groups."""
    signature = source.signature(launch.shader, launch.name)
    sizes = zip(launch.threads, launch.group, strict=True)
    whole = all(t % g == 0 for t, g in sizes) and prod(launch.group) % 32 == 0
    return (
        prod(launch.group) <= signature.max_threads
        and all(0 < size < 2**32 for size in launch.threads)
        and (whole or not signature.cooperative)
    )


# Where the plans turn from one kernel or variant to another: matrix sizes, rows of a panel,
# right-hand sides.
SIZES = around(1, 2, 3, _lu_plan.TINY, _lu_plan.DET_TINY, 8, 16, _lu_plan.SIMD, _lu_plan.PANEL)
SIZES += [*range(40, _lu_plan.ROWS, 8), *around(64, 96, _lu_plan.ROWS)]
CHOLESKY_SIZES = around(1, 2, 3, 4, 8, 16, 32, 64, 128, 256)
ROWS = around(*(rows * _lu_plan.MAX_THREADS for rows in (1, 2, 4, 8, 16, 32, 64)))
COLUMNS = around(1, 2, 3, _triangular_plan.FEW, 32, 64)


def run_plans(dtype: torch.dtype) -> None:
    """Every plan function in every regime."""
    for n in SIZES:
        A = torch.zeros(2, n, n, dtype=dtype)
        _inverse_plan.inv(A)
        _inverse_plan.inv(A.mT)
        _determinant_plan.det(A)
        _determinant_plan.slogdet(A)
        for hermitian in (False, True):
            LD, pivots, _ = _ldl_plan.ldl_factor(A, hermitian)
            for B in (A, A[..., :1]):
                _ldl_plan.ldl_solve(LD, pivots, B, hermitian)
        for m in SIZES:
            LU, pivots, _ = _lu_plan.lu_factor(torch.zeros(2, m, n, dtype=dtype), True)
            _lu_plan.lu_unpack(LU, pivots, True, True)
        LU, pivots, info = _lu_plan.lu_factor(A, False)
        _lu_plan.lu_det(LU, pivots)
        for k in COLUMNS:
            B = torch.zeros(2, n, k, dtype=dtype)
            if n <= _lu_plan.SIMD:
                _solve_plan.solve(A, B)
            for trans in (0, 1, 2):
                _lu_plan.lu_solve(LU, pivots, B, trans)
                for upper in (False, True):
                    _triangular_plan.solve_triangular(A, B, upper, False, trans)
    tall = _ldl_plan.MAX_THREADS + 1
    _ldl_plan.ldl_factor(torch.zeros(1, tall, tall, dtype=dtype), False)
    # Large batches, and triangles that parts of a few columns solve.
    many = _triangular_plan.FEW_SIMDGROUPS + 1
    for batch, n, k in ((many, 40, 8), (many, 40, 16), (many, 129, 33), (1, 600, 1), (1, 600, 8)):
        A = torch.zeros(n, n, dtype=dtype).expand(batch, n, n)
        B = torch.zeros(n, k, dtype=dtype).expand(batch, n, k)
        _triangular_plan.solve_triangular(A, B, False, False, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_lu_plan, "LOOKAHEAD_ROWS", 1)
        patch.setattr(_lu_plan, "LOOKAHEAD_ENTRIES", 1)
        for m in ROWS:
            for n in (1, 40):
                _lu_plan.lu_factor(torch.zeros(1, m, n, dtype=dtype), True)
    _engines.kernel("info", "info_any", "int")(info, info, 2, threads=(256,), group=(256,))
    products = _cholesky_plan.PANEL + _products.PRODUCT + 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_cholesky_plan, "STEP_MATRICES", 0)
        for n in (*CHOLESKY_SIZES, products):
            _cholesky_plan.cholesky(torch.zeros(1, n, n, dtype=dtype), False)
    for n in CHOLESKY_SIZES:
        A = torch.zeros(2, n, n, dtype=dtype)
        for upper in (False, True):
            _cholesky_plan.cholesky(A, upper)
            _cholesky_plan.cholesky_inverse(A, upper)
            for k in COLUMNS:
                _cholesky_plan.cholesky_solve(torch.zeros(2, n, k, dtype=dtype), A, upper)


def run_qr(dtype: torch.dtype) -> None:
    """Each width of a simdgroup's team, a threadgroup, several, and panels of either height."""
    tall = ((200, 20), (600, 8), (200, 40), (600, 40))
    for shape in ((3, 4), (5, 8), (16, 9), (32, 20), *tall, (40, 70), (600, 50)):
        for mode in ("reduced", "complete", "r"):
            _qr_plan.qr(torch.zeros(2, *shape, dtype=dtype), mode)
            _qr_pivoted_plan.qr_pivoted(torch.zeros(2, *shape, dtype=dtype), mode)
            _svd_plan.svd(torch.zeros(2, *shape, dtype=dtype), mode == "complete")
    n = _svd_plan.MAX_WIDTH
    _svd_plan.svd(torch.zeros(2, n, n, dtype=dtype), False)
    A, tau = torch.zeros(2, 70, 40, dtype=dtype), torch.zeros(2, 40, dtype=dtype)
    _qr_plan.geqrf(A)
    _qr_plan.householder_product(A, tau)
    _qr_plan.ormqr(A, tau, A, True, True)
    _lstsq_plan.gels(A, A)
    A, wide = torch.zeros(1, 600, 1, dtype=dtype), _products.PRODUCT + 1
    _qr_plan.ormqr(A, tau[:1, :1], torch.zeros(1, 600, wide, dtype=dtype), True, True)


def run_bidiagonal(dtype: torch.dtype) -> None:
    """Groups of both sizes, QR first, launches for few matrices and for many."""
    for batch, m, n in ((2, 40, 40), (2, 80, 40), (2, 90, 80), (1, 150, 150), (30, 150, 150)):
        A, values = torch.zeros(1, m, n, dtype=dtype).expand(batch, m, n), torch.zeros(batch, n)
        X, info = torch.zeros(batch, m, n, dtype=dtype), torch.zeros(batch, dtype=torch.int32)
        _bidiagonal_plan.svd(A, X, values, X[:, :n].clone(), info)
        _bidiagonal_plan.svdvals(A, values, info)


def run_eigh(dtype: torch.dtype) -> None:
    """Each width of a simdgroup's team, a threadgroup, and panels."""
    for n in (3, 8, 16, 32, 33, 257, 600):
        for vectors in (False, True):
            _eigh_plan.eigh(torch.zeros(2, n, n, dtype=dtype), True, vectors)


def run_eig(dtype: torch.dtype) -> None:
    """A simdgroup, a threadgroup, and all of them with windows of two sizes."""
    for n in (16, 32, 33, _eig_plan.MAX_ROWS):
        _eig_plan.eig(torch.zeros(2, n, n, dtype=dtype), True)
    n = _eig_plan.MAX_ROWS + 1
    for sizes in (_eig_large_plan.WINDOW, dict.fromkeys((4, 8), SMALL_WINDOW)):
        rounds = iter([[[n, 0, 0, 2]], [[0, 0, 0, 0]]])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_eig_large_plan, "WINDOW", sizes)
            patch.setattr(_eig_large_plan, "progress", lambda state, left=rounds: next(left))
            _eig_plan.eig(torch.zeros(1, n, n, dtype=dtype), True)


def run_matrix_exp(dtype: torch.dtype) -> None:
    """Each width of a group, and products."""
    for n in (*_matrix_exp_plan.OWNED, _matrix_exp_plan.FUSED + 1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_matrix_exp_plan, "most", lambda squarings: 1)
            _matrix_exp_plan.matrix_exp(torch.zeros(2, n, n, dtype=dtype))


def run_divide() -> None:
    """A leaf alone, nodes that merge in one launch and others."""
    for n in (3, 8, 16, 32, 33, _divide_plan.SMALL + 1):
        _divide_plan.tridiagonal(torch.zeros(1, n), torch.zeros(1, n - 1))
        _divide_plan.bidiagonal(torch.zeros(1, n), torch.zeros(1, n - 1))


def run_gated_delta() -> None:
    """The chunk solve from and to every dtype that Metal has; the other kernels."""
    starts = torch.tensor([0, 3, 5], dtype=torch.int32)
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    for size, given, result in product(_gated_delta_plan.CHUNK_SIZES, dtypes, dtypes):
        A = torch.zeros(1, 5, 2, size, dtype=given)
        for of_sequences in (None, starts):
            _gated_delta_plan.solve_tril(A, of_sequences, result)
    keys, gates = torch.zeros(2, 64, 8), torch.zeros(2, 64)
    _gated_delta_plan.system(keys, gates, gates)
    for given in dtypes:
        tokens, gates = torch.zeros(1, 2, 1, 3, dtype=given), torch.zeros(1, 2, 1)
        state = torch.zeros(1, 1, 3, 3)
        _gated_delta_plan.step(tokens, tokens, tokens, gates, gates.to(given), state, True)


def run_indexing() -> None:
    """Elements of every size that Metal has, vectors and tensors of more sides, either index."""
    dtypes = (torch.uint8, torch.float16, torch.float32, torch.complex64, torch.int32, torch.int64)
    for dtype, index in product(dtypes, _indexing.INDICES):
        A, at = torch.zeros(4, 6, dtype=dtype), torch.zeros(3, dtype=index)
        for input in (A, A[:, :3]):
            _indexing_plan.take(input, at, 2, 1)
            for accumulate in (False, True):
                _indexing_plan.put_into(input, at, A[0, :3], accumulate, 2, 1)
    many = torch.zeros(1).expand(_indexing_plan.NARROW + 1)
    for dtype in _indexing.INDICES:
        _indexing_plan.put_into(many, torch.zeros(3, dtype=dtype), torch.zeros(3), True, 1, 1)
        values = torch.zeros(3, dtype=dtype)
        _indexing_plan.counts_in_range(values, 0, 2, 2)
        _indexing_plan.counts_of_many(values, 2)


def run_elementwise() -> None:
    """Every operation on the bits of every width, every special function."""
    for dtype in _elementwise_plan.REALS:
        x = torch.zeros(2, dtype=dtype)
        if dtype.is_floating_point:
            _elementwise_plan.frexp(x)
        # The variant of frexp for doubles does not say that it is for what Metal lacks.
        if dtype == torch.float64:
            continue
        _elementwise_plan.compare(x, x, 0, "eq")
        _elementwise_plan.heaviside(x, x)
        _elementwise_plan.heaviside(x.expand(2, *x.shape), x.expand(2, *x.shape))
        _elementwise_plan.logspace(x, 0, 1, 2, 2)
    x = torch.zeros(2)
    for name, order in product(_special_plan.POLYNOMIALS, (0, 1)):
        _special_plan.polynomial(x, x, 0, name, order)
    _special_plan.airy(x, 0)
    for name in ("log_ndtr", "hazard", "ndtri"):
        _special_plan.normal(x, name)


@functools.cache
def all_launches() -> dict[str, set[Launch]]:
    """All launches of all plans, by shader."""
    found: dict[str, set[Launch]] = {}
    with pytest.MonkeyPatch.context() as dry:
        # Nothing is computed, so no pivot is in range.
        dry.setattr(_lu_plan, "_check_range", lambda pivots, m: None)
        dry.setattr(_indexing_plan, "raise_outside", lambda outside, length: None)
        for dtype in DTYPES:
            for side_by_side in (False, True):
                for launch in recorded(partial(run_plans, dtype), side_by_side):
                    found.setdefault(launch.shader, set()).add(launch)
            for plans in (run_qr, run_bidiagonal, run_eigh, run_eig, run_matrix_exp):
                for launch in recorded(partial(plans, dtype), side_by_side=True):
                    found.setdefault(launch.shader, set()).add(launch)
        for single in (run_divide, run_elementwise, run_gated_delta, run_indexing):
            for launch in recorded(single, side_by_side=True):
                found.setdefault(launch.shader, set()).add(launch)
    return found


def all_variants() -> dict[str, set[tuple[str, tuple[str, ...]]]]:
    return {
        shader: {(launch.name, launch.template) for launch in of_shader}
        for shader, of_shader in all_launches().items()
    }


def unchecked() -> set[tuple[str, str, tuple[str, ...]]]:
    """What this process has launched and no plan was seen to launch."""
    known = {(shader, *variant) for shader, found in all_variants().items() for variant in found}
    wide = {"double", "double2"}
    single = {variant for variant in _engines.launched if wide.isdisjoint(variant[2])}
    return single - known


SHADERS = sorted(path.stem for path in source.folder().glob("*.metal"))


@pytest.mark.parametrize("shader", SHADERS)
def test_every_kernel_is_launched(shader: str) -> None:
    kernels = source.signatures(source.text(shader))
    assert {name for name, _ in all_variants()[shader]} == set(kernels)


@pytest.mark.parametrize("shader", SHADERS)
def test_variants_are_metal(shader: str) -> None:
    text = metal.library_text(shader, *sorted(all_variants()[shader]))
    assert [str(problem) for problem in check(text, f"{shader}.metal")] == []


@pytest.mark.parametrize("shader", SHADERS)
def test_groups_fit_their_kernels(shader: str) -> None:
    assert [launch for launch in all_launches()[shader] if not fits(launch)] == []
    # At a declared maximum of one simdgroup or less Apple's compiler drops barriers.
    kernels = source.signatures(source.text(shader))
    assert min(kernel.max_threads for kernel in kernels.values()) > 32
