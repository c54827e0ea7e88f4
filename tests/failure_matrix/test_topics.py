"""Topics that were deleted, recreated or truncated, and what does not belong on them (protocol, section 11)."""

from __future__ import annotations

import re

import pytest
from confluent_kafka import Producer

from penstock.cli.exits import Exit
from penstock.schemas.acks import CoordinatorHeartbeat, Heartbeat
from penstock.schemas.checkpoints import JobFinished, JobOutcome
from penstock.schemas.codec import encode
from penstock.schemas.state import Sender
from penstock.transport.ports import Partition

from .conftest import MakeRig
from .rig import COORDINATOR, FIRST, Rig

pytestmark = pytest.mark.kafka


def refused(rig: Rig, *arguments: str) -> str:
    """What a coordinator says that may not start; it has claimed nothing."""
    coordinator = rig.start_coordinator(*arguments)
    assert coordinator.ended() == Exit.FAILED, coordinator.said()
    claimed = rig.gates.of(COORDINATOR, "before-commit-of-epoch")
    assert coordinator.pid not in {claim.pid for claim in claimed}
    lines = [line for line in coordinator.said().splitlines() if line.startswith("penstock: ")]
    return lines[-1]


def starts_anew(rig: Rig) -> None:
    """The way out that the message named."""
    rig.announce()
    rig.start_coordinator("--fresh")
    rig.start_subtasks()
    rig.finish()


@pytest.mark.damages_logs("a topic made again")
@pytest.mark.parametrize("which", ["acks", "events"])
def test_a_recreated_topic_refuses_the_start(make_rig: MakeRig, which: str) -> None:
    with make_rig().start() as rig:
        rig.run_up_to(20)
        rig.kill_all()
        topic = rig.topics.acks if which == "acks" else rig.topics.events("list")
        was = rig.transport.describe_topics([topic])[topic].topic_id
        rig.transport.delete_topics([topic])
        said = refused(rig)
        now = rig.transport.describe_topics([topic])[topic].topic_id
        assert f"topic {topic} is not the one" in said
        assert was in said and now in said
        assert f"penstock purge {rig.settings.name}" in said


@pytest.mark.damages_logs("the checkpoint log deleted")
def test_a_lost_checkpoint_log_refuses_the_start(make_rig: MakeRig) -> None:
    with make_rig().start() as rig:
        rig.run_up_to(20)
        rig.kill_all()
        rig.transport.delete_topics([rig.topics.checkpoints])
        said = refused(rig)
        assert "the log was lost" in said and "list/0" in said
        assert f"penstock purge {rig.settings.name}" in said


@pytest.mark.damages_logs("acks truncated above what is needed")
def test_acks_truncated_below_a_needed_position_refuse_the_start_and_fresh_is_a_way_out(make_rig: MakeRig) -> None:
    with make_rig().start() as rig:
        rig.run_up_to(20)
        rig.kill_all()
        acks = Partition(rig.topics.acks, 0)
        last = rig.client.history().last
        assert last is not None
        end = rig.transport.offsets([acks])[acks].end
        assert last.inbox_position < end
        rig.transport.truncate({acks: end})
        said = refused(rig)
        assert f"checkpoint {last.id} of job {rig.settings.name} needs {rig.topics.acks}" in said
        assert f"from offset {last.inbox_position}, and it holds offsets {end} to {end}" in said
        assert "--fresh" in said
        starts_anew(rig)


def test_events_truncated_under_a_running_job_fail_it_with_the_offsets_and_it_resumes_when_started_again(
    make_rig: MakeRig,
) -> None:
    """An open position is needed only in the epoch that it belongs to."""
    with make_rig(restart={"budget": 2}).start() as rig:
        rig.run_up_to(20)
        held = rig.gates.hold(FIRST, "handled", lambda p: p.n == 30)
        rig.gates.limit = 40
        held.wait()
        events = Partition(rig.topics.events("list"), 0)
        end = rig.transport.offsets([events])[events].end
        rig.transport.truncate({events: end})
        rig.subtasks[0].child.kill()
        assert rig.coordinator.ended() == Exit.FAILED
        said = next(line for line in rig.coordinator.said().splitlines() if line.startswith("penstock: "))
        assert f"partition {events} at {rig.bootstrap}" in said
        assert re.search(rf"offset \d+ is wanted, offsets {end} to \d+ are available", said), said
        rig.announce()
        rig.start_coordinator()
        rig.start_subtasks()
        rig.finish()


def test_garbage_and_foreign_records_in_an_events_partition_are_counted_logged_and_kept_out(make_rig: MakeRig) -> None:
    with make_rig().start() as rig:
        rig.run_up_to(20)
        foreign = [None, b"", b"garbage", b"\xc3\x01garbage", encode(CoordinatorHeartbeat(99, "elsewhere"))]
        events = Partition(rig.topics.events("list"), 0)
        offsets = write(rig, events, foreign)
        rig.run_up_to(40)
        log = rig.subtasks[0].child.said()
        for offset in offsets:
            assert f"offset {offset} of {events} is kept out" in log
        rig.wait_until(
            lambda: counted_by_the_first(rig) == len(foreign), f"a count of {len(foreign)} unreadable records"
        )
        status = rig.finish()
        assert (status.failovers_region, status.failovers_global) == (0, 0)


@pytest.mark.damages_logs("a heartbeat of an attempt that never was")
def test_garbage_and_foreign_records_on_the_acks_topic_are_counted_logged_and_kept_out(make_rig: MakeRig) -> None:
    with make_rig().start() as rig:
        rig.run_up_to(20)
        finished = encode(JobFinished(99, JobOutcome.STOPPED, "somebody says so", "some run"))
        acks = Partition(rig.topics.acks, 0)
        offsets = write(rig, acks, [None, b"", b"garbage", b"\xc3\x01garbage", finished])
        write(rig, acks, [encode(Heartbeat(Sender("list", 0, 10**9, 1, 0), 1000, "sleeping", 0, False, {}))])
        rig.run_up_to(40)
        for offset in offsets:
            assert f"record {offset} of {acks} kept out" in rig.coordinator.said()
        status = rig.finish()
        assert status.dropped["unreadable"] == len(offsets)
        assert status.dropped["stale-Heartbeat"] == 1
        assert (status.failovers_region, status.failovers_global) == (0, 0)


def test_garbage_on_the_acks_topic_does_not_disturb_a_successor_that_reads_it_again(make_rig: MakeRig) -> None:
    with make_rig().start() as rig:
        rig.run_up_to(20)
        rig.coordinator.kill()
        write(rig, Partition(rig.topics.acks, 0), [None, b"", b"garbage"])
        rig.start_coordinator()
        rig.finish()
        assert rig.epochs() == [1, 2]


@pytest.mark.damages_logs("foreign records in the checkpoint log")
def test_foreign_records_in_the_checkpoint_log_are_counted_and_kept_out_of_a_successor(make_rig: MakeRig) -> None:
    with make_rig().start() as rig:
        rig.run_up_to(20)
        log = Partition(rig.topics.checkpoints, 0)
        write(rig, log, [b"garbage", encode(CoordinatorHeartbeat(1, "elsewhere"))])
        rig.run_up_to(40)
        rig.coordinator.kill()
        successor = rig.start_coordinator()
        rig.finish()
        assert f"2 records of {log} are not the job's" in successor.said()
        assert rig.epochs() == [1, 2]


def test_garbage_on_the_status_topic_is_passed_over(make_rig: MakeRig) -> None:
    with make_rig().start() as rig:
        rig.run_up_to(20)
        write(rig, Partition(rig.topics.status, 0), [None, b"", b"garbage"])
        assert rig.client.status() is not None
        rig.finish()


def write(rig: Rig, partition: Partition, values: list[bytes | None]) -> list[int]:
    """Records of somebody who knows nothing of ours; their offsets."""
    producer = Producer({"bootstrap.servers": rig.bootstrap})
    offsets: list[int] = []
    for value in values:
        producer.produce(
            partition.topic,
            value,
            b"a key",
            partition.index,
            on_delivery=lambda error, message: offsets.append(message.offset() or 0),
        )
    assert producer.flush(30.0) == 0
    assert len(offsets) == len(values)
    return offsets


def counted_by_the_first(rig: Rig) -> int:
    """What list/0 has told last of records that it could not read."""
    beats = [r for _, r in rig.records(rig.topics.acks) if isinstance(r, Heartbeat) and r.sender.subtask == 0]
    counts = [int(beat.metrics.get("penstock_dropped_unreadable", 0)) for beat in beats if beat.metrics]
    return counts[-1] if counts else 0
