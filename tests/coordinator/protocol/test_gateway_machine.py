"""The gateway against one list in which events and cuts stand in order (protocol, section 6)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.coordinator.protocol.gateway import GatewayState, merged
from penstock.schemas.events import EventFrame
from penstock.schemas.frames import pack, unpack
from tests.machines import explore
from tests.rounds import rounds

EPOCH, ATTEMPT = 3, 7


class Timeline:
    """Held events and the cuts they wait for, in one list: an event may go when no cut stands before it."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, int]] = []
        self.marked: set[int] = set()
        self.ever_marked: list[int] = []

    @property
    def cuts(self) -> list[int]:
        return [n for kind, n in self.entries if kind == "cut"]

    @property
    def held(self) -> list[int]:
        return [event for kind, event in self.entries if kind == "event"]

    def close(self, n: int) -> bool:
        if n not in self.marked:
            return False
        if n not in self.cuts:
            higher = [at for at, (kind, other) in enumerate(self.entries) if kind == "cut" and other > n]
            self.entries.insert(min(higher, default=len(self.entries)), ("cut", n))
        return True

    def open(self, n: int) -> list[int]:
        self.marked.discard(n)
        if ("cut", n) in self.entries:
            self.entries.remove(("cut", n))
        return self._release(self.cuts[:1])

    def marker(self, n: int) -> list[int]:
        """What was sent before the cut for ``n``; the cuts stay."""
        return self._release([cut for cut in self.cuts if cut >= n][:1])

    def _release(self, before: list[int]) -> list[int]:
        """Every event in front of that cut, or all of them where there is none."""
        end = self.entries.index(("cut", before[0])) if before else len(self.entries)
        released = [event for kind, event in self.entries[:end] if kind == "event"]
        self.entries[:end] = [entry for entry in self.entries[:end] if entry[0] == "cut"]
        return released


class GatewayMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.gateway, self.line = GatewayState(), Timeline()
        self.sent = 0
        self.appended: list[int] = []

    @rule(step=st.integers(1, 3))
    def mark(self, step: int) -> None:
        n = max(self.line.ever_marked, default=-1) + step
        self.gateway.mark(n)
        self.line.marked.add(n)
        self.line.ever_marked.append(n)

    @precondition(lambda self: self.line.ever_marked)
    @rule(data=st.data())
    def mark_an_id_that_does_not_rise(self, data: st.DataObject) -> None:
        """R7: an illegal state, and nothing changes by it."""
        n = data.draw(st.integers(-1, max(self.line.ever_marked)))
        with pytest.raises(AssertionError, match="only rise"):
            self.gateway.mark(n)

    @rule(step=st.integers(1, 3))
    def mark_and_close(self, step: int) -> None:
        self.mark(step)
        assert self.gateway.close(self.line.ever_marked[-1])
        assert self.line.close(self.line.ever_marked[-1])

    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        """R6, R8, R46: marked, closed, opened before, or never marked."""
        n = self._any_id(data)
        assert self.gateway.close(n) == self.line.close(n)

    @rule(counts=st.lists(st.integers(1, 3), min_size=1, max_size=5))
    def send(self, counts: list[int]) -> None:
        """R5, R9: held exactly while some checkpoint is closed."""
        for count in counts:
            self._send(count)

    def _send(self, count: int) -> None:
        events = list(range(self.sent, self.sent + count))
        self.sent += count
        frame = EventFrame(EPOCH, ATTEMPT, events[0], *pack([b"%d" % event for event in events]))
        held = self.gateway.hold(frame)
        assert held == bool(self.line.cuts)
        if held:
            self.line.entries += [("event", event) for event in events]
        else:
            self.appended += events

    def _any_id(self, data: st.DataObject) -> int:
        """Mostly one that means something now; never one above all that were marked."""
        now = sorted({*self.line.cuts, *self.line.marked})
        if now and data.draw(st.integers(0, 4)) > 0:
            return data.draw(st.sampled_from(now))
        ever = self.line.ever_marked or [0]
        return data.draw(st.sampled_from(ever) | st.integers(0, max(ever)))

    @precondition(lambda self: self.line.ever_marked)
    @rule(data=st.data())
    def open(self, data: st.DataObject) -> None:
        """R10, R11: closed, marked only, opened before, or an id that this gateway has stepped over."""
        n = self._any_id(data)
        self._released(self.gateway.open(n), self.line.open(n))

    @rule(beyond=st.integers(1, 3))
    def open_an_id_never_reached(self, beyond: int) -> None:
        """R12."""
        with pytest.raises(AssertionError, match="never marked"):
            self.gateway.open(max(self.line.ever_marked, default=-1) + beyond)

    @rule(data=st.data())
    def marker_of(self, data: st.DataObject) -> None:
        """Section 7.4 ◆."""
        n = self._any_id(data)
        self._released(self.gateway.release_below(n), self.line.marker(n))

    def _released(self, frames: list[EventFrame], expected: list[int]) -> None:
        assert numbers(frames) == expected
        self.appended += expected
        for events_max, bytes_max in ((1, 1), (3, 1000), (1000, 3), (1000, 7), (1000, 1000)):
            joined = merged(frames, events_max, bytes_max)
            assert numbers(joined) == expected
            check_frames(joined, frames, events_max, bytes_max)

    @invariant()
    def agree(self) -> None:
        assert self.gateway.closed == tuple(sorted(self.line.cuts))
        assert self.gateway.held_events == len(self.line.held)
        assert self.appended + self.line.held == list(range(self.sent)), "G1: in the order sent, none lost, none twice"

    def teardown(self) -> None:
        """However it went: opening what is left, in whatever order, lets everything go."""
        for n in self.line.cuts[1::2] + self.line.cuts[::2]:
            self.appended += numbers(self.gateway.open(n))
        assert self.appended == list(range(self.sent))
        assert self.gateway.closed == ()


def numbers(frames: list[EventFrame]) -> list[int]:
    return [int(event) for f in frames for event in unpack(f.count, f.lengths, f.payload)]


def check_frames(frames: list[EventFrame], single: list[EventFrame], events_max: int, bytes_max: int) -> None:
    """Joined frames keep sequence and sender, and are full but not above that: no two neighbours fit into one."""
    for frame in frames:
        assert (frame.epoch, frame.attempt) == (EPOCH, ATTEMPT)
        assert [frame.sequence + i for i in range(frame.count)] == numbers([frame])
        assert frame in single or (frame.count <= events_max and len(frame.payload) <= bytes_max)
    for one, other in pairwise(frames):
        next_single = next(f for f in single if f.sequence == other.sequence)
        too_many = one.count + next_single.count > events_max
        assert too_many or len(one.payload) + len(next_single.payload) > bytes_max


@pytest.mark.soak
@pytest.mark.parametrize("round_", rounds())
def test_a_gateway_lets_events_go_as_a_list_of_events_and_cuts_does(round_: int) -> None:
    explore(GatewayMachine, round_, examples=120, steps=30)
