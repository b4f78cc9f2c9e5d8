"""Calls that are recorded once for each kind of arguments, then repeated without their Python."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._pytree import tree_map_only

from mpslinalg import _route
from mpslinalg._engines import ENGINES, checking
from mpslinalg._engines.program import Program, apart, current, record
from mpslinalg._names import call_by_own_names, other_names
from mpslinalg._shards import by_batch

# Kinds of arguments that a function remembers; each takes some 2 kB.
MAX_PROGRAMS = 1024
# Bytes of arguments that share memory up to which they are copied to record a call: beyond, the
# host's time is little beside the device's.
MAX_COPIED = 2**28
_UNSEEN, _SEEN = object(), object()
P = ParamSpec("P")
R = TypeVar("R")
_SCALARS = (bool, int, str, type(None), torch.dtype)


def tracked(*tensors: Tensor) -> bool:
    """Whether a derivative or a functorch transform may need to see an operation on the tensors."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor.requires_grad:
                return True
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def _plain(tensor: Tensor) -> bool:
    """Whether shape, strides and dtype tell all about how to read the tensor."""
    return (
        type(tensor) is Tensor
        and tensor.layout is torch.strided
        and not (tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor())
        # What torch.autograd.grad(is_grads_batched=True) passes is not seen by functorch.
        and not torch._C._functorch.is_legacy_batchedtensor(tensor)
    )


def _copy(tensor: Tensor) -> Tensor:
    """A copy in memory of its own, at the same strides."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    extent = 1 + sum((size - 1) * stride for size, stride in pairs)
    return tensor.as_strided((extent,), (1,)).clone().as_strided(tensor.shape, tensor.stride())


def _copied(tensors: list[Tensor], *arguments: Any) -> tuple[list[Tensor], Any]:
    """Copies of the tensors, and the arguments with these in their places."""
    copies = [_copy(tensor) for tensor in tensors]
    given = iter(copies)
    return copies, tree_map_only(Tensor, lambda _: next(given), arguments)


def repeated(
    run: Callable[..., Any], otherwise: Callable[..., Any], in_place: bool = False
) -> Callable[..., Any]:
    """`run` for plain tensors that nothing in torch watches, `otherwise` for others.

    What `run` does may depend on nothing but the kind of its arguments: shapes, strides, dtypes,
    device, numbers, flags and the mode of `use`. Where all it does is to allocate and to launch, it
    is recorded, and repeated from then on. If it works in place, tensors that share memory are
    left to `otherwise`.
    """
    # None for a kind that has to run each time.
    programs: dict[tuple[Any, ...], Program | object | None] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return otherwise(*args, **kwargs)
        if current.recording is not None:
            return run(*args, **kwargs)
        if torch._C._get_tracing_state() is not None:
            raise NotImplementedError(
                "mpslinalg: torch.jit.trace cannot see a launch; use torch.compile, torch.export"
            )
        tensors: list[Tensor] = []
        kind: list[Any] = [_route.mode.name, *kwargs]
        fractions = False
        for arg in (*args, *kwargs.values()) if kwargs else args:
            if type(arg) is Tensor and _plain(arg):
                tensors.append(arg)
                kind += (arg.shape, arg.stride(), arg.dtype)
            elif isinstance(arg, _SCALARS):
                kind += (type(arg), arg)
            elif isinstance(arg, float):
                # Zeros of both signs are equal, and NaN is not.
                kind += (type(arg), arg.hex())
                fractions = True
            else:
                return otherwise(*args, **kwargs)
        if not tensors or torch._C._len_torch_dispatch_stack() != 0 or tracked(*tensors):
            return otherwise(*args, **kwargs)
        device = tensors[0].device
        engine = ENGINES.get(device.type)
        for tensor in tensors[1:]:
            if tensor.device != device:
                return otherwise(*args, **kwargs)
        if engine is None or checking(device):
            return otherwise(*args, **kwargs)
        if in_place and not apart(tensors):
            return otherwise(*args, **kwargs)
        key = (engine, device, *kind)
        program = programs.get(key, _UNSEEN)
        if isinstance(program, Program):
            return program.run(tensors, device)
        if program is None or any(tensor.numel() == 0 for tensor in tensors):
            return run(*args, **kwargs)
        if len(programs) == MAX_PROGRAMS:
            programs.clear()
        if fractions and program is _UNSEEN:
            # Most that change from call to call never come again, and a record takes time to make.
            programs[key] = _SEEN
            return run(*args, **kwargs)
        if apart(tensors):
            with record(tensors) as recording:
                result = run(*args, **kwargs)
            programs[key] = recording.program(result, engine)
            recording.finish()
            return result
        if sum(tensor.nbytes for tensor in tensors) > MAX_COPIED:
            return run(*args, **kwargs)
        # A record knows its arguments by their memory.
        copies, (own_args, own_kwargs) = _copied(tensors, args, kwargs)
        with record(copies) as recording:
            result = run(*own_args, **own_kwargs)
        programs[key] = program = recording.program(result, engine)
        return run(*args, **kwargs) if program is None else program.run(tensors, device)

    return call


def public(function: Callable[P, R]) -> Callable[P, R]:
    """A public function whose calls are repeated, unless they go to torch or to out=."""

    def otherwise(*args: P.args, **kwargs: P.kwargs) -> Any:
        return by_batch(function, call, args, kwargs)

    call = repeated(function, otherwise)
    names = other_names(function)

    @functools.wraps(function)
    def either(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name in names:
                return call_by_own_names(either, names, args, kwargs)
        # What is written to out= is no new result.
        if kwargs.get("out") is not None or _route.goes_to_torch(args[0] if args else None):
            return function(*args, **kwargs)
        result: R = call(*args, **kwargs)
        return result

    return either
