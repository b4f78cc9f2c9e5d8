"""Shader sources, the compile cache, and launches on the CPU engine."""

import multiprocessing
import os
import re
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mpslinalg import _engines
from mpslinalg._engines import Kernel, ShaderError, cache, cpu, source
from tests.tiny_kernels import Tiny

MODES = pytest.mark.parametrize("check", ["0", "1"], ids=["plain", "checked"])

FILL = """template <typename T>
kernel void fill(device T* A [[buffer(0)]], constant uint& n [[buffer(1)]],
                 uint id [[thread_position_in_grid]]) {
  A[id] = T(id + n);
}
template <typename T>
kernel void spread(device T* A [[buffer(0)]], uint id [[thread_position_in_grid]],
                   uint lane [[thread_index_in_simdgroup]]) {
  A[id] = simd_broadcast(T(id), ushort(0)) + T(lane);
}
"""
fill = Tiny(FILL)


# Sources


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str, tuple[str, ...]]]:
    """Keeps what a test launches from the record of the session."""
    record: set[tuple[str, str, tuple[str, ...]]] = set()
    monkeypatch.setattr(_engines, "launched", record)
    return record


@pytest.fixture
def shaders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched: object) -> Iterator[Path]:
    """A folder of shaders in place of the real one."""
    monkeypatch.setattr(source, "folder", lambda: tmp_path)
    source.text.cache_clear()
    yield tmp_path
    source.text.cache_clear()


def test_each_header_is_inlined_once(shaders: Path) -> None:
    (shaders / "a.h").write_text('#include "b.h"\nint a;\n')
    (shaders / "b.h").write_text("int b;\n")
    (shaders / "k.metal").write_text('int k;\n#include "a.h"\n#include "b.h"\nint l;\n')
    text = source.text("k")
    assert [line for line in text.splitlines() if line.startswith("int")] == [
        "int k;", "int b;", "int a;", "int l;",
    ]  # fmt: skip
    assert "#include" not in text


def test_lines_keep_their_file_and_number(shaders: Path) -> None:
    (shaders / "a.h").write_text('// above\n#include "b.h"\nerror_in_a;\n')
    (shaders / "b.h").write_text("error_in_b;\n")
    (shaders / "k.metal").write_text('#include "a.h"\n\nerror_in_k;\n' + FILL)
    with pytest.raises(ShaderError) as caught:
        cpu.ENGINE.compile("k", "fill", ("float",))((torch.zeros(1), 0), (1,), (1,))
    for place, name in (("a.h:3", "in_a"), ("b.h:1", "in_b"), ("k.metal:3", "in_k")):
        assert re.search(rf"^{place}:.* error: .*error_{name}", str(caught.value), re.MULTILINE)


def test_unknown_shader_and_kernel() -> None:
    with pytest.raises(ShaderError, match=r"no shader 'qrst'; there are .*\blu\b"):
        source.text("qrst")
    with pytest.raises(ShaderError, match=r"lu.metal has no kernel 'lu_giant'; .*'lu_"):
        source.signature("lu", "lu_giant")


def test_signature() -> None:
    found = source.signatures(
        "template <typename T, int N>\n"
        "[[max_total_threads_per_threadgroup(64)]] kernel void work(\n"
        "    device const T* A [[buffer(0)]],\n    device real_t<T>* norms [[buffer(1)]],\n"
        "    constant uint& n [[buffer(2)]],\n    constant long& stride [[buffer(3)]],\n"
        "    uint2 group [[threadgroup_position_in_grid]]) {}\n"
        "template <typename T>\nkernel void plain(device T* A [[buffer(0)]],\n"
        "    uint3 id [[thread_position_in_grid]]) {}\n"
    )
    assert found["work"] == source.Signature(
        "work",
        (("typename", "T"), ("int", "N")),
        (
            source.Buffer("A", "T", writable=False),
            source.Buffer("norms", "real_t<T>", writable=True),
            source.Value("n", "uint"),
            source.Value("stride", "long"),
        ),
        (source.Index("group", "uint2", "threadgroup_position_in_grid"),),
        64,
    )
    assert found["work"].cooperative
    assert not found["plain"].cooperative
    assert found["plain"].max_threads == 1024


@pytest.mark.parametrize(
    "parameter",
    ["device T* A", "T* A [[buffer(0)]]", "constant uint n [[buffer(0)]]", "[[buffer(0)]]"],
)
def test_a_parameter_that_cannot_be_read_is_named(parameter: str) -> None:
    index = "uint i [[thread_position_in_grid]]"
    with pytest.raises(ShaderError) as caught:
        source.signatures(f"template <typename T> kernel void broken({parameter}, {index}) {{}}")
    assert "kernel broken" in str(caught.value)
    assert repr(parameter) in str(caught.value)


def test_a_parameter_list_without_an_end() -> None:
    with pytest.raises(ShaderError, match="not closed"):
        source.signatures("template <typename T> kernel void broken(device T* A [[buffer(0)]]")


# Cache and compiler


@pytest.fixture
def cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder that does not exist yet."""
    chosen = tmp_path / "to" / "cache"
    monkeypatch.setenv("MPSLINALG_CACHE", str(chosen))
    # Compiled by now, the runtime does not come into that folder.
    cpu._runtime()
    cache.folder.cache_clear()
    yield chosen
    cache.folder.cache_clear()


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Sets the environment in which the engine looks for a compiler."""

    def choose(**environment: str) -> None:
        monkeypatch.delenv("CXX", raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        cpu.compiler.cache_clear()

    yield choose
    cpu.compiler.cache_clear()


def launcher(text: str = FILL, what: str = "tiny.metal: fill") -> cpu._CpuLauncher:
    return cpu.ENGINE.compile_text(text, what, "fill", ("float",))


def filled(launch: cpu._CpuLauncher) -> list[float]:
    x = torch.zeros(3)
    launch((x, 5), (3,), (3,))
    return x.tolist()


def test_a_variant_is_compiled_once(cold: Path) -> None:
    assert filled(launcher()) == [5, 6, 7]
    files = {path: path.stat().st_mtime_ns for path in cold.iterdir()}
    assert [path.suffix for path in files] == [".so"]
    assert filled(launcher()) == [5, 6, 7]
    assert {path: path.stat().st_mtime_ns for path in cold.iterdir()} == files
    changed = launcher(FILL.replace("id + n", "id + 2 * n"))
    assert filled(changed) == [10, 11, 12]
    assert len(list(cold.iterdir())) == 2


def test_the_key_is_all_that_makes_the_file(
    cold: Path, tmp_path: Path, compiler: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "extern int x;"
    paths = [cpu.build(text, flags, "text") for flags in (("-shared",), ("-shared", "-O1"))]
    # The same compiler under another name, then another version of it, then another processor.
    other = tmp_path / "other-c++"
    for version in ("1", "2"):
        answer = f'[ "$1" = --version ] && echo {version} && exit'
        other.write_text(f'#!/bin/sh\n{answer}\nexec {cpu.compiler()[0][0]} "$@"\n')
        other.chmod(0o755)
        compiler(CXX=str(other))
        paths.append(cpu.build(text, ("-shared",), "text"))
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(cpu, "_processor", lambda: "another")
            cpu.compiler.cache_clear()
            paths.append(cpu.build(text, ("-shared",), "text"))
        compiler()
    assert len(set(paths)) == len(paths) == 6
    # No part of a key can reach into the next.
    made = [cache.stored(parts, ".x", Path.touch) for parts in (("ab", "c"), ("a", "bc"))]
    assert made[0] != made[1]


def test_a_failed_build_leaves_nothing(cold: Path) -> None:
    def fail(target: Path) -> None:
        target.write_text("half")
        raise OSError("disk full")

    with pytest.raises(ShaderError, match=r"disk full.*MPSLINALG_CACHE"):
        cache.stored(("x",), ".x", fail)
    assert list(cold.iterdir()) == []


@pytest.mark.parametrize("spoilt", [b"", b"no library"])
def test_a_spoilt_file_is_built_anew(cold: Path, spoilt: bytes) -> None:
    # A text of its own: the loader keeps libraries that it has seen.
    text = FILL.replace("id + n", f"id + n + {len(spoilt)}")
    cpu.build(launcher(text)._text, (*cpu._COMMON, *cpu._PLAIN), "fill")
    (file,) = cold.iterdir()
    file.write_bytes(spoilt)
    assert filled(launcher(text)) == [5 + len(spoilt), 6 + len(spoilt), 7 + len(spoilt)]


def test_a_folder_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MPSLINALG_CACHE", str(tmp_path / "file" / "cache"))
    assert filled(launcher()) == [5, 6, 7]
    assert list(cache.folder().glob("*.so"))
    assert cache.folder().name.startswith("mpslinalg-")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(cold: Path) -> None:
    cold.mkdir(parents=True)
    cold.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert filled(launcher()) == [5, 6, 7]
    assert list(cold.iterdir()) == []
    assert cache.folder() != cold


def test_no_compiler(cold: Path, compiler: Callable[..., None]) -> None:
    compiler(PATH="")
    with pytest.raises(ShaderError) as caught:
        filled(launcher())
    for words in ("looked for c++, clang++, g++)", "apt-get install g++", "xcode-select", "$CXX"):
        assert words in str(caught.value)


def test_a_compiler_that_is_not_there(cold: Path, compiler: Callable[..., None]) -> None:
    compiler(CXX="/nowhere/c++")
    with pytest.raises(ShaderError, match=r"looked for \$CXX=/nowhere/c\+\+\)"):
        filled(launcher())


def test_a_compiler_with_arguments(cold: Path, compiler: Callable[..., None]) -> None:
    compiler(CXX=f"{shutil.which('c++') or shutil.which('g++')} -DUNUSED")
    assert filled(launcher()) == [5, 6, 7]
    assert cpu.compiler()[0][1:] == ("-DUNUSED",)


@pytest.mark.parametrize("words", ["", "exit 1", "echo fine; exit 0"])
def test_a_compiler_that_is_none(
    words: str, cold: Path, tmp_path: Path, compiler: Callable[..., None]
) -> None:
    fake = tmp_path / "c++"
    fake.write_text(f"#!/bin/sh\n{words}\n" if words else "no program")
    fake.chmod(0o755)
    compiler(CXX=str(fake))
    with pytest.raises(ShaderError, match=r"no C.*compiler found|exit status 0"):
        filled(launcher())


def test_a_relative_cache_folder(
    tmp_path: Path, cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPSLINALG_CACHE", "relative")
    cache.folder.cache_clear()
    assert cache.folder() == tmp_path / "relative"


@MODES
def test_a_kernel_that_does_not_compile(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSLINALG_CHECK", check)
    broken = Tiny(FILL.replace("T(id + n)", "T(id + count)"))
    with pytest.raises(ShaderError) as caught:
        broken("fill", torch.zeros(1), 0, threads=(1,), group=(1,))
    message = str(caught.value)
    assert message.startswith(
        "mpslinalg: tiny.metal: fill<float> does not compile (exit status 1)\n"
    )
    assert f"{broken.place('count')}:" in message
    assert "'count'" in message
    assert f"\ncommand: {cpu.compiler()[0][0]} -std=c++17 " in message


# Launches


@pytest.mark.parametrize("arguments", [(), (0, 0)])
def test_number_of_arguments(arguments: tuple[int, ...]) -> None:
    with pytest.raises(
        TypeError, match=rf"fill<float> takes 2 arguments, got {1 + len(arguments)}"
    ):
        fill("fill", torch.zeros(1), *arguments, threads=(1,), group=(1,))


@pytest.fixture
def norm(shaders: Path) -> Callable[..., list[float]]:
    """Launches a kernel of a shader of its own, with some arguments replaced; what it wrote."""
    (shaders / "k.metal").write_text(
        "template <typename T> using real_t = float;\n"
        "template <typename T>\n"
        "kernel void norm(device const T* A [[buffer(0)]], device real_t<T>* N [[buffer(1)]],\n"
        "                 device int* info [[buffer(2)]], constant uint& n [[buffer(3)]],\n"
        "                 uint id [[thread_position_in_grid]]) {\n"
        "  N[id] = fabs(A[id].x) + fabs(A[id].y) + float(n);\n  info[id] = 7;\n}\n"
    )

    def launch(**given: Any) -> list[float]:
        arguments: dict[str, Any] = {
            "A": torch.tensor([3 - 4j], dtype=torch.complex64),
            "N": torch.zeros(1),
            "info": torch.zeros(1, dtype=torch.int32),
            "n": 1,
        }
        assert given.keys() <= arguments.keys()
        arguments |= given
        Kernel("k", "norm", ("float2",))(*arguments.values(), threads=(1,), group=(1,))
        return [*arguments["N"].tolist(), *arguments["info"].tolist()]

    return launch


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"A": torch.ones(1)}, "A is to be torch.complex64 on cpu, got torch.float32 on cpu"),
        (
            {"N": torch.ones(1, dtype=torch.complex128)},
            "N is to be torch.float32 on cpu, got torch.complex128",
        ),
        ({"N": torch.ones(1, device="meta")}, "N is to be .* got torch.float32 on meta"),
        ({"N": 3}, "N is to be torch.float32 on cpu, got a number"),
        ({"info": torch.zeros(1)}, "info is to be torch.int32 on cpu, got torch.float32"),
        ({"n": torch.tensor(2)}, "n is to be a number, got torch.int64 on cpu"),
    ],
)
def test_arguments_that_do_not_fit(
    given: dict[str, Any], words: str, norm: Callable[..., list[float]]
) -> None:
    assert norm() == [8, 7]
    with pytest.raises(TypeError, match=f"kernel norm: {words}"):
        norm(**given)


def test_the_first_argument_chooses_the_engine(norm: Callable[..., list[float]]) -> None:
    with pytest.raises(TypeError, match="the first argument is no tensor"):
        norm(A=1)


@pytest.mark.parametrize(
    ("threads", "group"),
    [((70,), (32,)), ((48,), (48,)), ((64, 3), (64, 2)), ((16,), (32,)), ((8, 8), (8, 2))],
)
def test_threads_that_work_together_come_in_whole_groups(
    threads: tuple[int, ...], group: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=r"whole groups of \(\d+,.*whole simdgroups of 32"):
        fill("spread", torch.zeros(1000), threads=threads, group=group)


@MODES
def test_partial_last_groups(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSLINALG_CHECK", check)
    x = torch.zeros(100)
    fill("fill", x[:70], 1, threads=(70,), group=(64,))
    assert torch.equal(x[:70], torch.arange(1.0, 71))
    assert (x[70:] == 0).all()


@pytest.mark.parametrize("threads", [(0,), (0, 3), (3, 0), (2, 0, 2)])
def test_launches_of_no_thread(threads: tuple[int, ...]) -> None:
    # Which need no kernel.
    unknown = Kernel("lu", "lu_giant", ())
    unknown(torch.zeros(0), threads=threads, group=(1,) * len(threads))


SCALARS = ["thread_index_in_threadgroup", "thread_index_in_simdgroup"]
SCALARS += ["simdgroup_index_in_threadgroup", "simdgroups_per_threadgroup"]
VECTORS = ["thread_position_in_threadgroup", "threadgroup_position_in_grid", "threads_per_grid"]
VECTORS += ["threads_per_threadgroup", "threadgroups_per_grid"]
POSITION = "uint3 id [[thread_position_in_grid]]"
STORE = "  device T* at = A + ((id.z * grid.y + id.y) * grid.x + id.x) * {count};\n"


def indices(name: str, scalars: list[str], vectors: list[str]) -> str:
    """A kernel that writes its attributes side by side, for each thread of the grid."""
    parameters = [f"uint s{i} [[{attribute}]]" for i, attribute in enumerate(scalars)]
    parameters += [
        f"uint3 {'grid' if attribute == 'threads_per_grid' else f'v{i}'} [[{attribute}]]"
        for i, attribute in enumerate(vectors)
    ]
    values = [f"s{i}" for i in range(len(scalars))]
    for i, attribute in enumerate(vectors):
        vector = "grid" if attribute == "threads_per_grid" else f"v{i}"
        values += [f"{vector}.{axis}" for axis in "xyz"]
    values += [f"id.{axis}" for axis in "xyz"]
    body = STORE.format(count=len(values))
    body += "".join(f"  at[{i}] = T({value});\n" for i, value in enumerate(values))
    return (
        f"template <typename T>\nkernel void {name}(device T* A [[buffer(0)]], {POSITION}, "
        f"{', '.join(parameters)}) {{\n{body}}}\n"
    )


INDICES = Tiny(
    indices("all_indices", SCALARS, VECTORS) + indices("plain_indices", [], ["threads_per_grid"])
)


def expected_indices(threads: tuple[int, ...], group: tuple[int, ...]) -> dict[str, Any]:
    """Each attribute of each thread of the grid, as NumPy counts: (z, y, x, components)."""
    nx, ny, nz = (*threads, 1, 1)[:3]
    size = np.array((*group, 1, 1)[:3])
    z, y, x = np.indices((nz, ny, nx))
    position = np.stack((x, y, z), -1)
    within = position % size
    index = within @ np.array([1, size[0], size[0] * size[1]])
    simds = -(-size.prod() // 32)
    return {
        "thread_index_in_threadgroup": index[..., None],
        "thread_index_in_simdgroup": index[..., None] % 32,
        "simdgroup_index_in_threadgroup": index[..., None] // 32,
        "simdgroups_per_threadgroup": np.full((nz, ny, nx, 1), simds),
        "thread_position_in_threadgroup": within,
        "threadgroup_position_in_grid": position // size,
        "threads_per_grid": np.broadcast_to([nx, ny, nz], position.shape),
        "threads_per_threadgroup": np.broadcast_to(size, position.shape),
        "threadgroups_per_grid": np.broadcast_to([nx, ny, nz] // size, position.shape),
        "thread_position_in_grid": position,
    }


@MODES
@pytest.mark.parametrize(
    ("name", "threads", "group"),
    [
        ("all_indices", (192,), (64,)),
        ("all_indices", (16, 6), (16, 2)),
        ("all_indices", (24, 4, 6), (8, 4, 2)),
        ("plain_indices", (7,), (64,)),
        ("plain_indices", (5, 3), (2, 2)),
        ("plain_indices", (5, 3, 4), (64, 1, 1)),
        # Enough for several threads of the system, which cut in mid-row.
        ("plain_indices", (101, 91), (64, 1)),
    ],
)
def test_indices(
    name: str,
    threads: tuple[int, ...],
    group: tuple[int, ...],
    check: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MPSLINALG_CHECK", check)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    attributes = ["threads_per_grid"] if name == "plain_indices" else [*SCALARS, *VECTORS]
    expected = expected_indices(threads, group)
    wanted = np.concatenate([expected[a] for a in (*attributes, "thread_position_in_grid")], -1)
    got = torch.full(wanted.shape, -1.0)
    INDICES(name, got, threads=threads, group=group)
    np.testing.assert_array_equal(got, wanted)


# Threads and processes


def one_launch(n: int) -> list[float]:
    x = torch.zeros(8)
    fill("fill", x, n, threads=(8,), group=(8,))
    y = torch.zeros(64)
    fill("spread", y, threads=(64,), group=(32,))
    return [*x.tolist(), *y.tolist()]


def one_result(n: int) -> list[float]:
    return [*(float(n + i) for i in range(8)), *(float(i) for i in range(64))]


@MODES
def test_launches_from_two_threads(check: str, monkeypatch: pytest.MonkeyPatch, cold: Path) -> None:
    """Of which both find the kernel not compiled yet."""
    monkeypatch.setenv("MPSLINALG_CHECK", check)
    start = threading.Barrier(2)
    results: dict[int, set[tuple[float, ...]]] = {}
    launch = launcher()

    def work(n: int) -> None:
        start.wait()
        results[n] = set()
        for _ in range(100):
            x = torch.zeros(64)
            launch((x, n), (64,), (64,))
            results[n].add(tuple(x.tolist()))

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: {tuple(float(n + i) for i in range(64))} for n in (1, 1000)}


def forks(test: Any) -> Any:
    # Apple's frameworks do not survive a fork; from Python 3.12 on, it warns beside other threads.
    linux = pytest.mark.skipif(sys.platform != "linux", reason="processes fork on Linux only")
    return linux(pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")(test))


def run_forked(work: Callable[..., None], *arguments: Any, processes: int = 1) -> list[Any]:
    """What each forked process puts into a queue."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    started = [
        context.Process(target=work, args=(queue, *arguments), daemon=True)
        for _ in range(processes)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join(60)
    assert [process.exitcode for process in started] == [0] * processes
    return [queue.get() for _ in started]


def _put_launch(queue: Any) -> None:
    queue.put(one_launch(3))


@forks
@MODES
def test_launch_after_a_fork(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSLINALG_CHECK", check)
    assert one_launch(2) == one_result(2)
    assert run_forked(_put_launch) == [one_result(3)]
    assert one_launch(4) == one_result(4)


def _put_cold_launch(queue: Any, start: Barrier) -> None:
    start.wait(60)
    queue.put(filled(launcher()))


@forks
def test_processes_that_compile_at_once(cold: Path) -> None:
    start = multiprocessing.get_context("fork").Barrier(2)
    assert run_forked(_put_cold_launch, start, processes=2) == [[5, 6, 7]] * 2
    assert len(list(cold.iterdir())) == 1


def test_launched_variants_are_recorded(
    norm: Callable[..., list[float]], launched: set[tuple[str, str, tuple[str, ...]]]
) -> None:
    norm()
    assert launched == {("k", "norm", ("float2",))}


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint32, torch.int64], ids=str
)
def test_integers_that_no_kernel_wrote_show(dtype: torch.dtype) -> None:
    fresh = _engines.empty((3,), torch.ones(1), dtype).tolist()
    # Nothing else stands for 111 in a bool.
    unlikely = {True} if dtype == torch.bool else {_engines.UNWRITTEN, _engines.UNWRITTEN_NARROW}
    assert set(fresh) <= unlikely


@pytest.mark.parametrize(
    ("written", "dtype"),
    [
        ("uchar", torch.uint8),
        ("ushort", torch.int16),
        ("uint", torch.int32),
        ("ulong", torch.int64),
    ],
)
def test_buffers_of_integers(written: str, dtype: torch.dtype) -> None:
    """Signed tensors are the memory of unsigned buffers; others are refused."""
    variant = _engines.kernel("elementwise", "elementwise_heaviside", written)
    x = torch.tensor([-1, 0, 1]).to(dtype)
    result = torch.zeros_like(x)
    variant(x, x + 5, result, 3, 0, 0, 1, threads=(32,), group=(32,))
    assert result.tolist() == [1, 5, 1]
    wrong = torch.zeros(3, dtype=torch.float16)
    fresh = _engines.Kernel("elementwise", "elementwise_heaviside", (written,))
    with pytest.raises(TypeError, match=f"x is to be {dtype} on cpu"):
        fresh(wrong, x, result, 3, 0, 0, 1, threads=(32,), group=(32,))
