"""`penstock jobs`: every job on a broker, and what it costs the broker."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ..client.topic_usage import Cost, JobOnBroker, jobs_on
from ..dashboard import model
from ..dashboard.job_list import state_told
from ..schemas.ids import NO_CHECKPOINT
from ..schemas.status import JobStatus
from ..schemas.topics import DEFAULT_PREFIX
from .connect import BrokerOption, ClientConfigOption, JsonOption, PrefixOption, connected
from .console import Console
from .status_commands import ago, told
from .to_json import plain

_UNKNOWN = (
    "the size of the topics on disk is unknown: brokers behind TLS or SASL are not asked"
    " (kafka-log-dirs --describe shows it)"
)


def jobs(
    all_prefixes: Annotated[bool, typer.Option("--all-prefixes", help="List the jobs under every prefix.")] = False,
    broker: BrokerOption = None,
    prefix: PrefixOption = DEFAULT_PREFIX,
    client_config: ClientConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the jobs on the broker: what each is doing, and what it takes there."""
    console = Console(as_json=as_json)
    with connected(broker, client_config) as transport:
        found = jobs_on(transport, None if all_prefixes else prefix)
    if as_json:
        console.data([_plain(job) for job in found])
        return
    if not found:
        console.show("no job on this broker" if all_prefixes else f"no job under prefix {prefix!r} on this broker")
        return
    console.show(_table(found, with_prefix=all_prefixes))
    if any(job.cost.bytes is None for job in found):
        console.show(_UNKNOWN)
    for job in found:
        if not job.whole:
            console.show(
                f"{job.job} has no checkpoint log, so it cannot start: it was purged half, or the topic was deleted"
                f" (penstock purge {job.job} --prefix {job.prefix} deletes the rest)"
            )


def _table(found: list[JobOnBroker], *, with_prefix: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in (*(["prefix"] if with_prefix else []), "job", "state", "subtasks", "epoch", "checkpoint"):
        table.add_column(name, no_wrap=name == "job")
    for name in ("topics", "partitions", "records", "on disk"):
        table.add_column(name, justify="right")
    table.add_column("last seen")
    for job in found:
        table.add_row(
            *([escape(job.prefix)] if with_prefix else []), escape(job.job), _state(job),
            *_doing(job.status), *_taken(job.cost), _seen(job),
        )  # fmt: skip
    if len(found) > 1:
        table.add_row(*([""] if with_prefix else []), "[dim]all", "", "", "", "", *_taken(_sum(found)), "")
    return table


def _seen(job: JobOnBroker) -> str:
    return "-" if job.status is None else ago(job.status, _age_s(job.status, job))


def _age_s(status: JobStatus, job: JobOnBroker) -> float:
    """Seconds from the status to the look at it."""
    return model.age_s(status, job.looked_ms)


def _state(job: JobOnBroker) -> str:
    return state_told(job)


def _doing(status: JobStatus | None) -> tuple[str, str, str]:
    if status is None:
        return "-", "-", "-"
    running = sum(operator.totals.running for operator in status.operators)
    subtasks = sum(operator.parallelism for operator in status.operators)
    last = "none" if status.last_completed == NO_CHECKPOINT else str(status.last_completed)
    return f"{running}/{subtasks}", str(status.epoch), last


def _taken(cost: Cost) -> tuple[str, str, str, str]:
    return f"{cost.topics}", f"{cost.partitions}", f"{cost.records:,}", _size(cost.bytes)


def _sum(found: list[JobOnBroker]) -> Cost:
    costs = [job.cost for job in found]
    known = [cost.bytes for cost in costs if cost.bytes is not None]
    return Cost(
        sum(cost.topics for cost in costs),
        sum(cost.partitions for cost in costs),
        sum(cost.records for cost in costs),
        sum(known) if len(known) == len(costs) else None,
    )


def _size(count: int | None) -> str:
    if count is None:
        return "?"
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count} B"


def _plain(job: JobOnBroker) -> dict[str, Any]:
    status = job.status
    return {
        "prefix": job.prefix,
        "job": job.job,
        "state": _state(job),
        "epoch": None if status is None else status.epoch,
        "last_completed": None if status is None else status.last_completed,
        "cost": plain(job.cost),
        "status": None if status is None else told(status, _age_s(status, job)),
    }
