"""torch.linalg that stays on the GPU: Metal kernels for mps, the same text on cuda and cpu."""

from torch.linalg import LinAlgError as LinAlgError  # type: ignore[attr-defined]

from mpslinalg import gated_delta as gated_delta
from mpslinalg import special as special
from mpslinalg._cholesky import cholesky as cholesky
from mpslinalg._cholesky import cholesky_ex as cholesky_ex
from mpslinalg._cholesky import cholesky_inverse as cholesky_inverse
from mpslinalg._cholesky import cholesky_solve as cholesky_solve
from mpslinalg._determinant import det as det
from mpslinalg._determinant import slogdet as slogdet
from mpslinalg._eig import eig as eig
from mpslinalg._eig import eigvals as eigvals
from mpslinalg._eigh import eigh as eigh
from mpslinalg._eigh import eigvalsh as eigvalsh
from mpslinalg._householder import geqrf as geqrf
from mpslinalg._householder import householder_product as householder_product
from mpslinalg._householder import ormqr as ormqr
from mpslinalg._inverse import inv as inv
from mpslinalg._inverse import inv_ex as inv_ex
from mpslinalg._ldl import ldl_factor as ldl_factor
from mpslinalg._ldl import ldl_factor_ex as ldl_factor_ex
from mpslinalg._ldl import ldl_solve as ldl_solve
from mpslinalg._lowrank import svd_lowrank as svd_lowrank
from mpslinalg._lstsq import lstsq as lstsq
from mpslinalg._lu import lu as lu
from mpslinalg._lu import lu_factor as lu_factor
from mpslinalg._lu import lu_factor_ex as lu_factor_ex
from mpslinalg._lu import lu_solve as lu_solve
from mpslinalg._lu import lu_unpack as lu_unpack
from mpslinalg._matrix_functions import matrix_sqrth as matrix_sqrth
from mpslinalg._norms import cond as cond
from mpslinalg._norms import matrix_norm as matrix_norm
from mpslinalg._pinv import matrix_rank as matrix_rank
from mpslinalg._pinv import pinv as pinv
from mpslinalg._polar import polar as polar
from mpslinalg._qr import qr as qr
from mpslinalg._qr_pivoted import qr_pivoted as qr_pivoted
from mpslinalg._route import use as use
from mpslinalg._route import which as which
from mpslinalg._solve import solve as solve
from mpslinalg._solve import solve_ex as solve_ex
from mpslinalg._svd import svd as svd
from mpslinalg._svd import svdvals as svdvals
from mpslinalg._triangular import solve_triangular as solve_triangular
