"""From the end of an attempt to the next event that is handled: in the same process, or in a new worker of Spark's."""

from __future__ import annotations

import logging
import random
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from penstock import CheckpointSettings, Job, RestartStrategy
from penstock.schemas.ids import SubtaskId

from .figures import Figure, Goal, Setting, quantile
from .recovery_job import Ends, Feeder, Fragile, moment
from .service import coordinated, run_subtask

FAILURES = 30
CHECKPOINTS_S = 0.25
_PAUSE_MAX_S = 0.1
GOAL = Goal("<= 20 ms", at_most=20)
WHAT = (
    "a handler raises, to the next event handled by the next attempt, in the same process: the event that it raised"
    " at, restored from a checkpoint; idle job, 1 subtask, no backoff"
)


def figures(setting: Setting) -> list[Figure]:
    with failing(setting.bootstrap) as (feeder, ends):
        runs = [1000 * recovery(feeder, ends, Ends.RAISE) for _ in range(setting.count(FAILURES, 3))]
    return quantiles("recovery in place", WHAT, runs, GOAL)


def quantiles(
    name: str, what: str, runs: Sequence[float], goal: Goal, raw_runs: Sequence[float] = (), raw: str = ""
) -> list[Figure]:
    """Of so many milliseconds; the goal is for the median."""
    median = Figure.of_runs(f"{name}, p50", f"{what}; {len(runs)} failures", runs, "ms", raw_runs, raw, goal)
    raw_p90 = quantile(raw_runs, 0.9) if raw_runs else None
    return [median, Figure(f"{name}, p90", "the same", quantile(runs, 0.9), "ms", raw_p90, raw)]


def recovery(feeder: Feeder, ends: Path, how: Ends) -> float:
    """Seconds from the end of the attempt that an event ends, to the moment when another has handled that event."""
    feeder.send(Ends.NOT)
    feeder.wait_for_a_checkpoint()
    time.sleep(random.random() * _PAUSE_MAX_S)
    handled = feeder.send(how)
    assert handled.restored >= 0, "the next attempt had no checkpoint to restore"
    return handled.at - moment(ends, handled.number)


def job_that_fails(name: str, ends: Path) -> Job:
    """Its coordinator is for whoever runs it to add."""
    job = Job(
        name,
        checkpoint=CheckpointSettings(interval=CHECKPOINTS_S),
        restart=RestartStrategy(backoff_next=0, budget=1_000_000),
    )
    job.operator("fragile", subtask=partial(Fragile, ends), parallelism=1)
    return job


def fed_job(name: str, ends: Path, feeder: Feeder) -> Job:
    bare = job_that_fails(name, ends)
    job = Job(name, checkpoint=bare.checkpoint, restart=bare.restart)
    job.operator("fragile", subtask=partial(Fragile, ends), coordinator=lambda: feeder, parallelism=1)
    return job


@contextmanager
def failing(bootstrap: str) -> Iterator[tuple[Feeder, Path]]:
    """The coordinator of a job whose subtask is up in a process of its own, and where it notes its ends."""
    feeder, name = Feeder(), f"bench-{uuid.uuid4().hex[:12]}"
    with tempfile.TemporaryDirectory() as folder:
        ends = Path(folder)
        target = partial(_run_subtask, name, ends, bootstrap)
        with coordinated(fed_job(name, ends, feeder), bootstrap, [target]):
            feeder.wait_until_ready()
            yield feeder, ends


def _run_subtask(name: str, ends: Path, bootstrap: str, run: str) -> None:
    logging.getLogger("penstock").setLevel(logging.ERROR)  # that it fails is what is asked for
    run_subtask(job_that_fails(name, ends), SubtaskId("fragile", 0), bootstrap, run)
