"""How the suite is spread over pytest-xdist's workers, and what each part of it takes.

A *part* is a folder of ``tests/`` or a file beside those folders.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import psutil
import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

_ROOT = Path(__file__).parents[1]

LAYERS = ("containers", "spark", "kafka", "")
"""Markers of tests that need real servers, the slowest ones first; then tests in memory."""

SPREAD = "tests/simulation/test_simulation.py"
"""The one file whose tests share no fixture and take minutes of processor time: they run last, on any worker."""

HEAVY = ("containers", "spark")
HEAVY_MAX = 2
"""How many workers run Spark or containers at once: each test has JVMs and several Python workers."""

SERVERS = "servers of the whole session"


@cache
def layer_of(path: str) -> str:
    """Return the costliest layer among the markers that a test file and its folder's ``conftest.py`` name."""
    file = _ROOT / path
    source = "".join(each.read_text() for each in (file, file.with_name("conftest.py")) if each.exists())
    return next(layer for layer in LAYERS if f"pytest.mark.{layer}" in source or not layer)


def slowest_first(items: list[pytest.Item]) -> None:
    """Order files by layer, so that a run does not end with one worker in a slow file."""
    order = {layer: n for n, layer in enumerate(LAYERS)}

    def rank(item: pytest.Item) -> int:
        path = _path_of(item.nodeid)
        return len(LAYERS) if path == SPREAD else order[layer_of(path)]

    items.sort(key=rank)


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each file to one worker, because its tests share fixtures, and at most so many heavy files at once."""

    def _split_scope(self, nodeid: str) -> str:
        path = _path_of(nodeid)
        return nodeid if path == SPREAD else path

    def _assign_work_unit(self, node: WorkerController) -> None:
        if sum(map(self._is_busy, self.nodes)) >= HEAVY_MAX:
            other = next((scope for scope in self.workqueue if not _is_heavy(scope)), None)
            if other is not None:
                self.workqueue.move_to_end(other, last=False)
        super()._assign_work_unit(node)

    def _is_busy(self, node: WorkerController) -> bool:
        return any(_is_heavy(scope) and not all(tests.values()) for scope, tests in self.assigned_work[node].items())


def _is_heavy(scope: str) -> bool:
    return layer_of(_path_of(scope)) in HEAVY


def _path_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


class ProcessorTime:
    """Processor seconds of this process and of its children that have ended, from one call of ``lap`` to the next."""

    def __init__(self) -> None:
        self._until = self._now()
        self.servers = 0.0
        """Of the servers that a worker keeps for its whole session."""

    def lap(self) -> float:
        """Return the seconds since the last lap."""
        now = self._now()
        since, self._until = now - self._until, now
        return since

    @contextmanager
    def server(self) -> Iterator[None]:
        """Count what ends within as a server's: no single test has used it."""
        self.lap()
        yield
        self.servers += self.lap()

    def count_what_runs(self) -> None:
        """Count the children that outlive the last test: a Spark session's JVM ends with its process."""
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                self.servers += sum(child.cpu_times()[:4])

    @staticmethod
    def _now() -> float:
        return sum(os.times()[:4])


PROCESSOR_TIME = ProcessorTime()


def write_parts(reporter: pytest.TerminalReporter, servers_s: float) -> None:
    """Write a table: wall and processor seconds of each part, and its tests."""
    wall: Counter[str] = Counter()
    processor: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for report in (r for reports in reporter.stats.values() for r in reports):
        if isinstance(report, pytest.TestReport):
            part = "/".join(_path_of(report.nodeid).split("/")[:2])
            wall[part] += report.duration
            processor[part] += getattr(report, "processor_s", 0.0)
            tests[part] += report.when == "call"
    if len(wall) < 2:
        return
    reporter.section("what each part took: wall and processor seconds")
    for part, seconds in wall.most_common():
        reporter.write_line(f"{seconds:8.1f} {processor[part]:8.1f}  {part} ({tests[part]} tests)")
    reporter.write_line(f"{'':8} {servers_s:8.1f}  {SERVERS}")
    reporter.write_line(f"{wall.total():8.1f} {processor.total() + servers_s:8.1f}  all")
