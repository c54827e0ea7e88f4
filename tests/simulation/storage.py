"""The job's state storage, and what becomes of states in it: for a while one comes back damaged, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.schemas.errors import JobRefused, StateError
from penstock.schemas.state import StateHandle
from penstock.transport.state_storage import load_state

from .configs import PAUSES_S
from .faults import Fault
from .violations import Violation

if TYPE_CHECKING:
    from .world import World


class Storage:
    """What :class:`penstock.transport.state_storage.StateStorage` promises, over the world's states."""

    configured = True

    def __init__(self, world: World) -> None:
        self._world = world
        self._rotten: dict[str, tuple[float, bytes | None]] = {}
        """Until when a state comes back as these bytes, or not at all."""

    def get(self, location: str, size: int = 0) -> bytes:
        until, data = self._rotten.get(location, (0.0, None))
        if until <= self._world.now or not self._world.faulty:
            data = self._world.stored.get(location)
        if data is None:
            raise StateError(f"{location} is not stored")
        return data

    def put(self, location: str, data: bytes) -> None:
        self._world.store(location, data)

    def restored(self, who: object, handle: StateHandle) -> bytes:
        """Read a state back as every process does, by the product's rule. Raises StateError."""
        data = load_state(self, handle)
        if handle.location is not None and data != self._world.stored.get(handle.location):
            raise Violation(f"section 7.6: {who} restores {handle.location}, which is damaged: {data!r}")
        return data

    def is_rotten(self, refusal: StateError | JobRefused) -> bool:
        """Whether the refusal names a state that is damaged at the moment."""
        rotten = (location for location, (until, _) in self._rotten.items() if until > self._world.now)
        return any(location in str(refusal) for location in rotten)

    def actions(self) -> list[Fault]:
        world = self._world
        if not (world.faulty and world.rate and world.config.rots and world.stored):
            return []
        return [Fault(0.05 * world.rate * world.config.rots, self._rot)]

    def _rot(self) -> None:
        """Of a state of the last checkpoint, as a rule: others are hardly ever read."""
        world = self._world
        last = world.checks.history.last
        named = sorted(world.stored.keys() & (last.stored().keys() if last is not None else ()))
        location = world.rng.choice(named or sorted(world.stored))
        state, at = world.stored[location], world.rng.randrange(len(world.stored[location]))
        flipped = bytes([*state[:at], state[at] ^ 1 << world.rng.randrange(8), *state[at + 1 :]])
        data = world.rng.choice((None, state[:at], flipped))
        seconds = world.rng.choice(PAUSES_S)
        world.trace(f"{location} comes back as {data!r} for {seconds} s")
        self._rotten[location] = world.now + seconds, data
