"""Tells tasks to leave where whoever ended their job could not, or died before it did (protocol, section 4)."""

from __future__ import annotations

from ..checkpoint_log.history import History
from ..schemas.codec import encode
from ..schemas.errors import TransportError
from ..schemas.settings import JobSettings
from ..transport.ports import Partition, Transport, Writer
from . import preflight
from .acks_reader import read_range
from .protocol import late_stops


def tell_to_leave(
    settings: JobSettings, transport: Transport, writer: Writer, history: History, deadline_s: float
) -> None:
    """Raises TransportError where that is not certain to stand: then somebody has to do it again."""
    acks, failed = Partition(settings.topics.acks, 0), list[Exception]()
    end = transport.offsets([acks], deadline_s)[acks].end
    for subtask, stop in late_stops.stops(
        settings, history, read_range(transport, acks, late_stops.hellos_from(history), end, deadline_s)
    ):
        key = f"{subtask.index}:{stop.attempt}".encode()
        partition = preflight.event_partition(settings, subtask)
        writer.append(partition, encode(stop), key, lambda _, error: failed.append(error) if error else None)
    if not writer.flush(deadline_s) or failed:
        why = failed[0] if failed else f"no answer within {deadline_s:g} s"
        raise TransportError(f"job {settings.name} has ended, and its tasks could not be told to leave: {why}")


def untold(job: str) -> TransportError:
    """What breaks off a coordinator whose last words may not stand: the instance behind it tells them again."""
    return TransportError(f"job {job} has ended, and the broker did not certainly take what tells its tasks to leave")
