"""The pages that docs/generate.py writes."""

import json
import re
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch

import mpslinalg as LA
from docs import conformance, generate, ratios, startup, tables
from docs.benchmarks import benchmarks
from mpslinalg._bench import FAMILIES
from mpslinalg._bench_report import plots
from tests import surface

DOCS = Path(generate.__file__).parent


def recorded(folder: Path, family: str, dtypes: tuple[str, ...], **cell: Any) -> Path:
    """What `python -m mpslinalg bench --json FILE` writes of one case."""
    case = {"op": f"{family} op", "batch": 7, "n": 5}
    measured = {
        "microseconds": {"kernels": 2.0, "torch": 5.0},
        "speedup": 2.5,
        "lapack_ratios": {"kernels": 0.5, "torch": 0.75},
        "refused": {},
    }
    run = {
        "date": "2026-11-30T10:00:00+00:00",
        "command": f"python -m mpslinalg bench --family {family}",
        "environment": {"device": "cuda (G)", "torch": "2", "python": "3", "system": "Linux"},
        "families": {
            family: {
                "cells": [case | measured | cell | {"dtype": dtype} for dtype in dtypes],
                "stream": case | {"dtype": "float32", "share": 0.73},
                "summary": {"geometric_mean": None if cell else 2.5},
            }
        },
    }
    file = folder / f"h200-{family}.json"
    file.write_text(json.dumps(run))
    return file


def test_a_section_for_each_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = ("float32", "complex64")
    others = [name for name in FAMILIES if name != "gated_delta"]
    files = [recorded(tmp_path, name, both) for name in others]
    files.append(recorded(tmp_path, "gated_delta", ("float32",)))
    monkeypatch.setattr(plots, "available", lambda: False)
    text = benchmarks(files, tmp_path)
    titles = [line for line in text.splitlines() if line.startswith("### ")]
    pages = (DOCS / "algorithms" / f"{name}.md" for name in (*others, "gated_delta"))
    assert titles == [
        "### All families",
        *(f"##{p.read_text().splitlines()[0]}" if p.exists() else f"### {p.stem}" for p in pages),
    ]
    assert text.count(", complex64\n") == len(FAMILIES) - 1
    assert text.count(", float32\n") == len(FAMILIES)
    assert text.count("| ldl op | 7 | 5 | 2.0 | 5.0 | 2.50 | - | 0.5, 0.75 |\n") == 2
    assert text.count("73 % of the bytes a second") == len(FAMILIES)
    gated = text.partition("### Gated DeltaNet")[2]
    assert "n is the number of tokens" in gated
    assert "flash-linear-attention" in gated
    assert "number of tokens" not in text.partition("### Gated DeltaNet")[0]


@pytest.mark.parametrize("provider", ["kernels", "torch"])
def test_a_refused_cell_says_why(provider: str, tmp_path: Path) -> None:
    file = recorded(
        tmp_path,
        "lu",
        ("float32",),
        refused={provider: "wrong"},
        microseconds={},
        lapack_ratios={},
        speedup=None,
    )
    text = benchmarks([file], tmp_path)
    assert f"| lu op | 7 | 5 | - | - | {provider} refused: wrong | - |  |\n" in text
    assert "Geometric mean" not in text


def test_unknown_family(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="nothing"):
        benchmarks([recorded(tmp_path, "nothing", ("float32",))], tmp_path)


def test_the_reference_has_every_public_function() -> None:
    module, named = "", []
    for word, name in re.findall(r"^\.\. (\w+):: ([\w.]+)$", (DOCS / "api.md").read_text(), re.M):
        if word == "currentmodule":
            module = name
        elif word == "automodule":
            members = surface.MODULES.get(f"{name.removeprefix('mpslinalg.')}.")
            named += [f"{name}.{member}" for member in getattr(members, "__all__", ())]
        else:
            named.append(name if name.startswith("mpslinalg.") else f"{module}.{name}")
    assert len(named) == len(set(named))
    functions = {f"mpslinalg.{name}" for name in (*surface.public(), *surface.TOOLS)}
    assert set(named) == functions | {"mpslinalg.use", "mpslinalg.enable"}


@pytest.mark.parametrize("page", [DOCS / "index.md", DOCS.parent / "README.md"], ids=str)
def test_the_lists_name_every_function(page: Path) -> None:
    text = page.read_text()
    by_word = {"eq", "ne", "lt", "le", "gt", "ge"} if page.name == "README.md" else set()
    names = [name for name in surface.public() if "." not in name and name not in by_word]
    assert [name for name in names if f"`{name}`" not in text] == []


def conformance_run(folder: Path, engine: str, results: dict[str, Any]) -> Path:
    """What `pytest --conformance FILE` writes."""
    run = {
        "date": "2026-11-30T10:00:00+00:00",
        "command": "python -m pytest",
        "environment": {"device": f"{engine} (G)", "torch": "2", "python": "3", "system": "Linux"},
        "results": results,
    }
    file = folder / f"conformance-{engine}.json"
    file.write_text(json.dumps(run))
    return file


def test_conformance_of_both_engines(tmp_path: Path) -> None:
    whole = dict.fromkeys(("uint8", "int8", "int16", "int32", "int64"), "passed")
    cpu = {"forward": whole | {"float64": "passed"}, "vmap": {"int64": "none: b"}}
    cuda = {"forward": {"float32": "failed", "complex64": "passed"}, "vmap": {"int8": "with c"}}
    files = [conformance_run(tmp_path, "cpu", {"f": cpu})]
    files.append(
        conformance_run(tmp_path, "cuda", {"f": cuda | {"second": {"float64": "none: b"}}})
    )
    lines = conformance.tables(files).splitlines()
    assert [line for line in lines if line.startswith("#")] == ["## On cpu", "## On cuda"]
    assert "| `f` | int f64 | - | - | - | none (1) | - |" in lines
    assert "| `f` | **failed**: f32, c64 | - | none (1) | - | i8 (2) | - |" in lines
    assert lines[-2:] == ["1. b", "2. with c"]


ROUTINES = [
    *("lu_factor", "lu", "det", "slogdet", "solve", "lu_solve", "inv", "solve_triangular"),
    *("cholesky", "cholesky_solve", "cholesky_inverse", "matrix_sqrth", "ldl_factor", "ldl_solve"),
    *("qr", "qr_pivoted", "geqrf", "householder_product", "ormqr"),
    *("lstsq, gels", "lstsq, gelsy", "lstsq, gelsd", "lstsq, gelss", "pinv"),
    *("svd", "svdvals", "polar", "eigh", "eigvalsh", "eig", "eigvals", "matrix_exp"),
    "gated_delta.solve_tril",
]


def of_ratios(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What docs/ratios.py writes."""
    environment = {"device": "cuda (G)", "torch": "2", "python": "3", "system": "Linux"}
    return {
        "date": "2026-11-30T10:00:00+00:00",
        "command": "python docs/ratios.py",
        "environment": environment,
        "sizes": [16],
        "rows": rows,
    }


@pytest.mark.usefixtures("checked")  # whose variants other tests compile too
def test_every_routine_stands_beside_scipy_and_torch(device: str, tmp_path: Path) -> None:
    found = ratios.measured(device, sizes=(16,))
    assert list(dict.fromkeys(row["routine"] for row in found)) == ROUTINES
    lacks = {"qr_pivoted", "polar", "matrix_sqrth"} - set(dir(torch.linalg))
    for row in found:
        assert "missed" not in row
        assert 0 < row["kernels"] < 10
        assert 0 < row["scipy"] < 30
        if device == "cpu":
            assert (row["torch"] is None) == (row["routine"] in lacks)
    file = tmp_path / "accuracy-cuda.json"
    file.write_text(json.dumps(of_ratios(found)))
    table = [line for line in tables.accuracy([file]).splitlines() if line.startswith("| `")]
    assert [line.split("`")[1] for line in table] == ROUTINES
    assert all(line.count("|") == 8 for line in table)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        (ratios._cholesky, "cholesky_inverse"),
        (ratios._triangular, "solve_triangular"),
        (ratios._qr, "ormqr"),
        (ratios._exp, "matrix_exp"),
    ],
)
def test_a_wrong_result_is_over_the_bar(
    family: Any, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    right = getattr(LA, name)

    def wrong(*arguments: Any, **options: Any) -> torch.Tensor:
        result: torch.Tensor = right(*arguments, **options)
        result[-1] *= 1.01
        return result

    monkeypatch.setattr(LA, name, wrong)
    found = ratios.rows(ratios.FAMILIES.index(family), torch.float32, "cpu", (16,))
    assert [row["routine"] for row in found if "missed" in row] == [name]
    file = tmp_path / "accuracy-cpu.json"
    file.write_text(json.dumps(of_ratios(found)))
    text = tables.accuracy([file])
    assert [line.split("`")[1] for line in text.splitlines() if "over the bar" in line] == [name]


def test_what_torch_refuses_is_said(tmp_path: Path) -> None:
    row = {"routine": "eig", "dtype": "float32", "kernels": 0.5, "scipy": 0.25, "torch": None}
    file = tmp_path / "accuracy-cuda.json"
    file.write_text(json.dumps(of_ratios([row | {"refused": "n = 3: no"}])))
    text = tables.accuracy([file])
    assert "| `eig` | 0.5 | 0.25 | raises |\n" in text
    assert "- `eig`, n = 3: no\n" in text


def test_first_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSLINALG_CACHE", "set back when the test ends")
    results: SimpleQueue[tuple[float, float, int]] = SimpleQueue()
    startup._calls("inv", "torch", torch.device("cpu"), str(tmp_path), results)
    assert min(results.get()[:2]) > 0
    cell = {
        "call": "inv",
        "shapes": [[64, 8, 8]],
        "variants": 1,
        "seconds": {"empty": 1.0, "filled": 0.01, "torch": 0.002},
        "second_call": {"kernels": 1e-5, "torch": 2e-5},
    }
    run = of_ratios([]) | {"cells": [cell], "import": {"torch": 1.5, "mpslinalg": 0.04}}
    file = tmp_path / "startup-h200.json"
    file.write_text(json.dumps(run))
    text = tables.startup([file])
    assert text.startswith("### h200\n")
    assert "`import torch` took 1.5 s, `import mpslinalg` after it 40 ms" in text
    assert "| `inv` | 64 x 8 x 8 | 1 | 1000 | 10 | 0.01 | 2 | 0.02 |\n" in text


def test_pages_are_written_where_the_documentation_includes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for page in generate.PAGES:
        assert f"{{include}} _generated/{page}.md" in (DOCS / f"{page}.md").read_text()
    file = recorded(tmp_path, "lu", ("float32",))
    (tmp_path / "_generated").mkdir()
    (tmp_path / "algorithms").mkdir()
    (tmp_path / "algorithms" / "lu.md").write_text("# LU\n")
    monkeypatch.setattr(generate, "DOCS", tmp_path)
    generate.main(["benchmarks", str(file)])
    written = (tmp_path / "_generated" / "benchmarks.md").read_text()
    folder = tmp_path / "_generated" / "plots"
    assert written == benchmarks([file], folder)
    names = re.findall(r"!\[.*\]\((.*)\)", written)
    assert names == ["_generated/plots/shares.svg", "_generated/plots/lu-ratios.svg"]
    assert all((tmp_path / name).read_text().startswith("<svg") for name in names)
