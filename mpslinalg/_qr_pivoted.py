"""QR factorisation with column pivoting: derivatives and the public function."""

from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd import Function

from mpslinalg import _check, _op, _qr_pivoted_plan, _route
from mpslinalg._qr import MODES, pull_back, push_forward, refuse_derivative
from mpslinalg._shards import over_batches

regime = _qr_pivoted_plan.regime

_factor = _qr_pivoted_plan.qr_pivoted_op


class QRPivoted(NamedTuple):
    """Q, R and the permutation P of A[..., :, P] = Q R."""

    Q: Tensor
    R: Tensor
    P: Tensor


class _QRPivoted(Function):
    """The QR of A[:, P]: the order P of the columns is locally constant."""

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor, mode: str) -> tuple[Tensor, Tensor, Tensor]:
        Q, R, P = _factor(A, mode)
        return Q, R, P

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        A, ctx.mode = inputs
        ctx.tall = A.shape[-2] > A.shape[-1]
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)
        ctx.mark_non_differentiable(*(output[::2] if ctx.mode == "r" else output[2:]))

    @staticmethod
    def backward(ctx: Any, gQ: Tensor, gR: Tensor, _: Any) -> tuple[Tensor, None]:
        refuse_derivative(ctx)
        Q, R, P = ctx.saved_tensors
        return take_columns(pull_back(Q, R, gQ, gR), P.argsort(-1)), None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, _: None) -> tuple[Tensor, Tensor, None]:
        refuse_derivative(ctx)
        Q, R, P = ctx.saved_tensors
        return *push_forward(Q, R, take_columns(dA, P.long())), None


_differentiable_factor = _op.applied(_QRPivoted)


def take_columns(A: Tensor, P: Tensor) -> Tensor:
    """A[..., :, P] for a permutation of each matrix of a batch."""
    return A.gather(-1, P.unsqueeze(-2).expand(A.shape))


def factor(A: Tensor, mode: str) -> QRPivoted:
    """Q, R and P, the first two differentiable."""
    Q, R, P = _differentiable_factor(A, mode) if _op.tracked(A) else _factor(A, mode)
    return QRPivoted(Q, R, P.long())


@over_batches
def qr_pivoted(A: Tensor, mode: str = "reduced") -> QRPivoted:
    """Factor A[..., :, P] = Q R with the columns in an order that reveals the rank.

    Same contract as `scipy.linalg.qr(A, pivoting=True)`. Differences: it takes batches, and its
    modes are those of `qr`. Torch has no such function, so the kernels run it on every device.

    Args:
        A: (*, m, n), float32, float64, complex64 or complex128; of any rank.
        mode: "reduced", "complete", or "r" for R and P alone.

    Returns:
        Q (*, m, k) and R (*, k, n), k = min(m, n), or k = m with "complete"; column-major matrices.
        With "r" Q is empty. R has a real diagonal, in modulus not increasing but for rounding. P
        (*, n), int64: the columns of A in their new order, counted from 0. Q and R are
        differentiable with "reduced", and with "complete" where m <= n; P is locally constant.

    Raises:
        RuntimeError: what is no matrix, an unknown mode, other dtypes, use("torch").

    At each step the column of the largest norm below the rows done goes first, the one that comes
    first in order if several have it. Never waits for the device. Matrices of at most 32 rows and
    columns are a column a lane of a simdgroup, in one launch, where norms are computed anew at each
    step; beyond, they are downdated, and computed anew where digits cancel. Columns are scaled by
    powers of two, so entries from 1e-30 to 1e30 cost no accuracy. Errors are those of `qr` for
    A[..., :, P].

    Source: Golub, Van Loan, "Matrix Computations", section 5.4.2; Drmac, Bujanovic (2008) for the
    norms; LAPACK's geqp3.
    """
    if isinstance(A, Tensor) and not _check.matrix(A):
        raise RuntimeError(
            "mpslinalg.qr_pivoted: expected matrices of float32, float64, complex64 or complex128, "
            f"but got {A.dtype} {list(A.shape)}"
        )
    if not _route.kernels("qr_pivoted", A):
        raise RuntimeError(
            "mpslinalg.qr_pivoted: torch.linalg has no QR with column pivoting, so use('torch') "
            "cannot run it, and neither can what is no tensor on cpu, cuda or mps"
        )
    if mode not in MODES:
        raise RuntimeError(
            f"mpslinalg.qr_pivoted: expected mode 'reduced', 'complete' or 'r', but got {mode!r}"
        )
    return factor(A, mode)
