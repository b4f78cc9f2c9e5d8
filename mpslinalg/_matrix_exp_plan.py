"""Launch plan of the exponential of a matrix."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mpslinalg import _lu_plan, _op
from mpslinalg._engines import empty
from mpslinalg._products import product

# Largest norms for which a Pade approximant of this degree has a backward error of one rounding
# (Higham 2005, table 2.3; the single ones section 4).
THETA = {
    torch.float32: {3: 4.258730016922831e-1, 5: 1.880152677804762, 7: 3.925724783138660},
    torch.float64: {
        3: 1.495585217958292e-2,
        5: 2.539398330063230e-1,
        7: 9.504178996162932e-1,
        9: 2.097847961257068,
        13: 5.371920351148152,
    },
}
# Whose number is the exponent of a normal number.
MOST_SQUARES = {torch.float32: 126, torch.float64: 1022}


def _coefficients(degree: int) -> list[float]:
    """Those of the numerator of the diagonal Pade approximant of exp, of which the last is 1."""
    f = math.factorial
    return [float(f(2 * degree - j) // (f(degree - j) * f(j))) for j in range(degree + 1)]


def _pade(A: Tensor, degree: int) -> Tensor:
    """The approximant by its even and odd parts V and U: (V - U)^-1 (V + U)."""
    b = _coefficients(degree)
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    A2 = product(A, A)
    if degree <= 9:
        V, U, power = b[0] * eye, b[1] * eye, A2
        for j in range(2, degree, 2):
            V, U = V + b[j] * power, U + b[j + 1] * power
            if j + 2 < degree:
                power = product(power, A2)
    else:
        A4 = product(A2, A2)
        A6 = product(A4, A2)
        high = product(A6, b[13] * A6 + b[11] * A4 + b[9] * A2)
        U = high + b[7] * A6 + b[5] * A4 + b[3] * A2 + b[1] * eye
        high = product(A6, b[12] * A6 + b[10] * A4 + b[8] * A2)
        V = high + b[6] * A6 + b[4] * A4 + b[2] * A2 + b[0] * eye
    U = product(A, U)
    LU, pivots, _ = _lu_plan.lu_factor(V - U, True)
    return _lu_plan.lu_solve(LU, pivots, V + U, 0)


def _power_of_two(exponents: Tensor, dtype: torch.dtype) -> Tensor:
    """Exactly: as the bits of the numbers."""
    if dtype == torch.float64:
        return (exponents.to(torch.int64) + 1023).bitwise_left_shift(52).view(dtype)
    return (exponents.to(torch.int32) + 127).bitwise_left_shift(23).view(dtype)


def matrix_exp(A: Tensor) -> Tensor:
    """exp(A), row-major; reads the largest norm of the batch, which decides on all products."""
    result = _matrix_exp_fake(A)
    if result.numel() == 0:
        return result
    # The transpose of what is column-major is row-major.
    X = A.resolve_conj().resolve_neg().reshape(-1, *A.shape[-2:]).mT
    real = X.real.dtype if X.is_complex() else X.dtype
    theta = THETA[real]
    # Of a matrix with NaN nothing is known, and there is nothing to find out.
    norms = X.abs().sum(-2).amax(-1).nan_to_num(0)
    bound = max(theta.values())
    squares = (norms / bound).log2().ceil().clamp(0, MOST_SQUARES[real])
    largest, most = torch.stack((norms.amax(), squares.amax())).tolist()
    if most > 0:
        X = X * _power_of_two(-squares, real)[:, None, None]
    X = _pade(X, next((m for m in theta if largest <= theta[m]), max(theta)))
    for done in range(int(most)):
        X = torch.where((done < squares)[:, None, None], product(X, X), X)
    return result.copy_(X.mT.reshape(A.shape))


def _matrix_exp_fake(A: Tensor) -> Tensor:
    return empty(A.shape, A, row_major=True)


matrix_exp_op = _op.define("matrix_exp(Tensor A) -> Tensor", matrix_exp, _matrix_exp_fake)
