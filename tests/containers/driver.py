"""A Spark driver on this machine, for a job whose coordinator runs in a container: driver.py JOB-FILE NAME BROKER.

Ends when the job does; the last line of its output says how.
"""

from __future__ import annotations

import json
import sys

from penstock.cli.job_file import load_job
from penstock.spark_integration import local_session, run


def main(file: str, name: str, broker: str) -> None:
    job = load_job(file).renamed(name)
    spark = local_session(sum(operator.parallelism for operator in job.operators.values()))
    try:
        result = run(spark, job, broker=broker, coordinator="elsewhere").wait()
    finally:
        spark.stop()
    print(json.dumps({"ending": result.ending.value, "cause": result.cause}))


if __name__ == "__main__":
    main(*sys.argv[1:])
