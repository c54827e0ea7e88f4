"""The rows of one subtask in its Spark task: read ahead by a thread, kept for a restart in place, checked when skipped.

The executor's JVM writes Arrow record batches to the Python worker's socket, once: they cannot be asked for again. So
what an attempt that starts over in place needs is kept here, up to a bound; past it, the task ends and Spark's retry
reads its partition again. There each row goes into a digest, by a hash that the JVM computed of it, so that rows that
are skipped are known to be the rows that were consumed.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import pyspark.serializers

from ..schemas.errors import SubtaskError
from ..schemas.ids import SubtaskId
from ..subtask_client.rows import DIGEST_BYTES, EndsTask, RowPosition

if TYPE_CHECKING:
    import pyarrow

_log = logging.getLogger(__name__)

_HASH_BYTES = 8
_SHOWN_CHARS = 500
_CHUNK_COST_BYTES = 2_048
"""What a batch takes in memory beside its message, about."""
_lengths: Any = pyspark.serializers.SpecialLengths
_read_int: Any = pyspark.serializers.read_int
_Serializer: Any = pyspark.serializers.Serializer
"""Untyped there."""


class InputChanged(SubtaskError):
    """The rows before a position are not the rows that were consumed: no restart helps."""


class InputLost(SubtaskError):
    """The stream of rows broke off; another task reads it again."""


class RowsNotKept(SubtaskError):
    """The rows since the last completed checkpoint did not fit into the bound; another task reads them again."""


class ArrowMessages(_Serializer):  # type: ignore[misc]  # untyped there
    """Byte arrays from the JVM. Unlike Spark's own, it tells the end of the data from the end of the JVM.

    An executor that dies must not look like an input that ends: the subtask would say that it has finished.
    """

    def load_stream(self, stream: BinaryIO) -> Iterator[bytes]:
        while True:
            try:
                length = _read_int(stream)
            except EOFError:
                raise InputLost("the executor's JVM has closed the stream of rows before its end") from None
            if length == _lengths.END_OF_DATA_SECTION:
                return
            if length < 0:
                raise InputLost(f"the stream of rows holds a {length} where a batch should begin")
            message = stream.read(length)
            if len(message) < length:
                raise InputLost("the executor's JVM has closed the stream of rows within a batch")
            yield message

    def __repr__(self) -> str:
        return "ArrowMessages()"


@dataclass(frozen=True, slots=True)
class RowsPlan:
    """What a task is told of its rows."""

    schema: bytes
    """Arrow's own encoding; the last column is the rows' hash, which users do not see."""
    description: str
    """The columns as people read them; begins the digest, so that other columns are other rows."""
    rows_per_batch: int
    """At most so many rows are handed over at once."""
    kept_bytes_max: int
    """So much is kept of what has been handed over since the last completed checkpoint."""
    ahead_bytes_max: int
    """So much is read ahead, and the batch that reaches it."""


class _Chunk:
    """One record batch as it came."""

    __slots__ = ("before", "begin", "columns", "end", "hashes", "size")

    def __init__(self, begin: int, columns: pyarrow.RecordBatch, hashes: memoryview, before: Any, size: int) -> None:
        self.begin, self.end = begin, begin + columns.num_rows
        self.columns, self.hashes = columns, hashes
        self.before = before
        """The digest of everything before ``begin``."""
        self.size = size
        """In bytes."""

    def digest(self, row: int) -> bytes:
        """Of all rows before ``row``, which is one of these, or the first behind them."""
        digest = self.before.copy()
        digest.update(self.hashes[: (row - self.begin) * _HASH_BYTES])
        return bytes(digest.digest())


class _Chunks:
    """Chunks in the order of their rows, and their size."""

    def __init__(self) -> None:
        self._chunks: deque[_Chunk] = deque()
        self.size = 0
        """In bytes."""

    def __len__(self) -> int:
        return len(self._chunks)

    @property
    def first(self) -> _Chunk:
        return self._chunks[0]

    @property
    def last(self) -> _Chunk:
        return self._chunks[-1]

    def append(self, chunk: _Chunk) -> None:
        self._chunks.append(chunk)
        self.size += chunk.size

    def pop_first(self) -> _Chunk:
        chunk = self._chunks.popleft()
        self.size -= chunk.size
        return chunk

    def put_before(self, other: _Chunks) -> None:
        """All of these go to the front of ``other``."""
        other._chunks.extendleft(reversed(self._chunks))
        other.size += self.size
        self._chunks.clear()
        self.size = 0


class ArrowRows:
    """The :class:`~penstock.subtask_client.rows.RowSource` of one Spark task; ``messages`` may block for long.

    A thread of its own reads, so that events are handled while the JVM computes. Its methods, but for the reading, are
    called on one thread; ``close`` lets the reader end behind the message it waits for.
    """

    def __init__(self, plan: RowsPlan, subtask: SubtaskId, messages: Iterator[bytes]) -> None:
        import pyarrow  # workers without rows need none

        self._plan, self._subtask, self._messages = plan, subtask, messages
        schema = pyarrow.ipc.read_schema(pyarrow.py_buffer(plan.schema))
        read: Any = pyarrow.ipc.read_record_batch
        self._decode: Callable[[bytes], pyarrow.RecordBatch] = lambda message: read(pyarrow.py_buffer(message), schema)
        self._changed = threading.Condition()
        self._kept = _Chunks()
        """Handed over, wholly."""
        self._present: _Chunk | None = None
        """Handed over in part, up to ``_next``."""
        self._ahead = _Chunks()
        self._next = 0
        """Row to be taken next; while a target is sought, that."""
        self._held_from = 0
        """Every row from here on is held, or still to be read."""
        self._digest: Any = hashlib.blake2b(plan.description.encode(), digest_size=DIGEST_BYTES)
        """Of all rows read."""
        self._read = 0
        """Rows read."""
        self._target: RowPosition | None = None
        """Where an attempt begins, until that row has been reached."""
        self._complete = False
        """Every row has been read."""
        self._error: Exception | None = None
        """Why the reader has stopped."""
        self._closed = False
        self._reader = threading.Thread(target=self._read_on, name=f"penstock-rows-{subtask}", daemon=True)

    # ---- what the subtask's thread asks

    def seek(self, position: RowPosition) -> None:
        with self._changed:
            if self._error is not None:
                raise EndsTask(self._error)
            if position.rows < self._held_from:
                raise EndsTask(
                    RowsNotKept(
                        f"subtask {self._subtask} starts over from row {position.rows} of its DataFrame, and its task"
                        f" holds rows from {self._held_from} on ({self._plan.kept_bytes_max} bytes are kept at most):"
                        " the next task reads them again. A larger kept_bytes of DataFrameInput spares that"
                    )
                )
            if self._present is not None:
                self._kept.append(self._present)
                self._present = None
            self._kept.put_before(self._ahead)
            self._target, self._next = position, position.rows
            self._look_for_target()
            self._changed.notify()
        if not self._reader.is_alive() and not self._complete:
            self._reader.start()

    def take(self) -> pyarrow.RecordBatch | None:
        with self._changed:
            if isinstance(self._error, InputChanged):
                raise self._error  # so that the coordinator gets the cause; Spark may be deaf while it computes rows
            if self._error is not None:
                raise EndsTask(self._error)
            if self._target is not None:
                return None
            chunk = self._chunk_to_take_from()
            if chunk is None:
                return None
            begin = self._next - chunk.begin
            rows = min(chunk.end - self._next, self._plan.rows_per_batch)
            self._next += rows
            return chunk.columns.slice(begin, rows)

    @property
    def ended(self) -> bool:
        with self._changed:
            return self._complete and self._error is None and self._target is None and self._next == self._read

    def position(self) -> RowPosition:
        with self._changed:
            if self._target is not None and self._target.digest is not None:
                return self._target
            if self._present is not None:
                return RowPosition(self._next, self._present.digest(self._next))
            if self._kept:  # all of it taken
                return RowPosition(self._next, self._kept.last.digest(self._next))
            first = self._ahead.first.before if self._ahead else self._digest
            return RowPosition(self._next, first.copy().digest())

    def completed(self, position: RowPosition) -> None:
        with self._changed:
            while self._kept and self._kept.first.end <= position.rows:
                self._held_from = self._kept.pop_first().end

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    # ---- within the lock

    def _chunk_to_take_from(self) -> _Chunk | None:
        chunk = self._present
        if chunk is not None and self._next == chunk.end:
            self._kept.append(chunk)
            self._present = chunk = None
            self._keep_to_bound()
        if chunk is None and self._ahead:
            self._present = chunk = self._ahead.pop_first()
            self._changed.notify()
        return chunk

    def _keep_to_bound(self) -> None:
        while self._kept and self._kept.size > self._plan.kept_bytes_max:
            self._held_from = self._kept.pop_first().end

    def _look_for_target(self) -> None:
        """Drops what lies before the target; once it is reached, compares what was skipped."""
        target = self._target
        if target is None:
            return
        while self._ahead and self._ahead.first.end <= target.rows:
            self._held_from = self._ahead.pop_first().end
        if self._ahead:
            found = self._ahead.first.digest(target.rows)
        elif self._read == target.rows:
            found = self._digest.copy().digest()
        elif self._complete:
            self._error = self._changed_rows(target, f"it has {self._read} rows in all now")
            return
        else:
            return
        self._target = None
        if target.digest is not None and target.digest != found:
            self._error = self._changed_rows(target, "they are others now, or in another order")
        elif self._ahead and target.rows > self._ahead.first.begin:
            self._present = self._ahead.pop_first()

    def _changed_rows(self, target: RowPosition, how: str) -> InputChanged:
        rows = f"rows 0 to {target.rows - 1}" if target.rows else "the columns"
        columns = self._plan.description
        columns = columns if len(columns) <= _SHOWN_CHARS else columns[:_SHOWN_CHARS] + " ..."
        return InputChanged(
            f"the DataFrame of operator {self._subtask.operator!r} has changed: of subtask {self._subtask.index}'s"
            f" partition a checkpoint contains {rows}, and {how} ({columns}). An input must give the"
            " same rows in the same order each time it is computed. Write it to files and read those, or checkpoint()"
            " it before the run (which helps within one Spark application); then start the job afresh, or from a"
            " checkpoint of before"
        )

    # ---- the reader's thread

    def _read_on(self) -> None:
        try:
            for message in self._messages:
                if not self._arrived(message):
                    return
        except Exception as error:
            _log.warning("subtask=%s: its rows cannot be read any further: %s", self._subtask, error)
            self._stop_with(error if isinstance(error, SubtaskError) else _lost(error))
        else:
            with self._changed:
                self._complete = True
                self._look_for_target()

    def _arrived(self, message: bytes) -> bool:
        """Takes one message in, when there is room; false where nobody wants more."""
        batch = self._decode(message)
        if not batch.num_rows:
            return True
        last = batch.num_columns - 1
        hashes = batch.column(last)
        values = memoryview(hashes.buffers()[1])[hashes.offset * _HASH_BYTES :][: len(hashes) * _HASH_BYTES]
        columns = batch.select(list(range(last)))
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._has_room())
            if self._closed:
                return False
            size = len(message) + _CHUNK_COST_BYTES
            self._ahead.append(_Chunk(self._read, columns, values, self._digest.copy(), size))
            self._digest.update(values)
            self._read += columns.num_rows
            self._look_for_target()
        return True

    def _has_room(self) -> bool:
        return self._ahead.size < self._plan.ahead_bytes_max

    def _stop_with(self, error: Exception) -> None:
        with self._changed:
            self._error = self._error or error


def _lost(error: Exception) -> InputLost:
    return InputLost(f"the stream of rows broke off: {type(error).__name__}: {error}")
