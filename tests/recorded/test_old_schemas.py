"""Events and states written under an earlier job file are read under the schemas that the job recorded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.cli.events import decoding, json_of
from penstock.recorded.exported import checkpoint_line, record_line, schema_line
from penstock.recorded.job import RecordedJob
from penstock.recorded.reading import LogReading, Recorded
from penstock.schemas.errors import ConfigurationError
from penstock.schemas.events import EventFrame
from penstock.schemas.ids import SubtaskId
from penstock.transport import MemoryBroker, MemoryTransport
from tests.coordinator.jobs import Coordinator, Plan, run, wait_until
from tests.simulation.configs import CONFIGS
from tests.simulation.world import World

from .conftest import Keeping


def first_version() -> type:
    @dataclass
    class Reading:
        value: int

    return Reading


def second_version() -> type:
    @dataclass
    class Reading:
        value: int
        unit: str = "C"

    return Reading


@dataclass
class Total:
    values: list[int]


class Summing(penstock.Subtask):
    """Its state is what it has handled."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.values = plan, list[int]()
        self.units = list[str]()

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.values = state.values

    def handle_operator_event(self, event: Any) -> None:
        self.values.append(event.value)
        self.units.append(getattr(event, "unit", "none"))
        with self.plan.changed:
            self.plan.handled.append((0, b"%d" % event.value))

    def snapshot_state(self, checkpoint_id: int) -> Total:
        return Total(self.values)


def complete_without_a_state(coordinator: Any, checkpoint_id: int, result: Any) -> None:
    result.complete(None)


def job_of(event: type, plan: Plan, folder: Path, name: str = "sums") -> penstock.Job:
    settings = penstock.CheckpointSettings(interval=None, inline_state_max=0)
    job = penstock.Job(name, checkpoint=settings, heartbeat_interval=0.1, state_storage=f"file://{folder}")
    job.operator(
        "op", coordinator=lambda: Coordinator(plan), subtask=lambda: Summing(plan), parallelism=1, codec=event,
        state_codec=Total,
    )  # fmt: skip
    return job


@pytest.fixture
def ran(tmp_path: Path) -> tuple[MemoryTransport, int]:
    """The first version was sent 1, then a savepoint was taken, then it was sent 2 and died."""
    transport, plan, event = Keeping(MemoryBroker()), Plan(), first_version()
    plan.does["checkpoint_coordinator"] = complete_without_a_state
    with run(job_of(event, plan, tmp_path), transport) as running:
        plan.wait_gateways(0)
        plan.gateways[0].send_event(event(1))
        wait_until(lambda: (0, b"1") in plan.handled, "1 to be handled")
        savepoint = running.client.savepoint(timeout_s=20).checkpoint_id
        plan.gateways[0].send_event(event(2))
        wait_until(lambda: (0, b"2") in plan.handled, "2 to be handled")
        running.crash_coordinator()
    return transport, savepoint


def test_a_newer_job_file_replays_what_an_older_one_was_sent(ran: tuple[MemoryTransport, int], tmp_path: Path) -> None:
    transport, savepoint = ran
    recorded, path = RecordedJob(transport, "sums"), tmp_path / "sums.jsonl"
    found = [
        one for one in LogReading(transport, {recorded.events(SubtaskId("op", 0)): 0}) if isinstance(one, Recorded)
    ]
    lines = [schema_line("sums", used) for used in recorded.schemas("op")]
    lines += [checkpoint_line("sums", recorded.checkpoint(savepoint), "op"), *map(record_line, found)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for source in (transport, path):
        for checkpoint, handled in ((None, [1, 2]), (savepoint, [2])):
            job = job_of(second_version(), Plan(), tmp_path)
            replayed = penstock.replay(job, "op", 0, source, checkpoint=checkpoint)
            assert isinstance(replayed.subtask, Summing)
            assert replayed.subtask.values == [1, 2]
            assert replayed.subtask.units == ["C"] * len(handled)


def test_a_job_of_another_name_finds_the_stored_states_of_the_recorded_one(
    ran: tuple[MemoryTransport, int], tmp_path: Path
) -> None:
    transport, savepoint = ran
    stored = RecordedJob(transport, "sums").checkpoint(savepoint).subtasks[SubtaskId("op", 0)].state
    assert stored is not None and stored.location is not None
    job = job_of(first_version(), Plan(), tmp_path, "desk")
    replayed = penstock.replay(job, "op", 0, transport, checkpoint=savepoint, recorded_as="sums")
    assert isinstance(replayed.subtask, Summing)
    assert replayed.subtask.values == [1, 2]


def test_a_newer_job_file_shows_older_events(ran: tuple[MemoryTransport, int], tmp_path: Path) -> None:
    transport, _ = ran
    codec = job_of(second_version(), Plan(), tmp_path).operators["op"].codec
    recorded = RecordedJob(transport, "sums")
    decode = decoding(codec, recorded, "op")
    reading = LogReading(transport, {recorded.events(SubtaskId("op", 0)): 0})
    frames = [one for one in reading if isinstance(one, Recorded) and isinstance(one.record, EventFrame)]
    shown = [event for frame in frames for event in json_of(frame, decode)["events"]]
    assert [event["value"] for event in shown] == [1, 2]


def test_from_a_querys_checkpoint_no_subtask_is_restored() -> None:
    """Its ranges are the batch itself, which would look like events out of sequence."""
    world = World(CONFIGS["query-1"], 4)
    world.run_all()
    transport, settings = MemoryTransport(world.broker), world.settings
    recorded = RecordedJob(transport, settings.name, settings.prefix)
    checkpoint = max(recorded.history.checkpoints)
    job = penstock.Job(settings.name, prefix=settings.prefix)
    job.operator("alpha", subtask=lambda: Summing(Plan()), parallelism=1)
    with pytest.raises(ConfigurationError, match=r"belongs to a Structured Streaming query.*--from-checkpoint"):
        penstock.replay(job, "alpha", 0, transport, checkpoint=checkpoint)
