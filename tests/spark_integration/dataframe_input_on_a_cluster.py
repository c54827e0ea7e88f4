"""Run as a program: a job with a DataFrame on a cluster, one of whose executors is killed in the middle.

Prints what it found as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.spark_integration import test_dataframe_input as rows  # workers do not know it
from tests.spark_integration.jobs import cluster_session, executor_of


def main(bootstrap: str, folder: str, master: str) -> None:
    spark = cluster_session(master, folder + "/warehouse", {"spark.sql.execution.arrow.maxRecordsPerBatch": "50"})
    gates = Path(folder)
    job = rows.row_job("rows-on-a-cluster", partial(rows.RowCounter, gates))
    reports = rows.with_reports(job)
    given = rows.DataFrameInput(rows.gated(spark, gates), rows_per_batch=20)
    handle = rows.run(spark, job, broker=bootstrap, inputs={"reader": given})
    before = rows.wait_at_gate(handle)
    os.kill(executor_of(before["1"]["pid"]), signal.SIGKILL)
    handle.wait_for(lambda status: status.failovers_region >= 1, rows.DEADLINE_S)
    rows.open_gates(gates)
    ended = handle.wait(rows.DEADLINE_S)
    spark.stop()
    moved = [name for name in before if before[name]["pid"] != reports[name]["pid"]]
    print(json.dumps({"ending": ended.ending, "moved": moved, "reports": reports}))


if __name__ == "__main__":
    main(*sys.argv[1:])
