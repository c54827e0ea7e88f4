"""Checkpoint time over the number of subtasks, beside a raw round over as many partitions."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

from penstock.coordinator.api import CheckpointResult, Gateway, OperatorCoordinator
from penstock.job import Job
from penstock.schemas.ids import SubtaskId
from penstock.schemas.settings import CheckpointSettings
from penstock.subtask_client.api import Context, Subtask
from penstock.subtask_client.runtime import SubtaskRuntime
from penstock.transport.kafka import KafkaTransport
from penstock.transport.kafka_shared import SharedKafkaTransport

from .figures import Figure, Goal, Setting
from .rounds import raw_rounds
from .service import coordinated

SUBTASKS = (1, 4, 16, 64, 128, 256, 1_000)
PROCESSES_MAX = 64
"""So many subtasks have a process each, with Kafka clients of its own; more are threads of two processes that share
theirs."""
SHARED_PROCESSES = 2
CHECKPOINTS = 50
GOALS_MS = {1: 10, 128: 60, 1_000: 300}
STATE = bytes(32)
WARM_UP = 3
DEADLINE_S = 180.0
WITHIN_S = 75.0
"""So long checkpoints are taken of one number of subtasks: on a machine with other work there may be fewer of them."""
_STACK_BYTES = 512 * 1024


def figures(setting: Setting) -> Iterator[Figure]:
    """For each number of subtasks raw and ours, one behind the other."""
    count = setting.count(CHECKPOINTS, 3)
    times_ms: dict[int, float] = {}
    for subtasks in (1, PROCESSES_MAX + 2) if setting.quick else SUBTASKS:
        setting.say(f"{subtasks:,} subtask(s)")
        rounds = raw_rounds(setting.bootstrap, hosts(subtasks), count, len(STATE), WITHIN_S)
        taken = checkpoint_times(setting.bootstrap, subtasks, count)
        figure = _figure(subtasks, taken, rounds)
        times_ms[subtasks] = figure.value
        yield figure
    yield _growth(times_ms)


def _figure(subtasks: int, taken: list[float], rounds: list[float]) -> Figure:
    where = "each in a process of its own"
    if subtasks > PROCESSES_MAX:
        where = f"threads in {SHARED_PROCESSES} processes that share Kafka clients"
    bound = GOALS_MS.get(subtasks)
    return Figure.of_runs(
        f"checkpoint, {subtasks:,} subtask{'s' if subtasks > 1 else ''}",
        f"checkpoint_coordinator to notify_checkpoint_complete, median of {len(taken)}, {len(STATE)} bytes of state,"
        f" subtasks {where}",
        [1000 * seconds for seconds in taken],
        "ms",
        [1000 * seconds for seconds in rounds],
        "raw, a record to each of as many partitions and an answer from each, processes and clients likewise",
        None if bound is None else Goal(f"<= {bound} ms", at_most=bound),
    )


def _growth(times_ms: dict[int, float]) -> Figure:
    """How steep the steepest step between two numbers of subtasks is."""
    steps = [times_ms[more] / times_ms[less] / (more / less) for less, more in pairwise(times_ms)]
    return Figure(
        "checkpoint time, growth",
        "growth of the time by growth of the number of subtasks, in the steepest step (1: linear)",
        max(steps),
        "",
        goal=Goal("no worse than linear", at_most=1.0),
    )


class Stopwatch(OperatorCoordinator):
    """Times its checkpoints, from ``checkpoint_coordinator`` to ``notify_checkpoint_complete``."""

    def __init__(self) -> None:
        self.ready: set[int] = set()
        self.taken: list[float] = []
        self.changed = threading.Condition()
        self._began: dict[int, float] = {}

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Gateway) -> None:
        with self.changed:
            self.ready.add(subtask)
            self.changed.notify_all()

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        self._began[checkpoint_id] = time.monotonic()
        result.complete(STATE)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        with self.changed:
            self.taken.append(time.monotonic() - self._began.pop(checkpoint_id))
            self.changed.notify_all()

    def notify_checkpoint_aborted(self, checkpoint_id: int, reason: str) -> None:
        raise RuntimeError(f"checkpoint {checkpoint_id} was aborted: no time was measured")

    def wait(self, ready: int, taken: int, within_s: float = DEADLINE_S) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: len(self.ready) >= ready and len(self.taken) >= taken, within_s):
                raise TimeoutError(f"{len(self.ready)} of {ready} subtasks are up, {len(self.taken)} checkpoints done")


class Small(Subtask):
    """Has a small state and nothing to do."""

    def open(self, context: Context) -> None:
        pass

    def handle_operator_event(self, event: bytes) -> None:
        pass

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        return STATE


def hosts(subtasks: int, processes: int | None = None) -> list[range]:
    """Which subtasks each process hosts."""
    if processes is None:
        processes = subtasks if subtasks <= PROCESSES_MAX else SHARED_PROCESSES
    ends = [subtasks * n // processes for n in range(processes + 1)]
    return [range(begin, end) for begin, end in pairwise(ends)]


def host(job: Job, hosted: range, subtask: type[Subtask], bootstrap: str, run: str) -> None:
    """A process with these subtasks."""
    transport = KafkaTransport(bootstrap) if len(hosted) == 1 else SharedKafkaTransport(bootstrap)
    threading.stack_size(_STACK_BYTES)
    (operator,) = job.settings.operators
    runtimes = [SubtaskRuntime(job.settings, SubtaskId(operator.name, i), subtask, transport, run=run) for i in hosted]
    threads = [threading.Thread(target=runtime.run) for runtime in runtimes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def running(bootstrap: str, subtasks: int, pause_s: float, subtask: type[Subtask] = Small) -> Iterator[Stopwatch]:
    """A job whose subtasks are all up, and which takes one checkpoint after the other with a pause between."""
    stopwatch = Stopwatch()
    checkpoint = CheckpointSettings(interval=0.01, min_pause=pause_s)
    job = Job(f"bench-{uuid.uuid4().hex[:12]}", checkpoint=checkpoint, heartbeat_timeout=60.0)
    job.operator("small", subtask=subtask, coordinator=lambda: stopwatch, parallelism=subtasks)
    bare = Job(job.name, checkpoint=checkpoint)
    bare.operator("small", subtask=subtask, parallelism=subtasks)
    with coordinated(job, bootstrap, [partial(host, bare, these, subtask, bootstrap) for these in hosts(subtasks)]):
        stopwatch.wait(subtasks, 0)
        yield stopwatch


def checkpoint_times(bootstrap: str, subtasks: int, count: int) -> list[float]:
    """Seconds of each of ``count`` checkpoints, or of those that there were in time."""
    with running(bootstrap, subtasks, pause_of(subtasks)) as stopwatch:
        stopwatch.wait(subtasks, WARM_UP + 1)
        with contextlib.suppress(TimeoutError):
            stopwatch.wait(subtasks, WARM_UP + count, WITHIN_S)
        return stopwatch.taken[WARM_UP : WARM_UP + count]


def pause_of(subtasks: int) -> float:
    """Seconds between two checkpoints: in them the notices of the one before are written and read."""
    return 0.02 + 0.0005 * subtasks
