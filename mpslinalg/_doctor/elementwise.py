"""frexp, heaviside, logspace and comparisons of unsigned integers."""

import torch

from mpslinalg._bench.elementwise import FAMILY as TIMED
from mpslinalg._doctor.family import Family, timed

FAMILY = Family(sizes=(3, 1000), ratios=timed(TIMED.operations), dtypes=(torch.float32,))
