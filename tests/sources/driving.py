"""A source of numbers whose readers keep what they have read, so that the last checkpoint tells what was read."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import penstock
from penstock.sources import Split, SplitReader, Splits
from penstock.sources.split_reader import TURN_S
from penstock.sources.split_source import SplitSource
from penstock.testing import LocalJob

PATIENCE_S = 60.0


class Latch:
    """Stops whoever passes, once, until it is released; a test waits until somebody has come."""

    def __init__(self) -> None:
        self._reached, self._released = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self._reached.set()
        assert self._released.wait(PATIENCE_S), "nobody has released the latch"

    def wait_until_reached(self) -> None:
        assert self._reached.wait(PATIENCE_S), "nobody has come to the latch"

    def release(self) -> None:
        self._released.set()


class ReadNumbers(SplitReader):
    """Reads the numbers of a split one by one, and keeps them."""

    def __init__(self, at: dict[int, Any] | None = None, positions: list[tuple[str, Any]] | None = None) -> None:
        self.numbers: list[int] = []
        self.at = at or {}
        """What to do before a number is read."""
        self.positions = positions if positions is not None else []
        """Of every call of read."""

    def read(self, split: Split, position: Any) -> Iterator[tuple[Any, Any]]:
        self.positions.append((split.id, position))
        for n in range(position or 0, split.payload["count"]):
            number = split.payload["first"] + n
            if number in self.at:
                self.at[number]()
            yield n + 1, number

    def handle(self, record: int) -> None:
        self.numbers.append(record)

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return list(self.numbers)

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.numbers = list(state)


class SlowNumbers(ReadNumbers):
    """Reads one number a turn until ``go`` is set, so that checkpoints complete in the middle of splits."""

    def __init__(self, go: threading.Event, at: dict[int, Any] | None = None, positions: Any = None) -> None:
        super().__init__(at, positions)
        self.go = go

    def handle(self, record: int) -> None:
        super().handle(record)
        self.go.wait(TURN_S)


def deal(states: Any, parallelism: int) -> list[Any]:
    """Rescale what readers keep."""
    numbers = [number for state in states for number in state or []]
    return [numbers[i::parallelism] for i in range(parallelism)]


def number_splits(splits: int, count: int = 10, begin: int = 0, **more: Any) -> list[Split]:
    return [Split(f"s{i:07}", {"first": i * count, "count": count}, **more) for i in range(begin, begin + splits)]


def empty_job(name: str = "read", **checkpoint: Any) -> penstock.Job:
    settings = {"interval": 0.03, "timeout": 10.0, "tolerable_failures": 1000, **checkpoint}
    return penstock.Job(
        name,
        checkpoint=penstock.CheckpointSettings(**settings),
        restart=penstock.RestartStrategy(backoff_next=0.01, backoff_max=0.05, budget=200),
        heartbeat_interval=0.1,
        heartbeat_timeout=10.0,
        start_timeout=30.0,
    )


def numbers_job(
    source: SplitSource, make: Any = ReadNumbers, parallelism: int = 3, prefetch: int = 1, **checkpoint: Any
) -> penstock.Job:
    job = empty_job(**checkpoint)
    reading = source.read_by(make, prefetch=prefetch, rescale=deal)
    job.operator("read", **reading, parallelism=parallelism)
    return job


def states_of(running: LocalJob, operator: str = "read") -> list[Any]:
    """What the subtasks had in the last completed checkpoint, read from its log."""
    last = running.client.history().last
    if last is None:
        return []
    parts = [part for who, part in sorted(last.subtasks.items()) if who.operator == operator]
    return [json.loads(part.state.inline) for part in parts if part.state is not None and part.state.inline]


def numbers_read(running: LocalJob) -> list[int]:
    """All numbers of the last completed checkpoint, sorted: one that was read twice is there twice."""
    return sorted(number for state in states_of(running) for number in state["reader"] or [])


def progress_of(running: LocalJob) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(running.client.request("read", b"null").payload)
    return answer


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Look again and again, for a minute."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(0.005)


def finite(count: int, splits: int, **more: Any) -> Splits:
    return Splits(partial(number_splits, splits, count, **more))
