"""Batches of queries that do not drive the job (protocol, section 10.9)."""

from __future__ import annotations

import dataclasses

import pytest

from penstock.coordinator.protocol import effects, feeds
from penstock.coordinator.protocol.inputs import BatchHandled, CoordinatorRaised
from penstock.schemas.acks import FEED_NAME_CHARS_MAX, CommandKind, FeedPart, RunStarted
from penstock.schemas.checkpoints import FeedPosition
from penstock.schemas.frames import pack, unpack
from penstock.schemas.settings import OperatorSettings, Rescale

from .driver import LIFE, S0, Script
from .test_batches import attached

HELD = 1_000


def running(*operators: OperatorSettings) -> Script:
    return Script.running(*(operators or (OperatorSettings("op", 2, max_held_bytes=HELD),)))


def parts(
    batch: int, *frames: list[bytes], query: str = "q", sender: str = "", operator: str = "op", history: str = LIFE
) -> list[FeedPart]:
    packed = [pack(frame) for frame in frames or [[b"x"]]]
    size = sum(each.size for each in packed)
    return [
        FeedPart(operator, query, batch, sender or f"{query}-{batch}", i, len(packed), size, history, *each)
        for i, each in enumerate(packed)
    ]


def called(script: Script) -> list[effects.CallBatch]:
    return [call for call in script.calls if isinstance(call, effects.CallBatch)]


def handle(script: Script, error: str = "") -> None:
    """The coordinator has handled the batch that it was called with last, or has refused it."""
    call = [c for c in script.all_calls if isinstance(c, effects.CallBatch)][-1]
    script.handle(BatchHandled(script.epoch.number, call.operator, call.query, error))


def complete(script: Script) -> int:
    """The checkpoint that the effect of a batch has asked for completes."""
    if not script.pending:
        script.trigger()
    (n,) = script.pending
    script.acknowledge(n)
    return n


def answers(script: Script) -> list[tuple[str, bool]]:
    return [(reply.command, reply.accepted) for reply in script.replies()]


def test_a_batch_is_handled_and_answered_when_a_checkpoint_has_its_effect() -> None:
    script = running()
    script.read(*parts(0, [b"a", b"b"], [b"c"]))
    (call,) = called(script)
    assert [unpack(*frame) for frame in call.frames] == [[b"a", b"b"], [b"c"]]
    assert (call.operator, call.query, call.batch) == ("op", "q", 0)
    handle(script)
    assert answers(script) == []
    assert len(script.pending) == 1, "it is asked for at once, not at the next interval"
    n = complete(script)
    assert answers(script) == [("q-0", True)]
    (operator,) = script.job.history.checkpoints[n].header.operators
    assert operator.feeds == (FeedPosition("q", 0),)


def test_a_batch_that_comes_again_is_answered_and_has_no_second_effect() -> None:
    script = running()
    script.read(*parts(0))
    handle(script)
    complete(script)
    script.forget()
    script.read(*parts(0, sender="again"))
    assert (called(script), answers(script)) == ([], [("again", True)])


def test_who_writes_a_batch_again_before_its_checkpoint_gets_the_answer() -> None:
    script = running()
    script.read(*parts(0))
    handle(script)
    script.read(*parts(0, sender="again"))
    complete(script)
    assert (len(called(script)), answers(script)) == (1, [("again", True)])


@pytest.mark.parametrize("completed", [True, False])
def test_a_successor_knows_the_batches_that_a_completed_checkpoint_has(completed: bool) -> None:
    script = running()
    script.read(*parts(0))
    handle(script)
    if completed:
        complete(script)
    script.restart()
    script.read(*parts(0, sender="again"))
    assert len(called(script)) == (0 if completed else 1)
    assert answers(script) == ([("again", True)] if completed else [])


def test_what_stands_before_an_epoch_is_not_handed_over_in_it() -> None:
    """Its sender writes it again: it cannot know whether the batch was read."""
    script = running()
    for part in parts(0):
        script.write(part)
    script.restart()
    script.read(None)
    assert called(script) == []
    script.read(*parts(0, sender="again"))
    assert len(called(script)) == 1


def test_a_batch_waits_while_its_coordinator_owes_the_state_of_a_checkpoint() -> None:
    script = running()
    script.auto_cut = False
    n = script.trigger()
    script.read(*parts(0))
    assert called(script) == []
    script.handle(script.completed("op", n))
    assert len(called(script)) == 1
    script.acknowledge(n)
    assert answers(script) == []
    assert script.job.history.checkpoints[n].header.operators[0].feeds == ()


def test_no_checkpoint_is_triggered_while_a_batch_is_being_handled() -> None:
    script = running()
    script.read(*parts(0))
    script.live(15.0)
    assert script.pending == {}
    handle(script)
    assert len(script.pending) == 1


def test_a_batch_that_the_coordinator_refuses_has_no_effect_and_may_come_again() -> None:
    script = running()
    script.read(*parts(0))
    handle(script, "ValueError: no such carrier")
    assert answers(script) == [("q-0", False)]
    assert script.replies()[0].outcome == "ValueError: no such carrier"
    script.read(*parts(0, sender="again"))
    handle(script)
    complete(script)
    assert answers(script)[1:] == [("again", True)]


def test_a_batch_that_the_coordinator_raises_with_is_refused_and_its_epoch_ends() -> None:
    script = running()
    script.read(*parts(0))
    epoch = script.epoch.number
    script.handle(CoordinatorRaised("op", epoch, "handle_batch", "ZeroDivisionError"))
    assert answers(script) == [("q-0", False)]
    assert script.epoch.number > epoch
    assert script.epoch.feeds.positions == {}


def test_batches_may_be_passed_over_and_an_older_one_is_refused() -> None:
    """A batch without rows is not sent. What comes below a durable one has gone back to an older copy."""
    script = running()
    for batch in (0, 2):
        script.read(*parts(batch))
        handle(script)
        complete(script)
    script.forget()
    script.read(*parts(1))
    assert (called(script), answers(script)) == ([], [("q-1", False)])
    assert "has gone back to batch 1" in script.replies()[0].outcome


def test_an_older_savepoint_that_completes_later_forgets_no_batch() -> None:
    script = Script.running(OperatorSettings("op", 2), checkpoint={"max_concurrent": 2})
    older = script.savepoint()
    script.read(*parts(0))
    handle(script)
    script.live(1.0)
    (newer,) = set(script.pending) - {older}
    script.acknowledge(newer)
    script.acknowledge(older)
    script.forget()
    script.read(*parts(0, sender="again"))
    assert answers(script) == [("again", True)]


def test_an_aborted_checkpoint_is_asked_for_again_while_somebody_waits() -> None:
    script = Script.running(OperatorSettings("op", 2), checkpoint={"interval": 600.0})
    script.read(*parts(0))
    handle(script)
    (n,) = script.pending
    script.read(script.task(S0).decline(n))
    script.live(10.0)
    assert len(script.pending) == 1


def test_a_batch_waits_until_every_subtask_of_its_operator_is_there() -> None:
    script = Script.begun()
    script.read(RunStarted("run-1", "here"), *parts(0))
    assert called(script) == []
    script.hello_all()
    script.read(*(task.heartbeat() for task in script.tasks.values()))
    assert [type(call).__name__ for call in script.calls][-1] == "CallBatch"


def test_a_batch_whose_sender_has_died_gives_its_room_to_others() -> None:
    script = running()
    script.read(parts(0, [b"x" * 300], [b"x" * 300], query="dead")[0])
    script.read(*parts(0, [b"x" * 300], query="q"))
    assert called(script) == []
    script.live(feeds.IDLE_S + 1)
    script.read(*parts(0, [b"x" * 300], query="q", sender="again"))
    assert [call.query for call in called(script)] == ["q"]


def test_a_part_beyond_the_last_is_void() -> None:
    script = running()
    script.read(dataclasses.replace(parts(0)[0], part=1))
    assert script.dropped("unreadable") == 1


def test_positions_take_at_most_an_eighth_of_a_record() -> None:
    script = running()
    script.job.limits = dataclasses.replace(script.job.limits, feeds_bytes=40)
    for query in ("p" * 20, "q" * 20):
        script.read(*parts(0, query=query, sender=query[0]))
        if query[0] == "p":
            handle(script)
            complete(script)
    assert answers(script) == [("p", True), ("q", False)]
    assert "its checkpoints hold no more of their positions" in script.replies()[1].outcome


def test_queries_have_positions_of_their_own() -> None:
    script = running()
    for query in ("p", "q"):
        script.read(*parts(0, query=query))
        handle(script)
    complete(script)
    n = complete(script)
    feeds_of = script.job.history.checkpoints[n].header.operators[0].feeds
    assert set(feeds_of) == {FeedPosition("p", 0), FeedPosition("q", 0)}
    assert answers(script) == [("p-0", True), ("q-0", True)]


def test_a_second_process_of_a_query_takes_over_and_the_first_is_told() -> None:
    script = running()
    script.read(parts(0, [b"a"], [b"b"], sender="first")[0])
    script.read(*parts(0, [b"a"], sender="second"))
    assert answers(script) == [("first", False)]
    assert len(called(script)) == 1


def test_parts_out_of_order_are_dropped_and_their_sender_writes_again() -> None:
    script = running()
    one, two, three = parts(0, [b"a"], [b"b"], [b"c"])
    script.read(two, one, three, three)
    assert (called(script), script.dropped("feed-out-of-order")) == ([], 3)
    script.read(*parts(0, [b"a"], [b"b"], [b"c"], sender="again"))
    assert len(called(script)) == 1


def test_a_batch_of_another_incarnation_is_no_batch_of_this_job() -> None:
    script = running()
    script.read(*parts(0, history="another"))
    assert (called(script), script.dropped("feed-of-another-incarnation")) == ([], 1)


def test_more_bytes_than_were_announced_are_refused() -> None:
    script = running()
    script.read(*(dataclasses.replace(part, size=6) for part in parts(0, [b"a"], [b"b"])))
    assert (called(script), script.dropped("unreadable"), script.epoch.feeds.parts) == ([], 1, {})


def test_a_batch_above_the_bound_is_refused_by_its_number_of_bytes() -> None:
    script = running()
    script.read(*parts(0, [b"x" * HELD]))
    (reply,) = script.replies()
    assert not reply.accepted
    assert f"{HELD + 4 + feeds.PART_BYTES} bytes, and operator op takes {HELD} (max_held_bytes)" in reply.outcome


def test_batches_of_several_queries_share_the_bound() -> None:
    script = running()
    script.read(parts(0, [b"x" * 300], [b"x" * 300], query="p")[0])
    script.read(*parts(0, [b"x" * 300], query="q"))
    assert (called(script), script.dropped("feed-without-room")) == ([], 1)
    script.read(parts(0, [b"x" * 300], [b"x" * 300], query="p")[1])
    handle(script)
    script.read(*parts(0, [b"x" * 300], query="q", sender="again"))
    assert [call.query for call in called(script)] == ["p", "q"]


def test_an_unknown_operator_is_refused_and_those_that_there_are_are_named() -> None:
    script = running()
    script.read(*parts(0, operator="other"))
    (reply,) = script.replies()
    assert (reply.accepted, reply.outcome) == (False, "no operator 'other' with a coordinator; there is: op")


def test_a_job_that_a_query_drives_takes_batches_of_that_query_alone() -> None:
    script, _ = attached()
    script.forget()
    script.read(*parts(0))
    (reply,) = script.replies()
    assert "a query drives this job: send with send_to_coordinator" in reply.outcome


def test_an_effect_behind_the_cut_of_a_stop_with_savepoint_is_not_said_to_have_happened() -> None:
    script = running()
    n = script.savepoint(CommandKind.STOP_WITH_SAVEPOINT)
    script.read(*parts(0))
    handle(script)
    script.acknowledge(n)
    assert script.ended is not None
    assert "q-0" not in dict(answers(script))
    assert script.job.history.checkpoints[n].header.operators[0].feeds == ()


def test_queries_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "FEEDS_MAX", 1)
    script = running()
    script.read(*parts(0, query="p"))
    handle(script)
    script.read(*parts(0, query="q"))
    assert answers(script) == [("q-0", False)]


def test_positions_outlive_a_change_of_the_parallelism() -> None:
    script = running(OperatorSettings("op", 2, rescale=Rescale.LIST))
    script.read(*parts(3))
    handle(script)
    complete(script)
    changed = dataclasses.replace(
        script.settings, operators=(dataclasses.replace(script.settings.operators[0], parallelism=3),)
    )
    script.restart(changed)
    script.forget()
    script.read(*parts(3, sender="again"))
    assert answers(script) == [("again", True)]


def test_a_region_failover_leaves_the_effect_as_it_is() -> None:
    script = running()
    script.read(*parts(0))
    handle(script)
    script.read(script.task(S0).failed())
    assert script.epoch.feeds.positions == {("op", "q"): 0}


@pytest.mark.parametrize("named", ["operator", "query", "sender"])
def test_a_part_with_a_name_that_is_too_long_is_void(named: str) -> None:
    script = running()
    script.read(*parts(0, **{named: "n" * (FEED_NAME_CHARS_MAX + 1)}))
    assert (script.replies(), script.dropped("unreadable")) == ([], 1)
