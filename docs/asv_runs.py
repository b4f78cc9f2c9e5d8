"""Runs of asv that are kept, asv_benchmarks/results, a folder for each machine, and their pages.

python docs/asv_runs.py MACHINE [--to FOLDER]

keeps what `asv run --python=same --machine MACHINE --set-commit-hash HASH` left, on the machine
that ran it: the versions are of this Python. `python docs/generate.py asv` makes the list of runs,
Sphinx the pages.
"""

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SUITE = ROOT / "asv_benchmarks"
KEPT = SUITE / "results"
# asv's own name of the environment has the path of an interpreter in it.
ENVIRONMENT = "existing"


def _anonymous(run: dict[str, Any]) -> dict[str, Any]:
    """Without paths and without requirements, which asv does not install for --python=same."""
    import torch

    machine = {key: x for key, x in run["params"].items() if key not in run["requirements"]}
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    return run | {
        "env_name": ENVIRONMENT,
        "python": versions["python"],
        "requirements": {},
        "params": machine | versions,
    }


def keep(machine: str, folder: Path) -> None:
    """Each machine has its own list of benchmarks, for its own cases."""
    found = SUITE / ".asv" / "results"
    shutil.rmtree(folder / machine, ignore_errors=True)
    to = folder / machine / machine
    to.mkdir(parents=True)
    shutil.copy(found / "benchmarks.json", to.parent)
    shutil.copy(found / machine / "machine.json", to)
    for file in (found / machine).glob("*-*.json"):
        run = _anonymous(json.loads(file.read_text()))
        name = f"{run['commit_hash'][:8]}-{ENVIRONMENT}.json"
        (to / name).write_text(json.dumps(run) + "\n")


def _in_history(commit: str) -> bool:
    command = ["git", "-C", str(ROOT), "merge-base", "--is-ancestor", commit, "HEAD"]
    return subprocess.run(command, capture_output=True).returncode == 0


def publish(folder: Path) -> list[str]:
    """asv's pages of every machine of which the commits are known here; asv needs their dates."""
    if find_spec("asv") is None or shutil.which("git") is None:
        return []
    published = []
    conf = json.loads((SUITE / "asv.conf.json").read_text())
    for results in sorted(KEPT.iterdir()):
        runs = (results / results.name).glob(f"*-{ENVIRONMENT}.json")
        if not all(_in_history(json.loads(run.read_text())["commit_hash"]) for run in runs):
            continue
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "asv.conf.json"
            places = {"results_dir": results, "html_dir": folder / results.name, "repo": ROOT}
            file.write_text(json.dumps(conf | {key: str(path) for key, path in places.items()}))
            command = [sys.executable, "-m", "asv", "publish", "--no-pull", "--config", str(file)]
            subprocess.run(command, check=True, capture_output=True, cwd=scratch)
        published.append(results.name)
    return published


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("machine")
    parser.add_argument("--to", type=Path, default=KEPT, metavar="FOLDER")
    options = parser.parse_args(arguments)
    keep(options.machine, options.to)


if __name__ == "__main__":
    main()
