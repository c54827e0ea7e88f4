"""The subtask's side of the protocol as one state machine without IO, clock, randomness or threads.

The rules, in the protocol's sections:

- An instance notes where its events partition ends, says ``Hello``, and waits for the ``Start`` (section 5). While it
  waits it obeys only its own ``Start``, its own ``Stop``, and a ``Start`` that supersedes it; epochs are noted.
- Under a ``Start`` it handles what :mod:`.reading` says counts, takes part in checkpoints (:mod:`.snapshots`,
  :mod:`.checkpoint_acks`) and sends events to its coordinator (:mod:`.outbox`).
- Whatever ends an attempt but not the instance (user code raised, a gap, a ``Reset``) drops everything that belongs to
  the attempt and says ``Hello`` again, in place. Being superseded or stopped ends the instance.

- Records of other operators come through :mod:`.records` and :mod:`.channels`; :mod:`.alignment` says when the
  snapshot is taken; :mod:`.ending` how it all ends, :mod:`.lost_positions` what a position that is gone means.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import assert_never

from ...schemas.acks import Heartbeat
from ...schemas.errors import EventTooLarge, SubtaskError, UnreadableRecord
from ...schemas.events import (
    CheckpointAborted,
    CheckpointCompleted,
    EventFrame,
    EventsRecord,
    Reset,
    Start,
    Stop,
    TriggerCheckpoint,
    Welcome,
    WriterSchema,
)
from ...schemas.frames import unpack
from ...schemas.ids import SubtaskId
from ...schemas.state import Segment
from . import alignment, checkpoint_acks, checkpoint_notifications, ending, hello, lost_positions, records
from . import effects as do
from . import inputs as on
from .drop_reasons import Dropped
from .effects import Departure, Effect
from .instance import Instance
from .phases import Phase
from .running import Running


class SubtaskCore(Instance):
    """One instance of a subtask."""

    # ---- what the runtime asks

    @property
    def may_poll(self) -> bool:
        """Whether the user's own work may go on: not before restored ranges are handled, not behind a stop marker."""
        running = self.running
        return (
            self.phase is Phase.RUNNING
            and running is not None
            and running.call is None
            and running.stopping is None
            and not running.work_ended
            and self.lost is None
            and not running.reading.ranges
        )

    @property
    def uploads(self) -> list[int]:
        """Checkpoints whose state is being stored."""
        parts = {} if self.running is None else self.running.checkpoints.parts
        return [n for n, part in parts.items() if part.storing]

    @property
    def aligning(self) -> int | None:
        """The checkpoint that blocks some channels until others have delivered it."""
        running = self.running
        return running.alignment.id if running is not None and running.alignment is not None else None

    def skips(self, upstream: str) -> bool:
        """Whether an alignment has skipped a record of that upstream, which it will seek back to."""
        alignment = None if self.running is None else self.running.alignment
        return alignment is not None and upstream in alignment.skipped

    def send(self, event: bytes) -> Sequence[Effect]:
        """Take an event for the coordinator, from inside user code; not through :meth:`handle` for speed.

        Nothing goes through :meth:`Instance.emit`: another thread may have a heartbeat handled meanwhile.
        Raises :class:`EventTooLarge` for one that no record can hold, :class:`SubtaskError` outside an attempt.
        """
        running = self.running
        if running is None or len(event) > self.config.event_bytes_max:
            raise self._unsendable("an event to the coordinator", event)
        frames = running.outbox.add(event)
        return [do.Write(frame) for frame in frames] if frames else ()

    def emit_record(self, receiver: SubtaskId, record: bytes) -> do.WriteData | None:
        """Take a record for another operator, from inside user code; return the frame to write, if one is full.

        Raises as :meth:`send` does.
        """
        running = self.running
        if running is None or len(record) > self.config.event_bytes_max:
            raise self._unsendable(f"a record for {receiver}", record)
        if self.finished:
            raise self._ended(receiver)
        return running.outputs.add(receiver, record)

    def emit_records(self, records: Mapping[SubtaskId, Sequence[bytes]]) -> Iterator[do.WriteData]:
        """Take records for other operators, by receiver; yield the frames to write, as they become full.

        Raises as :meth:`send` does; then none was taken.
        """
        running = self.running
        for receiver, many in records.items():
            if running is None or max(map(len, many)) > self.config.event_bytes_max:
                raise self._unsendable(f"a record for {receiver}", max(many, key=len))
            if self.finished:
                raise self._ended(receiver)
        return iter(()) if running is None else running.outputs.add_all(records)

    def _ended(self, receiver: SubtaskId) -> SubtaskError:
        return SubtaskError(
            f"{self.who()}: its work has ended, and the operators behind it were notified that nothing more comes:"
            f" nothing can be emitted to {receiver}"
        )

    def _unsendable(self, what: str, data: bytes) -> SubtaskError | EventTooLarge:
        if self.running is None:
            return SubtaskError(f"{self.who()}: no attempt runs, so {what} cannot be sent")
        return EventTooLarge(
            f"{self.who()}: {what} has {len(data)} bytes, the broker takes at most {self.config.event_bytes_max}; send"
            " it in parts, or send the name of where it lies"
        )

    # ---- the state machine

    def handle(self, input: on.Input, now: float) -> list[Effect]:
        """Return what to do about ``input`` at monotonic second ``now``: all that was emitted, in order."""
        if self.phase is Phase.LEFT:
            return []
        self.now, self.out = now, []
        self._dispatch(input)
        running = self.running
        if running is not None and running.call is None:
            records.follow_up(self, running)
            ending.follow_up(self, running)
        if self.lost is not None:
            lost_positions.follow_up(self)
        effects, self.out = self.out, []
        return effects

    def deadline(self) -> float | None:
        """Return the monotonic second at which a Tick is due even if nothing else happens; None: never."""
        due = self.answer_due if self.phase is Phase.WAITING else math.inf
        running = self.running
        if running is not None and running.alignment is not None and not running.alignment.savepoint:
            due = min(due, running.alignment.ends_at)
        return None if due == math.inf else due

    def _dispatch(self, input: on.Input) -> None:
        match input:
            case on.RecordRead(offset=offset, record=record):
                self._on_record(offset, record)
            case on.EventsHandled():
                self._on_events_handled()
            case on.DataRead():
                records.read(self, self.running, input)
            case on.RecordsHandled():
                records.handled(self.attempt_running())
            case on.DataUnreadable():
                self.drop(Dropped.UNREADABLE)
            case on.DataLost():
                lost_positions.data_lost(self, input)
            case on.Tick():
                hello.ask_if_overdue(self)
                if self.running is not None:
                    alignment.turn_unaligned_if_overdue(self, self.running)
            case on.BrokerAsked(reachable=reachable):
                hello.broker_asked(self, reachable)
            case on.EndInputsReturned():
                ending.end_inputs_returned(self, self.attempt_running())
            case on.TurnEnded(dry=dry):
                self._on_turn_ended(dry)
            case on.HeartbeatDue():
                self._on_heartbeat_due(input)
            case on.HeartbeatSettled():
                self.heartbeat_in_flight = False
            case on.InstanceStarted():
                self.emit(do.NotePosition())
            case on.PositionNoted(end=end, nonce=nonce):
                hello.position_noted(self, end, nonce)
            case on.HelloTaken(nonce=nonce, offset=offset):
                hello.taken(self, nonce, offset)
            case on.RecordUnreadable(offset=offset):
                self._on_unreadable(offset)
            case on.PositionLost():
                lost_positions.events_lost(self, input)
            case on.Opened():
                self.attempt_running().end_call(do.OpenUser)
            case on.SnapshotReturned():
                checkpoint_acks.snapshot_returned(self, self.attempt_running(), input)
            case on.Notified(checkpoint_id=checkpoint_id):
                checkpoint_notifications.notified(self, self.attempt_running(), checkpoint_id)
            case on.WorkEnded():
                ending.end_work(self, self.attempt_running())
            case on.UserFailed(cause=cause, final=True):
                hello.refuse(self, self.attempt_running().sender, cause)
            case on.UserFailed(cause=cause):
                self.fail(cause)
            case on.StateStored():
                checkpoint_acks.state_stored(self, self.running, input)
            case on.StateRefused():
                checkpoint_acks.state_refused(self, self.running, input)
            case on.WriterFailed(cause=cause):
                if self.running is not None:
                    self.fail(cause, behind_hole=True)
                elif self.phase is Phase.WAITING:
                    hello.failed(self, cause)
            case on.LeaveRequested(reason=reason):
                self.leave(Departure.STOPPED, reason)
            case _:
                assert_never(input)

    # ---- records

    def _on_record(self, offset: int, record: EventsRecord) -> None:
        if offset < self.position or (self.phase is Phase.NEW and self.looking is None):
            return self.drop(Dropped.ALREADY_READ)
        if self.looking is not None:
            return hello.look_at(self, offset, record)
        self.position = offset + 1
        running = self.running
        if running is None:
            return self._on_live_record(offset, record)
        assert running.call is None, f"a record was fed during {running.call}"
        reading = running.reading
        if self.lost is None:
            if (segment := reading.segment_at(offset)) is not None:
                if isinstance(record, EventFrame):
                    self._on_frame(running, offset, record, segment)
                else:
                    self.drop(Dropped.VOID_CONTROL)
                return self._seek_on(running)
            if offset < reading.open_position:
                self.drop(Dropped.OUTSIDE_RANGES)
                return self._seek_on(running)
        if offset <= reading.offset:
            if not isinstance(record, EventFrame):
                return self.drop(Dropped.VOID_CONTROL)  # mutant: control-below-start-obeyed.below
            return self._on_frame(running, offset, record, None)
        return self._on_live_record(offset, record)

    def _on_live_record(self, offset: int, record: EventsRecord) -> None:
        """A record behind the own Start, or while there is none."""
        if record.epoch < self.epoch_seen:  # mutant: old-epochs-count.dropped
            return self.drop(Dropped.OLDER_EPOCH)
        self.epoch_seen = record.epoch  # mutant: old-epochs-count.seen
        match record:
            case Start():
                return hello.start(self, offset, record)
            case Stop():
                return hello.stop(self, record)
            case Welcome():
                return hello.welcome(self, record)
            case WriterSchema():
                return self.emit(do.LearnSchema(record.operator, record.subject, record.schema))
        running = self.running
        if running is None:
            return self.drop(Dropped.BEFORE_START)  # mutant: reset-obeyed-while-waiting
        blocking = running.alignment
        if (  # mutant: blocked-events-handled
            blocking is not None
            and None in blocking.delivered
            and not isinstance(record, Reset | CheckpointAborted)  # mutant: abort-waits-behind-the-block
        ):
            if blocking.skipped_events is None:  # mutant: highest-skipped-event
                blocking.skipped_events = offset
            return self.drop(Dropped.BLOCKED)
        match record:
            case Reset():
                if record.full_generation <= running.start.full_generation:  # mutant: control-below-start-obeyed.reset
                    return self.drop(Dropped.STALE_RESET)
                self.start_over()
            case EventFrame():
                self._on_frame(running, offset, record, None)
            case TriggerCheckpoint():
                self._on_marker(running, offset, record)
            case CheckpointCompleted():
                checkpoint_notifications.completed(self, running, record)
            case CheckpointAborted():
                checkpoint_notifications.aborted(self, running, record)
            case _:
                assert_never(record)
        return None

    def _on_frame(self, running: Running, offset: int, frame: EventFrame, segment: Segment | None) -> None:
        if self.lost is not None:
            return self.drop(Dropped.POSITION_LOST)
        if running.stopping is not None:  # mutant: handles-behind-a-stop
            return self.drop(Dropped.BEHIND_STOP)
        reading = running.reading
        if refusal := reading.refusal(frame, segment):
            return self.drop(refusal)
        key = reading.key_of(frame)
        expected = reading.due(key)
        if frame.sequence < expected and frame.sequence + frame.count <= expected:  # mutant: repeated-events-count
            return self.drop(Dropped.REPEATED)
        try:
            events = unpack(frame.count, frame.lengths, frame.payload)
        except UnreadableRecord:  # the sequence check of the next one tells that events are missing
            return self.drop(Dropped.UNREADABLE)
        if frame.sequence != expected:
            own = key == reading.own_key
            return self._gap(offset, expected, frame.sequence, "the frame", missing=expected if own else -1)
        if not events:
            return None
        if self.finished:  # mutant: finished-handles-on
            reading.skip(offset, frame.sequence + len(events))
            return self.drop(Dropped.BEHIND_END)
        running.handling = key, frame.sequence + len(events)
        if segment is not None:
            self._seek_on(running)  # ahead of the call, which is the last effect
        return self.emit(running.begin_call(do.HandleEvents(frame.sequence, events, offset)))

    def _on_events_handled(self) -> None:
        running = self.attempt_running()
        running.end_call(do.HandleEvents)
        assert running.handling is not None
        running.reading.advance(*running.handling)
        running.handling = None

    def _on_unreadable(self, offset: int) -> None:
        if self.looking is not None and offset >= self.position:
            return hello.look_at(self, offset, None)
        if self.phase is not Phase.NEW and offset >= self.position:
            self.position = offset + 1
        self.drop(Dropped.UNREADABLE)
        if self.running is not None:
            self._seek_on(self.running)
        return None

    def _seek_on(self, running: Running) -> None:
        """Goes on to the next range, or behind the last one, when the position has left what counts."""
        if self.running is not running or self.lost is not None:
            return
        if (to := running.reading.gap_behind(self.position)) is not None:
            self.position = to
            self.emit(do.Seek(to))

    # ---- checkpoints (section 7)

    def _on_marker(self, running: Running, offset: int, marker: TriggerCheckpoint) -> None:
        if self.lost is not None:
            return self.drop(Dropped.POSITION_LOST)
        if running.stopping is not None:
            return self.drop(Dropped.BEHIND_STOP)
        if marker.epoch != running.start.epoch:
            return self.drop(Dropped.OTHER_EPOCH)
        if not alignment.waits_for(running, None, marker.checkpoint_id):
            return self.drop(Dropped.DEAD_MARKER)
        expected = running.reading.due(running.reading.own_key)
        if marker.sequence < expected:
            return self.drop(Dropped.REPEATED)
        if marker.sequence != expected:
            what = f"the marker of checkpoint {marker.checkpoint_id}"
            return self._gap(offset, expected, marker.sequence, what, missing=expected)
        return alignment.marker(self, running, offset, marker)

    # ---- own work, turns, heartbeats

    def _on_turn_ended(self, dry: bool) -> None:
        running = self.running
        if running is not None:
            self.emit(*running.flush())
            if dry and running.handled_through() > running.reported_through:
                self.emit(running.heartbeat(on.HeartbeatDue(False, "waiting for input", 0)))
        elif dry and self.hello_failed:
            hello.repeat(self)

    def _on_heartbeat_due(self, due: on.HeartbeatDue) -> None:
        running = self.running
        if due.periodic:
            if self.heartbeat_in_flight or (running is None and not self._between_attempts):
                return
            self.heartbeat_in_flight = True
        elif running is None or running.handled_through(due.events_done) <= running.reported_through:
            return
        if running is not None:
            self.emit(running.heartbeat(due))
        else:
            assert self.former is not None
            beat = Heartbeat(self.former, 0, due.step, due.step_age_ms, aligning=False, metrics={})
            self.emit(do.WriteHeartbeat(beat, periodic=True))

    @property
    def _between_attempts(self) -> bool:
        """One is over, and the next Hello does not stand as far as it knows: silence would look like a freeze. How
        long it may take is the coordinator's to say."""
        waits = self.phase is Phase.WAITING and self.attempt is None
        return self.former is not None and (waits or self.phase is Phase.NEW)

    def _gap(self, offset: int, expected: int, found: int, what: str, missing: int) -> None:
        gap = self.attempt_running().reading.gap(self.who(), offset, expected, found, what)
        self.emit(do.Report(gap))
        self.fail(str(gap), missing=missing)
