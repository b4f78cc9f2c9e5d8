"""The cost model: what a plan is found to do, what that is priced, the command and the pages."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from docs import cost_model, limits
from mpslinalg import __main__, _lu_plan
from mpslinalg._bench import FAMILIES, Case
from mpslinalg._bench.cases import Operation, rows
from mpslinalg._cost import H200, MACHINES, Machine, Plan, Step, factors, plan, predict, price
from mpslinalg._cost import recorded as recorded_runs
from mpslinalg._cost.machines import LANES
from mpslinalg._engines import ENGINES, launched

M1 = MACHINES["M1"]


def case(name: str, batch: int, n: int, dtype: torch.dtype = torch.float32) -> Case:
    operations = [operation for family in FAMILIES.values() for operation in family.operations]
    return Case(next(o for o in operations if o.name == name), batch, n, dtype)


@pytest.mark.parametrize(
    ("dtype", "size", "real"), [(torch.float32, 4, 1), (torch.complex64, 8, 4)]
)
def test_one_launch_reads_and_writes_what_is_needed(
    dtype: torch.dtype, size: int, real: int
) -> None:
    before = set(launched)
    found = plan(case("lu_factor", 100, 16, dtype))
    assert [step.kernel for step in found.steps] == ["lu_simd"]
    assert found.waits == 1
    # LU and pivots are returned, info is not.
    assert found.needed == 100 * (2 * 16 * 16 * size + 16 * 4)
    assert found.moved == found.needed + 100 * 4
    assert found.operations == pytest.approx(real * 100 * 2 / 3 * 16**3)
    assert launched == before
    assert "meta" not in ENGINES


def test_a_panel_moves_its_part_and_a_gemm_its_operands() -> None:
    batch = _lu_plan.LOOKAHEAD + 1
    found = plan(case("lu_factor", batch, 2048))
    panels = [step for step in found.steps if step.kernel == "lu_panel"]
    gemms = [step for step in found.steps if step.kernel == "gemm"]
    assert panels[1].bytes == batch * 4 * 2 * (2048 - 32) * 32
    left = 2048 - 32
    assert gemms[0].operations == batch * 2 * left * left * 32
    assert gemms[0].bytes == batch * 4 * (2 * left * left + 2 * left * 32)
    # What products do, and what is left for the panels, are all that LU needs: 1.5 n^2 b too much.
    named = sum(step.operations or 0 for step in found.steps)
    assert 0.97 * found.operations < named < found.operations


def test_a_panel_beside_an_update_moves_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lu_plan, "LOOKAHEAD_ROWS", 1)
    monkeypatch.setattr(_lu_plan, "LOOKAHEAD_ENTRIES", 1)
    found = plan(case("lu_factor", 3, 2048))
    steps = [step for step in found.steps if step.kernel == "lu_panel_next"]
    assert len(steps) == 2048 / 32 - 1
    height, columns = 2048 - 32, 2048 - 64
    panel, update = 2 * height * 32, 2 * height * columns + 32 * (height + columns)
    assert steps[0].bytes == 3 * 4 * (panel + update)
    assert steps[0].chain == steps[-1].chain > 0
    # Panels wait for themselves, not for the groups of the update.
    waits = sum(step.chain for step in steps) / (H200.ghz * 1e3)
    assert price(found, H200).work["lu_panel_next"] == pytest.approx(waits, rel=0.2)
    assert 0.97 * found.operations < sum(step.operations or 0 for step in found.steps)


def test_a_buffer_that_is_not_read_is_not_needed() -> None:
    """ldl_solve gets A for its judge alone."""
    found = plan(case("ldl_solve k=1", 10, 8))
    assert found.needed == 10 * (8 * 8 * 4 + 8 * 4 + 2 * 8 * 4)


@pytest.mark.parametrize("family", recorded_runs.families())
def test_every_operation_has_a_plan_and_a_count(family: str) -> None:
    operations = (*FAMILIES[family].operations, *(row[0] for row in FAMILIES[family].extra))
    batch, n = min(FAMILIES[family].quick, key=lambda shape: shape[1])
    for operation in operations:
        found = plan(Case(operation, batch, n, torch.float32))
        assert found.operations > 0
        assert found.moved >= 0.99 * found.needed > 0
        assert price(found, M1).total > price(found, H200).total


def test_what_is_not_counted_is_refused() -> None:
    assert {"lu", "eigh", "gated_delta"} < set(recorded_runs.families())
    operation = Operation("norm", rows(None), lambda library, A: A.sum((-2, -1)), lambda a, b: 0.0)
    with pytest.raises(NotImplementedError, match="no count of operations for norm"):
        plan(Case(operation, 3, 4, torch.float32))


def test_what_torch_computes_is_no_plan() -> None:
    operation = Operation("det", rows(None), lambda library, A: A.sum((-2, -1)), lambda a, b: 0.0)
    with pytest.raises(RuntimeError, match="computes with torch"):
        plan(Case(operation, 3, 4, torch.float32))
    assert "meta" not in ENGINES


def machine(**changes: Any) -> Machine:
    given = {"cores": 10, "ghz": 1.0, "gb_per_s": 100.0, "call": 0.0, "wait": 0.0, "host": 0.0}
    return Machine("some", **{**given, "launch": 0.0, **changes})


def test_bytes_and_operations_and_waits_are_priced() -> None:
    found = plan(case("solve_triangular k=n", 65536, 4))
    by_bandwidth = price(found, machine())
    assert by_bandwidth.limit == "bandwidth"
    assert by_bandwidth.total == pytest.approx(found.moved / 100e3)
    by_arithmetic = price(found, machine(gb_per_s=1e9, ghz=1e-3))
    assert by_arithmetic.total >= found.operations / (10 * LANES * 2)
    waiting = price(plan(case("inv", 8, 4)), machine(wait=1e6, launch=7.0))
    assert waiting.limit == "wait"
    assert (waiting.wait, waiting.launches) == (1e6, 7.0)


def test_the_host_is_paid_for_where_it_is_slower() -> None:
    found = plan(case("lu_factor", 1, 256))
    count = len(found.steps)
    slow, fast = machine(host=1e4, call=1.0), machine(host=1e-3, call=1.0)
    assert price(found, slow).total == pytest.approx(1 + 1e4 * count)
    assert price(found, fast).host == 1.0
    assert price(found, machine(host=1e4, call=1.0, graph=count)).host == 1.0


def test_a_single_group_has_one_core_and_twice_its_share_of_the_bandwidth() -> None:
    def of(**given: float) -> Plan:
        fields = {"bytes": 0.0, "operations": 0.0, "chain": 0.0, "values": {}, **given}
        step = Step("lu", "lu_rows", (), threads=LANES, group=LANES, **fields)  # type: ignore[arg-type]
        return Plan(case("lu_factor", 1, 4), [step], 0, 1, 0.0)

    assert price(of(operations=1e9), machine()).total == pytest.approx(1e9 / (LANES * 2e3))
    assert price(of(bytes=1e9), machine()).total == pytest.approx(1e9 / (2 * 100e3 / 10))
    assert price(of(chain=1e9), machine()).total == pytest.approx(1e9 / 1e3)


def test_a_product_has_its_operations() -> None:
    found = plan(case("solve_triangular k=n", 10, 256))
    steps = [step for step in found.steps if step.kernel == "products_difference"]
    assert len(steps) > 0
    for step in steps:
        sizes = step.values
        assert step.operations == 10 * 2 * sizes["m"] * sizes["n"] * sizes["inner"]
        assert sizes["m"] * sizes["inner"] >= 32 * 32


def run(folder: Path, name: str, content: dict[str, Any]) -> Path:
    file = folder / f"h200-{name}.json"
    file.write_text(json.dumps(content))
    return file


def recorded(folder: Path, found: Plan, taken: float) -> Path:
    key = {"op": "lu_factor", "batch": found.case.batch, "n": found.case.n, "dtype": "float32"}
    stream = {"op": "inv_ex", "batch": 2**20, "n": 4, "dtype": "float32", "kernel_gbs": 3000.0}
    rest: dict[str, Any] = {"speedup": None, "lapack_ratios": {}, "refused": {}}
    cells = [
        key | rest | {"microseconds": {"kernels": taken}},
        key | rest | {"op": "?", "microseconds": {}},
    ]
    family = {"cells": cells, "stream": stream | {"share": 0.5}}
    environment = {"device": "cuda (G)", "torch": "2", "python": "3", "system": "Linux"}
    content = {
        "date": "2026-11-30T10:00:00+00:00",
        "command": "python -m mpslinalg bench --family lu",
        "environment": environment,
        "families": {"lu": family | {"summary": {"geometric_mean": None}}},
    }
    return run(folder, "run", content)


@pytest.fixture
def factors_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    file = tmp_path / "factors.json"
    monkeypatch.setattr(factors, "FILE", file)
    monkeypatch.setattr(cost_model, "FILE", file)
    factors.factors.cache_clear()
    yield file
    factors.factors.cache_clear()


def test_factors_come_from_whole_calls_or_from_a_profile(
    factors_file: Path, tmp_path: Path
) -> None:
    found = plan(case("lu_factor", 4096, 64))
    priced = price(found, H200)
    work = priced.work["lu_rows"]
    files = [recorded(tmp_path, found, priced.fixed + 3 * work)]
    cost_model.calibrate(files, cost_model.cells(files))
    assert factors.factor("lu_rows").median == pytest.approx(3, rel=1e-2)
    assert factors.factor("qr_panel").median == 1
    of_kernels = {"kernels": {"lu_rows": {"launches": 1, "microseconds": 2 * work}}}
    key = {"op": "lu_factor", "batch": 4096, "n": 64, "dtype": "float32"}
    files.append(run(tmp_path, "kernels", {"cells": [key | of_kernels]}))
    cost_model.calibrate(files, cost_model.cells(files))
    assert factors.factor("lu_rows").median == pytest.approx(2, rel=1e-2)
    expected = predict(found, H200)
    assert expected.expected == pytest.approx(priced.fixed + 2 * work, rel=1e-2)
    assert expected.least <= expected.expected <= expected.most


def test_the_pages_have_a_row_for_each_case(factors_file: Path, tmp_path: Path) -> None:
    found = plan(case("lu_factor", 4096, 64))
    files = [recorded(tmp_path, found, 262.0)]
    text = cost_model.page(files)
    assert "| lu_factor | 4096 | 64 | 1 + 1 | 140 | 1.0 | 0.72 | 0.26 |" in text
    assert "| lu | 1 |" in text
    variant = {"kernel": "lu_rows", "template": ["float", "64", "1"], "group": 64}
    variants = [variant | {"registers": 128, "spilled_bytes": 4, "threadgroup_bytes": 8192}]
    registers = tmp_path / "registers-sm_90.json"
    registers.write_text(json.dumps({"arch": "sm_90", "variants": variants}))
    text = limits.page([registers, *files])
    assert "| `lu_rows` | 1 | 64 | 128 | 4 (float, 64, 1) | 8.0 | 25 % (float, 64, 1) | 4 |" in text
    assert "| lu_factor | 4096 | 64 | 262 |" in text


@pytest.mark.parametrize(
    ("group", "registers", "shared", "threads"),
    [(512, 128, 0, 512), (32, 32, 0, 1024), (64, 16, 0, 2048), (32, 32, 100 * 1024, 64)],
)
def test_resident_threads(group: int, registers: int, shared: int, threads: int) -> None:
    """Held by registers, by the groups of a multiprocessor, by its threads, by its memory."""
    variant = {"group": group, "registers": registers, "threadgroup_bytes": shared}
    assert limits.resident(variant) == threads


def test_the_command_predicts_and_holds_a_report_against_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cost = ["cost", "--family", "lu"]
    assert __main__.main([*cost, "--batch", "64", "--n", "8"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("lu_factor 64 x 8 float32", "M1", "M4 Max", "Mflop"))
    assert __main__.main([*cost, "--batch", "64", "--n", "8", "--machine", "M2"]) == 0
    assert "least" in capsys.readouterr().out
    file = recorded(tmp_path, plan(case("lu_factor", 4096, 64)), 1.0)
    assert __main__.main([*cost, "--machine", "M2", "--against", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "Measured: `" in printed
    assert "0 of 1 within" in printed
    assert "outside" in printed
    for other in (["--family", "qr"], ["--dtype", "complex64"], ["--batch", "8", "--n", "8"]):
        with pytest.raises(SystemExit):
            __main__.main([*cost, *other, "--machine", "M2", "--against", str(file)])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--machine", "M0"], "no machine 'M0'; there are M1"),
        (["--n", "8"], "--batch and --n are given together"),
        (["--batch", "8", "--n", "0"], "argument --n: 0 is less than 1"),
        (["--against", "x.json"], "cannot read 'x.json': No such file"),
        (["--family", "special"], "no model of special"),
        (["--family", "eig", "--batch", "1", "--n", "600"], "eig 1 x 600 float32 depend on data"),
    ],
)
def test_bad_arguments_are_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        __main__.main(["cost", "--family", "lu", *arguments])
    assert words in capsys.readouterr().err
