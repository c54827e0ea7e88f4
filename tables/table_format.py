"""What a table's sink needs of a table format: how to write a data file, and how to commit files once."""

from __future__ import annotations

import logging
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ..errors import ConfigurationError, PenstockError, StateError

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("penstock.tables")

File: TypeAlias = dict[str, Any]
"""A closed data file, as JSON: ``path``, ``size``, ``rows``, and what the format's commit needs besides."""

MIB = 1024 * 1024


class Output(Protocol):
    """A data file that is being written."""

    def write(self, data: bytes) -> object: ...

    def close(self) -> None: ...

    def abort(self) -> None:
        """Give the file up, and delete what is there of it."""


class Layout(Protocol):
    """How one attempt writes data files; made once per attempt, on the subtask's side."""

    schema: pa.Schema
    """What rows are converted to."""
    options: dict[str, Any]
    """Keyword arguments of ``pyarrow.parquet.ParquetWriter``."""

    def split(self, rows: pa.Table) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
        """Yield the rows by partition: its values, and the rows as the file holds them."""

    def create(self, values: tuple[Any, ...], name: str) -> tuple[str, Output]:
        """Create the file ``name`` of a partition; return its path in the table's log, and where to write."""

    def describe(
        self, values: tuple[Any, ...], path: str, size: int, metadata: list[Any], with_nan: frozenset[str]
    ) -> File:
        """Describe a closed file. ``metadata`` is its Parquet footer; columns in ``with_nan`` hold a NaN."""


class Connection(ABC):
    """The table as the coordinator's worker thread reaches it; one thread at a time uses it."""

    def __init__(self, timeout_s: float, where: str) -> None:
        self.timeout_s = timeout_s
        self.where = where
        self.stopped = threading.Event()
        """The coordinator has been rolled back or closed: begin no further try."""

    @abstractmethod
    def refresh(self) -> None:
        """Read the table's newest version. Create and check it where that is due."""

    @abstractmethod
    def last_committed(self, writer: str) -> int:
        """Return the highest checkpoint id that ``writer`` has committed, by what :meth:`refresh` read; -1: none."""

    @abstractmethod
    def append(self, writer: str, checkpoint_id: int, files: list[File]) -> None:
        """Add files and the mark of the checkpoint in one atomic commit on top of what :meth:`refresh` read.

        Must fail if another process has committed for ``writer`` since then. Other errors may leave the outcome
        unknown.
        """

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Delete files that no commit names. A missing one is no error."""

    @abstractmethod
    def missing(self, files: Iterable[File]) -> list[str]:
        """Return the paths of those that are not there."""

    def prepare(self) -> None:
        """Create and check the table."""
        self._until_done(self._refreshed, "prepare")

    def commit(
        self, writer: str, checkpoint_id: int, files: Mapping[int, list[File]], *, look_for_files: bool = False
    ) -> int:
        """Commit the files of checkpoints up to ``checkpoint_id``, as one commit; return how many rows that were.

        What ``writer`` has committed already is left out, so a repeat does nothing. Conflicts with other writers, and
        outcomes that are unknown, are resolved by reading the table again. Raises what the last try raised after
        ``timeout_s`` seconds; :class:`ConfigurationError` and :class:`StateError` at once.
        """

        def once() -> int:
            self.refresh()
            done = self.last_committed(writer)
            due = [file for n in sorted(files) if n > done for file in files[n]]
            if not due:
                return 0
            if look_for_files and (gone := self.missing(due)):
                raise StateError(
                    f"{len(gone)} data files of checkpoint {checkpoint_id}, which has completed, are not there any more"
                    f" ({gone[0]} first): their rows cannot be committed to {self.where}. A clean-up of unreferenced"
                    " files (VACUUM, remove_orphan_files) deletes them if the job is down for longer than its"
                    " retention. Put them back, or start the job from an older checkpoint"
                )
            self.append(writer, checkpoint_id, due)
            return sum(int(file["rows"]) for file in due)

        return self._until_done(once, f"commit checkpoint {checkpoint_id} to")

    def _refreshed(self) -> int:
        self.refresh()
        return 0

    def _until_done(self, once: Any, what: str) -> int:
        deadline = time.monotonic() + self.timeout_s
        pause_s = 0.05
        while True:
            try:
                return int(once())
            except PenstockError:
                raise
            except Exception as error:
                if self.stopped.is_set() or time.monotonic() + pause_s > deadline:
                    raise
                _log.info("trying again to %s %s: %s: %s", what, self.where, type(error).__name__, error)
            self.stopped.wait(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, 2.0)


class TableLike(Protocol):
    """What coordinator and subtasks need of a :class:`penstock.tables.Table`."""

    target_file_size: int
    buffer_bytes: int
    commit_timeout: float

    @property
    def name(self) -> str:
        """What the table is called: a file remembers which table it was written for."""

    def at(self, name: str) -> TableLike:
        """Return the same table under another name."""

    def connect(self, *, check: bool = True) -> Connection:
        """Return the coordinator's way to the table. Nothing is read yet; ``check``: it may be created, is checked."""

    def layout(self) -> Layout:
        """Return how data files are written."""


def require_pyarrow() -> Any:
    """Import pyarrow. Raises :class:`ConfigurationError` that names the extra."""
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigurationError('tables need pyarrow: pip install "penstock-spark[parquet]"') from error
    return pyarrow
