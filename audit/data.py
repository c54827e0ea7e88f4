"""One data partition: sequences of each sender, positions against barriers (protocol, section 9)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..schemas.checkpoints import SubtaskSnapshot
from ..schemas.data import Barrier, DataRecord, RecordFrame
from ..schemas.errors import UnreadableRecord
from ..schemas.frames import unpack
from ..schemas.ids import NO_CHECKPOINT, SubtaskId
from ..schemas.state import OPEN_END, ChannelPosition, Segment, Sender
from .checkpoint_index import KnownCheckpoint, LogFacts
from .record_summary import told
from .report import COPIES, Extent, Kind, Place, Report
from .snapshots import sender_of


@dataclass(slots=True)
class _Wanted:
    """A range of a channel whose first record is known."""

    channel: SubtaskId
    segment: Segment
    sequence: int
    known: KnownCheckpoint


class DataCheck:
    """Fed every readable record in order; ``unreadable`` the others; then ``finish``."""

    def __init__(
        self, report: Report, place: Place, extent: Extent, facts: LogFacts, upstream: str, receiver: SubtaskId
    ) -> None:
        self._report, self._place, self._extent, self._facts = report, place, extent, facts
        self._upstream, self._receiver = upstream, receiver
        self._due: dict[Sender, int] = {}
        self._first: dict[Sender, int] = {}
        """Sequence of its first record here."""
        self._barrier: dict[Sender, int] = {}
        """The newest id of each sender."""
        self._barriers: dict[tuple[Sender, int], tuple[int, KnownCheckpoint]] = {}
        """Barriers of completed checkpoints that have not been seen, with where each should stand."""
        self._stands: dict[int, str] = {}
        self._looked_at: set[int] = set()
        ranges: list[_Wanted] = []
        for known in facts.named():
            snapshot = known.subtasks.get(receiver)
            if snapshot is None or known.copied:
                continue
            for position in snapshot.data_positions:
                channel = sender_of(position)
                if channel is not None and channel.operator == upstream:
                    ranges += self._expect(known, snapshot, position, channel)
        self._ranges = deque(sorted(ranges, key=lambda wanted: wanted.segment.begin))
        self._active: list[_Wanted] = []

    def _expect(
        self, known: KnownCheckpoint, snapshot: SubtaskSnapshot, named: ChannelPosition, channel: SubtaskId
    ) -> list[_Wanted]:
        extent, sender = self._extent, known.subtasks.get(channel)
        self._inside(known, snapshot, named)
        opened = next((segment for segment in named.segments if segment.end == OPEN_END), None)
        taken_now = snapshot.epoch == known.header.epoch and not snapshot.finished
        if opened is not None and taken_now and sender is not None and sender.epoch == known.header.epoch:
            who = Sender(*channel, sender.attempt, sender.epoch, sender.generation)
            if opened.begin - 1 >= extent.begin:
                self._barriers[who, known.id] = opened.begin - 1, known
                self._looked_at.add(opened.begin - 1)
            else:
                self._report.unjudged["barriers that have been truncated"] += 1
        ranges = [segment for segment in named.segments if segment.end != OPEN_END and segment.begin < segment.end]
        if not ranges or ranges[0].begin < extent.begin:
            return []
        return [_Wanted(channel, ranges[0], named.sequence, known)]

    def _inside(self, known: KnownCheckpoint, snapshot: SubtaskSnapshot, named: ChannelPosition) -> None:
        extent, facts, n = self._extent, self._facts, known.id
        end = max((max(segment.begin, segment.end) for segment in named.segments), default=0)
        if end > extent.end:
            expected = f"checkpoint {n}, at offset {known.offset} of the checkpoint log, to name offsets below the end"
            found = f"position {end} of channel {named.channel} to {self._receiver}"
            self._report.damage(Kind.POSITION, self._place, extent.end, expected, found)
        is_open = facts.last is not None and facts.last.id == n and snapshot.epoch == facts.last_epoch
        needed = [s.begin for s in named.segments if is_open or s.begin < s.end]
        lost = [position for position in needed if position < extent.retained]
        if lost and n in facts.kept:
            expected = f"what checkpoint {n} needs of channel {named.channel} to {self._receiver}, from {min(lost)}"
            found = f"the partition begins at {extent.retained}"
            self._report.damage(Kind.RETENTION, self._place, extent.retained, expected, found)
        elif lost:
            self._report.unjudged["positions of discarded checkpoints that have been truncated"] += 1

    # ---- records

    def unreadable(self, offset: int) -> None:
        self._report.void["unreadable records"] += 1
        if offset in self._looked_at:
            self._stands[offset] = "a record that cannot be decoded"

    def read(self, offset: int, record: DataRecord) -> None:
        self._report.checked["data records"] += 1
        sender = record.sender
        if offset in self._looked_at:
            self._stands[offset] = told(record)
        if sender.operator != self._upstream:
            self._report.void["records of other senders"] += 1
            return
        if not 1 <= sender.epoch <= self._facts.last_epoch:
            if sender.epoch < 1 or offset < self._extent.settled:
                self._damage(Kind.EPOCH, offset, f"an epoch from 1 to {self._facts.last_epoch}", told(record))
            return
        if record.sequence < self._first.setdefault(sender, record.sequence if self._extent.begin else 0):
            self._report.void[COPIES] += 1  # of what has been truncated
            return
        due = self._due.get(sender, 0 if self._extent.begin == 0 else record.sequence)
        if record.sequence != due:
            expected = f"record {due} of {sender.subtask_id} in its generation {sender.full_generation}"
            self._damage(Kind.SEQUENCE, offset, expected, told(record))
        self._due[sender] = record.sequence + 1
        self._of_range(offset, record)
        match record:
            case RecordFrame():
                self._report.checked["records between operators"] += record.count
                try:
                    unpack(record.count, record.lengths, record.payload)
                except UnreadableRecord as error:
                    self._damage(Kind.FRAME, offset, "a frame that holds what it claims", str(error))
            case Barrier():
                self._read_barrier(offset, record)

    def _of_range(self, offset: int, record: DataRecord) -> None:
        """The first record of a range is the one that its checkpoint expects."""
        while self._ranges and self._ranges[0].segment.begin <= offset:
            self._active.append(self._ranges.popleft())
        for wanted in list(self._active):
            segment, sender = wanted.segment, record.sender
            if offset >= segment.end:
                self._active.remove(wanted)
            elif self._extent.begin and record.sequence < wanted.sequence:
                continue  # a copy of what has been truncated
            elif sender.subtask_id == wanted.channel and _origin(segment) == _origin(sender):
                self._active.remove(wanted)
                if record.sequence != wanted.sequence:
                    expected = f"record {wanted.sequence} first in range [{segment.begin}, {segment.end}) of channel"
                    expected += f" {wanted.channel} in checkpoint {wanted.known.id}"
                    self._damage(Kind.RANGE, offset, expected, told(record))

    def _read_barrier(self, offset: int, barrier: Barrier) -> None:
        self._report.checked["barriers"] += 1
        sender, n = barrier.sender, barrier.checkpoint_id
        block = self._facts.epochs.get(sender.epoch)
        ahead = sender.epoch == self._facts.last_epoch and offset >= self._extent.settled
        if n <= self._barrier.get(sender, NO_CHECKPOINT):
            expected = f"a checkpoint id above {self._barrier[sender]}, the one of the barrier before"
            self._damage(Kind.CHECKPOINT_ID, offset, expected, told(barrier))
        elif block is not None and (n < block.first_id or (n > block.reserved_through and not ahead)):
            expected = f"an id of the block of epoch {block.number}, {block.first_id} to {block.reserved_through}"
            self._damage(Kind.CHECKPOINT_ID, offset, expected, told(barrier))
        self._barrier[sender] = max(n, self._barrier.get(sender, NO_CHECKPOINT))
        wanted = self._barriers.pop((sender, n), None)
        if wanted is not None:
            self._report.checked["positions against barriers"] += 1
            if wanted[0] != offset:
                expected = (
                    f"the barrier of checkpoint {n} by {sender.subtask_id} at {wanted[0]}, right below its position"
                )
                self._damage(Kind.POSITION, offset, expected, "it here")

    def finish(self) -> None:
        for (sender, n), (at, _) in sorted(self._barriers.items(), key=lambda entry: entry[1][0]):
            expected = f"the barrier of checkpoint {n} by {sender.subtask_id} attempt {sender.attempt}"
            end = f"the end of the partition, {self._extent.end}"
            found = self._stands.get(at, "another record" if at < self._extent.end else end)
            self._damage(Kind.POSITION, at, expected, found)

    def _damage(self, kind: Kind, offset: int, expected: str, found: str) -> None:
        self._report.damage(kind, self._place, offset, expected, found)


def _origin(who: Segment | Sender) -> tuple[int, int, int]:
    return who.epoch, who.generation, who.attempt
