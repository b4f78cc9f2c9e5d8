"""What every family's suite shares: the cases of `python -m mpslinalg bench`, ready to be timed."""

import os
from collections.abc import Callable

import torch

import mpslinalg as LA
from mpslinalg._bench import CPU, CPU_WORK, DTYPES, Case, Family
from mpslinalg._doctor import default_device

DEVICE = torch.device(os.environ.get("MPSLINALG_BENCH_DEVICE") or default_device())
PROVIDERS = {
    "kernels": (LA, DEVICE),
    "torch": (torch.linalg, DEVICE),
    "torch cpu": (torch.linalg, CPU),
}


def cases(family: Family) -> dict[str, Case]:
    dtypes = [DTYPES[name] for name in family.dtypes]
    return {str(case): case for case in family.cases(dtypes, quick=DEVICE == CPU)}


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
