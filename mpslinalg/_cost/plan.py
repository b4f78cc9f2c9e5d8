"""The launch plan of a case, found by running it on tensors that have no memory."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import mpslinalg as LA
from mpslinalg._bench.cases import Case
from mpslinalg._cost import counts
from mpslinalg._engines import ENGINES, launched, source
from mpslinalg._engines.engine import Argument, Engine, Launcher
from mpslinalg._engines.program import Recording, record
from mpslinalg._engines.source import Buffer, Value


@dataclass(frozen=True)
class Step:
    """One launch. Bytes: each buffer once, or the part that the sizes in the launch name."""

    shader: str
    kernel: str
    template: tuple[str, ...]
    threads: int
    group: int
    bytes: float
    # Real operations of a launch whose sizes tell them; None where they are a share of the rest.
    operations: float | None
    # What is done one after the other in a group.
    chain: float
    values: dict[str, float]

    @property
    def groups(self) -> int:
        return -(-self.threads // self.group)


@dataclass(frozen=True)
class Plan:
    case: Case
    steps: Sequence[Step]
    waits: int
    # Inputs that some launch reads and results, once each.
    needed: int
    # The algorithm's standard count of real operations.
    operations: float

    @property
    def moved(self) -> float:
        return sum(step.bytes for step in self.steps)


class NoPlan(NotImplementedError):
    """A case of which the launches, or the operations, are not known beforehand."""


class _Noted(Launcher):
    """A kernel that is never run."""

    def __init__(self, shader: str, name: str, template: tuple[str, ...]) -> None:
        self.shader, self.name, self.template = shader, name, template

    def __call__(
        self, arguments: Sequence[Argument], threads: tuple[int, ...], group: tuple[int, ...]
    ) -> None:
        pass


class _Paper(Engine):
    """Takes launches on tensors of torch's meta device."""

    name = "paper"
    side_by_side = True

    def compile(self, shader: str, name: str, template: tuple[str, ...]) -> _Noted:
        return _Noted(shader, name, template)


_PAPER = _Paper()
_lock = threading.Lock()


@contextmanager
def _on_paper() -> Iterator[None]:
    """Launches on meta tensors are noted; what they would launch counts as never launched."""
    with _lock:
        before = set(launched)
        ENGINES["meta"] = _PAPER
        try:
            with LA.use("kernels"):
                yield
        finally:
            del ENGINES["meta"]
            launched.intersection_update(before)


def plan(case: Case) -> Plan:
    """What the kernels do for a case, its shapes and strides alone being known."""
    if not counts.counted(case.operation):
        raise NoPlan(f"mpslinalg: no count of operations for {case.operation.name}")
    with FakeTensorMode():
        shapes = case.inputs(torch.device("cpu"))
    inputs = [
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta") for x in shapes
    ]
    with _on_paper(), record(inputs) as recording:
        try:
            results = case.call(LA, tuple(inputs))
        except NotImplementedError as error:
            raise NoPlan(f"mpslinalg: the launches of {case} depend on data") from error
    if not recording.repeatable:
        raise NoPlan(f"mpslinalg: the plan of {case} computes with torch")
    steps = _steps(recording)
    touched = {
        _memory(argument)
        for _, arguments, *_ in recording.launched
        for argument in arguments
        if isinstance(argument, Tensor)
    }
    own = {_memory(x): _bytes(x) for x in (*inputs, *results) if _memory(x) in touched}
    return Plan(
        case, steps, len(recording.checks), sum(own.values()), counts.operations(case, inputs)
    )


def launches(call: Callable[[Tensor], object], A: Tensor) -> list[Step]:
    """Those of a call of which more need not be known, with a tensor of torch's meta device."""
    with _on_paper(), record([A]) as recording:
        call(A)
    return _steps(recording)


def _steps(recording: Recording) -> list[Step]:
    seen: Counter[str] = Counter()
    steps = []
    for launcher, arguments, threads, group in recording.launched:
        if isinstance(launcher, _Noted):
            steps.append(_step(launcher, arguments, threads, group, seen[launcher.name]))
            seen[launcher.name] += 1
        else:
            steps.append(_gemm(arguments))
    return steps


def _step(
    launcher: _Noted,
    arguments: Sequence[Argument],
    threads: tuple[int, ...],
    group: tuple[int, ...],
    nth: int,
) -> Step:
    signature = source.signature(launcher.shader, launcher.name)
    buffers = [a for a in arguments if isinstance(a, Tensor)]
    names = [a.name for a in signature.arguments if isinstance(a, Value)]
    values = dict(zip(names, map(float, arguments[len(buffers) :]), strict=True))
    first = buffers[0]
    unit = first.element_size() * (len(first) if first.dim() == 3 else 1)
    moved = counts.elements(launcher.name, values)
    declared = [a for a in signature.arguments if isinstance(a, Buffer)]
    assert len(declared) == len(buffers)
    done = counts.of_launch(launcher.name, values)
    if done is not None:
        done *= unit / first.element_size() * (4 if first.is_complex() else 1)
    if not counts.works(launcher.name, values, nth):
        moved = done = 0.0
    return Step(
        launcher.shader,
        launcher.name,
        launcher.template,
        math.prod(threads),
        math.prod(group),
        float(sum(map(_bytes, buffers))) if moved is None else moved * unit,
        done,
        counts.chain(launcher.name, values, nth),
        values,
    )


def _gemm(arguments: Sequence[Argument]) -> Step:
    C, D, A, B = (a for a in arguments[:4] if isinstance(a, Tensor))
    beta = arguments[4]
    operands = (C, A, B, *((D,) if beta != 0 else ()))
    operations = 2 * C.numel() * A.shape[-1] * (4 if C.is_complex() else 1)
    # As torch's own tiles go: 64 x 64 of C by 128 threads.
    tiles = len(C) * -(-C.shape[-2] // 64) * -(-C.shape[-1] // 64)
    moved = float(sum(map(_bytes, operands)))
    return Step("", "gemm", (), 128 * tiles, 128, moved, float(operations), 0.0, {})


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _bytes(tensor: Tensor) -> int:
    """Of its distinct entries."""
    sizes = (size for size, step in zip(tensor.shape, tensor.stride(), strict=True) if step != 0)
    return math.prod(sizes) * tensor.element_size()
