"""What a checkpoint reads of a job's logs, copied to the topics of another job; offsets and attempt ids become those
of the copy.

Each partition of the copy begins with a record that is truncated away in the end. So it looks like what it is: a log
whose head is gone, and whose sequences need not begin at 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..checkpoint_log.history import Checkpoint
from ..checkpoint_log.inbox_range import belongs_to_range
from ..schemas.acks import CheckpointAck, Hello, OperatorEventFrame, RunStarted
from ..schemas.checkpoints import SubtaskSnapshot
from ..schemas.codec import Record, encode
from ..schemas.data import Barrier, DataRecord
from ..schemas.errors import AppendFailed, PositionUnavailable
from ..schemas.events import EventFrame, Reset, TriggerCheckpoint
from ..schemas.ids import NO_ATTEMPT, NO_CHECKPOINT, SubtaskId
from ..schemas.state import OPEN_END, ChannelPosition, Segment, Sender
from ..schemas.topics import TopicNames
from ..schemas.versions import CURRENT
from ..transport.ports import LogRecord, Partition, Transport, Writer
from .reading import Gone, LogReading, Recorded

_FLUSH_STEP_S = 10.0
_RUN = "forked"

Progress = Callable[[int], None]
"""Called with the number of the origin's offsets that were read since the last call."""


class Appender:
    """The only writer of some partitions, which therefore knows each record's offset ahead of its outcome."""

    def __init__(self, transport: Transport) -> None:
        self._writer: Writer = transport.writer()
        self._ends: dict[Partition, int] = {}
        self._failed: list[Exception] = []

    def end(self, partition: Partition) -> int:
        return self._ends.get(partition, 0)

    @property
    def begun(self) -> list[Partition]:
        return list(self._ends)

    def append(self, partition: Partition, value: bytes, key: bytes | None = None) -> int:
        """Append a record and return its offset. Raises AppendFailed if an earlier record is not at its offset."""
        if self._failed:
            raise self._failed[0]
        offset = self.end(partition)
        self._ends[partition] = offset + 1
        self._writer.append(partition, value, key, lambda at, error: self._settled(partition, offset, at, error))
        return offset

    def _settled(self, partition: Partition, offset: int, at: int | None, error: Exception | None) -> None:
        if error is not None:
            self._failed.append(error)
        elif at != offset:
            self._failed.append(AppendFailed(f"another writer appends to {partition}: offset {at} is not {offset}"))

    def flush(self) -> None:
        """Wait for every outcome, however much was copied: the writer fails where the broker takes nothing for long."""
        while not self._writer.flush(_FLUSH_STEP_S):
            pass
        if self._failed:
            raise self._failed[0]

    def close(self) -> None:
        self._writer.close(0.0)


@dataclass
class Copied:
    """What has been copied, by its offsets in the copy."""

    subtasks: dict[SubtaskId, SubtaskSnapshot] = field(default_factory=dict)
    inbox_position: int = 0
    acks_end: int = 0
    records: int = 0


class Copying:
    """Copies what ``checkpoint`` of the job with the topics ``origin`` reads to the topics ``copy``, all empty."""

    def __init__(
        self, transport: Transport, origin: TopicNames, copy: TopicNames, checkpoint: Checkpoint, progress: Progress
    ) -> None:
        self._transport, self._origin, self._copy = transport, origin, copy
        self._checkpoint, self._progress = checkpoint, progress
        self._appender = Appender(transport)
        self._attempts: dict[int, int] = {}
        """Attempt ids in the copy, by those in the origin."""
        self._copied = Copied()
        self._at: dict[Partition, int] = {}
        """Where each partition of the origin has been gone through to."""

    def run(self) -> Copied:
        """Raises TransportError, :class:`PositionUnavailable` where what is copied is truncated meanwhile."""
        try:
            self._name_attempts()
            for subtask, snapshot in sorted(self._checkpoint.subtasks.items()):
                positions = self._data_of(subtask, snapshot)
                moved = replace(snapshot, attempt=self._attempt(snapshot.attempt), data_positions=positions)
                self._copied.subtasks[subtask] = self._events_of(subtask, snapshot, moved)
            self._acks()
            self._appender.flush()
            self._cut_heads()
        finally:
            self._appender.close()
        return self._copied

    # ---- attempts: their ids are offsets of the acks topic, and the copy has one of its own

    def _name_attempts(self) -> None:
        """One Hello for each attempt that the checkpoint speaks of, in their order."""
        acks = Partition(self._copy.acks, 0)
        host = f"fork of {self._origin.root[:-1]}"
        layout = {o.operator: o.parallelism for o in self._checkpoint.header.operators}
        self._append(acks, RunStarted(_RUN, host), b"")
        for attempt, subtask in sorted(self._named_attempts().items()):
            hello = Hello(*subtask, _RUN, f"{_RUN}-{attempt}", "", host, layout, CURRENT.protocol)
            self._attempts[attempt] = self._append(acks, hello, _key(subtask))

    def _named_attempts(self) -> dict[int, SubtaskId]:
        named: dict[int, SubtaskId] = {}
        for subtask, snapshot in self._checkpoint.subtasks.items():
            named |= {segment.attempt: subtask for segment in snapshot.event_ranges} | {snapshot.attempt: subtask}
            for position in snapshot.data_positions:
                named |= {segment.attempt: position.sender for segment in position.segments}
        named.pop(NO_ATTEMPT, None)
        return named

    def _attempt(self, attempt: int) -> int:
        """In the copy; one that the checkpoint does not speak of becomes 0, which was nobody's."""
        return NO_ATTEMPT if attempt == NO_ATTEMPT else self._attempts.get(attempt, 0)

    # ---- an operator's events: the ranges, then the marker

    def _events_of(self, subtask: SubtaskId, snapshot: SubtaskSnapshot, moved: SubtaskSnapshot) -> SubtaskSnapshot:
        header = self._checkpoint.header
        to = Partition(self._copy.events(subtask.operator), subtask.index)
        self._append(to, Reset(snapshot.epoch, snapshot.generation), _key(subtask))
        ranges, sequence = list[Segment](), snapshot.handled_through
        for segment in sorted((s for s in snapshot.event_ranges if s.end > s.begin), key=lambda s: s.begin):
            begin = self._appender.end(to)
            origin = Partition(self._origin.events(subtask.operator), subtask.index)
            for found in self._read(origin, segment.begin, segment.end):
                if isinstance(found.record, EventFrame) and found.record.epoch == segment.epoch:
                    frame = replace(found.record, attempt=self._attempt(found.record.attempt))
                    sequence = frame.sequence + frame.count if frame.epoch == header.epoch else sequence
                    self._append(to, frame, _key(subtask))
                elif found.record is None:
                    self._copy_bytes(to, found.at)  # were it a frame, the gap that it leaves must show here too
            if self._appender.end(to) > begin:
                attempt = self._attempt(segment.attempt)
                ranges.append(replace(segment, begin=begin, end=self._appender.end(to), attempt=attempt))
        if snapshot.epoch == header.epoch and header.rescaled_from == NO_CHECKPOINT and not snapshot.finished:
            marker = TriggerCheckpoint(header.epoch, header.checkpoint_id, sequence, header.savepoint, stop=False)
            self._append(to, marker, _key(subtask))
        return replace(moved, event_ranges=tuple(ranges), event_position=self._appender.end(to))

    # ---- inputs: the ranges of each channel

    def _data_of(self, receiver: SubtaskId, snapshot: SubtaskSnapshot) -> tuple[ChannelPosition, ...]:
        moved: dict[str, ChannelPosition] = {}
        for upstream in dict.fromkeys(position.sender.operator for position in snapshot.data_positions):
            channels = [p for p in snapshot.data_positions if p.sender.operator == upstream]
            moved |= {p.channel: p for p in self._partition_of(upstream, receiver, channels)}
        return tuple(moved[position.channel] for position in snapshot.data_positions)

    def _partition_of(
        self, upstream: str, receiver: SubtaskId, channels: Sequence[ChannelPosition]
    ) -> Iterator[ChannelPosition]:
        """One partition holds the channels of all of an operator's subtasks, among one another."""
        origin = Partition(self._origin.data(upstream, receiver.operator), receiver.index)
        to = Partition(self._copy.data(upstream, receiver.operator), receiver.index)
        closed = {p.channel: [s for s in p.segments if s.begin < s.end] for p in channels}
        wanted = [segment for segments in closed.values() for segment in segments]
        spans: dict[tuple[str, int], tuple[int, int]] = {}
        sequences = {p.channel: max(p.sequence - 1, 0) for p in channels}
        self._append(to, _head(upstream), b"")
        for found in self._read(
            origin, min((s.begin for s in wanted), default=0), max((s.end for s in wanted), default=0)
        ):
            record = found.record
            if not isinstance(record, DataRecord):
                continue  # one of the channels has a gap then, here as there
            if (at := self._place(record, found.offset, closed)) is not None:  # mutant: fork-without-ranges
                offset = self._copy_data(to, record, found.at.key)
                spans[at] = spans.get(at, (offset, offset))[0], offset + 1
                sequences[at[0]] = record.sequence + 1
        for position in channels:
            ranges = closed[position.channel]
            held = [number for number in range(len(ranges)) if (position.channel, number) in spans]
            segments = []
            for number in held:
                begin, end = spans[position.channel, number]
                segments.append(
                    replace(ranges[number], begin=begin, end=end, attempt=self._attempt(ranges[number].attempt))
                )
            for segment in position.segments:
                if segment.end == OPEN_END:
                    self._barrier(to, position, sequences[position.channel])
                    attempt = self._attempt(segment.attempt)
                    segments.append(replace(segment, begin=self._appender.end(to), attempt=attempt))
            # What is due next is so of the first range: where nothing of that is copied, another sender begins anew.
            continues = not ranges or (held and _origin(ranges[held[0]]) == _origin(ranges[0]))
            yield replace(position, segments=tuple(segments), sequence=position.sequence if continues else 0)

    def _barrier(self, to: Partition, position: ChannelPosition, sequence: int) -> None:
        """The end of what belongs to the checkpoint on a channel, by who wrote it. One that was derived has none."""
        header, sender = self._checkpoint.header, position.sender
        by = self._checkpoint.subtasks.get(sender)
        if by is not None and header.rescaled_from == NO_CHECKPOINT:
            moved = Sender(*sender, self._attempt(by.attempt), by.epoch, by.generation)
            self._append(
                to, Barrier(moved, sequence, header.checkpoint_id, header.savepoint, header.triggered_at_ms), b""
            )

    @staticmethod
    def _place(record: DataRecord, offset: int, closed: Mapping[str, list[Segment]]) -> tuple[str, int] | None:
        """The channel and the number of the range that a record counts in; None: in none."""
        sender = record.sender
        channel = str(sender.subtask_id)
        for number, segment in enumerate(closed.get(channel, ())):
            if segment.begin <= offset < segment.end:
                origin = (segment.epoch, segment.generation, segment.attempt)
                return (channel, number) if origin == (sender.epoch, sender.generation, sender.attempt) else None
        return None

    def _copy_data(self, to: Partition, record: DataRecord, key: bytes | None) -> int:
        return self._append(to, replace(record, sender=self._moved(record.sender)), key)

    def _moved(self, sender: Sender) -> Sender:
        return replace(sender, attempt=self._attempt(sender.attempt))

    # ---- acks: what the coordinators had not received yet, then who acknowledged what

    def _acks(self) -> None:
        checkpoint, acks = self._checkpoint, Partition(self._copy.acks, 0)
        self._copied.inbox_position = self._appender.end(acks)
        begin, end = inbox_range(checkpoint)
        for found in self._read(Partition(self._origin.acks, 0), begin, end):
            frame = found.record
            if not isinstance(frame, OperatorEventFrame):
                continue
            owed = belongs_to_range(checkpoint, found.offset, frame)
            if owed is not None:  # mutant: fork-without-inbox
                moved = OperatorEventFrame(
                    self._moved(frame.sender), owed.belongs_to, owed.sequence, owed.count, owed.lengths, owed.payload
                )
                self._append(acks, moved, found.at.key)
        by_ack = sorted(checkpoint.subtasks.items(), key=lambda item: item[1].ack_offset)
        for subtask, snapshot in by_ack:
            if snapshot.attempt != NO_ATTEMPT:
                moved_snapshot = self._copied.subtasks[subtask]
                offset = self._append(acks, _ack(subtask, checkpoint.id, moved_snapshot), _key(subtask))
                self._copied.subtasks[subtask] = replace(moved_snapshot, ack_offset=offset)
        self._copied.acks_end = self._appender.end(acks)

    # ---- reading and writing

    def _read(self, partition: Partition, begin: int, end: int) -> Iterator[Recorded]:
        at = begin
        for found in LogReading(self._transport, {partition: begin}, {partition: end}) if begin < end else ():
            if isinstance(found, Gone):
                raise PositionUnavailable(
                    f"{found} while they were copied: checkpoint {self._checkpoint.id} is no longer kept. Take a"
                    f" savepoint (penstock savepoint {self._origin.job}) and fork that",
                    partition,
                )
            yield found
            self._progress(found.offset + 1 - at)
            at = found.offset + 1
        self._progress(max(0, end - at))

    def _append(self, partition: Partition, record: Record, key: bytes | None) -> int:
        self._copied.records += 1
        return self._appender.append(partition, encode(record), key)

    def _copy_bytes(self, partition: Partition, at: LogRecord) -> int:
        self._copied.records += 1
        return self._appender.append(partition, at.value or b"", at.key)

    def _cut_heads(self) -> None:
        begins = dict.fromkeys(self._appender.begun, 1)
        begins[Partition(self._copy.acks, 0)] = self._copied.inbox_position
        self._transport.truncate(begins)


def inbox_range(checkpoint: Checkpoint) -> tuple[int, int]:
    """Offsets of the acks topic that may hold events which the coordinators had not received at the cut.

    They stand before the acknowledgement of their sender. A savepoint holds them itself.
    """
    acknowledged = [s.ack_offset for s in checkpoint.subtasks.values() if s.attempt != NO_ATTEMPT]
    if checkpoint.header.savepoint or not acknowledged:
        return 0, 0
    return checkpoint.inbox_position, max(checkpoint.inbox_position, max(acknowledged) + 1)


def offsets_to_read(checkpoint: Checkpoint) -> int:
    """How many offsets a copy goes through."""
    begin, end = inbox_range(checkpoint)
    count = end - begin
    for snapshot in checkpoint.subtasks.values():
        count += sum(max(0, segment.end - segment.begin) for segment in snapshot.event_ranges)
        spans: dict[str, list[Segment]] = {}
        for position in snapshot.data_positions:
            closed = [segment for segment in position.segments if segment.begin < segment.end]
            spans.setdefault(position.sender.operator, []).extend(closed)
        count += sum(max(s.end for s in span) - min(s.begin for s in span) for span in spans.values() if span)
    return count


def _ack(subtask: SubtaskId, checkpoint_id: int, snapshot: SubtaskSnapshot) -> CheckpointAck:
    """The acknowledgement that the snapshot was made of, by the offsets of the copy."""
    return CheckpointAck(
        Sender(*subtask, snapshot.attempt, snapshot.epoch, snapshot.generation),
        checkpoint_id,
        snapshot.state,
        snapshot.event_position,
        snapshot.event_ranges,
        snapshot.handled_through,
        snapshot.sent_sequence,
        snapshot.data_positions,
        snapshot.finished,
        0,
        snapshot.inputs_ended,
    )


def _head(upstream: str) -> Barrier:
    return Barrier(Sender(upstream, 0, 0, 0, 0), 0, 0, savepoint=False, triggered_at_ms=0)


def _origin(segment: Segment) -> tuple[int, int, int]:
    return segment.epoch, segment.generation, segment.attempt


def _key(subtask: SubtaskId) -> bytes:
    return str(subtask).encode()
