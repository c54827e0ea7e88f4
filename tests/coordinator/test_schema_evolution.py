"""A job whose schemas have changed goes on in memory: what stands in the log is read as what it is."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import penstock
from penstock.coordinator.options import CoordinatorOptions
from penstock.recorded.fork import fork
from penstock.recorded.job import RecordedJob
from penstock.schemas.errors import JobRefused
from penstock.schemas.settings import Restore
from penstock.testing import LocalJob
from penstock.transport.ports import Transport

PATIENCE_S = 20.0


def record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Ride", "fields": list(fields)}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


V1 = record(field("who", "string"), field("km", "int"), field("note", "string", default="none"))
V2 = record(field("rider", "string", aliases=["who"]), field("km", "long"), field("tip", "int", default=7))
"""Renamed with an alias, widened, removed, added with a default."""
ONE = {"who": "Ada", "km": 5, "note": "late"}
ONE_TODAY = {"rider": "Ada", "km": 5, "tip": 7}
BROKEN = record(field("rider", "string"), field("km", "string"))


class Seen:
    """What the objects of one start of the job were given."""

    def __init__(self, value: dict[str, Any] | None) -> None:
        self.value = value
        """What is sent and kept; None: nothing."""
        self.restored: list[Any] = []
        self.coordinator_state: list[Any] = []
        self.from_subtask: list[Any] = []
        self.from_coordinator: list[Any] = []
        self.told = threading.Event()
        self.handed = threading.Event()


def job_with(seen: Seen, schema: dict[str, Any]) -> penstock.Job:
    class Dispatcher(penstock.OperatorCoordinator):
        def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Any) -> None:
            if seen.value is not None:
                gateway.send_event(seen.value)

        def handle_event_from_operator(self, subtask: int, attempt: int, event: Any, context: Any) -> None:
            seen.from_subtask.append(event)
            seen.handed.set()

        def checkpoint_coordinator(self, checkpoint_id: int, result: Any) -> None:
            result.complete(seen.value)

        def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
            seen.coordinator_state.append(state)

    class Rider(penstock.Subtask):
        def open(self, context: Any) -> None:
            self.context = context

        def handle_operator_event(self, event: Any) -> None:
            seen.from_coordinator.append(event)
            seen.told.set()

        def snapshot_state(self, checkpoint_id: int) -> Any:
            if seen.value is not None:  # behind the cut of the coordinator: it belongs to the checkpoint's inbox range
                self.context.send_event_to_coordinator(seen.value)
            return seen.value

        def restore_state(self, checkpoint_id: int, state: Any) -> None:
            seen.restored.append(state)

    job = penstock.Job("rides", checkpoint=penstock.CheckpointSettings(interval=0.1))
    job.operator("riders", coordinator=Dispatcher, subtask=Rider, parallelism=1, codec=schema, state_codec=schema)
    return job


def first_run() -> Transport:
    """A job under V1 that stopped behind a completed checkpoint with state, inbox range and coordinator state."""
    with LocalJob(job_with(Seen(ONE), V1)) as running:
        running.wait_for(lambda status: status.checkpoints_completed >= 1, PATIENCE_S)
        running.crash_coordinator()
        return running.transport


def test_state_and_undelivered_events_of_the_earlier_schema_are_read_under_todays() -> None:
    transport, seen = first_run(), Seen(None)
    with LocalJob(job_with(seen, V2), transport) as running:
        running.wait_for(lambda status: status.checkpoints_completed >= 1, PATIENCE_S)
        assert seen.handed.wait(PATIENCE_S)
        running.check()
    assert seen.restored == [ONE_TODAY]
    assert seen.coordinator_state == [ONE_TODAY]
    assert set(map(str, seen.from_subtask)) == {str(ONE_TODAY)}, "its inbox range, written under the earlier schema"


def test_a_third_schema_reads_what_both_before_it_wrote() -> None:
    transport = first_run()
    with LocalJob(job_with(Seen({"rider": "Bo", "km": 6, "tip": 1}), V2), transport) as running:
        running.wait_for(lambda status: status.checkpoints_completed >= 1, PATIENCE_S)
        running.crash_coordinator()
    third, seen = record(*V2["fields"], field("city", "string", default="Oslo")), Seen(None)
    with LocalJob(job_with(seen, third), transport) as running:
        running.wait_for(lambda status: status.checkpoints_completed >= 1, PATIENCE_S)
    assert seen.restored == [{"rider": "Bo", "km": 6, "tip": 1, "city": "Oslo"}]


def test_a_fork_reads_what_its_origin_wrote_under_an_earlier_schema() -> None:
    transport, seen = first_run(), Seen(None)
    origin = RecordedJob(transport, "rides")
    fork(origin, "sandbox", origin.history.last_id)
    with LocalJob(job_with(seen, V2).renamed("sandbox"), transport) as running:
        running.wait_for(lambda status: status.checkpoints_completed >= 1, PATIENCE_S)
        assert seen.handed.wait(PATIENCE_S)
    assert seen.restored == [ONE_TODAY]
    with pytest.raises(JobRefused, match="/km: long cannot be read as string"):
        LocalJob(job_with(Seen(None), BROKEN).renamed("sandbox"), transport).start()


def test_in_a_fork_no_schema_is_in_use_behind_the_epoch_that_it_begins_with() -> None:
    """Else what the sandbox takes in epochs of its own would be held to schemas that it never wrote under."""
    transport = first_run()
    kept = RecordedJob(transport, "rides").history.last_id
    for _ in range(2):
        with LocalJob(job_with(Seen(None), V1), transport, subtasks=False) as running:
            running.wait_for(lambda status: status.epoch > 0, PATIENCE_S)
    origin = RecordedJob(transport, "rides")
    assert {used.last_epoch for used in origin.history.schemas.values()} == {3}
    fork(origin, "sandbox", kept)
    copied = RecordedJob(transport, "sandbox").history
    assert {used.last_epoch for used in copied.schemas.values()} == {copied.epoch} == {1}


def test_a_schema_that_cannot_read_the_state_is_refused_before_anything_is_changed_and_fresh_is_a_way_out() -> None:
    transport = first_run()
    refused = LocalJob(job_with(Seen(None), BROKEN), transport)
    with pytest.raises(JobRefused, match=r"of operator riders: /rider: .*no default; .*/km: int cannot be read as str"):
        refused.start()
    refused.close()
    seen, options = Seen({"rider": "Bo", "km": "6"}), CoordinatorOptions(restore=Restore.FRESH)
    with LocalJob(job_with(seen, BROKEN), transport, options=options) as running:
        assert seen.told.wait(PATIENCE_S)
        running.wait_for(lambda status: status.checkpoints_completed >= 1, PATIENCE_S)


def test_old_tasks_go_on_under_a_coordinator_of_a_newer_file_in_a_rolling_upgrade() -> None:
    """Each side writes under its own schema, and reads what the other writes under its own."""
    newer = record(*V1["fields"], field("tip", "int", default=7))
    tasks, coordinator = Seen(ONE), Seen({**ONE, "tip": 9})
    with LocalJob(job_with(tasks, V1)) as running:
        running.wait_for(lambda status: status.checkpoints_completed >= 1, PATIENCE_S)
        running.crash_coordinator()
        taking_over = LocalJob(job_with(coordinator, newer), running.transport, subtasks=False)
        with taking_over:
            tasks.told.clear()
            taking_over.wait_for(lambda status: status.checkpoints_completed >= 2, PATIENCE_S)
            assert tasks.told.wait(PATIENCE_S)
            assert coordinator.handed.wait(PATIENCE_S)
            status = taking_over.wait_for(lambda status: status.state == "running", PATIENCE_S)
    assert tasks.from_coordinator[-1] == ONE, "sent with a tip that the old file does not know"
    assert coordinator.from_subtask[-1] == {**ONE, "tip": 7}
    assert status.failovers_region == 0


def test_old_tasks_that_a_newer_coordinator_cannot_work_with_end_the_run_once_with_the_reason() -> None:
    narrower = record(field("who", "string"), field("km", "long"), field("note", "string", default=""))
    with LocalJob(job_with(Seen(ONE), V1)) as running:
        running.wait_for(lambda status: status.checkpoints_completed >= 1, PATIENCE_S)
        running.crash_coordinator()
        taking_over = LocalJob(job_with(Seen({**ONE}), narrower), running.transport, subtasks=False)
        with taking_over:
            outcome = taking_over.wait(PATIENCE_S)
    assert outcome.ending == "failed"
    assert "riders/0" in outcome.cause and "/km: long cannot be read as int" in outcome.cause
    assert "Start the job's tasks anew" in outcome.cause
