"""What a launch plan did for one kind of arguments, to do again without its Python.

Shapes, strides, dtypes and flags decide all that a plan does. So where a plan only allocates and
launches, its first call for each kind of arguments is recorded, and later ones repeat the record:
on an H200 a factorisation of small matrices takes the host a third of the time it took before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .engine import Launch, Launcher

_ALLOCATIONS = (torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default)


@dataclass(frozen=True, slots=True)
class Allocation:
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


class Program:
    """Allocations and launches; its tensors are the arguments, then what it allocates."""

    __slots__ = ("_allocate", "_allocations", "_launches", "_results")

    def __init__(
        self,
        allocate: Callable[..., Tensor],
        allocations: Sequence[Allocation],
        launches: Sequence[Launch],
        results: Sequence[int] | int,
    ) -> None:
        self._allocate = allocate
        self._allocations = [(a.shape, a.strides, a.dtype) for a in allocations]
        self._launches, self._results = launches, results

    def run(self, tensors: list[Tensor], device: torch.device) -> Any:
        """The results for other arguments of the same kind."""
        allocate = self._allocate
        for allocation in self._allocations:
            tensors.append(allocate(*allocation, device))
        for launch in self._launches:
            launch(tensors)
        results = self._results
        if isinstance(results, int):
            return tensors[results]
        return tuple([tensors[i] for i in results])


@dataclass
class Recording:
    """Notes what a plan does; `program` is None where that cannot be repeated."""

    arguments: Sequence[Tensor]
    allocated: list[tuple[Tensor, Allocation]] = field(default_factory=list)
    launched: list[tuple[Launcher, Sequence[Any], tuple[int, ...], tuple[int, ...]]] = field(
        default_factory=list
    )
    repeatable: bool = True

    def program(self, results: Any, allocate: Callable[..., Tensor]) -> Program | None:
        tensors = [*self.arguments, *(tensor for tensor, _ in self.allocated)]
        places = {_memory(tensor): i for i, tensor in enumerate(tensors)}
        returned = (results,) if isinstance(results, Tensor) else results
        identities = {id(tensor): i for i, tensor in enumerate(tensors)}
        if not self.repeatable or not all(id(tensor) in identities for tensor in returned):
            return None
        launches = []
        for launcher, arguments, threads, group in self.launched:
            buffers = [a for a in arguments if isinstance(a, Tensor)]
            if not all(_memory(buffer) in places for buffer in buffers):
                return None
            parts = []
            for buffer in buffers:
                place = places[_memory(buffer)]
                parts.append((place, buffer.data_ptr() - tensors[place].data_ptr()))
            values = arguments[len(buffers) :]
            launches.append(launcher.bound(parts, values, threads, group, buffers[0].device))
        numbers = [identities[id(tensor)] for tensor in returned]
        return Program(
            allocate,
            [allocation for _, allocation in self.allocated],
            launches,
            numbers[0] if isinstance(results, Tensor) else numbers,
        )


class _Current(threading.local):
    recording: Recording | None = None


current = _Current()


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees whether a plan computes with torch: what it does then is not all in the record."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recording = recording

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not (func.is_view or func in _ALLOCATIONS):
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
    return len(starts) == len(tensors) and 0 not in starts


def _memory(tensor: Tensor) -> int:
    """Where the memory starts that a tensor or its views lie in."""
    return tensor.untyped_storage().data_ptr()
