"""The command line: words, exit statuses, and the doctor's examination."""

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import mpslinalg as LA
from mpslinalg import __main__ as command
from mpslinalg import _bench, _doctor
from mpslinalg._engines import cpu

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.fixture
def quick_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {stem: replace(family, sizes=(16,)) for stem, family in _doctor.FAMILIES.items()}
    small["lu"] = replace(small["lu"], sizes=(3, 16))
    monkeypatch.setattr(_doctor, "FAMILIES", small)


def usage_error(arguments: list[str], capsys: Capture) -> str:
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    assert stopped.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "command"),
        (["dance"], "'dance'"),
        (["demo", "--device", "tpu"], "'tpu'"),
        (["demo", "--case", "moon"], "power-grid"),
        (["doctor", "--json", "x"], "--json"),
        (["bench", "--family", "cholesk"], "'cholesk'"),
        (["bench", "--family", "lu", "--dtype", "float16"], "'float16'"),
        (["bench", "--family", "lu", "--cases", "some"], "'some'"),
        (["bench", "--family", "special", "--dtype", "complex64"], "special has no complex64"),
        (["demo", "--plot", "picture.xyz"], "no picture 'picture.xyz'; there are"),
    ],
)
def test_unknown_words(arguments: list[str], words: str, capsys: Capture) -> None:
    assert words in usage_error(arguments, capsys)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("device", ["cuda", "mps"])
@pytest.mark.parametrize("arguments", [["demo"], ["bench", "--family", "lu"]])
def test_absent_device(arguments: list[str], device: str, capsys: Capture) -> None:
    assert f"no {device} device" in usage_error([*arguments, "--device", device], capsys)


def test_no_double_precision_on_an_apple_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    arguments = ["bench", "--family", "lu", "--device", "mps", "--dtype", "complex128"]
    assert "double precision" in usage_error(arguments, capsys)


def test_help_names_the_commands(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("demo", "doctor", "bench"))


@pytest.mark.parametrize(
    ("mps", "cuda", "expected"),
    [(False, False, "cpu"), (False, True, "cuda"), (True, True, "mps")],
)
def test_default_device(
    mps: bool, cuda: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    assert _doctor.default_device() == torch.device(expected)


def rows(device: str = "cpu") -> dict[str, _doctor.Row]:
    return {row.name: row for row in _doctor.examine(torch.device(device))}


def test_every_family_that_is_timed_is_judged_and_kept_over_time() -> None:
    apart = {stem for stem, family in _bench.FAMILIES.items() if family.apart}
    assert apart == {"pipelined"}
    assert set(_bench.FAMILIES) - apart <= set(_doctor.FAMILIES)
    suites = Path(__file__).parents[1] / "asv_benchmarks" / "benchmarks"
    assert {f"bench_{stem}.py" for stem in _bench.FAMILIES} == {
        file.name for file in suites.glob("bench_*.py")
    }


@pytest.mark.usefixtures("quick_doctor")
def test_doctor(capsys: Capture) -> None:
    assert command.main(["doctor", "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    for words in (
        torch.__version__,
        "C++ compiler",
        "float32 matmul",
        "lu complex64 16",
        *(f"{stem} float32 16" for stem in _doctor.FAMILIES),
        "all is",
    ):
        assert words in text
    assert "FAIL" not in text


@pytest.mark.usefixtures("quick_doctor")
def test_doctor_finds_a_wrong_kernel(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    inv = LA.inv
    monkeypatch.setattr(LA, "inv", lambda A: inv(A) * (1 + 1e-2 * (A.shape[-1] == 16)))
    assert command.main(["doctor", "--device", "cpu"]) == 1
    assert "2 failed" in capsys.readouterr().out
    found = rows()
    assert [
        found[f"lu {dtype} {n}"].status for dtype in ("float32", "complex64") for n in (3, 16)
    ] == [
        "ok",
        "FAIL",
        "ok",
        "FAIL",
    ]


@pytest.mark.usefixtures("quick_doctor")
def test_doctor_judges_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    inv = LA.inv

    @functools.wraps(inv)
    def spy(A: torch.Tensor) -> torch.Tensor:
        seen.append(LA.which("inv", A))
        return inv(A)

    monkeypatch.setattr(LA, "inv", spy)
    rows()
    assert len(seen) == 4
    assert all("kernels (cpu engine)" in text for text in seen)


@pytest.mark.usefixtures("quick_doctor")
def test_doctor_survives_a_kernel_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(A: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("does not compile\nsecond line")

    monkeypatch.setattr(LA, "lu_factor", broken)
    row = rows()["lu float32 3"]
    assert row.status == "FAIL"
    assert row.detail == "RuntimeError: does not compile"


@pytest.mark.usefixtures("quick_doctor")
def test_doctor_without_a_compiler(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    cpu.compiler.cache_clear()
    try:
        row = rows()["C++ compiler"]
        assert command.main(["doctor", "--device", "cpu"]) == 1
    finally:
        cpu.compiler.cache_clear()
    assert row.status == "FAIL"
    assert "no-such-compiler" in row.detail
    assert "no-such-compiler" in capsys.readouterr().out


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_doctor_without_the_device(device: str, capsys: Capture) -> None:
    assert command.main(["doctor", "--device", device]) == 1
    assert f"no {device} device" in capsys.readouterr().out


def test_doctor_without_cuda_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_doctor, "available", lambda device: True)
    monkeypatch.setattr(_doctor, "package_version", lambda name: None)
    monkeypatch.setattr(_doctor, "FAMILIES", {})
    row = rows("cuda")["cuda-core"]
    assert row.status == "FAIL"
    assert "pip install" in row.detail


def test_matmul_precision_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 20 < _doctor.matmul_bits(torch.device("cpu")) < 25
    matmul = torch.Tensor.__matmul__

    def eleven_bits(A: torch.Tensor) -> torch.Tensor:
        """TF32's significand, rounded to nearest."""
        if A.dtype != torch.float32:
            return A
        return ((A.view(torch.int32) + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)

    monkeypatch.setattr(
        torch.Tensor, "__matmul__", lambda A, B: matmul(eleven_bits(A), eleven_bits(B))
    )
    assert 10 < _doctor.matmul_bits(torch.device("cpu")) < 13
    monkeypatch.setattr(_doctor, "FAMILIES", {})
    assert rows()["float32 matmul"].status == "note"


@pytest.mark.parametrize("arguments", [["demo", "--json"], ["demo", "--plot"], ["bench", "--json"]])
@pytest.mark.parametrize("target", ["", "/nowhere/at/all.json", "."])
def test_a_target_that_cannot_be_written_is_refused_first(
    arguments: list[str], target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    family = ["--family", "lu"] if arguments[0] == "bench" else []
    with pytest.raises(SystemExit) as caught:
        command.main([arguments[0], *family, arguments[1], target])
    assert caught.value.code == 2
    assert "cannot write a file" in capsys.readouterr().err
