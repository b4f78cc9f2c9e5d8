"""matrix_exp, pinv, polar and the spectral norm."""

from mpslinalg._bench.matrix_functions import FAMILY as TIMED
from mpslinalg._doctor.family import Family, timed

FAMILY = Family(sizes=(3, 16, 40), ratios=timed(TIMED.operations))
