"""When things happened, as the status tells it: checkpoints step by step, failovers, all of it bounded."""

from __future__ import annotations

import json
from dataclasses import replace

from penstock.coordinator.protocol import timeline
from penstock.coordinator.protocol.inputs import CoordinatorRaised
from penstock.coordinator.status import (
    CAUSE_CHARS,
    CAUSES_WHOLE,
    OPERATORS_SUBTASKS_TOLD,
    SUBTASKS_TOLD,
    completed,
    encoded,
    job_status,
    settings_told,
)
from penstock.schemas.codec import decode
from penstock.schemas.events import FailoverPolicy
from penstock.schemas.graph import InputSettings, Partitioning
from penstock.schemas.sanitize import TEXT_CHARS_MAX
from penstock.schemas.settings import JobSettings, OperatorSettings
from penstock.schemas.status import CheckpointStatus, FailoverStatus, JobStatus, SubtaskTimes

from .driver import S0, S1, WALL_MS, Script


def checkpoints_of(script: Script) -> tuple[CheckpointStatus, ...]:
    return job_status(script.job).checkpoints


def failovers_of(script: Script) -> tuple[FailoverStatus, ...]:
    return job_status(script.job).failovers


def live(script: Script, seconds: float) -> None:
    script.live(seconds)


def test_a_checkpoint_is_told_step_by_step_with_the_time_of_each() -> None:
    script = Script.running()
    script.auto_cut = False
    n = script.trigger()
    begin = script.now
    live(script, 1.0)
    (told,) = checkpoints_of(script)
    assert (told.outcome, told.marked_ms, told.took_ms, told.acked, told.required) == ("under way", -1, 1000, 0, 2)
    assert told.triggered_at_ms == WALL_MS + round(begin * 1000)
    script.handle(script.completed("op", n))
    live(script, 1.0)
    script.read(script.task(S0).snapshot_taken(n))
    live(script, 1.0)
    script.read(script.task(S0).ack(n))
    (told,) = checkpoints_of(script)
    assert (told.marked_ms, told.acked) == (1000, 1)
    assert told.subtasks == (SubtaskTimes("op", 0, 2000, 3000), SubtaskTimes("op", 1, -1, -1))
    live(script, 1.0)
    script.read(script.task(S1).ack(n))
    (told,) = checkpoints_of(script)
    assert (told.outcome, told.took_ms, told.acked, told.reason) == ("completed", 4000, 2, "")
    assert told.subtasks == (SubtaskTimes("op", 0, 2000, 3000), SubtaskTimes("op", 1, -1, 4000))
    assert told.state_bytes == len(f"op@{n}") + 2 * len("state")
    assert job_status(script.job).last_duration_s == 4.0


def test_an_aborted_checkpoint_is_told_with_its_reason_and_how_far_it_came() -> None:
    script = Script.running()
    n = script.trigger()
    script.read(script.task(S0).ack(n), script.task(S1).decline(n))
    (told,) = checkpoints_of(script)
    assert (told.outcome, told.acked, told.reason) == ("aborted", 1, "op/1 declined: cannot")
    assert told.subtasks == (SubtaskTimes("op", 0, -1, 0), SubtaskTimes("op", 1, -1, -1))


def test_a_region_failover_is_over_once_everybody_it_undid_has_been_started_again() -> None:
    script = Script.running()
    script.read(script.task(S1).failed("disk full"))
    (told,) = failovers_of(script)
    assert (told.kind, told.count, told.subtasks, told.took_ms) == ("region", 1, ("op/1",), -1)
    assert told.cause.endswith("disk full")
    begin = script.now
    script.advance(5.0)
    script.hello(S1)
    (told,) = failovers_of(script)
    assert told.took_ms == round(1000 * (script.now - begin)) > 0


def test_a_global_failover_waits_for_all_and_tells_the_cause() -> None:
    script = Script.running(OperatorSettings("op", 2, on_failover=FailoverPolicy.GLOBAL))
    script.handle(CoordinatorRaised("op", script.job.current.number, "step", "boom"))
    script.advance(5.0)
    script.hello(S0)
    (told,) = failovers_of(script)
    assert (told.kind, told.count, told.took_ms) == ("global", 2, -1)
    assert "boom" in told.cause
    script.hello(S1)
    assert failovers_of(script)[0].took_ms > 0


def test_a_failover_that_undoes_nobody_is_over_at_once() -> None:
    timed = timeline.Timeline()
    timed.failed_over(3.0, "boom", [], of_job=True)
    assert timed.failovers[0].over_at == 3.0


def test_how_long_a_subtask_has_been_in_its_phase_is_told() -> None:
    script = Script.running()
    before = job_status(script.job).operators[0].subtasks
    live(script, 3.0)
    after = job_status(script.job).operators[0].subtasks
    assert [round(b.since_s - a.since_s, 3) for a, b in zip(before, after, strict=True)] == [3.0, 3.0]
    script.read(script.task(S1).failed())
    assert [s.since_s for s in job_status(script.job).operators[0].subtasks] == [after[0].since_s, 0.0]


def test_the_totals_stand_for_every_subtask_and_for_what_a_gateway_holds() -> None:
    script = Script.running()
    script.send(script.task(S0), b"abc")
    script.read(script.task(S1).failed())
    totals = job_status(script.job).operators[0].totals
    assert totals is not None
    assert (totals.running, totals.absent, totals.sent, totals.handled, totals.failures) == (1, 1, 1, 0, 1)
    none_yet = job_status(Script().job).operators[0].totals
    assert none_yet is not None and none_yet.absent == 2


def test_only_the_last_are_kept_and_of_old_checkpoints_no_subtasks_times() -> None:
    script = Script.running()
    ids = []
    for _ in range(timeline.CHECKPOINTS_KEPT + 3):
        n = script.trigger()
        script.acknowledge(n)
        ids.append(n)
    told = checkpoints_of(script)
    assert [c.checkpoint_id for c in told] == ids[3:]
    assert [bool(c.subtasks) for c in told] == [False] * 14 + [True] * timeline.CHECKPOINTS_TIMED


def test_of_many_subtasks_those_that_a_checkpoint_waits_for_are_timed() -> None:
    script = Script.running(OperatorSettings("op", 100))
    n = script.trigger()
    script.read(*(task.ack(n) for subtask, task in script.tasks.items() if subtask.index != 77))
    (told,) = checkpoints_of(script)
    assert len(told.subtasks) == timeline.SUBTASKS_TIMED and told.acked == 99
    assert SubtaskTimes("op", 77, -1, -1) in told.subtasks


def test_of_many_subtasks_only_the_slowest_times_of_a_checkpoint_are_kept() -> None:
    """G7: twenty checkpoints are kept, whatever the number of subtasks."""
    script = Script.running(OperatorSettings("op", 100))
    n = script.trigger()
    tasks = list(script.tasks.values())
    script.read(*(task.ack(n) for task in tasks[1:]))
    script.advance(1.0)
    script.read(tasks[0].ack(n))
    times = script.job.timeline.checkpoints[-1].times
    assert len(times.acked_at) == timeline.SUBTASKS_TIMED
    assert tasks[0].subtask in times.acked_at


def test_the_causes_of_the_newest_failovers_are_whole_and_those_of_older_ones_are_cut() -> None:
    script = Script.running()
    script.read(script.task(S1).failed("x" * 10_000))
    (newest,) = failovers_of(script)
    assert len(newest.cause) == TEXT_CHARS_MAX
    timeline = script.job.timeline
    timeline.failovers.extend(replace(timeline.failovers[0]) for _ in range(CAUSES_WHOLE))
    assert [len(f.cause) for f in failovers_of(script)] == [CAUSE_CHARS] + [TEXT_CHARS_MAX] * CAUSES_WHOLE


def test_the_settings_are_told_as_they_are_resolved_without_credentials() -> None:
    operators = (
        OperatorSettings("read", 2),
        OperatorSettings("sum", 3, inputs=(InputSettings("read", Partitioning.KEYED),)),
    )
    settings = JobSettings("flights", operators, state_storage="s3://key:secret@bucket/states?token=secret")
    told = completed(job_status(Script.running().job), 1, {}, settings_told(settings)).settings
    found = json.loads(told)
    assert "secret" not in told and found["state_storage"] == "s3://...@bucket/states"
    assert (found["checkpoint"]["retained"], found["operators"][1]["parallelism"]) == (2, 3)
    assert found["operators"][1]["inputs"] == [{"upstream": "read", "partitioning": "keyed"}]


def test_a_record_of_thousands_has_their_totals_and_names_those_in_trouble() -> None:
    """However much room there is: it is written each second, and whoever looks reads the last minutes of them."""
    status = job_status(Script.running().job)
    (operator,) = status.operators
    subtasks = tuple(replace(operator.subtasks[0], subtask=i, step="in process") for i in range(10_000))
    subtasks = (*subtasks[:5_000], replace(subtasks[5_000], phase="absent"), *subtasks[5_001:])
    large = replace(status, operators=(replace(operator, parallelism=10_000, subtasks=subtasks),))
    record = encoded(large, 100_000_000)
    assert len(record) < 50_000
    (told,) = statuses_in(record).operators
    assert len(told.subtasks) == OPERATORS_SUBTASKS_TOLD and told.parallelism == 10_000
    assert told.totals == operator.totals
    assert [s.subtask for s in told.subtasks if s.phase == "absent"] == [5_000]
    assert list(told.subtasks) == sorted(told.subtasks, key=lambda s: s.subtask)
    assert statuses_in(encoded(large, 1_000)).operators[0].subtasks == ()


def test_a_record_names_everybody_of_a_job_that_is_not_so_large_and_some_of_each_of_many_operators() -> None:
    status = job_status(Script.running().job)
    (operator,) = status.operators

    def of(operators: int, parallelism: int) -> JobStatus:
        subtasks = tuple(replace(operator.subtasks[0], subtask=i) for i in range(parallelism))
        told = replace(operator, parallelism=parallelism, subtasks=subtasks)
        return replace(status, operators=(told,) * operators)

    assert statuses_in(encoded(of(1, SUBTASKS_TOLD), 1_000_000)) == of(1, SUBTASKS_TOLD)
    many = statuses_in(encoded(of(100, 100), 1_000_000))
    assert {len(told.subtasks) for told in many.operators} == {SUBTASKS_TOLD // 100}


def statuses_in(record: bytes) -> JobStatus:
    status = decode(record)
    assert isinstance(status, JobStatus)
    return status


def test_of_many_that_a_checkpoint_waits_for_some_are_named_and_the_others_counted() -> None:
    script = Script.running(OperatorSettings("op", 20))
    n = script.trigger()
    script.read(script.task(S0).ack(n))
    (pending,) = job_status(script.job).pending
    assert pending.waits_for.startswith("op/1 (attempt") and "op/8 (attempt" in pending.waits_for
    assert pending.waits_for.endswith(", and 11 more subtasks")


def test_one_that_finishes_while_a_checkpoint_is_under_way_is_told_as_safe() -> None:
    script = Script.running(checkpoint={"max_concurrent": 2})
    first, second = script.trigger(), script.trigger()
    script.read(script.task(S1).finished())
    script.acknowledge(first, S1)
    script.read(script.task(S1).ack(first, finished=True))
    script.read(script.task(S0).ack(second))
    told = {c.checkpoint_id: c for c in checkpoints_of(script)}[second]
    assert (told.outcome, told.acked) == ("completed", 2)
    assert all(times.acked_ms >= 0 for times in told.subtasks)


def test_the_status_tells_how_long_ago_an_event_moved_in_either_direction() -> None:
    script = Script.running()
    live(script, 3.0)
    assert job_status(script.job).last_event_s >= 3.0
    script.send(script.task(S0), b"an event")
    live(script, 2.0)
    assert job_status(script.job).last_event_s == 2.0
    script.read(script.task(S1).frame(b"an answer"))
    live(script, 1.0)
    assert job_status(script.job).last_event_s == 1.0
