"""Sinks: subtasks that write records where other systems read them, each exactly once (``docs/sinks.md``)."""

from __future__ import annotations

if __name__ != "penstock.sinks":
    raise ImportError(f"import this package as penstock.sinks, not as {__name__}")

from .file_sink import FileSink
from .formats import Format, JsonLines, Parquet, Writer

__all__ = ["FileSink", "Format", "JsonLines", "Parquet", "Writer"]
