"""The cases of a file that `python -m mpslinalg bench --json FILE` wrote."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from mpslinalg._bench import DTYPES, FAMILIES, Case

Key = tuple[str, int, int, str]


def _key(operation: str, batch: int, n: int, dtype: str) -> Key:
    # A name may say after a semicolon what torch's side ran.
    return operation.partition(";")[0], batch, n, dtype


@functools.cache
def _cases() -> dict[Key, Case]:
    dtypes: list[torch.dtype] = [DTYPES[name] for name in ("float32", "complex64")]
    found = {}
    for family in FAMILIES.values():
        for quick in (False, True):
            for case in (*family.cases(dtypes, quick=quick), family.stream):
                found[_key(case.operation.name, case.batch, case.n, case.dtype_name)] = case
    return found


def measured(run: Mapping[str, Any]) -> Iterator[tuple[Case, float]]:
    """Each case of the grid that the kernels passed, and its microseconds."""
    cases = _cases()
    for cell in run["cells"]:
        case = cases.get(_key(cell["op"], cell["batch"], cell["n"], cell["dtype"]))
        if case is not None and "kernels" in cell["microseconds"]:
            yield case, cell["microseconds"]["kernels"]


def streamed(run: Mapping[str, Any]) -> tuple[Case, float]:
    """The memory-bound case, and its GB/s where calls follow each other without a wait."""
    stream = run["stream"]
    case = _cases()[_key(stream["op"], stream["batch"], stream["n"], stream["dtype"])]
    return case, stream["kernel_gbs"]


def profiled(run: Mapping[str, Any]) -> Iterator[tuple[Case, dict[str, float]]]:
    """Each case of a file of docs/profile_kernels.py, and the microseconds of each kernel."""
    cases = _cases()
    for cell in run["cells"]:
        case = cases.get(_key(cell["op"], cell["batch"], cell["n"], cell["dtype"]))
        if case is not None:
            yield case, {name: of["microseconds"] for name, of in cell["kernels"].items()}
