"""Our kernels under the operations of aten itself, for code that calls torch.linalg."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.library import Library, get_kernel

from mpslinalg import _check, _route

if TYPE_CHECKING:
    from mpslinalg._aten import Operation

_KEYS = {"mps": "MPS", "cuda": "CUDA", "cpu": "CPU"}
# What torch has for all dtypes that the kernels would add: their calls are not to be held up.
_TORCHS = {"CUDA": ("eq", "eq_", "ne", "ne_")}


class Part(NamedTuple):
    """What is enabled as one."""

    device: str
    comparisons: bool


# Of what is ours now. A Library takes its kernels along when it goes.
_libraries: dict[Part, Library] = {}
_lock = threading.Lock()


class enable:
    """Let torch.linalg itself run our kernels on a device, in this whole process.

    From the call on, code that knows nothing of mpslinalg gets the kernels wherever torch has an
    operation that they do: in `torch.linalg.solve`, in `torch.distributions`, in graphs of
    `torch.compile`. Derivatives, shape checks and error words remain torch's. What the kernels do
    not take (half precision, `driver=` of `svd`) goes to torch's own kernel as before.

    Lasts until `disable`; as a context manager, until the end of the block, and blocks nest. Inside
    `use("torch")` torch's kernels run all the same. On CUDA only those calls change in which the
    kernels were measured faster, unless they are inside `use("kernels")`.

    The table of operations belongs to all threads: call `enable` and `disable` while no other
    thread computes.

    Args:
        device: "mps", "cuda" or "cpu"; the CPU is there for tests, LAPACK is faster.
        comparisons: whether `==`, `<` and the like of uint16, uint32 and uint64 are among them.
            Then every comparison on the device passes through Python, those of other dtypes on
            their way to torch's kernel.

    Raises:
        ValueError: another device.

    Example:
        >>> mpslinalg.enable()
        >>> torch.linalg.eig(torch.randn(8, 8, device="mps"))
        >>> with mpslinalg.enable("cpu"):
        ...     torch.linalg.inv(A)
    """

    def __init__(self, device: str | torch.device = "mps", *, comparisons: bool = True) -> None:
        name = _type(device, "enable")
        self._parts = [Part(name, False), *([Part(name, True)] if comparisons else [])]
        self._new = [part for part in self._parts if part not in _libraries]
        self.__enter__()

    def __enter__(self) -> None:
        with _lock:
            for part in self._parts:
                if part not in _libraries:
                    _libraries[part] = _registered(part)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _drop(self._new)


def disable(device: str | torch.device = "mps") -> None:
    """Give the operations of a device back to torch, however often they were enabled.

    Args:
        device: "mps", "cuda" or "cpu".

    Raises:
        ValueError: another device.
    """
    name = _type(device, "disable")
    _drop([Part(name, False), Part(name, True)])


def _drop(parts: list[Part]) -> None:
    with _lock:
        for part in parts:
            library = _libraries.pop(part, None)
            if library is not None:
                library._destroy()  # type: ignore[no-untyped-call]


def _type(device: str | torch.device, name: str) -> str:
    given = device.type if isinstance(device, torch.device) else device
    if given not in _KEYS:
        raise ValueError(f"mpslinalg.{name}: expected 'mps', 'cuda' or 'cpu', got {device!r}")
    return given


def _registered(part: Part) -> Library:
    # Imported late: `import mpslinalg` is to be quick.
    from mpslinalg._aten_elementwise import OPERATIONS

    key = _KEYS[part.device]
    library = Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        # To override them is what the user asked for.
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
        for name, operation in OPERATIONS.items():
            if part.comparisons != bool(operation.dtypes) or name in _TORCHS.get(key, ()):
                continue
            for overload in _overloads(name):
                library.impl(  # type: ignore[no-untyped-call]
                    overload.op,
                    _implementation(operation, overload, key),
                    key,
                    with_keyset=True,
                    allow_override=True,
                )
    return library


class Overload(NamedTuple):
    op: Any
    outs: list[str]
    # Whether it begins with two tensors.
    of_two: bool


@functools.cache
def _overloads(name: str) -> list[Overload]:
    """Those with a kernel of their own: what is made of others autograd has to see."""
    packet = getattr(torch.ops.aten, name)
    found = []
    for op in (getattr(packet, o) for o in packet.overloads()):
        has, has_for = torch._C._dispatch_has_kernel, torch._C._dispatch_has_kernel_for_dispatch_key
        if has(op.name()) and not has_for(op.name(), "CompositeImplicitAutograd"):
            given = op._schema.arguments
            of_two = [(str(a.type), a.is_out) for a in given[:2]] == [("Tensor", False)] * 2
            found.append(Overload(op, [a.name for a in given if a.is_out], of_two))
    return found


def _implementation(operation: Operation, overload: Overload, key: str) -> Callable[..., Any]:
    torchs = _torchs(overload.op, key)
    names = overload.outs

    def run(keys: Any, *args: Any, **kwargs: Any) -> Any:
        results = _results(operation, args, kwargs)
        return torchs(keys, *args, **kwargs) if results is NotImplemented else results

    def run_to_out(keys: Any, *args: Any, **kwargs: Any) -> Any:
        outs = [kwargs[name] for name in names]
        others = {name: value for name, value in kwargs.items() if name not in names}
        if operation.typed_by_out:
            others |= {"dtype": outs[0].dtype, "device": outs[0].device}
        results: Any = NotImplemented
        if all(operation.apart(out, *_tensors(args)) for out in outs):
            results = _results(operation, args, others)
        if isinstance(results, Tensor):
            results = (results,)
        if results is NotImplemented or not all(
            _holds(o, r, operation.casts) for r, o in zip(results, outs, strict=True)
        ):
            return torchs(keys, *args, **kwargs)
        for result, out in zip(results, outs, strict=True):
            operation.write(result, out)
        return outs[0] if len(outs) == 1 else tuple(outs)

    ours = run_to_out if names else run
    if operation.dtypes:
        ours = _for_dtypes(operation.dtypes, ours, torchs)
    return _of_tensors(ours) if operation.route is None and overload.of_two else ours


def _for_dtypes(
    dtypes: frozenset[torch.dtype], ours: Callable[..., Any], torchs: Callable[..., Any]
) -> Callable[..., Any]:
    def run(keys: Any, x: Tensor, other: Any, **kwargs: Any) -> Any:
        if x.dtype in dtypes or (isinstance(other, Tensor) and other.dtype in dtypes):
            return ours(keys, x, other, **kwargs)
        return torchs(keys, x, other, **kwargs)

    return run


def _of_tensors(run: Callable[..., Any]) -> Callable[..., Any]:
    """Undo that Python is shown a number where C++ has made a tensor of one.

    torch's own kernel takes none; of this dtype it promotes like the number.
    """

    def call(keys: Any, x: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(x, Tensor) and isinstance(other, Tensor):
            return run(keys, x, other, *args, **kwargs)
        dtype = torch.result_type(x, other)
        x, other = (
            y if isinstance(y, Tensor) else torch.scalar_tensor(y, dtype=dtype) for y in (x, other)
        )
        return run(keys, x, other, *args, **kwargs)

    return call


def _holds(out: Tensor, result: Tensor, casts: bool) -> bool:
    if out.device != result.device:
        return False
    return out.dtype == result.dtype or (casts and torch.can_cast(result.dtype, out.dtype))


def _torchs(overload: Any, key: str) -> Callable[..., Any]:
    """What torch itself runs on the device, which for some operations is nothing."""
    try:
        call: Callable[..., Any] = get_kernel(overload, key).call_boxed
    except RuntimeError:
        written = overload._schema.arguments[0]
        in_place = written.is_write and not written.is_out

        @functools.wraps(overload)
        def replay(x: Any, *args: Any, **kwargs: Any) -> Any:
            # What torch is shown has one number for all elements, where it must not write.
            return overload(torch.zeros_like(x) if in_place else x, *args, **kwargs)

        def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
            outs = {k: v for k, v in kwargs.items() if isinstance(v, Tensor)}
            outs = {k: torch.empty(0, dtype=v.dtype) for k, v in outs.items()}
            return _check.refuse(replay, *args, **{**kwargs, **outs})

    return call


def _tensors(args: tuple[Any, ...]) -> list[Tensor]:
    return [x for x in args if isinstance(x, Tensor)]


def _results(operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors = _tensors(args)
    if operation.route is not None:
        A = args[0]
        if not (_wanted(operation.route, A) and operation.takes(A)):
            return NotImplemented
        if any(x.device != A.device for x in tensors):
            return NotImplemented
    if not any(x.requires_grad for x in tensors):
        return operation.run(*args, **kwargs)
    # Autograd has noted the call: a plan that sees no gradients is repeated from its record.
    with torch.no_grad():
        return operation.run(*args, **kwargs)


def _wanted(route: str, A: Tensor) -> bool:
    if _route.mode.name != "auto":
        return _route.mode.name == "kernels"
    if not A.is_cuda or A.dim() < 2:
        return True
    return _route.kernels_win(route, "cuda", A.shape[:-2].numel(), *A.shape[-2:])
