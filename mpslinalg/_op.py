"""What every family shares on its way into torch: ops of launch plans, derivatives on demand."""

import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import Function
from torch.library import Library, register_fake, register_vmap

from mpslinalg import _check
from mpslinalg._repeat import repeated
from mpslinalg._repeat import tracked as tracked

P = ParamSpec("P")
R = TypeVar("R")
_LIBRARY = Library("mpslinalg", "DEF")  # type: ignore[no-untyped-call]


def define(
    schema: str,
    plan: Callable[..., Any],
    fake: Callable[..., Any],
    shape_depends_on_values: bool = False,
) -> Callable[..., Any]:
    """Make `torch.ops.mpslinalg.<name>` of a launch plan, and return the way to call it.

    Args:
        schema: torch's schema without the namespace, `inv(Tensor A) -> (Tensor, Tensor)`.
        plan: runs on tensors of any engine. It takes any number of batch dimensions, the same for
            all its tensors, and returns new tensors.
        fake: takes the plan's arguments, returns empty tensors of the shapes, dtypes and strides
            that the plan returns.
        shape_depends_on_values: so that `fake` asks `torch.library.get_ctx()` for sizes.
    """
    name = schema[: schema.index("(")]
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    for engine in ("CPU", "CUDA", "MPS"):
        _LIBRARY.impl(name, plan, engine)  # type: ignore[no-untyped-call]
    if shape_depends_on_values:
        register_fake(f"mpslinalg::{name}", fake, lib=_LIBRARY)
    else:
        # For meta tensors and fake ones alike. register_fake does the same, but reads the caller's
        # source file to know where it stands: a third of the time that importing all this took.
        _LIBRARY.impl(name, fake, "Meta")  # type: ignore[no-untyped-call]
    op = getattr(torch.ops.mpslinalg, name).default

    def batched(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        size = info.batch_size
        out = op(*(_batch_first(a, d, size) for a, d in zip(args, in_dims, strict=True)))
        # Only a tensor that was not asked for, of shape (0,), has no batch.
        if isinstance(out, Tensor):
            return out, 0
        return out, tuple(0 if x.dim() > 0 and x.size(0) == size else None for x in out)

    register_vmap(f"mpslinalg::{name}", batched, lib=_LIBRARY)
    return repeated(plan, op)


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


def _forward_levels() -> int:
    stack = torch._C._functorch.get_interpreter_stack() or []
    return sum(level.key() == torch._C._functorch.TransformType.Jvp for level in stack)


class _ForDynamo(MetaPathFinder):
    """Allows functions in graphs as soon as torch.compile is imported.

    To allow them at once would import it, which takes as long as torch itself.
    """

    def __init__(self) -> None:
        self.functions: list[Callable[..., Any]] = []

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch._dynamo" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                for function in self.functions:
                    torch.compiler.allow_in_graph(function)  # type: ignore[no-untyped-call]

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_for_dynamo = _ForDynamo()
if "torch._dynamo" not in sys.modules:
    sys.meta_path.insert(0, _for_dynamo)


# From torch: imaginary parts up to which a loss counts as independent of phases.
PHASE_TOLERANCE = 1e-2


def visible(*tensors: Tensor) -> bool:
    """Whether values may be looked at: nothing traces or transforms the tensors."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return not any(
        type(x) is not Tensor or torch._C._functorch.is_legacy_batchedtensor(x) for x in tensors
    )


def without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """A block in which products of tensors on this device keep their precision."""
    device = tensor.device.type
    return torch.autocast(device, enabled=False) if _check.autocasts(device) else nullcontext()


def outside_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """The function as it runs without autocast, which would round its products to 8 or 11 bits."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        given = (*args, *kwargs.values())
        first = next((a for a in given if isinstance(a, Tensor)), None)
        if first is None:
            return function(*args, **kwargs)
        # A block in the text: torch.compile takes no autocast from an ExitStack.
        with without_autocast(first):
            return function(*args, **kwargs)

    return run


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
    for name in {"backward", "jvp"} & vars(function).keys():
        setattr(function, name, staticmethod(outside_autocast(getattr(function, name))))
    if "torch._dynamo" in sys.modules:
        torch.compiler.allow_in_graph(apply)  # type: ignore[no-untyped-call]
    else:
        _for_dynamo.functions.append(apply)
    return apply
