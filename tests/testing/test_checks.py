"""check_logs finds what the protocol rules out, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from penstock.client.job_client import JobClient
from penstock.schemas.checkpoints import CheckpointPart
from penstock.schemas.codec import Record, decode, encode
from penstock.schemas.errors import UnreadableRecord
from penstock.schemas.events import EventFrame, TriggerCheckpoint
from penstock.schemas.settings import JobSettings
from penstock.testing import Faults, LogsContradict, check_logs
from penstock.transport import MemoryBroker, MemoryTransport, Partition

from .jobs import Course, counting_job, ends_exactly, run, wait_checkpoint


class Told(MemoryTransport):
    """The logs of a job that has run, for a test to write into."""

    settings: JobSettings

    def events(self, subtask: int) -> Partition:
        return Partition(self.settings.topics.events("reader"), subtask)

    def append(self, partition: Partition, record: Record) -> None:
        writer = self.writer()
        writer.append(partition, encode(record), b"")
        writer.close()

    def newest(self, kind: type, subtask: int = 0) -> object:
        found = [decode(record.value) for record in self.read_all(self.events(subtask))]
        return [record for record in found if isinstance(record, kind)][-1]


@pytest.fixture
def told() -> Told:
    transport, course = Told(MemoryBroker()), Course()
    job = counting_job(course, checkpoint={"retained": 3})
    with run(job, transport, Faults()) as running:
        ends_exactly(running, course)
    transport.settings = job.settings
    check_logs(transport, job.settings)
    return transport


@pytest.mark.damages_logs("events out of sequence")
def test_an_event_that_is_missing_is_found(told: Told) -> None:
    last = told.newest(EventFrame, 1)
    assert isinstance(last, EventFrame)
    told.append(told.events(1), dataclasses.replace(last, sequence=last.sequence + last.count + 1))
    with pytest.raises(LogsContradict, match=rf"reader/1.*begins with event {last.sequence + last.count + 1}"):
        check_logs(told, told.settings)


@pytest.mark.damages_logs("events out of sequence")
def test_an_event_that_stands_twice_is_found(told: Told) -> None:
    last = told.newest(EventFrame, 0)
    assert isinstance(last, EventFrame)
    told.append(told.events(0), last)
    due = last.sequence + last.count
    with pytest.raises(LogsContradict, match=rf"reader/0.*begins with event {last.sequence} .*and event {due} is due"):
        check_logs(told, told.settings)


@pytest.mark.damages_logs("a marker out of sequence")
def test_a_marker_that_names_another_sequence_is_found(told: Told) -> None:
    last = told.newest(TriggerCheckpoint, 0)
    assert isinstance(last, TriggerCheckpoint)
    told.append(told.events(0), dataclasses.replace(last, checkpoint_id=10_000, sequence=last.sequence + 1))
    with pytest.raises(LogsContradict, match="marker of checkpoint 10000"):
        check_logs(told, told.settings)


def append(transport: MemoryTransport, settings: JobSettings, record: Record) -> None:
    writer = transport.writer()
    writer.append(Partition(settings.topics.events("reader"), 0), encode(record), b"")
    writer.close()


class Keeping(MemoryTransport):
    """Truncates nothing: as if it had not come to that yet."""

    def truncate(self, positions: Mapping[Partition, int], timeout_s: float = 30.0) -> None:
        pass


@pytest.mark.damages_logs("a checkpoint that is no cut")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("events", "those sent before the cut are the ones below"),
        ("position", "its marker lies at"),
        ("part", "has no part of reader/0"),
        ("next", "the first one behind its position"),
    ],
)
def test_a_checkpoint_that_is_no_cut_is_found(change: str, says: str) -> None:
    transport, course = Keeping(MemoryBroker()), Course()
    job = counting_job(course)
    with run(job, transport, Faults()) as running:
        wait_checkpoint(running, course)
        running.crash_coordinator()  # nothing is finished yet
    settings = job.settings
    check_logs(transport, settings)
    last = JobClient(transport, job.name).history().last
    assert last is not None
    partition = Partition(settings.topics.checkpoints, 0)
    found = [(r.key or b"", decode(r.value)) for r in transport.read_all(partition) if r.value is not None]
    (key, part), *_ = [(k, r) for k, r in found if isinstance(r, CheckpointPart) and r.checkpoint_id == last.id]
    (header,) = [r for k, r in found if r is last.header or r == last.header]
    one = part.subtasks[0]
    match change:
        case "events":
            one = dataclasses.replace(one, handled_through=one.handled_through + 1)
        case "position":
            one = dataclasses.replace(one, event_position=0)
        case "next":  # its marker is gone; behind its position there is one event at least
            frames = [decode(r.value) for r in transport.read_all(Partition(settings.topics.events("reader"), 0))]
            ends = [f.sequence + f.count for f in frames if isinstance(f, EventFrame)]
            append(transport, settings, EventFrame(one.epoch, one.attempt, max(ends, default=0), 0, b"", b""))
            MemoryTransport.truncate(transport, {Partition(settings.topics.events("reader"), 0): one.event_position})
            one = dataclasses.replace(one, handled_through=one.handled_through + 1)
    subtasks = part.subtasks[1:] if change == "part" else (one, *part.subtasks[1:])
    log = transport.claim_log(partition.topic, "a hand")
    log.commit([(key.decode(), encode(dataclasses.replace(part, subtasks=subtasks))), ("x", encode(header))])
    with pytest.raises(LogsContradict, match=rf"checkpoint {last.id}.*{says}"):
        check_logs(transport, settings)


def test_garbage_truncation_and_a_log_without_anything_are_no_contradiction(told: Told) -> None:
    writer = told.writer()
    writer.append(told.events(0), b"garbage")
    writer.close()
    with pytest.raises(UnreadableRecord):
        decode(b"garbage")
    there = told.offsets([told.events(0)])[told.events(0)]
    told.truncate({told.events(0): (there.begin + there.end) // 2})
    check_logs(told, told.settings)
    empty = counting_job(Course()).settings
    told.create_topics(empty.topics.specs(empty.parallelism))
    check_logs(told, empty)
