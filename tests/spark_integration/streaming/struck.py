"""Inside the processes under test: what they are to do, what they have seen, and the points at which they are killed.

A driver's planner and its workers are processes of their own. They find its orders by a variable that they inherit.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

ORDERS_VARIABLE = "PENSTOCK_TEST_ORDERS"
DRIVER_VARIABLE = "PENSTOCK_TEST_DRIVER"
DEADLINE_S = 360.0
SPARE_S = 3600.0
"""For as long a driver may wait until it is needed."""
COLUMNS = ("subtask", "sequence", "event", "offset", "checkpoint_id")

BEFORE_PLANNING = "before the batch is planned"
PLANNED = "planned, its offsets not stored"
STORED = "offsets stored, the source not told"
NOT_BEGUN = "offsets stored, the batch function not begun"
IN_A_TASK = "in a task that has read its events"
WORKER = "a Python worker, in a task"
BEFORE_FUNCTION = "in foreachBatch, nothing done"
STAGED = "in the sink: files staged, not decided"
DECIDED = "in the sink: files decided, not visible"
BEHIND_FILES = "files visible, no event sent"
NOT_NAMED = "events sent, not named by a manifest"
DONE = "all written and sent, not committed"
COMMITTED = "committed, nobody told"
TOLD = "committed, the coordinator told"
CUT = "coordinator: behind its cut, no marker written"
PREPARED = "coordinator: prepared, not answered"
WHILE_IT_RUNS = "coordinator: while the batch runs"
NOT_COMPLETED = "coordinator: told of the commit, not completed"
COMPLETED = "coordinator: completed, nothing handed over"
OF_THE_COORDINATOR = (CUT, PREPARED, WHILE_IT_RUNS, NOT_COMPLETED, COMPLETED)


@dataclass(frozen=True, slots=True)
class Orders:
    """What one driver is to do."""

    name: str
    broker: str
    folder: str
    run: int
    coordinator: str = "driver"
    point: str = ""
    """Where it is killed, in ``batch``; nowhere if empty."""
    batch: int = -1
    until: int = -1
    """One that is not killed ends when this batch has been committed, or when ``enough`` is there; and everything that
    was sent has come back."""
    record: bool = True

    def write(self, path: Path) -> None:
        _write(path, asdict(self))

    def committed(self) -> int:
        return newest(Path(self.folder, "checkpoint", "commits"))

    def stored(self) -> int:
        return newest(Path(self.folder, "checkpoint", "offsets"))

    def over(self) -> bool:
        return 0 <= self.until <= self.committed() or self.enough.exists()

    def missed(self) -> bool:
        """The batch in which it was to be killed is long over."""
        return bool(self.point) and self.committed() > self.batch + 5

    @property
    def enough(self) -> Path:
        return Path(self.folder, "enough")

    @property
    def armed(self) -> Path:
        """Names the point at which the coordinator is to kill itself."""
        return Path(self.folder, "armed")

    @property
    def coordinator_pid(self) -> Path:
        return Path(self.folder, "coordinator.pid")


@cache
def orders() -> Orders:
    return Orders(**json.loads(Path(os.environ[ORDERS_VARIABLE]).read_text()))


def newest(log: Path) -> int:
    """The newest batch that is in this log of Spark's; -1 where there is none."""
    return max((int(path.name) for path in log.glob("*") if path.name.isdigit()), default=-1)


def await_(condition: Callable[[], object], what: str, timeout_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.005)


def ordered(point: str, batch: int) -> bool:
    return (orders().point, orders().batch) == (point, batch)


def strike(point: str, batch: int) -> None:
    """SIGKILL for the driver, Python and JVM at once, if this is where it is to die."""
    if ordered(point, batch):
        kill_driver()


def kill_driver() -> NoReturn:
    os.killpg(int(os.environ[DRIVER_VARIABLE]), signal.SIGKILL)
    os._exit(9)  # the planner, and workers: they have a process group of their own


def driver_gone() -> bool:
    try:
        os.kill(int(os.environ[DRIVER_VARIABLE]), 0)
    except ProcessLookupError:
        os._exit(9)
    return False


# ---- what was seen


def record(batch: int, who: str, rows: Iterable[Iterable[Any]]) -> None:
    """Notes the events that ``who`` got in this run of the batch, before anything else is done with them."""
    if orders().record:
        _write(recording(batch, who), sorted(map(list, rows)))


def recording(batch: int, who: str) -> Path:
    return Path(orders().folder, "seen", str(orders().run), f"{batch}.{who}.json")


def _write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(content))
    draft.rename(path)
