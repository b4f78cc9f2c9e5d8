"""What an engine is: torch's ordinary calls serve where a device knows no shorter way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Argument = Tensor | int | float
# Asks for the tensors of a launch and queues it.
Launch = Callable[[Sequence[Tensor]], None]


class Launcher(ABC):
    """One compiled variant."""

    @abstractmethod
    def __call__(
        self, arguments: Sequence[Argument], threads: tuple[int, ...], group: tuple[int, ...]
    ) -> None:
        """Queue the kernel: buffers and sizes in the order of its signature."""

    def bound(
        self,
        buffers: Sequence[int],
        values: Sequence[int | float],
        threads: tuple[int, ...],
        group: tuple[int, ...],
        device: torch.device,
    ) -> Launch:
        """The launch of these values, on those of the tensors that it will be given."""

        def launch(tensors: Sequence[Tensor]) -> None:
            self([*(tensors[i] for i in buffers), *values], threads, group)

        return launch


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

    def any_nonzero(self, info: Tensor) -> bool:
        """Whether any entry is nonzero; waits for the device."""
        return bool(info.any())
