"""Events per second from coordinator to subtasks, beside raw confluent-kafka."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from penstock.schemas.errors import Backpressure

from . import raw
from .figures import SIZE, Figure, Goal, Setting
from .job import BatchCounter, Counter, Sender, running

EVENTS = 1_000_000
FRAME = 600
"""Events in a raw frame: as many as one of ours holds at this size."""
UNHANDLED_MAX = 4096
UNBOUNDED = 100_000_000
INTERVAL_S = 0.1
"""Between two checkpoints, where there are any."""
BATCH = 1_000
"""Events in a batch, where they are sent in batches: ``send_events`` and ``handle_operator_events``."""


def figures(setting: Setting) -> Iterator[Figure]:
    for subtasks in setting.parallelisms:
        setting.say(f"{subtasks} subtask(s)")
        yield from _figures(setting, subtasks)


def _figures(setting: Setting, subtasks: int) -> Iterator[Figure]:
    """Raw and ours by turns, so that a noisy minute hits both."""
    events, at = setting.count(EVENTS, 20_000), setting.bootstrap
    per_second: defaultdict[str, list[float]] = defaultdict(list)
    bounds = {f"at most {UNHANDLED_MAX:,} unhandled": UNHANDLED_MAX, "unbounded": UNBOUNDED}
    for _ in range(setting.repeats):
        per_second["records"].append(raw.events_per_second(at, subtasks, events // 4, SIZE, None))
        per_second["frames"].append(raw.events_per_second(at, subtasks, events, SIZE, FRAME))
        for bound, unhandled in bounds.items():
            per_second[bound].append(events_per_second(at, subtasks, events, unhandled, None))
            per_second[f"{bound}, checkpoints"].append(events_per_second(at, subtasks, events, unhandled, INTERVAL_S))
        for name, interval in (("batches", None), ("batches, checkpoints", INTERVAL_S)):
            per_second[name].append(events_per_second(at, subtasks, 4 * events, UNBOUNDED, interval, BATCH))
    what = f"first send_event to last handle_operator_event, {SIZE}-byte events, each subtask in a process of its own"
    for bound in [*bounds, "batches"]:
        name = f"events, {subtasks} subtask{'s' if subtasks > 1 else ''}, {bound}"
        if bound == "batches":
            name += f" of {BATCH:,}"
        ours, unit = per_second[bound], "events/s"
        yield Figure.of_runs(
            name, what, ours, unit, per_second["records"], "raw, one record per event",
            Goal(">= 3 times", "ratio", at_least=3),
        )  # fmt: skip
        yield Figure.of_runs(
            name, what, ours, unit, per_second["frames"],
            f"raw, frames of {FRAME}, packed and unpacked, a no-op called for each",
            Goal(">= 60 %", "ratio", at_least=0.6),
        )  # fmt: skip
        yield Figure.of_runs(
            f"{name}, a checkpoint every {1000 * INTERVAL_S:g} ms", what,
            per_second[f"{bound}, checkpoints"], unit, ours, "ours without checkpoints",
            Goal(">= 90 %", "ratio", at_least=0.9),
        )  # fmt: skip


def events_per_second(
    bootstrap: str, subtasks: int, events: int, max_unhandled: int, interval: float | None, batch: int = 1
) -> float:
    per_subtask = events // (subtasks * batch) * batch
    counter = partial(Counter if batch == 1 else BatchCounter, per_subtask)
    with running(bootstrap, counter, subtasks, max_unhandled=max_unhandled, checkpoint_interval=interval) as sender:
        send_all = _send_all if batch == 1 else partial(_send_batches, batch=batch)
        began = time.monotonic()
        send_all(sender, subtasks, per_subtask)
        ended = sender.wait_until_done(subtasks)
    return per_subtask * subtasks / (ended - began)


def _send_all(sender: Sender, subtasks: int, per_subtask: int) -> None:
    payload = bytes(SIZE)
    sends = [(subtask, sender.gateways[subtask].send_event) for subtask in range(subtasks)]
    for _ in range(per_subtask):
        for subtask, send in sends:
            try:
                send(payload)
            except Backpressure:
                sender.send(subtask, payload)  # waits for room


def _send_batches(sender: Sender, subtasks: int, per_subtask: int, batch: int) -> None:
    events = [bytes(SIZE)] * batch
    for _ in range(per_subtask // batch):
        for subtask in range(subtasks):
            sender.send_batch(subtask, events)
