"""What a job has written, as a DataFrame: the visible files of a file sink (``docs/sinks.md``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlsplit

from ..schemas.errors import ConfigurationError, JobError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_READERS = {".parquet": "parquet", ".jsonl": "json"}


def read_results(
    spark: SparkSession, folder: str, *, job: str, operator: str, schema: StructType | str | None = None
) -> DataFrame:
    """The records that ``operator`` of ``job`` has made visible in ``folder``, whose sink writes Parquet or JSON lines.

    The files are listed now, in this process: what becomes visible later is not in it. ``schema`` is Spark's; without
    one it is read from the files. Raises ConfigurationError for a folder or format that cannot be read like this, and
    JobError where nothing is visible and no schema says what nothing looks like.
    """
    given: Any = spark
    found = sorted(path for path in _local(folder).glob(f"{job}.{operator}.*") if path.is_file())
    suffixes = {path.suffix for path in found}
    if len(suffixes) > 1 or not suffixes <= _READERS.keys():
        raise ConfigurationError(
            f"the files of {job}.{operator} in {folder} end with {', '.join(sorted(suffixes))}: read_results knows one"
            f" of {', '.join(_READERS)} at a time; read them with spark.read"
        )
    if not found:
        if schema is None:
            raise JobError(
                f"operator {operator!r} of job {job!r} has no visible file in {folder}: a file becomes visible when its"
                " checkpoint has completed. Give a schema, where no records are a result"
            )
        return cast("DataFrame", given.createDataFrame([], schema))
    reader = given.read if schema is None else given.read.schema(schema)
    return cast("DataFrame", reader.format(_READERS[suffixes.pop()]).load([path.as_uri() for path in found]))


def _local(folder: str) -> Path:
    parts = urlsplit(folder)
    path = Path(unquote(parts.path) if parts.scheme == "file" else folder)
    if parts.scheme not in ("", "file") or not path.is_absolute():
        raise ConfigurationError(f"folder is {folder!r}; it must be the absolute path, or the file:// URL, of a sink's")
    if not path.is_dir():
        raise ConfigurationError(f"the folder {folder} is not there, or not seen by this machine")
    return path
