"""The strict Metal check: what stock clang and the lints say about a shader text.

The text is read twice, as C++14 (Metal 3.1 and 3.2) and as C++17 (Metal 4.0), against the header
in `include/`, which declares what Metal has and nothing else. Templates are checked as they are
written and in every instantiation that the text asks for.

Lints have the numbers of the project's table of Metal's rules. Clang itself reports 4, 7, 16 and
17, most of 8, 15 and 25, and whatever is not C++14; such problems carry the rule `clang`.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from clang.cindex import Diagnostic, TranslationUnit

from . import lints_text, lints_tree, uniform
from .text import Text
from .tree import MAIN, Unit, no_collection, parse

# Extensions that Apple's compiler takes at 3.1 (shipped kernels use them).
PERMITTED = ("constexpr if ", "inline variables ", "'static_assert' with no message ")
WARNINGS = {
    "-Wglobal-constructors": 2,
    "-Wvla": 5,
    "-Wvla-cxx-extension": 5,
    "-Wshift-count-overflow": 18,
    "-Wshift-count-negative": 18,
    "-Wdivision-by-zero": 19,
}
NOTES = (
    "in instantiation of function template",
    "candidate template ignored",
    "candidate function not viable",
)
SPACES = {
    "__attribute__((address_space(1)))": "device",
    "const __attribute__((address_space(2)))": "constant",
    "__attribute__((address_space(2)))": "constant",
    "__attribute__((address_space(3)))": "threadgroup",
}


class Problem(NamedTuple):
    file: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: [{self.rule}] {self.message}"


def check(source: str, filename: str) -> list[Problem]:
    """The problems of one text for torch.mps.compile_shader, in the order of its lines."""
    text = Text(source, filename)
    calls = "".join(
        f"auto instance{i} = &{instantiation.callee};\n"
        for i, instantiation in enumerate(text.instantiations)
    )
    # The assertion keeps a text that ends in mid-declaration from reaching into our lines.
    readable = f"{text.for_clang}\nstatic_assert(true);\nvoid instances() {{\n{calls}}}\n"
    tu = parse(readable, "c++14")
    found = [*diagnostics(text, tu), *diagnostics(text, parse(readable, "c++17"))]
    if not text.balanced:
        return unique(text, found)
    for lint in lints_text.LINTS:
        found += numbered(lint(text))
    with no_collection():
        shader = lints_tree.Shader(text, Unit(tu, readable, len(source)))
        found += numbered(lints_tree.findings(shader))
        found += numbered(uniform.findings(shader))
    return unique(text, found)


def numbered(findings: Iterator[lints_text.Finding]) -> Iterator[tuple[int, str, str]]:
    for offset, number, message in findings:
        yield offset, f"lint {number}", message


def unique(text: Text, found: list[tuple[int, str, str]]) -> list[Problem]:
    """One problem per line and rule: instantiations repeat what the template says."""
    problems: dict[tuple[str, int, str], Problem] = {}
    for offset, rule, message in sorted(found, key=lambda finding: finding[0]):
        file, line = text.locate(offset)
        for attribute, name in SPACES.items():
            message = message.replace(attribute, name)
        problems.setdefault((file, line, rule), Problem(file, line, rule, message))
    return list(problems.values())


def diagnostics(text: Text, tu: TranslationUnit) -> list[tuple[int, str, str]]:
    found = []
    for diagnostic in tu.diagnostics:
        offset = place(diagnostic)
        if diagnostic.severity < Diagnostic.Warning or offset is None:
            continue
        rule = rule_of(diagnostic)
        if rule and not own_narrowing(text, diagnostic, offset):
            notes = [n.spelling for n in diagnostic.children if n.spelling.startswith(NOTES)]
            message = "; ".join([diagnostic.spelling, *notes[:1]])
            found.append((offset, rule, re.sub(r" requested here$", "", message)))
    # Our own lines behind the text repeat its faults, or are where clang misses a bracket.
    end = len(text.source)
    within = [finding for finding in found if finding[0] < end]
    return within or [(end - 1, rule, message) for _, rule, message in found]


def rule_of(diagnostic: Diagnostic) -> str:
    """The rule that a diagnostic speaks for, none if Metal permits what it says."""
    option = diagnostic.option
    if option in WARNINGS:
        return f"lint {WARNINGS[option]}"
    if diagnostic.severity < Diagnostic.Error and "extension" in option:
        return "" if diagnostic.spelling.startswith(PERMITTED) else "lint 27"
    return "clang"


def place(diagnostic: Diagnostic) -> int | None:
    """The offset in the text, for a fault inside the header that of the call that led there."""
    for where in (diagnostic, *diagnostic.children):
        if where.location.file is not None and where.location.file.name == MAIN:
            return int(where.location.offset)
    return None


def own_narrowing(text: Text, diagnostic: Diagnostic, offset: int) -> bool:
    """Whether the braces that forbid narrowing stand for the parentheses of a vector."""
    if diagnostic.option != "-Wc++11-narrowing":
        return False
    partner = text.partner
    return any(
        text.tokens[i].start < offset < text.tokens[partner[i]].start
        for i in map(text.index, text.constructor_braces)
    )
