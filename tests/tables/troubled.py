"""A table whose commits a test gets hold of: before, after, and with an answer that is lost."""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable
from typing import Any

from penstock.tables import Table
from penstock.tables.table_committer import TableCommitter
from penstock.tables.table_format import Connection

from .jobs import PATIENCE_S

Append = Callable[[], None]
Around = Callable[[Append, int], None]
"""Is given what makes the commit of a checkpoint, and the checkpoint."""


class TroubledTable:
    """The table as a coordinator sees it, with ``around`` in the place of the atomic step."""

    def __init__(self, table: Table, around: Around) -> None:
        self._table, self._around = table, around
        self.name = table.name
        self.commit_timeout = PATIENCE_S
        """How long one call may take on a busy machine; a commit is tried for as long as the table itself says."""
        self.target_file_size, self.buffer_bytes = table.target_file_size, table.buffer_bytes

    def at(self, name: str) -> TroubledTable:
        return TroubledTable(self._table.at(name), self._around)

    def layout(self) -> Any:
        return self._table.layout()

    def connect(self, *, check: bool = True) -> Connection:
        connection = self._table.connect(check=check)
        append = connection.append

        def troubled(writer: str, checkpoint_id: int, files: list[Any]) -> None:
            self._around(lambda: append(writer, checkpoint_id, files), checkpoint_id)

        connection.append = troubled  # type: ignore[method-assign]
        return connection


def troubled_sink(table: Table, around: Around) -> dict[str, Any]:
    return {**table.sink(), "coordinator": functools.partial(TableCommitter, TroubledTable(table, around))}


class Held:
    """Holds the first commit at one of its points, until it is let go; later commits pass."""

    POINTS = ("before", "after", "lost answer, done", "lost answer, not done")

    def __init__(self, point: str) -> None:
        self.point = point
        self.reached, self.let_go = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self.commits = 0
        self.checkpoint_id = -1
        """Whose commit was held."""

    def __call__(self, append: Append, checkpoint_id: int) -> None:
        with self._lock:
            first, self.commits = self.commits == 0, self.commits + 1
        if not first:
            append()
            return
        self.checkpoint_id = checkpoint_id
        if self.point in ("after", "lost answer, done"):
            append()
        self.reached.set()
        assert self.let_go.wait(PATIENCE_S)
        if self.point == "before":
            append()
        elif self.point.startswith("lost answer"):
            raise ConnectionError("the answer was lost")


class RandomTrouble:
    """Fails some commits before, some behind them, and delays some."""

    def __init__(self, seed: int, probability: float) -> None:
        self._random, self._probability = random.Random(seed), probability
        self._lock = threading.Lock()
        self.happened = 0
        self.ended = threading.Event()

    def __call__(self, append: Append, checkpoint_id: int) -> None:
        with self._lock:
            dice = self._random.random() / self._probability
            self.happened += dice < 1 and not self.ended.is_set()
        if self.ended.is_set() or dice >= 1:
            append()
        elif dice < 0.3:
            raise ConnectionError("not done")
        elif dice < 0.6:
            append()
            raise ConnectionError("done, and nobody was told")
        elif dice < 0.8:
            self.ended.wait(0.2 * self._random.random())
            append()
        else:
            append()
            self.ended.wait(0.2 * self._random.random())
