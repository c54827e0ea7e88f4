"""Run as a program: a driver of a job that hands out numbers, with so many subtasks, until it is killed or stopped."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.spark_integration import local_session, run

sys.path.insert(0, str(Path(__file__).parents[1] / "rescaling"))

import jobs  # type: ignore[import-not-found]  # by a name that workers do not know


def main(bootstrap: str, name: str, parallelism: int, limit: int) -> None:
    spark = local_session(parallelism)
    handle = run(spark, jobs.splits_job(name, parallelism, limit), broker=bootstrap)
    print(handle.wait().ending)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
