"""How long one event takes on an idle job, beside the same way through raw confluent-kafka."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from penstock.subtask_client.api import Subtask

from . import raw
from .figures import SIZE, Figure, Goal, Setting, quantile
from .job import Counter, Sender, Stamp, running

EVENTS = 500
WARM_UP = 50
PAUSE_S = 0.005
"""Before each event, on both sides: what the one before left to do (its acknowledgement) is done by then."""
GOALS = {
    "p50": (0.50, Goal("<= 1.2 times", "ratio", at_most=1.2)),
    "p99": (0.99, Goal("<= 1.5 times", "ratio", at_most=1.5)),
}


def figures(setting: Setting) -> Iterator[Figure]:
    """Medians of each run's quantiles, raw and ours by turns."""
    count, at = setting.count(EVENTS, 20), setting.bootstrap
    taken: defaultdict[str, list[list[float]]] = defaultdict(list)
    for _ in range(setting.repeats):
        one_way, round_trip = raw.round_trips(at, count, WARM_UP, SIZE, PAUSE_S)
        taken["one way"].append(one_way)
        taken["round trip"].append(round_trip)
        taken["handled"].append(handled_latencies(at, count))
        taken["settled"].append(settled_latencies(at, count))
    for ours, name, theirs, means in (
        ("handled", "send to handled", "one way", "raw, produce to consumed in another process"),
        ("settled", "send to settled future", "round trip", "raw, produce to consumed to an answer consumed"),
    ):
        for q, (fraction, goal) in GOALS.items():
            runs, raw_runs = ([1000 * quantile(run, fraction) for run in taken[side]] for side in (ours, theirs))
            what = f"{SIZE}-byte events one at a time, {1000 * PAUSE_S:g} ms between, idle job, 1 subtask"
            yield Figure.of_runs(f"{name}, {q}", what, runs, "ms", raw_runs, means, goal)


def handled_latencies(bootstrap: str, count: int) -> list[float]:
    """Seconds from send_event to its handler."""

    def once(sender: Sender) -> float:
        sender.done.clear()
        began = time.monotonic()
        sender.gateways[0].send_event(bytes(SIZE))
        return sender.wait_until_done(1) - began

    return _taken(bootstrap, Stamp, once, count)


def settled_latencies(bootstrap: str, count: int) -> list[float]:
    """Seconds from send_event to the settling of its future."""

    def once(sender: Sender) -> float:
        began = time.monotonic()
        sender.gateways[0].send_event(bytes(SIZE)).result(30)
        return time.monotonic() - began

    return _taken(bootstrap, Counter, once, count)


def _taken(bootstrap: str, subtask: type[Subtask], once: Callable[[Sender], float], count: int) -> list[float]:
    """Seconds of each, from a thread that is not the main one: there an event may leave without another thread."""
    with running(bootstrap, subtask, 1) as sender, ThreadPoolExecutor(1) as thread:

        def all_of_them() -> list[float]:
            taken = []
            for _ in range(count + WARM_UP):
                time.sleep(PAUSE_S)
                taken.append(once(sender))
            return taken[WARM_UP:]

        return thread.submit(all_of_them).result()
