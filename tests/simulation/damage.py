"""What becomes of records that stood: lost, damaged, or written again by somebody."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.schemas.acks import AcksRecord, CheckpointAck, FromAttempt, OperatorEventFrame
from penstock.schemas.codec import decode, encode
from penstock.schemas.events import EventFrame
from penstock.schemas.state import ChannelPosition, Segment
from penstock.transport.ports import LogRecord

from .faults import Fault
from .pen import Pen
from .records import decoded_ack

if TYPE_CHECKING:
    from .world import World

_LATEST = 12
"""Of so many of the newest records one is lost or damaged."""
_UNREADABLE = b"unreadable"


def damages(world: World) -> list[Fault]:
    """Only what no coordinator has read is lost or damaged: a checkpoint may need what one has."""
    config, rate = world.config, world.rate if world.faulty else 0.0
    faults = []
    if rate and not world.away:
        if config.losses and _unread(world):
            faults.append(Fault(0.05 * rate * config.losses, _lose, world))
        if config.corruptions and _unread(world):
            faults.append(Fault(0.05 * rate * config.corruptions, _corrupt, world))
        if config.repetitions:
            faults.append(Fault(0.05 * rate * config.repetitions, _repeat, world))
        if config.strays:
            faults.append(Fault(0.05 * rate * config.strays, _stray, world))
    return faults


def _unread(world: World) -> list[LogRecord]:
    read = (c.reader._next[world.acks] for c in world.coordinators if c.reader is not None)
    log, begin = world.broker._log(world.acks), max(read, default=0)
    newest = log.records[-_LATEST:]
    return [r for r in newest if r.offset >= begin and isinstance(decoded_ack(r), FromAttempt)]


def _put(world: World, record: LogRecord, value: bytes) -> None:
    log = world.broker._log(world.acks)
    log.records[record.offset - log.begin] = record._replace(value=value)


def _lose(world: World) -> None:
    """An event as a rule, and the last one: nothing behind it tells."""
    unread = _unread(world)
    frames = [record for record in unread if isinstance(decoded_ack(record), OperatorEventFrame)]
    record = frames[-1] if frames and world.rng.random() < 0.7 else world.rng.choice(unread)
    world.trace(f"acks record {record.offset} is LOST:", decoded_ack(record))
    _put(world, record, _UNREADABLE)


def _corrupt(world: World) -> None:
    """Leave a record that can be decoded, and lies; of other records leave nothing."""
    record = world.rng.choice(_unread(world))
    lie = _lie(world, decoded_ack(record))
    world.trace(f"acks record {record.offset} is DAMAGED:", lie)
    _put(world, record, _UNREADABLE if lie is None else encode(lie))


def _lie(world: World, record: AcksRecord | None) -> AcksRecord | None:
    match record:
        case OperatorEventFrame():
            return replace(record, count=record.count + world.rng.choice((-1, 1)))
        case CheckpointAck():
            return world.rng.choice(
                (
                    replace(record, sent_sequence=record.sent_sequence + 1_000),
                    replace(record, event_ranges=(Segment(0, 10**12, 1, 0, 0),)),
                    replace(record, data_positions=(*record.data_positions, ChannelPosition("x", (), 0))),
                )
            )
    return None


def _repeat(world: World) -> None:
    """Any record that still stands, whoever has written it, however long ago."""
    log = world.broker._log(world.acks)
    record = world.rng.choice(log.records) if log.records else None
    if record is not None and (said := decoded_ack(record)) is not None:
        world.trace(f"acks record {record.offset} is written AGAIN:", said)
        world.side.append(world.acks, encode(said), None, None)


def _stray(world: World) -> None:
    """A copy of a frame, which does no harm, or one that leaves a hole before it."""
    partition = world.event_partition(world.rng.choice(world.settings.subtasks()))
    frames = [r for r in world.broker._log(partition).records if isinstance(decode(r.value), EventFrame)]
    if frames:
        record = world.rng.choice(frames)
        stray = decode(record.value)
        assert isinstance(stray, EventFrame)
        if world.rng.random() < 0.7:
            stray = replace(stray, sequence=stray.sequence + 1_000)
        world.trace(f"somebody else writes to {partition}:", stray)
        pen = Pen(world.transport)
        pen.append(partition, encode(stray), record.key, None)
        world.adrift.append(pen)
