"""Events per second and latency from coordinator to subtask, beside raw confluent-kafka."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from . import raw
from .job import Counter, Stamp, running

SIZE = 100
WARM_UP = 50


@dataclass(frozen=True)
class Figure:
    """One measured value, what it means, and its raw counterpart from the same run."""

    name: str
    definition: str
    value: float
    unit: str
    raw: float
    raw_definition: str

    @property
    def ratio(self) -> float:
        return self.value / self.raw


def events_per_second(
    bootstrap: str, parallelism: int, events: int, max_unhandled: int, interval: float | None
) -> float:
    per_subtask = events // parallelism
    payload = bytes(SIZE)
    with running(
        bootstrap,
        Counter,
        parallelism,
        expected=per_subtask,
        max_unhandled=max_unhandled,
        checkpoint_interval=interval,
    ) as sender:
        began = time.monotonic()
        for _ in range(per_subtask):
            for subtask in range(parallelism):
                sender.send(subtask, payload)
        ended = sender.wait_until_done(parallelism)
    return per_subtask * parallelism / (ended - began)


def handled_latencies(bootstrap: str, count: int) -> list[float]:
    """Seconds from send_event to the end of its handler, one at a time on an idle job."""
    taken = []
    with running(bootstrap, Stamp, 1) as sender:
        for n in range(count + WARM_UP):
            sender.done.clear()
            began = time.monotonic()
            sender.gateways[0].send_event(bytes(SIZE))
            at = sender.wait_until_done(1)
            if n >= WARM_UP:
                taken.append(at - began)
    return taken


def settled_latencies(bootstrap: str, count: int) -> list[float]:
    """Seconds from send_event to the settling of its future, one at a time on an idle job."""
    taken = []
    with running(bootstrap, Counter, 1) as sender:
        for n in range(count + WARM_UP):
            began = time.monotonic()
            sender.gateways[0].send_event(bytes(SIZE)).result(30)
            if n >= WARM_UP:
                taken.append(time.monotonic() - began)
    return taken


def throughput_figures(bootstrap: str, parallelism: int, events: int, repeats: int) -> list[Figure]:
    """Medians over ``repeats``, raw and ours by turns, so that a noisy minute hits both."""
    what = f"{parallelism} subtask{'s' if parallelism > 1 else ''} in processes of their own, {SIZE}-byte events"
    ours: dict[str, list[float]] = {"bounded": [], "unbounded": [], "checkpoints": []}
    raws: dict[str, list[float]] = {"records": [], "frames": []}
    for _ in range(repeats):
        raws["records"].append(raw.events_per_second(bootstrap, parallelism, events // 4, SIZE, None))
        raws["frames"].append(raw.events_per_second(bootstrap, parallelism, events, SIZE, 600))
        ours["bounded"].append(events_per_second(bootstrap, parallelism, events, 4096, None))
        ours["unbounded"].append(events_per_second(bootstrap, parallelism, events, 100_000_000, None))
        ours["checkpoints"].append(events_per_second(bootstrap, parallelism, events, 100_000_000, 0.1))
    median = statistics.median
    records, frames, unbounded = median(raws["records"]), median(raws["frames"]), median(ours["unbounded"])
    bounded, checkpoints = median(ours["bounded"]), median(ours["checkpoints"])
    one, same = "one record per event", "frames of 600 events, packed and unpacked, a no-op called for each"
    unit = "events/s"
    return [
        Figure("events, at most 4,096 unhandled", what, bounded, unit, records, one),
        Figure("events, unbounded", what, unbounded, unit, records, one),
        Figure("events, unbounded", what, unbounded, unit, frames, same),
        Figure("events, a checkpoint every 100 ms", what, checkpoints, unit, unbounded, "ours without checkpoints"),
    ]


def latency_figures(bootstrap: str, count: int) -> list[Figure]:
    one_way, round_trip = raw.round_trips(bootstrap, count, SIZE)
    handled, settled = handled_latencies(bootstrap, count), settled_latencies(bootstrap, count)
    figures = []
    for name, q in (("p50", 0.50), ("p99", 0.99)):
        figures += [
            Figure(f"send to handled, {name}", "one at a time, idle job", 1000 * _quantile(handled, q), "ms",
                   1000 * _quantile(one_way, q), "half of produce, echo, consume"),
            Figure(f"send to settled future, {name}", "one at a time, idle job", 1000 * _quantile(settled, q), "ms",
                   1000 * _quantile(round_trip, q), "produce, echo, consume"),
        ]  # fmt: skip
    return figures


def _quantile(values: list[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]
