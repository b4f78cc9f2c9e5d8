"""Shader text: where it is, its headers inlined, its kernel signatures parsed.

Every engine builds its translation unit from the same three parts: its own prologue, `text()` of
the shader, and one closing piece that asks for the variant.
"""

from __future__ import annotations

import functools
import re
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

_PACKAGE = Path(__file__).resolve().parent.parent
INCLUDE = Path(__file__).resolve().parent / "include"

# Compiled, and kept, by `re` when the first shader is read: few processes read any.
_INCLUDE_LINE = r'^#include "([\w.]+)"[ \t]*$'
_KERNEL = (
    r"template\s*<(?P<template>[^<>]*)>\s*"
    r"(?:\[\[max_total_threads_per_threadgroup\((?P<bound>\d+)\)\]\]\s*)?"
    r"kernel\s+void\s+(?P<name>\w+)\s*\("
)
_PARAMETER = r"^(?P<type>.+?)\s*(?P<name>\w+)\s*\[\[(?P<attribute>\w+)(?:\(\d+\))?\]\]$"


class ShaderError(RuntimeError):
    """A shader that cannot be found, read, compiled or launched as written."""


class Buffer(NamedTuple):
    """`device T* name`: bound to a tensor."""

    name: str
    type: str
    writable: bool


class Value(NamedTuple):
    """`constant uint& name`: bound to a Python number."""

    name: str
    type: str


class Index(NamedTuple):
    """`uint tid [[thread_index_in_threadgroup]]`: given by the engine."""

    name: str
    type: str
    attribute: str


class Signature(NamedTuple):
    """What a launch must pass to one kernel template."""

    name: str
    template: tuple[tuple[str, str], ...]
    arguments: tuple[Buffer | Value, ...]
    indices: tuple[Index, ...]
    max_threads: int

    @property
    def cooperative(self) -> bool:
        """Whether its threads work together: only such a kernel asks for its place in a group."""
        return any(
            index.attribute not in ("thread_position_in_grid", "threads_per_grid")
            for index in self.indices
        )

    @property
    def one_dimensional(self) -> bool:
        """Whether its positions are single numbers; Metal wants all of one length."""
        return all(not index.type[-1].isdigit() for index in self.indices)


@functools.cache
def folder() -> Path:
    """The folder of the shaders: in a wheel inside the package, in a checkout beside it."""
    for candidate in (_PACKAGE / "shaders", _PACKAGE.parent / "shaders"):
        if candidate.is_dir():
            return candidate
    raise ShaderError(f"mpslinalg: no shaders folder in {_PACKAGE} or beside it; reinstall it")


@functools.cache
def text(shader: str) -> str:
    """The text of `<shader>.metal`, each of its headers inlined once, with #line directives."""
    path = folder() / f"{shader}.metal"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in folder().glob("*.metal")))
        raise ShaderError(f"mpslinalg: no shader {shader!r}; there are {known}")
    return inline(path, folder())


def inline(path: Path, headers: Path) -> str:
    """`path` with every `#include "name"` replaced by that header of `headers`, once."""
    seen: set[str] = set()

    def expand(name: str, body: str) -> str:
        pieces = [f'#line 1 "{name}"\n']
        position = 0
        for match in re.finditer(_INCLUDE_LINE, body, re.MULTILINE):
            pieces.append(body[position : match.start()])
            position = match.end()
            header = match.group(1)
            if header not in seen:
                seen.add(header)
                pieces.append(expand(header, (headers / header).read_text(encoding="ascii")))
            following = body.count("\n", 0, match.end()) + 2
            pieces.append(f'#line {following} "{name}"')
        pieces.append(body[position:])
        return "".join(pieces)

    return expand(path.name, path.read_text(encoding="ascii"))


@functools.cache
def signatures(source: str) -> dict[str, Signature]:
    """Every kernel template of a shader text by name."""
    found = {}
    for match in re.finditer(_KERNEL, source):
        name = match.group("name")
        end = _closing_parenthesis(source, match.end())
        arguments: list[Buffer | Value] = []
        indices: list[Index] = []
        for written in _split(source[match.end() : end]):
            parameter = _parameter(name, written)
            if isinstance(parameter, Index):
                indices.append(parameter)
            else:
                arguments.append(parameter)
        if any(isinstance(b, Buffer) > isinstance(a, Buffer) for a, b in pairwise(arguments)):
            raise ShaderError(f"mpslinalg: kernel {name}: the buffers come before the values")
        template = tuple(
            (declaration.split()[0], declaration.split()[-1])
            for declaration in _split(match.group("template"))
        )
        bound = int(match.group("bound") or 1024)
        found[name] = Signature(name, template, tuple(arguments), tuple(indices), bound)
    return found


def signature(shader: str, name: str) -> Signature:
    """The signature of one kernel of one shader."""
    found = signatures(text(shader))
    if name not in found:
        raise ShaderError(f"mpslinalg: {shader}.metal has no kernel {name!r}; it has {list(found)}")
    return found[name]


def _parameter(kernel: str, written: str) -> Buffer | Value | Index:
    match = re.match(_PARAMETER, " ".join(written.split()))
    if match is None:
        raise ShaderError(f"mpslinalg: kernel {kernel}: cannot read the parameter {written!r}")
    kind, name, attribute = match.group("type"), match.group("name"), match.group("attribute")
    if attribute != "buffer":
        return Index(name, kind, attribute)
    if kind.startswith("device ") and kind.endswith("*"):
        pointee = kind.removeprefix("device ").removesuffix("*").strip()
        return Buffer(name, pointee.removeprefix("const ").strip(), "const" not in pointee.split())
    if kind.startswith("constant ") and kind.endswith("&"):
        return Value(name, kind.removeprefix("constant ").removesuffix("&").strip())
    raise ShaderError(f"mpslinalg: kernel {kernel}: {written!r} is neither a buffer nor a value")


def _closing_parenthesis(source: str, start: int) -> int:
    depth = 1
    for position in range(start, len(source)):
        depth += {"(": 1, ")": -1}.get(source[position], 0)
        if depth == 0:
            return position
    raise ShaderError("mpslinalg: a kernel's parameter list is not closed")


def _split(parameters: str) -> list[str]:
    pieces, depth, start = [], 0, 0
    for position, character in enumerate(parameters):
        depth += {"(": 1, "<": 1, "[": 1, ")": -1, ">": -1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            pieces.append(parameters[start:position])
            start = position + 1
    pieces.append(parameters[start:])
    return [piece.strip() for piece in pieces if piece.strip()]


def closing_types(signature: Signature, template: tuple[str, ...]) -> str:
    """The template parameters as names a C++ wrapper body can use: `typedef float T;` and so on."""
    return " ".join(
        f"typedef {argument} {name};"
        if kind == "typename"
        else f"constexpr {kind} {name} = {argument};"
        for (kind, name), argument in zip(signature.template, template, strict=True)
    )


def instance(signature: Signature) -> str:
    """`lu_simd<T, N>`: the kernel with the template parameters named by `closing_types`."""
    return f"{signature.name}<{', '.join(name for _, name in signature.template)}>"


def vector(kind: str, x: str, y: str, z: str) -> str:
    """A position of the written type (`uint`, `uint2`, `uint3`) from its three components."""
    length = int(kind[-1]) if kind[-1].isdigit() else 1
    return f"{kind}({', '.join((x, y, z)[:length])})"
