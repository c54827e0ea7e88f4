"""A dry run says of each record what a restored subtask does with it, by the subtask's own rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.recorded.dry_run import DryRun, Judged, Restore, Restored, Verdict, policy_in, restored
from penstock.recorded.reading import LogReading, Recorded, recorded
from penstock.schemas.checkpoints import SubtaskSnapshot
from penstock.schemas.codec import Record, encode
from penstock.schemas.errors import ConfigurationError, PositionUnavailable
from penstock.schemas.events import CheckpointCompleted, EventFrame, FailoverPolicy, Start, TriggerCheckpoint
from penstock.schemas.frames import pack
from penstock.schemas.ids import SubtaskId
from penstock.schemas.state import Segment
from penstock.transport import LogRecord, Partition
from tests.coordinator.jobs import Plan, make_job, run

from .conftest import Ran

SUBTASK = SubtaskId("op", 0)
SNAPSHOT = SubtaskSnapshot(0, 5, 2, 0, 30, None, 10, (), 7, 0, (), False)


def at(offset: int, record: Record | None) -> Recorded:
    value = b"garbage" if record is None else encode(record)
    return recorded(LogRecord(Partition("penstock.job.op.events", 0), offset, 0, None, value))


def frame(epoch: int, sequence: int, *events: bytes, attempt: int = 5) -> EventFrame:
    return EventFrame(epoch, attempt, sequence, *pack(events))


def begun(start_offset: int = 100, snapshot: SubtaskSnapshot = SNAPSHOT, **start: object) -> Restored:
    default = Start(
        epoch=2, generation=1, attempt=90, nonce="dry-run", checkpoint_id=4, state=None, next_checkpoint_id=5,
        expected_epoch=2, expected_sequence=7, event_position=10, event_ranges=(), data_positions=(),
        policy=FailoverPolicy.REPLAY,
    )  # fmt: skip
    return Restored(SUBTASK, Restore.FAILOVER, replace(default, **start), start_offset, snapshot)  # type: ignore[arg-type]


def verdicts(dry_run: DryRun, *records: Recorded) -> list[tuple[int, str, str]]:
    return [(j.found.offset, j.verdict.value, j.why) for j in dry_run.judge_all(records)]


def test_frames_behind_the_position_are_handled_and_everything_else_is_told_with_its_reason() -> None:
    dry_run = DryRun("job", begun())
    assert verdicts(
        dry_run,
        at(9, frame(2, 6, b"in the state")),
        at(10, frame(2, 7, b"a", b"b")),
        at(11, TriggerCheckpoint(2, 5, 9, False, False)),
        at(12, CheckpointCompleted(2, 5)),
        at(13, frame(1, 0, b"zombie")),
        at(14, None),
        at(15, frame(2, 9, b"c")),
        at(16, frame(3, 0, b"later")),
        at(100, frame(2, 10, b"behind its Start")),
    ) == [
        (9, "not read", "below offset 10, where reading goes on"),
        (10, "handled", "behind the event position"),
        (11, "skipped", "marker of checkpoint 5 below the own Start: dead"),
        (12, "skipped", "control record below the own Start: void"),
        (13, "skipped", "older epoch: void (sent in epoch 1, behind the event position epoch 2 counts)"),
        (14, "skipped", "no published schema explains it; were it a frame, the next one would show a gap"),
        (15, "handled", "behind the event position"),
        (16, "skipped", "another epoch (sent in epoch 3, behind the event position epoch 2 counts)"),
    ]
    assert (dry_run.events, dry_run.handled_through) == (3, 10)


def test_a_range_is_read_first_under_the_epoch_and_attempt_that_it_names() -> None:
    ranges = (Segment(3, 5, 1, 0, 2), Segment(7, 8, 1, 0, 2))
    dry_run = DryRun(
        "job",
        begun(event_ranges=ranges, expected_epoch=1, expected_sequence=20, event_position=60, epoch=2),
    )
    told = verdicts(
        dry_run,
        at(3, frame(1, 20, b"a")),
        at(4, TriggerCheckpoint(1, 3, 21, False, False)),
        at(5, frame(1, 99, b"between")),
        at(7, frame(1, 21, b"b")),
        at(59, frame(1, 22, b"void")),
        at(60, frame(2, 0, b"new")),
    )
    assert [(offset, verdict) for offset, verdict, _ in told] == [
        (3, "handled"), (4, "skipped"), (5, "not read"), (7, "handled"), (59, "not read"), (60, "handled"),
    ]  # fmt: skip
    assert told[0][2] == "in a range of the checkpoint"
    assert told[4][2] == "void: sent in epoch 1, and the restore begins epoch 2 behind it"


def test_a_frame_that_stands_twice_is_skipped() -> None:
    told = verdicts(DryRun("job", begun()), at(10, frame(2, 7, b"a")), at(11, frame(2, 7, b"a")))
    assert [said[1:] for said in told][1:] == [("skipped", "its events stand above already: its writer repeats them")]


def test_a_frame_that_skips_events_fails_the_attempt_and_nothing_behind_it_is_read() -> None:
    dry_run = DryRun("job", begun())
    told = verdicts(dry_run, at(10, frame(2, 7, b"a")), at(11, frame(2, 9, b"c")), at(12, frame(2, 8, b"b")))
    assert [verdict for _, verdict, _ in told] == ["handled", "fails", "not read"]
    assert "expected sequence 8 of epoch 2, but the frame at offset 11 has 9" in told[1][2]
    assert dry_run.verdicts[Verdict.FAILS] == 1


def test_under_policy_reset_a_range_counts_for_its_attempt_and_nothing_else_does() -> None:
    ranges = (Segment(3, 6, 2, 0, 5),)
    dry_run = DryRun("job", begun(event_ranges=ranges, policy=FailoverPolicy.RESET))
    told = verdicts(
        dry_run,
        at(3, frame(2, 3, b"other", attempt=4)),
        at(4, frame(2, 7, b"a")),
        at(5, TriggerCheckpoint(2, 4, 8, False, False)),
        at(10, frame(2, 8, b"b")),
    )
    assert [verdict for _, verdict, _ in told] == ["skipped", "handled", "skipped", "not read"]
    assert told[0][2] == "not for this attempt (sent to 4, in this range attempt 5 counts)"
    assert told[3][2].startswith("policy reset")


# ---- a job's own log


def judged(ran: Ran, begins: Restored) -> tuple[DryRun, list[Judged]]:
    job = ran.recorded
    log = LogReading(ran.transport, {job.events(begins.subtask): begins.begin})
    dry_run = DryRun(job.name, begins)
    return dry_run, list(dry_run.judge_all(one for one in log if isinstance(one, Recorded)))


def test_a_failover_gets_what_was_sent_since_the_checkpoint(ran: Ran) -> None:
    job = ran.recorded
    for checkpoint_id, expected in zip(ran.checkpoints, ([b"b", b"c"], [b"c"]), strict=True):
        begins = restored(job, SUBTASK, job.checkpoint(checkpoint_id), FailoverPolicy.REPLAY)
        assert begins.how is Restore.FAILOVER
        dry_run, found = judged(ran, begins)
        events = [event for one in found for event in one.events]
        assert events == [b"%s%d" % (letter, n) for letter in expected for n in range(3)]
        assert dry_run.verdicts[Verdict.FAILS] == 0


def test_a_subtask_that_fails_behind_a_restart_gets_what_was_sent_since_that(ran: Ran) -> None:
    """What a poisonous event looks like: no checkpoint completes any more, and each failover gives it again."""
    plan, last = Plan(), ran.checkpoints[-1]
    with run(make_job(plan, "ran", parallelism=2, interval=None), ran.transport) as again:
        plan.wait_gateways(0, 1)
        plan.gateways[0].send_event(b"behind")
        plan.wait_handled(b"behind", 0)
        again.crash_coordinator()
    job = ran.recorded
    begun = restored(job, SUBTASK, job.checkpoint(last), FailoverPolicy.REPLAY)
    dry_run, found = judged(ran, begun)
    assert (begun.how, begun.start.epoch) == (Restore.FAILOVER, 2)
    assert [event for one in found for event in one.events] == [b"behind"]
    assert dry_run.verdicts[Verdict.FAILS] == 0
    older = restored(job, SUBTASK, job.checkpoint(ran.checkpoints[0]), FailoverPolicy.REPLAY)
    assert older.how is Restore.RESTART


def test_a_restart_gets_nothing_that_was_sent_since_the_checkpoint(ran: Ran) -> None:
    job = ran.recorded
    begins = restored(job, SUBTASK, job.checkpoint(ran.checkpoints[0]), FailoverPolicy.REPLAY, Restore.RESTART)
    dry_run, found = judged(ran, begins)
    assert (dry_run.events, begins.start.epoch) == (0, job.history.epoch + 1)
    assert found
    assert {one.verdict for one in found} == {Verdict.NOT_READ}


def test_what_it_would_read_and_is_gone_is_refused_with_the_ways_out(ran: Ran) -> None:
    job = ran.recorded
    first, second = (job.checkpoint(n) for n in ran.checkpoints)
    partition = job.events(SUBTASK)
    ran.transport.truncate({partition: second.subtasks[SUBTASK].event_position})
    with pytest.raises(PositionUnavailable, match=r"would read .* from offset .*--restart"):
        restored(job, SUBTASK, first, FailoverPolicy.REPLAY)
    assert restored(job, SUBTASK, first, FailoverPolicy.REPLAY, Restore.RESTART).first_read > 0
    assert restored(job, SUBTASK, second, FailoverPolicy.REPLAY).first_read > 0


@pytest.mark.damages_logs("truncated above what is needed")
def test_the_policy_is_read_from_the_log_where_a_start_is_left(ran: Ran) -> None:
    job = ran.recorded
    assert policy_in(job, SUBTASK) is FailoverPolicy.REPLAY
    partition = job.events(SUBTASK)
    ran.transport.truncate({partition: ran.transport.offsets([partition])[partition].end})
    assert policy_in(job, SUBTASK) is None


def test_a_subtask_that_the_checkpoint_does_not_have_is_refused(ran: Ran) -> None:
    job = ran.recorded
    with pytest.raises(ConfigurationError, match="has no part of op/7"):
        restored(job, SubtaskId("op", 7), job.checkpoint(ran.checkpoints[0]), FailoverPolicy.REPLAY)
