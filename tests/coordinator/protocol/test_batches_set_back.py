"""A job that is set back, begun anew or purged while a query drives it (protocol, section 10)."""

from __future__ import annotations

import pytest

from penstock.coordinator.protocol import effects
from penstock.coordinator.protocol.inputs import CoordinatorRaised
from penstock.coordinator.protocol.state import Phase
from penstock.coordinator.status import job_status
from penstock.schemas.acks import BatchCommitted, BatchEvents, BatchWanted
from penstock.schemas.errors import JobRefused
from penstock.schemas.settings import OperatorSettings, Restore
from penstock.schemas.status import BatchOutcome, BatchPlanned

from .driver import LIFE, S1, Script, job_settings
from .test_batches import WAIT_MS, Query, attached, send, two_batches
from .test_batches_sent import batch_sends, names_writers


def prepared_behind_two() -> tuple[Script, Query, BatchPlanned, BatchPlanned]:
    """Two batches are committed, a third one is planned; the first and the third of them."""
    script, query, first, _ = two_batches()
    send(script, b"c")
    return script, query, first, query.plan()


@pytest.mark.parametrize("same_epoch", [True, False], ids=["of this epoch", "of an earlier epoch"])
def test_a_job_that_is_set_back_plans_nothing_that_follows_another_checkpoint(same_epoch: bool) -> None:
    script, query, first, second = two_batches()
    if not same_epoch:
        script.restart()
        query.idle()
    send(script, b"c")
    third = query.plan()
    script.restart(restore=Restore.CHECKPOINT, restore_checkpoint=first.checkpoint_id)
    again = Query(script, "query-2", first.checkpoint_id)
    again.idle()
    send(script, b"d")
    planned = again.plan()
    assert planned.checkpoint_id not in (second.checkpoint_id, third.checkpoint_id)
    assert again.rows(planned) == [b"d"]


def test_a_job_that_begins_anew_plans_nothing_of_the_life_before() -> None:
    script, _, _, third = prepared_behind_two()
    script.restart(restore=Restore.FRESH)
    again = Query(script, "query-2", fresh=True)
    again.idle()
    send(script, b"d")
    planned = again.plan()
    assert planned.checkpoint_id != third.checkpoint_id
    assert again.rows(planned) == [b"d"]


def test_setting_back_is_not_undone_by_a_request_from_before() -> None:
    """Spark has committed the third batch, and said so while no coordinator ran."""
    script, query, first, third = prepared_behind_two()
    query.commit(third)
    query.request += 1
    script.write(query.wanted())
    script.restart(restore=Restore.CHECKPOINT, restore_checkpoint=first.checkpoint_id)
    assert script.last_id == first.checkpoint_id
    assert query.answer is not None and query.answer.outcome is BatchOutcome.REFUSED


@pytest.mark.parametrize("parallelism", [1, 3])
def test_another_parallelism_is_refused_while_a_batch_is_undecided(parallelism: int) -> None:
    script, query = attached()
    send(script, b"a", to=S1)
    query.plan()
    with pytest.raises(JobRefused, match=rf"2 subtasks of operator op, the job now has {parallelism}"):
        script.restart(job_settings(OperatorSettings("op", parallelism), driven_by_query=True))


@pytest.mark.parametrize("restarted", [True, False])
def test_a_request_to_begin_anew_throws_nothing_away_that_was_committed_since(restarted: bool) -> None:
    """What it was answered with had been prepared, and cut, before its run began."""
    script, query = attached()
    send(script, b"a")
    query.plan()
    fresh = Query(script, "query-2", fresh=True)
    planned = fresh.plan()
    late = fresh.wanted()
    fresh.commit(planned)
    script.read(BatchCommitted(planned.checkpoint_id, LIFE))
    assert script.last_id == planned.checkpoint_id
    if restarted:
        script.restart()
    script.read(late)
    assert script.last_id == planned.checkpoint_id
    fresh.idle()
    again = Query(script, "query-3", planned.checkpoint_id)
    again.idle()


def test_a_query_that_begins_anew_while_another_one_commits_is_told_to_start_once_more() -> None:
    script, query = attached()
    send(script, b"a")
    planned = query.plan()
    fresh = Query(script, "query-2", fresh=True)
    script.read(BatchCommitted(planned.checkpoint_id, LIFE))
    assert "since the query began: to begin anew, start it once more" in fresh.refused()
    Query(script, "query-3", fresh=True).idle()
    assert script.last_id == -1


def test_a_report_completes_what_an_epoch_before_has_prepared() -> None:
    """The last batch of all, run again behind a restart: nobody asks for another one."""
    script, query = attached()
    send(script, b"a")
    query.plan()
    script.restart()
    again = Query(script, "query-2")
    planned = again.plan()
    script.read(
        BatchEvents(planned.checkpoint_id, "op", (batch_sends(script, planned.checkpoint_id, "w", b"x"),), LIFE)
    )
    script.read(BatchCommitted(planned.checkpoint_id, LIFE))
    assert script.last_id == planned.checkpoint_id
    next_run = Query(script, "query-3", planned.checkpoint_id)
    next_run.idle()
    (reset,) = [c for c in script.calls if isinstance(c, effects.CallReset)]
    assert reset.checkpoint_id == planned.checkpoint_id
    assert script.received() == [b"x"]


def test_a_report_between_two_epochs_counts_in_the_next_one() -> None:
    """The last batch of all: nobody says it again."""
    script, query, _, _ = two_batches()
    send(script, b"c")
    n = query.plan().checkpoint_id
    names_writers(script, n, batch_sends(script, n, "w", b"x"))
    for _ in range(5):
        if script.job.phase is not Phase.BACKING_OFF:
            script.handle(CoordinatorRaised("op", script.job.history.epoch, "Events", "boom"))
    assert script.job.phase is Phase.BACKING_OFF
    script.read(BatchCommitted(n, LIFE))
    assert script.last_id != n
    script.advance(120.0)
    assert script.last_id == n


def test_a_report_that_nobody_has_read_counts_for_the_successor() -> None:
    script, query = attached()
    send(script, b"a")
    n = query.plan().checkpoint_id
    script.write(BatchCommitted(n, LIFE))
    script.restart()
    assert script.last_id == n


@pytest.mark.parametrize("nobody_listens", [False, True])
def test_a_deleted_checkpoint_of_spark_is_refused_where_the_log_says_that_its_batch_was_committed(
    nobody_listens: bool,
) -> None:
    """The request of the first query names the batch, ahead of the second query's."""
    script, query = attached()
    send(script, b"a")
    query.commit(query.plan())
    query.request += 1
    (script.write if nobody_listens else script.read)(query.wanted())
    second = Query(script, "query-2", silent=nobody_listens)
    second.request += 1
    script.write(second.wanted())
    script.restart()
    assert second.answer is not None and second.answer.outcome is BatchOutcome.REFUSED


def test_a_query_may_begin_anew_behind_what_was_decided_before_it_began() -> None:
    """A coordinator that was away has read both at once, and completes behind the second one's beginning."""
    script, query = attached()
    send(script, b"a")
    planned = query.plan()
    query.commit(planned)
    query.request += 1
    script.write(query.wanted())
    fresh = Query(script, "query-2", fresh=True, silent=True)
    script.restart()
    assert script.last_id == planned.checkpoint_id
    fresh.idle()
    assert script.last_id == -1


def test_another_operator_is_refused_while_a_batch_is_undecided() -> None:
    script, query = attached()
    send(script, b"a")
    query.plan()
    with pytest.raises(JobRefused, match="is of operator op, and the job now has renamed"):
        script.restart(job_settings(OperatorSettings("renamed", 2), driven_by_query=True))


def test_what_an_undecided_checkpoint_of_an_earlier_epoch_waits_for_is_shown() -> None:
    script, query = attached()
    send(script, b"a")
    n = query.plan().checkpoint_id
    for _ in ("by this epoch", "by the one before"):
        assert [(p.checkpoint_id, p.waits_for) for p in job_status(script.job).pending] == [
            (n, "Spark to commit its batch")
        ]
        script.restart()


def test_with_always_every_request_is_given_a_batch() -> None:
    script, _ = attached()
    query = Query(script, "query-2", always=True)
    first = query.plan()
    assert query.rows(first) == []
    query.commit(first)
    assert query.plan().checkpoint_id > first.checkpoint_id


# ---- another life of the job: offsets and ids begin again


def of_a_life_before(checkpoint_id: int) -> BatchWanted:
    return BatchWanted("old", 5000, 7, checkpoint_id, False, WAIT_MS, False, "query old", "another topic")


def test_a_query_from_before_a_purge_takes_nothing_over_and_is_told_nothing() -> None:
    """Only the owner of the checkpoint log may refuse, and who it is of another life cannot know."""
    script, query = attached()
    script.read(of_a_life_before(-1))
    replies = [e.reply for e in script.made(effects.Reply) if isinstance(e.reply, BatchPlanned)]
    assert "old" not in {reply.run for reply in replies}
    query.idle()
    Query(script, "query-2").idle()


def test_what_a_query_from_before_a_purge_says_decides_nothing() -> None:
    script, query = attached()
    send(script, b"a")
    planned = query.plan()
    n = planned.checkpoint_id
    writer = batch_sends(script, n, "w", b"x")
    script.read(BatchCommitted(n, "another topic"), of_a_life_before(n))
    script.read(BatchEvents(n, "op", (writer,), "another topic"))
    assert script.last_id == -1
    assert script.dropped("batch-of-another-life") == 3
    script.restart()  # which reads them all again
    assert script.last_id == -1
    query.commit(planned)
    query.idle()
    assert script.received() == []
