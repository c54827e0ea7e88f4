"""When a job may not start (protocol, sections 4 and 11): clear errors, and nothing changed."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.checkpoint_log.restorability import Offsets
from penstock.coordinator.protocol.core import CoordinatorCore
from penstock.schemas.errors import JobHasFinished, JobRefused
from penstock.schemas.settings import OperatorSettings, Restore
from penstock.schemas.state import Segment

from .driver import S0, S1, Script


def refused(script: Script, match: str, **changes: Any) -> None:
    """A core that starts now is refused; the error says what is wrong, and nothing has been committed."""
    log = list(script.log)
    core = CoordinatorCore(script.settings, "second")
    with pytest.raises(JobRefused, match=match):
        core.handle(script.beginning(**changes), script.now)
    assert script.log == log
    assert core.job.epoch is None
    assert not core.job.began


def test_changed_topic_ids_refuse() -> None:
    """Section 4: deleted and created again."""
    script = Script.running()
    refused(
        script, r"penstock\.job\.acks is not the one .*id-2, was id-1.*purge", topic_ids={"penstock.job.acks": "id-2"}
    )


def test_topics_that_the_job_did_not_have_before_are_fine() -> None:
    """Section 4: only a changed id refuses; an operator may have been added."""
    script = Script.running()
    script.topic_ids["penstock.job.added.events"] = "id-3"
    script.restart()
    assert script.epoch.number == 2


def test_an_empty_checkpoint_log_beside_topics_that_are_not_refuses() -> None:
    """Section 4."""
    script = Script.running()
    refused(script, r"checkpoint log of job job is empty.*op/0, op/1", log=())


def test_an_acks_topic_that_a_runner_wrote_to_first_is_no_reason_to_refuse() -> None:
    """Section 4, Run: RunStarted may come before the first coordinator."""
    script = Script()
    script.hello(read=False)
    script.begin()
    assert script.epoch.number == 1


def test_an_inbox_position_that_was_truncated_away_refuses() -> None:
    """Section 11: error names topic, partition, wanted and available offsets, and the way out."""
    script = Script.running()
    script.checkpoint()
    end = len(script.acks)
    refused(
        script,
        rf"needs penstock\.job\.acks from offset \d+, and it holds offsets {end} to {end}\..*--fresh",
        acks=Offsets(end, end),
    )


def test_an_inbox_position_behind_the_end_of_the_log_refuses() -> None:
    """Section 11: the log was lost."""
    script = Script.running()
    script.checkpoint()
    refused(script, "it holds offsets 0 to 1", acks=Offsets(0, 1))


def test_an_event_range_that_was_truncated_away_refuses() -> None:
    """Section 11."""
    script = Script.running()
    script.checkpoint(event_ranges=(Segment(1, 2, 1, 0, 1),))
    events = {S0: Offsets(2, 9), S1: Offsets(0, 9)}
    refused(script, r"needs penstock\.job\.op\.events\[0\] from offset 1, and it holds offsets 2 to 9", events=events)


def test_an_open_event_position_need_not_be_there() -> None:
    """Section 7.9: a restore begins a new epoch, so nothing behind it is needed."""
    script = Script.running()
    script.checkpoint(event_position=1)
    script.restart(events={S0: Offsets(5, 5), S1: Offsets(5, 5)})
    assert script.epoch.number == 2


def test_a_savepoint_needs_no_acks() -> None:
    """Section 7.9: self-contained, so it pins no log."""
    script = Script.running()
    n = script.savepoint()
    script.acknowledge(n)
    end = len(script.acks)
    script.acks_begin = end
    script.restart(acks=Offsets(end, end))
    assert script.last_id == n


def test_another_parallelism_refuses() -> None:
    """Section 5: states are redistributed by what the user says, never in silence."""
    script = Script.running()
    script.checkpoint()
    script.settings = Script(OperatorSettings("op", 3)).settings
    events = {s: Offsets(0, 0) for s in script.settings.subtasks()}
    refused(script, "holds 2 subtasks of operator op, the job now has 3", events=events)


def test_another_parallelism_is_fine_with_a_fresh_start() -> None:
    """Section 9."""
    script = Script.running()
    script.checkpoint()
    script.restart(Script(OperatorSettings("op", 3)).settings, restore=Restore.FRESH)
    assert script.epoch.number == 2


def test_a_checkpoint_that_is_not_kept_refuses_and_those_that_are_are_named() -> None:
    """Section 11, last row: an older retained one can be named."""
    script = Script.running()
    n = script.checkpoint()
    refused(script, f"no checkpoint 77; kept are: {n}", restore=Restore.CHECKPOINT, restore_checkpoint=77)


def finished_job() -> Script:
    script = Script.running(OperatorSettings("op", 1))
    script.read(script.task().finished())
    (n,) = script.pending
    script.read(script.task().ack(n, finished=True))
    assert script.ended is not None
    return script


def test_a_job_that_has_finished_refuses_to_resume() -> None:
    """Section 3, JobFinished: there is nothing left to do, and nobody to wait for."""
    script = finished_job()
    with pytest.raises(JobHasFinished, match=r"has finished.*--fresh"):
        CoordinatorCore(script.settings, "second").handle(script.beginning(), script.now)


def test_a_job_that_has_finished_starts_fresh_when_told_to() -> None:
    """Section 2: what EpochClaimed restored."""
    script = finished_job()
    script.restart(restore=Restore.FRESH)
    assert script.hello().started


def test_a_refusal_names_the_checkpoints_that_can_still_be_restored() -> None:
    """Section 4: a savepoint holds its inbox range itself, so a lost acks topic does not touch it."""
    script = Script.running(checkpoint={"retained": 3})
    script.checkpoint()
    savepoint = script.savepoint()
    script.acknowledge(savepoint)
    script.checkpoint()
    end = len(script.acks)
    refused(
        script,
        rf"Start from another checkpoint \({savepoint}: --from-checkpoint N\), or with --fresh",
        acks=Offsets(end, end),
    )


def test_a_savepoint_whose_range_somebody_has_cut_is_not_among_them() -> None:
    """Section 11."""
    script = Script.running(checkpoint={"retained": 1})
    savepoint = script.savepoint()
    script.acknowledge(savepoint, event_ranges=(Segment(1, 2, 1, 0, 1),))
    script.checkpoint()
    end = len(script.acks)
    events = {S0: Offsets(2, 9), S1: Offsets(0, 9)}
    refused(
        script, "No other checkpoint can be restored either: start with --fresh", acks=Offsets(end, end), events=events
    )
