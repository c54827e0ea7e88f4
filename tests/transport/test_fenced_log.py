"""Contract of the fenced log, for both transports (protocol, section 4)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from penstock.schemas.errors import AppendFailed, Fenced, OutcomeUnknown, TopicMissing
from penstock.transport import LogRecord, Partition, Reader, Transport

OWNER = "penstock.job.coordinator"
MakeTopic = Callable[..., str]
ReadRecords = Callable[[Reader, int], list[LogRecord]]
AppendAll = Callable[[Partition, list[bytes]], None]


@pytest.fixture
def log(make_topic: MakeTopic) -> Partition:
    return Partition(make_topic(1, {"cleanup.policy": "compact"}), 0)


def content(transport: Transport, log: Partition) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in transport.read_all(log, 20.0)]


def test_read_all_gives_the_commits_in_order_tombstones_included(transport: Transport, log: Partition) -> None:
    owner = transport.claim_log(log.topic, log.topic)
    owner.commit([("a", b"1"), ("b", b"2")])
    owner.commit([("a", None)])
    owner.close()
    assert content(transport, log) == [(b"a", b"1"), (b"b", b"2"), (b"a", None)]


def test_an_empty_log_reads_as_nothing_before_and_after_the_claim(transport: Transport, log: Partition) -> None:
    assert content(transport, log) == []
    transport.claim_log(log.topic, log.topic).close()
    assert content(transport, log) == []


def test_an_empty_commit_changes_nothing(transport: Transport, log: Partition) -> None:
    owner = transport.claim_log(log.topic, log.topic)
    owner.commit([])
    owner.close()
    assert content(transport, log) == []


def test_a_commit_of_many_records_is_seen_whole_or_not_at_all(transport: Transport, log: Partition) -> None:
    """A reader that polls while commits of 50 run never has a part of one at the end of what it has read for good."""
    owner = transport.claim_log(log.topic, log.topic)
    done = threading.Event()

    def commit() -> None:
        for n in range(20):
            owner.commit([(f"{n}/{i}", b"x" * 1_000) for i in range(50)])
        done.set()

    thread = threading.Thread(target=commit)
    thread.start()
    sizes = []
    while not done.is_set():
        sizes.append(len(transport.read_all(log, 20.0)))
    thread.join(30.0)
    assert [size for size in sizes if size % 50] == []
    assert len(transport.read_all(log, 20.0)) == 1_000
    owner.close()


def test_a_second_claim_fences_the_first(transport: Transport, log: Partition) -> None:
    first = transport.claim_log(log.topic, log.topic)
    first.commit([("a", b"1")])
    second = transport.claim_log(log.topic, log.topic)
    with pytest.raises(Fenced, match="newer owner") as caught:
        first.commit([("a", b"zombie")])
    assert not isinstance(caught.value, OutcomeUnknown)
    with pytest.raises(Fenced):
        first.commit([("a", b"zombie again")])
    second.commit([("a", b"2")])
    first.close()
    second.close()
    assert content(transport, log) == [(b"a", b"1"), (b"a", b"2")]


def test_claims_under_other_names_do_not_fence(transport: Transport, log: Partition) -> None:
    mine = transport.claim_log(log.topic, log.topic)
    other = transport.claim_log(log.topic, log.topic + ".other")
    mine.commit([("a", b"1")])
    other.commit([("b", b"2")])
    mine.close()
    other.close()
    assert content(transport, log) == [(b"a", b"1"), (b"b", b"2")]


def test_a_record_too_large_commits_nothing_and_the_log_stays_usable(transport: Transport, log: Partition) -> None:
    owner = transport.claim_log(log.topic, log.topic)
    with pytest.raises(AppendFailed, match=f"{transport.max_record_bytes + 1} bytes .* under 'big'"):
        owner.commit([("a", b"1"), ("big", b"x" * (transport.max_record_bytes + 1))])
    owner.commit([("b", b"2")])
    owner.close()
    assert content(transport, log) == [(b"b", b"2")]


def test_a_large_commit_of_many_records_passes(transport: Transport, log: Partition) -> None:
    owner = transport.claim_log(log.topic, log.topic)
    owner.commit([(str(i), b"x" * 500_000) for i in range(20)])
    owner.close()
    assert [record.key for record in transport.read_all(log)] == [str(i).encode() for i in range(20)]


def test_a_closed_log_takes_nothing(transport: Transport, log: Partition) -> None:
    owner = transport.claim_log(log.topic, log.topic)
    owner.close()
    with pytest.raises(Fenced, match="closed"):
        owner.commit([("a", b"1")])
    assert content(transport, log) == []


def test_claiming_a_missing_log_is_topic_missing(transport: Transport, log: Partition) -> None:
    with pytest.raises(TopicMissing, match=log.topic + ".missing"):
        transport.claim_log(log.topic + ".missing", OWNER)


def test_read_all_gives_the_records_of_a_plain_partition_too(
    transport: Transport, make_topic: MakeTopic, append_all: AppendAll
) -> None:
    partition = Partition(make_topic(1), 0)
    append_all(partition, [b"%d" % i for i in range(30_000)])
    transport.truncate({partition: 10})
    assert [r.offset for r in transport.read_all(partition)] == list(range(10, 30_000))


def test_a_reader_gets_commits_as_they_come(transport: Transport, log: Partition, read_records: ReadRecords) -> None:
    owner = transport.claim_log(log.topic, log.topic)
    reader = transport.reader({log: 0})
    for n in range(5):
        owner.commit([("a", b"%d" % n), ("b", b"%d" % n)])
        assert [r.value for r in read_records(reader, 2)] == [b"%d" % n] * 2
    reader.close()
    owner.close()
