"""The checked CPU engine names each fault that it exists for, and lets sound kernels pass."""

import ctypes
import math
import platform
import re
import signal
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from mpslinalg import _engines
from mpslinalg._engines.cpu import CheckError
from tests.tiny_kernels import Tiny

pytestmark = pytest.mark.usefixtures("checking")


@pytest.fixture
def checking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSLINALG_CHECK", "1")


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch, checking: None) -> Callable[[], None]:
    """Turns the checker off for the rest of the test."""
    return lambda: monkeypatch.setenv("MPSLINALG_CHECK", "0")


def kernel(name: str, parameters: str, body: str) -> str:
    """A kernel template on one line for each statement, so that reports name statements."""
    return f"template <typename T>\nkernel void {name}({parameters}) {{\n{body}\n}}\n"


def numbers(*shape: int) -> Tensor:
    """1, 2, 3, ...: no entry is zero and no two are equal."""
    return torch.arange(1.0, math.prod(shape) + 1).reshape(shape)


A = "device T* A [[buffer(0)]]"
SOURCE = "device const T* B [[buffer(1)]]"
SHIFT = "constant int& shift [[buffer(1)]]"
GRID = "uint id [[thread_position_in_grid]]"
GRID_3D = "uint3 id [[thread_position_in_grid]]"
TID = "uint tid [[thread_index_in_threadgroup]]"
GROUP = "uint group [[threadgroup_position_in_grid]]"
LANE = "uint lane [[thread_index_in_simdgroup]]"
SIMD = "uint simd [[simdgroup_index_in_threadgroup]]"
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"

TINY = Tiny(
    kernel("write", f"{A}, {SHIFT}, {GRID}", "A[long(id) + (id == 2 ? shift : 0)] = T(7);")
    + kernel(
        "read",
        f"{A}, {SOURCE}, constant int& shift [[buffer(2)]], {GRID}",
        "A[id] = B[long(id) + (id == 2 ? shift : 0)];",
    )
    + kernel(
        "write_in_a_box",
        f"{A}, {SHIFT}, {GRID_3D}",
        "const long i = (id.z * 3 + id.y) * 4 + id.x;\nA[i + (i == 17 ? shift : 0)] = T(7);",
    )
    + kernel(
        "write_in_a_group",
        f"{A}, {SHIFT}, {GRID}, {TID}",
        "A[long(id) + (id == 70 ? shift : 0)] = T(tid);",
    )
    + kernel("write_to_const", f"{A}, {SOURCE}, {GRID}", "((device T*)B)[id] = A[id];")
    + kernel(
        "write_array",
        f"{A}, {SHIFT}, {TID}, {GROUP}",
        "THREADGROUP_ARRAY(T, first, 3);\n"
        "THREADGROUP_ARRAY(T, shared, 33);\n"
        "if (tid < 3) first[tid] = T(0);\n"
        "shared[int(tid) + (tid == 5 && group == 1 ? shift : 0)] = A[group * 32 + tid];\n"
        f"{BARRIER}\nA[group * 32 + tid] = shared[31 - tid];",
    )
    + kernel(
        "read_array",
        f"{A}, {SHIFT}, {TID}, {GROUP}",
        "THREADGROUP_ARRAY(T, shared, 33);\n"
        "shared[tid] = A[group * 32 + tid];\n"
        "const int from = int(tid) + (tid == 5 && group == 1 ? shift : 0);\n"
        f"{BARRIER}\nA[group * 32 + tid] = shared[from];",
    )
    + kernel(
        "reverse_without_barrier",
        f"{A}, {TID}",
        "THREADGROUP_ARRAY(T, shared, 64);\nshared[tid] = A[tid];\nA[tid] = shared[63 - tid];",
    )
    + kernel(
        "reverse",
        f"{A}, {TID}",
        "THREADGROUP_ARRAY(T, shared, 64);\nshared[tid] = A[tid];\n"
        f"{BARRIER}\nA[tid] = shared[63 - tid];",
    )
    + kernel(
        "write_twice",
        f"{A}, {SHIFT}, {TID}",
        "THREADGROUP_ARRAY(T, shared, 64);\nshared[tid] = T(7);\n"
        f"if (shift != 0) {BARRIER}\nshared[63 - tid] = T(1);\n"
        f"shared[0] = T(1);\n{BARRIER}\nif (tid == 0) A[0] = shared[0];",
    )
    + kernel(
        "read_before_it_is_zero_again",
        f"{A}, {SHIFT}, {TID}, {SIMD}",
        "THREADGROUP_ARRAY(T, shared, 1);\nif (tid == 0) shared[0] = T(0);\n"
        f"{BARRIER}\nconst T found = shared[0];\nif (shift != 0) {BARRIER}\n"
        "if (tid == 0) shared[0] = T(0);\nA[tid] = found;",
    )
    + kernel(
        "lanes_meet",
        f"{A}, {SHIFT}, {TID}, {LANE}",
        "THREADGROUP_ARRAY(T, shared, 32);\nshared[lane] = A[lane];\n"
        "if (shift != 0) {\nsimdgroup_barrier(mem_flags::mem_threadgroup);\n} else {\n"
        "A[lane] = simd_shuffle(A[lane], ushort(0));\n}\nA[lane] = shared[31 - lane];",
    )
    + kernel(
        "running_sum",
        f"{A}, {GRID_3D}",
        "const uint i = id.y * 4 + id.x;\nif (id.x > 0) A[i] = A[i] + A[i - 1];",
    )
    + kernel(
        "sum_of_groups",
        f"{A}, {SOURCE}, {GROUP}, {TID}",
        "if (tid == 0) A[group] = B[group] + (group == 0 ? T(0) : A[group - 1]);",
    )
    + kernel("half", f"{A}, {SOURCE}, {GRID}", "if (id % 2 == 0) A[id] = B[id];")
    + kernel(
        "half_of_an_array",
        f"{A}, {TID}",
        f"THREADGROUP_ARRAY(T, shared, 64);\nif (tid < 32) shared[tid] = A[tid];\n"
        f"{BARRIER}\nA[tid] = shared[tid];",
    )
    + kernel(
        "early_return",
        f"{A}, {TID}",
        f"if (tid == 40) return;\n{BARRIER} // after the return\nA[tid] = T(1);",
    )
    + kernel(
        "branch", f"{A}, {TID}", f"if (tid < 40) {{ {BARRIER} }} // in the branch\nA[tid] = T(1);"
    )
    + kernel(
        "two_barriers",
        f"{A}, {TID}",
        f"if (tid < 32) {{\n{BARRIER} // one\n}} else {{\n{BARRIER} // other\n}}\nA[tid] = T(1);",
    )
    + kernel(
        "lane_leaves",
        f"{A}, {TID}, {LANE}",
        "if (lane == 7) return;\nA[tid] = simd_max(A[tid]);",
    )
    + kernel(
        "two_simd_functions",
        f"{A}, {TID}, {LANE}",
        "T value = A[tid];\n"
        "if (lane < 7) {\nvalue = simd_max(value);\n} else {\nvalue = simd_min(value);\n}\n"
        "A[tid] = value;",
    )
    + kernel(
        "barrier_against_simd",
        f"{A}, {TID}, {LANE}",
        f"T value = A[tid];\nif (lane == 7) {{\n{BARRIER} // lane 7\n}} else {{\n"
        "value = simd_sum(value);\n}\nA[tid] = value;",
    )
    + kernel("fill", f"{A}, {GRID}, {TID}", "A[id] = T(1);")
    + kernel(
        "full_memory",
        f"{A}, {TID}",
        "THREADGROUP_ARRAY(T, most, 8160);\nTHREADGROUP_ARRAY(T, rest, 32);\n"
        "most[tid] = A[tid];\nrest[tid] = most[tid];\nA[tid] = rest[tid];",
    )
    + kernel(
        "too_much_memory",
        f"{A}, {TID}",
        "THREADGROUP_ARRAY(T, most, 8160);\nTHREADGROUP_ARRAY(T, rest, 33);\n"
        "most[tid] = A[tid];\nrest[tid] = most[tid];\nA[tid] = rest[tid];",
    )
    + kernel("copy", f"{A}, {SOURCE}, {GRID}", "A[id] = B[id];")
    + kernel(
        "sum_of_two",
        f"{A}, {SOURCE}, device const T* C [[buffer(2)]], {GRID}",
        "A[id] = B[id] + C[id];",
    )
    + kernel("times_one", f"{A}, constant float& one [[buffer(1)]], {GRID}", "A[id] = A[id] * one;")
    + "template <typename T>\nT deep(T x, int left) {\n"
    "volatile T here[64];\nhere[left % 64] = x;\n"
    "return left == 0 ? x : deep<T>(here[left % 64], left - 1) + here[left % 64];\n}\n"
    + kernel("recursion", f"{A}, {SHIFT}, {TID}", "if (tid == 3) A[tid] = deep<T>(A[tid], shift);")
    + kernel(
        "large_frame",
        f"{A}, {SHIFT}, {TID}",
        "volatile T large[200000];\nlarge[shift] = A[tid];\nA[tid] = large[shift];",
    )
    + kernel("barrier_alone", f"{A}, {GRID}", f"{BARRIER}\nA[id] = T(1);")
    + kernel("simd_alone", f"{A}, {GRID}", "A[id] = simd_sum(A[id]);")
    + kernel(
        "array_alone",
        f"{A}, {GRID}",
        "THREADGROUP_ARRAY(T, shared, 4);\nshared[0] = T(1);\nA[id] = shared[0];",
    )
    + kernel(
        "block_sums",
        f"{A}, {SOURCE}, {GRID}, {TID}, {GROUP}, {LANE}, {SIMD}",
        "THREADGROUP_ARRAY(T, sums, 8);\nTHREADGROUP_ARRAY(T, scan, 256);\n"
        "const T sum = simd_sum(B[id]);\n"
        "if (lane == 0) sums[simd] = sum;\n"
        "scan[tid] = B[id];\n"
        f"{BARRIER}\n"
        "for (uint step = 1; step < 256; step *= 2) {\n"
        "const T left = tid >= step ? scan[tid - step] : T(0);\n"
        f"{BARRIER}\nscan[tid] = scan[tid] + left;\n{BARRIER}\n}}\n"
        "T total = T(0);\nfor (uint i = 0; i < 8; ++i) total = total + sums[i];\n"
        "const T swapped = simd_shuffle_xor(scan[tid], ushort(16));\n"
        "A[id] = (simd_any(lane == 5) ? total : T(0)) + swapped + T(group);",
    )
)


def fault(
    name: str, *arguments: Tensor | int, threads: tuple[int, ...], group: tuple[int, ...]
) -> str:
    """What the checker says of a launch, behind the name of the kernel, which must come first."""
    with pytest.raises(CheckError) as caught:
        TINY(name, *arguments, threads=threads, group=group)
    start = f"mpslinalg: tiny.metal: {name}<float>: "
    assert str(caught.value).startswith(start)
    return str(caught.value).removeprefix(start)


def direction(access: str) -> str:
    """How a report calls an access: only this platform tells a read from a write."""
    return access if (sys.platform, platform.machine()) == ("linux", "x86_64") else "access"


# Elements from the place that thread 2 of 5 should access: just out of range, and far.
BEFORE, AFTER = [-3, -100, -1_000_000], [3, 100, 1_000_000]
OUTSIDE = pytest.mark.parametrize("shift", [*BEFORE, *AFTER])


@OUTSIDE
def test_write_out_of_range_of_a_buffer(shift: int) -> None:
    report = fault("write", numbers(5), shift, threads=(5,), group=(5,))
    where = f"at byte {4 * (2 + shift)} by thread (2, 0, 0) of the grid"
    assert report == f"{direction('write')} out of range of buffer 'A' (20 bytes) {where}"


@OUTSIDE
def test_read_out_of_range_of_a_buffer(shift: int) -> None:
    report = fault("read", numbers(5), numbers(5), shift, threads=(5,), group=(5,))
    where = f"at byte {4 * (2 + shift)} by thread (2, 0, 0) of the grid"
    assert report == f"{direction('read')} out of range of buffer 'B' (20 bytes) {where}"


@pytest.mark.parametrize("shift", [-18, 7])
def test_the_thread_of_a_grid_in_space(shift: int) -> None:
    report = fault("write_in_a_box", numbers(2, 3, 4), shift, threads=(4, 3, 2), group=(4, 1, 1))
    assert report.endswith(f"at byte {4 * (17 + shift)} by thread (1, 1, 1) of the grid")


@pytest.mark.parametrize("shift", [-71, 58])
def test_the_thread_of_a_group(shift: int) -> None:
    report = fault("write_in_a_group", numbers(128), shift, threads=(128,), group=(64,))
    where = f"at byte {4 * (70 + shift)} by thread 6 of group (1, 0, 0)"
    assert report == f"{direction('write')} out of range of buffer 'A' (512 bytes) {where}"


def test_the_range_of_a_view() -> None:
    """A view's range is its own, not that of the memory that it lies in."""
    whole = numbers(7)
    assert "buffer 'A' (20 bytes)" in fault("write", whole[1:6], 3, threads=(5,), group=(5,))
    assert torch.equal(whole, numbers(7))


def test_write_to_a_constant_buffer() -> None:
    B = numbers(5)
    report = fault("write_to_const", -numbers(5), B, threads=(5,), group=(5,))
    where = "at byte 0 by thread (0, 0, 0) of the grid"
    assert report == f"{direction('write')} to the read-only buffer 'B' (20 bytes) {where}"
    assert torch.equal(B, numbers(5))


@pytest.mark.parametrize("shift", [-6, -1000, 28, 1000])
@pytest.mark.parametrize("access", ["write", "read"])
def test_out_of_range_of_a_threadgroup_array(access: str, shift: int) -> None:
    report = fault(f"{access}_array", numbers(64), shift, threads=(64,), group=(32,))
    where = f"at byte {4 * (5 + shift)} by thread 5 of group (1, 0, 0)"
    target = "threadgroup array 'shared' (132 bytes)"
    assert report == f"{direction(access)} out of range of {target} {where}"


@pytest.mark.parametrize("name", ["write", "write_array", "read_array"])
def test_access_in_range(name: str) -> None:
    TINY(name, numbers(32), 0, threads=(32,), group=(32,))


def test_race_in_a_group() -> None:
    report = fault("reverse_without_barrier", numbers(64), threads=(64,), group=(64,))
    assert report.startswith("race: buffer 'A' differs at byte ")
    assert report.endswith(" between forward and reverse order")


def test_no_race_with_a_barrier() -> None:
    x = numbers(64)
    TINY("reverse", x, threads=(64,), group=(64,))
    assert torch.equal(x, numbers(64).flip(0))


@pytest.mark.parametrize(
    ("name", "threads", "words"),
    [
        ("write_twice", 64, "writes what thread .* wrote otherwise"),
        (
            "read_before_it_is_zero_again",
            64,
            "reads what thread 0 wrote|writes what thread .* read",
        ),
        ("lanes_meet", 32, "reads what thread .* wrote"),
    ],
)
def test_race_that_does_no_harm(
    name: str, threads: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = {"threads": (threads,), "group": (threads,)}
    if name != "lanes_meet":
        TINY(name, numbers(threads), 0, **launch)
    monkeypatch.setenv("MPSLINALG_CHECK", "races")
    report = fault(name, numbers(threads), 0, **launch)
    assert report.startswith("race in threadgroup array 'shared' at byte ")
    assert re.search(words, report)
    # With a barrier in its place, and all threads writing the same.
    TINY(name, numbers(threads), 1, **launch)


@pytest.mark.parametrize("rows", [1, 3])
def test_race_between_threads_of_a_grid(rows: int) -> None:
    report = fault("running_sum", numbers(rows, 4), threads=(4, rows, 1), group=(4, 1, 1))
    assert report.startswith("race: buffer 'A' differs at byte ")


def test_race_between_groups() -> None:
    report = fault("sum_of_groups", torch.zeros(3), numbers(3), threads=(96,), group=(32,))
    assert report.startswith("race: buffer 'A' differs at byte ")


def test_unwritten_output_shows() -> None:
    x, info = (_engines.empty((8,), numbers(8), dtype) for dtype in (None, torch.int32))
    assert (info == _engines.UNWRITTEN).all()
    TINY("half", x, numbers(8), threads=(8,), group=(8,))
    assert torch.equal(x[::2], numbers(8)[::2])
    assert x[1::2].isnan().all()
    assert _engines.empty((2, 2), torch.zeros(1, dtype=torch.complex64)).isnan().all()


def test_unwritten_threadgroup_memory_shows() -> None:
    x = numbers(128)
    TINY("half_of_an_array", x[:64], threads=(64,), group=(64,))
    assert torch.equal(x[:32], numbers(32))
    assert x[32:64].isnan().all()


@pytest.mark.parametrize(
    ("name", "words"), [("early_return", "// after the return"), ("branch", "// in the branch")]
)
def test_barrier_that_not_all_threads_reach(name: str, words: str) -> None:
    report = fault(name, numbers(64), threads=(64,), group=(64,))
    assert report == (
        f"not all threads reached threadgroup_barrier ({TINY.place(words)}): "
        "thread 0 waits there, thread 40 has finished"
    )


def test_two_barriers_at_once() -> None:
    report = fault("two_barriers", numbers(64), threads=(64,), group=(64,))
    one, other = TINY.place("// one"), TINY.place("// other")
    assert report == (
        f"thread 32 reached threadgroup_barrier ({other}) while others of its group wait in "
        f"threadgroup_barrier ({one})"
    )


def test_simd_function_that_not_all_lanes_reach() -> None:
    report = fault("lane_leaves", numbers(64), threads=(64,), group=(64,))
    assert report.startswith("not all threads reached simd_max (tiny.metal:")
    assert report.endswith("thread 0 waits there, thread 7 has finished")


def test_two_simd_functions_at_once() -> None:
    report = fault("two_simd_functions", numbers(64), threads=(64,), group=(64,))
    assert report == (
        f"thread 7 reached simd_min ({TINY.place('value = simd_min')}) while others of its group "
        f"wait in simd_max ({TINY.place('value = simd_max')})"
    )


def test_a_barrier_against_a_simd_function() -> None:
    report = fault("barrier_against_simd", numbers(32), threads=(32,), group=(32,))
    assert report == (
        f"not all threads reached simd_sum ({TINY.place('value = simd_sum')}): "
        "thread 0 waits there, thread 7 waits in threadgroup_barrier"
    )


def test_group_size() -> None:
    TINY("fill", numbers(2048), threads=(2048,), group=(1024,))
    report = fault("fill", numbers(2048), threads=(2048,), group=(2048,))
    assert report == "a group of 2048 threads, and Metal has 1024"


def test_threadgroup_memory() -> None:
    TINY("full_memory", numbers(32), threads=(32,), group=(32,))
    report = fault("too_much_memory", numbers(32), threads=(32,), group=(32,))
    assert report == "threadgroup memory: 32784 bytes, and Metal has 32768 (at array 'rest')"


@pytest.mark.parametrize("count", [31, 32])
def test_number_of_buffers(count: int) -> None:
    inputs = "".join(f"device const T* B{i} [[buffer({i})]], " for i in range(1, count))
    text = Tiny(kernel("many", f"{A}, {inputs}{GRID}", f"A[id] = B{count - 1}[id];"))
    arguments = [torch.zeros(5), *(numbers(5) * i for i in range(1, count))]
    if count <= 31:
        text("many", *arguments, threads=(5,), group=(5,))
        assert torch.equal(arguments[0], arguments[-1])
    else:
        with pytest.raises(CheckError, match="many<float>: 32 buffers, and Metal has 31"):
            text("many", *arguments, threads=(5,), group=(5,))


def test_overlapping_buffers() -> None:
    x = numbers(9)
    report = fault("copy", x[:5], x[4:], threads=(5,), group=(5,))
    assert report == "buffers 'A' and 'B' of one launch overlap"
    # Two that are only read may share memory.
    TINY("sum_of_two", x[:4], x[4:8], x[5:9], threads=(4,), group=(4,))
    assert x[:4].tolist() == [11, 13, 15, 17]


def test_denormals_are_flushed(plain: Callable[[], None]) -> None:
    x = torch.full((4,), 1e-40)
    TINY("times_one", x, 1, threads=(4,), group=(4,))
    assert (x == 0).all()
    # For the launch only.
    assert torch.full((), 1e-40) * torch.ones(()) != 0
    plain()
    x = torch.full((4,), 1e-40)
    TINY("times_one", x, 1, threads=(4,), group=(4,))
    assert (x != 0).all()


def test_stack_overflow() -> None:
    TINY("recursion", numbers(32), 10, threads=(32,), group=(32,))
    report = fault("recursion", numbers(32), 10_000, threads=(32,), group=(32,))
    assert report == "the stack of thread 3 of group (0, 0, 0) overflowed"


def test_stack_overflow_by_one_large_frame() -> None:
    """Whose far end lies beyond the guard page, in the stack of another thread."""
    report = fault("large_frame", numbers(32), 0, threads=(32,), group=(32,))
    assert report.endswith("of group (0, 0, 0) overflowed")


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("barrier_alone", "threadgroup_barrier"),
        ("simd_alone", "simd_sum"),
        ("array_alone", "THREADGROUP_ARRAY"),
    ],
)
def test_kernel_without_a_group(
    name: str, what: str, check: bool, plain: Callable[[], None]
) -> None:
    if not check:
        plain()
    report = fault(name, numbers(32), threads=(32,), group=(32,))
    assert report == f"{what} in a kernel that asks for no index of its threadgroup"


@pytest.mark.parametrize("groups", [1, 5])
def test_a_sound_kernel(groups: int, plain: Callable[[], None]) -> None:
    x = numbers(groups, 256)
    results = torch.zeros(2, groups, 256)
    TINY("block_sums", results[0], x, threads=(256 * groups,), group=(256,))
    plain()
    TINY("block_sums", results[1], x, threads=(256 * groups,), group=(256,))
    scan = np.cumsum(x.numpy(), axis=-1).reshape(groups, -1, 2, 16)[:, :, ::-1].reshape(groups, 256)
    expected = x.numpy().sum(-1, keepdims=True) + scan + np.arange(groups)[:, None]
    # Sums of integers below 2^24: exact in any order.
    np.testing.assert_array_equal(results[0], expected)
    np.testing.assert_array_equal(results[1], expected)


class Stack(ctypes.Structure):
    """stack_t, whose members come in another order on macOS."""

    _rest = (("flags", ctypes.c_int), ("size", ctypes.c_size_t))
    _fields_ = (("sp", ctypes.c_void_p), *(_rest[::-1] if sys.platform == "darwin" else _rest))


@pytest.fixture
def handlers() -> Iterator[Callable[[], list[object]]]:
    """Faults are ignored, and answered on a stack of the test: what of that still holds."""
    libc = ctypes.CDLL(None)
    numbers = [int(signal.SIGSEGV), int(signal.SIGBUS)]
    before = {number: ctypes.create_string_buffer(256) for number in numbers}
    for number, action in before.items():
        assert libc.sigaction(number, None, action) == 0
        libc.signal(number, ctypes.c_void_p(1))  # SIG_IGN
    memory = ctypes.create_string_buffer(1 << 16)
    stack, stack_before = Stack(ctypes.addressof(memory)), Stack()
    stack.size = len(memory)
    assert libc.sigaltstack(ctypes.byref(stack), ctypes.byref(stack_before)) == 0

    def state() -> list[object]:
        found: list[object] = []
        for number in numbers:
            action = ctypes.create_string_buffer(256)
            libc.sigaction(number, None, action)
            found.append(ctypes.c_void_p.from_buffer(action).value)
        now = Stack()
        libc.sigaltstack(None, ctypes.byref(now))
        return [*found, now.sp == ctypes.addressof(memory)]

    yield state
    libc.sigaltstack(ctypes.byref(stack_before), None)
    for number, action in before.items():
        libc.sigaction(number, action, None)


@pytest.mark.parametrize(
    ("name", "shift"), [("write", 62), ("write_array", 28), ("recursion", 10_000)]
)
def test_a_fault_leaves_the_process_sound(
    name: str, shift: int, handlers: Callable[[], list[object]]
) -> None:
    x = numbers(64)
    fault(name, x, shift, threads=(64,), group=(32,))
    assert torch.equal(x, numbers(64))
    assert handlers() == [1, 1, True]
    TINY("reverse", x, threads=(64,), group=(64,))
    assert torch.equal(x, numbers(64).flip(0))
    assert torch.full((), 1e-40) * torch.ones(()) != 0
