"""A checkpoint log that has lost its end is named, never gone on from in silence (section 4.5)."""

from __future__ import annotations

import pytest

from penstock.coordinator.protocol.effects import Append
from penstock.coordinator.protocol.inputs import Known
from penstock.schemas.checkpoints import EpochClaimed, JobFinished, JobOutcome
from penstock.schemas.errors import JobRefused
from penstock.schemas.events import Start
from penstock.schemas.settings import Restore

from .driver import S0, Script


def lost_end() -> tuple[Script, int, int]:
    """A job whose log has lost its newest checkpoint: the script, what is left, and what was lost."""
    script = Script.running()
    left = script.checkpoint()
    kept = list(script.log)
    lost = script.checkpoint()
    script.log = kept
    return script, left, lost


def test_a_host_that_knows_of_a_lost_checkpoint_refuses_to_go_on() -> None:
    script, left, lost = lost_end()
    with pytest.raises(
        JobRefused, match=f"has lost its end: checkpoint {lost} was completed.*--from-checkpoint {left}"
    ):
        script.restart(known=Known(script.core.job.history.epoch, lost), continues=True)
    assert len(script.committed(EpochClaimed)) == 1


def test_a_host_that_knows_of_a_lost_epoch_refuses_to_go_on() -> None:
    script, left, _ = lost_end()
    with pytest.raises(JobRefused, match="epoch 7 was begun"):
        script.restart(known=Known(7, left), continues=True)


def test_a_host_goes_on_where_the_log_has_what_it_knows() -> None:
    script = Script.running()
    n = script.checkpoint()
    script.restart(known=Known(script.core.job.history.epoch, n), continues=True)
    assert script.last_id == n


@pytest.mark.parametrize(("restore", "at"), [(Restore.FRESH, False), (Restore.CHECKPOINT, True)])
def test_a_start_that_names_where_to_begin_accepts_the_loss(restore: Restore, at: bool) -> None:
    script, left, lost = lost_end()
    script.restart(
        known=Known(script.core.job.history.epoch, lost), restore=restore, restore_checkpoint=left if at else -1
    )
    script.hello(S0, completed=lost)
    assert [r for r in script.appended(S0) if isinstance(r, Start)]


def test_a_subtask_that_was_told_of_a_lost_checkpoint_fails_the_job() -> None:
    script, left, lost = lost_end()
    script.restart()
    began = len(script.effects)
    script.hello(S0, completed=lost)
    appended = [e.record for e in script.effects[began:] if isinstance(e, Append)]
    assert not [record for record in appended if isinstance(record, Start)]
    (finished,) = script.committed(JobFinished)
    assert finished.outcome is JobOutcome.FAILED
    assert f"was told that checkpoint {lost} is complete, and the log ends with checkpoint {left}" in finished.cause


def test_a_subtask_may_know_of_a_checkpoint_that_has_been_discarded_since() -> None:
    script = Script.running()
    first = script.checkpoint()
    for _ in range(4):
        last = script.checkpoint()
    script.restart()
    assert first not in script.core.job.history.checkpoints
    script.hello(S0, completed=first)
    script.hello(S0, completed=last)
    assert [r for r in script.appended(S0) if isinstance(r, Start)]
    assert not script.committed(JobFinished)
