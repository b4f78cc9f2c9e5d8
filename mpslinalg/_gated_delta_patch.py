"""Gated DeltaNet of an installed transformers on our functions."""

import importlib
import inspect
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any

from mpslinalg._gated_delta_rule import chunk_gated_delta_rule, recurrent_gated_delta_rule

MODELS = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
# By the name in the modules; layers of transformers 4 keep them under the name without `torch_`.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "torch_chunk_gated_delta_rule": chunk_gated_delta_rule,
    "torch_recurrent_gated_delta_rule": recurrent_gated_delta_rule,
}


class Patch:
    """What was changed; `undo()`, or the end of a `with` block, changes it back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(self, module: ModuleType, name: str, ours: Callable[..., Any]) -> None:
        """Put ours under the name that the layers of a module look up when they run."""
        original = getattr(module, name)
        setattr(module, name, ours)
        self._undo.append(lambda: setattr(module, name, original))

    def cover(self, layer: type, name: str, ours: Callable[..., Any]) -> None:
        """Hide what layers hold under a name, as long as the class has a property of that name."""

        def keep(self: Any, value: Any) -> None:
            self.__dict__[name] = value

        setattr(layer, name, property(lambda self: ours, keep))
        self._undo.append(lambda: delattr(layer, name))

    def undo(self) -> None:
        """Put back what was there; a second time does nothing."""
        while self._undo:
            self._undo.pop()()

    def __bool__(self) -> bool:
        return bool(self._undo)

    def __enter__(self) -> "Patch":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.undo()


def patch_transformers() -> Patch:
    """Make Qwen3-Next and Qwen3.5 of an installed transformers compute with this package.

    Every model of these families, made before or after, then calls `chunk_gated_delta_rule` and
    `recurrent_gated_delta_rule` for its linear attention layers, in inference and in training.

    Returns:
        A context manager that undoes it at the end of its block; as a plain call it stays until
        `undo()` of the result. Patches are undone in the reverse of their order.

    Raises:
        ImportError: transformers is not installed, or has no such models.

    Example:
        >>> with mpslinalg.gated_delta.patch_transformers():
        ...     model.generate(**inputs)
    """
    try:
        importlib.import_module("transformers")
    except ImportError as error:
        raise ImportError(
            "mpslinalg.gated_delta.patch_transformers needs transformers: pip install transformers"
        ) from error
    patch = Patch()
    for model in MODELS:
        try:
            module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
        except ModuleNotFoundError:
            continue
        _patch_module(module, patch)
    if not patch:
        raise ImportError(
            "mpslinalg.gated_delta.patch_transformers: this transformers has none of the models "
            f"{', '.join(MODELS)}; a newer one does"
        )
    return patch


def _patch_module(module: ModuleType, patch: Patch) -> None:
    layers = [
        value
        for name, value in vars(module).items()
        if name.endswith("GatedDeltaNet") and isinstance(value, type)
    ]
    for name, function in FUNCTIONS.items():
        ours = _as_called(function)
        if hasattr(module, name):
            patch.replace(module, name, ours)
        held = name.removeprefix("torch_")
        for layer in layers:
            if held in inspect.unwrap(layer.__init__).__code__.co_names:  # type: ignore[misc]
                patch.cover(layer, held, ours)


def _as_called(ours: Callable[..., Any]) -> Callable[..., Any]:
    """Our function under the signature that the models call, which has more keywords."""
    known = inspect.signature(ours).parameters

    def rule(*args: Any, cu_seqlens: Any = None, **kwargs: Any) -> Any:
        if cu_seqlens is not None:
            raise ValueError(
                f"mpslinalg.gated_delta: {ours.__name__} takes sequences of one length, not packed "
                "ones (cu_seqlens); undo patch_transformers for these"
            )
        return ours(*args, **{name: value for name, value in kwargs.items() if name in known})

    return rule
