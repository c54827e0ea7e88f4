"""All that belongs to one Start, and goes with it."""

from __future__ import annotations

from ...schemas.acks import Heartbeat
from ...schemas.data import RecordFrame
from ...schemas.events import Start
from ...schemas.state import Sender
from . import effects as do
from .channels import Channel, Channels
from .config import CoreConfig
from .inputs import HeartbeatDue
from .outbox import Outbox
from .outputs import Outputs
from .reading import Reading, SequenceKey
from .snapshots import Alignment, Checkpoints


class Running:
    """An attempt in one generation; dropped as a whole."""

    def __init__(self, start: Start, offset: int, config: CoreConfig) -> None:
        self.start = start
        self.sender = Sender(
            config.subtask.operator, config.subtask.index, start.attempt, start.epoch, start.generation
        )
        self.reading = Reading(start, offset)
        self.checkpoints = Checkpoints(start)
        self.outbox = Outbox(
            self.sender,
            self.checkpoints.belongs_to,
            events_max=config.frame_events_max,
            bytes_max=config.frame_bytes_max,
        )
        self.channels = Channels(start, config.senders)
        self.outputs = Outputs(
            self.sender, config.receivers, records_max=config.frame_events_max, bytes_max=config.frame_bytes_max
        )
        self.alignment: Alignment | None = None
        """The checkpoint that some channels have delivered and others have not, where those are blocked."""
        self.taking: tuple[Channel, int, RecordFrame] | None = None
        """Records being handled: their channel and offset; None unless ``call`` is HandleRecords."""
        self.reads_data = False
        """Data partitions are read once the restored ranges of the events partition have been."""
        self.call: do.UserCall | None = None
        """The user call under way; None between calls. No record is read during one."""
        self.handling: tuple[SequenceKey, int] | None = None
        """Numbering and end of the events being handled; None unless ``call`` is HandleEvents."""
        self.reported_through = self.reading.handled_through
        """Highest handled-through sequence written in a heartbeat; never above what has been handled."""
        self.stopping: tuple[int, int] | None = None
        """(id, offset) of a marker that asks for nothing to be handled behind it."""
        # mutant: inputs-end-again
        self.work_ended = bool(config.senders) and self.channels.ended and start.inputs_ended  # no upstream is new ◆
        """The user has no work left: ``poll`` returned Finished, or ``end_inputs`` has returned, to this attempt or
        before the snapshot that it restored. The attempt ends next, once nothing keeps it; see :mod:`.ending`."""
        self.ended_in: int | None = None
        """Lowest checkpoint whose snapshot can contain the attempt's end; not None exactly in phase finished."""
        self.emits = bool(config.receivers)
        self.may_finish = self.work_ended or self.emits
        """A snapshot that contains the attempt's end may say ``finished``, and be the last. Always true of a subtask
        that emits. Of any other: its user has been notified of a completed checkpoint that was begun behind the end,
        or the restored snapshot was taken behind the end of the work and no event has been handled since."""
        self.leaves_after: int | None = None
        """The completed checkpoint that the user is being notified of, where its ack said ``finished``."""

    def handled_through(self, events_done: int = 0) -> int:
        """With so many events handled of the HandleEvents under way."""
        if self.handling is not None and self.handling[0] == self.reading.own_key:
            return self.reading.handled_through + events_done  # mutant: handled-too-early
        return self.reading.handled_through

    @property
    def stop_snapshot_taken(self) -> bool:
        """The snapshot of a stopping savepoint has been taken: nothing is handled behind it."""
        return self.stopping is not None and self.stopping[0] <= self.checkpoints.begun

    # ---- user calls

    def begin_call(self, call: do.UserCall) -> do.UserCall:
        assert self.call is None, f"{call} during {self.call}"
        self.call = call
        if isinstance(call, do.HandleEvents):
            self.may_finish = self.emits  # of a range, behind a restore: work that its checkpoint does not contain
        return call

    def end_call(self, *calls: type[do.UserCall]) -> None:
        assert isinstance(self.call, calls), f"{self.call} ended as {calls}"
        self.call = None

    # ---- to the coordinator

    def flush(self) -> list[do.Effect]:
        """What leaves before any record that speaks of it."""
        return [*self.outputs.flush(), *(do.Write(frame) for frame in self.outbox.take())]

    def heartbeat(self, due: HeartbeatDue) -> do.WriteHeartbeat:
        self.reported_through = through = self.handled_through(due.events_done)
        metrics = dict(due.metrics) if due.periodic else {}
        blocked = self.alignment is not None and None in self.alignment.delivered
        held_back = blocked or self.stopping is not None or isinstance(self.call, do.OpenUser)
        beat = Heartbeat(self.sender, through, due.step, due.step_age_ms, aligning=held_back, metrics=metrics)
        return do.WriteHeartbeat(beat, due.periodic)
