"""Shader text: tokens, the line map of its #line directives, and its reading for stock clang."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<directive>(?<![^\n])[ \t]*\#(?:\\\n|[^\n])*)
      | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      | (?P<number>\.?\d(?:[eEpP][+-]|[\w.']|(?<=')\w)*)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<mark>::|->|\+\+|--|<<=|>>=|<<|&&|\|\||[-+*/%&|^=!<>]=|[^\s\w])""",
    re.X | re.S,
)
LINE = re.compile(r'\s*#\s*line\s+(\d+)(?:\s+"([^"]*)")?')
OPENERS = {"(": ")", "[": "]", "{": "}"}
VECTOR = re.compile(r"(?:char|uchar|short|ushort|int|uint|long|ulong|half|float)[234]")


class Token(NamedTuple):
    text: str
    start: int
    end: int
    kind: str


class Instantiation(NamedTuple):
    """`template [[host_name("n")]] [[kernel]] decltype(callee) callee;`"""

    callee: str
    start: int


class Text:
    """One shader as handed to compile_shader, with everything located by byte offset."""

    def __init__(self, source: str, filename: str) -> None:
        self.source = source
        self.filename = filename
        self.pieces = [
            Token(match.group(), match.start(), match.end(), str(match.lastgroup))
            for match in TOKEN.finditer(source)
        ]
        self.tokens = [t for t in self.pieces if t.kind not in ("comment", "directive")]
        self.tokens.append(Token("", len(source), len(source), "end"))
        self.directives = [t for t in self.pieces if t.kind == "directive"]
        self._starts = [t.start for t in self.tokens]
        self._newlines = [m.start() for m in re.finditer("\n", source)]
        self._line_map = [(0, 1, filename)]
        for directive in self.directives:
            if match := LINE.match(directive.text):
                name = match[2] or self._line_map[-1][2]
                self._line_map.append((self._row(directive.start) + 1, int(match[1]), name))

    def _row(self, offset: int) -> int:
        return bisect_right(self._newlines, offset - 1)

    def locate(self, offset: int) -> tuple[str, int]:
        """File and line of an offset, as the #line directives name them."""
        row = self._row(offset)
        start, line, name = self._line_map[bisect_right(self._line_map, (row, 1 << 60)) - 1]
        return name, row - start + line

    def index(self, offset: int) -> int:
        """Index of the first token that starts at the offset or after it."""
        return bisect_right(self._starts, offset - 1)

    def between(self, start: int, end: int) -> Sequence[Token]:
        return self.tokens[self.index(start) : self.index(end)]

    @cached_property
    def balanced(self) -> bool:
        """Whether every bracket has its partner, without which only clang can read the text."""
        brackets = [*OPENERS, *OPENERS.values()]
        return len(self.partner) == sum(token.text in brackets for token in self.tokens)

    @cached_property
    def partner(self) -> dict[int, int]:
        """Index of the closing bracket of every opening one, and the other way round."""
        stack: list[int] = []
        pairs: dict[int, int] = {}
        for i, token in enumerate(self.tokens):
            if token.text in OPENERS:
                stack.append(i)
            elif stack and token.text == OPENERS[self.tokens[stack[-1]].text]:
                pairs[i] = stack.pop()
                pairs[pairs[i]] = i
        return pairs

    def angle_partner(self, i: int) -> int | None:
        """Index of the `>` that closes the `<` at index i of a template argument list."""
        depth = 0
        while i < len(self.tokens):
            word = self.tokens[i].text
            if word in OPENERS:
                i = self.partner.get(i, len(self.tokens))
            elif word == "<":
                depth += 1
            elif word == ">":
                depth -= 1
                if depth == 0:
                    return i
            elif word in (";", "}"):
                return None
            i += 1
        return None

    def split(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Ranges of tokens between the commas of a list, brackets of all kinds respected."""
        first = i = start
        while i < end:
            word = self.tokens[i].text
            if word in OPENERS:
                i = self.partner.get(i, end)
            elif word == "<":
                i = self.angle_partner(i) or i
            elif word == ",":
                yield first, i
                first = i + 1
            i += 1
        if first < end:
            yield first, end

    @cached_property
    def type_names(self) -> set[str]:
        """Type parameters and aliases: names that may stand for a scalar or a vector."""
        names = set()
        for i, token in enumerate(self.tokens[:-2]):
            after = self.tokens[i + 1]
            if token.text in ("typename", "class") and after.kind == "name":
                if self.tokens[i + 2].text in (",", ">", "="):
                    names.add(after.text)
            elif token.text == "using" and self.tokens[i + 2].text == "=":
                names.add(after.text)
            elif token.text == "typedef":
                end = next(j for j in range(i, len(self.tokens)) if self.tokens[j].text == ";")
                names.add(self.tokens[end - 1].text)
        return names

    @cached_property
    def instantiations(self) -> list[Instantiation]:
        found = []
        for i, token in enumerate(self.tokens if self.balanced else []):
            if token.text != "template" or self.tokens[i + 1].text not in ("[", "decltype"):
                continue
            j = i + 1
            while self.tokens[j].text == "[":
                j = self.partner[j] + 1
            if self.tokens[j].text == "decltype":
                inside = slice(self.tokens[j + 1].end, self.tokens[self.partner[j + 1]].start)
                found.append(Instantiation(self.source[inside], token.start))
        return found

    @cached_property
    def constructor_braces(self) -> set[int]:
        """Offsets of the parentheses of `float2(a, b)`, which stock clang only takes as braces."""
        offsets: set[int] = set()
        for i, token in enumerate(self.tokens[:-1]):
            if not (VECTOR.fullmatch(token.text) or token.text in self.type_names | {"vec"}):
                continue
            after: int | None = i + 1
            if self.tokens[i + 1].text == "<":
                angle = self.angle_partner(i + 1)
                after = angle + 1 if angle else None
            if after is None or after >= len(self.tokens) or self.tokens[after].text != "(":
                continue
            end = self.partner.get(after)
            if end and len(list(self.split(after + 1, end))) > 1:
                offsets |= {self.tokens[after].start, self.tokens[end].start}
        return offsets

    @cached_property
    def for_clang(self) -> str:
        """The same text, byte for byte in place, in the spelling that stock clang takes."""
        out = list(self.source)
        for directive in self.directives:
            text = directive.text
            if re.match(r"\s*#\s*define\s+THREADGROUP_ARRAY\b", text):
                text = re.sub(r"\bthreadgroup\b", "tg_variable", text)
            text = re.sub(r"#pragma METAL fp\b", "#pragma clang fp", text)
            out[directive.start : directive.end] = text
        for instantiation in self.instantiations:
            i = self.index(instantiation.start) + 1
            while self.tokens[i].text == "[":
                end = self.partner[i]
                blank = slice(self.tokens[i].start, self.tokens[end].end)
                out[blank] = " " * (blank.stop - blank.start)
                i = end + 1
        for offset in self.constructor_braces:
            out[offset] = {"(": "{", ")": "}"}[self.source[offset]]
        return "".join(out)
