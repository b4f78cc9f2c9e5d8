"""Standard counts: of an algorithm from its inputs, of a launch from the sizes that it names.

Counts of algorithms are those of Golub and Van Loan, Matrix Computations, and of the LAPACK Users'
Guide (table 3.13): leading terms, a multiplication and an addition each one operation, four of
each for complex numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from mpslinalg._bench.cases import Case, Operation

Sizes = dict[str, float]

# Of m x n matrices (m = n but for the tall) and k right-hand sides.
_ALGORITHMS: dict[str, Callable[[float, float, float], float]] = {
    "lu_factor": lambda m, n, k: n * n * (m - n / 3),
    "solve": lambda m, n, k: 2 / 3 * n**3 + 2 * n * n * k,
    "inv": lambda m, n, k: 2 * n**3,
    "det": lambda m, n, k: 2 / 3 * n**3,
    "cholesky": lambda m, n, k: n**3 / 3,
    "cholesky_solve": lambda m, n, k: 2 * n * n * k,
    "solve_triangular": lambda m, n, k: n * n * k,
    "ldl_factor": lambda m, n, k: n**3 / 3,
    "ldl_solve": lambda m, n, k: 2 * n * n * k,
    "qr": lambda m, n, k: 4 * n * n * (m - n / 3),
    "geqrf": lambda m, n, k: 2 * n * n * (m - n / 3),
    "householder_product": lambda m, n, k: 2 * n * n * (m - n / 3),
    "ormqr": lambda m, n, k: (4 * m * n - 2 * n * n) * k,
    "lstsq": lambda m, n, k: 2 * n * n * (m - n / 3) + (4 * m * n - n * n) * k,
    "svd": lambda m, n, k: 6 * m * n * n + 20 * n**3,
    "svdvals": lambda m, n, k: min(4 * m * n * n - 4 / 3 * n**3, 2 * m * n * n + 2 * n**3),
    "eigh": lambda m, n, k: 9 * n**3,
    "eigvalsh": lambda m, n, k: 4 / 3 * n**3,
    "eig": lambda m, n, k: 26.33 * n**3,
}
# Of these the factors come first and the right-hand sides last, or the other way round.
_SIDES_FIRST = frozenset(("cholesky_solve",))
_SIDES_LAST = frozenset(("solve", "solve_triangular", "ldl_solve", "ormqr", "lstsq"))
# Not a matrix but chunks of one.
_CHUNKS = "solve_tril"


def _algorithm(operation: Operation) -> str:
    return operation.name.split()[0].rstrip(";").removesuffix("_ex")


def counted(operation: Operation) -> bool:
    """Whether it is known what it takes: functions that compute with torch are left out."""
    return _algorithm(operation) in (*_ALGORITHMS, _CHUNKS)


def operations(case: Case, inputs: Sequence[Tensor]) -> float:
    """Real operations of the algorithm that the kernels run, over the whole batch."""
    name = _algorithm(case.operation)
    if name == _CHUNKS:
        *batch, heads, chunk = inputs[0].shape
        return math.prod(batch) * heads * chunk**2 / 3
    sides = inputs[0] if name in _SIDES_FIRST else inputs[-1] if name in _SIDES_LAST else None
    A = inputs[1] if name in _SIDES_FIRST else inputs[0]
    *batch, m, n = A.shape
    k = 0 if sides is None else sides.shape[-1]
    real = 4 if A.is_complex() else 1
    return float(real * math.prod(batch) * _ALGORITHMS[name](m, n, k))


def _panel(v: Sizes) -> float:
    return 2 * (v["m"] - v["first"]) * (v["last"] - v["first"])


def _square_panel(v: Sizes) -> float:
    return 2 * (v["n"] - v["last"]) * (v["last"] - v["first"])


def _update(v: Sizes) -> float:
    width, height, columns = v["last"] - v["first"], v["m"] - v["last"], v["n"] - v["last"]
    return 2 * height * columns + width * (height + columns)


def _swaps(v: Sizes, columns: float) -> float:
    return 4 * (v["last"] - v["first"]) * columns


def _ahead(v: Sizes) -> float:
    """Reading and writing the next panel."""
    return 2 * (v["m"] - v["last"]) * (v["next"] - v["last"])


# Columns of a panel of cholesky_step.
_STEP = 64


def _step_trapezoid(v: Sizes) -> float:
    """Twice the entries that a step updates, its panel among them."""
    columns = v["end"] - v["first"]
    return columns * (2 * (v["n"] - v["first"]) - columns) if v["first"] > v["before"] else 0.0


# Entries of each matrix that a launch reads and writes, where it takes a part of its buffers.
_ELEMENTS: dict[str, Callable[[Sizes], float]] = {
    "lu_panel": _panel,
    "lu_streamed": lambda v: _panel(v) * (v["last"] - v["first"]) / 2,
    "lu_panel_next": lambda v: _ahead(v) + _update({**v, "n": v["n"] - v["next"] + v["last"]}),
    "lu_swap": lambda v: _swaps(v, v["n"] - v["last"] + v["first"]),
    "lu_swap_next": lambda v: (
        _swaps(v, v["n"] - v["next"] + v["first"])
        + _ahead(v)
        + (v["m"] - v["last"]) * (v["last"] - v["first"])
    ),
    "lu_det_tiny": lambda v: v["n"],
    "lu_det_simd": lambda v: v["n"],
    "qr_panel": _panel,
    "qr_update": _update,
    "qr_apply": lambda v: (v["m"] - v["first"]) * (2 * v["columns"] + v["width"]),
    "qr_expand": lambda v: 3 * (v["m"] - v["first"]) * v["width"],
    "products_update": _update,
    "products_update_hermitian": lambda v: (
        (v["n"] - v["last"]) * (v["n"] - v["last"] + 2 * (v["last"] - v["first"]))
    ),
    "cholesky_panel": lambda v: (v["last"] - v["first"]) ** 2,
    "cholesky_below": _square_panel,
    "cholesky_step": lambda v: (
        max(_step_trapezoid(v), 2 * _STEP * (v["n"] - v["first"]))
        + (v["first"] - v["before"]) * (v["n"] - v["first"])
    ),
    "cholesky_finish": lambda v: 2 * _STEP * v["n"],
    "tridiagonal_products": lambda v: (v["n"] - v["k"]) * (v["n"] - v["k"] + 2 * v["done"]),
    "tridiagonal_column": lambda v: 2 * (v["n"] - v["k"]) * (v["done"] + 4),
    "tridiagonal_group": lambda v: 2 * (v["n"] - v["first"]) ** 2,
    "bidiagonal_columns": lambda v: 2 * (v["m"] - v["i"]) * (v["n"] - v["i"]),
    "bidiagonal_rows": lambda v: 2 * (v["m"] - v["i"]) * (v["n"] - v["i"]),
    "bidiagonal_group": lambda v: 2 * (v["m"] - v["first"]) * (v["n"] - v["first"]),
    "triangular_step": lambda v: min(v["n"], 128) * v["n"],
}


def elements(kernel: str, values: Sizes) -> float | None:
    """Entries of a matrix that a launch moves; None where it moves all of its buffers."""
    count = _ELEMENTS.get(kernel)
    return None if count is None else count(values)


def _block_times(v: Sizes, columns: float) -> float:
    return 2 * (v["m"] - v["last"]) * (v["last"] - v["first"]) * columns


_OF_LAUNCH: dict[str, Callable[[Sizes], float]] = {
    "lu_swap_next": lambda v: _block_times(v, v["next"] - v["last"]),
    "lu_panel_next": lambda v: (
        _block_times(v, v["n"] - v["next"]) + (v["m"] - v["last"]) * (v["next"] - v["last"]) ** 2
    ),
    "products_difference": lambda v: 2 * v["m"] * v["n"] * v["inner"],
    "products_few": lambda v: 2 * v["m"] * v["n"] * v["inner"],
    "products_update": lambda v: _block_times(v, v["n"] - v["last"]),
    "products_update_hermitian": lambda v: (v["n"] - v["last"]) ** 2 * (v["last"] - v["first"]),
    "cholesky_step": lambda v: (
        _step_trapezoid(v) * (v["first"] - v["before"]) + (v["n"] - v["first"]) * _STEP**2
    ),
    "cholesky_finish": lambda v: 0.0,
    "cholesky_lower": lambda v: 0.0,
    "products_copy": lambda v: 0.0,
    "qr_apply": lambda v: 4 * (v["m"] - v["first"]) * v["width"] * v["columns"],
    "qr_update": lambda v: (
        4 * (v["m"] - v["first"]) * (v["n"] - v["last"]) * (v["last"] - v["first"])
    ),
    "tridiagonal_products": lambda v: 2 * (v["n"] - v["k"]) * (v["n"] - v["k"] + 2 * v["done"]),
    "bidiagonal_columns": lambda v: 4 * (v["m"] - v["i"]) * (v["n"] - v["i"]),
    "bidiagonal_rows": lambda v: 4 * (v["m"] - v["i"]) * (v["n"] - v["i"]),
}


def of_launch(kernel: str, values: Sizes) -> float | None:
    """Operations of a launch for each matrix, real ones for real numbers; None: not known alone."""
    count = _OF_LAUNCH.get(kernel)
    return None if count is None else count(values)


# Jacobi's sweeps until random matrices converge in single precision; later launches find that out.
SWEEPS = 8
# Sweeps of the QR algorithm for each eigenvalue.
QR_SWEEPS = 2.5


def works(kernel: str, values: Sizes, nth: int) -> bool:
    """Whether a launch of an iteration, the nth of its kernel, still finds something to do."""
    if kernel in ("svd_within", "svd_between"):
        return values["sweep"] < SWEEPS
    if kernel == "eig_iterate":
        return nth * values["sweeps"] < QR_SWEEPS * values["n"]
    return True


# Cycles from one column to the next: of a threadgroup, two barriers and what a column needs of
# memory between them, fitted to LU and Cholesky of one matrix of 1024 on an H200; of a simdgroup,
# a shuffle and a few multiplications.
GROUP_CYCLES = 1800.0
SIMD_CYCLES = 200.0


def _columns(v: Sizes) -> float:
    return min(v.get("m", v["n"]), v["n"])


# The same of a column of cholesky_step and cholesky_whole, where a barrier is for eight columns: a
# quarter of it is its pivot's root, a half the products of the panels before.
STEP_CYCLES = 250.0

_CHAINS: dict[str, Callable[[Sizes], float]] = {
    **dict.fromkeys(
        ("lu_panel", "lu_streamed", "qr_panel", "cholesky_panel", "eig_reduce"),
        lambda v: GROUP_CYCLES * (v["last"] - v["first"]),
    ),
    **dict.fromkeys(
        ("lu_rows", "inverse_rows", "cholesky_rows", "cholesky_group", "qr_group", "ldl_group"),
        lambda v: GROUP_CYCLES * _columns(v),
    ),
    "lu_panel_next": lambda v: GROUP_CYCLES * (v["next"] - v["last"]),
    # A barrier a column, and three divisions.
    "qr_signs": lambda v: GROUP_CYCLES / 2 * v["n"],
    "ldl_panel": lambda v: GROUP_CYCLES * 32,
    **dict.fromkeys(
        ("tridiagonal_group", "bidiagonal_group"),
        lambda v: 2 * GROUP_CYCLES * (v["n"] - v["first"]),
    ),
    # A division for a row of a count, and six counts one after the other where lanes share them.
    "tridiagonal_values": lambda v: 40.0 * 6 * v["n"],
    "eig_iterate": lambda v: SIMD_CYCLES * v["sweeps"] * v["n"],
    "cholesky_below": lambda v: SIMD_CYCLES * (v["last"] - v["first"]),
    "cholesky_step": lambda v: STEP_CYCLES * min(_STEP, v["n"] - v["first"]),
    "cholesky_whole": lambda v: STEP_CYCLES * v["n"],
    "eig_finish": lambda v: SIMD_CYCLES * v["n"],
    **dict.fromkeys(
        (
            *("triangular_columns", "triangular_few", "cholesky_solve_few"),
            *("ldl_solve_columns", "ldl_solve_simd", "lu_simd", "lu_solve_simd", "qr_simd"),
            *("solve_simd", "solve_few", "inverse_simd", "det_simd", "cholesky_simd", "ldl_simd"),
            "cholesky_solve_simd",
        ),
        lambda v: SIMD_CYCLES * _columns(v),
    ),
    **dict.fromkeys(
        ("eigh_simd", "svd_simd", "eig_simd"),
        lambda v: SIMD_CYCLES * SWEEPS * _columns(v),
    ),
    "eigh_ql": lambda v: SIMD_CYCLES * 4 * _columns(v),
    # A shuffle, a multiplication and two additions for an unknown; chunks follow one another at a
    # distance of 32.
    "triangular_step": lambda v: 40.0 * (min(v["n"], 128) + 32 * (v["chunks"] - 1)),
}


def chain(kernel: str, values: Sizes, nth: int) -> float:
    """Cycles of what is done one after the other in a group."""
    count = _CHAINS.get(kernel)
    return 0.0 if count is None or not works(kernel, values, nth) else count(values)


def chained(kernel: str, values: Sizes, groups: int) -> float:
    """How many of a launch's groups have its chain: of lu_panel_next those with a panel."""
    return values["batch"] if kernel == "lu_panel_next" else groups
