"""Long programs as what CUDA calls graphs.

A plan for one large matrix has thousands of launches, which take the host 5 to 10 us each and the
GPU often less. A graph is queued at once, but its addresses are fixed: so it works on memory of its
own, into which arguments are copied, and from which results are.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from .program import Program

# Repetitions of a program after which it gets a graph: making one takes as long as one or two.
REPEATS = 2
# Memory that graphs may hold in all; programs that need more have none, and the oldest graphs go.
MOST_BYTES = 2**29


class Graph:
    """The launches of a program, for the stream that is current now."""

    def __init__(
        self, program: Program, arguments: Sequence[Tensor], device: torch.device, size: int
    ) -> None:
        self.size = size
        stream = torch.cuda.current_stream(device)
        self.stream = stream.cuda_stream
        self._arguments = [torch.empty_like(argument) for argument in arguments]
        self._kept = program.kept
        self._tensors = list(self._arguments)
        program.allocate(self._tensors, device)
        self._graph = torch.cuda.CUDAGraph()
        # torch does not record what is queued in its default stream.
        aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        aside.wait_stream(stream)
        with torch.cuda.stream(aside):
            self._graph.capture_begin(capture_error_mode="thread_local")
            program.queue(self._tensors, device)
            self._graph.capture_end()
        stream.wait_stream(aside)

    def run(self, arguments: Sequence[Tensor]) -> list[Tensor]:
        """The program's tensors; of those that it allocates, copies of the ones that are kept."""
        for own, argument in zip(self._arguments, arguments, strict=True):
            own.copy_(argument)
        self._graph.replay()
        tensors = [*arguments, *self._tensors[len(arguments) :]]
        for place in self._kept:
            if place >= len(arguments):
                tensors[place] = self._tensors[place].clone()
        return tensors


class Graphs:
    """The graphs of programs that were repeated, as many as there is memory for."""

    def __init__(self) -> None:
        self._repeats: WeakKeyDictionary[Program, int] = WeakKeyDictionary()
        # None for a program that has no graph, or none any more; the oldest come first.
        self._graphs: WeakKeyDictionary[Program, Graph | None] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def run(
        self, program: Program, arguments: Sequence[Tensor], device: torch.device
    ) -> list[Tensor] | None:
        """The program's tensors, or None if it has no graph."""
        if torch.cuda.is_current_stream_capturing():
            return None
        # Until all is queued: a graph has one set of tensors.
        with self._lock, torch.cuda.device(device):
            if program not in self._graphs:
                repeats = self._repeats.get(program, 0) + 1
                self._repeats[program] = repeats
                if repeats < REPEATS:
                    return None
                self._graphs[program] = self._made(program, arguments, device)
            graph = self._graphs[program]
            # Another stream might write while the one before still reads.
            if graph is None or graph.stream != program.engine.queue(device):
                return None
            return graph.run(arguments)

    def _made(
        self, program: Program, arguments: Sequence[Tensor], device: torch.device
    ) -> Graph | None:
        dense = all(torch._debug_has_internal_overlap(x) == 0 for x in arguments)
        size = program.size + sum(argument.nbytes for argument in arguments)
        if size > MOST_BYTES or not dense:
            return None
        held = {p: graph.size for p, graph in self._graphs.items() if graph is not None}
        for oldest in list(held):
            if sum(held.values()) + size <= MOST_BYTES:
                break
            torch.cuda.synchronize(device)
            self._graphs[oldest] = None
            del held[oldest]
        return Graph(program, arguments, device, size)
