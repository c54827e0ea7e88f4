"""Jobs that read Kafka, and what a keyed operator behind the source has counted in the checkpoints that completed."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import penstock
from penstock.sources import Kafka
from penstock.sources.kafka import KafkaOperator
from penstock.testing import LocalJob

PATIENCE_S = 60.0


def value(number: int, what: str = "") -> bytes:
    return json.dumps({"number": number, "what": what}).encode()


def label(record: Any) -> str:
    return f"{record['what']}{record['number']}"


class Collect(penstock.Subtask):
    """Counts how often each record has come."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def process(self, record: Any, input: str) -> None:
        self.seen[label(record)] += 1

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return dict(self.seen)

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.seen = Counter(state)


def source(topics: Any = "flights", **settings: Any) -> Kafka:
    return Kafka(topics, **{"brokers": "memory", "discover_every": 0.02, **settings})


def reading_job(reads: KafkaOperator, parallelism: int = 2, name: str = "flights", **settings: Any) -> penstock.Job:
    job = penstock.Job(
        name,
        **{
            "checkpoint": penstock.CheckpointSettings(interval=0.05, timeout=5.0, tolerable_failures=1000),
            "restart": penstock.RestartStrategy(backoff_next=0.01, backoff_max=0.05, budget=1000),
            "heartbeat_interval": 0.1,
            "heartbeat_timeout": 10.0,
            "start_timeout": 30.0,
            **settings,
        },
    )
    reader = job.operator("in", **reads, parallelism=parallelism, output_codec="json")
    job.operator(
        "out", subtask=Collect, parallelism=2, inputs=[reader.keyed_by(label)], state_codec="json", rescale="keyed"
    )
    return job


def states(running: LocalJob, operator: str) -> list[Any]:
    """Of its subtasks, in the last checkpoint that completed."""
    last = running.client.history().last
    parts = [] if last is None else sorted(last.subtasks.items())
    return [
        json.loads(part.state.inline)
        for subtask, part in parts
        if subtask.operator == operator and part.state is not None and part.state.inline is not None
    ]


def counted(running: LocalJob) -> Counter[str]:
    """How often each record is in the history that counts."""
    return sum((Counter(state) for state in states(running, "out")), Counter())


def wait_counted(running: LocalJob, expected: Counter[str], timeout: float = PATIENCE_S) -> None:
    """Until all of these have come; no other, and none twice."""
    running.wait_for(lambda _: counted(running).total() >= expected.total(), timeout)
    assert counted(running) == expected
