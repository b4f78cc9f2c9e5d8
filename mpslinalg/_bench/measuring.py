"""Timing of cases: no figure is reported before the result passed LAPACK's test ratio."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch

import mpslinalg as LA
from mpslinalg._bench.cases import QUICKER, Case, Family, Tensors, WrongResult
from mpslinalg._timing import medians, seconds_of, timings

CPU = torch.device("cpu")
# Judging one matrix of 4096 takes the host seconds: there torch's result is taken on trust.
TRUSTED_N = 1024
CPU_WORK = 6e8  # batch * n^3 real products beyond which torch on the CPU is not waited for
CPU_TIMINGS = 3
# A first call of a batch that takes longer is the only timing. Shorter ones are not: what a library
# does once for a size, and a busy machine, are no small part of them.
ONCE_S = 2.0
COPY_BYTES = 2**30
# Threads of BLAS and OpenMP that have judged a result wait for more in a loop, some 20 ms: beside
# them the host's part of a small call takes up to twice as long.
QUIET_S = 0.05
STREAM_CALLS = 10
OVERHEAD_CALLS = 20  # few, so that a busy machine seldom interrupts a timing


@dataclass(frozen=True)
class Cell:
    """A case as measured; each provider is in `seconds`, or in `refused` with the reason."""

    case: Case
    seconds: dict[str, float] = field(default_factory=dict)
    # Of how many timings they are the median.
    timings: dict[str, int] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    # Where the seconds of the bench itself went.
    spent: dict[str, float] = field(default_factory=dict)

    @property
    def speedup(self) -> float | None:
        """How many times faster the kernels are than torch on the same device."""
        if {"kernels", "torch"} <= self.seconds.keys():
            return self.seconds["torch"] / self.seconds["kernels"]
        return None

    @contextmanager
    def spending(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.spent[phase] = self.spent.get(phase, 0.0) + time.perf_counter() - start


def measure(case: Case, device: torch.device) -> Cell:
    cell = Cell(case)

    def admit(provider: str, library: Any, inputs: Tensors) -> dict[str, Callable[[], object]]:
        """The call to time; none if it fails, if its result is wrong, or if one was enough."""
        results: list[Tensors] = []

        def first() -> None:
            results.append(case.call(library, inputs))

        # A loop over the matrices of a batch takes seconds. What a library does once, it does for
        # two matrices; what the kernels do, they may do for each shape.
        warm = library is not LA and case.batch > 2
        try:
            with cell.spending(f"first calls of {provider}"):
                if warm:
                    case.call(library, tuple(tensor[:2] for tensor in inputs))
                took = seconds_of(first, inputs[0].device)
            if provider == "kernels" or case.n <= TRUSTED_N or case.operation.cheap:
                with cell.spending("judging"):
                    cell.ratios[provider] = case.judge(inputs, results[0], torchs=library is not LA)
        except (RuntimeError, WrongResult) as error:
            cell.refused[provider] = str(error).partition("\n")[0]
            return {}
        if warm and took > ONCE_S:
            record({provider: [took]})
            return {}
        return {provider: partial(case.operation.call, library, *inputs)}

    def record(samples: dict[str, list[float]]) -> None:
        cell.seconds.update({provider: median(taken) for provider, taken in samples.items()})
        cell.timings.update({provider: len(taken) for provider, taken in samples.items()})

    with cell.spending("inputs"):
        inputs = case.inputs(device)
    with LA.use("kernels"):
        calls = admit("kernels", LA, inputs) | admit("torch", torch.linalg, inputs)
        time.sleep(QUIET_S)
        with cell.spending("timing"):
            try:
                record(timings(calls, device))
            except RuntimeError as error:
                # cuSOLVER's sytrs refuses some of the calls that it took before.
                cell.refused["torch"] = str(error).partition("\n")[0]
                calls.pop("torch", None)
                record(timings(calls, device))
    if device != CPU and case.work <= CPU_WORK:
        calls = admit("torch cpu", torch.linalg, tuple(tensor.cpu() for tensor in inputs))
        with cell.spending("timing of the CPU"):
            record(timings(calls, CPU, minimum=CPU_TIMINGS))
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
    source = torch.ones(COPY_BYTES // (QUICKER if quick else 1), dtype=torch.uint8, device=device)
    copy = partial(torch.empty_like(source).copy_, source)
    copying = medians({"copy": copy}, device)["copy"]

    case = family.streamed(quick=quick)
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
            # Which may leave it to torch.
            case.judge(inputs, case.call(LA, inputs), torchs=True)
            calls = {"auto": partial(repeated, LA), "torch": partial(repeated, torch.linalg)}
            return medians(calls, device)

    (cost, most), (gain, least) = family.overhead, family.gain
    small, large = compare(cost, OVERHEAD_CALLS), compare(gain, 1)
    added = 1e6 * (small["auto"] - small["torch"]) / OVERHEAD_CALLS
    return [
        Bar(f"{cost}, auto: us over torch.linalg", added, most, at_most=True),
        Bar(f"{gain}, auto: times torch.linalg", large["torch"] / large["auto"], least, False),
    ]
