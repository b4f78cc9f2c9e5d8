"""Kernels beside torch.linalg, timed in one run, on the same inputs.

A family is one module here, named by its stem, whose `FAMILY` holds its operations and shapes.
`python -m mpslinalg bench` and asv share the cases.
"""

from importlib import import_module
from pkgutil import iter_modules

from mpslinalg._bench.cases import DEFAULT_DTYPES as DEFAULT_DTYPES
from mpslinalg._bench.cases import DTYPES as DTYPES
from mpslinalg._bench.cases import Bars as Bars
from mpslinalg._bench.cases import Case as Case
from mpslinalg._bench.cases import Family as Family
from mpslinalg._bench.cases import Operation as Operation
from mpslinalg._bench.cases import WrongResult as WrongResult
from mpslinalg._bench.compiling import compile_kernels as compile_kernels
from mpslinalg._bench.measuring import CPU as CPU
from mpslinalg._bench.measuring import CPU_TIMINGS as CPU_TIMINGS
from mpslinalg._bench.measuring import CPU_WORK as CPU_WORK
from mpslinalg._bench.measuring import Bar as Bar
from mpslinalg._bench.measuring import Cell as Cell
from mpslinalg._bench.measuring import Stream as Stream
from mpslinalg._bench.measuring import measure as measure
from mpslinalg._bench.measuring import measure_auto as measure_auto
from mpslinalg._bench.measuring import measure_stream as measure_stream

_modules = (import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__))
FAMILIES: dict[str, Family] = {
    module.__name__.rpartition(".")[2]: module.FAMILY
    for module in _modules
    if hasattr(module, "FAMILY")
}
