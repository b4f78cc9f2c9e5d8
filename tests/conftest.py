"""The device, the hypothesis profiles and the modes that tests share."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# For OpenBLAS, OpenMP and MKL, which read it when numpy and torch load: over these small matrices
# a second thread spends its time waiting, and the suite takes twice as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest

import mpslinalg as LA
from mpslinalg import _aten_elementwise
from mpslinalg._engines import Kernel
from mpslinalg._engines.program import Program

hypothesis.settings.register_profile("default", derandomize=True, max_examples=25, deadline=None)
hypothesis.settings.register_profile("thorough", max_examples=1000, deadline=None)
hypothesis.settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        choices=("cpu", "cuda", "mps"),
        default="cpu",
        help="where the tensors of the tests live",
    )
    parser.addoption(
        "--conformance",
        type=Path,
        metavar="FILE.json",
        help="where to write what tests/test_conformance.py found, for docs/generate.py",
    )


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--conformance")
    if file is not None and not hasattr(config, "workerinput"):
        from tests.conformance import Recorder

        config.pluginmanager.register(Recorder(file, config.getoption("--device")))


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> str:
    """The device that the tests run on."""
    name: str = pytestconfig.getoption("--device")
    return name


@pytest.fixture(scope="session", autouse=True)
def _whatever_is_launched_is_checked(request: pytest.FixtureRequest) -> Iterator[None]:
    """At the end of every process of a session that checks the variants as Metal."""
    yield
    if any(item.path.name == "test_strict_variants.py" for item in request.session.items):
        from tests.test_strict_variants import unchecked

        assert unchecked() == set()


@pytest.fixture
def checked(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checked CPU engine. GPU engines have no checker: with them it changes nothing.

    With MPSLINALG_CHECK=races around pytest, races that happen to do no harm are found too.
    """
    if device == "cpu" and os.environ.get("MPSLINALG_CHECK") != "races":
        monkeypatch.setenv("MPSLINALG_CHECK", "1")


@pytest.fixture
def kernels() -> Iterator[None]:
    """Kernels on every device."""
    with LA.use("kernels"):
        yield


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Kernels launched by each operation of aten."""
    counts = dict.fromkeys(_aten_elementwise.OPERATIONS, 0)
    inside: list[str] = []

    def counted(call: Callable[..., Any], of: Callable[..., int]) -> Callable[..., Any]:
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            for name in inside[-1:]:
                counts[name] += of(self)
            return call(self, *args, **kwargs)

        return run

    def named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            inside.append(name)
            try:
                return function(*args, **kwargs)
            finally:
                inside.pop()

        return run

    monkeypatch.setattr(Kernel, "__call__", counted(Kernel.__call__, lambda _: 1))
    monkeypatch.setattr(Program, "run", counted(Program.run, lambda self: len(self.launches)))
    for name, operation in _aten_elementwise.OPERATIONS.items():
        replaced = operation._replace(run=named(name, operation.run))
        monkeypatch.setitem(_aten_elementwise.OPERATIONS, name, replaced)
    return counts
