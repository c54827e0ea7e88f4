"""Which requests are answered, and what every answer says to the browser.

A request must name this machine, and data is given to no page of another site: :mod:`penstock.coordinator.http_guard`.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..coordinator.http_guard import is_cross_site, is_ours

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Refuses requests that name another host, and gives every answer its headers."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        named = _header(scope, b"host")
        origin, site = ",".join(_header(scope, b"origin")), ",".join(_header(scope, b"sec-fetch-site"))
        app = self._app
        if len(named) != 1 or not is_ours(named[0], self._hosts):
            app = PlainTextResponse("this is not the host that you asked for; --allowed-host NAME names another", 421)
        elif "/api/" in scope["path"] and is_cross_site(origin, site, named[0]):
            app = PlainTextResponse("a page of another site may not ask for this: open the dashboard itself", 403)
        await app(scope, receive, send_with_headers)


def _header(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]
