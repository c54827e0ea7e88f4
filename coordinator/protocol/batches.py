"""A Structured Streaming query drives the job: a micro-batch is a checkpoint (protocol, section 10).

The query stands for every subtask: there is no Hello, no Start, no ack. It asks for its next batch and names the
checkpoint of the last one that Spark has committed. ::

    request that names n ──> n is completed (Spark's stored offset is the decision)
                         ──> something was prepared behind n? it is planned once more
                         ──> something was sent since? trigger n+1: cut, markers, ends of the partitions
                         ──> n+1 is committed as *prepared*, and the answer names its ranges

From its markers to its decision n+1 keeps its gateways closed, so nothing stands between its end and the next batch.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...checkpoint_log.history import Checkpoint, Prepared, keyed
from ...schemas.acks import (
    BatchCommitted,
    BatchEventFrame,
    BatchEvents,
    BatchWanted,
    FromQuery,
    Hello,
)
from ...schemas.checkpoints import CheckpointPrepared, RunClaimed, SubtaskSnapshot
from ...schemas.frames import unpack
from ...schemas.ids import NO_CHECKPOINT, Generation
from ...schemas.state import Segment
from ...schemas.status import BatchOutcome, BatchPartition, BatchPlanned
from . import batch_inbox, checkpoints, failover, inbox, retention
from .after_commit import AnswerQuery, AwaitDecision, BeginQueryAnew, CompleteBatch, CompleteEarlierBatch
from .effects import CallEvents, CallReady, DeleteStates, Reply, Settle
from .gateway import GatewayState
from .inputs import EndsSeen
from .pending import Pending, Step
from .query_state import BatchBegin, Decision, Query, Rereading
from .snapshot_parts import parts_of
from .state import Attempt, Dropped, JobState, Slot, SlotPhase
from .stream import EventStream

ACKS_BEHIND_MAX = 10_000
"""Records of the acks topic behind the last checkpoint at which an idle query is given an empty batch: it writes a
request a second, and only a checkpoint lets them go."""

# ---- what the query says


def read(job: JobState, offset: int, record: FromQuery) -> None:
    match record:
        case BatchWanted():
            _read_wanted(job, offset, record)
        case _ if not (isinstance(record, BatchEventFrame) or job.is_of_this_incarnation(record)):
            job.drop(Dropped.BATCH_OF_ANOTHER_LIFE)
        case BatchCommitted():
            _decide(job, offset, record.checkpoint_id)
        case BatchEvents():
            batch_inbox.read(job, record)
        case BatchEventFrame():
            pass  # read when its batch is committed


def _read_wanted(job: JobState, offset: int, wanted: BatchWanted) -> None:
    """One that is repeated is answered as before."""
    if not job.is_of_this_incarnation(wanted):  # nor may this coordinator be of the newest one: no answer
        return job.drop(Dropped.BATCH_OF_ANOTHER_LIFE)
    if wanted.run_offset < 0:
        return job.drop(Dropped.BATCH_OF_NO_RUN)
    if not job.settings.driven_by_query:
        return _refuse(job, wanted, f"job {job.settings.name} runs as long-running tasks: no query can read its events")
    if wanted.run_offset < job.registry.run_offset:  # mutant: older-run-of-a-query.refused
        newer = job.registry.run_id
        return _refuse(job, wanted, f"another query reads job {job.settings.name} since: run {newer} is newer")
    _decide(job, offset, wanted.checkpoint_id)
    _take_up(job, offset, wanted)
    query = job.query.newest
    if query is not None and query.answer is not None and query.wanted.request == wanted.request:
        job.emit(Reply(query.answer))
    return None


def recall(job: JobState, offset: int, record: BatchWanted | BatchCommitted | BatchEvents) -> None:
    """What a coordinator before this one has read, or nobody yet, in the order of the log."""
    match record:
        case _ if not job.is_of_this_incarnation(record):
            pass
        case BatchEvents():
            batch_inbox.read(job, record)  # mutant: batch-events-not-read-again
        case BatchCommitted():
            _decide(job, offset, record.checkpoint_id)
        case BatchWanted() if record.run_offset >= 0:
            newest = job.query.newest
            if newest is None or record.run_offset >= newest.wanted.run_offset:  # the newest run then
                _decide(job, offset, record.checkpoint_id)
            _take_up(job, offset, record)
        case _:
            pass


def _take_up(job: JobState, offset: int, wanted: BatchWanted) -> None:
    """The newest request of the newest run waits for its answer; its predecessors have had theirs."""
    if wanted.run_offset < job.registry.run_offset:  # mutant: older-run-of-a-query.ignored
        return
    if wanted.run_offset > job.registry.run_offset:
        job.registry.run = RunClaimed(wanted.run, wanted.run_offset)
    query = job.query.newest
    if query is None or wanted.run != query.wanted.run or wanted.request > query.wanted.request:
        job.query.newest = Query(offset, wanted, job.now)


def _decide(job: JobState, offset: int, n: int) -> None:
    """Spark has committed the batch of ``n``. That stands in the log: it counts whenever somebody can act on it ◆."""
    if n not in job.history.prepared:
        if n > job.history.last_id:
            job.drop(Dropped.LATE_DECISION)
    elif job.query.decision is None or job.query.decision.checkpoint_id != n:
        job.query.decision = Decision(n, offset + 1)


# ---- what it is answered


def serve(job: JobState) -> bool:
    """Does the next thing that the query's request needs; whether there was anything."""
    query, epoch, decision = job.query.newest, job.current, job.query.decision
    if decision is not None and decision.checkpoint_id in job.history.prepared:  # mutant: completed-without-spark
        return _decided(job, decision)
    if query is None:
        return False
    wanted = query.wanted
    if query.answer is not None:
        return False
    if (prepared := _planned_before(job, wanted)) is not None:
        answer(job, _planned(job, wanted, prepared))
        return True
    if epoch.query_run != wanted.run or wanted.checkpoint_id != job.history.last_id:
        return _attach(job, query)
    if epoch.pending:
        return False
    if wanted.always or _falls_behind(job) or any(slot.sent_through > slot.batch_begin.sequence for slot in job.live()):
        checkpoints.trigger_now(job)
        return True
    if job.now < query.answer_by:
        return False
    answer(job, _told(wanted, BatchOutcome.NOTHING))
    return True


def _falls_behind(job: JobState) -> bool:
    last = job.history.last
    return job.position - (0 if last is None else last.inbox_position) >= ACKS_BEHIND_MAX


def answer_at(job: JobState) -> float | None:
    """Monotonic second at which a request is answered though there is nothing new; None where none waits for that."""
    query = job.query.newest
    return None if query is None or query.answer is not None or job.current.pending else query.answer_by


def answer(job: JobState, planned: BatchPlanned) -> None:
    assert job.query.newest is not None
    job.query.newest.answer = planned
    job.emit(Reply(planned))


def _refuse(job: JobState, wanted: BatchWanted, cause: str) -> None:
    job.emit(Reply(_told(wanted, BatchOutcome.REFUSED, cause)))


def _told(wanted: BatchWanted, outcome: BatchOutcome, cause: str = "") -> BatchPlanned:
    return BatchPlanned(wanted.run, wanted.request, outcome, wanted.checkpoint_id, 0, (), cause)


def _planned_before(job: JobState, wanted: BatchWanted) -> Prepared | None:
    """What is prepared behind that batch is planned for whoever asks, until Spark's stored offset decides about it ◆.

    An answer may be under way for any time, also one by a coordinator before this one, or to a query that goes on
    beside its successor: Spark may have stored it, and nobody but Spark can tell. So it is never taken back.
    """
    if wanted.checkpoint_id != job.history.last_id:
        return None
    return next(iter(job.history.prepared.values()), None)  # mutant: what-is-planned-is-taken-back


def _planned(job: JobState, wanted: BatchWanted, prepared: Prepared) -> BatchPlanned:
    last, header, partitions = job.history.last, prepared.header, []
    for subtask in job.settings.subtasks():
        (batch,) = prepared.subtasks[subtask].event_ranges
        before = None if last is None else last.subtasks[subtask]
        # mutant: sequence-goes-on-for-ever
        sequence = before.handled_through if before is not None and before.epoch == header.epoch else 0
        partitions.append(BatchPartition(batch.begin, batch.end, sequence))
    n, outcome = header.checkpoint_id, BatchOutcome.PLANNED
    return BatchPlanned(wanted.run, wanted.request, outcome, n, header.epoch, tuple(partitions), "")


# ---- a query attaches


def _attach(job: JobState, query: Query) -> bool:
    """The epoch is to stand exactly where Spark stands; then the query is the attempt of every subtask."""
    wanted, history, epoch = query.wanted, job.history, job.current
    n = wanted.checkpoint_id
    if (why := _why_not(job, wanted)) is not None:
        refusal = _told(wanted, BatchOutcome.REFUSED, why)  # by the owner of the log alone: another may not know of n
        assert job.registry.run is not None
        job.commit(keyed(job.registry.run), AnswerQuery(refusal))
    elif history.prepared:  # mutant: undecided-kept
        locations = frozenset[str]().union(*(prepared.locations() for prepared in history.prepared.values()))
        job.commit(history.prepared_tombstones(), BeginQueryAnew(locations))
    elif (
        epoch.query_run
        or n != (NO_CHECKPOINT if epoch.restored is None else epoch.restored.id)  # mutant: stands-where-it-stood
    ):
        begins = f"{wanted.query} begins" if n == NO_CHECKPOINT else f"{wanted.query} goes on from checkpoint {n}"
        failover.fail_globally(job, begins, counted=False)
        job.next_epoch.restores_nothing = n == NO_CHECKPOINT
    else:
        epoch.query_run = wanted.run
        for slot in epoch.slots.values():
            _ready(job, slot, query)
    return True


def begins_anew(job: JobState, locations: frozenset[str]) -> None:
    """What was prepared is aborted: Spark's checkpoint is deleted, so no stored offset names it."""
    batch_inbox.forget(job)
    if unnamed := sorted(locations - job.history.locations()):
        job.emit(DeleteStates(tuple(unnamed)))


def _why_not(job: JobState, wanted: BatchWanted) -> str | None:
    """Why the query may not go on from the checkpoint that it names: Spark's checkpoint and ours disagree."""
    n, history, name = wanted.checkpoint_id, job.history, job.settings.name
    last = history.last_id
    # A request may reach the log long after it was answered: it throws nothing away that its run has completed since.
    since = history.last is not None and history.last.header.acks_position > wanted.run_offset
    if n == last or (n == NO_CHECKPOINT and wanted.fresh and not since):
        return None
    if n == NO_CHECKPOINT and wanted.fresh:
        return f"job {name} has completed checkpoint {last} since the query began: to begin anew, start it once more"
    if n == NO_CHECKPOINT:
        return (
            f"Spark's checkpoint is empty, and job {name} has completed checkpoint {last}: its events up to there have"
            " been in batches before. Give the query the checkpointLocation that it had; or start both anew: set the"
            f" source's option fresh, or purge the job (penstock purge {name})"
        )
    if n > last and n in history.checkpoints:
        return (
            f"Spark goes on from checkpoint {n} of job {name}, and the job was set back to checkpoint {last}. Start the"
            f" coordinator from checkpoint {n} (--from-checkpoint {n}); or give the query the copy of its"
            f" checkpointLocation that was made at checkpoint {last}"
        )
    if n in history.checkpoints:
        return (
            f"Spark goes on from checkpoint {n} of job {name}, and the job has completed checkpoint {last} since:"
            " Spark's checkpoint is an older copy. Give the query the newest copy of its checkpointLocation; or start"
            f" both anew: an empty checkpointLocation, and the source's option fresh (or penstock purge {name})"
        )
    there = f"completed {last}" if last != NO_CHECKPOINT else "completed none"
    return (
        f"Spark goes on from checkpoint {n}, which job {name} does not have (it has {there}): Spark's checkpoint"
        " belongs to another history of the job, or to a query that was replaced. Give the query the checkpointLocation"
        " that belongs to it; or start both anew: an empty checkpointLocation, and the source's option fresh"
    )


def _ready(job: JobState, slot: Slot, query: Query) -> None:
    subtask, wanted, number = slot.subtask, query.wanted, job.current.number
    hello = Hello(
        *subtask, wanted.run, "", wanted.query, wanted.query,
        dict(job.settings.parallelism), job.versions.protocol,
    )  # fmt: skip
    now = job.clock.seconds
    slot.phase, slot.gateway, slot.stream = SlotPhase.LIVE, GatewayState(), EventStream(subtask, number)
    slot.batch_begin = BatchBegin(slot.begin_position, 0)
    slot.attempt = Attempt(
        query.offset, hello, Generation(number, slot.generation), False, now, now, step="read by a query"
    )
    job.emit(CallReady(subtask.operator, subtask.index, query.offset, slot.stream))
    inbox.hand_inherited(job, subtask)
    slot.since = job.now
    job.timeline.started(subtask, job.now)


# ---- from the markers to the decision


def ends_seen(job: JobState, seen: EndsSeen) -> None:
    """All markers stand: everything that was sent before the cut lies below these ends."""
    pending = None if job.epoch is None else job.epoch.pending.get(seen.checkpoint_id)
    if pending is None or pending.step is not Step.ACKS:
        return job.drop(Dropped.LATE_ENDS)
    for slot in job.live():
        attempt = slot.attempt
        assert attempt is not None
        end, epoch = seen.event_ends[slot.subtask], job.current.number
        # mutant: range-from-the-epochs-begin
        batch = Segment(slot.batch_begin.offset, end, epoch, slot.generation, attempt.id)
        pending.times.acked_at[slot.subtask] = job.now
        pending.acks[slot.subtask] = SubtaskSnapshot(
            slot.subtask.index, attempt.id, epoch, slot.generation, job.position, None, end, (batch,),
            slot.sent_through, 0, (), False,
        )  # fmt: skip
    return None


def prepare(job: JobState, pending: Pending) -> None:
    """Durable, and not decided: whether it counts is for Spark's offset log to say."""
    pending.step, query = Step.COMMITTING, job.query.newest
    assert query is not None
    parts = list(parts_of(job, pending))
    record = CheckpointPrepared(
        job.current.number, pending.id, job.wall_ms(pending.triggered_at), len(parts),
        checkpoints.operators_of(job, pending), query.wanted.query or "a query", job.history.reserved_through,
    )  # fmt: skip
    job.commit(keyed(*parts, record), AwaitDecision(pending.id))


def prepared(job: JobState, n: int) -> None:
    """The prepared checkpoint stands."""
    pending = job.current.pending[n]
    pending.step = Step.PREPARED  # mutant: gateways-open-when-prepared, handled-when-prepared


def _decided(job: JobState, decision: Decision) -> bool:
    n = decision.checkpoint_id
    pending = job.current.pending.get(n) or _pending_of(job, job.history.prepared[n])  # of an epoch before this one
    rereads = batch_inbox.take(job, pending, decision)  # mutant: batch-events-lost-at-a-restart
    if not rereads:
        _complete(job, pending, decision)
    return True


def reread_end(job: JobState, rereading: Rereading) -> None:
    """Complete the decided checkpoint: the events that its batch sent have been read again."""
    if batch_inbox.reread_end(job, rereading):
        _complete(job, rereading.pending, rereading.decision)


def _complete(job: JobState, pending: Pending, decision: Decision) -> None:
    then = CompleteBatch if pending.id in job.current.pending else CompleteEarlierBatch
    committer = job.history.prepared[pending.id].header.committer
    checkpoints.complete(job, pending, then, committer, decision.position)


def completed(job: JobState, n: int, gone: Iterable[Checkpoint]) -> None:
    """Every event of the batch has been handled; what the batch sent is handed over ahead of the notice."""
    pending = job.current.pending[n]
    batch_inbox.forget(job)
    for slot in job.live():
        snapshot, stream, attempt = pending.acks[slot.subtask], slot.stream, slot.attempt
        assert stream is not None and attempt is not None
        slot.batch_begin = BatchBegin(snapshot.event_position, snapshot.handled_through)
        attempt.handled_through = snapshot.handled_through
        if stream.settle(snapshot.handled_through):
            job.emit(Settle(stream))
        for part in snapshot.inbox:
            events = unpack(part.count, part.lengths, part.payload)
            slot.events_received += part.count
            subtask = slot.subtask
            inbox.deliver(job, CallEvents(subtask.operator, subtask.index, attempt.id, part.belongs_to, events))
    checkpoints.completed(job, n, gone)  # mutant: batch-events-behind-the-notice


def completed_earlier(job: JobState, gone: Iterable[Checkpoint]) -> None:
    """The epoch that the next request begins is restored from it, and that implies its completion."""
    batch_inbox.forget(job)
    job.statistics.completed += 1
    retention.forget(job, gone)


def _pending_of(job: JobState, prepared: Prepared) -> Pending:
    """A prepared checkpoint of an epoch that is over, as it was pending then."""
    header = prepared.header
    return Pending(
        header.checkpoint_id,
        savepoint=False,
        stop=False,
        command=None,
        triggered_at=job.monotonic(header.triggered_at_ms),
        log_triggered_at=job.clock.seconds,
        inbox_position=min(operator.inbox_position for operator in header.operators),
        uncut=set(),
        required=frozenset(prepared.subtasks),
        states={operator.operator: operator.coordinator_state for operator in header.operators},
        acks=dict(prepared.subtasks),
    )
