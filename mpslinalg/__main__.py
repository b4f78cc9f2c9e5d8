"""The command line: `python -m mpslinalg demo | doctor | bench | cost`."""

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from mpslinalg import _bench, _bench_overall, _bench_report, _bench_table, _demo, _doctor
from mpslinalg._engines import ShaderError


def _target(text: str) -> Path:
    """A file to write, refused before the work that fills it."""
    path = Path(text)
    there = path if path.exists() else path.parent
    if not text or path.is_dir() or not path.parent.is_dir() or not os.access(there, os.W_OK):
        raise argparse.ArgumentTypeError(f"cannot write a file {text!r}")
    return path


def _report(text: str) -> Path:
    """A target whose name says how it is written."""
    path = _target(text)
    if path.suffix.lower() not in _bench_report.WRITERS:
        kinds = ", ".join(_bench_report.WRITERS)
        raise argparse.ArgumentTypeError(f"no report {text!r}; there are {kinds}")
    return path


def _picture(text: str) -> Path:
    """A target that matplotlib writes."""
    path = _target(text)
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError as error:
        words = "needs matplotlib: pip install 'mpslinalg[demo]'"
        raise argparse.ArgumentTypeError(words) from error
    kinds = FigureCanvasBase.get_supported_filetypes()
    if path.suffix and path.suffix[1:].lower() not in kinds:
        raise argparse.ArgumentTypeError(f"no picture {text!r}; there are {', '.join(kinds)}")
    return path


def _size(text: str) -> int:
    size = int(text)
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return size


def _run(text: str) -> dict[str, Any]:
    """What `bench --json` wrote."""
    try:
        run: dict[str, Any] = json.loads(Path(text).read_text())
        _bench_report.check(run)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot read {text!r}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        words = f"no run of `bench --json`, as this version writes it, in {text!r}"
        raise argparse.ArgumentTypeError(words) from error
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
    demo.add_argument("--plot", type=_picture, metavar="FILE", help="draw the results (matplotlib)")

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
        type=_report,
        metavar="FILE.html|FILE.md",
        help="write one file for an issue: figures, bars, plots (HTML; matplotlib), doctor",
    )
    bench.add_argument("--compare", type=_run, metavar="FILE.json", help="two runs side by side")
    bench.add_argument(
        "--read", type=_run, metavar="FILE.json", help="a run that --json wrote; time none"
    )

    cost = commands.add_parser("cost", help="predict the times of kernels on an Apple GPU")
    cost.add_argument("--family", choices=list(_bench.FAMILIES), required=True)
    cost.add_argument(
        "--dtype",
        choices=_bench.DEFAULT_DTYPES,
        help="default: float32, with --against each in the file",
    )
    cost.add_argument("--batch", type=_size, help="with --n: one size, not those of the benchmarks")
    cost.add_argument("--n", type=_size)
    cost.add_argument("--machine", action="append", help="M1, M4 Max, ...; repeatable")
    cost.add_argument("--against", type=_run, metavar="FILE", help="what `bench --json` wrote")
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
        name: family
        for name, family in _bench.FAMILIES.items()
        if (name in names or "all" in names) and family.taken(options.dtype)
    }
    if not families:
        parser.error(f"{', '.join(names)} has no {', '.join(options.dtype)}")
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
    """What `doctor` prints, or why it ended: figures that took an hour are not lost with it."""
    text = io.StringIO()
    try:
        _doctor.run(device, Console(file=text, width=120))
    except Exception as error:
        text.write(f"doctor ended: {type(error).__name__}: {error}")
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def _benchmark(
    options: argparse.Namespace,
    device: torch.device,
    parser: argparse.ArgumentParser,
    console: Console,
) -> int:
    if options.cases != "grid" and (options.report or options.compare):
        parser.error("--report and --compare are of --cases grid")
    if options.read and any(
        (options.family, options.dtype, options.json, options.quick, options.device)
    ):
        parser.error(
            "--read takes a run as it is: no --family, --dtype, --json, --quick or --device"
        )
    if options.read:
        run, status = options.read, 0
        _bench_overall.show(run["families"], _bench_overall.overall(run["families"]), console)
    else:
        run, status = _timed(parser, options, device, console)
    if options.compare:
        _bench_report.show(run, options.compare, console)
    if options.report:
        if not options.read:
            console.print("doctor, for the report ...", highlight=False)
        diagnosis = "" if options.read else _diagnosis(device)
        _bench_report.write(options.report, run, options.compare, diagnosis)
    return status


def _cost(options: argparse.Namespace, parser: argparse.ArgumentParser, console: Console) -> int:
    from mpslinalg._cost import NoPlan, recorded, table

    if options.family not in recorded.families():
        known = ", ".join(recorded.families())
        parser.error(f"no model of {options.family}; there is one of {known}")
    names = options.machine or table.SHOWN
    unknown = [name for name in names if name not in table.KNOWN]
    if unknown:
        parser.error(f"no machine {unknown[0]!r}; there are {', '.join(table.KNOWN)}")
    if (options.batch is None) != (options.n is None):
        parser.error("--batch and --n are given together")
    machines = [table.KNOWN[name] for name in names]
    if options.against is None:
        dtype = _bench.DTYPES[options.dtype or "float32"]
        cases = table.cases(_bench.FAMILIES[options.family], dtype, options.batch, options.n)
        try:
            table.predictions(cases, machines, console)
        except NoPlan as error:
            parser.error(str(error))
        return 0
    if len(machines) != 1:
        parser.error("--against needs one --machine")
    if options.batch is not None:
        parser.error("--against has the sizes of its file")
    timed = [
        (case, taken)
        for name, case, taken in recorded.measured(options.against)
        if name == options.family and options.dtype in (None, case.dtype_name)
    ]
    if not timed:
        parser.error(f"--against: no times of {options.family} in that file")
    measured = _bench_report.provenance(options.against)
    console.print(f"Measured: {measured}", highlight=False, markup=False)
    table.against(timed, machines[0], console)
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
    return _benchmark(options, device, parser, console)


if __name__ == "__main__":
    sys.exit(main())
