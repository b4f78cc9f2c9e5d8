"""Tables of accuracy, of first calls and of asv's figures, made of recorded runs."""

import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docs.cost_model import table
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


def _asv_values(run: dict[str, Any], kind: str) -> dict[tuple[str, str, str], float]:
    """By suite, case and provider: of all benchmarks of a kind, those that were not left out."""
    found: dict[tuple[str, str, str], float] = {}
    for benchmark, columns in run["results"].items():
        named = dict(zip(run["result_columns"], columns, strict=False))
        _, suite, name = benchmark.split(".")
        if kind in name:
            keys = itertools.product(*named["params"])
            for (case, provider), value in zip(keys, named["result"] or (), strict=False):
                if value is not None and not math.isnan(value):
                    found[suite, case.strip("'"), provider.strip("'")] = value
    return found


def asv(files: Sequence[Path]) -> str:
    """The figures of each run, with a link to asv's pages."""
    pieces = []
    for file in files:
        run = json.loads(file.read_text())
        params, times, peaks = run["params"], _asv_values(run, "time"), _asv_values(run, "peak")
        pieces.append(
            f"## {params['cpu']}\n\nCommit `{run['commit_hash'][:8]}`, Python {params['python']}, "
            f"torch {params['torch']}: "
            f'<a href="asv/{params["machine"]}/index.html">asv\'s pages</a>.\n\n'
        )
        head = ("suite", "case", "kernels, us", "torch, us", "kernels, MB", "torch, MB")
        rows = []
        for suite, case in dict.fromkeys(key[:2] for key in times | peaks):
            keys = [(suite, case, provider) for provider in ("kernels", "torch")]
            row = [f"{1e6 * times[key]:.1f}" if key in times else "-" for key in keys]
            row += [f"{peaks[key] / 1e6:.1f}" if key in peaks else "-" for key in keys]
            rows.append((suite, case, *row))
        pieces.append(f"{table(head, rows, left=2)}\n")
    return "".join(pieces)
