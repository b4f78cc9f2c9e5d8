"""torch's own test samples for torch.linalg itself, with our kernels under its operations."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mpslinalg as LA
from mpslinalg import _aten_elementwise as aten
from mpslinalg._elementwise_plan import COMPARISONS
from tests import opinfo
from tests.inputs import DOUBLES, SINGLES, name
from tests.opinfo import OPS, check_gradients, ident

pytestmark = [
    pytest.mark.usefixtures("kernels"),
    pytest.mark.filterwarnings("ignore:Casting complex values to real discards"),
]
# Entries that call none of our operations, and why.
VIEWS = ("linalg.diagonal", "linalg.vander")
PRODUCTS = ("linalg.cross", "linalg.multi_dot", "linalg.vecdot", "matmul")
NOT_ENABLED = {
    **dict.fromkeys(VIEWS, "torch makes it of views and cumulative products"),
    **dict.fromkeys(PRODUCTS, "a product, of which torch has its own kernel on every device"),
    "linalg.vector_norm": "a reduction, of which torch has its own kernel on every device",
    **dict.fromkeys(
        COMPARISONS, "ours are of unsigned integers, of which the database has no samples"
    ),
}
# Operations that no sample calls: test_enable.py does.
WITHOUT_SAMPLES = {
    *COMPARISONS,
    *(f"{name}_" for name in (*COMPARISONS, "heaviside")),  # in place
    "linalg_eigvals",  # to out= only
    *("cholesky", "triangular_solve"),  # of older functions
}
# Entries of which some samples only call an operation of ours: by ord, and by negative powers.
SOMETIMES = (
    *("linalg.matrix_norm", "linalg.norm", "linalg.norm-subgradients_at_zero"),
    "linalg.matrix_power",
)


def _noted(name: str, seen: set[str]) -> Callable[..., Any]:
    def run(*_: Any, **__: Any) -> Any:
        seen.add(name)
        return NotImplemented

    return run


def _operations() -> dict[str, set[str]]:
    """The operations of ours that the samples of every entry call, with torch to answer them."""
    names: dict[str, set[str]] = {}
    with pytest.MonkeyPatch.context() as patch:
        seen: set[str] = set()
        for key, operation in aten.OPERATIONS.items():
            patch.setitem(aten.OPERATIONS, key, operation._replace(run=_noted(key, seen)))
        with LA.use("kernels"), LA.enable("cpu"):
            for op in OPS:
                dtype = torch.float32 if torch.float32 in op.dtypes else torch.int64
                for sample in opinfo.plain(op, dtype):
                    opinfo.call(op.op, sample)
                names[ident(op)] = set(seen)
                seen.clear()
    return names


def known(sample: Any, device: str) -> bool:
    """Whether torch has the driver of least squares there."""
    return device == "cpu" or sample.kwargs.get("driver", "gels") == "gels"


def _missing(op: Any) -> bool:
    """Whether an entry of single elements has no operation of ours; put is made of put_."""
    names = {f"{op.name.replace('.', '_')}{end}" for end in ("", "_")}
    return op.name in opinfo.ELEMENTS and not names & set(aten.OPERATIONS)


COVERED = [op for op in OPS if ident(op) not in NOT_ENABLED and not _missing(op)]


def test_every_entry_and_operation_is_covered_or_an_exception() -> None:
    operations = _operations()
    assert {entry for entry, names in operations.items() if names} == set(map(ident, COVERED))
    assert set(NOT_ENABLED) <= set(operations)
    assert set(aten.OPERATIONS) - set().union(*operations.values()) <= WITHOUT_SAMPLES


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        pytest.param(op, d, id=f"{ident(op)}-{name(d)}")
        for op in COVERED
        for d in opinfo.dtypes(op)
        if d in SINGLES or (op.name in opinfo.ELEMENTS and d not in DOUBLES)
    ],
)
def test_samples(op: Any, dtype: torch.dtype, device: str, launches: dict[str, int]) -> None:
    pairs = [p for p in opinfo.pairs(op, dtype, device, 1, 2) if known(p.cpu, device)]
    expected = [opinfo.call(op.op, pair.cpu) for pair in pairs]
    got = []
    always = ident(op) not in SOMETIMES and op.name not in opinfo.ELEMENTS
    with LA.enable(device):
        for pair in pairs:
            before = sum(launches.values())
            got.append(opinfo.call(op.op, pair.ours))
            if always and all(x.numel() for x in opinfo.tensors(pair.cpu)):
                assert sum(launches.values()) > before
    assert op.name in opinfo.ELEMENTS or sum(launches.values()) > 0
    for pair, ours, theirs in zip(pairs, got, expected, strict=True):
        # Torch's strides on a GPU are other ones.
        opinfo.check_results(op, pair.cpu, ours, theirs, device, strides=device == "cpu")


@pytest.mark.parametrize("dtype", DOUBLES, ids=name)
@pytest.mark.parametrize("op", [op for op in COVERED if op.supports_autograd], ids=ident)
def test_gradients(op: Any, dtype: torch.dtype, device: str) -> None:
    if device == "mps":
        pytest.skip("mps has no float64")
    if dtype not in op.supported_dtypes("cpu"):
        pytest.skip("torch has no such elements here")

    samples = [s for s in opinfo.plain(op, dtype, gradient=True) if known(s, device)]
    expected = [opinfo.torchs_gradients(op, sample) for sample in samples]
    with LA.enable(device):
        for sample, theirs in zip(samples, expected, strict=True):
            check_gradients(op, op.op, sample, theirs, device)
    assert any(theirs.values for theirs in expected)
