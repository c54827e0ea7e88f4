"""Iceberg tables: one snapshot per checkpoint, and in the same commit a table property that says so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar

from ..errors import ConfigurationError, StateError
from .data_files import split_by
from .table import Table
from .table_format import Connection, File, Output

_PARTITION = re.compile(r"(?:(?P<transform>[a-z]+)\((?:(?P<width>\d+), *)?)?(?P<column>[^()]+?)\)?\Z")
_TRANSFORMS = {"years": "year", "months": "month", "days": "day", "hours": "hour"}


@dataclass
class Iceberg(Table):
    """The Iceberg table ``identifier`` ("db.flights") of a catalog, with rows of ``schema``, a pyarrow.Schema.

    ``catalog`` is a name that pyiceberg's configuration knows, the properties of one (a mapping, with its "name"), or a
    pyiceberg Catalog, of which name and properties are taken. ``partition_by`` holds columns and transforms as Spark
    SQL writes them: "carrier", "days(time)", "bucket(16, id)". ``properties`` are for a table that is created. The rest
    is as ``docs/tables.md`` says.
    """

    KIND: ClassVar[str] = "Iceberg"

    catalog: Any = field(repr=False)
    identifier: str
    schema: Any
    _: KW_ONLY
    partition_by: Sequence[str] = ()
    properties: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.identifier, str) or "." not in self.identifier:
            raise ConfigurationError(
                f"the identifier of an Iceberg table is like 'db.flights', not {self.identifier!r}"
            )
        self.check_options(self.schema)
        if isinstance(self.catalog, str):
            self.catalog = {"name": self.catalog}
        elif isinstance(self.catalog, Mapping):
            self.catalog = {"name": "default", **self.catalog}
        else:  # a Catalog holds connections, and cannot travel
            name, properties = getattr(self.catalog, "name", None), getattr(self.catalog, "properties", None)
            if not isinstance(name, str) or not isinstance(properties, Mapping):
                raise ConfigurationError(
                    f"the catalog of the Iceberg table {self.identifier} must be a name, a mapping of properties or a"
                    f" pyiceberg Catalog, not {type(self.catalog).__name__}"
                )
            self.catalog = {**properties, "name": name}
        self.partition_by = (self.partition_by,) if isinstance(self.partition_by, str) else tuple(self.partition_by)
        for each in self.partition_by:
            _, column = self.transform(each)
            if column not in self.schema.names:
                raise ConfigurationError(
                    f"partition_by of the Iceberg table {self.identifier} names {column!r}, which its schema lacks"
                )

    @property
    def name(self) -> str:
        return self.identifier

    def at(self, name: str) -> Iceberg:
        return replace(self, identifier=name)

    def connect(self, *, check: bool = True) -> IcebergConnection:
        return IcebergConnection(self, check)

    def layout(self) -> IcebergLayout:
        connection = self.connect()
        connection.prepare()  # its field ids are the table's, so it must be there
        return IcebergLayout(self, connection.table)

    def transform(self, text: str) -> tuple[str, str]:
        """Return a partition field's transform, as Iceberg calls it, and its column."""
        found = _PARTITION.match(text)
        if found is None or ("(" in text) is not text.endswith(")"):
            raise ConfigurationError(
                f"partition_by of the Iceberg table {self.identifier} has {text!r}: use a column, or years, months,"
                " days, hours(column), bucket, truncate(number, column)"
            )
        transform = found["transform"] or "identity"
        transform = _TRANSFORMS.get(transform, transform)
        return transform + (f"[{found['width']}]" if found["width"] else ""), found["column"]

    def load_catalog(self) -> Any:
        """Return the catalog, connected anew."""
        require_pyiceberg()
        from pyiceberg.catalog import load_catalog

        properties = dict(self.catalog)
        return load_catalog(properties.pop("name"), **properties)


def require_pyiceberg() -> None:
    """Import pyiceberg. Raises :class:`ConfigurationError` that names the extra."""
    try:
        import pyiceberg  # noqa: F401
    except ImportError as error:
        raise ConfigurationError('Iceberg tables need pyiceberg: pip install "penstock-spark[iceberg]"') from error


class IcebergConnection(Connection):
    def __init__(self, table: Iceberg, check: bool) -> None:
        super().__init__(table.commit_timeout, f"the Iceberg table {table.identifier}")
        self._table, self._check = table, check
        self._catalog: Any = None
        self.table: Any = None
        """As read last."""
        self._checked: Any = None

    def refresh(self) -> None:
        require_pyiceberg()
        from pyiceberg.exceptions import NoSuchTableError

        if self._catalog is None:
            self._catalog = self._table.load_catalog()
        try:
            self.table = self._catalog.load_table(self._table.identifier)
        except NoSuchTableError as error:
            if not (self._check and self._table.create):
                raise ConfigurationError(f"there is no Iceberg table {self._table.identifier}") from error
            self._create()
            self.table = self._catalog.load_table(self._table.identifier)
        while self._check and (seen := _shape(self.table)) != self._checked:
            lacking = self._check_table()
            if lacking:
                import pyarrow as pa

                with self.table.update_schema() as update:
                    update.union_by_name(pa.schema(lacking))
                self.table = self._catalog.load_table(self._table.identifier)
            else:
                self._checked = seen

    def last_committed(self, writer: str) -> int:
        return int(self.table.properties.get(_property(writer), -1))

    def append(self, writer: str, checkpoint_id: int, files: list[File]) -> None:
        table = self.table
        spec_id = table.metadata.default_spec_id
        if other := [file for file in files if file["spec"] != spec_id]:
            raise StateError(
                f"the partition spec of {self.where} has changed from {other[0]['spec']} to {spec_id}, and data files"
                f" of checkpoint {checkpoint_id} were written under the old one. Change it back, and change it again"
                " while the job is stopped with a savepoint"
            )
        # pyiceberg's own retry would append to a table that it has not looked at: Connection.commit looks.
        table.metadata.properties["commit.retry.num-retries"] = "0"
        mark = {"penstock.writer": writer, "penstock.checkpoint": str(checkpoint_id)}
        transaction = table.transaction()
        # A property, and not the snapshot's summary alone: it is there when the snapshot has been expired.
        transaction.set_properties({_property(writer): str(checkpoint_id)})
        snapshot = transaction.update_snapshot(snapshot_properties=mark).fast_append()
        for file in files:
            snapshot.append_data_file(_data_file(file, table))
        snapshot.commit()
        transaction.commit_transaction()

    def delete(self, paths: Iterable[str]) -> None:
        self.refresh()
        for path in paths:
            with suppress(FileNotFoundError):
                self.table.io.delete(path)

    def missing(self, files: Iterable[File]) -> list[str]:
        return [file["path"] for file in files if not self.table.io.new_input(file["path"]).exists()]

    def _create(self) -> None:
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
        from pyiceberg.transforms import parse_transform

        table = self._table
        self._catalog.create_namespace_if_not_exists(table.identifier.rpartition(".")[0])
        properties = dict(table.properties or {})
        begin = self._catalog.create_table_transaction
        with (
            suppress(TableAlreadyExistsError, CommitFailedException),  # whoever else creates it at this moment
            begin(table.identifier, table.schema, properties=properties) as transaction,
            transaction.update_spec() as update,
        ):
            for each in table.partition_by:
                transform, column = table.transform(each)
                update.add_field(column, parse_transform(transform), _field_name(transform, column))

    def _check_table(self) -> list[Any]:
        """Return the sink's fields that the table lacks and that may be added. Raises ConfigurationError."""
        import pyarrow as pa
        from pyiceberg.io.pyarrow import pyarrow_to_schema

        schema, mine, where = self.table.schema(), self._table.schema, self.where
        has = [(str(each.transform), schema.find_column_name(each.source_id)) for each in self.table.spec().fields]
        if has != [self._table.transform(each) for each in self._table.partition_by]:
            raise ConfigurationError(
                f"{where} is partitioned by {[f'{t}({c})' for t, c in has]}, and the sink was told"
                f" {list(self._table.partition_by)}: give partition_by= as the table has it"
            )
        there = {each.name: each for each in schema.fields}
        known = [each for each in mine if each.name in there]
        try:
            wanted = pyarrow_to_schema(pa.schema(known), name_mapping=schema.name_mapping)
        except Exception as error:
            raise ConfigurationError(f"the sink's schema does not fit {where}: {error}") from error
        for each in wanted.fields:
            column = there[each.name]
            if str(column.field_type) != str(each.field_type):
                raise ConfigurationError(
                    f"the column {each.name!r} of {where} is {column.field_type}, the sink's is {each.field_type}"
                )
            if column.required and not each.required:
                raise ConfigurationError(
                    f"the column {each.name!r} of {where} takes no null: give the sink's field nullable=False"
                )
        if unfed := [name for name, column in there.items() if column.required and name not in mine.names]:
            raise ConfigurationError(f"{where} has a column {unfed[0]!r} that takes no null, and the sink's lacks it")
        lacking = [each for each in mine if each.name not in there]
        if lacking and self._table.schema_mode != "merge":
            names = [each.name for each in lacking]
            raise ConfigurationError(f"{where} lacks the columns {names}: with schema_mode='merge' the sink adds them")
        if unfit := [each.name for each in lacking if not each.nullable]:
            raise ConfigurationError(
                f"the columns {unfit} cannot be added to {where}: an added column must be nullable"
            )
        return lacking


def _shape(table: Any) -> tuple[Any, ...]:
    """What must be looked at again when it has changed."""
    return table.metadata.current_schema_id, table.metadata.default_spec_id, table.metadata.table_uuid


def _property(writer: str) -> str:
    return f"{writer.replace('/', '.')}.checkpoint"


def _field_name(transform: str, column: str) -> str:
    return column if transform == "identity" else f"{column}_{transform.partition('[')[0]}"


class IcebergLayout:
    """Data files of an Iceberg table, with its field ids."""

    def __init__(self, table: Iceberg, opened: Any) -> None:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        self._io = opened.io
        self._metadata = opened.metadata
        self._schema = opened.schema()
        self._spec = opened.spec()
        self._locations = opened.location_provider()
        self._file_schema = schema_to_pyarrow(self._schema, include_field_ids=True)
        self.schema = table.schema
        self.options: dict[str, Any] = {"compression": table.compression or "zstd", "store_decimal_as_integer": True}
        self._sources = [
            (self._schema.find_column_name(each.source_id), each.transform.pyarrow_transform(source.field_type))
            for each in self._spec.fields
            for source in [self._schema.find_field(each.source_id)]
        ]

    def split(self, rows: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
        import pyarrow as pa

        columns = []
        for each in self._file_schema:
            if each.name in rows.schema.names:
                columns.append(rows.column(each.name).cast(each.type))
            else:
                columns.append(pa.nulls(len(rows), each.type))
        whole = pa.Table.from_arrays(columns, schema=self._file_schema)
        yield from split_by(whole, [transform(whole.column(name)) for name, transform in self._sources])

    def create(self, values: tuple[Any, ...], name: str) -> tuple[str, Output]:
        path = self._locations.new_data_location(data_file_name=name, partition_key=self._key(values))
        return path, _IcebergOutput(self._io, path)

    def describe(
        self, values: tuple[Any, ...], path: str, size: int, metadata: list[Any], with_nan: frozenset[str]
    ) -> File:
        from pyiceberg.conversions import to_bytes
        from pyiceberg.io.pyarrow import (
            compute_statistics_plan,
            data_file_statistics_from_parquet_metadata,
            parquet_path_to_id_mapping,
        )

        statistics = data_file_statistics_from_parquet_metadata(
            metadata[0],
            compute_statistics_plan(self._schema, self._metadata.properties),
            parquet_path_to_id_mapping(self._schema),
        ).to_serialized_dict()
        unbounded = {each.field_id for each in self._schema.fields if each.name in with_nan}
        for which in ("lower_bounds", "upper_bounds"):
            statistics[which] = {k: v.hex() for k, v in statistics[which].items() if k not in unbounded}
        key = self._key(values)
        types = [each.field_type for each in self._spec.partition_type(self._schema).fields]
        partition = (
            []
            if key is None
            else [
                None if value is None else to_bytes(kind, value).hex()
                for kind, value in zip(types, (key.partition[i] for i in range(len(types))), strict=True)
            ]
        )
        rows = statistics.pop("record_count")
        return {
            "path": path, "size": size, "rows": rows, "spec": self._spec.spec_id, "partition": partition,
            "statistics": {
                name: value if isinstance(value, list) else [[k, v] for k, v in value.items()]
                for name, value in statistics.items()
            },
        }  # fmt: skip

    def _key(self, values: tuple[Any, ...]) -> Any:
        from pyiceberg.partitioning import PartitionFieldValue, PartitionKey

        if not values:
            return None
        found = [PartitionFieldValue(each, value) for each, value in zip(self._spec.fields, values, strict=True)]
        return PartitionKey(field_values=found, partition_spec=self._spec, schema=self._schema)


def _data_file(file: File, table: Any) -> Any:
    """Return a described file as pyiceberg knows it."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    types = [each.field_type for each in table.spec().partition_type(table.schema()).fields]
    partition = [
        None if value is None else from_bytes(kind, bytes.fromhex(value))
        for kind, value in zip(types, file["partition"], strict=True)
    ]
    statistics: dict[str, Any] = {}
    for name, value in file["statistics"].items():
        if name == "split_offsets":
            statistics[name] = value
        elif name in ("lower_bounds", "upper_bounds"):
            statistics[name] = {k: bytes.fromhex(v) for k, v in value}
        else:
            statistics[name] = dict(value)
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=file["path"],
        file_format=FileFormat.PARQUET,
        partition=Record(*partition),
        file_size_in_bytes=file["size"],
        record_count=file["rows"],
        sort_order_id=None,
        spec_id=file["spec"],
        equality_ids=None,
        key_metadata=None,
        **statistics,
    )


class _IcebergOutput:
    def __init__(self, io: Any, path: str) -> None:
        self._io, self._path = io, path
        self._stream = io.new_output(path).create(overwrite=False)

    def write(self, data: bytes) -> None:
        self._stream.write(data)

    def close(self) -> None:
        self._stream.close()

    def abort(self) -> None:
        with suppress(Exception):
            self._stream.close()
        with suppress(FileNotFoundError):
            self._io.delete(self._path)
