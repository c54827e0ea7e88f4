"""The process that Spark's Python workers are forked from, with everything imported that a subtask needs.

Named by ``spark.python.daemon.module``. A worker that replaces a killed one begins in half the time, because it finds
the modules loaded. Nothing here opens a client or starts a thread: neither survives a fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import sys
import zipimport
from typing import TextIO

import pyspark.worker  # noqa: F401  # what every worker runs
from pyspark.daemon import manager

from .. import job  # noqa: F401  # what a user's file names, both sides with it
from ..schemas import codec
from . import task  # noqa: F401  # the subtask client, confluent-kafka and fastavro with it

_FOR_SOME = ("pyarrow", "pandas", f"{__package__}.streaming.source")
"""What a query's tasks need, and a subtask does not: left out where it is not installed."""


def forget_archives() -> None:
    """Drops what is remembered of zip files on the module path; what is needed of them again, is opened again.

    Each new worker invalidates the import caches, and would read their directories (Spark's own ones) many times over:
    a tenth of a second of work before it begins.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[path]


def import_for_some() -> None:
    for module in _FOR_SOME:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


def write_whole_lines(*streams: TextIO) -> None:
    """Write each line at once: Spark turns buffers off, and the lines of workers that print together would mix."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


if __name__ == "__main__":
    write_whole_lines(sys.stdout, sys.stderr)
    import_for_some()
    codec.prepare()
    forget_archives()
    gc.freeze()  # what is loaded by now stays shared between the workers
    manager()
