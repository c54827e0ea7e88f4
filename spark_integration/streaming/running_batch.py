"""What Spark knows of the batch that a ``foreachBatch`` function is called for: its durable offsets, its sources.

Classic PySpark hands over a DataFrame and a number. The rest stands in the JVM of the driver: the query under its id,
that query's offset log, and the options of its sources.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError

from ...schemas.errors import ConfigurationError, JobRefused
from .offsets import StreamOffset
from .options import SourceOptions

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_NOT_IN_A_BATCH = (
    "exactly_once works in Spark's foreachBatch alone: rows.writeStream.foreachBatch(exactly_once(fn)). It was called"
)


@dataclass(frozen=True, slots=True)
class StoredSource:
    """One source of the query: Spark's stored offsets around the batch, in JSON; None where there is none."""

    begin: str | None
    end: str | None


@dataclass(frozen=True, slots=True)
class RunningBatch:
    """Plain data, taken from the JVM once per run of a batch."""

    query_id: str
    """Stands in the query's checkpointLocation: the same for every start from there."""
    run_id: str
    """Another one at every start."""
    batch_id: int
    sources: tuple[StoredSource, ...]
    options: tuple[Mapping[str, str], ...]
    """Of every source that has some, ours or not."""
    batches_retained: int
    """Older batches than so many have left Spark's logs, so none of them can run again."""


@dataclass(frozen=True, slots=True)
class PenstockBatch:
    """What the batch is to one job."""

    begin: StreamOffset | None
    """None where Spark has no batch before."""
    end: StreamOffset
    options: SourceOptions

    @property
    def own_checkpoint(self) -> bool:
        """Whether the job's checkpoint was planned with this batch; else the job had nothing new, and others had."""
        before = -1 if self.begin is None else self.begin.checkpoint
        return self.end.checkpoint != before


def running_batch(frame: Any, batch_id: int) -> RunningBatch:
    """Of the batch whose DataFrame this is; called on the thread of ``foreachBatch``.

    Raises JobRefused with Spark Connect and with a Spark that is built otherwise, ConfigurationError where Spark runs
    no batch at all.
    """
    session = getattr(frame, "sparkSession", None)
    jvm_session = getattr(session, "_jsparkSession", None)
    if jvm_session is None:
        raise JobRefused(
            f"exactly_once was given a {type(frame).__module__}.{type(frame).__qualname__}, whose query it cannot see:"
            " it needs classic PySpark (a session made with .master(...), without .remote(...) and with SPARK_REMOTE"
            " unset), because Spark Connect runs foreachBatch far from the query's offsets"
        )
    context: Any = getattr(session, "sparkContext", None)
    query_id, running = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    if query_id is None or running is None:
        raise ConfigurationError(f"{_NOT_IN_A_BATCH} outside of a batch")
    if int(running) != batch_id:
        raise ConfigurationError(f"{_NOT_IN_A_BATCH} for batch {batch_id}, and Spark runs batch {running}")
    try:
        return _looked_up(context._jvm, jvm_session, str(query_id), batch_id)
    except (Py4JError, AttributeError, TypeError) as error:
        raise JobRefused(
            f"this Spark ({context.version}) does not show the offsets of batch {batch_id} as Spark 4.3 does:"
            f" {type(error).__name__}: {str(error).splitlines()[0]}"
        ) from error


def penstock_batch(batch: RunningBatch, job: str | None = None) -> PenstockBatch:
    """The one job whose events are in the batch; ``job`` says which, where a query reads several.

    Raises ConfigurationError where there is none or it cannot be told which.
    """
    ours = _of_penstock(batch)
    if not ours:
        raise ConfigurationError(
            "exactly_once found no penstock source in the query: read one with handle.read_stream() or"
            " spark.readStream.format('penstock'), or write what has no coordinator without exactly_once"
        )
    names = sorted({end.job for _, end in ours})
    chosen = [(begin, end) for begin, end in ours if job is None or job in (end.job, end.job.rpartition(".")[2])]
    if not chosen:
        raise ConfigurationError(f"exactly_once(..., job={job!r}): the query reads {', '.join(names)}")
    if len({end.job for _, end in chosen}) > 1:
        raise ConfigurationError(
            f"the query reads several jobs ({', '.join(names)}): say with exactly_once(fn, job=...) whose checkpoints"
            " name its batches"
        )
    if len(chosen) > 1:
        raise ConfigurationError(
            f"the query has {len(chosen)} penstock sources of job {names[0]}, and each takes the job from the other:"
            " read the stream once, and use that DataFrame as often as you need it"
        )
    begin, end = chosen[0]
    return PenstockBatch(begin, end, _options_of(batch, end))


def _of_penstock(batch: RunningBatch) -> list[tuple[StreamOffset | None, StreamOffset]]:
    found = []
    for source in batch.sources:
        end = _parsed(source.end)
        if end is not None:
            found.append((_parsed(source.begin), end))
    return found


def _parsed(text: str | None) -> StreamOffset | None:
    try:
        stored = json.loads(text or "null")
        return StreamOffset.parse(stored) if isinstance(stored, dict) else None
    except (ValueError, JobRefused):
        return None


def _options_of(batch: RunningBatch, end: StreamOffset) -> SourceOptions:
    for given in batch.options:
        try:
            options = SourceOptions.parse(given)
        except ConfigurationError:
            continue  # another source's
        if (options.job, options.operator) == (end.job, end.operator):
            return options
    raise JobRefused(
        f"the query's plan does not show the options of its penstock source (job {end.job}), which exactly_once needs"
        " to reach the coordinator"
    )


# ---- in the JVM


def _looked_up(jvm: Any, jvm_session: Any, query_id: str, batch_id: int) -> RunningBatch:
    queries = jvm_session.sharedState().activeStreamingQueries()
    execution = queries.get(jvm.java.util.UUID.fromString(query_id))
    if execution is None:
        raise ConfigurationError(f"{_NOT_IN_A_BATCH} for query {query_id}, which does not run any more")
    sources = _distinct(execution.sources())
    log = execution.offsetLog()
    ends, begins = _stored(log.get(batch_id)), _stored(log.get(batch_id - 1))
    if ends is None:
        raise ConfigurationError(f"{_NOT_IN_A_BATCH} for batch {batch_id}, whose offsets Spark has not stored")
    stored = tuple(StoredSource(begins[at] if begins and at < len(begins) else None, ends[at]) for at in sources)
    options = tuple(_options(execution.logicalPlan().collectLeaves()))
    run_id = str(execution.runId().toString())
    return RunningBatch(query_id, run_id, batch_id, stored, options, int(execution.minLogEntriesToMaintain()))


def _distinct(sources: Any) -> list[int]:
    """Positions of different sources: a DataFrame that is used twice is one source, listed twice."""
    seen: list[Any] = []
    positions = []
    for at in range(sources.size()):
        source = sources.apply(at)
        if not any(source.equals(other) for other in seen):
            seen.append(source)
            positions.append(at)
    return positions


def _stored(entry: Any) -> list[str | None] | None:
    """The offsets of one batch by source, in JSON; None for a batch that is not in the log."""
    if not entry.isDefined():
        return None
    offsets = entry.get().offsets()
    found = [offsets.apply(at) for at in range(offsets.size())]
    return [str(offset.get().json()) if offset.isDefined() else None for offset in found]


def _options(leaves: Any) -> list[Mapping[str, str]]:
    found: list[Mapping[str, str]] = []
    for leaf in (leaves.apply(at) for at in range(leaves.size())):
        try:
            found.append(dict(leaf.relation().options().asCaseSensitiveMap()))
        except (Py4JError, TypeError, AttributeError):
            continue  # a leaf that is no source of the second kind (DataSourceV2)
    return found
