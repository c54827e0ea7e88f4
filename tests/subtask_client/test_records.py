"""Which records of other operators are handled, in what order, and what ends with them: protocol, section 9."""

from __future__ import annotations

import random

import pytest

from penstock.schemas.acks import CheckpointAck, Finished
from penstock.schemas.data import RecordFrame
from penstock.schemas.errors import SequenceGap, SubtaskError
from penstock.schemas.state import Segment
from penstock.subtask_client.protocol import effects as do
from penstock.subtask_client.protocol import inputs as on
from penstock.subtask_client.protocol.drop_reasons import Dropped
from penstock.subtask_client.protocol.phases import Phase

from .conftest import OVERDUE_S

A, B = "up/0", "up/1"


# ---- what counts


def test_records_are_handled_frame_by_frame_with_their_sender(two, a, b):
    two.fresh().receive("up", a.frame(b"a1", b"a2"), b.frame(b"b1"))
    assert two.of(do.HandleRecords) == [
        do.HandleRecords(a.sender.subtask_id, [b"a1", b"a2"], 0),
        do.HandleRecords(b.sender.subtask_id, [b"b1"], 1),
    ]
    assert two.taken == [(A, b"a1"), (A, b"a2"), (B, b"b1")]


def test_data_partitions_are_read_from_where_start_says_once_the_users_object_is_open(driver, wire):
    d = driver(f"{A} side/0")
    d.started(data_positions=(wire.at(A, 7), wire.at("side/0", 3)))
    assert d.names()[-3:] == ["OpenUser", "SeekData", "SeekData"]
    assert d.of(do.SeekData) == [do.SeekData("up", 7, 7), do.SeekData("side", 3, 3)]


def test_a_data_partition_must_hold_all_that_its_channels_want_of_it(driver, wire, a):
    """From the lowest range to the highest open position: what lies above its end was never written there."""
    d = driver(f"{A} {B}")
    d.started(data_positions=(wire.at(A, 9, a.range(2, 4)), wire.at(B, 5)))
    assert d.of(do.SeekData) == [do.SeekData("up", 2, 9)]


def test_a_record_that_comes_before_the_start_or_is_left_from_an_older_one_is_dropped(driver, wire, a):
    d = driver(A).hello()
    d.feed(on.DataRead("up", 0, a.frame(b"too early")))
    d.append(wire.start(data_positions=(wire.at(A),)))
    a.sequence = 0
    d.receive("up", a.frame(b"a1"))
    d.feed(on.DataRead("up", 0, d.data["up"][0]))
    assert d.records == [b"a1"]
    assert d.core.dropped["already_read"] == 2


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({}, True),
        ({"generation": 1}, False),  # before the last failover: a zombie, or what it left behind
        ({"generation": 3}, False),  # a reader that has not read its Reset yet
        ({"epoch": 0}, False),
        ({"epoch": 2}, False),
    ],
)
def test_frames_of_another_generation_are_dropped(driver, upstream, changes, counts):
    """Section 4, generation."""
    d = driver(A).started(generation=2)
    d.receive("up", upstream(A, **{"generation": 2, **changes}).frame(b"x"))
    assert d.records == ([b"x"] if counts else [])
    assert d.core.dropped["other_generation"] == (0 if counts else 1)
    assert not d.failed


def test_a_zombie_among_its_successors_records_changes_nothing(driver, wire, upstream):
    """Its frames, its barriers and its end are all void, and its numbering is its own."""
    d = driver(A, "down/0").started(generation=1)
    zombie, a = upstream(A, attempt=20), upstream(A, attempt=30, generation=1)
    d.receive("up", zombie.frame(b"x"), a.frame(b"a1"), zombie.barrier(1), zombie.frame(b"y"), a.frame(b"a2"))
    d.receive("up", zombie.end(), a.frame(b"a3"))
    d.append(wire.marker(1, 0))
    assert d.records == [b"a1", b"a2", b"a3"]
    assert not d.written(CheckpointAck)
    d.receive("up", a.barrier(1))
    (position,) = d.ack().data_positions
    assert ([s.begin for s in position.segments], position.sequence) == ([8], 4)


def test_records_of_a_sender_that_is_no_channel_of_this_partition_are_dropped(driver, upstream):
    d = driver(f"{A} side/0").started()
    d.receive("up", upstream("up/7").frame(b"x"), upstream("side/0").frame(b"y"), upstream(A).frame(b"a1"))
    assert d.records == [b"a1"]
    assert d.core.dropped["other_sender"] == 2


def test_an_unreadable_record_is_counted_and_kept_out(two, a):
    two.receive("up", a.frame(b"a1"), ValueError(), a.frame(b"a2"))
    assert two.records == [b"a1", b"a2"]
    assert two.core.dropped["unreadable"] == 1


def test_an_unreadable_frame_shows_as_a_gap_at_the_next_record(two, a):
    two.receive("up", RecordFrame(a.sender, 0, 3, b"\1\0\0\0", b"x"))
    assert two.core.dropped["unreadable"] == 1
    assert not two.failed
    a.sequence = 1
    two.receive("up", a.frame(b"a2"))
    assert len(two.failed) == 1
    assert two.records == []


def test_an_empty_frame_takes_its_number_and_asks_for_nothing(two, a):
    two.fresh().receive("up", a.frame(), a.frame(b"a1"))
    assert two.names() == ["HandleRecords"]
    assert two.records == [b"a1"]


# ---- gaps


def test_a_repeat_on_a_channel_has_no_effect(two, a, b):
    """Section 4.1 ◆: a client may append again what it has appended already."""
    tail = [a.frame(b"a1"), a.barrier(1), a.frame(b"a2")]
    two.receive("up", *tail, *tail, b.frame(b"b1"))
    assert two.records == [b"a1", b"b1"]  # the rest of a's waits for the barrier of b
    assert two.core.dropped[Dropped.REPEATED] == 2
    assert not two.failed


@pytest.mark.parametrize("kind", ["frame", "barrier", "end"])
def test_a_gap_on_a_channel_fails_the_attempt_and_names_channel_and_offset(two, a, b, kind):
    found, expected = 2, 1
    two.receive("up", b.frame(b"b1"), a.frame(b"a1"), b.frame(b"b2"))
    a.sequence = found
    record = {"frame": lambda: a.frame(b"x"), "barrier": lambda: a.barrier(1), "end": a.end}[kind]()
    two.fresh().receive("up", record, b.frame(b"b3"))
    assert [n for n in two.names() if n in ("Report", "Failed", "PauseData", "CloseUser", "NotePosition", "Hello")] == [
        "Report", "Failed", "PauseData", "CloseUser", "NotePosition", "Hello",
    ]  # fmt: skip
    (report,) = two.of(do.Report)
    assert isinstance(report.error, SequenceGap)
    for part in ("reader/0", "attempt 50", "from up/0", f"expected sequence {expected}", "offset 3", f"has {found}"):
        assert part in str(report.error)
    assert two.failed == [str(report.error)]
    assert two.records == [b"b1", b"a1", b"b2"]
    assert two.core.phase is Phase.WAITING


def test_a_first_record_that_does_not_begin_its_generation_is_a_gap(two, a):
    a.sequence = 1
    two.receive("up", a.frame(b"a2"))
    assert "expected sequence 0 of its generation 1.0" in two.failed[0]


def test_each_channel_has_its_own_numbering(two, a, b):
    two.receive("up", a.frame(b"a1"), a.frame(b"a2"), b.frame(b"b1"), a.frame(b"a3"), b.frame(b"b2"))
    assert not two.failed
    assert len(two.records) == 5


def test_a_gap_inside_an_older_range_fails_the_attempt_too(driver, wire, a):
    d = driver(A)
    a.sequence = 6
    d.data["up"] = [a.frame(b"a6")]
    d.started(generation=1, data_positions=(wire.at(A, 1, a.range(0, 1), sequence=5),))
    assert "expected sequence 5 of its generation 1.0" in d.failed[0]


# ---- ranges


def two_histories(upstream):
    """A channel's log: a range that a checkpoint names, void leftovers, and what the third generation wrote."""
    first, second, third = (upstream(A, attempt=30 + g, generation=g) for g in range(3))
    twin = upstream(A, attempt=29)
    first.sequence = 4
    log = [
        first.frame(b"in the state"), first.frame(b"r1"), twin.frame(b"of no Start"), first.frame(b"r2"),
        first.barrier(1), first.frame(b"void"), second.frame(b"void"), second.barrier(1),
        third.frame(b"t1"), second.frame(b"late zombie"), third.frame(b"t2"),
    ]  # fmt: skip
    return log, first.range(1, 4)


def test_ranges_are_handled_in_the_generation_they_were_written_in_across_two_failures(driver, wire, upstream):
    """No checkpoint has completed in between, so both restores are of the same one."""
    log, named = two_histories(upstream)
    position = wire.at(A, 5, named, sequence=5)
    d = driver(A)
    d.data["up"] = log[:8]
    d.started(generation=1, data_positions=(position,))
    assert d.records == [b"r1", b"r2", b"void"]  # the second generation's own record, which will be undone
    d.data["up"] = log
    d.restarted(data_positions=(position,))
    assert d.records == [b"r1", b"r2", b"t1", b"t2"]
    assert not d.failed


def test_a_second_range_is_read_in_its_own_generation_and_numbering(driver, wire, upstream):
    first, second, third = (upstream(A, attempt=30 + g, generation=g) for g in range(3))
    first.sequence = 4
    d = driver(A)
    d.data["up"] = [
        first.frame(b"r1"), first.barrier(1), first.frame(b"void"), second.frame(b"s1"), first.frame(b"zombie"),
        second.frame(b"s2"), second.barrier(2), second.frame(b"void"), third.frame(b"t1"),
    ]  # fmt: skip
    ranges = (first.range(0, 1), second.range(2, 6))
    d.started(generation=2, data_positions=(wire.at(A, 7, *ranges, sequence=4),))
    assert d.records == [b"r1", b"s1", b"s2", b"t1"]
    assert not d.failed


def test_a_range_left_over_in_an_unaligned_snapshot_is_named_again_in_its_own_generation(driver, wire, upstream):
    """The next checkpoint's first barrier may come while a slower channel still has older records to handle."""
    a, side = upstream(A, attempt=40, generation=1), upstream("side/0", attempt=41, generation=1)
    old = upstream("side/0", attempt=21)
    d = driver(f"{A} side/0", unaligned=True)
    d.data["side"] = [old.frame(b"r1"), old.frame(b"r2"), old.barrier(1), side.frame(b"s1")]
    d.slow = {"side"}
    d.started(
        generation=1, next_checkpoint_id=2, checkpoint_id=1,
        data_positions=(wire.at(A), wire.at("side/0", 3, old.range(0, 2))),
    )  # fmt: skip
    d.feed(on.DataRead("side", 0, d.data["side"][0]))
    d.data_at["side"] = 1
    d.receive("up", a.barrier(2))
    d.append(wire.marker(2, 0))
    d.catch_up()
    d.receive("side", side.barrier(2))
    (position,) = (p for p in d.ack().data_positions if p.channel == "side/0")
    assert position.segments[:2] == (old.range(1, 2), Segment(3, 4, 1, 1, 41))
    assert (position.segments[2].begin, position.sequence) == (5, 1)
    assert d.records == [b"r1", b"r2", b"s1"]
    d.restarted()
    assert d.records == [b"r2", b"s1"]
    assert not d.failed


@pytest.mark.parametrize("unaligned", [False, True])
def test_barriers_inside_an_older_range_are_void(driver, wire, upstream, unaligned):
    """Section 9 ◆: they belong to a history that is over, whatever id they carry."""
    old, new = upstream(A), upstream(A, attempt=40, generation=1)
    d = driver(A, unaligned=unaligned)
    d.data["up"] = [old.barrier(7), old.frame(b"r1"), old.barrier(8), old.frame(b"r2"), old.barrier(9)]
    d.started(generation=1, data_positions=(wire.at(A, 5, old.range(0, 4)),), next_checkpoint_id=3)
    assert d.records == [b"r1", b"r2"]
    assert d.core.dropped["void_control"] == 2 + 1  # its own Start, too, is read again
    assert d.core.aligning is None
    d.append(wire.marker(7, 0))
    assert not d.written(CheckpointAck)
    d.receive("up", new.barrier(7))
    assert d.ack().checkpoint_id == 7


def test_an_end_inside_an_older_range_ends_the_channel(driver, wire, a):
    """Such a range has nothing open behind it: the sender was finished for good."""
    d = driver(A)
    d.data["up"] = [a.frame(b"r1"), a.end()]
    d.started(generation=1, data_positions=(wire.at(A, None, a.range(0, 2)),))
    assert d.records == [b"r1"]
    assert len(d.of(do.EndInputs)) == 1


def test_data_partitions_are_read_only_after_the_restored_event_ranges(driver, wire, a):
    """So that no snapshot ever falls into them."""
    d = driver(A, unaligned=True)
    d.log = [wire.frame(0, b"e1"), wire.frame(1, b"e2"), wire.frame(2, b"e3")]
    order: list[bytes] = []
    d.user[do.HandleEvents] = lambda call: order.extend(call.events) or on.EventsHandled()
    d.user[do.HandleRecords] = lambda call: order.extend(call.records) or on.RecordsHandled()
    d.data["up"] = [a.frame(b"a1")]
    d.hello()
    d.slow = {"events"}
    d.log.append(wire.start(event_ranges=(Segment(0, 2, 1, 0, 50),), data_positions=(wire.at(A),)))
    d.feed(on.RecordRead(3, d.log[3]))
    d.feed(on.DataRead("up", 0, d.data["up"][0]))  # nobody has asked for it
    d.feed(on.RecordRead(0, d.log[0]))
    assert not d.of(do.SeekData)
    d.catch_up()
    names = [name for name in d.names() if name in ("HandleEvents", "SeekData")]
    assert names == ["HandleEvents", "HandleEvents", "SeekData", "HandleEvents"]
    assert order == [b"e1", b"e2", b"e3", b"a1"]


# ---- the end of the inputs


def test_the_inputs_end_once_behind_the_last_record_and_every_receiver_is_told(driver, a, upstream):
    d = driver(f"{A} side/0", "down/0 down/1").started()
    d.user[do.EndInputs] = lambda call: d.emit("down/0", b"total") or on.EndInputsReturned()
    side = upstream("side/0")
    d.receive("up", a.frame(b"a1"), a.end())
    assert not d.of(do.EndInputs)
    d.fresh().receive("side", side.frame(b"s1"), side.end())
    assert d.names() == ["HandleRecords", "EndInputs", "RecordFrame", "ChannelEnded", "ChannelEnded", "Finished"]
    assert [type(record).__name__ for record in d.out("down/0")] == ["RecordFrame", "ChannelEnded"]
    assert [type(record).__name__ for record in d.out("down/1")] == ["ChannelEnded"]
    d.feed(on.TurnEnded(dry=True))
    d.receive("up", a.frame(b"behind the end"))
    assert len(d.of(do.EndInputs)) == 1
    assert len(d.written(Finished)) == 1
    assert d.records == [b"a1", b"s1"]


def test_an_attempt_whose_inputs_have_ended_ends_behind_its_own_start(driver, wire, a):
    """Section 8: what its predecessors were sent is in the state that it ends with."""
    d = driver(A, "down/0")
    d.log = [wire.frame(0, b"e1")]
    d.hello()
    d.log.append(wire.start(data_positions=(wire.at(A, None),)))
    d.slow = {"events"}
    d.feed(on.RecordRead(1, d.log[1]))
    d.turn(dry=False)
    assert (d.core.phase, d.out("down/0"), d.of(do.EndInputs)) == (Phase.RUNNING, [], [])
    d.feed(on.RecordRead(0, d.log[0]))
    d.turn(dry=False)
    assert (d.handled, d.of(do.EndInputs)) == ([b"e1"], []), "its own Start is still to be read again"
    d.catch_up()
    assert d.core.phase is Phase.FINISHED
    assert [type(record).__name__ for record in d.out("down/0")] == ["ChannelEnded"]


def test_what_end_inputs_emits_is_in_no_checkpoint_without_the_end(driver, wire, a):
    """Or a restore of that checkpoint would emit it again: the next marker stands right behind the own Start."""
    d = driver(A, "down/0")
    d.user[do.EndInputs] = lambda call: d.emit("down/0", b"total") or on.EndInputsReturned()
    d.log = [wire.frame(0, b"e1")]
    d.hello()
    d.append(wire.start(data_positions=(wire.at(A, None),)), wire.marker(1, 1))
    assert [type(record).__name__ for record in d.out("down/0")][:2] == ["RecordFrame", "ChannelEnded"]
    assert d.ack().finished


def test_nothing_is_emitted_behind_the_end(driver, wire, a):
    """Its receivers have been told that nothing more comes, and would drop it."""
    d = driver(A, "down/0").started()
    d.receive("up", a.end())
    assert d.core.finished
    with pytest.raises(SubtaskError, match="has ended"):
        d.emit("down/0", b"too late")


def test_user_code_that_raises_at_the_end_of_its_inputs_fails_the_attempt_and_is_asked_again(two, a, b):
    two.user[do.EndInputs] = lambda call: on.UserFailed("boom")
    two.receive("up", a.end(), b.end())
    assert two.failed == ["boom"]
    assert two.out("down/0") == []


# ---- failures


def test_a_record_that_fails_its_handler_is_handled_again_by_the_next_attempt(two, wire, a, upstream):
    two.append(wire.marker(1, 0))
    two.user[do.HandleRecords] = lambda call: on.UserFailed("handle_record: boom")
    two.receive("up", a.frame(b"a1"))
    assert two.failed == ["handle_record: boom"]
    assert two.data_at["up"] is None
    del two.user[do.HandleRecords]
    a = upstream(A, attempt=40, generation=1)
    two.append(wire.start(60, "nonce-2", generation=1, event_position=2, data_positions=(wire.at(A), wire.at(B))))
    two.receive("up", a.frame(b"a1"))
    assert two.records == [b"a1"]


# ---- any order


@pytest.mark.parametrize("unaligned", [False, True, None], ids=["aligned", "unaligned", "overdue"])
@pytest.mark.parametrize("globally", [False, True], ids=["region", "global"])
@pytest.mark.parametrize("seed", range(40))
def test_in_any_order_a_restore_handles_each_record_once_that_the_state_does_not_hold(
    driver, wire, upstream, unaligned, globally, seed
):
    """G2 and G3 between operators: three generations of one reader, each restored from the last ack.

    A global failover takes back what was sent behind the coordinator's cut; otherwise the log gives it again.
    """
    chance = random.Random(seed)
    channels = (A, B, "side/0")
    d = driver(" ".join(channels), "down/0", unaligned=unaligned is True)
    held: dict[int, list[tuple[str, bytes]]] = {}  # by checkpoint: what the state restored from it holds
    base: list[tuple[str, bytes]] = []

    def snapshot(call):
        held[call.checkpoint_id] = base + d.taken + [("events", e) for e in d.handled]
        return on.SnapshotReturned(call.checkpoint_id, b"")

    d.user[do.TakeSnapshot] = snapshot
    d.started()
    counts: dict[str, int] = dict.fromkeys((*channels, "events"), 0)  # sent in the history that counts
    numbered_from = 0  # the events of the present epoch
    for history in range(3):
        epoch, generation = (1 + history, 0) if globally else (1, history)
        writers = {c: upstream(c, attempt=30 + history, epoch=epoch, generation=generation) for c in channels}
        n, marked = 10 * history + 1, dict(counts)
        scripts = {c: [*["x"] * chance.randint(0, 4), "cut", *["x"] * chance.randint(0, 4)] for c in counts}
        while any(scripts.values()):
            d.slow = {p for p in ("up", "side", "events") if chance.random() < 0.5}
            c = chance.choice([c for c, script in scripts.items() if script])
            if scripts[c].pop(0) == "cut":
                marked[c] = counts[c]
                at = counts["events"] - numbered_from
                record = wire.marker(n, at, epoch) if c == "events" else writers[c].barrier(n)
            else:
                at = counts["events"] - numbered_from
                counts[c] += 1
                payload = b"%d" % counts[c]
                record = wire.frame(at, payload, epoch=epoch) if c == "events" else writers[c].frame(payload)
            if c == "events":
                d.append(record)
            else:
                d.receive(c.partition("/")[0], record)
            if unaligned is None and chance.random() < 0.1:
                d.pass_time(OVERDUE_S)
        d.catch_up()
        assert d.ack().checkpoint_id == n
        wanted = {(c, b"%d" % i) for c, count in counts.items() for i in range(1, count + 1)}
        now = base + d.taken + [("events", e) for e in d.handled]
        assert len(now) == len(set(now)) and set(now) == wanted
        base = held[n]
        counts = marked if globally else {**marked, "events": counts["events"]}  # the rest is void
        if globally:
            numbered_from = marked["events"]
            ranged = bool(d.ack().event_ranges)
            d.restarted(
                epoch=epoch + 1, generation=0, event_position=len(d.log), expected_epoch=epoch + (not ranged),
                expected_sequence=d.ack().handled_through if ranged else 0,
            )  # fmt: skip
        else:
            d.restarted()
        d.fresh()
    assert not d.failed
