"""A job from outside: what it is doing, what it has, and what may be asked of it. Over the topics alone."""

from __future__ import annotations

import getpass
import os
import socket
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress

from ..checkpoint_log.history import History
from ..schemas.acks import Command, CommandKind, RunStarted
from ..schemas.codec import encode
from ..schemas.errors import AppendFailed, JobError, JobRefused, TopicMissing, TransportError
from ..schemas.status import AT_WORK, ENDED, CommandReply, JobStatus
from ..schemas.topics import DEFAULT_PREFIX, TopicNames, job_of_topic
from ..transport.incarnation import incarnation
from ..transport.ports import Partition, Transport
from ..transport.requirements import require_visible
from . import restorable
from .log_reader import read_log
from .status_follower import StatusFollower
from .status_log import StatusLog

LISTEN_S = 3.0
"""A coordinator tells its status each second, and so do tasks unless their heartbeat interval is longer."""
LISTEN_OPEN_S = 10.0
"""Before a job is deleted whose checkpoint log does not say that it has ended: the default heartbeat timeout."""
LISTEN_AGAIN_S = 0.5
STANDBYS_S = 2.0
"""For how long candidates are counted: a broker that is frozen does not tell its groups."""
NEWEST = 16
"""Records before the end of a status topic among which the newest status is looked for first. Of a thousand subtasks
a status has a hundred kilobytes: to read the last minutes of them takes seconds."""


class JobClient:
    """One job on one broker. Knows nothing but its name: the job may run anywhere, or not at all."""

    def __init__(self, transport: Transport, job: str, prefix: str = DEFAULT_PREFIX) -> None:
        self.topics = TopicNames(prefix, job)
        self._transport = transport
        self._status = Partition(self.topics.status, 0)
        self._acks = Partition(self.topics.acks, 0)

    def exists(self) -> bool:
        """Whether the job has ever run on this broker."""
        return bool(incarnation(self._transport, self.topics))

    def leftovers(self) -> list[str]:
        """Topics of a job that has no checkpoint log: it was purged half."""
        return [] if self.exists() else self._transport.list_topics(self.topics.root)

    def require(self) -> str:
        """Return the id of the job's incarnation.

        Raises JobRefused with the jobs there are, where this one is not among them; NotAuthorized where it may not be
        seen.
        """
        if not (found := incarnation(self._transport, self.topics)):
            require_visible(self.topics, self._transport)
            known = ", ".join(list_jobs(self._transport, self.topics.prefix)) or "none"
            raise JobRefused(f"there is no job {self.topics.job!r} on this broker under prefix"
                             f" {self.topics.prefix!r}; there is: {known}")  # fmt: skip
        return found

    # ---- looking

    def status(self) -> JobStatus | None:
        """Return the newest status of the newest epoch, None if there is none; ``at_ms`` says when it was written.

        A coordinator that was frozen may write one more of an older epoch, after those of its successor.
        """
        look_back, deadline = NEWEST, time.monotonic() + 10.0
        newest = dict[int, JobStatus]()
        while True:
            with StatusLog(self._transport, self.topics, look_back) as log:
                while not log.caught_up and time.monotonic() < deadline:
                    newest |= {found.epoch: found for _, found in log.poll(0.5) if isinstance(found, JobStatus)}
                if newest:
                    return self._of_a_known_epoch(newest)
                if log.end - log.begin < look_back or time.monotonic() >= deadline:
                    return None
            look_back *= 4  # before a flood of replies

    def _of_a_known_epoch(self, newest: Mapping[int, JobStatus]) -> JobStatus:
        """Return that of the highest epoch which the checkpoint log knows; any writer of the topic can forge others."""
        if len(newest) > 1:
            with suppress(JobError, TransportError):  # a reader of statuses may lack the right to read that log
                claimed = self.history().epoch
                newest = {epoch: status for epoch, status in newest.items() if epoch <= claimed} or newest
        return newest[max(newest)]

    def follow(self) -> StatusFollower:
        """Return a reader of the statuses from some minutes ago on; it must be closed."""
        return StatusFollower(self._transport, self.topics)

    def history(self) -> History:
        """Return the fold of the job's checkpoint log. Raises JobRefused if a record cannot be read."""
        log = Partition(self.topics.checkpoints, 0)
        return History.of(read_log(self.topics.job, self._transport, log, 60.0))

    def checkpoints(self) -> tuple[History, Mapping[int, str]]:
        """Return the same, and what each checkpoint lacks that cannot be restored any more."""
        return restorable.look(self._transport, self.topics)

    def running(self, within_s: float = 5.0) -> bool:
        """Return whether a coordinator has written a status in the last ``within_s`` seconds and has not ended.

        Its clock may differ: if its newest status looks older, wait for another one.
        """
        return self._at_work(within_s) is not None

    def ended(self) -> JobStatus | None:
        """Return the newest status if the job has ended by it and by the checkpoint log; else None.

        The status alone proves nothing: any user with the right to write to its topic can forge one.
        """
        status = self.status()
        return status if status is not None and status.state in ENDED and self._log_ended() else None

    def _log_ended(self) -> bool:
        """Return whether the newest epoch of the checkpoint log has ended; False if the log cannot be read."""
        try:
            return self.history().finished is not None
        except JobRefused:
            return False

    def require_layout(self, parallelism: Mapping[str, int]) -> None:
        """Raise JobRefused if the coordinator at work has other numbers of subtasks, by operator.

        For whoever is about to begin a run: it would send those tasks away, and before them the ones that run.
        """
        status = self._at_work(5.0)
        there = {} if status is None else {o.operator: o.parallelism for o in status.operators}
        changed = [name for name, count in parallelism.items() if there.get(name, count) != count]
        if changed:
            told = ", ".join(
                f"{there[name]} subtasks of operator {name} (here: {parallelism[name]})" for name in changed
            )
            raise JobRefused(
                f"the coordinator of job {self.topics.job} that is at work has {told}: it would stop the tasks of this"
                " run, and before them those that run now. Start it with this job file first"
            )

    def _at_work(self, within_s: float) -> JobStatus | None:
        """What a coordinator has told in the last ``within_s`` seconds, or tells now, unless it has ended."""
        status = self.status()
        if status is not None and status.state in AT_WORK and abs(time.time() - status.at_ms / 1000) >= within_s:
            status = self._heard()
        return status if status is not None and status.state in AT_WORK else None

    def _heard(self) -> JobStatus | None:
        """What a coordinator tells next, if it does so soon."""
        deadline = time.monotonic() + LISTEN_S
        with StatusLog(self._transport, self.topics) as log:
            while (left := deadline - time.monotonic()) > 0:
                for _, heard in log.poll(left):
                    if isinstance(heard, JobStatus):
                        return heard
        return None

    def standbys(self) -> int | None:
        """Return how many coordinators run with ``--standby``, the one at work included; None if that is unknown.

        0 also if this user may not look at the group.
        """
        try:
            return self._transport.candidates(self.topics.standby_group, STANDBYS_S)
        except TransportError:
            return None

    # ---- asking

    def savepoint(self, timeout_s: float = 120.0) -> CommandReply:
        """Take a savepoint; the reply names it."""
        return self.ask(CommandKind.SAVEPOINT, timeout_s=timeout_s)

    def stop(self, *, savepoint: bool = False, timeout_s: float = 120.0) -> CommandReply:
        """End the run; a later one resumes from the last completed checkpoint, or from the savepoint taken here."""
        return self.ask(CommandKind.STOP_WITH_SAVEPOINT if savepoint else CommandKind.STOP, timeout_s=timeout_s)

    def discard(self, checkpoint_id: int, timeout_s: float = 30.0) -> CommandReply:
        """Discard a savepoint, or another checkpoint but the last completed one."""
        return self.ask(CommandKind.DISCARD, payload=b"%d" % checkpoint_id, timeout_s=timeout_s)

    def request(self, operator: str, payload: bytes, timeout_s: float = 30.0) -> CommandReply:
        """Ask an operator's coordinator; the reply's payload is what ``handle_request`` returned."""
        return self.ask(CommandKind.REQUEST, operator=operator, payload=payload, timeout_s=timeout_s)

    def ask(
        self, kind: CommandKind, *, operator: str = "", payload: bytes = b"", timeout_s: float = 30.0
    ) -> CommandReply:
        """Write a command and wait for the reply. A refusal is a reply.

        Raises JobError when the job has ended, when no reply comes in time, or when the job ends without one.
        """
        self.require()
        if (status := self.ended()) is not None:
            raise JobError(
                f"job {self.topics.job} is {status.state}: no coordinator would answer {kind.value!r}. Start the job"
                " again, then ask"
            )
        command = Command(uuid.uuid4().hex, kind, operator, payload, _issuer())
        with StatusLog(self._transport, self.topics) as log:
            self._write(command)
            deadline = time.monotonic() + timeout_s
            while (left := deadline - time.monotonic()) > 0:
                for _, found in log.poll(min(0.5, left)):
                    if isinstance(found, CommandReply) and found.command == command.command:
                        return found
                    if isinstance(found, JobStatus) and found.state in ENDED:  # replies stand before it
                        raise JobError(
                            f"job {self.topics.job} ended before it answered {kind.value!r}:"
                            f" {found.state}, {found.cause}"
                        )
        raise JobError(
            f"job {self.topics.job} did not answer {kind.value!r} within {timeout_s:g} s: does its coordinator run?"
            f" (penstock status {self.topics.job}) The command is in the log: a coordinator that takes the same run"
            " over still answers it"
        )

    def announce_run(self, run_id: str) -> None:
        """Write RunStarted, as every runner must before its subtasks start (protocol, section 4)."""
        self._write(RunStarted(run_id, socket.gethostname()))

    def _write(self, record: Command | RunStarted) -> None:
        writer = self._transport.writer()
        failed: list[Exception] = []
        try:
            writer.append(self._acks, encode(record), None, lambda _, e: failed.append(e) if e else None)
            if not writer.flush(30.0) or failed:
                raise (
                    failed[0]
                    if failed
                    else AppendFailed(f"the broker did not take a {type(record).__name__} within 30 s")
                )
        finally:
            writer.close(0.0)

    def purge(self) -> list[str]:
        """Delete every topic of the job, or what a broken-off purge has left, and return their names.

        Raises JobRefused while a coordinator writes its status, or while anyone writes to the job's topics.
        """
        names, job = self._transport.list_topics(self.topics.root), self.topics.job
        if not names:
            self.require()
        if self.topics.status in names and self.running():
            raise JobRefused(f"job {job} is running: stop it first (penstock stop {job})")
        is_open = self.topics.checkpoints in names and not self._log_ended()
        self._require_silent(names, LISTEN_OPEN_S if is_open else LISTEN_S)
        self._transport.delete_topics(names)
        return names

    def _require_silent(self, names: Collection[str], seconds: float) -> None:
        """Raise JobRefused if a record is written to the acks or status topic, if they are among ``names``.

        A coordinator in a long call is silent, and the status of another release cannot be read; but tasks write.
        """
        partitions = [at for at in (self._acks, self._status) if at.topic in names]
        before = self._transport.offsets(partitions)
        deadline = time.monotonic() + seconds
        while partitions and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(LISTEN_AGAIN_S, left))
            now = self._transport.offsets(partitions)
            if grown := [at.topic for at in partitions if now[at].end > before[at].end]:
                raise JobRefused(
                    f"job {self.topics.job} is still active: records are being written to {grown[0]}. It has tasks that"
                    " run, a coordinator that is busy or of another release, or is being forked. Stop it, or end its"
                    " processes, first"
                )


def list_jobs(transport: Transport, prefix: str = DEFAULT_PREFIX) -> list[str]:
    """Return the names of the jobs on this broker under ``prefix``."""
    found = (job_of_topic(topic, prefix) for topic in transport.list_topics(prefix + "."))
    return sorted(job for job in found if job is not None)


def statuses(transport: Transport, prefix: str = DEFAULT_PREFIX) -> Iterator[tuple[str, JobStatus | None]]:
    """Every job with its newest status."""
    for job in list_jobs(transport, prefix):
        try:
            yield job, JobClient(transport, job, prefix).status()
        except (TopicMissing, TransportError):
            yield job, None  # it is being purged, or was never set up whole


def _issuer() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
