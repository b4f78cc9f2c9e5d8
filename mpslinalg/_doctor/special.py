"""Polynomials of degrees that are a tensor, airy_ai, log_ndtr and ndtri."""

import torch

from mpslinalg._bench.special import FAMILY as TIMED
from mpslinalg._doctor.family import Family, timed

FAMILY = Family(sizes=(3, 1000), ratios=timed(TIMED.operations), dtypes=(torch.float32,))
