"""Write docs/_generated/PAGE.md from real runs.

python docs/generate.py accuracy [--device cuda]
python docs/generate.py benchmarks docs/data/h200-lu.json docs/data/h200-ldl.json ...
python docs/generate.py cost_model docs/data/h200-*.json
python docs/generate.py limits docs/data/registers-sm_90.json docs/data/h200-*.json

The first judges every routine here, beside SciPy, and keeps what `python -m mpslinalg doctor`
prints. The second makes tables of the files that `python -m mpslinalg bench --json FILE` wrote on
the machines that they name; a file is named MACHINE-FAMILY.json, and each family is a section. The
third holds the cost model against the same files and against what docs/profile_kernels.py wrote;
the last tells how far the kernels are from their limits.
"""

import argparse
import datetime
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from docs import cost_model, limits, ratios  # noqa: E402
from mpslinalg._bench import FAMILIES  # noqa: E402
from mpslinalg._timing import MINIMUM_TIMINGS  # noqa: E402


def accuracy(device: str) -> str:
    """The ratios of every routine beside SciPy's, then what the doctor says of this machine."""
    table = ratios.table(device)
    command = ["-m", "mpslinalg", "doctor", "--device", device]
    run = subprocess.run([sys.executable, *command], check=True, stdout=subprocess.PIPE, text=True)
    printed = "\n".join(line.rstrip() for line in run.stdout.rstrip().splitlines())
    chip = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    sizes = ", ".join(map(str, ratios.SIZES))
    return (
        f"On {datetime.date.today()}, torch {torch.__version__}, {platform.system()}, kernels on "
        f"{device} ({chip}). The worst ratio over the families and n = {sizes}; for `solve_tril` "
        f"over unit lower triangles and chunks of 16, 32 and 64:\n\n{table}\n"
        f"`python {' '.join(command)}` there:\n\n```text\n{printed}\n```\n"
    )


def benchmarks(files: Sequence[Path]) -> str:
    """Recorded runs, a section for each."""
    return "\n".join(_section(file) for file in files)


def _section(file: Path) -> str:
    """A run as one table a dtype, under the title of its algorithm."""
    family = file.stem.rpartition("-")[2]
    title = (DOCS / "algorithms" / f"{family}.md").read_text().partition("\n")[0]
    run = json.loads(file.read_text())
    environment, stream = run["environment"], run["stream"]
    words = [
        f"`{run['command']}` on {run['date'][:10]}: {environment['device']}, torch "
        f"{environment['torch']}, Python {environment['python']}, {environment['system']}.",
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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    pages = parser.add_subparsers(dest="page", required=True)
    page = pages.add_parser("accuracy")
    page.add_argument("--device", choices=["cpu", "cuda", "mps"], default="cpu")
    page = pages.add_parser("benchmarks")
    page.add_argument("files", nargs="+", type=Path, metavar="MACHINE-FAMILY.json")
    page = pages.add_parser("cost_model")
    page.add_argument("files", nargs="+", type=Path, metavar="MACHINE-FAMILY.json")
    page = pages.add_parser("limits")
    page.add_argument("registers", type=Path)
    page.add_argument("files", nargs="+", type=Path, metavar="MACHINE-FAMILY.json")
    options = parser.parse_args(arguments)
    if options.page == "accuracy":
        text = accuracy(options.device)
    elif options.page == "limits":
        text = limits.page(options.registers, options.files)
    else:
        write = benchmarks if options.page == "benchmarks" else cost_model.page
        text = write(options.files)
    (DOCS / "_generated" / f"{options.page}.md").write_text(text)


if __name__ == "__main__":
    main()
