"""Folders of a local or mounted file system, where a rename is one step."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..schemas.errors import ConfigurationError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def local_folder(folder: str | os.PathLike[str], whose: str, otherwise: str = "") -> Path:
    """The folder as a path; a URL may have the scheme ``file``. Raises :class:`ConfigurationError` for others.

    ``whose``: a file sink, say; ``otherwise``: another way out for who has an object store.
    """
    named = os.fspath(folder) if isinstance(folder, str | os.PathLike) else folder
    if not isinstance(named, str) or not named:
        raise ConfigurationError(f"the folder of {whose} must be a path, not {folder!r}")
    if _URL.match(named):
        parts = urlsplit(named)
        if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
            raise ConfigurationError(
                f"the folder of {whose} cannot be {named!r}: only file systems rename a file in one step, object"
                " stores do not, so files there could be seen half or twice. Give a folder that the driver and every"
                f" machine of the job have mounted, as a path or a file:// URL{otherwise}"
            )
        named = unquote(parts.path)
    path = Path(named)
    if not path.is_absolute():
        raise ConfigurationError(
            f"the folder of {whose} must be absolute, not {named!r}: each worker has a working folder of its own"
        )
    return path


def sync(path: Path) -> None:
    """What a file holds, or which names a folder has, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
