"""A query that goes on while its processes are killed at random, and an account of what it wrote.

    python -m tests.spark_integration.streaming.thousand --batches 1000 --seed 1

The seed decides who is killed, and behind how many batches. It exits with 1 where anything is not exact.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from penstock.broker import EmbeddedBroker

from .kill_points import Coordinator, Driver, files_of, java_options, not_exact, spare_drivers
from .struck import Orders

KINDS = ("driver", "coordinator", "worker", "planner")
LATEST_S = 0.25
"""A kill comes at most so many seconds behind the commit of its batch, so that it hits any part of the next."""
SILENT_S = 720.0
SAY_EVERY = 50
_LOOK_S = 0.02
_WORKERS = "penstock.spark_integration.daemon"
_PLANNER = "python_streaming_source_runner"


@dataclass(frozen=True, slots=True)
class Kill:
    behind: int
    """So many batches have been committed."""
    kind: str
    delay_s: float
    choice: float
    """Which one, where there are several; below 1."""


@dataclass(slots=True)
class Account:
    batches: int = 0
    events: int = 0
    seconds: float = 0.0
    drivers: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kills = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kills.items()))
        return (
            f"batches {self.batches}, kills {self.kills.total()} ({kills}), drivers {self.drivers}, events"
            f" {self.events}, {self.seconds:.0f} s, exact {not self.wrong}"
        )


def planned(batches: int, kills: int, seed: int) -> list[Kill]:
    """Every kind as often as the others, at random places."""
    chance = random.Random(seed)
    places = sorted(chance.sample(range(2, batches), kills))
    kinds = [KINDS[at % len(KINDS)] for at in range(kills)]
    chance.shuffle(kinds)
    return [
        Kill(behind, kind, chance.uniform(0.0, LATEST_S), chance.random())
        for behind, kind in zip(places, kinds, strict=True)
    ]


def run(
    folder: Path,
    name: str,
    broker: str,
    batches: int,
    kills: int,
    seed: int,
    java: str,
    say: Callable[[str], None],
    limit_s: float = math.inf,
) -> Account:
    """Ends before its batches and kills are through where they take longer than ``limit_s``; the account is whole."""
    (folder / "orders").mkdir(parents=True)
    account, began = Account(), time.monotonic()
    with ExitStack() as stack:
        coordinator = Coordinator(folder, name, broker)
        stack.callback(coordinator.close)
        sequence = _Sequence(
            Orders(name, broker, str(folder), 0, "elsewhere", record=False),
            stack.enter_context(spare_drivers(folder, java)), coordinator, account, say,
            limit_s,
        )  # fmt: skip
        sequence.run(planned(batches, kills, seed), batches)
        said = sequence.driver.said()
    ended = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    rows = files_of(folder)
    account.wrong += not_exact(rows, ended)
    account.batches, account.events = len({row["batch_id"] for row in rows}), len(rows)
    account.seconds = time.monotonic() - began
    if account.batches < batches and not sequence.late():
        account.wrong.append(f"{account.batches} batches are in the files, and not {batches}")
    return account


class _Sequence:
    """Drivers, one after the other, until one of them ends."""

    def __init__(
        self, orders: Orders, drivers: Iterator[Driver], coordinator: Coordinator, account: Account,
        say: Callable[[str], None], limit_s: float,
    ) -> None:  # fmt: skip
        self._orders, self._drivers, self._coordinator = orders, drivers, coordinator
        self._account, self._say = account, say
        self._began = self._moved = time.monotonic()
        self._until = self._began + limit_s
        self._seen = self._told = -1
        self.driver = self._next()

    def _next(self) -> Driver:
        driver = next(self._drivers)
        driver.begin(self._orders)
        self._account.drivers += 1
        return driver

    def late(self) -> bool:
        return time.monotonic() > self._until

    def run(self, kills: list[Kill], batches: int) -> None:
        for kill in kills:
            self._await(lambda wanted=kill.behind: self._orders.committed() + 1 >= wanted or self.late())  # type: ignore[misc]
            if self.late():
                break
            time.sleep(kill.delay_s)
            self._strike(kill)
        self._await(lambda: self._orders.committed() + 1 >= batches or self.late())
        self._orders.enough.touch()
        while (code := self.driver.ended()) is None:
            self._watch()
            time.sleep(_LOOK_S)
        if code != 0:
            raise AssertionError(f"the last driver ended with {code}: {self.driver.said()[-4000:]}")

    def _await(self, condition: Callable[[], bool]) -> None:
        """Fails where the driver ends of itself, or where no batch is committed for long."""
        while not condition():
            if (code := self.driver.ended()) is not None:
                raise AssertionError(f"a driver ended of itself with {code}: {self.driver.said()[-4000:]}")
            self._watch()
            time.sleep(_LOOK_S)

    def _watch(self) -> None:
        now, committed = time.monotonic(), self._orders.committed()
        if committed != self._seen:
            self._seen, self._moved = committed, now
        if committed >= self._told + SAY_EVERY:
            self._told = committed
            self._say(f"{now - self._began:6.0f} s  {committed + 1} batches, {self._account.kills.total()} kills")
        if now > self._moved + SILENT_S:
            raise AssertionError(
                f"no batch within {SILENT_S:g} s behind batch {committed}: {self.driver.said()[-3000:]}"
                f" {self._coordinator.said()[-3000:]}"
            )

    def _strike(self, kill: Kill) -> None:
        committed = self._orders.committed() + 1
        match kill.kind:
            case "driver":
                self.driver.kill()
                self.driver = self._next()
            case "coordinator":
                self._coordinator.kill()
            case "worker":
                self._kill_one(kill, lambda parent, command: _WORKERS in parent and _WORKERS in command)
            case "planner":
                self._kill_one(kill, lambda _, command: _PLANNER in command)
                self._watch_end()  # Spark starts no planner anew: it ends the query
                self.driver = self._next()
        self._account.kills[kill.kind] += 1
        self._say(f"{time.monotonic() - self._began:6.0f} s  behind {committed} batches: {kill.kind} killed")

    def _kill_one(self, kill: Kill, wanted: Callable[[str, str], bool]) -> None:
        """As soon as there is one: a driver that has just been started has no workers yet."""
        found: list[int] = []

        def there() -> bool:
            found[:] = self.driver.children(wanted)
            return bool(found)

        self._await(there)
        os.kill(found[int(kill.choice * len(found))], signal.SIGKILL)

    def _watch_end(self) -> None:
        while self.driver.ended() is None:
            self._watch()
            time.sleep(_LOOK_S)
        if "the query has ended" not in self.driver.said() and "terminated with exception" not in self.driver.said():
            raise AssertionError(f"the driver has not said why it ended: {self.driver.said()[-4000:]}")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--batches", type=int, default=1_000)
    options.add_argument("--kills", type=int, help="one for every 40 batches, unless said otherwise")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--minutes", type=float, default=math.inf, help="it ends behind so many, whatever is left")
    told = options.parse_args()
    kills = told.batches // 40 if told.kills is None else told.kills
    folder = Path(tempfile.mkdtemp(prefix="thousand-"))
    try:
        with EmbeddedBroker(folder / "kafka") as broker:
            account = run(
                folder / "job", f"thousand-{told.seed}", broker.bootstrap, told.batches, kills, told.seed,
                java_options(folder), lambda line: print(line, file=sys.stderr, flush=True), told.minutes * 60,
            )  # fmt: skip
    except BaseException:
        print(f"everything is kept in {folder}", file=sys.stderr)
        raise
    if account.wrong:
        print(f"everything is kept in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    print(account)
    print("\n".join(account.wrong), end="\n" if account.wrong else "")
    return 1 if account.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
