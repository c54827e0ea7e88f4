"""What a coordinator that hands out splits keeps: its state, its memory and its time, from 1,000 splits to a million.

Without a broker: what is measured is the coordinator's own. Subtasks take splits as fast as they are listed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

from penstock.schemas.user_codec import JsonCodec
from penstock.sources import Split, Splits
from penstock.sources.split_coordinator import SplitCoordinator

from .figures import Figure, Goal, Setting
from .resident import in_a_process_of_its_own, watched

COUNTS = (1_000, 10_000, 100_000, 1_000_000)
SUBTASKS = 16
PER_REQUEST = 16
CUTS = 20
"""Checkpoints over the whole run."""
BOUND_S = 280.0
IN_ORDER, REMEMBERED = "in order of their ids", "of any name, discovered while the job runs"


class Kept(NamedTuple):
    """Of one run: bytes of the largest state, milliseconds of the slowest cut, megabytes grown, splits a second.

    Times are those of the processor.
    """

    state_bytes: float
    cut_ms: float
    grown_mb: float
    per_second: float


class _Around:
    """A coordinator's surroundings: asynchronous work is done at once, and what is sent is counted."""

    operator, parallelism = "read", SUBTASKS
    metrics = SimpleNamespace(set=lambda name, value: None, increment=lambda name: None)

    def __init__(self) -> None:
        self.work: list[tuple[Callable[[], Any], Callable[[Any, Any], None]]] = []
        self.given = [0] * SUBTASKS

    def call_async(self, fn: Any, on_result: Any) -> None:
        self.work.append((fn, on_result))

    def call_later(self, delay: float, fn: Any) -> None:
        pass

    def gateway(self, subtask: int) -> Any:
        def send_event(event: Any) -> None:
            self.given[subtask] += "split" in event

        return SimpleNamespace(send_event=send_event)


def listing(count: int, after: str | None) -> Iterator[Split]:
    for number in range(0 if after is None else int(after) + 1, count):
        yield Split(f"{number:09}", {"from": number * 1_000, "to": number * 1_000 + 1_000})


def run(count: int, remembered: bool) -> Kept:
    """Hand out ``count`` splits, with a cut now and then."""
    source = _Remembered(count) if remembered else Splits(lambda after: listing(count, after))
    with watched() as peak:
        coordinator, around, codec = SplitCoordinator(source), _Around(), JsonCodec()
        coordinator.context = around  # type: ignore[assignment]
        coordinator.start()
        for subtask in range(SUBTASKS):
            coordinator.execution_attempt_ready(subtask, 1, around.gateway(subtask))
        began, next_cut, largest, slowest, cutting = time.process_time(), 0, 0, 0.0, 0.0
        while (given := sum(around.given)) < count:
            for subtask in range(SUBTASKS):
                event = {"series": 0, "wants": around.given[subtask] + PER_REQUEST, "finished": 0, "host": "h"}
                coordinator.handle_event_from_operator(subtask, 1, event, None)  # type: ignore[arg-type]
            for fn, on_result in [around.work.pop()] if around.work else []:
                on_result(fn(), None)
            if given >= next_cut or given >= count - PER_REQUEST * SUBTASKS:
                cut = time.process_time()
                states: list[Any] = []
                coordinator.checkpoint_coordinator(1, SimpleNamespace(complete=states.append))  # type: ignore[arg-type]
                size = len(codec.encode(states.pop()))
                took = time.process_time() - cut
                largest, slowest, cutting = max(largest, size), max(slowest, took), cutting + took
                next_cut = given + count // CUTS
        per_second = count / (time.process_time() - began - cutting)
        return Kept(largest, slowest * 1_000, peak.look(), per_second)


class _Remembered(Splits):
    """Any number of ids that are remembered, without a list of them: files of folders are discovered like this."""

    def __init__(self, count: int) -> None:
        super().__init__(lambda: [], discover_every=3_600.0)
        self._list = lambda: listing(count, None)

    def _all(self) -> Any:
        return self._list()


def figures(setting: Setting) -> Iterator[Figure]:
    for remembered, how in ((False, IN_ORDER), (True, REMEMBERED)):
        for full in COUNTS:
            count = setting.count(full, full // 100)
            setting.say(f"{count:,} splits {how}")
            repeats = setting.repeats if full < COUNTS[-1] else 1
            runs = [in_a_process_of_its_own(BOUND_S, run, count, remembered) for _ in range(repeats)]
            name = f"{count:,} splits {how}"
            goal = None if remembered else Goal("at most 96 KiB, however many", at_most=96 * 1024)
            what = f"largest of {CUTS} cuts while {SUBTASKS} subtasks take them all"
            yield Figure.of_runs(f"state, {name}", f"{what}, as JSON", [r.state_bytes for r in runs], "B", goal=goal)
            yield Figure.of_runs(
                f"cut, {name}", f"slowest of {CUTS}, encoded, processor time", [r.cut_ms for r in runs], "ms"
            )
            grown = "resident memory of the process, grown, at its peak"
            yield Figure.of_runs(f"memory, {name}", grown, [r.grown_mb for r in runs], "MB")
            rate = "listed and handed out by one coordinator, per second of processor time, without cuts"
            yield Figure.of_runs(f"rate, {name}", rate, [r.per_second for r in runs], "splits/s")


if __name__ == "__main__":
    for count in COUNTS:
        for remembered in (False, True):
            kept = in_a_process_of_its_own(BOUND_S, run, count, remembered)
            print(json.dumps({"splits": count, "remembered": remembered, **kept._asdict()}))
