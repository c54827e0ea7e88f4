"""Run as a program: a job on a cluster, one of whose Python workers is frozen while its executor dies. Spark runs the
task elsewhere; then the worker thaws, beside its successor. Prints what it found as JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from penstock import CheckpointSettings
from penstock.spark_integration import run

sys.path.insert(0, str(Path(__file__).parents[1] / "spark_integration"))

import jobs  # type: ignore[import-not-found]  # by a name that workers do not know
from zygote import die_with  # type: ignore[import-not-found]

DEADLINE_S = 360.0
VIOLATED = "violated"


class CounterThatSaysGoodbye(jobs.Counter):  # type: ignore[misc]
    """Leaves a file with its process's id when it is closed, and another when its numbers are not exact."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def open(self, context: Any) -> None:
        with suppress(PermissionError):  # it has started over in place
            os.setsid()  # or the kernel thaws it, and kills it, when its executor ends: as part of an orphaned group
        super().open(context)

    def handle_operator_event(self, event: Any) -> None:
        if event != self.count:
            Path(self.folder, VIOLATED).touch()
        super().handle_operator_event(event)

    def close(self) -> None:
        Path(self.folder, str(os.getpid())).touch()


def main(bootstrap: str, warehouse: str, goodbyes: str) -> None:
    spark = jobs.cluster_session("local-cluster[2,2,1024]", warehouse)
    job = jobs.counting_job(
        "frozen-worker",
        limit=1_000_000,
        parallelism=1,
        batch=1,
        subtask=partial(CounterThatSaysGoodbye, goodbyes),
        checkpoint=CheckpointSettings(interval=None),  # one savepoint, and nothing is truncated behind it
    )
    with run(spark, job, broker=bootstrap) as handle:
        zombie = jobs.wait_until_counted(handle, 50, subtasks=2)["left/0"]["pid"]
        executor = jobs.executor_of(zombie)
        handle.savepoint()
        with frozen(zombie):
            os.kill(executor, signal.SIGKILL)
            jobs.wait_until(lambda: newest(handle)["pid"] != zombie, DEADLINE_S, "a successor of the frozen one")
            os.kill(zombie, signal.SIGCONT)
            jobs.wait_until(Path(goodbyes, str(zombie)).exists, DEADLINE_S, "the thawed one leaves")
            status = handle.wait_for(lambda s: any(why.startswith("stale-") for why in s.dropped), 30)
            successor = newest(handle)
            jobs.wait_until_counted(handle, successor["count"] + 100, subtasks=2, timeout=DEADLINE_S)
        ended = handle.stop()
    spark.stop()
    print(json.dumps({
        "successor": successor["pid"] != zombie,
        "exact": not Path(goodbyes, VIOLATED).exists(),
        "dropped": sorted(status.dropped),
        "ending": ended.ending,
    }))  # fmt: skip


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Stops a process; afterwards, or when this program is killed, it is killed too."""
    watch = subprocess.Popen(
        ["/bin/sh", "-c", "read -r _; kill -KILL $0", str(pid)],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        assert watch.stdin is not None
        watch.stdin.close()
        watch.wait(10)


def newest(handle: Any) -> dict[str, Any]:
    """The newest report of the subtask whose worker is frozen."""
    report: dict[str, Any] = jobs.reports_of(handle)["left/0"]
    return report


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    main(*sys.argv[2:])
