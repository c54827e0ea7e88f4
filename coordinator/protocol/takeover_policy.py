"""When a coordinator that stands by takes over (protocol, section 4). Pure: times are seconds of one clock, given in.

Two things must come together. The group has elected this candidate: so nobody else takes over, and nobody takes over
from a member that lives, however long its user code takes. And nothing has been heard from a coordinator for
``takeover_after`` while the broker was there to tell it: so an outage of the broker, in which all sessions end, is no
reason to replace a coordinator that is at work and has merely lost its place in the group.
"""

from __future__ import annotations

from enum import StrEnum

from ...schemas.status import AT_WORK, ENDED, JobStatus

STOPPED_S = 2.5
"""Looks that lie further apart say that the standby itself was stopped: what it did not hear then is no silence."""


class Verdict(StrEnum):
    """What a standby is to do now."""

    WAIT = "wait"
    TAKE_OVER = "take over"
    LEAVE = "leave"
    """The job has ended under its eyes."""


class Watch:
    """What one standby knows of the coordinator at work, from one time of standing by.

    ``followed`` where a coordinator is known to have been at work before it. ``ended_through`` is the epoch in which
    the job had ended before its host began: who is to resume it does not leave because of that end, and waits for
    nobody whose last word was lost.
    """

    def __init__(self, takeover_after: float, *, followed: bool = False, ended_through: int = 0) -> None:
        self.takeover_after = takeover_after
        self.newest: JobStatus | None = None
        """Of the highest epoch: a coordinator that was stopped and goes on may still tell of an older one."""
        self.heard_at: float | None = None
        """When it was told, where that was since this watch began."""
        self.seen_at_work = followed
        """Whether a coordinator was at work, just before or since: who follows it goes on with its job."""
        self.reads_all = True
        """Whether the topic was read from its beginning: only then can it be said that nobody has told anything."""
        self._followed = followed
        self._ended_through = ended_through
        self._silent_since: float | None = None
        self._looked_at = float("-inf")

    def recall(self, status: JobStatus) -> None:
        """A status that was there before this watch began."""
        if self._counts(status):
            self.newest = status
            self.seen_at_work = self._followed or self._says_at_work(status)

    def hear(self, status: JobStatus, now: float) -> None:
        """A status that has just been told. Whoever told it was at work, also where its first word is its last."""
        if self._counts(status):
            self.newest, self.heard_at, self._silent_since = status, now, now
            self.seen_at_work = self.seen_at_work or status.epoch > self._ended_through

    def look(self, now: float, *, complete: bool) -> None:
        """The status topic has been looked at; ``complete`` where it was read to its end: silence can be told."""
        stopped = now - self._looked_at > STOPPED_S  # mutant: suspended-machine-is-silence
        self._looked_at = now
        if not complete:  # mutant: outage-is-silence
            self._silent_since = None
        elif self._silent_since is None or stopped:
            self._silent_since = now

    def silent_s(self, now: float) -> float:
        """For how long nothing has been heard, as far as that is certain."""
        return 0.0 if self._silent_since is None else now - self._silent_since

    def verdict(self, now: float, *, elected: bool) -> Verdict:
        newest = self.newest
        if newest is not None and newest.epoch > self._ended_through and newest.state in ENDED and self.seen_at_work:
            return Verdict.LEAVE
        if (
            not elected  # mutant: nobody-need-be-elected
            or self._silent_since is None
        ):
            return Verdict.WAIT
        nobody = self.reads_all if newest is None else not self._says_at_work(newest)
        if nobody or self.silent_s(now) >= self.takeover_after:
            return Verdict.TAKE_OVER
        return Verdict.WAIT

    def _says_at_work(self, status: JobStatus) -> bool:
        return status.state in AT_WORK and status.epoch > self._ended_through

    def _counts(self, status: JobStatus) -> bool:
        return self.newest is None or status.epoch >= self.newest.epoch
