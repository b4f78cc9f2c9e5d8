"""Lints that read the tokens of a shader. Each yields (offset, lint number, message)."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from .text import Text, Token

Finding = tuple[int, int, str]

GRID_ATTRIBUTES = {
    "thread_position_in_grid",
    "threads_per_grid",
    "thread_position_in_threadgroup",
    "threads_per_threadgroup",
    "threadgroup_position_in_grid",
    "threadgroups_per_grid",
    "dispatch_threads_per_threadgroup",
}
SCALAR_ATTRIBUTES = {
    "thread_index_in_threadgroup",
    "thread_index_in_simdgroup",
    "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup",
    "threads_per_simdgroup",
    "dispatch_simdgroups_per_threadgroup",
    "thread_index_in_quadgroup",
    "quadgroup_index_in_threadgroup",
    "quadgroups_per_threadgroup",
}
# Attributes of one row of a kernel have one type.
SAME_TYPE = [
    {"thread_position_in_grid", "threads_per_grid"},
    {
        "thread_position_in_threadgroup",
        "threads_per_threadgroup",
        "dispatch_threads_per_threadgroup",
    },
    SCALAR_ATTRIBUTES - {"thread_index_in_threadgroup"},
]
OTHER_ATTRIBUTES = {
    "buffer",
    "fallthrough",
    "host_name",
    "kernel",
    "max_total_threads_per_threadgroup",
    "maybe_unused",
    "nodiscard",
}
ID_TYPE = re.compile(r"(uint|ushort)([23]?)")
BARRIER_FLAGS = re.compile(
    r"(metal::)?mem_flags::mem_(none|device|threadgroup)"
    r"(\|(metal::)?mem_flags::mem_(none|device|threadgroup))*"
)
BANNED_WORDS = {
    "asm",
    "catch",
    "co_await",
    "co_return",
    "co_yield",
    "delete",
    "dynamic_cast",
    "goto",
    "new",
    "register",
    "thread_local",
    "throw",
    "try",
    "typeid",
    "virtual",
}
KEYWORDS = {"constant", "device", "half", "kernel", "thread", "threadgroup"}
BUILT_IN_TYPES = {"float", "float2", "float3", "float4", "half", "half2", "half3", "half4"}
MAX_BUFFERS = 31


class Parameter(NamedTuple):
    declaration: list[str]
    name: str
    attributes: list[tuple[str, str]]
    start: int


class Kernel(NamedTuple):
    name: str
    result: list[str]
    parameters: list[Parameter]
    start: int


def attributes(text: Text) -> Iterator[tuple[int, int]]:
    """Ranges of tokens inside each `[[...]]`."""
    tokens = text.tokens
    for i, (first, second) in enumerate(pairwise(tokens)):
        if first.text == second.text == "[" and first.end == second.start and i + 1 in text.partner:
            yield i + 2, text.partner[i + 1]


def attribute_list(text: Text, start: int, end: int) -> Iterator[tuple[str, str]]:
    for first, last in text.split(start, end):
        yield text.tokens[first].text, "".join(t.text for t in text.tokens[first + 2 : last - 1])


def parameter(text: Text, first: int, last: int) -> Parameter:
    found = list(attributes_in(text, first, last))
    end = found[0][0] - 2 if found else last
    words = [t.text for t in text.tokens[first:end]]
    listed = [a for i, j in found for a in attribute_list(text, i, j)]
    return Parameter(words[:-1], words[-1], listed, text.tokens[first].start)


def attributes_in(text: Text, first: int, last: int) -> Iterator[tuple[int, int]]:
    i = first
    while i < last - 1:
        if text.tokens[i].text == text.tokens[i + 1].text == "[":
            yield i + 2, text.partner[i + 1]
            i = text.partner[i]
        i += 1


def kernels(text: Text) -> list[Kernel]:
    found = []
    tokens = text.tokens
    for i, token in enumerate(tokens):
        if token.text != "kernel":
            continue
        j = i + 1
        if tokens[i - 1].text in ("[", ","):
            while tokens[j].text != "]":
                j += 1
            j += 2
        first = j
        while j < len(tokens) and tokens[j].text not in ("(", ";", "{", "="):
            j += 1
        result = [t.text for t in tokens[first : j - 1]]
        if j not in text.partner or tokens[j].text != "(" or tokens[j - 1].text == "decltype":
            continue
        written = list(text.split(j + 1, text.partner[j]))
        if any(first == last or tokens[first].text == "[" for first, last in written):
            continue
        parameters = [parameter(text, first, last) for first, last in written]
        found.append(Kernel(tokens[j - 1].text, result, parameters, tokens[j - 1].start))
    return found


def words(tokens: Sequence[Token]) -> str:
    return "".join(t.text for t in tokens)


def banned_words(text: Text) -> Iterator[Finding]:
    for token, after in pairwise(text.tokens):
        if token.text in BANNED_WORDS:
            yield token.start, 3, f"'{token.text}' is not supported in Metal"
        elif token.text == "std" and after.text == "::":
            yield token.start, 7, "'std' does not exist in Metal"
        elif token.text.startswith("__builtin"):
            yield token.start, 7, f"'{token.text}' is a name of one compiler"
        elif token.text in KEYWORDS and after.text == "=":
            yield token.start, 22, f"'{token.text}' is a keyword of Metal"


def banned_types(text: Text) -> Iterator[Finding]:
    previous = ""
    for token in text.tokens:
        if re.fullmatch(r"double[234]?|__int128|__float128", token.text):
            yield token.start, 5, f"'{token.text}' is not supported in Metal"
        elif token.text == previous == "long":
            yield token.start, 5, "'long long' is not supported in Metal"
        elif token.kind == "number" and re.search(r"[lL]{2}|^[^xX]*\.[^xX]*[lL]$", token.text):
            yield token.start, 5, f"'{token.text}' is not supported in Metal"
        previous = token.text


def float_suffix(text: Text) -> Iterator[Finding]:
    """A literal without suffix is float in Metal and double elsewhere."""
    types = BUILT_IN_TYPES | text.type_names
    for i, token in enumerate(text.tokens):
        number = token.text
        hexadecimal = number[:2] in ("0x", "0X")
        floating = re.search("[pP]" if hexadecimal else "[.eE]", number)
        if (
            token.kind != "number"
            or not floating
            or (number[-1] in "fFhH" and not (hexadecimal and "p" not in number.lower()))
        ):
            continue
        j = i - 1
        if text.tokens[j].text in ("+", "-"):
            j -= 1
        inside = text.tokens[j].text == "(" and text.tokens[i + 1].text == ")"
        if not (inside and (text.tokens[j - 1].text in types or text.tokens[j - 1].text == ">")):
            yield (
                token.start,
                6,
                f"'{number}' is double in C++ and CUDA: write {number}f or T({number})",
            )


def attribute_names(text: Text) -> Iterator[Finding]:
    known = GRID_ATTRIBUTES | SCALAR_ATTRIBUTES | OTHER_ATTRIBUTES
    for start, end in attributes(text):
        for name, argument in attribute_list(text, start, end):
            offset = text.tokens[start].start
            if name not in known:
                yield offset, 9, f"unknown attribute '{name}'"
            if (
                name == "max_total_threads_per_threadgroup"
                and argument.isdigit()
                and int(argument) <= 32
            ):
                yield offset, 13, "a declared maximum of 32 threads or fewer loses barriers"


def kernel_ids(text: Text) -> Iterator[Finding]:
    """Attributes of section 3: their types, and which go together."""
    for kernel in kernels(text):
        types: dict[str, str] = {}
        for p in kernel.parameters:
            for name, _ in p.attributes:
                if name not in GRID_ATTRIBUTES | SCALAR_ATTRIBUTES:
                    continue
                written = " ".join(w for w in p.declaration if w != "const")
                match = ID_TYPE.fullmatch(written)
                if not match or (match[2] and name in SCALAR_ATTRIBUTES):
                    yield p.start, 9, f"type '{written}' is not valid for attribute '{name}'"
                if name in types:
                    yield p.start, 9, f"attribute '{name}' given twice"
                types[name] = written
        sizes = {
            types[name][-1] if types[name][-1].isdigit() else ""
            for name in types.keys() & GRID_ATTRIBUTES
        }
        if len(sizes) > 1:
            yield (
                kernel.start,
                9,
                "expecting input declarations with either all scalar types or all vector types "
                "with the same number of elements",
            )
        for group in SAME_TYPE:
            if len({types[name] for name in types.keys() & group}) > 1:
                yield kernel.start, 9, f"types of {', '.join(sorted(types.keys() & group))} differ"
        position, index = (
            types.get(f"thread_{x}_in_threadgroup", "") for x in ("position", "index")
        )
        if position.startswith("uint") and index == "ushort":
            yield kernel.start, 9, "thread_index_in_threadgroup must be uint beside a uint position"


def kernel_signature(text: Text) -> Iterator[Finding]:
    seen: set[str] = set()
    for kernel in kernels(text):
        if kernel.name in seen:
            yield kernel.start, 10, f"kernel '{kernel.name}' is overloaded"
        seen.add(kernel.name)
        if kernel.result[-1:] != ["void"]:
            result = " ".join(kernel.result)
            yield kernel.start, 10, f"invalid return type '{result}' for kernel function"
        indices: list[int] = []
        buffers = 0
        for p in kernel.parameters:
            names = dict(p.attributes)
            if names.keys() & (GRID_ATTRIBUTES | SCALAR_ATTRIBUTES):
                continue
            buffers += 1
            yield from buffer_type(p)
            if names.get("buffer", "").isdigit():
                index = int(names["buffer"])
                if index in indices:
                    message = f"cannot reserve 'buffer' resource location at index {index}"
                    yield p.start, 10, message
                if index >= MAX_BUFFERS:
                    yield p.start, 10, "'buffer' attribute parameter must be between 0 and 30"
                indices.append(index)
        if buffers > MAX_BUFFERS:
            yield kernel.start, 10, f"{buffers} buffers, at most {MAX_BUFFERS} are allowed"


def buffer_type(p: Parameter) -> Iterator[Finding]:
    declared = p.declaration
    spaces = [w for w in declared if w in ("device", "constant", "threadgroup", "thread")]
    marks = [w for w in declared if w in ("*", "&", "&&")]
    written = " ".join(declared)
    if "=" in declared:
        yield p.start, 10, "a kernel parameter has no default"
    elif not marks:
        message = f"invalid type '{written}' for input declaration in a kernel function"
        yield p.start, 10, message
    elif spaces not in (["device"], ["constant"]):
        message = f"invalid address space qualification for buffer pointee type '{written}'"
        yield p.start, 10, message
    elif marks not in (["*"], ["&"]) or (marks == ["&"] and spaces == ["device"]):
        yield p.start, 10, f"'{written}': write device T*, constant T* or constant T&"
    elif {"size_t", "ptrdiff_t"} & set(declared):
        yield p.start, 10, f"'{written}': no size_t across the host border"


def host_names(text: Text) -> Iterator[Finding]:
    seen: set[str] = set()
    for instantiation in text.instantiations:
        start = text.index(instantiation.start)
        end = next(i for i in range(start, len(text.tokens)) if text.tokens[i].text == ";")
        listed = [a for i, j in attributes_in(text, start, end) for a in attribute_list(text, i, j)]
        name = dict(listed).get("host_name", "")
        if not name:
            yield instantiation.start, 10, "an instantiation without host_name"
        if name in seen:
            yield instantiation.start, 10, f"host_name {name} is given twice"
        seen.add(name)


def barrier_flags(text: Text) -> Iterator[Finding]:
    for i, token in enumerate(text.tokens[:-1]):
        if token.text in ("threadgroup_barrier", "simdgroup_barrier") and i + 1 in text.partner:
            argument = words(text.tokens[i + 2 : text.partner[i + 1]])
            if not BARRIER_FLAGS.fullmatch(argument):
                yield token.start, 12, f"mem_flags must be literal, not '{argument}'"


def loop_bounds(text: Text) -> Iterator[Finding]:
    for i, token in enumerate(text.tokens[:-1]):
        if token.text not in ("while", "for") or i + 1 not in text.partner:
            continue
        inside = text.tokens[i + 2 : text.partner[i + 1]]
        parts = words(inside).split(";")
        condition = parts[1] if token.text == "for" and len(parts) == 3 else parts[0]
        if condition in ("", "true", "1"):
            yield token.start, 14, "a loop without a bound"


def ascii_only(text: Text) -> Iterator[Finding]:
    for match in re.finditer(r"[^\x00-\x7f]+", text.source):
        yield match.start(), 23, f"not ASCII: {match.group()!r}"


def includes(text: Text) -> Iterator[Finding]:
    for directive in text.directives:
        match = re.match(r'\s*#\s*include\s*[<"]([^>"]*)', directive.text)
        if match and match[1] != "metal_stdlib":
            yield directive.start, 7, f"'{match[1]}' is not a header of Metal"


LINTS = [
    banned_words,
    banned_types,
    float_suffix,
    attribute_names,
    kernel_ids,
    kernel_signature,
    host_names,
    barrier_flags,
    loop_bounds,
    ascii_only,
    includes,
]
