"""The history of one subtask from the job's logs, a page at a time, and how long its events took."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..recorded.formatting import details, kind_of, numbers_of, sequence_text
from ..recorded.job import RecordedJob
from ..recorded.reading import Gone, LogReading, Recorded
from ..recorded.selection import Selection
from ..schemas.acks import CheckpointAck, Heartbeat
from ..schemas.events import EventFrame
from ..schemas.topics import TopicNames
from ..transport.ports import Partition, Transport

EVENTS_MAX = 100
"""Records of the subtask's events partition in a page."""
ACKS_MAX = 20_000
"""Records of the acks topic, which all subtasks share, that a page is looked up in."""
ACKS_AFTER_MS = 60_000
"""So long behind a page's last event its acknowledgement is looked for."""
ACKS_SHOWN_MAX = 300
"""Of the acks in a page's time so many are in it, the newest."""
PATIENCE_S = 5.0
TEXT_CHARS_MAX = 4_000
PAGE_CHARS_MAX = 200_000
"""Texts of a page, the newest first; what comes after is cut to ``SHORT_CHARS``."""
SHORT_CHARS = 80


@dataclass(frozen=True, slots=True)
class Row:
    """One record, for people."""

    topic: str
    offset: int
    at_ms: int
    kind: str
    epoch: int | None
    attempt: int | None
    sequence: str
    what: str


@dataclass(frozen=True, slots=True)
class Latency:
    """From a frame's timestamp to that of the first record of its attempt which says that it is handled."""

    frames: int
    """How many of the page were handled by the attempt that they were sent to."""
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Page:
    """Records about one subtask, newest first."""

    subtask: str
    rows: tuple[Row, ...]
    older: int | None
    """``before`` of the next page; None: the log begins here."""
    heartbeats: int
    """Left out."""
    latency: Latency | None
    notes: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        return asdict(self)


class SubtaskLog:
    """The logs of one job. For any thread; each call reads a bounded number of records and has a deadline."""

    def __init__(self, transport: Transport, topics: TopicNames) -> None:
        self._transport, self._topics = transport, topics

    def page(self, operator: str, index: int, before: int | None = None) -> Page:
        """Return the last records below offset ``before`` of the subtask's events, and what the acks say in their time.

        Raises JobRefused for what does not exist, TransportError if the broker does not answer.
        """
        job = RecordedJob(self._transport, self._topics.job, self._topics.prefix)
        (subtask,) = job.subtasks(operator, index)
        partition = job.events(subtask)
        there = self._transport.offsets([partition], PATIENCE_S)[partition]
        end = there.end if before is None else max(there.begin, min(before, there.end))
        begin = max(there.begin, end - EVENTS_MAX)
        events = self._read(partition, begin, end)
        acks, cut = self._acks(job.acks, events, oldest=begin == there.begin, newest=end == there.end)
        selection = Selection(operator, {index})
        told = [found for found in acks if found.record is not None and selection.speaks_of(found)]
        shown = [found for found in told if not isinstance(found.record, Heartbeat)]
        newest_acks = shown[-ACKS_SHOWN_MAX:]
        rows = sorted((_row(found) for found in [*events, *newest_acks]), key=lambda row: (-row.at_ms, -row.offset))
        rows, shortened = _within(rows)
        notes = []
        if len(newest_acks) < len(shown):
            notes.append(f"{len(shown) - len(newest_acks):,} older records of the subtask in this time are left out")
        if shortened:
            notes.append("long texts are cut: penstock events and penstock replay have them whole")
        if cut:
            notes.append(f"more than {ACKS_MAX:,} records of all subtasks fall into this time: not all were read")
        if begin == there.begin and begin > 0:
            notes.append(f"the log begins at offset {begin}: what was older has been truncated away")
        return Page(
            str(subtask), tuple(rows), begin if begin > there.begin else None, len(told) - len(shown),
            latency_of(events, told), tuple(notes),
        )  # fmt: skip

    def frames(self, edges: Iterable[tuple[str, str]]) -> dict[str, int]:
        """Return for each edge (sender, receiver) how many records its data topic has ever had."""
        topics = {self._topics.data(*edge): "/".join(edge) for edge in edges}
        described = self._transport.describe_topics(topics, PATIENCE_S)
        partitions = [Partition(info.name, index) for info in described.values() for index in range(info.partitions)]
        found = dict.fromkeys(topics.values(), 0)
        for partition, there in self._transport.offsets(partitions, PATIENCE_S).items():
            found[topics[partition.topic]] += there.end
        return found

    def _acks(
        self, acks: Partition, events: Sequence[Recorded], *, oldest: bool, newest: bool
    ) -> tuple[list[Recorded], bool]:
        """Return those of the time of a page's events, and whether there are more.

        What is older than the first event that the log has belongs to the oldest page.
        """
        begin, end = self._transport.offsets([acks], PATIENCE_S)[acks]
        if events and not oldest:
            begin = max(begin, self._at(acks, events[0].at.timestamp_ms))
        if events and not newest:
            end = self._at(acks, events[-1].at.timestamp_ms + ACKS_AFTER_MS)
        cut = end - begin > ACKS_MAX
        if cut and newest:
            begin = end - ACKS_MAX
        return self._read(acks, begin, min(end, begin + ACKS_MAX)), cut

    def _at(self, partition: Partition, at_ms: int) -> int:
        return self._transport.offsets_at({partition: at_ms}, PATIENCE_S)[partition]

    def _read(self, partition: Partition, begin: int, end: int) -> list[Recorded]:
        reading = LogReading(self._transport, {partition: begin}, {partition: end}, patience_s=PATIENCE_S)
        return [found for found in reading if not isinstance(found, Gone)]


def latency_of(events: Iterable[Recorded], acks: Iterable[Recorded]) -> Latency | None:
    """Return how long the frames took that were handled; None where there is none of them."""
    reports: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for found in acks:
        if isinstance(found.record, Heartbeat | CheckpointAck):
            sender = found.record.sender
            report = found.record.handled_through, found.at.timestamp_ms
            reports.setdefault((sender.epoch, sender.attempt), []).append(report)
    took = []
    for found in events:
        frame = found.record
        if isinstance(frame, EventFrame):
            handled = reports.get((frame.epoch, frame.attempt), ())
            behind = next((at for through, at in handled if through >= frame.sequence + frame.count), None)
            if behind is not None:
                took.append(max(0.0, float(behind - found.at.timestamp_ms)))
    if not took:
        return None
    if len(took) == 1:
        return Latency(1, took[0], took[0])
    cuts = statistics.quantiles(took, n=100, method="inclusive")
    return Latency(len(took), round(cuts[49], 1), round(cuts[98], 1))


def _within(rows: Iterable[Row]) -> tuple[list[Row], bool]:
    """Return the rows with texts that fit into a page, and whether some were cut for it."""
    found, chars, cut = [], 0, False
    for row in rows:
        left = max(SHORT_CHARS, PAGE_CHARS_MAX - chars)
        cut = cut or len(row.what) > left
        found.append(replace(row, what=row.what[:left]))
        chars += len(found[-1].what)
    return found, cut


def _row(found: Recorded) -> Row:
    n = numbers_of(found)
    cause = getattr(found.record, "cause", None)
    what = cause if isinstance(cause, str) and cause else details(found)
    return Row(
        found.partition.topic.rpartition(".")[2], found.offset, found.at.timestamp_ms,
        "unreadable" if found.record is None else kind_of(type(found.record)),
        n.epoch, n.attempt, sequence_text(n), what[:TEXT_CHARS_MAX],
    )  # fmt: skip
