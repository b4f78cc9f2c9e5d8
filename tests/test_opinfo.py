"""torch's own test samples for these functions, through the kernels, against torch's."""

from typing import Any

import pytest
import torch

import mpslinalg as LA
from tests import opinfo
from tests.inputs import DOUBLES, SINGLES, name
from tests.opinfo import OPS, check_gradients, function, ident, moved

pytestmark = [
    pytest.mark.usefixtures("kernels"),
    pytest.mark.filterwarnings("ignore:Casting complex values to real discards"),
]
TO_OUT = [op for op in OPS if op.supports_out and ident(op) not in opinfo.WITHOUT_OUT]
PRODUCTS = ("linalg.multi_dot", "matmul")
SIZES = ["empty", "right", "wrong"]


def test_every_entry_runs_or_is_an_exception() -> None:
    """Of the module of linear algebra all, of the rest those that these functions have."""
    assert len(opinfo.linalg.op_db) >= 40
    assert set(map(ident, opinfo.DATABASE)) == {*map(ident, OPS), *opinfo.EXCEPTIONS}
    assert {*opinfo.LINEAR, *opinfo.ELEMENTS} <= {op.name for op in OPS}
    assert all(callable(function(op)) for op in OPS)


@pytest.mark.parametrize(
    ("op", "dtype"),
    [pytest.param(op, d, id=f"{ident(op)}-{name(d)}") for op in OPS for d in opinfo.dtypes(op)],
)
def test_samples(op: Any, dtype: torch.dtype, device: str) -> None:
    if device == "mps" and dtype in DOUBLES:
        pytest.skip("mps has no float64")
    if op.name in PRODUCTS and dtype not in op.supported_dtypes(device):
        pytest.skip("products are torch's, which has none of these here")
    count = 0
    # Real samples take their turns in both precisions, and so do complex ones.
    for pair in opinfo.pairs(op, dtype, device, int(dtype in DOUBLES), 2):
        theirs = opinfo.call(op.op, pair.cpu)
        got = opinfo.call(function(op), pair.ours)
        opinfo.check_results(op, pair.cpu, got, theirs, device)
        count += 1
    assert count > 0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", TO_OUT, ids=ident)
def test_samples_to_out(op: Any, size: str, device: str) -> None:
    count = 0
    turn = SIZES.index(size)
    for dtype in (d for d in SINGLES if d in op.supported_dtypes("cpu")):
        for sample in opinfo.plain(op, dtype)[turn :: len(SIZES)]:
            for s in (sample, sample.noncontiguous()):
                pair = opinfo.Pair(s, moved(s, device))
                opinfo.check_out(op, function(op), pair, size, device)
                count += 1
    assert count > 0 or size != "empty"


@pytest.mark.parametrize("dtype", DOUBLES, ids=name)
@pytest.mark.parametrize("op", [op for op in OPS if op.supports_autograd], ids=ident)
def test_gradients(op: Any, dtype: torch.dtype, device: str) -> None:
    if device == "mps":
        pytest.skip("mps has no float64")
    if dtype not in op.supported_dtypes("cpu"):
        pytest.skip("torch has no such elements here")
    count = 0
    for sample in opinfo.plain(op, dtype, gradient=True):
        theirs = opinfo.torchs_gradients(op, sample)
        check_gradients(op, function(op), sample, theirs, device)
        count += len(theirs.values)
    assert count > 0


@pytest.mark.parametrize("op", [op for op in OPS if op.error_inputs_func is not None], ids=ident)
def test_error_inputs(op: Any) -> None:
    """On the CPU: the overlapping tensor of out= is an error that no copy elsewhere is."""
    count = 0
    for bad in op.error_inputs("cpu"):
        with pytest.raises(Exception) as theirs:  # noqa: PT011
            opinfo.call(op.op, bad.sample_input)
        with pytest.raises(Exception) as ours:  # noqa: PT011
            opinfo.call(function(op), bad.sample_input)
        assert (ours.type, str(ours.value)) == (theirs.type, str(theirs.value))
        count += 1
    assert count > 0


@pytest.mark.parametrize("dtype", [*SINGLES, torch.int64], ids=name)
def test_put_in_place(dtype: torch.dtype, device: str) -> None:
    (op,) = (op for op in OPS if op.name == "put")
    for sample in opinfo.plain(op, dtype):
        there = moved(sample, device)
        A = there.input.clone()
        assert LA.put_(A, *there.args, **there.kwargs) is A
        opinfo.check_results(op, sample, A, opinfo.call(op.op, sample), device)
