"""Records to other operators on their way out: protocol, sections 7.6 and 9."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.schemas.acks import CheckpointAck, Finished, OperatorEventFrame
from penstock.schemas.data import Barrier, ChannelEnded, RecordFrame
from penstock.schemas.errors import EventTooLarge, SubtaskError
from penstock.schemas.frames import unpack
from penstock.schemas.ids import SubtaskId
from penstock.schemas.state import Sender
from penstock.subtask_client.protocol import effects as do
from penstock.subtask_client.protocol import inputs as on
from penstock.subtask_client.protocol.outputs import Outputs

ONE, TWO = SubtaskId("down", 0), SubtaskId("down", 1)
SENDER = Sender("reader", 0, 50, 1, 0)


def outputs(records_max: int = 100, bytes_max: int = 1000) -> Outputs:
    return Outputs(SENDER, [ONE, TWO], records_max=records_max, bytes_max=bytes_max)


def payloads(record) -> list[bytes]:
    assert isinstance(record, RecordFrame)
    return unpack(record.count, record.lengths, record.payload)


def flat(records) -> list[object]:
    """What a receiver reads: payloads, and barriers and ends as ``("Barrier", id)`` and ``"ChannelEnded"``."""
    read: list[object] = []
    for record in records:
        match record:
            case RecordFrame():
                read += payloads(record)
            case Barrier(checkpoint_id=n):
                read.append(("Barrier", n))
            case ChannelEnded():
                read.append("ChannelEnded")
    return read


# ---- frames


def test_a_frame_is_full_with_so_many_records_and_leaves_when_there_is_one_more():
    out = outputs(records_max=2)
    assert out.add(ONE, b"a") is None
    assert out.add(ONE, b"b") is None
    full = out.add(ONE, b"c")
    assert full is not None
    assert (full.receiver, payloads(full.record)) == (ONE, [b"a", b"b"])
    assert [payloads(effect.record) for effect in out.flush()] == [[b"c"]]


def test_a_frame_never_passes_its_bound_in_bytes_lengths_included():
    out = outputs(bytes_max=20)
    assert out.add(ONE, b"123456") is None
    assert out.add(ONE, b"123456") is None  # exactly 20 with two lengths of 4
    full = out.add(ONE, b"")
    assert full is not None and full.record.count == 2
    assert out.bytes_waiting == 4


def test_a_record_above_the_bound_is_a_frame_of_its_own():
    out = outputs(bytes_max=20)
    out.add(ONE, b"a")
    before = out.add(ONE, b"x" * 50)
    assert before is not None and payloads(before.record) == [b"a"]
    alone = out.add(ONE, b"b")
    assert alone is not None and payloads(alone.record) == [b"x" * 50]


def test_each_receiver_has_its_own_frame_and_its_own_numbering_from_0():
    out = outputs(records_max=1)
    out.add(ONE, b"a")
    out.add(TWO, b"z")
    written = [out.add(ONE, b"b"), out.add(ONE, b"c"), *out.flush()]
    assert [(w.receiver, w.record.sequence, payloads(w.record)) for w in written] == [
        (ONE, 0, [b"a"]), (ONE, 1, [b"b"]), (TWO, 0, [b"z"]), (ONE, 2, [b"c"]),
    ]  # fmt: skip
    assert all(w.record.sender == SENDER for w in written)


def test_what_has_left_does_not_leave_again():
    out = outputs()
    out.add(TWO, b"a")
    assert len(out.flush()) == 1
    assert (out.flush(), out.bytes_waiting) == ([], 0)
    out.add(TWO, b"b")
    (frame,) = out.flush()
    assert (frame.record.sequence, payloads(frame.record)) == (1, [b"b"])


def test_bytes_waiting_are_those_of_all_receivers():
    out = outputs()
    out.add(ONE, b"abc")
    out.add(TWO, b"")
    assert out.bytes_waiting == 7 + 4


def test_a_barrier_goes_to_every_receiver_behind_everything_emitted_and_takes_a_number():
    out = outputs()
    out.add(TWO, b"a")
    written = out.flush() + out.barriers(4, savepoint=True, at_ms=99)
    assert [(w.receiver, type(w.record).__name__, w.record.sequence) for w in written] == [
        (TWO, "RecordFrame", 0), (ONE, "Barrier", 0), (TWO, "Barrier", 1),
    ]  # fmt: skip
    assert written[1].record == Barrier(SENDER, 0, 4, True, 99)
    out.add(ONE, b"b")
    assert [w.record.sequence for w in out.flush()] == [1]


def test_an_end_goes_to_every_receiver_behind_everything_emitted_and_takes_a_number():
    out = outputs()
    out.add(TWO, b"a")
    written = out.flush() + out.ends()
    assert [(w.receiver, type(w.record).__name__, w.record.sequence) for w in written] == [
        (TWO, "RecordFrame", 0), (ONE, "ChannelEnded", 0), (TWO, "ChannelEnded", 1),
    ]  # fmt: skip


# ---- under a core


@pytest.fixture
def source(driver):
    return driver(receivers="down/0 down/1").started()


def test_the_barrier_stands_behind_what_was_emitted_before_the_snapshot_and_before_anything_after(source, wire):
    """Section 7.6; what snapshot_state itself emits belongs to the snapshot."""

    def snapshot(call):
        source.emit("down/0", b"in")
        return on.SnapshotReturned(call.checkpoint_id, b"", wall_ms=77)

    source.user[do.TakeSnapshot] = snapshot
    source.emit("down/0", b"before")
    source.append(wire.marker(1, 0))
    source.emit("down/0", b"after")
    source.turn()
    assert flat(source.out("down/0")) == [b"before", b"in", ("Barrier", 1), b"after"]
    assert flat(source.out("down/1")) == [("Barrier", 1)]
    assert [record.sequence for record in source.out("down/0")] == [0, 1, 2]
    (barrier,) = source.out("down/1")
    assert (barrier.triggered_at_ms, barrier.savepoint) == (77, False)


@pytest.mark.parametrize("stored", [False, True])
def test_the_barrier_leaves_with_the_snapshot_and_ahead_of_the_ack(driver, wire, stored):
    """Section 7.6: nobody downstream waits for an upload."""
    d = driver(receivers="down/0", inline_state_max=0 if stored else 100).started()
    d.emit("down/0", b"before")
    d.fresh().append(wire.marker(1, 0))
    behind = ["SnapshotTaken", "StoreState"] if stored else ["CheckpointAck"]
    assert d.names() == ["TakeSnapshot", "RecordFrame", "Barrier", *behind]


def test_records_leave_before_events_to_the_coordinator_and_before_the_ack_that_speaks_of_them(source, wire):
    source.emit("down/0", b"a")
    source.core.send(b"event")
    source.fresh().append(wire.marker(1, 0))
    assert source.names() == [
        "TakeSnapshot", "RecordFrame", "OperatorEventFrame", "Barrier", "Barrier", "CheckpointAck",
    ]  # fmt: skip
    assert source.written(OperatorEventFrame)[0].belongs_to == 1


def test_a_savepoints_barrier_says_so(source, wire):
    source.append(wire.marker(1, 0, savepoint=True))
    assert [record.savepoint for record in source.out("down/0")] == [True]


def test_a_snapshot_that_raises_writes_no_barrier(source, wire):
    source.user[do.TakeSnapshot] = lambda call: on.UserFailed("boom")
    source.append(wire.marker(1, 0))
    assert source.out("down/0") == source.out("down/1") == []


def test_records_leave_at_the_end_of_a_turn(source):
    source.emit("down/1", b"a")
    source.emit("down/1", b"b")
    source.fresh().turn(dry=False)
    assert source.names() == ["RecordFrame"]
    assert flat(source.out("down/1")) == [b"a", b"b"]


def test_a_full_frame_leaves_at_once(driver):
    d = driver(receivers="down/0", frame_events_max=2).started()
    for record in (b"a", b"b", b"c"):
        d.emit("down/0", record)
    assert [payloads(record) for record in d.out("down/0")] == [[b"a", b"b"]]


def test_the_end_follows_the_last_record_on_every_channel_and_precedes_finished(source):
    source.emit("down/1", b"last")
    source.fresh().feed(on.WorkEnded())
    assert source.names() == ["RecordFrame", "ChannelEnded", "ChannelEnded", "Finished"]
    assert flat(source.out("down/0")) == ["ChannelEnded"]
    assert flat(source.out("down/1")) == [b"last", "ChannelEnded"]
    assert len(source.written(Finished)) == 1


def test_every_generation_numbers_its_records_from_0_and_names_its_attempt(source, wire):
    source.emit("down/0", b"a")
    source.append(wire.marker(1, 0))
    source.emit("down/0", b"undone")
    source.restarted()
    source.fresh().emit("down/0", b"b")
    source.turn()
    (frame,) = source.out("down/0")
    assert (frame.sequence, payloads(frame)) == (0, [b"b"])
    assert (frame.sender.attempt, frame.sender.full_generation) == (60, (1, 1))


def test_what_was_not_written_when_a_reset_came_is_not_written_by_the_next_attempt(source):
    source.emit("down/0", b"undone")
    source.restarted()
    source.turn()
    assert source.out("down/0") == []


def test_a_failing_attempts_records_leave_before_it_says_so(source):
    source.emit("down/0", b"a")
    source.fresh().feed(on.UserFailed("boom"))
    assert source.names()[:2] == ["RecordFrame", "Failed"]


def test_a_record_that_no_frame_can_hold_and_one_outside_an_attempt_are_refused(driver, wire):
    d = driver(receivers="down/0", event_bytes_max=10).hello()
    with pytest.raises(SubtaskError, match="no attempt runs"):
        d.emit("down/0", b"a")
    d.append(wire.start())
    with pytest.raises(EventTooLarge, match="a record for down/0 has 11 bytes"):
        d.emit("down/0", b"x" * 11)
    d.emit("down/0", b"x" * 10)
    d.turn()
    assert flat(d.out("down/0")) == [b"x" * 10]


def test_what_handling_emits_goes_behind_an_unaligned_barrier_where_it_was_taken_after_the_snapshot(
    driver, wire, upstream
):
    """Section 9: records of a slower channel are in the snapshot as a range; what they caused is not in it."""
    d = driver("up/0 up/1", "down/0", unaligned=True).started()
    a, b = upstream("up/0"), upstream("up/1", attempt=31)

    def handle(call):
        for record in call.records:
            d.emit("down/0", b"of " + record)
        return on.RecordsHandled()

    d.user[do.HandleRecords] = handle
    d.receive("up", b.frame(b"early"), a.barrier(1), b.frame(b"late"), b.barrier(1))
    d.append(wire.marker(1, 0))
    assert flat(d.out("down/0")) == [b"of early", ("Barrier", 1), b"of late"]
    names = d.names()
    assert names.index("CheckpointAck") > max(i for i, name in enumerate(names) if name == "RecordFrame")
    assert len(d.written(CheckpointAck)) == 1


# ---- many at once


@given(
    st.lists(st.lists(st.tuples(st.sampled_from([ONE, TWO]), st.binary(max_size=12)), min_size=1), max_size=8),
    st.integers(1, 5),
    st.integers(1, 40),
)
def test_many_records_make_the_frames_that_they_make_one_by_one(turns, records_max, bytes_max):
    each, many = outputs(records_max, bytes_max), outputs(records_max, bytes_max)
    expected, found = [], []
    for turn in turns:
        by_receiver = {}
        for receiver, record in turn:
            by_receiver.setdefault(receiver, []).append(record)
            expected += [frame for frame in [each.add(receiver, record)] if frame is not None]
        found += many.add_all(by_receiver)
    for receiver in (ONE, TWO):  # between receivers there is no order
        assert [w for w in found if w.receiver == receiver] == [w for w in expected if w.receiver == receiver]
    assert many.bytes_waiting == each.bytes_waiting
    key = lambda written: written.receiver  # noqa: E731
    assert sorted(many.flush(), key=key) == sorted(each.flush(), key=key)


def test_none_of_many_records_is_taken_where_one_is_too_large_or_the_work_has_ended(source):
    core = source.core
    with pytest.raises(EventTooLarge, match="a record for down/1 has"):
        list(core.emit_records({ONE: [b"a"], TWO: [b"b", bytes(core.config.event_bytes_max + 1)]}))
    source.turn()
    assert (flat(source.out("down/0")), flat(source.out("down/1"))) == ([], [])
    assert list(core.emit_records({ONE: [b"a", b"b"]})) == []
    source.turn()
    assert flat(source.out("down/0")) == [b"a", b"b"]
