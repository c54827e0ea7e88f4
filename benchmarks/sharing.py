"""``python -m benchmarks.sharing [--seconds S] [--flood-bytes N] [--quota BYTES] [--json FILE]``.

Three jobs on one broker, each in a process of its own. Two send an event every 10 ms and take a checkpoint every 200;
the third sends as much as it can. Measured at the two: alone, beside the flood, beside the flood under a quota of the
broker, and alone again. *Latency* is from send_event to the end of the event's handler in its subtask; *checkpoint* is
from the coordinator's cut to its being told that the checkpoint is complete.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.broker import EmbeddedBroker
from penstock.coordinator.api import CheckpointResult, EventContext, Gateway, OperatorCoordinator
from penstock.job import Job
from penstock.schemas.errors import Backpressure
from penstock.schemas.settings import CheckpointSettings
from penstock.subtask_client.api import Context, Subtask
from penstock.testing.local import LocalJob
from penstock.transport.kafka import KafkaTransport

from .quotas import set_quota

NEIGHBOURS = ("left", "right")
FLOOD = "flood"
EVENT_EVERY_S = 0.01
CHECKPOINT_EVERY_S = 0.2
SETTLE_S = 2.0
"""Between a change and what is measured of it."""
DEADLINE_S = 120.0
_STAMP = struct.Struct("<d")
_QUANTILES = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))

Figures = dict[str, list[float]]
"""Seconds, by what was measured: ``latency`` and ``checkpoint``."""


class Metered(OperatorCoordinator):
    """Sends stamped events when told to, and notes how long they and its checkpoints take."""

    def __init__(self) -> None:
        self.gateway: Gateway | None = None
        self.ready = threading.Event()
        self.figures: Figures = {"latency": [], "checkpoint": []}
        self._cuts: dict[int, float] = {}

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Gateway) -> None:
        self.gateway = gateway
        self.ready.set()

    def handle_event_from_operator(self, subtask: int, attempt: int, event: bytes, context: EventContext) -> None:
        self.figures["latency"].append(_STAMP.unpack(event)[0])

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        self._cuts[checkpoint_id] = time.monotonic()
        result.complete(b"")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.figures["checkpoint"].append(time.monotonic() - self._cuts.pop(checkpoint_id))

    def taken(self) -> Figures:
        """What was measured since the last call."""
        taken, self.figures = self.figures, {"latency": [], "checkpoint": []}
        return taken


class Answers(Subtask):
    """Tells how long ago each event was sent."""

    def open(self, context: Context) -> None:
        self.context = context

    def handle_operator_event(self, event: bytes) -> None:
        self.context.send_event_to_coordinator(_STAMP.pack(time.monotonic() - _STAMP.unpack(event)[0]))


class Swallows(Subtask):
    """Takes whatever comes."""

    def handle_operator_event(self, event: bytes) -> None:
        pass


def _run(name: str, bootstrap: str, orders: Connection, subtask: type[Subtask], send: Callable[..., None]) -> None:
    """One job in this process. Every order is answered with what was measured since the one before; None ends it."""
    coordinator = Metered()
    job = Job(name, checkpoint=CheckpointSettings(interval=CHECKPOINT_EVERY_S))
    job.operator("op", coordinator=lambda: coordinator, subtask=subtask, parallelism=1)
    going, ending = threading.Event(), threading.Event()
    with LocalJob(job, KafkaTransport(bootstrap, {"client.id": name})) as running:
        if not coordinator.ready.wait(DEADLINE_S):
            raise TimeoutError(f"job {name} did not start within {DEADLINE_S:g} s")
        sender = threading.Thread(target=send, args=(coordinator, going, ending), daemon=True)
        sender.start()
        orders.send(None)
        while (order := orders.recv()) is not None:
            going.set() if order else going.clear()
            orders.send(coordinator.taken())
        ending.set()
        sender.join(DEADLINE_S)
        running.client.stop(timeout_s=DEADLINE_S)


def _steadily(coordinator: Metered, going: threading.Event, ending: threading.Event) -> None:
    assert coordinator.gateway is not None
    due = time.monotonic()
    while not ending.is_set():
        coordinator.gateway.send_event(_STAMP.pack(time.monotonic()))
        due = max(due + EVENT_EVERY_S, time.monotonic() - EVENT_EVERY_S)
        ending.wait(max(0.0, due - time.monotonic()))


def _flood(size: int, coordinator: Metered, going: threading.Event, ending: threading.Event) -> None:
    assert coordinator.gateway is not None
    event = bytes(size)
    while not ending.is_set():
        if not going.wait(0.1):
            continue
        try:
            coordinator.gateway.send_event(event)
        except Backpressure:
            writable = threading.Event()
            coordinator.context.on_writable(0, writable.set)
            while not writable.wait(0.1) and not ending.is_set():
                pass


def _neighbour(name: str, bootstrap: str, orders: Connection) -> None:
    _run(name, bootstrap, orders, Answers, _steadily)


def _flooding(name: str, bootstrap: str, orders: Connection, size: int) -> None:
    def send(*told: Any) -> None:
        _flood(size, *told)

    _run(name, bootstrap, orders, Swallows, send)


class Remote:
    """A job in a process of its own."""

    def __init__(self, target: Callable[..., None], name: str, bootstrap: str, *more: object) -> None:
        self._orders, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=target, args=(name, bootstrap, theirs, *more), daemon=True)
        self._process.start()

    def order(self, order: bool) -> Figures:
        self._orders.send(order)
        return self.answer()

    def answer(self) -> Any:
        if not self._orders.poll(DEADLINE_S):
            raise TimeoutError("a job did not answer")
        return self._orders.recv()

    def close(self) -> None:
        self._orders.send(None)
        self._process.join(DEADLINE_S)
        if self._process.is_alive():
            self._process.kill()


def measured(bootstrap: str, seconds: float, flood_bytes: int, quota: float, say: Callable[[str], None]) -> Any:
    """By phase: the neighbours' figures."""
    phases: dict[str, Figures] = {}
    with ExitStack() as stack:
        neighbours = [Remote(_neighbour, name, bootstrap) for name in NEIGHBOURS]
        flood = Remote(_flooding, FLOOD, bootstrap, flood_bytes)
        for remote in (*neighbours, flood):
            stack.callback(remote.close)
        for remote in (*neighbours, flood):
            remote.answer()

        def phase(name: str, floods: bool) -> None:
            say(f"measuring {name} ...")
            flood.order(floods)
            time.sleep(SETTLE_S)
            for remote in neighbours:
                remote.order(True)
            time.sleep(seconds)
            parts = [remote.order(True) for remote in neighbours]
            phases[name] = {what: [v for part in parts for v in part[what]] for what in ("latency", "checkpoint")}

        phase("alone", False)
        phase("beside the flood", True)
        set_quota(bootstrap, FLOOD, producer_byte_rate=quota, consumer_byte_rate=quota)
        phase("beside the flood, under a quota", True)
        set_quota(bootstrap, FLOOD, producer_byte_rate=None, consumer_byte_rate=None)
        phase("alone again", False)
    return phases


def quantiles(values: list[float]) -> dict[str, float]:
    """Milliseconds."""
    ordered = sorted(values)
    if not ordered:
        return {}
    return {name: 1000 * ordered[min(len(ordered) - 1, int(q * len(ordered)))] for name, q in _QUANTILES}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharing", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each of the four phases")
    parser.add_argument("--flood-bytes", type=int, default=1_000, help="the size of each event of the flood")
    parser.add_argument("--quota", type=float, default=1_000_000, help="bytes per second that the quota leaves it")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = parser.parse_args()
    console, load_before = Console(), os.getloadavg()
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder) / "data") as broker:
        phases = measured(broker.bootstrap, chosen.seconds, chosen.flood_bytes, chosen.quota, console.print)
    figures = {name: {what: quantiles(values) for what, values in found.items()} for name, found in phases.items()}
    table = Table("the neighbours", "of", "measured", *(name for name, _ in _QUANTILES))
    for name, found in figures.items():
        for what, told in found.items():
            count = len(phases[name][what])
            table.add_row(name, what, f"{count:,}", *(f"{told[q]:.1f} ms" if told else "-" for q, _ in _QUANTILES))
    console.print(table)
    console.print(f"{chosen.seconds:g} s each; load average before: {load_before}")
    if chosen.json:
        document = {"seconds": chosen.seconds, "load average before": load_before, "milliseconds": figures}
        chosen.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
