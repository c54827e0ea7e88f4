"""The outbox against the list of everything that was put into it (protocol, sections 3 and 8)."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.schemas.acks import OperatorEventFrame
from penstock.schemas.frames import unpack
from penstock.schemas.state import Sender
from penstock.subtask_client.protocol.outbox import Outbox
from tests.machines import explore
from tests.rounds import rounds

SENDER = Sender("reader", 0, 50, 1, 0)
LENGTH_BYTES = 4


class OutboxMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox(SENDER, 1, events_max=1, bytes_max=1)
        self.added: list[tuple[bytes, int]] = []
        """(event, the checkpoint it belongs to)."""
        self.left: list[OperatorEventFrame] = []
        self.belongs_to = 1

    @initialize(events_max=st.integers(1, 5), bytes_max=st.integers(1, 40))
    def begin(self, events_max: int, bytes_max: int) -> None:
        self.events_max, self.bytes_max = events_max, bytes_max
        self.outbox = Outbox(SENDER, 1, events_max=events_max, bytes_max=bytes_max)

    @rule(event=st.binary(max_size=50))
    def add(self, event: bytes) -> None:
        self.added.append((event, self.belongs_to))
        frames = self.outbox.add(event)
        assert frames is None or frames, "None for none: it is asked for each event"
        self.left += frames or []

    @rule()
    def take(self) -> None:
        frames = self.outbox.take()
        assert len(frames) <= 1
        self.left += frames
        assert self._gone() == len(self.added)

    @precondition(lambda self: self._gone() == len(self.added))
    @rule()
    def a_snapshot_is_taken(self) -> None:
        """What is added from now on belongs to the next checkpoint."""
        self.belongs_to += 1
        self.outbox.belongs_to = self.belongs_to

    def _gone(self) -> int:
        return sum(frame.count for frame in self.left)

    @invariant()
    def frames_hold_what_was_added_in_order_and_the_rest_waits(self) -> None:
        events = [event for f in self.left for event in unpack(f.count, f.lengths, f.payload)]
        assert events == [event for event, _ in self.added[: len(events)]]
        waiting = self.added[len(events) :]
        assert self.outbox.sent_sequence == len(self.added)
        assert self.outbox.sequence == len(events)
        assert self.outbox.bytes_waiting == sum(len(event) + LENGTH_BYTES for event, _ in waiting)

    @invariant()
    def each_frame_carries_its_sender_its_number_and_its_checkpoint(self) -> None:
        sequence = 0
        for frame in self.left:
            assert (frame.sender, frame.sequence) == (SENDER, sequence)
            sequence += frame.count
            assert {n for _, n in self.added[frame.sequence : sequence]} == {frame.belongs_to}

    @invariant()
    def nothing_grows_beyond_its_bounds(self) -> None:
        for frame in self.left:
            assert 1 <= frame.count <= self.events_max
            assert frame.count == 1 or len(frame.payload) + len(frame.lengths) <= self.bytes_max
        waiting = len(self.added) - self._gone()
        assert waiting == 0 or (waiting < self.events_max and self.outbox.bytes_waiting < self.bytes_max)


@pytest.mark.soak
@pytest.mark.parametrize("round_", rounds())
def test_an_outbox_gives_what_was_put_into_it(round_: int) -> None:
    explore(OutboxMachine, round_, examples=40, steps=25)
