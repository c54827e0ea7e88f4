"""What a coordinator process reads, decoded as its runtime does."""

from __future__ import annotations

from penstock.schemas.acks import AcksRecord
from penstock.schemas.checkpoints import CheckpointLogRecord
from penstock.schemas.codec import decode
from penstock.schemas.errors import ForeignRecord
from penstock.schemas.status import StatusRecord
from penstock.transport.ports import LogRecord


def decoded_ack(record: LogRecord) -> AcksRecord | None:
    """None for what does not belong on the acks topic, or is unreadable."""
    try:
        decoded = decode(record.value)
    except ForeignRecord:
        return None
    return decoded if isinstance(decoded, AcksRecord) else None


def keyed(record: LogRecord) -> tuple[str, CheckpointLogRecord | None]:
    """A record of the checkpoint log under its key."""
    key = (record.key or b"").decode()
    if record.value is None:
        return key, None
    decoded = decode(record.value)
    assert isinstance(decoded, CheckpointLogRecord)
    return key, decoded


def reply_of(record: LogRecord) -> StatusRecord | None:
    """None for what is unreadable."""
    try:
        decoded = decode(record.value)
    except ForeignRecord:
        return None
    return decoded if isinstance(decoded, StatusRecord) else None
