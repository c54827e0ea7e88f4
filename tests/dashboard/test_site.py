"""A dashboard of every job on a broker: its list, each job's page, its logs, and what may be asked of a job."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock.client.job_client import JobClient
from penstock.dashboard import app, control, site, subtask_log
from penstock.dashboard.control import Control
from penstock.dashboard.feed import of_topic
from penstock.dashboard.server import DashboardServer
from penstock.dashboard.site import AllJobs, OneJob
from penstock.dashboard.subtask_log import SubtaskLog
from penstock.schemas.errors import BrokerUnreachable, ConfigurationError
from penstock.testing import LocalJob
from penstock.transport.memory import MemoryBroker, MemoryTransport
from tests.coordinator.jobs import Plan, make_job, wait_until

from .test_server import ask, first_of

TOKEN = "a token of some length"
GIVEN = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}


@pytest.fixture
def plan() -> Plan:
    return Plan()


@pytest.fixture
def running(plan: Plan) -> Iterator[LocalJob]:
    with LocalJob(make_job(plan, "flights", parallelism=2, interval=None)) as job:  # its logs stay whole
        plan.wait_gateways(0, 1)
        yield job


@pytest.fixture
def server(running: LocalJob) -> Iterator[DashboardServer]:
    with DashboardServer(AllJobs(running.transport, "penstock", Control(TOKEN))) as serving:
        yield serving


def told(server: DashboardServer, path: str) -> Any:
    answer = ask(server, path)
    assert answer.status == 200, answer.read()
    return json.loads(answer.read())


def post(server: DashboardServer, path: str, body: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", path, body=body, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_the_list_has_each_job_as_the_status_tells_it(server: DashboardServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.dashboard.job_list.LOOK_EVERY_S", 0.01)
    page = ask(server, "/").read().decode()
    assert '"job": "flights"' in page, "the list comes with its page"
    wait_until(lambda: told(server, "/api/jobs")["jobs"][0]["state"] == "running", "its subtasks")
    listed = told(server, "/api/jobs")
    (row,) = listed["jobs"]
    assert listed["trouble"] == ""
    assert (row["job"], row["running"], row["subtasks"]) == ("flights", 2, 2)
    assert "<title>Penstock: jobs</title>" in ask(server, "/").read().decode()


def test_a_list_that_cannot_be_looked_up_says_why_and_keeps_the_last_one(
    running: LocalJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.dashboard.job_list.LOOK_EVERY_S", 0.01)
    shown = AllJobs(running.transport, "penstock")
    jobs = shown.jobs
    assert jobs is not None
    try:
        wait_until(lambda: jobs.told()["jobs"], "the list")

        def away(*_: object) -> None:
            raise BrokerUnreachable("no broker answers")

        monkeypatch.setattr("penstock.dashboard.job_list.jobs_on", away)
        wait_until(lambda: jobs.told()["trouble"] == "no broker answers", "the trouble")
        assert jobs.told()["jobs"][0]["job"] == "flights"
    finally:
        shown.close()


def test_each_job_has_a_page_and_what_does_not_exist_is_not_found(server: DashboardServer) -> None:
    assert ask(server, "/jobs/flights/").status == 200
    assert ask(server, "/jobs/flights").status == 307
    assert first_of(ask(server, "/jobs/flights/").read().decode())["view"]["job"] == "flights"
    missing = ask(server, "/jobs/nobody/")
    assert (missing.status, "there is no job 'nobody'" in missing.read().decode()) == (404, True)
    assert ask(server, "/jobs/a%20b/").status == 404
    assert ask(server, "/api/status").status == 404


def test_more_jobs_than_may_be_looked_at_are_refused_until_one_is_not_looked_at_any_more(
    running: LocalJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = AllJobs(running.transport, "penstock")
    monkeypatch.setattr(site, "JOBS_OPEN_MAX", 1)
    with LocalJob(make_job(Plan(), "other"), running.transport), DashboardServer(shown) as serving:
        first = shown.job("flights")
        assert ask(serving, "/jobs/other/").status == 503
        monkeypatch.setattr(site, "CLOSE_AFTER_S", -1.0)
        assert ask(serving, "/jobs/other/").status == 200
        assert first.feed.closing


# ---- the log of a subtask


def test_the_history_of_a_subtask_is_paged_and_says_how_long_its_events_took(
    server: DashboardServer, running: LocalJob, plan: Plan
) -> None:
    for n in range(150):
        plan.gateways[1].send_event(b"%d" % n)
        plan.wait_handled(b"%d" % n, 1)
    running.wait_for(lambda s: s.operators[0].totals.handled >= 150, 20)
    newest = told(server, "/jobs/flights/api/subtask?operator=op&subtask=1")
    frames = [row for row in newest["rows"] if row["kind"] == "event-frame"]
    assert newest["subtask"] == "op/1" and len(frames) == 100
    assert frames[0]["what"] == "149" and frames == sorted(frames, key=lambda row: -row["offset"])
    assert 0 <= newest["latency"]["p50_ms"] <= newest["latency"]["p99_ms"] < 20_000
    older = told(server, f"/jobs/flights/api/subtask?operator=op&subtask=1&before={newest['older']}")
    offsets = {row["offset"] for row in older["rows"] if row["topic"] == "events"}
    assert max(offsets) == newest["older"] - 1
    assert any(row["kind"] == "hello" for row in older["rows"]), "what the acks say in that time"


def test_a_failure_is_in_the_history_with_the_places_it_came_through(
    server: DashboardServer, running: LocalJob, plan: Plan
) -> None:
    plan.poison[b"bad"] = 1
    plan.gateways[0].send_event(b"bad")
    running.wait_for(lambda s: bool(s.failovers) and s.failovers[-1].took_ms >= 0, 20)
    rows = told(server, "/jobs/flights/api/subtask?operator=op&subtask=0")["rows"]
    (failed,) = [row for row in rows if row["kind"] == "failed"]
    assert "Boom" in failed["what"] and "\n  " in failed["what"]
    view = wait_until(lambda: told(server, "/jobs/flights/api/status")["view"], "the status")
    wait_until(lambda: told(server, "/jobs/flights/api/status")["view"]["failovers"], "the failover")
    view = told(server, "/jobs/flights/api/status")["view"]
    assert "jobs.py" in view["failovers"][0]["cause"]


def test_a_page_of_history_is_bounded_in_bytes_and_says_what_it_leaves_out(
    server: DashboardServer, running: LocalJob, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subtask_log, "ACKS_SHOWN_MAX", 1)
    monkeypatch.setattr(subtask_log, "PAGE_CHARS_MAX", 1_000)
    for n in range(60):
        event = b"%d " % n + b"x" * 20_000
        plan.gateways[1].send_event(event)
        plan.wait_handled(event, 1)
    page = told(server, "/jobs/flights/api/subtask?operator=op&subtask=1")
    assert len([row for row in page["rows"] if row["topic"] == "events"]) >= 50
    assert len([row for row in page["rows"] if row["topic"] == "acks"]) == 1
    assert sum(len(row["what"]) for row in page["rows"]) < 1_000 + 61 * subtask_log.SHORT_CHARS
    assert any("are left out" in note for note in page["notes"])
    assert any("long texts are cut" in note for note in page["notes"])


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("operator=op", 400),
        ("operator=op&subtask=x", 400),
        ("operator=op&subtask=7", 404),
        ("operator=<b>&subtask=0", 404),
        ("operator=op&subtask=0&before=-5", 200),
        ("operator=op&subtask=0&before=999999999", 200),
    ],
)
def test_what_a_history_is_asked_for_may_be_anything(server: DashboardServer, query: str, code: int) -> None:
    answer = ask(server, f"/jobs/flights/api/subtask?{query}")
    assert (answer.status, answer.headers["content-type"].startswith("text/html")) == (code, False)


def test_only_so_many_requests_read_logs_at_a_time(server: DashboardServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "LOOKS_MAX", 0)
    assert ask(server, "/jobs/flights/api/subtask?operator=op&subtask=0").status == 503


class Emits(penstock.Subtask):
    def open(self, context: Any) -> None:
        self.context = context

    def poll(self) -> Any:
        self.context.emit({"digit": 1})
        return penstock.Idle(0.01)


class Takes(penstock.Subtask):
    def process(self, record: Any, input: str) -> None:
        pass


def test_the_edges_between_operators_and_what_they_carry_are_told() -> None:
    job = penstock.Job("chain")
    reading = job.operator("read", subtask=Emits, parallelism=1, output_codec="json")
    job.operator("sum", subtask=Takes, parallelism=2, inputs=[reading.keyed_by("digit")])
    with LocalJob(job) as running:
        log = SubtaskLog(running.transport, running.client.topics)
        with DashboardServer(OneJob(of_topic(running.client), running.client, log)) as serving:
            view = wait_until(lambda: told(serving, "/api/status")["view"], "the status")
            assert view["edges"] == [{"sender": "read", "receiver": "sum", "partitioning": "keyed"}]
            assert ["operator sum.parallelism", "2"] in view["settings"]
            wait_until(lambda: told(serving, "/api/frames").get("read/sum", 0) > 3, "frames")


# ---- control


def test_who_has_the_token_can_take_a_savepoint_and_stop_the_job(server: DashboardServer, running: LocalJob) -> None:
    code, said = post(server, "/jobs/flights/api/control", '{"action": "savepoint"}', **GIVEN)
    assert code == 200 and json.loads(said)["accepted"], said
    code, said = post(server, "/jobs/flights/api/control", '{"action": "stop"}', **GIVEN)
    assert code == 200 and json.loads(said)["accepted"], said
    assert running.wait(20).ending == "stopped"
    code, said = post(server, "/jobs/flights/api/control", '{"action": "savepoint"}', **GIVEN)
    assert (code, "does not run" in said) == (404, True)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 401),
        ({**GIVEN, "Authorization": TOKEN}, 401),
        ({**GIVEN, "Authorization": "Bearer wrong"}, 401),
        ({**GIVEN, "Authorization": f"Basic {TOKEN}"}, 401),
        ({**GIVEN, "Origin": "http://evil.example"}, 403),
        ({**GIVEN, "Sec-Fetch-Site": "cross-site"}, 403),
        ({**GIVEN, "Host": "evil.example"}, 421),
        ({**GIVEN, "Content-Type": "text/plain"}, 400),
        ({**GIVEN, "Content-Type": "application/x-www-form-urlencoded"}, 400),
    ],
)
def test_who_has_no_token_or_asks_from_elsewhere_changes_nothing(
    server: DashboardServer, running: LocalJob, headers: dict[str, str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "WRONG_TOKEN_PAUSE_S", 0.0)
    monkeypatch.setattr(Control, "ask", lambda *_: pytest.fail("it was asked"))
    assert post(server, "/jobs/flights/api/control", '{"action": "stop"}', **headers)[0] == code


@pytest.mark.parametrize("body", ["", "[]", "{", '{"action": 7}', '{"action": "purge"}', "[" * 5_000, "{}" * 5_000])
def test_a_body_that_asks_for_nothing_known_is_refused(server: DashboardServer, body: str) -> None:
    assert post(server, "/jobs/flights/api/control", body, **GIVEN)[0] == 400


def test_asking_is_not_possible_by_get_nor_where_it_is_not_allowed(server: DashboardServer, running: LocalJob) -> None:
    assert ask(server, "/jobs/flights/api/control", **GIVEN).status == 405
    with DashboardServer(AllJobs(running.transport, "penstock")) as only_shows:
        code, said = post(only_shows, "/jobs/flights/api/control", '{"action": "stop"}', **GIVEN)
        assert (code, "--allow-control" in said) == (403, True)


def test_a_job_is_asked_one_thing_at_a_time(running: LocalJob) -> None:
    allowed = Control(TOKEN)

    def again(client: JobClient) -> Any:
        with pytest.raises(control.Busy):
            allowed.ask(client, "savepoint")
        return client.savepoint()

    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(control.ACTIONS, "stop", again)
        assert allowed.ask(running.client, "stop").accepted
    assert allowed.ask(running.client, "savepoint").accepted


def test_a_token_that_could_be_guessed_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="has 5 characters: at least 16") as refused:
        Control("short")
    assert "short" not in str(refused.value)
    assert not Control(TOKEN).admits("Bearer \udcff")


def test_a_dashboard_of_a_broker_without_jobs_says_so() -> None:
    with DashboardServer(AllJobs(MemoryTransport(MemoryBroker()), "penstock")) as serving:
        wait_until(lambda: told(serving, "/api/jobs")["jobs"] == [], "the empty list")
