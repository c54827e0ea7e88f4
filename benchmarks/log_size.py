"""``python -m benchmarks.log_size [--minutes M] [--replay-retention S] [--json FILE]``: what a busy job's topics take.

A coordinator sends as fast as it can; each of two subtasks hands every event on to the next operator, and answers some.
So events, acks and data are written all the time. Each second the broker is asked for the size of each topic on its
disk; each minute the smallest and the largest are told. A job that does not grow has the same figures in each.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock.broker import EmbeddedBroker
from penstock.job import Job
from penstock.schemas.settings import CheckpointSettings
from penstock.subtask_client.api import Context, Subtask
from penstock.testing.local import LocalJob
from penstock.transport.kafka import KafkaTransport
from penstock.transport.ports import Partition

from .job import Sender

SUBTASKS = 2
EVENT_BYTES = 100
ANSWERS_EVERY = 100
LOOK_S = 1.0
DEADLINE_S = 60.0


class Relay(Subtask):
    """Hands every event on, and answers one in a hundred."""

    def open(self, context: Context) -> None:
        self.context, self.handled = context, 0

    def handle_operator_event(self, event: bytes) -> None:
        self.context.emit(event)
        self.handled += 1
        if self.handled % ANSWERS_EVERY == 0:
            self.context.send_event_to_coordinator(event)


class Sink(Subtask):
    """Takes what comes."""

    def process(self, record: bytes, input: str) -> None:
        pass


class Flood(Sender):
    """What comes back is of no use."""

    def handle_event_from_operator(self, subtask: int, attempt: int, event: bytes, context: object) -> None:
        pass


@dataclass
class Minute:
    """Of each topic the smallest and largest size in bytes, and how many records were appended."""

    number: int
    smallest: dict[str, int] = field(default_factory=dict)
    largest: dict[str, int] = field(default_factory=dict)
    appended: dict[str, int] = field(default_factory=dict)
    events: int = 0
    """That the coordinator sent."""

    def see(self, sizes: Mapping[str, int]) -> None:
        for topic, size in sizes.items():
            self.smallest[topic] = min(size, self.smallest.get(topic, size))
            self.largest[topic] = max(size, self.largest.get(topic, size))


def flooded(replay_retention: float) -> tuple[Job, Flood]:
    """The job, and the coordinator that floods it."""
    sender = Flood()
    name, checkpoints = f"bench-{uuid.uuid4().hex[:12]}", CheckpointSettings(interval=1.0)
    job = Job(name, checkpoint=checkpoints, replay_retention=replay_retention)
    relay = job.operator(
        "relay", subtask=Relay, coordinator=lambda: sender, parallelism=SUBTASKS, max_unhandled=100_000
    )
    job.operator("sink", subtask=Sink, parallelism=SUBTASKS, inputs=[relay.rebalance()])
    return job, sender


def minutes(bootstrap: str, count: int, replay_retention: float) -> Iterator[Minute]:
    """One after the other, as they pass."""
    job, sender = flooded(replay_retention)
    transport = KafkaTransport(bootstrap)
    topics = [spec.name for spec in job.settings.topic_specs]
    over, sent = threading.Event(), [0]

    def flood() -> None:
        payload = bytes(EVENT_BYTES)
        while not over.is_set():
            for subtask in range(SUBTASKS):
                sender.send(subtask, payload)
            sent[0] += SUBTASKS

    with LocalJob(job, transport):
        sender.wait_for_gateways(SUBTASKS)
        thread = threading.Thread(target=flood, name="flood", daemon=True)
        thread.start()
        try:
            for number in range(1, count + 1):
                yield _minute(number, transport, topics, sent)
        finally:
            over.set()
            thread.join(DEADLINE_S)


def _minute(number: int, transport: KafkaTransport, topics: list[str], sent: list[int]) -> Minute:
    minute, end, began = Minute(number), time.monotonic() + 60.0, sent[0]
    before = _ends(transport, topics)
    while time.monotonic() < end:
        sizes = transport.topic_bytes(topics)
        if sizes is None:
            raise RuntimeError("the broker does not tell how large its topics are")
        minute.see(sizes)
        threading.Event().wait(min(LOOK_S, max(0.0, end - time.monotonic())))
    minute.appended = {topic: count - before[topic] for topic, count in _ends(transport, topics).items()}
    minute.events = sent[0] - began
    return minute


def _ends(transport: KafkaTransport, topics: list[str]) -> dict[str, int]:
    described = transport.describe_topics(topics)
    return {
        topic: sum(
            there.end
            for there in transport.offsets([Partition(topic, i) for i in range(described[topic].partitions)]).values()
        )
        for topic in topics
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.log_size", description=__doc__)
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--replay-retention", type=float, default=0.0, metavar="S", help="seconds of a replay window")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = parser.parse_args()
    console, load_before, seen = Console(), os.getloadavg(), []
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(folder) as broker:
        for minute in minutes(broker.bootstrap, chosen.minutes, chosen.replay_retention):
            seen.append(minute)
            console.print(_table(minute))
    if chosen.json:
        document = {"load average before": load_before, "minutes": [asdict(minute) for minute in seen]}
        chosen.json.write_text(json.dumps(document, indent=2) + "\n")


def _table(minute: Minute) -> Table:
    title = f"minute {minute.number}: {minute.events:,} events sent"
    table = Table("topic", "smallest", "largest", "records appended", title=title)
    for topic, largest in minute.largest.items():
        smallest, appended = minute.smallest[topic], minute.appended[topic]
        table.add_row(topic.split(".", 2)[2], f"{smallest / 1e6:.1f} MB", f"{largest / 1e6:.1f} MB", f"{appended:,}")
    total = sum(minute.largest.values())
    table.caption = f"at most {total / 1e6:.1f} MB together"
    return table


if __name__ == "__main__":
    main()
