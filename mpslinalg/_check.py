"""Bad input, in torch's own words.

A public function asks cheap questions; when an answer is no, `refuse` replays the call on torch,
which raises what it raises for that input. So the words are torch's, of the installed version.
"""

import operator
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpslinalg._engines import ENGINES
from mpslinalg._engines.program import current

# torch.compile of torch 2.11 takes the check of info for dead code: it has no result.
torch.fx.node.has_side_effect(torch.ops.aten._linalg_check_errors.default)

# DTensor, of which only torch.compile shows any here, once `distributed.register` was called.
distributed: tuple[type[Any], ...] = ()

HALVES = (torch.float16, torch.bfloat16)
DTYPES = frozenset((torch.float32, torch.float64, torch.complex64, torch.complex128))


def matrix(A: Tensor) -> bool:
    """Whether A is a matrix, or a batch of them, that the kernels take."""
    return A.dim() >= 2 and A.dtype in DTYPES


def square(A: Tensor) -> bool:
    """Whether A is a square matrix, or a batch of them, that the kernels take."""
    return matrix(A) and A.shape[-2] == A.shape[-1]


def fits(A: Tensor, B: Any, left: bool) -> bool:
    """Whether A X = B, or X A = B, has a right-hand side of the shape and dtype of square A."""
    return (
        isinstance(B, Tensor)
        and B.dtype == A.dtype
        and B.dim() >= 2
        and B.shape[-2 if left else -1] == A.shape[-1]
        and broadcastable(A.shape[:-2], B.shape[:-2])
    )


def broadcastable(a: torch.Size, b: torch.Size) -> bool:
    """Whether two batch shapes broadcast."""
    return all(i == j or i == 1 or j == 1 for i, j in zip(reversed(a), reversed(b), strict=False))


def out(given: Any, inputs: tuple[Tensor, ...], *dtypes: torch.dtype) -> bool:
    """Whether results of these dtypes, computed from the inputs, may be written to out=."""
    if given is None:
        return True
    tensors = (given,) if isinstance(given, Tensor) else given
    return (
        isinstance(tensors, (tuple, list))
        and (isinstance(given, Tensor) or len(dtypes) > 1)
        and len(tensors) == len(dtypes)
        and all(isinstance(t, Tensor) for t in tensors)
        and all(t.dtype == dtype for t, dtype in zip(tensors, dtypes, strict=True))
        and not (torch.is_grad_enabled() and any(t.requires_grad for t in (*inputs, *tensors)))
    )


def out_to_cast(given: Any, inputs: tuple[Tensor, ...], *dtypes: torch.dtype) -> bool:
    """The same for functions of torch that cast their results to what out= holds."""
    tensors = (given,) if isinstance(given, Tensor) else given
    if isinstance(tensors, (tuple, list)) and len(tensors) == len(dtypes):
        dtypes = tuple(
            t.dtype if isinstance(t, Tensor) and torch.can_cast(dtype, t.dtype) else dtype
            for t, dtype in zip(tensors, dtypes, strict=True)
        )
    return out(given, inputs, *dtypes)


def at_the_end(info: Tensor, check: Callable[[Tensor], None]) -> None:
    """Check a tensor: now, or when the call that is recorded, and each repeat, has launched."""
    if current.recording is not None:
        current.recording.checks.append((info, check))
    else:
        check(info)


def errors(info: Tensor, name: str, is_matrix: bool) -> None:
    """Raise torch's LinAlgError for the first matrix with info > 0; reads the device."""
    at_the_end(info, partial(raise_first, name=name, is_matrix=is_matrix))


def raise_first(info: Tensor, name: str, is_matrix: bool) -> None:
    """What `errors` does with info."""
    plain = type(info) is Tensor and not torch.compiler.is_compiling()
    if plain and not torch._C._are_functorch_transforms_active():
        # An engine may know a shorter way than torch's, which takes 31 us on an H200.
        engine = ENGINES.get(info.device.type)
        if engine is not None and not engine.any_nonzero(info):
            return
    elif isinstance(info, distributed):
        # Torch has no sharding rule of the check before 2.13. A process looks at its own part.
        info = info.to_local()
    torch._linalg_check_errors(info, name, is_matrix=is_matrix)


def same_device(method: str, **tensors: Any) -> None:
    """Raise what torch raises on a GPU for tensors of several devices; on a CPU it may crash."""
    device = None
    for name, value in tensors.items():
        for tensor in value if isinstance(value, (tuple, list)) else (value,):
            if not isinstance(tensor, Tensor):
                continue
            device = tensor.device if device is None else device
            if tensor.device != device:
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but got {name} is on "
                    f"{tensor.device}, different from other tensors on {device} "
                    f"(when checking argument in method {method})"
                )


def flags(*values: Any) -> bool:
    """Whether all are bool: torch takes nothing else for a flag."""
    return all(type(value) is bool for value in values)


def frozen(written: Tensor) -> bool:
    """Whether torch lets nobody write the tensor: one of inference_mode, outside of it."""
    if torch.compiler.is_compiling() or torch.is_inference_mode_enabled():
        return False
    return written.is_inference()


def number(given: Any) -> bool:
    """Whether torch takes it for a number: an integer has at most 64 bits."""
    if isinstance(given, int):
        return -(2**63) <= given < 2**64
    return isinstance(given, (float, complex))


def refuse(function: Callable[..., Any], *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """Raise torch's error for bad arguments of a torch function.

    Torch sees CPU tensors of the same shapes and dtypes, and it reads none: what is wrong with
    them it finds before the first element. Within autocast the only fault may be a half precision
    that torch would cast away: then the result is that of the cast arguments. And where torch takes
    a scalar of NumPy or a tensor of one number for a number, it is that of Python's number.
    """
    given = dict(kwargs) if out is None else {**kwargs, "out": out}
    if _low_precision(args):
        cast = (a.float() if isinstance(a, Tensor) and a.dtype in HALVES else a for a in args)
        return _ours(function)(*cast, **given)
    if isinstance(out, (tuple, list)):
        empty = map(_empty, out)
        out = list(empty) if isinstance(out, list) else tuple(empty)
    if kwargs.get("pivot") is False:
        kwargs["pivot"] = True  # on the CPU torch has no other LU, and would say so first
    # What the values made up here lead to is no fault of the arguments.
    made_up = suppress(torch.linalg.LinAlgError)  # type: ignore[attr-defined]
    standins = {name: _ones(value) for name, value in kwargs.items()}
    if out is not None:
        standins["out"] = _empty(out)
    with torch.autocast("cpu", enabled=False), made_up:
        function(*map(_ones, args), **standins)
    numbers = [*args[:1], *map(_number, args[1:])]
    options = {name: x if name == "out" else _number(x) for name, x in given.items()}
    if not all(map(operator.is_, (*args, *given.values()), (*numbers, *options.values()))):
        return _ours(function)(*numbers, **options)
    if isinstance(out, Tensor) and out.requires_grad:
        # Torch may have failed with what was made up before it came to write.
        _empty(out).zero_()
    shown = ", ".join(f"{a.dtype} {list(a.shape)}" for a in args if isinstance(a, Tensor))
    raise RuntimeError(
        f"{function.__name__}: the kernels take matrices of float32, float64, complex64 or "
        f"complex128 whose shapes fit, but got {shown}; mpslinalg.use('torch') runs torch instead"
    )


def refuse_as(name: str, function: Callable[..., Any], A: Any, **kwargs: Any) -> Any:
    """`refuse` of a function that torch may lack, in the words of one that takes the same A."""
    theirs = f"linalg.{function.__name__.removeprefix('linalg_')}"
    try:
        return refuse(function, A, **kwargs)
    except Exception as error:
        words = str(error).replace(theirs, name)
        words = words.replace(theirs.replace(".", "_"), name.replace(".", "_"))
        raise type(error)(words) from None


def _ours(function: Callable[..., Any]) -> Any:
    """What is here for a function of torch."""
    module, name = sys.modules["mpslinalg"], function.__name__.removeprefix("linalg_")
    if name.startswith("special_"):
        module, name = sys.modules["mpslinalg.special"], name.removeprefix("special_")
    return getattr(module, name)


def _number(arg: Any) -> Any:
    """Python's number for what torch takes for one, and what else there is as it is."""
    if isinstance(arg, (tuple, list)):
        numbers = [_number(a) for a in arg]
        return arg if all(map(operator.is_, numbers, arg)) else numbers
    single = isinstance(arg, np.generic) or (isinstance(arg, Tensor) and arg.dim() == 0)
    return arg.item() if single else arg


def _low_precision(args: tuple[Any, ...]) -> bool:
    tensors = [a for a in args if isinstance(a, Tensor)]
    return any(t.dtype in HALVES and autocasts(t.device.type) for t in tensors)


# Asked once: torch.compile of torch 2.11 cannot trace the question. There is none for meta.
_AUTOCAST = frozenset(d for d in ("cpu", "cuda", "mps") if torch.amp.is_autocast_available(d))


def autocasts(device: str) -> bool:
    """Whether autocast is on for a type of devices."""
    return device in _AUTOCAST and torch.is_autocast_enabled(device)


def _ones(arg: Any) -> Any:
    if not isinstance(arg, Tensor):
        return arg
    one = torch.ones((), dtype=arg.dtype, requires_grad=arg.requires_grad)
    return one.expand(arg.shape)


def _empty(arg: Any) -> Any:
    if not isinstance(arg, Tensor):
        return arg
    return torch.empty(0, dtype=arg.dtype, requires_grad=arg.requires_grad)
