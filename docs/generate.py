"""Write docs/_generated/PAGE.md from real runs.

python docs/generate.py accuracy [docs/data/accuracy-cpu.json ...]
python docs/generate.py startup [docs/data/startup-h200.json ...]
python docs/generate.py conformance [docs/data/conformance-cpu.json ...]
python docs/generate.py benchmarks docs/data/h200.json ...
python docs/generate.py cost_model docs/data/h200.json
python docs/generate.py limits docs/data/registers-sm_90.json docs/data/h200.json
python docs/generate.py asv [asv_benchmarks/results/h200/h200/*-existing.json ...]

They make tables, and plots (docs/_generated/plots), of files that other commands wrote on the
machines that they name: `python docs/ratios.py`, `python docs/startup.py`,
`python -m pytest tests/test_conformance.py --conformance FILE` and
`python -m mpslinalg bench --json FILE`. cost_model and limits also take what
`python docs/profile_kernels.py` wrote, limits what `python docs/registers.py` did, asv what
`python docs/asv_runs.py` kept.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from docs import conformance, cost_model, limits  # noqa: E402
from docs.benchmarks import benchmarks  # noqa: E402
from docs.tables import accuracy, asv, startup  # noqa: E402


def _with_plots(files: Sequence[Path]) -> str:
    folder = DOCS / "_generated" / "plots"
    folder.mkdir(exist_ok=True)
    return benchmarks(files, folder)


PAGES: dict[str, Callable[[Sequence[Path]], str]] = {
    "accuracy": accuracy,
    "asv": asv,
    "benchmarks": _with_plots,
    "conformance": conformance.tables,
    "cost_model": cost_model.page,
    "limits": limits.page,
    "startup": startup,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", choices=PAGES)
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args(arguments)
    files = options.files or sorted((DOCS / "data").glob(f"{options.page}-*.json"))
    if not files:
        parser.error(f"no files of runs for {options.page}")
    (DOCS / "_generated" / f"{options.page}.md").write_text(PAGES[options.page](files))


if __name__ == "__main__":
    main()
