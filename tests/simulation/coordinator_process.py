"""A coordinator process: performs the core's effects in order as the runtime does, one scheduler step at a time."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from penstock.checkpoint_log.history import History, Keyed
from penstock.checkpoint_log.restorability import Offsets
from penstock.client.log_reader import readable
from penstock.coordinator.epoch_filter import EpochFilter
from penstock.coordinator.host import CoordinatorSpec, OperatorHost
from penstock.coordinator.mailbox import Item, Mailbox
from penstock.coordinator.protocol import effects, inputs, late_stops
from penstock.coordinator.protocol.core import CoordinatorCore
from penstock.coordinator.protocol.invariants import check_invariants
from penstock.coordinator.protocol.retention import truncation
from penstock.coordinator.protocol.state import Phase
from penstock.coordinator.status import job_status
from penstock.coordinator.timers import Timers
from penstock.coordinator.truncation import Truncation
from penstock.schemas.acks import CheckpointAck, SnapshotTaken
from penstock.schemas.checkpoints import JobFinished, JobOutcome
from penstock.schemas.codec import decode, encode
from penstock.schemas.errors import (
    Backpressure,
    Fenced,
    JobHasFinished,
    JobRefused,
    PositionUnavailable,
    StateError,
    TopicMissing,
)
from penstock.schemas.events import EventFrame, Reset, Start
from penstock.schemas.graph import DataPartition
from penstock.schemas.ids import SubtaskId
from penstock.schemas.settings import Restore
from penstock.schemas.state import StateHandle, epoch_of_location
from penstock.schemas.status import BatchPlanned, End, Ending
from penstock.schemas.user_codec import JsonCodec
from penstock.transport.memory import MemoryReader
from penstock.transport.ports import FencedLog, LogRecord, Partition

from .faults import Fault
from .pen import Pen
from .records import decoded_ack, keyed
from .rescaling import redistributed
from .unclean import SAYS_SO
from .users import NumberedCoordinator, UserRaised
from .violations import Violation

if TYPE_CHECKING:
    from .standby import StandbyHost
    from .world import Action, World

_EVENT_WAITS = re.compile(r"event (\d+) of \d+ waits")
STATUS_S = 0.2
"""Between two statuses, where hosts that stand by read them."""
_HEADER_BYTES = 10
"""What says of which kind a record is; without that it is nobody's."""
READ_AHEAD, READ_AHEAD_OF_THE_SLOW = (20, 1 << 20), (1_000, 16_000)
"""Records, and bytes of them, that a coordinator reads ahead."""
"""Records of the acks topic read ahead of the core."""


class Work:
    """Calls of ``call_async`` that no worker has taken yet; a step of the scheduler does one."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], object]] = deque()

    def submit(self, fn: Callable[[], object]) -> None:
        self.waiting.append(fn)


class CoordinatorProcess:
    """One instance. While ``blocked`` on a commit or on reading back, the core is fed nothing else."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.alive = True
        self.frozen_until = self.cut_off_until = 0.0
        self.ended_well = False
        self.tells_end = False
        """Its job has finished: all that is left is to tell."""
        self.host: StandbyHost | None = None
        """Where hosts stand by: the one that runs it."""
        self.continues = world.config.dies_at_the_end > 0
        """Whether it goes on with a job that another was at work on."""
        self.status_at = 0.0
        self.core = CoordinatorCore(world.settings, name)
        self.users: dict[str, NumberedCoordinator] = {}
        self.hosts: dict[str, OperatorHost] = {}
        self.pen, self.side = Pen(world.transport), Pen(world.transport)
        self.mailbox = Mailbox(*(READ_AHEAD_OF_THE_SLOW if world.config.slow else READ_AHEAD))
        self.items: deque[Item] = deque()
        self.raised: deque[inputs.CoordinatorRaised] = deque()
        self.started: dict[tuple[int, SubtaskId], dict[str, int]] = {}
        """By epoch and subtask: the instances that it has started, and the attempts that they are."""
        self.snapshots_seen: set[tuple[int, SubtaskId]] = set()
        """Checkpoints, and whose snapshot for them it has read of."""
        self.blocked: effects.Commit | effects.ReadAcks | None = None
        self.rest: deque[effects.Effect] = deque()
        """Effects behind the one that blocks."""
        self.log: FencedLog | None = None
        self.stands = False
        """The commit that blocks has reached the log, its answer has not come."""
        self.reread_at = 0
        self.has_read_to = 0.0
        """When the last acks record that it has been fed was appended."""
        self.epoch_filter = EpochFilter(
            "job", world.transport, Partition(world.settings.topics.checkpoints, 0), lambda: self.world.now
        )
        self.reader: MemoryReader | None = None
        self.storing: list[effects.StoreState] = []
        self.deletions: list[Callable[[], None]] = []
        self.looks: list[tuple[effects.LookAtEnds, Callable[[], bool]]] = []
        self.truncation: effects.Truncate | None = None
        self.work = Work()
        self.heartbeat: tuple[bytes, Callable[[], bool]] | None = None
        """It waits for what was appended before it."""

    def __str__(self) -> str:
        return self.name

    # ---- start

    def claim(self) -> None:
        topics = self.world.settings.topics
        self.log = self.world.transport.claim_log(topics.checkpoints, topics.transactional_id)
        if self.host is not None:  # a takeover takes as long as a session
            self.world.calm_since = self.world.now
        self.world.trace(f"{self} claims the checkpoint log")

    def begin(self) -> None:
        world, settings = self.world, self.world.settings
        for operator in settings.operators:
            user = self.users[operator.name] = NumberedCoordinator(self, operator.name)
            spec = CoordinatorSpec(partial(_identity, user), JsonCodec(), JsonCodec())
            self.hosts[operator.name] = OperatorHost(
                settings.name,
                operator,
                spec,
                self.mailbox,
                Timers(lambda: None),
                self.work,
                partial(world.storage.restored, self),
                1 << 20,
                self._work_done,
            )
        partitions = {s: world.event_partition(s) for s in settings.subtasks()}
        data = self._data_partitions()
        offsets = world.transport.offsets([*partitions.values(), *data.values(), world.acks])
        log = self._read_log()
        if log is None:
            return
        if world.config.compacts:
            log = compacted(log, world.rng.randint(0, len(log)))
        older = sorted(History.of(log).checkpoints) if world.config.late or world.chance(world.config.older) else []
        names = [spec.name for spec in settings.topic_specs]
        begin = inputs.Begin(
            log,
            {name: info.topic_id for name, info in world.transport.describe_topics(names).items()},
            {s: Offsets(*offsets[p]) for s, p in partitions.items()},
            Offsets(*offsets[world.acks]),
            world.now_ms(),
            Restore.CHECKPOINT if older else Restore.LATEST,
            world.rng.choice(older) if older else -1,
            continues=self.continues or world.untold,
            data={partition: Offsets(*offsets[at]) for partition, at in data.items()},
            partitions={
                name: world.transport.describe_topics([topic])[topic].partitions
                for name in settings.parallelism
                for topic in [settings.topics.events(name)]
            },
            first_epoch=world.first_epoch(),
            known=world.known,
        )
        try:
            self._feed(begin)
        except JobHasFinished:
            self._tell_to_leave()
        except JobRefused as refusal:
            if world.config.purges and "the log was lost. Purge" in str(refusal):
                self._purge_again(str(refusal))
            elif SAYS_SO in str(refusal):
                self.end(None, str(refusal))
                world.job_failed(str(refusal))
            elif not world.storage.is_rotten(refusal):
                raise Violation(f"section 7.9: {self} is refused: {refusal}") from refusal
            else:
                self.end(None, str(refusal))

    def _purge_again(self, why: str) -> None:
        """Somebody who is left over wrote to a topic of the new job before its first epoch stood."""
        self.end(None, why)
        self.world.purge()

    def _read_log(self) -> tuple[Keyed, ...] | None:
        """None where a record came back cut short: that refuses the start, whatever else is there."""
        world, topic = self.world, Partition(self.world.settings.topics.checkpoints, 0)
        records = list(world.transport.read_all(topic))
        if not (world.config.rots and records and world.chance(0.01 * world.config.rots)):
            return tuple(keyed(record) for record in records)
        at = world.rng.choice([n for n, record in enumerate(records) if record.value is not None])
        value = records[at].value or b""
        records[at] = records[at]._replace(value=value[: world.rng.randrange(_HEADER_BYTES, len(value))])
        world.trace(f"{self} reads a DAMAGED record:", records[at])
        try:
            return tuple(one for record in records if (one := readable(world.settings.name, record)) is not None)
        except JobRefused as refusal:
            self.end(None, str(refusal))
            return None

    def _tell_to_leave(self) -> None:
        """The one before may have died before it could."""
        world, history = self.world, self.core.job.history
        begin = max(late_stops.hellos_from(history), world.transport.offsets([world.acks])[world.acks].begin)
        records = world.transport.read_all(world.acks)
        read = [(r.offset, decoded) for r in records if r.offset >= begin and (decoded := decoded_ack(r)) is not None]
        for subtask, stop in late_stops.stops(world.settings, history, read):
            self._append(effects.Append(subtask, stop))
        self.tells_end = True

    def _told(self) -> None:
        """Where it is not certain to stand, another does it again."""
        told, finished = not self._mail(), self.core.job.history.finished
        hosted = self.host is not None and told and finished is not None
        self.end(Ending(finished.outcome) if hosted and finished else None, "the job has ended")
        if not told or finished is None:
            return
        stopped = finished.outcome is JobOutcome.STOPPED
        if self.world.untold and not self.world.config.finite:
            self.world.job_ended(not stopped)
        else:
            self.world.finished, self.world.stopped = True, stopped
        self.world.untold = False

    def _end_told(self, end: End) -> None:
        """Where its last words were refused it breaks off, and the one behind it tells them."""
        if end.ending in (Ending.STOPPED, Ending.FINISHED) and self.pen.failure is not None:
            self.world.untold = True
            self.end(None, "its last words were refused")
        else:
            self.end(end.ending, end.cause)

    def _tell_status(self, state: str = "") -> None:
        self.status_at = self.world.now + STATUS_S
        status = job_status(self.core.job, state)

        def taken(_: int | None, error: Exception | None) -> None:
            if error is None and self.world.standby is not None:
                self.world.standby.told(status.epoch)

        self.side.append(Partition(self.world.settings.topics.status, 0), encode(status), None, taken)

    def _data_partitions(self) -> dict[DataPartition, Partition]:
        return {p: self.world.data_partition(*p) for p in self.world.settings.graph.data_partitions()}

    # ---- the loop

    def _feed(self, event: inputs.Input) -> None:
        self._decide(event)
        while self.raised and self.blocked is None and self.alive:
            self._decide(self.raised.popleft())
        if self.reader is None and self.blocked is None:
            self.reader = self.world.transport.reader({self.world.acks: self.core.job.position})

    def _decide(self, event: inputs.Input) -> None:
        if isinstance(event, inputs.AckRead) and self.world.config.purges:
            event = self.epoch_filter.without(event, self.core.job.history.epoch)
        self.world.trace(self, "<-", event)
        if isinstance(event, inputs.AckRead):
            self.has_read_to = self.world.time_of(event.appended_at_ms)
        if isinstance(event, inputs.AckRead) and isinstance(event.record, SnapshotTaken | CheckpointAck):
            self.snapshots_seen.add((event.record.checkpoint_id, event.record.sender.subtask_id))
        decided = self.core.handle(event, self.world.now)
        check_invariants(self.core.job)
        if self.world.config.driven_by_query and (epoch := self.core.job.epoch) is not None:
            self.mailbox.note_held(epoch.held_bytes)
        self._perform_all(decided)

    def _perform_all(self, decided: Iterable[effects.Effect]) -> None:
        self.rest.extendleft(reversed(list(decided)))
        while self.rest and self.blocked is None and self.alive:
            self._perform(self.rest.popleft())

    def take(self) -> None:
        if not self.items:
            self.items.extend(self.mailbox.take(0.0))
        item = None
        if self.core.reads and not self.items:
            item = self.mailbox.next_read(overtaken=False)
        if item is None:
            item = self.items.popleft()
        if callable(item):
            item()
            return
        self._feed(item)

    def _perform(self, effect: effects.Effect) -> None:
        world = self.world
        world.trace(self, "->", effect)
        match effect:
            case effects.Append():
                self._append(effect)
            case effects.Commit() | effects.ReadAcks():
                self.blocked, self.stands = effect, False
                if isinstance(effect, effects.ReadAcks):
                    begin = world.transport.offsets([world.acks])[world.acks].begin
                    self.reread_at = max(effect.begin, begin)
            case effects.Redistribute():
                self._decide(redistributed(world, f"{self}", effect))
            case effects.Settle():
                self.hosts[effect.stream.subtask.operator].settle(effect.stream)
            case effects.AppendHeartbeat():
                self.heartbeat = encode(effect.record), self.pen.all_settled()
                self._beat()
            case effects.LookAtEnds():
                self.looks.append((effect, self.pen.all_settled()))
            case effects.Reply():
                if isinstance(effect.reply, BatchPlanned):
                    world.checks.query.replied(self, effect.reply)
                self.side.append(Partition(world.settings.topics.status, 0), encode(effect.reply), None, None)
            case effects.ReplaceWriter():
                world.adrift.append(self.pen.abandon(world.rng))
                self.pen = Pen(world.transport)
            case effects.StoreState():
                self.storing.append(effect)
            case effects.DeleteStates():
                self.deletions.append(lambda: self._delete(effect.locations))
            case effects.CollectOrphans():
                self.deletions.append(lambda: self._collect(effect))
            case effects.Truncate():
                self.truncation = effect
            case effects.KillTask():
                self._check_told(effect.subtask, effect.cause)
                world.kill_task(effect.task, effect.cause)
            case effects.Drain():
                self._work_done()
            case End():
                self._end_told(effect)
            case _:
                self._call(effect)

    def _work_done(self) -> None:
        if self._drains():
            self.mailbox.post(self._tell_work_left)

    def _drains(self) -> bool:
        epoch = self.core.job.epoch
        return epoch is not None and epoch.draining is not None

    def _tell_work_left(self) -> None:
        left = {name: host.work_left for name, host in self.hosts.items() if host.work_left}
        self._feed(inputs.WorkLeft(self.core.job.history.epoch, left))

    def _call(self, call: effects.Call) -> None:
        host, epoch = self.hosts[call.operator], self.core.job.history.epoch
        if host.epoch != epoch and isinstance(call, effects.CallReset | effects.CallStart):
            host.reset_epoch(epoch)
        if isinstance(call, effects.CallCheckpoint):
            self.world.checks.called(self, call.checkpoint_id)
            if self.world.config.driven_by_query:
                self.world.checks.query.called(self, call.checkpoint_id)
        if isinstance(call, effects.CallFailed) and not self.world.config.damages and "its ack" in (call.reason or ""):
            raise Violation(f"section 7.6: {self} refuses an ack that nobody has damaged: {call.reason}")
        try:
            host.call(call)
        except StateError as error:
            if self.world.storage.is_rotten(error):
                self.world.checks.refused(call, error)
                self.end(None, str(error))
            elif self.world.checks.newest() is self:
                raise Violation(f"section 7.9: {error}") from error
            else:
                self.end(Ending.FENCED, str(error))  # its successor has deleted what it was to restore
        except (UserRaised, Backpressure) as error:
            self.raised.append(inputs.CoordinatorRaised(call.operator, host.epoch, type(call).__name__, repr(error)))

    def _check_told(self, subtask: SubtaskId, cause: str) -> None:
        """Nobody is ended for what he did with an event, a Start or a Reset that does not stand."""
        waiting = [decode(value) for value, _, _ in self.pen.queues.get(self.world.event_partition(subtask), ())]
        frames = [record for record in waiting if isinstance(record, EventFrame)]
        untold = (
            (found := _EVENT_WAITS.search(cause)) is not None and any(f.sequence <= int(found[1]) for f in frames)
        ) or ("not under its Start" in cause and any(isinstance(record, Start) for record in waiting))
        if untold or ("and goes on" in cause and any(isinstance(record, Reset) for record in waiting)):
            raise Violation(f"section 8: {subtask} is ended for what it has not been told: {cause}")

    def check_may_be_handed(self, operator: str) -> None:
        if self.owes_future(operator):
            raise Violation(f"section 7.2: {operator} is handed an event while it owes a checkpoint future")

    def owes_future(self, operator: str) -> bool:
        pending = {} if self.core.job.epoch is None else self.core.job.epoch.pending
        return any(n in pending and operator in pending[n].uncut for n in self.users[operator].owed)

    def _append(self, effect: effects.Append) -> None:
        epoch = self.core.job.history.epoch
        match effect.record:
            case EventFrame():
                self.world.checks.appended(self, effect.subtask, effect.record)
            case Start():
                self.world.checks.started(self, effect.subtask, effect.record)

        def outcome(_: int | None, error: Exception | None) -> None:
            if error is not None:
                self.mailbox.post(inputs.AppendFailed(epoch, str(error)))

        self.pen.append(self.world.event_partition(effect.subtask), encode(effect.record), None, outcome)

    def _beat(self) -> None:
        if self.heartbeat is not None and self.heartbeat[1]():
            self.side.append(self.world.acks, self.heartbeat[0], None, self._heartbeat_taken)
            self.heartbeat = None

    def _heartbeat_taken(self, _: int | None, error: Exception | None) -> None:
        if error is not None:
            self.mailbox.post(inputs.HeartbeatLost())

    def _refuse_aside(self, partition: Partition) -> None:
        self.side.refuse(partition, stands=self.world.rng.random() < 0.5)
        self.world.adrift.append(self.side.abandon(None))
        self.side = Pen(self.world.transport)

    # ---- commits and reading back

    def commit_stands(self) -> None:
        assert isinstance(self.blocked, effects.Commit) and self.log is not None
        try:
            self.log.commit([(key, None if r is None else encode(r)) for key, r in self.blocked.records])
        except Fenced as fenced:
            self.end(Ending.FENCED, str(fenced))
            return
        self.stands = True
        self.world.trace(f"{self} commit stands")
        self.world.commits.append(self.world.broker._log(Partition(self.world.settings.topics.checkpoints, 0)).end)
        self.world.checks.committed(self, self.blocked.records)
        ends = any(isinstance(record, JobFinished) for _, record in self.blocked.records)
        self.world.checks.ended(self.blocked.records)
        if ends and (chance := self.world.config.dies_at_the_end) and self.world.rng.random() < chance:
            self.crash()
        elif ends and self.world.config.refuses_the_end and (waiting := self.pen.waiting()):
            self.pen.refuse(waiting[0], stands=False)

    def commit_answered(self) -> None:
        world, commit = self.world, self.blocked
        assert isinstance(commit, effects.Commit)
        committed = inputs.Committed()
        if commit.looks_at_ends:
            partitions = {s: world.event_partition(s) for s in world.settings.subtasks()}
            data = self._data_partitions()
            ends = world.transport.offsets([*partitions.values(), *data.values(), world.acks])
            committed = inputs.Committed(
                {s: ends[p].end for s, p in partitions.items()},
                ends[world.acks].end,
                {p: ends[at].end for p, at in data.items()},
            )
        self.blocked = None
        self._feed(committed)

    def commit_unknown(self) -> None:
        self.end(None, "the answer to a commit never came")

    def reread_one(self) -> None:
        assert isinstance(self.blocked, effects.ReadAcks)
        self.reread_at = max(self.reread_at, self.world.broker._log(self.world.acks).begin)
        if self.reread_at >= self.blocked.end:
            self.blocked = None
            self._feed(inputs.RereadEnd())
            return
        reader = self.world.transport.reader({self.world.acks: self.reread_at})
        for record in self._read(reader, min(3, self.blocked.end - self.reread_at)):
            if (decoded := decoded_ack(record)) is not None:
                for effect in self.core.handle(inputs.Reread(record.offset, decoded), self.world.now):
                    self._perform(effect)  # a call: it does not wait for the end of what is read
                check_invariants(self.core.job)
            self.reread_at = record.offset + 1

    # ---- other threads

    def read_acks(self) -> None:
        assert self.reader is not None
        records = self._read(self.reader, self.world.rng.randint(1, 3))
        reads = [(inputs.AckRead(r.offset, r.timestamp_ms, decoded_ack(r)), len(r.value or b"")) for r in records]
        self.mailbox.post_reads(reads)

    def _read(self, reader: MemoryReader, records_max: int) -> list[LogRecord]:
        """Only one that has a successor may find the acks topic truncated past itself: it breaks off."""
        try:
            return reader.poll(0.0, records_max)
        except TopicMissing as error:
            self.end(None, str(error))
            return []
        except PositionUnavailable as error:
            if self.world.checks.newest() is self and self.world.checks.successor is None:
                raise Violation(f"section 7.9: the current coordinator cannot read on: {error}") from error
            self.end(Ending.FENCED, str(error))
            return []

    def look_at_ends(self) -> None:
        effect, _ = self.looks.pop(0)
        partitions = {s: self.world.event_partition(s) for s in self.world.settings.subtasks()}
        ends = self.world.transport.offsets([*partitions.values()])
        self.mailbox.post(inputs.EndsSeen(effect.checkpoint_id, {s: ends[p].end for s, p in partitions.items()}))

    def store(self, effect: effects.StoreState) -> None:
        self.storing.remove(effect)
        if self.world.chance(0.05):
            self.mailbox.post(inputs.StateNotStored(effect.operator, effect.checkpoint_id, "storage is full"))
            return
        self.world.store(effect.location, effect.state)
        handle = StateHandle.stored(effect.location, effect.state)
        self.mailbox.post(inputs.StateStored(effect.operator, effect.checkpoint_id, handle))

    def _work_next(self) -> None:
        self.work.waiting.popleft()()

    def _delete_next(self) -> None:
        self.deletions.pop(0)()

    def _delete(self, locations: Iterable[str]) -> None:
        self.world.checks.deleting(self, locations)
        for location in locations:
            self.world.stored.pop(location, None)

    def _collect(self, effect: effects.CollectOrphans) -> None:
        self._delete(
            [
                at
                for at in self.world.stored
                if at not in effect.named and (epoch := epoch_of_location(at)) is not None and epoch < effect.epoch
            ]
        )

    def wish_to_truncate(self) -> None:
        """What it asked for last happens later than all else that it did."""
        self.truncation = truncation(self.core.job.settings, self.core.job.history)

    def truncate(self) -> None:
        world, wanted = self.world, self.truncation
        assert wanted is not None
        self.truncation = None
        if world.config.purges and not self._may_truncate():
            return
        if world.checks.successor is not None:
            raise Violation(f"section 3: {self} truncates topics of a job that was begun anew")
        positions = {world.event_partition(s): offset for s, offset in wanted.events.items()}
        positions |= {world.data_partition(*partition): offset for partition, offset in wanted.data.items()}
        positions[world.acks] = wanted.acks
        world.checks.retention.truncating(self, world.checks.history, positions)
        world.transport.truncate(positions)

    def _may_truncate(self) -> bool:
        """By the product's rule: the topics are those that it began with."""
        truncation = Truncation(self.core.job.settings, self.world.transport, lambda work: None)
        truncation.begin(self.core.job.topic_ids)
        try:
            truncation._truncate(effects.Truncate({}, 0))
        except TopicMissing:
            return False
        return True

    # ---- ends

    def end(self, ending: Ending | None, cause: str) -> None:
        """None: the process is killed, or breaks off."""
        self.world.trace(f"{self} ends ({ending}): {cause}")
        self.alive = False
        lost = ending is None or ending is Ending.FENCED
        if self.host is not None:
            if not lost:
                self._tell_status(str(ending))
            self.host.ended(ending)
        self.ended_well = not lost
        for pen in (self.pen, self.side):
            self.world.adrift.append(pen.abandon(self.world.rng if lost else None))
        if self.truncation is not None and (self.world.config.retention is not None or self.world.config.purges):
            self.world.truncations.append(self)
        if ending is Ending.FAILED:
            self.world.job_failed(cause)
        if ending in (Ending.STOPPED, Ending.FINISHED):
            self.world.job_ended(ending is Ending.FINISHED)

    def crash(self) -> None:
        if self.host is not None:
            self.host.crash()
            self.host = None
        self.end(None, "CRASH")

    def _mail(self) -> bool:
        mailbox = self.mailbox
        return bool(mailbox._items or mailbox._sending or (mailbox._reads and self.core.reads))

    def waits(self) -> str:
        job = self.core.job
        if job.epoch is None:
            return f"{self} {job.phase} blocked on {self.blocked}, claim at {job.next_epoch.claim_at:.3f}"
        status = job_status(job)
        slots = [
            f"{o.operator}/{s.subtask} {s.phase} {s.attempt} {s.gateway} held {s.held} handled {s.handled}/{s.sent}"
            for o in status.operators
            for s in o.subtasks
        ]
        return (
            f"{self} {job.phase} epoch {status.epoch} last {status.last_completed} blocked on {self.blocked} pending"
            f" {[(p.checkpoint_id, p.waits_for) for p in status.pending]}"
            f" hellos {sorted(job.registry.waiting)} run {job.registry.run}"
            f" trigger at {job.schedule.trigger_at} deadline {self.core.deadline()} {slots}"
        )

    # ---- what may happen next

    def deadline(self) -> float | None:
        if self.blocked is not None or self.core.job.phase is Phase.NEW:
            return None
        return self.core.deadline() if self.host is None else min(self.core.deadline() or inf, self.status_at)

    @property
    def away(self) -> bool:
        """The broker is not there, or not for this process."""
        return self.world.away or self.world.now < self.cut_off_until

    def actions(self) -> list[Action]:
        world, acts = self.world, list[Any]()
        if self.log is None:
            return [*([] if self.away else [(2.0, self.claim)]), *self._faults()]
        if self.tells_end:
            flushes = [(3.0, self.pen.flush, partition) for partition in self.pen.waiting()]
            return [*([] if self.away else flushes or [(2.0, self._told)]), *self._faults()]
        if self.core.job.phase is Phase.NEW:
            return [*([] if self.away else [(2.0, self.begin)]), *self._faults()]
        for pen in (self.pen, self.side):
            acts += [
                (3.0, pen.flush, partition) for partition in pen.waiting() if world.takes(partition) and not self.away
            ]
        acts += [] if self.away else world.repeats(self.pen)
        if self.heartbeat is not None and self.heartbeat[1]():
            acts.append((3.0, self._beat))
        if self.host is not None and world.now >= self.status_at and not isinstance(self.blocked, effects.Commit):
            acts.append((3.0, self._tell_status))
        acts += [(1.5, self.store, effect) for effect in self.storing]
        if self.looks and self.looks[0][1]() and not self.away:
            acts.append((2.0, self.look_at_ends))
        if self.deletions:
            acts.append((1.0, self._delete_next))
        if self.work.waiting:
            acts.append((1.0, self._work_next))
        if self.truncation is not None and not self.away:
            acts.append((world.config.truncates, self.truncate))
        if self.mailbox.has_room and self._more():
            acts.append((6.0, self.read_acks))
        if isinstance(self.blocked, effects.Commit):
            if not self.away:
                acts.append((3.0, self.commit_answered) if self.stands else (3.0, self.commit_stands))
            if world.faulty:
                acts.append(Fault(0.1 * world.rate * world.config.coordinator_faults, self.commit_unknown))
        elif self.blocked is not None:
            if not self.away:
                acts.append((6.0, self.reread_one))
        else:
            if self.items or self._mail():
                posted = self.items or self.mailbox._items or self.mailbox._sending
                acts.append((8.0 if posted or not world.config.slow else 0.8, self.take))
            deadline = self.core.deadline()
            if deadline is not None and world.now >= deadline:
                acts.append((3.0, self._feed, inputs.Tick()))
        for user in self.users.values():
            acts += self._user_actions(user)
        return acts + self._faults()

    def _more(self) -> bool:
        world = self.world
        return self.reader is not None and not self.away and world.more(self.reader, world.acks)

    def _user_actions(self, user: NumberedCoordinator) -> list[Action]:
        world = self.world
        weight = 0.4 if world.config.driven_by_query else 2.0  # there is to be something new for every batch
        acts: list[Any] = [(weight, user.send, s) for s in user.subtasks if user.can_send(s)]
        for n in user.owed:
            acts.append((2.0, user.complete, n))
            if world.faulty:
                acts.append(Fault(0.05 * world.rate * world.config.raises, user.fail_future, n))
        if world.faulty:
            for gateway in user.gateways.values():
                acts.append(Fault(0.01 * world.rate * world.config.raises, gateway.fail_attempt, "rejected"))
        return acts

    def _faults(self) -> list[Action]:
        world = self.world
        if not world.faulty:
            return []
        acts: list[Any] = [Fault(0.05 * world.rate * world.config.coordinator_faults, self.crash)]
        if self._drains() and self.work.waiting:  # the job is about to end: there are few such steps
            acts.append(Fault(0.5 * world.rate * world.config.coordinator_faults, self.crash))
        for partition in self.pen.waiting():
            weight = 0.03 * world.rate * world.config.refusals
            acts.append(Fault(weight, lambda at=partition: self.pen.refuse(at, stands=world.rng.random() < 0.5)))
        for partition in self.side.waiting():
            acts.append(Fault(0.03 * world.rate * world.config.refusals, self._refuse_aside, partition))
        return acts


def compacted(log: tuple[Keyed, ...], end: int) -> tuple[Keyed, ...]:
    """Of the first ``end`` records those with whose key none of them stands behind."""
    newest = {key: at for at, (key, _) in enumerate(log[:end])}
    return tuple(entry for at, entry in enumerate(log) if at >= end or newest[entry[0]] == at)


def _identity(user: NumberedCoordinator) -> NumberedCoordinator:
    return user
