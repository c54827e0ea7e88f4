"""Starts a job's subtasks as long-running Spark tasks, and its coordinator beside them."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pyspark import SparkContext, SparkFiles

from ..client.job_client import JobClient
from ..coordinator.options import CoordinatorOptions
from ..coordinator.preflight import check_may_start, require_topics
from ..coordinator.service import CoordinatorService, instances_of
from ..job import Job
from ..schemas.errors import ConfigurationError
from ..schemas.ids import SubtaskId
from ..schemas.plan import Role
from ..transport.kafka import KafkaConfig, KafkaTransport
from ..transport.ports import Transport
from ..transport.requirements import require
from .dataframe_input import DataFrameInput, PreparedInputs, prepare
from .handle import JobHandle
from .session_checks import check_session, classic_context, facts_of
from .slot_watch import SlotWatch
from .spark_job import SparkJob
from .supervisor import RunParts, Supervisor
from .task import TaskPlan
from .user_code import pickled_operators

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REACH_TIMEOUT_S = 5.0
SETUP_TIMEOUT_S = 30.0
"""For looking at the job's topics, and creating them."""
STOP_TIMEOUT_S = 30.0
_LOOK_S = 0.01


def run(
    spark: SparkSession,
    job: Job,
    *,
    broker: str | KafkaConfig,
    inputs: Mapping[str, DataFrame | DataFrameInput] | None = None,
    client_settings: Mapping[str, str] | None = None,
    coordinator: Literal["driver", "elsewhere"] = "driver",
    options: CoordinatorOptions | None = None,
    stop_timeout: float = STOP_TIMEOUT_S,
) -> JobHandle:
    """Starts a run of ``job``: every subtask as a Spark task of its own, all at once.

    ``broker`` is host:port, or a KafkaConfig; ``client_settings`` are librdkafka's, security mostly (they travel to
    the executors with the tasks). The coordinator runs on a thread of this driver, or "elsewhere"
    (``penstock coordinator``). ``stop_timeout`` is how long tasks may take to return after they were told to, in
    seconds; then they are cancelled. A job that was run before resumes from its last completed checkpoint, unless
    ``options`` say otherwise; a run of it that is still going on is replaced.

    ``inputs`` are DataFrames by operator: each subtask gets the rows of one partition, in ``process_rows``, among its
    events. There must be at least as many partitions as subtasks (more are joined, neighbours one after the other), and
    the same rows in the same order each time they are computed. What of a DataFrame lies before its last shuffle is
    computed in this call.

    Raises, before anything is started, ConfigurationError and JobRefused where the job, an input or the session cannot
    be used like this, NotAuthorized where the user lacks a right, BrokerUnreachable where no broker answers; and
    JobRefused or StateError where the coordinator does not begin.
    """
    if coordinator not in ("driver", "elsewhere"):
        raise ConfigurationError(f"coordinator is {coordinator!r}; use 'driver' or 'elsewhere'")
    job.check_subtasks()
    settings = job.settings
    context = classic_context(spark)
    check_session(facts_of(context), settings)
    config = kafka_config(broker, client_settings)
    operators = pickled_operators(job, _shipped(context))
    transport = KafkaTransport.from_config(config)
    try:
        transport.check(REACH_TIMEOUT_S)
        prepared = prepare(spark, job, inputs)
        rows = {name: given.plan for name, given in prepared.by_operator.items()}
        plan = TaskPlan(settings, config, uuid.uuid4().hex, operators, rows)
        here, options, roles = coordinator == "driver", options or CoordinatorOptions(), roles_here(coordinator)
        if here:
            restore = options.restore, options.restore_checkpoint
            require_topics(settings, transport, roles, SETUP_TIMEOUT_S, *restore, options.must_exist)
        else:
            require(settings, transport, roles, SETUP_TIMEOUT_S, creates=True)
        return _started(context, job, plan, prepared, transport, here, options, stop_timeout)
    except BaseException:
        transport.close()
        raise


def _started(
    context: SparkContext,
    job: Job,
    plan: TaskPlan,
    inputs: PreparedInputs,
    transport: KafkaTransport,
    coordinated_here: bool,
    options: CoordinatorOptions,
    stop_timeout_s: float,
) -> JobHandle:
    if coordinated_here:
        check_may_start(plan.settings, transport, options.restore, options.restore_checkpoint, job.coordinators)
    client = JobClient(transport, job.name, job.prefix)
    if not coordinated_here:
        client.require_layout(plan.settings.parallelism)
    client.announce_run(plan.run)
    silent = _Silent()
    service = _service(job, transport, options, silent) if coordinated_here else None
    spark_job = SparkJob(context, plan, inputs)
    slots = SlotWatch(job.name, len(plan.settings.subtasks()), facts_of(context))
    parts = RunParts(plan.settings, plan.run, plan.kafka, transport, service, client, spark_job, slots, stop_timeout_s)
    supervisor = silent.supervisor = Supervisor(context, parts)
    if service is not None:
        service.start()
        await_beginning(service)
    supervisor.start()
    return JobHandle(job, parts, supervisor)


class _Silent:
    """The way from the coordinator, which is made first, to the supervisor."""

    supervisor: Supervisor | None = None

    def __call__(self, subtask: SubtaskId, task: str, cause: str) -> None:
        if self.supervisor is not None:
            self.supervisor.kill_task(subtask, task, cause)


def _service(job: Job, transport: Transport, options: CoordinatorOptions, silent: _Silent) -> CoordinatorService:
    also = options.on_silent

    def on_silent(subtask: SubtaskId, task: str, cause: str) -> None:
        silent(subtask, task, cause)
        if also is not None:
            also(subtask, task, cause)

    first_options = dataclasses.replace(options, on_silent=on_silent)
    return CoordinatorService(instances_of(job.settings, job.coordinators, transport, first_options), job.restart)


def await_beginning(service: CoordinatorService) -> None:
    """Returns when the coordinator has claimed its epoch. Raises why it does not: then no task is started."""
    try:
        while service.runtime is None or not service.runtime.began:
            if service.wait(_LOOK_S) is not None:
                return  # fenced already: the watch says so
    except BaseException:
        service.leave()
        raise


def roles_here(coordinator: str) -> list[Role]:
    """What this driver's user must be allowed to do: its client settings go to the executors too."""
    return [Role.SUBTASK, Role.COMMANDS, *([Role.COORDINATOR] if coordinator == "driver" else [])]


def kafka_config(broker: str | KafkaConfig, client_settings: Mapping[str, str] | None) -> KafkaConfig:
    if isinstance(broker, KafkaConfig):
        if client_settings:
            raise ConfigurationError("client_settings are part of the KafkaConfig given as broker: put them in there")
        return broker
    if not isinstance(broker, str):
        raise ConfigurationError(f"broker must be host:port of a Kafka broker, or a KafkaConfig, not {broker!r}")
    return KafkaConfig(broker, client_settings or {})


def _shipped(context: SparkContext) -> list[Path]:
    """Where the driver keeps what ``addPyFile`` brings to the workers."""
    return [Path(SparkFiles.getRootDirectory()).resolve()] if context._python_includes else []
