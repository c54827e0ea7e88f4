"""What is shown of a job follows from the statuses that were told, and from nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.dashboard.lines import happened
from penstock.dashboard.messages import duration, size
from penstock.dashboard.model import BARS_MAX, POINTS_KEPT, ROWS_MAX, History, Kind, Segment, View
from penstock.schemas.status import JobStatus, SubtaskTimes, SubtaskTotals

from .statuses import BEGIN_MS, checkpoint, failover, operator, pending, status, subtask


def seen(*statuses: JobStatus) -> History:
    history = History()
    for each in statuses:
        history.see(each)
    return history


def view_of(*statuses: JobStatus, after_s: float = 0.5) -> View:
    """As somebody sees it so long after the last status."""
    view = seen(*statuses).view(statuses[-1].at_ms + round(1000 * after_s))
    assert view is not None
    return view


def test_before_the_first_status_there_is_nothing_to_show() -> None:
    assert History().view(BEGIN_MS) is None


def test_a_status_is_seen_once() -> None:
    history = seen(status(2))
    assert not history.see(status(2))
    assert history.see(status(3))


# ---- whose clock, and which coordinator


@pytest.mark.parametrize("hours", [-2, 2])
def test_a_coordinator_whose_clock_is_wrong_is_not_gone_while_it_is_heard_and_is_when_it_is_not(hours: int) -> None:
    history = History()
    for second in range(10):
        assert history.see(events(3600 * hours + second, 10 * second), BEGIN_MS + 1000 * second)
    view = history.view(BEGIN_MS + 10_000)
    assert view is not None and (view.state, view.age_s, view.rates.sent) == ("running", 1.0, 10.0)
    view = history.view(BEGIN_MS + 20_000)
    assert view is not None and (view.state, view.age_s) == ("gone", 11.0)


def test_who_has_taken_over_is_shown_at_once_also_where_his_clock_is_behind() -> None:
    history = History()
    history.see(status(60, epoch=3), BEGIN_MS)
    assert history.see(status(0, epoch=4, instance="standby", state="starting"), BEGIN_MS + 7_000)
    view = history.view(BEGIN_MS + 7_100)
    assert view is not None and (view.state, view.instance) == ("starting", "standby")


def test_one_that_was_frozen_and_has_been_replaced_is_not_shown_while_its_successor_tells_something() -> None:
    history = History()
    history.see(status(0, epoch=4, instance="standby"), BEGIN_MS)
    assert not history.see(status(60, epoch=3), BEGIN_MS + 1_000)
    assert history.see(status(66, epoch=3), BEGIN_MS + 7_000), "nobody else tells anything"


def test_a_job_that_has_ended_is_not_taken_back_by_one_that_was_frozen() -> None:
    assert not seen(status(0, epoch=4, state="finished")).see(status(3600, epoch=3))


def test_what_is_told_again_of_an_earlier_epoch_is_the_jobs_next_life_when_nothing_else_is() -> None:
    history = seen(status(0, epoch=17))
    assert history.see(status(600, epoch=1, instance="first of the next life"))


def test_one_that_has_left_is_not_gone() -> None:
    view = view_of(status(state="left"), after_s=60.0)
    assert (view.state, view.ended) == ("left", False)
    assert view.waits[0] == "the next coordinator: this one has left"


# ---- rates


def events(second: float, sent: int, handled: int = 0, **changes: Any) -> JobStatus:
    return status(second, operators=(operator(subtask(0, sent=sent, handled=handled, received=0)),), **changes)


def test_a_rate_is_the_difference_of_the_counters_by_the_time_between() -> None:
    view = view_of(events(0, 100, 50), events(2, 300, 100))
    assert [(p.sent, p.handled) for p in view.points] == [(100.0, 25.0)]
    assert (view.rates.sent, view.rates.handled) == (100.0, 25.0)


@pytest.mark.parametrize("changes", [{"epoch": 2}, {}])
def test_a_counter_that_begins_again_counts_from_nothing(changes: dict[str, Any]) -> None:
    view = view_of(events(0, 1000), events(1, 30, **changes))
    assert [p.sent for p in view.points] == [30.0]


def test_between_two_coordinators_there_is_no_rate() -> None:
    """Each has a clock of its own: the time between is not known."""
    assert view_of(events(0, 1000), events(0.001, 30, epoch=2, instance="second")).points == ()


def test_where_one_subtask_counts_anew_the_others_are_not_counted_again() -> None:
    """Policy reset: after a region failover the counters of its subtasks begin again."""
    before = status(0, operators=(operator(subtask(0, sent=1_000_000), subtask(1, sent=1_000_000)),))
    after = status(1, operators=(operator(subtask(0, sent=1_000_010), subtask(1, sent=7)),))
    assert [p.sent for p in view_of(before, after).points] == [17.0]


def test_where_subtasks_are_left_out_a_total_that_fell_tells_no_rate() -> None:
    def of(second: float, sent: int) -> JobStatus:
        totals = SubtaskTotals(0, 0, 9_000, 0, 0, sent, 0, 0, 0, 0, 0)
        return status(second, operators=(operator(subtask(0), parallelism=9_000, totals=totals),))

    assert [p.sent for p in view_of(of(0, 1_000_000), of(1, 900_000), of(2, 900_050)).points] == [0.0, 50.0]


def test_the_rate_of_now_is_of_the_last_seconds_only() -> None:
    told = [events(0, 0), events(1, 1000), *(events(s, 1000) for s in range(2, 9))]
    assert view_of(*told).rates.sent == 0.0
    assert view_of(*told[:2], after_s=60.0).rates.sent == 0.0


def test_the_points_kept_are_bounded() -> None:
    assert len(view_of(*(events(s, s) for s in range(POINTS_KEPT + 50))).points) == POINTS_KEPT


# ---- states, and what is waited for


def test_a_running_job_that_tells_nothing_more_is_gone_and_waits_for_a_coordinator() -> None:
    view = view_of(status(), after_s=12.0)
    assert view.state == "gone"
    assert view.waits[0] == "the next coordinator: nothing has been heard of this one for 12 s"
    assert view_of(status(), after_s=4.0).state == "running"


@pytest.mark.parametrize("state", ["finished", "stopped", "failed"])
def test_a_job_that_has_ended_waits_for_nothing_and_is_never_gone(state: str) -> None:
    view = view_of(status(state=state, pending=(pending(),)), after_s=999.0)
    assert (view.state, view.ended, view.waits) == (state, True, ())


@pytest.mark.parametrize(
    ("phase", "took_ms", "state", "says"),
    [
        ("running", None, "running", "Every subtask is there"),
        ("running", 40, "running", "Every subtask is there"),
        ("finished", 40, "running", "Every subtask is there"),
        ("running", -1, "recovering", "Subtasks start over after a failure."),
        ("absent", -1, "recovering", "1 subtask is not there after a failure."),
        ("waiting", None, "waiting", "1 subtask is not there. The others go on"),
        ("absent", 40, "waiting", "1 subtask is not there. The others go on"),
    ],
)
def test_a_job_is_said_to_run_only_while_every_subtask_is_there_and_no_failover_lasts(
    phase: str, took_ms: int | None, state: str, says: str
) -> None:
    failovers = () if took_ms is None else (failover(took_ms=took_ms),)
    view = view_of(status(operators=(operator(subtask(0), subtask(1, phase=phase)),), failovers=failovers))
    assert view.state == state
    assert view.says.startswith(says)


def test_subtasks_that_are_not_there_are_named_with_what_they_are_to_do() -> None:
    absent = subtask(1, phase="absent", step="to start over for 3 s: attempt 7 (in process)")
    waiting = subtask(2, phase="waiting", step="")
    view = view_of(status(operators=(operator(subtask(0), absent, waiting),)))
    assert view.says == "2 subtasks are not there. The others go on; no checkpoint completes until all are there."
    assert view.waits == (
        "reader/1 to start over for 3 s: attempt 7 (in process)",
        "reader/2 to be started again: it has asked for it",
    )


def test_of_many_that_are_not_there_some_are_named_and_the_others_counted() -> None:
    totals = SubtaskTotals(9_000, 0, 1_000, 0, 0, 5, 5, 0, 0, 0, 0)
    some = tuple(subtask(i, phase="absent", step="") for i in range(200))
    view = view_of(status(operators=(operator(*some, parallelism=10_000, totals=totals),)))
    assert view.waits[-1] == "8996 more of the 10000 subtasks of reader"
    assert (view.running, view.subtasks) == (1_000, 10_000)
    assert (len(view.operators[0].subtasks), view.operators[0].left_out) == (200, 9_800)


def test_of_many_rows_those_are_shown_that_somebody_would_look_for() -> None:
    """A coordinator's own page is told of all of them."""
    many = [subtask(i) for i in range(3_000)]
    many[2_900] = subtask(2_900, phase="absent")
    rows = view_of(status(operators=(operator(*many),))).operators[0].subtasks
    assert len(rows) == ROWS_MAX and [s.subtask for s in rows if s.phase == "absent"] == [2_900]


def test_while_the_job_is_rolled_back_its_rows_stay_where_they_are() -> None:
    rolled_back = status(state="failing-over", operators=(operator(parallelism=3),))
    view = view_of(rolled_back)
    assert [(s.subtask, s.phase) for s in view.operators[0].subtasks] == [(0, "absent"), (1, "absent"), (2, "absent")]
    assert view.waits == ("the next epoch to begin from checkpoint 5",)


def test_a_job_whose_own_code_has_stopped_sending_is_told_to_be_idle() -> None:
    done = operator(subtask(0, sent=10, handled=10))
    assert view_of(status(operators=(done,), last_event_s=42.0)).waits == (
        "idle: every event sent is handled, no checkpoint is under way, and the last event was 42 s ago",
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"last_event_s": 9.0},
        {"pending": (pending(),)},
        {"operators": (operator(subtask(0, sent=10, handled=9)),)},
        {"operators": (operator(subtask(0, sent=10, handled=10, held=1)),)},
        {"operators": (operator(subtask(0, sent=10, handled=10), parallelism=2),)},
        {"state": "failing-over"},
    ],
)
def test_a_job_in_which_somebody_owes_something_is_not_idle(changes: dict[str, Any]) -> None:
    quiet: dict[str, Any] = {"operators": (operator(subtask(0, sent=10, handled=10)),), "last_event_s": 42.0}
    assert not any("idle" in what for what in view_of(status(**quiet | changes)).waits)


def test_a_pending_checkpoint_says_what_it_waits_for() -> None:
    view = view_of(status(pending=(pending(), pending(savepoint=True, waits_for=""), pending(age_s=0.1))))
    assert view.waits == (
        "checkpoint 6, 1.5 s old, waits for reader/0 (its ack)",
        "savepoint 6, 1.5 s old, waits for nothing more",
    )


# ---- checkpoints


def bars(*args: Any, **changes: Any) -> dict[str, tuple[Segment, ...]]:
    (told,) = view_of(status(checkpoints=(checkpoint(5, *args, **changes),))).checkpoints
    return {bar.who: bar.segments for bar in told.bars}


def test_a_completed_checkpoint_has_a_bar_per_subtask_and_one_of_the_coordinator() -> None:
    assert bars(SubtaskTimes("reader", 0, 30, 80), SubtaskTimes("reader", 1, -1, 90)) == {
        "coordinator": (Segment(Kind.CUT, 0, 10), Segment(Kind.COMMIT, 90, 100)),
        "reader/0": (Segment(Kind.SNAPSHOT, 10, 30), Segment(Kind.UPLOAD, 30, 80)),
        "reader/1": (Segment(Kind.BOTH, 10, 90),),
    }


def test_what_a_checkpoint_under_way_still_waits_for_is_open() -> None:
    times = (SubtaskTimes("r", 0, -1, -1), SubtaskTimes("r", 1, 40, -1), SubtaskTimes("r", 2, 20, 50))
    assert bars(*times, outcome="under way", acked=1) == {
        "coordinator": (Segment(Kind.CUT, 0, 10),),
        "r/0": (Segment(Kind.SNAPSHOT, 10, 100, True),),
        "r/1": (Segment(Kind.SNAPSHOT, 10, 40), Segment(Kind.UPLOAD, 40, 100, True)),
        "r/2": (Segment(Kind.SNAPSHOT, 10, 20), Segment(Kind.UPLOAD, 20, 50)),
    }
    uncut = bars(SubtaskTimes("r", 0, -1, -1), outcome="under way", marked_ms=-1, acked=0, required=1)
    assert uncut == {"coordinator": (Segment(Kind.CUT, 0, 100, True),), "r/0": ()}


def test_an_aborted_checkpoint_shows_how_far_each_came_and_nothing_open() -> None:
    found = bars(SubtaskTimes("r", 0, -1, -1), outcome="aborted", acked=0, required=1)
    assert found["r/0"] == (Segment(Kind.SNAPSHOT, 10, 100),)


def test_the_bars_shown_are_of_a_slow_checkpoint_under_way_else_of_the_newest_that_is_over() -> None:
    over = (checkpoint(4, SubtaskTimes("r", 0, -1, 50)), checkpoint(5, SubtaskTimes("r", 0, -1, 50)))
    quick = checkpoint(6, SubtaskTimes("r", 0, -1, -1), outcome="under way", took_ms=20)
    slow = replace(quick, took_ms=3_000)
    assert view_of(status(checkpoints=over)).focus == 5
    assert view_of(status(checkpoints=(*over, quick))).focus == 5
    assert view_of(status(checkpoints=(*over, slow))).focus == 6
    assert view_of(status()).focus == -1


def test_bars_that_are_left_out_are_counted() -> None:
    times = tuple(SubtaskTimes("r", i, -1, 50) for i in range(BARS_MAX))
    (told,) = view_of(status(checkpoints=(checkpoint(5, *times, required=1_000, acked=1_000),))).checkpoints
    assert (len(told.bars), told.bars_left_out) == (BARS_MAX + 1, 1_000 - BARS_MAX)


def test_the_newest_checkpoint_and_the_newest_failover_stand_first() -> None:
    told = status(checkpoints=(checkpoint(4), checkpoint(5)), failovers=(failover(), failover(at_ms=BEGIN_MS + 9)))
    view = view_of(told)
    assert [c.checkpoint_id for c in view.checkpoints] == [5, 4]
    assert [f.at_ms for f in view.failovers] == [BEGIN_MS + 9, BEGIN_MS]


# ---- lines


def test_each_thing_that_happens_is_one_line_once() -> None:
    first = view_of(status())
    assert happened(None, first) == ["flights is running in epoch 1"]
    assert happened(first, first) == []
    then = view_of(
        status(
            1,
            checkpoints=(
                checkpoint(5),
                checkpoint(6, took_ms=35, required=4),
                checkpoint(7, outcome="aborted", reason="declined"),
            ),
            failovers=(failover(),),
            pending=(pending(),),
        )
    )
    assert happened(first, then) == [
        "region failover of reader/1, not over yet: reader/1 attempt 7: disk full",
        "checkpoint 6 completed after 35 ms, 4 subtasks, state 1,234 B",
        "checkpoint 7 aborted after 100 ms, 0 of 0 subtasks safe: declined",
        "checkpoint 6, 1.5 s old, waits for reader/0 (its ack)",
    ]
    over = view_of(status(2, failovers=(failover(took_ms=2_100),), checkpoints=(checkpoint(6), checkpoint(7))))
    assert happened(then, over) == ["region failover of reader/1, over after 2.1 s: reader/1 attempt 7: disk full"]


def test_what_is_waited_for_is_told_once_however_long_it_takes() -> None:
    def absent(seconds: int) -> JobStatus:
        doing = f"to start over for {seconds} s: attempt 7 (in process)"
        return status(seconds, operators=(operator(subtask(0), subtask(1, phase="absent", step=doing)),))

    first, then = view_of(absent(3)), view_of(absent(4))
    assert happened(view_of(status()), first) == [
        "flights is waiting in epoch 1",
        "waits for reader/1 to start over for 3 s: attempt 7 (in process)",
    ]
    assert happened(first, then) == []
    gone = [view_of(status(), after_s=after_s) for after_s in (6, 7, 300)]
    assert len(happened(view_of(status()), gone[0])) == 2
    assert happened(gone[0], gone[1]) == happened(gone[1], gone[2]) == []


def test_an_end_is_told_with_its_cause() -> None:
    ended = view_of(status(1, state="failed", cause="too many failovers\nmore"))
    assert happened(view_of(status()), ended) == ["flights is failed in epoch 1: too many failovers"]


def test_times_and_sizes_are_told_in_units_that_fit() -> None:
    assert [duration(ms) for ms in (7, 1_234, 45_600, 600_000)] == ["7 ms", "1.2 s", "46 s", "10 min"]
    assert [size(n) for n in (17, 123_456, 12_345_678)] == ["17 B", "123 kB", "12 MB"]
