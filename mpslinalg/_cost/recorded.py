"""The cases of a file that `python -m mpslinalg bench --json FILE` wrote."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from mpslinalg._bench import DTYPES, FAMILIES, Case
from mpslinalg._bench.cases import Operation
from mpslinalg._cost import counts


def families() -> list[str]:
    """Those of which every operation is counted."""
    return [
        name
        for name, family in FAMILIES.items()
        if all(map(counts.counted, (*family.operations, family.stream.operation)))
    ]


@functools.cache
def _operations() -> dict[str, Operation]:
    found = {}
    for family in (FAMILIES[name] for name in families()):
        extra = (operation for operation, *_ in family.extra)
        for operation in (*family.operations, *extra, family.stream.operation):
            found[_name(operation.name)] = operation
    return found


def _name(operation: str) -> str:
    # It may say after a semicolon what torch's side ran.
    return operation.partition(";")[0]


def _case(cell: Mapping[str, Any]) -> Case | None:
    operation = _operations().get(_name(cell["op"]))
    if operation is None:
        return None
    return Case(operation, cell["batch"], cell["n"], DTYPES[cell["dtype"]])


def _recorded(run: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The families of a run that were timed and are counted, by name."""
    counted = families()
    for name, family in run.get("families", {}).items():
        if name in counted and "cells" in family:
            yield name, family


def measured(run: Mapping[str, Any]) -> Iterator[tuple[str, Case, float]]:
    """Each case of the grids that the kernels passed: its family, and its microseconds."""
    for name, family in _recorded(run):
        for cell in family["cells"]:
            case = _case(cell)
            if case is not None and "kernels" in cell["microseconds"]:
                yield name, case, cell["microseconds"]["kernels"]


def streamed(run: Mapping[str, Any]) -> Iterator[tuple[Case, float]]:
    """Each memory-bound case, and its GB/s where calls follow each other without a wait."""
    for _, family in _recorded(run):
        case = _case(family["stream"])
        if case is not None:
            yield case, family["stream"]["kernel_gbs"]


def profiled(run: Mapping[str, Any]) -> Iterator[tuple[Case, dict[str, float]]]:
    """Each case of a file of docs/profile_kernels.py, and the microseconds of each kernel."""
    for cell in run["cells"]:
        case = _case(cell)
        if case is not None:
            yield case, {name: of["microseconds"] for name, of in cell["kernels"].items()}
