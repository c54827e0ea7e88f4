"""Events that a slot's gateway holds back between a checkpoint's cut and the subtask's own snapshot.

:class:`GatewayState` is what the core knows of a gateway; users send through :class:`penstock.Gateway`.

Rules (protocol, section 6):

* ``mark(n)`` at the trigger, ``close(n)`` at the cut, ``open(n)`` by id. Ids only ever rise.
* Closing an unmarked id returns False and changes nothing. Several checkpoints may be closed at once.
* A frame is held under the highest closed id.
* Opening the lowest closed id releases its queue; opening another moves its queue down one.
* Opening an id that is no longer marked is a no-op; one that was never marked is an error.

A user who sends now and then makes a frame of each event, which takes three times what the event does. So what is held
is joined while it waits: whatever the frames were, they take little more than their events.
"""

from __future__ import annotations

from ...schemas.events import EventFrame
from ...schemas.frames import FRAME_BYTES_MAX, FRAME_EVENTS_MAX

LOOSE_FRAMES_MAX = 256
"""So many frames a gateway takes before it joins them."""


class GatewayState:
    """Marked and closed checkpoints of one gateway, and the events held under them, oldest first."""

    __slots__ = ("_held", "_highest", "_loose", "_marked")

    def __init__(self) -> None:
        self._marked: set[int] = set()  # triggered, not opened yet; a superset of the closed ids
        self._held: dict[int, list[EventFrame]] = {}  # by closed id, ascending, as ids only rise
        self._highest = -1  # the highest id ever marked
        self._loose = 0  # the last frames of the highest queue that have not been joined

    @property
    def closed(self) -> tuple[int, ...]:
        """Ids of the checkpoints it is closed for, ascending."""
        return tuple(self._held)

    @property
    def held_events(self) -> int:
        return sum(frame.count for queue in self._held.values() for frame in queue)

    def mark(self, checkpoint_id: int) -> None:
        if checkpoint_id <= self._highest:
            raise AssertionError(f"checkpoint {checkpoint_id} is marked after {self._highest}: ids only rise")
        self._marked.add(checkpoint_id)
        self._highest = checkpoint_id

    def close(self, checkpoint_id: int) -> bool:
        if checkpoint_id not in self._marked:
            return False
        if checkpoint_id not in self._held:
            self._held[checkpoint_id] = []
            self._held = dict(sorted(self._held.items()))
            self._loose = 0
        return True

    def hold(self, frame: EventFrame) -> bool:
        """Whether the gateway is closed and now holds ``frame``; an open one leaves it to the caller."""
        if not self._held:
            return False
        self._held[max(self._held)].append(frame)  # mutant: held-under-the-lowest
        self._loose += 1
        return True

    def join(self, events_max: int, bytes_max: int) -> None:
        """Joins what came since the last time, in frames of at most so much; to be called behind ``hold``."""
        if self._loose < LOOSE_FRAMES_MAX:
            return
        queue = self._held[max(self._held)]
        begin = max(0, len(queue) - self._loose - 1)  # with the last joined one: it may have room
        queue[begin:] = merged(queue[begin:], events_max, bytes_max)
        self._loose = 0

    def open(self, checkpoint_id: int) -> list[EventFrame]:
        """What may be appended now, in order."""
        if checkpoint_id > self._highest:
            raise AssertionError(f"checkpoint {checkpoint_id} is opened and was never marked")
        self._marked.discard(checkpoint_id)
        queue = self._held.pop(checkpoint_id, None)
        self._loose = 0
        if not queue:
            return []
        below = [lower for lower in self._held if lower < checkpoint_id]
        if below:  # mutant: queue-not-moved-down
            self._held[max(below)] += queue
            return []
        return queue

    def release_below(self, checkpoint_id: int) -> list[EventFrame]:
        """What lower ids hold, for the marker of ``checkpoint_id`` to stand behind: their own markers stand already."""
        self._loose = 0
        released: list[EventFrame] = []
        for lower in self._held:
            if lower < checkpoint_id:
                released += self._held[lower]
                self._held[lower] = []
        return released


def merged(
    frames: list[EventFrame], events_max: int = FRAME_EVENTS_MAX, bytes_max: int = FRAME_BYTES_MAX
) -> list[EventFrame]:
    """The same events in as few frames as fit, where a user's single sends had made many small ones."""
    out: list[EventFrame] = []
    run: list[EventFrame] = []
    count = size = 0
    for frame in frames:
        if run and (count + frame.count > events_max or size + len(frame.payload) > bytes_max):
            out.append(_joined(run))
            run, count, size = [], 0, 0
        run.append(frame)
        count += frame.count
        size += len(frame.payload)
    if run:
        out.append(_joined(run))
    return out


def _joined(run: list[EventFrame]) -> EventFrame:
    first = run[0]
    if len(run) == 1:
        return first
    return EventFrame(
        first.epoch,
        first.attempt,
        first.sequence,
        sum(frame.count for frame in run),
        b"".join(frame.lengths for frame in run),
        b"".join(frame.payload for frame in run),
    )
