"""What runs: the kernels, or torch.linalg."""

import inspect
import math
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from mpslinalg._check import DTYPES
from mpslinalg._engines import ENGINES
from mpslinalg._engines.cpu import compiler_found
from mpslinalg._names import other_names

# Smallest batch for which the fused inverse beats torch.linalg.inv on the CPU, and its largest n:
# 0.26 against 0.31 ms for 1024 of 4 x 4, 0.20 against 0.12 for 256 (two cores of an AMD EPYC).
INV_CPU_BATCH = 1024
INV_CPU_N = 4
# On an H200 (docs/data/h200.json, 2026-12-01) the kernels beat torch in every batch measured, of
# which the smallest was this. Of single matrices they win some and lose some, and small ones were
# not measured.
CUDA_BATCH = 64
# A single matrix of so many rows and so few columns wins too: QR of 65536 x 8 by a factor of 5.
CUDA_TALL = 65536
CUDA_TALL_COLUMNS = 8
CUDA_TALL_WINS = frozenset(("qr", "lstsq"))
# Of what sizes a single matrix wins, in float32 and complex64: svd, svdvals, matrix_exp and
# eigvalsh by 1.2 to 9, eigh by 1.1 to 1.6, LU by 1.04 to 1.4; LDL by 7 to 79 from 1024 rows on, and
# at 256 because torch takes longer for each matrix of a batch than the kernels for all 64.
CUDA_SINGLE_WINS = {
    **dict.fromkeys(("svd", "svdvals", "matrix_exp", "eigvalsh"), (256, math.inf)),
    **dict.fromkeys(("ldl_factor", "ldl_factor_ex", "ldl_solve"), (256, math.inf)),
    "eigh": (1024, math.inf),
    **dict.fromkeys(("lu_factor", "lu_factor_ex", "det", "inv", "inv_ex"), (1024, 2048)),
    **dict.fromkeys(("solve", "solve_ex"), (1024, 2048)),
}
CUDA_NOT_MEASURED = frozenset(("matrix_norm", "svd_lowrank"))
# Batches of eig were measured up to so many rows; one matrix of 1024 loses, 0.25 s beside 0.17.
CUDA_EIG_ROWS = 512
# Torch has no such functions, only compositions of some ten launches.
CUDA_ALWAYS = frozenset(("solve_tril", "chunk_gated_delta_rule", "recurrent_gated_delta_rule"))
# What is a decomposition and a few products is as fast as its decomposition.
BUILT_ON = {
    "pinv": "svd",
    "pinv hermitian": "eigh",
    "matrix_rank": "svdvals",
    "matrix_rank hermitian": "eigvalsh",
    "matrix_norm spectral": "svdvals",
    "cond": "svdvals",
    "cond inverse": "inv_ex",
    "polar": "svd",
    "matrix_sqrth": "eigh",
    "gelsd": "svd",
    "gelss": "svd",
}
# Functions of torch 2.15.
_YOUNG = frozenset(n for n in ("polar", "matrix_sqrth") if not hasattr(torch.linalg, n))
# Torch has nothing like these: on the CPU, and on CUDA, where its lstsq knows gels alone.
CPU_LACKS = frozenset(("qr_pivoted", *_YOUNG))
CUDA_LACKS = frozenset(("qr_pivoted", "gelsy", "gelsd", "gelss", *_YOUNG))


class _Mode(threading.local):
    # Set on the instance: torch.compile guards instance attributes, so that a switch recompiles.
    def __init__(self) -> None:
        self.name = "auto"


mode = _Mode()


class _Blocks:
    """Blocks of `use` open in any thread; while there are none, no thread is asked for its mode."""

    # On the instance too, from the start: torch.compile guards where an attribute lies.
    def __init__(self) -> None:
        self.count = 0


_blocks = _Blocks()


class use:
    """Choose in this thread what the functions of mpslinalg run on; blocks nest.

    `"auto"`, the default: kernels on an Apple GPU; elsewhere kernels where they were measured
    faster than torch.linalg. `"kernels"`: kernels on every device. `"torch"`: torch.linalg.

    Raises:
        ValueError: unknown mode.

    Example:
        >>> with mpslinalg.use("kernels"):
        ...     X = mpslinalg.inv(A)
    """

    def __init__(self, mode: str) -> None:
        if mode not in ("auto", "kernels", "torch"):
            raise ValueError(f"mpslinalg.use: expected 'auto', 'kernels' or 'torch', got {mode!r}")
        self._inner = mode
        self._outer: list[str] = []

    def __enter__(self) -> None:
        self._outer.append(mode.name)
        mode.name = self._inner
        _blocks.count += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        mode.name = self._outer.pop()
        _blocks.count -= 1


def goes_to_torch(first: Any) -> bool:
    """Whether a call with this first argument most likely goes to torch: at once, on the CPU."""
    return _blocks.count == 0 and getattr(first, "is_cpu", True)


def kernels(name: str, A: Tensor, pivot: bool = True) -> bool:
    """Whether `name` runs on kernels now. What is no tensor goes to torch, for torch's error."""
    if _blocks.count != 0 and mode.name != "auto":
        return mode.name == "kernels" and isinstance(A, Tensor)
    # The CPU comes first and pays for nothing else: this is all that auto adds to torch.linalg.
    if getattr(A, "is_cpu", True):
        # torch has no LU without pivoting on the CPU.
        return (
            not pivot
            or (name == "inv" and isinstance(A, Tensor) and _many_tiny(A))
            or (name in CPU_LACKS and isinstance(A, Tensor))
        )
    shape = A.shape
    if len(shape) < 2:
        return False
    return kernels_win(name, A.device.type, shape[:-2].numel(), shape[-2], shape[-1])


def kernels_for_any_shape(A: Any) -> bool:
    """`kernels` of functions of tensors that need be no matrices: in auto, on Apple GPUs alone."""
    if _blocks.count != 0 and mode.name != "auto":
        return mode.name == "kernels" and isinstance(A, Tensor)
    return bool(getattr(A, "is_mps", False))


def kernels_within(name: str, A: Tensor) -> bool:
    """Whether kernels run the decomposition inside of a function that torch may lack.

    On a GPU they always do: from cuSOLVER's SVD, `polar` of 50 x 45 had five times LAPACK's error.
    """
    return not A.is_cpu or kernels(BUILT_ON[name], A)


def _many_tiny(A: Tensor) -> bool:
    if A.dim() < 3 or A.shape[-1] > INV_CPU_N:
        return False
    return A.shape[:-2].numel() >= INV_CPU_BATCH and compiler_found()


def torchs(name: str) -> Callable[..., Any]:
    """The function of torch.linalg, which an older torch may lack."""
    function: Callable[..., Any] | None = getattr(torch.linalg, name, None)
    if function is None:
        raise RuntimeError(
            f"mpslinalg.{name}: torch {torch.__version__} has no torch.linalg.{name}; "
            "mpslinalg.use('auto') and use('kernels') have it"
        )
    return function


def kernels_win(name: str, device: str, batch: int, m: int, n: int) -> bool:
    """Whether kernels are what `auto` runs for a batch of m x n matrices."""
    if device == "mps" or (device == "cuda" and name in CUDA_ALWAYS | CUDA_LACKS):
        return True
    name = BUILT_ON.get(name, name)
    if device != "cuda" or name in CUDA_NOT_MEASURED:
        return False
    if name in ("eig", "eigvals") and n > CUDA_EIG_ROWS:
        return False
    tall = name in CUDA_TALL_WINS and m >= CUDA_TALL and n <= CUDA_TALL_COLUMNS
    least, most = CUDA_SINGLE_WINS.get(name, (math.inf, 0))
    single = least <= min(m, n) and max(m, n) <= most
    return batch >= CUDA_BATCH or tall or single


def which(name: str, *args: Any, **kwargs: Any) -> str:
    """Say in one line what a call of a function of mpslinalg with these arguments would run.

    Functions of `mpslinalg.gated_delta` are named with their module: `"gated_delta.solve_tril"`.

    Raises:
        ValueError: mpslinalg has no function of that name.

    Example:
        >>> mpslinalg.which("solve", torch.eye(3), torch.ones(3))
        'solve: torch.linalg on cpu: measured faster here'
    """
    function: Any = sys.modules["mpslinalg"]
    for part in name.split("."):
        function = getattr(function, part, None)
    # A module of functions that run on kernels names the kernel of a size by `regime`.
    module = sys.modules.get(getattr(function, "__module__", ""))
    regime: Any = getattr(module, "regime", None)
    # A module of functions of tensors of any shape says by `what_runs` what does.
    what_runs: Any = getattr(module, "what_runs", None)
    # A module of functions that take no matrices says itself what they run.
    describe: Any = getattr(module, "describe", None)
    if regime is None and what_runs is None and describe is None:
        raise ValueError(f"mpslinalg.which: mpslinalg has no function {name!r}")
    names = other_names(inspect.unwrap(function))
    kwargs = {names.get(key, key): value for key, value in kwargs.items()}
    given = inspect.signature(function).bind(*args, **kwargs)
    given.apply_defaults()
    if describe is not None:
        return f"{name}: {describe(function.__name__, given.arguments)}"
    first = next(iter(given.arguments.values()))
    if what_runs is not None:
        return f"{name}: {_any_shape(first, what_runs(function.__name__, given.arguments))}"
    A, B = given.arguments.get("L", first), given.arguments.get("B")
    dtypes = getattr(module, "DTYPES", DTYPES)
    if not isinstance(A, Tensor) or A.dim() < 2 or A.dtype not in dtypes:
        return f"{name}: raises torch's error: no matrix of {', '.join(sorted(map(str, dtypes)))}"
    device = A.device.type
    operation = function.__name__
    # A module whose functions do one of several things says what routes know it by.
    operation_of = getattr(module, "operation", None)
    if operation_of is not None:
        operation = operation_of(operation, given.arguments)
    if operation is None:
        driver = given.arguments["driver"]
        return f"{name}: torch.linalg on {device}: the kernels have no driver {driver!r}"
    built_on = BUILT_ON.get(operation)
    if built_on is not None:
        module = sys.modules[getattr(sys.modules["mpslinalg"], built_on).__module__]
    if not kernels(operation, A, given.arguments.get("pivot", True)):
        if mode.name == "torch" and operation in CPU_LACKS:
            return f"{name}: raises an error: torch.linalg has no such function"
        if mode.name == "torch":
            return f"{name}: torch.linalg on {device}: use('torch')"
        reason = "measured faster here" if device in ENGINES else "no engine for this device"
        return f"{name}: torch.linalg on {device}: {reason}"
    if built_on is not None and not kernels_within(operation, A):
        return (
            f"{name}: torch.linalg.{built_on} on {device}, and products: torch has no {operation}"
        )
    *batch, m, n = A.shape
    columns = -1 if given.arguments.get("left", True) else -2
    k = 1 if B is None or B.dim() < A.dim() else B.shape[columns]
    size = " x ".join(map(str, (*batch, m, n)))
    dtype = str(A.dtype).removeprefix("torch.")
    if given.arguments.get("mode") == "complete" and m > n:
        operation += " complete"
    kernel = regime(operation, A.dtype, math.prod(batch), m, n, k)
    engine = ENGINES[device].name + " engine" if device in ENGINES else f"no engine for {device}"
    return f"{name}: kernels ({engine}): {size} {dtype}, {kernel}"


def _any_shape(A: Any, what_runs: str) -> str:
    if not isinstance(A, Tensor):
        return "raises torch's error: no tensor"
    device = A.device.type
    if not kernels_for_any_shape(A):
        reason = "use('torch')" if mode.name == "torch" else "its own kernels do"
        return f"torch on {device}: {reason}"
    engine = ENGINES[device].name + " engine" if device in ENGINES else f"no engine for {device}"
    return f"kernels ({engine}): {what_runs}"
