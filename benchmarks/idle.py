"""What a job costs that has nothing to do: processor time of each of its processes and of the broker, and bytes."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.schemas.topics import DEFAULT_PREFIX
from penstock.transport.kafka import KafkaTransport

from .figures import Figure, Goal, Setting
from .job import Counter, running

JOBS: tuple[tuple[int, float | None], ...] = ((1, 1.0), (16, 1.0), (16, None))
"""Subtasks, and seconds from one checkpoint to the next: the default, or none."""
SETTLE_S = 13.0
"""For how long a new job is left alone: until its subtasks are quiet."""
GOAL = Goal("<= 3 % of a core", at_most=3.0)


@dataclass(frozen=True)
class Cost:
    """Of one stretch of time."""

    coordinator: float
    """Per cent of a core."""
    subtasks: float
    """All of them together."""
    broker: float
    bytes_per_hour: float
    """That all the job's topics grow by, as long as nothing is deleted."""


def figures(setting: Setting) -> Iterator[Figure]:
    seconds = setting.count(10, 2)
    alone = cost_of_broker(setting.broker_pid, seconds)
    for count, interval in JOBS[: setting.count(len(JOBS), 1)]:
        setting.say(f"{count} subtask(s), checkpoints: {interval} ...")
        yield from _figures(count, interval, cost_of_job(setting, count, interval, seconds), alone)


def _figures(count: int, interval: float | None, cost: Cost, alone: float) -> list[Figure]:
    how = "no checkpoints" if interval is None else "a checkpoint each second"
    name = f"idle, {count} subtask{'s' if count > 1 else ''}, {how}"
    what = f"processor time of the coordinator and the subtasks, each in a process of its own; {cost.coordinator:.2g} %"
    goal = GOAL if count > 1 else None
    return [
        Figure(name, f"{what} are the coordinator's", cost.coordinator + cost.subtasks, "% of a core", goal=goal),
        Figure(f"{name}: broker", "its processor time", cost.broker, "% of a core", alone, "the broker without a job"),
        Figure(f"{name}: written", "to all topics of the job", cost.bytes_per_hour / 1e6, "MB per hour"),
    ]


def cost_of_broker(pid: int, seconds: float) -> float:
    """Without a job, in per cent of a core."""
    time.sleep(min(SETTLE_S, seconds))
    return shares({"broker": [pid]}, seconds)["broker"]


def cost_of_job(setting: Setting, count: int, interval: float | None, seconds: float) -> Cost:
    others = set(multiprocessing.active_children())
    with running(setting.bootstrap, Counter, count, checkpoint_interval=interval) as sender:
        time.sleep(min(SETTLE_S, seconds))
        subtasks = [p.pid for p in multiprocessing.active_children() if p not in others and p.pid is not None]
        sides = {"coordinator": [os.getpid()], "subtasks": subtasks, "broker": [setting.broker_pid]}
        began, before = time.monotonic(), _bytes_of(setting.bootstrap, sender.context.job)
        taken = shares(sides, seconds)
        grown = _bytes_of(setting.bootstrap, sender.context.job) - before
        return Cost(**taken, bytes_per_hour=grown * 3600 / (time.monotonic() - began))


def shares(sides: Mapping[str, Iterable[int]], seconds: float) -> dict[str, float]:
    """What the processes of each side take for so long, together, in per cent of a core."""
    began, before = time.monotonic(), {side: processor_seconds(pids) for side, pids in sides.items()}
    time.sleep(seconds)
    lasted = time.monotonic() - began
    return {side: 100 * (processor_seconds(pids) - before[side]) / lasted for side, pids in sides.items()}


def processor_seconds(pids: Iterable[int]) -> float:
    """From the scheduler, which counts nanoseconds: what wakes often and briefly is invisible to the clock's ticks."""
    threads = [thread for pid in pids for thread in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def _bytes_of(bootstrap: str, job: str) -> int:
    """Of all its topics; only whole segments are deleted, and a short run begins no second one."""
    transport = KafkaTransport(bootstrap)
    try:
        sizes = transport.topic_bytes(transport.list_topics(f"{DEFAULT_PREFIX}.{job}."))
    finally:
        transport.close()
    assert sizes is not None
    return sum(sizes.values())
