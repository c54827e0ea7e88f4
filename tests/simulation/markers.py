"""Markers in the source of the cores: the comments ``# mutant: NAME`` that mutants are addressed by.

A marker stands behind the code that it marks, or alone on the line above. One comment may hold several names, with
commas between them. It marks the largest syntax node that begins where the line's code begins: a statement, an element
of a list, a keyword argument, or an operand whose operator begins the line. Where a chain of operators is broken over
several lines, its first line holds the first operand, not the chain.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).parents[2]
CORES = ("checkpoint_log", "coordinator/protocol", "subtask_client/protocol")

SIMULATED = (
    "client/log_reader.py",
    "coordinator/epoch_filter.py",
    "coordinator/host.py",
    "coordinator/truncation.py",
    "coordinator/user_gateway.py",
    "recorded/copying.py",
    "transport/state_storage.py",
)
"""Modules of runtimes that the simulator drives."""

_MARKER = re.compile(r"# mutant: (.+)$")
_OPERATOR = re.compile(r"(and|or|if|else|not in|in|is not|is|[-+*/%|&<>=!]+) +")
_CHAINS = ast.BoolOp | ast.BinOp | ast.Compare | ast.IfExp


@dataclass(frozen=True, slots=True)
class Marker:
    """Where a marker's code stands: a file, by its path from the repository's root, and the line."""

    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, slots=True)
class Node:
    """A syntax node, and the node and field that hold it."""

    node: ast.AST
    parent: ast.AST
    field: str

    def replace(self, *others: ast.AST) -> None:
        """Put ``others`` in the place of the node; one, unless it is an element of a list."""
        for inner in (inner for other in others if other is not self.node for inner in ast.walk(other)):
            ast.copy_location(inner, self.node)
        held = getattr(self.parent, self.field)
        if isinstance(held, list):
            at = self.index()
            held[at : at + 1] = others
        else:
            (other,) = others
            setattr(self.parent, self.field, other)

    def index(self) -> int:
        """Return the place among the node's siblings. Raises ValueError if it has none."""
        held = getattr(self.parent, self.field)
        if not isinstance(held, list):
            raise ValueError(f"{ast.unparse(self.node)!r} has no siblings")
        return next(at for at, sibling in enumerate(held) if sibling is self.node)


def core_files() -> list[str]:
    """Return the paths of the cores' modules, from the repository's root."""
    return [
        path.relative_to(REPOSITORY).as_posix() for core in CORES for path in sorted((REPOSITORY / core).glob("*.py"))
    ]


def source_of(path: str) -> str:
    return (REPOSITORY / path).read_text(encoding="utf-8")


def module_of(path: str) -> ModuleType:
    """Import the module of a file of the package, given its path from the repository's root."""
    return import_module("penstock." + path.removesuffix(".py").replace("/", "."))


@cache
def markers() -> Mapping[str, Marker]:
    """Return every marker of the cores and of :data:`SIMULATED`. Raises LookupError if one stands twice."""
    found: dict[str, Marker] = {}
    for path in [*core_files(), *SIMULATED]:
        for name, line in markers_in(source_of(path)):
            if name in found:
                raise LookupError(f"marker {name!r} stands twice: {found[name]} and {path}:{line}")
            found[name] = Marker(path, line)
    return found


def markers_in(source: str) -> Iterator[tuple[str, int]]:
    """Yield the name of each marker, and the number of the line that it marks."""
    lines = source.splitlines()
    for number, line in enumerate(lines, 1):
        if (marker := _MARKER.search(line)) is not None:
            marked = next(n for n in count(number) if not lines[n - 1].lstrip().startswith("#"))
            for name in marker[1].split(","):
                yield name.strip(), marked


def marked_node(tree: ast.Module, source: str, line: int) -> Node:
    """Return the node that a marker of ``line`` marks. Raises LookupError if no code begins there."""
    text = source.splitlines()[line - 1]
    column = len(text) - len(text.lstrip())
    operator = _OPERATOR.match(text, column)
    for begin in (column, operator.end() if operator is not None else column):
        for found in nodes(tree):
            node = found.node
            starts_there = (getattr(node, "lineno", None), getattr(node, "col_offset", None)) == (line, begin)
            if starts_there and not (isinstance(node, _CHAINS) and node.end_lineno != line):
                return found
    raise LookupError(f"no code that could be marked begins on line {line}: {text.strip()!r}")


def nodes(tree: ast.AST) -> Iterator[Node]:
    """Yield every node below ``tree``, each ahead of those inside it."""
    for child in children(tree):
        yield child
        yield from nodes(child.node)


def children(parent: ast.AST) -> Iterator[Node]:
    """Yield the nodes that ``parent`` itself holds."""
    for field, value in ast.iter_fields(parent):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield Node(child, parent, field)
