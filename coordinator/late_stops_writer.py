"""Tells tasks to leave where whoever ended their job could not, or died before it did (protocol, section 4)."""

from __future__ import annotations

from ..checkpoint_log.history import History
from ..schemas.codec import encode
from ..schemas.errors import TransportError
from ..schemas.settings import JobSettings
from ..transport.ports import Partition, Transport, Writer
from .acks_reader import read_range
from .partitions import event_partition
from .protocol import late_stops


def tell_to_leave(
    settings: JobSettings, transport: Transport, writer: Writer, history: History, deadline_s: float
) -> None:
    """Write a Stop for each task that may not know that the job has ended.

    Raises TransportError if the broker may not have taken one: then another coordinator instance must write them again.
    """
    acks, failed = Partition(settings.topics.acks, 0), list[Exception]()
    end = transport.offsets([acks], deadline_s)[acks].end
    for subtask, stop in late_stops.stops(
        settings, history, read_range(transport, acks, late_stops.hellos_from(history), end, deadline_s)
    ):
        key = f"{subtask.index}:{stop.attempt}".encode()
        partition = event_partition(settings, subtask)
        writer.append(partition, encode(stop), key, lambda _, error: failed.append(error) if error else None)
    if not writer.flush(deadline_s) or failed:
        why = failed[0] if failed else f"no answer within {deadline_s:g} s"
        raise TransportError(f"job {settings.name} has ended, and its tasks could not be stopped: {why}")


def untold(job: str) -> TransportError:
    """Return the error that ends a coordinator whose Stops may not be written: its successor writes them again."""
    return TransportError(f"job {job} has ended, and the broker may not have taken the Stop of each task")
