"""Compilation of all kernels of a bench at once, each process for some, into the cache on disk."""

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context

import torch

import mpslinalg as LA
from mpslinalg._bench.cases import DTYPES


def compile_kernels(
    families: Sequence[str], device: torch.device, dtypes: Sequence[str] | None, *, quick: bool
) -> None:
    """Run the kernels of each case once. What fails here will fail again where it is timed."""
    from mpslinalg._bench import FAMILIES  # which imports this module

    tasks = [
        (name, str(device), dtype, quick)
        for name in families
        for dtype in FAMILIES[name].taken(dtypes)
    ]
    workers = min(os.cpu_count() or 1, len(tasks))
    # CUDA survives no fork.
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool, suppress(BrokenProcessPool):
        list(pool.map(_compile, *zip(*tasks, strict=True)))


def _compile(name: str, device: str, dtype: str, quick: bool) -> None:
    from mpslinalg._bench import FAMILIES

    torch.set_num_threads(1)
    family = FAMILIES[name]
    with LA.use("kernels"):
        for case in (*family.cases([DTYPES[dtype]], quick=quick), family.streamed(quick=quick)):
            with suppress(Exception):
                case.call(LA, case.inputs(torch.device(device)))
