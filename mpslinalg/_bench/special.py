"""Polynomials whose degrees are a tensor, airy_ai, log_ndtr and ndtri."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.special
import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg._bench.cases import Case, Family, Operation, Tensors

DEGREES = 32
JUDGED = 2**14  # elements of a tensor: SciPy takes a microsecond for each
ALLOWED = 8.0  # the kernels' largest is 3.65
# torch's polynomials lose up to nine bits. Their times are wanted all the same, and the table shows
# both errors.
TORCHS_ALLOWED = 1024.0

_POLYNOMIALS = {
    "laguerre_polynomial_l": scipy.special.eval_laguerre,
    "legendre_polynomial_p": scipy.special.eval_legendre,
    "chebyshev_polynomial_t": scipy.special.eval_chebyt,
    "chebyshev_polynomial_u": scipy.special.eval_chebyu,
}


def _uniform(low: float, high: float) -> Callable[..., Tensors]:
    def inputs(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
        generator = torch.Generator(device).manual_seed(0)
        x = torch.rand((batch, n), generator=generator, device=device, dtype=dtype)
        return (x * (high - low) + low,)

    return inputs


def _degrees(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    """Arguments from -1 to 1, and for each a degree."""
    generator = torch.Generator(device).manual_seed(1)
    degrees = torch.randint(DEGREES, (batch, n), generator=generator, device=device)
    return *_uniform(-1.0, 1.0)(batch, n, dtype, device), degrees.to(dtype)


def _call(name: str, library: Any, *inputs: Tensor) -> Tensor:
    R: Tensor = getattr((LA if library is LA else torch).special, name)(*inputs)
    return R


def _ratio(exact: Callable[..., Any], inputs: Tensors, result: Tensors) -> float:
    """The largest error in units of the rounding of what is at least 1."""
    step = max(inputs[0].numel() // JUDGED, 1)
    given = [x.flatten()[::step].numpy(force=True).astype(np.float64) for x in (*inputs, *result)]
    expected = exact(*given[:-1])
    allowed = np.maximum(np.abs(expected), 1) * torch.finfo(result[0].dtype).eps / 2
    return float((np.abs(given[-1] - expected) / allowed).max())


def _operation(name: str, inputs: Any, exact: Any) -> Operation:
    call, ratio = partial(_call, name), partial(_ratio, exact)
    return Operation(
        name,
        inputs,
        call,
        ratio,
        cheap=True,
        allowed=lambda n, dtype: ALLOWED,
        order=1,
        torchs_allowed=lambda n, dtype: TORCHS_ALLOWED,
    )


_AIRY = _operation("airy_ai", _uniform(-10.0, 10.0), lambda x: scipy.special.airy(x)[0])

FAMILY = Family(
    operations=(
        *(
            _operation(name, _degrees, lambda x, n, of=of: of(n, x))
            for name, of in _POLYNOMIALS.items()
        ),
        _AIRY,
        _operation("log_ndtr", _uniform(-8.0, 8.0), scipy.special.log_ndtr),
        _operation("ndtri", _uniform(1e-6, 1 - 1e-6), scipy.special.ndtri),
    ),
    batched=(),
    single=(2**12, 2**18, 2**23),
    quick=((1, 2**8), (1, 2**12)),
    stream=Case(_AIRY, batch=2**12, n=2**14, dtype=torch.float32),
    overhead=(Case(_AIRY, 1, 2**10, torch.float32), 5.0),
    gain=(Case(_AIRY, 1, 2**20, torch.float32), 0.9),
    dtypes=("float32",),
    note=f"n counts elements; degrees are a tensor of numbers below {DEGREES}.",
)
