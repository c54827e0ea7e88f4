"""A query drives the job: a micro-batch is a checkpoint (protocol, section 10)."""

from __future__ import annotations

import pytest

from penstock.coordinator.protocol import batches, effects
from penstock.coordinator.protocol.inputs import CoordinatorRaised, StateStored
from penstock.schemas.acks import (
    BatchCommitted,
    BatchWanted,
    CommandKind,
    RunStarted,
)
from penstock.schemas.checkpoints import CheckpointCompleted, CheckpointPrepared
from penstock.schemas.errors import JobRefused
from penstock.schemas.events import EventFrame, TriggerCheckpoint
from penstock.schemas.frames import unpack
from penstock.schemas.ids import SubtaskId
from penstock.schemas.state import StateHandle
from penstock.schemas.status import BatchOutcome, BatchPlanned

from .driver import LIFE, S0, S1, Script, names

WAIT_MS = 100


class Query:
    """Plays the planner of one run of a query, and Spark's offset log behind it."""

    def __init__(
        self,
        script: Script,
        run: str = "query-1",
        committed: int = -1,
        *,
        fresh: bool = False,
        always: bool = False,
        silent: bool = False,
    ) -> None:
        """``silent``: nobody reads that it begins."""
        self.script, self.run, self.committed, self.fresh, self.always = script, run, committed, fresh, always
        self.request = -1
        self.offset = len(script.acks)
        (script.write if silent else script.read)(RunStarted(run, "here"))

    def wanted(self) -> BatchWanted:
        return BatchWanted(
            self.run, self.offset, self.request, self.committed, self.fresh, WAIT_MS, self.always, "query q", LIFE
        )

    def ask(self) -> None:
        """Asks for the next batch."""
        self.request += 1
        self.script.read(self.wanted())

    @property
    def answer(self) -> BatchPlanned | None:
        """To the newest request."""
        told = [e.reply for e in self.script.made(effects.Reply) if isinstance(e.reply, BatchPlanned)]
        return next((r for r in reversed(told) if (r.run, r.request) == (self.run, self.request)), None)

    def plan(self) -> BatchPlanned:
        """Asks, and is answered with a batch."""
        self.ask()
        assert self.answer is not None and self.answer.outcome is BatchOutcome.PLANNED, self.answer
        return self.answer

    def idle(self) -> BatchPlanned:
        """Asks, and there is nothing new."""
        self.ask()
        assert self.answer is None
        self.script.advance(WAIT_MS / 1000)
        assert self.answer is not None and self.answer.outcome is BatchOutcome.NOTHING, self.answer
        return self.answer

    def refused(self) -> str:
        self.ask()
        assert self.answer is not None and self.answer.outcome is BatchOutcome.REFUSED, self.answer
        return self.answer.cause

    def commit(self, planned: BatchPlanned) -> None:
        """Spark has run and committed the batch."""
        self.committed = planned.checkpoint_id

    def rows(self, planned: BatchPlanned, subtask: SubtaskId = S0) -> list[bytes]:
        """What a task reads: exactly the range, frames of its epoch, up to the marker."""
        part = planned.partitions[subtask.index]
        rows, sequence = [], part.sequence
        marker = None
        for record in self.script.events_log[subtask][part.begin : part.end]:
            if isinstance(record, EventFrame) and record.epoch == planned.epoch:
                assert record.sequence == sequence and marker is None
                sequence += record.count
                rows += unpack(record.count, record.lengths, record.payload)
            if isinstance(record, TriggerCheckpoint) and record.checkpoint_id == planned.checkpoint_id:
                marker = record
        assert marker is not None and (marker.epoch, marker.sequence) == (planned.epoch, sequence)
        return rows


def driven(**changes: object) -> Script:
    return Script.begun(driven_by_query=True, **changes)  # type: ignore[arg-type]


def attached(**changes: object) -> tuple[Script, Query]:
    """A query has asked once, and there was nothing."""
    script = driven(**changes)
    query = Query(script)
    query.idle()
    return script, query


def send(script: Script, *events: bytes, to: SubtaskId = S0) -> None:
    stream = script.slot(to).stream
    assert stream is not None
    script.send(stream, *events)


def test_the_query_is_the_attempt_of_every_subtask() -> None:
    script, _ = attached()
    assert names(script.calls) == ["start", "ready", "ready"]
    assert script.records(S0, TriggerCheckpoint) == []


def test_a_batch_is_what_was_sent_before_the_cut() -> None:
    script, query = attached()
    send(script, b"a", b"b")
    send(script, b"c", to=S1)
    planned = query.plan()
    assert query.rows(planned) == [b"a", b"b"]
    assert query.rows(planned, S1) == [b"c"]
    assert script.last_id == -1
    (prepared,) = script.committed(CheckpointPrepared)
    assert prepared.checkpoint_id == planned.checkpoint_id


def test_gateways_stay_closed_until_spark_has_committed_the_batch() -> None:
    script, query = attached()
    send(script, b"a")
    first = query.plan()
    send(script, b"b")
    assert script.events() == [b"a"]
    query.commit(first)
    second = query.plan()  # the request that names the batch, and asks for the next
    assert script.last_id == first.checkpoint_id
    assert query.rows(second) == [b"b"]
    assert query.rows(first) == [b"a"]


def test_futures_settle_and_the_notice_comes_with_the_commit() -> None:
    script, query = attached()
    send(script, b"a")
    stream = script.slot().stream
    assert stream is not None
    planned = query.plan()
    script.forget()
    assert stream.handled_through == 0
    query.commit(planned)
    query.idle()
    assert stream.handled_through == 1
    assert names(script.calls) == ["complete"]


def test_nothing_sent_no_checkpoint() -> None:
    script, query = attached()
    query.idle()
    assert script.committed(CheckpointPrepared) == []


def test_a_request_waits_for_events_and_not_for_its_time() -> None:
    script, query = attached()
    query.ask()
    assert query.answer is None
    send(script, b"a")
    assert query.answer is not None and query.answer.outcome is BatchOutcome.PLANNED


def test_nothing_but_a_request_triggers_a_checkpoint() -> None:
    script, query = attached()
    send(script, b"a")
    planned = query.plan()
    script.read(BatchCommitted(planned.checkpoint_id, LIFE))
    send(script, b"b")
    assert script.settings.checkpoint.interval is not None
    script.advance(10 * script.settings.checkpoint.interval)
    assert len(script.committed(CheckpointPrepared)) == 1


def test_a_repeated_request_gets_the_same_answer() -> None:
    script, query = attached()
    send(script, b"a")
    planned = query.plan()
    script.forget()
    script.read(query.wanted())
    assert query.answer == planned
    query.request += 1  # Spark asks again without having stored it
    script.read(query.wanted())
    assert query.answer is not None and query.answer.partitions == planned.partitions
    assert len(script.committed(CheckpointPrepared)) == 1


def test_progress_reports_complete_the_last_batch() -> None:
    script, query = attached()
    send(script, b"a")
    planned = query.plan()
    script.read(BatchCommitted(planned.checkpoint_id, LIFE))
    assert script.last_id == planned.checkpoint_id
    assert "complete" in names(script.calls)
    query.commit(planned)
    query.idle()


def test_a_report_about_a_checkpoint_that_is_not_prepared_completes_nothing() -> None:
    script, _ = attached()
    script.read(BatchCommitted(5, LIFE))
    assert script.last_id == -1
    assert script.dropped("late-decision") == 1


# ---- restarts of the query


def test_a_query_that_comes_back_behind_its_last_batch_has_it_completed() -> None:
    script, query = attached()
    send(script, b"a")
    planned = query.plan()
    send(script, b"b")  # held, and rolled back with its epoch
    again = Query(script, "query-2", planned.checkpoint_id)
    script.forget()
    again.idle()
    assert script.last_id == planned.checkpoint_id
    assert script.epoch.restored is not None and script.epoch.restored.id == planned.checkpoint_id
    assert names(script.calls)[-4:] == ["reset", "complete", "ready", "ready"]
    assert query.rows(planned) == [b"a"]
    send(script, b"c")
    assert again.rows(again.plan()) == [b"c"]


def test_what_is_prepared_is_planned_for_whoever_asks_until_spark_decides() -> None:
    script, query = attached()
    send(script, b"a")
    first = query.plan()
    query.commit(first)
    send(script, b"b")
    second = query.plan()
    again = Query(script, "query-2", first.checkpoint_id)
    planned = again.plan()  # the one before may have stored it, or may yet do so
    assert (planned.checkpoint_id, planned.epoch, planned.partitions) == (
        second.checkpoint_id, second.epoch, second.partitions,
    )  # fmt: skip
    assert again.rows(planned) == [b"b"]
    again.commit(planned)
    again.idle()
    assert script.last_id == second.checkpoint_id
    send(script, b"c")
    assert again.rows(again.plan()) == [b"c"]


def test_one_that_was_replaced_is_refused_for_ever() -> None:
    script, query = attached()
    send(script, b"a")
    planned = query.plan()
    newer = Query(script, "query-2")
    newer.plan()
    query.commit(planned)
    assert "another query" in query.refused()
    assert script.last_id == -1
    script.restart()
    assert newer.plan().checkpoint_id == planned.checkpoint_id
    assert "another query" in query.refused()


# ---- restarts of the coordinator


@pytest.mark.parametrize("told", [False, True])
def test_a_successor_lets_spark_decide_about_a_prepared_checkpoint(told: bool) -> None:
    script, query = attached()
    send(script, b"a")
    planned = query.plan()
    script.restart()
    assert names(script.calls) == ["start"]
    if told:
        query.commit(planned)
        query.idle()
    else:
        assert query.plan().partitions == planned.partitions
    assert script.last_id == (planned.checkpoint_id if told else -1)
    resets = [c for c in script.calls if isinstance(c, effects.CallReset)]
    assert [r.checkpoint_id for r in resets] == ([planned.checkpoint_id] if told else [])
    assert query.rows(planned) == [b"a"]


def test_a_raising_coordinator_is_rolled_back_and_the_query_goes_on() -> None:
    script, query = attached()
    send(script, b"a")
    planned = query.plan()
    script.handle(CoordinatorRaised("op", script.epoch.number, "Events", "boom"))
    assert planned.checkpoint_id in script.job.history.prepared
    assert "aborted" not in names(script.calls)
    query.commit(planned)
    query.idle()
    assert script.last_id == planned.checkpoint_id
    send(script, b"b")
    assert query.rows(query.plan()) == [b"b"]


def test_a_request_outlives_a_failover() -> None:
    script, query = attached()
    query.ask()
    script.handle(CoordinatorRaised("op", script.epoch.number, "Events", "boom"))
    send(script, b"b")
    assert query.answer is not None and query.rows(query.answer) == [b"b"]


def test_a_request_repeated_behind_its_answer_decides_nothing_about_it() -> None:
    """Section 10.1: Spark may have stored the answer of a coordinator that is gone."""
    script, query = attached()
    send(script, b"a")
    first = query.plan()
    query.commit(first)
    send(script, b"b")
    planned = query.plan()
    script.restart()
    script.forget()
    script.read(query.wanted())  # written before the answer was read
    assert query.answer == planned
    assert planned.checkpoint_id in script.job.history.prepared
    query.commit(planned)
    query.idle()
    assert script.last_id == planned.checkpoint_id
    assert query.rows(planned) == [b"b"]


def test_a_request_that_nobody_has_answered_is_found_by_the_successor() -> None:
    script, query = attached()
    query.ask()
    script.restart()
    assert names(script.calls) == ["start", "ready", "ready"]
    send(script, b"a")
    assert query.answer is not None and query.rows(query.answer) == [b"a"]


# ---- where Spark's checkpoint and ours disagree


def two_batches() -> tuple[Script, Query, BatchPlanned, BatchPlanned]:
    script, query = attached()
    send(script, b"a")
    first = query.plan()
    query.commit(first)
    send(script, b"b")
    second = query.plan()
    query.commit(second)
    query.idle()
    return script, query, first, second


def test_a_deleted_checkpoint_of_spark_is_refused() -> None:
    script, _, _, second = two_batches()
    why = Query(script, "query-2").refused()
    assert "Spark's checkpoint is empty" in why and str(second.checkpoint_id) in why and "fresh" in why
    assert script.last_id == second.checkpoint_id


def test_an_older_copy_is_refused() -> None:
    script, _, first, second = two_batches()
    why = Query(script, "query-2", first.checkpoint_id).refused()
    assert "older copy" in why and f"{first.checkpoint_id} of job" in why and str(second.checkpoint_id) in why


def test_an_unknown_checkpoint_is_refused() -> None:
    script, *_ = two_batches()
    assert "does not have" in Query(script, "query-2", 12345).refused()


def test_fresh_begins_anew() -> None:
    script, _, _, second = two_batches()
    script.forget()
    fresh = Query(script, "query-2", fresh=True)
    fresh.idle()
    (reset,) = [c for c in script.calls if isinstance(c, effects.CallReset)]
    assert (reset.checkpoint_id, reset.state) == (-1, None)
    send(script, b"c")
    planned = fresh.plan()
    assert planned.checkpoint_id > second.checkpoint_id
    assert fresh.rows(planned) == [b"c"]


def test_fresh_aborts_what_is_prepared_and_deletes_its_state() -> None:
    script, query, *_ = two_batches()
    script.state = lambda operator, n: b"x" * (script.settings.checkpoint.inline_state_max + 1)
    send(script, b"c")
    query.ask()
    (store,) = script.made(effects.StoreState)
    handle = StateHandle(len(store.state), location=store.location)
    script.handle(StateStored("op", store.checkpoint_id, handle))
    assert store.checkpoint_id in script.job.history.prepared
    Query(script, "query-2", fresh=True).idle()
    assert script.job.history.prepared == {}
    assert script.made(effects.DeleteStates)[-1].locations == (store.location,)
    left = {key for key, record in dict(script.log).items() if record is not None}  # once the log is compacted
    assert not [key for key in left if str(store.checkpoint_id) in key.split("/")]


def test_only_the_owner_of_the_log_refuses() -> None:
    script, _, first, _ = two_batches()
    script.forget()
    Query(script, "query-2", first.checkpoint_id).refused()
    made = [effect for effect in script.effects if isinstance(effect, effects.Commit | effects.Reply)]
    claims, refusal, reply = made  # one that has been replaced ends at the commit ahead of its reply
    assert isinstance(claims, effects.Commit) and isinstance(refusal, effects.Commit)
    assert isinstance(reply, effects.Reply)


def test_fresh_does_nothing_where_spark_has_a_checkpoint() -> None:
    script, _, _, second = two_batches()
    again = Query(script, "query-2", second.checkpoint_id, fresh=True)
    again.idle()
    assert script.last_id == second.checkpoint_id


def test_a_job_of_long_running_tasks_refuses_a_query() -> None:
    script = Script.running()
    assert "long-running tasks" in Query(script).refused()


def test_neither_way_goes_on_where_the_other_stopped() -> None:
    script, *_ = two_batches()
    settings = Script().settings
    with pytest.raises(JobRefused, match="taken with a Structured Streaming query"):
        script.restart(settings)
    other = Script.running()
    other.checkpoint()
    with pytest.raises(JobRefused, match="taken with long-running tasks"):
        other.restart(driven().settings)


def test_savepoints_are_refused() -> None:
    script, _ = attached()
    script.command(CommandKind.SAVEPOINT)
    assert [reply.accepted for reply in script.replies()] == [False]
    assert "checkpointLocation" in script.replies()[0].outcome


# ---- time


def test_a_batch_may_take_for_ever() -> None:
    script, query = attached()
    send(script, b"a")
    planned = query.plan()
    script.advance(10 * script.settings.checkpoint.timeout)
    assert planned.checkpoint_id in script.pending


def test_ends_that_do_not_come_abort_and_it_is_tried_again() -> None:
    script, query = attached()
    send(script, b"a")
    script.auto_ends = False
    query.ask()
    (n,) = script.pending
    script.advance(script.settings.checkpoint.timeout)
    assert n not in script.pending
    late = script.ends_seen(n)
    script.auto_ends = True
    script.handle(late)
    assert query.answer is None or query.answer.checkpoint_id > n
    script.advance(1.0)
    assert query.answer is not None and query.rows(query.answer) == [b"a"]


def test_held_bytes_abort_no_batch() -> None:
    script, query = attached()
    send(script, b"a")
    planned = query.plan()
    bound = script.settings.operators[0].max_held_bytes
    send(script, b"x" * (bound + 1))
    assert planned.checkpoint_id in script.pending


# ---- what is kept


def test_the_newest_batch_and_the_one_before_stay_in_the_log() -> None:
    script, query = attached(checkpoint={"retained": 1})
    planned = []
    for event in (b"a", b"b", b"c"):
        send(script, event)
        planned.append(query.plan())
        query.commit(planned[-1])
    query.idle()
    wanted = script.made(effects.Truncate)[-1]
    assert wanted.events[S0] == planned[-1].partitions[0].begin
    assert [c.committer for c in script.committed(CheckpointCompleted)] == ["query q"] * 3


# ---- an idle query


def test_an_idle_query_gets_an_empty_batch_before_its_requests_fill_the_acks_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Section 10.3: only a checkpoint lets them go."""
    monkeypatch.setattr(batches, "ACKS_BEHIND_MAX", 20)
    script, query = attached()
    behind = []
    for _ in range(100):
        query.ask()
        if query.answer is None:
            script.advance(WAIT_MS / 1000)
        assert query.answer is not None
        if query.answer.outcome is BatchOutcome.PLANNED:
            query.committed = query.answer.checkpoint_id
        if script.made(effects.Truncate):
            behind.append(len(script.acks) - script.made(effects.Truncate)[-1].acks)
    assert len(behind) > 50
    assert max(behind[10:]) <= 4 * 20  # two retained checkpoints, the one under way, and what is read meanwhile
