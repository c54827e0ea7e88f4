"""What each fault does to the records of one writer and one reader: the ports' promises hold under all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from penstock.schemas.acks import Heartbeat, Hello
from penstock.schemas.checkpoints import EpochClaimed
from penstock.schemas.codec import Record, decode, encode
from penstock.schemas.errors import (
    AppendFailed,
    BrokerUnreachable,
    ConfigurationError,
    Fenced,
    OutcomeUnknown,
    UnreadableRecord,
)
from penstock.schemas.events import CheckpointCompleted, EventFrame, Stop
from penstock.schemas.state import Sender
from penstock.schemas.topics import TopicSpec
from penstock.testing import Faults, FaultyTransport, Injected
from penstock.testing.records import CheckpointCommit
from penstock.transport import MemoryBroker, MemoryTransport, Partition, Reader, Writer

DEADLINE_S = 10.0
EVENTS = Partition("penstock.job.op.events", 0)
OTHER = Partition("penstock.job.op.events", 1)
ACKS = Partition("penstock.job.acks", 0)


def frame(sequence: int) -> EventFrame:
    return EventFrame(1, 0, sequence, 1, b"\1\0\0\0", b"x")


def hello(operator: str = "op", subtask: int = 0, nonce: str = "n") -> Hello:
    return Hello(operator, subtask, "run", nonce, "task", "host", {"op": 2}, 1)


def heartbeat(subtask: int, through: int = 0) -> Heartbeat:
    return Heartbeat(Sender("op", subtask, 5, 1, 0), through, "step", 0, False, {})


class Sent:
    """A writer's appends and their outcomes, in the order in which they came."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.outcomes: list[tuple[str, int | None, str]] = []

    def append(self, record: Record, partition: Partition = EVENTS) -> None:
        name = f"{partition.index}:{getattr(record, 'sequence', '')}"

        def outcome(offset: int | None, error: Exception | None) -> None:
            self.outcomes.append((name, offset, "" if error is None else str(error)))

        self.writer.append(partition, encode(record), b"key", outcome)


@pytest.fixture
def transport(faults: Faults) -> FaultyTransport:
    made = FaultyTransport(MemoryTransport(MemoryBroker()), faults, process="op/0")
    topics = [("penstock.job.op.events", 2), ("penstock.job.acks", 1), ("penstock.job.checkpoints", 1)]
    made.create_topics([TopicSpec(name, partitions) for name, partitions in topics])
    return made


@pytest.fixture
def sent(transport: FaultyTransport) -> Iterator[Sent]:
    writer = transport.writer()
    yield Sent(writer)
    writer.close(0.0)


def standing(transport: FaultyTransport, partition: Partition = EVENTS) -> list[int]:
    """Sequences of the frames in a log, as every reader of it would see them."""
    found = []
    for record in transport.read_all(partition):
        try:
            decoded = decode(record.value)
        except UnreadableRecord:
            found.append(-1)
        else:
            assert isinstance(decoded, EventFrame)
            found.append(decoded.sequence)
    return found


def read(reader: Reader) -> list[int]:
    """What a reader gets at once: the sequences of frames."""
    decoded = [decode(record.value) for record in reader.poll(0)]
    return [record.sequence for record in decoded if isinstance(record, EventFrame)]


# ---- writers


def test_a_held_record_holds_what_follows_it_in_its_partition_and_nothing_else(
    transport: FaultyTransport, faults: Faults, sent: Sent
) -> None:
    held = faults.hold(EventFrame, subtask=0, skip=1)
    for sequence in range(3):
        sent.append(frame(sequence))
        sent.append(frame(sequence), OTHER)
    assert standing(transport) == [0]
    assert standing(transport, OTHER) == [0, 1, 2]
    assert [name for name, _, _ in sent.outcomes] == ["0:0", "1:0"], "outcomes come in the order of the appends"
    assert not sent.writer.flush(0.0)
    held.release()
    assert standing(transport) == [0, 1, 2]
    assert [name for name, _, _ in sent.outcomes] == ["0:0", "1:0", "0:1", "1:1", "0:2", "1:2"]
    assert sent.writer.flush(0.0)


@pytest.mark.parametrize("how", ["seconds", "event", "records"])
def test_a_delayed_record_goes_on_by_itself(transport: FaultyTransport, faults: Faults, sent: Sent, how: str) -> None:
    event = threading.Event()
    if how == "seconds":
        faults.delay(EventFrame, seconds=0.05)
    elif how == "event":
        faults.delay(EventFrame, until=event)
    else:
        faults.delay(EventFrame, records=2)
    sent.append(frame(0))
    if how != "seconds":
        assert standing(transport) == []
    sent.append(frame(1))
    if how == "records":
        assert standing(transport) == []
        sent.append(frame(2))
    event.set()
    assert sent.writer.flush(DEADLINE_S)
    assert standing(transport) == [0, 1, 2][: 3 if how == "records" else 2]


def test_a_dropped_record_is_a_hole_for_every_reader_and_its_writer_believes_that_it_stands(
    transport: FaultyTransport, faults: Faults, sent: Sent
) -> None:
    faults.drop(EventFrame, skip=1)
    for sequence in range(3):
        sent.append(frame(sequence))
    assert sent.outcomes == [("0:0", 0, ""), ("0:1", 1, ""), ("0:2", 2, "")]
    assert standing(transport) == [0, 2]
    assert read(transport.of("another").reader({EVENTS: 0})) == [0, 2]
    assert [record.offset for record in transport.read_all(EVENTS)] == [0, 2]


def test_corrupt_and_duplicate_change_what_stands(transport: FaultyTransport, faults: Faults, sent: Sent) -> None:
    faults.corrupt(EventFrame)
    faults.duplicate(EventFrame)
    for sequence in range(3):
        sent.append(frame(sequence))
    assert standing(transport) == [-1, 1, 1, 2]
    assert [offset for _, offset, _ in sent.outcomes] == [0, 1, 3]


@pytest.mark.parametrize(
    ("ask", "stands"),
    [
        (lambda f: f.refuse(EventFrame, skip=1), [0]),
        (lambda f: f.unknown_outcome(EventFrame, stands=False, skip=1), [0]),
        (lambda f: f.unknown_outcome(EventFrame, stands=True, skip=1), [0, 1]),
    ],
)
def test_after_an_append_that_failed_a_writer_takes_nothing_more_and_another_one_does(
    transport: FaultyTransport, faults: Faults, sent: Sent, ask: Callable[[Faults], object], stands: list[int]
) -> None:
    ask(faults)
    sent.append(frame(0))
    sent.append(frame(1))
    with pytest.raises(AppendFailed, match="an earlier append failed"):
        sent.append(frame(2))
    assert standing(transport) == stands
    assert sent.outcomes[0] == ("0:0", 0, "")
    assert sent.outcomes[1][1] is None
    assert "an injected fault" in sent.outcomes[1][2]
    Sent(transport.writer()).append(frame(3))
    assert standing(transport) == [*stands, 3]


def test_what_is_held_fails_with_the_writer_and_behind_an_error_all_outcomes_are_errors(
    transport: FaultyTransport, faults: Faults, sent: Sent
) -> None:
    held = faults.hold(EventFrame, subtask=0)
    faults.refuse(EventFrame, subtask=1, skip=1)
    sent.append(frame(0))
    sent.append(frame(0), OTHER)
    sent.append(frame(1), OTHER)
    assert [(name, bool(error)) for name, _, error in sent.outcomes] == [("0:0", True), ("1:0", True), ("1:1", True)]
    held.release()
    assert standing(transport) == []


def test_closing_a_writer_fails_what_it_holds(faults: Faults, transport: FaultyTransport, sent: Sent) -> None:
    faults.hold(EventFrame)
    sent.append(frame(0))
    sent.writer.close(0.0)
    assert "closed" in sent.outcomes[0][2]
    faults.clear()
    assert standing(transport) == []


# ---- readers


def test_a_reader_that_lags_sees_nothing_behind_the_record_until_it_is_released(
    transport: FaultyTransport, faults: Faults, sent: Sent
) -> None:
    lag = faults.lag(EventFrame, subtask=0, skip=1)
    for sequence in range(3):
        sent.append(frame(sequence))
        sent.append(frame(10 + sequence), OTHER)
    reader = transport.reader({EVENTS: 0, OTHER: 0})
    assert read(reader) == [0, 10, 11, 12]
    assert read(reader) == []
    lag.release()
    assert read(reader) == [1, 2]


def test_a_seek_forgets_what_a_lag_held_back(transport: FaultyTransport, faults: Faults, sent: Sent) -> None:
    faults.lag(EventFrame)
    for sequence in range(3):
        sent.append(frame(sequence))
    reader = transport.reader({EVENTS: 0})
    assert read(reader) == []
    reader.seek(EVENTS, 1)
    assert read(reader) == [1, 2]


def test_a_waiting_poll_returns_when_the_lag_is_over(transport: FaultyTransport, faults: Faults, sent: Sent) -> None:
    lag = faults.lag(EventFrame)
    sent.append(frame(0))
    reader = transport.reader({EVENTS: 0})
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.extend(r.offset for r in reader.poll(DEADLINE_S)))
    thread.start()
    lag.wait_until_caught()
    lag.release()
    thread.join(DEADLINE_S)
    assert got == [0]


def test_a_missed_record_stands_and_is_read_by_whoever_reads_again(
    transport: FaultyTransport, faults: Faults, sent: Sent
) -> None:
    faults.miss(EventFrame, skip=1)
    for sequence in range(3):
        sent.append(frame(sequence))
    reader = transport.reader({EVENTS: 0})
    assert read(reader) == [0, 2]
    reader.seek(EVENTS, 0)
    assert read(reader) == [0, 1, 2]


# ---- commits


def test_a_commit_is_refused_or_has_no_outcome_as_asked_for(transport: FaultyTransport, faults: Faults) -> None:
    claim = encode(EpochClaimed(1, -1, 1, 10, {}, "", ""))

    def stands() -> int:
        return len(transport.read_all(Partition("penstock.job.checkpoints", 0)))

    log = transport.claim_log("penstock.job.checkpoints", "owner")
    faults.refuse(EpochClaimed)
    with pytest.raises(AppendFailed):
        log.commit([("epoch", claim)])
    log.commit([("epoch", claim)])
    assert stands() == 1, "after a certain no the log can still be used"
    faults.unknown_outcome(EpochClaimed, stands=True)
    with pytest.raises(OutcomeUnknown):
        log.commit([("tombstone", None), ("epoch", claim)])
    assert stands() == 3
    with pytest.raises(Fenced):
        log.commit([("epoch", claim)])
    log = transport.claim_log("penstock.job.checkpoints", "owner")
    faults.unknown_outcome(EpochClaimed, stands=False)
    with pytest.raises(OutcomeUnknown):
        log.commit([("epoch", claim)])
    assert stands() == 3


def test_a_commit_cannot_be_dropped_and_that_is_said(faults: Faults) -> None:
    with pytest.raises(ConfigurationError, match="atomic"):
        faults.drop(CheckpointCommit)
    with pytest.raises(ConfigurationError, match="atomic"):
        faults.lag(CheckpointCommit | EpochClaimed)


# ---- the broker, and processes


def test_while_the_broker_is_away_appends_wait_readers_get_nothing_and_calls_time_out(
    transport: FaultyTransport, faults: Faults, sent: Sent
) -> None:
    sent.append(frame(0))
    reader = transport.reader({EVENTS: 0})
    log = transport.claim_log("penstock.job.checkpoints", "owner")
    transport.commit_timeout_s = 0.05
    impatient = transport.claim_log("penstock.job.checkpoints", "another")
    with faults.broker_away():
        sent.append(frame(1))
        assert not sent.writer.flush(0.0)
        assert read(reader) == []
        with pytest.raises(BrokerUnreachable):
            transport.offsets([EVENTS], timeout_s=0.05)
        with pytest.raises(OutcomeUnknown):
            impatient.commit([("epoch", encode(EpochClaimed(1, -1, 1, 10, {}, "", "")))])
    assert sent.writer.flush(DEADLINE_S)
    assert read(reader) == [0, 1]
    log.commit([("epoch", None)])


def test_a_broker_that_is_away_for_one_process_is_there_for_others(transport: FaultyTransport, faults: Faults) -> None:
    with faults.broker_away("op/0"):
        with pytest.raises(BrokerUnreachable, match="op/0"):
            transport.check(0.05)
        assert "topic" in transport.of("op/1").check(0.05)


def test_a_crashed_process_writes_and_reads_nothing_not_even_what_it_had_queued(
    transport: FaultyTransport, faults: Faults, sent: Sent
) -> None:
    held = faults.hold(EventFrame, skip=1)
    reader = transport.reader({EVENTS: 0})
    log = transport.claim_log("penstock.job.checkpoints", "owner")
    sent.append(frame(0))
    sent.append(frame(1))
    transport.crash()
    held.release()
    with pytest.raises(AppendFailed, match="crashed"):
        sent.append(frame(2))
    with pytest.raises(OutcomeUnknown, match="crashed"):
        log.commit([("epoch", None)])
    with pytest.raises(BrokerUnreachable, match="crashed"):
        transport.offsets([EVENTS])
    assert read(reader) == []
    assert standing(transport.of("another")) == [0]


def test_a_frozen_process_stops_at_its_next_call_and_goes_on_where_it_was(
    transport: FaultyTransport, faults: Faults, sent: Sent
) -> None:
    transport.freeze()
    thread = threading.Thread(target=sent.append, args=(frame(0),))
    thread.start()
    transport.process.wait_until_stopped(lambda stopped: stopped is thread, DEADLINE_S)
    assert standing(transport.of("another")) == []
    transport.thaw()
    thread.join(DEADLINE_S)
    assert standing(transport) == [0]
    assert [injected.fault for injected in faults.injected] == ["freeze", "thaw"]


# ---- which records, and what is told of them


@pytest.mark.parametrize(
    ("ask", "caught"),
    [
        (lambda f: f.watch(Heartbeat), 2),
        (lambda f: f.watch(Heartbeat | Hello), 3),
        (lambda f: f.watch((Heartbeat, EventFrame)), 3),
        (lambda f: f.watch(), 6),
        (lambda f: f.watch(subtask=1), 2),
        (lambda f: f.watch(operator="op"), 4),
        (lambda f: f.watch(operator="other"), 1),
        (lambda f: f.watch(process="op/0"), 6),
        (lambda f: f.watch(process="op/1"), 0),
        (lambda f: f.watch(Heartbeat, where=lambda record: record.handled_through > 3), 1),
        (lambda f: f.watch(where=lambda record: True), 5),
        (lambda f: f.watch(skip=2, times=3), 3),
        (lambda f: f.watch(CheckpointCompleted), 0),
    ],
)
def test_a_fault_is_for_the_records_it_names(
    faults: Faults, sent: Sent, ask: Callable[[Faults], object], caught: int
) -> None:
    watched = ask(faults)
    sent.append(heartbeat(0), ACKS)
    sent.append(heartbeat(1, through=4), ACKS)
    sent.append(hello("other"), ACKS)
    sent.append(frame(0))
    sent.append(Stop(1, 0, "", ""), OTHER)
    sent.writer.append(ACKS, b"garbage")
    assert len(watched.caught) == caught  # type: ignore[attr-defined]


def test_the_fault_that_was_made_first_has_the_record_and_the_next_one_the_next(
    transport: FaultyTransport, faults: Faults, sent: Sent
) -> None:
    first, second = faults.drop(EventFrame), faults.corrupt(EventFrame)
    assert faults.waiting == [first, second]
    sent.append(frame(0))
    assert faults.waiting == [second]
    sent.append(frame(1))
    sent.append(frame(2))
    assert standing(transport) == [-1, 2]
    assert [injected.fault for injected in faults.injected] == ["drop", "corrupt"]


def test_what_happened_is_listed_logged_and_said_in_words(
    faults: Faults, sent: Sent, caplog: pytest.LogCaptureFixture
) -> None:
    fault = faults.drop(Hello, operator="op", subtask=1)
    with caplog.at_level("INFO", "penstock.testing"):
        sent.append(hello(subtask=1), ACKS)
    injected = fault.wait_until_caught()
    assert faults.injected == [injected] == fault.caught
    assert isinstance(injected, Injected)
    assert injected.record == hello(subtask=1)
    assert str(injected) == "drop: Hello(run=run, nonce=n), op/1 on penstock.job.acks[0] [op/0]"
    assert "fault injected: drop: Hello" in caplog.text


def test_a_fault_that_never_comes_is_named_by_the_wait_for_it(faults: Faults) -> None:
    with pytest.raises(TimeoutError, match=r"hold of Hello\(operator=op\) has happened 0 times"):
        faults.hold(Hello, operator="op").wait_until_caught(0.05)


def test_what_cannot_be_meant_is_refused(faults: Faults) -> None:
    with pytest.raises(ConfigurationError, match="exactly one"):
        faults.delay(Hello)
    with pytest.raises(ConfigurationError, match="probabilities"):
        faults.at_random(delay=0.7, refuse=0.7)
    with pytest.raises(ConfigurationError, match="record class"):
        faults.drop("Hello")  # type: ignore[arg-type]


# ---- at random


def fates(seed: int, process: str = "op/0") -> list[str]:
    faults = Faults(seed)
    transport = FaultyTransport(MemoryTransport(MemoryBroker()), faults, process=process)
    transport.create_topics([TopicSpec(EVENTS.topic, 2)])
    faults.at_random(EventFrame, drop=0.2, corrupt=0.2, duplicate=0.2)
    sent = Sent(transport.writer())
    for sequence in range(50):
        sent.append(frame(sequence))
    return [f"{i.fault} {i.record.sequence}" for i in faults.injected if isinstance(i.record, EventFrame)]


def test_the_same_seed_has_the_same_fate_for_each_record_and_another_seed_another() -> None:
    assert fates(1) == fates(1)
    assert fates(1) != fates(2)
    assert fates(1) != fates(1, process="op/1")
    assert 15 <= len(fates(1)) <= 45


def test_random_faults_leave_the_status_topic_alone_unless_told_otherwise(faults: Faults, sent: Sent) -> None:
    from penstock.schemas.status import CommandReply

    chaos = faults.at_random(drop=1.0)
    sent.append(CommandReply("", True, "", -1, b""), ACKS)
    assert chaos.caught == []
    sent.append(hello(), ACKS)
    assert len(chaos.caught) == 1
