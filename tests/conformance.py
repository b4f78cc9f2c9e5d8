"""What a run of tests/test_conformance.py found, as JSON for docs/generate.py."""

import datetime
import json
import platform
from pathlib import Path
from typing import Any

import pytest
import torch

from mpslinalg import _doctor


class Recorder:
    """Gathers the cells that tests report: with xdist, in the process that writes the file."""

    def __init__(self, file: Path, device: str) -> None:
        self.file, self.device = file, device
        self.results: dict[str, dict[str, dict[str, str]]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" or report.skipped:
            return
        properties: list[tuple[str, Any]] = report.user_properties
        for key, value in properties:
            if key == "conformance":
                function, aspect, dtype, note = value
                outcome = (note or "passed") if report.passed else "failed"
                found = self.results.setdefault(function, {}).setdefault(aspect, {})
                # Of several calls of a function the worst counts.
                if found.get(dtype) != "failed":
                    found[dtype] = outcome

    def pytest_sessionfinish(self) -> None:
        run: dict[str, Any] = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": (
                f"python -m pytest tests/test_conformance.py --device {self.device} "
                f"--conformance {self.file.name}"
            ),
            "environment": {
                "device": f"{self.device} ({_doctor.processor(torch.device(self.device))})",
                "torch": torch.__version__,
                "python": platform.python_version(),
                "system": f"{platform.system()} {platform.machine()}",
            },
            "results": dict(sorted(self.results.items())),
        }
        self.file.write_text(json.dumps(run, indent=1) + "\n")
