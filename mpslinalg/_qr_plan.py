"""Launch plans of the QR family: which kernels run for which sizes."""

from __future__ import annotations

import torch
from torch import Tensor

from mpslinalg import _op
from mpslinalg._engines import empty, flattened, kernel, scalar, strides
from mpslinalg._products import PRODUCT, copy, product, subtract_product
from mpslinalg._simdgroups import lanes, whole

# A column in each lane of a simdgroup, and the columns of a panel.
WIDTH = 32
# Rows of a panel that one threadgroup holds: 512 threads of 32 rows of every column.
MAX_ROWS = 512
# Columns of a matrix that TSQR takes without panels, as a simdgroup more for four others has the
# last eight of them; and the rows of a group then, by what fits 32 KiB of threadgroup memory.
WIDE = 40
WIDE_ROWS = 256
# Rows that a threadgroup takes where several share the columns that reflectors are applied to.
SPAN = 256
# Threadgroups that a matrix may as well have more of: an H200 has 132 processors.
FEW_GROUPS = 128


def regime(name: str, dtype: torch.dtype, batch: int, m: int, n: int, k: int) -> str:
    """What runs for these sizes, in a few words for `which`; a complete Q has its own name."""
    tall = m > _rows(dtype)
    spread = f"qr_project, qr_subtract; qr_expand, matmul for more than {PRODUCT} columns"
    if name in ("householder_product", "ormqr"):
        return f"qr_triangle, {spread if tall else 'qr_apply'}"
    if name.startswith("qr") and max(m, n) <= WIDTH:
        return "qr_simd"
    if name == "qr" and n <= min(widest(dtype), m):
        signs = ", qr_signs" if n > WIDTH else ""
        return f"qr_group{signs}, qr_combine" if m > _height(dtype, n) else "qr_group"
    if tall:
        panels = f"qr_group for panels of {WIDTH} columns, qr_reconstruct"
        applied = "qr_project, qr_subtract" if n <= PRODUCT else "qr_expand, matmul"
    else:
        panels = f"qr_panel of {WIDTH} columns"
        applied = "qr_update, qr_apply" if name.startswith("qr") else "qr_update"
    return f"{panels}, {applied}" if n > WIDTH or name.startswith("qr") else panels


def _rows(dtype: torch.dtype) -> int:
    """Rows of a panel that one threadgroup holds, with what its threads tell each other."""
    return MAX_ROWS if dtype.itemsize <= 8 else MAX_ROWS // 8


def widest(dtype: torch.dtype) -> int:
    """Columns up to which no panels are made of a matrix with at least as many rows."""
    return WIDE if dtype.itemsize <= 8 else WIDTH


def _height(dtype: torch.dtype, n: int) -> int:
    """Rows of n columns that one threadgroup holds."""
    return _rows(dtype) if n <= WIDTH else WIDE_ROWS


def sides(m: int, n: int, mode: str) -> tuple[int, int]:
    """Columns of Q and rows of R."""
    k = m if mode == "complete" else min(m, n)
    return 0 if mode == "r" else k, k


def qr(A: Tensor, mode: str, signed: bool = True) -> tuple[Tensor, Tensor]:
    """Q and R of A = Q R; Q is empty in mode r.

    Beyond 32 columns the signs on R's diagonal are LAPACK's, but for `signed` = False.
    """
    *_, m, n = A.shape
    Q, R = _qr_fake(A, mode)
    if A.numel() == 0:
        if Q.numel() != 0:
            _identity(flattened(Q))
        return Q, R
    matrices = flattened(A)
    columns, rows = sides(m, n, mode)
    if max(m, n) <= WIDTH:
        _simd(matrices, Q if columns else empty((1,), A), R, columns, rows)
    elif n <= widest(A.dtype) and rows == n:
        _tall(
            matrices,
            flattened(Q) if columns else empty((1,), A),
            flattened(R),
            columns != 0,
            signed,
        )
    else:
        factor, tau = empty(matrices.shape, A), _empty_tau(matrices, min(m, n))
        triangles = _factor(matrices, factor, tau)
        kernel("qr", "qr_upper", scalar(A.dtype))(
            factor, R, m, n, rows, threads=(rows, n, len(factor)), group=(32, 8, 1)
        )
        if columns:
            _form(factor, triangles, min(m, n), flattened(Q))
    return Q, R


def _qr_fake(A: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    *batch, m, n = A.shape
    columns, rows = sides(m, n, mode)
    Q = empty((0,) if mode == "r" else (*batch, m, columns), A)
    return Q, empty((*batch, rows, n), A)


def _simd(matrices: Tensor, Q: Tensor, R: Tensor, columns: int, rows: int) -> None:
    batch, m, n = matrices.shape
    width = lanes(max(m, n))
    kernel("qr", "qr_simd", scalar(Q.dtype), width)(
        matrices, Q, R, m, n, batch, *strides(matrices), columns, rows,
        threads=(whole(width * batch),), group=(32,),
    )  # fmt: skip


def _tall(matrices: Tensor, Q: Tensor, R: Tensor, wanted: bool, signed: bool = False) -> None:
    """Q and R of few columns: of blocks of rows, then of the R of those (TSQR)."""
    batch, m, n = matrices.shape
    width = WIDTH if n <= WIDTH else WIDE
    rows = -(-m // _blocks(batch, m, n, _height(Q.dtype, n)))
    # None is empty: 245 blocks of 50000 rows would have 205 each, and 244 are enough.
    blocks = -(-m // rows)
    tops = R if blocks == 1 else empty((batch, blocks * n, n), R)
    parts = -(-rows // WIDTH)
    threads = WIDTH * parts + whole((width - WIDTH) * parts)
    kernel("qr", "qr_group", scalar(Q.dtype), width)(
        matrices, Q, tops, m, n, rows, *strides(matrices), wanted,
        threads=(threads * blocks, batch), group=(threads, 1),
    )  # fmt: skip
    if blocks == 1:
        return
    factor = empty(tops.shape, tops) if wanted else empty((1,), R)
    _tall(tops, factor, R, wanted)
    if signed and n > WIDTH:
        kernel("qr", "qr_signs", scalar(Q.dtype), width)(
            matrices, R, factor, n, blocks * n if wanted else 0, *strides(matrices),
            threads=(256 * batch,), group=(256,),
        )  # fmt: skip
    if wanted:
        kernel("qr", "qr_combine", scalar(Q.dtype), width)(
            factor, Q, m, n, rows, threads=(128 * -(-rows // 128), blocks, batch), group=(128, 1, 1)
        )


def _blocks(batch: int, m: int, n: int, height: int) -> int:
    """Blocks of at most `height` rows that m rows of n columns are cut into."""
    blocks = -(-m // height)
    if blocks == 1 or batch * blocks > FEW_GROUPS:
        return blocks
    # Each level of the tree leaves the same part of its rows: so all take equally long.
    levels = 2
    while n * (height / n) ** levels < m:
        levels += 1
    return max(blocks, int((m / n) ** (1 - 1 / levels)))


def _empty_tau(matrices: Tensor, count: int) -> Tensor:
    return empty((matrices.shape[0], count), matrices, row_major=True)


def _empty_triangles(matrices: Tensor, count: int) -> Tensor:
    return empty((matrices.shape[0], -(-count // WIDTH), WIDTH, WIDTH), matrices)


def _factor(matrices: Tensor, factor: Tensor, tau: Tensor) -> Tensor:
    """Reflectors below R, and tau. Returns the triangular factors of the blocks of reflectors."""
    copy(factor, matrices)
    return reduce(factor, tau, min(factor.shape[1:]))


def reduce(factor: Tensor, tau: Tensor, steps: int) -> Tensor:
    """Householder's reduction in place of the first `steps` columns of column-major matrices.

    What is right of them is multiplied by the reflectors. Returns their triangular factors.
    """
    batch, m, n = factor.shape
    triangles = _empty_triangles(factor, steps)
    blocks = triangles.shape[1]
    workspace = empty((batch * m * WIDTH,), factor) if m > _rows(factor.dtype) else tau
    update = kernel("qr_reflectors", "qr_update", scalar(factor.dtype))
    for block in range(blocks):
        first = block * WIDTH
        last = min(first + WIDTH, steps)
        if m - first > _rows(factor.dtype):
            _tall_panel(factor, tau, triangles, workspace, first, last)
            continue
        _panel(factor, tau, triangles, first, last)
        if last < n:
            update(
                factor, triangles, m, n, first, last, blocks,
                threads=(256 * -(-(n - last) // WIDTH), batch), group=(256, 1),
            )  # fmt: skip
    return triangles


def _panel(factor: Tensor, tau: Tensor, triangles: Tensor, first: int, last: int) -> None:
    """Reflectors of a panel, and their triangular factor."""
    batch, m, n = factor.shape
    threads = whole(m - first)
    kernel("qr", "qr_panel", scalar(factor.dtype))(
        factor, tau, triangles, m, n, first, last, triangles.shape[1],
        threads=(threads * batch,), group=(threads,),
    )  # fmt: skip


def _tall_panel(
    factor: Tensor, tau: Tensor, triangles: Tensor, workspace: Tensor, first: int, last: int
) -> None:
    """The same for more rows than a threadgroup holds, and the update of what is right of it."""
    batch, m, n = factor.shape
    height, width = m - first, last - first
    Y = workspace[: batch * height * width].view(batch, width, height).mT
    R = empty((batch, width, width), factor)
    _tall(factor[:, first:, first:last], Y, R, True)
    expanded = 0 if last == n else (1 if n - last <= PRODUCT else 2)
    V = empty((batch, height if expanded else 1, width), factor)
    VT = empty(V.shape if expanded == 2 else (1,), factor)
    kernel("qr_reflectors", "qr_reconstruct", scalar(factor.dtype))(
        Y, R, factor, tau, triangles, V, VT, m, n, first, width, triangles.shape[1], expanded,
        threads=(128 * -(-height // 128), batch), group=(128, 1),
    )  # fmt: skip
    C = factor[:, first:, last:]
    if expanded == 1:
        _project(V, triangles, C, first, True, False)
    elif expanded == 2:
        subtract_product(C, VT, product(V.mH, C))


def _project(
    V: Tensor, triangles: Tensor, C: Tensor, first: int, adjoint: bool, conjugated: bool
) -> None:
    """The block of reflectors from `first` on, whose V is given, times C or its conjugate."""
    batch, rows, width = V.shape
    columns = C.shape[-1]
    spans = -(-rows // SPAN)
    parts = empty((batch, spans, WIDTH, columns), V)
    layout = (rows, width, columns, V.stride(2), V.stride(0), *strides(C), conjugated)
    threads, group = (256 * -(-columns // WIDTH), spans, batch), (256, 1, 1)
    kernel("qr_reflectors", "qr_project", scalar(V.dtype))(
        V, C, parts, *layout, threads=threads, group=group
    )
    kernel("qr_reflectors", "qr_subtract", scalar(V.dtype))(
        V, C, parts, triangles, *layout, first // WIDTH, triangles.shape[1], adjoint,
        threads=threads, group=group,
    )  # fmt: skip


def _identity(Q: Tensor) -> None:
    batch, m, columns = Q.shape
    kernel("qr_reflectors", "qr_identity", scalar(Q.dtype))(
        Q, m, columns, threads=(m, columns, batch), group=(32, 8, 1)
    )


def _form(factor: Tensor, triangles: Tensor, count: int, Q: Tensor) -> None:
    """Q := the first columns of the product of `count` reflectors."""
    _identity(Q)
    for first in reversed(range(0, count, WIDTH)):
        _apply(factor, triangles, Q[:, first:, first:], first, count, False, False)


def _apply(
    factor: Tensor,
    triangles: Tensor,
    C: Tensor,
    first: int,
    count: int,
    adjoint: bool,
    conjugated: bool,
) -> None:
    """The block of reflectors from `first` on, of `count`, times C or its conjugate."""
    batch, m, n = factor.shape
    columns, width = C.shape[-1], min(WIDTH, count - first)
    height = m - first
    if height > _rows(factor.dtype) and columns <= PRODUCT:
        V = factor[:, first:, first : first + width]
        _project(V, triangles, C, first, adjoint, conjugated)
        return
    if height > _rows(factor.dtype):
        V, VT = (empty((batch, height, width), factor) for _ in range(2))
        kernel("qr_reflectors", "qr_expand", scalar(factor.dtype))(
            factor, triangles, V, VT, m, n, first, width, triangles.shape[1], adjoint,
            threads=(128 * -(-height // 128), batch), group=(128, 1),
        )  # fmt: skip
        if conjugated:
            C = C.mT
            subtract_product(C, product(C, V), VT.mH)
        else:
            subtract_product(C, VT, product(V.mH, C))
        return
    kernel("qr_reflectors", "qr_apply", scalar(factor.dtype))(
        factor, triangles, C, m, n, first, width, triangles.shape[1], columns, *strides(C),
        adjoint, conjugated,
        threads=(256 * -(-columns // WIDTH), batch), group=(256, 1),
    )  # fmt: skip


def geqrf(A: Tensor) -> tuple[Tensor, Tensor]:
    """R with the reflectors below it, and tau, as LAPACK's geqrf."""
    factor, tau = _geqrf_fake(A)
    if A.numel() != 0:
        matrices = flattened(A)
        _factor(matrices, flattened(factor), tau.view(matrices.shape[0], -1))
    return factor, tau


def _geqrf_fake(A: Tensor) -> tuple[Tensor, Tensor]:
    *batch, m, n = A.shape
    return empty(A.shape, A), empty((*batch, min(m, n)), A, row_major=True)


def _reflectors(A: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """A factor as the kernels read it, column-major, and the triangular factors of its blocks."""
    factor = flattened(A)
    if not factor.mT.is_contiguous():
        packed = empty(factor.shape, factor)
        copy(packed, factor)
        factor = packed
    count = tau.shape[-1]
    triangles = _empty_triangles(factor, count)
    tau = tau.resolve_conj().resolve_neg().reshape(-1, count).contiguous()
    batch, m, n = factor.shape
    blocks = triangles.shape[1]
    kernel("qr_reflectors", "qr_triangle", scalar(factor.dtype))(
        factor, tau, triangles, m, n, count, threads=(256 * blocks, batch), group=(256, 1)
    )
    return factor, triangles


def householder_product(A: Tensor, tau: Tensor) -> Tensor:
    """The first columns of H_0 H_1 ..., as many as A has."""
    Q = empty(A.shape, A)
    multiply_reflectors(A, tau, Q)
    return Q


def multiply_reflectors(A: Tensor, tau: Tensor, Q: Tensor) -> None:
    """Q := the first columns of H_0 H_1 ..., as many as it has."""
    if Q.numel() == 0:
        return
    if tau.shape[-1] == 0:
        _identity(flattened(Q))
    else:
        _form(*_reflectors(A, tau), tau.shape[-1], flattened(Q))


def ormqr(A: Tensor, tau: Tensor, C: Tensor, left: bool, adjoint: bool) -> Tensor:
    """Q C, Q^H C, C Q or C Q^H for the product Q = H_0 H_1 ... of reflectors."""
    X = empty(C.shape, C)
    if X.numel() == 0:
        return X
    product = flattened(X)
    copy(product, C)
    count = tau.shape[-1]
    if count == 0:
        return X
    # C Q is the adjoint of Q^H C^H.
    rows, adjoint = (product, adjoint) if left else (product.mT, not adjoint)
    apply_reflectors(A, tau, rows, adjoint, not left)
    return X


def apply_reflectors(A: Tensor, tau: Tensor, C: Tensor, adjoint: bool, conjugated: bool) -> None:
    """C := Q C or Q^H C for batches of strided matrices C, or the same for their conjugates."""
    factor, triangles = _reflectors(A, tau)
    count = tau.shape[-1]
    blocks = range(0, count, WIDTH)
    for first in blocks if adjoint else reversed(blocks):
        _apply(factor, triangles, C[:, first:], first, count, adjoint, conjugated)


qr_op = _op.define("qr(Tensor A, str mode) -> (Tensor, Tensor)", qr, _qr_fake)
geqrf_op = _op.define("geqrf(Tensor A) -> (Tensor, Tensor)", geqrf, _geqrf_fake)
householder_product_op = _op.define(
    "householder_product(Tensor A, Tensor tau) -> Tensor",
    householder_product,
    lambda A, tau: empty(A.shape, A),
)
ormqr_op = _op.define(
    "ormqr(Tensor A, Tensor tau, Tensor C, bool left, bool adjoint) -> Tensor",
    ormqr,
    lambda A, tau, C, left, adjoint: empty(C.shape, C),
)
