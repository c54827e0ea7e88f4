"""Hello and Start: how an instance becomes an attempt (protocol, sections 4 and 5)."""

from __future__ import annotations

from dataclasses import replace

from ...schemas.acks import Hello, RunStarted
from ...schemas.checkpoints import RunClaimed, SubtaskSnapshot
from ...schemas.events import Reset, Stop, Welcome
from ...schemas.ids import NO_ATTEMPT, Generation, SubtaskId
from ...schemas.state import OPEN_END, ChannelPosition, Segment
from ...schemas.versions import UNSAID, Versions
from . import commands, failover, inbox, payload_schemas
from .effects import Append, CallReady, Ending
from .gateway import Gateway
from .history import keyed
from .starts import handled_before, start_of
from .state import Attempt, JobState, OwedStop, Phase, Slot, SlotPhase, WaitingHello
from .stream import EventStream

OTHER_LAYOUT = "hello-of-another-layout"


def read_hello(job: JobState, offset: int, hello: Hello) -> None:
    """An instance asks for its Start. The newest Hello of the newest run wins."""
    subtask = hello.subtask_id
    if not may_be_answered(job, hello):
        return job.drop("hello-of-unknown-subtask")
    if is_of_another_layout(job, hello):
        job.drop(OTHER_LAYOUT)
        return stop(job, offset, hello, why_not(job, hello))
    if job.run is None or hello.run != job.run[0] or job.settings.batches:
        job.drop("hello-of-another-run")
        return stop(job, offset, hello, why_not(job, hello))
    if (newer := superseded_by(job, hello)) is not None:
        job.drop("hello-of-superseded")
        return stop_superseded(job, offset, hello, newer)
    job.wait(WaitingHello(offset, hello))
    job.registered.add(subtask)
    job.unheard.pop(subtask, None)
    if job.epoch is not None and job.phase is Phase.RUNNING:
        attempt = job.epoch.slots[subtask].attempt
        if attempt is not None:
            counted = not attempt.at_takeover
            failover.fail_attempt(job, subtask, f"a newer attempt ({offset}) said Hello", counted=counted)
    return None


def may_be_answered(job: JobState, hello: Hello) -> bool:
    """Whether its subtask has a partition: of the job as it is, or as it was with more subtasks."""
    now = job.settings.parallelism.get(hello.operator)
    return now is not None and hello.subtask in range(max(now, job.partitions.get(hello.operator, 0)))


def is_of_another_layout(job: JobState, hello: Hello) -> bool:
    """Whether its instance was told another parallelism: its peers, keys and channels are not those of this job.

    One of protocol 1 does not say: it is of the layout in which its run was claimed.
    """
    now = job.settings.parallelism[hello.operator]
    other = hello.run == job.history.run_rescaled if hello.parallelism == 0 else hello.parallelism != now
    return other or hello.subtask >= now


def reset_spare(job: JobState) -> None:
    """Whoever runs as a subtask that the job no longer has says Hello, and is told to leave."""
    for operator in () if job.settings.batches else job.settings.operators:
        for index in range(operator.parallelism, job.partitions.get(operator.name, 0)):
            job.emit(Append(SubtaskId(operator.name, index), Reset(job.current.number, 0)))


def answer_hellos(job: JobState) -> bool:
    """Answers every waiting Hello whose backoff is over; whether there was one."""
    acted = False
    for subtask, waiting in list(job.hellos.items()):
        slot = job.current.slots[subtask]
        if job.run is None or waiting.hello.run != job.run[0]:
            stop(job, waiting.offset, waiting.hello, why_not(job, waiting.hello))
        elif slot.phase is SlotPhase.DONE:
            stop(job, waiting.offset, waiting.hello, "the subtask has finished")
        elif job.now < slot.start_not_before:
            continue
        elif (reason := _refusal(job, waiting.hello)) is not None:
            stop(job, waiting.offset, waiting.hello, reason)
            job.due_end = job.due_end or (Ending.FAILED, reason)  # whoever comes next is no other: one clear end
        elif due := payload_schemas.seen(job, waiting.hello):
            job.commit(due, lambda _: None)
            return True  # it is answered when that stands
        else:
            _start(job, slot, waiting)
        del job.hellos[subtask]
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
    return payload_schemas.refusal(job, hello)


def superseded_by(job: JobState, hello: Hello) -> int | None:
    """The attempt of another task that has taken the place of the one that this instance was; None for none.

    It may not have read that: its successor's Start is truncated away once a checkpoint stands behind it.
    """
    if hello.previous == NO_ATTEMPT:
        return None
    waiting = job.hellos.get(hello.subtask_id)
    slot = None if job.epoch is None else job.epoch.slots[hello.subtask_id]
    others = [] if waiting is None else [(waiting.offset, waiting.hello.task)]
    others += [] if slot is None else [slot.newest]
    return max((at for at, task in others if at > hello.previous and task != hello.task), default=None)


def stop_superseded(job: JobState, offset: int, hello: Hello, newer: int) -> None:
    reason = f"superseded by attempt {newer}, which said Hello after attempt {hello.previous} of this instance"
    _append(job, hello, Stop(job.history.epoch, offset, hello.nonce, reason, superseded=True))


def stop(job: JobState, attempt: int, hello: Hello, reason: str) -> None:
    """Tells one instance to return normally, so that nothing retries it for ever."""
    _append(job, hello, Stop(job.history.epoch, attempt, hello.nonce, reason))


def stop_finished(job: JobState, subtask: SubtaskId) -> None:
    """Whose end the restored checkpoint contains leaves ◆: its notice may never have stood, and where everybody has
    finished this coordinator is gone before it could answer another Hello."""
    restored = job.current.restored
    assert restored is not None
    if restored.subtasks[subtask].attempt == NO_ATTEMPT:
        return  # it has come with a rescaling, and never ran
    reason = f"checkpoint {restored.id} contains the end of {subtask}"
    job.emit(Append(subtask, Stop(job.current.number, restored.subtasks[subtask].attempt, "", reason)))


def _append(job: JobState, hello: Hello, stop: Stop) -> None:
    job.stops.append(OwedStop(hello.subtask_id, stop, until=job.next_checkpoint_id))
    job.emit(Append(hello.subtask_id, stop))


def stop_again(job: JobState) -> None:
    """What the epoch before told instances to do may have been refused with a record behind it ◆."""
    for owed in job.stops:
        job.emit(Append(owed.subtask, replace(owed.stop, epoch=job.history.epoch)))


def stops_stand(job: JobState, checkpoint_id: int) -> None:
    """A checkpoint completes: whoever acknowledged it read its marker, so what stood before that has not been refused.

    A Stop behind its markers, or to a subtask that has finished and got none, is owed on ◆.
    """
    marked = {slot.subtask for slot in job.live()}
    stand = [owed for owed in job.stops if owed.until <= checkpoint_id and owed.subtask in marked]
    for owed in stand:
        job.stops.remove(owed)


def why_not(job: JobState, hello: Hello) -> str:
    """Why this instance is told to leave."""
    if is_of_another_layout(job, hello):
        now, told = job.settings.parallelism[hello.operator], f"as one of {hello.parallelism}"
        if hello.parallelism == 0:
            told = "before the job was given another parallelism, by a release that does not say as one of how many"
        return (
            f"the coordinator of job {job.settings.name} has {now} subtasks of operator {hello.operator}, and this task"
            f" ({hello.subtask_id}, run {hello.run}) was started {told}: start both with the same parallelism"
        )
    claimed = "none" if job.run is None else job.run[0]
    return f"run {hello.run} of job {job.settings.name} has been replaced: the claimed run is {claimed}"


def _start(job: JobState, slot: Slot, waiting: WaitingHello) -> None:
    epoch, last, subtask = job.current, job.history.last, slot.subtask
    assert slot.phase is SlotPhase.ABSENT
    policy = job.settings.operator(subtask.operator).on_failover
    snapshot = None if last is None else last.subtasks.get(subtask)
    slot.phase, slot.newest = SlotPhase.LIVE, (waiting.offset, waiting.hello.task)
    job.unheard[subtask] = waiting
    job.left.pop(subtask, None)
    slot.gateway = Gateway()
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
        next_checkpoint_id=job.next_checkpoint_id,
        epoch_begin=slot.begin_position,
        data_positions=_data_positions(job, slot, snapshot),
    )
    if waiting.hello.protocol != UNSAID:
        spoken = job.versions.spoken_with(waiting.hello.protocol)
        welcome = Welcome(epoch.number, waiting.offset, waiting.hello.nonce, spoken, job.versions.release)
        job.emit(Append(subtask, welcome))
        job.emit(*(Append(subtask, schema) for schema in payload_schemas.told_before(job, waiting.hello)))
    job.emit(Append(subtask, start))
    if job.has_coordinator(subtask.operator):
        job.emit(CallReady(subtask.operator, subtask.index, waiting.offset, slot.stream))
    inbox.hand_inherited(job, subtask)
    slot.since = job.now
    job.timeline.started(subtask, job.now)


def _data_positions(job: JobState, slot: Slot, snapshot: SubtaskSnapshot | None) -> tuple[ChannelPosition, ...]:
    """Where each channel goes on. What stands below the beginning of the epoch is void but for the named ranges."""
    named = {} if snapshot is None else {position.sender: position for position in snapshot.data_positions}
    positions = []
    for sender in job.settings.graph.channels_into(slot.subtask):
        begin = slot.begin_data[sender.operator]
        if sender in named:
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
    if job.settings.batches or not job.take_run(record.run, offset):
        return  # a query's requests name its run
    job.registered.clear()
    job.started_at = job.now
    commands.refuse_stops(job)
    served = job.live()  # nobody where there is no epoch: the claim to come carries the run
    for slot in served:
        assert slot.attempt is not None
        stop(job, slot.attempt.id, slot.attempt.hello, why_not(job, slot.attempt.hello))
    if served:
        failover.fail_globally(job, f"run {record.run} has taken over", counted=False)
    job.left.clear()  # they have been told to stop, and another task may have the name of one


def claim_run(job: JobState) -> bool:
    """Commits the newest run, before any Hello of it is answered; whether there was one to commit."""
    if not run_is_new(job):
        return False
    job.commit(keyed(run_claim(job)), lambda _: None)
    return True


def run_is_new(job: JobState) -> bool:
    claimed = job.history.run
    return job.run is not None and (claimed is None or claimed.run != job.run[0])


def run_claim(job: JobState) -> RunClaimed:
    assert job.run is not None
    return RunClaimed(*job.run)
