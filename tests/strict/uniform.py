"""Lint 13: barriers and simd functions stand where every thread arrives.

Each value carries the set of what it depends on: THREAD (differs within a simdgroup), TID (the
linear index in the threadgroup: the same, but tid / 32 and tid < 64 do not), SIMDGROUP (differs
between simdgroups), or Own, a parameter of the function it is in. Calls are followed
through a summary of the callee, control flow through the conditions round a statement and those of
the returns and breaks before it. In a kernel every return above a barrier is reported, be its
condition uniform or not: Apple's compiler may lose the barrier.

What memory holds counts as uniform where its address is, and what a reduction over the simdgroup
gives as uniform in the whole threadgroup: both hold in the kernels that mean it, and where they do
not the fiber engine reports the barrier that not all threads reached.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from clang.cindex import Cursor

from .lints_text import Finding, kernels
from .lints_tree import Shader, library_function, space
from .tree import CursorKind, Node, TypeKind, key

K = CursorKind
THREAD, TID, SIMDGROUP = "thread", "tid", "simdgroup"
Variable = tuple[int, int, int]


class Own(NamedTuple):
    """What parameter number `parameter`, or one field of it, depends on; of its value / 32."""

    parameter: int
    field: str = ""
    by_simdgroup: bool = False


Labels = frozenset[str | Own]
# Of a variable as a whole, field "", and of those fields that were set on their own.
State = dict[tuple[Variable, str], Labels]
NONE: Labels = frozenset()
VARYING = frozenset({THREAD})
WIDTH = 32

ID_LABELS: dict[str, Labels] = {
    "thread_position_in_grid": VARYING,
    "thread_position_in_threadgroup": VARYING,
    "thread_index_in_threadgroup": frozenset({TID}),
    "thread_index_in_simdgroup": VARYING,
    "thread_index_in_quadgroup": VARYING,
    "quadgroup_index_in_threadgroup": VARYING,
    "simdgroup_index_in_threadgroup": frozenset({SIMDGROUP}),
}
BARRIER = re.compile(r"threadgroup_barrier")
SIMD = re.compile(r"simdgroup_\w+|(simd|quad)_\w+")
REDUCTION = re.compile(
    r"(simd|quad)_(sum|product|min|max|and|or|xor|all|any|ballot|broadcast_first)|simd_active_\w+"
)
LANE_CHOICE = re.compile(r"(simd|quad)_(broadcast|shuffle)")
LOOPS = {K.FOR_STMT, K.WHILE_STMT, K.DO_STMT}
CHANGES = {K.COMPOUND_ASSIGNMENT_OPERATOR, K.UNARY_OPERATOR}


def by_simdgroup(labels: Labels) -> Labels:
    """Of i / 32: a linear index becomes that of its simdgroup."""
    return frozenset(
        label._replace(by_simdgroup=True)
        if isinstance(label, Own)
        else SIMDGROUP
        if label == TID
        else label
        for label in labels
    )


def read(state: State, variable: Variable, name: str) -> Labels:
    """Labels of a field, those of the whole where it was not set on its own."""
    if (variable, name) in state:
        return state[variable, name]
    return frozenset(
        label._replace(field=name) if isinstance(label, Own) and not label.field else label
        for label in state.get((variable, ""), NONE)
    )


def join(states: list[State]) -> State:
    first, *others = states
    joined = dict(first)
    for state in others:
        for place, labels in state.items():
            here = joined.get(place)
            if here is None:
                joined[place] = labels | read(joined, *place)
            elif here is not labels:
                joined[place] = here | labels
        for place in joined.keys() - state.keys():
            joined[place] |= read(state, *place)
    return joined


@dataclass
class Summary:
    """What a call does, in terms of its arguments."""

    result: Labels = NONE
    # Of the parameters, by number and field.
    outputs: dict[tuple[int, str], Labels] = field(default_factory=dict)
    # (is a threadgroup barrier, labels of the conditions round it)
    meetings: set[tuple[bool, Labels]] = field(default_factory=set)


class Analysis:
    def __init__(self, shader: Shader) -> None:
        self.shader = shader
        self.summaries: dict[Node, Summary] = {}
        self.ids = {
            kernel.name: [
                frozenset().union(*(ID_LABELS.get(name, NONE) for name, _ in p.attributes))
                for p in kernel.parameters
            ]
            for kernel in kernels(shader.text)
        }
        self.found: list[Finding] = []

    def summary(self, function: Node) -> Summary:
        if function not in self.summaries:
            self.summaries[function] = Summary()
            self.summaries[function] = Body(self, function).run()
        return self.summaries[function]


class Body:
    """One function, followed from top to bottom; loops until the labels of their variables stay."""

    def __init__(self, analysis: Analysis, function: Node) -> None:
        self.analysis = analysis
        self.function = function
        self.is_kernel = function.name in analysis.ids
        self.parameters = [node for node in function.children if node.kind is K.PARM_DECL]
        self.labels: State = {}
        for i, parameter in enumerate(self.parameters):
            own = analysis.ids[function.name][i] if self.is_kernel else frozenset({Own(i)})
            self.labels[key(parameter.cursor), ""] = own
        self.structs: set[Variable] = set()
        self.summary = Summary()
        # The conditions of the returns, and of the breaks of the loop, that control has passed.
        self.exits: Labels = NONE
        self.loop_exits: Labels = NONE
        self.loop_states: list[State] = []
        self.returns: dict[int, Node] = {}
        self.meetings: dict[int, tuple[Node, str, bool, Labels]] = {}

    def run(self) -> Summary:
        for node in self.function.children:
            if node.kind is K.COMPOUND_STMT:
                self.statement(node, NONE)
        for i, parameter in enumerate(self.parameters):
            for (variable, name), labels in self.labels.items():
                if variable == key(parameter.cursor):
                    self.summary.outputs[i, name] = labels - {Own(i), Own(i, name)}
        for node, name, whole_group, labels in self.meetings.values():
            self.summary.meetings.add((whole_group, labels))
            if labels & ({THREAD, TID, SIMDGROUP} if whole_group else {THREAD, TID}):
                message = f"{name} where not all threads arrive"
                self.analysis.found.append((node.start, 13, message))
        return self.summary

    def statement(self, node: Node, control: Labels) -> bool:
        """Whether control never goes on behind the statement."""
        control = control | self.exits | self.loop_exits
        if node.kind in (K.COMPOUND_STMT, K.UNEXPOSED_STMT):
            return any(self.statement(child, control) for child in node.children)
        if node.kind is K.IF_STMT:
            return self.branch(node, control)
        if node.kind in LOOPS:
            self.loop(node, control)
        elif node.kind is K.SWITCH_STMT:
            self.switch(node, control)
        elif node.kind is K.RETURN_STMT:
            self.summary.result |= self.evaluate(node.children, control) | control
            self.exits |= control
            self.returns[node.start] = node
            return True
        elif node.kind in (K.BREAK_STMT, K.CONTINUE_STMT):
            self.loop_exits |= control
            self.loop_states.append(dict(self.labels))
            return True
        elif node.kind in (K.CASE_STMT, K.DEFAULT_STMT):
            return self.statement(node.children[-1], control)
        elif node.kind is K.DECL_STMT:
            for variable in node.children:
                if variable.kind is K.VAR_DECL:
                    self.declare(variable, control)
        else:
            self.expression(node, control)
        return False

    def branch(self, node: Node, control: Labels) -> bool:
        condition, *branches = node.children
        inner = control | self.expression(condition, control)
        if condition.value is not None:
            taken = branches[:1] if condition.value else branches[1:]
            return any(self.statement(child, control) for child in taken)
        before = dict(self.labels)
        states = [] if len(branches) == 2 else [before]
        for child in branches:
            self.labels = dict(before)
            if not self.statement(child, inner):
                states.append(self.labels)
        self.labels = join(states) if states else before
        return not states

    def loop(self, node: Node, control: Labels) -> None:
        *head, body = node.children if node.kind is not K.DO_STMT else node.children[::-1]
        if head and head[0].kind is K.DECL_STMT:
            self.statement(head.pop(0), control)
        outside = self.loop_exits, self.loop_states
        self.loop_exits, self.loop_states = NONE, [dict(self.labels)]
        inner = control
        before = None
        # A break ends later rounds too: every round sees the exits of the one before.
        while before != (self.labels, inner, self.loop_exits):
            before = dict(self.labels), inner, self.loop_exits
            for part in head:
                if part.kind not in CHANGES:
                    inner = inner | self.expression(part, inner)
            self.statement(body, inner)
            for part in head:
                if part.kind in CHANGES:
                    self.expression(part, inner)
            self.labels = join([self.labels, *self.loop_states])
        self.loop_exits, self.loop_states = outside

    def switch(self, node: Node, control: Labels) -> None:
        outside = self.loop_exits, self.loop_states
        self.loop_exits, self.loop_states = NONE, [dict(self.labels)]
        self.statement(node.children[-1], control | self.expression(node.children[0], control))
        self.labels = join([self.labels, *self.loop_states])
        self.loop_exits, self.loop_states = outside

    # Expressions.

    def evaluate(self, nodes: Iterable[Node], control: Labels) -> Labels:
        return NONE.union(*(self.expression(node, control) for node in nodes))

    def expression(self, node: Node, control: Labels) -> Labels:
        kind = node.kind
        if kind is K.DECL_REF_EXPR:
            target = node.referenced
            return NONE if target is None else self.whole(key(target))
        if kind is K.MEMBER_REF_EXPR and node.children:
            return self.member(node.children[0], node.name, control)
        if kind is K.CALL_EXPR:
            return self.call(node, control)
        if kind in (K.BINARY_OPERATOR, K.COMPOUND_ASSIGNMENT_OPERATOR):
            return self.operator(node, control)
        if kind is K.UNARY_OPERATOR:
            labels = self.evaluate(node.children, control)
            if control and self.changes(node):
                self.assign(node.children[0], control)
            return labels
        if kind is K.CONDITIONAL_OPERATOR:
            condition = self.expression(node.children[0], control)
            return condition | self.evaluate(node.children[1:], control | condition)
        return self.evaluate(node.children, control)

    def operator(self, node: Node, control: Labels) -> Labels:
        left, right = node.children
        operator = node.operator
        if operator in ("&&", "||"):
            first = self.expression(left, control)
            return first | self.expression(right, control | first)
        labels = self.expression(left, control)
        other = self.expression(right, control)
        if operator == "=":
            self.assign(left, other | control, overwritten=True)
            return other
        if node.kind is K.COMPOUND_ASSIGNMENT_OPERATOR:
            self.assign(left, other | control)
            return labels | other
        if left.written.kind is K.DECL_REF_EXPR and right.value:
            shifted = operator == ">>" and right.value >= 5
            if shifted or (operator in ("/", "<", ">=") and right.value % WIDTH == 0):
                return by_simdgroup(labels)
        return labels | other

    def changes(self, node: Node) -> bool:
        """Whether a unary operator is ++ or --."""
        tokens = self.analysis.shader.text.between(node.start, node.end)
        return any(token.text in ("++", "--") for token in (tokens[0], tokens[-1]))

    def whole(self, variable: Variable) -> Labels:
        if variable not in self.structs:
            return self.labels.get((variable, ""), NONE)
        return NONE.union(*(ls for (owner, _), ls in self.labels.items() if owner == variable))

    def member(self, struct: Node, name: str, control: Labels) -> Labels:
        node = struct.written
        if node.kind is K.UNARY_OPERATOR and node.children:
            node = node.children[0].written
        if node.kind is K.DECL_REF_EXPR and node.referenced is not None:
            return read(self.labels, key(node.referenced), name)
        return self.expression(struct, control)

    def declare(self, variable: Node, control: Labels) -> None:
        owner = key(variable.cursor)
        start = variable.children[-1].written if variable.children else None
        if start and start.kind is K.INIT_LIST_EXPR and variable.canonical.kind is TypeKind.RECORD:
            for struct_field, value in zip(
                variable.canonical.get_fields(), start.children, strict=False
            ):
                self.store(owner, struct_field.spelling, self.expression(value, control), True)
        else:
            self.labels[owner, ""] = self.evaluate(variable.children, control)

    def store(self, variable: Variable, name: str, labels: Labels, overwritten: bool) -> None:
        before = NONE if overwritten else read(self.labels, variable, name)
        if name:
            self.structs.add(variable)
        elif variable in self.structs:
            for place in [p for p in self.labels if p[0] == variable and p[1]]:
                if overwritten:
                    del self.labels[place]
                else:
                    self.labels[place] |= labels
        self.labels[variable, name] = before | labels

    def assign(
        self, target: Node, labels: Labels, overwritten: bool = False, within: str = ""
    ) -> None:
        """Into a variable; what goes to device or threadgroup memory is not followed."""
        node = target.written
        name = within
        while node.kind is not K.DECL_REF_EXPR:
            if node.kind is K.CALL_EXPR or not node.children:
                return
            base = node.children[0].written
            if base.canonical.kind is TypeKind.POINTER and space(base.canonical.get_pointee()):
                return
            if node.kind is K.ARRAY_SUBSCRIPT_EXPR:
                labels |= self.expression(node.children[1], NONE)
                overwritten = False
            elif node.kind is K.MEMBER_REF_EXPR:
                name = node.name
            else:
                overwritten = False
            node = base
        if node.referenced is None:
            return
        type_ = node.referenced.type.get_canonical()
        referred = type_.get_pointee() if type_.kind is TypeKind.LVALUEREFERENCE else type_
        if not space(referred):
            self.store(key(node.referenced), name, labels, overwritten)

    def call(self, node: Node, control: Labels) -> Labels:
        arguments = self.arguments(node)
        values = [self.expression(argument, control) for argument in arguments]
        library = library_function(node)
        if library is not None:
            return self.library_call(node, library, arguments, values, control)
        callee = self.analysis.shader.unit.callee(node)
        if callee is None:
            return NONE.union(*values)
        summary = self.analysis.summary(callee)
        for whole_group, conditions in sorted(summary.meetings, key=str):
            met = self.substitute(conditions, arguments, values) | control
            self.meet(node, node.name, whole_group, met)
        result = self.substitute(summary.result, arguments, values)
        outputs = {
            place: self.substitute(labels, arguments, values) | control
            for place, labels in summary.outputs.items()
            if labels
        }
        for (i, name), labels in outputs.items():
            if i < len(arguments):
                self.assign(arguments[i], labels, within=name)
        return result

    def arguments(self, node: Node) -> list[Node]:
        """Those of the parameters: a method's object is left out."""
        count = node.cursor.get_arguments()
        return node.children[len(node.children) - len(list(count)) :]

    def library_call(
        self,
        node: Node,
        library: Cursor,
        arguments: list[Node],
        values: list[Labels],
        control: Labels,
    ) -> Labels:
        name = library.spelling
        if BARRIER.fullmatch(name):
            self.meet(node, name, True, control)
        elif SIMD.fullmatch(name):
            self.meet(node, name, False, control)
        for argument, type_ in zip(arguments, library.type.argument_types(), strict=False):
            if type_.kind is TypeKind.LVALUEREFERENCE:
                self.assign(argument, NONE.union(*values) | control)
        if REDUCTION.fullmatch(name):
            return NONE
        if LANE_CHOICE.fullmatch(name):
            return VARYING if values[1] else NONE
        if SIMD.fullmatch(name) or name.startswith("atomic_"):
            return VARYING
        return NONE.union(*values)

    def meet(self, node: Node, name: str, whole_group: bool, control: Labels) -> None:
        if self.is_kernel:
            for left in self.returns.values():
                self.analysis.found.append((left.start, 13, f"return skips a later {name}"))
        place = 2 * node.start + whole_group
        _, _, _, before = self.meetings.get(place, (node, name, whole_group, NONE))
        self.meetings[place] = node, name, whole_group, before | control

    def substitute(self, labels: Labels, arguments: list[Node], values: list[Labels]) -> Labels:
        found: Labels = frozenset(label for label in labels if isinstance(label, str))
        for label in labels:
            if not isinstance(label, Own) or label.parameter >= len(arguments):
                continue
            value = values[label.parameter]
            if label.field:
                value = self.member(arguments[label.parameter], label.field, NONE)
            found |= by_simdgroup(value) if label.by_simdgroup else value
        return found


def meets(shader: Shader, function: Node, seen: set[Node]) -> bool:
    """Whether a function reaches a barrier or a simd function."""
    seen.add(function)
    for node in function.walk():
        if node.kind is K.CALL_EXPR:
            callee = shader.unit.callee(node)
            if callee is None and (BARRIER.fullmatch(node.name) or SIMD.fullmatch(node.name)):
                return True
            if callee is not None and callee not in seen and meets(shader, callee, seen):
                return True
    return False


def findings(shader: Shader) -> Iterator[Finding]:
    analysis = Analysis(shader)
    for _, kernel in shader.unit.kernels(shader.kernel_names):
        if meets(shader, kernel, set()):
            analysis.summary(kernel)
    yield from analysis.found
