"""Many events in one record: nothing is lost, reordered or invented on the way."""

from __future__ import annotations

import struct
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.schemas.errors import UnreadableRecord
from penstock.schemas.frames import FRAME_BYTES_MAX, FRAME_EVENTS_MAX, pack, split, unpack

EVENTS = st.lists(st.binary(max_size=40), max_size=30)


@given(EVENTS)
def test_a_packed_frame_unpacks_to_the_same_events(events: list[bytes]) -> None:
    packed = pack(events)
    assert packed.count == len(events)
    assert unpack(*packed) == events


@given(st.integers(0, 40), st.sampled_from([1, 2, 30, FRAME_EVENTS_MAX, FRAME_EVENTS_MAX + 1]), st.randoms())
def test_events_of_one_size_come_back_and_a_length_that_differs_is_seen(size: int, count: int, chance: Random) -> None:
    events = [chance.randbytes(size) for _ in range(count)]
    packed = pack(events)
    assert unpack(*packed) == events
    lengths = struct.pack("<I", size + 1) + packed.lengths[4:]
    with pytest.raises(UnreadableRecord):
        unpack(count, lengths, packed.payload)


def test_lengths_are_unsigned_32_bit_little_endian_numbers_and_events_stand_end_to_end() -> None:
    assert pack([b"ab", b"", b"c"]) == (3, bytes.fromhex("020000000000000001000000"), b"abc")


@given(EVENTS, st.integers(1, 8), st.integers(1, 100))
def test_runs_hold_all_events_in_order_and_each_fits_a_frame(
    events: list[bytes], events_max: int, bytes_max: int
) -> None:
    runs = split(events, events_max=events_max, bytes_max=bytes_max)
    assert [event for run in runs for event in run] == events
    for run in runs:
        assert 1 <= len(run) <= events_max
        assert sum(map(len, run)) <= bytes_max or len(run) == 1


@given(EVENTS, st.integers(1, 8), st.integers(1, 100))
def test_a_run_ends_only_where_the_next_event_does_not_fit(
    events: list[bytes], events_max: int, bytes_max: int
) -> None:
    runs = split(events, events_max=events_max, bytes_max=bytes_max)
    for run, after in pairwise(runs):
        assert len(run) == events_max or sum(map(len, run)) + len(after[0]) > bytes_max


def test_no_events_need_no_frame() -> None:
    assert split([]) == []
    assert unpack(*pack([])) == []


def test_an_event_above_the_bound_travels_alone() -> None:
    large = bytes(FRAME_BYTES_MAX + 1)
    assert split([b"a", large, b"b"]) == [[b"a"], [large], [b"b"]]


def test_the_bounds_by_default_are_those_of_the_protocol() -> None:
    assert [len(run) for run in split([b"x"] * (2 * FRAME_EVENTS_MAX + 1))] == [FRAME_EVENTS_MAX, FRAME_EVENTS_MAX, 1]
    assert (FRAME_EVENTS_MAX, FRAME_BYTES_MAX) == (1_000, 65_536)


@pytest.mark.parametrize(
    ("count", "lengths", "payload"),
    [
        (-1, b"", b""),
        (0, b"", b"x"),
        (0, struct.pack("<I", 0), b""),
        (1, b"", b""),
        (1, b"\x01\x00\x00", b"x"),
        (1, struct.pack("<I", 2), b"x"),
        (1, struct.pack("<I", 1), b"xy"),
        (2, struct.pack("<I", 1), b"x"),
        (1, struct.pack("<I", 2**32 - 1), b"x"),
        (2, struct.pack("<2I", 2**32 - 1, 2**32 - 1), b"x"),
        (2**62, b"", b""),
        (2**63 - 1, b"\x00" * 8, b""),
    ],
)
def test_a_frame_whose_parts_contradict_one_another_is_refused(count: int, lengths: bytes, payload: bytes) -> None:
    with pytest.raises(UnreadableRecord, match="a frame"):
        unpack(count, lengths, payload)


@given(st.integers(-2, 6), st.binary(max_size=24), st.binary(max_size=24))
@settings(max_examples=300)
def test_any_parts_give_events_that_pack_to_the_same_or_are_refused(count: int, lengths: bytes, payload: bytes) -> None:
    try:
        events = unpack(count, lengths, payload)
    except UnreadableRecord:
        return
    assert pack(events) == (count, lengths, payload)
