"""What an instance is doing at the moment and since when: the answer to "what does this checkpoint wait for?" """

from __future__ import annotations

import time


class Steps:
    """Written by the instance's thread, read by its heartbeat thread; times are monotonic seconds."""

    __slots__ = ("_began", "_handling", "_seen", "done", "first_sequence")

    def __init__(self) -> None:
        self._began = ("starting", time.monotonic())
        self._handling = False
        self._seen = (-1, 0.0)
        self.first_sequence = 0
        self.done = 0
        """Events handled of the frame under way."""

    @property
    def handling(self) -> bool:
        return self._handling

    def enter(self, step: str) -> None:
        self._handling = False
        self._began = (step, time.monotonic())

    def enter_handling(self, first_sequence: int) -> None:
        self.first_sequence = first_sequence
        self._began = ("handling events", time.monotonic())
        self._seen = (-1, 0.0)
        self._handling = True

    def describe(self, done: int) -> tuple[str, int]:
        """The step and its age in milliseconds; an event's age counts from the first look at it."""
        step, since = self._began
        if self._handling:
            if self._seen[0] != done:
                self._seen = (done, since if done == 0 else time.monotonic())
            step, since = f"handling event {self.first_sequence + done}", self._seen[1]
        return step, max(0, int((time.monotonic() - since) * 1000))
