"""Kills a query at every point of a batch, starts it again, and compares what each batch got both times.

    python -m tests.spark_integration.streaming.kill_points

prints the table in Markdown; it exits with 1 where anything is not exact.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from penstock.broker import EmbeddedBroker

from . import struck
from .numbered_job import PARALLELISM
from .struck import Orders

ROOT = Path(__file__).parents[3]
DRIVER_S = 720.0
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""It starts with half the work."""

IN_THE_DRIVER: tuple[tuple[str, bool], ...] = (
    (struck.BEFORE_PLANNING, False),
    (struck.PLANNED, False),
    (struck.STORED, False),
    (struck.NOT_BEGUN, False),
    (struck.BEFORE_FUNCTION, False),
    (struck.IN_A_TASK, False),
    (struck.WORKER, False),
    (struck.STAGED, False),
    (struck.DECIDED, False),
    (struck.BEHIND_FILES, False),
    (struck.NOT_NAMED, False),
    (struck.DONE, False),
    (struck.COMMITTED, False),
    (struck.COMMITTED, True),
    (struck.TOLD, True),
)
"""Points, and whether the newest entry of the commit log is deleted before the restart. The coordinator dies too."""
ELSEWHERE: tuple[tuple[str, bool], ...] = (
    (struck.DONE, False),
    (struck.CUT, False),
    (struck.PREPARED, False),
    (struck.WHILE_IT_RUNS, False),
    (struck.NOT_COMPLETED, False),
    (struck.COMPLETED, False),
    (struck.PLANNED, False),
    (struck.NOT_BEGUN, False),
    (struck.TOLD, True),
)
"""The same for a coordinator that outlives its driver, or dies alone; the driver dies behind that batch's function."""
SAME_REMAINS = (struck.BEFORE_PLANNING, struck.STORED, struck.NOT_BEGUN, struck.BEFORE_FUNCTION)
"""Points at which a kill leaves behind, on disk and on the broker, what it leaves at the one before or behind."""


@dataclass(frozen=True, slots=True)
class Row:
    """One kill."""

    coordinator: str
    point: str
    commit_lost: bool
    batch: int
    first: list[list[Any]] | None
    """Events that the batch got before the kill; None: there was no such batch."""
    second: list[list[Any]] | None
    """What it got behind the restart; None: it did not run again."""
    identical: bool
    exact: bool
    """Each of its events is in the files once, under this batch; and came back once."""

    @property
    def name(self) -> str:
        return self.point + (", its entry in the commit log deleted" if self.commit_lost else "")


@dataclass(slots=True)
class Story:
    """What came of one sequence of drivers over one job."""

    rows: list[Row] = field(default_factory=list)
    batches: int = 0
    events: int = 0
    wrong: list[str] = field(default_factory=list)
    """What is not exact."""


def java_options(folder: Path) -> str:
    """For JVMs that live for seconds: no costly compiler, and classes that were loaded once stand in an archive."""
    archive = folder / "classes.jsa"
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={archive}"}
    subprocess.run(
        [sys.executable, "-m", f"{__package__}.class_archive"], cwd=ROOT, env=environment, capture_output=True,
        timeout=DRIVER_S, check=True,
    )  # fmt: skip
    return f"{SHORT_LIVED} -XX:SharedArchiveFile={archive}"


class Driver:
    """A process of its own, started before it is needed: its JVM takes seconds."""

    def __init__(self, folder: Path, number: int, java: str) -> None:
        self._orders = folder / "orders" / f"{number}.json"
        self._log = folder / f"driver-{number}.log"
        environment = {**os.environ, struck.ORDERS_VARIABLE: str(self._orders), "JAVA_TOOL_OPTIONS": java}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.struck_driver"],
                cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def begin(self, orders: Orders) -> None:
        orders.write(self._orders)

    def run(self, orders: Orders) -> int:
        """Its exit code."""
        self.begin(orders)
        return self._process.wait(DRIVER_S)

    def ended(self) -> int | None:
        return self._process.poll()

    def children(self, wanted: Callable[[str, str], bool]) -> list[int]:
        """Processes below it, by the parent's command and their own."""
        shown = subprocess.run(
            ["ps", "-ww", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True
        ).stdout
        everybody = {int(pid): (int(parent), command) for pid, parent, command in map(_parts, shown.splitlines())}
        below = {self._process.pid}
        while more := {pid for pid, (parent, _) in everybody.items() if parent in below} - below:
            below |= more
        below.discard(self._process.pid)
        return sorted(pid for pid in below if wanted(everybody.get(everybody[pid][0], (0, ""))[1], everybody[pid][1]))

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL for Python and JVM at once; returns when it is gone."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10.0)


def _parts(line: str) -> tuple[str, str, str]:
    pid, parent, *command = line.split(None, 2)
    return pid, parent, "".join(command)


class Coordinator:
    """A coordinator alone, started again whenever it is killed."""

    def __init__(self, folder: Path, name: str, broker: str) -> None:
        self._pid = folder / "coordinator.pid"
        self._log = folder / "coordinator.log"
        self._command = [sys.executable, "-m", f"{__package__}.struck_coordinator", name, broker]
        self._environment = {**os.environ, "PENSTOCK_TEST_ARMED": str(folder / "armed")}
        self._closing = threading.Event()
        self._process = self._start()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            process = subprocess.Popen(self._command, cwd=ROOT, env=self._environment, stdout=log, stderr=log)
        draft = self._pid.with_suffix(".draft")
        draft.write_text(str(process.pid))
        draft.rename(self._pid)
        return process

    def _watch(self) -> None:
        while self._process.wait() == -signal.SIGKILL and not self._closing.is_set():
            self._process = self._start()

    def kill(self) -> None:
        self._process.kill()

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def close(self) -> None:
        self._closing.set()
        self._process.kill()
        self._thread.join(10.0)
        self._process.kill()
        self._process.wait(10.0)


@contextmanager
def spare_drivers(folder: Path, java: str) -> Iterator[Iterator[Driver]]:
    """Drivers, one after the other; the next one starts while one runs."""
    with ExitStack() as stack:

        def made() -> Iterator[Driver]:
            spare = Driver(folder, 0, java)
            stack.callback(spare.kill)
            number = 0
            while True:
                number += 1
                driver, spare = spare, Driver(folder, number, java)
                stack.callback(spare.kill)
                yield driver

        yield made()


def run(
    folder: Path,
    name: str,
    broker: str,
    coordinator: str,
    points: Sequence[tuple[str, bool]],
    java: str,
    say: Any = print,
) -> Story:
    """Runs a driver for each point and one more, which ends; what they have seen is compared then."""
    (folder / "orders").mkdir(parents=True)
    kills: list[tuple[int, str, bool, int]] = []
    began = time.monotonic()
    with ExitStack() as stack:
        if coordinator == "elsewhere":
            alone = Coordinator(folder, name, broker)
            stack.callback(alone.close)
        drivers = stack.enter_context(spare_drivers(folder, java))
        probe = Orders(name, broker, str(folder), -1)
        for number, (point, commit_lost) in enumerate(points):
            batch = probe.stored() + 1 + (number == 0)  # not the very first, behind which nothing stands
            driver = next(drivers)
            code = driver.run(Orders(name, broker, str(folder), number, coordinator, point, batch))
            if code != -signal.SIGKILL:
                raise AssertionError(f"{point}: exit code {code}, and no SIGKILL: {driver.said()[-4000:]}")
            if commit_lost:
                assert probe.committed() == batch, f"{point}: {probe.committed()} and not {batch} is committed"
                _delete_commit(folder, batch)
            kills.append((number, point, commit_lost, batch))
            say(f"{time.monotonic() - began:6.1f} s  batch {batch}: {point}")
        last = next(drivers)
        code = last.run(Orders(name, broker, str(folder), len(points), coordinator, until=probe.stored() + 3))
        if code != 0:
            raise AssertionError(f"the last driver: exit code {code}: {last.said()[-4000:]}")
        ended = json.loads(next(line for line in last.said().splitlines() if line.startswith("{")))
    return compared(folder, coordinator, kills, ended)


def _delete_commit(folder: Path, batch: int) -> None:
    commits = folder / "checkpoint" / "commits"
    for path in (commits / str(batch), commits / f".{batch}.crc"):
        path.unlink(missing_ok=True)


# ---- what it came to


def files_of(folder: Path) -> list[dict[str, Any]]:
    """By a reader that knows nothing of us."""
    return list(ds.dataset(folder / "out", format="parquet").to_table().to_pylist())


def not_exact(rows: list[dict[str, Any]], ended: dict[str, Any]) -> list[str]:
    """What the files and the coordinator's end say against exactly once."""
    wrong = [f"handed over out of its turn: {entry}" for entry in ended["wrong"]]
    if ended["received"] != ended["sent"]:
        wrong.append(f"sent {ended['sent']}, handed over {ended['received']}")
    for subtask in range(PARALLELISM):
        mine = sorted((r["batch_id"], r["sequence"], r["number"]) for r in rows if r["subtask"] == subtask)
        if len(mine) != ended["sent"][subtask]:
            wrong.append(f"subtask {subtask}: {ended['sent'][subtask]} were sent, and the files hold {len(mine)}")
        for expected, (batch, sequence, number) in enumerate(mine):
            if number != expected:
                wrong.append(f"subtask {subtask}: {number} in place of {expected}; batch {batch}, sequence {sequence}")
                break
    checkpoints: dict[int, set[int]] = {}
    for row in rows:
        checkpoints.setdefault(row["batch_id"], set()).add(row["checkpoint_id"])
    wrong += [f"batch {batch} holds checkpoints {ids}" for batch, ids in checkpoints.items() if len(ids) != 1]
    if len({next(iter(ids)) for ids in checkpoints.values()}) != len(checkpoints):
        wrong.append(f"two batches hold the same checkpoint: {checkpoints}")
    return wrong


def compared(folder: Path, coordinator: str, kills: list[tuple[int, str, bool, int]], ended: dict[str, Any]) -> Story:
    rows = files_of(folder)
    story = Story(batches=len({row["batch_id"] for row in rows}), events=len(rows), wrong=not_exact(rows, ended))
    written: dict[int, list[list[Any]]] = {}
    for row in rows:
        event = row["event"]
        row["event"] = bytes(event).decode()
        written.setdefault(row["batch_id"], []).append([row[name] for name in struck.COLUMNS])
    for path in sorted(folder.glob("seen/*/*.json")):
        batch, who = int(path.name.split(".")[0]), f"run {path.parent.name}, {path.name}"
        seen, wanted = json.loads(path.read_text()), sorted(written.get(batch, []))
        if ".task." in path.name:
            subtask = int(path.name.split(".")[2])
            wanted = [row for row in wanted if row[0] == subtask]
        if seen != wanted:
            story.wrong.append(f"{who} has seen {seen!r:.300}, and the files of batch {batch} hold {wanted!r:.300}")
    for number, point, commit_lost, batch in kills:
        first = _seen(folder, number, batch)
        later = (_seen(folder, run_, batch) for run_ in range(number + 1, len(kills) + 1))
        second = next((seen for seen in later if seen is not None), None)
        again = sorted(written.get(batch, []))
        identical = first is None or second is None or first == second
        exact = second in (None, again) and bool(again) and not story.wrong
        story.rows.append(Row(coordinator, point, commit_lost, batch, first, second, identical, exact))
    return story


def _seen(folder: Path, number: int, batch: int) -> list[list[Any]] | None:
    """What this run of the batch got: its function, else its tasks, else whoever read what was planned."""
    seen = folder / "seen" / str(number)
    for who in ("function", "planner"):
        if (path := seen / f"{batch}.{who}.json").exists():
            rows: list[list[Any]] = json.loads(path.read_text())
            return rows
    tasks = list(seen.glob(f"{batch}.task.*.json"))
    read = {tuple(row) for path in tasks for row in json.loads(path.read_text())}
    return sorted(map(list, read)) if tasks else None


def expected_to_run(row: Row) -> tuple[bool, bool]:
    """Whether a batch that is killed there has events the first time, and the second."""
    first = row.point != struck.BEFORE_PLANNING
    second = row.commit_lost or row.point not in (struck.COMMITTED, struck.TOLD)
    return first, second


def _described(rows: list[list[Any]] | None) -> str:
    if rows is None:
        return "did not run"
    offsets = [
        f"{s}: {min(r[3] for r in mine)}-{max(r[3] for r in mine)}"
        for s in range(PARALLELISM)
        if (mine := [r for r in rows if r[0] == s])
    ]
    return f"{len(rows)} events, offsets {', '.join(offsets)}"


def table(stories: Sequence[Story]) -> str:
    lines = [
        "| coordinator | killed | batch id | events the first time | events the second time | identical | exact |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in (row for story in stories for row in story.rows):
        same = ("yes" if row.identical else "NO") if row.first is not None and row.second is not None else "-"
        first, second = _described(row.first), _described(row.second)
        where = "in the driver" if row.coordinator == "driver" else "elsewhere"
        exact = "yes" if row.exact else "NO"
        lines.append(f"| {where} | {row.name} | {row.batch} | {first} | {second} | {same} | {exact} |")
    return "\n".join(lines)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="kill-points-") as folder, EmbeddedBroker(Path(folder, "kafka")) as broker:
        java = java_options(Path(folder))
        stories = [
            run(Path(folder, where), f"points-{where}", broker.bootstrap, where, points, java,
                lambda line: print(line, file=sys.stderr, flush=True))
            for where, points in (("driver", IN_THE_DRIVER), ("elsewhere", ELSEWHERE))
        ]  # fmt: skip
    print(table(stories))
    for story in stories:
        print(f"\n{story.batches} batches, {story.events} events, {len(story.rows)} kills: ", end="")
        print("exact" if not story.wrong else "NOT EXACT:\n" + "\n".join(story.wrong))
    whole = all(not story.wrong and all(row.identical and row.exact for row in story.rows) for story in stories)
    return 0 if whole else 1


if __name__ == "__main__":
    raise SystemExit(main())
