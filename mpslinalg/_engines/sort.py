"""torch's sort as a launch like any other, so that a recorded plan may have some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import program
from .engine import Launcher


class _Sort(Launcher):
    """Of vectors: keys, keys in ascending order, where each of those was."""

    def __call__(
        self, arguments: Sequence[Any], threads: tuple[int, ...] = (), group: tuple[int, ...] = ()
    ) -> None:
        keys, ascending, order = arguments
        torch.sort(keys, stable=True, out=(ascending, order))


_SORT = _Sort()


def sort(keys: Tensor, ascending: Tensor, order: Tensor) -> None:
    """Sort a vector into `ascending`; `order`, int64, says where each was, equal ones in order."""
    arguments = (keys, ascending, order)
    recording = program.current.recording
    if recording is None:
        _SORT(arguments)
        return
    with recording.noted():
        _SORT(arguments)
    recording.launched.append((_SORT, arguments, (), ()))
