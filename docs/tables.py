"""Tables of accuracy and of first calls, made of recorded runs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpslinalg._bench_report import provenance


def accuracy(files: Sequence[Path]) -> str:
    """The worst ratios of every routine beside SciPy's and torch's, a section for each device."""
    return "\n".join(_ratios(json.loads(file.read_text())) for file in files)


def _ratios(run: dict[str, Any]) -> str:
    device = run["environment"]["device"].partition(" ")[0]
    dtypes = list(dict.fromkeys(row["dtype"] for row in run["rows"]))
    found = {(row["routine"], row["dtype"]): row for row in run["rows"]}
    heads = (f"{dtype} | SciPy | torch" for dtype in dtypes)
    pieces = [
        f"### Kernels on {device}\n\n{provenance(run)} The worst ratio over the families and n = "
        f"{', '.join(map(str, run['sizes']))}; torch's is on {device} too.\n\n"
        f"| routine | {' | '.join(heads)} |\n|---|{'---:|---:|---:|' * len(dtypes)}\n"
    ]
    for routine in dict.fromkeys(row["routine"] for row in run["rows"]):
        cells = (_ratio_cells(found.get((routine, dtype))) for dtype in dtypes)
        pieces.append(f"| `{routine}` | {' | '.join(cells)} |\n")
    refused = {row["routine"]: row["refused"] for row in run["rows"] if "refused" in row}
    if refused:
        pieces.append("\nTorch raised:\n\n")
        pieces += [f"- `{routine}`, {words}\n" for routine, words in refused.items()]
    return "".join(pieces)


def _ratio_cells(row: dict[str, Any] | None) -> str:
    if row is None:
        return "- | - | -"
    ours = f"{row['kernels']:.2g}" + (" (over the bar)" if "missed" in row else "")
    torchs = "raises" if "refused" in row else "-"
    if row["torch"] is not None:
        torchs = f"{row['torch']:.2g}"
    return f"{ours} | {row['scipy']:.2g} | {torchs}"


def startup(files: Sequence[Path]) -> str:
    """What importing and first calls take, a section for each machine."""
    return "\n".join(_first_calls(file) for file in files)


def _first_calls(file: Path) -> str:
    run = json.loads(file.read_text())
    imports = run["import"]
    pieces = [
        f"### {file.stem.partition('-')[2]}\n\n{provenance(run)} `import torch` took "
        f"{imports['torch']:.1f} s, `import mpslinalg` after it "
        f"{1e3 * imports['mpslinalg']:.0f} ms. Milliseconds of first and second calls:\n\n"
        "| call | shapes | variants | empty cache | filled cache | second call | torch's first | "
        "torch's second |\n|---|---|---:|---:|---:|---:|---:|---:|\n"
    ]
    for cell in run["cells"]:
        seconds, second = cell["seconds"], cell["second_call"]
        times = (
            *(seconds["empty"], seconds["filled"], second["kernels"]),
            *(seconds["torch"], second["torch"]),
        )
        shapes = ", ".join(" x ".join(map(str, shape)) for shape in cell["shapes"])
        figures = " | ".join(_milliseconds(time) for time in times)
        pieces.append(f"| `{cell['call']}` | {shapes} | {cell['variants']} | {figures} |\n")
    return "".join(pieces)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.0f}" if seconds >= 0.01 else f"{1e3 * seconds:.2g}"
