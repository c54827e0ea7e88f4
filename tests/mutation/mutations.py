"""Mutations of the cores' functions: each changes one operator, constant, condition or statement.

Left out is code that only decides about wording: f-strings, what ``raise`` is given, joined strings, alternatives that
are both texts, and functions that return ``str``. Left out are also assertions and the modules ``invariants.py``, which
only check; annotations and default values; assignments in ``__init__``, without which nothing runs.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

from tests.simulation.edits import Put
from tests.simulation.markers import Node, children, core_files, nodes, source_of

_SWAPPED: dict[type[ast.AST], Any] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
_ORDERS = ast.Lt | ast.LtE | ast.Gt | ast.GtE
_NUMBERS_FROM = {"len", "sum", "min", "max", "int"}


@dataclass(frozen=True, slots=True)
class Mutation:
    """Other code for one node of a core's function."""

    number: int
    """Its place among all mutations of the cores, as long as their source stays the same."""
    path: str
    line: int
    function: str
    node: int
    """The place of the node among :func:`~tests.simulation.markers.nodes` of the module."""
    code: str

    def tree(self) -> ast.Module:
        """Return the module's tree with the mutation."""
        tree = ast.parse(source_of(self.path))
        Put(self.code).apply(self._in(tree))
        return tree

    def diff(self) -> str:
        """Return the lines that the mutation changes, before and after."""
        lines = source_of(self.path).splitlines()
        node = self._in(ast.parse(source_of(self.path))).node
        assert isinstance(node, ast.stmt | ast.expr) and node.end_lineno is not None
        before = lines[node.lineno - 1 : node.end_lineno]
        head = before[0].encode()[: node.col_offset].decode()
        tail = before[-1].encode()[node.end_col_offset :].decode()
        return "\n".join([*(f"- {line}" for line in before), f"+ {head}{self.code}{tail}"])

    def _in(self, tree: ast.Module) -> Node:
        return next(islice(nodes(tree), self.node, None))


def mutations() -> list[Mutation]:
    """Return every mutation of both cores."""
    numbers = count()
    return [
        Mutation(next(numbers), path, line, function, node, code)
        for path in core_files()
        if not path.endswith(("/__init__.py", "/invariants.py"))
        for line, function, node, code in mutations_of(source_of(path))
    ]


def drawn(every: Sequence[Mutation], number: int, seed: int) -> list[Mutation]:
    """Return so many mutations of different nodes: each node with the same chance, then each code for it."""
    rng = random.Random(seed)
    at_node: dict[tuple[str, int], list[Mutation]] = {}
    for mutation in every:
        at_node.setdefault((mutation.path, mutation.node), []).append(mutation)
    chosen = rng.sample(list(at_node.values()), min(number, len(at_node)))
    return [rng.choice(those) for those in chosen]


def mutations_of(source: str) -> Iterator[tuple[int, str, int, str]]:
    """Yield the line, function, node and new code of each mutation of a module."""
    tree = ast.parse(source)
    places = {id(found.node): at for at, found in enumerate(nodes(tree))}
    for function, found in _in_functions(tree, "", inside=False):
        for code in _codes(function, found):
            yield getattr(found.node, "lineno", 0), function, places[id(found.node)], code


def _in_functions(parent: ast.AST, scope: str, *, inside: bool) -> Iterator[tuple[str, Node]]:
    """Yield the nodes of functions that decide what they do, with the function's name."""
    for found in children(parent):
        node = found.node
        if found.field in ("annotation", "decorator_list", "returns") or isinstance(node, ast.arguments):
            continue
        if _is_text(node):
            continue
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield from _in_functions(node, f"{scope}{node.name}.", inside=isinstance(node, ast.FunctionDef))
            continue
        if inside:
            yield scope.rstrip("."), found
        yield from _in_functions(node, scope, inside=inside)


def _is_text(node: ast.AST) -> bool:
    """Return whether the node only decides about wording, or only checks."""
    match node:
        case ast.JoinedStr() | ast.Raise() | ast.Assert():
            return True
        case ast.FunctionDef(returns=ast.Name(id="str")):
            return True
        case ast.Constant(value=str(text)):
            return text != ""
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str()), attr="join")):
            return True
        case ast.Call(func=ast.Name(id="assert_never")):
            return True
        case ast.BoolOp(values=values):
            return any(map(_is_text, values))
        case ast.IfExp(body=body, orelse=other):
            return _is_text(body) and _is_text(other)
        case ast.Expr(value=value):
            return _is_text(value)
    return False


def _codes(function: str, found: Node) -> Iterator[str]:
    """Yield each other code for the node."""
    node = found.node
    if isinstance(node, ast.expr):
        yield from map(ast.unparse, _expressions(node))
        negated = found.field == "ifs" or (found.field == "test" and not isinstance(found.parent, ast.While))
        if negated and not _is_swapped_by_negation(node):
            yield f"not ({ast.unparse(node)})"
    elif isinstance(node, ast.stmt):
        yield from _statements(node, found, in_init=function.endswith("__init__"))


def _expressions(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=others):
            for at, op in enumerate(ops):
                yield ast.Compare(left, [*ops[:at], _SWAPPED[type(op)](), *ops[at + 1 :]], others)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(_SWAPPED[type(op)](), values)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            if _may_be_number(left) and _may_be_number(right):
                yield ast.BinOp(left, _SWAPPED[type(op)](), right)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)


def _statements(node: ast.stmt, found: Node, *, in_init: bool) -> Iterator[str]:
    match node:
        case ast.Expr(value=ast.Call()):
            yield "pass"
        case ast.Assign(targets=[target]) if not in_init and _is_kept(target):
            yield "pass"
        case ast.AugAssign(target=target, op=op, value=value):
            yield "pass"
            if type(op) in _SWAPPED and _may_be_number(value):
                yield ast.unparse(ast.AugAssign(target, _SWAPPED[type(op)](), value))
        case ast.Return() if not isinstance(found.parent, ast.FunctionDef):
            yield "pass"
        case ast.Continue():
            yield "break"
        case ast.Break():
            yield "continue"


def _is_swapped_by_negation(node: ast.expr) -> bool:
    return isinstance(node, ast.Compare) and len(node.ops) == 1 and not isinstance(node.ops[0], _ORDERS)


def _is_kept(target: ast.expr) -> bool:
    """Return whether what is assigned outlives the function."""
    if isinstance(target, ast.Tuple):
        return any(map(_is_kept, target.elts))
    return isinstance(target, ast.Attribute | ast.Subscript)


def _may_be_number(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float)
        case ast.Call(func=ast.Name(id=name)):
            return name in _NUMBERS_FROM
        case ast.BinOp(left=left, right=right):
            return _may_be_number(left) and _may_be_number(right)
    return isinstance(node, ast.Name | ast.Attribute | ast.Subscript)
