"""Write docs/_generated/PAGE.md from real runs.

python docs/generate.py accuracy [docs/data/accuracy-cpu.json ...]
python docs/generate.py startup [docs/data/startup-h200.json ...]
python docs/generate.py benchmarks docs/data/h200-lu.json docs/data/h200-ldl.json ...
python docs/generate.py conformance docs/data/conformance-cpu.json ...

They make tables of files that other commands wrote on the machines that they name:
`python docs/ratios.py`, `python docs/startup.py`, `python -m mpslinalg bench --json FILE` and
`python -m pytest tests/test_conformance.py --conformance FILE`. A file of bench is named
MACHINE-FAMILY.json, and each family is a section.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from docs import conformance  # noqa: E402
from mpslinalg._bench import FAMILIES  # noqa: E402
from mpslinalg._timing import MINIMUM_TIMINGS  # noqa: E402


def _origin(run: dict[str, Any]) -> str:
    """What a run says of itself."""
    environment = run["environment"]
    return (
        f"`{run['command']}` on {run['date'][:10]}: {environment['device']}, torch "
        f"{environment['torch']}, Python {environment['python']}, {environment['system']}."
    )


def accuracy(files: Sequence[Path]) -> str:
    """The worst ratios of every routine beside SciPy's and torch's, a section for each device."""
    return "\n".join(_ratios(json.loads(file.read_text())) for file in files)


def _ratios(run: dict[str, Any]) -> str:
    device = run["environment"]["device"].partition(" ")[0]
    dtypes = list(dict.fromkeys(row["dtype"] for row in run["rows"]))
    found = {(row["routine"], row["dtype"]): row for row in run["rows"]}
    heads = (f"{dtype} | SciPy | torch" for dtype in dtypes)
    pieces = [
        f"### Kernels on {device}\n\n{_origin(run)} The worst ratio over the families and n = "
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
        f"### {file.stem.partition('-')[2]}\n\n{_origin(run)} `import torch` took "
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


def benchmarks(files: Sequence[Path]) -> str:
    """Recorded runs, a section for each."""
    return "\n".join(_section(file) for file in files)


def _section(file: Path) -> str:
    """A run as one table a dtype, under the title of its algorithm."""
    family = file.stem.rpartition("-")[2]
    title = (DOCS / "algorithms" / f"{family}.md").read_text().partition("\n")[0]
    run = json.loads(file.read_text())
    stream = run["stream"]
    words = [
        _origin(run),
        "Microseconds, medians; the speed is torch's time over the kernels'. A number in brackets "
        f"says of how many timings, where a slow call has fewer than {MINIMUM_TIMINGS}. Errors are "
        "LAPACK's test ratios of the kernels and of torch.",
        FAMILIES[family].note,
    ]
    pieces = [f"##{title}\n\n{' '.join(filter(None, words))}\n"]
    for dtype in dict.fromkeys(cell["dtype"] for cell in run["cells"]):
        pieces.append(f"\n**{dtype}**\n\n| | batch | n | kernels | torch | speed | errors |\n")
        pieces.append("|---|---:|---:|---:|---:|---:|---:|\n")
        pieces += [_row(cell) for cell in run["cells"] if cell["dtype"] == dtype]
    mean = run["summary"]["geometric_mean"]
    if mean:
        pieces.append(f"\nGeometric mean over the batched cells: {mean:.2f}.\n")
    pieces.append(
        f"\n{stream['op']}, batch {stream['batch']}, n = {stream['n']}, {stream['dtype']}: "
        f"{100 * stream['share']:.0f} % of the bytes a second that a copy moved in the same run.\n"
    )
    return "".join(pieces)


def _row(cell: dict[str, Any]) -> str:
    times, counts, speedup = cell["microseconds"], cell.get("timings", {}), cell["speedup"]

    def figure(provider: str) -> str:
        if provider not in times:
            return "-"
        count = counts.get(provider, MINIMUM_TIMINGS)
        return f"{times[provider]:.1f}" + (f" ({count})" if count < MINIMUM_TIMINGS else "")

    kernels, torch_ = figure("kernels"), figure("torch")
    refused = (
        f"{who} refused: {why.partition(', when calling')[0]}"
        for who, why in cell["refused"].items()
    )
    speed = f"{speedup:.2f}" if speedup else "; ".join(refused)
    errors = cell["lapack_ratios"]
    both = ", ".join(f"{errors[who]:.2g}" for who in ("kernels", "torch") if who in errors)
    figures = (cell["op"], cell["batch"], cell["n"], kernels, torch_, speed, both)
    return f"| {' | '.join(map(str, figures))} |\n"


PAGES: dict[str, Callable[[Sequence[Path]], str]] = {
    "accuracy": accuracy,
    "benchmarks": benchmarks,
    "conformance": conformance.tables,
    "startup": startup,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("page", choices=PAGES)
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args(arguments)
    files = options.files or sorted((DOCS / "data").glob(f"{options.page}-*.json"))
    if not files:
        parser.error(f"no files of runs for {options.page}")
    (DOCS / "_generated" / f"{options.page}.md").write_text(PAGES[options.page](files))


if __name__ == "__main__":
    main()
