"""Parquet files of one attempt: at most one open for each partition, closed at the target size or by a snapshot."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .table_format import File, Layout, Output

OPEN_MAX = 64
"""How many files may be open at once: of more partitions the largest file is closed early."""


class DataFiles:
    """Buffers rows by partition, writes them as row groups, and tells of each file that is closed."""

    def __init__(
        self, layout: Layout, owner: str, target_bytes: int, buffer_bytes: int, closed: Callable[[File], None]
    ) -> None:
        self._layout, self._owner, self._closed = layout, owner, closed
        self._target_bytes, self._buffer_bytes = target_bytes, buffer_bytes
        self._group_bytes = max(1, min(buffer_bytes, target_bytes))
        self._partitions: dict[tuple[Any, ...], _Partition] = {}
        self._buffered = 0
        self._count = 0

    def add(self, rows: Any) -> None:
        """Add an Arrow table in the layout's schema."""
        for values, part in self._layout.split(rows):
            partition = self._partitions.get(values)
            if partition is None:
                partition = self._partitions[values] = _Partition(values)
            partition.tables.append(part)
            size = part.nbytes
            partition.buffered += size
            self._buffered += size
            if partition.buffered >= self._group_bytes:
                self._write(partition)
        while self._buffered > self._buffer_bytes:
            self._write(max(self._partitions.values(), key=lambda each: each.buffered))

    def close_all(self) -> None:
        """Close every file: what was added so far is in files that :attr:`closed` has been told of."""
        for partition in list(self._partitions.values()):
            self._write(partition)
            self._close(partition)
        self._partitions.clear()

    def abort(self) -> None:
        """Give up what has not been closed."""
        for partition in self._partitions.values():
            if partition.file is not None:
                with suppress(Exception):
                    partition.file.abort()
        self._partitions.clear()
        self._buffered = 0

    def _write(self, partition: _Partition) -> None:
        import pyarrow as pa

        if not partition.tables:
            return
        table = pa.concat_tables(partition.tables)
        self._buffered -= partition.buffered
        partition.tables, partition.buffered = [], 0
        if partition.file is None:
            while sum(each.file is not None for each in self._partitions.values()) >= OPEN_MAX:
                self._close(max(self._partitions.values(), key=_written))
            name = f"{self._owner}.{self._count}.{uuid.uuid4().hex[:12]}.parquet"
            self._count += 1
            partition.file = _OpenFile(self._layout, partition.values, name, table.schema)
        partition.file.write(table)
        if partition.file.size >= self._target_bytes:
            self._close(partition)

    def _close(self, partition: _Partition) -> None:
        if partition.file is not None:
            file = partition.file.close()
            partition.file = None
            self._closed(file)


class _Partition:
    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = values
        self.tables: list[Any] = []
        self.buffered = 0
        self.file: _OpenFile | None = None


def _written(partition: _Partition) -> int:
    return -1 if partition.file is None else partition.file.size


class _Counting:
    """A file object for pyarrow that counts, and that swallows the footer once it has been given up."""

    def __init__(self, output: Output) -> None:
        self.output, self.size, self.closed = output, 0, False

    def write(self, data: Any) -> int:
        if self.closed:
            return len(data)
        data = bytes(data)
        self.output.write(data)
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        pass

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """Called by pyarrow; the file ends in :meth:`_OpenFile.close`."""


class _OpenFile:
    def __init__(self, layout: Layout, values: tuple[Any, ...], name: str, schema: Any) -> None:
        import pyarrow.parquet as pq

        self._layout, self._values = layout, values
        self.path, output = layout.create(values, name)
        self._target = _Counting(output)
        self._metadata: list[Any] = []
        self._with_nan: set[str] = set()
        self._writer = pq.ParquetWriter(self._target, schema, metadata_collector=self._metadata, **layout.options)

    @property
    def size(self) -> int:
        return self._target.size

    def write(self, table: Any) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        for field in table.schema:  # Parquet's statistics pass over NaN, and a reader must not
            if pa.types.is_floating(field.type) and pc.any(pc.is_nan(table.column(field.name))).as_py():
                self._with_nan.add(field.name)
        self._writer.write_table(table)

    def close(self) -> File:
        self._writer.close()
        self._target.closed = True
        self._target.output.close()
        return self._layout.describe(
            self._values, self.path, self._target.size, self._metadata, frozenset(self._with_nan)
        )

    def abort(self) -> None:
        self._target.closed = True
        with suppress(Exception):
            self._writer.close()
        self._target.output.abort()


def split_by(table: Any, keys: list[Any]) -> list[tuple[tuple[Any, ...], Any]]:
    """Return the rows by the values of ``keys`` (arrays as long as the table), each group in its order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not keys:
        return [((), table)]
    flat = [key.combine_chunks() if isinstance(key, pa.ChunkedArray) else key for key in keys]
    codes = pa.repeat(pa.scalar(0, pa.int64()), len(table))
    for key in flat:
        encoded = pc.dictionary_encode(key, null_encoding="encode")
        joined = pc.add(pc.multiply(codes, len(encoded.dictionary)), encoded.indices.cast(pa.int64()))
        # Encoded again each time, so that numbers stay below the number of rows.
        codes = pc.dictionary_encode(joined).indices.cast(pa.int64())
    order = pc.array_sort_indices(codes)  # stable: a group keeps its order
    ends = pc.run_end_encode(codes.take(order)).run_ends.to_pylist()
    groups, begin = [], 0
    for end in ends:
        rows = order.slice(begin, end - begin)
        first = rows[0].as_py()
        groups.append((tuple(key[first].as_py() for key in flat), table.take(rows)))
        begin = end
    return groups
