"""A Spark Python worker is killed: how long until the next event is handled, beside how long Spark itself takes."""

from __future__ import annotations

import logging
import tempfile
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.spark_integration import local_session, run

from .dying_task import die
from .figures import Figure, Goal, Setting
from .recovery import fed_job, quantiles, recovery
from .recovery_job import Ends, Feeder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLS = 5
"""In each turn."""
TURNS = 2
"""Of each side, as often as is to be repeated."""
LIVES_S = 0.3
"""For how long a task of the bare job is there before it is killed."""
GOAL = Goal("<= Spark's own + 50 ms", "difference", at_most=50)
WHAT = (
    "SIGKILL of the Python worker, to the next event handled: the event at which it died, restored from a checkpoint;"
    " local session, idle job, 1 subtask"
)
RAW = "Spark, the same kill in a job of one bare task: to the first line of its next attempt"


def figures(setting: Setting) -> list[Figure]:
    logging.getLogger("penstock").setLevel(logging.ERROR)  # that tasks die is what is asked for
    kills = setting.count(KILLS, 2)
    ours: list[float] = []
    sparks: list[float] = []
    spark = local_session(2, "penstock-benchmarks")
    try:
        with tempfile.TemporaryDirectory() as folder:
            feeder, ends = Feeder(), Path(folder)
            job = fed_job(f"bench-{uuid.uuid4().hex[:12]}", ends, feeder)
            handle = run(spark, job, broker=setting.bootstrap)
            feeder.wait_until_ready()
            for _ in range(setting.count(TURNS * setting.repeats, 1)):
                sparks += relaunches(spark, kills)
                ours += [1000 * recovery(feeder, ends, Ends.KILL) for _ in range(kills)]
            handle.stop()
    finally:
        spark.stop()
    return quantiles("recovery from a killed worker", WHAT, ours, GOAL, sparks, RAW)


def relaunches(spark: SparkSession, kills: int) -> list[float]:
    """Milliseconds from each end of the one task of a job to the beginning of its next attempt."""
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder)
        spark.sparkContext.parallelize([0], 1).mapPartitions(partial(die, notes, kills, LIVES_S)).collect()

        def moment(what: str, number: int) -> float:
            return float((notes / f"{what}-{number}").read_text())

        return [1000 * (moment("began", n + 1) - moment("ended", n)) for n in range(kills)]
