"""How cost grows with the subtasks of a job, and with the jobs on a broker, all with default settings."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection

from penstock.coordinator.options import CoordinatorOptions
from penstock.job import Job
from penstock.testing.local import LocalJob
from penstock.transport.kafka_shared import SharedKafkaTransport

from .checkpoints import SHARED_PROCESSES, Small, Stopwatch, host, hosts
from .figures import Figure, Setting
from .idle import shares
from .resident import resident_mb
from .service import coordinated

SUBTASKS = (10, 100, 500, 1_000)
JOBS = (1, 10, 30)
SUBTASKS_OF_A_JOB = 2
MEASURED_S = 20
START_S = 150.0
_SHARED = f"threads in {SHARED_PROCESSES} processes that share Kafka clients"


def figures(setting: Setting) -> Iterator[Figure]:
    seconds = setting.count(MEASURED_S, 3)
    for count in (2,) if setting.quick else SUBTASKS:
        setting.say(f"{count:,} subtasks")
        yield from _of_subtasks(setting, count, seconds)
    for count in (1,) if setting.quick else JOBS:
        setting.say(f"{count} job(s)")
        yield from _of_jobs(setting, count, seconds)


class Clocked(Stopwatch):
    """Counts the checkpoints that are aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = 0

    def notify_checkpoint_aborted(self, checkpoint_id: int, reason: str) -> None:
        self.aborted += 1


def _of_subtasks(setting: Setting, count: int, seconds: float) -> Iterator[Figure]:
    name, clock = f"grow-{uuid.uuid4().hex[:8]}", Clocked()
    job = Job(name)
    job.operator("small", subtask=Small, coordinator=lambda: clock, parallelism=count)
    bare = Job(name)
    bare.operator("small", subtask=Small, parallelism=count)
    began, others = time.monotonic(), set(multiprocessing.active_children())
    targets = [partial(host, bare, these, Small, setting.bootstrap) for these in hosts(count, SHARED_PROCESSES)]
    with coordinated(job, setting.bootstrap, targets):
        clock.wait(count, 1, START_S)
        start_s = time.monotonic() - began
        hosting = [p.pid for p in multiprocessing.active_children() if p not in others and p.pid is not None]
        first, aborted = len(clock.taken), clock.aborted
        sides = {"coordinator": [os.getpid()], "subtasks": hosting, "broker": [setting.broker_pid]}
        cpu, memory_mb = shares(sides, seconds), resident_mb()
        clock.wait(count, first + 1, START_S)
        taken, aborted = clock.taken[first:], clock.aborted - aborted
        status_s = _command_s(setting, "status", name)
    yield from _told(f"growth, {count:,} subtasks", f"{count:,} subtasks, {_SHARED}", start_s, taken, memory_mb, cpu)
    yield Figure(f"growth, {count:,} subtasks: aborted", "checkpoints that were aborted meanwhile", aborted, "")
    yield Figure(f"growth, {count:,} subtasks: status", "penstock status, its interpreter included", status_s, "s")


def _told(
    name: str, of: str, start_s: float, taken: list[float], memory_mb: float, cpu: dict[str, float]
) -> Iterator[Figure]:
    yield Figure(f"{name}: start", f"from creating topics to the first completed checkpoint; {of}", start_s, "s")
    p50_ms = 1000 * statistics.median(taken)
    yield Figure(
        f"{name}: checkpoint", f"from the cut to the notice, median of {len(taken)}, one each second", p50_ms, "ms"
    )
    yield Figure(f"{name}: memory", "resident, of a process with a coordinator", memory_mb, "MB")
    for side, share in cpu.items():
        yield Figure(f"{name}: {side}", "processor time, of all processes of that side", share, "% of a core")


def _command_s(setting: Setting, *arguments: str) -> float:
    """Seconds that a command of the command line takes."""
    began = time.monotonic()
    command = [sys.executable, "-m", "penstock.cli", *arguments, "--broker", setting.bootstrap]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=START_S)
    return time.monotonic() - began


def _of_jobs(setting: Setting, count: int, seconds: float) -> Iterator[Figure]:
    context = multiprocessing.get_context("spawn")
    began, jobs = time.monotonic(), []
    for _ in range(count):
        mine, its = context.Pipe()
        process = context.Process(target=_job, args=(setting.bootstrap, its), daemon=True)
        process.start()
        its.close()
        jobs.append((process, mine))
    try:
        for _, pipe in jobs:
            _answer(pipe)
        start_s = time.monotonic() - began
        pids = [process.pid for process, _ in jobs if process.pid is not None]
        cpu = shares({"jobs": pids, "broker": [setting.broker_pid]}, seconds)
        list_s = _command_s(setting, "jobs")
        taken: list[float] = []
        memory_mb = 0.0
        for _, pipe in jobs:
            pipe.send(None)
            times, resident = _answer(pipe)
            taken += times
            memory_mb = max(memory_mb, resident)
    finally:
        for process, pipe in jobs:
            pipe.close()  # which ends it
            process.join(30)
            process.kill()
    jobs_told = f"{count} job{'s' if count > 1 else ''}"
    of = f"each a process with its coordinator and {SUBTASKS_OF_A_JOB} subtasks"
    yield from _told(f"growth, {jobs_told}", of, start_s, taken, memory_mb, cpu)
    yield Figure(f"growth, {jobs_told}: list", "penstock jobs, its interpreter included", list_s, "s")


def _answer(pipe: Connection) -> tuple[list[float], float]:
    if not pipe.poll(START_S):
        raise TimeoutError(f"a job has not answered within {START_S:g} s")
    times, resident = pipe.recv()
    return times, resident


def _job(bootstrap: str, pipe: Connection) -> None:
    """A job in this process: says that it runs, then on demand what its checkpoints took; ends with the pipe."""
    clock, name = Clocked(), f"grow-{uuid.uuid4().hex[:8]}"
    job = Job(name)
    job.operator("small", subtask=Small, coordinator=lambda: clock, parallelism=SUBTASKS_OF_A_JOB)
    with LocalJob(job, SharedKafkaTransport(bootstrap), CoordinatorOptions()) as running:
        clock.wait(SUBTASKS_OF_A_JOB, 1, START_S)
        pipe.send(([], resident_mb()))
        first = len(clock.taken)
        try:
            while True:
                pipe.recv()
                pipe.send((clock.taken[first:], resident_mb()))
        except EOFError:
            running.client.stop(timeout_s=20)
