"""One seed of one configuration, and what to print where it breaks something."""

from __future__ import annotations

import time
import traceback
from collections.abc import Collection
from dataclasses import dataclass, field

from .audits import check_logs_of
from .configs import Config
from .violations import Violation
from .world import World

_TAIL = 40
_SHRINKING_S = 20.0


@dataclass(slots=True)
class Found:
    """What became of a seed."""

    config: str
    seed: int
    steps: int
    checkpoints: int
    violation: str | None
    faults: list[int]
    """The steps at which faults happened."""
    lines: list[str] = field(default_factory=list)
    """The trace, where one was asked for, or where something broke."""
    error: type[Exception] | None = None
    """What broke off the history if it was not a check."""
    happened: int = 0
    """How many faults there were before the history was shrunk; 0 where it was not."""

    @property
    def sentence(self) -> str:
        """What is broken, without who and when: the same for every history that breaks the same thing."""
        return (self.violation or "").partition(":")[0]

    def report(self) -> str:
        """The violation, the command that shows it again, and the end of the trace."""
        again = f"python -m tests.simulation --config {self.config} --trace {self.seed}"
        told = ""
        if self.happened:
            again += f" --faults {','.join(map(str, self.faults)) or 'none'}"
            told = f"\n  with {len(self.faults)} of the {self.happened} faults of this seed"
        tail = "\n".join("    " + line for line in self.lines[-_TAIL:])
        return f"VIOLATION in {self.config}, seed {self.seed}: {self.violation}{told}\n  again: {again}\n{tail}"


def simulate(config: Config, seed: int, *, tracing: bool = False, faults: Collection[int] | None = None) -> Found:
    """Runs a seed, with only those of its ``faults`` that happen at the given steps."""
    world = World(config, seed, tracing=tracing, faults=faults)
    violation, raised = None, None
    try:
        world.run_all()
        if not config.damages and not config.purges:
            check_logs_of(world.broker, world.settings)
    except Exception as error:
        violation = str(error)
        if not isinstance(error, Violation):
            violation = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-5)}"
            raised = type(error)
    return Found(
        config.name, seed, world.steps, len(world.checks.completed), violation, world.faults, world.lines or [], raised
    )


def explained(config: Config, found: Found) -> Found:
    """The same violation with as few faults as are found within some seconds, and its trace."""
    deadline = time.monotonic() + _SHRINKING_S
    needed, size = found.faults, max(1, len(found.faults) // 2)
    while needed and time.monotonic() < deadline:
        for at in range(0, len(needed), size):
            fewer = needed[:at] + needed[at + size :]
            tried = simulate(config, found.seed, faults=frozenset(fewer))
            if tried.sentence == found.sentence:
                needed = tried.faults
                break
        else:
            if size == 1:
                break
            size = max(1, size // 2)
    shown = simulate(config, found.seed, tracing=True, faults=frozenset(needed))
    shown.happened = len(found.faults)
    return shown
