"""torch's own test samples for torch.linalg itself, with our kernels under its operations."""

import functools
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import mpslinalg as LA
from mpslinalg import _aten
from tests import opinfo
from tests.inputs import DOUBLES, SINGLES, name
from tests.opinfo import OPS, ident

pytestmark = pytest.mark.usefixtures("kernels")

# Entries that call no operation of ours, and why there is none.
COMPOSED = "torch makes it of elementwise operations, reductions or products, which are its own"
NOT_ENABLED = {
    **dict.fromkeys(
        (
            *("linalg.cross", "linalg.diagonal", "linalg.multi_dot", "linalg.vander", "matmul"),
            *("linalg.norm-subgradients_at_zero", "linalg.vecdot", "linalg.vector_norm"),
        ),
        COMPOSED,
    ),
}


class _Seen(TorchDispatchMode):
    """Names of the operations that calls become."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.names.add(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def operations(op: Any, sample: Any) -> set[str]:
    """Those of our operations that torch calls for a sample."""
    with _Seen() as seen:
        opinfo.call(op.op, sample)
    return seen.names & set(_aten.OPERATIONS)


@functools.cache
def covered(index: int) -> bool:
    dtype = torch.float32 if torch.float32 in OPS[index].dtypes else torch.int64
    return any(operations(OPS[index], sample) for sample in opinfo.plain(OPS[index], dtype))


COVERED = [op for i, op in enumerate(OPS) if covered(i)]


def test_every_entry_is_covered_or_an_exception() -> None:
    missing = {ident(op) for op in OPS} - {ident(op) for op in COVERED}
    assert missing == set(NOT_ENABLED)
