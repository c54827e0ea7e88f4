"""`penstock dashboard`, and the page that `run` and `coordinator` serve with `--dashboard-port`."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from ..client.job_client import JobClient
from ..schemas.status import JobStatus
from ..schemas.topics import DEFAULT_PREFIX, TopicNames
from ..transport.ports import Transport
from .connect import LOOPBACK, BrokerOption, ClientConfigOption, JsonOption, PrefixOption, connected, existing_job
from .console import Console
from .exits import UsageError
from .signals import interrupts_caught

DashboardPortOption = Annotated[
    int | None,
    typer.Option(
        "--dashboard-port", min=0, max=65535, help="Serve the job's page on this port of 127.0.0.1 (0: a free one)."
    ),
]
DEFAULT_PORT = 8642
LOOPBACK_NAMES = (LOOPBACK, "::1", "localhost")
TOKEN_VARIABLE = "PENSTOCK_DASHBOARD_TOKEN"


def dashboard(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="The job; without one, all of them.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to serve the page (0: a free port).")] = (
        DEFAULT_PORT
    ),
    host: Annotated[str, typer.Option(help="On which address; others than loopback let others look.")] = LOOPBACK,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option("--allowed-host", metavar="NAME", help="Another name that this machine is asked for by; repeat."),
    ] = None,
    allow_control: Annotated[
        bool,
        typer.Option(
            "--allow-control",
            help=f"Let who has the token stop jobs and take savepoints; the token is ${TOKEN_VARIABLE}, or made and"
            " shown once on the terminal.",
        ),
    ] = False,
    broker: BrokerOption = None,
    prefix: PrefixOption = DEFAULT_PREFIX,
    client_config: ClientConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a job, or every job on the broker, on web pages, live: also when its coordinator is gone. Until Ctrl-C.

    The pages only show, unless --allow-control is given. Whoever can open them sees names, hosts, counters, failures,
    settings and the events of subtasks, and no credentials.
    """
    console = Console(as_json=as_json)
    _require_extra()
    token = _token(host) if allow_control else None
    with interrupts_caught(), _where(job, broker, prefix, client_config) as (transport, client):
        from ..dashboard.control import Control
        from ..dashboard.feed import of_topic
        from ..dashboard.server import DashboardServer
        from ..dashboard.site import AllJobs, OneJob, Site
        from ..dashboard.subtask_log import SubtaskLog

        control = None if token is None else Control(token.text)
        site: Site
        if client is None:
            site = AllJobs(transport, prefix, control)
        else:
            site = OneJob(of_topic(client), client, SubtaskLog(transport, client.topics), control)
        with DashboardServer(site, port, host, allowed_host or ()) as server:
            if as_json:
                console.data({"job": job, "url": server.url})
            else:
                shown = "the jobs on this broker are" if job is None else f"job {job} is"
                console.show(f"{shown} shown at {server.url} (Ctrl-C ends this, not the job)")
            if token is not None and token.made:
                print(f"control token: {token.text}", file=sys.stderr, flush=True)
            _until_interrupted()


@dataclass(frozen=True)
class _Token:
    text: str = field(repr=False)
    made: bool


def _token(host: str) -> _Token:
    """Of the environment, else a new one, which only a terminal is shown. UsageError where that is not safe."""
    if host not in LOOPBACK_NAMES:
        raise UsageError(
            f"--allow-control with --host {host}: the token would cross the network unencrypted. Listen on"
            f" {LOOPBACK}, and let others come through SSH or a proxy with TLS"
        )
    if (given := os.environ.get(TOKEN_VARIABLE)) is not None:
        return _Token(given, made=False)
    if not sys.stderr.isatty():
        raise UsageError(
            f"--allow-control without a terminal: set {TOKEN_VARIABLE} to a token of at least 16 characters, so that"
            " none is written where it could stay"
        )
    return _Token(secrets.token_urlsafe(24), made=True)


@contextmanager
def _where(
    job: str | None, broker: str | None, prefix: str, client_config: Path | None
) -> Iterator[tuple[Transport, JobClient | None]]:
    """The broker, and the job where one is named."""
    TopicNames(prefix, "any")
    with connected(broker, client_config) as transport:
        yield transport, None if job is None else existing_job(transport, job, prefix)


@contextmanager
def dashboard_served(
    port: int | None,
    source: Callable[[], JobStatus | None] | None,
    say: Callable[[str], None],
    job: str,
    prefix: str,
    transport: Callable[[], Transport],
) -> Iterator[None]:
    """Serves a job's page while the body runs, where a port was asked for. ``transport`` makes one for its logs.

    ``source`` gives the status where the coordinator runs in this process; None where another may be at work.
    """
    if port is None:
        yield
        return
    _require_extra()
    from ..dashboard.feed import of_coordinator, of_topic
    from ..dashboard.server import DashboardServer
    from ..dashboard.site import OneJob
    from ..dashboard.subtask_log import SubtaskLog

    logs = transport()
    try:
        client = JobClient(logs, job, prefix)
        feed = of_topic(client) if source is None else of_coordinator(source)
        with DashboardServer(OneJob(feed, client, SubtaskLog(logs, client.topics)), port) as server:
            say(f"dashboard at {server.url}")
            yield
    finally:
        logs.close()


def _require_extra() -> None:
    for name in ("starlette", "uvicorn"):
        if find_spec(name) is None:
            raise UsageError(
                f"the dashboard needs {name}, which is not installed: pip install 'penstock-spark[dashboard]'"
            )


def _until_interrupted() -> None:
    while True:
        time.sleep(3600.0)
