"""What an alignment costs a subtask in memory that is held up while one of its two senders goes on."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, NamedTuple

from penstock.job import Job
from penstock.schemas.ids import SubtaskId
from penstock.schemas.settings import CheckpointSettings
from penstock.subtask_client.api import Context, Idle, Progress, Subtask
from penstock.subtask_client.incoming import CACHE_BYTES_MAX
from penstock.subtask_client.protocol.core import SubtaskCore
from penstock.subtask_client.protocol.drop_reasons import Dropped
from penstock.subtask_client.runtime import SubtaskRuntime
from penstock.transport.kafka import KafkaTransport

from .data_channels import BATCH, Coordinators, Target, made_by, running
from .figures import SIZE, Figure, Setting
from .job import DEADLINE_S
from .service import run_subtask

WARM_UP = 60 * BATCH
"""Records that each source emits first: what a reader takes for itself is taken by then."""
RECORDS = 1_002_000
"""A million, in whole frames."""
_SAMPLE_S = 0.005
_HEADER_BYTES = 8
_SENDER_SHIFT = 56
_NUMBER_MASK = (1 << _SENDER_SHIFT) - 1
_PADDING = bytes(SIZE - _HEADER_BYTES)


class Sample(NamedTuple):
    """The receiver's process, so many records behind its barrier."""

    records: int
    grown_mb: float
    """Of its resident memory, at most, since the first barrier was there. Memory that it gave back meanwhile counts."""
    cached_mb: float
    """Skipped records that it keeps, as its cache counts them."""


@dataclass(frozen=True)
class HeldUp:
    """One run."""

    unaligned: bool
    records: int
    bound_mb: float
    """The cache's."""
    samples: list[Sample]
    reread: int
    """Frames that it read from the log once more."""
    peak_mb: float
    """The most its process grew, up to the end of the run."""

    @property
    def skipped_mb(self) -> float:
        """What these records are in all."""
        return self.records * SIZE / 1e6


def figures(setting: Setting) -> Iterator[Figure]:
    for unaligned in (False, True):
        kind = "unaligned" if unaligned else "aligned"
        setting.say(kind)
        run = hold_up(setting.bootstrap, setting.count(RECORDS, 10 * BATCH), unaligned=unaligned)
        what = f"resident memory of a receiver while {run.records:,} records come behind the first of its two barriers"
        came = f"records of {SIZE} bytes that came meanwhile"
        grown = [sample.grown_mb for sample in run.samples]
        name = f"held-up alignment, {kind}"
        yield Figure(f"{name}: grown by at most", what, max(grown), "MB", run.skipped_mb, came, runs=tuple(grown))
        yield Figure(f"{name}: grown by, to the end", what, run.peak_mb, "MB", run.skipped_mb, came)
        if not unaligned:
            cached = [sample.cached_mb for sample in run.samples]
            yield Figure(
                f"{name}: skipped records kept", "at most, as its cache counts them",
                max(cached), "MB", run.bound_mb, "the cache's bound", runs=tuple(cached),
            )  # fmt: skip


class Numbering(Subtask):
    """Emits 0, 1, 2, ... up to where its coordinator says. Warm, the second one takes no snapshot before it may."""

    def __init__(self, may_go_on: Path) -> None:
        self.may_go_on = may_go_on
        self.next = self.end = 0

    def open(self, context: Context) -> None:
        self.context = context

    def handle_operator_event(self, event: bytes) -> None:
        self.end = int.from_bytes(event, "little")

    def poll(self) -> Progress | Idle:
        if self.next == self.end:
            return Idle()
        begin, self.next = self.next, min(self.next + BATCH, self.end)
        emit, mine = self.context.emit, self.context.subtask << _SENDER_SHIFT
        for number in range(begin, self.next):
            emit((mine | number).to_bytes(_HEADER_BYTES, "little") + _PADDING)
        return Progress()

    def snapshot_state(self, checkpoint_id: int) -> None:
        while self.context.subtask == 1 and self.next == WARM_UP and not self.may_go_on.exists():
            time.sleep(0.01)


class Checking(Subtask):
    """Every sender's numbers come in order and once."""

    def __init__(self) -> None:
        self.next = [0, 0]
        self.snapshots = 0

    def process(self, record: bytes, input: str) -> None:
        number = int.from_bytes(record[:_HEADER_BYTES], "little")
        sender, number = number >> _SENDER_SHIFT, number & _NUMBER_MASK
        assert number == self.next[sender], f"{number} of sender {sender} instead of {self.next[sender]}"
        self.next[sender] = number + 1

    def snapshot_state(self, checkpoint_id: int) -> None:
        self.snapshots += 1


def first_has_delivered(receiver: SubtaskCore) -> bool:
    """Whether the first sender is blocked: what it emits from now on is skipped. Asked by another thread."""
    alignment = None if receiver.running is None else receiver.running.alignment
    return alignment is not None and any(who is not None and who.index == 0 for who in alignment.delivered.copy())


class Watch:
    """Looks at the receiver from a thread beside it, and tells the benchmark how it goes."""

    def __init__(self, runtime: SubtaskRuntime, user: Checking, records: int, unaligned: bool) -> None:
        self.runtime, self.user, self.records, self.unaligned = runtime, user, records, unaligned
        self.began_mb = self.peak_mb = 0.0

    def run(self, told: Queue[Any]) -> None:
        user, core = self.user, self.runtime.core
        self._wait_for(lambda: sum(user.next) == 2 * WARM_UP)
        before = user.snapshots
        self._wait_for(lambda: user.snapshots > before if self.unaligned else first_has_delivered(core))
        self.began_mb = self.peak_mb = _resident_mb()
        told.put("held up")
        samples = []
        for tenth in range(1, 11):
            due = tenth * self.records // 10
            self._wait_for(partial(self._has_passed, due))
            samples.append(Sample(due, self.peak_mb - self.began_mb, self.cached_bytes / 1e6))
        told.put(samples)
        self._wait_for(lambda: sum(user.next) == 2 * WARM_UP + self.records)
        told.put((self.runtime._incoming.reread, self.peak_mb - self.began_mb))

    def _has_passed(self, records: int) -> bool:
        return self.passed >= records

    @property
    def passed(self) -> int:
        """Records that came behind the first barrier: skipped, or handled."""
        if self.unaligned:
            return self.user.next[0] - WARM_UP
        return self.runtime.core.dropped[Dropped.BLOCKED] * BATCH

    @property
    def cached_bytes(self) -> int:
        return CACHE_BYTES_MAX - self.runtime._incoming._cache_room

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError("the receiver does not go on")
            self.peak_mb = max(self.peak_mb, _resident_mb())
            time.sleep(_SAMPLE_S)


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _run_watched(
    told: Queue[Any], records: int, unaligned: bool, job: Job, subtask: SubtaskId, bootstrap: str, run: str
) -> None:
    """The receiver's process."""
    user = Checking()
    runtime = SubtaskRuntime(job.settings, subtask, lambda: user, KafkaTransport(bootstrap), run=run)
    watch = Watch(runtime, user, records, unaligned)

    def telling(run: Callable[[], object]) -> None:
        try:
            run()
        except BaseException as error:
            told.put(RuntimeError(f"the receiver has failed: {error!r}"))
            raise

    threading.Thread(target=telling, args=(lambda: watch.run(told),), daemon=True).start()
    telling(runtime.run)


def _job(may_go_on: Path, unaligned: bool, name: str, coordinators: Coordinators) -> Job:
    settings = CheckpointSettings(interval=1.0, unaligned=unaligned, timeout=DEADLINE_S)
    job = Job(name, checkpoint=settings, heartbeat_timeout=DEADLINE_S)  # a busy machine fails nobody over
    source = job.operator(
        "source", subtask=partial(Numbering, may_go_on), parallelism=2, coordinator=made_by(coordinators, "source")
    )
    job.operator(
        "sink", subtask=Checking, parallelism=1, inputs=[source.rebalance()], coordinator=made_by(coordinators, "sink")
    )
    return job


def hold_up(bootstrap: str, records: int, *, unaligned: bool) -> HeldUp:
    """One sender delivers its barrier and goes on for so many records; the other keeps its barrier back meanwhile."""
    if records % (10 * BATCH):
        raise ValueError(f"{records} records are no whole frames; take a multiple of {10 * BATCH}")
    told: Queue[Any] = multiprocessing.get_context("spawn").Queue()
    targets: dict[str, Target] = {"source": run_subtask, "sink": partial(_run_watched, told, records, unaligned)}
    with tempfile.TemporaryDirectory() as folder:
        may_go_on = Path(folder) / "go on"
        described = partial(_job, may_go_on, unaligned)
        with running(bootstrap, described, targets) as run:
            for subtask in (0, 1):
                run.source.send(subtask, WARM_UP.to_bytes(8, "little"))
            assert _heard(told) == "held up"
            run.source.send(0, (WARM_UP + records).to_bytes(8, "little"))
            samples = _heard(told)
            may_go_on.touch()
            reread, peak_mb = _heard(told)
    return HeldUp(unaligned, records, CACHE_BYTES_MAX / 1e6, samples, reread, peak_mb)


def _heard(told: Queue[Any]) -> Any:
    """What the receiver's process says next; raises what it failed with."""
    said = told.get(timeout=2 * DEADLINE_S)
    if isinstance(said, Exception):
        raise said
    return said
