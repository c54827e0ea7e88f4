"""`penstock run`: a job from a file, on a local Spark, on any broker."""

from __future__ import annotations

from typing import Annotated

import typer

from .connect import (
    CHECK_TIMEOUT_S,
    LOOPBACK,
    BrokerOption,
    ClientConfigOption,
    JsonOption,
    MetricsHostOption,
    MetricsPortOption,
    connection,
)
from .console import Console
from .dashboard import DashboardPortOption, dashboard_served
from .display import Display
from .job_file import load_job
from .start_options import (
    FreshOption,
    FromCheckpointOption,
    FromSavepointOption,
    JobFileArgument,
    NameOption,
    ReplicationOption,
    ResumeOption,
    metrics_served,
    named,
    require_one_start,
    restore_options,
)
from .to_json import plain

OptionalPrefix = Annotated[
    str | None, typer.Option("--prefix", envvar="PENSTOCK_PREFIX", help="What its topics begin with; else the file's.")
]


def run(
    file: JobFileArgument,
    name: NameOption = None,
    fresh: FreshOption = False,
    from_checkpoint: FromCheckpointOption = None,
    from_savepoint: FromSavepointOption = None,
    resume: ResumeOption = False,
    broker: BrokerOption = None,
    prefix: OptionalPrefix = None,
    replication_factor: ReplicationOption = None,
    client_config: ClientConfigOption = None,
    metrics_port: MetricsPortOption = None,
    metrics_host: MetricsHostOption = LOOPBACK,
    dashboard_port: DashboardPortOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a job on a local Spark, a slot per subtask; started again, it resumes from its last checkpoint.

    Without a broker the embedded one is started, and stays (penstock broker stop). Ctrl-C stops the job.
    """
    require_one_start(fresh=fresh, from_checkpoint=from_checkpoint, from_savepoint=from_savepoint, resume=resume)
    console = Console(as_json=as_json)
    with console.stdout_kept():
        job = named(load_job(file), name, prefix, replication_factor)
    where = connection(broker, client_config, start=console)
    transport = where.transport()
    try:
        transport.check(CHECK_TIMEOUT_S)
        options = restore_options(
            job, transport, fresh, from_checkpoint, from_savepoint, say=console.say, resume=resume
        )
    finally:
        transport.close()
    slots = sum(operator.parallelism for operator in job.operators.values())
    console.say(f"starting Spark with {slots} task slots; Kafka at {where.bootstrap}")

    from .. import spark_integration  # loads pyspark, after everything that can be refused without it
    from .run_display import Running, follow, spark_session

    running = Running()
    with (
        console.stdout_kept(),
        metrics_served(metrics_port, running.status, console.say, running.numbers, host=metrics_host),
        dashboard_served(dashboard_port, running.status, console.say, job.name, job.prefix, where.transport),
        spark_session(slots, f"penstock {job.name}") as spark,
        spark_integration.run(
            spark, job, broker=where.bootstrap, client_settings=where.client_settings, options=options
        ) as handle,
        running.told(handle),
        Display(console) as display,
    ):
        result = follow(handle, display)
    if as_json:
        console.data({"job": job.name, **plain(result)})
    else:
        console.show(f"job {job.name} has {result.ending.value}: {result.cause}")
