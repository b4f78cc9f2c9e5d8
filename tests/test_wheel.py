"""The built wheel, installed elsewhere and used from another folder."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

INVERT = """
import sys

import torch

import mpslinalg as LA
from mpslinalg import testing

A = torch.tensor([[4.0, 2.0, 1.0], [2.0, 5.0, 3.0], [1.0, 3.0, 6.0]])
with LA.use("kernels"):
    inverse = LA.inv(A)
assert testing.inverse_ratio(A, inverse) < testing.LU_THRESHOLD
sys.stdout.write(LA.__file__)
"""


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (built,) = folder.glob("mpslinalg-*.whl")
    return built


def test_wheel_holds_the_package_and_the_shaders_and_nothing_else(wheel: Path) -> None:
    files = {
        f"{prefix}{path.relative_to(ROOT).as_posix()}"
        for folder, prefix in (("mpslinalg", ""), ("shaders", "mpslinalg/"))
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == files
    assert any(name.endswith(".metal") for name in held)


def test_kernels_run_from_the_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    target, elsewhere = tmp_path / "target", tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip: list[str | Path] = [sys.executable, "-m", "pip", "install", "-q", "--no-deps"]
    run(*pip, "--target", target, wheel, cwd=elsewhere)

    # A compile cache of its own: a kernel compiled from the checkout proves nothing here.
    environment = os.environ | {
        "PYTHONPATH": str(target),
        "MPSLINALG_CACHE": str(tmp_path / "cache"),
    }
    imported = run(sys.executable, "-c", INVERT, cwd=elsewhere, env=environment)
    assert imported == str(target / "mpslinalg" / "__init__.py")
