"""Measure what `import mpslinalg` and the first call of a function take.

python docs/startup.py --machine NAME [--device cuda]

writes docs/data/startup-NAME.json, of which `python docs/generate.py startup` makes a table. Each
first call is that of a process of its own: with an empty folder of kernels, with the one that this
left behind, and of torch. The device is awake and the input is made before the clock starts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

import mpslinalg as LA  # noqa: E402
from mpslinalg import _doctor, _engines, testing  # noqa: E402

IMPORTS = 3  # processes, after one that writes the bytecode
# Prints the seconds of torch, and what mpslinalg adds.
IMPORT = (
    "import time; start = time.perf_counter(); import torch; middle = time.perf_counter()\n"
    "import mpslinalg; print(middle - start, time.perf_counter() - middle)"
)
# Functions, and the shapes of their arguments.
CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "inv": (LA.inv, ((64, 8, 8),)),
    "solve": (LA.solve, ((64, 32, 32), (64, 32, 1))),
    "eigh": (LA.eigh, ((64, 16, 16),)),
    "svd": (LA.svd, ((64, 32, 32),)),
    "qr": (LA.qr, ((512, 512),)),
    "eig": (LA.eig, ((64, 16, 16),)),
    "gated_delta.solve_tril": (LA.gated_delta.solve_tril, ((2, 128, 16, 64),)),
}


def _timed(call: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    call()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()


def _calls(name: str, mode: str, device: torch.device, folder: str, results: Any) -> None:
    """In a fresh process: seconds of the first call and of the second, and variants launched."""
    os.environ["MPSLINALG_CACHE"] = folder
    function, shapes = CASES[name]
    given = [testing.random(shape, torch.float32).mul_(0.1).to(device) for shape in shapes]
    _wait(device)
    with LA.use(mode):
        first, second = (_timed(partial(function, *given), device) for _ in range(2))
    results.put((first, second, len(_engines.launched)))


def _fresh(*arguments: Any) -> tuple[float, float, int]:
    # A fork spares the import of torch; GPUs have not been touched yet. Macs cannot fork it.
    context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    results = context.SimpleQueue()
    process = context.Process(target=_calls, args=(*arguments, results))
    process.start()
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"{arguments}: exit status {process.exitcode}")
    found: tuple[float, float, int] = results.get()
    return found


def first_call(name: str, device: torch.device) -> dict[str, Any]:
    """Of a function: seconds with an empty folder of kernels, with a filled one, and of torch."""
    with tempfile.TemporaryDirectory() as folder:
        empty, _, variants = _fresh(name, "kernels", device, folder)
        filled, second, _ = _fresh(name, "kernels", device, folder)
        torchs, torchs_second, _ = _fresh(name, "torch", device, folder)
    return {
        "call": name,
        "shapes": [list(shape) for shape in CASES[name][1]],
        "variants": variants,
        "seconds": {"empty": empty, "filled": filled, "torch": torchs},
        "second_call": {"kernels": second, "torch": torchs_second},
    }


def imports() -> dict[str, float]:
    """Median seconds that torch takes, and mpslinalg after it."""
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    pairs = []
    for _ in range(1 + IMPORTS):
        run = subprocess.run(
            [sys.executable, "-c", IMPORT],
            check=True,
            stdout=subprocess.PIPE,
            cwd=DOCS.parent,
            env=variables,
        )
        pairs.append([float(x) for x in run.stdout.split()])
    torchs, ours = (median(x) for x in zip(*pairs[1:], strict=True))
    return {"torch": torchs, "mpslinalg": ours}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", type=torch.device, default="cpu")
    parser.add_argument("--machine", required=True, metavar="NAME")
    options = parser.parse_args(arguments)
    cells = [first_call(name, options.device) for name in CASES]
    run = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "docs/startup.py", *sys.argv[1:]]),
        "import": imports(),
        "cells": cells,
        "environment": _doctor.environment(options.device),
    }
    file = DOCS / "data" / f"startup-{options.machine}.json"
    file.write_text(json.dumps(run, indent=1) + "\n")


if __name__ == "__main__":
    main()
