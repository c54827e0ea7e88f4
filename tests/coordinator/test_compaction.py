"""A broker compacts the checkpoint log under its readers, and they go on reading the same history."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker import EmbeddedBroker
from penstock.checkpoint_log.history import History, Keyed, keyed
from penstock.client.log_reader import read_log
from penstock.schemas.checkpoints import (
    CheckpointCompleted,
    CheckpointPart,
    EpochClaimed,
    OperatorSnapshot,
    SubtaskSnapshot,
)
from penstock.schemas.codec import encode
from penstock.schemas.state import StateHandle
from penstock.schemas.topics import TopicNames, TopicSpec
from penstock.transport.kafka import KafkaTransport
from penstock.transport.ports import FencedLog, Partition

pytestmark = pytest.mark.kafka

TOPICS = TopicNames("penstock", "compacted")
LOG = Partition(TOPICS.checkpoints, 0)
HURRY = {"segment.ms": "50", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "100"}
"""What would take the checkpoint log an hour."""
DEADLINE_S = 60.0


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[KafkaTransport]:
    hurry = {"log.cleaner.backoff.ms": "100", "log.segment.delete.delay.ms": "100"}
    with EmbeddedBroker(tmp_path / "data", extra_properties=hurry) as broker:
        made = KafkaTransport(broker.bootstrap)
        (spec,) = [spec for spec in TOPICS.specs({}) if spec.name == LOG.topic]
        made.create_topics([TopicSpec(spec.name, 1, {**spec.settings, **HURRY})])
        yield made
        made.close()


def commit(log: FencedLog, history: History, records: list[Keyed]) -> None:
    log.commit([(key, None if record is None else encode(record)) for key, record in records])
    history.apply(records)


def complete(log: FencedLog, history: History, n: int) -> None:
    """With two parts, each with a state; the last two are kept."""
    gone = history.subsumed_by(n, 2, savepoint=False)
    parts = [
        CheckpointPart(
            n, i, "op", (SubtaskSnapshot(i, 1, 1, 0, n, StateHandle(9, inline=b"%9d" % n), n, (), n, 0, (), False),)
        )
        for i in range(2)
    ]
    header = CheckpointCompleted(
        1, n, False, n, n, 2, (OperatorSnapshot("op", 2, None, n, 128, ()),), n, tuple(gone), n + 100
    )
    commit(log, history, [*keyed(*parts, header), *history.checkpoint_tombstones(gone, n)])


def test_readers_of_a_log_that_is_compacted_meanwhile_fold_it_to_the_same_history(transport: KafkaTransport) -> None:
    log, history = transport.claim_log(LOG.topic, TOPICS.transactional_id), History()
    commit(log, history, keyed(EpochClaimed(1, -1, 1, 100, {}, "i", "why")))
    n, written, shortest = 0, 1, 1.0
    deadline = time.monotonic() + DEADLINE_S
    while shortest > 0.3:
        assert time.monotonic() < deadline, f"of {written} records {shortest:.0%} are left: nothing is compacted"
        for _ in range(20):
            n += 1
            written += 6
            complete(log, history, n)
        records = read_log("compacted", transport, LOG, 30.0)
        folded = History.of(records)
        assert (folded.lineage, folded.last_id, folded.epoch) == (history.lineage, n, 1)
        assert {i: (c.header, dict(c.subtasks)) for i, c in folded.checkpoints.items()} == {
            i: (c.header, dict(c.subtasks)) for i, c in history.checkpoints.items()
        }
        shortest = min(shortest, len(records) / written) if n > 100 else 1.0
        threading.Event().wait(0.1)
    log.close()
