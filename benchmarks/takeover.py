"""``python -m benchmarks.takeover [--rounds N] [--takeover-after S] [--json FILE]``: how long a takeover takes.

From the signal that ends the one at work until every subtask has handled an event of its successor. Coordinators
(``penstock coordinator --standby``) and subtasks are processes of their own, over an embedded broker.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.audit import audit
from penstock.broker import EmbeddedBroker
from penstock.client.job_client import JobClient
from penstock.coordinator.standby import TAKEOVER_AFTER_S
from penstock.schemas.ids import SubtaskId
from penstock.transport.kafka import KafkaTransport

from .figures import Figure, Goal, Setting
from .service import run_subtask
from .takeover_job import OPERATOR, SUBTASKS, Checker, job

SIGNALS = {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP, "told to leave": signal.SIGTERM}
DEADLINE_S = 120.0
STEADY_S = 1.5
"""For how long a new pair of coordinators is left alone before the next signal, at least."""
_LOOK_S = 0.05


def figures(setting: Setting) -> Iterator[Figure]:
    """The short form: only what nobody could foresee, and an end that was asked for."""
    goal = Goal("<= session + 1 s", "difference", at_most=1.0)
    session = "the session (--takeover-after, by default), which the broker waits before it tells"
    what = f"from the signal to the last of {SUBTASKS} subtasks that handles an event of the next coordinator"
    rounds = setting.count(max(1, setting.repeats - 1), 1)
    after = 2.0 if setting.quick else TAKEOVER_AFTER_S
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        taken = Rounds(stack, folder, setting.bootstrap, after)
        killed = [taken.take_over("killed") for _ in range(rounds)]
        yield Figure.of_runs("takeover, the coordinator killed", what, killed, "s", [after], session, goal)
        setting.say(f"killed {rounds} time(s); now told to leave ...")
        left = [taken.take_over("told to leave") for _ in range(rounds)]
        yield Figure.of_runs("takeover, the coordinator told to leave", what, left, "s")
        taken.check()


class Host:
    """One `penstock coordinator --standby`."""

    def __init__(self, number: int, folder: Path, bootstrap: str, name: str, takeover_after: float) -> None:
        self._log = folder / f"coordinator-{number}.log"
        arguments = ["--name", name, "--broker", bootstrap, "--standby", "--takeover-after", str(takeover_after)]
        file = str(Path(__file__).with_name("takeover_job.py"))
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock.cli", "coordinator", file, *arguments], stdout=log, stderr=log
            )

    def said(self, words: str) -> int:
        return self._log.read_text().count(words)

    def wait_said(self, words: str, times: int = 1) -> None:
        def there() -> bool:
            assert self.process.poll() is None, self._log.read_text()
            return self.said(words) >= times

        _wait(there, f"{self._log.name} says {words!r}")

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10.0)


class Rounds:
    """A job whose coordinator is taken over again and again."""

    def __init__(self, stack: ExitStack, folder: Path, bootstrap: str, takeover_after: float) -> None:
        self._stack, self._folder, self._bootstrap, self._after = stack, folder, bootstrap, takeover_after
        self._job = job.renamed(f"takeover-{uuid.uuid4().hex[:12]}")
        self._hosts = 0
        self.epoch = 0
        context = multiprocessing.get_context("spawn")
        self._reports: Queue[tuple[str, int, int, float]] = context.Queue()
        self._transport = KafkaTransport(bootstrap)
        stack.callback(self._transport.close)
        self.client = JobClient(self._transport, self._job.name)
        self._transport.create_topics(self._job.settings.topic_specs)
        run = uuid.uuid4().hex
        self.client.announce_run(run)
        for subtask in self._job.settings.subtasks():
            process: BaseProcess = context.Process(
                target=_run_subtask, args=(self._job.name, subtask, bootstrap, run, self._reports), daemon=True
            )
            process.start()
            stack.callback(process.kill)
        self.active = self._start()
        self._wait_epoch(0)
        self.standby = self._start()

    def _start(self) -> Host:
        self._hosts += 1
        host = Host(self._hosts, self._folder, self._bootstrap, self._job.name, self._after)
        self._stack.callback(host.close)
        return host

    def take_over(self, how: str) -> float:
        """Seconds from the signal until the last subtask has handled an event of the successor."""
        self.standby.wait_said("standing by: epoch")
        _wait(lambda: self.client.standbys() == 2, "two coordinators")
        completed = self._completed()
        _wait(lambda: self._completed() > completed, "a checkpoint")
        time.sleep(STEADY_S + random.random())  # anywhere between two heartbeats, checkpoints and statuses
        stood_by = self.active.said("standing by: epoch")
        began = time.monotonic()
        self.active.process.send_signal(SIGNALS[how])
        took = self._wait_epoch(self.epoch + 1) - began
        if how == "frozen":
            self.active.process.send_signal(signal.SIGCONT)
            self.active.wait_said("standing by: epoch", stood_by + 1)
            self.active, self.standby = self.standby, self.active
        else:
            self.active.process.wait(DEADLINE_S)
            self.active, self.standby = self.standby, self._start()
        return took

    def check(self) -> int:
        """Ends the sending; how many events there were. AssertionError where a subtask has not had each once."""
        reply = self.client.request(OPERATOR, json.dumps("end").encode(), DEADLINE_S)
        sent = json.loads(reply.payload)
        handled: dict[int, int] = {}

        def take(subtask: int, number: int, _at: float) -> None:
            handled[subtask] = number

        self._read("last", take, lambda: len(handled) == SUBTASKS)
        assert [handled[subtask] for subtask in range(SUBTASKS)] == sent, f"sent {sent}, handled {handled}"
        self.client.stop(timeout_s=DEADLINE_S)
        report = audit(self._transport, self._job.name)
        assert report.healthy, report.findings
        return sum(sent)

    def _completed(self) -> int:
        status = self.client.status()
        return -1 if status is None else status.last_completed

    def _wait_epoch(self, epoch: int) -> float:
        """Monotonic second at which the last subtask had handled an event of that epoch, or a higher one."""
        there: dict[int, float] = {}

        def take(subtask: int, number: int, at: float) -> None:
            if number >= epoch:
                there.setdefault(subtask, at)
                self.epoch = max(self.epoch, number)

        self._read("epoch", take, lambda: len(there) == SUBTASKS)
        return max(there.values())

    def _read(self, wanted: str, take: Callable[[int, int, float], object], done: Callable[[], bool]) -> None:
        """Takes what the subtasks report, until that is enough."""
        deadline = time.monotonic() + DEADLINE_S
        while not done():
            try:
                what, subtask, number, at = self._reports.get(timeout=1.0)
            except queue.Empty:
                assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {wanted} of every subtask"
                continue
            assert what != "wrong", f"subtask {subtask} got {number}, which is not its turn"
            if what == wanted:
                take(subtask, number, at)


def _run_subtask(name: str, subtask: SubtaskId, bootstrap: str, run: str, reports: Any) -> None:
    Checker.reports = reports
    run_subtask(job.renamed(name), subtask, bootstrap, run)


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {what}"
        time.sleep(_LOOK_S)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.takeover", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="takeovers of each kind")
    parser.add_argument("--takeover-after", type=float, default=TAKEOVER_AFTER_S, help="seconds")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = parser.parse_args()
    console, load_before = Console(), os.getloadavg()
    took: dict[str, list[float]] = {how: [] for how in SIGNALS}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(EmbeddedBroker(folder / "data"))
        rounds = Rounds(stack, folder, broker.bootstrap, chosen.takeover_after)
        for number in range(1, chosen.rounds + 1):
            for how, times in took.items():
                times.append(rounds.take_over(how))
                console.print(f"round {number}: {how}: {times[-1]:.2f} s")
        events = rounds.check()
    table = Table("the one at work was", "rounds", "p50", "max")
    for how, times in took.items():
        table.add_row(how, str(len(times)), f"{statistics.median(times):.2f} s", f"{max(times):.2f} s")
    console.print(table)
    console.print(f"{events:,} events to {SUBTASKS} subtasks, each handled once and in order; the logs are healthy")
    console.print(f"takeover-after {chosen.takeover_after:g} s; load average before: {load_before}")
    if chosen.json:
        document = {"takeover_after": chosen.takeover_after, "load average before": load_before, "seconds": took}
        chosen.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
