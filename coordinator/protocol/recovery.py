"""How an epoch begins: from the checkpoint log, in a new process or in this one (protocol, sections 4 and 8)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...checkpoint_log.history import Checkpoint, History, Keyed, keyed
from ...checkpoint_log.restorability import Available, missing
from ...schemas.acks import (
    AcksRecord,
    BatchCommitted,
    BatchEvents,
    BatchWanted,
    Command,
    FailureHint,
    FromAttempt,
    Hello,
    OperatorEventFrame,
    RunStarted,
)
from ...schemas.checkpoints import EpochClaimed, InputSnapshot, JobOutcome, OperatorSnapshot
from ...schemas.errors import JobHasFinished, JobRefused
from ...schemas.events import Reset
from ...schemas.graph import InputSettings, Partitioning
from ...schemas.ids import NO_CHECKPOINT, SubtaskId
from ...schemas.settings import OperatorSettings, Restore
from ...schemas.state import OPEN_END, Sender
from ...schemas.status import Ending
from . import attempts, batches, commands, feeds, inbox, lost_log, payload_schemas, rescaling, stops
from .after_commit import BeginEpoch, FinishCatchUp
from .checkpoints import IDS_RESERVED
from .effects import Append, CallReset, CallStart, CollectOrphans, ReadAcks
from .inputs import Begin, Committed, Redistributed, Reread
from .registry import UndoneAttempt, WaitingHello
from .state import Dropped, Epoch, Inherited, JobState, Phase, Slot, SlotPhase


def begin(job: JobState, begin: Begin) -> None:
    """Checks that the job may start like this, then claims the first epoch. Raises JobRefused; nothing is changed."""
    job.history = History.of(begin.log)
    job.topic_ids = dict(begin.topic_ids)
    job.first_epoch = begin.first_epoch
    job.partitions = dict(begin.partitions)
    job.wall_ms_at_zero = begin.wall_ms - 1000 * job.now
    job.heartbeat.read_at = job.now
    _check_topics(job, begin)
    lost_log.check(job, begin)  # mutant: lost-log-restored-by-its-host
    _check_unfinished(job, begin)
    restored = _chosen(job, begin.restore, begin.restore_checkpoint)
    if restored is not None:
        _check_taken(job, restored)
        _check_keys(job, restored)
        _check_positions(job, restored, begin)
        payload_schemas.check(job, restored.id, restored)
        rescaling.check(job, restored)
    if begin.restore is Restore.LATEST:
        _check_prepared(job)
    else:  # nothing that was planned behind another checkpoint may follow this one ◆
        job.next_epoch.aborts_prepared = True
    if restored is None or not rescaling.resized(job, restored):
        return claim(job, NO_CHECKPOINT if restored is None else restored.id, _started(job))
    job.next_epoch.rescaling = restored, begin.acks.end  # mutant: derived-of-a-savepoint-asks-the-log
    if (effect := rescaling.to_deal(job, restored)) is None:
        return redistributed(job, Redistributed({}))
    job.phase = Phase.RESCALING
    return job.emit(effect)


def check_layout(job: JobState, history: History, restore: Restore, checkpoint_id: int) -> None:
    """Raises JobRefused where the checkpoint that a start would restore cannot have the job's parallelism."""
    job.history = history
    restored = _chosen(job, restore, checkpoint_id)
    if restored is not None:
        _check_taken(job, restored)
        rescaling.check(job, restored)


def _check_taken(job: JobState, restored: Checkpoint) -> None:
    _check_driver(job, restored.id, by_query=bool(restored.header.committer))
    if job.settings.driven_by_query:
        _check_fits(job, restored.id, restored.header.operators)


def redistributed(job: JobState, dealt: Redistributed) -> None:
    """Claims the first epoch, and with it commits the checkpoint whose layout is the job's."""
    assert job.next_epoch.rescaling is not None
    (restored, acks_end), job.next_epoch.rescaling = job.next_epoch.rescaling, None
    claim(job, restored.id, _started(job), rescaling.derived(job, restored, dealt.states, acks_end))


def _started(job: JobState) -> str:
    return f"coordinator {job.instance} started"


def _check_topics(job: JobState, begin: Begin) -> None:
    name = job.settings.name
    for topic, topic_id in begin.topic_ids.items():
        known = job.history.topic_ids.get(topic, topic_id)
        if known != topic_id:
            raise JobRefused(
                f"topic {topic} is not the one that job {name} used before (id {topic_id}, was {known}): it was deleted"
                f" and created again, so the positions of its checkpoints mean nothing. Purge the job (penstock purge"
                f" {name}) to start anew"
            )
    forked = job.history.forked
    if job.history.epoch == 0 and forked is not None:
        raise JobRefused(
            f"job {name} is a fork of job {forked.job} that has not come to its end: it is being made, or was killed"
            f" meanwhile. Wait for it; or purge the job (penstock purge {name}) and fork again"
        )
    if job.history.epoch == 0:
        written = [str(s) for s, o in (*begin.events.items(), *begin.data.items()) if o.end > 0]
        if written:
            raise JobRefused(
                f"the checkpoint log of job {name} is empty and its other topics are not ({', '.join(written[:5])}):"
                f" the log was lost. Purge the job (penstock purge {name}) to start anew"
            )


def _check_unfinished(job: JobState, begin: Begin) -> None:
    finished, last = job.history.finished, job.history.last
    if begin.continues and finished is not None:
        raise JobHasFinished(
            f"job {job.settings.name} has ended ({finished.outcome.value}): {finished.cause}",
            finished.outcome.value,
            finished.cause,
        )
    if begin.restore is Restore.LATEST and finished is not None and finished.outcome is JobOutcome.FINISHED and last:
        raise JobHasFinished(
            f"job {job.settings.name} has finished: checkpoint {last.id} contains the end of every subtask. Start it"
            " anew with --fresh, or in a program with options=CoordinatorOptions(restore=Restore.FRESH)",
            cause=finished.cause,
        )


def _chosen(job: JobState, restore: Restore, checkpoint_id: int) -> Checkpoint | None:
    match restore:
        case Restore.LATEST:
            return job.history.last
        case Restore.FRESH:
            return None
        case Restore.CHECKPOINT:
            checkpoint = job.history.checkpoints.get(checkpoint_id)
            if checkpoint is None:
                kept = ", ".join(map(str, job.history.checkpoints)) or "none"
                raise JobRefused(f"job {job.settings.name} has no checkpoint {checkpoint_id}; kept are: {kept}")
            return checkpoint


def _check_prepared(job: JobState) -> None:
    """Spark may yet decide that one of them is what the job goes on from."""
    for n, prepared in job.history.prepared.items():
        _check_driver(job, n, by_query=True)
        was, now = [o.operator for o in prepared.header.operators], [o.name for o in job.settings.operators]
        if was != now:
            raise JobRefused(
                f"checkpoint {n} of job {job.settings.name}, which its query has yet to decide about, is of operator"
                f" {', '.join(was)}, and the job now has {', '.join(now)}: the query would go on with events that it"
                " does not read. Start with the operator as it was, or with --fresh"
            )
        _check_fits(job, n, prepared.header.operators)
        payload_schemas.check(job, n, prepared)


def _check_driver(job: JobState, n: int, *, by_query: bool) -> None:
    """What long-running subtasks have done and what a query has read are not the same state."""
    if by_query != job.settings.driven_by_query:
        by, now = "a Structured Streaming query", "long-running tasks"
        if job.settings.driven_by_query:
            by, now = now, by
        raise JobRefused(
            f"checkpoint {n} of job {job.settings.name} was taken with {by}, and the job is now started for"
            f" {now}: neither can go on where the other stopped. Give the job another name, or begin anew with --fresh"
        )


def _check_fits(job: JobState, n: int, operators: Iterable[OperatorSnapshot]) -> None:
    known = {operator.operator: operator for operator in operators}
    for operator in job.settings.operators:
        was = known.get(operator.name)
        if was is not None and was.parallelism != operator.parallelism:
            raise JobRefused(
                f"checkpoint {n} of job {job.settings.name} holds {was.parallelism} subtasks of operator"
                f" {operator.name}, the job now has {operator.parallelism}: Spark's stored offsets name the subtasks of"
                f" a query one by one. Start with parallelism {was.parallelism}, or with --fresh"
            )


def _check_keys(job: JobState, restored: Checkpoint) -> None:
    """Which subtask holds what of a key must not have changed: states would stay behind where records no longer come.

    Of what an operator takes by key: its key groups, and that it does so. Other ways to spread records promise nobody
    where they go.
    """
    name = job.settings.name
    for operator in job.settings.operators:
        was = restored.operator(operator.name)
        if was is None:
            continue  # it is new
        keyed_before = any(given.partitioning is Partitioning.KEYED for given in was.inputs)
        for given in operator.inputs:
            before, new = _before(was, operator, given), given.partitioning
            if before is not None and before.partitioning != new and Partitioning.KEYED in (before.partitioning, new):
                old, of = before.partitioning.value, "" if before.upstream == given.upstream else f"{given.upstream} "
                raise JobRefused(
                    f"in checkpoint {restored.id} of job {name}, operator {operator.name} takes the records of"
                    f" {before.upstream} {old}, the job now says {of}{new.value}: keys would come to subtasks that do"
                    f" not have their states. Start with {old}, or with --fresh"
                )
            if keyed_before and new is Partitioning.KEYED and was.max_parallelism != job.settings.max_parallelism:
                raise JobRefused(
                    f"checkpoint {restored.id} of job {name} holds the states of operator {operator.name} by"
                    f" {was.max_parallelism} key groups (max_parallelism), the job now has"
                    f" {job.settings.max_parallelism}: keys would come to subtasks that do not have their states. Start"
                    f" with max_parallelism {was.max_parallelism}, or with --fresh"
                )


def _before(was: OperatorSnapshot, operator: OperatorSettings, given: InputSettings) -> InputSnapshot | None:
    """What this input was; None where it is new. The first keyed one may join the others, and where one of them is gone
    it is what has become of that."""
    for known in was.inputs:
        if known.upstream == given.upstream:
            return known
    first_keyed = given.partitioning is Partitioning.KEYED and all(
        known.partitioning is not Partitioning.KEYED for known in was.inputs
    )
    now = {other.upstream for other in operator.inputs}
    return next((known for known in was.inputs if first_keyed and known.upstream not in now), None)


def _check_positions(job: JobState, restored: Checkpoint, begin: Begin) -> None:
    """A needed position that is gone is a refusal, never a silent gap (protocol, sections 3 and 11)."""
    topics, there = job.settings.topics, Available(begin.acks, begin.events, begin.data)
    if (why := missing(topics, restored, there)) is not None:
        others = [n for n, c in sorted(job.history.checkpoints.items()) if missing(topics, c, there) is None]
        ways = f"Start from another checkpoint ({', '.join(map(str, others))}: --from-checkpoint N), or with --fresh"
        if not others:
            ways = "No other checkpoint can be restored either: start with --fresh"
        raise JobRefused(f"checkpoint {restored.id} of job {job.settings.name} needs {why}. {ways}")
    _check_channels(job, restored)


def _check_channels(job: JobState, restored: Checkpoint) -> None:
    """A range whose channel is gone holds records that nobody would get."""
    name, graph = job.settings.name, job.settings.graph
    for receiver, snapshot in restored.subtasks.items():
        if receiver.operator not in job.settings.parallelism:
            continue  # the operator is gone with all that was its own
        present = set(graph.channels_into(receiver))
        for position in snapshot.data_positions:
            if position.sender not in present and any(segment.end != OPEN_END for segment in position.segments):
                raise JobRefused(
                    f"checkpoint {restored.id} of job {name} holds records on their way from {position.channel} to"
                    f" {receiver}, and the job no longer has that channel: they would be lost. Start with the"
                    " operators' inputs as they were, from a savepoint, or with --fresh"
                )


def claim(job: JobState, restored_id: int, cause: str, derived: Sequence[Keyed] = ()) -> None:
    """Commits the next epoch, the newest run with it, and what is derived from the restored checkpoint.

    That has the first of the ids, and is the last completed checkpoint once the epoch stands.
    """
    history = job.history
    job.next_epoch.restores_nothing = False
    first = history.reserved_through + (2 if derived else 1)  # mutant: ids-used-again, derived-id-used-again
    record = EpochClaimed(
        job.epoch_to_claim,
        restored_id,
        first,
        first + IDS_RESERVED,
        dict(job.topic_ids),
        job.instance,
        cause,
    )
    job.phase = Phase.CLAIMING
    new_run = attempts.unclaimed_run(job)
    run = [] if new_run is None else keyed(new_run)
    aborts = job.next_epoch.aborts_prepared
    aborted = [*history.prepared_tombstones(), *history.stop_tombstone()] if aborts else []
    job.next_epoch.aborts_prepared = False
    schemas = payload_schemas.claimed(job, record.epoch)
    records = [*keyed(record), *derived, *run, *aborted, *schemas]
    job.commit(records, BeginEpoch(first), looks_at_ends=True)


def claimed(job: JobState, first_id: int, committed: Committed) -> None:
    restored = job.history.last
    job.began = True
    job.schedule.next_id = first_id
    job.phase = Phase.CATCHING_UP
    fed = feeds.restored(restored)  # mutant: feeds-begin-anew
    job.epoch = Epoch(
        job.history.epoch,
        restored,
        {s: Slot(s, committed.event_ends[s]) for s in job.settings.subtasks()},
        feeds=fed,
        event_at=job.now,
    )
    for partition, end in committed.data_ends.items():
        slot = job.epoch.slots[partition.receiver]
        slot.begin_data = {**slot.begin_data, partition.upstream: end}
    _inherit_finished(job, restored)
    job.epoch.inherited_end = committed.acks_end if job.next_epoch.is_first else job.position
    if job.next_epoch.is_first:
        job.registry.run = job.history.run
        low = 0 if restored is None else restored.acks_needed
        job.position = committed.acks_end
        job.emit(CollectOrphans(frozenset(job.history.locations()), job.history.epoch))
        job.emit(ReadAcks(low, committed.acks_end))  # mutant: takeover-reads-nothing-back
    else:
        job.emit(ReadAcks(job.position if restored is None else restored.inbox_position, job.position))


def _inherit_finished(job: JobState, restored: Checkpoint | None) -> None:
    epoch = job.current
    for subtask, slot in epoch.slots.items():
        snapshot = None if restored is None else restored.subtasks.get(subtask)
        if job.history.stopping is not None or (snapshot is not None and snapshot.finished):
            slot.phase = SlotPhase.DONE
    for subtask, snapshot in {} if restored is None else restored.subtasks.items():
        if snapshot.inbox and subtask.operator in job.settings.parallelism:
            last = snapshot.inbox[-1]
            epoch.inherited[subtask] = Inherited(last.sequence + last.count, list(snapshot.inbox))


def reread(job: JobState, read: Reread) -> None:
    """A record between the restored checkpoint's inbox position and the claim."""
    restored, by_query = job.current.restored, job.settings.driven_by_query
    record: AcksRecord = read.record
    if isinstance(record, FromAttempt):
        _answered(job, record.sender)
    match record:
        case OperatorEventFrame() if restored is not None and not restored.header.savepoint:
            inbox.inherit(job, restored, read.offset, record)
        case RunStarted() | Hello() if by_query:
            pass  # long-running tasks of another incarnation of the job
        case RunStarted() if job.next_epoch.is_first:
            job.registry.take_run(record.run, read.offset)
        case Hello() if job.next_epoch.is_first and attempts.may_be_answered(job, record):
            waiting = WaitingHello(read.offset, record, at_takeover=True)
            of_another = job.registry.run is not None and not job.registry.is_of_run(record)
            if of_another or attempts.is_of_another_layout(job, record):
                job.registry.other_runs.append(waiting)  # the newest Hello of the newest run wins
            elif (newer := attempts.superseded_by(job, record)) is not None:
                job.registry.superseded.append((waiting, newer))
            else:
                job.registry.wait(waiting)  # mutant: oldest-hello-wins
        case FailureHint() if job.next_epoch.is_first:
            job.registry.forget_hello_of(record, job.clock.seconds)
        case BatchWanted() | BatchCommitted() | BatchEvents() if by_query and job.next_epoch.is_first:
            batches.recall(job, read.offset, record)
        case Command() if job.next_epoch.is_first:
            commands.read_command(job, read.offset, record)
        case _:
            pass


def _answered(job: JobState, sender: Sender) -> None:
    """What runs has been started, whatever seemed to have taken its place when it said Hello."""
    for superseded, newer in list(job.registry.superseded):
        if (superseded.hello.subtask_id, superseded.offset) == (sender.subtask_id, sender.attempt):
            job.registry.superseded.remove((superseded, newer))
            job.registry.wait(superseded)


def caught_up(job: JobState) -> None:
    """Everything before the claim is known. A run that has not been claimed is, before any Hello is answered."""
    if (lost := inbox.lost(job)) is not None:
        job.phase, job.due_end = Phase.RUNNING, (Ending.FAILED, lost)
    elif (claim := attempts.unclaimed_run(job)) is not None:
        job.commit(keyed(claim), FinishCatchUp())
    else:
        begin_running(job)


def _recall_undone(job: JobState) -> None:
    """Who acknowledged a checkpoint for a coordinator before this one, in this run, and has not said Hello since ◆.

    Its Hello may be truncated away, and it may be frozen or stuck: then its task must be ended, as any other's.
    """
    registry = job.registry
    if registry.run is None or job.settings.driven_by_query:
        return
    for subtask, slot in job.current.slots.items():
        known = [c.subtasks[subtask] for c in job.history.checkpoints.values() if _was_taken_by(job, c, subtask)]
        newest = max(known, key=lambda snapshot: (snapshot.attempt, snapshot.finished), default=None)
        if newest is None or newest.attempt < registry.run_offset or newest.finished:
            continue  # finished behind the restored one: its task has returned
        if slot.phase is SlotPhase.DONE or subtask in registry.waiting:
            continue
        now = job.clock.seconds
        registry.undone[subtask] = UndoneAttempt(newest.attempt, newest.task, host="", since=now, seen_at=now)
        registry.registered.add(subtask)


def _was_taken_by(job: JobState, checkpoint: Checkpoint, subtask: SubtaskId) -> bool:
    """Whether it names a task of the subtask as there is one now: not where it was derived, or taken in another
    layout, whose tasks are told to leave."""
    was = {operator.operator: operator.parallelism for operator in checkpoint.header.operators}
    same = was == job.settings.parallelism and checkpoint.header.rescaled_from == NO_CHECKPOINT
    return same and subtask in checkpoint.subtasks


def begin_running(job: JobState) -> None:
    """Begin the epoch's work behind its catching up: reset or start the coordinators, then reset the subtasks."""
    epoch, restored = job.current, job.current.restored
    for operator in job.coordinated():
        if restored is not None or not job.next_epoch.is_first:
            part = None if restored is None else restored.operator(operator)
            state = None if part is None else part.coordinator_state
            job.emit(CallReset(operator, NO_CHECKPOINT if restored is None else restored.id, state))
        if job.next_epoch.is_first:
            job.emit(CallStart(operator))
        if restored is not None:
            epoch.unnotified.add(operator)
    for subtask, slot in epoch.slots.items():
        slot.since = job.now
        if slot.phase is SlotPhase.DONE:
            inbox.hand_inherited(job, subtask)
            stops.stop_finished(job, subtask)
        # One that waits for its Start gets that alone ◆; where the subtask has finished it gets none, and an instance
        # before it may still wait to be told so.
        waits = subtask in job.registry.waiting and slot.phase is not SlotPhase.DONE
        if not waits and not job.settings.driven_by_query:
            job.emit(Append(subtask, Reset(epoch.number, slot.generation)))
    for subtask in sorted(epoch.inherited.keys() - epoch.slots.keys()):
        inbox.hand_inherited(job, subtask)
    for operator in sorted(epoch.unnotified):
        inbox.notify_restored(job, operator)
    attempts.reset_spare(job)
    stops.stop_again(job)
    for stranger in job.registry.other_runs:
        if attempts.is_of_another_layout(job, stranger.hello):
            job.drop(Dropped.HELLO_OF_ANOTHER_LAYOUT)
        stops.stop(job, stranger.offset, stranger.hello, attempts.why_not(job, stranger.hello))
    for superseded, newer in job.registry.superseded:
        stops.stop_superseded(job, superseded.offset, superseded.hello, newer)
    job.registry.other_runs.clear()
    job.registry.superseded.clear()
    job.schedule.begin(job.after_interval())
    job.registry.registered |= {s for s, w in job.registry.waiting.items() if job.registry.is_of_run(w.hello)}
    if job.next_epoch.is_first and not job.settings.driven_by_query:
        job.registry.incomplete_since = None if job.registry.run is None else job.now
        _recall_undone(job)  # mutant: stuck-before-a-takeover-forgotten
    job.next_epoch.is_first = False
    job.phase = Phase.RUNNING
