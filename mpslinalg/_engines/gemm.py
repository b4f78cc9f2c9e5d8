"""torch's GEMM as a launch like any other, so that a recorded plan may have some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import program
from .engine import Launch, Launcher


class _Gemm(Launcher):
    """C := beta D + alpha A B for the operands C, D, A, B: batches of strided matrices."""

    def __call__(
        self, arguments: Sequence[Any], threads: tuple[int, ...] = (), group: tuple[int, ...] = ()
    ) -> None:
        beta, alpha = arguments[4:6]
        # TF32 keeps 11 bits of each factor: a factorisation would lose a thousandfold.
        lossy = arguments[0].is_cuda and torch.backends.cuda.matmul.allow_tf32
        if lossy:
            torch.backends.cuda.matmul.allow_tf32 = False
        try:
            C, D, A, B = arguments[:4]
            torch.baddbmm(D, A, B, beta=beta, alpha=alpha, out=C)
        finally:
            if lossy:
                torch.backends.cuda.matmul.allow_tf32 = True

    def bound(
        self,
        parts: Sequence[tuple[int, int]],
        values: Sequence[Any],
        threads: tuple[int, ...],
        group: tuple[int, ...],
        device: torch.device,
    ) -> Launch:
        beta, alpha, *layouts = values
        places = [(i, offset, *layout) for (i, offset), layout in zip(parts, layouts, strict=True)]

        def launch(tensors: Sequence[Tensor], starts: Sequence[int], queue: int) -> None:
            operands = []
            for i, offset, shape, steps, conjugated in places:
                base = tensors[i]
                first = base.storage_offset() + offset // base.element_size()
                operand = base.as_strided(shape, steps, first)
                operands.append(operand.conj() if conjugated else operand)
            self((*operands, beta, alpha))

        return launch


_GEMM = _Gemm()


def gemm(C: Tensor, D: Tensor, A: Tensor, B: Tensor, beta: float, alpha: float) -> None:
    """C := beta D + alpha A B in full float32 precision; with beta = 0, D need not be set."""
    layouts = ((x.shape, x.stride(), x.is_conj()) for x in (C, D, A, B))
    arguments = (C, D, A, B, beta, alpha, *layouts)
    recording = program.current.recording
    if recording is None:
        _GEMM(arguments)
        return
    with recording.noted():
        _GEMM(arguments)
    recording.launched.append((_GEMM, arguments, (), ()))
