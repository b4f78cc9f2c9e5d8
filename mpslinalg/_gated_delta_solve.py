"""The chunk solve of Gated DeltaNet: checks, derivatives, public function."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from mpslinalg import _gated_delta_plan, _op, _route
from mpslinalg._check import HALVES, same_device
from mpslinalg._gated_delta_plan import CHUNK_SIZES, working

DTYPES = (torch.float32, torch.float64, *HALVES)

regime = _gated_delta_plan.regime

_solve = _gated_delta_plan.solve_tril_op


def _places(starts: Tensor, length: int, size: int) -> Tensor:
    """Where each row of packed sequences stands among the rows of their numbered chunks."""
    rows = torch.arange(length, device=starts.device)
    sequence = torch.searchsorted(starts, rows, right=True) - 1
    start = starts[sequence]
    return ((start // size + sequence) * size + rows - start).long()


def chunks(A: Tensor, starts: Tensor | None) -> Tensor:
    """The chunks of A (*, T, H, BT) as matrices (*, C, H, BT, BT), the last of them padded."""
    *batch, length, heads, size = A.shape
    if starts is None:
        count = -(-length // size)
        rows = F.pad(A, (0, 0, 0, 0, 0, count * size - length)) if length % size else A
    else:
        places = _places(starts, length, size)
        count = _gated_delta_plan.slots(length, len(starts) - 1, size)
        source = places.new_full((count * size,), length).scatter(
            0, places, torch.arange(length, device=places.device)
        )
        rows = F.pad(A, (0, 0, 0, 0, 0, 1)).index_select(-3, source)
    return rows.reshape(*batch, count, size, heads, size).transpose(-3, -2)


def unchunked(X: Tensor, length: int, starts: Tensor | None) -> Tensor:
    """The other way."""
    *batch, count, heads, size, _ = X.shape
    rows = X.transpose(-3, -2).reshape(*batch, count * size, heads, size)
    if starts is None:
        return rows.narrow(-3, 0, length)
    return rows.index_select(-3, _places(starts, length, size))


class _SolveTril(Function):
    """dX = -X tril(dA, -1) X, gA = -tril(X^T gX X^T, -1), for each chunk."""

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor, starts: Tensor | None, dtype: torch.dtype) -> Tensor:
        X: Tensor = _solve(A, starts, dtype)
        return X

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        A, starts, _ = inputs
        ctx.dtype = A.dtype
        ctx.save_for_backward(output, starts)
        ctx.save_for_forward(output, starts)

    @staticmethod
    def backward(ctx: Any, gX: Tensor) -> tuple[Tensor | None, ...]:
        X, starts = ctx.saved_tensors
        inner = working(X.dtype)
        Xt, gradient = chunks(X.to(inner), starts).mT, chunks(gX.to(inner), starts)
        gA = -(Xt @ gradient @ Xt).tril(-1)
        return unchunked(gA, X.shape[-3], starts).to(ctx.dtype), None, None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, *_: None) -> Tensor:
        X, starts = ctx.saved_tensors
        inner = working(X.dtype)
        matrices = chunks(X.to(inner), starts)
        dX = -matrices @ chunks(dA.to(inner), starts).tril(-1) @ matrices
        return unchunked(dX, X.shape[-3], starts).to(X.dtype)


_differentiable_solve = _op.applied(_SolveTril)


def by_torch(A: Tensor, starts: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The same from torch.linalg.solve_triangular, whose derivatives it has."""
    matrices = chunks(A.to(working(A.dtype, dtype)), starts)
    identity = torch.eye(A.shape[-1], dtype=matrices.dtype, device=A.device)
    X = torch.linalg.solve_triangular(matrices, identity, upper=False, unitriangular=True)
    return unchunked(X, A.shape[-3], starts).to(dtype).contiguous()


def solve_tril(
    A: Tensor, cu_seqlens: Tensor | None = None, output_dtype: torch.dtype = torch.float32
) -> Tensor:
    """Invert I + A for every chunk of a strictly lower triangular A, stored by rows.

    Same contract as `fla.ops.utils.solve_tril`. Differences: derivatives; float64; the third
    argument may be a half precision or float64.

    Args:
        A: (B, T, H, BT) with BT = 16, 32 or 64; float32, float16, bfloat16 or float64, any
            strides. Rows 0 .. BT - 1 of T are the first chunk, and so on; `A[b, t, h, j]` is entry
            (t % BT, j) of its chunk. What lies on or above the diagonal is not read.
        cu_seqlens: (N + 1), int32 or int64, for B = 1: sequence s has the rows `cu_seqlens[s]` to
            `cu_seqlens[s + 1] - 1`, and chunks begin anew with each sequence. It begins with 0 and
            ends with T; on a GPU that is not looked at.
        output_dtype: dtype of the result.

    Returns:
        (B, T, H, BT), contiguous: row by row the inverse of each chunk, with its diagonal of ones
        and zeros above. The last chunk of a sequence may have fewer rows; the columns that it has
        no row for are zero.

    Raises:
        RuntimeError: other shapes, chunk sizes, dtypes or lengths; says what was given and what is
            accepted.

    One launch, and the device is never read. Each column of a chunk is one forward substitution:
    with |X| the entries' moduli, |X - (I + A)^-1| <= c BT eps |X| (|I + A|) |X|. For keys of norm
    1 and beta, exp(g) <= 1 the inverse has entries of at most 1, and the error stays near 2e-7. On
    the CPU `auto` runs torch.linalg.solve_triangular.

    Source: Yang, Kautz, Hatamizadeh, "Gated Delta Networks" (2025); Higham, "Accuracy and
    Stability of Numerical Algorithms", chapter 8; docs/algorithms/gated_delta.md.
    """
    same_device("solve_tril", A=A, cu_seqlens=cu_seqlens)
    _check_solve(A, cu_seqlens, output_dtype)
    starts = None if cu_seqlens is None else cu_seqlens.to(torch.int32)
    if not _route.kernels("solve_tril", A):
        return by_torch(A, starts, output_dtype)
    if _op.tracked(A):
        X: Tensor = _differentiable_solve(A, starts, output_dtype)
    else:
        X = _solve(A, starts, output_dtype)
    return X


def _check_solve(A: Any, cu_seqlens: Any, dtype: Any) -> None:
    accepted = isinstance(A, Tensor) and A.dim() == 4 and A.dtype in DTYPES
    if not accepted or A.shape[-1] not in CHUNK_SIZES:
        given = f"{A.dtype} {list(A.shape)}" if isinstance(A, Tensor) else type(A).__name__
        raise RuntimeError(
            f"solve_tril: A must be a tensor [B, T, H, BT] with BT of {CHUNK_SIZES} and of "
            f"float32, float16, bfloat16 or float64, but got {given}"
        )
    if dtype not in DTYPES:
        raise RuntimeError(
            "solve_tril: output_dtype must be float32, float16, bfloat16 or float64, but got "
            f"{dtype}"
        )
    if cu_seqlens is None:
        return
    if not (
        isinstance(cu_seqlens, Tensor)
        and cu_seqlens.dim() == 1
        and len(cu_seqlens) > 1
        and cu_seqlens.dtype in (torch.int32, torch.int64)
        and A.shape[0] == 1
    ):
        given = (
            f"{cu_seqlens.dtype} {list(cu_seqlens.shape)}"
            if isinstance(cu_seqlens, Tensor)
            else type(cu_seqlens).__name__
        )
        raise RuntimeError(
            "solve_tril: cu_seqlens must be an int32 or int64 tensor [N + 1] with N >= 1, and A "
            f"then [1, T, H, BT], but got {given} for A {list(A.shape)}"
        )
    _check_starts(cu_seqlens, A.shape[1])


def _check_starts(cu_seqlens: Tensor, length: int) -> None:
    """On a CPU it costs no wait to look."""
    if not cu_seqlens.is_cpu or torch.compiler.is_compiling():
        return
    if torch._C._are_functorch_transforms_active():
        return
    starts = cu_seqlens.tolist()
    if starts[0] != 0 or starts[-1] != length or sorted(starts) != starts:
        raise RuntimeError(
            f"solve_tril: cu_seqlens must rise from 0 to the length {length} of A, but got {starts}"
        )
