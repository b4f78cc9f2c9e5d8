"""How far the model is off, by kernel, on the one GPU where times were measured.

`docs/cost_model.py` writes the file from the runs in docs/data.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("factors.json")
ANY = "any other"


class Factor(NamedTuple):
    """Measured over modelled time of a kernel's launches in so many cases, and its spread."""

    median: float
    least: float
    most: float
    cases: int


@functools.cache
def factors() -> dict[str, Factor]:
    found = json.loads(FILE.read_text())
    return {kernel: Factor(*numbers) for kernel, numbers in found.items()}


def factor(kernel: str) -> Factor:
    """Of a kernel; for one that was not measured 1, with the spread of all."""
    found = factors()
    return found.get(kernel, found[ANY])


def written(numbers: Mapping[str, Factor]) -> str:
    """The text of the file, a kernel a line."""
    lines = (f"  {json.dumps(kernel)}: {json.dumps(given)}" for kernel, given in numbers.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"
