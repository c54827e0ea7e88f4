"""A coordinator's host that waits for its turn: stands by, takes over, and stands by again when it has been fenced.

Who takes over is elected among all hosts of this kind (:class:`penstock.transport.ports.Election`), and when is said by
:class:`~.protocol.takeover_policy.Watch`. Nothing relies on either being right: a coordinator begins by claiming an
epoch, which fences the one before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace

from ..client.status_log import LOOK_BACK, StatusLog
from ..schemas.errors import (
    AppendFailed,
    JobHasFinished,
    JobRefused,
    NotAuthorized,
    TopicMissing,
    TransportError,
)
from ..schemas.plan import Role
from ..schemas.settings import JobSettings, RestartStrategy, layout_text
from ..schemas.status import AT_WORK, End, Ending, JobStatus
from ..schemas.topics import TopicNames
from ..transport.incarnation import incarnation
from ..transport.ports import Election, Partition, Transport
from .host import CoordinatorSpec
from .options import CoordinatorOptions
from .outcome_thread import OutcomeThread
from .preflight import check_may_start, require_topics
from .protocol.inputs import Known
from .protocol.takeover_policy import Verdict, Watch
from .runtime import CoordinatorRuntime
from .service import CoordinatorService, instances_of

_log = logging.getLogger(__name__)

TAKEOVER_AFTER_S = 6.0
"""The shortest session that brokers allow unless they are told otherwise."""
HAND_OVER_S = 10.0
"""How long a coordinator that is asked to leave may take to end; then its place is given up all the same."""
_LOOK_S = 0.1
_ASK_EVERY_S = 0.5
_ASK_TIMEOUT_S = 2.0
_AGAIN_S = 1.0
_REQUIRE_TIMEOUT_S = 30.0
_MISSING_S = 5.0
"""For how long a topic must be unknown to the broker to be gone."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a host does now, for people."""

    active: bool
    epoch: int
    """Of the coordinator at work, this one or another; 0 where none is known."""
    instance: str = ""
    silent_s: float = 0.0
    """Seconds for which nothing has been heard from the one at work, as far as that is certain."""
    elected: bool = False
    error: str = ""
    """Why nothing can be said at the moment."""
    state: str = ""
    """What the newest status says."""

    def __str__(self) -> str:
        error = f"; {self.error}" if self.error else ""
        if self.active:
            return f"coordinating, epoch {self.epoch}" if self.epoch else "taking over"
        if not self.epoch:
            return f"standing by: no coordinator is known yet{error}"
        if self.state not in AT_WORK:
            return f"standing by: no coordinator since epoch {self.epoch} ({self.state}){error}"
        place = ", elected to follow it" if self.elected else ""
        return (
            f"standing by: epoch {self.epoch} is at work (instance {self.instance[:8]}),"
            f" last seen {self.silent_s:.1f} s ago{place}{error}"
        )


class StandbyService:
    """Runs a job's coordinator on a thread of its own whenever it is this one's turn; see :class:`CoordinatorService`.

    Ends with the job, with an error that another host would meet too, or with :meth:`leave`.
    """

    def __init__(
        self,
        settings: JobSettings,
        coordinators: Mapping[str, CoordinatorSpec],
        transport: Transport,
        restart: RestartStrategy,
        options: CoordinatorOptions | None = None,
        *,
        takeover_after: float = TAKEOVER_AFTER_S,
    ) -> None:
        self._settings, self._coordinators, self._transport = settings, coordinators, transport
        self._restart, self._options = restart, options or CoordinatorOptions()
        self._takeover_after = takeover_after
        self._incarnation = ""
        self._service: CoordinatorService | None = None
        self._standing = Standing(False, 0)
        self._leaving = threading.Event()
        self._thread = OutcomeThread("standby", self._stand)

    def start(self) -> StandbyService:
        self._thread.start()
        return self

    @property
    def runtime(self) -> CoordinatorRuntime | None:
        """The current instance, None while this host stands by."""
        service = self._service
        return None if service is None else service.runtime

    def status(self) -> JobStatus | None:
        """The newest status of the instance at work here, None while this host stands by."""
        service = self._service
        return None if service is None else service.status()

    def standing(self) -> Standing:
        """What this host does now. From any thread."""
        status = self.status()
        return self._standing if status is None else Standing(True, status.epoch, status.instance)

    def leave(self) -> None:
        """Ends this host but not the job: another takes over at once."""
        self._leaving.set()

    def done(self) -> bool:
        return self._thread.done()

    def wait(self, timeout: float | None = None) -> End | None:
        """How it ended, None where it has not within ``timeout`` seconds. Raises what made it give up."""
        return self._thread.wait(timeout)

    def _stand(self) -> End:
        settings, topics = self._settings, self._settings.topics
        # What would be refused then is said now.
        must_exist = self._options.must_exist
        require_topics(settings, self._transport, [Role.COORDINATOR], _REQUIRE_TIMEOUT_S, must_exist=must_exist)
        ended_through = 0
        with suppress(JobHasFinished):  # found again when it is this one's turn, where it can be told to all
            history = check_may_start(settings, self._transport, coordinators=self._coordinators)
            ended_through = 0 if history is None or history.finished is None else history.epoch
        self._incarnation = incarnation(self._transport, topics, _REQUIRE_TIMEOUT_S)
        election = self._transport.election(topics.standby_group, topics.checkpoints, self._takeover_after)
        try:
            followed = False
            while True:
                watch = Watch(self._takeover_after, followed=followed, ended_through=ended_through)
                verdict = self._stand_by(election, watch)
                if self._leaving.is_set():
                    return End(Ending.LEFT, "it stood by and was asked to leave")
                if verdict is Verdict.LEAVE and watch.newest is not None:
                    return End(Ending(watch.newest.state), watch.newest.cause)
                try:
                    self._require_same_job()
                    outcome = self._coordinate(watch)
                except (AppendFailed, NotAuthorized, TopicMissing):
                    raise
                except TransportError as error:  # the broker went away before an epoch was claimed
                    _log.warning("job=%s: could not take over, stands by again: %s", settings.name, error)
                    self._leaving.wait(_AGAIN_S)
                    followed = watch.seen_at_work
                    continue
                if outcome.ending is not Ending.FENCED:
                    return outcome
                _log.info("job=%s: fenced (%s); this host stands by again", settings.name, outcome.cause)
                followed = True
        finally:
            election.close()

    def _require_same_job(self) -> None:
        """Raises JobRefused where the job is another incarnation than when this host began."""
        name, topics = self._settings.name, self._settings.topics
        there = incarnation(self._transport, topics, _ASK_TIMEOUT_S)
        if not there:  # for a moment, or for good: whoever looks on will see
            raise TransportError(f"the broker does not know {topics.checkpoints} now")
        self._incarnation = self._incarnation or there
        if self._incarnation != there:
            raise JobRefused(
                f"job {name} has been purged and recreated since this host began to stand by: start this coordinator"
                " again to join the new one"
            )

    # ---- standing by

    def _stand_by(self, election: Election, watch: Watch) -> Verdict:
        """Watches until there is something to do, or to leave."""
        listener = _Listener(self._transport, self._settings.topics, self._require_fits, self._require_same_job)
        with closing(listener):
            while not self._leaving.is_set():
                complete, error = listener.look(watch)
                now, elected = time.monotonic(), election.elected()
                watch.look(now, complete=complete)
                self._standing = _standing(watch, now, elected, error)
                verdict = watch.verdict(now, elected=elected)
                if verdict is not Verdict.WAIT:
                    return verdict
        return Verdict.WAIT

    def _require_fits(self, status: JobStatus) -> None:
        """Raises JobRefused where the one at work has another layout: following it would stop all of its tasks."""
        there = {operator.operator: operator.parallelism for operator in status.operators}
        if status.state in AT_WORK and there != (mine := dict(self._settings.parallelism)):
            raise JobRefused(
                f"job {self._settings.name}: the coordinator at work (epoch {status.epoch}) has the operators"
                f" {layout_text(there)}, and this host's file has {layout_text(mine)}: it cannot take over from it."
                " Give all coordinators of the job the same file; to change it, stop the job and start all of them anew"
            )

    # ---- coordinating

    def _coordinate(self, watch: Watch) -> End:
        """Until it ends. What becomes of the place meanwhile does not matter: epochs fence."""
        known = Known() if watch.newest is None else Known(watch.newest.epoch, watch.newest.last_completed)
        options = replace(self._options, continues=watch.seen_at_work, known=known)
        _log.info("job=%s: this host takes over from epoch %d", self._settings.name, self._standing.epoch)
        service = CoordinatorService(
            instances_of(self._settings, self._coordinators, self._transport, options), self._restart
        )
        self._service = service.start()
        try:
            while (outcome := service.wait(_LOOK_S)) is None:
                if self._leaving.is_set():
                    service.leave()
                    return service.wait(HAND_OVER_S) or End(
                        Ending.LEFT,
                        f"it did not end within {HAND_OVER_S:g} s of being asked to; its successor fences it",
                    )
            return outcome
        except JobHasFinished as finished:
            if not options.continues:
                raise
            return End(Ending(finished.outcome), finished.cause)  # its predecessor came that far
        finally:
            self._standing = Standing(False, 0)
            self._service = None


class _Listener:
    """Reader of the status topic for a host that stands by; it survives outages of the broker."""

    def __init__(
        self,
        transport: Transport,
        topics: TopicNames,
        check: Callable[[JobStatus], None],
        check_same_job: Callable[[], None],
    ) -> None:
        """Take two checks: ``check`` raises for a new status, ``check_same_job`` if the topics are another job's."""
        self._transport, self._topics, self._checkpoints = transport, topics, Partition(topics.checkpoints, 0)
        self._check, self._check_same_job = check, check_same_job
        self._log: StatusLog | None = None
        self._asked_at = float("-inf")
        self._complete = False
        self._failed = False
        self._missing_since: float | None = None

    def look(self, watch: Watch) -> tuple[bool, str]:
        """Feed ``watch`` the new statuses; return whether the topic was read to its end and, if not, the error."""
        try:
            self._read(watch)
            self._missing_since = None
            return self._complete, ""
        except NotAuthorized:
            raise
        except TransportError as error:
            if isinstance(error, TopicMissing) and self._has_been_missing():
                raise
            self._complete, self._failed = False, True
            time.sleep(_LOOK_S)
            return False, str(error)

    def _has_been_missing(self) -> bool:
        """Return whether the topic has been missing for longer than a broker that starts may not know it."""
        now = time.monotonic()
        self._missing_since = self._missing_since or now
        return now - self._missing_since >= _MISSING_S

    def _read(self, watch: Watch) -> None:
        if self._log is None:
            self._log = StatusLog(self._transport, self._topics, LOOK_BACK, _ASK_TIMEOUT_S)
            watch.reads_all = self._log.begin == 0
        elif self._failed:
            self._transport.offsets([self._log.partition, self._checkpoints], _ASK_TIMEOUT_S)  # are both still there?
            self._check_same_job()
        self._failed = False
        for offset, status in self._log.poll(_LOOK_S):
            if not isinstance(status, JobStatus):
                continue
            if offset < self._log.end:
                watch.recall(status)
            else:
                watch.hear(status, time.monotonic())
                if status is watch.newest:
                    self._check(status)
        if time.monotonic() - self._asked_at >= _ASK_EVERY_S:
            status_log, checkpoints = self._log.partition, Partition(self._topics.checkpoints, 0)
            there = self._transport.offsets([status_log, checkpoints], _ASK_TIMEOUT_S)
            self._complete = self._log.position >= there[status_log].end
            self._asked_at = time.monotonic()

    def close(self) -> None:
        if self._log is not None:
            self._log.close()


def _standing(watch: Watch, now: float, elected: bool, error: str) -> Standing:
    newest = watch.newest
    if newest is None:
        return Standing(False, 0, elected=elected, error=error)
    return Standing(False, newest.epoch, newest.instance, watch.silent_s(now), elected, error, newest.state)
