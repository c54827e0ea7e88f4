"""`penstock coordinator`: a job's coordinator alone, in the foreground; its subtasks run elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from ..coordinator.protocol.effects import Ending
from ..coordinator.service import CoordinatorService, instances_of
from ..schemas.errors import JobFailed
from .connect import CHECK_TIMEOUT_S, BrokerOption, ClientConfigOption, JsonOption, MetricsPortOption, connection
from .console import Console
from .display import Display
from .exits import Exit
from .job_file import load_job
from .run_job import OptionalPrefix
from .signals import interrupts_caught
from .starting import (
    FreshOption,
    FromCheckpointOption,
    JobFileArgument,
    NameOption,
    metrics_served,
    named,
    restore_options,
)

QueryOption = Annotated[
    bool, typer.Option("--query", help="A Structured Streaming query reads its events: a micro-batch is a checkpoint.")
]
LOOK_EVERY_S = 0.2
LEAVE_TIMEOUT_S = 30.0


def coordinator(
    file: JobFileArgument,
    name: NameOption = None,
    fresh: FreshOption = False,
    from_checkpoint: FromCheckpointOption = None,
    broker: BrokerOption = None,
    prefix: OptionalPrefix = None,
    client_config: ClientConfigOption = None,
    metrics_port: MetricsPortOption = None,
    query: QueryOption = False,
    as_json: JsonOption = False,
) -> int:
    """Run only the coordinator of a job, in the foreground.

    It takes over from one that is at work, which then ends with exit code 4. Ctrl-C ends it and not the job: the
    subtasks go on, and wait for the next coordinator.
    """
    console = Console(as_json=as_json)
    with console.stdout_kept():
        job = named(load_job(file), name, prefix)
    where = connection(broker, client_config)
    transport = where.transport()
    try:
        transport.check(CHECK_TIMEOUT_S)
        options = restore_options(job, transport, fresh, from_checkpoint)
        settings = replace(job.settings, batches=query)
        service = CoordinatorService(instances_of(settings, job.coordinators, transport, options), job.restart)
        console.say(f"coordinating job {job.name}; Kafka at {where.bootstrap}")
        with (
            console.stdout_kept(),
            interrupts_caught(),
            metrics_served(metrics_port, service.status, console.say, lambda: _numbers(service)),
            Display(console) as display,
        ):
            return _follow(service.start(), display, console)
    finally:
        transport.close()


def _numbers(service: CoordinatorService) -> dict[str, dict[str, float]]:
    return {} if service.runtime is None else service.runtime.numbers()


def _follow(service: CoordinatorService, display: Display, console: Console) -> int:
    try:
        while (outcome := service.wait(LOOK_EVERY_S)) is None:
            display.update(service.status())
    except KeyboardInterrupt:
        display.say("leaving; the job goes on with its next coordinator")
        service.leave()
        service.wait(LEAVE_TIMEOUT_S)
        return Exit.INTERRUPTED
    display.update(service.status())
    if console.as_json:
        console.data({"ending": outcome.ending.value, "cause": outcome.cause})
    if outcome.ending is Ending.FAILED:
        raise JobFailed(outcome.cause)
    display.say(f"{outcome.ending.value}: {outcome.cause}")
    return Exit.REPLACED if outcome.ending is Ending.FENCED else Exit.DONE
