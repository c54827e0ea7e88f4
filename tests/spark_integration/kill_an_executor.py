"""Run as a program: a job on a cluster, one of whose executors is killed. Prints what it found as JSON.

Its classes live in ``__main__``, and in a module that workers cannot import: both must reach them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from penstock.spark_integration import run

sys.path.insert(0, str(Path(__file__).parent))

import jobs  # type: ignore[import-not-found]  # by a name that workers do not know


class CounterInMain(jobs.Counter):  # type: ignore[misc]
    """As the other one."""


def main(bootstrap: str, warehouse: str, master: str) -> None:
    spark = jobs.cluster_session(master, warehouse)
    job = jobs.counting_job(
        master.partition("[")[0].partition(":")[0] + "-cluster", limit=1000, batch=2, subtask=CounterInMain
    )
    with run(spark, job, broker=bootstrap) as handle:
        before = jobs.wait_until_counted(handle, 50)
        victim = jobs.executor_of(before["left/0"]["pid"])
        os.kill(victim, signal.SIGKILL)
        killed_at = time.time()
        after = jobs.wait_until_counted(handle, 1000)
        ended = handle.stop()
    spark.stop()
    moved = [name for name in before if before[name]["pid"] != after[name]["pid"]]
    print(json.dumps({
        "counts": sorted({report["count"] for report in after.values()}),
        "moved": sorted(moved),
        "lost": sorted(name for name, report in before.items() if jobs.gone(report["pid"]) and name in moved),
        "ending": ended.ending,
        "seconds": round(time.time() - killed_at, 1),
    }))  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
