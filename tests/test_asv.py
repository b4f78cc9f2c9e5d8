"""The suite of asv: its cases, its gate, and what its fork server must not start."""

import importlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import mpslinalg as LA
from docs import asv_runs, tables
from mpslinalg import _bench

SUITES = Path(__file__).parents[1] / "asv_benchmarks" / "benchmarks"
CASE = "cholesky 1024 x 4 float32"


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The suites are imported anew, and forgotten."""
    monkeypatch.syspath_prepend(str(SUITES.parent))
    for variable in ("DEVICE", "CASES"):
        monkeypatch.delenv(f"MPSLINALG_BENCH_{variable}", raising=False)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]


def suites() -> dict[str, Any]:
    modules = [importlib.import_module(f"benchmarks.{file.stem}") for file in SUITES.glob("b*.py")]
    return {
        module.__name__.partition("bench_")[2]: next(
            suite
            for suite in vars(module).values()
            if isinstance(suite, type) and suite.__module__ == module.__name__
        )
        for module in modules
    }


def common() -> ModuleType:
    return importlib.import_module("benchmarks.common")


def test_every_family_has_a_suite_of_few_cases(
    fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPSLINALG_BENCH_DEVICE", "cpu")
    found = suites()
    assert found.keys() == _bench.FAMILIES.keys()
    for name, suite in found.items():
        family = _bench.FAMILIES[name]
        cases, providers = suite.params
        known = family.cases([_bench.DTYPES[dtype] for dtype in family.dtypes], quick=True)
        assert set(cases) <= set(map(str, known))
        assert 2 <= len(cases) <= 3
        assert any("complex64" in case for case in cases) == ("complex64" in family.dtypes)
        assert providers == ["kernels", "torch"]


def test_the_few(fresh: None) -> None:
    lu = _bench.FAMILIES["lu"]
    cases = lu.cases([_bench.DTYPES[dtype] for dtype in lu.dtypes], quick=False)
    assert [str(case) for case in common().few(cases)] == [
        "lu_factor 65536 x 4 float32",
        "lu_factor 4096 x 64 complex64",
        "lu_factor 1 x 1024 float32",
    ]


def test_importing_the_suites_starts_no_device(
    fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine with a GPU, of which NVML tells."""

    def start(*_: Any) -> Any:
        raise AssertionError("CUDA was started")

    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: True)
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: 1)
    monkeypatch.setattr(torch.cuda, "_cached_device_count", None)
    monkeypatch.setattr(torch.cuda, "_lazy_init", start)
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", start, raising=False)
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "0")
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK")
    monkeypatch.setenv("MPSLINALG_BENCH_CASES", "all")
    found = suites()
    assert common().DEVICE.type == "cuda"
    for suite in found.values():
        assert hasattr(suite, "track_peak_memory")
        assert suite.params[1] == ["kernels", "torch", "torch cpu"]


def test_a_suite(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSLINALG_BENCH_DEVICE", "cpu")
    suite = importlib.import_module("benchmarks.bench_cholesky").Cholesky()
    for provider in ("kernels", "torch"):
        suite.setup(CASE, provider)
        suite.time_call(CASE, provider)
        suite.peakmem_call(CASE, provider)
    # asv sets up before each timing: the same case is judged once.
    right = torch.linalg.cholesky
    monkeypatch.setattr(torch.linalg, "cholesky", lambda A: right(A) * 1.01)
    suite.setup(CASE, "torch")
    monkeypatch.setattr(LA, "cholesky", torch.linalg.cholesky)
    common().prepare.cache_clear()
    for provider in ("kernels", "torch"):
        with pytest.raises(NotImplementedError, match="LAPACK ratio"):
            suite.setup(CASE, provider)


def test_memory_of_a_gpu(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is counted before a call, and at its peak."""
    monkeypatch.setenv("MPSLINALG_BENCH_DEVICE", "cpu")
    suite = importlib.import_module("benchmarks.bench_cholesky").Cholesky()
    suite.setup(CASE, "torch")
    for name, value in {"memory_allocated": 100, "max_memory_allocated": 350}.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    for name in ("synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    track = common()._track_peak_memory
    assert track(suite, CASE, "kernels") == 250
    assert math.isnan(track(suite, CASE, "torch cpu"))


def test_kept_runs_name_no_machine_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = {
        "commit_hash": "0123456789abcdef",
        "env_name": "existing-py_home_me_bin_python",
        "params": {"machine": "m", "cpu": "chip", "python": "/home/me/bin/python", "torch": ""},
        "python": "/home/me/bin/python",
        "requirements": {"torch": ""},
        "result_columns": ["result", "params"],
        "results": {
            "bench_lu.LU.time_call": [
                [1e-3, 2e-3, None, math.nan],
                [["'f 1 x 2'", "'g'"], ["'kernels'", "'torch'"]],
            ],
            "bench_lu.LU.track_peak_memory": [[5e6], [["'f 1 x 2'"], ["'kernels'"]]],
        },
    }
    monkeypatch.setattr(asv_runs, "SUITE", tmp_path)
    left = tmp_path / ".asv" / "results"
    (left / "m").mkdir(parents=True)
    (left / "benchmarks.json").write_text("{}")
    (left / "m" / "machine.json").write_text("{}")
    (left / "m" / "01234567-existing-py_home_me_bin_python.json").write_text(json.dumps(run))
    asv_runs.main(["m", "--to", str(tmp_path / "kept")])
    kept = tmp_path / "kept" / "m" / "m" / "01234567-existing.json"
    assert "home" not in kept.read_text()
    assert json.loads(kept.read_text())["params"]["torch"] == torch.__version__
    assert "| LU | f 1 x 2 | 1000.0 | 2000.0 | 5.0 | - |" in tables.asv([kept])


def test_kept_runs_are_of_this_project() -> None:
    kept = [*asv_runs.KEPT.glob("*/benchmarks.json")]
    assert kept
    for benchmarks in kept:
        names = {name for name in json.loads(benchmarks.read_text()) if "." in name}
        assert {name.split(".")[0] for name in names} <= {file.stem for file in SUITES.glob("b*")}
        runs = [*benchmarks.parent.glob("*/*-existing.json")]
        assert runs
        for run in runs:
            assert set(json.loads(run.read_text())["results"]) <= names
