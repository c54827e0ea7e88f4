"""Hello and Start: how an instance becomes an attempt (protocol, sections 4 and 5)."""

from __future__ import annotations

from dataclasses import replace

from ...checkpoint_log.history import keyed
from ...checkpoint_log.start_record import handled_before, start_of
from ...schemas.acks import Hello, RunStarted
from ...schemas.checkpoints import RunClaimed, SubtaskSnapshot
from ...schemas.events import Reset, Welcome
from ...schemas.ids import NO_ATTEMPT, Generation, SubtaskId
from ...schemas.settings import layout_text
from ...schemas.state import OPEN_END, ChannelPosition, Segment
from ...schemas.status import Ending
from ...schemas.versions import Versions
from . import commands, failover, inbox, lost_log, payload_schemas, stops
from .after_commit import NoFollowUp
from .effects import Append, CallReady
from .registry import WaitingHello
from .state import Attempt, Dropped, JobState, Phase, Slot, SlotPhase
from .stream import EventStream

NAME_CHARS_MAX = 4_000
"""Characters of a name in a Hello; one with a longer name is forged."""


def read_hello(job: JobState, offset: int, hello: Hello) -> None:
    """An instance asks for its Start. The newest Hello of the newest run wins."""
    subtask = hello.subtask_id
    if not may_be_answered(job, hello):
        return job.drop(Dropped.HELLO_OF_UNKNOWN_SUBTASK)
    if is_of_another_layout(job, hello):
        job.drop(Dropped.HELLO_OF_ANOTHER_LAYOUT)
        return stops.stop(job, offset, hello, why_not(job, hello))
    if not job.registry.is_of_run(hello) or job.settings.driven_by_query:  # mutant: older-run-answered.read
        job.drop(Dropped.HELLO_OF_ANOTHER_RUN)
        return stops.stop(job, offset, hello, why_not(job, hello))
    if (newer := superseded_by(job, hello)) is not None:
        job.drop(Dropped.HELLO_OF_SUPERSEDED)
        return stops.stop_superseded(job, offset, hello, newer)
    attempt = job.epoch.slots[subtask].attempt if job.epoch is not None and job.phase is Phase.RUNNING else None
    if attempt is not None and attempt.hello.nonce == hello.nonce:
        return job.drop(Dropped.HELLO_REPEATED)
    job.registry.wait(WaitingHello(offset, hello))
    job.registry.registered.add(subtask)
    job.registry.unconfirmed.pop(subtask, None)
    if attempt is not None:
        counted = not attempt.at_takeover
        failover.fail_attempt(job, subtask, f"a newer attempt ({offset}) said Hello", counted=counted)
    return None


def may_be_answered(job: JobState, hello: Hello) -> bool:
    """Whether its subtask has a partition: of the job as it is, or as it was with more subtasks."""
    now = job.settings.parallelism.get(hello.operator)
    if not names_fit(hello):
        return False
    # mutant: hello-of-the-gone-unanswered
    return now is not None and hello.subtask in range(max(now, job.partitions.get(hello.operator, 0)))


def names_fit(hello: Hello) -> bool:
    """Whether its names can come back to it, in records of its partition."""
    return max(map(len, (hello.run, hello.nonce, hello.task, hello.host))) <= NAME_CHARS_MAX


def is_of_another_layout(job: JobState, hello: Hello) -> bool:
    """Whether its instance was told another parallelism of any operator: it may feed subtasks that are gone."""
    now = job.settings.parallelism
    return hello.layout != now or hello.subtask >= now[hello.operator]


def reset_spare(job: JobState) -> None:
    """Whoever runs as a subtask that the job no longer has says Hello, and is told to leave."""
    for operator in () if job.settings.driven_by_query else job.settings.operators:
        for index in range(operator.parallelism, job.partitions.get(operator.name, 0)):
            job.emit(Append(SubtaskId(operator.name, index), Reset(job.current.number, 0)))


def answer_hellos(job: JobState) -> bool:
    """Answers every waiting Hello whose backoff is over; whether there was one."""
    acted, gathering = False, inbox.gathers(job)
    for subtask, waiting in list(job.registry.waiting.items()):
        slot = job.current.slots[subtask]
        if not job.registry.is_of_run(waiting.hello):  # mutant: older-run-answered.waiting
            stops.stop(job, waiting.offset, waiting.hello, why_not(job, waiting.hello))
        elif slot.phase is SlotPhase.DONE:
            stops.stop(job, waiting.offset, waiting.hello, stops.why_done(job, "the subtask has finished"))
        elif job.now < slot.start_not_before or (gathering and inbox.put_off(job, subtask)):
            continue
        elif (reason := _refusal(job, waiting.hello)) is not None:
            stops.stop(job, waiting.offset, waiting.hello, reason)
            job.due_end = job.due_end or (Ending.FAILED, reason)  # whoever comes next is no other: one clear end
        elif due := payload_schemas.seen(job, waiting.hello):
            job.commit(due, NoFollowUp())
            return True  # it is answered when that stands
        else:
            _start(job, slot, waiting)
        del job.registry.waiting[subtask]
        acted = True
    return acted


def _refusal(job: JobState, hello: Hello) -> str | None:
    """Why this instance and this coordinator cannot work together; None: they can (protocol, section 12)."""
    own = job.versions
    if hello.protocol <= own.protocol and own.refuses(hello.protocol):  # a newer instance decides itself
        theirs = Versions(hello.protocol, 0, hello.release)
        return (
            f"subtask {hello.subtask_id} of job {job.settings.name} runs {theirs.told()}, and the coordinator"
            f" {own.told()}, which serves protocol {own.oldest} and above: upgrade the tasks first"
        )
    return (
        lost_log.refusal(job, hello)  # mutant: lost-log-restored-past-a-subtask
        or payload_schemas.refusal(job, hello)
    )


def superseded_by(job: JobState, hello: Hello) -> int | None:
    """The attempt of another task that has taken the place of the one that this instance was; None for none.

    It may not have read that: its successor's Start is truncated away once a checkpoint stands behind it.
    """
    if hello.previous == NO_ATTEMPT:  # mutant: superseded-takes-over
        return None
    waiting = job.registry.waiting.get(hello.subtask_id)
    slot = None if job.epoch is None else job.epoch.slots[hello.subtask_id]
    others = [] if waiting is None else [(waiting.offset, waiting.hello.task)]
    others += [] if slot is None else [slot.newest]
    return max((at for at, task in others if at > hello.previous and task != hello.task), default=None)


def why_not(job: JobState, hello: Hello) -> str:
    """Why this instance is told to leave."""
    if is_of_another_layout(job, hello):
        return (
            f"the coordinator of job {job.settings.name} has the operators {layout_text(job.settings.parallelism)}, and"
            f" this task ({hello.subtask_id}, run {hello.run}) was started with {layout_text(hello.layout)}: start both"
            " with the same parallelism"
        )
    claimed = job.registry.run_id or "none"
    return f"run {hello.run} of job {job.settings.name} has been replaced: the claimed run is {claimed}"


def _start(job: JobState, slot: Slot, waiting: WaitingHello) -> None:
    epoch, last, subtask = job.current, job.history.last, slot.subtask
    assert slot.phase is SlotPhase.ABSENT
    policy = job.settings.operator(subtask.operator).on_failover
    snapshot = None if last is None else last.subtasks.get(subtask)
    slot.phase, slot.newest = SlotPhase.LIVE, (waiting.offset, waiting.hello.task)
    job.registry.unconfirmed[subtask] = waiting
    job.registry.undone.pop(subtask, None)
    if slot.stream is None:
        slot.stream = EventStream(subtask, epoch.number)
    generation = Generation(epoch.number, slot.generation)
    slot.attempt = Attempt(
        waiting.offset,
        waiting.hello,
        generation,
        waiting.at_takeover,
        seen_at=job.clock.seconds,
        progress_at=job.clock.seconds,
        handled_through=handled_before(snapshot, epoch.number, policy),
    )
    start = start_of(
        generation,
        waiting.offset,
        waiting.hello.nonce,
        checkpoint_id=None if last is None else last.id,
        snapshot=snapshot,
        policy=policy,
        next_checkpoint_id=job.schedule.next_id,
        epoch_begin=slot.begin_position,
        data_positions=_data_positions(job, slot, snapshot),
    )
    spoken = job.versions.spoken_with(waiting.hello.protocol)
    job.emit(Append(subtask, Welcome(epoch.number, waiting.offset, waiting.hello.nonce, spoken, job.versions.release)))
    job.emit(*(Append(subtask, schema) for schema in payload_schemas.told_before(job, waiting.hello)))
    job.emit(Append(subtask, start))
    if job.has_coordinator(subtask.operator):
        job.emit(CallReady(subtask.operator, subtask.index, waiting.offset, slot.stream))
    inbox.hand_inherited(job, subtask)  # mutant: range-later.handed
    slot.since = job.now
    job.timeline.started(subtask, job.now)


def _data_positions(job: JobState, slot: Slot, snapshot: SubtaskSnapshot | None) -> tuple[ChannelPosition, ...]:
    """Where each channel goes on. What stands below the beginning of the epoch is void but for the named ranges."""
    named = {} if snapshot is None else {position.sender: position for position in snapshot.data_positions}
    positions = []
    for sender in job.settings.graph.channels_into(slot.subtask):
        begin = slot.begin_data[sender.operator]
        if sender in named:  # mutant: start-names-no-data-positions
            position = named[sender]
            segments = [replace(s, begin=max(s.begin, begin)) if s.end == OPEN_END else s for s in position.segments]
            positions.append(replace(position, segments=tuple(segments)))
        elif job.current.slots[sender].phase is SlotPhase.DONE:
            positions.append(ChannelPosition(str(sender), (), 0))
        else:
            opened = Segment(begin, OPEN_END, job.current.number, slot.generation, NO_ATTEMPT)
            positions.append(ChannelPosition(str(sender), (opened,), 0))
    return tuple(positions)


# ---- runs


def read_run(job: JobState, offset: int, record: RunStarted) -> None:
    """A newer run of the job: it owns the job from now on; tasks of older ones are told to leave."""
    if job.settings.driven_by_query or not job.registry.take_run(record.run, offset):
        return  # a query's requests name its run
    job.registry.registered.clear()
    job.registry.incomplete_since = job.now
    commands.refuse_stops(job)
    served = job.live()  # nobody where there is no epoch: the claim to come carries the run
    for slot in served:
        assert slot.attempt is not None
        stops.stop(job, slot.attempt.id, slot.attempt.hello, why_not(job, slot.attempt.hello))
    if served:
        failover.fail_globally(job, f"run {record.run} has taken over", counted=False)
    job.registry.undone.clear()  # they have been told to stop, and another task may have the name of one


def claim_run(job: JobState) -> bool:
    """Commits the newest run, before any Hello of it is answered; whether there was one to commit."""
    if (claim := unclaimed_run(job)) is None:
        return False
    job.commit(keyed(claim), NoFollowUp())
    return True


def unclaimed_run(job: JobState) -> RunClaimed | None:
    """The newest run, where it has not been committed."""
    run, claimed = job.registry.run, job.history.run
    return None if run is None or (claimed is not None and claimed.run == run.run) else run
