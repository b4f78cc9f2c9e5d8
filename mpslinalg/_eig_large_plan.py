"""Launch plans of the nonsymmetric eigenproblem of matrices that the whole GPU works on."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mpslinalg import _qr_plan
from mpslinalg._engines import empty, gemm, kernel, scalar
from mpslinalg._products import copy
from mpslinalg._simdgroups import whole

# Rows of a window on the diagonal, by the bytes of a number: threadgroup memory holds two matrices
# of so many.
WINDOW = {4: 60, 8: 42, 16: 28}
# What bounds the time of a launch: the sweeps inside a window, for each of its rows, and the
# entries that balancing reads.
TURNS_A_ROW = 6.0
ENTRIES = 2**22
# From the shaders: passes of balancing, and the numbers of a matrix's state.
BALANCING_PASSES = 16
STATE = 4
# The rounds that a matrix may take are this many times its rows: with as many bulges in each as a
# window has, LAPACK's bound of 30 sweeps a row. Usual is one for 12 rows, 6 complex.
ROUNDS_A_ROW = 4.0
# Rows of eigenvectors that a launch solves for.
BLOCK = 32


class Form(NamedTuple):
    """H = Z^H D^-1 A D Z 2^-exponents; D = 2^scales. found: -4 where A is not finite."""

    H: Tensor
    scales: Tensor
    exponents: Tensor
    found: Tensor


def regime(vectors: bool) -> str:
    """What runs, in a few words for `which`."""
    found = "eig_columns, eig_rows, eig_deflate, eig_chase; the host reads how far it is"
    return f"{found}; eig_substitute, matmul" if vectors else found


def eig(A: Tensor, values: Tensor, V: Tensor | None, info: Tensor) -> None:
    """Eigenvalues, eigenvectors V if wanted, and info of matrices (batch, n, n) of any strides."""
    batch, n, _ = A.shape
    form = _balance(A)
    H = form.H
    Z = _reduce(H, V is not None)
    state = _iterate(H, Z)
    T, C = scalar(H.dtype), scalar(values.dtype)
    kernel("eig_vectors", "eig_values", T, C)(
        H, state, form.exponents, form.found, values, info, n, STATE,
        threads=(n, batch), group=(32, 1),
    )  # fmt: skip
    if V is None or Z is None:
        return
    S, Y = (H, Z) if H.is_complex() else (empty(V.shape, V) for _ in range(2))
    if not H.is_complex():
        kernel("eig_vectors", "eig_to_complex", T, C)(
            H, Z, S, Y, n, threads=(n, n, batch), group=(32, 8, 1)
        )
    gemm(V, V, Y, _triangle_vectors(S), 0, 1)
    kernel("eig_vectors", "eig_normalize", T, C)(
        H, form.scales, info, V, n, threads=(n, batch), group=(32, 1)
    )


def _balance(A: Tensor) -> Form:
    batch, n, _ = A.shape
    T = scalar(A.dtype)
    H = empty(A.shape, A)
    copy(H, A)
    exponents, found = (empty((batch,), A, torch.int32) for _ in range(2))
    largest = empty((batch, n), A, A.dtype.to_real(), row_major=True)
    layout = {"threads": (32 * -(-n // 4) * 4, batch), "group": (128, 1)}
    kernel("bidiagonal", "bidiagonal_largest", T)(H, largest, n, n, **layout)
    kernel("bidiagonal", "bidiagonal_scale", T)(H, largest, exponents, found, n, n, **layout)
    scales = empty((batch, n), A, torch.int32, row_major=True)
    changed = empty((batch, BALANCING_PASSES), A, torch.int32, row_major=True)
    threads = min(whole(n), 512)
    rows = max(ENTRIES // (2 * n), 1)
    balance = kernel("eig_hessenberg", "eig_balance", T)
    for step in range(BALANCING_PASSES):
        for first in range(0, n, rows):
            balance(
                H, scales, changed, n, step, first, min(first + rows, n),
                threads=(threads * batch,), group=(threads,),
            )  # fmt: skip
    return Form(H, scales, exponents, found)


def _reduce(A: Tensor, vectors: bool) -> Tensor | None:
    """Hessenberg form in place, n > 2, and the unitary matrix of it."""
    batch, n, _ = A.shape
    T = scalar(A.dtype)
    factor = empty(A.shape, A)
    both = [empty((batch, n), A, row_major=True) for _ in range(2)]
    y, w, tau = (empty((batch, n), A, row_major=True) for _ in range(3))
    reflector = kernel("eig_hessenberg", "eig_reflector", T)
    columns = kernel("eig_hessenberg", "eig_columns", T)
    rows = kernel("eig_hessenberg", "eig_rows", T)
    for k in range(n - 1):
        before, v = both[(k + 1) % 2], both[k % 2]
        # The last step only subtracts what the one before left.
        last = k == n - 2
        if not last:
            reflector(A, v, factor, tau, n, k, threads=(256 * batch,), group=(256,))
        columns(
            A, before, v, y, w, tau, n, k,
            threads=(128 * -(-(n - 1 - k) // 8), batch), group=(128, 1),
        )  # fmt: skip
        if not last:
            rows(
                A, v, y, w, tau, n, k,
                threads=(512 * -(-n // 32), batch), group=(512, 1),
            )  # fmt: skip
    return _qr_plan.householder_product(factor, tau[:, : n - 1]) if vectors else None


def bulges(dtype: torch.dtype) -> tuple[int, int, int]:
    """Rows of a bulge, the most in a sweep, and the steps that they take in a window."""
    rows = 2 if dtype.is_complex else 3
    most = WINDOW[dtype.itemsize] // (2 * rows)
    return rows, most, WINDOW[dtype.itemsize] - 1 - rows * most


def progress(state: Tensor) -> list[list[int]]:
    """How far each matrix is, which the host waits for."""
    numbers: list[list[int]] = state.tolist()
    return numbers


def _iterate(H: Tensor, Z: Tensor | None) -> Tensor:
    """Schur form in place. Returns the state, whose first numbers count the rows that are left."""
    batch, n, _ = H.shape
    window = WINDOW[H.dtype.itemsize]
    variant = (scalar(H.dtype), window)
    rows, most, steps = bulges(H.dtype)
    U = empty((batch, window, window), H)
    windows = empty((batch, 2), H, torch.int32, row_major=True)
    shifts = empty((batch, most, 2), H, H.dtype.to_real(), row_major=True)
    state = torch.tensor([[n, 0, 0, 0]] * batch, dtype=torch.int32, device=H.device)
    deflate = kernel("eig_sweeps", "eig_deflate", *variant)
    split = kernel("eig_sweeps", "eig_split", *variant)
    chase = kernel("eig_sweeps", "eig_chase", *variant)
    update = kernel("eig_sweeps", "eig_update", *variant)
    parts = 2 if Z is None else 3
    Z = empty((1,), H) if Z is None else Z
    threads = whole(window)

    def apply() -> None:
        update(
            H, Z, U, windows, n,
            threads=(256 * -(-n // 32) * parts, batch), group=(256, 1),
        )  # fmt: skip

    for _ in range(int(ROUNDS_A_ROW * n)):
        deflate(
            H, U, state, windows, shifts, n, int(TURNS_A_ROW * window),
            threads=(threads * batch,), group=(threads,),
        )  # fmt: skip
        apply()
        split(H, state, shifts, n, threads=(256 * batch,), group=(256,))
        found = progress(state)
        if not any(active for active, *_ in found):
            break
        moves = max(
            active - top - 1 + rows * (count - 1) if count > 0 else 0
            for active, _, top, count in found
        )
        for number in range(-(-moves // steps)):
            chase(
                H, U, state, windows, shifts, n, number,
                threads=(512 * batch,), group=(512,),
            )  # fmt: skip
            apply()
    return state


def _triangle_vectors(S: Tensor) -> Tensor:
    """Eigenvectors of complex upper triangular matrices in the columns of a row-major result."""
    batch, n, _ = S.shape
    X = empty(S.shape, S, row_major=True).zero_()
    substitute = kernel("eig_vectors", "eig_substitute", scalar(S.dtype))
    for first in reversed(range(0, n, BLOCK)):
        last = min(first + BLOCK, n)
        substitute(S, X, n, first, last, threads=(n - first, batch), group=(32, 1))
        if first > 0:
            above = X[:, :first, first:]
            gemm(above, above, S[:, :first, first:last], X[:, first:last, first:], 1, 1)
    return X
