"""Serves a dashboard on a thread of its own until it is closed."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Collection
from types import TracebackType
from typing import Self

import uvicorn

from ..schemas.errors import ConfigurationError
from .app import make_app
from .feed import Feed
from .site import OneJob, Site

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 10.0


class DashboardServer:
    """Serves a site, or the one job of a feed, and closes it with itself. ``url`` is where.

    Raises ConfigurationError where it cannot listen there: the port is taken, or the host is not this machine's.
    """

    def __init__(
        self, shows: Site | Feed, port: int = 0, host: str = LOOPBACK, allowed_hosts: Collection[str] = ()
    ) -> None:
        self._site = site = OneJob(shows) if isinstance(shows, Feed) else shows
        try:
            self._socket = _listening(host, port)
        except (OSError, UnicodeError) as error:  # a name may be none that can be looked up
            site.close()
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise ConfigurationError(
                f"the dashboard cannot listen on {host} port {port}: {why}; choose another port, or 0 for a free one"
            ) from None
        self.port: int = self._socket.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.port}/"
        hosts = {host, socket.gethostname(), *allowed_hosts}
        config = uvicorn.Config(
            make_app(site, hosts), lifespan="off", log_config=None, access_log=False, server_header=False,
            timeout_graceful_shutdown=2, limit_concurrency=200, ws="none",
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="penstock-dashboard", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        if not self._server.started:
            self.close()
            raise ConfigurationError(f"the dashboard did not start on {self.url} within {START_TIMEOUT_S:g} s")

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])

    def close(self) -> None:
        """Ends every open page's stream, then the server."""
        self._site.close()
        self._server.should_exit = True
        self._thread.join(10.0)
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _listening(host: str, port: int) -> socket.socket:
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener
