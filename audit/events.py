"""One subtask's events partition: sequences, markers, Starts (protocol, sections 4 to 7 and 10)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..schemas.checkpoints import SubtaskSnapshot
from ..schemas.errors import UnreadableRecord
from ..schemas.events import (
    CheckpointAborted,
    CheckpointCompleted,
    EventFrame,
    EventsRecord,
    FailoverPolicy,
    Reset,
    Start,
    Stop,
    TriggerCheckpoint,
)
from ..schemas.frames import unpack
from ..schemas.ids import NO_ATTEMPT, NO_CHECKPOINT, SubtaskId
from ..schemas.state import Segment
from .acks import Reported, Said
from .checkpoint_index import KnownCheckpoint, LogFacts
from .record_summary import told
from .report import COPIES, Extent, Kind, Place, Report
from .starts import disagreements


@dataclass(slots=True)
class _Epoch:
    """What one epoch has written so far."""

    number: int
    first_offset: int
    policy: FailoverPolicy | None = None
    begin: int | None = None
    """Where it began in this partition, as its Starts say."""
    due: dict[int, int] = field(default_factory=dict)
    """Sequence of the next event, by attempt under policy reset, else under NO_ATTEMPT."""
    first: dict[int, int] = field(default_factory=dict)
    """Sequence of the first event whose predecessors have been truncated, in the same way."""
    start: Start | None = None
    """The newest."""
    attempt: int = NO_ATTEMPT
    """Of the newest frame; used where no Start of the epoch stands here."""
    generation: int = -1
    """The highest that a Reset or a Start carried."""
    marker: int = NO_CHECKPOINT
    """The newest."""


@dataclass(slots=True)
class _Wanted:
    """A range whose first event is known."""

    segment: Segment
    sequence: int
    known: KnownCheckpoint


@dataclass(slots=True)
class _Batch:
    """Behind its marker a batch holds nothing."""

    known: KnownCheckpoint
    end: int
    epoch: int


class EventsCheck:
    """Fed every readable record in order; ``unreadable`` the others; then ``finish``."""

    def __init__(
        self, report: Report, place: Place, extent: Extent, facts: LogFacts, subtask: SubtaskId,
        hellos: Mapping[int, Said], acks: Extent, handled: Mapping[tuple[int, int], Reported],
        acks_place: Place, log_place: Place,
    ) -> None:  # fmt: skip
        self._report, self._place, self._extent, self._facts, self._subtask = report, place, extent, facts, subtask
        self._hellos, self._acks, self._handled = hellos, acks, handled
        self._acks_place, self._log_place = acks_place, log_place
        self._epochs: dict[int, _Epoch] = {}
        self._highest = 0
        self._broken_at: int | None = None
        """Of the newest unreadable record: often what a gap behind it is about."""
        self._snapshots = {
            n: (known, known.subtasks[subtask])
            for known in facts.named()
            if subtask in known.subtasks and not known.copied
            for n in [known.id]
        }
        self._markers: dict[int, KnownCheckpoint] = {}
        """Markers that have not been seen and should stand here, by checkpoint."""
        self._looked_at: dict[int, list[int]] = {}
        """Offsets at which those should stand, to their checkpoints."""
        self._stands: dict[int, str] = {}
        """What stands there instead."""
        ranges: list[_Wanted] = []
        for known, snapshot in self._snapshots.values():
            ranges += self._expect(known, snapshot)
        self._ranges = deque(sorted(ranges, key=lambda wanted: wanted.segment.begin))
        self._active: list[_Wanted] = []
        self._batch: _Batch | None = None
        if facts.by_query:
            self._batches_follow()

    # ---- what should stand here

    def _expect(self, known: KnownCheckpoint, snapshot: SubtaskSnapshot) -> list[_Wanted]:
        begin, n = self._extent.begin, known.id
        self._inside(known, snapshot)
        if snapshot.epoch == known.header.epoch and not (snapshot.finished and not known.by_query):
            at = snapshot.event_position - 1
            if known.by_query or at >= begin:
                self._markers[n] = known
            if not known.by_query:
                self._looked_at.setdefault(at, []).append(n)
        if not snapshot.event_ranges or snapshot.event_ranges[0].begin < begin:
            return []
        if known.by_query:
            return []  # its sequences begin where the batch before it ends
        return [_Wanted(snapshot.event_ranges[0], snapshot.handled_through, known)]

    def _inside(self, known: KnownCheckpoint, snapshot: SubtaskSnapshot) -> None:
        """What a restore reads again must be there; nothing may lie behind the end of the partition."""
        extent, n, facts = self._extent, known.id, self._facts
        end = max([snapshot.event_position, *(segment.end for segment in snapshot.event_ranges)])
        if end > extent.end:
            expected = f"checkpoint {n}, at offset {known.offset} of the checkpoint log, to name offsets below the end"
            self._report.damage(Kind.POSITION, self._place, extent.end, expected, f"position {end} of {self._subtask}")
        needed = [segment.begin for segment in snapshot.event_ranges if segment.begin < segment.end]
        is_open = facts.last is not None and facts.last.id == n and snapshot.epoch == facts.last_epoch
        needed += [snapshot.event_position] if is_open and not snapshot.finished else []
        lost = [position for position in needed if position < extent.retained]
        if lost and (n in facts.kept or n in facts.undecided):
            expected = f"what checkpoint {n} needs of {self._subtask}, from offset {min(lost)}"
            self._report.damage(
                Kind.RETENTION, self._place, extent.retained, expected, f"the partition begins at {extent.retained}"
            )
        elif lost:
            self._report.unjudged["positions of discarded checkpoints that have been truncated"] += 1

    def _batches_follow(self) -> None:
        """In one epoch each batch begins where the one before it ended."""
        ends: dict[int, int] = {}
        for n in sorted(self._snapshots):
            known, snapshot = self._snapshots[n]
            if not known.by_query or not snapshot.event_ranges:
                continue
            begin, end = snapshot.event_ranges[0].begin, snapshot.event_ranges[0].end
            due = ends.get(snapshot.epoch, begin)
            if begin != due:
                expected = f"the batch of checkpoint {n} of {self._subtask} to begin at offset {due} of {self._place}"
                self._report.damage(Kind.BATCH, self._log_place, known.offset, expected, f"it begins at {begin}")
            ends[snapshot.epoch] = end

    # ---- records

    def unreadable(self, offset: int) -> None:
        self._report.void["unreadable records"] += 1
        self._broken_at = offset
        if offset in self._looked_at:
            self._stands[offset] = "a record that cannot be decoded"

    def read(self, offset: int, record: EventsRecord) -> None:
        self._report.checked["events topic records"] += 1
        if offset in self._looked_at and not isinstance(record, TriggerCheckpoint):
            self._stands[offset] = told(record)
        if not self._claimed(offset, record):
            return
        epoch = self._epochs.get(record.epoch)
        if epoch is None:
            epoch = self._epochs[record.epoch] = _Epoch(record.epoch, offset)
            if self._facts.by_query:
                epoch.policy = FailoverPolicy.REPLAY
        if record.epoch < self._highest:
            self._report.void["records of replaced coordinators"] += 1
        self._highest = max(self._highest, record.epoch)
        match record:
            case EventFrame():
                self._frame(offset, epoch, record)
            case TriggerCheckpoint():
                self._marker(offset, epoch, record)
            case Start():
                self._start(offset, epoch, record)
            case Reset():
                self._reset(offset, epoch, record)
            case CheckpointCompleted():
                self._completed(offset, record)
            case CheckpointAborted():
                self._aborted(offset, record)
            case Stop():
                self._stop(offset, record)

    def _claimed(self, offset: int, record: EventsRecord) -> bool:
        if 1 <= record.epoch <= self._facts.last_epoch:
            return True
        if record.epoch < 1 or offset < self._extent.settled:
            expected = f"an epoch from 1 to {self._facts.last_epoch}"
            self._damage(Kind.EPOCH, offset, expected, told(record))
        return False

    # ---- events

    def _frame(self, offset: int, epoch: _Epoch, frame: EventFrame) -> None:
        self._report.checked["events"] += frame.count
        try:
            unpack(frame.count, frame.lengths, frame.payload)
        except UnreadableRecord as error:
            self._damage(Kind.FRAME, offset, "a frame that holds what it claims", str(error))
        key = frame.attempt if epoch.policy is FailoverPolicy.RESET else NO_ATTEMPT
        due = self._due(epoch, key)
        if epoch.policy is None and frame.attempt != epoch.attempt and frame.sequence == 0:
            due = 0  # whether each attempt is numbered from 0 would stand in its Start
        if frame.sequence + frame.count <= epoch.first.get(key, 0):
            self._report.void[COPIES] += 1
            return
        if due is None:
            self._report.unjudged["sequences whose beginning has been truncated"] += 1
            epoch.first[key] = frame.sequence
        elif frame.sequence != due:
            behind = "" if self._broken_at is None else f", behind an unreadable record at offset {self._broken_at}"
            expected = f"event {due} of epoch {epoch.number} for {self._subtask}"
            self._damage(Kind.SEQUENCE, offset, expected, told(frame) + behind)
        if epoch.policy is FailoverPolicy.RESET and epoch.start is not None and frame.attempt != epoch.start.attempt:
            expected = f"events for attempt {epoch.start.attempt}, the one that was started last"
            self._damage(Kind.ATTEMPT, offset, expected, told(frame))
        self._of_range(offset, epoch, frame)
        epoch.due[key] = frame.sequence + frame.count
        epoch.attempt = frame.attempt
        batch = self._batch
        if batch is not None and offset < batch.end and epoch.number == batch.epoch:
            expected = (
                f"no event between the marker of checkpoint {batch.known.id} and the end of its batch, {batch.end}"
            )
            self._damage(Kind.BATCH, offset, expected, told(frame))

    def _due(self, epoch: _Epoch, key: int) -> int | None:
        """The sequence that is due; None where what came before it has been truncated away."""
        if key in epoch.due:
            return epoch.due[key]
        begun_here = epoch.begin is not None and epoch.begin >= self._extent.begin
        if epoch.policy is FailoverPolicy.RESET:
            begun_here = epoch.start is not None and epoch.start.attempt == key
        return 0 if begun_here or self._extent.begin == 0 else None

    def _of_range(self, offset: int, epoch: _Epoch, frame: EventFrame) -> None:
        """The first event of a range is the one that its checkpoint says the state lacks."""
        while self._ranges and self._ranges[0].segment.begin <= offset:
            self._active.append(self._ranges.popleft())
        if not self._active:
            return
        for wanted in self._active:
            segment = wanted.segment
            by_attempt = epoch.policy is FailoverPolicy.RESET
            inside = offset < segment.end and segment.epoch == epoch.number
            if inside and (not by_attempt or frame.attempt == segment.attempt):
                if self._extent.begin and frame.sequence + frame.count <= wanted.sequence:
                    continue  # a copy of what has been truncated
                if frame.sequence != wanted.sequence:
                    expected = (
                        f"event {wanted.sequence} first in range [{segment.begin}, {segment.end}) of checkpoint"
                        f" {wanted.known.id}"
                    )
                    self._damage(Kind.RANGE, offset, expected, told(frame))
                wanted.segment = Segment(segment.begin, offset, segment.epoch, segment.generation, segment.attempt)
        self._active = [wanted for wanted in self._active if offset < wanted.segment.end]

    # ---- markers and notices

    def _marker(self, offset: int, epoch: _Epoch, marker: TriggerCheckpoint) -> None:
        n = marker.checkpoint_id
        self._report.checked["markers"] += 1
        key = NO_ATTEMPT
        if epoch.policy is FailoverPolicy.RESET:
            key = NO_ATTEMPT if epoch.start is None else epoch.start.attempt
        known, snapshot = self._snapshots.get(n, (None, None))
        if self._copies_what_is_gone(epoch, key, marker, known, snapshot):
            self._report.void[COPIES] += 1
            return
        self._id_of_epoch(offset, epoch, marker)
        due = self._due(epoch, key) if epoch.policy is not None else epoch.due.get(NO_ATTEMPT)
        if due is None:
            self._report.unjudged["sequences whose beginning has been truncated"] += 1
        elif marker.sequence != due:
            expected = f"the marker of checkpoint {n} before event {due}"
            self._damage(Kind.SEQUENCE, offset, expected, f"before event {marker.sequence}")
        if epoch.policy is not None:
            epoch.due.setdefault(key, marker.sequence)
        epoch.marker = max(epoch.marker, n)
        if known is not None and snapshot is not None and snapshot.epoch == epoch.number:
            self._markers.pop(n, None)
            if known.by_query:
                self._batch_marker(offset, marker, known, snapshot)
            else:
                self._acknowledged_marker(offset, epoch, marker, known, snapshot)
        elif n in self._markers:
            expected = f"the marker of checkpoint {n} in epoch {self._markers[n].header.epoch}"
            self._damage(Kind.POSITION, offset, expected, told(marker))

    def _copies_what_is_gone(
        self, epoch: _Epoch, key: int, marker: TriggerCheckpoint, known: KnownCheckpoint | None,
        snapshot: SubtaskSnapshot | None,
    ) -> bool:  # fmt: skip
        """Whether the first copy of a marker has been truncated."""
        if known is not None and snapshot is not None and not known.by_query and not snapshot.finished:
            return known.header.epoch == epoch.number and snapshot.event_position <= self._extent.begin
        return marker.checkpoint_id <= epoch.marker and marker.sequence <= epoch.first.get(key, -1)

    def _id_of_epoch(self, offset: int, epoch: _Epoch, marker: TriggerCheckpoint) -> None:
        n, block = marker.checkpoint_id, self._facts.epochs.get(epoch.number)
        if n <= epoch.marker:
            expected = f"a checkpoint id above {epoch.marker}, the one of the marker before"
            self._damage(Kind.CHECKPOINT_ID, offset, expected, told(marker))
        elif block is not None:
            ahead = epoch.number == self._facts.last_epoch and offset >= self._extent.settled
            if n < block.first_id or (n > block.reserved_through and not ahead):
                expected = f"an id of the block of epoch {epoch.number}, {block.first_id} to {block.reserved_through}"
                self._damage(Kind.CHECKPOINT_ID, offset, expected, told(marker))

    def _acknowledged_marker(
        self, offset: int, epoch: _Epoch, marker: TriggerCheckpoint, known: KnownCheckpoint, snapshot: SubtaskSnapshot
    ) -> None:
        """Of a completed checkpoint: positions against the marker, the ack's attempt against the Start before it."""
        self._report.checked["positions against markers"] += 1
        n, position = known.id, snapshot.event_position
        if position > offset + 1 or (position != offset + 1 and not snapshot.finished):
            expected = f"the marker of checkpoint {n} right below its position {position}, at {position - 1}"
            self._damage(Kind.POSITION, offset, expected, "it here")
        plain = not snapshot.event_ranges and not snapshot.finished
        if snapshot.handled_through > marker.sequence or (plain and snapshot.handled_through != marker.sequence):
            expected = f"the state of {self._subtask} in checkpoint {n} to hold the events below {marker.sequence}"
            self._damage(Kind.POSITION, offset, expected, f"it holds those below {snapshot.handled_through}")
        start = epoch.start
        if start is not None and (start.attempt, start.generation) != (snapshot.attempt, snapshot.generation):
            expected = f"checkpoint {n} to be acknowledged by attempt {start.attempt} of generation"
            expected += f" {start.full_generation}, which was started last"
            found = f"attempt {snapshot.attempt} of generation {snapshot.epoch}.{snapshot.generation}"
            self._damage(Kind.ATTEMPT, offset, expected, found)
        if start is None and self._extent.begin == 0:
            expected = f"a Start of attempt {snapshot.attempt} before the marker of checkpoint {n}"
            self._damage(Kind.ATTEMPT, offset, expected, "none in this epoch")

    def _batch_marker(
        self, offset: int, marker: TriggerCheckpoint, known: KnownCheckpoint, snapshot: SubtaskSnapshot
    ) -> None:
        self._report.checked["positions against markers"] += 1
        if not snapshot.event_ranges:
            return
        batch = snapshot.event_ranges[0]
        if not batch.begin <= offset < batch.end:
            expected = f"the marker of checkpoint {known.id} within its batch, [{batch.begin}, {batch.end})"
            self._damage(Kind.BATCH, offset, expected, "it here")
        if marker.sequence != snapshot.handled_through:
            expected = f"the batch of checkpoint {known.id} to end before event {marker.sequence}"
            self._damage(Kind.BATCH, offset, expected, f"it ends before event {snapshot.handled_through}")
        self._batch = _Batch(known, batch.end, snapshot.epoch)

    def _completed(self, offset: int, notice: CheckpointCompleted) -> None:
        known = self._facts.checkpoints.get(notice.checkpoint_id)
        ahead = notice.epoch == self._facts.last_epoch and offset >= self._extent.settled
        if ahead or (known is not None and known.header.epoch == notice.epoch):
            return
        if not self._facts.whole and known is None:
            self._report.unjudged["what compaction has taken from the checkpoint log"] += 1
            return
        self._damage(Kind.NOTICE, offset, f"only what epoch {notice.epoch} has completed to be told so", told(notice))

    def _aborted(self, offset: int, notice: CheckpointAborted) -> None:
        if notice.checkpoint_id in self._facts.checkpoints:
            known = self._facts.checkpoints[notice.checkpoint_id]
            expected = (
                f"checkpoint {known.id}, completed at offset {known.offset} of the checkpoint log, not to be aborted"
            )
            self._damage(Kind.NOTICE, offset, expected, told(notice))

    # ---- attempts

    def _start(self, offset: int, epoch: _Epoch, start: Start) -> None:
        self._report.checked["Starts"] += 1
        self._generation(offset, epoch, start)
        if epoch.start is not None and start.attempt <= epoch.start.attempt:
            expected = f"an attempt above {epoch.start.attempt}, the one started before"
            self._damage(Kind.ATTEMPT, offset, expected, told(start))
        self._hello(offset, start.attempt, start.nonce, start)
        self._restored(offset, epoch, start)
        known = self._facts.checkpoints.get(start.checkpoint_id)
        if known is None and start.checkpoint_id != NO_CHECKPOINT:
            self._report.unjudged["Starts from checkpoints that the log no longer holds"] += 1
        else:
            for expected, found in disagreements(start, self._subtask, known, epoch.begin):
                self._damage(Kind.START, offset, expected, found)
            snapshot = None if known is None else known.subtasks.get(self._subtask)
            if snapshot is None or snapshot.epoch != start.epoch:
                epoch.begin = start.event_position
        if epoch.begin is not None and epoch.begin > epoch.first_offset:
            expected = f"epoch {epoch.number} to begin at or below its first record, at offset {epoch.first_offset}"
            self._damage(Kind.START, offset, expected, f"a Start by which it begins at {epoch.begin}")
        if start.next_checkpoint_id <= epoch.marker:
            expected = f"the next checkpoint id above {epoch.marker}, whose marker stands before"
            self._damage(Kind.START, offset, expected, f"{start.next_checkpoint_id}")
        epoch.policy = start.policy
        epoch.start = start

    def _generation(self, offset: int, epoch: _Epoch, record: Start | Reset) -> None:
        started = -1 if epoch.start is None else epoch.start.generation
        lowest = max(started + 1, epoch.generation)
        if record.generation < lowest:
            expected = f"a generation of epoch {epoch.number} of at least {lowest}"
            self._damage(Kind.GENERATION, offset, expected, told(record))
        epoch.generation = max(epoch.generation, record.generation)

    def _reset(self, offset: int, epoch: _Epoch, reset: Reset) -> None:
        self._report.checked["Resets"] += 1
        self._generation(offset, epoch, reset)

    def _hello(self, offset: int, attempt: int, nonce: str, record: Start | Stop) -> None:
        if attempt < self._acks.begin or not nonce:
            self._report.unjudged["Hellos that have been truncated"] += 1
        elif attempt >= self._acks.settled and offset >= self._extent.settled:
            pass  # of a running job: said while this was read
        else:
            said = self._hellos.get(attempt)
            if said != Said(self._subtask, nonce):
                expected = f"a Hello of {self._subtask} with nonce {nonce} at offset {attempt} of {self._acks_place}"
                found = "none there" if said is None else f"{said.subtask} with nonce {said.nonce}"
                self._damage(Kind.ATTEMPT, offset, expected, f"{found}, for {told(record)}")

    def _restored(self, offset: int, epoch: _Epoch, start: Start) -> None:
        """What this epoch had restored, or has completed since."""
        facts, n = self._facts.epochs.get(epoch.number), start.checkpoint_id
        if facts is None:
            self._report.unjudged["epochs that compaction has taken from the checkpoint log"] += 1
            return
        ahead = epoch.number == self._facts.last_epoch and offset >= self._extent.settled
        if n not in {facts.restored, *facts.completed} and not ahead and self._facts.whole:
            expected = f"a checkpoint that epoch {epoch.number} has restored ({facts.restored}) or completed"
            self._damage(Kind.RESTORED, offset, expected, told(start))
        elif epoch.start is not None and n < epoch.start.checkpoint_id:
            expected = f"no checkpoint older than {epoch.start.checkpoint_id}, which the Start before restored"
            self._damage(Kind.RESTORED, offset, expected, told(start))

    def _stop(self, offset: int, stop: Stop) -> None:
        self._report.checked["Stops"] += 1
        if stop.nonce:
            self._hello(offset, stop.attempt, stop.nonce, stop)

    # ---- the end

    def finish(self) -> None:
        for n in sorted(self._markers):
            known, snapshot = self._snapshots[n]
            ranges = snapshot.event_ranges
            if known.by_query and ranges and ranges[0].begin < self._extent.begin:
                self._report.unjudged["markers that have been truncated"] += 1
                continue
            at = snapshot.event_position - 1
            expected = f"the marker of checkpoint {n}"
            beyond = f"the end of the partition, {self._extent.end}"
            found = self._stands.get(at, "another record" if at < self._extent.end else beyond)
            self._damage(Kind.POSITION, at, expected, found)
        self._handled_was_sent()

    def _handled_was_sent(self) -> None:
        for (number, attempt), reported in self._handled.items():
            epoch = self._epochs.get(number)
            key = NO_ATTEMPT
            if epoch is not None and epoch.policy is FailoverPolicy.RESET:
                key = attempt
            due = None if epoch is None or epoch.policy is None else self._due(epoch, key)
            if due is None:
                self._report.unjudged["reports of what was handled of a truncated history"] += 1
            elif reported.through > due:
                expected = f"{self._subtask} to have handled no more than the {due} events of epoch {number} sent to it"
                found = f"attempt {attempt} reports {reported.through}"
                self._report.damage(Kind.HANDLED, self._acks_place, reported.offset, expected, found)

    def _damage(self, kind: Kind, offset: int, expected: str, found: str) -> None:
        self._report.damage(kind, self._place, offset, expected, found)
