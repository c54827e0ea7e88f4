"""A subtask that writes records to files, which become visible exactly once: a two-phase commit with the checkpoints.

First phase: ``snapshot_state(n)`` closes the hidden file and names it in its state. Second phase: once n has completed,
that is in ``notify_checkpoint_complete`` or, where the notice never came, in ``restore_state``, the file is renamed.
So what a state names is visible in every history that goes on from it, and what no state names never was.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..schemas.errors import ConfigurationError, StateError, SubtaskError
from ..subtask_client.api import Context
from .checked_overrides import CheckedOverrides
from .formats import Format, JsonLines, Writer
from .staging import Owner, Staged, Staging, checked_file, delete

_log = logging.getLogger("penstock.sinks")

_STATE_VERSION = 1
_SUFFIX = re.compile(r"(\.[A-Za-z0-9_-]+)+\Z")


class FileSink(CheckedOverrides):
    """Writes each record to ``folder``, in files of one ``format``, each visible once its checkpoint has completed.

    ::

        make = functools.partial(FileSink, "/data/out", Parquet(schema))
        job.operator("out", subtask=make, parallelism=2, inputs=[...])

    ``folder``: an absolute path (or a ``file://`` URL) that every machine of the job reaches. ``may_be_taken``: what
    reads the folder moves or deletes files once they are visible, so one that is nowhere is no error.

    A subclass may override :meth:`encode`, or call :meth:`write` from wherever it works. What it overrides besides
    calls ``super()``, and ``open`` and ``restore_state`` do so before anything is written. Its state is bytes. A method
    of ``CHECKED`` that was overridden without a call of ``super()`` raises ConfigurationError.
    """

    CHECKED = ("open", "restore_state", "snapshot_state", "notify_checkpoint_complete", "close")

    def __init__(
        self, folder: str | os.PathLike[str], format: Format | None = None, *, may_be_taken: bool = False
    ) -> None:
        self._staging = Staging(folder)
        self._format = JsonLines() if format is None else format
        if not isinstance(self._format, Format) or isinstance(self._format, type):
            raise ConfigurationError(
                f"the format of a file sink needs a suffix and open(path), as JsonLines() has; {format!r} lacks them"
            )
        if not isinstance(self._format.suffix, str) or not _SUFFIX.match(self._format.suffix):
            raise ConfigurationError(
                f"the suffix of a file sink's format must be like '.jsonl', not {self._format.suffix!r}"
            )
        self._may_be_taken = may_be_taken
        self._owner: Owner | None = None
        self._path: Path | None = None
        """Of the file being written; None while nothing has been written since the last snapshot."""
        self._writer: Writer | None = None
        self._pending: list[Staged] = []
        """Closed, not visible: in every state until they are."""
        self._restored = False
        """Nothing of earlier attempts is left but what is visible."""
        self._broken: str | None = None
        """Why the file being written cannot be trusted any more."""
        self._reached.add("__init__")

    # ---- for subclasses

    def encode(self, record: Any) -> Any:
        """What the format takes for this record; as it stands here, the record itself."""
        return record

    def write(self, record: Any) -> None:
        """Adds a record, encoded at once. It is part of the next checkpoint, and visible when that has completed.

        Raises :class:`ConfigurationError` for a record that does not fit: it has left no trace, and the caller may go
        on. Whatever else it raises has to fail the attempt.
        """
        encoded = self.encode(record)
        if self._broken is not None:
            raise self._unusable()
        if self._writer is None:
            self._open_file()
        assert self._writer is not None
        try:
            self._writer.write(encoded)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self._who}: {error}") from error
        except BaseException as error:
            self._broken = f"{type(error).__name__}: {error}"
            raise

    @property
    def settled(self) -> bool:
        """Whether every record written so far is visible.

        Where the operator also emits, a ``poll`` that says Finished only then leaves nothing to be made visible after
        its subtask has gone; any other subtask is told of its last records before it goes.
        """
        return self._path is None and not self._pending

    # ---- the subtask

    def open(self, context: Context) -> None:
        self._require_init()
        self._owner = Owner(context.job, context.operator, context.subtask, context.fencing_token)
        self._staging.prepare(self._owner)
        self._reached.add("open")

    def restore_state(self, checkpoint_id: int, state: bytes | str | None) -> None:
        """Second phase of whatever the checkpoint names, again or for the first time; the rest is deleted."""
        owner = self._opened()
        if self._path is not None:
            raise SubtaskError(f"{self._who}: something was written before super().restore_state() was called")
        files, written_to = self._read(checkpoint_id, state)
        self._commit(files, written_to)
        self._clean(owner)
        self._reached.add("restore_state")

    def process(self, record: Any, input: str) -> None:
        self.write(record)

    def snapshot_state(self, checkpoint_id: int) -> Any:
        """First phase. The state, JSON in bytes, names every file that is not visible yet."""
        owner = self._opened()
        if not self._restored:  # a first attempt, or one without a checkpoint: no state names anything
            self._clean(owner)
        if self._broken is not None:
            raise self._unusable()
        if self._path is not None:
            self._pending.append(self._close_file(checkpoint_id, owner))
        self._reached.add("snapshot_state")
        return _state(str(self._staging.folder), self._pending)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Second phase, also for checkpoints below: their files are in this one's state, where they are not visible."""
        due = [file for file in self._pending if file.checkpoint_id <= checkpoint_id]
        self._commit(due, "")
        self._pending = [file for file in self._pending if file not in due]
        self._reached.add("notify_checkpoint_complete")

    def notify_checkpoint_aborted(self, checkpoint_id: int, reason: str) -> None:
        """Nothing: the records count all the same, so their files are part of the next checkpoint's state."""

    @staticmethod
    def rescale(states: Sequence[bytes | str | None], parallelism: int) -> list[bytes]:
        """For ``job.operator(..., rescale=FileSink.rescale)``: what the states name, over another number of subtasks.

        A file stays with the subtask whose index wrote it: that one deletes, when it is restored, what it finds of its
        own and is not given. Those of subtasks that are gone go to the others. Raises :class:`StateError`.
        """
        folder, dealt = "", [list[Staged]() for _ in range(parallelism)]
        for state in states:
            files, written_to = _parsed(state)
            folder = written_to or folder
            for file in files:
                dealt[file.subtask % parallelism].append(file)
        return [_state(folder, files) for files in dealt]

    def close(self) -> None:
        """The file being written is in no state and will be in none."""
        self._reached.add("close")
        path, writer, self._path, self._writer = self._path, self._writer, None, None
        self._broken = "the sink has been closed"
        if path is None:
            return
        try:
            if writer is not None:
                with suppress(Exception):  # a file that is thrown away need not be whole
                    writer.close()
        finally:
            delete(path)

    # ---- files

    def _open_file(self) -> None:
        self._path = self._staging.new_path(self._opened(), self._format.suffix)
        try:
            self._writer = self._format.open(self._path)
        except BaseException as error:
            self._broken = f"{type(error).__name__}: {error}"
            raise

    def _close_file(self, checkpoint_id: int, owner: Owner) -> Staged:
        assert self._path is not None and self._writer is not None
        path, writer = self._path, self._writer
        try:
            writer.close()
            staged = self._staging.stage(checkpoint_id, owner, path)
        except BaseException as error:
            self._broken = f"{type(error).__name__}: {error}"
            raise
        self._path = self._writer = None
        return staged

    def _commit(self, files: list[Staged], written_to: str) -> None:
        try:
            gone = self._staging.commit(files, missing_ok=self._may_be_taken, written_to=written_to)
        except StateError as error:
            raise StateError(f"{self._who}: {error}") from error
        for file in gone:
            _log.warning("%s: %s is not there any more; taken, as may_be_taken allows", self._who, file.visible)

    def _clean(self, owner: Owner) -> None:
        assert not self._pending, "a file that a state names"
        deleted = self._staging.clean(owner, keep=self._path)
        if deleted:
            _log.info("%s: deleted what earlier attempts left uncommitted: %s", self._who, ", ".join(deleted))
        self._restored = True

    def _read(self, checkpoint_id: int, state: bytes | str | None) -> tuple[list[Staged], str]:
        """The files that a state names, and the folder they were written to."""
        try:
            return _parsed(state)
        except (StateError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise StateError(
                f"{self._who}: its state in checkpoint {checkpoint_id} is not that of a file sink: {error!r}. An"
                " operator that has become a sink begins under another name; a subclass gives super().restore_state()"
                " what super().snapshot_state() returned"
            ) from error

    def _opened(self) -> Owner:
        if self._owner is None:
            raise SubtaskError(f"{self._who}: used before open(context); call super().open(context) first")
        return self._owner

    def _unusable(self) -> StateError:
        return StateError(
            f"{self._who}: the file being written may be incomplete ({self._broken}), so it can be part of no"
            " checkpoint: what write() raises has to fail the attempt"
        )

    @property
    def _who(self) -> str:
        owner = self._owner
        if owner is None:
            return f"a {type(self).__name__} for {self._staging.folder}"
        return f"subtask {owner.operator}/{owner.subtask} of job {owner.job!r}"


def _state(folder: str, files: Sequence[Staged]) -> bytes:
    return json.dumps({"version": _STATE_VERSION, "folder": folder, "files": files}).encode()


def _parsed(state: bytes | str | None) -> tuple[list[Staged], str]:
    """What :func:`_state` has made, in the end: the files, and their folder."""
    if state is None:
        return [], ""
    plain = json.loads(state)
    if plain["version"] != _STATE_VERSION:
        raise StateError(f"its version is {plain['version']!r}, known here is {_STATE_VERSION}")
    return [checked_file(entry) for entry in plain["files"]], str(plain["folder"])
