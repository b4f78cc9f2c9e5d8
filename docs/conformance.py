"""The tables of docs/conformance.md, from what runs of tests/test_conformance.py wrote."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ASPECTS = ("forward", "backward", "second", "forward mode", "vmap", "compile")
# Dtypes that count as one where all of them are there.
GROUPS = {
    "int": ("uint8", "int8", "int16", "int32", "int64"),
    "uint": ("uint16", "uint32", "uint64"),
}
SHORT = {
    "bool": "bool",
    **{f"{sign}int{bits}": f"{sign}i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "complex64": "c64",
    "complex128": "c128",
}


def tables(files: Sequence[Path]) -> str:
    """A table for each engine, then the notes of all."""
    notes: list[str] = []
    parts = [_table(json.loads(file.read_text()), notes) for file in files]
    parts.append("".join(f"{i}. {note}\n" for i, note in enumerate(notes, 1)))
    return "\n".join(parts)


def _table(run: dict[str, Any], notes: list[str]) -> str:
    environment, results = run["environment"], run["results"]
    engine, _, chip = environment["device"].partition(" ")
    pieces = [
        f"## On {engine}\n\n`{run['command']}` on {run['date'][:10]}: {chip.strip('()')}, "
        f"torch {environment['torch']}, Python {environment['python']}, {environment['system']}.\n",
        f"\n| | {' | '.join(ASPECTS)} |\n|---|{'---|' * len(ASPECTS)}\n",
    ]
    for function, aspects in results.items():
        cells = " | ".join(_cell(aspects.get(aspect, {}), notes) for aspect in ASPECTS)
        pieces.append(f"| `{function}` | {cells} |\n")
    return "".join(pieces)


def _cell(outcomes: dict[str, str], notes: list[str]) -> str:
    """Dtypes by outcome; anything but success has the number of a note, or is a failure."""
    words = []
    for outcome in dict.fromkeys(outcomes.values()):
        dtypes = [dtype for dtype, found in outcomes.items() if found == outcome]
        reason = outcome.removeprefix("none: ")
        text = _dtypes(dtypes) if reason == outcome else "none"
        if outcome == "failed":
            text = f"**failed**: {text}"
        elif outcome != "passed":
            if reason not in notes:
                notes.append(reason)
            text += f" ({notes.index(reason) + 1})"
        words.append(text)
    return ", ".join(words) or "-"


def _dtypes(names: Sequence[str]) -> str:
    words, left = [], set(names)
    for group, members in GROUPS.items():
        if left.issuperset(members):
            words.append(group)
            left.difference_update(members)
    order = [short for name, short in SHORT.items() if name in left]
    return " ".join(words + order)
