"""One pass over the files below a path, folder by folder, with one folder in memory at a time.

A folder's files come before its sub-folders, and these in the order of their names. So folders come in the order of
their paths, each with a slash at its end, and a pass can begin anywhere without looking at what lies before.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from ..errors import ConfigurationError
from .listing import Closed, Found, Listed, Progress, digest
from .split import Split

_MAGIC = re.compile(r"[*?\[]")
_TIMES = ("mtime", "LastModified", "last_modified", "modified", "updated", "created")
"""Where file systems tell when a file was changed; memory:// and some stores replace files, so ``created`` will do."""
_TAGS = ("ETag", "etag", "generation")
HIDDEN = (".", "_")


class FilesWalk:
    """One pass over the files of ``path``, which may hold a pattern."""

    def __init__(self, file_system: Any, path: str, remembers: bool, open_folders: int | None, min_age: float) -> None:
        self._file_system = file_system
        self._remembers = remembers
        self._open_folders = open_folders
        self._min_age = min_age
        parts = path.split("/")
        plain = next((at for at, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
        self._root = "/".join(parts[:plain])
        self._pattern = parts[plain:]
        self._matches = _matcher(self._pattern or ["**"])
        self._components = [_matcher([part]) for part in self._pattern]

    def run(self, progress: Progress) -> Iterator[Found]:
        """Yield the files that ``progress`` does not know."""
        # Asked first, as listing a file would not fail everywhere.
        if not self._pattern and not self._root.endswith("/") and self._is_file():
            entry = self._file_system.info(self._root)
            folder, _, name = entry["name"].rpartition("/")
            is_known = digest(name) in progress.names_in("") if self._remembers else progress.after is not None
            if not is_known and self._is_old_enough(entry):
                yield self._listed(entry, "", name)
            return
        open_folders = deque[str]()
        unsettled: str | None = None
        """The first folder with a file that is too young: nothing may be closed from here on."""
        for folder, files in self._folders(progress):
            known = progress.names_in(folder)
            after = progress.after if progress.after is not None and progress.after[0] == folder else None
            if files and self._open_folders is not None:
                open_folders.append(folder)
                while len(open_folders) > self._open_folders and open_folders[0] != unsettled:
                    yield Closed(open_folders.popleft())
            for name, entry in files:
                if (after is not None and name <= after[1]) or (self._remembers and digest(name) in known):
                    continue
                if self._is_old_enough(entry):
                    yield self._listed(entry, folder, name)
                elif unsettled is None:
                    unsettled = folder

    def _listed(self, entry: dict[str, Any], folder: str, name: str) -> Listed:
        split = Split(
            self._file_system.unstrip_protocol(entry["name"]), {"size": entry["size"], "version": version_of(entry)}
        )
        return Listed(split, folder, name) if self._remembers else Listed(split, None, [folder, name])

    def _folders(self, progress: Progress) -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
        """Yield each folder that is looked at, with its files by name; folders are named from the root, "" itself."""
        begin = progress.closed if self._remembers else progress.after and progress.after[0]
        stack = [""]
        while stack:
            folder = stack.pop()
            # All below a folder sorts before ``begin`` unless that begins with its name.
            if begin is not None and folder < begin and not begin.startswith(folder):
                continue
            files, folders = [], []
            for entry in self._entries(folder):
                name = entry["name"].rstrip("/").rpartition("/")[2]
                if name.startswith(HIDDEN):
                    continue
                if entry["type"] == "directory":
                    if self._may_hold(folder + name):
                        folders.append(f"{folder}{name}/")
                elif self._matches(folder + name):
                    files.append((name, entry))
            stack += sorted(folders, reverse=True)
            is_closed = progress.closed is not None and folder <= progress.closed
            is_behind = not self._remembers and begin is not None and folder < begin
            if not is_closed and not is_behind:
                yield folder, sorted(files, key=lambda file: file[0])

    def _entries(self, folder: str) -> list[dict[str, Any]]:
        path = f"{self._root}/{folder}".rstrip("/") or "/"
        self._file_system.invalidate_cache(path)
        try:
            entries = self._file_system.ls(path, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            if folder == "" and not self._remembers:
                raise ConfigurationError(
                    f"there is no folder {self._file_system.unstrip_protocol(path)}, and without discover_every nobody"
                    " looks for it later"
                ) from None
            return []  # nothing yet; or it was there when its parent was listed
        # Some object stores list a folder's own marker in it.
        return [entry for entry in entries if entry["name"].strip("/") != path.strip("/")]

    def _may_hold(self, folder: str) -> bool:
        """Whether a folder may hold, at any depth, files that match."""
        names = folder.split("/")
        for part, matches, name in zip(self._pattern, self._components, names, strict=False):
            if part == "**":
                return True
            if not matches(name):
                return False
        return not self._pattern or len(names) < len(self._pattern)

    def _is_file(self) -> bool:
        return bool(self._file_system.isfile(self._root))

    def _is_old_enough(self, entry: dict[str, Any]) -> bool:
        if not self._min_age:
            return True
        changed = changed_at(entry)
        if changed is None:
            raise ConfigurationError(
                f"the file system of {self._file_system.unstrip_protocol(entry['name'])} does not say when a file was"
                " changed, so min_age cannot be had there"
            )
        return time.time() - changed >= self._min_age


def changed_at(entry: dict[str, Any]) -> float | None:
    """Return when a file was changed, in seconds since 1970; None where the file system does not say."""
    value = next((entry[name] for name in _TIMES if entry.get(name) is not None), None)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, datetime):
        return value.timestamp()
    return float(value) if isinstance(value, int | float) else None


def version_of(entry: dict[str, Any]) -> str | None:
    """Return what tells whether a file is still the same, as ``kind=value``; None where there is nothing.

    Of a time whole seconds: some stores tell fractions when they list a folder, and not of a single file.
    """
    for name in _TAGS:
        if entry.get(name) is not None:
            return f"{name}={entry[name]}"
    if isinstance(entry.get("mtime"), float):  # of a local file: exact
        return f"mtime={entry['mtime']!r}"
    changed = changed_at(entry)
    return None if changed is None else f"changed={int(changed)}"


def is_same(listed: str | None, now: str | None) -> bool:
    """Whether two versions are of one file; a storage may tell more in a folder's listing than of a single file."""
    if listed is None or now is None or listed.partition("=")[0] != now.partition("=")[0]:
        return True
    return listed == now


def _matcher(parts: list[str]) -> Any:
    from fsspec.utils import glob_translate

    return re.compile(glob_translate("/".join(parts))).match
