"""What every family's suite shares: the cases of `python -m mpslinalg bench`, ready to be timed."""

import math
import os
from collections.abc import Callable

import torch

import mpslinalg as LA
from mpslinalg._bench import CPU, CPU_WORK, DTYPES, FAMILIES, Case
from mpslinalg._doctor import default_device

DEVICE = torch.device(os.environ.get("MPSLINALG_BENCH_DEVICE") or default_device())
PROVIDERS = {
    "kernels": (LA, DEVICE),
    "torch": (torch.linalg, DEVICE),
    "torch cpu": (torch.linalg, CPU),
}


def prepare(case: Case, provider: str) -> Callable[[], None]:
    """The body to time; NotImplementedError, which asv skips, unless its result is right."""
    library, device = PROVIDERS[provider]
    if provider == "torch cpu" and (DEVICE == CPU or case.work > CPU_WORK):
        raise NotImplementedError("the same as torch, or not worth waiting for")
    inputs = tuple(tensor.to(device) for tensor in case.inputs(DEVICE))

    def body() -> None:
        with LA.use("kernels"):
            case.operation.call(library, *inputs)
        if device != CPU:
            getattr(torch, device.type).synchronize()

    try:
        with LA.use("kernels"):
            case.judge(inputs, case.call(library, inputs))
    except (RuntimeError, ArithmeticError) as error:
        raise NotImplementedError(str(error)) from error
    return body


def suite(family: str) -> type:
    """What a family's class inherits; made here, so that asv does not take it for a suite."""
    dtypes = [DTYPES[name] for name in FAMILIES[family].dtypes]
    cases = {str(case): case for case in FAMILIES[family].cases(dtypes, quick=DEVICE == CPU)}

    class Suite:
        params = (list(cases), list(PROVIDERS))
        param_names = ("case", "provider")
        timeout = 300  # includes the compilation of kernels

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
