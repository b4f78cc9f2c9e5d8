"""A libclang translation unit as a light tree: one cheap visit, properties asked only where used.

A function template stands in the tree as written. Its instantiations are reachable only through
references to them; `Unit.instances` collects those that are reached from what is instantiated.
"""

import atexit
import ctypes
import gc
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path

from clang.cindex import Cursor, CursorKind, Index, TranslationUnit, Type, TypeKind, callbacks, conf

INCLUDE = Path(__file__).parent / "include"
MAIN = "program_source"
FLAGS = [
    "-cl-single-precision-constant",
    "-fno-exceptions",
    "-fno-rtti",
    "-flax-vector-conversions=none",
    "-ferror-limit=0",
    "-target",
    "x86_64-unknown-linux-gnu",
    "-nostdinc",
    f"-I{INCLUDE}",
    "-Wvla",
    "-Wglobal-constructors",
    "-Wno-unknown-attributes",
    "-Wno-unknown-pragmas",
    "-Wno-duplicate-decl-specifier",
    "-Wno-unused-value",
]
FUNCTIONS = {
    CursorKind.FUNCTION_DECL,
    CursorKind.CXX_METHOD,
    CursorKind.CONSTRUCTOR,
    CursorKind.CONVERSION_FUNCTION,
}
REFERENCES = {CursorKind.DECL_REF_EXPR, CursorKind.MEMBER_REF_EXPR}
TRANSPARENT = {CursorKind.UNEXPOSED_EXPR, CursorKind.PAREN_EXPR}
VECTORS = {TypeKind.VECTOR, TypeKind.EXTVECTOR}
INTEGER_RESULT = 1
RECURSE = 2
KINDS = {kind.value: kind for kind in CursorKind.get_all_kinds()}
# Kinds that libclang has and its Python package does not: _Float16 and __bf16 of the header.
for number in (32, 39):
    if number >= len(TypeKind._kinds) or TypeKind._kinds[number] is None:
        TypeKind(number)

lib = conf.lib
lib.clang_Cursor_Evaluate.argtypes = [Cursor]
lib.clang_Cursor_Evaluate.restype = ctypes.c_void_p
lib.clang_EvalResult_getKind.argtypes = [ctypes.c_void_p]
lib.clang_EvalResult_getAsLongLong.argtypes = [ctypes.c_void_p]
lib.clang_EvalResult_getAsLongLong.restype = ctypes.c_longlong
lib.clang_EvalResult_dispose.argtypes = [ctypes.c_void_p]
lib.clang_getCursorBinaryOperatorKind.argtypes = [Cursor]
lib.clang_getBinaryOperatorKindSpelling.argtypes = [ctypes.c_int]
lib.clang_getBinaryOperatorKindSpelling.restype = lib.clang_getCursorSpelling.restype
lib.clang_getBinaryOperatorKindSpelling.errcheck = lib.clang_getCursorSpelling.errcheck
lib.clang_Location_isFromMainFile.argtypes = lib.clang_equalLocations.argtypes[:1]


def key(cursor: Cursor) -> tuple[int, int, int]:
    data = cursor.data
    return cursor._kind_id, data[0] or 0, data[1] or 0


class Node:
    """A cursor with its parent, its children and the preorder of the tree it belongs to."""

    def __init__(self, cursor: Cursor, parent: "Node | None") -> None:
        self.cursor = cursor
        self.kind: CursorKind = KINDS[cursor._kind_id]
        self.parent = parent
        self.children: list[Node] = []
        self._order: list[Node] = parent._order if parent else []
        self._first = len(self._order)
        self._last = 0
        self._order.append(self)

    @property
    def type(self) -> Type:
        """The type as written."""
        return self.cursor.type

    @cached_property
    def canonical(self) -> Type:
        return self.cursor.type.get_canonical()

    @property
    def name(self) -> str:
        return str(self.cursor.spelling)

    @cached_property
    def start(self) -> int:
        return int(self.cursor.extent.start.offset)

    @cached_property
    def end(self) -> int:
        return int(self.cursor.extent.end.offset)

    @property
    def offset(self) -> int:
        """Where the name of a declaration stands, else the start."""
        return int(self.cursor.location.offset)

    @cached_property
    def referenced(self) -> Cursor | None:
        return lib.clang_getCursorReferenced(self.cursor)

    @cached_property
    def operator(self) -> str:
        kind = lib.clang_getCursorBinaryOperatorKind(self.cursor)
        return str(lib.clang_getBinaryOperatorKindSpelling(kind))

    @cached_property
    def value(self) -> int | None:
        """The value of an integer constant expression."""
        result = lib.clang_Cursor_Evaluate(self.cursor)
        if not result:
            return None
        integer = lib.clang_EvalResult_getKind(result) == INTEGER_RESULT
        value = lib.clang_EvalResult_getAsLongLong(result) if integer else None
        lib.clang_EvalResult_dispose(result)
        return value

    @property
    def written(self) -> "Node":
        """The expression without implicit conversions and parentheses."""
        node = self
        while node.kind in TRANSPARENT and len(node.children) == 1:
            child = node.children[0]
            if child.canonical.kind in VECTORS and node.canonical.kind not in VECTORS:
                break  # A component.
            node = child
        return node

    def walk(self) -> "list[Node]":
        """This node and all below it, as they stand in the text."""
        return self._order[self._first : self._last]

    def above(self) -> Iterator["Node"]:
        node = self.parent
        while node:
            yield node
            node = node.parent

    @property
    def function(self) -> "Node | None":
        """The function or function template round this node."""
        kinds = FUNCTIONS | {CursorKind.FUNCTION_TEMPLATE}
        return next((node for node in self.above() if node.kind in kinds), None)


def build(root: Node, tu: TranslationUnit) -> Node:
    """Fill in everything below root."""
    stack = [(key(root.cursor), root)]

    def visit(cursor: Cursor, parent: Cursor, _: object) -> int:
        cursor._tu = tu
        above, own = key(parent), key(cursor)
        while len(stack) > 1 and stack[-1][0] != above:
            close(stack.pop()[1])
        if own != above:  # A constant expression comes twice, once as its own child.
            node = Node(cursor, stack[-1][1])
            stack[-1][1].children.append(node)
            stack.append((own, node))
        return RECURSE

    def close(node: Node) -> None:
        node._last = len(node._order)

    lib.clang_visitChildren(root.cursor, callbacks["cursor_visit"](visit), None)
    for _, node in stack:
        close(node)
    return root


def in_main_file(cursor: Cursor) -> bool:
    return bool(lib.clang_Location_isFromMainFile(cursor.location))


@cache
def index() -> Index:
    return Index.create()


@cache
def standard_library(standard: str) -> str:
    """The shim as a precompiled header that lives as long as this process."""
    folder = tempfile.mkdtemp(prefix="strict-metal-")
    atexit.register(shutil.rmtree, folder)
    path = f"{folder}/metal_stdlib.pch"
    arguments = ["-x", "c++-header", f"-std={standard}", *FLAGS]
    index().parse(str(INCLUDE / "metal_stdlib"), arguments).save(path)
    return path


def parse(source: str, standard: str) -> TranslationUnit:
    header = standard_library(standard)
    arguments = ["-x", "c++", f"-std={standard}", *FLAGS, "-include-pch", header]
    return index().parse(MAIN, arguments, unsaved_files=[(MAIN, source)])


@contextmanager
def no_collection() -> Iterator[None]:
    """Nothing of a tree is garbage while it grows; looking for some takes as long as growing it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Unit:
    """The declarations of a shader and the functions instantiated from them.

    The first `length` characters of the source are the shader: what stands behind it only refers
    to the instantiations.
    """

    def __init__(self, tu: TranslationUnit, source: str, length: int) -> None:
        self.tu = tu
        self.source = source
        self.declarations: list[Node] = []
        self.instances: list[Node] = []
        self.functions: dict[tuple[int, int, int], Node] = {}
        roots: list[Node] = []
        for cursor in tu.cursor.get_children():
            if in_main_file(cursor):
                node = build(Node(cursor, None), tu)
                (self.declarations if node.start < length else roots).append(node)
        for node in self.declarations:
            for inner in node.walk():
                if inner.kind in FUNCTIONS:
                    self.functions[key(inner.cursor)] = inner
        self._follow(self.declarations + roots)
        self._roots = roots

    def kernels(self, names: set[str]) -> Iterator[tuple[str, Node]]:
        """Every kernel that is launched: those without template parameters, then instantiations."""
        for node in self.declarations:
            if node.kind is CursorKind.FUNCTION_DECL and node.name in names:
                yield node.name, node
        for root in self._roots:
            for node in root.walk():
                if node.kind is CursorKind.DECL_REF_EXPR and (function := self.callee(node)):
                    yield self.source[node.start : node.end], function

    def _follow(self, nodes: list[Node]) -> None:
        todo = list(nodes)
        while todo:
            for node in todo.pop().walk():
                if node.kind not in REFERENCES:
                    continue
                target = self.definition(node)
                if target is None or key(target) in self.functions:
                    continue
                instance = build(Node(target, None), self.tu)
                self.functions[key(target)] = instance
                self.instances.append(instance)
                todo.append(instance)

    def definition(self, node: Node) -> Cursor | None:
        """The definition, in the shader, of the function that an expression refers to."""
        target = node.referenced
        if target is None or KINDS[target._kind_id] not in FUNCTIONS:
            return None
        target = lib.clang_getCursorDefinition(target)
        return target if target is not None and in_main_file(target) else None

    def callee(self, node: Node) -> Node | None:
        target = self.definition(node)
        return None if target is None else self.functions.get(key(target))


__all__ = [
    "INCLUDE",
    "MAIN",
    "VECTORS",
    "CursorKind",
    "Node",
    "TypeKind",
    "Unit",
    "key",
    "no_collection",
    "parse",
]
