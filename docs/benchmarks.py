"""Tables and plots of what `python -m mpslinalg bench --json FILE` wrote."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from mpslinalg._bench import FAMILIES
from mpslinalg._bench_report import WORDS, family_blocks, overall_blocks, plots, provenance
from mpslinalg._bench_report.document import Block, Heading, Paragraph, Plot, markdown

DOCS = Path(__file__).resolve().parent


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
