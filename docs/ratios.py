"""The worst LAPACK ratio of each routine beside SciPy's, over the families of mpslinalg.testing."""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg import testing
from mpslinalg._gated_delta_plan import CHUNK_SIZES
from tests import lapack

SIZES = (3, 8, 16, 32, 64, 100, 300)  # as the doctor's
DTYPES = (torch.float32, torch.complex64)
COLUMNS = 5
WELL = ("well_conditioned", "near_underflow", "near_overflow")

# A routine, and the ratios of ours and of SciPy's result.
Judged: TypeAlias = tuple[str, testing.Ratios, testing.Ratios]


def _system(A: Tensor) -> Tensor:
    """Right-hand sides of solutions near 1, so that none overflows where A nearly does."""
    X = testing.random((*A.shape[:-2], A.shape[-1], COLUMNS), A.dtype, seed=2)
    wide = torch.complex128 if A.is_complex() else torch.float64
    return (A.to(wide) @ X.to(wide)).to(A.dtype)


def _lu(n: int, dtype: torch.dtype, device: str) -> Iterator[Judged]:
    families = list(testing.general(n, n, dtype, seed=n))
    A = torch.stack([M.A for M in families])
    LU, pivots, _ = LA.lu_factor_ex(A.to(device))
    yield "lu_factor", testing.lu_ratio(A, LU, pivots), testing.lu_ratio(A, *lapack.getrf(A)[:2])

    A = torch.stack([M.A for M in families if not M.singular])
    LU, pivots = LA.lu_factor(A.to(device))
    B, theirs = _system(A), lapack.getrf(A)[:2]
    X, X_lapack = LA.lu_solve(LU, pivots, B.to(device)), lapack.getrs(*theirs, B)
    yield "lu_solve", testing.solve_ratio(A, X, B), testing.solve_ratio(A, X_lapack, B)
    X, X_lapack = LA.inv(A.to(device)), lapack.getri(*theirs)
    yield "inv", testing.inverse_ratio(A, X), testing.inverse_ratio(A, X_lapack)


def _triangular(n: int, dtype: torch.dtype, device: str) -> Iterator[Judged]:
    for upper in (False, True):
        families = [T for T in testing.triangular(n, dtype, upper, seed=n) if not T.zero]
        for unit in (False, True):
            A = torch.stack([T.A for T in families if T.unit == unit])
            B = _system(A)
            X = LA.solve_triangular(A.to(device), B.to(device), upper=upper, unitriangular=unit)
            X_lapack = lapack.trtrs(A, B, upper, unit)
            yield (
                "solve_triangular",
                testing.solve_ratio(A, X, B),
                testing.solve_ratio(A, X_lapack, B),
            )


def _cholesky(n: int, dtype: torch.dtype, device: str) -> Iterator[Judged]:
    families = testing.positive_definite(n, dtype, seed=n)
    A = torch.stack([M.A for M in families if not M.singular])
    B = _system(A)
    L, L_lapack = LA.cholesky(A.to(device)), lapack.potrf(A, False)[0]
    yield "cholesky", testing.cholesky_ratio(A, L), testing.cholesky_ratio(A, L_lapack)
    X, X_lapack = LA.cholesky_solve(B.to(device), L), lapack.potrs(L_lapack, B, False)
    yield "cholesky_solve", testing.solve_ratio(A, X, B), testing.solve_ratio(A, X_lapack, B)
    X, X_lapack = LA.cholesky_inverse(L), lapack.potri(L_lapack, False)
    yield "cholesky_inverse", testing.inverse_ratio(A, X), testing.inverse_ratio(A, X_lapack)


def _ldl(n: int, dtype: torch.dtype, device: str) -> Iterator[Judged]:
    """Of the symmetric and Hermitian matrices with the lower triangles of the general families."""
    families = list(testing.general(n, n, dtype, seed=n))
    for hermitian in (False, True) if dtype.is_complex else (False,):

        def mirrored(A: Tensor, hermitian: bool = hermitian) -> Tensor:
            below = A.tril(-1)
            diagonal = A.diagonal(dim1=-2, dim2=-1)
            middle = diagonal.real.to(A.dtype) if hermitian else diagonal
            return below + (below.mH if hermitian else below.mT) + torch.diag_embed(middle)

        A = mirrored(torch.stack([M.A for M in families]))
        LD, pivots, _ = LA.ldl_factor_ex(A.to(device), hermitian=hermitian)
        yield (
            "ldl_factor",
            testing.ldl_ratio(A, LD, pivots, hermitian),
            testing.ldl_ratio(A, *lapack.sytrf(A, hermitian)[:2], hermitian),
        )
        A = mirrored(torch.stack([M.A for M in families if not M.singular]))
        B = _system(A)
        LD, pivots = LA.ldl_factor(A.to(device), hermitian=hermitian)
        X = LA.ldl_solve(LD, pivots, B.to(device), hermitian=hermitian)
        X_lapack = lapack.sytrs(*lapack.sytrf(A, hermitian)[:2], B, hermitian)
        yield "ldl_solve", testing.solve_ratio(A, X, B), testing.solve_ratio(A, X_lapack, B)


def _qr(n: int, dtype: torch.dtype, device: str) -> Iterator[Judged]:
    A = torch.stack([M.A for M in testing.full_rank(n, n, dtype, seed=n)])
    Q, R = LA.qr(A.to(device))
    yield "qr", testing.qr_ratio(A, Q, R), testing.qr_ratio(A, *lapack.qr(A, "reduced"))
    # Q of LAPACK's reflectors, so that its error is that of Q alone.
    reflectors, tau = lapack.geqrf(A)
    Q = LA.householder_product(*(torch.from_numpy(x).to(device) for x in (reflectors, tau)))
    R_lapack = np.triu(reflectors)
    yield (
        "householder_product",
        testing.qr_ratio(A, Q, R_lapack),
        testing.qr_ratio(A, lapack.orgqr(reflectors, tau), R_lapack),
    )


def _lstsq(n: int, dtype: torch.dtype, device: str) -> Iterator[Judged]:
    """Well-conditioned matrices near 1, near underflow and near overflow, tall and wide."""
    for m, columns in ((2 * n, n), (n, 2 * n)):
        A = torch.stack(
            [M.A for M in testing.full_rank(m, columns, dtype, seed=n) if M.name in WELL]
        )
        B = _system(A) + A.abs().amax((-2, -1), True) * testing.random((m, COLUMNS), dtype, seed=3)
        X = LA.lstsq(A.to(device), B.to(device), driver="gels").solution
        yield "lstsq", testing.lstsq_ratio(A, X, B), testing.lstsq_ratio(A, lapack.gels(A, B), B)


def _svd(n: int, dtype: torch.dtype, device: str) -> Iterator[Judged]:
    """Square, and twice as tall."""
    for m in (n, 2 * n):
        A = torch.stack([M.A for M in testing.singular_values(m, n, dtype, seed=n)])
        ours, theirs = LA.svd(A.to(device)), lapack.svd(A)
        yield "svd", testing.svd_ratio(A, *ours), testing.svd_ratio(A, *theirs)
        S = LA.svdvals(A.to(device))
        yield "svdvals", testing.svdvals_ratio(A, S), testing.svdvals_ratio(A, theirs[1])


def _eigh(n: int, dtype: torch.dtype, device: str) -> Iterator[Judged]:
    A = torch.stack([M.A for M in testing.hermitian(n, dtype, seed=n)])
    theirs = lapack.eigh(A)
    yield "eigh", testing.eigh_ratio(A, *LA.eigh(A.to(device))), testing.eigh_ratio(A, *theirs)
    L = LA.eigvalsh(A.to(device))
    yield "eigvalsh", testing.eigvalsh_ratio(A, L), testing.eigvalsh_ratio(A, theirs[0])


def _eig(n: int, dtype: torch.dtype, device: str) -> Iterator[Judged]:
    A = torch.stack([M.A for M in testing.nonsymmetric(n, dtype, seed=n)])
    L, V = LA.eig(A.to(device))
    yield "eig", testing.eig_ratio(A, L, V), testing.eig_ratio(A, *lapack.eig(A))


def _gated_delta(n: int, dtype: torch.dtype, device: str) -> Iterator[Judged]:
    if n not in CHUNK_SIZES or dtype.is_complex:
        return
    families = testing.triangular(n, dtype, upper=False, seed=n)
    A = torch.stack([T.A for T in families if T.unit])
    X = LA.gated_delta.solve_tril(A.view(1, -1, 1, n).to(device)).view(A.shape)
    (trtri,) = scipy.linalg.get_lapack_funcs(("trtri",), (A.numpy(),))
    X_lapack = np.stack([trtri(a, lower=1, unitdiag=1)[0] for a in A.numpy()])
    yield (
        "gated_delta.solve_tril",
        testing.inverse_ratio(A, X),
        testing.inverse_ratio(A, X_lapack),
    )


def worst(
    device: str, sizes: Sequence[int] = SIZES
) -> dict[str, dict[torch.dtype, tuple[float, float]]]:
    """Of each routine and dtype, ours and SciPy's; AssertionError where ours misses the bar."""
    found: dict[str, dict[torch.dtype, tuple[float, float]]] = {}
    with LA.use("kernels"):
        for family in (
            _lu,
            _triangular,
            _cholesky,
            _ldl,
            _qr,
            _lstsq,
            _svd,
            _eigh,
            _eig,
            _gated_delta,
        ):
            for dtype in DTYPES:
                for n in sizes:
                    for routine, ours, theirs in family(n, dtype, device):
                        testing.compare(ours, theirs)
                        row = found.setdefault(routine, {})
                        before = row.get(dtype, (0.0, 0.0))
                        row[dtype] = max(before[0], ours.max()), max(before[1], theirs.max())
    return found


def table(device: str, sizes: Sequence[int] = SIZES) -> str:
    """A row for each routine, dtypes side by side."""
    lines = [
        "| routine | float32 | SciPy | complex64 | SciPy |",
        "|---|---:|---:|---:|---:|",
    ]
    for routine, of_dtype in worst(device, sizes).items():
        pairs = (of_dtype.get(dtype) for dtype in DTYPES)
        cells = (f"{pair[0]:.2g} | {pair[1]:.2g}" if pair else "- | -" for pair in pairs)
        lines.append(f"| `{routine}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
