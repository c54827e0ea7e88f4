"""What is measured, and how it is said: a figure, its counterpart from the same run, and its goal."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, Self

SIZE = 100
"""Bytes of an event, or of a record."""


@dataclass(frozen=True)
class Goal:
    """What a figure is to reach: its value, its ratio to what is beside it, or their difference (value - raw)."""

    text: str
    of: Literal["value", "ratio", "difference"] = "value"
    at_least: float = -inf
    at_most: float = inf


@dataclass(frozen=True)
class Figure:
    """One measured value and what it means; ``raw`` is what stands beside it, None where nothing can."""

    name: str
    definition: str
    value: float
    unit: str
    raw: float | None = None
    raw_definition: str = ""
    goal: Goal | None = None
    runs: tuple[float, ...] = ()
    """The values that ``value`` is the median of."""
    raw_runs: tuple[float, ...] = ()

    @classmethod
    def of_runs(
        cls,
        name: str,
        definition: str,
        runs: Sequence[float],
        unit: str,
        raw_runs: Sequence[float] = (),
        raw_definition: str = "",
        goal: Goal | None = None,
    ) -> Self:
        """The medians of both sides."""
        raw = statistics.median(raw_runs) if raw_runs else None
        value = statistics.median(runs)
        return cls(name, definition, value, unit, raw, raw_definition, goal, tuple(runs), tuple(raw_runs))

    @property
    def ratio(self) -> float | None:
        return self.value / self.raw if self.raw else None

    @property
    def met(self) -> bool | None:
        """None: there is no goal, or nothing to hold it against."""
        if self.goal is None:
            return None
        held = {
            "value": self.value,
            "ratio": self.ratio,
            "difference": None if self.raw is None else self.value - self.raw,
        }[self.goal.of]
        return None if held is None else self.goal.at_least <= held <= self.goal.at_most

    def as_json(self) -> dict[str, Any]:
        return {
            "figure": self.name,
            "definition": self.definition,
            "value": self.value,
            "unit": self.unit,
            "runs": self.runs,
            "raw": self.raw,
            "raw definition": self.raw_definition,
            "raw runs": self.raw_runs,
            "ratio": self.ratio,
            "goal": self.goal.text if self.goal else None,
            "met": self.met,
        }


@dataclass(frozen=True)
class Setting:
    """What a part gets to work with: a broker of its own, and how much it is to do."""

    bootstrap: str
    broker_pid: int
    """Of its JVM."""
    repeats: int
    """How often each side is measured, by turns."""
    quick: bool
    """Whether this only tries that the part runs: seconds in all, the figures mean nothing."""
    say: Callable[[str], None]
    """Tells people what goes on."""
    kafka_jars: str | None = None
    """Jars of Spark's Kafka source, by commas."""

    @property
    def parallelisms(self) -> tuple[int, ...]:
        """Subtasks, or senders and receivers, that throughput is measured with."""
        return (2,) if self.quick else (1, 4)

    def count(self, full: int, quick: int) -> int:
        return quick if self.quick else full


def quantile(values: Sequence[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]
