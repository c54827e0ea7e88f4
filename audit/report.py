"""What an audit has to say: what it looked at, what is damaged and where, what it could not judge."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

FINDINGS_MAX = 1_000
"""So many are kept in full; what comes behind them is counted."""

TOLD_MAX = 20
"""So many a report tells in its text."""


COPIES = "records that stand twice"
"""In :attr:`Report.void`."""


class Kind(StrEnum):
    """What is wrong at a place. ``docs/audit.md`` says what each means for the job."""

    UNREADABLE = "unreadable"
    """A record of the checkpoint log that cannot be decoded: no coordinator starts on it."""
    KEY = "key"
    """A record of the checkpoint log under a key that is not its own, or an events record in the wrong partition."""
    EPOCH = "epoch"
    """An epoch claimed out of order or twice, or a record of an epoch that nobody has claimed."""
    CHECKPOINT_ID = "checkpoint-id"
    """An id used twice, or outside the block that its epoch has reserved."""
    PARTS = "parts"
    """A checkpoint whose parts are missing, or which lacks a subtask."""
    DERIVED = "derived"
    """A checkpoint derived for another parallelism that lacks what the one it was made of had."""
    FEED = "feed"
    """A checkpoint without a batch of a query that the one before it in its lineage has."""
    RESTORED = "restored"
    """An epoch or a Start names a checkpoint that was not there."""
    TOPIC = "topic"
    """A topic that is gone, or is not the one that the job has used."""
    DISCARD = "discard"
    """A checkpoint discarded that was not there, or that the job would restore."""
    ENDED = "ended"
    """Something was committed behind the end of the job, and no epoch has begun."""
    POSITION = "position"
    """A position that stands at another place than the marker or barrier it belongs to."""
    RANGE = "range"
    """A range of offsets that is not inside its partition, or does not begin with the event that it should."""
    ACK = "ack"
    """A part of a checkpoint without its CheckpointAck where it names one, or with an inbox that begins above it."""
    ATTEMPT = "attempt"
    """A record of an attempt that was not the current one, or whose id is not its Hello's offset."""
    RUN = "run"
    """A claimed run whose RunStarted does not stand where it is said to."""
    COMMAND = "command"
    """An executed command that does not stand where it is said to, or counts as executed before it was written."""
    SEQUENCE = "sequence"
    """A frame, marker or barrier that does not carry the sequence that is due, and is no copy: records are missing."""
    FRAME = "frame"
    """A frame whose parts contradict one another."""
    GENERATION = "generation"
    """A Start or Reset whose generation does not rise."""
    START = "start"
    """A Start that does not agree with the checkpoint it names, or with its Hello."""
    NOTICE = "notice"
    """Subtasks are told of a checkpoint what the checkpoint log does not say."""
    HANDLED = "handled"
    """More is reported handled than was sent, or less than before."""
    RETENTION = "retention"
    """Truncated above what a kept checkpoint needs."""
    BATCH = "batch"
    """A query's batch that does not continue the one before it, or is not what its checkpoint and manifest say."""


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


@dataclass(frozen=True, slots=True)
class Finding:
    """One damage: what was expected at a place, and what stands there."""

    kind: Kind
    topic: str
    partition: int
    offset: int
    expected: str
    found: str

    def __str__(self) -> str:
        where = f"{self.topic}[{self.partition}] offset {self.offset}"
        return f"{where}: {self.kind.value}: expected {self.expected}; found {self.found}"


@dataclass(slots=True)
class Report:
    """The outcome of one audit."""

    job: str
    checked: Counter[str] = field(default_factory=Counter)
    """How much was looked at, by what it is."""
    void: Counter[str] = field(default_factory=Counter)
    """Records that do not count and do no harm: a replaced coordinator's, unreadable ones on topics that bear them."""
    unjudged: Counter[str] = field(default_factory=Counter)
    """What could not be judged, by why: mostly since what it refers to has been truncated."""
    findings: list[Finding] = field(default_factory=list)
    more: int = 0
    """Findings beyond those kept."""

    @property
    def healthy(self) -> bool:
        return not self.findings

    def damage(self, kind: Kind, place: Place, offset: int, expected: str, found: str) -> None:
        if len(self.findings) >= FINDINGS_MAX:
            self.more += 1
        else:
            self.findings.append(Finding(kind, place.topic, place.partition, offset, expected, found))

    def take(self, other: Report) -> None:
        """Joins what another audit of the same job has to say."""
        self.checked += other.checked
        self.void += other.void
        self.unjudged += other.unjudged
        room = FINDINGS_MAX - len(self.findings)
        self.findings += other.findings[:room]
        self.more += other.more + max(0, len(other.findings) - room)

    def __str__(self) -> str:
        if self.healthy:
            return f"the logs of job {self.job} are healthy"
        told = "\n".join(f"  {finding}" for finding in self.findings[:TOLD_MAX])
        rest = len(self.findings[TOLD_MAX:]) + self.more
        more = f"\n  and {rest} more" if rest else ""
        return f"the logs of job {self.job} are damaged:\n{told}{more}"


class Extent(NamedTuple):
    """What of a partition is judged: offsets [begin, end)."""

    begin: int
    settled: int
    """Its end before the checkpoint log was read: what stands below it was written under epochs and ids that the log
    knows. What a running job has appended since may be ahead of the log."""
    end: int
    retained: int
    """Where it began before the checkpoint log was read; a running job may have truncated it since."""
