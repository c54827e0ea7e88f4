"""`penstock stop`, `savepoint`, `discard`, `request` and `purge`: what may be asked of a job."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ..client.job_client import JobClient
from ..schemas.status import ENDED, CommandReply
from ..schemas.topics import DEFAULT_PREFIX
from .connect import BrokerOption, ClientConfigOption, JobArgument, JsonOption, PrefixOption, job_client
from .console import Console, print_text
from .exits import Failed, UsageError
from .to_json import plain, text_of

TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="How long to wait for the answer.")
]


def stop(
    job: JobArgument,
    savepoint: Annotated[bool, typer.Option("--savepoint", help="Take a savepoint first, and stop at it.")] = False,
    timeout: TimeoutOption = 120.0,
    broker: BrokerOption = None,
    prefix: PrefixOption = DEFAULT_PREFIX,
    client_config: ClientConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a job's run; running it again resumes."""
    with job_client(job, broker, prefix, client_config) as client:
        _require_running(client, job)
        _answer(client.stop(savepoint=savepoint, timeout_s=timeout), Console(as_json=as_json))


def savepoint(
    job: JobArgument,
    timeout: TimeoutOption = 120.0,
    broker: BrokerOption = None,
    prefix: PrefixOption = DEFAULT_PREFIX,
    client_config: ClientConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a savepoint: a checkpoint that is kept."""
    with job_client(job, broker, prefix, client_config) as client:
        _require_running(client, job)
        _answer(client.savepoint(timeout_s=timeout), Console(as_json=as_json))


def discard(
    job: JobArgument,
    checkpoint_id: Annotated[int, typer.Argument(metavar="N", min=0, help="The savepoint, or checkpoint.")],
    timeout: TimeoutOption = 30.0,
    broker: BrokerOption = None,
    prefix: PrefixOption = DEFAULT_PREFIX,
    client_config: ClientConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give up a savepoint: nothing can go back to it any more, and what only it needs is deleted."""
    with job_client(job, broker, prefix, client_config) as client:
        _require_running(client, job)
        _answer(client.discard(checkpoint_id, timeout_s=timeout), Console(as_json=as_json))


def request(
    job: JobArgument,
    operator: Annotated[str, typer.Argument(metavar="OPERATOR", help="The operator whose coordinator is asked.")],
    payload: Annotated[
        str, typer.Argument(metavar="PAYLOAD", help="The request as the operator's codec reads it; - reads stdin.")
    ],
    timeout: TimeoutOption = 30.0,
    broker: BrokerOption = None,
    prefix: PrefixOption = DEFAULT_PREFIX,
    client_config: ClientConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask an operator's coordinator; prints what its handle_request returned."""
    data = sys.stdin.buffer.read() if payload == "-" else payload.encode()
    with job_client(job, broker, prefix, client_config) as client:
        _require_running(client, job)
        reply = client.request(operator, data, timeout_s=timeout)
    if not as_json and reply.accepted:
        print_text(text_of(reply.payload))
        return
    _answer(reply, Console(as_json=as_json))


def purge(
    job: JobArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    broker: BrokerOption = None,
    prefix: PrefixOption = DEFAULT_PREFIX,
    client_config: ClientConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a job's topics: its checkpoints, its savepoints, all it ever was.

    States in its state storage stay: delete the folder PREFIX.JOB there, or leave it to the next job of that name.
    """
    console = Console(as_json=as_json)
    with job_client(job, broker, prefix, client_config, left=True) as client:
        if not yes:
            if not sys.stdin.isatty():
                raise UsageError(f"purge deletes every checkpoint of job {job}: give --yes without a terminal")
            typer.confirm(f"Delete all topics of job {job}, its checkpoints and savepoints with them?", abort=True)
        names = client.purge()
    if as_json:
        console.data({"job": job, "deleted": names})
    else:
        console.show(f"deleted {len(names)} topics: {', '.join(names)}")


def _require_running(client: JobClient, job: str) -> None:
    """A command to a job that does not run would stand in its log, and be executed at its next start."""
    if client.running(within_s=10.0):
        return
    status = client.status()
    said = "has never run" if status is None else f"is {status.state}" if status.state in ENDED else "has gone silent"
    raise Failed(f"job {job} {said}: no coordinator would answer (penstock status {job})")


def _answer(reply: CommandReply, console: Console) -> None:
    if console.as_json:
        console.data(plain(reply))
    elif reply.accepted:
        console.show(reply.outcome)
    if not reply.accepted:
        raise Failed(f"refused: {reply.outcome}")
