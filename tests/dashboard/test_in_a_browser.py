"""The page in a real browser: what a person sees before, during and after a failover, live and without a reload.

The pictures of the documentation are taken by one of these tests::

    PENSTOCK_DASHBOARD_PICTURES=docs pytest tests/dashboard/test_in_a_browser.py -k picture
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
from PIL import Image

from penstock.broker import EmbeddedBroker
from penstock.client.status_follower import Heard
from penstock.coordinator.options import CoordinatorOptions
from penstock.dashboard.control import Control
from penstock.dashboard.feed import Feed, of_coordinator, of_topic
from penstock.dashboard.server import DashboardServer
from penstock.dashboard.site import AllJobs, OneJob
from penstock.schemas.errors import BrokerUnreachable
from penstock.schemas.status import JobStatus, SubtaskTimes
from penstock.testing import LocalJob
from penstock.transport.kafka import KafkaTransport
from tests.coordinator.jobs import Plan, make_job, run

from .browser import Browser, find_chromium
from .statuses import checkpoint, failover, operator, pending, status, subtask
from .watched import READERS, Delays, chain_job, watched_job

pytestmark = pytest.mark.browser

PICTURES = os.environ.get("PENSTOCK_DASHBOARD_PICTURES")
PICTURE_BYTES_MAX = 150_000
TOKEN = "a token of some length"
REPOSITORY = str(Path(__file__).parents[2])
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
    browser.wait_text("#state", "recovering")
    browser.wait_text("#says", "1 subtask is not there")
    browser.wait_text("#waits", "reader/1")
    browser.wait_text("#tile-subtasks", f"{READERS - 1} of {READERS}")
    shown = browser.wait_text("#failovers tbody", "not over yet")
    assert "region" in shown and "reader/1" in shown and "silent" in shown
    # after
    running.start_subtask("reader", 1)
    browser.wait_text(f"{row} td:nth-child(2)", "running")
    browser.wait_text("#state", "running")
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
        with (
            LocalJob(job, transport, kills_silent=False) as running,
            DashboardServer(of_topic(running.client)) as server,
        ):
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


def test_a_page_shows_nothing_empty_before_there_is_a_status(browser: Browser) -> None:
    tells = threading.Event()
    with DashboardServer(of_coordinator(lambda: Told().status() if tells.is_set() else None)) as server:
        look_at(browser, server)
        browser.wait_text("#notice", "No status of this job has come yet")
        boxes = "[...document.querySelectorAll('main section, #tiles')].filter((box) => box.checkVisibility()).length"
        assert browser.evaluate(boxes) == 0
        tells.set()
        browser.wait_for(f"{boxes} > 5")


def test_a_savepoint_is_taken_from_the_page_with_the_token_and_not_without_it(browser: Browser) -> None:
    with LocalJob(make_job(Plan(), "asked", interval=None)) as running:
        running.wait_for(lambda s: s.state == "running" and s.operators[0].totals.running == 1, 20)
        with DashboardServer(OneJob(of_topic(running.client), running.client, control=Control(TOKEN))) as server:
            look_at(browser, server)
            press(browser, "#control [data-action='savepoint']")
            for token, said in (("wrong", "this is not the token"), (TOKEN, "done: ")):
                browser.evaluate(f"document.querySelector('#ask-token').value = {json.dumps(token)}")
                press(browser, "#ask-do")
                browser.wait_text("#ask-answer", said)
            press(browser, "#ask-close")
            browser.wait_text("#checkpoints tbody", "savepoint")
            refused = [m for m in browser.messages if "401 (Unauthorized)" in str(m)]
            assert len(refused) == 1
            browser.messages.remove(refused[0])


def press(browser: Browser, selector: str) -> None:
    browser.wait_for(f"document.querySelector({json.dumps(selector)})?.checkVisibility()")
    browser.evaluate(f"document.querySelector({json.dumps(selector)}).click()")


# ---- the pictures of the documentation


def test_pictures_of_a_job_that_is_healthy_and_of_one_that_recovers(browser: Browser, tmp_path: Path) -> None:
    """Rates on the edges, latency, a failure's traceback, the history of a subtask, and the configuration, too."""
    options = CoordinatorOptions(status_interval_s=0.5)
    with LocalJob(chain_job("delays-by-carrier"), options=options, kills_silent=False) as running:
        running.wait_for(lambda s: s.checkpoints_completed >= (20 if PICTURES else 2), 90)
        with DashboardServer(AllJobs(running.transport, "penstock")) as server:
            browser.go(server.url)
            press(browser, "#jobs a")
            browser.wait_text("#state", "running")
            rates = "document.querySelectorAll('#graph .edge.flows').length"
            browser.wait_for(f"{rates} >= 3", timeout_s=60)
            assert browser.evaluate("document.querySelectorAll('#graph .on-edge.rate').length") == 2
            assert "ms" in browser.text("#tile-latency")
            settings = "[...document.querySelectorAll('#settings div')].map((row) => row.textContent)"
            assert "checkpoint.interval1.0" in browser.evaluate(settings)
            take(browser, tmp_path, "dashboard-healthy.png")

            press(browser, "#subtasks tr[data-subtask='flights/0'] button")
            browser.wait_text("#history tbody", "event-frame")
            browser.wait_text("#history-says", "Sent to handled, of")
            press(browser, "#history-close")

            Delays.broken.set()
            running.wait_for(lambda s: any(f.took_ms >= 0 for f in s.failovers), 30)
            done = running.service.status().checkpoints_completed  # type: ignore[union-attr]
            running.wait_for(lambda s: s.checkpoints_completed > done, 30)
            running.crash_subtask("delays", 1, restart=False)
            browser.wait_text("#state", "recovering")
            browser.wait_text("#failovers tbody", "not over yet")
            press(browser, "#failovers details:not([hidden]) summary")
            assert "in minutes_of: return int(record" in browser.text("#failovers details[open] pre")
            browser.wait_text("#bars-says", "aborted")
            browser.wait_for("document.querySelector('#graph .missing')?.textContent.includes('1 missing')")
            take(browser, tmp_path, "dashboard-recovering.png", dark=True)
            running.start_subtask("delays", 1)
            browser.wait_text("#state", "running")


def test_a_picture_of_a_job_with_a_thousand_subtasks_of_which_few_are_in_the_page(
    browser: Browser, tmp_path: Path
) -> None:
    begun = time.time()

    def told() -> JobStatus:
        n = round(1_000 * (time.time() - begun))
        rows = tuple(
            subtask(i, attempt=2_000 + i, sent=n + 37 * i, handled=n + 36 * i, host=f"worker-{i // 40}",
                    since_s=n / 1_000, phase="absent" if i in away else "running",
                    step=away.get(i, "waiting for input"))
            for i in range(900)
        )  # fmt: skip
        writers = tuple(subtask(i, attempt=3_000 + i, sent=0, handled=0, received=0) for i in range(100))
        now_ms = round(1_000 * time.time())
        times = tuple(SubtaskTimes("readers", i, 300 + 9 * i, 340 + 11 * i) for i in range(32))
        return status(
            at_ms=now_ms, job="thousand", last_completed=42, last_duration_s=0.7,
            operators=(operator(*rows, name="readers"), operator(*writers, name="writers")),
            checkpoints=tuple(
                checkpoint(i, *times, required=1_000, acked=1_000, took_ms=700, marked_ms=60, state_bytes=48_000_000,
                           triggered_at_ms=now_ms - 10_000 * (44 - i))
                for i in range(36, 43)
            ),
            failovers=(failover(at_ms=round(1_000 * begun), subtasks=("readers/170", "readers/411"), count=2),),
            failovers_region=1,
            settings=json.dumps({"operators": [
                {"name": "readers", "parallelism": 900},
                {"name": "writers", "parallelism": 100, "inputs": [{"upstream": "readers", "partitioning": "keyed"}]},
            ]}),
        )  # fmt: skip

    away = {i: f"to start over for 3 s: attempt {2_000 + i} (waiting for input)" for i in (170, 411)}
    with DashboardServer(of_coordinator(told)) as server:
        look_at(browser, server)
        browser.wait_text("#tile-subtasks", "998 of 1000")
        browser.wait_for("parseInt(document.querySelector('#tile-handled').innerText.replaceAll(',', '')) > 0")
        assert browser.evaluate("document.querySelectorAll('*').length") < 1_500
        browser.wait_for("performance.getEntriesByName('penstock-show').length >= 10")
        shown_ms = browser.evaluate("performance.getEntriesByName('penstock-show').map((e) => e.duration)")
        print("drawing an update of 1,000 subtasks took, in ms:", [round(ms, 1) for ms in shown_ms])
        take(browser, tmp_path, "dashboard-1000.png")


def take(browser: Browser, tmp_path: Path, name: str, *, dark: bool = False) -> None:
    """A picture of the page without its glossary and its machine's paths, into the folder of the pictures if asked."""
    browser.evaluate(
        "document.querySelectorAll('#failovers pre').forEach((text) => "
        f"{{ text.textContent = text.textContent.replaceAll({json.dumps(REPOSITORY + '/')}, '') }})"
    )
    path = (Path(PICTURES) if PICTURES else tmp_path) / name
    above = "document.querySelector('section[aria-labelledby=settings-title]').getBoundingClientRect().top + scrollY"
    try:
        browser.screenshot(path, dark=dark, height=int(browser.evaluate(above)))
    finally:
        browser.call("Emulation.setEmulatedMedia", features=[])
    with Image.open(path) as taken:
        taken.convert("RGB").quantize(192, Image.Quantize.MAXCOVERAGE, kmeans=3).save(path, optimize=True)
    assert 10_000 < path.stat().st_size < PICTURE_BYTES_MAX


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
        browser.wait_text("#state", "recovering")
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
