"""Events to an operator in the middle of a job, exactly once, while its coordinator and its subtask fail.

``recipient.py`` says what the job does and what hits it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import CheckpointResult, CheckpointSettings, EventFuture, Gateway, Job, OperatorCoordinator, Subtask
from penstock.broker import EmbeddedBroker
from penstock.client.job_client import JobClient
from penstock.coordinator.options import CoordinatorOptions
from penstock.schemas.events import EventFrame
from penstock.schemas.ids import SubtaskId
from penstock.schemas.settings import Restore
from penstock.schemas.status import JobStatus
from penstock.spark_integration import local_session, run
from penstock.testing import Faults, LocalJob
from penstock.transport.kafka import KafkaTransport
from penstock.transport.memory import MemoryBroker, MemoryTransport
from penstock.transport.ports import Transport
from tests.rounds import rounds

from .recipient import EVENTS, Idling, Plan, plan_of, recipient_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEADLINE_S = 360.0
CASES = [("replay", ""), ("replay", "raise"), ("reset", "raise")]
"""The policy, and how the subtask fails. The coordinator always does."""
NAMES = ["coordinator fails", "subtask fails, replay", "subtask fails, reset"]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = local_session(3)
    yield session
    session.stop()


def state_of(client: JobClient, operator: str) -> Any:
    """In the last completed checkpoint."""
    last = client.history().last
    assert last is not None
    snapshot = last.subtasks[SubtaskId(operator, 0)]
    assert snapshot.finished and snapshot.state is not None and snapshot.state.inline is not None
    return json.loads(snapshot.state.inline)


Told = Callable[[str, object], None]
"""pytest's ``record_property``: what a soak sums up."""


def check_faults(plan: Plan, status: JobStatus | None, told: Told) -> None:
    """Each has happened, at its time."""
    failure = plan.read("coordinator failed")
    assert len(failure["completed"]) == 1, "only the first checkpoint was complete"
    assert failure["second"] > failure["completed"][0]
    assert plan.read("first cut") < EVENTS / 6
    assert plan.marked("late"), "no snapshot came behind an event that was sent behind its cut"
    assert status is not None and status.failovers_global == 1, status
    assert plan.marked("subtask failed") == bool(plan.subtask_fails)
    assert status.failovers_region == bool(plan.subtask_fails), status
    told("faults", 1 + bool(plan.subtask_fails))
    told("deaths", int(plan.subtask_fails == "kill"))
    told("checkpoints", status.checkpoints_completed)


@contextmanager
def told_on_failure(plan: Plan, describe: Callable[[], object]) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(f"{plan}\nstruck: {sorted(path.name for path in plan.folder.iterdir())}\n{describe()}")
        raise


def check_lists(client: JobClient) -> None:
    assert state_of(client, "recipient") == list(range(EVENTS))
    assert state_of(client, "sink") == list(range(EVENTS)), "what it passed on"


def run_locally(
    plan: Plan, name: str, unaligned: bool, transport: Transport | None, interval_s: float, told: Told
) -> None:
    job = recipient_job(name, plan, unaligned=unaligned, interval_s=interval_s)
    with LocalJob(job, transport) as running, told_on_failure(plan, running.describe):
        assert running.wait(DEADLINE_S).ending == "finished"
        running.check()
        check_faults(plan, running.service.status() if running.service else None, told)
        check_lists(running.client)


@pytest.mark.soak
@pytest.mark.parametrize("unaligned", [False, True], ids=["aligned", "unaligned"])
@pytest.mark.parametrize(("policy", "subtask_fails"), CASES, ids=NAMES)
@pytest.mark.parametrize("round_", rounds())
def test_the_list_is_exact_whoever_fails(
    tmp_path: Path, policy: str, subtask_fails: str, unaligned: bool, round_: int, record_property: Told
) -> None:
    """Section 1, G2 and G3."""
    plan = plan_of(round_, tmp_path, policy, subtask_fails, pace_s=0.003)
    run_locally(plan, "recipient", unaligned, None, 0.03, record_property)


@pytest.mark.kafka
@pytest.mark.soak
@pytest.mark.parametrize("unaligned", [False, True], ids=["aligned", "unaligned"])
@pytest.mark.parametrize(("policy", "subtask_fails"), CASES, ids=NAMES)
@pytest.mark.parametrize("round_", rounds())
def test_the_same_over_kafka(
    kafka_broker: EmbeddedBroker, tmp_path: Path, policy: str, subtask_fails: str, unaligned: bool, round_: int,
    record_property: Told,
) -> None:  # fmt: skip
    plan = plan_of(round_, tmp_path, policy, subtask_fails, pace_s=0.01)
    name = f"recipient-{policy}-{subtask_fails or 'no'}-{int(unaligned)}-{round_}"
    run_locally(plan, name, unaligned, KafkaTransport(kafka_broker.bootstrap), 0.1, record_property)


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize(
    ("unaligned", "policy", "subtask_fails"), [(True, "replay", "kill"), (False, "reset", "raise")]
)
@pytest.mark.parametrize("round_", rounds())
def test_the_same_on_spark(
    spark: SparkSession, kafka_broker: EmbeddedBroker, tmp_path: Path,
    unaligned: bool, policy: str, subtask_fails: str, round_: int, record_property: Told,
) -> None:  # fmt: skip
    plan = plan_of(round_, tmp_path, policy, subtask_fails, pace_s=0.01)
    name = f"recipient-on-spark-{policy}-{subtask_fails}-{round_}"
    handle = run(spark, recipient_job(name, plan, unaligned=unaligned, interval_s=0.1), broker=kafka_broker.bootstrap)
    with told_on_failure(plan, handle.status):
        assert handle.wait(DEADLINE_S).ending == "finished"
        check_faults(plan, handle.status(), record_property)
    with closing(KafkaTransport(kafka_broker.bootstrap)) as transport:
        client = JobClient(transport, name)
        check_lists(client)
        client.purge()


class Cutting(OperatorCoordinator):
    """Sends 0 to 4, waits until they have been handled, sends 5 to 9 into a partition that lags, and cuts behind."""

    def __init__(self, faults: Faults) -> None:
        self.faults, self.sent = faults, 0
        self.gateway: Gateway | None = None
        self.owed: CheckpointResult | None = None
        self.futures: list[EventFuture] = []
        self.cut = -1
        self.lag: Any = None

    def start(self) -> None:
        self.context.call_every(0.005, self._step)

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Gateway) -> None:
        self.gateway = gateway

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        self.sent = state

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        if self.sent:
            result.complete(self.sent)
            return
        self.cut, self.owed = checkpoint_id, result
        self._send_five()

    def _send_five(self) -> None:
        assert self.gateway is not None
        self.futures += [self.gateway.send_event(number) for number in range(self.sent, self.sent + 5)]
        self.sent += 5

    def _step(self) -> None:
        if self.owed is None or not all(future.done() for future in self.futures):
            return
        assert all(future.exception() is None for future in self.futures)
        self.lag = self.faults.lag(EventFrame, process="recipient/0")
        self._send_five()
        self.owed.complete(self.sent)
        self.owed = None


class Listing(Subtask):
    """Says when it has taken a snapshot, and when it has ten numbers."""

    def __init__(self, snapshot: threading.Event, whole: threading.Event) -> None:
        self.snapshot, self.whole = snapshot, whole
        self.got: list[int] = []

    def restore_state(self, checkpoint_id: int, state: list[int]) -> None:
        self.got = state

    def handle_operator_event(self, event: int) -> None:
        self.got.append(event)
        if len(self.got) >= 10:
            self.whole.set()

    def snapshot_state(self, checkpoint_id: int) -> list[int]:
        self.snapshot.set()
        return self.got


def test_a_barrier_that_overtakes_accepted_events_leaves_them_in_the_range_of_its_checkpoint(tmp_path: Path) -> None:
    """Sections 1 (G3) and 9: the source's barrier is there before five events that were sent before the cut."""
    plan = plan_of(0, tmp_path, "replay", "", 0.0)
    broker, made = MemoryBroker(), list[Cutting]()

    def job(faults: Faults, snapshot: threading.Event, whole: threading.Event) -> Job:
        def cutting() -> Cutting:
            made.append(Cutting(faults))
            return made[-1]

        job = Job("overtaken", checkpoint=CheckpointSettings(interval=0.1, unaligned=True, retained=1000))
        source = job.operator("source", subtask=partial(Idling, plan), parallelism=1)
        job.operator(
            "recipient", subtask=lambda: Listing(snapshot, whole), coordinator=cutting, parallelism=1,
            inputs=[source.forward()], codec="json", state_codec="json",
        )  # fmt: skip
        return job

    faults, snapshot, whole = Faults(), threading.Event(), threading.Event()
    with LocalJob(job(faults, snapshot, whole), MemoryTransport(broker), faults=faults) as running:
        assert snapshot.wait(DEADLINE_S)
        first = made[0].cut
        assert not whole.is_set()
        made[0].lag.wait_until_caught(DEADLINE_S)
        made[0].lag.release()
        running.wait_for(lambda status: status.checkpoints_completed >= 1, DEADLINE_S)
        running.check()
        mine = running.client.history().checkpoints[first].subtasks[SubtaskId("recipient", 0)]
        assert mine.state is not None and mine.state.inline is not None
        assert json.loads(mine.state.inline) == list(range(5)), "those that had settled before the cut"
        assert mine.event_ranges, "the others"
    made.clear()
    snapshot, whole = threading.Event(), threading.Event()
    options = CoordinatorOptions(restore=Restore.CHECKPOINT, restore_checkpoint=first)
    with LocalJob(job(Faults(), snapshot, whole), MemoryTransport(broker), options) as running:
        assert whole.wait(DEADLINE_S), running.describe()
        assert not made[0].futures, "nothing was sent again"
        plan.mark("end")
        assert running.wait(DEADLINE_S).ending == "finished"
        assert state_of(running.client, "recipient") == list(range(10))
