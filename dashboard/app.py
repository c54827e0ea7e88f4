"""The pages and what they ask for: the newest state in the page, and a stream of what changes (Server-Sent Events).

Everything comes from this package: no other host is asked for anything, and a page may run no script and load nothing
from elsewhere. Reading is all that is possible, unless control is allowed: see :mod:`.control`. Which requests are
answered says :mod:`.guard`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import suppress
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Send

from ..schemas.errors import ConfigurationError, JobRefused, PenstockError
from . import messages
from .control import Busy
from .guard import Guard
from .site import Shown, Site
from .updates import TELL_EVERY_S, Parts

STREAMS_MAX = 32
LOOKS_MAX = 4
"""So many requests read logs at a time."""
UNREAD_MAX_S = 20.0
"""A page that has not read what it was told for so long, and as much as connections buffer, is not looked at."""
BODY_BYTES_MAX = 1_024
WRONG_TOKEN_PAUSE_S = 0.5

_FILES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
}


def make_app(site: Site, hosts: Collection[str] = ()) -> Starlette:
    """Shows ``site`` to whoever asks for one of ``hosts``, for localhost, or for an address in digits."""
    pages = _Pages(site)
    first = Route("/", pages.job_page if site.jobs is None else pages.list_page)
    return Starlette(
        routes=[
            first,
            Route("/api/jobs", pages.list_told),
            Route("/jobs/{job}", pages.with_slash),
            Route("/jobs/{job}/", pages.job_page),
            *(
                Route(base + path, endpoint, methods=methods)
                for base in ("", "/jobs/{job}")
                for path, endpoint, methods in (
                    ("/api/status", pages.status, ["GET"]),
                    ("/api/stream", pages.stream, ["GET"]),
                    ("/api/subtask", pages.subtask, ["GET"]),
                    ("/api/frames", pages.frames, ["GET"]),
                    ("/api/control", pages.control, ["POST"]),
                )
            ),
            *(_file_route(each.name) for each in files(__package__).iterdir() if each.name.endswith(tuple(_FILES))),
        ],
        middleware=[Middleware(Guard, hosts=frozenset(host.lower() for host in (*hosts, "localhost")))],
        exception_handlers={PenstockError: _refused},
    )


async def _refused(_: Request, error: Exception) -> Response:
    code = 404 if isinstance(error, JobRefused) else 400 if isinstance(error, ConfigurationError) else 503
    return PlainTextResponse(str(error), code)


class _Pages:
    """The endpoints. Whatever may wait for the broker runs in a thread."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._streams = 0
        self._looks = 0
        texts = json.dumps({"hints": messages.HINTS, "steps": messages.STEPS, "list": site.jobs is not None})
        self._html = _resource("page.html").replace("WORDS", _in_html(texts), 1)
        self._list_html = _resource("jobs.html")

    async def _job(self, request: Request) -> Shown:
        return await run_in_threadpool(self._site.job, str(request.path_params.get("job", "")))

    # ---- pages

    async def with_slash(self, request: Request) -> Response:
        return RedirectResponse(f"/jobs/{request.path_params['job']}/")

    async def job_page(self, request: Request) -> Response:
        shown = await self._job(request)
        await run_in_threadpool(shown.feed.wait_first)
        job = "" if shown.client is None else shown.client.topics.job
        can = json.dumps({"job": job, "log": shown.log is not None, "control": shown.control is not None})
        html = self._html.replace("CAN", _in_html(can), 1)
        return _html(html.replace("NEWEST", _in_html(shown.updates.whole()), 1))

    async def list_page(self, _: Request) -> Response:
        jobs = self._site.jobs
        assert jobs is not None
        await run_in_threadpool(jobs.wait_first)
        return _html(self._list_html.replace("NEWEST", _in_html(json.dumps(jobs.told())), 1))

    async def list_told(self, _: Request) -> Response:
        if self._site.jobs is None:
            return PlainTextResponse("this dashboard shows one job", 404)
        return JSONResponse(self._site.jobs.told())

    # ---- one job

    async def status(self, request: Request) -> Response:
        return Response((await self._job(request)).updates.whole(), media_type="application/json")

    async def stream(self, request: Request) -> Response:
        if self._streams >= STREAMS_MAX:
            return PlainTextResponse(f"{self._streams} pages are open already: close one", 503)
        return _Stream(self._events(await self._job(request)), media_type="text/event-stream")

    async def _events(self, shown: Shown) -> AsyncIterator[str]:
        self._streams += 1
        known: Parts | None = None
        try:
            while not shown.feed.closing:
                message, known = shown.use().updates.since(known)
                yield f"data: {message}\n\n"
                await asyncio.sleep(TELL_EVERY_S)
        finally:
            self._streams -= 1

    async def subtask(self, request: Request) -> Response:
        """A page of a subtask's history: ?operator=NAME&subtask=I, and before=OFFSET for an older one."""
        asked = request.query_params
        try:
            index, before = int(asked["subtask"]), int(asked["before"]) if asked.get("before") else None
            operator = asked["operator"]
        except (KeyError, ValueError):
            return PlainTextResponse("operator, subtask and before (numbers) say what is meant", 400)
        shown = await self._job(request)
        if shown.log is None:
            return PlainTextResponse("this page cannot read the job's logs: penstock dashboard JOB can", 404)
        log = shown.log
        return await self._look(lambda: log.page(operator, index, before).plain())

    async def frames(self, request: Request) -> Response:
        """How many records each edge's topic has had."""
        shown = await self._job(request)
        view = shown.feed.view()
        edges = [] if view is None else [(edge.sender, edge.receiver) for edge in view.edges]
        if shown.log is None or not edges:
            return JSONResponse({})
        log = shown.log
        return await self._look(lambda: log.frames(edges))

    async def _look(self, look: Callable[[], Any]) -> Response:
        if self._looks >= LOOKS_MAX:
            return PlainTextResponse("logs are being read for other pages: try again", 503)
        self._looks += 1
        try:
            return JSONResponse(await run_in_threadpool(look))
        finally:
            self._looks -= 1

    async def control(self, request: Request) -> Response:
        """Ask the job for what the body names, {"action": ...}; the token comes in the header Authorization."""
        shown = await self._job(request)
        control, client = shown.control, shown.client
        if control is None or client is None:
            return PlainTextResponse("this dashboard only shows: --allow-control allows more", 403)
        if not control.admits(request.headers.get("authorization", "")):
            await asyncio.sleep(WRONG_TOKEN_PAUSE_S)
            return PlainTextResponse("this is not the token", 401, {"www-authenticate": "Bearer"})
        try:
            action = str(json.loads(await _body(request))["action"])
        except (ValueError, TypeError, KeyError, RecursionError):
            return PlainTextResponse('the body must be JSON: {"action": ...}', 400)
        try:
            reply = await run_in_threadpool(control.ask, client, action)
        except Busy:
            return PlainTextResponse("the job has not answered the last request yet", 409)
        return JSONResponse({"accepted": reply.accepted, "outcome": reply.outcome})


async def _body(request: Request) -> bytes:
    """At most so many bytes; ValueError for more, or for another type of content."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise ValueError("not JSON")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise ValueError("too long")
    return body


def _html(text: str) -> Response:
    return Response(text, media_type="text/html; charset=utf-8")


def _resource(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _in_html(text: str) -> str:
    """Return JSON that ends no element of the page that it stands in, whatever its strings hold."""
    return text.replace("<", "\\u003c")


class _Stream(StreamingResponse):
    """Given up where nobody reads it: it would keep its place for ever."""

    async def stream_response(self, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            await asyncio.wait_for(send(message), UNREAD_MAX_S)

        with suppress(TimeoutError):
            await super().stream_response(send_in_time)


def _file_route(name: str) -> Route:
    content = files(__package__).joinpath(name).read_bytes()
    media_type = _FILES[name.rpartition(".")[2]]

    async def send(_: Request) -> Response:
        return Response(content, media_type=media_type)

    return Route(f"/{name}", send)
