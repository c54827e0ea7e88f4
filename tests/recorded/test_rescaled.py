"""What is recorded of a job that goes on with another parallelism, read and replayed from before and behind that."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import penstock
from penstock.recorded import start_position
from penstock.recorded.dry_run import DryRun, Restore, restored
from penstock.recorded.exported import checkpoint_line, record_line
from penstock.recorded.job import RecordedJob
from penstock.recorded.reading import LogReading, Recorded
from penstock.schemas.errors import ConfigurationError, PositionUnavailable
from penstock.schemas.events import FailoverPolicy
from penstock.schemas.ids import SubtaskId
from penstock.transport import MemoryBroker, MemoryTransport
from tests.coordinator.jobs import Handler, Plan, make_job, run

DEALT = b"dealt"


def deal(states: Sequence[bytes | None], parallelism: int) -> list[bytes]:
    return [DEALT] * parallelism


class Rescaled:
    """``old`` was sent to two subtasks ahead of a savepoint, and ``new`` to three behind it; then all died."""

    def __init__(self, policy: FailoverPolicy = FailoverPolicy.REPLAY, first: int = 2, then: int = 3) -> None:
        self.transport, self.policy = MemoryTransport(MemoryBroker()), policy
        self.savepoint = self._phase(first, b"old", stops=True)
        self._phase(then, b"new", stops=False)
        self.parallelism = then
        self.recorded = RecordedJob(self.transport, "grown")
        last = self.recorded.history.last
        assert last is not None and last.header.rescaled_from == self.savepoint
        self.derived = last.id

    def _job(self, plan: Plan, parallelism: int) -> penstock.Job:
        return make_job(plan, "grown", parallelism=parallelism, interval=None, rescale=deal, on_failover=self.policy)

    def _phase(self, parallelism: int, event: bytes, *, stops: bool) -> int:
        plan, taken = Plan(), -1
        with run(self._job(plan, parallelism), self.transport) as running:
            plan.wait_gateways(*range(parallelism))
            for subtask in range(parallelism):
                plan.gateways[subtask].send_event(event)
                plan.wait_handled(event, subtask)
            if stops:
                taken = running.client.stop(savepoint=True, timeout_s=20).checkpoint_id
                running.wait(20)
            else:
                running.crash_coordinator()
        return taken

    def replayed(self, subtask: int, source: MemoryTransport | Path | None = None, **given: int) -> list[bytes]:
        """What the subtask holds in the end."""
        replayed = penstock.replay(
            self._job(Plan(), self.parallelism),
            "op",
            subtask,
            source or self.transport,
            **given,  # type: ignore[arg-type]
        )
        assert isinstance(replayed.subtask, Handler)
        return replayed.subtask.events

    def dry_run(self, checkpoint: int, subtask: int, how: Restore | None = None) -> tuple[Restore, list[bytes]]:
        """How it is restored, and what it would get."""
        job, who = self.recorded, SubtaskId("op", subtask)
        begun = restored(job, who, job.checkpoint(checkpoint), self.policy, how)
        reading = LogReading(self.transport, {job.events(who): begun.begin}, {job.events(who): begun.start_offset})
        records = (found for found in reading if isinstance(found, Recorded))
        return begun.how, [event for one in DryRun("grown", begun).judge_all(records) for event in one.events]

    def exported(self, path: Path, checkpoint: int) -> Path:
        job = self.recorded
        begins = start_position.from_checkpoint(job, job.checkpoint(checkpoint), job.subtasks("op"), acks=True)
        found = [one for one in LogReading(self.transport, begins.offsets) if isinstance(one, Recorded)]
        lines = [checkpoint_line("grown", job.checkpoint(checkpoint), "op"), *map(record_line, found)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path


@pytest.mark.parametrize("policy", FailoverPolicy)
@pytest.mark.parametrize(("first", "then"), [(2, 3), (3, 2)])
def test_behind_a_derived_checkpoint_come_the_events_of_the_epoch_that_derived_it(
    policy: FailoverPolicy, first: int, then: int, tmp_path: Path
) -> None:
    job = Rescaled(policy, first, then)
    path = job.exported(tmp_path / "grown.jsonl", job.derived)
    for subtask in range(then):
        assert job.replayed(subtask, checkpoint=job.derived) == [DEALT, b"new"]
        assert job.replayed(subtask, path, checkpoint=job.derived) == [DEALT, b"new"]
        reset = policy is FailoverPolicy.RESET  # then nothing is given again
        assert job.dry_run(job.derived, subtask) == (Restore.FAILOVER, [] if reset else [b"new"])
    assert job.dry_run(job.derived, 0, Restore.RESTART) == (Restore.RESTART, [])


def test_what_the_checkpoint_of_the_layout_before_has_is_still_there() -> None:
    job = Rescaled()
    assert job.dry_run(job.savepoint, 0) == (Restore.RESTART, [])
    assert job.dry_run(job.savepoint, 0, Restore.FAILOVER) == (Restore.FAILOVER, [])
    with pytest.raises(ConfigurationError, match=rf"checkpoint {job.savepoint} .* no part of op/2: it holds 2 of op"):
        job.dry_run(job.savepoint, 2)
    with pytest.raises(ConfigurationError, match="has no part of op/2: it holds 2 of op"):
        job.replayed(2, checkpoint=job.savepoint)


def test_of_a_subtask_that_is_gone_nothing_is_replayed() -> None:
    job = Rescaled(first=3, then=2)
    assert SubtaskId("op", 2) in job.recorded.checkpoint(job.derived).subtasks
    with pytest.raises(ConfigurationError, match="has no part of op/2: it holds 2 of op"):
        job.dry_run(job.derived, 2)


def test_events_that_have_been_truncated_away_are_missed_not_left_out(tmp_path: Path) -> None:
    job = Rescaled()
    partition = job.recorded.events(SubtaskId("op", 0))
    end = job.transport.offsets([partition])[partition].end
    job.transport.truncate({partition: end - 1})
    with pytest.raises(PositionUnavailable, match="and what epoch 2 sent first was below"):
        job.replayed(0, job.exported(tmp_path / "cut.jsonl", job.derived), checkpoint=job.derived)
    for checkpoint in (job.derived, job.savepoint):
        with pytest.raises(PositionUnavailable):
            job.replayed(0, checkpoint=checkpoint)
    with pytest.raises(PositionUnavailable, match=r"it can still be restored by a restart \(--restart\)"):
        job.dry_run(job.derived, 0)


@pytest.mark.parametrize(("first", "then"), [(2, 3), (3, 2)])
def test_events_are_read_from_a_checkpoint_of_either_layout_on(first: int, then: int) -> None:
    job = Rescaled(first=first, then=then)
    recorded = job.recorded
    for checkpoint in (job.savepoint, job.derived):
        begins = start_position.from_checkpoint(
            recorded, recorded.checkpoint(checkpoint), recorded.subtasks("op"), acks=True
        )
        assert set(begins.offsets) == {*map(recorded.events, recorded.subtasks("op")), recorded.acks}
        assert any("op/2" in note for note in begins.notes) == (then > first)
        events = {at: offset for at, offset in begins.offsets.items() if at != recorded.acks}
        found = [one.at.value or b"" for one in LogReading(job.transport, events) if isinstance(one, Recorded)]
        assert sum(b"new" in value for value in found) == then
        assert not any(b"old" in value for value in found)
