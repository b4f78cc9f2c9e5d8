"""What is timed: a family is data, operations (how to call, how to judge) and shapes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mpslinalg import testing

QUICKER = 64  # how much smaller `quick` makes what is streamed
SAMPLE = 4  # members of a batch that are judged

DTYPES = {name: getattr(torch, name) for name in ("float32", "complex64", "float64", "complex128")}
DEFAULT_DTYPES = ("float32", "complex64")

# The grid of square matrices, as batch and n.
BATCHED = ((65536, 4), (65536, 8), (4096, 16), (4096, 32), (4096, 64), (512, 128), (64, 256))
QUICK = ((1024, 4), (1024, 8), (64, 16), (64, 32), (64, 64), (8, 128), (2, 256))
SINGLE = (1024, 2048, 4096)

Tensors = tuple[Tensor, ...]


class WrongResult(ArithmeticError):
    """A result too wrong for its speed to matter."""


@dataclass(frozen=True)
class Operation:
    """`call` takes a library, then the inputs; `ratio` the inputs and results of a few members."""

    name: str
    inputs: Callable[[int, int, torch.dtype, torch.device], Tensors]
    call: Callable[..., Any]
    ratio: Callable[[Tensors, Tensors], float]
    cheap: bool = False  # judging takes no longer than the call, however large n is
    allowed: Callable[[int, torch.dtype], float] = lambda n, dtype: testing.LU_THRESHOLD
    order: int = 3  # what n counts, to this power, is the work
    # Of torch's results, where they need more to be timed at all.
    torchs_allowed: Callable[[int, torch.dtype], float] | None = None


@dataclass(frozen=True)
class Case:
    """A batch of 1 is a matrix without a batch dimension."""

    operation: Operation
    batch: int
    n: int
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.operation.name} {self.batch} x {self.n} {self.dtype_name}"

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def work(self) -> float:
        n_to_order = self.n**self.operation.order
        return float(self.batch * n_to_order * (4 if self.dtype.is_complex else 1))

    def inputs(self, device: torch.device) -> Tensors:
        tensors = self.operation.inputs(self.batch, self.n, self.dtype, device)
        return tensors if self.batch > 1 else tuple(tensor[0] for tensor in tensors)

    def call(self, library: Any, inputs: Tensors) -> Tensors:
        result = self.operation.call(library, *inputs)
        return (result,) if isinstance(result, Tensor) else tuple(result)

    def judge(self, inputs: Tensors, result: Tensors, *, torchs: bool = False) -> float:
        """The worst LAPACK ratio of a sample of the batch; WrongResult where it fails."""
        chosen = torch.linspace(0, self.batch - 1, min(self.batch, SAMPLE)).long()

        def sample(tensors: Tensors) -> Tensors:
            return tuple(t[chosen.to(t.device)] if self.batch > 1 else t[None] for t in tensors)

        ratio = self.operation.ratio(sample(inputs), sample(result))
        loose = self.operation.torchs_allowed if torchs else None
        allowed = (loose or self.operation.allowed)(self.n, self.dtype)
        if not ratio < allowed:
            raise WrongResult(f"LAPACK ratio {ratio:.3g}, allowed {allowed:.3g}")
        return ratio


@dataclass(frozen=True)
class Bars:
    """How many times torch's speed a family was built for, beside 1 for each batched cell."""

    mean: float | None = None  # geometric mean over the batched cells
    single: float | None = None  # each cell of one matrix
    share: float | None = None  # of the bandwidth of a copy


@dataclass(frozen=True)
class Family:
    operations: Sequence[Operation]
    batched: Sequence[tuple[int, int]]
    single: Sequence[int]
    quick: Sequence[tuple[int, int]]
    # Memory-bound: reported as a share of the bandwidth of a copy.
    stream: Case
    # Where the default mode leaves the work to torch: the microseconds it may add.
    overhead: tuple[Case, float]
    # Where the default mode takes a kernel: how many times faster than torch it must be.
    gain: tuple[Case, float]
    # Batches of one operation alone.
    extra: Sequence[tuple[Operation, int, int]] = ()
    dtypes: Sequence[str] = DEFAULT_DTYPES
    bars: Bars = Bars()
    # Other figures of cells that are in a family already: no part of what all families reach.
    apart: bool = False
    # What the columns of the table mean besides.
    note: str = ""

    def taken(self, dtypes: Sequence[str] | None) -> list[str]:
        """Those of the dtypes that it has cases of, its own by default."""
        is_complex = any(DTYPES[name].is_complex for name in self.dtypes)
        return [name for name in dtypes or self.dtypes if is_complex or "complex" not in name]

    def streamed(self, *, quick: bool) -> Case:
        batch = self.stream.batch // (QUICKER if quick else 1)
        return replace(self.stream, batch=batch)

    def cases(self, dtypes: Sequence[torch.dtype], *, quick: bool) -> list[Case]:
        shapes = self.quick if quick else [*self.batched, *((1, n) for n in self.single)]
        rows = [(operation, *shape) for operation in self.operations for shape in shapes]
        if not quick:
            rows += self.extra
        return [Case(*row, dtype) for row in rows for dtype in dtypes]


def randn(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int = 0
) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    if dtype.is_complex:  # by its parts: not every device draws complex numbers
        parts = torch.randn((*shape, 2), dtype=dtype.to_real(), device=device, generator=generator)
        return torch.view_as_complex(parts * math.sqrt(0.5))
    return torch.randn(shape, dtype=dtype, device=device, generator=generator)


def rows(m: int | None) -> Callable[[int, int, torch.dtype, torch.device], Tensors]:
    """Matrices of m rows, square ones for None; n counts columns."""

    def inputs(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
        return (randn((batch, n if m is None else m, n), dtype, device),)

    return inputs
