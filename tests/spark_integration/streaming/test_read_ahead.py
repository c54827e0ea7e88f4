"""What the planner reads ahead: exactly the records that a batch's offsets name, or nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.schemas.errors import BrokerUnreachable
from penstock.schemas.topics import TopicSpec
from penstock.spark_integration.streaming import read_ahead
from penstock.spark_integration.streaming.read_ahead import BYTES_MAX, RECORDS_MAX, ReadAhead
from penstock.spark_integration.streaming.reading import EventsRange
from penstock.transport.memory import MemoryBroker, MemoryTransport
from penstock.transport.ports import Partition

TOPIC = "penstock.flights.reader.events"


class Log:
    """A topic of two partitions, and a read-ahead that follows it."""

    def __init__(self) -> None:
        self.transport = MemoryTransport(MemoryBroker())
        self.transport.create_topics([TopicSpec(TOPIC, 2)])
        self.writer = self.transport.writer()
        self.made = 0
        self.ahead = ReadAhead(self._made)

    def _made(self) -> MemoryTransport:
        self.made += 1
        return self.transport

    def ends(self) -> list[int]:
        partitions = [Partition(TOPIC, index) for index in (0, 1)]
        found = self.transport.offsets(partitions)
        return [found[partition].end for partition in partitions]

    def append(self, *values: Sequence[bytes]) -> None:
        for index, of_partition in enumerate(values):
            for value in of_partition:
                self.writer.append(Partition(TOPIC, index), value)

    def batch(self, *values: Sequence[bytes]) -> list[EventsRange]:
        """Append a batch; return its ranges."""
        begins = self.ends()
        self.append(*values)
        return ranges(begins, self.ends())

    def take(self, batch: Sequence[EventsRange]) -> list[list[bytes | None]] | None:
        found = self.ahead.take(batch)
        return None if found is None else [[record.value for record in records] for records in found]


def ranges(begins: Sequence[int], ends: Sequence[int]) -> list[EventsRange]:
    return [
        EventsRange(TOPIC, index, begin, end, 0, 1, 1)
        for index, (begin, end) in enumerate(zip(begins, ends, strict=True))
    ]


@pytest.fixture
def log() -> Log:
    log = Log()
    log.take(log.batch([b"first"], [b"first"]))
    return log


def test_the_first_batch_is_left_to_its_tasks_and_what_follows_is_handed_over() -> None:
    log = Log()
    assert log.take(log.batch([b"a"], [b"b"])) is None
    assert log.take(log.batch([b"c", b"d"], [])) == [[b"c", b"d"], []]
    assert log.take(log.batch([b"e"], [b"f"])) == [[b"e"], [b"f"]]
    log.ahead.close()


def test_records_behind_a_batch_belong_to_the_next_one(log: Log) -> None:
    first = log.batch([b"a"], [b"b"])
    second = log.batch([b"c"], [b"d"])
    assert log.take(first) == [[b"a"], [b"b"]]
    assert log.take(second) == [[b"c"], [b"d"]]


def test_a_batch_that_is_asked_for_again_is_left_to_its_tasks_and_the_next_one_is_not(log: Log) -> None:
    batch = log.batch([b"a"], [b"b"])
    assert log.take(batch) == [[b"a"], [b"b"]]
    assert log.take(batch) is None
    assert log.take(log.batch([b"c"], [])) == [[b"c"], []]


def test_records_between_two_batches_belong_to_neither(log: Log) -> None:
    log.batch([b"void"], [])
    assert log.take(log.batch([b"a"], [b"b"])) == [[b"a"], [b"b"]]


def test_a_batch_before_the_last_one_is_left_to_its_tasks(log: Log) -> None:
    before = log.batch([b"a"], [b"b"])
    log.take(log.batch([b"c"], [b"d"]))
    assert log.take(before) is None
    log.take(log.batch([b"e"], [b"f"]))
    assert log.take(log.batch([b"g"], [b"h"])) == [[b"g"], [b"h"]]


@pytest.mark.parametrize(
    "large",
    [[b"x" * BYTES_MAX], [b"x" * (BYTES_MAX // 2)] * 2, [b""] * (RECORDS_MAX + 1)],
    ids=["one record", "records", "count"],
)
def test_a_large_batch_is_left_to_its_tasks_and_the_next_one_is_not(log: Log, large: list[bytes]) -> None:
    assert log.take(log.batch([b"small"], large)) is None
    assert log.take(log.batch([b"a"], [b"b"])) == [[b"a"], [b"b"]]
    assert log.made == 1


def test_a_batch_just_below_the_bound_is_handed_over(log: Log) -> None:
    value = b"x" * (BYTES_MAX - 2 * read_ahead._RECORD_BYTES)
    assert log.take(log.batch([b""], [value])) == [[b""], [value]]


def test_batches_of_many_subtasks_are_not_followed(log: Log) -> None:
    begins = [0] * (read_ahead.PARTITIONS_MAX + 1)
    assert log.take(ranges(begins, [1] * len(begins))) is None
    assert log.take(log.batch([b"a"], [])) == [[b"a"], []]


def test_records_that_do_not_come_are_left_to_the_tasks(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "_WAIT_S", 0.01)
    begins = log.ends()
    log.append([b"a"])
    assert log.take(ranges(begins, [begins[0] + 2, begins[1]])) is None


def test_truncated_records_are_left_to_the_tasks(log: Log) -> None:
    batch = log.batch([b"a", b"b"], [b"c"])
    log.transport.truncate({Partition(TOPIC, 0): batch[0].begin + 1})
    assert log.take(batch) is None
    assert log.take(log.batch([b"d"], [])) == [[b"d"], []]


def test_a_broker_that_is_away_leaves_batches_to_the_tasks(log: Log) -> None:
    def unreachable(*_: object) -> None:
        raise BrokerUnreachable("the broker is away")

    batch = log.batch([b"x" * BYTES_MAX], [])
    log.transport.reader, reader = unreachable, log.transport.reader  # type: ignore[assignment, method-assign]
    assert log.take(batch) is None
    assert log.take(log.batch([b"a"], [])) is None
    log.transport.reader = reader  # type: ignore[method-assign]
    assert log.take(log.batch([b"b"], [])) is None
    assert log.take(log.batch([b"c"], [])) == [[b"c"], []]
    log.ahead.close()
