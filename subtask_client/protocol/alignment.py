"""When a subtask takes its snapshot: once every channel has delivered the checkpoint, or once one has (section 9).

The events partition is one channel (its marker), every sender of an upstream another (its barrier); the end of a sender
counts as its barrier for every checkpoint.

* *Aligned*: a channel that has delivered is blocked. Its records are skipped, the lowest skipped offset is remembered,
  and read again once the snapshot is taken; positions keep everything else from being handled twice. Start, Reset,
  CheckpointAborted and Stop are obeyed meanwhile ◆. So an alignment costs no memory, however long it takes.
* *Unaligned*: the snapshot is taken at the first delivery. What stands between it and the barrier of each slower
  channel belongs to the checkpoint as a range; the ack follows when all have delivered.
* A delivery of a newer checkpoint on a channel that has not delivered an older one gives that one up.

A subtask without upstreams has one channel: then both are the same, and nothing is ever blocked.
"""

from __future__ import annotations

from ...schemas.acks import CheckpointDecline
from ...schemas.data import Barrier, ChannelEnded
from ...schemas.events import TriggerCheckpoint
from ...schemas.state import Segment, Sender
from . import checkpoint_acks
from . import effects as do
from .channels import Channel, Channels
from .drop_reasons import Dropped
from .instance import Instance
from .running import Running
from .snapshots import Alignment, Cut, Who


def waits_for(running: Running, who: Who, checkpoint_id: int) -> bool:
    """Whether this checkpoint's marker or barrier on this channel counts: not dead, not delivered, not aborted."""
    part = running.checkpoints.parts.get(checkpoint_id)
    return running.checkpoints.wants(checkpoint_id) or (part is not None and who in part.missing)


def marker(core: Instance, running: Running, offset: int, record: TriggerCheckpoint) -> None:
    """``TriggerCheckpoint`` has been read, and its sequence is right."""
    n = record.checkpoint_id
    # mutant: a-savepoint-names-what-was-skipped
    if record.savepoint and running.checkpoints.wants(n) and _owed_from(running) is not None:
        reason = "the subtask has ended and has yet to be notified of a checkpoint with all its work; try again then"
        return core.emit(do.Write(CheckpointDecline(running.sender, n, reason)))
    if record.stop and running.checkpoints.wants(n) and not _is_older(running, n):
        running.stopping = n, offset
    return _delivered(core, running, None, n, offset, running.sender, savepoint=record.savepoint)


def barrier(core: Instance, running: Running, channel: Channel, offset: int, record: Barrier) -> None:
    who, n = channel.sender, record.checkpoint_id
    _delivered(core, running, who, n, offset, record.sender, savepoint=record.savepoint)


def ended(core: Instance, running: Running, channel: Channel, offset: int, record: ChannelEnded) -> None:
    """The sender is done: it delivers nothing more, and nothing waits for it."""
    channel.end()
    for n, part in list(running.checkpoints.parts.items()):
        if channel.sender in part.missing:
            # Unlike a barrier, the sender's end lies in the range: an attempt that restores it must read that end.
            part.cut = part.cut.closed(channel.sender, offset + 1, record.sender, ended=True)
            checkpoint_acks.delivered(core, running, n, channel.sender)
    snapshot_if_complete(core, running)  # mutant: an-end-completes-nothing
    _pause_if_blocked(core, running, channel.sender.operator)


def _is_older(running: Running, n: int) -> bool:
    return running.alignment is not None and running.alignment.id > n


def _behind(core: Instance, running: Running, marker: int | None) -> int:
    """Return the event position of a snapshot taken now.

    If it is the last one, that is where the subtask's end began to skip events: nobody handles those.
    """
    skipped_from = running.reading.skipped_from
    if skipped_from is not None and running.may_finish:
        return skipped_from
    # A position is the next offset to read: the marker itself is done with, and void for a later Start.
    return core.position if marker is None else marker + 1


def _owed_from(running: Running) -> int | None:
    """Where the range begins that a snapshot behind the end owes, None for none. Where it is not the last, who is
    restored from it handles what was skipped ◆."""
    return None if running.may_finish else running.reading.skipped_from


def _delivered(core: Instance, running: Running, who: Who, n: int, offset: int, by: Sender, *, savepoint: bool) -> None:
    """The marker or barrier of ``n``, written ``by`` that attempt, stands at ``offset``."""
    checkpoints = running.checkpoints
    if (part := checkpoints.parts.get(n)) is not None and who in part.missing:
        _give_up_older(core, running, who, n)
        if who is not None or not part.cut.finished:
            part.cut = part.cut.closed(who, offset, by, ended=False)  # mutant: range-ends-behind-its-barrier
        return checkpoint_acks.delivered(core, running, n, who)
    if not checkpoints.wants(n) or _is_older(running, n):
        return core.drop(Dropped.DEAD_MARKER)
    _give_up_older(core, running, who, n)
    if (
        core.config.unaligned
        # mutant: savepoint-unaligned
        and not savepoint
    ):
        missing = _required(running) - {who}
        event_position = _behind(core, running, offset if who is None else None)
        return _cut(core, running, n, event_position, missing, savepoint=False)
    alignment = running.alignment
    if alignment is None:
        alignment = running.alignment = Alignment(n, savepoint, core.now + core.config.aligned_timeout)
    alignment.delivered.add(who)
    if who is None:
        alignment.event_position = _behind(core, running, offset)
    snapshot_if_complete(core, running)
    if who is not None:
        _pause_if_blocked(core, running, who.operator)
    return None


def _pause_if_blocked(core: Instance, running: Running, upstream: str) -> None:
    """All that could come on that partition would be skipped."""
    alignment, channels = running.alignment, running.channels
    if alignment is None or upstream in channels.paused:
        return
    if all(c.ended or c.sender in alignment.delivered for c in channels.of(upstream)):
        channels.paused.add(upstream)
        core.emit(do.PauseData(upstream))


def _required(running: Running) -> set[Who]:
    return {None, *running.channels.open}  # mutant: finished-sender-waited-for


def _give_up_older(core: Instance, running: Running, who: Who, n: int) -> None:
    """What waits for an older delivery on this channel waits for ever."""
    alignment = running.alignment
    if alignment is not None and alignment.id < n:
        core.emit(do.Write(CheckpointDecline(running.sender, alignment.id, f"{n} came before it on a channel")))
        if running.stopping is not None and running.stopping[0] == alignment.id:
            running.stopping = None
        unblock(core, running)
    for older, part in list(running.checkpoints.parts.items()):
        if older < n and who in part.missing:
            checkpoint_acks.give_up(core, running, older, f"{n} came before it on a channel")


def snapshot_if_complete(core: Instance, running: Running) -> None:
    alignment = running.alignment
    if alignment is not None and alignment.delivered >= _required(running):
        _cut_of_alignment(core, running, alignment)


def _cut_of_alignment(core: Instance, running: Running, alignment: Alignment) -> None:
    missing = _required(running) - alignment.delivered  # mutant: turns-unaligned-without-ranges
    # mutant: event-position-of-the-last-barrier
    event_position = _behind(core, running, None) if None in missing else alignment.event_position
    if running.stopping is None:
        unblock(core, running)
    else:
        _stay_blocked(core, running, alignment)
    _cut(core, running, alignment.id, event_position, missing, savepoint=alignment.savepoint)


def turn_unaligned_if_overdue(core: Instance, running: Running) -> None:
    """What the slower channels still owe becomes ranges."""
    alignment = running.alignment
    if (
        alignment is None
        or core.now < alignment.ends_at
        # mutant: savepoint-turns-unaligned
        or alignment.savepoint
    ):
        return
    _cut_of_alignment(core, running, alignment)


def unblock(core: Instance, running: Running) -> None:
    """Goes back to what was skipped."""
    alignment, running.alignment = running.alignment, None
    if alignment is None:
        return
    if alignment.skipped_events is not None:
        core.position = alignment.skipped_events
        core.emit(do.Seek(core.position))
    channels = running.channels
    for upstream, offset in alignment.skipped.items():
        channels.positions[upstream] = offset  # mutant: never-goes-back
    channels.paused.update(alignment.skipped)
    _resume(core, channels)


def _stay_blocked(core: Instance, running: Running, alignment: Alignment) -> None:
    """Behind the snapshot of a stopping savepoint nothing is handled."""
    running.alignment = None
    channels = running.channels
    channels.positions.update(alignment.skipped)
    channels.paused.update(channels.upstreams)
    core.emit(*map(do.PauseData, channels.upstreams))


def resume_after_aborted_stop(core: Instance, running: Running) -> None:
    """Continue behind the marker of an aborted stopping savepoint, and where each upstream had been read to."""
    assert running.stopping is not None
    # Right behind the marker: what followed it was skipped, and the marker itself is dead.
    core.position, running.stopping = running.stopping[1] + 1, None  # mutant: aborted-stop-skips
    core.emit(do.Seek(core.position))
    _resume(core, running.channels)  # mutant: aborted-stop-leaves-inputs-paused


def _resume(core: Instance, channels: Channels) -> None:
    """Reads on wherever something is still to come."""
    resumed = [u for u in sorted(channels.paused) if any(not channel.ended for channel in channels.of(u))]
    channels.paused.clear()
    core.emit(*(do.SeekData(upstream, channels.positions[upstream]) for upstream in resumed))


def _cut(core: Instance, running: Running, n: int, event_position: int, missing: set[Who], *, savepoint: bool) -> None:
    reading = running.reading
    event_ranges = reading.left_at(event_position)
    if (begin := _owed_from(running)) is not None:  # mutant: skipped-events-left-out
        sender = running.sender
        event_ranges += (Segment(begin, event_position, sender.epoch, sender.generation, sender.attempt),)
    cut = Cut(
        checkpoint_id=n,
        event_position=event_position,  # mutant: position-too-far
        event_ranges=event_ranges,
        handled_through=reading.handled_through,
        finished=core.finished and running.may_finish,  # mutant: ends-untold
        inputs_ended=bool(running.channels.by_sender) and running.work_ended,  # mutant: ended-is-told
        data_positions=running.channels.named(),
    )
    running.checkpoints.begin(cut, missing, savepoint=savepoint)
    core.emit(running.begin_call(do.TakeSnapshot(n)))
