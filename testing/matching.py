"""Which records a fault is meant for: by what they are, by whose they are, by the process that handles them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import UnionType
from typing import Any, TypedDict

from ..schemas.checkpoints import CheckpointLogRecord
from ..schemas.codec import Record, decode
from ..schemas.errors import ConfigurationError, UnreadableRecord
from ..transport.ports import Partition

RecordType = type | UnionType | tuple[type, ...] | None
"""A record class of :mod:`penstock.testing.records`, several of them, or None for every record."""

_TOLD = ("checkpoint_id", "epoch", "generation", "attempt", "sequence", "count", "run", "nonce")


class Which(TypedDict, total=False):
    """What narrows a fault down, beside the type of the record."""

    operator: str
    """Whose subtask the record goes to or comes from."""
    subtask: int
    """Index of that subtask."""
    process: str
    """Who writes (or, for ``lag`` and ``miss``, reads) it: ``coordinator``, ``client``, or a subtask's ``name/index``.
    """
    where: Callable[[Any], bool]
    """Called with the record; the fault is for those it says true for."""
    skip: int
    """So many that match are let through first."""
    times: int | None
    """How many the fault is for; None: all. One, where it is not given."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A record on its way, as faults see it."""

    record: Record | None
    """None: bytes that cannot be decoded."""
    partition: Partition

    @classmethod
    def of(cls, partition: Partition, value: bytes | None) -> Subject:
        try:
            return cls(decode(value), partition)
        except UnreadableRecord:
            return cls(None, partition)

    @property
    def subtask(self) -> tuple[str, int] | None:
        """The subtask that the record is to or from."""
        parts = self.partition.topic.split(".")
        if len(parts) == 4 and parts[3] == "events":
            return parts[2], self.partition.index
        of: Any = getattr(self.record, "sender", self.record)
        if hasattr(of, "operator") and hasattr(of, "subtask"):
            return of.operator, of.subtask
        return None

    def __str__(self) -> str:
        record = self.record
        if record is None:
            return f"an unreadable record of {self.partition}"
        told = [f"{name}={getattr(record, name)}" for name in _TOLD if hasattr(record, name)]
        subtask = self.subtask
        whose = "" if subtask is None else f", {subtask[0]}/{subtask[1]}"
        return f"{type(record).__name__}({', '.join(told)}){whose} on {self.partition}"


class Match:
    """Says whether a record is meant, and counts those that were."""

    def __init__(self, types: RecordType, which: Which) -> None:
        if types is not None and not isinstance(types, type | UnionType | tuple):
            raise ConfigurationError(f"a fault is for a record class of penstock.testing.records, not for {types!r}")
        self.types = types
        self.which = which
        self.skip = which.get("skip", 0)
        self.left = which.get("times", 1)

    def takes(self, process: str, subject: Subject) -> bool:
        """Whether the fault is for this record; if so, one time less is left."""
        if self.left == 0 or not self._fits(process, subject):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.left is not None:
            self.left -= 1
        return True

    def _fits(self, process: str, subject: Subject) -> bool:
        which = self.which
        if self.types is not None and not isinstance(subject.record, self.types):
            return False
        if "process" in which and which["process"] != process:
            return False
        operator, index = subject.subtask or (None, None)
        if "operator" in which and which["operator"] != operator:
            return False
        if "subtask" in which and which["subtask"] != index:
            return False
        return "where" not in which or (subject.record is not None and bool(which["where"](subject.record)))

    def only_commits(self) -> bool:
        """Whether it is for records of the checkpoint log alone."""
        log = CheckpointLogRecord.__args__
        match self.types:
            case None:
                return False
            case tuple():
                types = self.types
            case UnionType():
                types = self.types.__args__
            case _:
                types = (self.types,)
        return all(isinstance(t, type) and issubclass(t, log) for t in types)

    def __str__(self) -> str:
        match self.types:
            case None:
                name = "any record"
            case tuple():
                name = " | ".join(t.__name__ for t in self.types)
            case UnionType():
                name = " | ".join(t.__name__ for t in self.types.__args__)
            case _:
                name = self.types.__name__
        narrowed = [f"{key}={value}" for key, value in self.which.items() if key not in ("where", "times")]
        return f"{name}({', '.join(narrowed)})" if narrowed else name
