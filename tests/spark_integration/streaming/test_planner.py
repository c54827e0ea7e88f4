"""The planner's client: asks until it is answered, and says what is wrong where nobody answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.schemas.codec import encode
from penstock.schemas.errors import JobError, JobRefused
from penstock.schemas.status import BatchOutcome, BatchPlanned, PendingStatus
from penstock.schemas.topics import TopicNames
from penstock.spark_integration.streaming.planner import Planner
from penstock.transport.memory import MemoryBroker, MemoryTransport
from penstock.transport.ports import Partition

from .fake_coordinator import OPERATOR, FakeCoordinator, topics_of

JOB = "flights"
BATCH = [[b"a", b"b"], []]


class Counted(MemoryTransport):
    """Knows what of it has not been closed."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.open = 1

    def _counted(self, made: Any) -> Any:
        self.open += 1
        close = made.close

        def closed(*arguments: Any) -> None:
            self.open -= 1
            close(*arguments)

        made.close = closed
        return made

    def reader(self, positions: Any) -> Any:
        return self._counted(super().reader(positions))

    def writer(self) -> Any:
        return self._counted(super().writer())

    def close(self) -> None:
        self.open -= 1


@pytest.fixture
def transport() -> MemoryTransport:
    return MemoryTransport(MemoryBroker())


@pytest.fixture
def fake(transport: MemoryTransport) -> Iterator[FakeCoordinator]:
    with FakeCoordinator(transport, topics_of(transport, JOB, 2), 2) as fake:
        yield fake


def planner_of(transport: MemoryTransport, **settings: Any) -> Planner:
    given = {"wait_s": 0.0, "timeout_s": 20.0, "resend_s": 0.1, **settings}
    return Planner(lambda: transport, TopicNames("penstock", JOB), OPERATOR, **given)


def test_what_has_been_planned_is_returned(fake: FakeCoordinator, transport: MemoryTransport) -> None:
    fake.offer(BATCH)
    planner = planner_of(transport)
    first = planner.plan(-1)
    assert (first.outcome, first.checkpoint_id, first.partitions) == (BatchOutcome.PLANNED, 1, fake.partitions[1])
    second = planner.plan(1)
    assert (second.outcome, second.checkpoint_id, second.partitions) == (BatchOutcome.NOTHING, 1, ())
    assert fake.completed == [1]
    assert [wanted.request for wanted in fake.requests] == [0, 1]


def test_a_planner_is_one_run_and_its_requests_name_where_the_run_began(
    fake: FakeCoordinator, transport: MemoryTransport
) -> None:
    planner, other = planner_of(transport), planner_of(transport)
    planner.plan(-1)
    planner.plan(-1)
    other.plan(-1)
    assert len(fake.runs) == 2
    first, second, third = fake.requests
    assert [wanted.run_offset for wanted in fake.requests] == [fake.runs[wanted.run] for wanted in fake.requests]
    assert first.run == second.run != third.run
    assert first.run_offset < third.run_offset


def test_a_planner_that_is_not_asked_makes_nothing() -> None:
    def forbidden() -> MemoryTransport:
        raise AssertionError("nobody asked")

    planner = Planner(forbidden, TopicNames("penstock", JOB), OPERATOR)
    planner.committed(3)
    planner.close()


def test_an_unanswered_request_is_written_again_under_the_same_number(
    fake: FakeCoordinator, transport: MemoryTransport
) -> None:
    fake.mute = True
    answers: list[BatchPlanned] = []
    planner = planner_of(transport)
    thread = threading.Thread(target=lambda: answers.append(planner.plan(-1)))
    thread.start()
    fake.await_(lambda: len(fake.wanted) >= 3, "three requests")
    with fake.changed:
        fake.mute = False
    thread.join(20)
    assert answers[0].outcome is BatchOutcome.NOTHING
    assert {(wanted.run, wanted.request) for wanted in fake.wanted} == {(fake.wanted[0].run, 0)}


def test_what_the_coordinator_is_given_time_for_is_not_asked_again_meanwhile(
    fake: FakeCoordinator, transport: MemoryTransport
) -> None:
    fake.mute = True
    planner = planner_of(transport, wait_s=60.0, timeout_s=1.0)
    with pytest.raises(JobError):
        planner.plan(-1)
    fake.await_(lambda: fake.wanted, "the request")
    assert [wanted.wait_ms for wanted in fake.wanted] == [60_000]


def test_answers_to_others_are_not_taken(fake: FakeCoordinator, transport: MemoryTransport) -> None:
    fake.mute = True
    answers: list[BatchPlanned] = []
    planner = planner_of(transport)
    thread = threading.Thread(target=lambda: answers.append(planner.plan(-1)))
    thread.start()
    fake.await_(lambda: fake.wanted, "a request")
    status, mine = Partition(fake.topics.status, 0), fake.wanted[0].run
    for run, request, cause in (("another", 0, "other run"), (mine, 1, "other request"), (mine, 0, "it")):
        fake.append(status, BatchPlanned(run, request, BatchOutcome.NOTHING, -1, 1, (), cause))
        fake.append(status, b"garbage")
    thread.join(20)
    assert [answer.cause for answer in answers] == ["it"]


def test_only_a_query_without_a_checkpoint_says_that_it_is_fresh(
    fake: FakeCoordinator, transport: MemoryTransport
) -> None:
    fake.offer(BATCH)
    planner = planner_of(transport, fresh=True)
    planner.plan(-1)
    planner.plan(1)
    assert [(wanted.checkpoint_id, wanted.fresh) for wanted in fake.requests] == [(-1, True), (1, False)]


def test_a_refusal_carries_the_coordinators_reason(fake: FakeCoordinator, transport: MemoryTransport) -> None:
    fake.refuse = "checkpoint 3 is no more; name a newer one"
    with pytest.raises(JobRefused, match="job flights refuses the query's next batch: checkpoint 3 is no more"):
        planner_of(transport).plan(3)


def test_a_batch_that_nobody_plans_behind_can_be_said_to_be_committed(
    fake: FakeCoordinator, transport: MemoryTransport
) -> None:
    fake.offer(BATCH)
    planner = planner_of(transport)
    planner.plan(-1)
    planner.committed(1)
    fake.await_(lambda: fake.told == [1], "BatchCommitted(1)")
    assert fake.completed == [1]


def test_a_job_that_ends_ends_its_query_at_once(fake: FakeCoordinator, transport: MemoryTransport) -> None:
    fake.mute = True
    raised: list[BaseException] = []
    planner = planner_of(transport, timeout_s=60.0)

    def plan() -> None:
        try:
            planner.plan(-1)
        except JobError as error:
            raised.append(error)

    thread = threading.Thread(target=plan)
    thread.start()
    fake.await_(lambda: fake.wanted, "a request")
    fake.say("failed", "the budget is used up")
    thread.join(30)
    assert "job flights has ended (failed: the budget is used up)" in str(raised[0])
    assert "Start its coordinator again" in str(raised[0])


def test_an_end_that_a_new_coordinator_follows_is_not_the_end(
    fake: FakeCoordinator, transport: MemoryTransport
) -> None:
    planner = planner_of(transport)
    planner.plan(-1)
    fake.say("stopped", "by request")
    fake.say("running")
    fake.mute = True
    answers: list[BatchPlanned] = []
    thread = threading.Thread(target=lambda: answers.append(planner.plan(-1)))
    thread.start()
    fake.await_(lambda: len(fake.wanted) >= 4, "the request, again and again")
    with fake.changed:
        fake.mute = False
    thread.join(20)
    assert len(answers) == 1


def test_a_job_that_does_not_exist_is_named_with_those_that_do(transport: MemoryTransport) -> None:
    topics_of(transport, "rules", 1)
    with pytest.raises(JobRefused, match=r"no job 'flights' .*there is: rules\).*within 0.3 s.*option"):
        planner_of(transport, timeout_s=0.3).plan(-1)


def test_an_operator_that_does_not_exist_is_named_with_those_that_do(transport: MemoryTransport) -> None:
    topics_of(transport, JOB, 1)
    planner = Planner(lambda: transport, TopicNames("penstock", JOB), "writer", timeout_s=0.3)
    with pytest.raises(JobRefused, match=r"job 'flights' has no operator 'writer'.*\(it has: reader\)"):
        planner.plan(-1)


def test_a_coordinator_that_starts_after_the_query_is_waited_for(transport: MemoryTransport) -> None:
    answers: list[BatchPlanned] = []
    planner = planner_of(transport)
    thread = threading.Thread(target=lambda: answers.append(planner.plan(-1)))
    thread.start()
    with FakeCoordinator(transport, topics_of(transport, JOB, 2), 2):
        thread.join(20)
    assert answers[0].outcome is BatchOutcome.NOTHING


def test_without_any_coordinator_the_error_says_how_to_start_one(transport: MemoryTransport) -> None:
    topics_of(transport, JOB, 1)
    with pytest.raises(
        JobError, match=r"within 0.3 s \(option 'coordinatorTimeout'\), and none has ever run.*Start it"
    ):
        planner_of(transport, timeout_s=0.3).plan(-1)


def test_a_coordinator_that_is_gone_is_told_from_one_that_is_slow(
    fake: FakeCoordinator, transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)  # how long the machine takes is part of no age
    fake.mute = True
    fake.say("running", age_s=60.0)
    with pytest.raises(JobError, match=r"it does not run\. 60 s ago it last said 'running'"):
        planner_of(transport, timeout_s=0.3).plan(-1)
    fake.say("stopped", "by request")
    with pytest.raises(JobError, match=r"it does not run\. . s ago it last said 'stopped' \(by request\)"):
        planner_of(transport, timeout_s=0.3).plan(-1)
    fake.say("running", pending=(PendingStatus(4, False, 2.0, "coordinator of reader: its cut, for 2 s"),))
    with pytest.raises(JobError, match=r"runs .*did not answer.*checkpoint 4 waits for coordinator of reader: its cut"):
        planner_of(transport, timeout_s=0.3).plan(-1)


def test_the_status_topic_may_be_truncated_under_the_planner(fake: FakeCoordinator, transport: MemoryTransport) -> None:
    planner = planner_of(transport)
    planner.plan(-1)
    status = Partition(fake.topics.status, 0)
    for _ in range(5):
        fake.append(status, encode(BatchPlanned("another", 0, BatchOutcome.NOTHING, -1, 1, (), "")))
    transport.truncate({status: transport.offsets([status])[status].end})
    assert planner.plan(-1).outcome is BatchOutcome.NOTHING


def test_a_planner_of_a_purged_job_is_told_so_at_once(fake: FakeCoordinator, transport: MemoryTransport) -> None:
    planner = planner_of(transport)
    planner.plan(-1)
    fake.mute = True
    transport.delete_topics([fake.topics.status, fake.topics.checkpoints])
    topics_of(transport, JOB, 2)
    with pytest.raises(JobRefused, match="has been purged since the query began"):
        planner.plan(-1)


def test_a_planner_goes_on_where_the_status_topic_alone_is_recreated(
    fake: FakeCoordinator, transport: MemoryTransport
) -> None:
    planner = planner_of(transport)
    planner.plan(-1)
    transport.delete_topics([fake.topics.status])
    topics_of(transport, JOB, 2)
    assert planner.plan(-1).outcome is BatchOutcome.NOTHING


def test_a_closed_planner_leaves_no_handle_open(fake: FakeCoordinator) -> None:
    assert isinstance(fake.transport, MemoryTransport)
    counted = Counted(fake.transport.broker)
    planner = planner_of(counted)
    planner.plan(-1)
    planner.committed(1)
    assert counted.open == 3
    planner.close()
    planner.close()
    assert counted.open == 0


def test_a_planner_that_cannot_begin_leaves_no_handle_open(transport: MemoryTransport) -> None:
    counted = Counted(transport.broker)
    with pytest.raises(JobRefused):
        planner_of(counted, timeout_s=0.1).plan(-1)
    assert counted.open == 0
