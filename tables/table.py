"""The options that a Delta and an Iceberg table share, and their sink."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

from ..errors import ConfigurationError
from .table_committer import TableCommitter
from .table_format import MIB, Connection, Layout, require_pyarrow
from .table_writer import DataFrameWriter, TableWriter


@dataclass
class Table(ABC):
    """A table that a sink writes to. See :class:`Delta` and :class:`Iceberg`."""

    KIND: ClassVar[str]

    _: KW_ONLY
    schema_mode: Literal["merge"] | None = None
    create: bool = True
    target_file_size: int = 128 * MIB
    buffer_bytes: int = 64 * MIB
    compression: str | None = None
    commit_timeout: float = 120.0

    @property
    @abstractmethod
    def name(self) -> str:
        """What the table is called: files remember which table they were written for."""

    @abstractmethod
    def at(self, name: str) -> Table:
        """Return the same table under another name."""

    @abstractmethod
    def connect(self, *, check: bool = True) -> Connection:
        """Return the coordinator's way to the table; nothing is read yet."""

    @abstractmethod
    def layout(self) -> Layout:
        """Return how data files are written."""

    def sink(self, encode: Callable[[Any], Any] | None = None, *, dataframe: bool = False) -> dict[str, Any]:
        """Return keyword arguments for :meth:`penstock.Job.operator`: a sink that commits each checkpoint once.

        ``encode(record)``, where given, returns what the table holds for a record: a dict, or a pyarrow RecordBatch or
        Table of many rows. ``dataframe``: the operator takes a DataFrame's rows (``inputs=`` of
        ``spark_integration.run``), as RecordBatches, and no other operator's records.
        """
        if encode is not None and not callable(encode):
            raise ConfigurationError(f"encode of a sink for {self.name} must be a function of a record, not {encode!r}")
        return {
            "coordinator": functools.partial(TableCommitter, self),
            "subtask": functools.partial(DataFrameWriter if dataframe else TableWriter, self, encode),
            "codec": "json",
            "state_codec": "json",
            "on_failover": "replay",
        }

    def check_options(self, schema: Any) -> None:
        """Raise :class:`ConfigurationError` for an option that cannot be."""
        where = f"the {self.KIND} table {self.name}"
        if self.schema_mode not in (None, "merge"):
            raise ConfigurationError(f"schema_mode of {where} must be 'merge' or None, not {self.schema_mode!r}")
        for option in ("target_file_size", "buffer_bytes", "commit_timeout"):
            value = getattr(self, option)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ConfigurationError(f"{option} of {where} must be a number above 0, not {value!r}")
        pa = require_pyarrow()
        if not isinstance(schema, pa.Schema) or not len(schema):
            raise ConfigurationError(
                f"the schema of {where} must be a pyarrow.Schema with at least one field, not {schema!r}"
            )
        names = schema.names
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigurationError(f"the schema of {where} has two fields {doubled[0]!r}")
