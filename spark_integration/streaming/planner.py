"""Asks the coordinator for the next batch, over the log: it runs where Spark's planner has no other way to it.

Handles are made at the first call, because Spark builds a source more often than it uses one, and pickles it between.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from ...client.job_client import JobClient, list_jobs
from ...client.status_log import StatusLog
from ...schemas.acks import BatchCommitted, BatchWanted, RunStarted
from ...schemas.codec import encode
from ...schemas.errors import JobError, JobRefused, TopicMissing, TransportError
from ...schemas.ids import NO_CHECKPOINT
from ...schemas.status import ENDED, BatchOutcome, BatchPlanned, JobStatus
from ...schemas.topics import TopicNames
from ...transport.incarnation import incarnation
from ...transport.ports import Partition, Transport, Writer

RESEND_S = 1.0
"""Seconds after which an unanswered request is written again, and the coordinator's status looked at."""
_SILENT_S = 5.0
"""Seconds without a status after which a coordinator does not seem to run; it writes one each second."""
_LOOK_AGAIN_S = 0.2
_REACH_TIMEOUT_S = 10.0
_FLUSH_TIMEOUT_S = 5.0
_CLOSE_TIMEOUT_S = 1.0


class Planner:
    """Plans the batches of one query, as one run of the job. Belongs to one thread; durations are seconds.

    ``always``: every batch has a checkpoint, also where there is nothing new. ``wait_s`` is how long an answer may be
    put off while there is nothing new, ``timeout_s`` how long the coordinator
    may take for one.
    """

    def __init__(
        self,
        make_transport: Callable[[], Transport],
        topics: TopicNames,
        operator: str,
        *,
        fresh: bool = False,
        always: bool = False,
        wait_s: float = 1.0,
        timeout_s: float = 120.0,
        resend_s: float = RESEND_S,
    ) -> None:
        self._make_transport = make_transport
        self._topics = topics
        self._operator = operator
        self._fresh = fresh
        self._always = always
        self._wait_s = wait_s
        self._timeout_s = timeout_s
        self._resend_s = resend_s
        self._link: _Link | None = None
        self._requests = 0

    def history(self) -> str:
        """Id of the job's checkpoint topic. Waits for the job's topics; JobRefused where they do not appear.

        Where Spark has no checkpoint this is asked first, so the run begins here: what is decided from now on is not
        thrown away by its option fresh.
        """
        deadline = time.monotonic() + self._timeout_s
        link = self._linked(deadline)
        self._announced(link, deadline)
        return link.history

    def plan(self, checkpoint_id: int) -> BatchPlanned:
        """What follows the batch of ``checkpoint_id`` (-1: the beginning), which Spark has committed.

        Raises JobRefused with the coordinator's reason where it refuses, JobError where it has ended or does not
        answer in time, TransportError where the broker cannot be reached.
        """
        deadline = time.monotonic() + self._timeout_s
        link = self._linked(deadline)
        run_offset = self._announced(link, deadline)
        wanted = BatchWanted(
            link.run,
            run_offset,
            self._requests,
            checkpoint_id,
            self._fresh and checkpoint_id == NO_CHECKPOINT,
            int(self._wait_s * 1000),
            self._always,
            f"{socket.gethostname()}/{os.getpid()}",
            link.history,
        )
        self._requests += 1
        try:
            answer = self._answered(link, wanted, deadline)
        except TopicMissing:
            if (purged := self._purged(link)) is not None:
                raise purged from None
            link.open_log()  # the status topic alone was recreated, and no guarantee depends on it
            answer = self._answered(link, wanted, deadline)
        if answer.outcome is BatchOutcome.REFUSED:
            raise JobRefused(
                f"the coordinator of job {self._topics.job} refuses the query's next batch: {answer.cause}"
            )
        return answer

    def committed(self, checkpoint_id: int) -> None:
        """Tells the coordinator of a batch that Spark has committed and that nobody plans behind.

        Not certain to arrive: the next request says the same.
        """
        if self._link is not None:
            self._link.write(encode(BatchCommitted(checkpoint_id, self._link.history)))
            self._link.flush(_FLUSH_TIMEOUT_S)

    def close(self) -> None:
        """Ends every handle; the next call would make new ones, and be another run."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    # ---- the parts

    def _linked(self, deadline: float) -> _Link:
        if self._link is None:
            transport = self._make_transport()
            try:
                self._link = _Link(transport, self._topics, self._found_history(transport, deadline))
            except BaseException:
                transport.close()
                raise
        return self._link

    def _found_history(self, transport: Transport, deadline: float) -> str:
        """Waits for the topics, so that a coordinator elsewhere may start after the query."""
        needed = [self._topics.checkpoints, self._topics.acks, self._topics.status, self._topics.events(self._operator)]
        while True:
            there = transport.describe_topics(needed, _REACH_TIMEOUT_S)
            if len(there) == len(needed):
                return there[self._topics.checkpoints].topic_id
            if time.monotonic() >= deadline:
                raise self._not_there(transport, set(there))
            time.sleep(_LOOK_AGAIN_S)

    def _not_there(self, transport: Transport, there: set[str]) -> JobRefused:
        job, prefix, root = self._topics.job, self._topics.prefix, self._topics.root
        if self._topics.checkpoints not in there:
            known = ", ".join(list_jobs(transport, prefix)) or "none"
            return JobRefused(
                f"there is no job {job!r} on this broker under prefix {prefix!r} (there is: {known}), and none has"
                f" appeared within {self._timeout_s:g} s. Start its coordinator (penstock.spark_integration.stream, or"
                " 'penstock coordinator'), or correct the options 'job' and 'prefix'"
            )
        topics = [name.removeprefix(root).split(".") for name in transport.list_topics(root)]
        known = ", ".join(parts[0] for parts in topics if parts[1:] == ["events"]) or "none"
        return JobRefused(
            f"job {job!r} has no operator {self._operator!r}: correct the option 'operator' (it has: {known})"
        )

    def _announced(self, link: _Link, deadline: float) -> int:
        """The offset of this run's RunStarted, which makes it the job's newest run."""
        while link.run_offset is None:
            append = link.write(encode(RunStarted(link.run, socket.gethostname())))
            while not append.settled and time.monotonic() < deadline:
                link.flush(_LOOK_AGAIN_S)
            link.run_offset = append.offset
            if link.run_offset is None:
                if time.monotonic() >= deadline:
                    raise self._unanswered(link)
                time.sleep(_LOOK_AGAIN_S)
        return link.run_offset

    def _answered(self, link: _Link, wanted: BatchWanted, deadline: float) -> BatchPlanned:
        request = encode(wanted)
        append: _Append | None = None
        send_at, look_at = 0.0, time.monotonic() + self._resend_s
        while (now := time.monotonic()) < deadline:
            if now >= look_at:
                self._require_alive(link)
                look_at = now + self._resend_s
            if now >= send_at and (append is None or append.settled):  # one at a time, however long the broker is away
                append = link.write(request)
                send_at = now + self._wait_s + self._resend_s  # it may take as long as it was told
            for _, found in link.log.poll(max(0.0, min(look_at, deadline) - now)):
                if isinstance(found, JobStatus):
                    link.status = found
                elif isinstance(found, BatchPlanned) and (found.run, found.request) == (link.run, wanted.request):
                    return found
        raise self._unanswered(link)

    def _require_alive(self, link: _Link) -> None:
        """Raises JobError where the job's coordinator has said that it has ended, and nobody has taken its place."""
        status = link.status
        if status is not None and status.state in ENDED:
            raise JobError(
                f"job {self._topics.job} has ended ({status.state}: {status.cause or 'no cause given'}), so nobody"
                " plans the query's batches. Start its coordinator again, then the query: it goes on where it was"
            )

    def _purged(self, link: _Link) -> JobRefused | None:
        try:
            there = incarnation(link.transport, self._topics, _REACH_TIMEOUT_S)
        except TransportError:
            return None
        if there in ("", link.history):
            return None
        return JobRefused(
            f"job {self._topics.job} has been purged since the query began, so its batches are not planned. Start the"
            " query again, with a new checkpointLocation"
        )

    def _unanswered(self, link: _Link) -> JobError:
        """What can be said of a coordinator that says nothing."""
        job, waited = self._topics.job, f"within {self._timeout_s:g} s (option 'coordinatorTimeout')"
        status = link.status
        if (purged := self._purged(link)) is not None:
            return purged
        if status is None:
            try:
                status = JobClient(link.transport, job, self._topics.prefix).status()
            except TransportError as error:
                return JobError(f"the coordinator of job {job} did not answer {waited}, nor does the broker: {error}")
        start = "Start it: penstock.spark_integration.stream in a driver, or 'penstock coordinator'"
        if status is None:
            return JobError(f"no coordinator of job {job} has answered {waited}, and none has ever run. {start}")
        silent_s = max(0.0, time.time() - status.at_ms / 1000)
        if status.state in ENDED or silent_s > _SILENT_S:
            return JobError(
                f"the coordinator of job {job} did not answer {waited}: it does not run. {silent_s:.0f} s ago it last"
                f" said {status.state!r}{f' ({status.cause})' if status.cause else ''}. {start}"
            )
        pending = "; ".join(f"checkpoint {p.checkpoint_id} waits for {p.waits_for}" for p in status.pending)
        return JobError(
            f"the coordinator of job {job} runs ({status.state!r}, epoch {status.epoch}) and did not answer {waited}:"
            f" {pending or 'no checkpoint is under way'}. 'penstock status {job}' says more; raise the option if it"
            " needs longer than that"
        )


@dataclass(slots=True)
class _Append:
    """What became of one record."""

    settled: bool = False
    offset: int | None = None
    """Where it stands; None where it may not."""


@dataclass(slots=True)
class _Link:
    """The handles of one run. Its log begins at the status topic's end, before anything is asked."""

    transport: Transport
    topics: TopicNames
    history: str
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    run_offset: int | None = None
    status: JobStatus | None = None
    """The newest that was read."""
    log: StatusLog = field(init=False)
    """From the end that the topic had when the log was opened."""
    _writer: Writer | None = None
    _failed: bool = False

    def __post_init__(self) -> None:
        self.open_log()

    def open_log(self) -> None:
        self.log = StatusLog(self.transport, self.topics, timeout_s=_REACH_TIMEOUT_S)

    def write(self, value: bytes) -> _Append:
        """Appends to the acks topic, by a new writer where the last one has failed: that takes nothing any more."""
        if self._failed:
            self._close_writer(0.0)
        if self._writer is None:
            self._writer, self._failed = self.transport.writer(), False
        append = _Append()

        def settled(offset: int | None, error: Exception | None) -> None:
            self._failed = self._failed or error is not None
            append.offset, append.settled = offset, True

        try:
            self._writer.append(Partition(self.topics.acks, 0), value, None, settled)
        except TransportError:
            self._failed = append.settled = True
        return append

    def flush(self, timeout_s: float) -> None:
        if self._writer is not None:
            self._writer.flush(timeout_s)

    def _close_writer(self, timeout_s: float) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close(timeout_s)

    def close(self) -> None:
        try:
            self.log.close()
            self._close_writer(_CLOSE_TIMEOUT_S)
        finally:
            self.transport.close()
