"""Who is alive: the coordinator's own heartbeats, silent and stuck attempts, subtasks that never came (section 8)."""

from __future__ import annotations

from ...schemas.acks import CoordinatorHeartbeat
from ...schemas.status import Ending
from . import failover
from .effects import AppendHeartbeat
from .state import Dropped, JobState, Phase, SlotPhase


def read_heartbeat(job: JobState, appended_at_ms: int, heartbeat: CoordinatorHeartbeat) -> None:
    if heartbeat.epoch > job.history.epoch:
        return job.end(Ending.FENCED, f"epoch {heartbeat.epoch} has begun elsewhere")
    if heartbeat.instance != job.instance:
        return job.drop(Dropped.HEARTBEAT_OF_ANOTHER_COORDINATOR)
    job.heartbeat.written_at = None
    job.heartbeat.read_at = job.now
    job.clock.own_heartbeat(appended_at_ms)
    if job.phase is Phase.RUNNING:
        _fail_the_silent(job)
    return None


def _fail_the_silent(job: JobState) -> None:
    """Judges every attempt by log time: who has said nothing, and who has handled nothing of what it was sent."""
    log_time, settings = job.clock.seconds, job.settings
    if settings.driven_by_query:
        return  # a query is no process of ours: it says when it needs something, and Spark watches its tasks
    failover.end_undone(job)
    for slot in job.live():
        attempt = slot.attempt
        if attempt is None or job.phase is not Phase.RUNNING:
            continue  # an earlier one of this round has taken it along
        silent_s = log_time - attempt.seen_at
        if silent_s > (limit := settings.heartbeat_timeout):
            cause = f"silent for {silent_s:.1f} s (heartbeat_timeout is {limit:g} s); it was last {attempt.step}"
            failover.fail_attempt(job, slot.subtask, cause, silent=True)
            continue
        if failover.ends_unconfirmed(job, slot.subtask):  # mutant: stuck-under-a-start-before
            continue
        stream = slot.stream
        if stream is None or stream.appended_through <= attempt.handled_through or attempt.finished:
            attempt.progress_at = log_time
            continue
        stuck_s = log_time - attempt.progress_at
        if stuck_s > settings.operator(slot.subtask.operator).event_ack_timeout:
            cause = (
                f"no event handled for {stuck_s:.1f} s: event {attempt.handled_through} of"
                f" {stream.appended_through} waits; it was last {attempt.step}"
            )
            failover.fail_attempt(job, slot.subtask, cause, silent=True)


def fail_unregistered(job: JobState) -> bool:
    """Fails a job whose run never got all its subtasks up: too few slots, most often, and nobody else says so."""
    if job.registry.incomplete_since is None:
        return False
    slots = job.current.slots
    lacking = (s for s in reversed(slots) if s not in job.registry.registered and slots[s].phase is not SlotPhase.DONE)
    last = next(lacking, None)  # asked behind every record that is read, and the last ones come last
    if last is None:
        job.registry.incomplete_since = None
    elif job.now >= job.registry.incomplete_since + job.settings.start_timeout:
        if job.now - job.heartbeat.read_at > 3 * job.settings.heartbeat_interval:
            job.registry.incomplete_since = job.now  # the log was away: nobody could register
            return False
        missing, total = [*reversed([last, *lacking])], len(slots)
        names = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        why = "each needs a task slot of its own; give the cluster more slots, or lower the parallelism"
        if job.statistics.dropped[Dropped.HELLO_OF_ANOTHER_LAYOUT]:
            why = "tasks of another parallelism were stopped; start the coordinator and the tasks with the same"
        job.due_end = (
            Ending.FAILED,
            f"only {total - len(missing)} of {total} subtasks registered within {job.settings.start_timeout:g} s"
            f" (missing: {names}): {why}",
        )
        return True
    return False


def beat(job: JobState) -> bool:
    """The coordinator's own heartbeat: at most one in flight, so that an outage does not end in a burst.

    One that has not come back for a minute of the coordinator's clock is taken for lost.
    """
    if job.now < job.heartbeat.due_at:
        return False
    interval = job.settings.heartbeat_interval
    job.heartbeat.due_at = job.now + interval
    if job.heartbeat.written_at is None or job.now - job.heartbeat.written_at > 60 * interval:
        job.heartbeat.written_at = job.now
        job.emit(AppendHeartbeat(CoordinatorHeartbeat(job.current.number, job.instance)))
    return True
