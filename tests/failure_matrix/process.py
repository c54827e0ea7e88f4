"""What the processes under test run. A coordinator is the real `penstock coordinator`; a subtask is what a Spark task
runs, without Spark."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from penstock.cli import main
from penstock.coordinator import truncation
from penstock.schemas.errors import Superseded
from penstock.schemas.ids import SubtaskId
from penstock.subtask_client.runtime import SubtaskRuntime
from penstock.transport.kafka import KafkaTransport

from . import gated_kafka
from .points import settings
from .workload import OPERATOR, make_job

SUPERSEDED = 17
"""Exit code of a subtask that has found a newer attempt of itself."""


def run(arguments: list[str]) -> int:
    """``coordinator OPTIONS...`` or ``subtask INDEX``; the exit code."""
    gated_kafka.install()
    match arguments:
        case ["coordinator", *options]:
            return coordinator(options)
        case ["subtask", index]:
            return subtask(int(index))
    raise ValueError(f"no process is called {arguments}")


def coordinator(options: list[str]) -> int:
    if (every_s := settings()["truncate_every_s"]) is None:
        truncation.Truncation.want = lambda *_: None  # type: ignore[method-assign]
    else:
        truncation.EVERY_S = every_s
    job_file = Path(__file__).with_name("job_file.py")
    return main(["coordinator", str(job_file), "--broker", settings()["bootstrap"], "--json", *options])


def subtask(index: int) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    job, told = make_job(), settings()
    operator = job.operators[OPERATOR]
    transport = KafkaTransport(told["bootstrap"])
    runtime = SubtaskRuntime(
        job.settings,
        SubtaskId(OPERATOR, index),
        operator.subtask,
        transport,
        run=told["run"],
        task=f"process {os.getpid()}",
        codec=operator.codec,
        state_codec=operator.state_codec,
    )
    try:
        outcome = runtime.run()
    except Superseded as superseded:
        print(f"superseded: {superseded}")
        return SUPERSEDED
    finally:
        transport.close()
    print(f"returned: {outcome.departure.value}: {outcome.reason}")
    return 0
