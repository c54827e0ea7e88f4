"""The coordinator of a table's sink: keeps what the subtasks wrote by checkpoint, and commits it once.

What makes it exact is the pattern of ``docs/committing.md``. An entry belongs to checkpoint n or not by ``belongs_to``
alone; a region failover to n takes back the subtask's entries above n, a global one restores all of them; and a commit
bears the name of the job's incarnation and the checkpoint, in the same atomic step that adds the files.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

from .. import CheckpointResult, EventContext, OperatorCoordinator
from ..errors import StateError
from .table_format import Connection, File, TableLike

_log = logging.getLogger("penstock.tables")

_STATE_VERSION = 1


class TableCommitter(OperatorCoordinator):
    """Commits completed checkpoints to a table, in order, off the callback thread."""

    def __init__(self, table: TableLike) -> None:
        self._table = table
        self._waiting: dict[int, list[dict[str, Any]]] = {}
        """By checkpoint: entries {"subtask", "table", "files"} that are not known to be committed."""
        self._writers: list[tuple[int, str]] = []
        """Whose name the commits of checkpoints from an id on bear; more than one after a fork."""
        self._prepared = False
        """The table has been created where it was not there, and checked."""
        self._due = -1
        """The newest completed checkpoint that is to be committed."""
        self._busy = False
        self._since = 0.0
        """When the call that is under way began, by the monotonic clock."""
        self._through = -1
        """Highest checkpoint that was notified: no entry can join it any more."""
        self._restored = -1
        self._connection: Connection | None = None

    # ---- callbacks

    def start(self) -> None:
        if self._connection is None:  # no reset came before
            self._begin(-1, [])

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        undone = [file for n, entries in self._waiting.items() if n > checkpoint_id for file in _files(entries)]
        self._waiting, writers = self._read(checkpoint_id, state)
        self._begin(checkpoint_id, writers)
        self._delete(undone)

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any, context: EventContext) -> None:
        if context.belongs_to <= self._through:
            raise StateError(
                f"a data file of subtask {subtask} belongs to checkpoint {context.belongs_to}, and checkpoint"
                f" {self._through} has been committed already: {event!r:.300}"
            )
        entry = {"subtask": subtask, "table": event["table"], "files": event["files"]}
        self._waiting.setdefault(context.belongs_to, []).append(entry)

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        """What the subtask wrote after the checkpoint is void: its next attempt writes it again."""
        undone: list[File] = []
        for n in [n for n in self._waiting if n > checkpoint_id]:
            undone += _files(entry for entry in self._waiting[n] if entry["subtask"] == subtask)
            self._waiting[n] = [entry for entry in self._waiting[n] if entry["subtask"] != subtask]
            if not self._waiting[n]:
                del self._waiting[n]
        self._delete(undone)

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        result.complete(
            {
                "version": _STATE_VERSION,
                "writers": [list(pair) for pair in self._writers],
                "waiting": [[n, entries] for n, entries in sorted(self._waiting.items())],
            }
        )

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._through = max(self._through, checkpoint_id)
        if any(n <= checkpoint_id for n in self._waiting):
            self._due = max(self._due, checkpoint_id)
            self._next()
        if (took_s := time.monotonic() - self._since) > 3 * self._table.commit_timeout and self._busy:
            raise StateError(
                f"a commit to {self._table.name} has not returned for {took_s:.0f} s, three times its commit_timeout;"
                f" checkpoint {self._due} waits for it"
            )

    def close(self) -> None:
        if self._connection is not None:
            self._connection.stopped.set()

    # ---- commits

    def _begin(self, checkpoint_id: int, writers: list[tuple[int, str]]) -> None:
        """Go on from a checkpoint, in a new epoch."""
        own = f"penstock/{self.context.job}/{self.context.operator}/{self.context.incarnation}"
        if not writers or writers[-1][1] != own:  # a new job, or a fork: what it completes is its own from here on
            writers = [*writers, (checkpoint_id + 1, own)]
        self._writers, self._through, self._restored = writers, -1, checkpoint_id
        if self._connection is not None:
            self._connection.stopped.set()
        self._connection = self._table.connect()
        self._busy, self._prepared, self._due = False, False, -1
        self._next()

    def _next(self) -> None:
        """Begin the next call, one at a time. Checkpoints that have come to wait meanwhile are one commit."""
        if self._busy or (self._prepared and not any(n <= self._due for n in self._waiting)):
            return
        assert self._connection is not None
        self._busy, self._since = True, time.monotonic()
        due, connection = self._due, self._connection
        if not self._prepared:
            self.context.call_async(connection.prepare, lambda result, error: self._prepare_ended(error))
            return
        # Attempts that live have just written theirs; what was restored may have been cleaned up since.
        look_for_files = any(n <= self._restored for n in self._waiting)
        commit = Commit(self._table, connection, self._writers[-1][1], look_for_files)
        for (first, writer), (end, _) in zip(self._writers, [*self._writers[1:], (due + 1, "")], strict=True):
            through = min(due, end - 1)
            if files := {n: list(es) for n, es in self._waiting.items() if first <= n <= through}:
                commit.add(writer, through, files)
        self.context.call_async(commit.run, lambda rows, error: self._committed(due, rows, error))

    def _prepare_ended(self, error: BaseException | None) -> None:
        if error is not None:
            raise error
        self._busy, self._prepared = False, True
        self._next()

    def _committed(self, checkpoint_id: int, rows: int, error: BaseException | None) -> None:
        if error is not None:
            raise error  # rolls back to the last checkpoint, which is notified again
        for n in [n for n in self._waiting if n <= checkpoint_id]:
            del self._waiting[n]
        self.context.metrics.increment("table_commits")
        self.context.metrics.increment("table_rows", rows)
        self._busy = False
        self._next()

    def _delete(self, files: list[File]) -> None:
        """Delete what no checkpoint names and none can: exact, and left to the table's clean-up where it fails."""
        assert self._connection is not None
        if not files:
            return
        paths, connection = [file["path"] for file in files], self._table.connect(check=False)

        def deleted(result: Any, error: BaseException | None) -> None:
            if error is not None:
                _log.warning("could not delete %d files of attempts that were undone: %r", len(paths), error)

        self.context.call_async(lambda: connection.delete(paths), deleted)

    def _read(self, checkpoint_id: int, state: Any) -> tuple[dict[int, list[dict[str, Any]]], list[tuple[int, str]]]:
        if state is None:
            return {}, []
        try:
            if state["version"] != _STATE_VERSION:
                raise StateError(f"its version is {state['version']!r}, known here is {_STATE_VERSION}")
            writers = [(int(first), str(writer)) for first, writer in state["writers"]]
            return {int(n): list(entries) for n, entries in state["waiting"]}, writers
        except (StateError, ValueError, TypeError, KeyError) as error:
            raise StateError(
                f"operator {self.context.operator} of job {self.context.job!r}: the coordinator's state in checkpoint"
                f" {checkpoint_id} is not that of a table's sink: {error!r}. An operator that has become a sink begins"
                " under another name"
            ) from error


class Commit:
    """All that one completed checkpoint has to commit; runs on a worker thread."""

    def __init__(self, table: TableLike, connection: Connection, own: str, look_for_files: bool) -> None:
        self._table, self._connection, self._own = table, connection, own
        self._look_for_files = look_for_files
        self._parts: list[tuple[str, int, dict[int, list[dict[str, Any]]]]] = []

    def add(self, writer: str, through: int, entries: dict[int, list[dict[str, Any]]]) -> None:
        self._parts.append((writer, through, entries))

    def run(self) -> int:
        """Return how many rows were committed."""
        rows = 0
        for writer, through, entries in self._parts:
            for name in dict.fromkeys(entry["table"] for each in entries.values() for entry in each):
                files = {n: _files(e for e in each if e["table"] == name) for n, each in entries.items()}
                connection = self._connection_to(name, writer, through)
                if connection is not None:
                    rows += connection.commit(writer, through, files, look_for_files=self._look_for_files)
        return rows

    def _connection_to(self, name: str, writer: str, through: int) -> Connection | None:
        """Files go to the table that they were written for, also where the job has another one by now."""
        if name == self._table.name:
            return self._connection
        if writer != self._own:
            _log.warning(
                "files of checkpoint %d for table %s are left to %s, which this job is a fork of", through, name, writer
            )
            return None
        connection = self._table.at(name).connect(check=False)
        connection.stopped = self._connection.stopped
        return connection


def _files(entries: Iterable[dict[str, Any]]) -> list[File]:
    return [file for entry in entries for file in entry["files"]]
