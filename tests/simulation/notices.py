"""What notices a mutant: the first seed of its configuration that breaks a check."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .configs import CONFIGS
from .edits import edited
from .mutants import MUTANTS
from .run import simulate

BROKEN = (NameError, AttributeError, TypeError, SyntaxError, ImportError)
"""Errors that show code that is broken, where a mutant is to break a rule."""


@dataclass(frozen=True, slots=True)
class Notice:
    """What a mutant came to."""

    mutant: str
    seed: int | None
    """The first seed that notices it; None if none does."""
    said: str
    broken: bool = False
    """The edited code cannot run, so that nothing is known of the rule."""


@contextmanager
def mutated(name: str | None) -> Iterator[None]:
    """Run the block with that rule left out of the cores; with the cores as they are if no name is given."""
    with edited(MUTANTS[name].edits(name) if name is not None else {}):
        yield


def notice(name: str) -> Notice:
    """Run the seeds of a mutant until one notices it."""
    mutant = MUTANTS[name]
    try:
        with mutated(name):
            for seed in range(mutant.begin, mutant.begin + mutant.seeds):
                found = simulate(CONFIGS[mutant.config], seed)
                if found.violation is not None:
                    broken = found.error is not None and issubclass(found.error, BROKEN)
                    return Notice(name, seed, found.violation.splitlines()[0][:200], broken)
    except (LookupError, SyntaxError, ValueError) as error:
        return Notice(name, None, f"{type(error).__name__}: {error}", broken=True)
    return Notice(name, None, "")
