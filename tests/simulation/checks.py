"""What must hold in every history, each named by its sentence of the protocol."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.checkpoint_log.history import Checkpoint, History, Keyed
from penstock.coordinator.protocol import inbox
from penstock.coordinator.protocol.effects import CallReset
from penstock.coordinator.protocol.state import Phase, SlotPhase
from penstock.schemas.acks import CommandKind, OperatorEventFrame
from penstock.schemas.checkpoints import (
    CheckpointCompleted,
    CheckpointPrepared,
    CommandExecuted,
    EpochClaimed,
    JobFinished,
    JobOutcome,
    SubtaskSnapshot,
)
from penstock.schemas.codec import decode
from penstock.schemas.data import RecordFrame
from penstock.schemas.errors import StateError
from penstock.schemas.events import EventFrame, FailoverPolicy, Start
from penstock.schemas.ids import NO_CHECKPOINT, SubtaskId
from penstock.schemas.state import OPEN_END, StateHandle
from penstock.subtask_client.protocol import effects as do
from penstock.subtask_client.protocol.drop_reasons import Dropped
from penstock.transport.ports import Partition

from .backlog import STRIKES_MAX
from .feed_checks import FeedChecks
from .query_checks import QueryChecks
from .records import decoded_ack, keyed
from .rescaling import RescalingChecks, fitted
from .rescaling import uids as _uids
from .retention_checks import RetentionChecks
from .violations import Violation

_EVENT_BYTES_MAX = 16

if TYPE_CHECKING:
    from .coordinator_process import CoordinatorProcess
    from .subtask_process import SubtaskProcess
    from .world import World


class Checks:
    """Watches one world. ``history`` is what the checkpoint log says, record by record as it is committed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.history = History()
        self.completed: list[int] = []
        self.strikes_left = 0
        """How many more failures are to restore the last one that completed; it names ranges of data."""
        self._highest = -1
        self.successor: Checks | None = None
        """Of the next incarnation, where the job was purged."""
        self.blamed: list[str] = []
        """Found where nothing may be raised; raised at the end of the step."""
        self._callers: dict[int, tuple[str, int]] = {}
        self._executed: dict[int, str] = {}
        self._sent_in: dict[tuple[int, SubtaskId], list[int]] = {}
        self.query = QueryChecks(world, self)
        self.retention = RetentionChecks(world)
        self.feeds = FeedChecks(world)
        self.rescaling = RescalingChecks(world)
        self._told: set[tuple[SubtaskId, str]] = set()
        """Whose user was told, or restored, that a checkpoint with which work has completed."""

    def blame(self, what: str) -> None:
        self.blamed.append(what)

    def after_step(self) -> None:
        if self.blamed:
            raise Violation("; ".join(self.blamed))
        for coordinator in self.world.coordinators:
            if coordinator.alive:
                self._bounds(coordinator)
        if self.world.config.driven_by_query:
            self.query.after_step()

    # ---- who is who

    def newest(self) -> CoordinatorProcess | None:
        """The living coordinator of the newest epoch, if there is one."""
        epoch = self.history.epoch
        return next(
            (c for c in self.world.coordinators if c.alive and epoch and c.core.job.history.epoch == epoch), None
        )

    def current(self, instance: SubtaskProcess) -> CoordinatorProcess | None:
        """The coordinator that has ``instance`` for the current attempt of its subtask in its current generation."""
        running, coordinator = instance.core.running, self.newest()
        if running is None or not instance.alive or coordinator is None:
            return None
        job = coordinator.core.job
        if job.phase is not Phase.RUNNING:
            return None
        slot = job.current.slots.get(instance.subtask)
        attempt = None if slot is None else slot.attempt
        mine = (
            attempt is not None
            and attempt.id == running.start.attempt
            and attempt.generation == running.start.full_generation
        )
        return coordinator if mine else None

    # ---- G1, G2

    def handled(self, instance: SubtaskProcess, uid: int) -> None:
        self.world.handled.add((instance.subtask, uid))
        if instance.core.running is not None and instance.core.running.stopping is not None:
            raise Violation(f"section 9: {instance} handles {uid} behind the marker of a stopping savepoint")
        coordinator = self.current(instance)
        if coordinator is None:
            return
        sent = coordinator.users[instance.subtask.operator].sent[instance.subtask.index]
        if instance.handled != sent[: len(instance.handled)]:
            raise Violation(
                f"G1/G2: {instance} has handled {instance.handled}, and the history of {coordinator} is {sent}"
            )

    # ---- what a coordinator writes

    def appended(self, coordinator: CoordinatorProcess, subtask: SubtaskId, frame: EventFrame) -> None:
        """Nothing sent behind a cut is on its way before the subtask's own snapshot, or a later marker."""
        epoch, cut_at = coordinator.core.job.epoch, coordinator.users[subtask.operator].cut_at
        if self.world.config.driven_by_query:
            self.query.appended(coordinator, subtask, frame)
        pending = [] if epoch is None else [p for p in epoch.pending.values() if subtask.operator not in p.uncut]
        for p in pending:
            if (p.id, subtask) in coordinator.snapshots_seen:
                continue
            marked = max((cut_at[q.id] for q in pending if q.id > p.id and not q.uncut), default=0)
            early = [uid for uid in _uids(frame) if uid > max(cut_at[p.id], marked)]
            if early:
                raise Violation(
                    f"section 6: {early} to {subtask}, sent behind the cut of {p.id}, is not held until its snapshot"
                )

    def started(self, coordinator: CoordinatorProcess, subtask: SubtaskId, start: Start) -> None:
        """Only instances of the run that it has claimed are started, and a region in one generation."""
        for other in self.world.settings.graph.region(subtask):
            slot = coordinator.core.job.current.slots[other]
            if slot.phase is not SlotPhase.DONE and slot.generation != start.generation:
                raise Violation(
                    f"section 8: {subtask} is started in generation {start.generation}, and {other}, which channels"
                    f" connect with it, is in {slot.generation}"
                )
        claimed = coordinator.core.job.history.run
        instance = next((i for i in self.world.instances if i.core.nonce == start.nonce), None)
        if instance is not None and (claimed is None or instance.run != claimed.run):
            raise Violation(
                f"section 4: {coordinator} starts {instance} of {instance.run}, and the claimed run is {claimed}"
            )
        before = coordinator.started.setdefault((start.epoch, subtask), {})
        previous = -1 if instance is None else instance.core.previous
        for other in self.world.instances:
            its = before.get(other.name, -1)
            well = other.alive and other.core.attempt == its and other.core.running is not None
            if well and other is not instance and its > previous >= 0:
                raise Violation(f"section 4: {instance}, which was {previous}, takes over from its successor {other}")
        if instance is not None:
            before[instance.name] = start.attempt

    def says_hello(self, instance: SubtaskProcess, end: int) -> None:
        """What stands below the position that it noted must not have told it that it is superseded."""
        if self.successor is not None:  # it is left over, and what stands there is another job's
            return
        partition = self.world.event_partition(instance.subtask)
        begin = self.world.transport.offsets([partition])[partition].begin
        for record in self.world.log(partition, begin, max(begin, end)):
            start = decode(record.value)
            newer = isinstance(start, Start) and start.attempt > instance.newest_attempt
            if newer and start.epoch >= instance.core.epoch_seen and start.nonce not in instance.nonces:
                raise Violation(
                    f"section 4: {instance} says Hello again, though the Start of {start.attempt} at {record.offset}"
                    f" supersedes its attempt {instance.newest_attempt}"
                )

    def ended(self, records: Sequence[Keyed]) -> None:
        """The end of the job stands: what the coordinators do behind the last notice has been done."""
        for _, record in records:
            if not isinstance(record, JobFinished):
                continue
            if record.outcome is JobOutcome.FINISHED or "savepoint" in record.cause:
                n = self.history.last_id
                for operator in self.world.settings.operators:
                    if operator.has_coordinator and (operator.name, n) not in self.world.external:
                        raise Violation(f"section 7.10: the job ends, and {operator.name} has not committed {n}")

    def _bounds(self, coordinator: CoordinatorProcess) -> None:
        epoch, settings = coordinator.core.job.epoch, self.world.settings
        if epoch is None or coordinator.blocked is not None or coordinator.raised:
            return
        for operator in settings.operators:
            held_max = operator.max_held_bytes
            if settings.driven_by_query:  # senders are held back, where they see it
                held_max += operator.max_unsent_bytes + _EVENT_BYTES_MAX
            if epoch.held_bytes[operator.name] > held_max:
                raise Violation(f"G7: gateways of {operator.name} hold {epoch.held_bytes[operator.name]} bytes")
            waiting = Counter(coordinator.users[operator.name].open_futures.values())
            for subtask, unhandled in waiting.items():
                if unhandled > operator.max_unhandled:
                    raise Violation(f"G7: {unhandled} events to {subtask} are not handled")
        one_record = max(
            (inbox.size_of(delivery) for queue in epoch.withheld.values() for delivery in queue), default=0
        )
        if epoch.withheld_bytes > settings.held_bytes_max + one_record:
            raise Violation(f"G7: {epoch.withheld_bytes} bytes wait for coordinators that owe a future")

    # ---- records between subtasks

    def taken(self, instance: SubtaskProcess, sender: SubtaskId) -> None:
        """While both ends run in one generation, what one took is what the other emitted, from the beginning."""
        running = instance.core.running
        if running is None or self.current(instance) is None:
            return
        if running.stopping is not None and running.checkpoints.begun >= running.stopping[0]:
            raise Violation(
                f"section 9: {instance} takes a record behind its snapshot of {running.stopping[0]}, a stop"
            )
        for other in self.world.instances:
            mine = other.subtask == sender and other.core.running is not None and self.current(other) is not None
            restored = not isinstance(other.call, do.OpenUser)
            if mine and restored and other.core.running.start.full_generation == running.start.full_generation:  # type: ignore[union-attr]
                took, emitted = instance.taken[str(sender)], other.emitted.get(str(instance.subtask), [])
                if took != emitted[: len(took)]:
                    raise Violation(
                        f"section 9: {instance} has taken {took} of {sender}, and {other} emitted {emitted}"
                    )

    def reads(self, instance: SubtaskProcess) -> None:
        """Check that what nothing blocks is read, and nothing twice but what its writer has repeated."""
        core, running = instance.core, instance.core.running
        if core.dropped[Dropped.REPEATED] and not self.world.config.repeats and not self.world.config.strays:
            raise Violation(f"section 5.4: {instance} has read again what counts no more, and no writer repeats")
        if running is None or not running.reads_data or running.alignment or running.stopping or core.lost is not None:
            return
        for sender in running.channels.open:
            if instance.data[sender.operator].reader is None:
                raise Violation(f"section 9: {instance} does not read what {sender} writes, and nothing blocks it")

    def snapshots(self, instance: SubtaskProcess, checkpoint_id: int) -> None:
        """What has been aborted is begun no more."""
        running = instance.core.running
        if running is not None and (running.start.epoch, checkpoint_id) in instance.aborted:
            raise Violation(f"section 9: {instance} takes its snapshot of {checkpoint_id}, whose abort it has read")

    # ---- the end of a subtask

    def inputs_ended(self, instance: SubtaskProcess) -> None:
        if instance.ended > 1:
            raise Violation(f"section 9: {instance} is told that its inputs have ended, and its state knows")

    def told(self, subtask: SubtaskId, work: str) -> None:
        self._told.add((subtask, work))

    @staticmethod
    def work_in(state: Mapping[str, object]) -> str:
        """What a two-phase commit would have to make visible."""
        return json.dumps([state["handled"], state["taken"]])

    def _ends(self, checkpoint_id: int, subtask: SubtaskId, state: Mapping[str, object]) -> None:
        """Nobody starts it again: what it still owed would be owed for ever."""
        graph = self.world.settings.graph
        if graph.inputs(subtask.operator) and state["ended"] != 1:
            raise Violation(f"section 9: {subtask} has ended with {checkpoint_id}, told of that {state['ended']} times")
        if not graph.outputs(subtask.operator) and (subtask, self.work_in(state)) not in self._told:
            raise Violation(
                f"section 8: {subtask} has ended with {checkpoint_id}, and no checkpoint with all its work was told to"
                " its user before"
            )

    def _cut_between(self, checkpoint: Checkpoint, receiver: SubtaskId, states: dict[SubtaskId, Any]) -> None:
        """What a subtask has taken and what its ranges hold is what the sender's own snapshot says it had emitted."""
        snapshot = checkpoint.subtasks[receiver]
        named = {position.sender: position for position in snapshot.data_positions}
        for sender in self.world.settings.graph.channels_into(receiver):
            took = states[receiver]["taken"].get(str(sender), [])
            ranged = [
                uid
                for segment in named[sender].segments
                if segment.end != OPEN_END
                for record in self.world.log(
                    self.world.data_partition(sender.operator, receiver), segment.begin, segment.end
                )
                if isinstance(frame := decode(record.value), RecordFrame)
                and frame.sender.subtask_id == sender
                and (frame.sender.epoch, frame.sender.generation, frame.sender.attempt)
                == (segment.epoch, segment.generation, segment.attempt)
                for uid in _uids(frame)
            ]
            emitted = states[sender]["emitted"].get(str(receiver), [])
            if list(dict.fromkeys(took + ranged)) != emitted:  # writers may repeat themselves
                raise Violation(
                    f"section 9: in checkpoint {checkpoint.id} {receiver} has taken {took} of {sender} and the range"
                    f" {ranged}, and that had emitted {emitted}"
                )

    # ---- the checkpoint log

    def called(self, coordinator: CoordinatorProcess, checkpoint_id: int) -> None:
        caller = (coordinator.name, coordinator.core.job.history.epoch)
        if self._callers.setdefault(checkpoint_id, caller) != caller:
            raise Violation(
                f"section 7.1: checkpoint id {checkpoint_id} of {self._callers[checkpoint_id]} is used again"
            )

    def committed(self, coordinator: CoordinatorProcess, records: Sequence[Keyed]) -> None:
        """The transaction stands from now on."""
        epoch = self.history.epoch
        for _, record in records:
            match record:
                case EpochClaimed():
                    if record.epoch < self.history.epoch or (
                        record.epoch == self.history.epoch and record.instance != coordinator.name
                    ):
                        raise Violation(f"G4: {coordinator} claims epoch {record.epoch} after {self.history.epoch}")
                    epoch = record.epoch
                case CheckpointCompleted() if record.epoch != epoch:
                    raise Violation(f"G4: {coordinator} of epoch {record.epoch} completes in {epoch}")
                case CommandExecuted():
                    if record.offset in self._executed:
                        raise Violation(f"section 8: the command at {record.offset} is executed twice")
                    self._executed[record.offset] = record.command
                    self._stopped(record)
        prepared = [record for _, record in records if isinstance(record, CheckpointPrepared)]
        last = self.history.last_id
        self.history.apply(records)
        if last not in (NO_CHECKPOINT, *self.history.checkpoints) and self.history.last_id < last:
            raise Violation(f"section 7.9: {last}, the last completed checkpoint, is discarded")
        for record in prepared:
            self.query.prepared(self.history.prepared[record.checkpoint_id])
        for _, record in records:
            if isinstance(record, CheckpointCompleted):
                self._completed(coordinator, self.history.checkpoints[record.checkpoint_id])

    def restored_in_copy(self, checkpoint_id: int) -> None:
        """The copy's log holds that checkpoint alone: it must be as consistent there as where it was completed."""
        self.history = History.of(
            keyed(r) for r in self.world.transport.read_all(Partition(self.world.settings.topics.checkpoints, 0))
        )
        if sorted(self.history.checkpoints) != [checkpoint_id]:
            raise Violation(f"section 3: a fork of {checkpoint_id} has {sorted(self.history.checkpoints)}")
        self._completed(None, self.history.checkpoints[checkpoint_id])
        self._highest = checkpoint_id

    def _stopped(self, done: CommandExecuted) -> None:
        stops = self.world.commands[done.command] in (CommandKind.STOP, CommandKind.STOP_WITH_SAVEPOINT)
        run = self.history.run
        if stops and done.accepted and run is not None and done.offset < run.offset:
            raise Violation(f"section 8: the command at {done.offset} stops {run.run}, which began behind it")

    def _completed(self, coordinator: CoordinatorProcess | None, checkpoint: Checkpoint) -> None:
        savepoint = checkpoint.header.savepoint  # it may complete behind a newer checkpoint: it is never subsumed
        if checkpoint.id in self.completed or (not savepoint and checkpoint.id < self._highest):
            raise Violation(f"section 7.7: {checkpoint.id} completes after {self.completed}")
        if not savepoint:
            self._highest = checkpoint.id
        self.completed.append(checkpoint.id)
        self.retention.completed(checkpoint)
        if self.world.config.driven_by_query:
            self.query.completed(checkpoint)
            return
        ranged = any(map(_has_ranges, checkpoint.subtasks.values()))
        self.strikes_left = 1 + checkpoint.id % STRIKES_MAX if ranged else 0
        for operator in self.world.settings.operators:
            part = checkpoint.operator(operator.name)
            lists = json.loads(self.state_of(checkpoint.id, part.coordinator_state if part is not None else None))
            self.feeds.completed(checkpoint, operator.name, lists["fed"])
            if self.world.config.rescales:
                derived = checkpoint.header.rescaled_from != -1
                fits = fitted(lists, operator.parallelism, checkpoint)
                self.rescaling.completed(checkpoint, operator.name, fits)
                if derived:
                    self.rescaling.derived(checkpoint, operator.name, lists)
                    continue
            for index in range(operator.parallelism):
                subtask = SubtaskId(operator.name, index)
                snapshot = checkpoint.subtasks[subtask]
                if savepoint and not snapshot.finished and (snapshot.event_ranges or _has_ranges(snapshot)):
                    raise Violation(f"section 9: savepoint {checkpoint.id} is not aligned: {subtask} names {snapshot}")
                mine = json.loads(self.state_of(checkpoint.id, snapshot.state))
                self._sent_in[checkpoint.id, subtask] = mine["sent"]
                sent = lists["sent"].get(str(index), [])
                received = lists["received"].get(str(index), [])
                self._cut_downstream(coordinator, checkpoint.id, subtask, snapshot, mine["handled"], sent)
                self._cut_upstream(checkpoint, subtask, snapshot, mine["sent"], received)
                if snapshot.finished:
                    self._ends(checkpoint.id, subtask, mine)
        there = self.world.settings.subtasks()
        states = {s: json.loads(self.state_of(checkpoint.id, checkpoint.subtasks[s].state)) for s in there}
        for subtask in there:
            self._cut_between(checkpoint, subtask, states)

    def state_of(self, checkpoint_id: int, handle: StateHandle | None) -> bytes:
        assert handle is not None
        if handle.inline is not None:
            return handle.inline
        assert handle.location is not None
        if handle.location not in self.world.stored:
            raise Violation(f"section 7.6: checkpoint {checkpoint_id} names {handle.location}, which is not stored")
        return self.world.stored[handle.location]

    def _cut_downstream(
        self,
        coordinator: CoordinatorProcess | None,
        n: int,
        subtask: SubtaskId,
        snapshot: SubtaskSnapshot,
        handled: list[int],
        sent: list[int],
    ) -> None:
        ranged = [
            uid
            for segment in snapshot.event_ranges
            for record in self.world.log(self.world.event_partition(subtask), segment.begin, segment.end)
            if isinstance(frame := decode(record.value), EventFrame)
            and frame.epoch == segment.epoch
            and (self.world.config.policy is not FailoverPolicy.RESET or frame.attempt == segment.attempt)
            for uid in _uids(frame)
        ]
        contained = list(dict.fromkeys(handled + ranged))  # writers may repeat themselves
        if contained != (sent[: len(contained)] if snapshot.finished else sent):
            raise Violation(
                f"G3: in checkpoint {n} {subtask} has handled {handled} and the range {ranged}, and its coordinator had"
                f" sent {sent}"
            )
        if snapshot.finished and coordinator is not None:
            history = coordinator.users[subtask.operator].sent[subtask.index]
            lost = [uid for uid in history if (subtask, uid) in self.world.promised and uid not in contained]
            if lost:
                raise Violation(
                    f"G2: checkpoint {n} contains the end of {subtask} without {lost}, whose futures settled as handled"
                )

    def _cut_upstream(
        self,
        checkpoint: Checkpoint,
        subtask: SubtaskId,
        snapshot: SubtaskSnapshot,
        sent: list[int],
        received: list[int],
    ) -> None:
        if checkpoint.header.savepoint:
            owed = [uid for part in snapshot.inbox for uid in _uids(part)]
        else:
            owed = self.inbox_range(checkpoint, subtask, snapshot)
        there = received + [uid for uid in owed if uid not in set(received)]  # somebody may have written it again
        if self.world.config.policy is not FailoverPolicy.GLOBAL:  # possibly among ones that a region failover undid
            there = [uid for uid in there if uid in set(sent)]
        if there != sent:
            raise Violation(
                f"G3: in checkpoint {checkpoint.id} {subtask} has sent {sent}, and its coordinator has {received} and"
                f" the range {owed}"
            )

    def inbox_range(self, checkpoint: Checkpoint, subtask: SubtaskId, snapshot: SubtaskSnapshot) -> list[int]:
        part = checkpoint.operator(subtask.operator)
        assert part is not None
        owed: dict[int, int] = {}
        for record in self.world.log(self.world.acks, part.inbox_position, snapshot.ack_offset):
            frame = decoded_ack(record)
            if not isinstance(frame, OperatorEventFrame) or frame.sender.subtask_id != subtask:
                continue
            sender = (frame.sender.attempt, frame.sender.epoch, frame.sender.generation)
            if sender == (snapshot.attempt, snapshot.epoch, snapshot.generation):
                owed |= {at: uid for at, uid in enumerate(_uids(frame), frame.sequence) if at < snapshot.sent_sequence}
        return [owed[at] for at in sorted(owed)]

    def sent_in(self, checkpoint_id: int, subtask: SubtaskId) -> list[int]:
        """What the subtask had sent by its snapshot."""
        if self.world.config.driven_by_query:
            return self.query.sent_in(checkpoint_id, subtask)
        return self._sent_in[checkpoint_id, subtask]

    @staticmethod
    def refused(call: CallReset, error: StateError) -> None:
        """A refusal names the checkpoint, whose state it is, and a way out."""
        for word in (f"checkpoint {call.checkpoint_id} ", f"coordinator of {call.operator} ", "--from-checkpoint"):
            if word not in str(error):
                raise Violation(f"section 7.6: a refusal does not say {word!r}: {error}")

    # ---- what is deleted

    def deleting(self, who: object, locations: Iterable[str]) -> None:
        newest = self
        while newest.successor is not None:  # the folder is the same
            newest = newest.successor
        for location in locations:
            if location in newest.history.locations():
                raise Violation(f"section 7.9: {who} deletes {location}, which a completed checkpoint names")

    # ---- the end

    def drained(self) -> str | None:
        """What is not settled yet; None when everything is."""
        world, coordinator = self.world, self.newest()
        if world.config.finite:
            return self._ended()
        if coordinator is None:
            return "no coordinator"
        job = coordinator.core.job
        if job.phase is not Phase.RUNNING or job.commands.waiting:
            return f"the coordinator is {job.phase}, commands {job.commands.waiting}"
        why = self.query.drained(coordinator) if world.config.driven_by_query else self._slots_drained(coordinator)
        if why is not None:
            return why
        if forgotten := set(world.commands) - set(self._executed.values()):
            return f"{sorted(forgotten)} neither executed nor refused"
        if (waiting := self.feeds.drained()) is not None:
            return waiting
        if (stayed := self.rescaling.stayed()) is not None:
            return stayed
        if (grown := self.retention.grown()) is not None:
            return grown
        return "an outage is to come, or to end" if world.outage_to_come or world.away else None

    def _slots_drained(self, coordinator: CoordinatorProcess) -> str | None:
        world = self.world
        for subtask, slot in coordinator.core.job.current.slots.items():
            alive = [i for i in world.instances if i.alive and i.subtask == subtask]
            if len(alive) != 1 or self.current(alive[0]) is None:
                return f"{subtask} has {[str(i) for i in alive]}"
            user = coordinator.users[subtask.operator]
            if slot.gateway.held_events or user.open_futures:
                return f"{subtask}: {slot.gateway.held_events} held, open futures {user.open_futures}"
            if (why := self._uncovered(coordinator, alive[0])) is not None:
                return why
        return None

    def _uncovered(self, coordinator: CoordinatorProcess, instance: SubtaskProcess) -> str | None:
        world, subtask = self.world, instance.subtask
        user = coordinator.users[subtask.operator]
        sent, received = user.sent[subtask.index], user.received[subtask.index]
        if not world.config.pull and len(sent) < world.events_wanted:
            return f"only {sent} sent to {subtask}"
        wanted = world.events_wanted if instance.is_source else 0
        if instance.handled != sent or len(instance.sent) < wanted or instance._may_emit():
            return f"{subtask} has handled {instance.handled} of {sent}, sent {instance.sent}"
        for other in world.instances:
            if other.alive and str(other.subtask) in instance.emitted:
                took = other.taken.get(str(subtask), [])
                if took != instance.emitted[str(other.subtask)]:
                    return f"{subtask} has emitted {instance.emitted}, {other} has taken {took}"
        if world.config.policy is FailoverPolicy.GLOBAL:
            exact = received == instance.sent
        else:
            exact = [uid for uid in received if uid in set(instance.sent)] == instance.sent
        if not exact:
            return f"{subtask} has sent {instance.sent}, its coordinator received {received}"
        last = coordinator.core.job.history.last
        if last is None:
            return "no checkpoint"
        state = json.loads(self.state_of(last.id, last.subtasks[subtask].state))
        if state != instance.state:
            return f"no checkpoint covers {subtask}: {state}"
        return None

    def _ended(self) -> str | None:
        """A finite job: it has finished, everybody has left, and the last checkpoint holds everything."""
        world, last = self.world, self.history.last
        if not world.finished:
            return "the job has not finished"
        hosts = [] if world.standby is None else world.standby.hosts
        if alive := [str(process) for process in (*world.instances, *hosts) if process.alive]:
            return f"{alive} have not left"
        if world.stopped:
            return None
        assert last is not None
        for subtask in world.settings.subtasks():
            if world.settings.graph.inputs(subtask.operator):
                continue  # it ends with its inputs, all of which the checkpoint's consistency has shown to be there
            state = json.loads(self.state_of(last.id, last.subtasks[subtask].state))
            if len(state["sent"]) < world.events_wanted:
                raise Violation(f"G2: the job has finished, and {subtask} has only sent {state['sent']}")
            if not world.config.eager_end and len(state["handled"]) < world.events_wanted:
                raise Violation(f"G2: the job has finished, and {subtask} has only handled {state['handled']}")
        for coordinator in world.coordinators:
            for user in coordinator.users.values():
                if coordinator.ended_well and user.open_futures:
                    raise Violation(f"section 6: futures of {user.open_futures} never settled")
        return None

    def waits(self) -> str:
        """Who waits for what."""
        lines = [f"epoch {self.history.epoch}, completed {self.completed[-3:]}, now {self.world.now:.3f}"]
        lines += [c.waits() for c in self.world.coordinators if c.alive]
        lines += [i.waits() for i in self.world.instances if i.alive]
        lines += [q.waits() for q in self.world.queries if q.alive]
        lines += [h.waits() for h in (self.world.standby.hosts if self.world.standby else ()) if h.alive]
        return "\n    ".join(lines)


def _has_ranges(snapshot: SubtaskSnapshot) -> bool:
    return any(segment.end != OPEN_END for named in snapshot.data_positions for segment in named.segments)
