"""What every family's suite shares: the cases of `python -m mpslinalg bench`, ready to be timed.

MPSLINALG_BENCH_CASES=all takes every case and torch on the CPU too; `few`, the default, what
`few()` says. MPSLINALG_BENCH_DEVICE names the device.
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import torch

import mpslinalg as LA
from mpslinalg._bench import CPU, CPU_WORK, DTYPES, FAMILIES, Case
from mpslinalg._doctor import default_device

# asv's fork server imports this file before it forks, and CUDA survives no fork.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
DEVICE = torch.device(os.environ.get("MPSLINALG_BENCH_DEVICE") or default_device())
ALL = {"few": False, "all": True}[os.environ.get("MPSLINALG_BENCH_CASES", "few")]
PROVIDERS = {"kernels": (LA, DEVICE), "torch": (torch.linalg, DEVICE)}
if ALL and DEVICE != CPU:
    PROVIDERS["torch cpu"] = (torch.linalg, CPU)


def few(cases: Sequence[Case]) -> list[Case]:
    """A small batch, a middle one, of complex matrices if any, and one matrix.

    Where there are no batches, or batches alone: the smallest, a middle one and the largest.
    """
    shapes: dict[tuple[int, int], dict[torch.dtype, Case]] = {}
    for case in cases:
        shapes.setdefault((case.batch, case.n), {}).setdefault(case.dtype, case)
    batched = [of_shape for (batch, _), of_shape in shapes.items() if batch > 1]
    single = [of_shape for (batch, _), of_shape in shapes.items() if batch == 1]
    rows = [*batched, *single[:1]] if batched else single
    first, middle, last = rows[0], rows[len(rows) // 2], rows[-1]
    chosen = (
        first[torch.float32],
        middle.get(torch.complex64, middle[torch.float32]),
        last[torch.float32],
    )
    return [*dict.fromkeys(chosen)]


def cases_of(family: str) -> list[Case]:
    dtypes = [DTYPES[name] for name in FAMILIES[family].dtypes]
    cases = FAMILIES[family].cases(dtypes, quick=DEVICE == CPU)
    return cases if ALL else few(cases)


@lru_cache(1)  # asv sets up again before each timing
def prepare(case: Case, provider: str) -> Callable[[], None]:
    """The body to time; NotImplementedError, which asv skips, unless its result is right.

    A loop of torch's over the matrices of a batch takes seconds: there two of them are judged.
    """
    library, device = PROVIDERS[provider]
    if provider == "torch cpu" and case.work > CPU_WORK:
        raise NotImplementedError("not worth waiting for")
    inputs = tuple(tensor.to(device) for tensor in case.inputs(DEVICE))

    def body() -> None:
        with LA.use("kernels"):
            case.operation.call(library, *inputs)
        if device != CPU:
            getattr(torch, device.type).synchronize()

    judged, of_judged = case, inputs
    if library is not LA and case.batch > 2:
        judged, of_judged = replace(case, batch=2), tuple(tensor[:2] for tensor in inputs)
    try:
        with LA.use("kernels"):
            result = judged.call(library, of_judged)
            judged.judge(of_judged, result, torchs=library is not LA)
    except (RuntimeError, ArithmeticError) as error:
        raise NotImplementedError(str(error)) from error
    return body


def suite(family: str) -> type:
    """What a family's class inherits; made here, so that asv does not take it for a suite."""
    cases = {str(case): case for case in cases_of(family)}

    class Suite:
        params = (list(cases), list(PROVIDERS))
        param_names = ("case", "provider")
        timeout = 300  # includes the compilation of kernels
        # What is done once was done for the judge; the median of many timings passes over the rest.
        rounds, warmup_time = 1, 0
        repeat, min_run_count = (1, 100, 0.2), 1

        def setup(self, case: str, provider: str) -> None:
            self.body = prepare(cases[case], provider)

        def time_call(self, case: str, provider: str) -> None:
            self.body()

    if DEVICE.type == "cuda":
        Suite.track_peak_memory = _track_peak_memory
    else:
        Suite.peakmem_call = Suite.time_call  # of the process, which asv reads
    return Suite


def _track_peak_memory(suite: object, case: str, provider: str) -> float:
    """Bytes of the device that a call takes beside its inputs, results included."""
    if provider == "torch cpu":
        return math.nan  # which asv leaves out
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    suite.body()
    return torch.cuda.max_memory_allocated() - before


_track_peak_memory.unit = "bytes"
