"""One seed of one configuration, and what to print where it breaks something."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field

from .configs import Config
from .world import World

_TAIL = 40


@dataclass(slots=True)
class Found:
    """What became of a seed."""

    config: str
    seed: int
    steps: int
    checkpoints: int
    violation: str | None
    lines: list[str] = field(default_factory=list)
    """The trace, where one was asked for, or where something broke."""

    def report(self) -> str:
        """The violation, the command that shows it again, and the end of the trace."""
        again = f"python -m tests.simulation --config {self.config} --trace {self.seed}"
        tail = "\n".join("    " + line for line in self.lines[-_TAIL:])
        return f"VIOLATION in {self.config}, seed {self.seed}: {self.violation}\n  again: {again}\n{tail}"


def simulate(config: Config, seed: int, *, tracing: bool = False) -> Found:
    """Runs a seed; where it breaks something, runs it again for its trace."""
    world = World(config, seed, tracing=tracing)
    violation = None
    try:
        world.run_all()
    except Exception as error:
        if not tracing:
            return simulate(config, seed, tracing=True)
        where = "" if type(error).__name__ == "Violation" else "\n" + "".join(traceback.format_exc(limit=-5))
        violation = f"{error}{where}"
    return Found(config.name, seed, world.steps, len(world.checks.completed), violation, world.lines or [])
