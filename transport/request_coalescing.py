"""Questions of many threads to one server, asked together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Generic, TypeVar

from ..schemas.errors import BrokerUnreachable, TransportError

K = TypeVar("K")
V = TypeVar("V")


class _Round(Generic[K, V]):
    """One question: what it is about, and what came of it."""

    def __init__(self) -> None:
        self.subjects: set[K] = set()
        self.answered = threading.Event()
        self.answer: Mapping[K, V] = {}
        self.error: Exception | None = None


class Together(Generic[K, V]):
    """Asks one question at a time; who comes while one is open is served by the next, together with all who wait.

    ``ask`` answers a question about some subjects. A thousand threads that start at once ask two or three questions,
    and not a thousand at a time, in which a client would drown.
    """

    def __init__(self, ask: Callable[[Collection[K]], Mapping[K, V]]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._free = threading.Condition(self._lock)
        self._asked: _Round[K, V] | None = None
        """The question that is open."""
        self._next: _Round[K, V] | None = None

    def ask(self, subjects: Collection[K], timeout_s: float) -> dict[K, V]:
        """The answer about ``subjects``. Raises what the question raised that they were part of.

        Raises :class:`BrokerUnreachable` where the question before it takes longer than ``timeout_s``, or its own does
        and another thread asks it.
        """
        with self._lock:
            leads = self._next is None
            round_ = self._next = self._next or _Round()
            round_.subjects.update(subjects)
        if leads:
            self._lead(round_, timeout_s)
        if not round_.answered.wait(timeout_s):
            raise _unanswered(timeout_s)
        if round_.error is not None:
            raise round_.error
        return {subject: round_.answer[subject] for subject in subjects}

    def _lead(self, round_: _Round[K, V], timeout_s: float) -> None:
        """Whatever happens to who leads, the round is over then: others wait for it."""
        round_.error = TransportError(
            "the thread that asked for this one, too, was interrupted before it had an answer"
        )
        try:
            try:
                with self._free:
                    if not self._free.wait_for(lambda: self._asked is None, timeout_s):
                        raise _unanswered(timeout_s)
                    self._asked = round_
                self._close(round_)
                round_.answer = self._ask(round_.subjects)
            finally:
                with self._free:
                    if self._asked is round_:
                        self._asked = None
                        self._free.notify()
            round_.error = None
        except Exception as error:
            round_.error = error
        finally:
            self._close(round_)
            round_.answered.set()

    def _close(self, round_: _Round[K, V]) -> None:
        """Who comes from now on is served by another one."""
        with self._lock:
            if self._next is round_:
                self._next = None


def _unanswered(timeout_s: float) -> BrokerUnreachable:
    return BrokerUnreachable(f"a question that many ask the broker together was not answered within {timeout_s:g} s")
