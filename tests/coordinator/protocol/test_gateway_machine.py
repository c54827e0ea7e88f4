"""The gateway against a naive model that keeps one list of events and the cuts between them (protocol, section 6)."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.coordinator.protocol.gateway import Gateway
from penstock.schemas.events import EventFrame
from penstock.schemas.frames import pack, unpack

IDS = st.integers(0, 12)


class Model:
    """Held events in order, each with the ids that had been closed when it was sent: any of them holds it back."""

    def __init__(self) -> None:
        self.marked: set[int] = set()
        self.closed: set[int] = set()
        self.highest = -1
        self.held: list[tuple[int, int]] = []
        """(event, the id it waits for)."""

    def open(self, n: int) -> list[int]:
        self.marked.discard(n)
        if n not in self.closed:
            return []
        self.closed.discard(n)
        lower = max((c for c in self.closed if c < n), default=None)
        out = [event for event, waits in self.held if waits == n and lower is None]
        self.held = [
            (event, lower if waits == n and lower is not None else waits)
            for event, waits in self.held
            if not (waits == n and lower is None)
        ]
        return out


class GatewayMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.gateway, self.model, self.sent = Gateway(), Model(), 0
        self.appended: list[int] = []

    @rule(step=st.integers(1, 3))
    def mark(self, step: int) -> None:
        n = self.model.highest + step
        self.gateway.mark(n)
        self.model.marked.add(n)
        self.model.highest = n

    @rule(n=IDS)
    def close(self, n: int) -> None:
        possible = n in self.model.marked
        assert self.gateway.close(n) == possible
        if possible:
            self.model.closed.add(n)

    @rule()
    def send(self) -> None:
        event, self.sent = self.sent, self.sent + 1
        held = self.gateway.hold(EventFrame(1, 1, event, *pack([b"%d" % event])))
        assert held == bool(self.model.closed)
        if held:
            self.model.held.append((event, max(self.model.closed)))
        else:
            self.appended.append(event)

    @rule(n=IDS)
    def open(self, n: int) -> None:
        if n > self.model.highest:
            return  # an error, see test_gateway
        released = self._events(self.gateway.open(n))
        assert released == self.model.open(n)
        self.appended += released

    @rule(n=IDS)
    def marker_of(self, n: int) -> None:
        released = self._events(self.gateway.release_below(n))
        lower = [event for event, waits in self.model.held if waits < n]
        assert released == lower
        self.model.held = [entry for entry in self.model.held if entry[1] >= n]
        self.appended += released

    def _events(self, frames: list[EventFrame]) -> list[int]:
        return [int(event) for f in frames for event in unpack(f.count, f.lengths, f.payload)]

    @invariant()
    def agree(self) -> None:
        assert self.gateway.closed == tuple(sorted(self.model.closed))
        assert self.gateway.held_events == len(self.model.held)

    def teardown(self) -> None:
        """However it went: opening what is left, lowest first, has given every event once and in order (G1)."""
        for n in sorted(self.model.closed):
            self.appended += self._events(self.gateway.open(n))
        assert self.appended == list(range(self.sent))


TestGatewayMachine = GatewayMachine.TestCase
TestGatewayMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
