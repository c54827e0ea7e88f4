"""One sender's records, and where a reader of them stands: protocol, section 9 (positions are lists of segments)."""

from __future__ import annotations

import pytest

from penstock.schemas.events import Start
from penstock.schemas.ids import NO_ATTEMPT, Generation, SubtaskId
from penstock.schemas.state import OPEN_END, ChannelPosition, Segment, Sender
from penstock.subtask_client.protocol.channels import Channel, Channels, closed
from penstock.subtask_client.protocol.drop_reasons import Dropped

UP = SubtaskId("up", 0)


def sender(generation: int, attempt: int = 30, epoch: int = 1) -> Sender:
    return Sender("up", 0, attempt, epoch, generation)


def opened(begin: int, epoch: int = 1, generation: int = 0) -> Segment:
    return Segment(begin, OPEN_END, epoch, generation, NO_ATTEMPT)


def channel(*segments: Segment, sequence: int = 0, generation: int = 2) -> Channel:
    return Channel(UP, ChannelPosition("up/0", segments, sequence), Generation(1, generation))


def read(channel: Channel, offset: int, by: Sender, sequence: int) -> Dropped | None:
    """One record, as the reader does it; whether it counted."""
    refusal = channel.refusal(offset, by)
    if refusal is None:
        assert channel.due(by) == sequence
        channel.advance(offset, by, sequence)
    return refusal


def test_behind_an_open_position_the_own_generation_counts_and_nothing_else():
    c = channel(opened(5))
    assert c.refusal(4, sender(2)) is Dropped.ALREADY_READ
    assert c.refusal(5, sender(1)) is Dropped.OTHER_GENERATION
    assert c.refusal(5, sender(3)) is Dropped.OTHER_GENERATION
    assert c.refusal(5, sender(2, epoch=0)) is Dropped.OTHER_GENERATION
    assert c.refusal(5, sender(2)) is None


def test_what_has_been_read_does_not_count_again():
    c = channel(opened(5))
    assert read(c, 5, sender(2), 0) is None
    assert c.refusal(5, sender(2)) is Dropped.ALREADY_READ
    assert c.refusal(6, sender(2)) is None


def test_in_a_range_the_attempt_and_generation_that_it_names_count_and_nothing_else():
    c = channel(Segment(5, 9, 1, 0, 30), opened(9), sequence=4)
    assert c.refusal(4, sender(0)) is Dropped.OUTSIDE_RANGES
    assert c.refusal(5, sender(2)) is Dropped.OTHER_GENERATION  # the reader's own
    assert c.refusal(5, sender(0, attempt=29)) is Dropped.OTHER_GENERATION
    assert c.refusal(5, sender(0)) is None
    assert c.refusal(9, sender(0)) is Dropped.OTHER_GENERATION
    assert c.refusal(9, sender(2)) is None


def test_between_two_ranges_and_before_the_open_position_nothing_counts():
    c = channel(Segment(2, 3, 1, 0, 30), Segment(6, 8, 1, 1, 31), opened(11), sequence=7)
    assert read(c, 2, sender(0), 7) is None
    assert c.refusal(4, sender(0)) is Dropped.OUTSIDE_RANGES
    assert c.refusal(4, sender(2)) is Dropped.OUTSIDE_RANGES
    assert read(c, 7, sender(1, 31), 0) is None
    assert c.refusal(9, sender(2)) is Dropped.ALREADY_READ
    assert read(c, 11, sender(2), 0) is None


def test_sequences_go_on_in_the_first_range_and_begin_at_0_in_every_later_part():
    c = channel(Segment(0, 4, 1, 0, 30), Segment(4, 6, 1, 1, 31), opened(6), sequence=40)
    for offset, by, sequence in (
        (0, sender(0), 40), (2, sender(0), 41), (4, sender(1, 31), 0), (5, sender(1, 31), 1), (6, sender(2), 0),
    ):  # fmt: skip
        assert read(c, offset, by, sequence) is None


def test_without_a_range_the_sequence_named_is_of_a_generation_that_is_over():
    assert channel(opened(5), sequence=40).due(sender(2)) == 0


def test_ranges_are_read_in_order_and_empty_ones_are_none():
    c = channel(Segment(1, 3, 1, 0, 30), Segment(4, 4, 1, 0, 30), Segment(6, 8, 1, 1, 31), opened(9))
    assert [(s.begin, s.end) for s in c.ranges] == [(1, 3), (6, 8)]
    assert c.next_position == 1


def test_a_position_names_the_rest_of_the_ranges_and_the_open_part_in_the_readers_generation():
    second = Segment(6, 8, 1, 1, 31)
    c = channel(Segment(0, 4, 1, 0, 30), second, opened(8), sequence=5)
    here = opened(8, 1, 2)
    assert c.named() == ChannelPosition("up/0", (Segment(0, 4, 1, 0, 30), second, here), 5)
    read(c, 1, sender(0), 5)
    assert c.named() == ChannelPosition("up/0", (Segment(2, 4, 1, 0, 30), second, here), 6)
    read(c, 3, sender(0), 6)
    assert c.named() == ChannelPosition("up/0", (second, here), 0)
    read(c, 6, sender(1, 31), 0)
    assert c.named() == ChannelPosition("up/0", (Segment(7, 8, 1, 1, 31), here), 1)
    read(c, 7, sender(1, 31), 1)
    assert c.named() == ChannelPosition("up/0", (here,), 0)
    read(c, 12, sender(2), 0)
    assert c.named() == ChannelPosition("up/0", (opened(13, 1, 2),), 1)


def test_a_position_named_amid_ranges_restores_to_the_same_place():
    c = channel(Segment(0, 4, 1, 0, 30), Segment(6, 8, 1, 1, 31), opened(8), sequence=5)
    read(c, 1, sender(0), 5)
    again = Channel(UP, c.named(), Generation(1, 3))
    assert again.refusal(1, sender(0)) is Dropped.OUTSIDE_RANGES
    for offset, by, sequence in ((2, sender(0), 6), (6, sender(1, 31), 0), (8, sender(3), 0)):
        assert read(again, offset, by, sequence) is None


def test_a_channel_that_ended_takes_nothing_and_names_no_position():
    c = channel(opened(5))
    read(c, 5, sender(2), 0)
    c.end()
    assert c.refusal(6, sender(2)) is Dropped.ALREADY_READ
    assert c.named() == ChannelPosition("up/0", (), 0)
    again = Channel(UP, c.named(), Generation(1, 3))
    assert again.ended
    assert again.named() == c.named()


def test_a_channel_whose_end_lies_in_a_range_has_not_ended_before_that_is_read():
    c = channel(Segment(5, 7, 1, 0, 30), sequence=3)
    assert not c.ended
    assert read(c, 5, sender(0), 3) is None
    assert c.in_range(6)
    assert read(c, 6, sender(0), 4) is None


@pytest.mark.parametrize("begin", [5, 6])
def test_a_position_is_closed_where_the_barrier_stands_and_goes_on_behind_it(begin):
    """The range names who wrote it; where nothing stands between there is none."""
    by = sender(2, attempt=77)
    left = closed(ChannelPosition("up/0", (opened(begin, 1, 2),), 9), 6, by, ended=False)
    between = () if begin == 6 else (Segment(5, 6, 1, 2, 77),)
    assert left == ChannelPosition("up/0", (*between, opened(7, 1, 2)), 9)


def test_a_position_closed_by_the_senders_end_has_no_open_part():
    older = Segment(0, 2, 1, 1, 40)
    left = closed(ChannelPosition("up/0", (older, opened(5, 1, 2)), 9), 8, sender(2), ended=True)
    assert left == ChannelPosition("up/0", (older, Segment(5, 8, 1, 2, 30)), 9)


def start(wire, *positions: ChannelPosition) -> Start:
    return wire.start(data_positions=positions)


def test_a_partition_is_read_from_the_lowest_position_of_its_channels_that_go_on(wire):
    named = (
        wire.at("up/0", 9, Segment(4, 6, 1, 0, 30)), wire.at("up/1", 7), wire.at("up/2", None), wire.at("side/0", 3),
    )  # fmt: skip
    channels = Channels(start(wire, *named), [position.sender for position in named])
    assert channels.positions == {"up": 4, "side": 3}
    assert channels.upstreams == ["up", "side"]
    assert channels.open == {("up", 0), ("up", 1), ("side", 0)}


def test_a_record_belongs_to_its_senders_channel_in_that_operators_partition_alone(wire, upstream):
    channels = Channels(start(wire, wire.at("up/0"), wire.at("side/0")), [UP, SubtaskId("side", 0)])
    record = upstream("up/0").frame(b"x")
    assert channels.channel_of("up", record) is channels.by_sender[UP]
    assert channels.channel_of("side", record) is None
    assert channels.channel_of("up", upstream("up/1").frame(b"x")) is None


def test_a_start_that_does_not_name_every_channel_is_refused(wire):
    with pytest.raises(KeyError):
        Channels(start(wire, wire.at("up/0")), [UP, SubtaskId("up", 1)])
