"""Which of a job's records are wanted: an operator's, of some subtasks, of some kinds."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ..schemas import acks, events
from ..schemas.errors import ConfigurationError
from .formatting import kind_of, numbers_of
from .reading import Recorded

_EVENTS = {kind_of(cls) for cls in events.EventsRecord.__args__}
_ACKS = {kind_of(cls) for cls in acks.AcksRecord.__args__}
UNREADABLE = "unreadable"
"""The kind of what no published schema explains; shown wherever it is met."""
GROUPS = {
    "events": frozenset({kind_of(events.EventFrame)}),
    "control": frozenset(_EVENTS - {kind_of(events.EventFrame)}),
    "acks": frozenset(_ACKS),
}
"""Names of several kinds at once."""
NOISE = frozenset({kind_of(acks.Heartbeat)})
"""Left out unless it is asked for, and counted."""


def kinds_named(names: Iterable[str]) -> frozenset[str] | None:
    """The kinds that ``names`` stand for, groups included; None where none is named. ConfigurationError else."""
    wanted: set[str] = set()
    for name in names:
        if name not in GROUPS and name not in _EVENTS | _ACKS | {UNREADABLE}:
            raise ConfigurationError(
                f"{name!r} is no kind of record; there are the groups {', '.join(GROUPS)}, and"
                f" {', '.join(sorted(_EVENTS | _ACKS | {UNREADABLE}))}"
            )
        wanted |= GROUPS.get(name, {name})
    return frozenset(wanted) or None


@dataclass(frozen=True)
class Selection:
    """Of one operator: what its events topic holds, and of the acks topic what speaks of its subtasks."""

    operator: str
    subtasks: Collection[int]
    kinds: frozenset[str] | None = None
    """None: every kind but those that come by themselves all the time."""

    @property
    def wants_events(self) -> bool:
        return self.kinds is None or bool(self.kinds & (_EVENTS | {UNREADABLE}))

    @property
    def wants_acks(self) -> bool:
        return self.kinds is None or bool(self.kinds & (_ACKS | {UNREADABLE}))

    def speaks_of(self, found: Recorded) -> bool:
        """Whether it is the operator's, of one of the subtasks; also where nobody can say whose it is."""
        record = found.record
        if record is None or isinstance(record, acks.RunStarted):
            return True
        if isinstance(record, acks.Command):
            return record.operator in ("", self.operator)
        n = numbers_of(found)
        return n.operator == self.operator and (n.subtask is None or n.subtask in self.subtasks)

    def is_noise(self, found: Recorded) -> bool:
        return self.kinds is None and self._kind(found) in NOISE

    def takes(self, found: Recorded) -> bool:
        if found.record is None:
            return True
        return self.speaks_of(found) and (self.kinds is None or self._kind(found) in self.kinds)

    @staticmethod
    def _kind(found: Recorded) -> str:
        return UNREADABLE if found.record is None else kind_of(type(found.record))
