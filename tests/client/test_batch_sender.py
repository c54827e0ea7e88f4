"""A batch on its way to a coordinator, over the topics alone (protocol, section 10.9)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import penstock
from penstock.client import batch_sender
from penstock.client.batch_sender import QueryBatch, send_batch
from penstock.schemas.acks import FeedPart
from penstock.schemas.errors import ConfigurationError, EventTooLarge, JobError, JobRefused
from penstock.schemas.frames import pack
from penstock.schemas.settings import CheckpointSettings
from penstock.testing.faults import Faults
from penstock.testing.local import LocalJob
from penstock.transport.memory import MemoryBroker, MemoryTransport

from ..coordinator.jobs import PATIENCE_S, wait_until


class Shared:
    """What the instances of a coordinator did."""

    def __init__(self) -> None:
        self.handled: list[tuple[str, int]] = []
        """Calls, those that a rollback has undone included."""
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()


class Totals(penstock.OperatorCoordinator):
    """Counts what it gets. Refuses an event that says so."""

    def __init__(self, shared: Shared) -> None:
        self.shared, self.total = shared, 0

    def handle_batch(self, query: str, batch_id: int, events: Sequence[Any]) -> None:
        self.shared.entered.set()
        assert self.shared.go_on.wait(PATIENCE_S)
        if b"bad" in events:
            raise penstock.BatchRefused("no such carrier")
        self.shared.handled.append((query, batch_id))
        for event in events:
            self.total += 1 // (event != b"boom")

    def handle_request(self, request: Any) -> Any:
        return b"%d" % self.total

    def checkpoint_coordinator(self, checkpoint_id: int, result: penstock.CheckpointResult) -> None:
        result.complete(b"%d" % self.total)

    def reset_to_checkpoint(self, checkpoint_id: int, state: bytes | None) -> None:
        self.total = int(state or 0)


class Idle(penstock.Subtask):
    def handle_operator_event(self, event: Any) -> None:
        pass


@pytest.fixture
def shared() -> Shared:
    return Shared()


@pytest.fixture
def job(shared: Shared) -> penstock.Job:
    job = penstock.Job("fed", checkpoint=CheckpointSettings(interval=60.0))
    job.operator("op", coordinator=lambda: Totals(shared), subtask=Idle, parallelism=1, codec="bytes")
    return job


@pytest.fixture
def running(job: penstock.Job) -> Iterator[LocalJob]:
    with LocalJob(job, faults=Faults(0)) as running:
        running.wait_for(lambda status: status.state == "running", PATIENCE_S)
        yield running


def total(running: LocalJob) -> int:
    return int(running.client.request("op", b"", PATIENCE_S).payload)


def test_a_batch_is_in_a_completed_checkpoint_when_it_is_answered(running: LocalJob) -> None:
    first = running.send_batch("op", [b"a", b"b"])
    second = running.send_batch("op", [b"c"], 1)
    assert 0 < first < second <= running.client.history().last_id
    assert total(running) == 3


def test_a_batch_that_is_sent_again_has_its_effect_once(running: LocalJob, shared: Shared) -> None:
    running.send_batch("op", [b"a"])
    assert running.send_batch("op", [b"a"]) == -1
    assert (shared.handled, total(running)) == ([("query", 0)], 1)


def test_a_batch_of_many_records_comes_whole(running: LocalJob) -> None:
    running.send_batch("op", [b"x" * 1_000] * 3_000)
    assert total(running) == 3_000


def test_a_batch_that_the_coordinator_refuses_changes_nothing(running: LocalJob) -> None:
    with pytest.raises(JobError, match=r"refused batch 0 of query query: .*no such carrier"):
        running.send_batch("op", [b"good", b"bad"])
    running.send_batch("op", [b"good"])
    assert (total(running), running.client.history().epoch) == (1, 1)


def test_half_a_batch_that_the_coordinator_raises_with_is_undone(running: LocalJob) -> None:
    running.send_batch("op", [b"first"], 0)
    with pytest.raises(JobError, match=r"refused batch 1 .*ZeroDivisionError.*goes back to its last checkpoint"):
        running.send_batch("op", [b"half", b"boom"], 1)
    running.send_batch("op", [b"mended"], 1)
    assert total(running) == 2
    assert running.client.history().epoch > 1


def test_frames_are_cut_to_what_the_broker_takes(job: penstock.Job) -> None:
    transport = MemoryTransport(MemoryBroker())
    transport.max_record_bytes = 32 * 1024
    with LocalJob(job, transport) as running:
        running.send_batch("op", [b"x" * 75] * 2_000)
        assert total(running) == 2_000


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"events": []}, "has no events"),
        ({"batch_id": -1}, "ids of batches are 0 and more"),
        ({"query": "q" * 65}, "has 1 to 64 characters"),
        ({"query": ""}, "has 1 to 64 characters"),
        ({"operator": "other"}, "job fed has no operator 'other'; it has: op"),
    ],
)
def test_what_no_coordinator_reads_is_refused_before_it_is_sent(
    running: LocalJob, given: dict[str, Any], said: str
) -> None:
    arguments = {"operator": "op", "events": [b"a"]} | given
    with pytest.raises(ConfigurationError, match=said):
        running.send_batch(**arguments)


def test_an_operator_that_does_not_take_batches_says_so(shared: Shared) -> None:
    class Silent(penstock.OperatorCoordinator):
        pass

    job = penstock.Job("silent", checkpoint=CheckpointSettings(interval=60.0))
    job.operator("op", coordinator=Silent, subtask=Idle, parallelism=1, codec="bytes")
    with LocalJob(job) as running, pytest.raises(JobError, match="Silent does not implement handle_batch"):
        running.send_batch("op", [b"a"])


def test_a_coordinator_that_dies_with_the_batch_in_its_hands_takes_it_again(
    running: LocalJob, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its checkpoint: the successor has no effect of it, and gets the batch once more."""
    monkeypatch.setattr(batch_sender, "ANSWER_S", 0.5)
    shared.go_on.clear()
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(running.send_batch, "op", [b"a", b"b"], timeout=PATIENCE_S)
        assert shared.entered.wait(PATIENCE_S)
        running.crash_coordinator()
        shared.go_on.set()
        wait_until(lambda: shared.handled, "the first coordinator's call")
        running.replace_coordinator()
        assert sent.result(PATIENCE_S) > 0
    assert shared.handled == [("query", 0)] * 2
    assert total(running) == 2


def test_a_lost_part_is_sent_again_with_the_others(
    running: LocalJob, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_sender, "ANSWER_S", 0.5)
    running.faults.drop(FeedPart, where=lambda part: part.part == 1)
    running.send_batch("op", [b"x" * 1_000] * 200)
    assert (shared.handled, total(running)) == ([("query", 0)], 200)


def test_a_job_that_does_not_exist_is_named() -> None:
    transport = MemoryTransport(MemoryBroker())
    client = penstock.client.job_client.JobClient(transport, "nobody")
    with pytest.raises(JobRefused, match="there is no job 'nobody'"):
        send_batch(client, transport, QueryBatch("op", "q", 0, [pack([b"a"])]), 1.0)


def test_a_job_that_has_ended_is_not_waited_for(running: LocalJob) -> None:
    assert running.client.stop(timeout_s=PATIENCE_S).accepted
    running.wait(PATIENCE_S)
    wait_until(running.client.ended, "the last status")
    with pytest.raises(JobError, match="job fed is stopped, so no coordinator takes batch 0 of query query: start"):
        running.send_batch("op", [b"a"])


def test_a_coordinator_that_does_not_answer_is_named_with_the_way_out(running: LocalJob) -> None:
    running.crash_coordinator()
    with pytest.raises(JobError, match=r"job fed did not answer batch 0 .* within 0.3 s.*Start the query again"):
        running.send_batch("op", [b"a"], timeout=0.3)


def test_an_event_that_no_record_holds_is_named_before_anything_is_written(running: LocalJob) -> None:
    with pytest.raises(EventTooLarge, match="batch 0 of query query has an event of 2000004 bytes"):
        running.send_batch("op", [b"x" * 2_000_000])
