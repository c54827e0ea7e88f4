"""Faults to inject into a job's processes, by the records they are for.

What can go wrong between processes that share a durable log, and nothing else (``docs/testing-your-job.md`` has the
table): a record is late (``hold``, ``delay``), seen late (``lag``) or not (``miss``), refused (``refuse``), taken or
not with nobody knowing (``unknown_outcome``), lost although it was taken (``drop``), garbled (``corrupt``), there twice
(``duplicate``); the broker is away (``broker_away``).
"""

from __future__ import annotations

import logging
import random
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, Unpack

from ..schemas.checkpoints import EpochClaimed, RunClaimed
from ..schemas.codec import Record
from ..schemas.errors import ConfigurationError
from ..schemas.status import StatusRecord
from .matching import Match, RecordType, Subject, Which
from .processes import Process

_log = logging.getLogger("penstock.testing")

_PATIENCE_S = 30.0
_SLICE_S = 0.05
_SPARED = StatusRecord | EpochClaimed | RunClaimed
"""What faults at random without a record class are not for."""


class Kind(StrEnum):
    """What a fault does to a record."""

    HOLD = "hold"
    DELAY = "delay"
    DROP = "drop"
    CORRUPT = "corrupt"
    DUPLICATE = "duplicate"
    REFUSE = "refuse"
    OUTCOME_STANDS = "unknown outcome, stands"
    OUTCOME_LOST = "unknown outcome, does not stand"
    LAG = "lag"
    MISS = "miss"
    WATCH = "watch"
    RANDOM = "at random"


WRITING = frozenset(Kind) - {Kind.LAG, Kind.MISS, Kind.WATCH, Kind.RANDOM}
READING = frozenset({Kind.LAG, Kind.MISS})
COMMITTING = frozenset({Kind.HOLD, Kind.DELAY, Kind.REFUSE, Kind.OUTCOME_STANDS, Kind.OUTCOME_LOST})


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault that happened."""

    fault: str
    """What it was: ``drop``, ``hold``, ``crash``, ..."""
    process: str
    """The process it happened to."""
    record: Record | None = None
    """The record it happened to; None where it happened to the process or the broker."""
    what: str = ""
    """For people."""

    def __str__(self) -> str:
        return f"{self.fault}: {self.what or 'the process'} [{self.process}]"


class Hold:
    """One record that waits."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.released = False
        self.behind_left: int | None = None
        """So many records behind it still have to come before it goes on; None: it waits for something else."""

    @property
    def over(self) -> bool:
        return self.released or self.fault.released


class Fault:
    """A fault that waits for its records; also the latch of those that it holds."""

    def __init__(self, faults: Faults, kind: Kind, match: Match) -> None:
        self.kind = kind
        self.released = False
        self.seconds: float | None = None
        self.until: threading.Event | None = None
        self.behind: int | None = None
        self._faults = faults
        self._match = match
        self._caught: list[Injected] = []

    @property
    def caught(self) -> list[Injected]:
        """What it happened to so far."""
        with self._faults.changed:
            return list(self._caught)

    def wait_until_caught(self, timeout: float = _PATIENCE_S, times: int = 1) -> Injected:
        """Waits until it has happened ``times`` times, and returns the last of them; else TimeoutError."""
        with self._faults.changed:
            if not self._faults.changed.wait_for(lambda: len(self._caught) >= times, timeout):
                raise TimeoutError(f"{self} has happened {len(self._caught)} times within {timeout:g} s, not {times}")
            return self._caught[times - 1]

    def release(self) -> None:
        """Ends it: what it holds goes on, and nothing more is caught."""
        with self._faults.changed:
            self.released = True
        self._faults.wake()

    def choose(self, process: str, subject: Subject, possible: frozenset[Kind]) -> Kind | None:
        """What becomes of a record; None where this fault is not for it."""
        return self.kind if self.kind in possible and self._match.takes(process, subject) else None

    def note(self, injected: Injected) -> None:
        self._caught.append(injected)

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __str__(self) -> str:
        return f"{self.kind} of {self._match}"


class _RandomFault(Fault):
    """Draws for every record. Each process draws for each kind of record on each partition from a stream of its own.

    So the n-th of them meets the same fate under the same seed, whatever the threads do meanwhile.
    """

    def __init__(self, faults: Faults, match: Match, chances: dict[Kind, float], seconds: float) -> None:
        super().__init__(faults, Kind.RANDOM, match)
        self._chances, self.seconds = chances, seconds
        self._streams: dict[tuple[object, ...], random.Random] = {}

    def choose(self, process: str, subject: Subject, possible: frozenset[Kind]) -> Kind | None:
        key = process, type(subject.record).__name__, str(subject.partition), possible is READING
        if possible <= {Kind.WATCH} or (self._match.types is None and isinstance(subject.record, _SPARED)):
            return None
        stream = self._streams.setdefault(key, random.Random(f"{self._faults.seed} {key}"))
        drawn = stream.random()
        for kind, chance in self._chances.items():
            if kind in possible:
                if drawn < chance:
                    return kind if self._match.takes(process, subject) else None
                drawn -= chance
        return None

    def __str__(self) -> str:
        chances = ", ".join(f"{kind} {chance:g}" for kind, chance in self._chances.items())
        return f"at random ({chances}) of {self._match}, seed {self._faults.seed}"


class Wakeable(Protocol):
    def wake(self) -> None: ...


class Faults:
    """Where a test says what is to go wrong; every :class:`FaultyTransport` made with it obeys.

    ``injected`` lists what did go wrong. ``seed`` decides what :meth:`at_random` draws. A record meets the first fault
    that is for it, in the order in which faults were made.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.changed = threading.Condition(threading.RLock())
        """Told of everything: faults, their ends, processes frozen and killed."""
        self._faults: list[Fault] = []
        self._injected: list[Injected] = []
        self._away: list[frozenset[str] | None] = []
        self._wakeable: weakref.WeakSet[Wakeable] = weakref.WeakSet()

    # ---- what a test asks for

    def hold(self, what: RecordType = None, **which: Unpack[Which]) -> Fault:
        """The next such record waits in its writer until ``release()``; so does what that writer appends behind it to
        the same partition. A commit waits, and its process with it."""
        return self._add(Kind.HOLD, what, which)

    def delay(
        self,
        what: RecordType = None,
        *,
        seconds: float | None = None,
        until: threading.Event | None = None,
        records: int | None = None,
        **which: Unpack[Which],
    ) -> Fault:
        """As ``hold``; each record goes on by itself, after ``seconds``, when the event ``until`` is set, or when the
        writer has appended so many ``records`` behind it to the same partition."""
        if [seconds, until, records].count(None) != 2 or (records is not None and records < 1):
            raise ConfigurationError("delay needs exactly one of seconds, until (an event) and records (at least 1)")
        return self._add(Kind.DELAY, what, which, seconds, until, records)

    def lag(
        self,
        what: RecordType = None,
        *,
        seconds: float | None = None,
        until: threading.Event | None = None,
        **which: Unpack[Which],
    ) -> Fault:
        """The next such record stands in the log, but its reader does not see it yet, nor what is behind it: until
        ``release()``, or for ``seconds``, or until an event is set."""
        return self._add(Kind.LAG, what, which, seconds, until)

    def miss(self, what: RecordType = None, **which: Unpack[Which]) -> Fault:
        """A reader passes over the next such record, although it stands: whoever reads it again sees it."""
        return self._add(Kind.MISS, what, which)

    def drop(self, what: RecordType = None, **which: Unpack[Which]) -> Fault:
        """The next such record is lost for ever although its writer is told that it stands: a hole in the log."""
        return self._add(Kind.DROP, what, which)

    def corrupt(self, what: RecordType = None, **which: Unpack[Which]) -> Fault:
        """Instead of the next such record something stands that nobody can read."""
        return self._add(Kind.CORRUPT, what, which)

    def duplicate(self, what: RecordType = None, **which: Unpack[Which]) -> Fault:
        """The next such record stands twice."""
        return self._add(Kind.DUPLICATE, what, which)

    def refuse(self, what: RecordType = None, **which: Unpack[Which]) -> Fault:
        """The append (or commit) of the next such record fails, and it does not stand. As the port says, the writer
        takes nothing more."""
        return self._add(Kind.REFUSE, what, which)

    def unknown_outcome(self, what: RecordType = None, *, stands: bool, **which: Unpack[Which]) -> Fault:
        """The writer of the next such record (or commit) gets no answer; whether it stands, you say."""
        return self._add(Kind.OUTCOME_STANDS if stands else Kind.OUTCOME_LOST, what, which)

    def at_random(
        self,
        what: RecordType = None,
        *,
        delay: float = 0.0,
        lag: float = 0.0,
        refuse: float = 0.0,
        unknown_outcome: float = 0.0,
        miss: float = 0.0,
        drop: float = 0.0,
        corrupt: float = 0.0,
        duplicate: float = 0.0,
        seconds: float = 0.05,
        **which: Unpack[Which],
    ) -> Fault:
        """Each record meets each fault with the given probability; delays and lags last ``seconds``.

        For soak tests. Without ``what`` it is for every record but those of the status topic and claims: a coordinator
        whose claim is refused has not started, and raises. A job that has begun must survive the first four of them
        however often they come, within its restart budget; others damage the log; a job may fail loudly then.
        """
        chances = {
            Kind.DELAY: delay,
            Kind.LAG: lag,
            Kind.REFUSE: refuse,
            Kind.OUTCOME_STANDS: unknown_outcome / 2,
            Kind.OUTCOME_LOST: unknown_outcome / 2,
            Kind.MISS: miss,
            Kind.DROP: drop,
            Kind.CORRUPT: corrupt,
            Kind.DUPLICATE: duplicate,
        }
        wanted = {kind: chance for kind, chance in chances.items() if chance}
        if not wanted or min(wanted.values()) < 0 or sum(wanted.values()) > 1:
            raise ConfigurationError(
                f"at_random needs probabilities that add up to more than 0 and at most 1: {wanted}"
            )
        which.setdefault("times", None)
        return self._register(_RandomFault(self, Match(what, which), wanted, seconds))

    def watch(self, what: RecordType = None, **which: Unpack[Which]) -> Fault:
        """Harms nobody: ``caught`` lists such records as their writers append or commit them, all of them."""
        which.setdefault("times", None)
        return self._add(Kind.WATCH, what, which)

    @contextmanager
    def broker_away(self, *processes: str) -> Iterator[None]:
        """While inside, no broker answers: appends wait, readers get nothing, calls run into their timeouts.

        For the given processes (``coordinator``, ``reader/1``, ``client``), or for all.
        """
        away = frozenset(processes) or None
        with self.changed:
            self._away.append(away)
        self.note_process("broker away", ", ".join(processes) or "all")
        try:
            yield
        finally:
            with self.changed:
                if away in self._away:
                    self._away.remove(away)
            self.wake()

    def clear(self) -> None:
        """Ends every fault: what is held goes on, the broker is back. What was injected stays listed."""
        with self.changed:
            for fault in self._faults:
                fault.released = True
            self._faults.clear()
            self._away.clear()
        self.wake()

    @property
    def injected(self) -> list[Injected]:
        """Everything that happened, in order."""
        with self.changed:
            return list(self._injected)

    @property
    def waiting(self) -> list[Fault]:
        """Faults that have not happened yet: a test that ends with one has not tested what it meant to."""
        with self.changed:
            return [f for f in self._faults if not f._caught and f.kind not in (Kind.WATCH, Kind.RANDOM)]

    # ---- for transports

    def meet(self, process: Process, subject: Subject, possible: frozenset[Kind]) -> tuple[Kind, Hold] | None:
        """The fault that a record meets, if it meets one; it is counted, listed and logged."""
        if process.spared:
            return None
        with self.changed:
            if possible is not READING:
                self._watch(process, subject)
            for fault in self._faults:
                if not fault.released and (kind := fault.choose(process.name, subject, possible)) is not None:
                    fault.note(self._note(Injected(str(kind), process.name, subject.record, str(subject))))
                    return kind, self._hold_of(fault, kind)
        return None

    def see(self, process: Process, subject: Subject) -> None:
        """A record that meets no fault, for those who watch."""
        with self.changed:
            self._watch(process, subject)

    @property
    def idle(self) -> bool:
        """Whether no record can meet a fault now."""
        return not self._faults

    def is_away(self, process: Process) -> bool:
        if not self._away or process.spared:
            return False
        with self.changed:
            return any(away is None or process.name in away for away in self._away)

    def wait_for_broker(self, process: Process, timeout_s: float) -> bool:
        """Whether the broker is there for ``process``, now or within the timeout."""
        with self.changed:
            return self.changed.wait_for(lambda: process.dead or not self.is_away(process), timeout_s)

    def wait(self, timeout_s: float) -> None:
        """Until something has changed, or a moment has passed."""
        with self.changed:
            self.changed.wait(min(timeout_s, _SLICE_S))

    def note_process(self, fault: str, process: str) -> Injected:
        """Something that happened to a process, or to the broker."""
        with self.changed:
            return self._note(Injected(fault, process))

    def wakes(self, one: Wakeable) -> None:
        with self.changed:
            self._wakeable.add(one)

    def wake(self) -> None:
        """Everybody looks again at what they hold."""
        with self.changed:
            self.changed.notify_all()
            wakeable = list(self._wakeable)
        for one in wakeable:
            one.wake()

    # ---- inside

    def _watch(self, process: Process, subject: Subject) -> None:
        watch = frozenset({Kind.WATCH})
        for fault in self._faults:
            if not fault.released and fault.choose(process.name, subject, watch) is not None:
                fault.note(Injected("watch", process.name, subject.record, str(subject)))
                self.changed.notify_all()

    def _note(self, injected: Injected) -> Injected:
        self._injected.append(injected)
        self.changed.notify_all()
        _log.info("fault injected: %s", injected)
        return injected

    def _add(
        self,
        kind: Kind,
        what: RecordType,
        which: Which,
        seconds: float | None = None,
        until: threading.Event | None = None,
        behind: int | None = None,
    ) -> Fault:
        match = Match(what, which)
        if match.only_commits() and kind not in COMMITTING | {Kind.WATCH}:
            raise ConfigurationError(f"a commit is atomic and fenced: {kind} cannot happen to {match}")
        fault = Fault(self, kind, match)
        fault.seconds, fault.until, fault.behind = seconds, until, behind
        return self._register(fault)

    def _register(self, fault: Fault) -> Fault:
        with self.changed:
            self._faults.append(fault)
        return fault

    def _hold_of(self, fault: Fault, kind: Kind) -> Hold:
        hold = Hold(fault)
        if kind in (Kind.DELAY, Kind.LAG) and (fault.seconds is not None or fault.until is not None):
            threading.Thread(target=self._release_later, args=(hold,), name="penstock-fault", daemon=True).start()
        elif fault.behind is not None:
            hold.behind_left = fault.behind
        return hold

    def _release_later(self, hold: Hold) -> None:
        fault = hold.fault
        deadline = None if fault.seconds is None else time.monotonic() + fault.seconds
        while not hold.over and (deadline is None or time.monotonic() < deadline):
            left = _SLICE_S if deadline is None else min(_SLICE_S, max(0.0, deadline - time.monotonic()))
            if fault.until is None:
                self.wait(left)
            elif fault.until.wait(left):
                break
        hold.released = True
        self.wake()
