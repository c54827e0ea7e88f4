"""What a driver holds of a job that a query drives: its streaming DataFrame, its status, its end."""

from __future__ import annotations

import logging
import re
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ...client.job_client import JobClient
from ...coordinator.service import CoordinatorService
from ...job import Job
from ...schemas.errors import ConfigurationError, JobError, JobFailed, JobRefused, PenstockError, RunReplaced
from ...schemas.status import Ending, JobStatus
from ...transport.kafka import KafkaTransport
from .options import SourceOptions, overlaid
from .query_listener import BatchListener, CommitTeller
from .source import NAME

if TYPE_CHECKING:
    from uuid import UUID

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 30.0
_LOOK_S = 0.05
_ASYNC_EXECUTION = "AsyncProgressTracking"
"""Part of the name of the class by which Spark runs a query with asynchronous progress tracking."""


@dataclass(frozen=True)
class QueryParts:
    """What a handle is made of."""

    transport: KafkaTransport
    client: JobClient
    service: CoordinatorService | None
    """The coordinator in this driver; None where it runs elsewhere."""
    source: SourceOptions


class QueryHandle:
    """A job that a Structured Streaming query drives. As a context manager it ends with its block; its topics stay.

    Every method may be called from any thread. Durations are seconds.
    """

    def __init__(self, spark: SparkSession, job: Job, parts: QueryParts) -> None:
        self._spark = spark
        self._job = job
        self._parts = parts
        self._stopping = threading.Lock()
        self._stopped = False
        self._refused: JobRefused | None = None
        """Why a query of this job was stopped."""
        self._teller = CommitTeller(parts.transport, parts.source.topics.acks)
        self._listener = BatchListener(parts.source.job, parts.source.operator, self._teller.tell, self._started)
        spark.streams.addListener(self._listener)

    def __repr__(self) -> str:
        return f"<QueryHandle of job {self._job.name!r}: {'ended' if self.done else 'running'}>"

    def read_stream(self, operator: str | None = None, **options: object) -> DataFrame:
        """The operator's events as a streaming DataFrame; its columns are those of :func:`.reading.columns`.

        ``options`` are the source's, over those that follow from the job: ``fresh=True``, ``maxWait=0.2``,
        ``coordinatorTimeout=300``, ``eventSchema=""`` (events as bytes). Start one query of it at a time: a second one
        takes the job over. Raises ConfigurationError for an operator or an option that does not exist.
        """
        own = self._parts.source.operator
        if operator not in (None, own):
            raise ConfigurationError(f"job {self._job.name!r} has no operator {operator!r}; it has: {own}")
        merged = overlaid(self._parts.source.to_options(), options)
        SourceOptions.parse(merged).event()
        return self._spark.readStream.format(NAME).options(**merged).load()

    def status(self) -> JobStatus | None:
        """The newest status: of the coordinator in this driver, else as written to the topic. None before the first.

        Raises JobRefused where a query had to be stopped because of its settings.
        """
        if self._refused is not None:
            raise self._refused
        if self._parts.service is not None:
            return self._parts.service.status()
        return self._parts.client.status()

    def request(self, operator: str, payload: Any, timeout: float = 30.0) -> Any:
        """What ``handle_request`` of the operator's coordinator answers; both go through the operator's codec.

        Raises ConfigurationError for an operator that does not exist, JobError where the request is refused, raises
        over there, or is not answered in time.
        """
        if operator not in self._job.operators:
            raise ConfigurationError(
                f"job {self._job.name!r} has no operator {operator!r}; it has: {self._parts.source.operator}"
            )
        codec = self._job.operators[operator].codec
        reply = self._parts.client.request(operator, codec.encode(payload), timeout)
        if not reply.accepted:
            raise JobError(f"operator {operator!r} of job {self._job.name!r} refused a request: {reply.outcome}")
        return codec.decode(reply.payload)

    @property
    def done(self) -> bool:
        """Whether this handle has been stopped, or its coordinator has ended."""
        return self._stopped or (self._parts.service is not None and self._parts.service.done())

    def stop(self, timeout: float = STOP_TIMEOUT_S) -> None:
        """Stops the session's queries that read this job, then the coordinator here; a later start goes on.

        Raises JobFailed, RunReplaced or what else the coordinator here ended with before; JobRefused where a query had
        to be stopped because of its settings; TimeoutError where the coordinator does not leave.
        """
        with self._stopping:
            if self._stopped:
                return
            deadline = time.monotonic() + timeout
            self._stopped = True
            try:
                self._stop_queries(deadline)
                self._leave(deadline)
            finally:
                self._close()
            if self._refused is not None:
                raise self._refused

    def __enter__(self) -> QueryHandle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self.stop()
        except (PenstockError, TimeoutError) as reason:
            if error is None:
                raise
            _log.warning("job=%s: %s", self._job.name, reason)  # what is on its way matters more

    # ---- the parts

    def _stop_queries(self, deadline: float) -> None:
        for query in self._spark.streams.active:
            if self._reads_this_job(query):
                _quiet(query, deadline)
                query.stop()

    def _reads_this_job(self, query: StreamingQuery) -> bool:
        """Its plan names the source with its options; nothing else of a running query does before its first batch."""
        topics = self._parts.source.topics
        plan = str(_execution(query).analyzedPlan().treeString())
        names = (("job", topics.job), ("prefix", topics.prefix), ("operator", self._parts.source.operator))
        return NAME in plan and all(re.search(rf"[\[ ]{name}={value}[],]", plan) for name, value in names)

    def _leave(self, deadline: float) -> None:
        service = self._parts.service
        if service is None:
            return
        service.leave()
        outcome = service.wait(max(0.1, deadline - time.monotonic()))
        if outcome is None:
            raise TimeoutError(f"the coordinator of job {self._job.name!r} did not end in time")
        if outcome.ending is Ending.FAILED:
            raise JobFailed(f"job {self._job.name!r} has failed: {outcome.cause}")
        if outcome.ending is Ending.FENCED:
            raise RunReplaced(f"another coordinator of job {self._job.name!r} has taken over: {outcome.cause}")

    def _close(self) -> None:
        try:
            self._spark.streams.removeListener(self._listener)
        except Exception as error:  # the session may be gone
            _log.debug("job=%s: its listener could not be removed: %s", self._job.name, error)
        self._teller.close()
        self._parts.transport.close()

    def _started(self, query_id: UUID) -> None:
        """Spark waits for this call before it starts the query, so the query cannot be looked at (or stopped) in it."""
        threading.Thread(target=self._look_at, args=(str(query_id),), name="penstock-query-check", daemon=True).start()

    def _look_at(self, query_id: str) -> None:
        try:
            query = self._spark.streams.get(query_id)
            if query is None or not self._reads_this_job(query):
                return
            if _progress_is_asynchronous(query):
                self._refused = JobRefused(
                    f"query {query.name or query_id} of job {self._job.name!r} was stopped: it has asynchronous"
                    " progress tracking: Spark then runs a batch before it has stored its offset, and the same batch"
                    " may then hold other events after a restart. Leave the option asyncProgressTrackingEnabled out"
                )
                _log.error("%s", self._refused)
                query.stop()
        except Exception as error:  # py4j raises what either side raises; a query may have ended meanwhile
            _log.debug("job=%s: query %s could not be looked at: %s", self._job.name, query_id, error)


def _execution(query: StreamingQuery) -> Any:
    """Spark's own object behind a query of classic PySpark."""
    return query._jsq.streamingQuery()


def _progress_is_asynchronous(query: StreamingQuery) -> bool:
    """Real-time queries are run by the same class; those Spark refuses itself, and better."""
    execution = _execution(query)
    real_time = "RealTime" in str(execution.trigger().toString())
    return _ASYNC_EXECUTION in str(execution.getClass().getName()) and not real_time


def _quiet(query: StreamingQuery, deadline: float) -> None:
    """Waits for a moment without a batch, at most until ``deadline``.

    A query that is stopped while a ``foreachBatch`` function runs is stopped none the worse, but floods the log.
    """
    while query.isActive and "Processing" in str(query.status["message"]) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
