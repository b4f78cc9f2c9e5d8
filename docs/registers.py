"""Registers, spills and threadgroup memory of the kernels: docs/data/registers-sm_90.json.

python docs/registers.py docs/data/registers-sm_90.json

NVRTC and ptxas compile every variant that the cases of the benchmarks launch, of eig with 1024 rows
and of matrix_exp; no GPU is needed.
"""

import argparse
import io
import json
import re
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import cuda.core
import torch
from cuda.core import Program, ProgramOptions

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mpslinalg import _eig_large_plan, _eig_plan, _matrix_exp_plan
from mpslinalg._bench import DTYPES, FAMILIES
from mpslinalg._cost import Step, plan
from mpslinalg._cost.plan import launches
from mpslinalg._cost.recorded import families
from mpslinalg._engines import source
from mpslinalg._engines.cuda import translation_unit

ARCH = "sm_90"
# Larger single matrices launch the same variants.
LARGEST = 1024
_USED = re.compile(r"Used (\d+) registers")
_SPILLED = re.compile(r"(\d+) bytes spill stores")
_SHARED = re.compile(r"(\d+) bytes smem")


def variants() -> dict[tuple[str, ...], Step]:
    """The largest group of each variant that is launched."""
    found: dict[tuple[str, ...], Step] = {}
    for step in (*of_benchmarks(), *of_plans_that_read()):
        key = (step.shader, step.kernel, *step.template)
        if step.shader and (key not in found or step.group > found[key].group):
            found[key] = step
    return found


def of_benchmarks() -> Iterator[Step]:
    for family in (FAMILIES[name] for name in families()):
        dtypes: list[torch.dtype] = [DTYPES[name] for name in family.dtypes]
        for case in family.cases(dtypes, quick=False):
            if case.n > LARGEST and case.batch == 1:
                continue
            yield from plan(case).steps


def of_plans_that_read() -> Iterator[Step]:
    """What plans launch that read what the device computed, with an answer in place of it."""
    for dtype in (torch.float32, torch.complex64):
        answers = iter([[[LARGEST, 0, 0, 2]], [[0, 0, 0, 0]]])
        with mock.patch.object(_eig_large_plan, "progress", side_effect=answers):
            A = torch.empty(1, LARGEST, LARGEST, dtype=dtype, device="meta")
            yield from launches(partial(_eig_plan.eig, vectors=True), A)
        with mock.patch.object(_matrix_exp_plan, "most", return_value=1):
            for n in (*_matrix_exp_plan.OWNED, 2 * _matrix_exp_plan.FUSED):
                A = torch.empty(1, n, n, dtype=dtype, device="meta")
                yield from launches(_matrix_exp_plan.matrix_exp, A)


def compiled(step: Step) -> dict[str, Any]:
    signature = source.signature(step.shader, step.kernel)
    # As the CUDA engine bounds a group's threads.
    bound = 1 << max(step.group - 1, 31).bit_length()
    text = translation_unit(source.text(step.shader), signature, step.template, bound)
    options = ProgramOptions(
        std="c++17",
        arch=ARCH,
        device_as_default_execution_space=True,
        disable_warnings=True,
        ptxas_options=["-v"],
    )
    log = io.StringIO()
    Program(text, "c++", options).compile("cubin", logs=log)
    written = log.getvalue()

    def number(pattern: re.Pattern[str]) -> int:
        match = pattern.search(written)
        return int(match.group(1)) if match else 0

    return {
        "kernel": step.kernel,
        "template": list(step.template),
        "group": step.group,
        "registers": number(_USED),
        "spilled_bytes": number(_SPILLED),
        "threadgroup_bytes": number(_SHARED),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    options = parser.parse_args(arguments)
    found = []
    for _, step in sorted(variants().items(), key=lambda item: item[0]):
        found.append(compiled(step))
        print(json.dumps(found[-1]), flush=True)
    content = {"arch": ARCH, "compiler": f"NVRTC of cuda.core {cuda.core.__version__}"}
    rows = ",\n".join(f"  {json.dumps(row)}" for row in found)
    head = json.dumps(content)[:-1]
    options.file.write_text(f'{head}, "variants": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    main()
