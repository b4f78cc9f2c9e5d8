"""Linear systems from the LU factorisation: public functions."""

from typing import Any

import torch
from torch import Tensor

from mpslinalg import _check, _lu_plan, _op, _out, _route, _solve_plan
from mpslinalg._lu import factor_constant, solve_factored
from mpslinalg._repeat import public

regime = _solve_plan.regime

_small = _solve_plan.solve_op


def is_vector(A: Tensor, B: Tensor) -> bool:
    return B.dim() == 1 or (B.dim() == A.dim() - 1 and B.shape == A.shape[:-1])


def accepts(A: Tensor, B: Any, left: bool) -> bool:
    if not (_check.square(A) and isinstance(B, Tensor)):
        return False
    if not _check.flags(left) or (is_vector(A, B) and not left):
        return False
    return _check.fits(A, B.unsqueeze(-1) if is_vector(A, B) else B, left)


def _solve(A: Tensor, B: Tensor, left: bool) -> tuple[Tensor, Tensor]:
    vector = is_vector(A, B)
    if vector:
        B = B.unsqueeze(-1)
    # One matrix for many B is factored once.
    alike = left and A.shape[:-2] == B.shape[:-2]
    if alike and A.shape[-1] <= _lu_plan.SIMD and not _op.tracked(A, B):
        X, info = _small(A, B)
    else:
        LU, pivots, info = factor_constant(A)
        A, LU, pivots, B = _op.broadcast((A, 2), (LU, 2), (pivots, 1), (B, 2))
        X = solve_factored(A, B if left else B.mT, LU, pivots, 0 if left else 1)
        X = X if left else X.mT
    return as_vectors(X) if vector else X, info


def as_vectors(X: Tensor) -> Tensor:
    """Matrices of one column as vectors, with torch's strides."""
    X = X.squeeze(-1)
    if X.dim() > 1:
        # torch takes the strides of a batch of vectors for those of a column-major matrix.
        X = X.mT.clone(memory_format=torch.contiguous_format).mT
    return X


@public
def solve(A: Tensor, B: Tensor, *, left: bool = True, out: Tensor | None = None) -> Tensor:
    """Solve A X = B, or X A = B with left=False, for square A.

    Same contract as `torch.linalg.solve`. Differences: none.

    Args:
        A: (*, n, n), float32, float64, complex64 or complex128.
        B: (*, n, k), or (*, k, n) with left=False; or vectors: (n,), or the shape of A without its
            last dimension. Batches broadcast.
        left: solve A X = B, else X A = B.
        out: a tensor to write to.

    Returns:
        X, shape of B with the broadcast batch; column-major matrices, row-major with left=False.

    Raises:
        torch.linalg.LinAlgError: a matrix is singular; names the first one. Reads the device once
            to know, `solve_ex` does not.
        RuntimeError: shapes that do not fit, mixed dtypes.
        NotImplementedError: other dtypes.

    Sizes as `lu_factor`. ||B - A X|| <= c n eps ||L|| ||U|| ||X||: LAPACK's test ratio stays below
    its threshold of 30.

    Source: LAPACK's gesv. Derivatives: Giles (2008).
    """
    if not _route.kernels("solve", A):
        result: Tensor = (
            torch.linalg.solve(A, B, left=left)
            if out is None
            else torch.linalg.solve(A, B, left=left, out=out)
        )
        return result
    _check.same_device("wrapper_CUDA__linalg_solve_ex", A=A, B=B, out=out)
    if not (accepts(A, B, left) and _check.out(out, (A, B), A.dtype)):
        refused: Tensor = _check.refuse(torch.linalg.solve, A, B, left=left, out=out)
        return refused
    X, info = _solve(A, B, left)
    _check.errors(info, "torch.linalg.solve", is_matrix=A.dim() == 2)
    return X if out is None else _out.write(X, out)


@public
def solve_ex(
    A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False, out: Any = None
) -> Any:
    """Solve A X = B, or X A = B, and return LAPACK's `info` instead of raising an error.

    Same contract as `torch.linalg.solve_ex`. Differences: none.

    Args:
        A, B, left: see `solve`.
        check_errors: raise the error all the same, at the price of reading the device.
        out: two tensors to write to.

    Returns:
        result as `solve`, and info, int32 of A's batch shape: 0, or i > 0 when the i-th pivot,
        counted from 1, is zero. Other systems of the batch are untouched by it.

    Raises:
        RuntimeError: shapes that do not fit, mixed dtypes.
        torch.linalg.LinAlgError: with check_errors, a singular matrix.
        NotImplementedError: other dtypes.

    Sizes, error bound and source: see `solve`.
    """
    if not _route.kernels("solve_ex", A):
        return torch.linalg.solve_ex(A, B, left=left, check_errors=check_errors, out=out)
    _check.same_device("wrapper_CUDA__linalg_solve_ex", A=A, B=B, out=out)
    if not (
        accepts(A, B, left)
        and _check.flags(check_errors)
        and _check.out(out, (A, B), A.dtype, torch.int32)
    ):
        return _check.refuse(
            torch.linalg.solve_ex, A, B, left=left, check_errors=check_errors, out=out
        )
    X, info = _solve(A, B, left)
    if check_errors:
        _check.errors(info, "torch.linalg.solve_ex", is_matrix=A.dim() == 2)
    return _out.named("linalg_solve_ex", (X, info), out)
