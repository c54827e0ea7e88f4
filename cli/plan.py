"""`penstock plan`: what a job needs of a broker, for whoever sets it up. Asks no broker."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from ..schemas.access import ADMIN_SETTINGS, Grant, grant_commands
from ..schemas.plan import Plan, Role, create_command
from .connect import BrokerOption, JsonOption, checked_address
from .console import Console
from .job_file import load_job
from .run_job import OptionalPrefix
from .start_options import JobFileArgument, NameOption, ReplicationOption, named

BROKER_SHOWN = "BROKER:9092"
USER_SHOWN = "USER"
COPIES_ADVICE = (
    "With one copy a lost broker loses the job; with three, --replication-factor 3, one may go. Where the broker's"
    " default of min.insync.replicas is 1, a lost broker can take the newest checkpoints with it; topics made with"
    " three copies or more get 2"
)


def plan(
    file: JobFileArgument,
    name: NameOption = None,
    user: Annotated[
        str, typer.Option("--user", metavar="NAME", help="Whom the commands give the rights to.")
    ] = USER_SHOWN,
    roles: Annotated[
        list[Role] | None, typer.Option("--role", help="Only this role's rights; may be repeated. Without it, all.")
    ] = None,
    broker: BrokerOption = None,
    prefix: OptionalPrefix = None,
    replication_factor: ReplicationOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the topics, the client settings and the rights (ACLs) that a job needs, with the commands that make them.

    Nothing is asked of a broker and nothing is changed. The job checks the same when it starts.
    """
    console = Console(as_json=as_json)
    with console.stdout_kept():
        job = named(load_job(file), name, prefix, replication_factor)
    wanted, chosen = Plan(job.settings), list(dict.fromkeys(roles or Role))
    address = checked_address(broker) if broker else BROKER_SHOWN
    if as_json:
        console.data(as_data(wanted, chosen, user, address))
    else:
        _show(wanted, chosen, user, address, console)


def as_data(plan: Plan, roles: list[Role], user: str, broker: str) -> dict[str, object]:
    """The plan for programs."""
    return {
        "job": plan.settings.name,
        "prefix": plan.settings.prefix,
        "topics": [
            {
                "name": spec.name,
                "partitions": spec.partitions,
                "replication_factor": spec.replication_factor,
                "settings": dict(spec.settings),
                "command": create_command(spec, broker),
            }
            for spec in plan.topics
        ],
        "broker": dict(plan.limits),
        "roles": [
            {
                "role": role.value,
                "acls": [_acl(grant, user) for grant in plan.grants([role])],
                "client_settings": dict(plan.client_settings(role)),
                "commands": grant_commands(plan.grants([role]), user, broker),
            }
            for role in roles
        ],
        "commands": grant_commands(plan.grants(roles), user, broker),
    }


def _acl(grant: Grant, user: str) -> dict[str, str]:
    return {
        "principal": f"User:{user}",
        "operation": grant.operation.value,
        "resource": grant.resource.value,
        "name": grant.name,
        "pattern": "prefixed" if grant.prefixed else "literal",
    }


def _show(plan: Plan, roles: list[Role], user: str, broker: str, console: Console) -> None:
    console.show(f"Topics of job {plan.settings.name}")
    topics = _table()
    for spec in plan.topics:
        told = ", ".join(f"{key}={value}" for key, value in spec.settings.items())
        topics.add_row("", spec.name, f"{spec.partitions} partition{'s' * (spec.partitions > 1)}", told)
    console.show(topics)
    console.show(
        f"  copies of each: {plan.settings.replication_factor or f'the default of the broker. {COPIES_ADVICE}'}"
    )
    for role in roles:
        console.show(f"\nRights in the role {role.value}")
        rows = _table()
        for grant in plan.grants([role]):
            rows.add_row(
                "", grant.operation.value, grant.resource.value, grant.name, "prefixed" if grant.prefixed else "literal"
            )
        console.show(rows)
        set_by_us = ", ".join(f"{key}={value}" for key, value in plan.client_settings(role).items())
        console.show(f"  client settings that Penstock sets: {set_by_us or 'nothing'}")
    limits = ", ".join(f"{key} at least {value}" for key, value in plan.limits.items())
    console.show(f"\nLimits of the broker: {limits}")
    console.show(
        f"\nCommands, for an administrator whose own client settings are in {ADMIN_SETTINGS}"
        " (topics need none where the job's user may create them)"
    )
    for command in [*(create_command(spec, broker) for spec in plan.topics)]:
        console.show(command)
    for command in grant_commands(plan.grants(roles), user, broker):
        console.show(command)


def _table() -> Table:
    return Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
