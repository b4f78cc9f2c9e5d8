"""Write docs/_generated/PAGE.md from a real run.

python docs/generate.py accuracy [--device cuda]
python docs/generate.py benchmarks docs/data/h200-lu.json

The first runs `python -m mpslinalg doctor` here and keeps what it prints. The second makes tables
of the file that `python -m mpslinalg bench --json FILE` wrote on the machine that it names.
"""

import datetime
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

OUTPUT = Path(__file__).parent / "_generated"


def accuracy(arguments: list[str]) -> str:
    """What the doctor says of this machine."""
    command = ["-m", "mpslinalg", "doctor", *arguments]
    run = subprocess.run([sys.executable, *command], check=True, stdout=subprocess.PIPE, text=True)
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    printed = "\n".join(line.rstrip() for line in run.stdout.rstrip().splitlines())
    return (
        f"`python {' '.join(command)}` on {datetime.date.today()}, torch {torch.__version__}, "
        f"{platform.system()} {platform.machine()}{gpu}:\n\n```text\n{printed}\n```\n"
    )


def benchmarks(arguments: list[str]) -> str:
    """A recorded run as one table a dtype."""
    run = json.loads(Path(arguments[0]).read_text())
    environment = run["environment"]
    summary, stream = run["summary"], run["stream"]
    pieces = [
        f"`{run['command']}` on {run['date'][:10]}: {environment['device']}, torch "
        f"{environment['torch']}, Python {environment['python']}, {environment['system']}. "
        "Microseconds, medians; the ratio is torch's time over the kernels'.\n"
    ]
    for dtype in ("float32", "complex64"):
        pieces.append(f"\n**{dtype}**\n\n| | batch | n | kernels | torch | ratio |\n")
        pieces.append("|---|---:|---:|---:|---:|---:|\n")
        pieces += [_row(cell) for cell in run["cells"] if cell["dtype"] == dtype]
    pieces.append(
        f"\nGeometric mean over the batched cells: {summary['geometric_mean']:.2f}. "
        f"The inverse of {stream['batch']} 4 x 4 float32 matrices moves "
        f"{100 * stream['share']:.0f} % of the bytes a second that a copy did in the same run.\n"
    )
    return "".join(pieces)


def _row(cell: dict[str, Any]) -> str:
    times, speedup = cell["microseconds"], cell["speedup"]
    kernels, torch_ = (f"{times[p]:.1f}" if p in times else "-" for p in ("kernels", "torch"))
    ratio = f"{speedup:.2f}" if speedup else f"refused, {cell['refused']['kernels']}"
    return f"| {cell['op']} | {cell['batch']} | {cell['n']} | {kernels} | {torch_} | {ratio} |\n"


if __name__ == "__main__":
    page, *arguments = sys.argv[1:]
    text = {"accuracy": accuracy, "benchmarks": benchmarks}[page](arguments)
    (OUTPUT / f"{page}.md").write_text(text)
