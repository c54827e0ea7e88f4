"""A part of a shared consumer, and one of a shared producer, without either (transport/kafka_shared.py)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import MethodType
from typing import Any, cast

import pytest

from penstock.schemas.errors import AppendFailed, PositionUnavailable, TransportError
from penstock.transport import LogRecord, Partition
from penstock.transport.kafka_shared import WAITING_BYTES_MAX, ReaderPart, WriterPart
from penstock.transport.ports import OnOutcome

DEADLINE_S = 20.0
ONE, OTHER = Partition("penstock.job.data", 0), Partition("penstock.job.data", 1)
GONE = PositionUnavailable("gone", ONE)


class OwnProcess:
    def check(self, what: str) -> None: ...


class Consumer:
    """Knows where each partition is fetched, None while it is not."""

    def __init__(self) -> None:
        self.at: dict[Partition, int | None] = {}

    def add(self, partition: Partition) -> None: ...

    def seek(self, partition: Partition, offset: int) -> None:
        self.at[partition] = offset

    def pause(self, partition: Partition) -> None:
        self.at[partition] = None


class Feeder:
    """Obeys when it is told to."""

    def __init__(self) -> None:
        self.process, self.reader = OwnProcess(), Consumer()
        self.orders: deque[Callable[[], None]] = deque()

    def tell(self, order: Callable[[], None]) -> None:
        self.orders.append(order)

    def obey(self) -> None:
        while self.orders:
            self.orders.popleft()()


def record(partition: Partition, offset: int, size: int = 1) -> LogRecord:
    return LogRecord(partition, offset, 0, None, bytes(size))


@pytest.fixture
def feeder() -> Feeder:
    return Feeder()


@pytest.fixture
def part(feeder: Feeder) -> ReaderPart:
    made = ReaderPart(cast(Any, feeder), {ONE: 0, OTHER: 0})
    made.seek(ONE, 0)
    made.seek(OTHER, 0)
    feeder.obey()
    return made


@pytest.mark.parametrize("seek", [False, True])
def test_what_was_given_back_is_fetched_again_though_what_waited_is_forgotten(
    feeder: Feeder, part: ReaderPart, seek: bool
) -> None:
    """An alignment that pauses the channel that has delivered must not keep the others from delivering."""
    half = WAITING_BYTES_MAX // 2
    part.give([record(ONE, 0), *(record(OTHER, n, half) for n in range(3))])
    assert feeder.reader.at == {ONE: None, OTHER: None}
    assert [r.partition for r in part.poll(0.0, 1)] == [ONE]
    if seek:
        part.seek(OTHER, 7)
    else:
        part.pause(OTHER)
    feeder.obey()
    assert feeder.reader.at == {ONE: 1, OTHER: 7 if seek else None}


def test_what_is_lost_of_one_partition_is_told_though_the_others_never_run_dry(part: ReaderPart) -> None:
    part.give([record(OTHER, 0), record(OTHER, 1)])
    part.fail(ONE, GONE)
    part.give([record(OTHER, 2)])
    assert [r.offset for r in part.poll(0.0)] == [0, 1]
    with pytest.raises(PositionUnavailable):
        part.poll(0.0)
    assert [r.offset for r in part.poll(0.0)] == [2]


def test_an_error_waits_for_no_record_that_has_been_forgotten(part: ReaderPart) -> None:
    part.give([record(OTHER, 0), record(OTHER, 1)])
    part.fail(ONE, GONE)
    part.pause(OTHER)
    with pytest.raises(PositionUnavailable):
        part.poll(0.0)
    assert part.poll(0.0) == []


def test_when_the_consumer_has_broken_off_no_part_waits_for_it_as_if_it_were_there(part: ReaderPart) -> None:
    part.give([record(ONE, 0)])
    part.break_off(TransportError("broken off"))
    assert [r.offset for r in part.poll(0.0)] == [0]
    for _ in range(2):
        with pytest.raises(TransportError, match="broken off"):
            part.poll(DEADLINE_S)


class Producer:
    """Keeps what it is to tell; its thread is whichever tells."""

    def __init__(self) -> None:
        self.writer = self
        self.outcomes: deque[OnOutcome] = deque()
        self.is_its_thread = False

    def append(self, partition: Partition, value: bytes, key: bytes | None, on_outcome: OnOutcome) -> None:
        self.outcomes.append(on_outcome)

    def leave(self) -> None: ...


def test_an_outcome_that_appends_while_its_writer_is_closed_is_refused_and_waits_for_nobody() -> None:
    producer = Producer()
    part = WriterPart(cast(Any, producer))
    told, go_on, refused = threading.Event(), threading.Event(), threading.Event()

    def on_outcome(offset: int | None, error: Exception | None) -> None:
        told.set()
        assert go_on.wait(DEADLINE_S)
        with pytest.raises(AppendFailed):
            part.append(ONE, b"next")
        refused.set()

    part.append(ONE, b"first", on_outcome=on_outcome)
    telling = threading.Thread(target=lambda: producer.outcomes[0](0, None), daemon=True)
    telling.start()
    assert told.wait(DEADLINE_S)
    closing = threading.Thread(target=part.close, args=(0.0,), daemon=True)
    closing.start()
    for _ in range(2_000):
        if part._closed:
            break
        threading.Event().wait(0.01)
    go_on.set()
    assert refused.wait(DEADLINE_S)
    closing.join(DEADLINE_S)
    assert not closing.is_alive()


def test_an_outcome_that_raises_is_settled_all_the_same() -> None:
    producer = Producer()
    part = WriterPart(cast(Any, producer))

    def raises(offset: int | None, error: Exception | None) -> None:
        raise ValueError("of the user's")

    part.append(ONE, b"first", on_outcome=raises)
    with pytest.raises(ValueError, match="user"):
        producer.outcomes[0](0, None)
    assert part.flush(0.0)
    closing = threading.Thread(target=part.close, args=(0.0,), daemon=True)
    closing.start()
    closing.join(DEADLINE_S)
    assert not closing.is_alive()


def test_who_waits_for_outcomes_hears_of_those_that_a_close_gives() -> None:
    part, outcomes = WriterPart(cast(Any, Producer())), list[Exception | None]()
    part.append(ONE, b"first", on_outcome=raises_always)
    part.append(ONE, b"second", on_outcome=lambda offset, error: outcomes.append(error))
    settled: list[bool] = []
    waiting = threading.Thread(target=lambda: settled.append(part.flush(10 * DEADLINE_S)), daemon=True)
    waiting.start()
    part.close(0.0)
    waiting.join(DEADLINE_S)
    assert settled == [True]
    assert [type(error) for error in outcomes] == [AppendFailed]


def raises_always(offset: int | None, error: Exception | None) -> None:
    raise ValueError("of the user's")


def test_what_the_producer_refuses_has_no_outcome() -> None:
    producer, outcomes = Producer(), list[int | None]()
    part, accepts = WriterPart(cast(Any, producer)), producer.append
    producer.append = MethodType(refuses, producer)  # type: ignore[method-assign]
    with pytest.raises(TransportError):
        part.append(ONE, b"first", on_outcome=lambda offset, error: outcomes.append(-1))
    producer.append = accepts  # type: ignore[method-assign]
    part.append(ONE, b"second", on_outcome=lambda offset, error: outcomes.append(offset))
    producer.outcomes[0](7, None)
    assert outcomes == [7]


def refuses(*_: object) -> None:
    raise TransportError("made by another process")
