"""A thread whose work has an outcome, told to whoever waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..schemas.errors import JobFailed
from ..schemas.status import End


class OutcomeThread:
    """Runs ``work`` on a daemon thread, once."""

    def __init__(self, what: str, work: Callable[[], End]) -> None:
        """``what`` is the word for whose thread it is, in errors and in the thread's name."""
        self._what, self._work = what, work
        self._done = threading.Event()
        self._outcome: End | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"penstock-{what}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def done(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> End | None:
        """The outcome, None where there is none within ``timeout`` seconds. Raises what ended the work instead."""
        if not self._done.wait(timeout):
            return None
        self._thread.join(10.0)
        if self._error is not None:
            raise self._error
        return self._outcome

    def _run(self) -> None:
        try:
            self._outcome = self._work()
        except Exception as error:
            self._error = error
        except BaseException as error:  # raised here, it must not go through whoever waits elsewhere
            self._error = JobFailed(f"the {self._what}'s thread was ended by {type(error).__name__}: {error}")
            self._error.__cause__ = error
        finally:
            self._done.set()
