"""A folder that files become visible in: written under hidden names, put in place by one atomic rename.

This is all that a file sink does to a file system. A name says whose a file is, so that one subtask can share the
folder with others, with other jobs, and with attempts of itself that do not know yet that they have been replaced.
"""

from __future__ import annotations

import os
import re
import uuid
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..schemas.errors import ConfigurationError, StateError
from ..subtask_client.api import FencingToken
from .local_files import local_folder, sync

HIDDEN = ".penstock"
"""The folder of files that are not visible yet. Spark, Arrow and others skip names that begin with a dot."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_WRITTEN_BY = re.compile(r"[^.]+\.[^.]+\.(\d+)\.e\d+\.a\d+\.")
"""A file's name up to its attempt, as :attr:`Owner.prefix` makes it."""


class Owner(NamedTuple):
    """Whose a file is: one attempt of one subtask. Names of jobs and operators hold no dots, so dots separate."""

    job: str
    operator: str
    subtask: int
    token: FencingToken

    @property
    def subtask_prefix(self) -> str:
        return f"{self.job}.{self.operator}.{self.subtask}."

    @property
    def prefix(self) -> str:
        return f"{self.subtask_prefix}e{self.token.epoch}.a{self.token.attempt}."

    def token_of(self, name: str) -> FencingToken | None:
        """The token of the attempt that wrote a file of this subtask; None for a file of somebody else's."""
        if not name.startswith(self.subtask_prefix):
            return None
        found = re.match(r"e(\d+)\.a(\d+)\.", name[len(self.subtask_prefix) :])
        return None if found is None else FencingToken(int(found[1]), int(found[2]))


class Staged(NamedTuple):
    """A file that is complete, and visible once its checkpoint has completed."""

    checkpoint_id: int
    hidden: str
    """Its name in the hidden folder."""
    visible: str
    """Its name to be."""

    @property
    def subtask(self) -> int:
        """Index of the subtask that wrote it. Raises :class:`StateError` where its name does not say."""
        found = _WRITTEN_BY.match(self.hidden)
        if found is None:
            raise StateError(f"a file sink's state names {self.hidden!r}, which does not say which subtask wrote it")
        return int(found[1])


class Staging:
    """The hidden files of one attempt, and what becomes of them."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = local_folder(folder, "a file sink")
        self.hidden = self.folder / HIDDEN

    def prepare(self, owner: Owner) -> None:
        """Makes the folders and tries what will be done in them: better now than at the first checkpoint."""
        probe = self.new_path(owner, ".probe")
        renamed = self.folder / f".{probe.name}"
        try:
            missing = [path for path in (self.hidden, *self.hidden.parents) if not path.exists()]
            self.hidden.mkdir(parents=True, exist_ok=True)
            for path in missing:
                sync(path.parent)
            try:
                probe.touch(exist_ok=False)
                os.replace(probe, renamed)
            finally:
                delete(probe)
                delete(renamed)
        except OSError as error:
            raise ConfigurationError(
                f"subtask {owner.operator}/{owner.subtask} of job {owner.job!r} cannot write to its folder"
                f" {self.folder}: {error}. Files are written in {self.hidden} and renamed into the folder, so both must"
                " be on one file system and writable by the user that runs the subtask"
            ) from error

    def new_path(self, owner: Owner, suffix: str) -> Path:
        """Where a new file is written: a name that nothing has ever had.

        The nonce makes it so: a job that was purged and begins again has the same epochs and, often, attempts.
        """
        return self.hidden / f"{owner.prefix}{_nonce()}{suffix}"

    def stage(self, checkpoint_id: int, owner: Owner, path: Path) -> Staged:
        """A closed file of the checkpoint: from here on it outlives a loss of power, under its hidden name."""
        sync(path)
        sync(self.hidden)
        rest = path.name.removeprefix(owner.prefix)
        return Staged(checkpoint_id, path.name, f"{owner.prefix}c{checkpoint_id}.{rest}")

    def commit(self, files: list[Staged], *, missing_ok: bool, written_to: str = "") -> list[Staged]:
        """Makes files visible; those that are so already stay. Gives back those that are nowhere.

        Raises :class:`StateError` where one is nowhere, unless that is to be accepted. Done again it does nothing.
        """
        gone = []
        for file in files:
            try:
                os.replace(self.hidden / file.hidden, self.folder / file.visible)
            except FileNotFoundError as error:
                if (self.folder / file.visible).exists():
                    continue
                if not missing_ok:
                    raise self._lost(file, written_to) from error
                gone.append(file)
        if files:
            sync(self.folder)
            sync(self.hidden)
        return gone

    def clean(self, owner: Owner, *, keep: Path | None) -> list[str]:
        """Deletes what earlier attempts of this subtask left behind, but for the file that this one is writing.

        What a later attempt writes is never touched: this one may have been replaced without knowing it.
        """
        deleted = []
        for name in sorted(os.listdir(self.hidden)):
            token = owner.token_of(name)
            if token is not None and token <= owner.token and self.hidden / name != keep:
                delete(self.hidden / name)
                deleted.append(name)
        return deleted

    def _lost(self, file: Staged, written_to: str) -> StateError:
        elsewhere = ""
        if written_to and written_to != str(self.folder):
            elsewhere = f" It was written to the folder {written_to}: start the job with that folder."
        return StateError(
            f"a file of checkpoint {file.checkpoint_id}, which has completed, is neither at"
            f" {self.hidden / file.hidden} (not visible yet) nor at {self.folder / file.visible} (visible): its records"
            f" are lost, unless it was moved away.{elsewhere} Put it back at one of the two places; or see that"
            " every machine reaches the same folder; or, where files are taken away once they are visible, give the"
            " sink may_be_taken=True"
        )


def checked_file(entry: object) -> Staged:
    """A file as a state names it; raises :class:`StateError` for what can be none, such as a way out of the folder."""
    match entry:
        case [int(checkpoint_id), str(hidden), str(visible)] if _NAME.match(hidden) and _NAME.match(visible):
            return Staged(checkpoint_id, hidden, visible)
    raise StateError(f"a file sink's state names {entry!r:.200}, which is no file of a checkpoint")


def delete(path: Path) -> None:
    """Deletes a file, if nobody else has done so."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def _nonce() -> str:
    return uuid.uuid4().hex[:12]
