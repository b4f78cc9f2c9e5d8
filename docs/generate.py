"""Write docs/_generated/PAGE.md from real runs.

python docs/generate.py accuracy [--device cuda]
python docs/generate.py benchmarks docs/data/h200.json ...

The first judges every routine here, beside SciPy, and keeps what `python -m mpslinalg doctor`
prints. The second makes tables and plots (docs/_generated/plots) of what `python -m mpslinalg bench
--json FILE` wrote on the machines that the files name.
"""

import argparse
import datetime
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from docs import ratios  # noqa: E402
from mpslinalg._bench import FAMILIES  # noqa: E402
from mpslinalg._bench_report import (  # noqa: E402
    WORDS,
    family_blocks,
    overall_blocks,
    plots,
    provenance,
)
from mpslinalg._bench_report.document import (  # noqa: E402
    Block,
    Heading,
    Paragraph,
    Plot,
    markdown,
)


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


def benchmarks(files: Sequence[Path], folder: Path) -> str:
    """Recorded runs, a section for each family, after what all of them reach.

    Plots are written into the folder. A family is that of the last file that has it.
    """
    runs = [json.loads(file.read_text()) for file in files]
    families = {name: run for run in runs for name in run["families"]}
    contents = {
        name: {"note": FAMILIES[name].note, "bars": asdict(FAMILIES[name].bars)}
        | run["families"][name]
        for name, run in families.items()
    }

    def plot(drawn: Plot) -> str:
        (folder / f"{drawn.name}.svg").write_text(drawn.svg)
        # As the page sees it that includes this one.
        return f"{folder.parent.name}/{folder.name}/{drawn.name}.svg"

    whole: list[Block] = [Heading("All families", 3)]
    if len(runs) > 1:
        whole.append(Paragraph("Of several runs: each section names its own."))
    whole += overall_blocks(contents)
    whole += plots.of_all(contents)
    pieces = [markdown("", whole, plot)]
    for name, run in families.items():
        section: list[Block] = [Paragraph(f"{provenance(run)} {WORDS}")]
        section += family_blocks(name, contents[name])
        pieces.append(markdown("", [Heading(_title(name), 3), *section], plot))
    return "\n".join(pieces)


def _title(family: str) -> str:
    """That of its algorithm's page, where it has one of its own."""
    page = DOCS / "algorithms" / f"{family}.md"
    return page.read_text().partition("\n")[0].lstrip("# ") if page.exists() else family


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    pages = parser.add_subparsers(dest="page", required=True)
    page = pages.add_parser("accuracy")
    page.add_argument("--device", choices=["cpu", "cuda", "mps"], default="cpu")
    page = pages.add_parser("benchmarks")
    page.add_argument("files", nargs="+", type=Path, metavar="FILE.json")
    options = parser.parse_args(arguments)
    generated = DOCS / "_generated"
    if options.page == "accuracy":
        text = accuracy(options.device)
    else:
        (generated / "plots").mkdir(exist_ok=True)
        text = benchmarks(options.files, generated / "plots")
    (generated / f"{options.page}.md").write_text(text)


if __name__ == "__main__":
    main()
