"""The bench: a tiny grid end to end, and a gate that lets no wrong result through."""

import functools
import importlib
import json
import math
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor

import mpslinalg as LA
from mpslinalg import __main__ as command
from mpslinalg import _bench, _bench_overall, _bench_table, _doctor, _timing, testing
from mpslinalg._bench import compiling, judging, lstsq, measuring

CPU = torch.device("cpu")
LU = _bench.FAMILIES["lu"]
TINY = replace(
    LU,
    quick=((5, 3), (1, 16)),
    stream=replace(LU.stream, batch=4096),
    overhead=(replace(LU.overhead[0]), 5.0),
    gain=(replace(LU.gain[0], batch=512), 1e9),
    note="What the columns mean [B, T].",
)
OPERATIONS = {operation.name: operation for operation in LU.operations}
FUNCTIONS = {
    "lu_factor": "lu_factor",
    "solve k=1": "solve",
    "solve k=n": "solve",
    "inv": "inv",
    "det": "det",
}


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_bench, "FAMILIES", {"lu": TINY})
    monkeypatch.setattr(measuring, "COPY_BYTES", 2**26)
    monkeypatch.setattr(_timing, "ENOUGH_S", 0.001)


def bench(*arguments: str) -> int:
    return command.main(["bench", "--family", "lu", "--device", "cpu", "--quick", *arguments])


def test_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    assert bench("--json", str(file)) == 0
    text = capsys.readouterr().out
    assert "REFUSED" not in text
    assert TINY.note in text
    assert max(map(len, text.splitlines())) <= 120
    run = json.loads(file.read_text())
    content = run["families"]["lu"]
    cells = content["cells"]
    assert {(c["op"], c["batch"], c["n"], c["dtype"]) for c in cells} == {
        (op, *shape, dtype)
        for op in OPERATIONS
        for shape in TINY.quick
        for dtype in ("float32", "complex64")
    }
    for cell in cells:
        times = cell["microseconds"]
        assert set(times) == {"kernels", "torch"}
        assert min(times.values()) > 0
        assert cell["speedup"] == pytest.approx(times["torch"] / times["kernels"])
        assert all(0 <= ratio < 30 for ratio in cell["lapack_ratios"].values())
    batched = [cell["speedup"] for cell in cells if cell["batch"] > 1]
    summary = content["summary"]
    mean = math.exp(sum(map(math.log, batched)) / len(batched))
    assert summary["geometric_mean"] == pytest.approx(mean)
    assert summary["worst"][1] == min(batched)
    assert len(summary["slower"]) == sum(cell["speedup"] < 1 for cell in cells)
    assert content["stream"]["batch"] == 4096 // 64
    assert content["stream"]["share"] > 0
    assert run["environment"]["torch"] == torch.__version__


def test_one_dtype(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    assert bench("--dtype", "complex64", "--json", str(file)) == 0
    assert {c["dtype"] for c in json.loads(file.read_text())["families"]["lu"]["cells"]} == {
        "complex64"
    }


def scaled(function: Callable[..., Any], factor: float) -> Callable[..., Any]:
    """The function, but wrong in the last matrix of the batch."""

    def wrong(*arguments: Tensor) -> Any:
        result = function(*arguments)
        first, *rest = (result,) if isinstance(result, Tensor) else result
        first = first.clone()
        first[-1] *= factor
        return (first, *rest) if rest else first

    return wrong


@pytest.mark.parametrize("factor", [1.01, float("nan")])
@pytest.mark.parametrize("name", OPERATIONS)
def test_gate_refuses_a_wrong_result(
    name: str, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = FUNCTIONS[name]
    monkeypatch.setattr(LA, function, scaled(getattr(LA, function), factor))
    cell = _bench.measure(_bench.Case(OPERATIONS[name], 9, 3, torch.float32), CPU)
    assert "kernels" in cell.refused
    assert "kernels" not in cell.seconds
    assert cell.speedup is None
    assert cell.seconds["torch"] > 0


def test_refusal_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken(A: Tensor) -> Tensor:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(LA, "det", broken)
    file = tmp_path / "bench.json"
    assert bench("--dtype", "float32", "--json", str(file)) == 1
    assert "REFUSED det 5 x 3 float32, kernels: no such kernel" in capsys.readouterr().out
    refused = [
        cell for cell in json.loads(file.read_text())["families"]["lu"]["cells"] if cell["refused"]
    ]
    assert {cell["op"] for cell in refused} == {"det"}
    assert {cell["speedup"] for cell in refused} == {None}


def test_the_kernels_are_what_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    inv = LA.inv

    @functools.wraps(inv)
    def spy(A: Tensor) -> Tensor:
        seen.add(LA.which("inv", A))
        return inv(A)

    monkeypatch.setattr(LA, "inv", spy)
    _bench.measure(_bench.Case(OPERATIONS["inv"], 5, 3, torch.float32), CPU)
    assert len(seen) == 1
    assert "kernels (cpu engine)" in seen.pop()


def test_right_hand_sides_are_no_copy_of_the_matrix() -> None:
    A, B = _bench.Case(OPERATIONS["solve k=n"], 5, 3, torch.float32).inputs(CPU)
    assert A.shape == B.shape
    assert (A - B).abs().min() > 1e-6


@pytest.mark.parametrize("sides", [0, 1])
def test_the_gate_sees_a_wrong_fit_of_a_million_rows(sides: int) -> None:
    assert lstsq.FAMILY.extra[-2 + sides][1:] == (1, 8)
    for operation in (lstsq.FAMILY.operations[sides], lstsq.FAMILY.extra[-2 + sides][0]):
        case = _bench.Case(operation, 1, 8, torch.float32)
        inputs = case.inputs(CPU)
        (X,) = case.call(torch.linalg, inputs)
        assert case.judge(inputs, (X,)) < 1
        with pytest.raises(_bench.WrongResult):
            case.judge(inputs, (X * 1.01,))


def test_determinants_stay_finite() -> None:
    for n in (4, 256):
        (A,) = _bench.Case(OPERATIONS["det"], 1, n, torch.float32).inputs(CPU)
        assert 1e-6 < torch.linalg.det(A).abs() < 1e6
        assert torch.linalg.cond(A) < 30


def test_auto(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "auto.json"
    assert bench("--cases", "auto", "--json", str(file)) == 0
    cost, gain = json.loads(file.read_text())["families"]["lu"]["auto"]
    assert (cost["bar"], cost["at_most"]) == (5.0, True)
    assert (gain["bar"], gain["at_most"], gain["held"]) == (1e9, False, False)
    assert "MISSED" in capsys.readouterr().out


def test_bars() -> None:
    assert _bench.Bar("", 5.0, 5.0, at_most=True).held
    assert not _bench.Bar("", 5.1, 5.0, at_most=True).held
    assert _bench.Bar("", 5.1, 5.0, at_most=False).held
    assert not _bench.Bar("", float("nan"), 5.0, at_most=False).held


def test_summary_without_a_comparison() -> None:
    summary = _bench_table.summarize([])
    assert summary["geometric_mean"] is None
    assert summary["worst"] is None


def test_calls_take_turns() -> None:
    order: list[str] = []
    calls = {name: lambda name=name: order.append(name) for name in "abc"}
    assert set(_timing.timings(calls, CPU)) == set("abc")
    assert "".join(order) == "abc" * (len(order) // 3)


@pytest.mark.parametrize(
    ("seconds", "count"),
    [(1e-9, 200), (0.01, 20), (0.04, 7), (0.16, 3), (0.4, 2), (0.6, 1), (1.5, 1)],
)
def test_number_of_timings(seconds: float, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_timing, "seconds_of", lambda call, device, lead: call() or seconds)
    made: list[int] = []
    samples = _timing.timings({"call": lambda: made.append(1)}, CPU)
    assert samples == {"call": [seconds] * count}
    assert len(made) == count


def test_a_slow_call_costs_a_fast_one_no_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_timing, "seconds_of", lambda call, device, lead: call())
    samples = _timing.timings({"fast": lambda: 1e-3, "slow": lambda: 0.15}, CPU)
    assert {name: len(taken) for name, taken in samples.items()} == {"fast": 20, "slow": 3}
    assert _timing.medians({"odd": iter((0.19, 0.1, 0.3)).__next__}, CPU) == {"odd": 0.19}


@pytest.mark.parametrize(
    ("seconds", "batch", "timings", "calls"),
    # With the calls that admit: of a batch first two matrices, then all.
    [
        (1e-3, 9, 20, 22),
        (0.1, 9, 3, 5),
        (0.3, 9, 2, 4),
        (3.0, 9, 1, 2),
        (0.3, 1, 2, 3),
        (2.0, 1, 1, 2),
    ],
)
def test_a_cell_takes_bounded_time(
    seconds: float, batch: int, timings: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, ...]] = []

    def slow(A: Tensor) -> Tensor:
        made.append(A.shape)
        result: Tensor = inverse(A)
        return result

    def pretend(call: Callable[[], object], *_: Any) -> float:
        before = len(made)
        call()
        return seconds if len(made) > before else 1e-3

    inverse = torch.linalg.inv
    monkeypatch.setattr(torch.linalg, "inv", slow)
    for module in (_timing, measuring):
        monkeypatch.setattr(module, "seconds_of", pretend)
    cell = _bench.measure(_bench.Case(OPERATIONS["inv"], batch, 3, torch.float32), CPU)
    assert cell.timings == {"kernels": cell.timings["kernels"], "torch": timings}
    assert cell.timings["kernels"] >= 20
    assert cell.seconds["torch"] == seconds
    assert len(made) == calls
    assert [shape[0] for shape in made].count(2) == (batch > 1)
    row = _bench_table._figures(cell)[1]
    assert row == {1e-3: "1000.0"}.get(seconds, f"{1e6 * seconds:.0f} ({timings})")
    assert _bench_table._cell_json(cell)["timings"]["torch"] == timings


def test_a_gpu_is_timed_by_its_own_events(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            log.append("record")

        def synchronize(self) -> None:
            log.append("wait")

        def elapsed_time(self, end: "Event") -> float:
            return 2.5

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("idle"))
    medians = _timing.medians(
        {"call": lambda: log.append("call")},
        torch.device("cuda"),
        lead=lambda: log.append("lead"),
    )
    assert medians == {"call": 2.5e-3}
    assert log[:6] == ["idle", "lead", "record", "call", "record", "wait"]


def test_all_families_in_one_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("no inputs\nof this kind")

    lu = replace(TINY, operations=(OPERATIONS["det"],), quick=((5, 3), (1, 3)))
    bad = replace(lu, operations=(replace(OPERATIONS["det"], inputs=broken),))
    families = {"bad": bad, "lu": replace(lu, bars=_bench.Bars(1e9, 1e9, 1e9))}
    monkeypatch.setattr(_bench, "FAMILIES", families)
    file = tmp_path / "all.json"
    arguments = ["bench", "--device", "cpu", "--quick", "--dtype", "float32", "--json", str(file)]
    assert command.main(arguments) == 1
    text = capsys.readouterr().out
    assert "FAILED ValueError: no inputs\n" in text
    run = json.loads(file.read_text())
    assert run["families"]["bad"]["error"] == "ValueError: no inputs"
    assert {"judging", "timing", "inputs"} < run["families"]["lu"]["spent"].keys()
    one, alone = (cell["speedup"] for cell in run["families"]["lu"]["cells"])
    found = run["overall"]
    assert (found["batched_cells"], found["single_cells"]) == (1, 1)
    assert found["geometric_mean"] == pytest.approx(one)
    assert found["single_geometric_mean"] == pytest.approx(alone)
    assert [line.split()[:2] for line in found["missed"]] == [
        ["lu:", "geometric"],
        ["lu:", "det"],
        ["lu:", f"{100 * run['families']['lu']['stream']['share']:.0f}"],
    ]
    assert found["errors"] == {"bad": "ValueError: no inputs"}
    monkeypatch.setattr(_bench, "FAMILIES", {"lu": lu, "bad": bad})
    assert command.main([*arguments, "--family", "lu"]) == 0
    assert set(json.loads(file.read_text())["families"]) == {"lu"}


def test_the_bars_over_all_families() -> None:
    def family(*speedups: float | None, **more: Any) -> dict[str, Any]:
        cells = [
            {"op": "f", "batch": batch, "n": 4, "dtype": "float32", "speedup": speedup}
            for batch, speedup in zip((1, 2, 3, 4), speedups, strict=False)
        ]
        return {"cells": cells, **more}

    found = _bench_overall.overall(
        {
            "a": family(0.5, 4.0, 16.0),
            "b": family(None, 0.9, None),
            "chains": family(0.1, 0.1, apart=True),
        }
    )
    assert found["geometric_mean"] == pytest.approx((4 * 16 * 0.9) ** (1 / 3))
    assert found["batched_below"] == {"b: f 2 x 4 float32": 0.9}
    assert found["single_below"] == {"a: f 1 x 4 float32": 0.5}
    assert found["missed"] == []
    lines = list(_bench_overall.verdicts(found))
    assert lines[0].endswith("3.86 (bar 5) MISSED")
    assert lines[1] == "batched cells below 1: 1 of 3 (bar 0) MISSED"
    better = _bench_overall.overall({"a": family(0.5, 4.0, 16.0)})
    assert [line.split()[-1] for line in [*_bench_overall.verdicts(better)][:2]] == ["ok", "ok"]
    assert better["missed"] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_large_matrices_are_judged_by_the_same_formulas(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    A, B = testing.random((2, 9, 9), dtype, seed=1), testing.random((2, 9, 3), dtype, seed=2)
    tall, definite = testing.random((2, 12, 9), dtype, seed=3), A @ A.mH + torch.eye(9)
    judged: list[tuple[Callable[..., float], tuple[Tensor, ...]]] = [
        (judging.lu_ratio, (A, *torch.linalg.lu_factor(A))),
        (judging.cholesky_ratio, (definite, torch.linalg.cholesky(definite))),
        (judging.solve_ratio, (A, torch.linalg.solve(A, B), B)),
        (judging.inverse_ratio, (A, torch.linalg.inv(A))),
        (judging.qr_ratio, (tall, *torch.linalg.qr(tall))),
        (judging.eigh_ratio, (A + A.mH, *torch.linalg.eigh(A + A.mH))),
        (judging.svd_ratio, (tall, *torch.linalg.svd(tall, full_matrices=False))),
    ]
    expected = [ratio(*given) for ratio, given in judged]
    monkeypatch.setattr(judging, "_on_gpu", lambda A: True)
    for (ratio, given), value in zip(judged, expected, strict=True):
        assert ratio(*given) == pytest.approx(value, rel=1e-6)
        wrong = given[1].clone()
        wrong[(-1, *(0,) * (wrong.dim() - 1))] = math.nan
        assert not ratio(given[0], wrong, *given[2:]) < testing.LU_THRESHOLD


def test_what_large_solutions_are_allowed() -> None:
    assert judging.solve_allowed(132, torch.complex64) == testing.LU_THRESHOLD
    assert judging.solve_allowed(4096, torch.complex64) == pytest.approx(3 * 0.39 * 64)
    assert judging.ldl_solve_allowed(2048, torch.complex64) < 3 * 25.2


@pytest.mark.parametrize("family", ["elementwise", "indexing", "special", "matrix_functions"])
def test_gates_of_functions(family: str) -> None:
    """Torch's results pass; with one element wrong they do not."""
    module = importlib.import_module(f"mpslinalg._bench.{family}")
    for operation in module.FAMILY.operations:
        if "uint16" in operation.name or "uint32" in operation.name:
            continue  # torch compares none on a CPU
        case = _bench.Case(operation, 1, 24, torch.float32)
        inputs = case.inputs(CPU)
        result = case.call(torch.linalg, inputs)
        case.judge(inputs, result, torchs=True)
        first = result[0].clone()
        flat = first.view(-1)
        flat[7 % len(flat)] = 1 - flat[7 % len(flat)] if first.dtype != torch.bool else ~flat[7]
        with pytest.raises(_bench.WrongResult):
            case.judge(inputs, (first, *result[1:]), torchs=True)


def test_the_gate_of_the_kernels_is_their_own() -> None:
    """20 half units pass where torch made them, and nowhere else."""
    special = importlib.import_module("mpslinalg._bench.special").FAMILY.operations[0]
    wrong = replace(
        special,
        inputs=lambda batch, n, dtype, device: (torch.ones(batch, n), torch.zeros(batch, n)),
        call=lambda library, x, degrees: x * (1 + 20 * 2.0**-24),
    )
    cell = _bench.measure(_bench.Case(wrong, 1, 24, torch.float32), CPU)
    assert cell.refused == {"kernels": "LAPACK ratio 20, allowed 8"}
    assert cell.ratios == {"torch": 20}


def test_kernels_are_compiled_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def det(A: Tensor) -> Tensor:
        seen.append((*A.shape, A.dtype))
        raise RuntimeError("the next are compiled all the same")

    lu = replace(TINY, operations=(OPERATIONS["det"],), stream=replace(TINY.stream, batch=64))
    monkeypatch.setattr(_bench, "FAMILIES", {"lu": lu})
    monkeypatch.setattr(LA, "det", det)
    monkeypatch.setattr(compiling, "ProcessPoolExecutor", lambda n, _: ThreadPoolExecutor(n))
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    _bench.compile_kernels(["lu"], CPU, None, quick=True)
    assert set(seen) == {
        (*shape, dtype)
        for shape in ((5, 3, 3), (16, 16))
        for dtype in (torch.float32, torch.complex64)
    }


@pytest.fixture
def recorded_run(tmp_path: Path) -> Path:
    """A run of two sizes in two dtypes, and one that torch refused."""

    def cell(batch: int, n: int, dtype: str, microseconds: float) -> dict[str, Any]:
        return {
            "op": "f <g>",
            "batch": batch,
            "n": n,
            "dtype": dtype,
            "microseconds": {"kernels": microseconds, "torch": 3 * microseconds},
            "timings": {"kernels": 20, "torch": 3},
            "lapack_ratios": {"kernels": 0.5, "torch": 0.25},
            "refused": {},
            "speedup": 3.0,
        }

    cells = [cell(8, n, dtype, n) for n in (4, 16) for dtype in ("float32", "complex64")]
    refused = cell(1, 8, "float32", 7.0) | {"speedup": None, "refused": {"torch": "not | here"}}
    family = {
        "cells": [*cells, refused],
        "stream": cells[0] | {"share": 0.5},
        "summary": _bench_table.summarize([]) | {"geometric_mean": 3.0},
        "seconds": 2.0,
        "note": "n & m",
    }
    run = {
        "date": "2026-11-30T10:00:00+00:00",
        "command": "python -m mpslinalg bench",
        "environment": {"device": "cuda (G)", "torch": "2", "python": "3", "system": "Linux"},
        "families": {"lu": family, "qr": {"error": "ValueError: no", "seconds": 1.0}},
    }
    file = tmp_path / "run.json"
    file.write_text(json.dumps(run))
    return file


def test_report(recorded_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = json.loads(recorded_run.read_text())
    for cell in other["families"]["lu"]["cells"]:
        cell["microseconds"]["kernels"] *= 2
    there = recorded_run.with_name("there.json")
    there.write_text(json.dumps(other))
    page, text = (recorded_run.with_name(f"report.{kind}") for kind in ("html", "md"))
    for report in (page, text):
        arguments = ["--read", str(recorded_run), "--compare", str(there), "--report", str(report)]
        assert command.main(["bench", *arguments]) == 0
    assert "kernels here, times there" in capsys.readouterr().out
    html = page.read_text()
    tree = ElementTree.fromstring(
        html.replace("<!doctype html>", "").replace(' charset="utf-8">', "/>")
    )
    assert len(list(tree.iter("{http://www.w3.org/2000/svg}svg"))) == 3
    assert set(re.findall(r'href="(#|data:|.*)', html)) <= {"#", "data:"}
    assert "src=" not in html
    assert set(re.findall(r"https?://[^\"' ]*", html)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert "f &lt;g&gt;" in html
    written = text.read_text()
    assert "| f <g> | 8 | 16 | 16.0 | 48.0 (3) | 3.00 | - | 0.5, 0.25 |" in written
    assert "torch refused: not \\| here" in written
    assert "| lu | 5 | 2.00 |" in written
    assert "| lu | f <g> | 8 | 4 | float32 | 4.0 | 8.0 | 2.00 | 3.00 | 3.00 |" in written
    assert "failed: ValueError: no" in written
    assert "geometric mean over the 4 batched cells of all families: 3.00 (bar 5) MISSED" in written


def test_a_report_holds_the_doctor_and_what_was_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lu = replace(TINY, operations=(OPERATIONS["det"],), quick=((5, 3),))
    monkeypatch.setattr(_bench, "FAMILIES", {"lu": lu})
    monkeypatch.setattr(_doctor, "FAMILIES", {})
    report = tmp_path / "report.md"
    assert bench("--dtype", "float32", "--report", str(report)) == 0
    text = report.read_text()
    assert "Paste all of the above into a bug report." in text
    assert "| det | 5 | 3 |" in text


def test_a_failing_doctor_costs_no_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lu = replace(TINY, operations=(OPERATIONS["det"],), quick=((5, 3),))

    def fail(*_: object) -> int:
        raise RuntimeError("lost device")

    monkeypatch.setattr(_bench, "FAMILIES", {"lu": lu})
    monkeypatch.setattr(_doctor, "run", fail)
    report = tmp_path / "report.md"
    assert bench("--dtype", "float32", "--report", str(report)) == 0
    assert "doctor ended: RuntimeError: lost device" in report.read_text()
    assert "| det | 5 | 3 |" in report.read_text()


@pytest.mark.parametrize("option", ["--read", "--compare"])
def test_what_is_no_run_is_refused(
    option: str, recorded_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = json.loads(recorded_run.read_text())
    lu = run["families"]["lu"]
    ago = {key: value for key, value in run.items() if key != "command"}
    other_family = run | {"families": {"lu": {key: lu[key] for key in lu if key != "stream"}}}
    for text in ("[]", "{", *map(json.dumps, (ago, other_family, run | {"families": []}))):
        recorded_run.write_text(text)
        with pytest.raises(SystemExit):
            command.main(["bench", option, str(recorded_run)])
        assert "no run of `bench --json`" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["bench", option, "/nowhere.json"])
    assert "cannot read '/nowhere.json': No such file" in capsys.readouterr().err


def test_a_run_is_read_as_it_is(recorded_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["bench", "--read", str(recorded_run)]) == 0
    assert "over the 4 batched cells of all families: 3.00 (bar 5)" in capsys.readouterr().out
    for arguments in (["--dtype", "float32"], ["--quick"], ["--device", "cpu"]):
        with pytest.raises(SystemExit):
            command.main(["bench", "--read", str(recorded_run), *arguments])
        assert "--read takes a run as it is" in capsys.readouterr().err


def test_a_report_is_html_or_markdown(
    recorded_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = recorded_run.with_name("REPORT.HTML")
    assert command.main(["bench", "--read", str(recorded_run), "--report", str(page)]) == 0
    assert "<code>python -m mpslinalg bench</code> on 2026-11-30" in page.read_text()
    with pytest.raises(SystemExit):
        command.main(["bench", "--report", str(recorded_run.with_name("report.pdf"))])
    assert "no report" in capsys.readouterr().err


def test_runs_without_a_common_cell(recorded_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = json.loads(recorded_run.read_text())
    other["families"]["svd"] = other["families"].pop("lu")
    there = recorded_run.with_name("there.json")
    there.write_text(json.dumps(other))
    arguments = ["--read", str(recorded_run), "--compare", str(there)]
    assert command.main(["bench", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "no cell in which both timed the kernels" in printed
    assert "kernels here" not in printed
