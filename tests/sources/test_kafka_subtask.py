"""A subtask that reads Kafka, driven by hand: positions, ends, and what is gone."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock import Context, Finished, Idle
from penstock.errors import ConfigurationError, PenstockError, PositionUnavailable, TopicMissing, UnreadableRecord
from penstock.sources import KafkaRecord, kafka_subtask
from penstock.sources.kafka_subtask import KafkaSubtask, redistribute
from penstock.subtask_client.metrics import Metrics

from .kafka_jobs import source
from .memory_kafka import CONTROL, MemoryKafka


class Driver:
    """An attempt, and what it has emitted."""

    def __init__(self, kafka: MemoryKafka, state: Any = None, *, fail_on_data_loss: bool = True, **read: Any) -> None:
        self.kafka, self.emitted = kafka, list[Any]()
        self.metrics = Metrics()
        made = kafka.operator(source(fail_on_data_loss=fail_on_data_loss), **read)
        self.subtask = cast(KafkaSubtask, made["subtask"]())
        context = SimpleNamespace(
            job="flights", operator="in", subtask=0, parallelism=1, metrics=self.metrics, emit=self.emitted.append
        )
        self.subtask.open(cast(Context, context))
        if state is not None:
            self.subtask.restore_state(1, state)

    def give(self, *partitions: list[Any], all_: bool = False) -> Driver:
        self.subtask.handle_operator_event(json.loads(json.dumps({"partitions": partitions, "all": all_})))
        return self

    def run(self) -> Any:
        """Polls until there is nothing to do; what poll said then."""
        for _ in range(100):
            said = self.subtask.poll()
            if isinstance(said, Idle | Finished):
                return said
        raise AssertionError("there is always more")

    def run_on(self) -> Any:
        """As often as it takes to notice what has happened."""
        return [self.run() for _ in range(4)][-1]

    def snapshot(self) -> Any:
        return json.loads(json.dumps(self.subtask.snapshot_state(1)))

    def positions(self) -> dict[tuple[str, int], int]:
        return {(one[0], one[2]): one[3] for one in self.snapshot()["partitions"]}


def brokers(*values: Any, topic: str = "flights") -> MemoryKafka:
    kafka = MemoryKafka(**{topic: 1})
    kafka.append(topic, 0, *values)
    return kafka


def flights(start: int = 0, end: int | None = None, id_: str = "id-1", partition: int = 0) -> list[Any]:
    return ["flights", id_, partition, start, end]


# ---- records and positions


def test_values_are_emitted_as_they_are_unless_there_is_a_decode() -> None:
    kafka = brokers(b"1", b"2")
    plain, decoded = Driver(kafka).give(flights()), Driver(kafka, decode=json.loads).give(flights())
    plain.run()
    decoded.run()
    assert (plain.emitted, decoded.emitted) == ([b"1", b"2"], [1, 2])


def test_decode_record_is_given_all_that_kafka_says() -> None:
    driver = Driver(brokers(b"1", None), decode_record=lambda record: record).give(flights())
    driver.run()
    assert driver.emitted == [
        KafkaRecord(b"key", b"1", "flights", 0, 0, 0, ()),
        KafkaRecord(b"key", None, "flights", 0, 1, 1000, ()),
    ]


def test_a_successor_goes_on_with_the_record_behind_the_snapshot() -> None:
    kafka = brokers(b"0", b"1")
    first = Driver(kafka).give(flights())
    first.run()
    state = first.snapshot()
    kafka.append("flights", 0, b"2", b"3")
    first.run()
    second = Driver(kafka, state)
    second.run()
    assert (first.emitted, second.emitted) == ([b"0", b"1", b"2", b"3"], [b"2", b"3"])


def test_the_position_moves_past_control_records() -> None:
    driver = Driver(brokers(b"0", CONTROL, b"2", CONTROL, CONTROL)).give(flights())
    driver.run()
    assert driver.positions() == {("flights", 0): 5}


def test_a_long_fetch_is_taken_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_subtask, "TURN_S", -1.0)  # each is over at once
    monkeypatch.setattr(kafka_subtask, "_RECORDS_PER_SLICE", 2)
    driver = Driver(brokers(*(str(n).encode() for n in range(5)))).give(flights())
    driver.subtask.poll()
    assert driver.emitted == []
    monkeypatch.setattr(kafka_subtask, "TURN_S", 60.0)
    driver.run()
    assert driver.emitted == [b"0", b"1", b"2", b"3", b"4"]


# ---- ends


def test_a_bounded_partition_ends_at_its_end_and_what_follows_is_not_read() -> None:
    driver = Driver(brokers(b"0", b"1", b"2")).give(flights(end=2), all_=True)
    assert driver.run() == Finished()
    assert driver.emitted == [b"0", b"1"]
    assert driver.snapshot()["partitions"] == []


@pytest.mark.parametrize("behind", [[], [b"5"]], ids=["nothing", "a-record"])
def test_an_end_behind_control_records_is_reached(behind: list[bytes]) -> None:
    driver = Driver(brokers(b"0", CONTROL, CONTROL, *behind)).give(flights(end=3), all_=True)
    assert driver.run() == Finished()
    assert driver.emitted == [b"0"]


def test_a_subtask_without_partitions_finishes_when_none_will_come_and_waits_otherwise() -> None:
    driver = Driver(brokers())
    assert isinstance(driver.run(), Idle)
    assert driver.give(all_=True).run() == Finished()
    assert driver.give(flights(start=3, end=3)).run() == Finished()


def test_what_is_left_is_known_after_a_restore() -> None:
    kafka = brokers(b"0")
    first = Driver(kafka).give(flights(end=1), flights(end=0, partition=1), all_=True)
    assert first.run() == Finished()
    assert Driver(kafka, first.snapshot()).run() == Finished()


def test_a_partition_that_ends_before_its_end_for_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_subtask, "SHORT_S", 0.0)
    monkeypatch.setattr(kafka_subtask, "_LAG_EVERY_S", 0.0)
    kafka = brokers(b"0")
    driver = Driver(kafka).give(flights(end=3), all_=True)
    with pytest.raises(PositionUnavailable, match="ends at offset 1, and did at 3"):
        driver.run_on()
    accepting = Driver(kafka, fail_on_data_loss=False).give(flights(end=3), all_=True)
    assert accepting.run_on() == Finished()
    assert accepting.metrics.values()["records_lost"] == 2


# ---- records that cannot be decoded


@pytest.mark.parametrize(("bad", "why"), [(b"{", "JSONDecodeError"), (None, "tombstone")], ids=["no-json", "no-value"])
def test_a_record_that_cannot_be_decoded_fails_by_name(bad: bytes | None, why: str) -> None:
    driver = Driver(brokers(b"1", bad), decode=json.loads).give(flights())
    with pytest.raises(UnreadableRecord, match=rf"topic 'flights', partition 0, offset 1 cannot be decoded: .*{why}"):
        driver.run()


def test_a_record_that_cannot_be_decoded_is_counted_and_skipped_where_that_is_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kafka = brokers(b"1", b"{", b"{", b"4")
    first = Driver(kafka, decode=json.loads, on_error="skip").give(flights())
    first.run()
    assert first.emitted == [1, 4]
    second = Driver(kafka, first.snapshot(), decode=json.loads, on_error="skip")
    assert second.metrics.values()["records_skipped"] == 2
    assert caplog.text.count("offset 1 cannot be decoded") == 1


def test_a_record_that_cannot_be_emitted_fails_by_name() -> None:
    driver = Driver(brokers(b"1"))

    def emit(record: Any) -> None:
        raise ConfigurationError("expected bytes")

    driver.subtask._context.emit = emit  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match="topic 'flights', partition 0, offset 0 cannot be emitted: expected"):
        driver.give(flights()).run()


# ---- what is gone


def test_what_retention_deleted_before_it_was_read_is_an_error_with_all_offsets() -> None:
    kafka = brokers(b"0", b"1", b"2", b"3")
    kafka.expire("flights", 0, 3)
    driver = Driver(kafka).give(flights(start=1))
    with pytest.raises(PositionUnavailable, match="has the offsets from 3 to 4, and 1 is wanted: retention") as raised:
        driver.run_on()
    assert "fail_on_data_loss=False" in str(raised.value)


def test_what_retention_deleted_is_passed_over_and_counted_where_that_is_accepted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kafka = brokers(b"0", b"1", b"2", b"3")
    kafka.expire("flights", 0, 3)
    driver = Driver(kafka, fail_on_data_loss=False).give(flights(start=1))
    driver.run_on()
    assert driver.emitted == [b"3"]
    assert driver.metrics.values()["records_lost"] == 2
    assert "Reading goes on at offset 3" in caplog.text


@pytest.mark.parametrize("accepted", [False, True])
def test_a_log_that_lost_its_end_is_an_error_or_read_from_its_new_end(accepted: bool) -> None:
    kafka = brokers(*[b"x"] * 8)
    driver = Driver(kafka, fail_on_data_loss=not accepted).give(flights(start=6))
    driver.run()
    kafka.cut("flights", 0, 4)
    if not accepted:
        with pytest.raises(PositionUnavailable, match="have lost its end"):
            driver.run_on()
        return
    driver.run_on()
    kafka.append("flights", 0, b"new")
    driver.run()
    assert driver.emitted == [b"x", b"x", b"new"]


def test_a_topic_that_was_created_again_is_never_read_under_the_old_positions() -> None:
    """The brokers give its records, and the snapshot refuses to name them."""
    kafka = brokers(b"0", b"1")
    driver = Driver(kafka).give(flights())
    driver.run()
    state = driver.snapshot()
    kafka.delete("flights")
    kafka.create("flights")
    kafka.append("flights", 0, *[b"new"] * 5)
    driver.run()
    assert driver.emitted == [b"0", b"1", b"new", b"new", b"new"]
    with pytest.raises(TopicMissing, match=r"partition 0 .* deleted and created again \(its id was id-1 and is id-2\)"):
        driver.snapshot()
    with pytest.raises(TopicMissing, match="deleted and created again"):
        Driver(kafka, state).run()


def test_where_that_is_accepted_the_old_partition_is_dropped_and_the_new_one_read_from_its_start() -> None:
    kafka = brokers(b"0", b"1")
    first = Driver(kafka, fail_on_data_loss=False).give(flights())
    first.run()
    state = first.snapshot()
    kafka.delete("flights")
    kafka.create("flights")
    kafka.append("flights", 0, *(f"new {n}".encode() for n in range(5)))
    first.run()
    with pytest.raises(TopicMissing):  # some of what it has emitted is of the new topic
        first.give(flights(id_="id-2"))
    second = Driver(kafka, state, fail_on_data_loss=False)
    second.run()
    assert second.emitted == [] and second.metrics.values()["partitions_gone"] == 1
    second.give(flights(id_="id-2")).run()
    assert second.emitted == [f"new {n}".encode() for n in range(5)]


def test_the_new_topic_may_be_given_out_before_the_old_one_has_been_missed() -> None:
    kafka = brokers(b"0", b"1")
    driver = Driver(kafka, fail_on_data_loss=False).give(flights())
    driver.run()
    driver.snapshot()
    kafka.delete("flights")
    kafka.create("flights")
    driver.subtask._fetched = driver.subtask._fetch()
    kafka.append("flights", 0, b"new 0", b"new 1", b"new 2")
    driver.give(flights(id_="id-2")).run()
    assert driver.emitted == [b"0", b"1", b"new 0", b"new 1", b"new 2"]


@pytest.mark.parametrize("accepted", [False, True])
def test_a_deleted_topic_is_an_error_or_read_no_more(accepted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_subtask, "MISSING_S", 0.0)
    kafka = brokers(b"0")
    driver = Driver(kafka, fail_on_data_loss=not accepted).give(flights(end=9), all_=True)
    driver.run()
    kafka.delete("flights")
    driver.subtask._looked_at = -10.0  # a look is due again
    if accepted:
        assert driver.run_on() == Finished()
        assert driver.snapshot()["partitions"] == []
    else:
        with pytest.raises(TopicMissing, match="was deleted"):
            driver.run_on()


def test_a_topic_that_is_unknown_for_a_moment_is_not_deleted() -> None:
    kafka = brokers(b"0")
    driver = Driver(kafka).give(flights())
    driver.run()
    there = kafka.topics.pop("flights")
    driver.subtask._looked_at = -10.0
    driver.run()
    kafka.topics["flights"] = there
    kafka.append("flights", 0, b"1")
    driver.subtask._look_due = 0.0
    driver.run()
    assert driver.emitted == [b"0", b"1"] and not driver.subtask._missing_since


def test_while_the_brokers_are_away_nothing_is_lost_and_snapshots_without_news_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kafka = brokers(b"0")
    driver = Driver(kafka).give(flights())
    kafka.away = True
    with caplog.at_level(logging.WARNING):
        driver.run()
    assert "It is asked again" in caplog.text
    assert driver.positions() == {("flights", 0): 0}
    kafka.away = False
    driver.subtask._look_due = 0.0
    driver.run()
    kafka.away = True
    with pytest.raises(PenstockError):
        driver.snapshot()
    kafka.away = False
    assert driver.positions() == {("flights", 0): 1}
    kafka.away = True
    assert driver.positions() == {("flights", 0): 1}


def test_lag_is_what_has_not_been_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_subtask, "_LAG_EVERY_S", 0.0)
    kafka = MemoryKafka(flights=2)
    kafka.append("flights", 0, *[b"x"] * 10)
    kafka.append("flights", 1, *[b"x"] * 3)
    kafka.limit = 4
    driver = Driver(kafka).give(flights(), flights(partition=1))
    driver.run()
    values = driver.metrics.values()
    assert (values["records_lag"], values["records_lag_max"]) == (6, 6)
    assert (values["records_read"], values["partitions"]) == (7, 2)


# ---- another parallelism


@pytest.mark.parametrize("parallelism", [1, 2, 3, 7])
def test_partitions_are_dealt_evenly_each_with_its_position(parallelism: int) -> None:
    partitions = [flights(start=n, partition=n) for n in range(5)]
    old = [{"partitions": partitions[::2], "all": True, "skipped": 2}, None]
    old.append({"partitions": partitions[1::2], "all": True, "skipped": 3})
    dealt = redistribute(old, parallelism)
    assert sorted(one for state in dealt for one in state["partitions"]) == partitions
    sizes = [len(state["partitions"]) for state in dealt]
    assert max(sizes) - min(sizes) <= 1 and len(sizes) == parallelism
    assert sum(state["skipped"] for state in dealt) == 5
    assert all(state["all"] for state in dealt)
