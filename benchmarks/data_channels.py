"""Records per second over a data channel, beside raw confluent-kafka that moves frames of the same size."""

from __future__ import annotations

import random
import statistics
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, TypeAlias

from penstock.coordinator.service import CoordinatorService
from penstock.job import Job
from penstock.schemas.ids import SubtaskId
from penstock.schemas.keys import key_group, subtask_of_group
from penstock.schemas.settings import CheckpointSettings
from penstock.subtask_client.api import Context, Idle, Progress, Subtask
from penstock.transport.kafka import KafkaTransport
from penstock.transport.ports import Partition

from . import raw
from .figures import SIZE, Figure, Goal, Setting
from .job import DEADLINE_S, Sender, now
from .service import coordinated, run_subtask

BATCH = 600
"""Records that a source emits to each receiver in one turn: so many make a frame."""
RECORDS = 1_000_000
INTERVAL_S = 0.1
"""Between two checkpoints, where there are any."""
_KEY_BYTES = 8
_KEYS = 300
"""Of each receiver: so that all get the same number of records."""

Coordinators: TypeAlias = Mapping[str, Sender]
Target: TypeAlias = Callable[[Job, SubtaskId, str, str], None]
"""Runs a subtask in a process of its own: of this job, which one, on which broker, in which run."""


class Source(Subtask):
    """Emits so many records as its coordinator says, each of the payloads as often as the others."""

    def __init__(self, payloads: list[bytes], receivers: int) -> None:
        self.payloads, self.batch = payloads, BATCH * receivers
        self.next = self.left = 0

    def open(self, context: Context) -> None:
        self.context = context

    def handle_operator_event(self, event: bytes) -> None:
        self.left = int.from_bytes(event, "little")

    def poll(self) -> Progress | Idle:
        if not self.left:
            return Idle()
        count = min(self.batch, self.left)
        emit, payloads, number = self.context.emit, self.payloads, self.next
        for _ in range(count):
            emit(payloads[number])
            number = number + 1 if number + 1 < len(payloads) else 0
        self.next = number
        self.left -= count
        return Progress()


class BatchSource(Source):
    """The same, each turn's records at once."""

    def poll(self) -> Progress | Idle:
        if not self.left:
            return Idle()
        count = min(self.batch, self.left)
        begin, size = self.next, len(self.payloads)
        records = self.payloads[begin : begin + count]
        while len(records) < count:
            records += self.payloads[: count - len(records)]
        self.context.emit_many(records)
        self.next = (begin + count) % size
        self.left -= count
        return Progress()


class Sink(Subtask):
    """Counts, and tells when it has seen what it was to expect."""

    def __init__(self, expected: int) -> None:
        self.left = expected

    def open(self, context: Context) -> None:
        self.context = context

    def process(self, record: bytes, input: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.context.send_event_to_coordinator(now())


class BatchSink(Sink):
    """The same for lists of records."""

    def process_many(self, records: list[bytes], input: str) -> None:
        self.left -= len(records)
        if self.left == 0:
            self.context.send_event_to_coordinator(now())


def key_of(record: bytes) -> bytes:
    return record[:_KEY_BYTES]


def payloads_for(receivers: int, groups: int) -> list[bytes]:
    """Records of so many keys for each receiver, in a random order that is always the same."""
    by_receiver: dict[int, list[bytes]] = {receiver: [] for receiver in range(receivers)}
    number = 0
    while any(len(keys) < _KEYS for keys in by_receiver.values()):
        key = number.to_bytes(_KEY_BYTES, "little")
        keys = by_receiver[subtask_of_group(key_group(key, groups), groups, receivers)]
        if len(keys) < _KEYS:
            keys.append(key)
        number += 1
    payloads = [key + bytes(SIZE - _KEY_BYTES) for keys in by_receiver.values() for key in keys]
    random.Random(0).shuffle(payloads)
    return payloads


class Way(NamedTuple):
    parallelism: int
    interval: float | None = None
    unaligned: bool = False
    batches: bool = False


class Measured(NamedTuple):
    per_second: float
    checkpoints: int
    """Completed within the time that was measured."""
    frame: int
    """Records in a frame, the mean."""


def _job(name: str, way: Way, per_sink: int, coordinators: Coordinators) -> Job:
    n = way.parallelism
    job = Job(name, checkpoint=CheckpointSettings(interval=way.interval, unaligned=way.unaligned, timeout=DEADLINE_S))
    made = (BatchSource, BatchSink) if way.batches else (Source, Sink)
    source = job.operator(
        "source", subtask=partial(made[0], payloads_for(n, job.max_parallelism), n), parallelism=n,
        coordinator=made_by(coordinators, "source"),
    )  # fmt: skip
    job.operator(
        "sink", subtask=partial(made[1], per_sink), parallelism=n,
        inputs=[source.forward() if n == 1 else source.keyed_by(key_of)],
        coordinator=made_by(coordinators, "sink"),
    )  # fmt: skip
    return job


def made_by(coordinators: Coordinators, operator: str) -> Callable[[], Sender] | None:
    """None where the job is only to describe the subtasks of one in another process."""
    sender = coordinators.get(operator)
    return None if sender is None else lambda: sender


class Running(NamedTuple):
    """A job, and the coordinators of its source and its sink."""

    job: Job
    service: CoordinatorService
    source: Sender
    sink: Sender

    @property
    def completed(self) -> int:
        """Checkpoints."""
        status = self.service.status()
        return 0 if status is None else status.checkpoints_completed


@contextmanager
def running(
    bootstrap: str, described: Callable[[str, Coordinators], Job], targets: Mapping[str, Target]
) -> Iterator[Running]:
    """Once every subtask is up in a process of its own; ``targets`` run them, by operator."""
    source, sink = Sender(), Sender()
    job = described(f"bench-{uuid.uuid4().hex[:12]}", {"source": source, "sink": sink})
    bare = described(job.name, {})
    each = [partial(targets[s.operator], bare, s, bootstrap) for s in job.settings.subtasks()]
    with coordinated(job, bootstrap, each) as service:
        source.wait_for_gateways(job.operators["source"].settings.parallelism)
        sink.wait_for_gateways(job.operators["sink"].settings.parallelism)
        yield Running(job, service, source, sink)


def _frames(bootstrap: str, job: Job, parallelism: int) -> int:
    topic = job.settings.topics.data("source", "sink")
    offsets = KafkaTransport(bootstrap).offsets([Partition(topic, index) for index in range(parallelism)])
    return sum(range_.end for range_ in offsets.values())


def measure(bootstrap: str, way: Way, records: int) -> Measured:
    """From before the sources are told how much to emit to the last record handled."""
    n = way.parallelism
    rounds = -(-records // (_KEYS * n * n))  # of all payloads, by each source
    per_source = rounds * _KEYS * n
    targets = {"source": run_subtask, "sink": run_subtask}
    with running(bootstrap, lambda name, by: _job(name, way, per_source, by), targets) as run:
        completed, frames = run.completed, _frames(bootstrap, run.job, n)
        began = time.monotonic()
        for index in range(n):
            run.source.send(index, per_source.to_bytes(8, "little"))
        took = run.sink.wait_until_done(n) - began
        completed, frames = run.completed - completed, _frames(bootstrap, run.job, n) - frames
    return Measured(per_source * n / took, completed, round(per_source * n / frames))


def figures(setting: Setting) -> Iterator[Figure]:
    for parallelism in setting.parallelisms:
        setting.say(f"{parallelism} to {parallelism}")
        yield from _figures(setting, parallelism)


def _figures(setting: Setting, parallelism: int) -> list[Figure]:
    """Raw and ours by turns."""
    records, at = setting.count(RECORDS, 20_000), setting.bootstrap
    ways = {
        "without": Way(parallelism),
        "batches": Way(parallelism, batches=True),
        "aligned": Way(parallelism, INTERVAL_S),
        "unaligned": Way(parallelism, INTERVAL_S, unaligned=True),
    }
    ours: dict[str, list[Measured]] = {way: [] for way in ways}
    raws: dict[str, list[float]] = {"frames": [], "records": []}
    for _ in range(setting.repeats):
        for name, way in ways.items():
            ours[name].append(measure(at, way, records))
        frame = ours["without"][0].frame
        raws["frames"].append(raw.channel_records_per_second(at, parallelism, records, SIZE, frame))
        raws["records"].append(raw.channel_records_per_second(at, parallelism, records // 4, SIZE, None))
    per_second = {name: [m.per_second for m in measured] for name, measured in ours.items()}
    what = f"sources told to emit to last record processed, {SIZE}-byte records, each subtask in a process of its own"
    unit, name = "records/s", f"data channel, {parallelism} to {parallelism}{' by key' if parallelism > 1 else ''}"
    found = [
        Figure.of_runs(name, what, per_second["without"], unit, raws["frames"],
                       f"raw, frames of {frame}, packed and unpacked, a no-op called for each",
                       Goal(">= 60 %", "ratio", at_least=0.6)),
        Figure.of_runs(name, what, per_second["without"], unit, raws["records"], "raw, one record per record"),
        Figure.of_runs(f"{name}, emit_many and process_many", what, per_second["batches"], unit, raws["frames"],
                       f"raw, frames of {frame}, packed and unpacked, a no-op called for each",
                       Goal(">= 60 %", "ratio", at_least=0.6)),
    ]  # fmt: skip
    for kind in ("aligned", "unaligned"):
        completed = statistics.median(m.checkpoints for m in ours[kind])
        found.append(
            Figure.of_runs(f"{name}, a checkpoint every {1000 * INTERVAL_S:g} ms, {kind}",
                           f"as above; {completed:g} completed meanwhile",
                           per_second[kind], unit, per_second["without"], "ours without checkpoints")
        )  # fmt: skip
    return found
