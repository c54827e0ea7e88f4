"""Read a job's checkpoint log to its end."""

from __future__ import annotations

import logging

from ..checkpoint_log.history import Keyed
from ..schemas.checkpoints import CheckpointLogRecord
from ..schemas.codec import decode
from ..schemas.errors import ForeignRecord, JobRefused, UnreadableRecord
from ..transport.ports import LogRecord, Partition, Transport

_log = logging.getLogger(__name__)


def read_log(job: str, transport: Transport, partition: Partition, timeout_s: float) -> list[Keyed]:
    """Return every record of a job's checkpoint log but those that are not Penstock's.

    Raises JobRefused if a record of Penstock's is damaged, or was written by a newer release.
    """
    records = list(transport.read_all(partition, timeout_s))
    read = [keyed for record in records if (keyed := readable(job, record)) is not None]
    if foreign := len(records) - len(read):
        _log.warning("job=%s: %d records of %s are not the job's: they are kept out", job, foreign, partition)
    return read


def readable(job: str, record: LogRecord) -> Keyed | None:
    """Return a record of Penstock's with its key, None for any other.

    A damaged record, or one of a newer release, refuses the start: it may be a checkpoint.
    """
    key = (record.key or b"").decode(errors="replace")
    if record.value is None:
        return key, None
    try:
        decoded = decode(record.value)
    except ForeignRecord:
        return None
    except UnreadableRecord as error:
        # mutant: damaged-record-kept-out
        raise JobRefused(
            f"record {record.offset} of {record.partition} cannot be read: {error}. Run the version of Penstock that"
            f" wrote it; if there is none, purge the job (penstock purge {job})"
        ) from error
    return (key, decoded) if isinstance(decoded, CheckpointLogRecord) else None
