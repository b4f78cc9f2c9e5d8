"""The Metal engine: torch compiles the text and queues the launch in its own stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import source
from .engine import Argument, Engine, Launcher
from .source import ShaderError, Value

PROLOGUE = (
    "#include <metal_stdlib>\n"
    "using namespace metal;\n"
    "#define THREADGROUP_ARRAY(T, name, count) threadgroup T name[count]\n"
)

# torch passes a Python int as 64 bits; these are the casts it offers for what shaders declare.
_CASTS = {"uint": "int32", "int": "int32"}


def host_name(name: str, template: tuple[str, ...]) -> str:
    """The name under which a variant is found in its library."""
    return "_".join((name, *template))


def instantiation(name: str, template: tuple[str, ...]) -> str:
    """The line that makes one variant of a kernel template exist."""
    variant = f"{name}<{', '.join(template)}>"
    host = f'[[host_name("{host_name(name, template)}")]]'
    return f"template {host} [[kernel]] decltype({variant}) {variant};\n"


def library_text(shader: str, *variants: tuple[str, tuple[str, ...]]) -> str:
    """What torch.mps.compile_shader gets: prologue, shader, one line a variant."""
    lines = "".join(instantiation(name, template) for name, template in variants)
    return f'{PROLOGUE}{source.text(shader)}\n#line 1 "variants"\n{lines}'


class _MetalLauncher(Launcher):
    def __init__(self, function: Callable[..., Any], casts: dict[int, str]) -> None:
        self._function = function
        self._casts = casts or None

    def __call__(
        self,
        arguments: Sequence[Argument],
        threads: tuple[int, ...],
        group: tuple[int, ...],
    ) -> None:
        self._function(*arguments, threads=threads, group_size=group, arg_casts=self._casts)


class MetalEngine(Engine):
    """Runs kernels on tensors of an Apple GPU."""

    name = "metal"
    side_by_side = True

    def compile(self, shader: str, name: str, template: tuple[str, ...]) -> _MetalLauncher:
        """One variant as a library of its own."""
        signature = source.signature(shader, name)
        text = library_text(shader, (name, template))
        try:
            library = torch.mps.compile_shader(text)
        except (SyntaxError, RuntimeError) as error:
            raise ShaderError(
                f"mpslinalg: {shader}.metal: {name}<{', '.join(template)}> does not compile "
                f"for Metal (torch {torch.__version__}); please report it with this text:\n{error}"
            ) from error
        casts = {
            position: _CASTS[argument.type]
            for position, argument in enumerate(signature.arguments)
            if isinstance(argument, Value) and argument.type in _CASTS
        }
        return _MetalLauncher(getattr(library, host_name(name, template)), casts)


ENGINE = MetalEngine()
