"""What the driver tells the coordinator of committed batches."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from penstock.schemas.acks import BatchCommitted
from penstock.schemas.codec import decode
from penstock.schemas.topics import TopicSpec
from penstock.spark_integration.streaming.offsets import StreamOffset
from penstock.spark_integration.streaming.query_listener import BatchListener, CommitTeller
from penstock.transport.memory import MemoryBroker, MemoryTransport
from penstock.transport.ports import Partition

ACKS = "penstock.flights.acks"


def offset(checkpoint_id: int) -> StreamOffset:
    return StreamOffset("penstock.flights", "reader", "topic-1", checkpoint_id)


OFFSET = offset(5)


def progress(*ends: object) -> Any:
    texts = [end if isinstance(end, str | None) else json.dumps(end) for end in ends]
    return SimpleNamespace(progress=SimpleNamespace(sources=[SimpleNamespace(endOffset=text) for text in texts]))


def test_only_offsets_of_the_operator_are_told() -> None:
    told: list[StreamOffset] = []
    listener = BatchListener("penstock.flights", "reader", told.append)
    listener.onQueryProgress(progress())
    listener.onQueryProgress(progress(None, "", "17", "no json {", {"topic": {"0": 3}}))
    listener.onQueryProgress(progress(OFFSET.to_dict() | {"operator": "writer"}, OFFSET.to_dict() | {"job": "x.y"}))
    assert told == []
    listener.onQueryProgress(progress({"topic": {"0": 3}}, OFFSET.to_dict()))
    assert told == [OFFSET]


def test_a_listener_raises_nothing_into_spark() -> None:
    def fails(_: object) -> None:
        raise LookupError("on purpose")

    listener = BatchListener("penstock.flights", "reader", fails, fails)
    listener.onQueryProgress(progress(OFFSET.to_dict()))
    listener.onQueryStarted(SimpleNamespace(id=uuid4()))  # type: ignore[arg-type]
    listener.onQueryProgress(object())  # type: ignore[arg-type]


@pytest.fixture
def transport() -> MemoryTransport:
    transport = MemoryTransport(MemoryBroker())
    transport.create_topics([TopicSpec(ACKS, 1)])
    return transport


def written(transport: MemoryTransport) -> list[BatchCommitted]:
    records = [decode(record.value) for record in transport.read_all(Partition(ACKS, 0))]
    return [record for record in records if isinstance(record, BatchCommitted)]


def test_each_checkpoint_is_told_once(transport: MemoryTransport) -> None:
    teller = CommitTeller(transport, ACKS)
    for checkpoint_id in (-1, 3, 3, 4, 4):
        teller.tell(offset(checkpoint_id))
    teller.close()
    teller.tell(offset(5))
    assert written(transport) == [BatchCommitted(3, "topic-1"), BatchCommitted(4, "topic-1")]


def test_a_writer_that_failed_is_replaced(transport: MemoryTransport) -> None:
    teller = CommitTeller(transport, ACKS)
    teller.tell(offset(1))
    transport.delete_topics([ACKS])
    teller.tell(offset(2))
    transport.create_topics([TopicSpec(ACKS, 1)])
    teller.tell(offset(3))
    teller.close()
    assert written(transport) == [BatchCommitted(3, "topic-1")]
