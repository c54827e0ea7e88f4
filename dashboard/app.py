"""The page, with the newest state in it, and the stream of those that follow (Server-Sent Events).

Read-only. Everything comes from this package: no other host is asked for anything, and the page may run no script and
load nothing from elsewhere. A request must name this machine, and data is given to no page of another site: see
:mod:`penstock.coordinator.http_guard`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from dataclasses import asdict
from importlib.resources import files

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..coordinator.http_guard import is_cross_site, is_ours
from . import messages
from .feed import Feed

STREAMS_MAX = 32
TELL_EVERY_S = 0.5
UNREAD_MAX_S = 20.0
"""A page that has not read what it was told for so long, and as much as connections buffer, is not looked at."""

_FILES = {
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def make_app(feed: Feed, hosts: Collection[str] = ()) -> Starlette:
    """Shows ``feed`` to whoever asks for one of ``hosts``, for localhost, or for an address in digits."""
    streams, newest = 0, _Newest(feed)

    html = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    words = json.dumps({"hints": messages.HINTS, "steps": messages.STEPS})

    async def page(_: Request) -> Response:
        filled = html.replace("WORDS", _in_html(words), 1).replace("NEWEST", _in_html(newest.text()), 1)
        return Response(filled, media_type="text/html; charset=utf-8")

    async def status(_: Request) -> Response:
        return Response(newest.text(), media_type="application/json")

    async def stream(_: Request) -> Response:
        if streams >= STREAMS_MAX:
            return PlainTextResponse(f"{streams} pages are open already: close one", 503)
        return _Stream(events(), media_type="text/event-stream")

    async def events() -> AsyncIterator[str]:
        nonlocal streams
        streams += 1
        try:
            while not feed.closing:
                yield f"data: {newest.text()}\n\n"
                await asyncio.sleep(TELL_EVERY_S)
        finally:
            streams -= 1

    return Starlette(
        routes=[
            Route("/", page),
            *(Route(path, _file(*file)) for path, file in _FILES.items()),
            Route("/api/status", status),
            Route("/api/stream", stream),
        ],
        middleware=[Middleware(_Guard, hosts=frozenset(host.lower() for host in (*hosts, "localhost")))],
    )


def told(feed: Feed) -> dict[str, object]:
    """What the page gets: the view, or None before the first status."""
    view = feed.view()
    return {
        "view": None if view is None else asdict(view),
        "trouble": feed.trouble,
        "looked_ms": feed.looked_ms,
        "now_ms": round(1000 * time.time()),
    }


def _in_html(text: str) -> str:
    """Return JSON that ends no element of the page that it stands in, whatever its strings hold."""
    return text.replace("<", "\\u003c")


class _Newest:
    """What there is to tell, in JSON: once for however many ask. Coordinators serve pages too, beside their work."""

    def __init__(self, feed: Feed) -> None:
        self._feed, self._text, self._at = feed, "", -TELL_EVERY_S

    def text(self) -> str:
        if time.monotonic() - self._at >= TELL_EVERY_S / 2:
            self._at, self._text = time.monotonic(), json.dumps(told(self._feed), separators=(",", ":"))
        return self._text


class _Stream(StreamingResponse):
    """Given up where nobody reads it: it would keep its place for ever."""

    async def stream_response(self, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            await asyncio.wait_for(send(message), UNREAD_MAX_S)

        with suppress(TimeoutError):
            await super().stream_response(send_in_time)


def _file(name: str, media_type: str):  # type: ignore[no-untyped-def]
    content = files(__package__).joinpath(name).read_bytes()

    async def send(_: Request) -> Response:
        return Response(content, media_type=media_type)

    return send


class _Guard:
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
        elif scope["path"].startswith("/api/") and is_cross_site(origin, site, named[0]):
            app = PlainTextResponse("a page of another site may not ask for this: open the dashboard itself", 403)
        await app(scope, receive, send_with_headers)


def _header(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]
