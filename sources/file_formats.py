"""What a file's name says about what is in it."""

from __future__ import annotations

FORMATS = ("csv", "json", "parquet")
_SUFFIXES = {"csv": "csv", "json": "json", "jsonl": "json", "ndjson": "json", "parquet": "parquet"}
_COMPRESSED = ("gz", "bz2", "xz", "zst", "lz4", "zip", "snappy", "lzma")
"""What fsspec decompresses by name."""


def format_of(name: str) -> str | None:
    """Return the format of a file by its name; None where that does not tell."""
    parts = name.rpartition("/")[2].lower().split(".")
    if len(parts) > 1 and parts[-1] in _COMPRESSED:
        parts.pop()
    return _SUFFIXES.get(parts[-1]) if len(parts) > 1 else None


def is_cut(format: str | None, name: str) -> bool:
    """Whether a reader can begin in the middle of such a file: at a row group, or at a line."""
    return format == "parquet" or (format == "json" and not name.lower().endswith(tuple(f".{c}" for c in _COMPRESSED)))
