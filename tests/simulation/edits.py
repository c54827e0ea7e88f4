"""A rule left out of the cores by editing their source: the functions get the edited code, and their own back."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class Edit:
    """``before``, which stands exactly once in the source of ``module``, becomes ``after``."""

    module: ModuleType
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule left out. ``config`` notices it within so many ``seeds`` from ``begin`` on."""

    says: str
    edits: tuple[Edit, ...]
    config: str
    seeds: int = 100
    begin: int = 0


@contextmanager
def edited(edits: Iterable[Edit]) -> Iterator[None]:
    """Every function of the edited modules runs the edited source; what else a module holds stays as it is."""
    changed: list[tuple[FunctionType, CodeType]] = []
    try:
        for module, source in _edited_sources(edits).items():
            codes = dict(_codes(compile(source, module.__file__ or "", "exec", dont_inherit=True)))
            for name, code in codes.items():
                if (function := _function(module, name)) is not None:
                    changed.append((function, function.__code__))
                    function.__code__ = code
        yield
    finally:
        for function, code in reversed(changed):
            function.__code__ = code


def _edited_sources(edits: Iterable[Edit]) -> Mapping[ModuleType, str]:
    sources: dict[ModuleType, str] = {}
    for edit in edits:
        source = sources.get(edit.module) or inspect.getsource(edit.module)
        if (found := source.count(edit.before)) != 1:
            raise LookupError(
                f"{edit.module.__name__} has {found} times, not once, what a mutant is to change: {edit.before!r}."
                " The rule has moved: let the mutant follow it"
            )
        sources[edit.module] = source.replace(edit.before, edit.after)
    return sources


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
    return found if isinstance(found, FunctionType) else None
