"""Lints that read clang's tree. Each takes (shader, node) and yields (offset, number, message).

WRITTEN lints see every declaration once, templates as they stand in the text. CONCRETE lints see
what has been instantiated, where all types and constants are known.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise

from clang.cindex import Cursor, StorageClass, Type

from .lints_text import Finding, kernels, words
from .text import Text, Token
from .tree import FUNCTIONS, INCLUDE, VECTORS, CursorKind, Node, TypeKind, Unit, key

K = CursorKind
SPACES = ("thread", "device", "constant", "threadgroup")
CONSTANT, THREADGROUP = 2, 3
THREADGROUP_BYTES = 32768
# A thread has 128 registers of 32 bits.
REGISTER_BYTES = 512
POINTERS = {TypeKind.POINTER, TypeKind.LVALUEREFERENCE, TypeKind.RVALUEREFERENCE}
ARRAYS = {TypeKind.CONSTANTARRAY, TypeKind.INCOMPLETEARRAY, TypeKind.DEPENDENTSIZEDARRAY}
BANNED = {
    TypeKind.DOUBLE,
    TypeKind.LONGDOUBLE,
    TypeKind.LONGLONG,
    TypeKind.ULONGLONG,
    TypeKind.INT128,
    TypeKind.UINT128,
    TypeKind.VARIABLEARRAY,
}
SIGNED = {TypeKind.SCHAR, TypeKind.CHAR_S, TypeKind.SHORT, TypeKind.INT, TypeKind.LONG}
UNSIGNED = {
    TypeKind.BOOL,
    TypeKind.UCHAR,
    TypeKind.USHORT,
    TypeKind.UINT,
    TypeKind.ULONG,
}
TEMPLATES = {K.FUNCTION_TEMPLATE, K.CLASS_TEMPLATE, K.CLASS_TEMPLATE_PARTIAL_SPECIALIZATION}
ASSIGNMENTS = {K.BINARY_OPERATOR, K.COMPOUND_ASSIGNMENT_OPERATOR}
UNROLL = re.compile(r"\s*#pragma\s+(?:unroll\b(?!\s*\(?1\b)|clang\s+loop\s+unroll\(full\))")
CONTRACT_OFF = re.compile(r"\s*#pragma\s+(?:METAL|clang)\s+fp\s+contract\(off\)")
# Functions that must not be fused say so by their name.
ERROR_FREE = re.compile(r"two_\w+")

SHIM = (INCLUDE / "metal_stdlib").read_text()
METAL_NAMES = set(re.findall(r"\b([a-z]\w*)\((?:T|V|int|uint)\b", SHIM))
METAL_NAMES |= {"simd" + suffix for suffix in re.findall(r"\bgroup##(_\w+)", SHIM)}
METAL_NAMES |= {"array", "complex", "cross", "fast", "imaginary", "metal", "precise", "vec"}
# Of Metal and C++, then macros of C libraries, compilers and CUDA.
KEYWORDS = re.compile(
    "and|and_eq|bfloat|bitand|bitor|compl|constant|device|fragment|half|kernel|main|not|not_eq|or|"
    "or_eq|quad|restrict|sampler|texture|thread|threadgroup|vertex|xor|xor_eq|"
    "EOF|NULL|assert|blockDim|blockIdx|errno|gridDim|linux|stderr|stdin|stdout|threadIdx|unix|"
    "warpSize"
)
C_FUNCTIONS = {"gamma", "index", "j0", "j1", "jn", "rindex", "signgam", "y0", "y1", "yn"}
LOCAL = {K.PARM_DECL, K.TEMPLATE_TYPE_PARAMETER, K.TEMPLATE_NON_TYPE_PARAMETER}
NAMED = {
    K.VAR_DECL,
    K.PARM_DECL,
    K.FIELD_DECL,
    K.FUNCTION_DECL,
    K.FUNCTION_TEMPLATE,
    K.STRUCT_DECL,
    K.CLASS_DECL,
    K.CLASS_TEMPLATE,
    K.TYPEDEF_DECL,
    K.TYPE_ALIAS_DECL,
    K.ENUM_DECL,
    K.ENUM_CONSTANT_DECL,
    K.NAMESPACE,
    K.TEMPLATE_TYPE_PARAMETER,
    K.TEMPLATE_NON_TYPE_PARAMETER,
}


class Shader:
    """What the lints look at."""

    def __init__(self, text: Text, unit: Unit) -> None:
        self.text = text
        self.unit = unit
        self._variables: dict[Node, dict[tuple[int, int, int], Node]] = {}

    @cached_property
    def kernel_names(self) -> set[str]:
        return {kernel.name for kernel in kernels(self.text)}

    @cached_property
    def unrolled(self) -> set[int]:
        """Offsets of the loops right behind an unroll pragma."""
        pieces = [piece for piece in self.text.pieces if piece.kind != "comment"]
        return {
            after.start
            for piece, after in pairwise(pieces)
            if piece.kind == "directive" and UNROLL.match(piece.text)
        }

    def contraction_off(self, node: Node) -> bool:
        function = node.function or node
        outside = [f for f in self.unit.declarations if f.kind in FUNCTIONS | TEMPLATES]
        return any(
            CONTRACT_OFF.match(d.text)
            and d.start < node.start
            and (d.start > function.start or not any(f.start < d.start < f.end for f in outside))
            for d in self.text.directives
        )

    @cached_property
    def calls(self) -> dict[Node, list[Node]]:
        """The calls of each function of the shader."""
        found: dict[Node, list[Node]] = {}
        for function in self.unit.functions.values():
            for node in function.walk():
                callee = self.unit.callee(node) if node.kind is K.CALL_EXPR else None
                if callee is not None:
                    found.setdefault(callee, []).append(node)
        return found

    def declared(self, start: int, end: int) -> Sequence[Token]:
        """The tokens of a declaration with a leading `thread`, which is nothing to clang."""
        tokens = self.text.tokens
        first = self.text.index(start)
        while first and tokens[first - 1].text == "thread":
            first -= 1
        return tokens[first : self.text.index(end)]

    def variables(self, function: Node) -> dict[tuple[int, int, int], Node]:
        """The variables declared in a function."""
        if function not in self._variables:
            self._variables[function] = {
                key(node.cursor): node for node in function.walk() if node.kind is K.VAR_DECL
            }
        return self._variables[function]

    def from_macro(self, node: Node) -> bool:
        tokens = self.text.between(node.offset, node.offset + 1)
        return bool(tokens) and tokens[0].text == "THREADGROUP_ARRAY"


def element(type_: Type) -> Type:
    while type_.kind in ARRAYS:
        type_ = type_.element_type
    return type_


def space(type_: Type) -> int:
    type_ = type_.get_canonical()
    return int(type_.get_address_space() or element(type_).get_address_space())


def levels(type_: Type) -> int:
    """Pointers and references, but not those to functions, in a type as written."""
    count = 0
    while type_.kind in POINTERS:
        type_ = type_.get_pointee()
        if type_.get_canonical().kind is TypeKind.FUNCTIONPROTO:
            break
        count += 1
    return count


def same_type(a: Type, b: Type) -> bool:
    if a.kind is not b.kind:
        return False
    if a.kind in VECTORS:
        return bool(
            a.element_count == b.element_count and a.element_type.kind is b.element_type.kind
        )
    return True


def pointee_or_self(type_: Type) -> Type:
    return (
        type_.get_pointee() if type_.kind is TypeKind.LVALUEREFERENCE else type_
    ).get_canonical()


# WRITTEN


def explicit_space(shader: Shader, node: Node) -> Iterator[Finding]:
    """1: as many spaces as pointers and references."""
    end = node.offset
    type_ = node.type
    if node.kind in (K.TYPEDEF_DECL, K.TYPE_ALIAS_DECL):
        end = node.end
        type_ = node.cursor.underlying_typedef_type
    elif node.kind in FUNCTIONS | {K.FUNCTION_TEMPLATE}:
        type_ = node.cursor.result_type
    elif node.kind not in (K.VAR_DECL, K.PARM_DECL, K.FIELD_DECL):
        end = node.children[-1].start
    if node.kind is K.PARM_DECL and not node.name:
        end = node.end
    needed = levels(type_)
    if not needed:
        return
    tokens = shader.declared(node.start, end)
    if sum(token.text in SPACES for token in tokens) < needed:
        kind = "pointer" if type_.kind is TypeKind.POINTER else "reference"
        what = words([*tokens[-3:]])
        yield node.start, 1, f"{kind} type must have explicit address space qualifier: '{what}'"


def globals_constant(shader: Shader, node: Node) -> Iterator[Finding]:
    """2"""
    if node.function is None and space(node.type) != CONSTANT:
        yield node.offset, 2, "program scope variable must reside in constant address space"


def local_storage(shader: Shader, node: Node) -> Iterator[Finding]:
    """3"""
    banned = (StorageClass.STATIC, StorageClass.EXTERN)
    if node.function and node.cursor.storage_class in banned and not shader.from_macro(node):
        yield node.offset, 3, "variables in function scope cannot be declared static or extern"


def lambdas(shader: Shader, node: Node) -> Iterator[Finding]:
    """3"""
    yield node.start, 3, "lambda expressions are not supported in Metal"


def banned_type(shader: Shader, node: Node) -> Iterator[Finding]:
    """5"""
    type_ = node.canonical
    if type_.kind in BANNED or element(type_).kind in BANNED:
        yield node.offset, 5, f"'{node.type.spelling}' is not supported in Metal"


def threadgroup_array(shader: Shader, node: Node) -> Iterator[Finding]:
    """11: where and how; the sum is counted per instantiation."""
    function = node.function
    if function is None or space(node.type) != THREADGROUP:
        return
    if function.name not in shader.kernel_names:
        yield node.offset, 11, f"threadgroup variable '{node.name}' outside a kernel"
    if not shader.from_macro(node):
        yield node.offset, 11, f"declare '{node.name}' by THREADGROUP_ARRAY"
        return
    text = shader.text
    end = text.partner[text.index(node.offset) + 1]
    if text.tokens[end + 1].text != ";":
        yield node.offset, 11, f"threadgroup variable '{node.name}' has an initialiser"


def return_in_switch(shader: Shader, node: Node) -> Iterator[Finding]:
    """14"""
    if any(above.kind is K.SWITCH_STMT for above in node.above()):
        yield node.start, 14, "return inside a switch crashes Apple's compiler"


def special_members(shader: Shader, node: Node) -> Iterator[Finding]:
    """21"""
    parent = node.parent
    if parent is None or parent.kind not in TEMPLATES | {K.STRUCT_DECL, K.CLASS_DECL}:
        return
    text = shader.text
    constructor = (
        node.kind in (K.CONSTRUCTOR, K.DESTRUCTOR) or node.name.split("<")[0] == parent.name
    )
    if constructor or node.kind is K.CONVERSION_FUNCTION or node.name == "operator=":
        yield node.offset, 21, f"'{node.name}' needs one overload per address space: use a function"
        return
    i = text.index(node.offset) + 1
    while text.tokens[i].text != "(" or text.tokens[i - 1].text == "operator":
        i += 1
    i = text.partner[i] + 1
    qualifiers = []
    while text.tokens[i].text not in ("{", ";", "="):
        qualifiers.append(text.tokens[i].text)
        i += 1
    if "thread" not in qualifiers and not node.cursor.is_static_method():
        yield node.offset, 21, f"member function '{node.name}' must end in 'thread'"


def names(shader: Shader, node: Node) -> Iterator[Finding]:
    """22"""
    name = node.name
    if KEYWORDS.fullmatch(name):
        yield node.offset, 22, f"'{name}' is a keyword or macro of some engine"
    elif node.kind in LOCAL or node.function is not None or in_struct(node):
        return  # Hides the library's name, as in any C++.
    elif name in METAL_NAMES:
        yield node.offset, 22, f"'{name}' is a name of the Metal library"
    elif name in C_FUNCTIONS:
        yield node.offset, 22, f"'{name}' is a function of the C library"


def in_struct(node: Node) -> bool:
    structs = (K.STRUCT_DECL, K.CLASS_TEMPLATE, K.CLASS_TEMPLATE_PARTIAL_SPECIALIZATION)
    return any(above.kind in structs for above in node.above())


def array_parameter(shader: Shader, node: Node) -> Iterator[Finding]:
    """25"""
    tokens = [token.text for token in shader.text.between(node.offset, node.end)]
    declared = shader.text.between(node.start, node.offset)
    if "(" not in [token.text for token in declared] and tokens.count("[") > 1:
        yield node.offset, 25, f"array parameter '{node.name}' must be flat or a reference"


WRITTEN: dict[CursorKind, list[Callable[[Shader, Node], Iterator[Finding]]]] = {
    K.VAR_DECL: [explicit_space, globals_constant, local_storage, banned_type, threadgroup_array],
    K.PARM_DECL: [explicit_space, banned_type, array_parameter],
    K.FIELD_DECL: [explicit_space, banned_type],
    K.TYPEDEF_DECL: [explicit_space],
    K.TYPE_ALIAS_DECL: [explicit_space],
    K.FUNCTION_DECL: [explicit_space],
    K.FUNCTION_TEMPLATE: [explicit_space, special_members],
    K.CXX_METHOD: [explicit_space, special_members],
    K.CONSTRUCTOR: [special_members],
    K.DESTRUCTOR: [special_members],
    K.CONVERSION_FUNCTION: [special_members],
    K.CSTYLE_CAST_EXPR: [explicit_space],
    K.CXX_REINTERPRET_CAST_EXPR: [explicit_space],
    K.CXX_STATIC_CAST_EXPR: [explicit_space],
    K.LAMBDA_EXPR: [lambdas],
    K.RETURN_STMT: [return_in_switch],
}
for kind in NAMED:
    WRITTEN.setdefault(kind, []).append(names)


# CONCRETE


def space_cast(shader: Shader, node: Node) -> Iterator[Finding]:
    """1: stock clang lets a cast cross spaces."""
    operand = node.children[-1].written
    if node.canonical.kind is TypeKind.POINTER and operand.canonical.kind in POINTERS | ARRAYS:
        source = operand.canonical
        source_space = space(source.get_pointee() if source.kind in POINTERS else source)
        if source_space != space(node.canonical.get_pointee()):
            yield (
                node.start,
                1,
                f"cast from '{operand.type.spelling}' to '{node.type.spelling}' "
                "changes address space",
            )


def deduced_space(shader: Shader, node: Node) -> Iterator[Finding]:
    """1: stock clang deduces T = device float for `thread T&`."""
    if node.canonical.kind not in POINTERS or not space(node.canonical.get_pointee()):
        return
    spaces = {t.text for t in shader.declared(node.start, node.offset)} & set(SPACES)
    if spaces == {"thread"}:
        yield node.start, 1, f"'{node.name}' is bound to '{node.type.spelling}'"


def array_size(shader: Shader, node: Node) -> Iterator[Finding]:
    """11 and 26: element type of threadgroup arrays, size of private ones."""
    type_ = node.canonical
    if type_.kind is not TypeKind.CONSTANTARRAY or node.function is None:
        return
    if space(type_) == THREADGROUP and element(type_).kind is TypeKind.BOOL:
        yield node.offset, 11, f"threadgroup bool '{node.name}' is miscompiled: use uint"
    elif space(type_) == 0 and type_.get_size() > REGISTER_BYTES:
        size = type_.get_size()
        yield node.offset, 26, f"private array '{node.name}' of {size} bytes exceeds the registers"


def library_function(node: Node) -> Cursor | None:
    """The Metal function that a call refers to, with its overload."""
    function = node.referenced
    if function is None or function.kind is not K.FUNCTION_DECL:
        return None
    if function.location.file is None or function.location.file.name != str(
        INCLUDE / "metal_stdlib"
    ):
        return None
    return function


def argument_types(shader: Shader, node: Node) -> Iterator[Finding]:
    """8, 15, 24: arguments of library functions have the declared types without conversion."""
    function = library_function(node)
    if function is None:
        return
    name = function.spelling
    declared = list(function.type.argument_types())
    arguments = node.children[1 : 1 + len(declared)]
    if re.match("(simd|quad)_", name):
        yield from lane_argument(node, name, arguments, declared)
        return
    if name.startswith(("simdgroup_", "operator")):
        return
    for argument, type_ in zip(arguments, declared, strict=False):
        written = argument.written
        plain = pointee_or_self(type_)
        reference = type_.kind is TypeKind.LVALUEREFERENCE
        target = written
        if name.startswith("atomic_compare") and written.kind is K.UNARY_OPERATOR:
            reference, target = True, written.children[0].written
        if reference and (target.kind is not K.DECL_REF_EXPR or target.canonical.kind in ARRAYS):
            yield argument.start, 24, f"the reference of {name} takes a plain local variable"
        elif plain.kind is not TypeKind.POINTER and not same_type(written.canonical, plain):
            yield (
                argument.start,
                8,
                f"{name} takes '{plain.spelling}' here, not '{written.type.spelling}'",
            )


def lane_argument(
    node: Node, name: str, arguments: list[Node], declared: list[Type]
) -> Iterator[Finding]:
    for argument, type_ in zip(arguments, declared, strict=False):
        written = argument.written.canonical.kind
        if type_.get_canonical().kind is TypeKind.BOOL and written is not TypeKind.BOOL:
            yield argument.start, 15, f"{name} takes a bool"
        elif type_.spelling == "ushort" and argument is not arguments[0]:
            integers = SIGNED | UNSIGNED - {TypeKind.BOOL}
            if written not in integers or (
                argument.value is not None and not 0 <= argument.value < 32
            ):
                yield argument.start, 15, f"the lane of {name} is a ushort below 32"


def vector_condition(shader: Shader, node: Node) -> Iterator[Finding]:
    """16: stock clang takes ?: with a vector as an elementwise select."""
    if node.children[0].written.canonical.kind in VECTORS:
        yield node.start, 16, "a vector is not contextually convertible to 'bool'"


def masked(count: Node, width: int) -> bool:
    if count.kind is not K.BINARY_OPERATOR:
        return False
    bounds = [side.value for side in count.children]
    if count.operator == "&":
        return any(bound is not None and 0 <= bound < width for bound in bounds)
    return count.operator == "%" and bounds[1] is not None and 0 < bounds[1] <= width


def shift_count(shader: Shader, node: Node) -> Iterator[Finding]:
    """18"""
    if node.operator not in ("<<", ">>", "<<=", ">>="):
        return
    value, count = node.children
    width = 64 if value.canonical.kind in (TypeKind.LONG, TypeKind.ULONG) else 32
    if count.value is None:
        if not masked(count.written, width):
            yield node.start, 18, f"mask the shift count: & {width - 1}u"
    elif not 0 <= count.value < width:
        yield node.start, 18, f"shift by {count.value} of {width} bits"


def not_negative(shader: Shader, operand: Node, seen: frozenset[Node] = frozenset()) -> bool:
    """Whether an integer is surely >= 0: by its type, its parts, its loop or its callers."""
    if operand.value is not None:
        return operand.value >= 0
    node = operand.written
    if node.canonical.kind in UNSIGNED:
        return True
    if node.kind is K.BINARY_OPERATOR and node.operator in ("+", "*", "/", "%", ">>", "&"):
        return all(not_negative(shader, side, seen) for side in node.children)
    function = node.function
    if node.kind is not K.DECL_REF_EXPR or node.referenced is None or function is None:
        return False
    variable = key(node.referenced)
    declaration = shader.variables(function).get(variable)
    if declaration in seen:
        return False
    if declaration is not None:
        start = declaration.children[-1:]
        return (
            bool(start)
            and not_negative(shader, start[0], seen | {declaration})
            and (
                declaration.type.is_const_qualified()
                or loop_stays_positive(shader, declaration, seen)
            )
        )
    parameters = [child for child in function.children if child.kind is K.PARM_DECL]
    for i, parameter in enumerate(parameters):
        if key(parameter.cursor) == variable and parameter not in seen:
            calls = shader.calls.get(function, [])
            return bool(calls) and all(
                not_negative(shader, call.children[i - len(parameters)], seen | {parameter})
                for call in calls
            )
    return False


def loop_stays_positive(shader: Shader, declaration: Node, seen: frozenset[Node]) -> bool:
    """Whether the variable of a for loop only grows from its start, or is compared with 0."""
    statement = declaration.parent
    loop = statement.parent if statement else None
    if loop is None or loop.kind is not K.FOR_STMT or loop.children[0] is not statement:
        return False
    condition, *rest = loop.children[1:]
    if condition.kind is K.BINARY_OPERATOR and condition.operator in (">", ">="):
        bound = condition.children[1].value
        return bound is not None and bound >= 0
    change = rest[0]
    if change.kind is K.UNARY_OPERATOR:
        return any(t.text == "++" for t in shader.text.between(change.start, change.end))
    return (
        change.kind is K.COMPOUND_ASSIGNMENT_OPERATOR
        and change.operator in ("+=", "*=", "/=", ">>=")
        and not_negative(shader, change.children[1], seen | {declaration})
    )


def signed_division(shader: Shader, node: Node) -> Iterator[Finding]:
    """19"""
    if node.operator not in ("/", "%", "/=", "%="):
        return
    left, right = node.children
    if node.canonical.kind not in SIGNED | UNSIGNED:
        return
    if right.value == 0:
        yield node.start, 19, f"'{node.operator}' by zero"
    elif left.canonical.kind in SIGNED and not (
        not_negative(shader, left) and not_negative(shader, right)
    ):
        yield node.start, 19, f"'{node.operator}' on signed values that may be negative: use uint"


def product(node: Node) -> Node | None:
    node = node.written
    return node if node.kind is K.BINARY_OPERATOR and node.operator == "*" else None


def is_floating(type_: Type) -> bool:
    type_ = type_.element_type if type_.kind in VECTORS else type_
    return type_.kind in (TypeKind.FLOAT, TypeKind.HALF)


def contraction(shader: Shader, node: Node) -> Iterator[Finding]:
    """20: the error of a product or any product of a two_* function, when it may be fused.

    Errors of products written in another way are left to the accuracy tests.
    """
    if node.operator not in ("+", "-") or not is_floating(node.canonical):
        return
    text = shader.text
    function = node.function
    for factor, other in (node.children, reversed(node.children)):
        found = product(factor)
        if found is None or function is None:
            continue
        spelled = words(text.between(found.start, found.end))
        rounded = other.written
        error = rounded.kind is K.DECL_REF_EXPR and spelled in products_of(
            text, function, rounded.name
        )
        if (error or ERROR_FREE.match(function.name)) and not shader.contraction_off(node):
            yield node.start, 20, f"'{spelled}' is fused here: write fma or switch contraction off"


def products_of(text: Text, function: Node, variable: str) -> Iterator[str]:
    """The products, as written, that a local variable is set to."""
    for node in function.walk():
        if node.kind is K.VAR_DECL and node.name == variable and node.children:
            found = product(node.children[-1])
        elif (
            node.kind is K.BINARY_OPERATOR
            and node.operator == "="
            and node.children[0].written.name == variable
        ):
            found = product(node.children[1])
        else:
            continue
        if found:
            yield words(text.between(found.start, found.end))


def static_index(shader: Shader, node: Node, seen: frozenset[str] = frozenset()) -> bool:
    """Whether an expression is a constant once the marked loops are unrolled.

    A parameter of a helper is taken for one, and so is the result of a function of constants: they
    are constants after inlining.
    """
    if node.value is not None:
        return True
    for inner in node.walk():
        if inner.kind in (K.ARRAY_SUBSCRIPT_EXPR, K.MEMBER_REF_EXPR):
            return False
        if inner.kind is not K.DECL_REF_EXPR or inner.value is not None:
            continue
        target = inner.referenced
        if target is None or not static_variable(shader, node, target, seen):
            return False
    return True


def static_variable(shader: Shader, node: Node, target: Cursor, seen: frozenset[str]) -> bool:
    function = node.function
    if target.kind is K.FUNCTION_DECL:
        return True
    if function is None or target.spelling in seen:
        return False
    if target.kind is K.PARM_DECL:
        return function.name not in shader.kernel_names
    declaration = shader.variables(function).get(key(target))
    if declaration is None or not declaration.children:
        return False
    seen = seen | {target.spelling}
    statement = declaration.parent
    loop = statement.parent if statement else None
    start = static_index(shader, declaration.children[-1], seen)
    if loop and loop.kind is K.FOR_STMT and loop.children[0] is statement:
        ends = loop.children[1].children
        return (
            start
            and loop.start in shader.unrolled
            and any(static_index(shader, end, seen) for end in ends)
        )
    return start and bool(declaration.type.is_const_qualified())


def private_index(shader: Shader, node: Node) -> Iterator[Finding]:
    """26"""
    array, index = node.children
    type_ = array.written.canonical
    base = array.written
    while base.kind is K.ARRAY_SUBSCRIPT_EXPR:
        base = base.children[0].written
    private = type_.kind is TypeKind.CONSTANTARRAY and space(type_) == 0
    if private and not static_index(shader, index):
        yield (
            node.start,
            26,
            f"index of the private array '{base.name}' is not a constant after unrolling",
        )


def host_structs(shader: Shader, node: Node) -> Iterator[Finding]:
    """28"""
    if node.name not in shader.kernel_names:
        return
    for parameter in node.cursor.get_arguments():
        type_ = parameter.type.get_canonical()
        if type_.kind in POINTERS:
            yield from host_fields(type_.get_pointee())


def host_fields(struct: Type) -> Iterator[Finding]:
    if struct.kind is not TypeKind.RECORD:
        return
    for field in struct.get_fields():
        type_ = element(field.type.get_canonical())
        yield from host_fields(type_)
        size_type = re.search(r"\b(size_t|ptrdiff_t)\b", field.type.spelling)
        three = type_.kind in VECTORS and type_.element_count == 3
        if type_.kind is TypeKind.BOOL or three or size_type:
            yield (
                field.location.offset,
                28,
                f"'{field.type.spelling} {field.spelling}' has another layout on the host",
            )


CONCRETE: dict[CursorKind, list[Callable[[Shader, Node], Iterator[Finding]]]] = {
    K.CSTYLE_CAST_EXPR: [space_cast],
    K.CXX_REINTERPRET_CAST_EXPR: [space_cast],
    K.PARM_DECL: [deduced_space],
    K.VAR_DECL: [array_size],
    K.CALL_EXPR: [argument_types],
    K.CONDITIONAL_OPERATOR: [vector_condition],
    K.BINARY_OPERATOR: [shift_count, signed_division, contraction],
    K.COMPOUND_ASSIGNMENT_OPERATOR: [shift_count, signed_division],
    K.ARRAY_SUBSCRIPT_EXPR: [private_index],
    K.FUNCTION_DECL: [host_structs],
}


def threadgroup_sum(shader: Shader) -> Iterator[Finding]:
    """11: bytes of threadgroup memory of each kernel, in steps of 16."""
    for name, function in shader.unit.kernels(shader.kernel_names):
        arrays = [
            node
            for node in function.walk()
            if node.kind is K.VAR_DECL and space(node.type) == THREADGROUP
        ]
        total = sum(-(-node.canonical.get_size() // 16) * 16 for node in arrays)
        if total > THREADGROUP_BYTES:
            yield (
                arrays[0].offset,
                11,
                f"{name}: threadgroup memory size ({total}) exceeds the maximum "
                f"threadgroup memory allowed ({THREADGROUP_BYTES})",
            )


def recursion(shader: Shader) -> Iterator[Finding]:
    """3"""
    done: set[Node] = set()
    path: list[Node] = []

    def visit(function: Node) -> Iterator[Finding]:
        path.append(function)
        for node in function.walk():
            callee = shader.unit.callee(node) if node.kind is K.CALL_EXPR else None
            if callee in path:
                yield node.start, 3, f"'{node.name}' calls itself"
            elif callee and callee not in done:
                yield from visit(callee)
        done.add(path.pop())

    for function in shader.unit.functions.values():
        if function not in done:
            yield from visit(function)


def outside_templates(top: Node) -> Iterator[Node]:
    stack = [top]
    while stack:
        node = stack.pop()
        if node.kind not in TEMPLATES:
            yield node
            stack.extend(reversed(node.children))


def findings(shader: Shader) -> Iterator[Finding]:
    unit = shader.unit
    for top in unit.declarations:
        for node in top.walk():
            for lint in WRITTEN.get(node.kind, ()):
                yield from lint(shader, node)
        for node in outside_templates(top):
            for lint in CONCRETE.get(node.kind, ()):
                yield from lint(shader, node)
    for instance in unit.instances:
        for node in instance.walk():
            for lint in CONCRETE.get(node.kind, ()):
                yield from lint(shader, node)
    yield from threadgroup_sum(shader)
    yield from recursion(shader)
