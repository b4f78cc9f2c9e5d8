"""What a launch plan did for one kind of arguments, to do again without its Python.

Shapes, strides, dtypes and flags decide all that a plan does. So where a plan only allocates and
launches, its first call for each kind of arguments is recorded, and later ones repeat the record:
on an H200 a factorisation of small matrices takes the host a third of the time it took before.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .engine import Engine, Launch, Launcher

# What torch may do in a plan beside views: to allocate, and to ask about dtypes.
_WITHOUT_VALUES = (
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.promote_types.default,
)


class Allocation(NamedTuple):
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


class View(NamedTuple):
    """Part of a tensor, `offset` elements after its beginning."""

    tensor: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def of(self, tensors: Sequence[Tensor]) -> Tensor:
        base = tensors[self.tensor]
        return base.as_strided(self.shape, self.strides, base.storage_offset() + self.offset)


Check = Callable[[Tensor], None]
Grid = tuple[int, ...]


# A program of so many launches is one that the device may wait for the host in.
LONG = 100


@dataclass(eq=False, slots=True, weakref_slot=True)
class Program:
    """What to do again; its tensors are the arguments, then what it allocates."""

    engine: Engine
    allocations: Sequence[Allocation]
    launches: Sequence[Launch]
    checks: Sequence[tuple[int, Check]]
    results: Sequence[int | View]
    # Makes of the results what the function returns.
    returned: Callable[[list[Tensor]], Any]

    def run(self, tensors: list[Tensor], device: torch.device) -> Any:
        """The results for other arguments of the same kind."""
        if len(self.launches) < LONG:
            self.launch(tensors, device)
        else:
            tensors = self.engine.run_long(self, tensors, device)
        for place, check in self.checks:
            check(tensors[place])
        results = self.results
        return self.returned(
            [r.of(tensors) if isinstance(r, View) else tensors[r] for r in results]
        )

    def launch(self, tensors: list[Tensor], device: torch.device) -> None:
        """Allocate, behind the arguments in `tensors`, and queue the launches."""
        self.allocate(tensors, device)
        self.queue(tensors, device)

    def allocate(self, tensors: list[Tensor], device: torch.device) -> None:
        allocate = self.engine.allocate
        for allocation in self.allocations:
            tensors.append(allocate(*allocation, device))

    def queue(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        # Asked for once: a plan for one large matrix has thousands of launches.
        starts = [tensor.data_ptr() for tensor in tensors]
        queue = self.engine.queue(device)
        for launch in self.launches:
            launch(tensors, starts, queue)

    @property
    def size(self) -> int:
        """Bytes that are allocated."""
        return sum(math.prod(shape) * dtype.itemsize for shape, _, dtype in self.allocations)

    @property
    def kept(self) -> set[int]:
        """The tensors that are looked at once all is queued."""
        places = {r.tensor if isinstance(r, View) else r for r in self.results}
        return places | {place for place, _ in self.checks}


def _only(results: list[Tensor]) -> Tensor:
    return results[0]


@dataclass
class Recording:
    """Notes what a function does; `program` is None where that cannot be repeated."""

    arguments: Sequence[Tensor]
    allocated: list[tuple[Tensor, Allocation]] = field(default_factory=list)
    launched: list[tuple[Launcher, Sequence[Any], Grid, Grid]] = field(default_factory=list)
    # What is to be found out of a result before it is returned: put off to the end.
    checks: list[tuple[Tensor, Check]] = field(default_factory=list)
    repeatable: bool = True
    # Whether what torch computes now is noted as a launch.
    launching: bool = False

    @contextmanager
    def noted(self) -> Iterator[None]:
        """What torch computes in the block is one of the launches."""
        self.launching = True
        try:
            yield
        finally:
            self.launching = False

    def finish(self) -> None:
        for tensor, check in self.checks:
            check(tensor)

    def program(self, returned: Any, engine: Engine) -> Program | None:
        single = isinstance(returned, Tensor)
        results = (returned,) if single else returned
        tensors = [*self.arguments, *(tensor for tensor, _ in self.allocated)]
        places = {_memory(tensor): i for i, tensor in enumerate(tensors)}
        launched: list[tuple[Launcher, list[Tensor], Sequence[Any], Grid, Grid]] = [
            (launcher, [a for a in arguments if isinstance(a, Tensor)], arguments, threads, group)
            for launcher, arguments, threads, group in self.launched
        ]
        used = [buffer for _, buffers, *_ in launched for buffer in buffers]
        used += [*results, *(tensor for tensor, _ in self.checks)]
        if not self.repeatable or not all(_memory(x) in places for x in used):
            return None
        if any(x.dtype != tensors[places[_memory(x)]].dtype or x.is_conj() for x in results):
            return None
        launches = []
        for launcher, buffers, arguments, threads, group in launched:
            parts = []
            for buffer in buffers:
                place = places[_memory(buffer)]
                parts.append((place, buffer.data_ptr() - tensors[place].data_ptr()))
            values = arguments[len(buffers) :]
            launches.append(launcher.bound(parts, values, threads, group, buffers[0].device))
        return Program(
            engine,
            [allocation for _, allocation in self.allocated],
            launches,
            [(places[_memory(tensor)], check) for tensor, check in self.checks],
            [_part(tensors, places[_memory(result)], result) for result in results],
            _only if single else type(returned),
        )


def _part(tensors: Sequence[Tensor], place: int, result: Tensor) -> int | View:
    base = tensors[place]
    if base is result:
        return place
    offset = int(result.storage_offset() - base.storage_offset())
    return View(place, tuple(result.shape), result.stride(), offset)


class _Current(threading.local):
    recording: Recording | None = None


current = _Current()


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees whether a plan computes with torch: what it does then is not all in the record."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recording = recording

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is recorded while torch compiles. If it is to skip this, it imports its compiler
        # with the first operation, which takes as long as torch itself.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not (func.is_view or func in _WITHOUT_VALUES or self._recording.launching):
            self._recording.repeatable = False
        return func(*args, **(kwargs or {}))


class record:
    """Record the plan that runs in the block, called with these arguments."""

    def __init__(self, arguments: Sequence[Tensor]) -> None:
        self._recording = Recording(arguments)
        self._watch = _Watch(self._recording)

    def __enter__(self) -> Recording:
        current.recording = self._recording
        self._watch.__enter__()  # type: ignore[no-untyped-call]
        return self._recording

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watch.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        current.recording = None


def apart(tensors: Sequence[Tensor]) -> bool:
    """Whether each tensor has memory of its own: a buffer then tells which of them it is."""
    starts = {_memory(tensor) for tensor in tensors}
    return len(starts) == len(tensors) and min(starts) > 0


def _memory(tensor: Tensor) -> int:
    """Where the memory starts that a tensor or its views lie in; an empty tensor has none."""
    return tensor.untyped_storage().data_ptr() or -id(tensor)
