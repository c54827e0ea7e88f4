"""What a query's batches sent and who decided them, in the acks topic (protocol, section 10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..schemas.acks import AcksRecord, BatchCommitted, BatchEventFrame, BatchEvents, BatchWanted
from ..schemas.checkpoints import CheckpointCompleted
from ..schemas.ids import SubtaskId
from .checkpoint_index import KnownCheckpoint, LogFacts
from .record_summary import told
from .report import Extent, Kind, Place, Report


@dataclass(frozen=True, slots=True)
class _Manifest:
    """A BatchEvents record, with the writers of which other than the named number of events stood before it."""

    offset: int
    counts: Mapping[SubtaskId, int]
    short: list[str]


@dataclass(slots=True)
class _Batch:
    """A completed checkpoint of a query, and the manifests found for it."""

    known: KnownCheckpoint
    decided_at: int
    """Offset of the record that decided."""
    manifests: list[_Manifest] = field(default_factory=list)


class BatchesCheck:
    """Fed every record of the acks topic in order; then ``finish``."""

    def __init__(self, report: Report, place: Place, extent: Extent, facts: LogFacts) -> None:
        self._report, self._place, self._extent = report, place, extent
        self._batches: dict[int, _Batch] = {}
        self._decisions: dict[int, _Batch] = {}
        """By offset."""
        self._sent: dict[str, int] = {}
        """Events that each writer has sent so far."""
        for known in facts.checkpoints.values():
            header = known.header
            if not known.by_query or known.copied or not isinstance(header, CheckpointCompleted):
                continue
            batch = _Batch(known, header.acks_position - 1)
            if batch.decided_at < extent.begin:
                report.unjudged["decisions about batches that have been truncated"] += 1
                continue
            self._decisions[batch.decided_at] = batch
            if known.inbox_position < extent.begin:
                report.unjudged["events of batches that have been truncated"] += 1
            else:
                self._batches[known.id] = batch

    def read(self, offset: int, record: AcksRecord | None) -> None:
        """The record at ``offset``; None for one that cannot be read."""
        if (batch := self._decisions.pop(offset, None)) is not None:
            decides = isinstance(record, BatchCommitted | BatchWanted) and record.checkpoint_id == batch.known.id
            if not decides:
                self._undecided(batch, told(record))
        match record:
            case BatchEventFrame():
                self._frame(offset, record)
            case BatchEvents() if record.checkpoint_id in self._batches:
                self._manifest(offset, record)
            case _:
                pass

    def _frame(self, offset: int, frame: BatchEventFrame) -> None:
        """A task's writer numbers what it sends; those of tasks that have failed break off anywhere."""
        begins_here = self._extent.begin == 0 or frame.checkpoint_id in self._batches
        due = self._sent.get(frame.writer, 0 if begins_here else frame.sequence)
        if frame.sequence + frame.count <= due:
            return  # a copy
        if frame.sequence != due:
            self._damage(Kind.SEQUENCE, offset, f"event {due} of writer {frame.writer} next", told(frame))
        self._sent[frame.writer] = frame.sequence + frame.count

    def _manifest(self, offset: int, record: BatchEvents) -> None:
        counts: Counter[SubtaskId] = Counter()
        short: list[str] = []
        for writer in record.writers:
            counts[SubtaskId(record.operator, writer.subtask)] += writer.count
            if (sent := self._sent.get(writer.writer, 0)) != writer.count:
                short.append(f"{sent} of the {writer.count} events of writer {writer.writer}")
        counts = Counter({subtask: count for subtask, count in counts.items() if count})
        self._batches[record.checkpoint_id].manifests.append(_Manifest(offset, counts, short))

    def finish(self) -> None:
        for batch in self._decisions.values():
            self._undecided(batch, "nothing there")
        for batch in self._batches.values():
            self._judge(batch)

    def _undecided(self, batch: _Batch, found: str) -> None:
        expected = f"the record that decided checkpoint {batch.known.id}: a BatchCommitted or BatchWanted that names it"
        self._damage(Kind.BATCH, batch.decided_at, expected, found)

    def _judge(self, batch: _Batch) -> None:
        """The checkpoint holds what the newest manifest before the decision names. A later one may have counted: a
        coordinator that recovers reads to the end before it decides."""
        n, holds = batch.known.id, batch.known.inbox
        before = [m for m in batch.manifests if m.offset < batch.decided_at][-1:]
        counted = before + [m for m in batch.manifests if m.offset > batch.decided_at]
        if not counted and not holds:
            return
        match = next((m for m in counted if m.counts == holds), None)
        if match is None:
            expected = f"a manifest of the batch of checkpoint {n}, with {_events(holds)}"
            found = f"one with {_events(before[0].counts)}" if before else "none"
            self._damage(Kind.BATCH, batch.decided_at, f"{expected}, before its decision", found)
        elif match.short:
            expected = f"all events that this manifest of the batch of checkpoint {n} names, before it"
            self._damage(Kind.BATCH, match.offset, expected, "; ".join(match.short))

    def _damage(self, kind: Kind, offset: int, expected: str, found: str) -> None:
        self._report.damage(kind, self._place, offset, expected, found)


def _events(counts: Mapping[SubtaskId, int]) -> str:
    return ", ".join(f"{count} events of {subtask}" for subtask, count in sorted(counts.items())) or "no events"
