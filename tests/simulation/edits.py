"""Edits of the cores in memory: what becomes of marked code, and functions that run the edited code."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any, Protocol

from .markers import Node, marked_node, markers, module_of, source_of


class Edit(Protocol):
    """Change of a marked node."""

    def apply(self, marked: Node) -> None:
        """Change the tree that holds the node. Raises ValueError if the node is none that can be edited so."""


@dataclass(frozen=True, slots=True)
class Never:
    """A condition that never holds: that of the marked if, elif or while, or the marked expression itself."""

    def apply(self, marked: Node) -> None:
        _decide(marked, False)


@dataclass(frozen=True, slots=True)
class Always:
    """A condition that always holds, as :class:`Never`."""

    def apply(self, marked: Node) -> None:
        _decide(marked, True)


@dataclass(frozen=True, slots=True)
class Skip:
    """Nothing: no statement, no element of a list, tuple or call, no operand of ``and`` or ``or``."""

    def apply(self, marked: Node) -> None:
        match marked.parent:
            case ast.BoolOp(op=op):
                marked.replace(ast.Constant(isinstance(op, ast.And)))
            case _ if isinstance(marked.node, ast.stmt):
                marked.replace(ast.Pass())
            case _:
                del getattr(marked.parent, marked.field)[marked.index()]


@dataclass(frozen=True, slots=True)
class Put:
    """Other code: statements for a statement, else an expression; of a keyword argument, its value.

    The code names what the function names, so a refactoring may break it: any other edit is better where it will do.
    """

    code: str

    def apply(self, marked: Node) -> None:
        if isinstance(marked.node, ast.stmt):
            return marked.replace(*ast.parse(self.code).body)
        listed = ast.parse(f"[{self.code}]", mode="eval").body
        assert isinstance(listed, ast.List)
        if isinstance(marked.node, ast.keyword):
            marked = Node(marked.node.value, marked.node, "value")
        return marked.replace(*listed.elts)


@dataclass(frozen=True, slots=True)
class Insert:
    """Statements ahead of the marked one. Their code names what the function names, as that of :class:`Put`."""

    code: str

    def apply(self, marked: Node) -> None:
        marked.replace(*ast.parse(self.code).body, marked.node)


@dataclass(frozen=True, slots=True)
class Early:
    """The marked statement or element ahead of the one above it."""

    def apply(self, marked: Node) -> None:
        siblings, at = getattr(marked.parent, marked.field), marked.index()
        if at == 0:
            raise ValueError(f"{ast.unparse(marked.node)!r} is the first already")
        siblings[at - 1 : at + 1] = reversed(siblings[at - 1 : at + 1])


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule left out. ``config`` notices it within so many ``seeds`` from ``begin`` on."""

    says: str
    change: Edit | Mapping[str, Edit]
    """One edit, at the marker with the mutant's name; or several, each at the marker ``NAME.PART``."""
    config: str
    seeds: int = 100
    begin: int = 0

    def edits(self, name: str) -> Mapping[str, Edit]:
        """Return the edits of the mutant, which goes by this name, by marker."""
        if isinstance(self.change, Mapping):
            return {f"{name}.{part}": edit for part, edit in self.change.items()}
        return {name: self.change}


def _decide(marked: Node, outcome: bool) -> None:
    node = marked.node
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        Node(node.test, node, "test").replace(ast.Constant(outcome))
    elif isinstance(node, ast.expr):
        marked.replace(ast.Constant(outcome))
    else:
        raise ValueError(f"{ast.unparse(node)!r} has no condition")


# ---- functions that run edited code


@contextmanager
def edited(edits: Mapping[str, Edit]) -> Iterator[None]:
    """Run the block with the cores edited at these markers.

    Raises LookupError for a marker that does not stand in the source, ValueError for an edit that its code cannot have.
    """
    trees: dict[str, ast.Module] = {}
    marked = []
    for name, edit in edits.items():
        if name not in markers():
            raise LookupError(f"no code of the cores is marked with the comment '# mutant: {name}'")
        marker = markers()[name]
        source = source_of(marker.path)
        tree = trees[marker.path] if marker.path in trees else trees.setdefault(marker.path, ast.parse(source))
        marked.append((edit, marked_node(tree, source, marker.line)))
    for edit, node in marked:  # found before any of them moves another
        edit.apply(node)
    with running({module_of(path): tree for path, tree in trees.items()}):
        yield


@contextmanager
def running(trees: Mapping[ModuleType, ast.Module]) -> Iterator[None]:
    """Let the functions of these modules run the code of the trees, and their own again behind the block.

    All else that a module holds stays as it is. Raises ValueError if a tree changes no function of its module.
    """
    changed: list[tuple[FunctionType, CodeType]] = []
    try:
        for module, tree in trees.items():
            before = len(changed)
            for name, code in _codes(compile(tree, module.__file__ or "", "exec", dont_inherit=True)):
                function = _function(module, name)
                if function is not None and function.__code__ != code:
                    changed.append((function, function.__code__))
                    function.__code__ = code
            if len(changed) == before:
                raise ValueError(f"no function of {module.__name__} is changed")
        yield
    finally:
        for function, code in reversed(changed):
            function.__code__ = code


def _codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """Functions and methods at any depth, but those inside functions, by qualified name."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner.co_qualname, inner
            if not inner.co_flags & inspect.CO_NEWLOCALS or not inner.co_flags & inspect.CO_OPTIMIZED:
                yield from _codes(inner)  # a class body


def _function(module: ModuleType, name: str) -> FunctionType | None:
    found: Any = module
    for part in name.split("."):
        found = vars(found).get(part)
        if found is None:
            return None
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, classmethod | staticmethod):
        found = found.__func__
    return found if isinstance(found, FunctionType) else None
