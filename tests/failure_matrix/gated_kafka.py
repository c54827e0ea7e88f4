"""The real writers and the real checkpoint log, with points around the records that the failure matrix speaks of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.schemas.acks import CheckpointAck, Hello
from penstock.schemas.checkpoints import CheckpointCompleted, EpochClaimed
from penstock.schemas.codec import decode
from penstock.schemas.events import EventFrame, TriggerCheckpoint
from penstock.transport import kafka
from penstock.transport.kafka_log import KafkaFencedLog
from penstock.transport.kafka_writer import KafkaWriter
from penstock.transport.ports import OnOutcome, Partition

from .points import here

FLUSH_S = 180.0


class GatedWriter(KafkaWriter):
    """Behind ``after-...`` the record stands at the broker."""

    def append(
        self, partition: Partition, value: bytes, key: bytes | None = None, on_outcome: OnOutcome | None = None
    ) -> None:
        record = decode(value)
        match record:
            case CheckpointAck():
                point, n, stands = "ack", record.checkpoint_id, True
            case Hello():
                point, n, stands = "hello", record.subtask, True
            case TriggerCheckpoint():
                point, n, stands = "marker", record.checkpoint_id, False
            case EventFrame():
                point, n, stands = "frame", record.sequence, False
            case _:
                return super().append(partition, value, key, on_outcome)
        then = here().reach(f"before-{point}", n, partition=partition.index).then
        super().append(partition, value, key, on_outcome)
        if stands or then == "flush":
            assert self.flush(FLUSH_S), f"{record} does not stand after {FLUSH_S} s"
            here().reach(f"after-{point}", n, partition=partition.index)
        return None


class GatedLog(KafkaFencedLog):
    """Points around the commits of a checkpoint and of an epoch, and one while the transaction is open."""

    def commit(self, records: Sequence[tuple[str, bytes | None]]) -> None:
        self._what, n = _what(records)
        here().reach(f"before-commit-of-{self._what}", n)
        super().commit(records)
        here().reach(f"after-commit-of-{self._what}", n)

    def _produce(self, producer: Any, records: Sequence[tuple[str, bytes | None]], deadline: float) -> None:
        super()._produce(producer, records, deadline)
        producer.flush(FLUSH_S)
        here().reach(f"inside-commit-of-{self._what}", _what(records)[1])


def _what(records: Sequence[tuple[str, bytes | None]]) -> tuple[str, int]:
    for _, value in records:
        match None if value is None else decode(value):
            case CheckpointCompleted() as completed:
                return "checkpoint", completed.checkpoint_id
            case EpochClaimed() as claimed:
                return "epoch", claimed.epoch
    return "something", -1


def install() -> None:
    """From now on this process's Kafka transports are gated."""
    kafka.KafkaWriter = GatedWriter  # type: ignore[attr-defined]
    kafka.KafkaFencedLog = GatedLog  # type: ignore[attr-defined]
