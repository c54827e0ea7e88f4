"""What a damaged frame may turn into: nothing but a refusal, or events that are exactly the bytes that are there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.schemas.codec import decode, encode
from penstock.schemas.errors import UnreadableRecord
from penstock.schemas.events import EventFrame
from penstock.schemas.frames import Packed, pack, split, unpack
from tests.machines import check
from tests.rounds import rounds

pytestmark = [pytest.mark.soak, pytest.mark.parametrize("round_", rounds())]

PAYLOADS = st.lists(st.binary(max_size=300), max_size=20)
SOME = st.lists(st.binary(max_size=30), min_size=1, max_size=10)


def flipped(value: bytes, at: int, bits: int) -> bytes:
    return value[:at] + bytes([value[at] ^ bits]) + value[at + 1 :]


def refused(count: int, lengths: bytes, payload: bytes) -> bool:
    try:
        unpack(count, lengths, payload)
    except UnreadableRecord:
        return True
    return False


def test_payloads_come_back_through_frames_of_any_bounds_and_the_codec(round_: int) -> None:
    @given(PAYLOADS, st.integers(1, 7), st.integers(1, 500))
    def holds(payloads: list[bytes], events_max: int, bytes_max: int) -> None:
        sequence = 0
        back: list[bytes] = []
        for run in split(payloads, events_max=events_max, bytes_max=bytes_max):
            frame = decode(encode(EventFrame(1, 2, sequence, *pack(run))))
            assert isinstance(frame, EventFrame)
            assert frame.sequence == len(back)
            back += unpack(frame.count, frame.lengths, frame.payload)
            sequence += frame.count
        assert back == payloads

    check(holds, round_, examples=60)


def test_a_frame_cut_short_anywhere_or_with_something_behind_it_is_refused(round_: int) -> None:
    """Neither part can lose or gain a byte unnoticed; an event of no bytes shows in the lengths."""

    @given(SOME, st.data())
    def holds(events: list[bytes], data: st.DataObject) -> None:
        packed = pack(events)
        short = data.draw(st.integers(0, len(packed.lengths) - 1))
        assert refused(packed.count, packed.lengths[:short], packed.payload)
        assert refused(packed.count, packed.lengths + data.draw(st.binary(min_size=1, max_size=9)), packed.payload)
        assert refused(*packed[:2], packed.payload + data.draw(st.binary(min_size=1, max_size=9)))
        if packed.payload:
            assert refused(*packed[:2], packed.payload[: data.draw(st.integers(0, len(packed.payload) - 1))])
        assert refused(packed.count + data.draw(st.integers(1, 2**62)), *packed[1:])
        assert refused(packed.count - data.draw(st.integers(1, 2**62)), *packed[1:])

    check(holds, round_, examples=60)


def test_a_flipped_bit_in_one_length_is_always_noticed_and_one_in_an_event_stays_within_it(round_: int) -> None:
    @given(SOME, st.data(), st.integers(1, 255))
    def holds(events: list[bytes], data: st.DataObject, bits: int) -> None:
        packed = pack(events)
        at = data.draw(st.integers(0, len(packed.lengths) - 1))
        assert refused(packed.count, flipped(packed.lengths, at, bits), packed.payload)
        if packed.payload:
            at = data.draw(st.integers(0, len(packed.payload) - 1))
            back = unpack(*packed[:2], flipped(packed.payload, at, bits))
            assert [len(event) for event in back] == [len(event) for event in events]
            assert sum(one != other for one, other in zip(back, events, strict=True)) == 1

    check(holds, round_, examples=60)


def test_whatever_is_done_to_a_frame_it_gives_the_bytes_that_are_there_in_order_or_is_refused(round_: int) -> None:
    """No other error, nothing read twice, nothing read beyond the end."""

    @given(SOME, st.data())
    def holds(events: list[bytes], data: st.DataObject) -> None:
        count, lengths, payload = pack(events)
        for _ in range(data.draw(st.integers(1, 4))):
            lengths, payload = mangled(data, lengths), mangled(data, payload)
        count = data.draw(st.sampled_from([count, count, len(lengths) // 4, 0, -1, 2**63 - 1]))
        try:
            back = unpack(count, lengths, payload)
        except UnreadableRecord:
            return
        assert b"".join(back) == payload
        assert pack(back) == Packed(count, lengths, payload)

    check(holds, round_, examples=120)


def mangled(data: st.DataObject, value: bytes) -> bytes:
    begin = data.draw(st.integers(0, len(value)))
    end = data.draw(st.integers(begin, min(len(value), begin + 4)))
    inserted = data.draw(st.just(value[begin:end]) | st.binary(max_size=4) | st.just(b"\xff" * 4))
    return value[:begin] + inserted + value[end:]
