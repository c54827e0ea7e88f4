"""A hundred kinds of weather: splits are handed out and read while everything around them dies at random."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from penstock.sources import Split, Splits
from penstock.testing import Faults, LocalJob

from .driving import PATIENCE_S, SlowNumbers, number_splits, numbers_job, numbers_read

ROUNDS = 100
FIRST = 10
SPLITS, COUNT = 60, 7
ALL = list(range(SPLITS * COUNT))


class Weather:
    """Makes reading and listing slow or fail, seldom, until it clears up."""

    def __init__(self, seed: int) -> None:
        self._random, self._lock = random.Random(seed), threading.Lock()
        self.clear = threading.Event()

    def strikes(self, one_in: int) -> bool:
        with self._lock:
            return not self.clear.is_set() and self._random.randrange(one_in) == 0

    def listing(self, after: str | None) -> Iterator[Split]:
        for split in number_splits(SPLITS, COUNT):
            if after is None or split.id > after:
                if self.strikes(200):
                    raise OSError("the store is away")
                yield split


class Reader(SlowNumbers):
    def __init__(self, weather: Weather) -> None:
        super().__init__(weather.clear)
        self.weather = weather

    def read(self, split: Split, position: Any) -> Iterator[tuple[Any, Any]]:
        for behind, number in super().read(split, position):
            if self.weather.strikes(100):
                raise OSError("the disk is away")
            yield behind, number

    def handle(self, record: int) -> None:
        self.numbers.append(record)
        if self.weather.strikes(5):
            self.go.wait(0.02)


@pytest.mark.parametrize(
    "seed", [seed if seed < FIRST else pytest.param(seed, marks=pytest.mark.more) for seed in range(ROUNDS)]
)
def test_each_record_is_read_once_whatever_happens(seed: int) -> None:
    weather, chance, faults = Weather(seed), random.Random(seed), Faults(seed)
    source = Splits(weather.listing)
    job = numbers_job(source, partial(Reader, weather), parallelism=chance.choice((1, 2, 4)), prefetch=seed % 4)
    with LocalJob(job, faults=faults) as running:
        running.wait_for(lambda status: status.state == "running", PATIENCE_S)
        chaos = faults.at_random(delay=0.05, lag=0.05, refuse=0.01, unknown_outcome=0.01, seconds=0.01)
        for _ in range(chance.randint(1, 4)):
            pause = chance.uniform(0.0, 0.15)
            weather.clear.wait(pause)
            match chance.choice(("subtask", "coordinator", "both", "second attempt")):
                case "subtask":
                    running.crash_subtask("read", chance.randrange(job.operators["read"].parallelism))
                case "coordinator":
                    running.replace_coordinator()
                case "both":
                    running.crash_subtask("read", 0)
                    running.crash_coordinator()
                    running.replace_coordinator()
                case _:
                    running.start_subtask("read", 0)
        chaos.release()
        weather.clear.set()
        ending = running.wait(PATIENCE_S).ending
        if ending.value != "finished":  # a coordinator that was in doubt of its commit has ended; another one goes on
            running.replace_coordinator()
            assert running.wait(PATIENCE_S).ending.value == "finished"
        assert numbers_read(running) == ALL
        running.check()
