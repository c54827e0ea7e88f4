"""What the dashboard serves, to whom, and how it ends: asked over real sockets."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from penstock.client.status_follower import Heard
from penstock.coordinator.http_guard import is_ours
from penstock.coordinator.metrics import MetricsServer
from penstock.dashboard import app, updates
from penstock.dashboard.feed import LOOK_EVERY_S, Feed
from penstock.dashboard.server import DashboardServer
from penstock.schemas.errors import BrokerUnreachable, ConfigurationError, TopicMissing
from penstock.schemas.status import JobStatus
from tests.coordinator.jobs import wait_until

from .statuses import failover, status

TIMEOUT_S = 10.0


class Told:
    """A feed's look that a test speaks through."""

    def __init__(self) -> None:
        self.statuses: list[JobStatus] = []
        self.error: Exception | None = None
        self.looks = self.failed = 0
        self.closed = threading.Event()

    def look(self, timeout_s: float) -> Sequence[Heard]:
        assert timeout_s == LOOK_EVERY_S
        threading.Event().wait(0.01)
        self.looks += 1
        if self.error is not None:
            self.failed = self.looks
            raise self.error
        said, self.statuses = self.statuses, []
        return [Heard(each, each.at_ms) for each in said]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def server(told: Told) -> Iterator[DashboardServer]:
    with DashboardServer(Feed(told.look, told.closed.set), allowed_hosts=["jobs.example"]) as running:
        yield running


def ask(server: DashboardServer, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
    connection.request("GET", path, headers=headers)
    return connection.getresponse()


def asked(server: DashboardServer, path: str) -> Any:
    return json.loads(ask(server, path).read())


def lines_of(answer: http.client.HTTPResponse) -> Iterator[Any]:
    for line in answer:
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))


@pytest.mark.parametrize(
    ("path", "media_type", "part"),
    [
        ("/", "text/html; charset=utf-8", b"<title>Penstock</title>"),
        ("/page.css", "text/css; charset=utf-8", b"light-dark("),
        ("/page.js", "text/javascript; charset=utf-8", b"EventSource"),
        ("/theme.js", "text/javascript; charset=utf-8", b"localStorage"),
    ],
)
def test_the_page_and_what_it_needs_are_served_from_here_alone(
    server: DashboardServer, path: str, media_type: str, part: bytes
) -> None:
    answer = ask(server, path)
    body = answer.read()
    assert (answer.status, answer.headers["content-type"]) == (200, media_type)
    assert part in body
    assert b"http://" not in body and b"https://" not in body
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in answer.headers


def test_the_status_is_null_before_there_is_one_then_the_newest_view(server: DashboardServer, told: Told) -> None:
    assert asked(server, "/api/status")["view"] is None
    told.statuses = [status(0), status(1, failovers=(failover(cause="<script>alert(1)</script>"),))]
    view = wait_until(lambda: asked(server, "/api/status")["view"], "the status")
    assert (view["job"], len(view["points"])) == ("flights", 1)
    assert view["failovers"][0]["cause"] == "<script>alert(1)</script>", "data; the page shows it as text"


def first_of(body: str) -> Any:
    """Return the state that comes with a page."""
    (first,) = re.findall(r'<script type="application/json" id="first-told">(.*?)</script>', body, re.DOTALL)
    return json.loads(first)


def test_a_page_asked_for_at_once_comes_with_the_first_status_all_the_same(told: Told) -> None:
    tell = threading.Event()

    def look(timeout_s: float) -> Sequence[Heard]:
        return [Heard(status(), status().at_ms)] if tell.wait(timeout_s) else ()

    with DashboardServer(Feed(look)) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
        connection.request("GET", "/")
        tell.set()
        assert first_of(connection.getresponse().read().decode())["view"]["job"] == "flights"


def test_a_page_is_not_held_back_for_a_job_that_tells_nothing(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.dashboard.feed.FIRST_WAITED_S", 0.1)
    with DashboardServer(Feed(told.look)) as server:
        assert first_of(ask(server, "/").read().decode())["view"] is None


def test_the_page_comes_with_the_newest_status_and_nothing_in_it_ends_its_element(
    server: DashboardServer, told: Told
) -> None:
    told.statuses = [status(failovers=(failover(cause="</script><script>alert(1)</script>"),))]
    wait_until(lambda: asked(server, "/api/status")["view"], "the status")
    body = ask(server, "/").read().decode()
    assert first_of(body)["view"]["failovers"][0]["cause"].endswith("alert(1)</script>")
    assert body.count("<script") == 5, "the page's own"


def test_the_stream_tells_each_new_status_as_it_comes(server: DashboardServer, told: Told) -> None:
    answer = ask(server, "/api/stream")
    assert answer.headers["content-type"].startswith("text/event-stream")
    messages = lines_of(answer)
    assert next(messages)["view"] is None
    for epoch in (1, 2):
        told.statuses = [status(epoch, epoch=epoch)]
        assert next(m for m in messages if m["view"] and m["view"]["epoch"] == epoch)


def test_what_keeps_it_from_looking_is_told_until_it_can_again(
    server: DashboardServer, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.dashboard.feed.PAUSE_S", 0.01)
    monkeypatch.setattr("penstock.dashboard.feed.HEAR_AGAIN_S", 0.05)
    told.error = BrokerUnreachable("no broker answers")
    wait_until(lambda: asked(server, "/api/status")["trouble"] == "no broker answers", "the trouble")
    told.error = None
    wait_until(lambda: asked(server, "/api/status")["trouble"] == "", "its end")


def test_a_broker_that_is_back_is_given_time_to_tell_what_it_holds(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.dashboard.feed.PAUSE_S", 0.01)
    monkeypatch.setattr("penstock.dashboard.feed.HEAR_AGAIN_S", 3600.0)
    told.error = BrokerUnreachable("no broker answers")
    feed = Feed(told.look)
    try:
        wait_until(lambda: feed.trouble, "the trouble")
        told.error = None
        wait_until(lambda: told.looks > told.failed + 3, "looks that find nothing yet")
        assert feed.trouble
        told.statuses = [status()]
        wait_until(lambda: not feed.trouble, "its end")
    finally:
        feed.close()


def test_what_cannot_be_looked_at_is_not_taken_to_be_gone(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = round(1000 * time.time())
    told.statuses = [replace(status(), at_ms=now_ms)]
    feed = Feed(told.look)
    try:
        wait_until(feed.view, "the status")
        told.error = BrokerUnreachable("no broker answers")
        wait_until(lambda: feed.trouble, "the trouble")
        monkeypatch.setattr("penstock.dashboard.feed._now_ms", lambda: now_ms + 3_600_000)
        view = feed.view()
        assert view is not None and (view.state, view.age_s < 60) == ("running", True)
    finally:
        feed.close()


def test_behind_a_look_that_failed_everything_is_seen_anew(
    server: DashboardServer, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic may be that of the job's next life, whose epochs begin again."""
    monkeypatch.setattr("penstock.dashboard.feed.PAUSE_S", 0.01)
    told.statuses = [status(0, epoch=9), status(1, epoch=9)]
    wait_until(lambda: asked(server, "/api/status")["view"], "the status")
    told.error = TopicMissing("gone")
    wait_until(lambda: asked(server, "/api/status")["trouble"], "the trouble")
    told.error, told.statuses = None, [status(2, epoch=1)]
    wait_until(lambda: asked(server, "/api/status")["view"]["epoch"] == 1, "its next life")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost.evil.example:80"])
def test_a_request_that_names_another_host_is_refused(server: DashboardServer, host: str) -> None:
    answer = ask(server, "/api/status", Host=host)
    assert answer.status == 421
    assert b"flights" not in answer.read()


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:99", "127.0.0.1:1", "[::1]:80", "jobs.example", "10.1.2.3"])
def test_a_request_that_names_this_host_or_an_address_is_answered(server: DashboardServer, host: str) -> None:
    assert ask(server, "/api/status", Host=host).status == 200


def test_only_known_names_are_ours() -> None:
    names = {"localhost"}
    assert is_ours("localhost.", names) and is_ours("[fe80::1]", names)
    assert not is_ours("[localhost", names) and not is_ours("local", names) and not is_ours("[::1].evil", {"x"})


def test_more_streams_than_the_bound_are_refused_and_the_others_go_on(
    server: DashboardServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "STREAMS_MAX", 2)
    first, second = ask(server, "/api/stream"), ask(server, "/api/stream")
    assert next(lines_of(first)) and next(lines_of(second))
    refused = ask(server, "/api/stream")
    assert (refused.status, refused.read()) == (503, b"2 pages are open already: close one")
    first.close()
    wait_until(lambda: ask(server, "/api/stream").status == 200, "room for another")


def test_a_page_that_reads_nothing_loses_its_place(
    server: DashboardServer, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "STREAMS_MAX", 1)
    monkeypatch.setattr(app, "TELL_EVERY_S", 0.001)
    monkeypatch.setattr(updates, "changed", lambda known, parts: parts)
    monkeypatch.setattr(app, "UNREAD_MAX_S", 0.1)
    told.statuses = [status(cause="x" * 1_000_000)]
    wait_until(lambda: asked(server, "/api/status")["view"], "the status")
    with socket.create_connection(("127.0.0.1", server.port)) as unread:
        unread.sendall(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: ask(server, "/api/stream").status == 503, "its place being taken")
        wait_until(lambda: ask(server, "/api/stream").status == 200, "its place for another")


def test_a_page_that_reads_nothing_does_not_hold_up_the_end(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "TELL_EVERY_S", 0.001)
    monkeypatch.setattr(updates, "changed", lambda known, parts: parts)
    told.statuses = [status(cause="x" * 1_000_000)]
    with DashboardServer(Feed(told.look, told.closed.set)) as server:
        wait_until(lambda: asked(server, "/api/status")["view"], "the status")
        unread = socket.create_connection(("127.0.0.1", server.port))
        unread.sendall(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: len(unread.recv(1, socket.MSG_PEEK)), "its first bytes")
        begun = time.monotonic()
    assert time.monotonic() - begun < 8.0
    unread.close()


def test_however_many_pages_are_open_what_they_show_is_made_once(
    server: DashboardServer, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    told.statuses = [status()]
    wait_until(lambda: asked(server, "/api/status")["view"], "the status")
    made = []
    monkeypatch.setattr(updates, "TELL_EVERY_S", 3600.0)
    monkeypatch.setattr(updates, "parts_of", lambda view: made.append(view) or {})
    for _ in range(5):
        assert ask(server, "/api/status").status == 200
    assert len(made) <= 1


def test_nothing_but_reading_is_possible(server: DashboardServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
    connection.request("POST", "/api/status", body=b"{}")
    assert connection.getresponse().status == 405
    assert ask(server, "/../dashboard/app.py").status == 404


def test_closing_ends_open_streams_and_the_look_and_frees_the_port(told: Told) -> None:
    server = DashboardServer(Feed(told.look, told.closed.set))
    messages = lines_of(ask(server, "/api/stream"))
    next(messages)
    server.close()
    assert told.closed.is_set()
    list(messages)  # it ends
    with socket.create_server(("127.0.0.1", server.port)):
        pass


def test_a_taken_port_is_an_error_with_the_way_out_and_closes_the_feed(told: Told) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigurationError, match=rf"port {port}: Address already in use; choose another port, or 0"
        ):
            DashboardServer(Feed(told.look, told.closed.set), port)
    assert told.closed.is_set()


@pytest.mark.parametrize("host", ["192.0.2.1", "no..name", "x" * 64])
def test_a_host_that_is_not_this_machines_is_an_error(told: Told, host: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"cannot listen on {re.escape(host)} port 0"):
        DashboardServer(Feed(told.look), 0, host)


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ],
)
def test_streams_for_pages_of_other_sites_are_refused_and_a_page_stays_reachable(
    server: DashboardServer, headers: dict[str, str]
) -> None:
    refused = [ask(server, "/api/stream", **headers) for _ in range(40)]
    assert {answer.status for answer in refused} == {403}
    own = {"Sec-Fetch-Site": "same-origin", "Origin": f"http://127.0.0.1:{server.port}"}
    assert ask(server, "/", **{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}).status == 200
    assert next(lines_of(ask(server, "/api/stream", **own)))["view"] is None


@pytest.mark.parametrize(("host", "answered"), [("localhost", 200), ("127.0.0.1:9090", 200), ("evil.example", 421)])
def test_metrics_are_given_to_requests_that_name_this_machine(host: str, answered: int) -> None:
    server = MetricsServer(status, 0)
    try:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
        connection.request("GET", "/metrics", headers={"Host": host})
        answer = connection.getresponse()
        assert (answer.status, b"penstock_epoch" in answer.read()) == (answered, answered == 200)
    finally:
        server.close()
