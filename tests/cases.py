"""What the properties are drawn from: shapes, batches, storage and scales of random matrices."""

from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis
import hypothesis.strategies as st
import numpy as np
import torch
from torch import Tensor

from mpslinalg import testing
from tests.inputs import SINGLES, VIEWS, on
from tests.ratios import double

Test = Callable[..., None]


def given(**drawn: Any) -> Callable[[Test], Test]:
    """hypothesis.given with half of the profile's examples: each of these tests calls a lot."""
    examples = hypothesis.settings().max_examples // 2

    def decorate(test: Test) -> Test:
        decorated: Test = hypothesis.settings(max_examples=examples)(
            hypothesis.given(**drawn)(test)
        )
        return decorated

    return decorate


# A kernel each for 4, 8, 16, 32 and beyond.
sizes = st.one_of(st.integers(1, 9), st.sampled_from((16, 17, 32, 33, 40)))
batches = st.lists(st.integers(1, 3), max_size=2).map(tuple)
scales = st.sampled_from((1.0, 1e-30, 1e30))
seeds = st.integers(0, 2**32 - 1)
dtypes = st.sampled_from(SINGLES)
views = st.sampled_from((None, *VIEWS))


class Case(NamedTuple):
    """A batch of random matrices of one scale and how it lies in memory."""

    dtype: torch.dtype
    batch: tuple[int, ...]
    scale: float
    view: str | None
    seed: int

    def matrices(self, m: int, n: int, device: str, shift: float = 0.0) -> Tensor:
        """Normally distributed, plus a multiple of the identity that keeps them regular."""
        A = testing.random((*self.batch, m, n), self.dtype, self.seed)
        A = (A + shift * torch.eye(m, n)) * self.scale
        return self.stored(on(device, A))

    def regular(self, n: int, device: str) -> Tensor:
        return self.matrices(n, n, device, shift=3 * n**0.5)

    def symmetric(self, n: int, device: str, hermitian: bool = True) -> Tensor:
        """Equal to their (conjugate) transposes to the last bit."""
        A = testing.random((*self.batch, n, n), self.dtype, self.seed) * self.scale
        return self.stored(on(device, (A + (A.mH if hermitian else A.mT)) / 2))

    def definite(self, n: int, device: str) -> Tensor:
        A = testing.random((*self.batch, n, n), self.dtype, self.seed)
        A = A @ A.mH + n * torch.eye(n)
        return self.stored(on(device, (A + A.mH) / 2 * self.scale))

    def isometries(self, m: int, n: int, rank: int, device: str) -> Tensor:
        """U V^H with `rank` orthonormal columns each, times the scale."""
        wide = torch.complex128 if self.dtype.is_complex else torch.float64
        U, V = (
            np.linalg.qr(testing.random((*self.batch, s, rank), wide, self.seed + s).numpy())[0]
            for s in (m, n)
        )
        A = torch.from_numpy(U @ V.conj().swapaxes(-2, -1) * self.scale).to(self.dtype)
        return self.stored(on(device, A))

    def partner(self, how: str, scale: float | None = None) -> "Case":
        """Other entries, in a batch that broadcasts with this one."""
        batches = {"alike": self.batch, "none": (), "ones": (1,) * len(self.batch)}
        batch = batches.get(how, (2, *self.batch))
        scale = self.scale if scale is None else scale
        return self._replace(batch=batch, scale=scale, seed=self.seed + 1)

    def stored(self, A: Tensor) -> Tensor:
        return A if self.view is None else VIEWS[self.view](A)


partners = st.sampled_from(("alike", "none", "ones", "more"))
cases = st.builds(Case, dtypes, batches, scales, views, seeds)


def eps(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps)


def product(A: Tensor, B: Tensor) -> Tensor:
    """A B, rounded once."""
    exact = A.cpu().to(torch.complex128) @ B.cpu().to(torch.complex128)
    return (exact if A.is_complex() else exact.real).to(A.dtype).to(A.device)


def close(ours: Tensor, expected: Any, allowed: float, size: Any = None) -> None:
    """To `allowed`, relative to `size`, or to the largest of the expected values."""
    x, y = double(ours), double(expected)
    assert x.shape == y.shape
    assert np.isfinite(x).all()
    size = np.abs(y).max(initial=0) if size is None else double(size)
    assert (np.abs(x - y) <= allowed * size).all()
