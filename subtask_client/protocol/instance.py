"""What an instance of a subtask is, and how it ends: what every rule of the core reads and changes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from ...schemas.acks import Failed
from ...schemas.ids import NO_ATTEMPT, NO_CHECKPOINT
from ...schemas.state import Sender
from . import effects as do
from .config import CoreConfig
from .drop_reasons import Dropped
from .effects import Departure, Effect
from .inputs import HeartbeatDue
from .phases import TRANSITIONS, Phase, Transition
from .running import Running


@dataclass(frozen=True, slots=True)
class Loss:
    cause: str
    end: int
    """Of the events partition when the position was missed."""


class Instance:
    """One instance of a subtask: its phase, the attempt that it runs as, and where it stands in its partition."""

    def __init__(self, config: CoreConfig) -> None:
        self.config = config
        self.now = 0.0
        """Monotonic second of the input being handled."""
        self.phase = Phase.NEW
        self.running: Running | None = None
        """Set exactly in the phases running and finished."""
        self.nonce: str | None = None
        """Of the last Hello; set from the first Hello on."""
        self.answer_due = math.inf
        """Monotonic second up to which its Hello waits for an answer; infinity where none waits."""
        self.attempt: int | None = None
        """Offset of the last Hello; None while that is unknown."""
        self.previous = NO_ATTEMPT
        """The newest attempt it has been; the next Hello names it."""
        self.completed = NO_CHECKPOINT
        """The newest checkpoint that it was told is complete, or that it was restored with. Never falls."""
        self.spoken: int | None = None
        """Version of the protocol that the coordinator which welcomed the last Hello speaks; None: no Welcome yet."""
        self.welcomed_by = ""
        """Its release of Penstock, for people."""
        self.epoch_seen = -1
        """Highest epoch read; records of lower ones are ignored. Never falls."""
        self.position = 0
        """Offset in the events partition to be read next."""
        self.lost: Loss | None = None
        """A position is gone; from then on only records that end the attempt are looked for."""
        self.former: Sender | None = None
        """Sender of the attempt before, until the next Hello stands: heartbeats go on in its name ◆."""
        self.foreign_attempt = -1
        """Highest attempt that another instance was started as while the own one was unknown."""
        self.looking: tuple[int, str] | None = None
        """(end, nonce): in phase new, before the next Hello, all below ``end`` is looked through for a successor's
        Start; an instance that was frozen must not take over from it."""
        self.hello_failed = False
        """In phase waiting: the last Hello may stand or not."""
        self.hellos_failed = 0
        """Number of Hellos in a row that could not be written."""
        self.heartbeat_in_flight = False
        """A periodic heartbeat has no outcome yet; there is never a second one."""
        self.dropped: Counter[str] = Counter()
        """Records that had no effect, by reason (:class:`.Dropped`)."""
        self.out: list[Effect] = []
        """Effects of the input being handled."""

    @property
    def finished(self) -> bool:
        return self.phase is Phase.FINISHED

    def emit(self, *effects: Effect) -> None:
        self.out.extend(effects)

    # ---- the ends of an attempt

    def fail(self, cause: str, *, behind_hole: bool = False, missing: int = -1) -> None:
        """The attempt has failed: say so, and say Hello again in place (section 8).

        ``behind_hole``: something that it wrote does not stand, so nothing else of it may. ``missing``: sequence of the
        event that it missed.
        """
        running = self.attempt_running()
        if not behind_hole:
            self.emit(*running.flush())
        self.emit(do.Write(Failed(running.sender, cause, missing)))
        self.start_over()

    def start_over(self) -> None:
        self.drop_attempt()
        self.move(Transition.OVER)
        self.lost = None
        self.emit(do.NotePosition())

    def superseded_by(self, attempt: int) -> None:
        self.leave(  # mutant: superseded-says-hello
            Departure.SUPERSEDED,
            f"{self.who()}: superseded by attempt {attempt}, which said Hello later; this one leaves",
        )

    def leave(self, departure: Departure, reason: str, *last: do.Write) -> None:
        """End the instance; ``last`` is written behind all that its attempt wrote."""
        if self.running is not None and departure is not Departure.SUPERSEDED:
            self.emit(*self.running.flush())
            if self.running.handled_through() > self.running.reported_through:
                self.emit(self.running.heartbeat(HeartbeatDue(False, "leaving", 0)))
        self.drop_attempt()
        self.looking = None
        self.move(Transition.LEAVE)
        self.emit(*last, do.Leave(departure, reason))

    def drop_attempt(self) -> None:
        """Forgets everything that belongs to the Start that the instance runs under, if it does."""
        running, self.running = self.running, None
        if running is None:
            return
        self.former = running.sender
        self.emit(*map(do.PauseData, running.channels.upstreams))
        self.emit(*map(do.DropState, running.checkpoints.locations), do.CloseUser())

    # ---- small things

    def move(self, transition: Transition) -> None:
        self.phase = TRANSITIONS[self.phase, transition]

    def drop(self, reason: Dropped) -> None:
        """Count a record that was read and has no effect."""
        self.dropped[reason] += 1

    def attempt_running(self) -> Running:
        assert self.running is not None, f"not running but {self.phase}"
        return self.running

    def who(self) -> str:
        attempt = "attempt unknown" if self.attempt is None else f"attempt {self.attempt}"
        return f"subtask {self.config.subtask} of job {self.config.job!r} ({attempt})"
