"""Starts what a Structured Streaming query needs of a job: its coordinator, the source, and the listener."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from ...client.job_client import JobClient
from ...coordinator.options import CoordinatorOptions
from ...coordinator.preflight import check_may_start, require_history
from ...coordinator.service import CoordinatorService, instances_of
from ...job import Job
from ...schemas.errors import ConfigurationError
from ...transport.kafka import KafkaConfig, KafkaTransport
from ...transport.requirements import require
from ..runner import REACH_TIMEOUT_S, SETUP_TIMEOUT_S, await_beginning, kafka_config, roles_here
from ..session_checks import classic_context
from .event_types import described, why_bytes
from .options import SourceOptions
from .query_handle import QueryHandle, QueryParts
from .registration import register_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)


def stream(
    spark: SparkSession,
    job: Job,
    *,
    broker: str | KafkaConfig,
    client_settings: Mapping[str, str] | None = None,
    coordinator: Literal["driver", "elsewhere"] = "driver",
    options: CoordinatorOptions | None = None,
) -> QueryHandle:
    """Makes ``job`` one that a Structured Streaming query drives: ``handle.read_stream()`` is its events.

    The job has exactly one operator, with a coordinator; its subtask class is not used. ``broker`` is host:port, or a
    KafkaConfig; ``client_settings`` are librdkafka's, security mostly. The coordinator runs on a thread of this driver,
    or "elsewhere". What it goes on from is what the query's Spark checkpoint names.

    Raises ConfigurationError and JobRefused where the job or the session cannot be used like this, BrokerUnreachable
    where no broker answers; and JobRefused or StateError where the coordinator does not begin.
    """
    if coordinator not in ("driver", "elsewhere"):
        raise ConfigurationError(f"coordinator is {coordinator!r}; use 'driver' or 'elsewhere'")
    settings = dataclasses.replace(job.settings, driven_by_query=True)
    operator = next(iter(job.operators.values()))
    schema = described(operator.codec)
    if schema is None:
        _log.info("job=%s: the column event is binary: %s", job.name, why_bytes(operator.codec))
    classic_context(spark)
    register_source(spark)
    config = kafka_config(broker, client_settings)
    held = settings.operator(operator.name).max_held_bytes
    source = SourceOptions(settings.topics, operator.name, config, event_schema=schema, max_held_bytes=held)
    options = options or CoordinatorOptions()
    transport = KafkaTransport.from_config(config)
    service: CoordinatorService | None = None
    try:
        transport.check(REACH_TIMEOUT_S)
        if options.must_exist:
            require_history(settings, transport)
        require(settings, transport, roles_here(coordinator), SETUP_TIMEOUT_S, creates=True)
        if coordinator == "driver":
            check_may_start(settings, transport, options.restore, options.restore_checkpoint)
            made = instances_of(settings, job.coordinators, transport, options)
            service = CoordinatorService(made, job.restart).start()
            await_beginning(service)
        return QueryHandle(
            spark, job, QueryParts(transport, JobClient(transport, job.name, job.prefix), service, source)
        )
    except BaseException:
        if service is not None:
            service.leave()
            service.wait(10.0)
        transport.close()
        raise
