"""The page in a real browser: what a person sees before, during and after a failover, live and without a reload.

A picture for the documentation, taken while a failover lasts, of a job on a real Kafka::

    PENSTOCK_DASHBOARD_PICTURE=docs/dashboard.png pytest tests/dashboard/test_in_a_browser.py -k over_kafka
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import EmbeddedBroker
from penstock.client.status_follower import Heard
from penstock.coordinator.options import CoordinatorOptions
from penstock.dashboard.feed import Feed, of_coordinator, of_topic
from penstock.dashboard.server import DashboardServer
from penstock.schemas.errors import BrokerUnreachable
from penstock.schemas.status import JobStatus
from penstock.testing import LocalJob
from penstock.transport.kafka import KafkaTransport
from tests.coordinator.jobs import Plan, make_job, run

from .browser import Browser, find_chromium
from .statuses import failover, operator, pending, status, subtask
from .watched import READERS, watched_job

pytestmark = pytest.mark.browser

PICTURE = os.environ.get("PENSTOCK_DASHBOARD_PICTURE")
ROW = "#subtasks tr[data-subtask='{}']"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    find_chromium()
    with Browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """On an empty page; afterwards nothing went wrong in the one that was looked at."""
    chromium.go("about:blank")
    chromium.messages.clear()
    yield chromium
    expected = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET")
    wrong = [m for m in chromium.messages if not any(text in str(m) for text in expected)]
    assert not wrong, wrong


def look_at(browser: Browser, server: DashboardServer) -> None:
    """Opens the page, and marks it: a reload would lose the mark."""
    browser.go(server.url)
    browser.evaluate("window.marked = true")


def watch_a_failover(browser: Browser, running: LocalJob, name: str) -> None:
    """Everything there is to see of one, from before it until behind it."""
    row = ROW.format("reader/1")
    # before
    browser.wait_text("#state", "running")
    assert browser.text("#job") == name
    browser.wait_text("#tile-subtasks", f"{READERS} of {READERS}")
    browser.wait_for("parseInt(document.querySelector('#tile-handled').innerText) > 0")
    browser.wait_text("#checkpoints tbody", "completed")
    browser.wait_for(f"document.querySelectorAll('#bars .bar').length === {READERS + 1}")
    browser.wait_for("!!document.querySelector('#bars .snapshot') && !!document.querySelector('#bars .upload')")
    assert "nothing: every subtask is there" in browser.wait_text("#waits", "nothing")
    assert "none since" in browser.text("#failovers-none")
    assert browser.text(f"{row} td:nth-child(2)") == "running"
    # during: it is given up, and nobody starts it again yet
    running.crash_subtask("reader", 1, restart=False)
    browser.wait_text(f"{row} td:nth-child(2)", "absent")
    browser.wait_text("#waits", "reader/1")
    browser.wait_text("#tile-subtasks", f"{READERS - 1} of {READERS}")
    shown = browser.wait_text("#failovers tbody", "not over yet")
    assert "region" in shown and "reader/1" in shown and "silent" in shown
    if PICTURE is not None:
        browser.wait_text("#bars-says", "aborted")
        above = "document.querySelector('.words').getBoundingClientRect().top"
        browser.screenshot(Path(PICTURE), height=int(browser.evaluate(above)))
    # after
    running.start_subtask("reader", 1)
    browser.wait_text(f"{row} td:nth-child(2)", "running")
    browser.wait_for("!document.querySelector('#failovers tbody').innerText.includes('not over yet')")
    browser.wait_text("#waits", "nothing")
    assert browser.text("#tile-failovers") == "1"
    assert browser.evaluate("window.marked"), "the page was never loaded anew"


@pytest.mark.smoke
def test_a_failover_is_seen_live_from_its_beginning_to_its_end(browser: Browser, tmp_path: Path) -> None:
    job = watched_job("flights", state_storage=str(tmp_path / "states"))
    options = CoordinatorOptions(status_interval_s=0.2)
    with LocalJob(job, options=options, kills_silent=False) as running:
        assert running.service is not None
        with DashboardServer(of_coordinator(running.service.status)) as server:
            look_at(browser, server)
            watch_a_failover(browser, running, "flights")
            running.client.stop()
            browser.wait_text("#notice", "The job has ended: stopped")
            browser.wait_text("#connection", "the job has ended")


@pytest.mark.kafka
def test_a_failover_over_kafka_is_seen_by_somebody_who_has_only_the_topic(
    browser: Browser, kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    transport = KafkaTransport(kafka_broker.bootstrap)
    job = watched_job("flights-by-carrier", state_storage=str(tmp_path / "states"))
    try:
        with LocalJob(job, transport, kills_silent=False) as running:
            if PICTURE is not None:
                running.wait_for(lambda s: s.checkpoints_completed >= 25, 120)
            with DashboardServer(of_topic(running.client)) as server:
                look_at(browser, server)
                watch_a_failover(browser, running, "flights-by-carrier")
                running.crash_coordinator()
                notice = browser.wait_text("#notice", "Gone since")
                assert "What you see is from then" in notice
                assert "the next coordinator" in browser.text("#waits")
                running.replace_coordinator()
                browser.wait_text("#state", "running")
                assert browser.evaluate("document.querySelector('#notice').hidden")
    finally:
        transport.close()


def test_a_checkpoint_that_hangs_shows_where_and_its_end_when_it_comes(browser: Browser) -> None:
    plan, held = Plan(), []
    plan.does["checkpoint_coordinator"] = lambda _, __, result: held.append(result)
    with run(make_job(plan, "hangs", parallelism=2)) as running, DashboardServer(of_topic(running.client)) as server:
        look_at(browser, server)
        assert "to complete its checkpoint future" in browser.wait_text("#waits", "the coordinator of op")
        browser.wait_for("!!document.querySelector('#bars .cut.growing')")
        assert "under way" in browser.text("#bars-says")
        browser.wait_text("#bars .bar:nth-child(2)", "has no marker yet")
        del plan.does["checkpoint_coordinator"]
        held[0].complete(b"0")
        browser.wait_text("#bars .bar:nth-child(2)", "safe after")
        browser.wait_text("#waits", "nothing")


class Told:
    """A job that tells what a test says, as of now."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes

    def status(self) -> JobStatus:
        return status(at_ms=round(1000 * time.time()), **self.changes)


def test_text_of_the_job_is_shown_as_text_and_never_run(browser: Browser) -> None:
    bad = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"
    told = Told(
        job=bad, cause=bad, dropped={bad: 1}, failovers=(failover(cause=bad, subtasks=(bad,)),),
        pending=(pending(waits_for=bad, age_s=9.0),),
        operators=(operator(subtask(step=bad, gateway=bad), name=bad, shown=json.dumps({bad: bad})),),
    )  # fmt: skip
    with DashboardServer(of_coordinator(told.status)) as server:
        look_at(browser, server)
        browser.wait_text("#job", bad)
        for selector in ("#notice", "#waits", "#failovers tbody", "#subtasks tbody", "#shown"):
            assert bad in browser.text(selector), selector
        assert browser.evaluate("window.hacked === undefined && document.images.length === 0")


def test_what_an_older_coordinator_does_not_tell_is_not_said_to_be_nothing(browser: Browser) -> None:
    told = Told(failovers_region=3, last_completed=17)
    with DashboardServer(of_coordinator(told.status)) as server:
        look_at(browser, server)
        browser.wait_text("#failovers-none", "3 since this coordinator started, of which it tells no more")
        assert browser.text("#bars-says") == "Of no checkpoint the steps have been told yet."


def test_a_broker_that_does_not_answer_is_said_and_what_is_shown_is_not_live(browser: Browser) -> None:
    away: list[Exception] = []

    def look(_: float) -> list[Heard]:
        threading.Event().wait(0.05)
        if away:
            raise away[0]
        return [Heard(told := Told().status(), told.at_ms)]

    with DashboardServer(Feed(look)) as server:
        look_at(browser, server)
        browser.wait_text("#connection", "live")
        away.append(BrokerUnreachable("no broker answers"))
        assert "The job cannot be looked at: no broker answers" in browser.wait_text("#notice", "cannot be looked at")
        browser.wait_text("#connection", "not live: from")
        assert browser.text("#state") == "running"
        away.clear()
        browser.wait_text("#connection", "live, told")


def test_a_lost_connection_is_said_at_once_and_a_new_server_is_found_again(browser: Browser) -> None:
    told = Told()
    with DashboardServer(of_coordinator(told.status)) as server:
        look_at(browser, server)
        browser.wait_text("#state", "running")
        port = server.port
    browser.wait_text("#notice", "No connection to the dashboard. What you see is from")
    assert browser.text("#connection") == "connection lost"
    assert browser.text("#job") == "flights", "what was seen last stays"
    told.changes["epoch"] = 7
    with DashboardServer(of_coordinator(told.status), port):
        browser.wait_text("#connection", "live")
        browser.wait_text("#tile-subtasks-more", "epoch 7")
        assert browser.evaluate("window.marked && document.querySelector('#notice').hidden")


def test_a_checkpoint_can_be_chosen_with_the_keyboard_and_given_up_again(browser: Browser) -> None:
    plan = Plan()
    with run(make_job(plan, "chosen", interval=0.3)) as running, DashboardServer(of_topic(running.client)) as server:
        look_at(browser, server)
        browser.wait_for("document.querySelectorAll('#checkpoints button:not([hidden])').length >= 3")
        second = "document.querySelectorAll('#checkpoints button:not([hidden])')[1]"
        chosen = browser.evaluate(f"(button => (button.focus(), button.dataset.id))({second})")
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        browser.call("Input.dispatchKeyEvent", type="keyDown", **key)
        browser.call("Input.dispatchKeyEvent", type="keyUp", **key)
        browser.wait_text("#bars-says", f"Checkpoint {chosen}, completed")
        assert "(chosen;" in browser.text("#bars-says")
        browser.evaluate(f"document.querySelector(\"#checkpoints button[data-id='{chosen}']\").click()")
        browser.wait_for("!document.querySelector('#bars-says').innerText.includes('(chosen')")


def test_of_a_thousand_subtasks_every_one_can_be_reached_and_few_rows_are_in_the_page(browser: Browser) -> None:
    rows = (subtask(i, phase="absent" if i == 700 else "running", since_s=0.0) for i in range(1_000))
    told = Told(operators=(operator(*rows), operator(subtask(0), parallelism=10_000, name="other")))
    with DashboardServer(of_coordinator(told.status)) as server:
        look_at(browser, server)
        browser.wait_text("#subtasks-more", "9,999 more of other")
        assert browser.evaluate("document.querySelectorAll('#subtasks tbody tr').length") < 60
        browser.evaluate("document.querySelector('#subtasks-scroll').scrollTop = 1e6")
        browser.wait_text("#subtasks tbody", "reader/999")
        browser.evaluate(
            "(select => (select.value = 'trouble', select.dispatchEvent(new Event('change'))))"
            "(document.querySelector('#subtasks-which'))"
        )
        assert "reader/700" in browser.wait_text("#subtasks-more", "1 of 1,001 shown") + browser.text("#subtasks tbody")


@pytest.mark.parametrize("dark", [False, True])
def test_texts_stand_out_from_what_is_behind_them(browser: Browser, dark: bool) -> None:
    """WCAG's contrast of at least 4.5 for every text, in both colour schemes."""
    told = Told(
        failovers=(failover(), failover(took_ms=10)), pending=(pending(),),
        operators=(operator(subtask(), subtask(1, phase="absent"), subtask(2, gateway="closed for 6")),),
    )  # fmt: skip
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.call("Emulation.setEmulatedMedia", features=[scheme])
    with DashboardServer(of_coordinator(told.status)) as server:
        look_at(browser, server)
        browser.wait_text("#state", "running")
        assert browser.evaluate(CONTRASTS) == []


CONTRASTS = """
(() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgb = (color) => {
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((value) => value / 255);
  };
  const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const light = (color) => {
    const [r, g, b] = rgb(color).map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if (!color.endsWith(', 0)') && color !== 'transparent') return color;
    }
    return 'white';
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const bad = [];
  while (walker.nextNode()) {
    const text = walker.currentNode.data.trim(), element = walker.currentNode.parentElement;
    if (!text || !element.checkVisibility() || element.closest('noscript')) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(behind(element))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5) bad.push(`${text} ${contrast.toFixed(2)}`);
  }
  return bad;
})()
"""
