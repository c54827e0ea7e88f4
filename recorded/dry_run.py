"""What a restored subtask would get out of its log: its own state machine, fed with the log, and nobody to obey it.

Which records count is decided by :class:`~penstock.subtask_client.protocol.core.SubtaskCore` alone, under a Start made
by the function that the coordinator makes its own with. Nothing here knows a rule of the protocol; it only finds words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from ..checkpoint_log.history import Checkpoint
from ..checkpoint_log.start_record import start_of
from ..schemas.checkpoints import SubtaskSnapshot
from ..schemas.errors import PositionUnavailable
from ..schemas.events import EventFrame, EventsRecord, FailoverPolicy, Start, TriggerCheckpoint
from ..schemas.ids import Generation, SubtaskId
from ..schemas.state import Segment
from ..subtask_client.protocol import effects as do
from ..subtask_client.protocol import inputs as on
from ..subtask_client.protocol.config import CoreConfig
from ..subtask_client.protocol.core import SubtaskCore
from ..subtask_client.protocol.drop_reasons import Dropped
from ..subtask_client.protocol.phases import Phase
from ..transport.ports import OffsetRange, Partition
from .checkpoint_part import Part, begin_behind, part_of
from .job import ASK_TIMEOUT_S, RecordedJob
from .reading import LogReading, Recorded
from .start_position import needed_from

_NONCE = "dry-run"
_NOW = 0.0
"""No time passes: what is read has happened."""


class Restore(StrEnum):
    """How the subtask comes to be restored."""

    FAILOVER = "failover"
    """It fails now, and the epoch that took the checkpoint goes on; or the one that has restored it since, while no
    newer one has completed."""
    RESTART = "restart"
    """The job is started again from the checkpoint: a new epoch begins."""


@dataclass(frozen=True)
class Restored:
    """A subtask that begins from a checkpoint: the Start it gets, and where that would stand."""

    subtask: SubtaskId
    how: Restore
    start: Start
    start_offset: int
    """The end of its events: everything that is to be judged stands below."""
    snapshot: SubtaskSnapshot
    part: Part | None = None

    @property
    def begin(self) -> int:
        """Where its part of the checkpoint begins in the log."""
        return needed_from(self.snapshot)

    @property
    def first_read(self) -> int:
        """The first offset that it reads."""
        ranges = [r.begin for r in self.start.event_ranges if r.end > r.begin]
        behind = self.start_offset if self.start.policy is FailoverPolicy.RESET else self.start.event_position
        return min([*ranges, behind])


def restored(
    job: RecordedJob, subtask: SubtaskId, checkpoint: Checkpoint, policy: FailoverPolicy, how: Restore | None = None
) -> Restored:
    """The subtask as the job's coordinator would restore it from ``checkpoint`` now.

    Where not told ``how``: by a failover while the newest epoch is the one that took the checkpoint, or that has
    restored it and completed none since, else by a restart.
    Raises ConfigurationError where no subtask is restored from it, PositionUnavailable where the log lacks what it
    would read.
    """
    part, history = part_of(job.name, checkpoint, subtask), job.history
    if checkpoint.id == history.last_id:
        part = replace(part, epoch=history.epoch)
    snapshot, partition = part.snapshot, job.events(subtask)
    offsets = job.transport.offsets([partition, job.acks], ASK_TIMEOUT_S)
    there = offsets[partition]
    how = how or (Restore.FAILOVER if part.epoch == history.epoch else Restore.RESTART)
    epoch_begin = there.end
    if how is Restore.FAILOVER:
        generation, next_id = Generation(part.epoch, snapshot.generation + 1), checkpoint.id + 1
        epoch_begin = _epoch_begin(job, part, partition, there)
    else:
        generation, next_id = Generation(history.epoch + 1, 0), history.reserved_through + 1
    start = start_of(
        generation,
        offsets[job.acks].end,
        _NONCE,
        checkpoint_id=checkpoint.id,
        snapshot=snapshot,
        policy=policy,
        next_checkpoint_id=next_id,
        epoch_begin=epoch_begin,
        data_positions=snapshot.data_positions,
    )
    found = Restored(subtask, how, start, there.end, snapshot, part)
    if not there.begin <= found.first_read <= there.end:
        way_out = (
            "; it can still be restored by a restart (--restart), behind which no frame of an earlier epoch counts"
            if how is Restore.FAILOVER and not start.event_ranges
            else ": use a newer checkpoint or a savepoint"
        )
        raise PositionUnavailable(
            f"{subtask} of job {job.name} would read {partition} from offset {found.first_read} on, and it holds"
            f" {there.begin} to {there.end}{way_out} (penstock checkpoints {job.name})",
            partition,
        )
    return found


def _epoch_begin(job: RecordedJob, part: Part, partition: Partition, there: OffsetRange) -> int:
    read = LogReading(job.transport, {partition: there.begin}, {partition: there.end}) if part.inherited else ()
    return begin_behind(part, (found for found in read if isinstance(found, Recorded)), *there)


def policy_in(job: RecordedJob, subtask: SubtaskId) -> FailoverPolicy | None:
    """The policy that the newest Start in the subtask's events names; None where no Start is left."""
    partition = job.events(subtask)
    begin = job.transport.offsets([partition], ASK_TIMEOUT_S)[partition].begin
    policy = None
    for found in LogReading(job.transport, {partition: begin}):
        if isinstance(found, Recorded) and isinstance(found.record, Start):
            policy = found.record.policy
    return policy


class Verdict(StrEnum):
    """What becomes of a record."""

    HANDLED = "handled"
    SKIPPED = "skipped"
    NOT_READ = "not read"
    FAILS = "fails"


@dataclass(frozen=True)
class Judged:
    """One record of the log, and what the restored subtask does with it."""

    found: Recorded
    verdict: Verdict
    why: str
    events: list[bytes] = field(default_factory=list)
    """What the user's object is handed, in this order."""


class DryRun:
    """Judges the records of one subtask's events, in the order of their offsets."""

    def __init__(self, job: str, begun: Restored) -> None:
        self.begun = begun
        self.verdicts: Counter[Verdict] = Counter()
        self.events = 0
        """How many the user's object would have been handed."""
        start = begun.start
        self._core = core = SubtaskCore(CoreConfig(job, begun.subtask, run=_NONCE))
        core.handle(on.InstanceStarted(), _NOW)
        core.handle(on.PositionNoted(begun.start_offset, _NONCE), _NOW)
        core.handle(on.HelloTaken(_NONCE, start.attempt), _NOW)
        core.handle(on.RecordRead(begun.start_offset, start), _NOW)
        core.handle(on.Opened(), _NOW)
        assert core.running is not None, "its own Start counts"

    @property
    def handled_through(self) -> int:
        """Sequence of the first event, in the Start's own numbering, that it would not have handled."""
        return 0 if self._core.running is None else self._core.running.handled_through()

    def judge_all(self, records: Iterable[Recorded]) -> Iterator[Judged]:
        for found in records:
            if found.offset >= self.begun.start_offset:
                return
            yield self.judge(found)

    def judge(self, found: Recorded) -> Judged:
        judged = self._judge(found)
        self.verdicts[judged.verdict] += 1
        self.events += len(judged.events)
        return judged

    def _judge(self, found: Recorded) -> Judged:
        core = self._core
        if core.phase is not Phase.RUNNING:
            return Judged(found, Verdict.NOT_READ, "the attempt has failed above")
        if found.offset < core.position:
            return Judged(found, Verdict.NOT_READ, self._why_not_read(found, core.position))
        assert core.running is not None
        segment = core.running.reading.segment_at(found.offset)
        before = core.dropped.copy()
        for effect in core.handle(self._input(found), _NOW):
            match effect:
                case do.HandleEvents():
                    core.handle(on.EventsHandled(), _NOW)
                    where = "in a range of the checkpoint" if segment is not None else "behind the event position"
                    return Judged(found, Verdict.HANDLED, where, effect.events)
                case do.Report(error=error):
                    return Judged(found, Verdict.FAILS, str(error))
        dropped = next(iter(core.dropped - before), None)
        if dropped is None:
            return Judged(found, Verdict.SKIPPED, "holds no event")
        return Judged(found, Verdict.SKIPPED, self._why_skipped(found, Dropped(dropped), segment))

    @staticmethod
    def _input(found: Recorded) -> on.Input:
        if not isinstance(found.record, EventsRecord):
            return on.RecordUnreadable(found.offset)
        return on.RecordRead(found.offset, found.record)

    def _why_not_read(self, found: Recorded, position: int) -> str:
        start, epoch = self.begun.start, getattr(found.record, "epoch", None)
        if start.policy is FailoverPolicy.RESET:
            return "policy reset: behind the ranges nothing counts but what stands behind the own Start"
        if epoch is not None and epoch < start.epoch and position == start.event_position:
            return f"void: sent in epoch {epoch}, and the restore begins epoch {start.epoch} behind it"
        return f"below offset {position}, where reading goes on"

    def _why_skipped(self, found: Recorded, dropped: Dropped, segment: Segment | None) -> str:
        start, record = self.begun.start, found.record
        here = "in this range" if segment is not None else "behind the event position"
        match dropped:
            case Dropped.UNREADABLE:
                return "no published schema explains it; were it a frame, the next one would show a gap"
            case Dropped.VOID_CONTROL if isinstance(record, TriggerCheckpoint):
                return f"marker of checkpoint {record.checkpoint_id} below the own Start: dead"
            case Dropped.VOID_CONTROL:
                return "control record below the own Start: void"
            case Dropped.OTHER_EPOCH if isinstance(record, EventFrame):
                counts = start.epoch if segment is None else segment.epoch
                older = "older epoch: void" if record.epoch < counts else "another epoch"
                return f"{older} (sent in epoch {record.epoch}, {here} epoch {counts} counts)"
            case Dropped.OTHER_ATTEMPT if isinstance(record, EventFrame):
                counts = start.attempt if segment is None else segment.attempt
                return f"not for this attempt (sent to {record.attempt}, {here} attempt {counts} counts)"
            case Dropped.REPEATED:
                return "its events stand above already: its writer repeats them"
            case Dropped.OUTSIDE_RANGES:
                return "between the ranges that the checkpoint names"
            case _:
                return dropped.value.replace("_", " ")
