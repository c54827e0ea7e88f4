"""What a subtask reads of its events and its inputs: one reader, seeks, pauses, and the cache of what was skipped."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.schemas.codec import encode
from penstock.schemas.data import RecordFrame
from penstock.schemas.events import Reset
from penstock.schemas.frames import pack
from penstock.schemas.state import Sender
from penstock.schemas.topics import TopicSpec
from penstock.subtask_client.incoming import Incoming
from penstock.subtask_client.protocol import inputs as on
from penstock.transport import MemoryBroker, MemoryTransport, Partition

EVENTS, LEFT, RIGHT = Partition("events", 0), Partition("left", 0), Partition("right", 0)
LOG = logging.LoggerAdapter(logging.getLogger("test"))


@pytest.fixture
def transport() -> Iterator[MemoryTransport]:
    made = MemoryTransport(MemoryBroker())
    made.create_topics([TopicSpec(name, 1, {}) for name in ("events", "left", "right")])
    yield made
    made.close()


@pytest.fixture
def incoming(transport: MemoryTransport) -> Iterator[Incoming]:
    made = reading(transport)
    yield made
    made.close()


def reading(transport: MemoryTransport, cache_bytes_max: int = 1 << 20) -> Incoming:
    return Incoming(transport, EVENTS, {"left": LEFT, "right": RIGHT}, LOG, lambda action: action(), cache_bytes_max)


def frame(number: int, size: int = 1) -> bytes:
    return encode(RecordFrame(Sender("left", 0, 7, 1, 0), number, *pack([b"x" * size])))


def fill(transport: MemoryTransport, partition: Partition, count: int, size: int = 1) -> None:
    writer = transport.writer()
    for number in range(count):
        writer.append(partition, frame(number, size))
    writer.close()


def taken(incoming: Incoming, at_most: int = 1000) -> list[Any]:
    """(where, offset) of everything there is."""
    found: list[Any] = []
    while len(found) < at_most:
        if not incoming.waiting:
            assert incoming.fetch(0) is None
            if not incoming.waiting:
                break
        event, _ = incoming.take()
        found.append((getattr(event, "upstream", "events"), event.offset))  # type: ignore[union-attr]
    return found


def test_inputs_are_not_read_before_a_seek_says_where(transport: MemoryTransport, incoming: Incoming) -> None:
    fill(transport, LEFT, 3)
    writer = transport.writer()
    writer.append(EVENTS, encode(Reset(1, 0)))
    incoming.seek(0)
    assert taken(incoming) == [("events", 0)]
    incoming.seek_data("left", 1)
    assert taken(incoming) == [("left", 1), ("left", 2)]


def test_nothing_is_raised_for_an_input_that_is_not_read_yet(transport: MemoryTransport, incoming: Incoming) -> None:
    """Its partition may have been truncated far above offset 0."""
    fill(transport, LEFT, 5)
    transport.truncate({LEFT: 4})
    incoming.seek(0)
    assert taken(incoming) == []
    incoming.seek_data("left", 4)
    assert taken(incoming) == [("left", 4)]


def test_a_lost_position_of_an_input_names_the_input(transport: MemoryTransport, incoming: Incoming) -> None:
    fill(transport, RIGHT, 5)
    transport.truncate({RIGHT: 4})
    incoming.seek(0)
    incoming.seek_data("right", 1)
    lost = incoming.fetch(0)
    assert isinstance(lost, on.DataLost)
    assert lost.upstream == "right"
    assert "offset 1 is wanted" in lost.cause


@pytest.mark.parametrize(
    ("begin", "end", "said"),
    [
        (3, 3, "offset 3 is wanted of .*, 4 to 9 are available: the log was truncated$"),
        (4, 12, "offsets 4 to 12 are wanted of .*, 4 to 9 are available: .*the topic was deleted and recreated$"),
        (12, 12, "offset 12 is wanted of .*, 4 to 9 are available: .*the topic was deleted and recreated$"),
    ],
)
def test_an_input_that_lacks_what_is_wanted_of_it_is_known_before_it_is_read(
    transport: MemoryTransport, incoming: Incoming, begin: int, end: int, said: str
) -> None:
    """A log never says that a position above its end is one; a reader would wait there, and skip what comes."""
    fill(transport, LEFT, 9)
    transport.truncate({LEFT: 4})
    transport.writer().append(EVENTS, encode(Reset(1, 0)))
    incoming.seek(0)
    lost = incoming.lacking("left", begin, end)
    assert lost is not None
    assert (lost.upstream, lost.events_end) == ("left", 1)
    assert re.search(said, lost.cause)


@pytest.mark.parametrize(("begin", "end"), [(4, 4), (4, 9), (9, 9)])
def test_an_input_that_holds_what_is_wanted_of_it_lacks_nothing(
    transport: MemoryTransport, incoming: Incoming, begin: int, end: int
) -> None:
    fill(transport, LEFT, 9)
    transport.truncate({LEFT: 4})
    incoming.seek(0)
    assert incoming.lacking("left", begin, end) is None


def test_a_lost_position_of_the_events_names_what_is_there(transport: MemoryTransport, incoming: Incoming) -> None:
    writer = transport.writer()
    for _ in range(3):
        writer.append(EVENTS, encode(Reset(1, 0)))
    transport.truncate({EVENTS: 2})
    incoming.seek(0)
    lost = incoming.fetch(0)
    assert isinstance(lost, on.PositionLost)
    assert (lost.begin, lost.end) == (2, 3)


def test_a_pause_forgets_what_was_fetched_of_that_input_alone(transport: MemoryTransport, incoming: Incoming) -> None:
    fill(transport, LEFT, 2)
    fill(transport, RIGHT, 2)
    incoming.seek(0)
    incoming.seek_data("left", 0)
    incoming.seek_data("right", 0)
    assert incoming.fetch(0) is None
    incoming.pause_data("left")
    assert taken(incoming) == [("right", 0), ("right", 1)]
    incoming.seek_data("left", 1)
    assert taken(incoming) == [("left", 1)]


def skip_all(incoming: Incoming, upstream: str, count: int) -> None:
    for _ in range(count):
        if not incoming.waiting:
            assert incoming.fetch(0) is None
        event, record = incoming.take()
        assert isinstance(event, on.DataRead)
        incoming.keep(upstream, record)


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("room", [1 << 20, 5 * 700, 1])
def test_what_was_skipped_comes_again_in_order_however_much_of_it_was_kept(
    transport: MemoryTransport, paused: bool, room: int
) -> None:
    fill(transport, LEFT, 20)
    incoming = reading(transport, room)
    incoming.seek(0)
    incoming.seek_data("left", 0)
    assert taken(incoming, 3) == [("left", 0), ("left", 1), ("left", 2)]
    skip_all(incoming, "left", 12)
    if paused:
        incoming.pause_data("left")
    incoming.seek_data("left", 3)
    assert taken(incoming) == [("left", offset) for offset in range(3, 20)]
    assert (incoming.reread == 0) == (room == 1 << 20)
    incoming.close()


def test_a_seek_elsewhere_uses_nothing_of_what_was_kept(transport: MemoryTransport, incoming: Incoming) -> None:
    """A restore: another Start, other positions."""
    fill(transport, LEFT, 10)
    incoming.seek(0)
    incoming.seek_data("left", 0)
    skip_all(incoming, "left", 5)
    incoming.seek_data("left", 7)
    assert taken(incoming) == [("left", 7), ("left", 8), ("left", 9)]


def test_the_room_for_what_is_kept_is_given_back(transport: MemoryTransport) -> None:
    fill(transport, LEFT, 10, size=200)
    incoming = reading(transport, 5 * 1024)
    incoming.seek(0)
    for _ in range(5):
        incoming.seek_data("left", 0)
        skip_all(incoming, "left", 5)
        incoming.seek_data("left", 0)
    assert incoming.reread == 0
    incoming.close()


def test_a_record_of_the_wrong_kind_is_told_as_unreadable(transport: MemoryTransport, incoming: Incoming) -> None:
    writer = transport.writer()
    writer.append(LEFT, encode(Reset(1, 0)))
    writer.append(EVENTS, frame(0))
    writer.append(LEFT, b"garbage")
    incoming.seek(0)
    incoming.seek_data("left", 0)
    assert incoming.fetch(0) is None
    found = sorted((incoming.take()[0] for _ in range(3)), key=repr)
    assert found == [on.DataUnreadable("left", 0), on.DataUnreadable("left", 1), on.RecordUnreadable(0)]
