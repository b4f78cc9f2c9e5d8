"""Launch plans of tridiagonal form: the reduction of hermitian matrices to it, and its values."""

from torch import Tensor

from mpslinalg._engines import empty, kernel, scalar


def values(d: Tensor, e: Tensor, first: int = 0) -> Tensor:
    """Eigenvalues number `first` to n - 1, ascending, of symmetric tridiagonal matrices.

    Args:
        d: (batch, n), real, contiguous: the diagonals.
        e: (batch, n - 1), contiguous: what is beside them.

    Where the diagonal is zero the eigenvalues have high relative accuracy: those of
    [[0, B^T], [B, 0]], permuted, are the singular values of a bidiagonal B, from n / 2 on.
    """
    batch, n = d.shape
    found = empty((batch, n - first), d, row_major=True)
    kernel("tridiagonal", "tridiagonal_values", scalar(d.dtype))(
        d, e, found, n, first, threads=(batch * (n - first),), group=(32,)
    )
    return found
