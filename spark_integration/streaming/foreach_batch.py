"""``exactly_once(fn)`` for ``foreachBatch``: Spark may run a batch again, and what ``fn`` does still counts once.

::

    def write(rows, batch):
        batch.write_files(rows, "/data/out")
        batch.send_to_coordinator(rows.groupBy("subtask").agg(...).select("subtask", "event"))

    query = rows.writeStream.foreachBatch(exactly_once(write)).option("checkpointLocation", folder).start()
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schemas.errors import ConfigurationError
from .batch_events import BatchOutbox, EventsTarget
from .batch_files import BatchFolder, batch_folder, checked_format, require_shared
from .batch_token import BatchToken
from .running_batch import PenstockBatch, RunningBatch, penstock_batch, running_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ForBatch = Callable[["DataFrame", "Batch"], object]


class Batch:
    """One run of one micro-batch. Lives for as long as the function that it was given to."""

    def __init__(self, running: RunningBatch, ours: PenstockBatch) -> None:
        end = ours.end
        self.token = BatchToken(end.job, end.operator, end.checkpoint, running.batch_id, running.query_id, end.history)
        """Names this batch in whatever has to do something once for it; ``str`` of it is a transaction id."""
        self._running = running
        self._ours = ours
        self._outbox: BatchOutbox | None = None
        self._written: set[tuple[Path, str]] = set()
        self._has_skipped_rows = False
        """Whether rows were not computed, because an earlier run has decided on their files."""

    @property
    def batch_id(self) -> int:
        """Spark's number of the batch."""
        return self._running.batch_id

    @property
    def checkpoint_id(self) -> int:
        """The job's checkpoint at the end of this batch; -1 before the first."""
        return self._ours.end.checkpoint

    @property
    def has_events(self) -> bool:
        """Whether the job had something new for this batch, and so a checkpoint.

        False only in a query with other sources, which may have rows when the job has none.
        """
        return self._ours.own_checkpoint

    def write_files(
        self,
        df: DataFrame,
        folder: str | os.PathLike[str],
        format: str = "parquet",
        *,
        name: str = "",
        partition_by: str | Sequence[str] = (),
        **options: Any,
    ) -> list[Path]:
        """Writes ``df`` into files of ``folder``, which become visible once, however often the batch runs.

        ``folder``: an absolute path (or a ``file://`` URL) that the driver and every executor have mounted. ``format``:
        any of Spark's that writes plain files; ``options`` are its own. A batch writes to a folder once; give further
        writes a ``name`` each. Returns the visible files, which may be those
        of an earlier run of this batch.

        Raises ConfigurationError for what cannot be used like this, JobRefused where the query has gone on without
        this run, StateError where a file that was decided on is nowhere.
        """
        checked_format(format)
        place = batch_folder(folder), name
        if place in self._written:
            raise ConfigurationError(
                f"batch {self.token} writes to {place[0]} a second time{f' under the name {name!r}' if name else ''}:"
                " give each write_files a name of its own (name='late'), the same whenever the batch runs"
            )
        by = [partition_by] if isinstance(partition_by, str) else list(partition_by)

        computed = False

        def write(path: str) -> None:
            nonlocal computed
            df.write.format(format).options(**options).partitionBy(*by).mode("errorifexists").save(path)
            computed = True

        require_shared(df.sparkSession.sparkContext, place[0])
        files = BatchFolder(place[0], self.token, name).write(write, self._running.batches_retained)
        self._written.add(place)
        self._has_skipped_rows = self._has_skipped_rows or not computed
        return files

    def send_to_coordinator(self, df: DataFrame) -> int:
        """Sends the column ``event`` of each row to the job's coordinator, and returns how many there were.

        The coordinator gets them once, in ``handle_event_from_operator``, when Spark has committed this batch, just
        before it is told that the checkpoint is complete. ``event`` is binary (or a string, sent in UTF-8), or what the
        stream's own column ``event`` is, where the operator's codec has an Avro schema. ``subtask`` says as which
        subtask; left out, the number of the row's partition modulo the parallelism. Called again, it adds.

        Raises ConfigurationError for other columns, for more bytes than the operator's ``max_held_bytes``, and in a
        batch without a checkpoint (see :attr:`has_events`); TransportError where the broker does not take the events.
        """
        if not self.has_events:
            give = "Give every batch one (read_stream(checkpointEveryTrigger=True)); or look"
            if self._ours.options.checkpoint_every_trigger:
                give = "With availableNow only the first new batch has one, whatever checkpointEveryTrigger says: look"
            raise ConfigurationError(
                f"batch {self.batch_id} of job {self.token.job} has no checkpoint of its own that events could belong"
                f" to: the coordinator had nothing new, and another source of the query had. {give} at"
                " batch.has_events, and send with a batch that has some"
            )
        return self._opened().send(df)

    def __repr__(self) -> str:
        return f"<batch {self.token}>"

    def _finish(self, df: DataFrame, *, may_have_run: bool) -> None:
        """The function has returned. A run before may have sent something where this one sends nothing.

        Computes the batch's rows, and throws them away, where ``write_files`` did not need them: Spark commits the
        batch only when the stores of all stateful operators have been committed in this run of it.
        """
        if self._has_skipped_rows:
            df.write.format("noop").mode("overwrite").save()
        if self.has_events and (self._outbox is not None or may_have_run):
            self._opened().finish()

    def _opened(self) -> BatchOutbox:
        if self._outbox is None:
            options = self._ours.options
            target = EventsTarget.of_kafka(
                options.kafka,
                acks_topic=options.topics.acks,
                operator=self.token.operator,
                checkpoint_id=self.checkpoint_id,
                history=self.token.history,
                parallelism=len(self._ours.end.partitions),
                bytes_max=options.max_held_bytes,
                event_schema=options.event_schema,
            )
            self._outbox = BatchOutbox(target)
        return self._outbox


def exactly_once(fn: ForBatch, *, job: str | None = None) -> Callable[[DataFrame, int], None]:
    """A function for ``foreachBatch`` that calls ``fn(df, batch)`` with a :class:`Batch`.

    ``fn`` may run more than once for a batch, over the same rows: what it writes itself it makes idempotent by
    ``batch.token``. What it raises fails the query, and the next start runs the batch again. ``job`` says which one
    names the batches, where a query reads several.

    The query is one of classic PySpark with exactly one penstock source of the job; otherwise its first batch fails
    with ConfigurationError or JobRefused.
    """
    if not callable(fn):
        raise ConfigurationError(f"exactly_once takes a function of a DataFrame and a batch, not {fn!r}")

    begun = ""

    def for_each_batch(df: DataFrame, batch_id: int) -> None:
        nonlocal begun
        running = running_batch(df, batch_id)
        batch = Batch(running, penstock_batch(running, job))
        fn(df, batch)
        batch._finish(df, may_have_run=running.run_id != begun)  # as only the first batch of a start may
        begun = running.run_id

    return for_each_batch
