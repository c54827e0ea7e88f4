"""Records of other operators, as they are read: which count, and what each kind of them does (section 9)."""

from __future__ import annotations

from typing import assert_never

from ...schemas.data import Barrier, ChannelEnded, DataRecord, RecordFrame
from ...schemas.errors import SequenceGap, UnreadableRecord
from ...schemas.frames import unpack
from . import alignment
from . import effects as do
from .channels import Channel
from .drop_reasons import Dropped
from .inputs import DataRead
from .instance import Instance
from .running import Running


def _begin_reading(core: Instance, running: Running) -> None:
    """The restored ranges of the events partition have been read: no snapshot ever falls into them."""
    running.reads_data = True
    channels = running.channels
    for upstream in channels.upstreams:
        if opened := [channel.position for channel in channels.of(upstream) if not channel.ended]:
            core.emit(do.SeekData(upstream, channels.positions[upstream], max(opened)))


def read(core: Instance, running: Running | None, read: DataRead) -> None:
    upstream, offset, record = read.upstream, read.offset, read.record
    if running is None or not running.reads_data or upstream in running.channels.paused:
        return core.drop(Dropped.ALREADY_READ)
    channels = running.channels
    if offset < channels.positions[upstream]:
        return core.drop(Dropped.ALREADY_READ)
    assert running.call is None, f"a record was fed during {running.call}"
    channels.positions[upstream] = offset + 1
    if core.lost is not None:
        return core.drop(Dropped.POSITION_LOST)
    channel = channels.channel_of(upstream, record)
    if channel is None:
        return core.drop(Dropped.OTHER_SENDER)
    if refusal := channel.refusal(offset, record.sender):
        return core.drop(refusal)
    expected = channel.due(record.sender)
    if record.sequence < expected:  # mutant: repeated-records-count
        return core.drop(Dropped.REPEATED)
    aligning = running.alignment
    if aligning is not None and channel.sender in aligning.delivered:  # mutant: blocked-channel-read-on
        # What counts, and is not below any position that a snapshot names: a completed checkpoint truncates the rest.
        aligning.skipped.setdefault(upstream, offset)  # mutant: highest-skipped-offset
        return core.drop(Dropped.BLOCKED)
    if record.sequence != expected:
        return _gap(core, channel, offset, expected, record)
    return _take(core, running, channel, offset, record)


def _take(core: Instance, running: Running, channel: Channel, offset: int, record: DataRecord) -> None:
    match record:
        case RecordFrame():
            try:
                records = unpack(record.count, record.lengths, record.payload)
            except UnreadableRecord:  # the sequence check of the next one tells that records are missing
                return core.drop(Dropped.UNREADABLE)
            if not records:
                return channel.advance(offset, record.sender, record.sequence)
            running.taking = channel, offset, record
            core.emit(running.begin_call(do.HandleRecords(channel.sender, records, offset)))
        case Barrier():
            void = channel.in_range(offset)
            channel.advance(offset, record.sender, record.sequence)
            if void:
                return core.drop(Dropped.VOID_CONTROL)
            alignment.barrier(core, running, channel, offset, record)
        case ChannelEnded():
            channel.advance(offset, record.sender, record.sequence)
            alignment.ended(core, running, channel, offset, record)
        case _:
            assert_never(record)
    return None


def handled(running: Running) -> None:
    """The records under way have been handled."""
    running.end_call(do.HandleRecords)
    assert running.taking is not None
    (channel, offset, frame), running.taking = running.taking, None
    channel.advance(offset, frame.sender, frame.sequence)


def follow_up(core: Instance, running: Running) -> None:
    """What has become due between two calls into user code."""
    if running.call is not None or not running.channels.by_sender or core.lost is not None:
        return
    if not running.reads_data and not running.reading.ranges:
        _begin_reading(core, running)
    if running.work_ended or not running.channels.ended or running.stop_snapshot_taken:
        return
    if core.position <= running.reading.offset:
        return  # the end comes behind restored ranges and the own Start, in one step with what is emitted here ◆
    core.emit(running.begin_call(do.EndInputs()))


def _gap(core: Instance, channel: Channel, offset: int, expected: int, record: DataRecord) -> None:
    gap = SequenceGap(
        f"{core.who()}: records from {channel.sender} are missing: expected sequence {expected} of its"
        f" generation {record.sender.full_generation}, but the {type(record).__name__} at offset {offset} has"
        f" {record.sequence}; the log was truncated, or something else writes to it"
    )
    core.emit(do.Report(gap))
    core.fail(str(gap))
