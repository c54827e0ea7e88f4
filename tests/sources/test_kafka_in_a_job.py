"""A Kafka source in a job, with a keyed operator behind it: each record counts once, whatever dies and when."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import penstock
from penstock.sources import kafka_coordinator, kafka_subtask
from penstock.testing import Faults, LocalJob
from penstock.testing.fixtures import LocalJobs
from penstock.testing.records import (
    CheckpointAck,
    CheckpointCommit,
    CompletedNotice,
    EventFrame,
)
from penstock.transport.memory import MemoryBroker, MemoryTransport
from tests.rounds import rounds

from .kafka_jobs import PATIENCE_S, counted, label, reading_job, source, states, value, wait_counted
from .memory_kafka import CONTROL, MemoryKafka


def brokers(*sizes: int, topic: str = "flights", first: int = 0) -> MemoryKafka:
    """A topic of so many partitions with so many records in each, numbered."""
    kafka = MemoryKafka(**{topic: len(sizes)})
    for partition, size in enumerate(sizes):
        fill(kafka, topic, partition, range(first, first + size))
        first += size
    return kafka


def fill(kafka: MemoryKafka, topic: str, partition: int, numbers: range) -> None:
    kafka.append(topic, partition, *(value(number, topic) for number in numbers))


def records(*numbers: range, topic: str = "flights") -> Counter[str]:
    return Counter(label({"number": number, "what": topic}) for each in numbers for number in each)


def job_of(kafka: MemoryKafka, parallelism: int = 2, topics: Any = "flights", **settings: Any) -> penstock.Job:
    return reading_job(kafka.operator(source(topics, **settings), decode=json.loads), parallelism)


# ---- where it begins and ends


def test_a_bounded_source_reads_to_the_ends_of_the_start_and_finishes(local_job: LocalJobs) -> None:
    kafka = brokers(50, 0, 70)
    kafka.append("flights", 1, CONTROL)
    looked = kafka.halt_at("begin")
    running = local_job(job_of(kafka, until="latest"))
    looked.wait()
    for partition in range(3):
        fill(kafka, "flights", partition, range(1000, 1010))
    looked.released.set()
    assert running.wait(PATIENCE_S).ending.value == "finished"
    assert counted(running) == records(range(120))


def test_a_source_that_starts_at_latest_reads_what_comes_then(local_job: LocalJobs) -> None:
    kafka = brokers(50, 50)
    begun = kafka.halt_at("begin")
    running = local_job(job_of(kafka, start="latest"))
    begun.wait()
    begun.released.set()
    fill(kafka, "flights", 1, range(200, 230))
    wait_counted(running, records(range(200, 230)))


def test_latest_stays_what_it_was_when_the_job_rolls_back_to_its_beginning(
    local_job: LocalJobs, penstock_faults: Faults
) -> None:
    kafka = brokers(50, 50)
    offsets = kafka.halt_at("offsets")
    refused = penstock_faults.refuse(EventFrame, operator="in")  # a rollback, and nothing has completed
    running = local_job(job_of(kafka, start="latest"))
    offsets.wait()
    again = kafka.halt_at("look")
    offsets.released.set()
    refused.wait_until_caught(PATIENCE_S)
    fill(kafka, "flights", 0, range(200, 230))
    again.released.set()
    wait_counted(running, records(range(200, 230)))
    assert running.wait_for(lambda _: True, 1).failovers_global == 1


def test_a_source_that_starts_at_a_time_reads_from_the_first_record_of_that_time(local_job: LocalJobs) -> None:
    kafka = brokers(50, 10)  # a record a second
    start = datetime.fromtimestamp(30, UTC)
    fill(kafka, "flights", 1, range(300, 340))
    running = local_job(job_of(kafka, start=start, until=datetime.fromtimestamp(40, UTC)))
    running.wait(PATIENCE_S)
    assert counted(running) == records(range(30, 40), range(320, 330))


def test_topics_and_partitions_that_are_found_while_running_are_read_from_their_first_record(
    local_job: LocalJobs,
) -> None:
    kafka = brokers(20)
    fill_other = brokers(5, topic="trains")
    kafka.topics |= fill_other.topics
    running = local_job(job_of(kafka, topics="flights.*", start="latest"))
    running.wait_for(lambda s: s.checkpoints_completed >= 1 and any(x["partitions"] for x in states(running, "in")), 30)
    with kafka.lock:
        kafka.grow("flights", 3)
        fill(kafka, "flights", 2, range(100, 110))
        kafka.create("flights.eu", 2)
        fill(kafka, "flights.eu", 1, range(7))
    wait_counted(running, records(range(100, 110)) + records(range(7), topic="flights.eu"))


def test_partitions_are_spread_evenly(local_job: LocalJobs) -> None:
    kafka = brokers(*[3] * 7)
    running = local_job(job_of(kafka, parallelism=3))
    wait_counted(running, records(range(21)))
    assert sorted(len(state["partitions"]) for state in states(running, "in")) == [2, 2, 3]


def test_more_partitions_than_one_event_holds_are_all_read(
    local_job: LocalJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_coordinator, "PARTITIONS_PER_EVENT", 3)
    running = local_job(job_of(brokers(*[1] * 20), until="latest"))
    running.wait(PATIENCE_S)
    assert counted(running) == records(range(20))


# ---- whatever dies, at each step

Strike = Callable[[LocalJob], None]


def _both(running: LocalJob) -> None:
    running.crash_coordinator()
    running.crash_subtask("in", 0)
    running.replace_coordinator()


def _coordinator(running: LocalJob) -> None:
    running.crash_coordinator()
    running.replace_coordinator()


VICTIMS: dict[str, Strike] = {
    "subtask": lambda running: running.crash_subtask("in", 0),
    "coordinator": _coordinator,
    "both": _both,
    "receiver": lambda running: running.crash_subtask("out", 0),
    "takeover": lambda running: (running.replace_coordinator(), None)[1],
}

POINTS = ["look", "offsets", "begin", "fetch", "verify"]
RECORDS = {
    "an assignment is on its way": (EventFrame, {"operator": "in"}),
    "an ack is on its way": (CheckpointAck, {"operator": "in"}),
    "a checkpoint is being committed": (CheckpointCommit, {}),
    "a notice is on its way": (CompletedNotice, {"operator": "in"}),
}


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("point", POINTS)
def test_each_record_counts_once_whoever_dies_while_the_brokers_are_asked(
    local_job: LocalJobs, point: str, victim: str
) -> None:
    kafka = brokers(40, 40, 40)
    latch = kafka.halt_at(point)
    running = local_job(job_of(kafka))
    latch.wait()
    VICTIMS[victim](running)
    latch.released.set()
    kafka.grow("flights", 5)
    fill(kafka, "flights", 4, range(120, 150))
    wait_counted(running, records(range(150)))
    running.check()


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("bounded", [False, True], ids=["unbounded", "bounded"])
def test_each_record_counts_once_whoever_dies_while(
    local_job: LocalJobs, penstock_faults: Faults, record: str, victim: str, bounded: bool
) -> None:
    kafka = brokers(40, 40, 40)
    kind, which = RECORDS[record]
    held = penstock_faults.hold(kind, **which)  # type: ignore[arg-type]
    running = local_job(job_of(kafka, until="latest" if bounded else None))
    held.wait_until_caught(PATIENCE_S)
    VICTIMS[victim](running)
    held.release()
    if bounded:
        running.wait(PATIENCE_S)
        assert counted(running) == records(range(120))
    else:
        wait_counted(running, records(range(120)))
    running.check()


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("point", ["look", "offsets", "begin"])
def test_new_partitions_are_read_once_whoever_dies_while_they_are_found(
    local_job: LocalJobs, point: str, victim: str
) -> None:
    kafka = brokers(40, 40)
    running = local_job(job_of(kafka))
    wait_counted(running, records(range(80)))
    latch = kafka.halt_at(point)
    kafka.grow("flights", 4)
    for partition in range(4):
        fill(kafka, "flights", partition, range(100 + 10 * partition, 110 + 10 * partition))
    latch.wait()
    VICTIMS[victim](running)
    latch.released.set()
    wait_counted(running, records(range(80), range(100, 140)))
    running.check()


def test_what_a_rollback_undid_is_given_out_again(local_job: LocalJobs) -> None:
    kafka = brokers(40, 40)
    running = local_job(job_of(kafka))
    wait_counted(running, records(range(80)))
    for number in range(3):
        before = running.wait_for(lambda _: True, 1).failovers_global
        kafka.grow("flights", 3 + number)
        fill(kafka, "flights", 2 + number, range(100 + number, 101 + number))
        running.replace_coordinator()
        running.wait_for(lambda s, before=before: s.state == "running", PATIENCE_S)  # type: ignore[misc]
    wait_counted(running, records(range(80), range(100, 103)))


@pytest.mark.soak
@pytest.mark.parametrize("seed", rounds())
def test_each_record_counts_once_in_any_weather(seed: int) -> None:
    """Processes die at random, records of the job are late or lost, brokers go away, and partitions come meanwhile."""
    chance, faults = random.Random(seed), Faults(seed)
    kafka = brokers(*(chance.randrange(60) for _ in range(chance.randrange(1, 5))))
    total = sum(log.high for log in kafka.topics["flights"][1])
    settings: dict[str, Any] = {"topics": chance.choice(["flights", "flights|trains"])}
    job = job_of(kafka, parallelism=chance.randrange(1, 4), **settings)
    kafka.limit = chance.randrange(1, 30)
    with LocalJob(job, MemoryTransport(MemoryBroker()), faults=faults) as running:
        running.wait_for(lambda s: s.checkpoints_completed >= 1, PATIENCE_S)
        faults.at_random(delay=0.05, lag=0.05, refuse=0.01, unknown_outcome=0.01, seconds=0.05)
        for _ in range(4):
            kafka.away = chance.random() < 0.2
            chance.choice(list(VICTIMS.values()))(running)
            if chance.random() < 0.5:
                kafka.grow("flights", len(kafka.topics["flights"][1]) + 1)
            partition = chance.randrange(len(kafka.topics["flights"][1]))
            more = chance.randrange(30)
            fill(kafka, "flights", partition, range(total, total + more))
            kafka.append("flights", partition, *[CONTROL] * chance.randrange(3))
            total += more
            kafka.limit += chance.randrange(30)
            done = running.client.history().last
            last = 0 if done is None else done.id
            kafka.away = False
            running.wait_for(lambda s, last=last: s.last_completed > last, PATIENCE_S)  # type: ignore[misc]
        kafka.limit = None
        faults.clear()
        wait_counted(running, records(range(total)))
        running.check()


# ---- another parallelism


@pytest.mark.parametrize("bounded", [False, True], ids=["unbounded", "bounded"])
def test_a_job_goes_on_with_another_parallelism(bounded: bool) -> None:
    kafka, logs = brokers(*[40] * 5), MemoryBroker()
    settings: dict[str, Any] = {"until": "latest"} if bounded else {}
    total = 200
    kafka.limit = 10
    for parallelism, limit in [(2, 20), (3, 30), (1, 35), (4, None)]:
        with LocalJob(job_of(kafka, parallelism, **settings), MemoryTransport(logs)) as running:
            expected = 5 * kafka.limit if kafka.limit is not None else total
            # the savepoint that it began with may hold as many: it has to run before it can be stopped
            running.wait_for(lambda s, n=expected: s.state == "running" and counted(running).total() >= n, PATIENCE_S)  # type: ignore[misc]
            kafka.limit = limit
            if not bounded:
                kafka.grow("flights", len(kafka.topics["flights"][1]) + 1)
            if limit is None:
                break
            assert running.client.stop(savepoint=True).accepted
            running.wait(PATIENCE_S)
    with LocalJob(job_of(kafka, 2, **settings), MemoryTransport(logs)) as running:
        if bounded:
            running.wait(PATIENCE_S)
            assert counted(running) == records(range(total))
        else:
            fill(kafka, "flights", 8, range(total, total + 5))
            wait_counted(running, records(range(total + 5)))


def test_until_cannot_change_between_two_starts() -> None:
    kafka, logs = brokers(5), MemoryBroker()
    with LocalJob(job_of(kafka), MemoryTransport(logs)) as running:
        wait_counted(running, records(range(5)))
        assert running.client.stop(savepoint=True).accepted
        running.wait(PATIENCE_S)
    with LocalJob(few_restarts(job_of(kafka, until="latest")), MemoryTransport(logs)) as running:
        assert "is of a Kafka source without until=, and until= is 'latest' now" in failure(running)


# ---- topics that go


def failure(running: LocalJob) -> str:
    """Why the job has failed."""
    end = running.wait(PATIENCE_S)
    assert end.ending.value == "failed"
    return end.cause


def few_restarts(job: penstock.Job) -> penstock.Job:
    return job.renamed(job.name, restart=penstock.RestartStrategy(backoff_next=0.01, backoff_max=0.05, budget=3))


def test_a_topic_that_does_not_exist_fails_the_job_by_name(local_job: LocalJobs) -> None:
    running = local_job(few_restarts(job_of(brokers(1), topics=["flights", "trains", "boats"])))
    assert "there is no topic 'boats' and no topic 'trains' at memory to be read: create" in failure(running)


def test_a_bounded_source_whose_pattern_matches_nothing_fails_the_job(local_job: LocalJobs) -> None:
    running = local_job(few_restarts(job_of(brokers(1), topics="trains.*", until="latest")))
    assert "no topic at memory matches 'trains.*'" in failure(running)


def test_a_pattern_that_matches_nothing_yet_waits_with_a_warning(
    local_job: LocalJobs, caplog: pytest.LogCaptureFixture
) -> None:
    kafka = brokers(1)
    running = local_job(job_of(kafka, topics="trains.*"))
    running.wait_for(lambda s: s.checkpoints_completed >= 1 and "no topic matches" in caplog.text, PATIENCE_S)
    kafka.create("trains-eu")
    fill(kafka, "trains-eu", 0, range(3))
    wait_counted(running, records(range(3), topic="trains-eu"))


@pytest.mark.parametrize("how", ["deleted", "created again", "not selected"])
def test_a_topic_that_is_gone_fails_the_job_by_name(
    local_job: LocalJobs, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_coordinator, "MISSING_S", 0.05)
    monkeypatch.setattr(kafka_subtask, "MISSING_S", 0.05)
    kafka = brokers(10)
    kafka.create("trains")
    transport = MemoryTransport(MemoryBroker())
    running = local_job(few_restarts(job_of(kafka, topics=["flights", "trains"])), transport)
    wait_counted(running, records(range(10)))
    if how == "not selected":
        assert running.client.stop(savepoint=True).accepted
        running.wait(PATIENCE_S)
        running = local_job(few_restarts(job_of(kafka, topics=["flights"])), transport)
    else:
        kafka.delete("trains")
        if how == "created again":
            kafka.create("trains")
    said = failure(running)
    assert "topic 'trains'" in said and how in said and "fail_on_data_loss=False" in said


def test_where_it_is_accepted_a_topic_that_is_not_selected_any_more_is_not_read() -> None:
    kafka, logs = brokers(10), MemoryBroker()
    kafka.create("trains")
    fill(kafka, "trains", 0, range(5))
    both = records(range(10)) + records(range(5), topic="trains")
    with LocalJob(job_of(kafka, topics="flights|trains"), MemoryTransport(logs)) as running:
        wait_counted(running, both)
        assert running.client.stop(savepoint=True).accepted
        running.wait(PATIENCE_S)
    fill(kafka, "trains", 0, range(5, 9))
    fill(kafka, "flights", 0, range(10, 20))
    with LocalJob(job_of(kafka, fail_on_data_loss=False), MemoryTransport(logs)) as running:
        wait_counted(running, both + records(range(10, 20)))
        running.wait_for(lambda _: sum(len(state["partitions"]) for state in states(running, "in")) == 1, PATIENCE_S)


@pytest.mark.parametrize("seed", range(6))
def test_where_it_is_accepted_a_topic_that_was_created_again_is_read_from_its_start_and_no_record_twice(
    local_job: LocalJobs, seed: int
) -> None:
    """Also where the brokers have given some of its records under the old positions."""
    chance = random.Random(seed)
    kafka = brokers(20, 20)
    every = chance.choice([0.02, 0.5])
    running = local_job(job_of(kafka, fail_on_data_loss=False, discover_every=every))
    wait_counted(running, records(range(40)))
    with kafka.lock:
        kafka.delete("flights")
        kafka.create("flights", 2)
        again = [range(100, chance.randrange(140, 190)), range(200, chance.randrange(240, 290))]
        for partition, numbers in enumerate(again):
            fill(kafka, "flights", partition, numbers)
    wait_counted(running, records(range(40), *again))
    running.check()


def test_where_it_is_accepted_the_job_goes_on_without_a_deleted_topic(
    local_job: LocalJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_coordinator, "MISSING_S", 0.05)
    monkeypatch.setattr(kafka_subtask, "MISSING_S", 0.05)
    monkeypatch.setattr(kafka_subtask, "_ASK_S", 0.05)
    kafka = brokers(10)
    kafka.create("trains")
    fill(kafka, "trains", 0, range(5))
    running = local_job(job_of(kafka, topics="flights|trains", fail_on_data_loss=False))
    both = records(range(10)) + records(range(5), topic="trains")
    wait_counted(running, both)
    kafka.delete("trains")
    running.wait_for(lambda _: sum(len(state["partitions"]) for state in states(running, "in")) == 1, PATIENCE_S)
    fill(kafka, "flights", 0, range(10, 20))
    wait_counted(running, both + records(range(10, 20)))


def test_the_brokers_may_be_away_for_a_while(local_job: LocalJobs, caplog: pytest.LogCaptureFixture) -> None:
    kafka = brokers(10)
    running = local_job(job_of(kafka))
    wait_counted(running, records(range(10)))
    kafka.away = True
    fill(kafka, "flights", 0, range(10, 20))
    done = running.wait_for(lambda _: "nobody answered" in caplog.text, PATIENCE_S).last_completed
    running.wait_for(lambda s: s.last_completed > done, PATIENCE_S)
    kafka.away = False
    wait_counted(running, records(range(20)))
    assert running.wait_for(lambda _: True, 1).failovers_global == 0
