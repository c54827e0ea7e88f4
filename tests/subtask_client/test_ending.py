"""How a subtask ends, and what of its end a restore knows: protocol, sections 8 and 9."""

from __future__ import annotations

import pytest

from penstock.schemas.acks import CheckpointAck, Finished
from penstock.schemas.data import RecordFrame
from penstock.subtask_client.protocol import effects as do
from penstock.subtask_client.protocol import inputs as on
from penstock.subtask_client.protocol.phases import Phase

A, B = "up/0", "up/1"

# ---- in two steps


def test_an_ack_says_finished_once_the_user_has_been_told_of_a_checkpoint_behind_the_end(d, wire):
    """Section 8: who is not started again must owe no second phase of a commit."""
    d.started()
    d.append(wire.marker(1, 0))
    d.feed(on.WorkEnded())
    d.append(wire.completed(1), wire.marker(2, 0), wire.marker(3, 0))
    assert len(d.written(Finished)) == 1
    d.fresh().append(wire.completed(2))
    assert d.names() == ["NotifyCompleted", "Finished"]  # the next one need not wait for its time
    d.append(wire.completed(3))
    assert (d.core.phase, d.names()[2:]) == (Phase.FINISHED, ["NotifyCompleted"])
    d.append(wire.marker(4, 0), wire.completed(4))
    assert (d.core.phase, d.ack().finished) == (Phase.LEFT, True)


def test_an_aborted_checkpoint_behind_the_end_tells_nobody_that_it_stands(d, wire):
    d.started()
    d.feed(on.WorkEnded())
    d.append(wire.marker(1, 0), wire.aborted(1), wire.marker(2, 0))
    assert [ack.finished for ack in d.written(CheckpointAck)] == [False, False]


def test_one_that_is_restored_from_behind_its_end_polls_once_more_and_ends_in_two_steps_again(d, wire):
    d.started()
    d.feed(on.WorkEnded())
    d.append(wire.marker(1, 0), wire.completed(1))
    d.restarted()
    assert d.core.may_poll
    d.fresh().feed(on.WorkEnded())
    for n in (2, 3):
        d.append(wire.marker(n, 0), wire.completed(n))
    assert [ack.finished for ack in d.written(CheckpointAck)] == [False, True]
    assert d.core.phase is Phase.LEFT


def test_events_skipped_between_the_two_steps_are_handled_by_whoever_is_restored_there(d, wire):
    """Sections 1 and 8: a snapshot that is not the last contains what was sent before its cut, as a range."""
    d.started()
    d.feed(on.WorkEnded())
    d.append(wire.frame(0, b"late"), wire.marker(1, 1), wire.frame(1, b"behind it"), wire.completed(1))
    assert d.handled == []
    d.restarted()
    assert d.handled == [b"late", b"behind it"]
    assert not d.failed


def test_a_savepoint_between_the_two_steps_that_would_need_a_range_is_declined(d, wire):
    """Section 7.9: a savepoint needs nothing of the log."""
    d.started()
    d.feed(on.WorkEnded())
    d.append(wire.frame(0, b"late"), wire.marker(1, 1, stop=True))
    assert (d.declined, d.snapshots) == ([1], [])
    d.append(wire.aborted(1), wire.marker(2, 1), wire.completed(2), wire.marker(3, 1, savepoint=True))
    assert (d.snapshots, d.written(CheckpointAck)[-1].finished) == ([2, 3], True)


def test_one_that_emits_ends_with_the_first_checkpoint_behind_its_end(driver, wire):
    """Its receivers know that nothing more comes; nothing of it may be done over."""
    d = driver(receivers="down/0").started()
    d.feed(on.WorkEnded())
    d.append(wire.marker(1, 0), wire.completed(1))
    assert (d.ack().finished, d.core.phase) == (True, Phase.LEFT)


# ---- end_inputs, once


def test_inputs_whose_end_a_snapshot_contains_do_not_end_again_after_its_restore(driver, wire, a, b):
    """Its state has seen end_inputs; and as it is restored the user has the second phase of all of it."""
    d = driver(f"{A} {B}").started()
    d.receive("up", a.end(), b.end())
    d.append(wire.marker(1, 0))
    assert not d.ack().finished
    d.restarted()
    assert len(d.of(do.EndInputs)) == 1
    assert d.core.phase is Phase.FINISHED
    assert d.data_at["up"] is None  # there is nothing to read
    d.append(wire.marker(2, 0))
    assert [ack.finished for ack in d.written(CheckpointAck)] == [False, True]
    d.restarted()  # from the ack of one that has read nothing itself: it names the same
    assert len(d.of(do.EndInputs)) == 1


def test_events_handled_behind_such_a_restore_are_work_that_the_user_has_not_been_told_of(driver, wire, a, b):
    """Section 8: a restore implies the completion of what its state holds, and these are not in there."""
    d = driver(f"{A} {B}").started()
    d.receive("up", a.end(), b.end())
    d.append(wire.marker(1, 0), wire.frame(0, b"late"))
    d.restarted()
    assert (d.handled, d.core.phase) == ([b"late"], Phase.FINISHED)
    for n in (2, 3):
        d.append(wire.marker(n, 1), wire.completed(n))
    assert [ack.finished for ack in d.written(CheckpointAck)] == [False, False, True]


@pytest.mark.parametrize("unaligned", [False, True])
def test_inputs_that_a_snapshot_found_open_end_for_the_user_after_its_restore_too(driver, wire, a, b, unaligned):
    d = driver(f"{A} {B}", "down/0", unaligned=unaligned).started()
    d.append(wire.marker(1, 0))
    d.receive("up", a.end(), b.barrier(1), b.end())
    assert len(d.of(do.EndInputs)) == 1
    if unaligned:
        assert d.segments(A) == [(0, 1, 30)]  # its end is read again
    d.restarted()
    assert len(d.of(do.EndInputs)) == 1
    d.receive("up", type(b)(B, attempt=61, generation=1).end())
    assert len(d.of(do.EndInputs)) == 2


@pytest.mark.parametrize("receivers", ["", "down/0"])
def test_inputs_that_had_all_ended_before_the_subtask_existed_end_for_its_user_once(driver, wire, receivers):
    """An operator was added behind others whose end the checkpoint contains. What it emits at the end counts once."""
    d = driver(A, receivers)

    def ends(_: do.EndInputs) -> on.Input:
        for receiver in receivers.split():
            d.emit(receiver, b"total")
        return on.EndInputsReturned()

    d.user[do.EndInputs] = ends
    d.started(checkpoint_id=4, next_checkpoint_id=5, data_positions=(wire.at(A, None),))
    assert len(d.of(do.EndInputs)) == 1
    d.append(wire.marker(5, 0))
    d.restarted()
    assert len(d.of(do.EndInputs)) == 1
    for receiver in receivers.split():
        assert len([record for record in d.out(receiver) if isinstance(record, RecordFrame)]) == 1


def restored_as(d, driver, senders: str, *added):
    """Another job begins from the last ack of ``d``, with these inputs; ``added`` are positions of new ones."""
    (ack,) = d.written(CheckpointAck)
    kept = tuple(position for position in ack.data_positions if position.channel in senders.split())
    return driver(senders).started(
        checkpoint_id=1, next_checkpoint_id=2, data_positions=(*kept, *added), inputs_ended=ack.inputs_ended
    )


def test_the_rest_of_the_inputs_end_for_the_user_where_the_one_that_was_open_has_been_removed(driver, wire, a, side):
    d = driver(f"{A} side/0").started()
    d.receive("up", a.frame(b"a1"), a.end())
    d.append(wire.marker(1, 0))
    d.receive("side", side.barrier(1))
    assert len(restored_as(d, driver, A).of(do.EndInputs)) == 1


def test_an_input_that_was_added_behind_the_end_of_the_others_ends_for_the_user_in_its_turn(driver, wire, a, side):
    d = driver(A).started()
    d.receive("up", a.end())
    d.append(wire.marker(1, 0))
    new = restored_as(d, driver, f"{A} side/0", wire.at("side/0"))
    assert not new.of(do.EndInputs)
    new.receive("side", side.frame(b"s1"), side.end())
    assert new.records == [b"s1"]
    assert len(new.of(do.EndInputs)) == 1


def test_one_whose_inputs_have_all_been_removed_works_on_its_own(driver, wire, a):
    d = driver(A).started()
    d.receive("up", a.end())
    d.append(wire.marker(1, 0))
    assert restored_as(d, driver, "").core.may_poll


def test_inputs_whose_end_completes_a_stopping_savepoint_end_for_the_user_after_its_restore(driver, wire, a, b):
    d = driver(f"{A} {B}").started()
    d.append(wire.marker(1, 0, stop=True))
    d.receive("up", a.end(), b.end())
    assert [n for n in d.names() if n in ("EndInputs", "TakeSnapshot")] == ["TakeSnapshot"]
    d.restarted()
    assert len(d.of(do.EndInputs)) == 1


def test_a_sink_ends_once_it_has_been_told_that_a_checkpoint_with_all_its_records_has_completed(driver, wire, a):
    """Section 8: a task that dies before it is told must not be one that nobody starts again."""
    d = driver(A).started()
    d.append(wire.marker(1, 0))
    d.receive("up", a.barrier(1), a.frame(b"a1"), a.end())
    assert len(d.of(do.EndInputs)) == 1
    assert d.core.phase is Phase.FINISHED
    for n in (1, 2):  # only the second was begun behind the end
        d.append(wire.completed(n), wire.marker(n + 1, 0))
    assert [ack.finished for ack in d.written(CheckpointAck)] == [False, False, True]
    d.append(wire.completed(3))
    assert d.core.phase is Phase.LEFT
