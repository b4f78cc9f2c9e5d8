"""Kernels beside torch.linalg, timed in one run, on the same inputs.

A family is data: operations (how to call, how to judge) and shapes. No figure is reported before
the result passed LAPACK's test ratio. `python -m mpslinalg bench` and asv share the cases.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg import _gated_delta_solve, testing
from mpslinalg._timing import medians

SAMPLE = 4  # members of a batch that are judged
# Judging one matrix of 4096 takes the host seconds: there torch's result is taken on trust.
TRUSTED_N = 1024
CPU_WORK = 6e8  # batch * n^3 real products beyond which torch on the CPU is not waited for
COPY_BYTES = 2**30
QUICK = 64  # how much smaller `quick` makes what is streamed
STREAM_CALLS = 10
OVERHEAD_CALLS = 20  # few, so that a busy machine seldom interrupts a timing

DTYPES = {name: getattr(torch, name) for name in ("float32", "complex64", "float64", "complex128")}
DEFAULT_DTYPES = ("float32", "complex64")
CPU = torch.device("cpu")

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
        return float(self.batch * self.n**3 * (4 if self.dtype.is_complex else 1))

    def inputs(self, device: torch.device) -> Tensors:
        tensors = self.operation.inputs(self.batch, self.n, self.dtype, device)
        return tensors if self.batch > 1 else tuple(tensor[0] for tensor in tensors)

    def call(self, library: Any, inputs: Tensors) -> Tensors:
        result = self.operation.call(library, *inputs)
        return (result,) if isinstance(result, Tensor) else tuple(result)

    def judge(self, inputs: Tensors, result: Tensors) -> float:
        """The worst LAPACK ratio of a sample of the batch; WrongResult where it fails."""
        chosen = torch.linspace(0, self.batch - 1, min(self.batch, SAMPLE)).long()

        def sample(tensors: Tensors) -> Tensors:
            return tuple(t[chosen.to(t.device)] if self.batch > 1 else t[None] for t in tensors)

        ratio = self.operation.ratio(sample(inputs), sample(result))
        if not ratio < testing.LU_THRESHOLD:
            raise WrongResult(f"LAPACK ratio {ratio:.3g}, allowed {testing.LU_THRESHOLD:g}")
        return ratio


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

    def cases(self, dtypes: Sequence[torch.dtype], *, quick: bool) -> list[Case]:
        shapes = self.quick if quick else [*self.batched, *((1, n) for n in self.single)]
        rows = [(operation, *shape) for operation in self.operations for shape in shapes]
        if not quick:
            rows += self.extra
        return [Case(*row, dtype) for row in rows for dtype in dtypes]


def _randn(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int = 0
) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    if dtype.is_complex:  # by its parts: not every device draws complex numbers
        parts = torch.randn((*shape, 2), dtype=dtype.to_real(), device=device, generator=generator)
        return torch.view_as_complex(parts * math.sqrt(0.5))
    return torch.randn(shape, dtype=dtype, device=device, generator=generator)


def _matrices(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    return (_randn((batch, n, n), dtype, device),)


def _vectors(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    return *_matrices(batch, n, dtype, device), _randn((batch, n, 1), dtype, device, seed=1)


def _systems(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    return *_matrices(batch, n, dtype, device), _randn((batch, n, n), dtype, device, seed=1)


def _volumes(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    """Perturbed permutations: rows are swapped, yet no determinant overflows at any size."""
    A = _randn((batch, n, n), dtype, device) / (2 * math.sqrt(n))
    A += torch.eye(n, dtype=dtype, device=device)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(n))
    return (A[:, order.to(device)],)


def _definite(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    A = _randn((batch, n, n), dtype, device)
    return (A @ A.mH / n + torch.eye(n, dtype=dtype, device=device),)


def _factored(
    batch: int, n: int, dtype: torch.dtype, device: torch.device, columns: int | None = None
) -> Tensors:
    L = torch.linalg.cholesky(*_definite(batch, n, dtype, device))
    return _randn((batch, n, columns or n), dtype, device, seed=1), L


def _cholesky_solve(library: Any, B: Tensor, L: Tensor) -> Tensor:
    # torch has it outside torch.linalg.
    X: Tensor = (LA if library is LA else torch).cholesky_solve(B, L)
    return X


def _cholesky_ratio(inputs: Tensors, result: Tensors) -> float:
    return float(testing.cholesky_ratio(inputs[0], result[0]).max())


def _cholesky_solve_ratio(inputs: Tensors, result: Tensors) -> float:
    B, L = inputs
    wide = L.to("cpu", torch.complex128 if L.is_complex() else torch.float64)
    return float(testing.solve_ratio(wide @ wide.mH, result[0], B).max())


def _lu_ratio(inputs: Tensors, result: Tensors) -> float:
    return float(testing.lu_ratio(inputs[0], *result).max())


def _solve_ratio(inputs: Tensors, result: Tensors) -> float:
    return float(testing.solve_ratio(inputs[0], result[0], inputs[1]).max())


def _triangles(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Lower triangles with a diagonal near 1, so that no solution grows with n."""
    A = _randn((batch, n, n), dtype, device) / n
    return A + torch.eye(n, dtype=dtype, device=device)


def _triangular(columns: int | None) -> Callable[..., Tensors]:
    """Systems with so many right-hand sides, as many as rows for None."""

    def inputs(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
        shape = (batch, n, n if columns is None else columns)
        return _triangles(batch, n, dtype, device), _randn(shape, dtype, device, seed=1)

    return inputs


def _solve_lower(library: Any, A: Tensor, B: Tensor) -> Tensor:
    result: Tensor = library.solve_triangular(A, B, upper=False)
    return result


def _lower_ratio(inputs: Tensors, result: Tensors) -> float:
    return float(testing.solve_ratio(inputs[0].tril(), result[0], inputs[1]).max())


def _inverse_ratio(inputs: Tensors, result: Tensors) -> float:
    return float(testing.inverse_ratio(inputs[0], result[0]).max())


def _volume_ratio(inputs: Tensors, result: Tensors) -> float:
    """|det - det A| / (n |det A| eps), which has no condition in it, because _volumes are well
    conditioned. testing.determinant_ratio needs singular values: minutes for one matrix of 4096.
    """
    (A,), (det,) = inputs, result
    exact = torch.linalg.det(A.cpu().to(torch.complex128 if A.is_complex() else torch.float64))
    error = (det.cpu() - exact).abs() / exact.abs()
    return float(error.max()) / (A.shape[-1] * torch.finfo(A.dtype).eps / 2)


_INVERSE = Operation("inv", _matrices, lambda library, A: library.inv(A), _inverse_ratio)

LU = Family(
    operations=(
        Operation("lu_factor", _matrices, lambda library, A: library.lu_factor(A), _lu_ratio),
        Operation("solve k=1", _vectors, lambda library, A, B: library.solve(A, B), _solve_ratio),
        Operation("solve k=n", _systems, lambda library, A, B: library.solve(A, B), _solve_ratio),
        _INVERSE,
        Operation("det", _volumes, lambda library, A: library.det(A), _volume_ratio),
    ),
    batched=((65536, 4), (65536, 8), (4096, 16), (4096, 32), (4096, 64), (512, 128), (64, 256)),
    single=(1024, 2048, 4096),
    quick=((1024, 4), (1024, 8), (64, 16), (64, 32), (64, 64), (8, 128), (2, 256)),
    stream=Case(
        # Not inv, which waits for info: that would time the host.
        Operation("inv_ex", _matrices, lambda library, A: library.inv_ex(A), _inverse_ratio),
        batch=2**20,
        n=4,
        dtype=torch.float32,
    ),
    overhead=(Case(_INVERSE, 1, 8, torch.float32), 5.0),
    gain=(Case(_INVERSE, 65536, 4, torch.float32), 5.0),
)

_TRIANGULAR = {
    name: Operation(f"solve_triangular k={name}", _triangular(count), _solve_lower, _lower_ratio)
    for name, count in {"1": 1, "8": 8, "n": None, "128": 128}.items()
}

TRIANGULAR = Family(
    operations=tuple(_TRIANGULAR[name] for name in ("1", "8", "n")),
    batched=(
        *((65536, 4), (65536, 8), (4096, 16), (4096, 32), (4096, 64), (4096, 48)),
        *((512, 128), (64, 256)),
    ),
    single=(1024, 2048, 4096),
    quick=((1024, 4), (1024, 8), (64, 16), (64, 32), (64, 48), (64, 64), (8, 128), (2, 256)),
    stream=Case(_TRIANGULAR["n"], batch=2**15, n=32, dtype=torch.float32),
    overhead=(Case(_TRIANGULAR["1"], 1, 8, torch.float32), 5.0),
    gain=(Case(_TRIANGULAR["n"], 4096, 64, torch.float32), 4.0),
    # A Gated DeltaNet layer: 32 heads, 64 chunks of 64 tokens, keys of 128.
    extra=((_TRIANGULAR["128"], 2048, 64),),
)

_CHOLESKY = Operation(
    "cholesky", _definite, lambda library, A: library.cholesky(A), _cholesky_ratio
)

CHOLESKY = Family(
    operations=(
        _CHOLESKY,
        *(
            Operation(
                f"cholesky_solve k={columns or 'n'}",
                partial(_factored, columns=columns),
                _cholesky_solve,
                _cholesky_solve_ratio,
            )
            for columns in (1, 8, None)
        ),
    ),
    batched=(*LU.batched[:5], (4096, 48), *LU.batched[5:]),
    single=(1024, 4096),
    quick=LU.quick,
    stream=Case(
        Operation(
            "cholesky_ex", _definite, lambda library, A: library.cholesky_ex(A), _cholesky_ratio
        ),
        batch=2**20,
        n=4,
        dtype=torch.float32,
    ),
    overhead=(Case(_CHOLESKY, 1, 8, torch.float32), 5.0),
    # On a CPU both sides are torch.
    gain=(Case(_CHOLESKY, 65536, 8, torch.float32), 0.8),
)


def _symmetric(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    A = _randn((batch, n, n), dtype, device)
    return (A + A.mT,)


def _ldl_vectors(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    (A,) = _symmetric(batch, n, dtype, device)
    with LA.use("kernels"):
        factors = LA.ldl_factor_ex(A)
    return A, factors.LD, factors.pivots, _randn((batch, n, 1), dtype, device, seed=1)


def _ldl_systems(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    A, LD, pivots, _ = _ldl_vectors(batch, n, dtype, device)
    return A, LD, pivots, _randn((batch, n, n), dtype, device, seed=1)


def _ldl_ratio(inputs: Tensors, result: Tensors) -> float:
    return float(testing.ldl_ratio(inputs[0], result[0], result[1]).max())


def _ldl_solve_ratio(inputs: Tensors, result: Tensors) -> float:
    return float(testing.solve_ratio(inputs[0], result[0], inputs[3]).max())


def _ldl_solve(library: Any, A: Tensor, LD: Tensor, pivots: Tensor, B: Tensor) -> Any:
    return library.ldl_solve(LD, pivots, B)


_LDL_FACTOR = Operation(
    "ldl_factor", _symmetric, lambda library, A: library.ldl_factor(A), _ldl_ratio
)

LDL = Family(
    operations=(
        _LDL_FACTOR,
        Operation("ldl_solve k=1", _ldl_vectors, _ldl_solve, _ldl_solve_ratio),
        Operation("ldl_solve k=n", _ldl_systems, _ldl_solve, _ldl_solve_ratio),
    ),
    batched=LU.batched,
    single=LU.single,
    quick=LU.quick,
    stream=Case(
        # Not ldl_factor, which waits for info: that would time the host.
        Operation(
            "ldl_factor_ex", _symmetric, lambda library, A: library.ldl_factor_ex(A), _ldl_ratio
        ),
        batch=2**20,
        n=4,
        dtype=torch.float32,
    ),
    overhead=(Case(_LDL_FACTOR, 1, 8, torch.float32), 5.0),
    # On the CPU the default mode takes no kernel, and must not be slower than torch.
    gain=(Case(_LDL_FACTOR, 65536, 4, torch.float32), 0.9),
)


def _rows_of(m: int) -> Callable[[int, int, torch.dtype, torch.device], Tensors]:
    """Matrices of m rows; n counts columns."""

    def inputs(batch: int, n: int, dtype: torch.dtype, device: torch.device) -> Tensors:
        return (_randn((batch, m, n), dtype, device),)

    return inputs


def _qr_ratio(inputs: Tensors, result: Tensors) -> float:
    return float(testing.qr_ratio(inputs[0], *result).max())


def _qr(library: Any, A: Tensor) -> Any:
    return library.qr(A)


_QR = Operation("qr", _matrices, _qr, _qr_ratio)
_TALL_QR = {
    m: Operation(f"qr {m} rows", _rows_of(m), _qr, _qr_ratio) for m in (128, 1024, 4000, 65536)
}

QR = Family(
    operations=(_QR,),
    batched=LU.batched,
    single=LU.single,
    quick=LU.quick,
    stream=Case(_QR, batch=2**18, n=4, dtype=torch.float32),
    overhead=(Case(_QR, 1, 8, torch.float32), 5.0),
    # On a CPU both sides are torch.
    gain=(Case(_QR, 4096, 8, torch.float32), 0.8),
    extra=(
        (_TALL_QR[128], 1024, 32),
        (_TALL_QR[1024], 256, 64),
        (_TALL_QR[4000], 1, 36),
        (_TALL_QR[65536], 1, 8),
    ),
)

HEADS, CHUNK, KEY_WIDTH = 16, 64, 128


# flash-linear-attention's kernel is what torch's side runs where that is installed.
_HAS_FLA = find_spec("fla") is not None


def _fla_solve_tril(A: Tensor) -> Tensor:
    from fla.ops.utils import solve_tril

    X: Tensor = solve_tril(A, output_dtype=torch.float32)
    return X


def _chunk_rows(batch: int, length: int, dtype: torch.dtype, device: torch.device) -> Tensors:
    """What keys of norm 1 in random directions and beta = sigmoid make of a chunk."""
    A = _randn((batch, length, HEADS, CHUNK), dtype, device)
    beta = _randn((batch, length, HEADS, 1), dtype, device, seed=1).sigmoid_()
    below = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=device).tril_(-1)
    A *= beta.mul_(KEY_WIDTH**-0.5)
    return (A.mul_(below.repeat(-(-length // CHUNK), 1)[:length, None]),)


def _invert_chunks(library: Any, A: Tensor) -> Tensor:
    if library is LA:
        return LA.gated_delta.solve_tril(A)
    if _HAS_FLA and A.is_cuda:
        return _fla_solve_tril(A)
    return _gated_delta_solve.by_torch(A, None, A.dtype)


def _chunk_ratio(inputs: Tensors, result: Tensors) -> float:
    """Of every chunk of every eighth head."""
    L, X = (_gated_delta_solve.chunks(x[:, :, ::8], None).flatten(0, 2) for x in (*inputs, *result))
    return float(testing.inverse_ratio(L + torch.eye(CHUNK, device=L.device), X).max())


_SOLVE_TRIL = Operation(
    "solve_tril; torch: fla" if _HAS_FLA else "solve_tril",
    _chunk_rows,
    _invert_chunks,
    _chunk_ratio,
    cheap=True,
)

# batch and n: B and T of A [B, T, 16, 64].
GATED_DELTA = Family(
    operations=(_SOLVE_TRIL,),
    batched=tuple((batch, length) for length in (2048, 8192) for batch in (2, 16, 128)),
    single=(),
    quick=((2, 128), (2, 1024)),
    stream=Case(_SOLVE_TRIL, batch=128, n=2048, dtype=torch.float32),
    overhead=(Case(_SOLVE_TRIL, 2, 64, torch.float32), 20.0),
    gain=(Case(_SOLVE_TRIL, 16, 2048, torch.float32), 1.0),
    dtypes=("float32",),
)

FAMILIES = {
    "lu": LU,
    "triangular": TRIANGULAR,
    "cholesky": CHOLESKY,
    "ldl": LDL,
    "qr": QR,
    "gated_delta": GATED_DELTA,
}


@dataclass(frozen=True)
class Cell:
    """A case as measured; each provider is in `seconds`, or in `refused` with the reason."""

    case: Case
    seconds: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def speedup(self) -> float | None:
        """How many times faster the kernels are than torch on the same device."""
        if {"kernels", "torch"} <= self.seconds.keys():
            return self.seconds["torch"] / self.seconds["kernels"]
        return None


def measure(case: Case, device: torch.device) -> Cell:
    cell = Cell(case)

    def admit(provider: str, library: Any, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """The call to time; none if it fails or its result is wrong."""
        try:
            result = case.call(library, inputs)
            if provider == "kernels" or case.n <= TRUSTED_N or case.operation.cheap:
                cell.ratios[provider] = case.judge(inputs, result)
        except (RuntimeError, WrongResult) as error:
            cell.refused[provider] = str(error).partition("\n")[0]
            return {}
        return {provider: partial(case.operation.call, library, *inputs)}

    inputs = case.inputs(device)
    with LA.use("kernels"):
        calls = admit("kernels", LA, inputs) | admit("torch", torch.linalg, inputs)
        cell.seconds.update(medians(calls, device))
    if device != CPU and case.work <= CPU_WORK:
        calls = admit("torch cpu", torch.linalg, tuple(tensor.cpu() for tensor in inputs))
        cell.seconds.update(medians(calls, CPU, minimum=3))
    return cell


@dataclass(frozen=True)
class Stream:
    """GB/s of a copy and of a memory-bound kernel; reads and writes both count."""

    case: Case
    copy: float
    kernel: float

    @property
    def share(self) -> float:
        return self.kernel / self.copy


def measure_stream(family: Family, device: torch.device, *, quick: bool) -> Stream:
    smaller = QUICK if quick else 1
    source = torch.ones(COPY_BYTES // smaller, dtype=torch.uint8, device=device)
    copy = partial(torch.empty_like(source).copy_, source)
    copying = medians({"copy": copy}, device)["copy"]

    case = replace(family.stream, batch=family.stream.batch // smaller)
    inputs = case.inputs(device)
    with LA.use("kernels"):
        result = case.call(LA, inputs)
        case.judge(inputs, result)

        def several() -> None:
            for _ in range(STREAM_CALLS):
                case.operation.call(LA, *inputs)

        running = medians({"kernel": several}, device, lead=copy)["kernel"] / STREAM_CALLS
    moved = sum(tensor.numel() * tensor.itemsize for tensor in (*inputs, *result))
    return Stream(case, copy=2e-9 * source.numel() / copying, kernel=1e-9 * moved / running)


@dataclass(frozen=True)
class Bar:
    """A figure of the default mode beside the one it must reach."""

    name: str
    value: float
    bar: float
    at_most: bool

    @property
    def held(self) -> bool:
        return self.value <= self.bar if self.at_most else self.value >= self.bar


def measure_auto(family: Family, device: torch.device) -> list[Bar]:
    """What the default mode costs where it leaves the work to torch, and gains elsewhere."""

    def compare(case: Case, repeats: int) -> dict[str, float]:
        inputs = case.inputs(device)

        def repeated(library: Any) -> None:
            for _ in range(repeats):
                case.operation.call(library, *inputs)

        with LA.use("auto"):
            case.judge(inputs, case.call(LA, inputs))
            calls = {"auto": partial(repeated, LA), "torch": partial(repeated, torch.linalg)}
            return medians(calls, device)

    (cost, most), (gain, least) = family.overhead, family.gain
    small, large = compare(cost, OVERHEAD_CALLS), compare(gain, 1)
    added = 1e6 * (small["auto"] - small["torch"]) / OVERHEAD_CALLS
    return [
        Bar(f"{cost}, auto: us over torch.linalg", added, most, at_most=True),
        Bar(f"{gain}, auto: times torch.linalg", large["torch"] / large["auto"], least, False),
    ]
