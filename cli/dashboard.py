"""`penstock dashboard`, and the page that `run` and `coordinator` serve with `--dashboard-port`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Annotated

import typer

from ..client.job_client import JobClient
from ..schemas.status import JobStatus
from ..schemas.topics import DEFAULT_PREFIX
from .connect import BrokerOption, ClientConfigOption, JobArgument, JsonOption, PrefixOption, job_client
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


def dashboard(
    job: JobArgument,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to serve the page (0: a free port).")] = (
        DEFAULT_PORT
    ),
    host: Annotated[str, typer.Option(help="On which address; others than loopback let others look.")] = "127.0.0.1",
    allowed_host: Annotated[
        list[str] | None,
        typer.Option("--allowed-host", metavar="NAME", help="Another name that this machine is asked for by; repeat."),
    ] = None,
    broker: BrokerOption = None,
    prefix: PrefixOption = DEFAULT_PREFIX,
    client_config: ClientConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a job on a web page, live: wherever it runs, and also when its coordinator is gone. Until Ctrl-C.

    The page only shows. Whoever can open it sees the job's name, hosts, counters and failures, and no credentials.
    """
    console = Console(as_json=as_json)
    with interrupts_caught(), job_client(job, broker, prefix, client_config) as client:
        _require_extra()
        from ..dashboard.feed import of_topic
        from ..dashboard.server import DashboardServer

        with DashboardServer(of_topic(client), port, host, allowed_host or ()) as server:
            if as_json:
                console.data({"job": job, "url": server.url})
            else:
                console.show(f"job {job} is shown at {server.url} (Ctrl-C ends this, not the job)")
            _until_interrupted()


@contextmanager
def dashboard_served(
    port: int | None, source: JobClient | Callable[[], JobStatus | None], say: Callable[[str], None]
) -> Iterator[None]:
    """Serves a job's page while the body runs, where a port was asked for.

    ``source`` gives the status where the coordinator runs in this process; where another may be at work it is a client.
    """
    if port is None:
        yield
        return
    _require_extra()
    from ..dashboard.feed import of_coordinator, of_topic
    from ..dashboard.server import DashboardServer

    feed = of_topic(source) if isinstance(source, JobClient) else of_coordinator(source)
    with DashboardServer(feed, port) as server:
        say(f"dashboard at {server.url}")
        yield


def _require_extra() -> None:
    for name in ("starlette", "uvicorn"):
        if find_spec(name) is None:
            raise UsageError(
                f"the dashboard needs {name}, which is not installed: pip install 'penstock-spark[dashboard]'"
            )


def _until_interrupted() -> None:
    while True:
        time.sleep(3600.0)
