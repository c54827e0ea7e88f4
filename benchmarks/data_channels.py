"""Records per second over a data channel, beside raw confluent-kafka; and what a long alignment costs in memory."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import struct
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

from penstock.job import Job
from penstock.schemas.ids import SubtaskId
from penstock.schemas.settings import CheckpointSettings
from penstock.subtask_client.api import Context, Idle, Progress, Subtask
from penstock.subtask_client.runtime import SubtaskRuntime
from penstock.testing.local import LocalJob
from penstock.transport.kafka import KafkaTransport

from . import raw
from .events import SIZE, Figure
from .job import DEADLINE_S, Sender

_DONE = struct.Struct("<dd")
_BATCH = 600


class Source(Subtask):
    """Emits so many records as its coordinator says. Told 0, it holds up its next snapshot until it is told again."""

    def open(self, context: Context) -> None:
        self.context = context
        self.left = 0
        self.payload = bytes(SIZE)

    def handle_operator_event(self, event: bytes) -> None:
        self.left = int.from_bytes(event, "little")

    def poll(self) -> Progress | Idle:
        if not self.left:
            return Idle()
        count = min(_BATCH, self.left)
        emit, payload = self.context.emit, self.payload
        for _ in range(count):
            emit(payload)
        self.left -= count
        return Progress()

    def snapshot_state(self, checkpoint_id: int) -> None:
        hold = os.environ.get("PENSTOCK_BENCH_HOLD")
        if hold is not None and self.context.subtask == 1:
            while not Path(hold).exists():
                time.sleep(0.05)


class Sink(Subtask):
    """Counts, and tells when it has seen what it was to expect."""

    expected = 0

    def open(self, context: Context) -> None:
        self.context = context
        self.left = self.expected

    def process(self, record: bytes, input: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.context.send_event_to_coordinator(_DONE.pack(time.monotonic(), 0.0))


def _bare(name: str, sources: int, interval: float | None, coordinators: dict[str, Sender]) -> Job:
    job = Job(name, checkpoint=CheckpointSettings(interval=interval, timeout=DEADLINE_S))
    made = {operator: (lambda sender=sender: sender) for operator, sender in coordinators.items()}
    source = job.operator("source", subtask=Source, coordinator=made.get("source"), parallelism=sources)
    job.operator("sink", subtask=Sink, coordinator=made.get("sink"), parallelism=1, inputs=[source.rebalance()])
    return job


def _run_subtask(job: Job, subtask: SubtaskId, bootstrap: str, run: str, expected: int) -> None:
    Sink.expected = expected
    operator = job.operators[subtask.operator]
    SubtaskRuntime(
        job.settings, subtask, operator.subtask, KafkaTransport(bootstrap), run=run, keys=operator.keys
    ).run()


@contextmanager
def running(
    bootstrap: str, sources: int, expected: int, interval: float | None
) -> Iterator[tuple[LocalJob, Sender, Sender, BaseProcess]]:
    """The job, the coordinators of both operators, and the sink's process, once every subtask is up."""
    source, sink = Sender(), Sender()
    job = _bare(f"bench-{uuid.uuid4().hex[:12]}", sources, interval, {"source": source, "sink": sink})
    local = LocalJob(job, KafkaTransport(bootstrap), subtasks=False).start()
    local.client.announce_run(local.run_id)
    context = multiprocessing.get_context("spawn")
    bare = _bare(job.name, sources, interval, {})
    processes = [
        context.Process(target=_run_subtask, args=(bare, s, bootstrap, local.run_id, expected), daemon=True)
        for s in job.settings.subtasks()
    ]
    try:
        for process in processes:
            process.start()
        source.wait_for_gateways(sources)
        sink.wait_for_gateways(1)
        yield local, source, sink, processes[-1]
        local.client.stop(timeout_s=30)
    finally:
        local.close()
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()


def records_per_second(bootstrap: str, records: int, interval: float | None) -> float:
    with running(bootstrap, 1, records, interval) as (_, source, sink, _sink_process):
        began = time.monotonic()
        source.send(0, records.to_bytes(8, "little"))
        return records / (sink.wait_until_done(1) - began)


def alignment_memory(bootstrap: str, records: int, folder: Path) -> tuple[float, float]:
    """Megabytes by which the sink grows while it skips so many records, and how many megabytes these are.

    One of two senders has delivered its barrier and goes on emitting; the other holds up its snapshot.
    """
    hold = folder / "go on"
    os.environ["PENSTOCK_BENCH_HOLD"] = str(hold)
    try:
        with running(bootstrap, 2, 2 * _BATCH + records, None) as (local, source, sink, process):
            for subtask in (0, 1):
                source.send(subtask, _BATCH.to_bytes(8, "little"))
            before = _resident_mb(process)
            asked = threading.Thread(target=lambda: local.client.savepoint(timeout_s=DEADLINE_S))
            asked.start()
            time.sleep(1.0)  # the one barrier is there, and the other is not: it waits for the file
            source.send(0, records.to_bytes(8, "little"))
            grown = _grown_while_skipping(process, before)
            hold.touch()
            sink.wait_until_done(1)
            asked.join(DEADLINE_S)
    finally:
        del os.environ["PENSTOCK_BENCH_HOLD"]
    return grown, records * SIZE / 1e6


def _grown_while_skipping(process: BaseProcess, before: float) -> float:
    """The most it grows until it has been idle for a while."""
    most, busy_until, spent = 0.0, time.monotonic() + 5.0, _cpu_s(process)
    while time.monotonic() < busy_until:
        time.sleep(0.2)
        most = max(most, _resident_mb(process) - before)
        if (now := _cpu_s(process)) > spent + 0.05:
            spent, busy_until = now, time.monotonic() + 2.0
    return most


def _resident_mb(process: BaseProcess) -> float:
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _cpu_s(process: BaseProcess) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def channel_figures(bootstrap: str, records: int, repeats: int, folder: Path) -> list[Figure]:
    plain, checkpointed, frames = [], [], []
    for _ in range(repeats):
        frames.append(raw.events_per_second(bootstrap, 1, records, SIZE, _BATCH))
        plain.append(records_per_second(bootstrap, records, None))
        checkpointed.append(records_per_second(bootstrap, records, 0.1))
    median = statistics.median
    what = f"one sender, one receiver, in processes of their own, {SIZE}-byte records"
    grown, skipped = alignment_memory(bootstrap, records, folder)
    return [
        Figure("data channel", what, median(plain), "records/s", median(frames),
               f"frames of {_BATCH} records, packed and unpacked, a no-op called for each"),
        Figure("data channel, a checkpoint every 100 ms", what, median(checkpointed), "records/s", median(plain),
               "ours without checkpoints"),
        Figure("memory in an alignment", f"the receiver's growth while it skips {records:,} records", grown, "MB",
               skipped, "bytes skipped"),
    ]  # fmt: skip
