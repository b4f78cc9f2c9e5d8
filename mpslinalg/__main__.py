"""The command line: `python -m mpslinalg demo | doctor | bench | cost`."""

import argparse
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from mpslinalg import _bench, _bench_report, _bench_table, _demo, _doctor
from mpslinalg._engines import ShaderError


def _target(text: str) -> Path:
    """A file to write, refused before the work that fills it."""
    path = Path(text)
    if not text or path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"cannot write a file {text!r}")
    return path


def _run(text: str) -> dict[str, Any]:
    """What `bench --json` wrote."""
    try:
        run: dict[str, Any] = json.loads(Path(text).read_text())
        run["families"], run["environment"]["device"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise argparse.ArgumentTypeError(f"no run of `bench --json` in {text!r}") from error
    return run


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m mpslinalg")
    commands = parser.add_subparsers(dest="command", required=True)
    device = argparse.ArgumentParser(add_help=False)
    device.add_argument(
        "--device", choices=["cpu", "cuda", "mps"], help="default: the GPU, or the CPU without one"
    )

    demo = commands.add_parser("demo", parents=[device], help="real studies, checked against SciPy")
    demo.add_argument("--case", choices=list(_demo.CASES), help="default: all")
    demo.add_argument("--json", type=_target, metavar="FILE", help="write the numbers")
    demo.add_argument("--plot", type=_target, metavar="FILE", help="draw the results (matplotlib)")

    commands.add_parser("doctor", parents=[device], help="check this machine; for bug reports")

    bench = commands.add_parser("bench", parents=[device], help="time kernels beside torch.linalg")
    bench.add_argument(
        "--family",
        choices=[*_bench.FAMILIES, "all"],
        action="append",
        help="repeatable; default: all, one after the other in this process",
    )
    bench.add_argument(
        "--cases",
        choices=["grid", "auto"],
        default="grid",
        help="grid: kernels against torch (default); auto: what the default mode costs and gains",
    )
    bench.add_argument("--dtype", choices=list(_bench.DTYPES), action="append", help="repeatable")
    bench.add_argument("--quick", action="store_true", help="small batches, as fits a CPU")
    bench.add_argument("--json", type=_target, metavar="FILE", help="write the numbers")
    bench.add_argument(
        "--report",
        type=_target,
        metavar="FILE.html|FILE.md",
        help="write one file for an issue: figures, bars, plots (HTML; matplotlib), doctor",
    )
    bench.add_argument("--compare", type=_run, metavar="FILE.json", help="two runs side by side")
    bench.add_argument(
        "--read", type=_run, metavar="FILE.json", help="report a run that --json wrote; time none"
    )

    cost = commands.add_parser("cost", help="predict the times of kernels on an Apple GPU")
    cost.add_argument("--family", choices=list(_bench.FAMILIES), required=True)
    cost.add_argument("--dtype", choices=list(_bench.DEFAULT_DTYPES), default="float32")
    cost.add_argument("--batch", type=int, help="with --n: one size, not those of the benchmarks")
    cost.add_argument("--n", type=int)
    cost.add_argument("--machine", action="append", help="M1, M4 Max, ...; repeatable")
    cost.add_argument("--against", type=Path, metavar="FILE", help="what `bench --json` wrote")
    return parser


def _timed(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    device: torch.device,
    console: Console,
) -> tuple[dict[str, Any], int]:
    """The figures of a run, and the exit status."""
    if device.type == "mps" and {"float64", "complex128"} & set(options.dtype or ()):
        parser.error("an Apple GPU has no double precision")
    names = options.family or ["all"]
    families = {
        name: family for name, family in _bench.FAMILIES.items() if name in names or "all" in names
    }
    return _bench_table.run(
        families,
        device,
        console,
        mode=options.cases,
        dtypes=options.dtype,
        quick=options.quick,
        json_file=options.json,
    )


def _diagnosis(device: torch.device) -> str:
    """What `doctor` prints."""
    text = io.StringIO()
    _doctor.run(device, Console(file=text, width=120))
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def _cost(options: argparse.Namespace, parser: argparse.ArgumentParser, console: Console) -> int:
    from mpslinalg._cost import recorded, table

    if options.family not in recorded.families():
        parser.error(f"no model of {options.family}; there is one of {recorded.families()}")
    names = options.machine or table.SHOWN
    unknown = [name for name in names if name not in table.KNOWN]
    if unknown:
        parser.error(f"no machine {unknown[0]!r}; there are {', '.join(table.KNOWN)}")
    if (options.batch is None) != (options.n is None):
        parser.error("--batch and --n are given together")
    machines = [table.KNOWN[name] for name in names]
    if options.against is None:
        dtype, family = _bench.DTYPES[options.dtype], _bench.FAMILIES[options.family]
        cases = table.cases(family, dtype, options.batch, options.n)
        table.predictions(cases, machines, console)
        return 0
    if len(machines) != 1:
        parser.error("--against needs one --machine")
    table.against(options.against, machines[0], console)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=120)
    if options.command == "cost":
        return _cost(options, parser, console)
    device = torch.device(options.device) if options.device else _doctor.default_device()
    if options.command == "doctor":
        return _doctor.run(device, console)
    read = options.command == "bench" and options.read
    if not read and not _doctor.available(device):
        parser.error(f"torch {torch.__version__} has no {device.type} device here")
    if options.command == "demo":
        names = [options.case] if options.case else list(_demo.CASES)
        try:
            return _demo.run(names, device, console, options.json, options.plot)
        except ShaderError as error:
            print(error, file=sys.stderr)
            return 1
    if options.cases != "grid" and (options.report or options.compare):
        parser.error("--report and --compare are of --cases grid")
    run, status = (options.read, 0) if options.read else _timed(parser, options, device, console)
    if options.compare:
        _bench_report.show(run, options.compare, console)
    if options.report:
        diagnosis = "" if options.read else _diagnosis(device)
        _bench_report.write(options.report, run, options.compare, diagnosis)
    return status


if __name__ == "__main__":
    sys.exit(main())
