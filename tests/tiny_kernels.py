"""Kernels that a test writes down, launched on the CPU engine."""

from functools import cache
from typing import NamedTuple

from torch import Tensor

from mpslinalg._engines import cpu


class Tiny(NamedTuple):
    """A text of float kernel templates; reports call it `tiny.metal`."""

    text: str

    def __call__(
        self, name: str, *arguments: Tensor | int, threads: tuple[int, ...], group: tuple[int, ...]
    ) -> None:
        """Launch the kernel of that name."""
        _launcher(self.text, name)(arguments, threads, group)

    def place(self, words: str) -> str:
        """Where in reports the one line with these words is."""
        (line,) = (i for i, line in enumerate(self.text.splitlines(), 1) if words in line)
        return f"tiny.metal:{line}"


@cache
def _launcher(text: str, name: str) -> cpu._CpuLauncher:
    numbered = f'#line 1 "tiny.metal"\n{text}'
    return cpu.ENGINE.compile_text(numbered, f"tiny.metal: {name}", name, ("float",))
