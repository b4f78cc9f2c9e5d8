"""What every family shares on its way into torch: ops of launch plans, derivatives on demand."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.library import Library, register_fake, register_vmap

from mpslinalg._engines import ENGINES, checking
from mpslinalg._engines.program import Program, apart, record

# Kinds of arguments that an op remembers; each takes some 2 kB.
MAX_PROGRAMS = 1024
_UNSEEN = object()
_LIBRARY = Library("mpslinalg", "DEF")  # type: ignore[no-untyped-call]


def define(schema: str, plan: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """Make `torch.ops.mpslinalg.<name>` of a launch plan, and return the way to call it.

    Args:
        schema: torch's schema without the namespace, `inv(Tensor A) -> (Tensor, Tensor)`.
        plan: runs on tensors of any engine. It takes any number of batch dimensions, the same for
            all its tensors, and returns new tensors.
        fake: takes the plan's arguments, returns empty tensors of the shapes, dtypes and strides
            that the plan returns.
    """
    name = schema[: schema.index("(")]
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    for engine in ("CPU", "CUDA", "MPS"):
        _LIBRARY.impl(name, plan, engine)  # type: ignore[no-untyped-call]
    register_fake(f"mpslinalg::{name}", fake, lib=_LIBRARY)
    op = getattr(torch.ops.mpslinalg, name).default

    def batched(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        size = info.batch_size
        out = op(*(_batch_first(a, d, size) for a, d in zip(args, in_dims, strict=True)))
        # Only a tensor that was not asked for, of shape (0,), has no batch.
        if isinstance(out, Tensor):
            return out, 0
        return out, tuple(0 if x.dim() > 0 and x.size(0) == size else None for x in out)

    register_vmap(f"mpslinalg::{name}", batched, lib=_LIBRARY)
    return _short_way(op, plan)


def _short_way(op: Callable[..., Any], plan: Callable[..., Any]) -> Callable[..., Any]:
    """The op, but for plain tensors that nothing in torch watches the plan, and its program."""
    # None for a kind whose plan has to run each time.
    programs: dict[tuple[Any, ...], Program | None] = {}

    def call(*args: Any) -> Any:
        if torch.compiler.is_compiling():
            return op(*args)
        tensors: list[Tensor] = []
        key: list[Any] = []
        for arg in args:
            if isinstance(arg, Tensor):
                if not _plain(arg):
                    return op(*args)
                tensors.append(arg)
                key += (arg.shape, arg.stride(), arg.dtype)
            else:
                key.append(arg)
        device = tensors[0].device
        engine = ENGINES.get(device.type)
        watched = torch._C._len_torch_dispatch_stack() != 0
        if engine is None or watched or tracked(*tensors) or checking(device):
            return op(*args)
        kind = (engine, device, *key)
        program = programs.get(kind, _UNSEEN)
        if isinstance(program, Program):
            return program.run(tensors, device)
        if program is None or not apart(tensors):
            return plan(*args)
        if len(programs) == MAX_PROGRAMS:
            programs.clear()
        with record(tensors) as recording:
            results = plan(*args)
        programs[kind] = recording.program(results, engine.allocate)
        return results

    return call


def _plain(tensor: Tensor) -> bool:
    """Whether shape, strides and dtype tell all about how to read the tensor."""
    return (
        type(tensor) is Tensor
        and tensor.layout is torch.strided
        and not (tensor.is_conj() or tensor.is_neg())
    )


def _batch_first(arg: Any, dim: int | None, size: int) -> Any:
    if not isinstance(arg, Tensor):
        return arg
    return arg.expand(size, *arg.shape) if dim is None else arg.movedim(dim, 0)


def broadcast(*tensors: tuple[Tensor, int]) -> tuple[Tensor, ...]:
    """Expand tensors to their common batch; each comes with its number of trailing dimensions."""
    batches = [t.shape[: t.dim() - d] for t, d in tensors]
    # Mostly there is nothing to do, and torch.broadcast_shapes takes 20 us to find out.
    if all(batch == batches[0] for batch in batches):
        return tuple(t for t, _ in tensors)
    batch = torch.broadcast_shapes(*batches)  # type: ignore[no-untyped-call]
    return tuple(t.expand(*batch, *t.shape[t.dim() - d :]) for t, d in tensors)


def tracked(*tensors: Tensor) -> bool:
    """Whether a derivative or a functorch transform may need to see an operation on the tensors."""
    return (
        (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))
        or forward_ad._current_level >= 0
        or torch._C._are_functorch_transforms_active()
    )


def _forward_levels() -> int:
    stack = torch._C._functorch.get_interpreter_stack() or []
    return sum(level.key() == torch._C._functorch.TransformType.Jvp for level in stack)


def applied(function: type[Function]) -> Callable[..., Any]:
    """`function.apply` as torch.compile must see it.

    In the graph as a whole: traced into, a Function loses its `jvp`, and inside torch.func.grad
    its `backward` too, without an error.
    """

    def apply(*args: Any) -> Any:
        if _forward_levels() > 1:
            raise NotImplementedError(
                "mpslinalg: forward mode over forward mode: torch.autograd.Function would give a "
                "wrong derivative without a word. Use forward over reverse, torch.func.hessian or "
                "jacfwd(jacrev(f))."
            )
        return function.apply(*args)  # type: ignore[no-untyped-call]

    apply.__name__ = function.__name__
    allowed: Callable[..., Any] = torch.compiler.allow_in_graph(apply)  # type: ignore[no-untyped-call]
    return allowed
