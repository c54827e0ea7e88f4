"""A rule set in a file, on any file system that fsspec knows: read again and again, told by its content."""

from __future__ import annotations

import hashlib
import os

import fsspec

from ..errors import ConfigurationError
from .source_port import Found, Look


class FileSource:
    """One file. Its position is the SHA-256 of the content that was read last."""

    def __init__(self, url: str, shown: str, bytes_max: int) -> None:
        self._url, self._shown, self._bytes_max = url, shown, bytes_max

    def look(self, position: str | None) -> Look:
        """Return the content if it differs from what was read last. A file that is not there has none."""
        files, path = fsspec.core.url_to_fs(self._url, use_listings_cache=False)
        try:
            with files.open(path, "rb") as file:
                content = file.read(self._bytes_max + 1)
        except FileNotFoundError:
            return Look(position, trouble=f"there is no file {self._shown}")
        digest = hashlib.sha256(content).hexdigest()
        if digest == position:
            return Look(position)
        return Look(digest, [Found(f"{self._shown} (sha256 {digest[:12]})", content)])

    def close(self) -> None:
        """Nothing is held open."""


def require_file_system(url: str, shown: str) -> None:
    """Raise ConfigurationError unless the URL names a file on a file system that is installed."""
    protocol = fsspec.core.split_protocol(url)[0] or ("file" if url.startswith("file:") else None)
    if protocol is None and not os.path.isabs(url):
        raise ConfigurationError(
            f"the source of rules is {shown!r}; use 'topic:NAME', an absolute path, or a URL such as"
            " 'file:/etc/rules.json' or 's3://bucket/rules.json'"
        )
    try:
        fsspec.get_filesystem_class(protocol or "file")
    except (ImportError, ValueError) as error:
        raise ConfigurationError(f"the source of rules {shown!r} cannot be read: {error}") from None
