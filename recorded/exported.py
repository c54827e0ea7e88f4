"""Records in a file: JSON lines that `penstock events --json` prints, and that read back as the records they were."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..checkpoint_log.history import Checkpoint
from ..schemas.checkpoints import CheckpointCompleted, CheckpointPart, OperatorSnapshot, SchemaUsed
from ..schemas.codec import decode, encode
from ..schemas.errors import ConfigurationError, UnreadableRecord
from ..schemas.ids import SubtaskId
from ..transport.ports import LogRecord, Partition
from .reading import Recorded, recorded


def record_line(found: Recorded) -> dict[str, Any]:
    """What makes a line readable again; whoever prints it may add to it."""
    at = found.at
    return {
        "topic": at.partition.topic,
        "partition": at.partition.index,
        "offset": at.offset,
        "timestamp_ms": at.timestamp_ms,
        "key": _text(at.key),
        "value": _text(at.value),
    }


def checkpoint_line(job: str, checkpoint: Checkpoint, operator: str) -> dict[str, Any]:
    """What a checkpoint holds of an operator's subtasks, their inline states included."""
    snapshots = tuple(s for who, s in sorted(checkpoint.subtasks.items()) if who.operator == operator)
    header = checkpoint.header
    return {
        "job": job,
        "checkpoint_id": checkpoint.id,
        "operator": operator,
        "header": _text(encode(replace(header, operators=_without_states(header)))),
        "part": _text(encode(CheckpointPart(checkpoint.id, 0, operator, snapshots))),
    }


def _without_states(header: CheckpointCompleted) -> tuple[OperatorSnapshot, ...]:
    return tuple(replace(operator, coordinator_state=None) for operator in header.operators)


def schema_line(job: str, used: SchemaUsed) -> dict[str, Any]:
    """An Avro schema that events or states of the operator were written under."""
    return {"job": job, "operator": used.operator, "subject": used.subject, "schema": used.schema}


class Exported:
    """A file of such lines. ConfigurationError, with the line's number, for one that is none."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def checkpoint(self, checkpoint_id: int, operator: str) -> Checkpoint | None:
        """What the file holds of that checkpoint and operator; None where it holds none of it."""
        for number, line in self._lines():
            if "part" not in line or line.get("checkpoint_id") != checkpoint_id or line.get("operator") != operator:
                continue
            header, part = self._decoded(number, line.get("header")), self._decoded(number, line["part"])
            if not isinstance(header, CheckpointCompleted) or not isinstance(part, CheckpointPart):
                raise self._refused(number, "a checkpoint without its header or its subtasks")
            return Checkpoint(header, {SubtaskId(operator, s.subtask): s for s in part.subtasks})
        return None

    def schemas(self, operator: str) -> Iterator[tuple[str, str]]:
        """Subject and text of each schema that the operator's events and states were written under."""
        for _, line in self._lines():
            if "schema" in line and line.get("operator") == operator:
                yield str(line.get("subject")), str(line["schema"])

    def records(self, subtask: SubtaskId) -> Iterator[Recorded]:
        """Those of the subtask's events partition, in the order of their offsets."""
        last = -1
        for number, line in self._lines():
            if "value" not in line or not str(line.get("topic", "")).endswith(f".{subtask.operator}.events"):
                continue
            if line.get("partition") != subtask.index:
                continue
            try:
                offset, at_ms = int(line["offset"]), int(line["timestamp_ms"])
            except (KeyError, TypeError, ValueError):
                raise self._refused(number, "a record without an offset and a time") from None
            if offset <= last:
                raise self._refused(number, f"offset {offset} comes after offset {last}: lines of two exports")
            last = offset
            partition = Partition(line["topic"], subtask.index)
            key, value = self._bytes(number, line.get("key")), self._bytes(number, line["value"])
            yield recorded(LogRecord(partition, offset, at_ms, key, value))

    def _lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        try:
            with self.path.open(encoding="utf-8") as lines:
                for number, text in enumerate(lines, 1):
                    if text.strip():
                        yield number, self._object(number, text)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{self.path} cannot be read: {error}") from error

    def _object(self, number: int, text: str) -> dict[str, Any]:
        try:
            found = json.loads(text)
        except ValueError as error:
            raise self._refused(number, str(error)) from None
        if not isinstance(found, dict):
            raise self._refused(number, "no JSON object")
        return found

    def _decoded(self, number: int, text: Any) -> object:
        try:
            return decode(self._bytes(number, text))
        except UnreadableRecord as error:
            raise self._refused(number, str(error)) from error

    def _bytes(self, number: int, text: Any) -> bytes | None:
        if text is None:
            return None
        try:
            return base64.b64decode(text, validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise self._refused(number, "a value that is no base64") from None

    def _refused(self, number: int, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self.path}, line {number}: {why}; it must be what `penstock events JOB OPERATOR --json` printed"
        )


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")
