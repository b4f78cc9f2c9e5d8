"""Measure the worst LAPACK ratio of each routine beside SciPy's and torch's, over the families.

python docs/ratios.py [--device cuda]

writes docs/data/accuracy-DEVICE.json, of which `python docs/generate.py accuracy` makes tables.
Families are judged side by side, in a process for each core: most of the time goes to compiling
kernels and to SciPy.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

# Read when numpy and torch load: the processes share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

import mpslinalg as LA  # noqa: E402
from mpslinalg import _doctor, testing  # noqa: E402
from mpslinalg._gated_delta_plan import CHUNK_SIZES  # noqa: E402
from tests import lapack  # noqa: E402
from tests.ratios import (  # noqa: E402
    double,
    norm,
    pinv_ratio,
    polar_ratio,
    product_ratio,
    root_ratio,
)

SIZES = (3, 8, 16, 32, 64, 100, 300)  # as the doctor's
DTYPES = (torch.float32, torch.complex64)
COLUMNS = 5
WELL = ("well_conditioned", "near_underflow", "near_overflow")
# Up to here an SVD for each eigenvalue, which tells its backward error, is no matter of minutes.
MOST_EIGENVALUES = 32


class Trial(NamedTuple):
    """A routine on all its families at once."""

    routine: str
    # The call of mpslinalg; inside use("torch") it is torch's.
    call: Callable[[], Any]
    # The ratios of what it returns; a tuple comes as separate arguments.
    judge: Callable[..., testing.Ratios]
    scipys: testing.Ratios


def _trial(
    routine: str, call: Callable[[], Any], judge: Callable[..., testing.Ratios], *scipys: Any
) -> Trial:
    return Trial(routine, call, judge, judge(*scipys))


def _stacked(matrices: Iterator[testing.Matrix], singular: bool = True) -> Tensor:
    return torch.stack([M.A for M in matrices if singular or not M.singular])


def _system(A: Tensor) -> Tensor:
    """Right-hand sides of solutions near 1, so that none overflows where A nearly does."""
    X = testing.random((*A.shape[:-2], A.shape[-1], COLUMNS), A.dtype, seed=2)
    wide = torch.complex128 if A.is_complex() else torch.float64
    return (A.to(wide) @ X.to(wide)).to(A.dtype)


def _lu(n: int, dtype: torch.dtype, device: str) -> Iterator[Trial]:
    A = _stacked(testing.general(n, n, dtype, seed=n))
    D = A.to(device)
    LU, pivots, _ = lapack.getrf(A)
    P = np.zeros_like(LU)
    rows = testing._permutation(pivots, n)
    np.put_along_axis(P, rows[..., None, :], 1, -2)
    L, U = np.tril(LU, -1) + np.eye(n, dtype=LU.dtype), np.triu(LU)
    yield _trial(
        "lu_factor",
        lambda: LA.lu_factor_ex(D)[:2],
        lambda LU, pivots: testing.lu_ratio(A, LU, pivots),
        *(LU, pivots),
    )
    yield _trial("lu", lambda: LA.lu(D), partial(product_ratio, A), P, L, U)
    det, slogdet = np.linalg.det(A.numpy()), np.linalg.slogdet(A.numpy())
    yield _trial("det", lambda: LA.det(D), partial(testing.determinant_ratio, A), det)
    yield _trial("slogdet", lambda: LA.slogdet(D), partial(testing.slogdet_ratio, A), *slogdet)


def _solve(n: int, dtype: torch.dtype, device: str) -> Iterator[Trial]:
    A = _stacked(testing.general(n, n, dtype, seed=n), singular=False)
    B = _system(A)
    D, E = A.to(device), B.to(device)
    LU, pivots, _ = lapack.getrf(A)
    X = lapack.getrs(LU, pivots, B)

    def judge(X: Any) -> testing.Ratios:
        return testing.solve_ratio(A, X, B)

    yield _trial("solve", lambda: LA.solve(D, E), judge, X)
    yield _trial("lu_solve", lambda: _lu_solve(D, E), judge, X)
    X = lapack.getri(LU, pivots)
    yield _trial("inv", lambda: LA.inv(D), partial(testing.inverse_ratio, A), X)


def _lu_solve(A: Tensor, B: Tensor) -> Tensor:
    LU, pivots = LA.lu_factor(A)
    return LA.lu_solve(LU, pivots, B)


def _triangular(n: int, dtype: torch.dtype, device: str) -> Iterator[Trial]:
    for upper, unit in product((False, True), repeat=2):
        families = testing.triangular(n, dtype, upper, seed=n)
        A = torch.stack([T.A for T in families if T.unit == unit and not T.zero])
        B = _system(A)
        yield _trial(
            "solve_triangular",
            partial(
                LA.solve_triangular,
                *(A.to(device), B.to(device)),
                upper=upper,
                unitriangular=unit,
            ),
            partial(testing.solve_ratio, A, B=B),
            lapack.trtrs(A, B, upper, unit),
        )


def _cholesky(n: int, dtype: torch.dtype, device: str) -> Iterator[Trial]:
    A = _stacked(testing.positive_definite(n, dtype, seed=n), singular=False)
    B = _system(A)
    D, E = A.to(device), B.to(device)
    L, _ = lapack.potrf(A, False)
    yield _trial("cholesky", lambda: LA.cholesky(D), partial(testing.cholesky_ratio, A), L)
    yield _trial(
        "cholesky_solve",
        lambda: LA.cholesky_solve(E, LA.cholesky(D)),
        lambda X: testing.solve_ratio(A, X, B),
        lapack.potrs(L, B, False),
    )
    yield _trial(
        "cholesky_inverse",
        lambda: LA.cholesky_inverse(LA.cholesky(D)),
        partial(testing.inverse_ratio, A),
        lapack.potri(L, False),
    )
    values, V = lapack.eigh(A)
    root = (V * np.sqrt(np.maximum(values, 0))[..., None, :]) @ V.conj().swapaxes(-2, -1)
    yield _trial("matrix_sqrth", lambda: LA.matrix_sqrth(D), partial(root_ratio, A), root)


def _ldl(n: int, dtype: torch.dtype, device: str) -> Iterator[Trial]:
    """Of the symmetric and Hermitian matrices with the lower triangles of the general families."""
    for hermitian in (False, True) if dtype.is_complex else (False,):
        yield from _ldl_of(hermitian, n, dtype, device)


def _ldl_of(hermitian: bool, n: int, dtype: torch.dtype, device: str) -> Iterator[Trial]:
    def mirrored(A: Tensor) -> Tensor:
        below = A.tril(-1)
        diagonal = A.diagonal(dim1=-2, dim2=-1)
        middle = diagonal.real.to(A.dtype) if hermitian else diagonal
        return below + (below.mH if hermitian else below.mT) + torch.diag_embed(middle)

    A = mirrored(_stacked(testing.general(n, n, dtype, seed=n)))
    D = A.to(device)
    yield _trial(
        "ldl_factor",
        lambda: LA.ldl_factor_ex(D, hermitian=hermitian)[:2],
        partial(testing.ldl_ratio, A, hermitian=hermitian),
        *lapack.sytrf(A, hermitian)[:2],
    )
    M = mirrored(_stacked(testing.general(n, n, dtype, seed=n), singular=False))
    B = _system(M)
    G, E = M.to(device), B.to(device)
    yield _trial(
        "ldl_solve",
        lambda: _ldl_solve(G, E, hermitian),
        partial(testing.solve_ratio, M, B=B),
        lapack.sytrs(*lapack.sytrf(M, hermitian)[:2], B, hermitian),
    )


def _ldl_solve(A: Tensor, B: Tensor, hermitian: bool) -> Tensor:
    LD, pivots = LA.ldl_factor(A, hermitian=hermitian)
    return LA.ldl_solve(LD, pivots, B, hermitian=hermitian)


def _qr(n: int, dtype: torch.dtype, device: str) -> Iterator[Trial]:
    A = _stacked(testing.full_rank(n, n, dtype, seed=n))
    D = A.to(device)
    yield _trial("qr", lambda: LA.qr(D), partial(testing.qr_ratio, A), *lapack.qr(A, "reduced"))
    factored = [lapack.qr_pivoted(a) for a in A]
    yield _trial(
        "qr_pivoted",
        lambda: LA.qr_pivoted(D),
        lambda Q, R, P: testing.qr_ratio(_permuted(A, P), Q, R),
        *map(np.stack, zip(*factored, strict=True)),
    )
    reflectors, tau = lapack.geqrf(A)

    def of_reflectors(a: Any, tau: Any) -> testing.Ratios:
        Q = lapack.orgqr(double(a), double(tau)).astype(reflectors.dtype)
        return testing.qr_ratio(A, Q, np.triu(double(a)).astype(reflectors.dtype))

    yield _trial("geqrf", lambda: LA.geqrf(D), of_reflectors, reflectors, tau)
    # Q of LAPACK's reflectors, so that its error is that of Q alone.
    a, t = (torch.from_numpy(x).to(device) for x in (reflectors, tau))
    yield _trial(
        "householder_product",
        lambda: LA.householder_product(a, t),
        lambda Q: testing.qr_ratio(A, Q, np.triu(reflectors)),
        lapack.orgqr(reflectors, tau),
    )
    C = testing.random((len(A), n, COLUMNS), dtype, seed=4)
    exact = lapack.orgqr(double(reflectors), double(tau)) @ double(C)
    name = "unmqr" if dtype.is_complex else "ormqr"
    (routine,) = scipy.linalg.get_lapack_funcs((name,), (reflectors,))
    work = 64 * n
    parts = zip(reflectors, tau, C.numpy(), strict=True)
    theirs = np.stack([routine("L", "N", *part, work)[0] for part in parts])
    yield _trial(
        "ormqr",
        lambda: LA.ormqr(a, t, C.to(device)),
        lambda X: norm(double(X) - exact) / (n * norm(exact) * torch.finfo(dtype).eps / 2),
        theirs,
    )


def _permuted(A: Tensor, P: Any) -> Tensor:
    columns = torch.as_tensor(P).cpu().long().unsqueeze(-2)
    return A.gather(-1, columns.expand(A.shape))


def _lstsq(n: int, dtype: torch.dtype, device: str) -> Iterator[Trial]:
    """Well-conditioned matrices near 1, near underflow and near overflow, tall and wide."""
    for m, columns in ((2 * n, n), (n, 2 * n)):
        families = testing.full_rank(m, columns, dtype, seed=n)
        A = torch.stack([M.A for M in families if M.name in WELL])
        B = _system(A) + A.abs().amax((-2, -1), True) * testing.random((m, COLUMNS), dtype, seed=3)
        D, E = A.to(device), B.to(device)
        judge = partial(testing.lstsq_ratio, A, B=B)
        for driver in ("gels", "gelsy", "gelsd", "gelss"):
            pairs = zip(A.numpy(), B.numpy(), strict=True)
            yield _trial(
                f"lstsq, {driver}",
                partial(_solution, D, E, driver),
                judge,
                lapack.gels(A, B)
                if driver == "gels"
                else np.stack([scipy.linalg.lstsq(*p, lapack_driver=driver)[0] for p in pairs]),
            )
        inverses = np.stack([scipy.linalg.pinv(a) for a in A.numpy()])
        yield _trial("pinv", partial(LA.pinv, D), partial(pinv_ratio, A), inverses)


def _solution(A: Tensor, B: Tensor, driver: str) -> Tensor:
    X: Tensor = LA.lstsq(A, B, driver=driver).solution
    return X


def _svd(n: int, dtype: torch.dtype, device: str) -> Iterator[Trial]:
    """Square, and twice as tall."""
    for m in (n, 2 * n):
        A = _stacked(testing.singular_values(m, n, dtype, seed=n))
        D = A.to(device)
        U, S, Vh = lapack.svd(A)
        yield _trial("svd", partial(LA.svd, D), partial(testing.svd_ratio, A), U, S, Vh)
        yield _trial("svdvals", partial(LA.svdvals, D), partial(testing.svdvals_ratio, A), S)
        V = Vh.conj().swapaxes(-2, -1)
        factors = U[..., :n] @ Vh, (V * S[..., None, :]) @ Vh
        yield _trial("polar", partial(LA.polar, D), partial(polar_ratio, A), *factors)


def _eigh(n: int, dtype: torch.dtype, device: str) -> Iterator[Trial]:
    A = _stacked(testing.hermitian(n, dtype, seed=n))
    D = A.to(device)
    L, V = lapack.eigh(A)
    yield _trial("eigh", lambda: LA.eigh(D), partial(testing.eigh_ratio, A), L, V)
    yield _trial("eigvalsh", lambda: LA.eigvalsh(D), partial(testing.eigvalsh_ratio, A), L)


def _eig(n: int, dtype: torch.dtype, device: str) -> Iterator[Trial]:
    A = _stacked(testing.nonsymmetric(n, dtype, seed=n))
    D = A.to(device)
    L, V = lapack.eig(A)
    yield _trial("eig", lambda: LA.eig(D), partial(testing.eig_ratio, A), L, V)
    if n <= MOST_EIGENVALUES:
        yield _trial("eigvals", lambda: LA.eigvals(D), partial(_eigenvalue_ratio, A), L)


def _eigenvalue_ratio(A: Tensor, values: Any) -> testing.Ratios:
    """The smallest E for which an eigenvalue is one of A + E: max ||E|| / (n ||A|| eps)."""
    a, found = double(A), double(values)
    n = a.shape[-1]
    scale = np.where(norm(a) == 0, 1, norm(a))
    shifted = a[..., None, :, :] - found[..., None, None] * np.eye(n)
    distances = np.linalg.svd(shifted / scale[..., None, None, None], compute_uv=False)[..., -1]
    ratios: testing.Ratios = distances.max(-1) / (n * torch.finfo(A.dtype).eps / 2)
    return ratios


def _exp(n: int, dtype: torch.dtype, device: str) -> Iterator[Trial]:
    """Of skew-Hermitian matrices of norm 0.1, 1 and 20: a change of A changes theirs as much."""
    A = testing.random((3, n, n), dtype, seed=n)
    A = A - A.mH
    A = A / A.abs().sum(-2).amax(-1)[:, None, None] * torch.tensor([0.1, 1, 20])[:, None, None]
    exact = scipy.linalg.expm(double(A))
    allowed = n * np.maximum(norm(double(A)), 1) * norm(exact) * torch.finfo(dtype).eps / 2
    yield _trial(
        "matrix_exp",
        lambda: LA.matrix_exp(A.to(device)),
        lambda X: norm(double(X) - exact) / allowed,
        scipy.linalg.expm(A.numpy()),
    )


def _gated_delta(n: int, dtype: torch.dtype, device: str) -> Iterator[Trial]:
    if n not in CHUNK_SIZES or dtype.is_complex:
        return
    families = testing.triangular(n, dtype, upper=False, seed=n)
    A = torch.stack([T.A for T in families if T.unit])
    (trtri,) = scipy.linalg.get_lapack_funcs(("trtri",), (A.numpy(),))
    yield _trial(
        "gated_delta.solve_tril",
        lambda: LA.gated_delta.solve_tril(A.view(1, -1, 1, n).to(device)).view(A.shape),
        partial(testing.inverse_ratio, A),
        np.stack([trtri(a, lower=1, unitdiag=1)[0] for a in A.numpy()]),
    )


# The order of the table.
FAMILIES = (
    *(_lu, _solve, _triangular, _cholesky, _ldl, _qr, _lstsq, _svd, _eigh, _eig, _exp),
    _gated_delta,
)
# What LAPACK allows, where that is not what it allows solvers.
THRESHOLDS = {
    **dict.fromkeys(("eigh", "eigvalsh"), testing.EIGH_THRESHOLD),
    **dict.fromkeys(("eig", "eigvals"), testing.EIG_THRESHOLD),
}

# Of a routine and dtype: the worst ratios; `missed` says where ours is over the bar of
# testing.compare, `refused` what torch raised.
Row = dict[str, Any]


def _has(routine: str) -> bool:
    """Whether torch has such a function: mpslinalg runs some on kernels wherever it lacks them."""
    name = routine.partition(",")[0]
    # torch.polar is something else.
    return hasattr(torch.linalg, name) or (hasattr(torch, name) and name != "polar") or "." in name


def _judged(mode: str, trial: Trial) -> testing.Ratios:
    with LA.use(mode):
        result = trial.call()
    return trial.judge(*(result if isinstance(result, tuple) else (result,)))


@np.errstate(all="ignore")
def rows(family: int, dtype: torch.dtype, device: str, sizes: Sequence[int]) -> list[Row]:
    """The routines of a family, in their order."""
    found: dict[str, Row] = {}
    for n in sizes:
        for trial in FAMILIES[family](n, dtype, device):
            name = trial.routine
            new = {"routine": name, "dtype": str(dtype).removeprefix("torch."), "family": family}
            row = found.setdefault(name, {**new, "kernels": 0.0, "scipy": 0.0, "torch": 0.0})
            ours = _judged("kernels", trial)
            _note(row, "kernels", ours)
            _note(row, "scipy", trial.scipys)
            try:
                testing.compare(ours, trial.scipys, THRESHOLDS.get(name, testing.LU_THRESHOLD))
            except AssertionError as error:
                row.setdefault("missed", f"n = {n}: {error}")
            if not _has(name) or "refused" in row:
                row["torch"] = None
                continue
            try:
                _note(row, "torch", _judged("torch", trial))
            except (RuntimeError, NotImplementedError, ValueError) as error:
                row["torch"], row["refused"] = None, f"n = {n}: {str(error).splitlines()[0]}"
    return list(found.values())


def _note(row: Row, who: str, ratios: testing.Ratios) -> None:
    row[who] = max(row[who], float(np.nan_to_num(ratios, nan=np.inf, posinf=np.inf).max()))


def measured(device: str, sizes: Sequence[int] = SIZES, processes: int = 1) -> list[Row]:
    """A row for each routine and dtype."""
    tasks = list(product(range(len(FAMILIES)), DTYPES))
    run = partial(rows, device=device, sizes=sizes)
    if processes == 1:
        return [row for task in tasks for row in run(*task)]
    # The last families take longest. A process that has touched a GPU must not be forked.
    context = get_context("spawn")
    with ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,)) as pool:
        pending = {task: pool.submit(run, *task) for task in reversed(tasks)}
        return [row for task in tasks for row in pending[task].result()]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda", "mps"], default="cpu")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    options = parser.parse_args(arguments)
    found = measured(options.device, options.sizes, options.processes)
    run = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "docs/ratios.py", *sys.argv[1:]]),
        "environment": _doctor.environment(torch.device(options.device)),
        "sizes": list(options.sizes),
        "rows": found,
    }
    file = options.json or DOCS / "data" / f"accuracy-{options.device}.json"
    file.write_text(json.dumps(run, indent=1) + "\n")
    missed = [row for row in found if "missed" in row]
    for row in missed:
        print(f"{row['routine']} {row['dtype']}: {row['missed']}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
