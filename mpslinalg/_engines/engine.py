"""What an engine is: torch's ordinary calls serve where a device knows no shorter way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .program import Program

Argument = Tensor | int | float
# Queues a launch again, given a program's tensors, where each begins, and the device's queue.
Launch = Callable[[Sequence[Tensor], Sequence[int], int], None]


class Launcher(ABC):
    """One compiled variant."""

    @abstractmethod
    def __call__(
        self, arguments: Sequence[Argument], threads: tuple[int, ...], group: tuple[int, ...]
    ) -> None:
        """Queue the kernel: buffers and sizes in the order of its signature."""

    def bound(
        self,
        parts: Sequence[tuple[int, int]],
        values: Sequence[int | float],
        threads: tuple[int, ...],
        group: tuple[int, ...],
        device: torch.device,
    ) -> Launch:
        """The launch of these values; its buffers are tensors that it will be given.

        `parts` names for each buffer the tensor and the bytes in it before the buffer begins.
        """

        def launch(tensors: Sequence[Tensor], starts: Sequence[int], queue: int) -> None:
            self([*(_from(tensors[i], offset) for i, offset in parts), *values], threads, group)

        return launch


def _from(tensor: Tensor, offset: int) -> Tensor:
    """The memory of a tensor from an offset in bytes on, for a kernel to read."""
    if offset == 0:
        return tensor
    first = tensor.storage_offset() + offset // tensor.element_size()
    size = tensor.untyped_storage().nbytes() // tensor.element_size() - first
    return tensor.as_strided((size,), (1,), first)


class Engine(ABC):
    """Compiles variants of kernels for one kind of device."""

    name: str
    # Whether the threads of a group run at once, not one by one.
    side_by_side: bool

    @abstractmethod
    def compile(self, shader: str, name: str, template: tuple[str, ...]) -> Launcher:
        """One variant of a kernel."""

    def allocate(
        self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Uninitialised memory."""
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)

    def queue(self, device: torch.device) -> int:
        """The handle of what launches are queued in now, for an engine whose launches need it."""
        return 0

    def run_long(
        self, program: Program, tensors: list[Tensor], device: torch.device
    ) -> list[Tensor]:
        """Run a program of many launches; returns its tensors."""
        program.launch(tensors, device)
        return tensors

    def any_nonzero(self, info: Tensor) -> bool:
        """Whether any entry is nonzero; waits for the device."""
        return bool(info.any())
