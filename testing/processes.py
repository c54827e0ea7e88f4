"""A process of a job as its transport sees it: running, frozen, or dead.

In a :class:`LocalJob` a process is a few threads, and a thread cannot be killed or stopped from outside. What can be
done is done at the transport: a *frozen* process stops at its next transport call, as one that got SIGSTOP stops at
its next instruction; a *dead* one writes nothing more and reads nothing more, as after SIGKILL. User code that is just
running goes on until it returns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Process:
    """One process by its name. ``changed`` is the condition of the faults it lives under."""

    def __init__(self, name: str, changed: threading.Condition) -> None:
        self.name = name
        self.frozen = False
        self.dead = False
        self.spared = False
        """No fault applies to it any more: it is being closed."""
        self._changed = changed
        self._stopped: set[threading.Thread] = set()

    def pass_gate(self) -> bool:
        """Waits here while the process is frozen; whether it lives."""
        if self.frozen:
            with self._changed:
                self._stopped.add(threading.current_thread())
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self.frozen)
                self._stopped.discard(threading.current_thread())
        return not self.dead

    def freeze(self) -> None:
        with self._changed:
            self.frozen = not self.dead

    def thaw(self) -> None:
        with self._changed:
            self.frozen = False
            self._changed.notify_all()

    def kill(self) -> None:
        with self._changed:
            self.dead, self.frozen = True, False
            self._changed.notify_all()

    def spare(self) -> None:
        with self._changed:
            self.spared, self.frozen = True, False
            self._changed.notify_all()

    def wait_until_stopped(self, main: Callable[[threading.Thread], bool], timeout: float) -> None:
        """Waits until the main thread of the frozen process has come to a transport call."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self.frozen or any(map(main, self._stopped)), timeout):
                raise TimeoutError(
                    f"{self.name} did not come to a transport call within {timeout:g} s: user code is running, and a"
                    " thread can be stopped at a transport call only"
                )

    def __str__(self) -> str:
        state = "dead" if self.dead else "frozen" if self.frozen else "running"
        return f"{self.name} ({state})"
