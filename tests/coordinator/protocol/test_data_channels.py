"""Positions in data partitions: what Start names, what a checkpoint keeps, what is truncated
(protocol, sections 5, 7.9 and 9)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.checkpoint_log.restorability import Offsets
from penstock.coordinator.protocol.core import CoordinatorCore
from penstock.coordinator.protocol.state import SlotPhase
from penstock.schemas.acks import RunStarted
from penstock.schemas.checkpoints import CheckpointPart
from penstock.schemas.codec import encode
from penstock.schemas.graph import DataPartition, Partitioning
from penstock.schemas.ids import SubtaskId
from penstock.schemas.settings import Restore
from penstock.schemas.state import Segment

from .data_jobs import (
    A0,
    A1,
    B0,
    B1,
    C0,
    FAILOVERS,
    FOREVER,
    NEW_EPOCHS,
    RANGE,
    TO_B0,
    TO_B1,
    at,
    checkpoint,
    fail_job,
    fail_region,
    floors,
    hello_all,
    operator,
    pair,
    replace_coordinator,
    started,
    unaligned,
)  # fmt: skip
from .driver import Script, channel, job_settings, open_from

# ---- what Start names


def test_the_first_attempts_begin_where_the_topics_begin() -> None:
    """Section 5; a channel for each sender, named operator/index."""
    script = pair()
    assert started(script, B0) == {"a/0": (open_from(0, (1, 0)),), "a/1": (open_from(0, (1, 0)),)}
    assert script.task(A0).start.data_positions == ()


def test_a_forward_channel_comes_from_the_senders_own_index_alone() -> None:
    """Section 9."""
    script = Script.running(operator("a", 2), operator("b", 2, "a", by=Partitioning.FORWARD))
    assert list(started(script, B1)) == ["a/1"]


def test_without_a_checkpoint_channels_begin_where_the_epoch_began() -> None:
    """Section 5: what stands below was written in an epoch that has been rolled back; each partition has its own."""
    script = pair()
    script.emit_data("a", B0, 7)
    script.emit_data("a", B1, 3)
    replace_coordinator(script)
    script.emit_data("a", B0, 20)
    assert set(started(script, B0).values()) == {(open_from(7, (2, 0)),)}
    assert set(started(script, B1).values()) == {(open_from(3, (2, 0)),)}


def test_a_region_failover_without_a_checkpoint_goes_back_to_where_the_epoch_began() -> None:
    """Section 5, last paragraph; section 8: the frames of the generation before are dropped by their generation."""
    script = pair()
    script.emit_data("a", B0, 7)
    replace_coordinator(script)
    script.emit_data("a", B0, 20)
    fail_region(script)
    assert set(started(script, B0).values()) == {(open_from(7, (2, 1)),)}


def test_a_global_failover_without_a_checkpoint_begins_behind_all_that_stands() -> None:
    """Section 8: a new epoch, whose frames all stand behind its beginning."""
    script = pair()
    script.emit_data("a", B0, 20)
    fail_job(script)
    assert set(started(script, B0).values()) == {(open_from(20, (2, 0)),)}


def test_a_region_failover_goes_on_from_the_positions_of_the_last_completed_checkpoint() -> None:
    """Section 5."""
    script = pair()
    script.emit_data("a", B0, 5)
    script.checkpoint()
    script.emit_data("a", B0, 5)
    fail_region(script)
    assert set(started(script, B0).values()) == {(open_from(5, (1, 0)),)}


def test_the_positions_of_channels_in_one_partition_are_their_own() -> None:
    """Section 9: a reader keeps a position per channel."""
    script = pair()
    script.emit_data("a", B0, 30)
    script.positions[B0] = (channel(A0, open_from(9, (1, 0))), channel(A1, open_from(21, (1, 0))))
    script.checkpoint()
    fail_region(script)
    assert started(script) == {"a/0": (open_from(9, (1, 0)),), "a/1": (open_from(21, (1, 0)),)}


def test_a_pending_checkpoint_moves_nothing() -> None:
    """Section 7.7: the commit is the only moment at which it becomes complete."""
    script = pair()
    script.emit_data("a", B0, 5)
    script.checkpoint()
    script.emit_data("a", B0, 5)
    n = script.trigger()
    script.acknowledge(n, A0)
    fail_region(script)
    assert set(started(script).values()) == {(open_from(5, (1, 0)),)}


def test_ranges_and_their_sequence_come_as_the_checkpoint_names_them_in_a_region_failover() -> None:
    """Section 9 ◆: a position is a list of segments: what is left of older ranges, then the open one."""
    script = pair()
    unaligned(script)
    script.emit_data("a", B0, 9)
    fail_region(script)
    assert script.task(B0).start.data_positions == script.positions[B0]


@pytest.mark.parametrize("happens", NEW_EPOCHS)
def test_in_a_new_epoch_ranges_stay_and_the_open_part_begins_with_the_epoch(happens: Callable[[Script], None]) -> None:
    """Sections 5 and 9: older frames count only inside ranges, in the generation recorded with them ◆."""
    script = pair()
    unaligned(script)
    end = script.emit_data("a", B0, 9)
    happens(script)
    assert started(script) == {"a/0": (RANGE, open_from(end, (1, 0))), "a/1": (open_from(end, (1, 0)),)}
    assert script.task(B0).start.data_positions[0].sequence == 3


def test_an_open_position_above_the_beginning_of_the_epoch_is_kept() -> None:
    """Section 5: a checkpoint of this epoch; what stands below its position is in the state."""
    script = pair()
    script.emit_data("a", B0, 7)
    replace_coordinator(script)
    script.emit_data("a", B0, 20)
    script.checkpoint()
    script.emit_data("a", B0, 20)
    fail_region(script)
    assert set(started(script).values()) == {(open_from(27, (2, 0)),)}


@pytest.mark.parametrize("first", FAILOVERS)
@pytest.mark.parametrize("second", FAILOVERS)
def test_a_range_survives_every_failover_until_a_later_checkpoint_is_complete(
    first: Callable[[Script], None], second: Callable[[Script], None]
) -> None:
    """Section 9 ◆: re-read as often as it takes, and never past what the checkpoint named."""
    script = pair()
    unaligned(script)
    for happens in (first, second):
        script.emit_data("a", B0, 6)
        happens(script)
        assert started(script)["a/0"][:-1] == (RANGE,)
        assert len(started(script)["a/0"]) == 2
    script.positions.clear()
    generation = script.task(B0).start.full_generation
    script.checkpoint()
    fail_region(script)
    assert started(script)["a/0"] == (open_from(24, generation),)


def test_two_region_failovers_before_the_next_checkpoint_name_the_same_positions() -> None:
    """Section 8: each goes back to the last completed checkpoint."""
    script = pair()
    unaligned(script)
    fail_region(script)
    once = script.task(B0).start
    script.emit_data("a", B0, 9)
    fail_region(script)
    twice = script.task(B0).start
    assert twice.data_positions == once.data_positions
    assert (once.generation, twice.generation) == (1, 2)


@pytest.mark.parametrize("happens", FAILOVERS)
def test_what_is_left_of_several_older_ranges_is_named_in_full(happens: Callable[[Script], None]) -> None:
    """Section 9 ◆: ranges of different generations, when an unaligned checkpoint was restored from before."""
    script = pair()
    fail_region(script)
    ranges = (Segment(2, 4, 1, 0, 1), Segment(4, 9, 1, 1, 9))
    unaligned(script, *ranges)
    happens(script)
    assert started(script)["a/0"][:-1] == ranges


@pytest.mark.parametrize("happens", FAILOVERS)
def test_a_finished_sender_has_no_segments_for_good(happens: Callable[[Script], None]) -> None:
    """Section 9: it counts as having delivered; nothing more is to be awaited from it."""
    script = pair()
    script.read(script.task(A0).finished())
    (n,) = script.pending
    for receiver in (B0, B1):
        script.positions[receiver] = (channel(A0), channel(A1, open_from(0, (1, 0))))
    script.read(script.task(A0).ack(n, finished=True))
    script.acknowledge(n, A0)
    assert script.slot(A0).phase is SlotPhase.DONE
    script.emit_data("a", B0, 9)
    happens(script)
    assert started(script)["a/0"] == ()
    assert len(started(script)["a/1"]) == 1


@pytest.mark.parametrize("happens", FAILOVERS)
def test_what_a_finished_sender_left_in_flight_is_a_range_and_nothing_behind_it(
    happens: Callable[[Script], None],
) -> None:
    """Section 9: an unaligned checkpoint that contains the sender's end."""
    script = pair()
    script.read(script.task(A0).finished())
    (n,) = script.pending
    script.emit_data("a", B0, 12)
    script.positions[B0] = (channel(A0, RANGE), channel(A1, open_from(12, (1, 0))))
    script.read(script.task(A0).ack(n, finished=True))
    script.acknowledge(n, A0)
    happens(script)
    assert started(script)["a/0"] == (RANGE,)


def test_an_older_checkpoint_that_is_gone_back_to_brings_its_own_positions() -> None:
    """Section 11; its open part begins with the new epoch, so that what came after it is void."""
    script = pair(checkpoint={"retained": 2})
    older = unaligned(script)
    script.positions.clear()
    script.emit_data("a", B0, 8)
    script.checkpoint()
    script.restart(restore=Restore.CHECKPOINT, restore_checkpoint=older)
    hello_all(script)
    assert started(script) == {"a/0": (RANGE, open_from(20, (1, 0))), "a/1": (open_from(20, (1, 0)),)}


def test_a_fresh_start_reads_nothing_of_what_stands() -> None:
    """Section 5: the id is -1."""
    script = pair()
    unaligned(script)
    script.restart(restore=Restore.FRESH)
    hello_all(script)
    assert set(started(script).values()) == {(open_from(12, (2, 0)),)}


@pytest.mark.parametrize("happens", FAILOVERS)
def test_whether_the_user_knows_that_the_inputs_have_ended_is_as_its_last_ack_says(
    happens: Callable[[Script], None],
) -> None:
    """Section 9: positions do not show it where the job's graph has changed."""
    script = pair()
    assert not script.task(B0).start.inputs_ended
    n = script.trigger()
    script.read(script.task(B0).ack(n, inputs_ended=True))
    script.acknowledge(n, B0)
    happens(script)
    assert [script.task(subtask).start.inputs_ended for subtask in (B0, B1)] == [True, False]


# ---- operators and edges that the checkpoint does not know


def test_an_operator_added_since_the_checkpoint_begins_with_the_epoch() -> None:
    """Section 8: like a subtask with no state; a topic that the job did not have holds nothing of the checkpoint."""
    script = pair()
    n = script.checkpoint()
    script.restart(job_settings(operator("a", 2), operator("b", 2, "a"), operator("c", 1, "b"), restart=FOREVER))
    hello_all(script)
    start = script.task(C0).start
    assert (start.checkpoint_id, start.state) == (n, None)
    assert started(script, C0) == {"b/0": (open_from(0, (2, 0)),), "b/1": (open_from(0, (2, 0)),)}
    script.emit_data("b", C0, 5)
    fail_region(script)
    assert started(script, C0)["b/0"] == (open_from(0, (2, 1)),)
    assert script.checkpoint() > n


def test_an_input_added_since_the_checkpoint_begins_with_the_epoch_and_the_others_go_on() -> None:
    """Section 9: a position per channel."""
    script = pair()
    unaligned(script)
    added = job_settings(operator("a", 2), operator("x", 1), operator("b", 2, "a", "x"), restart=FOREVER)
    script.data[DataPartition("x", B0)] = Offsets(0, 2)  # of a run long ago that had it
    script.restart(added)
    hello_all(script)
    assert started(script)["x/0"] == (open_from(2, (2, 0)),)
    assert started(script)["a/0"] == (RANGE, open_from(12, (1, 0)))


def test_a_channel_from_a_sender_that_has_finished_before_the_operator_was_added_is_not_awaited() -> None:
    """Section 9: a finished sender counts as having delivered; G6."""
    script = pair()
    script.read(script.task(A0).finished())
    (n,) = script.pending
    script.read(script.task(A0).ack(n, finished=True))
    script.acknowledge(n, A0)
    script.restart(job_settings(operator("a", 2), operator("b", 2, "a"), operator("c", 1, "a"), restart=FOREVER))
    hello_all(script)
    assert started(script, C0) == {"a/0": (), "a/1": (open_from(0, (2, 0)),)}


def test_every_channel_of_the_graph_is_named_exactly_once_whatever_the_checkpoint_says() -> None:
    """Section 9: a receiver cannot read a channel that its Start leaves out."""
    script = pair()
    script.positions[B0] = (channel(A1, open_from(0, (1, 0))),)  # as if the graph had grown since
    script.checkpoint()
    fail_region(script)
    assert [position.channel for position in script.task(B0).start.data_positions] == ["a/0", "a/1"]


# ---- what a checkpoint keeps


def test_the_positions_of_each_ack_are_kept_in_the_completed_checkpoint() -> None:
    """Section 7.6: data segments are part of the ack."""
    script = pair()
    unaligned(script)
    last = script.job.history.last
    assert last is not None
    assert last.subtasks[B0].data_positions == script.positions[B0]
    assert last.subtasks[B1].data_positions == script.task(B1).data_positions()
    assert last.subtasks[A0].data_positions == ()
    in_log = {(p.operator, s.subtask): s.data_positions for p in script.committed(CheckpointPart) for s in p.subtasks}
    assert in_log["b", 0] == script.positions[B0]


def test_a_subtask_that_is_done_keeps_the_positions_of_its_end() -> None:
    """Section 8: its snapshot goes from checkpoint to checkpoint."""
    script = pair()
    script.read(script.task(B0).finished())
    (n,) = script.pending
    script.positions[B0] = (channel(A0), channel(A1))
    script.read(script.task(B0).ack(n, finished=True))
    script.acknowledge(n, B0)
    script.checkpoint()
    last = script.job.history.last
    assert last is not None
    assert last.subtasks[B0].data_positions == script.positions[B0]


def test_no_part_grows_above_what_the_broker_takes_however_many_channels_there_are() -> None:
    """Section 3: CheckpointPart records, so that no record grows with the parallelism."""
    bytes_max, width = 16 * 1024, 40
    script = Script(operator("a", width), operator("b", width, "a"))
    script.core = CoordinatorCore(script.settings, "first", bytes_max)
    script.begin()
    script.read(RunStarted("run-1", "here"))
    script.hello_all()
    script.checkpoint()
    assert max(len(encode(part)) for part in script.committed(CheckpointPart)) <= bytes_max


# ---- truncation


def test_a_partition_is_truncated_below_the_slowest_of_its_channels() -> None:
    """Section 7.9: below the last completed checkpoint's positions, each partition by itself."""
    script = pair(checkpoint={"retained": 1})
    checkpoint(script, at(30), at(12))
    assert floors(script) == {TO_B0: 12, TO_B1: 0}


def test_a_range_of_the_last_checkpoint_holds_its_partition() -> None:
    """Section 7.9: below every range that a kept one names."""
    script = pair(checkpoint={"retained": 1})
    checkpoint(script, at(30, Segment(8, 20, 1, 0, 1)), at(25))
    assert floors(script)[TO_B0] == 8


def test_the_lowest_of_several_ranges_counts_wherever_it_stands() -> None:
    """Section 9: segments."""
    script = pair(checkpoint={"retained": 1})
    checkpoint(script, at(30, Segment(9, 10, 1, 0, 1), Segment(20, 22, 1, 1, 8)), at(30, Segment(5, 6, 1, 0, 2)))
    assert floors(script)[TO_B0] == 5


def test_a_range_of_an_older_kept_checkpoint_holds_the_partition_until_that_is_discarded() -> None:
    """Section 7.9."""
    script = pair(checkpoint={"retained": 2})
    checkpoint(script, at(10, Segment(4, 7, 1, 0, 1)), at(10))
    checkpoint(script, at(20), at(20))
    assert floors(script)[TO_B0] == 4
    checkpoint(script, at(30), at(40))
    assert floors(script)[TO_B0] == 30


def test_the_open_position_of_an_older_kept_checkpoint_holds_nothing() -> None:
    """Section 7.9: a restore begins a new epoch."""
    script = pair(checkpoint={"retained": 3})
    for end in (10, 20, 30):
        checkpoint(script, at(end), at(end))
    assert floors(script)[TO_B0] == 30


def test_a_savepoint_holds_no_data() -> None:
    """Section 7.9: aligned, so it names no range, and what is open is void after a restore."""
    script = pair(checkpoint={"retained": 1})
    checkpoint(script, at(5), at(5))
    script.acknowledge(script.savepoint())
    checkpoint(script, at(50), at(50))
    assert floors(script)[TO_B0] == 50


def test_a_savepoint_that_completes_behind_a_newer_checkpoint_does_not_lower_the_floors() -> None:
    """Section 7.7: the last completed one is the highest id, not the newest commit."""
    script = pair(checkpoint={"retained": 1, "max_concurrent": 2})
    savepoint = script.savepoint()
    script.positions[B0] = (channel(A0, *at(10)), channel(A1, *at(10)))
    script.read(script.task(B0).ack(savepoint))
    checkpoint(script, at(40), at(40))
    script.acknowledge(savepoint, B0)
    assert savepoint in script.job.history.checkpoints
    assert floors(script)[TO_B0] == 40


def test_two_inputs_of_an_operator_are_truncated_apart() -> None:
    """Section 3: a topic for each edge."""
    script = Script.running(operator("a", 1), operator("x", 1), operator("b", 1, "a", "x"))
    x0 = SubtaskId("x", 0)
    script.positions[B0] = (channel(A0, *at(10, Segment(3, 4, 1, 0, 1))), channel(x0, *at(70)))
    script.checkpoint()
    assert floors(script) == {TO_B0: 3, DataPartition("x", B0): 70}


def test_a_partition_to_which_every_sender_has_ended_is_left_alone() -> None:
    """Section 9: nothing more comes, so there is no position that it could be truncated to."""
    script = pair(checkpoint={"retained": 1})
    checkpoint(script, (), ())
    assert floors(script) == {TO_B1: 0}


def test_what_a_finished_sender_left_in_flight_holds_the_partition() -> None:
    """Section 7.9: a range like any other."""
    script = pair(checkpoint={"retained": 1})
    checkpoint(script, (Segment(4, 7, 1, 0, 1),), at(30))
    assert floors(script)[TO_B0] == 4


def test_a_finished_receiver_holds_only_what_kept_checkpoints_need() -> None:
    """Section 8: its end pins nothing; a kept checkpoint from before it does, as long as it is kept."""
    script = pair(checkpoint={"retained": 2})
    checkpoint(script, at(10, Segment(4, 7, 1, 0, 1)), at(10))
    script.read(script.task(B0).finished())
    (n,) = script.pending
    script.positions[B0] = (channel(A0), channel(A1))
    script.read(script.task(B0).ack(n, finished=True))
    script.acknowledge(n, B0)
    assert script.slot(B0).phase is SlotPhase.DONE
    assert floors(script)[TO_B0] == 4
    script.checkpoint()
    assert floors(script) == {TO_B1: 0}


def test_after_going_back_the_abandoned_line_holds_its_ranges_until_it_is_discarded() -> None:
    """Section 7.9: until then any kept one can still be named."""
    script = pair(checkpoint={"retained": 3})
    script.emit_data("a", B0, 100)
    first = checkpoint(script, at(10), at(10))
    second = checkpoint(script, at(20, Segment(2, 5, 1, 0, 1)), at(20))
    script.restart(restore=Restore.CHECKPOINT, restore_checkpoint=first)
    hello_all(script)
    assert second in script.job.history.checkpoints
    third = checkpoint(script, at(100), at(100))
    assert sorted(script.job.history.checkpoints) == [first, third]
    assert floors(script)[TO_B0] == 100


def test_nothing_is_truncated_that_any_start_could_still_name() -> None:
    """Section 7.9 against section 5: whatever kept checkpoint a successor restores, it finds its ranges."""
    script = pair(checkpoint={"retained": 3})
    script.emit_data("a", B0, 100)
    for at_least, begins in ((10, 4), (20, 15), (30, 22), (40, 33)):
        checkpoint(script, at(at_least, Segment(begins, begins + 2, 1, 0, 1)), at(at_least))
    script.data[TO_B0] = Offsets(floors(script)[TO_B0], 100)
    kept = sorted(script.job.history.checkpoints)
    assert len(kept) == 3
    for n in kept:
        script.restart(restore=Restore.CHECKPOINT, restore_checkpoint=n)
        hello_all(script)
        segments = started(script)["a/0"]
        assert all(script.data[TO_B0].begin <= segment.begin for segment in segments)
