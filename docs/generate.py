"""Write docs/_generated/PAGE.md: what a command printed, and where it ran.

python docs/generate.py accuracy
python docs/generate.py benchmarks --device cuda

Arguments after the page's name are passed on to the command.
"""

import argparse
import datetime
import platform
import subprocess
import sys
from pathlib import Path

import torch

COMMANDS = {
    "accuracy": ["-m", "mpslinalg", "doctor"],
    "benchmarks": ["-m", "mpslinalg", "bench", "--family", "lu"],
}
OUTPUT = Path(__file__).parent / "_generated"


def record(page: str, arguments: list[str]) -> None:
    command = [*COMMANDS[page], *arguments]
    run = subprocess.run([sys.executable, *command], check=True, stdout=subprocess.PIPE, text=True)
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    (OUTPUT / f"{page}.md").write_text(
        f"`python {' '.join(command)}` on {datetime.date.today()}, torch {torch.__version__}, "
        f"{platform.system()} {platform.machine()}{gpu}:\n\n```text\n{run.stdout.rstrip()}\n```\n"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage="generate.py PAGE [argument ...]")
    parser.add_argument("page", choices=COMMANDS)
    page, arguments = parser.parse_known_args()
    record(page.page, arguments)
