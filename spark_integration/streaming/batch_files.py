"""A batch's rows as files that become visible exactly once, whatever dies, to any reader of the folder.

::

    folder/.penstock/batches/<token>.<nonce>.staged/    Spark writes here; no reader looks into hidden folders
    folder/.penstock/batches/<token>.manifest           which staged file gets which name: the decision
    folder/part-00000.<token>.snappy.parquet            visible

Until the manifest stands, a run of the batch leaves nothing but a hidden folder. It is made by one hard link, which
fails where it exists, so one run of a batch decides; every other run, earlier or later, does its renames again.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...schemas.errors import ConfigurationError, JobRefused, StateError
from ...sinks.local_files import local_folder, sync
from .batch_token import BatchToken

_log = logging.getLogger(__name__)

HIDDEN = Path(".penstock", "batches")
"""Where staged files and manifests are. Spark, Arrow and others skip names that begin with a dot."""

_VERSION = 1
_STAGED, _MANIFEST, _DRAFT = ".staged", ".manifest", ".draft"
_SPARK_NAME = re.compile(r"part-\d+-[0-9a-f-]{36}(?:[-.]c\d+)?")
_LABEL = re.compile(r"[A-Za-z0-9-]{1,64}\Z")
_TABLES = frozenset({"delta", "iceberg", "hudi", "jdbc", "kafka", "noop", "console", "memory"})

_TABLE_INSTEAD = (
    "; or write a table there whose format has transactions, with batch.token (see docs/exactly-once-batches.md)"
)

_shared: set[tuple[str, Path]] = set()
"""Application and folder that all executors were seen to share."""

Write = Callable[[str], None]
"""Writes the rows into a folder that does not exist yet, given as a URL."""


class BatchFolder:
    """What one run of a batch does to one folder. ``label`` tells several writes of a batch to it apart."""

    def __init__(self, folder: str | os.PathLike[str], token: BatchToken, label: str = "") -> None:
        if label and not _LABEL.match(label):
            raise ConfigurationError(
                f"the name {label!r} of a batch's files cannot be part of file names: use at most 64 letters, digits"
                " and '-'"
            )
        self.folder = batch_folder(folder)
        self._hidden = self.folder / HIDDEN
        self._token = token
        self._key = f"{token}.{label}" if label else str(token)
        self._manifest = self._hidden / f"{self._key}{_MANIFEST}"

    def write(self, write: Write, batches_retained: int) -> list[Path]:
        """The batch's visible files, which an earlier run may have made.

        Raises StateError where a file that was decided on is nowhere, ConfigurationError for a folder or a format
        that cannot be used like this.
        """
        self._prepare()
        if not self._manifest.exists():
            self._attempt(self._hidden / f"{self._key}.{uuid.uuid4().hex[:12]}{_STAGED}", write)
        files = self._made_visible()
        self._collect(batches_retained)
        return files

    # ---- the first phase

    def _prepare(self) -> None:
        try:
            missing = [path for path in (self._hidden, *self._hidden.parents) if not path.exists()]
            self._hidden.mkdir(parents=True, exist_ok=True)
            for path in missing:
                sync(path.parent)
        except OSError as error:
            raise ConfigurationError(
                f"the folder {self.folder} cannot be written to by the driver ({error}): batches are staged in"
                f" {self._hidden}, and renamed into it"
            ) from error

    def _attempt(self, staged: Path, write: Write) -> None:
        """Both steps of the first phase; another run that decides meanwhile deletes what this one has staged."""
        try:
            self._stage(staged, write)
            self._decide(staged)
        except Exception as error:
            if not self._manifest.exists() or self._read()["staged"] == staged.name:
                raise
            _log.info("batch %s has been written by another run of it, and this one was given up: %s", self._key, error)

    def _stage(self, staged: Path, write: Write) -> None:
        """Everything that Spark writes, on the disk."""
        try:
            write(f"file://{staged}")
            if not staged.is_dir():
                raise ConfigurationError(
                    f"Spark has written a batch to {staged}, and the driver does not see it there: the folder must be"
                    " one that the driver and every executor have mounted"
                )
            for folder, _, names in os.walk(staged):
                for name in names:
                    sync(Path(folder, name))
                sync(Path(folder))
            sync(self._hidden)
        except BaseException:
            shutil.rmtree(staged, ignore_errors=True)
            raise

    def _decide(self, staged: Path) -> None:
        """The manifest of this run, unless another run of the batch was first."""
        draft = self._hidden / f"{staged.name}{_DRAFT}"
        try:
            files = [[name, self._visible_name(at, name)] for at, name in enumerate(_data_files(staged))]
            _write_synced(draft, {"version": _VERSION, "staged": staged.name, "files": files, "visible": False})
            self._link(draft)
        finally:
            decided = _same(draft, self._manifest)  # also where the call was interrupted, or answered twice (NFS)
            with suppress(FileNotFoundError):
                draft.unlink()
            if not decided:
                shutil.rmtree(staged, ignore_errors=True)
        if decided:
            sync(self._hidden)
        else:
            _log.info("batch %s has been written by another run of it", self._key)

    def _link(self, draft: Path) -> None:
        """The draft becomes the manifest, where there is none: of all runs of the batch, one does this."""
        try:
            os.link(draft, self._manifest)
        except FileExistsError:
            pass
        except OSError as error:
            raise ConfigurationError(
                f"the file system of {self.folder} does not take a hard link ({error}), by which exactly one run of a"
                " batch is decided on: use a local or mounted file system that does (ext4, XFS, NFS do)"
            ) from error

    def _refuse_if_late(self, staged: Path) -> None:
        """Raises JobRefused where the query has gone on: then this batch was decided before, and that is forgotten.

        So too where it was here as another checkpoint: rows of both would be visible.
        """
        ours = self._token.batch_id, self._token.checkpoint_id
        manifests = (name for name in os.listdir(self._hidden) if name.endswith(_MANIFEST))
        others = {place for place in map(self._token.place_of, manifests) if place is not None and place != ours}
        batch, checkpoint = max(others, default=(-1, -1))
        if batch < self._token.batch_id or self._read()["visible"]:
            return
        self._manifest.unlink(missing_ok=True)
        shutil.rmtree(staged, ignore_errors=True)
        raise JobRefused(
            f"batch {self._key} comes too late for {self.folder}: the query has written batch {batch} of checkpoint"
            f" {checkpoint} there already. This is a run that was replaced, or one from an older copy of Spark's"
            " checkpoint: use the newest. Where job and query were set back together, first take away what they wrote"
            f" since: the files of batch {self._token.batch_id} and later ones ('.b{self._token.batch_id}.' in their"
            f" names), and their manifests in {self._hidden}"
        )

    def _visible_name(self, at: int, staged: str) -> str:
        """Deterministic; the folders of partitions stay."""
        parent, _, name = staged.rpartition("/")
        suffix = _SPARK_NAME.sub("", name, count=1)
        if suffix == name:
            suffix = "".join(Path(name).suffixes)
        return f"{parent}/part-{at:05d}.{self._key}{suffix}".lstrip("/")

    # ---- the second phase

    def _made_visible(self) -> list[Path]:
        manifest = self._read()
        files = [(self._hidden / manifest["staged"] / old, self.folder / new) for old, new in manifest["files"]]
        if not manifest["visible"]:
            self._refuse_if_late(self._hidden / manifest["staged"])
            self._rename(files)
            _replace_synced(self._manifest, manifest | {"visible": True})
        shutil.rmtree(self._hidden / manifest["staged"], ignore_errors=True)
        return [visible for _, visible in files]

    def _rename(self, files: Iterable[tuple[Path, Path]]) -> None:
        """Done again, and by several at once, it does nothing more."""
        folders = {self.folder}
        for staged, visible in files:
            folders.update(parent for parent in visible.parents if parent.is_relative_to(self.folder))
            visible.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.replace(staged, visible)
            except FileNotFoundError as error:
                if not visible.exists() and not self._read()["visible"]:
                    raise StateError(
                        f"a file of batch {self._key} is neither at {staged} (not visible yet) nor at {visible}"
                        " (visible), and the batch has not been finished: it was moved away, or this machine sees"
                        " another folder. Put it back at one of the two places; or, where its rows are where they"
                        f" should be, set 'visible' to true in {self._manifest}"
                    ) from error
        for folder in folders:
            sync(folder)

    def _read(self) -> dict[str, Any]:
        try:
            manifest = json.loads(self._manifest.read_bytes())
            whole = (
                manifest["version"] == _VERSION
                and type(manifest["visible"]) is bool
                and _inside(manifest["staged"])
                and all(_inside(old) and _inside(new) for old, new in manifest["files"])
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(f"the manifest {self._manifest} cannot be read: {error!r}") from error
        if not whole:
            raise StateError(f"the manifest {self._manifest} is none of this version: {manifest!r:.200}")
        assert isinstance(manifest, dict)
        return manifest

    # ---- what others left

    def _collect(self, batches_retained: int) -> None:
        """Deletes what killed runs of this query staged, and manifests of batches that Spark cannot run any more.

        This batch is decided, and Spark runs a batch only when those before it are committed: whoever still writes
        one of these folders is too late.
        """
        for name in sorted(os.listdir(self._hidden)):
            place = self._token.place_of(name)
            if place is None or place[0] > self._token.batch_id:
                continue
            path, found = self._hidden / name, place[0]
            of_another = place != (self._token.batch_id, self._token.checkpoint_id)  # older, or set back since
            if name.endswith(_STAGED) and (of_another or name.rpartition(".")[0].rpartition(".")[0] == self._key):
                shutil.rmtree(path, ignore_errors=True)
            elif (name.endswith(_DRAFT) and found < self._token.batch_id) or (
                name.endswith(_MANIFEST) and found < self._token.batch_id - batches_retained
            ):
                with suppress(FileNotFoundError):
                    path.unlink()


def batch_folder(folder: str | os.PathLike[str]) -> Path:
    """The folder as a path. Raises ConfigurationError where files cannot become visible in one step there."""
    return local_folder(folder, "a batch's files", _TABLE_INSTEAD)


def require_shared(context: Any, folder: Path) -> None:
    """Raises ConfigurationError where an executor does not see what the driver writes to ``folder``.

    It would write its part of a batch elsewhere, and Spark would not miss it. Looked at once for each folder.
    """
    key = (str(context.applicationId), folder)
    one_process = re.match(r"local(\[|$)", str(context.master)) is not None
    if one_process or key in _shared:
        return
    probe = folder / HIDDEN / f"probe.{uuid.uuid4().hex[:12]}"
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        _write_synced(probe, {"version": _VERSION})
    except OSError as error:
        raise ConfigurationError(f"the folder {folder} cannot be written to by the driver ({error})") from error
    try:
        tasks = max(2, 2 * int(context.defaultParallelism))
        blind = context.parallelize(range(tasks), tasks).map(_blind_host(str(probe))).filter(bool).collect()
    finally:
        with suppress(FileNotFoundError):
            probe.unlink()
    if blind:
        raise ConfigurationError(
            f"executors on {', '.join(sorted(set(blind)))} do not see what the driver writes to {folder}: their part of"
            " a batch would be lost. Mount the folder under this path on the driver and on every executor"
        )
    _shared.add(key)


def _blind_host(probe: str) -> Callable[[int], str]:
    """For a task: the name of its host, where the file is not to be seen there."""

    def look(_: int) -> str:
        return "" if os.path.exists(probe) else socket.gethostname()

    return look


def checked_format(name: object) -> str:
    """A format of plain files. Raises ConfigurationError for one that keeps a log of its own."""
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"the format of a batch's files must be a name like 'parquet', not {name!r}")
    if name.lower() in _TABLES:
        raise ConfigurationError(
            f"write_files writes plain files (parquet, orc, avro, json, csv, text), and {name!r} is no such format:"
            " write it yourself, idempotent by batch.token (see docs/exactly-once-batches.md)"
        )
    return name


def _data_files(staged: Path) -> Iterator[str]:
    """Names of the files that readers are to see, relative to the folder, in an order that is always the same."""
    for folder, folders, names in os.walk(staged):
        folders.sort()
        for name in folders:
            if name.startswith(("_", ".")):
                raise ConfigurationError(
                    f"the format has made a folder {name!r} of its own beside its files, so it is none of plain files:"
                    " write it yourself, idempotent by batch.token (see docs/exactly-once-batches.md)"
                )
        for name in sorted(names):
            if not name.startswith(("_", ".")):
                yield Path(folder, name).relative_to(staged).as_posix()


def _inside(name: object) -> bool:
    """A relative name that leads out of no folder."""
    return isinstance(name, str) and bool(name) and not name.startswith("/") and ".." not in name.split("/")


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _write_synced(path: Path, content: object) -> None:
    with path.open("w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())


def _replace_synced(path: Path, content: object) -> None:
    draft = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}{_DRAFT}")
    _write_synced(draft, content)
    os.replace(draft, path)
    sync(path.parent)
