"""Delta tables: one commit per checkpoint, under an application transaction of the job's incarnation."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from ..errors import ConfigurationError
from .data_files import split_by
from .delta_checks import check_table
from .delta_values import file_statistics, partition_value
from .table import Table
from .table_format import Connection, File, Output, require_pyarrow

_PLAIN = re.compile(r"[A-Za-z0-9_.:+-]{1,100}\Z")


@dataclass
class Delta(Table):
    """A Delta table at ``uri`` (an absolute path or a URL, as ``deltalake`` takes it) with rows of ``schema``.

    ``schema`` is a pyarrow.Schema. ``partition_by`` names columns. ``storage_options`` are those of ``deltalake``:
    credentials, endpoints. ``configuration`` is for a table that is created. The rest is as ``docs/tables.md`` says.
    """

    KIND: ClassVar[str] = "Delta"

    uri: str | os.PathLike[str]
    schema: Any
    _: KW_ONLY
    partition_by: Sequence[str] = ()
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    configuration: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        self.uri = os.fspath(self.uri)
        if not ("://" in self.uri or os.path.isabs(self.uri)):
            raise ConfigurationError(f"the uri of a Delta table must be an absolute path or a URL, not {self.uri!r}")
        self.uri = self.uri.rstrip("/") or "/"
        self.partition_by = (self.partition_by,) if isinstance(self.partition_by, str) else tuple(self.partition_by)
        self.check_options(self.schema)
        where = f"the Delta table {self.uri}"
        if missing := [name for name in self.partition_by if name not in self.schema.names]:
            raise ConfigurationError(f"partition_by of {where} names {missing[0]!r}, which its schema lacks")
        distinct = len(set(self.partition_by))
        if distinct < len(self.partition_by) or distinct == len(self.schema):
            raise ConfigurationError(
                f"partition_by of {where} must name each column once and leave one for the files: {self.partition_by}"
            )
        self.schema = delta_schema(self.schema, where)
        for name in self.partition_by:
            partition_value(self.schema.field(name), None, where)

    @property
    def name(self) -> str:
        return str(self.uri)

    def at(self, name: str) -> Delta:
        return replace(self, uri=name)

    def connect(self, *, check: bool = True) -> DeltaConnection:
        return DeltaConnection(self, check)

    def layout(self) -> DeltaLayout:
        return DeltaLayout(self)

    @property
    def options(self) -> dict[str, str] | None:
        return None if self.storage_options is None else dict(self.storage_options)


def delta_schema(schema: Any, where: str) -> Any:
    """Return the pyarrow schema that Delta stores for this one. Raises :class:`ConfigurationError`."""
    pa = require_pyarrow()
    deltalake = require_deltalake()
    fields = []
    for each in schema:
        try:
            fields.append(pa.schema(deltalake.Schema.from_arrow(pa.schema([each])).to_arrow()).field(0))
        except Exception as error:
            raise ConfigurationError(
                f"Delta has no type for the field {each.name!r} ({each.type}) of {where}: {str(error).splitlines()[0]}"
            ) from error
        if pa.types.is_null(each.type):
            raise ConfigurationError(f"the field {each.name!r} of {where} needs a type, it has null")
    return pa.schema(fields)


def require_deltalake() -> Any:
    """Import deltalake. Raises :class:`ConfigurationError` that names the extra."""
    try:
        import deltalake
    except ImportError as error:
        raise ConfigurationError('Delta tables need deltalake: pip install "penstock-spark[delta]"') from error
    return deltalake


class DeltaConnection(Connection):
    def __init__(self, table: Delta, check: bool) -> None:
        super().__init__(table.commit_timeout, f"the Delta table {table.uri}")
        self._table, self._check = table, check
        self._delta: Any = None
        self._checked: Any = None

    def refresh(self) -> None:
        deltalake, table = require_deltalake(), self._table
        known, self._delta = self._delta, None  # after an error it is read anew
        if known is None:
            try:
                known = deltalake.DeltaTable(table.name, storage_options=table.options)
            except deltalake.exceptions.TableNotFoundError as error:
                if not (self._check and table.create):
                    raise ConfigurationError(f"there is no Delta table at {table.uri}") from error
                deltalake.DeltaTable.create(
                    table.name,
                    deltalake.Schema.from_arrow(table.schema),
                    mode="ignore",  # whoever else creates it at this moment
                    partition_by=list(table.partition_by),
                    configuration=dict(table.configuration or {}),
                    storage_options=table.options,
                )
                known = deltalake.DeltaTable(table.name, storage_options=table.options)
        else:
            known.update_incremental()
        while self._check and (seen := _shape(known)) != self._checked:
            lacking = check_table(known, table.schema, table.partition_by, self.where, table.schema_mode == "merge")
            if lacking:
                known.alter.add_columns(lacking)
                known.update_incremental()
            else:
                self._checked = seen
        self._delta = known

    def last_committed(self, writer: str) -> int:
        found = self._delta.transaction_version(writer)
        return -1 if found is None else int(found)

    def append(self, writer: str, checkpoint_id: int, files: list[File]) -> None:
        deltalake = require_deltalake()
        from deltalake.transaction import AddAction

        actions = [
            AddAction(file["path"], file["size"], file["partition"], file["at"], True, file["stats"]) for file in files
        ]
        properties = deltalake.CommitProperties(
            custom_metadata={"penstock": {"writer": writer, "checkpoint": checkpoint_id}},
            # Two commits of one writer conflict with each other, also when deltalake itself tries again.
            app_transactions=[deltalake.Transaction(writer, checkpoint_id)],
        )
        delta, self._delta = self._delta, None
        delta.create_write_transaction(
            actions,
            "append",
            delta.schema(),
            list(delta.metadata().partition_columns),
            commit_properties=properties,
        )
        self._delta = delta

    def delete(self, paths: Iterable[str]) -> None:
        handler = _handler(self._table)
        for path in paths:
            with suppress(FileNotFoundError):
                handler.delete_file(path)

    def missing(self, files: Iterable[File]) -> list[str]:
        import pyarrow.fs as pafs

        paths = [file["path"] for file in files]
        return [
            path
            for path, info in zip(paths, _handler(self._table).get_file_info(paths), strict=True)
            if info.type == pafs.FileType.NotFound
        ]


def _shape(delta: Any) -> tuple[Any, ...]:
    """What must be looked at again when it has changed."""
    protocol, metadata = delta.protocol(), delta.metadata()
    return (
        delta.schema().to_json(), tuple(metadata.partition_columns), json.dumps(metadata.configuration, sort_keys=True),
        protocol.min_reader_version, protocol.min_writer_version, tuple(protocol.writer_features or ()),
    )  # fmt: skip


def _handler(table: Delta) -> Any:
    """Return deltalake's own file system of the table: the same storage options, the same behaviour."""
    require_deltalake()
    from deltalake.fs import DeltaStorageHandler

    class Storage(DeltaStorageHandler):
        def create(self, path: str) -> Any:
            # Without the pyarrow.PythonFile around it, which hands over buffers where bytes are wanted.
            return self._handler.open_output_stream(path, None)

    uri = table.name
    if "://" not in uri or uri.startswith("file://"):
        folder = Path(uri.removeprefix("file://"))
        folder.mkdir(parents=True, exist_ok=True)
        uri = folder.as_uri()
    return Storage(uri, table.options)


class DeltaLayout:
    """Data files of a Delta table. It need not be there yet: what is written is checked by its schema alone."""

    def __init__(self, table: Delta) -> None:
        self.schema = table.schema
        self.options: dict[str, Any] = {"compression": table.compression or "snappy"}
        self._where = f"the Delta table {table.uri}"
        self._columns = [name for name in table.schema.names if name not in table.partition_by]
        self._partition_fields = [table.schema.field(name) for name in table.partition_by]
        self._handler = _handler(table)

    def split(self, rows: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
        for values, part in split_by(rows, [rows.column(each.name) for each in self._partition_fields]):
            texts = zip(self._partition_fields, values, strict=True)
            yield tuple(partition_value(each, value, self._where) for each, value in texts), part.select(self._columns)

    def create(self, values: tuple[str | None, ...], name: str) -> tuple[str, Output]:
        # The folders are for people: readers take the values from the log. So a value that no path takes stays out.
        folders = (
            f"{each.name}={'__HIVE_DEFAULT_PARTITION__' if value is None else value if _PLAIN.match(value) else '_'}"
            for each, value in zip(self._partition_fields, values, strict=True)
        )
        path = "/".join([*folders, name])
        return path, _DeltaOutput(self._handler.create(path))

    def describe(
        self, values: tuple[str | None, ...], path: str, size: int, metadata: list[Any], with_nan: frozenset[str]
    ) -> File:
        import time

        return {
            "path": path,
            "size": size,
            "rows": metadata[0].num_rows,
            "partition": {each.name: value for each, value in zip(self._partition_fields, values, strict=True)},
            "stats": file_statistics(metadata[0], with_nan),
            "at": int(time.time() * 1000),
        }


class _DeltaOutput:
    """A file that stands under its name when it is closed, whole; until then it is an upload under way."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: bytes) -> None:
        self._stream.write(data)

    def close(self) -> None:
        self._stream.close()
        self._stream = None

    def abort(self) -> None:
        self._stream = None  # dropped, deltalake aborts the upload
