"""Every command that looks at a job or asks it something, against a real broker."""

from __future__ import annotations

import threading
import urllib.request
from pathlib import Path

import pytest

from penstock.broker import EmbeddedBroker
from penstock.cli.exits import Exit
from penstock.cli.start_options import restore_options
from penstock.coordinator.metrics import MetricsServer
from penstock.schemas.settings import Restore
from penstock.schemas.topics import TopicNames, TopicSpec
from penstock.testing import LocalJob
from penstock.transport.kafka import KafkaTransport
from penstock.transport.ports import Partition

from .conftest import Cli, waiting_job

pytestmark = pytest.mark.kafka


@pytest.fixture
def on_broker(cli: Cli, kafka_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("PENSTOCK_BROKER", kafka_broker.bootstrap)
    return cli


def test_jobs_lists_what_runs_and_what_has_run(on_broker: Cli, running_job: LocalJob) -> None:
    name = running_job.job.name
    listed = {entry["job"]: entry["status"] for entry in on_broker("jobs", "--json").json}
    assert listed[name]["state"] == "running"
    assert f"{name} " in on_broker("jobs").out


def test_a_savepoint_is_given_up_from_any_terminal(on_broker: Cli, running_job: LocalJob) -> None:
    name = running_job.job.name
    savepoint = on_broker("savepoint", name, "--json").json["checkpoint_id"]
    running_job.wait_for(lambda status: status.last_completed > savepoint, 30)
    assert on_broker("discard", name, savepoint).out == f"checkpoint {savepoint} discarded\n"
    assert savepoint not in {row["checkpoint_id"] for row in on_broker("checkpoints", name, "--json").json}
    again = on_broker("discard", name, savepoint)
    assert again.code == Exit.FAILED
    assert f"refused: there is no checkpoint {savepoint}; kept are: " in again.err


def test_jobs_tells_what_each_takes_of_the_broker(on_broker: Cli, running_job: LocalJob) -> None:
    name = running_job.job.name
    (entry,) = [entry for entry in on_broker("jobs", "--json").json if entry["job"] == name]
    assert (entry["prefix"], entry["state"]) == ("penstock", "running") and entry["epoch"] > 0
    assert entry["last_completed"] >= 1
    cost = entry["cost"]
    assert (cost["topics"], cost["partitions"]) == (4, 5)
    assert cost["records"] > 10
    assert cost["bytes"] > 1_000
    out = on_broker("jobs").out
    assert "on disk" in out and " kB" in out


def test_what_is_left_of_a_job_is_listed_and_can_be_purged(on_broker: Cli, transport: KafkaTransport) -> None:
    topics = TopicNames("half", "purged")
    transport.create_topics([TopicSpec(topics.events("reader"), 3), TopicSpec(topics.acks, 1)])
    transport.create_topics([TopicSpec("half.alone.acks", 1), TopicSpec("half.not-ours", 1)])
    found = {entry["job"]: entry for entry in on_broker("jobs", "--all-prefixes", "--json").json}
    assert found["purged"]["state"] == "incomplete"
    assert found["purged"]["cost"] == {"topics": 2, "partitions": 4, "records": 0, "bytes": 0}
    assert "alone" not in found
    out = on_broker("jobs", "--prefix", "half").out
    assert "penstock purge purged --prefix half" in out and "alone" in out
    assert "purged" not in on_broker("jobs").out
    assert on_broker("purge", "purged", "--prefix", "half", "--yes").code == 0
    assert transport.list_topics("half.") == ["half.alone.acks", "half.not-ours"]
    transport.delete_topics(["half.alone.acks", "half.not-ours"])


def test_jobs_under_a_prefix_that_nobody_uses_is_an_empty_list(on_broker: Cli) -> None:
    assert on_broker("jobs", "--prefix", "nobody", "--json").json == []
    assert "no job under prefix 'nobody'" in on_broker("jobs", "--prefix", "nobody").out


def test_status_names_subtasks_and_what_a_checkpoint_waits_for(on_broker: Cli, running_job: LocalJob) -> None:
    ran = on_broker("status", running_job.job.name, "--json")
    assert (ran.code, ran.json["gone"]) == (0, False)
    assert [s["phase"] for s in ran.json["operators"][0]["subtasks"]] == ["running", "running"]
    shown = on_broker("status", running_job.job.name)
    assert "waiters/0" in shown.out
    assert "waiters/1" in shown.out
    assert "checkpoint" in shown.out.splitlines()[-1]


def test_watching_a_job_ends_with_it(on_broker: Cli, running_job: LocalJob) -> None:
    timer = threading.Timer(1.0, running_job.client.stop)
    timer.start()
    ran = on_broker("status", running_job.job.name, "--watch")
    timer.join()
    assert ran.code == 0
    assert "stopped" in ran.out.splitlines()[-1]


def test_checkpoints_lists_those_that_can_be_restored(on_broker: Cli, running_job: LocalJob) -> None:
    savepoint = on_broker("savepoint", running_job.job.name, "--json").json
    assert savepoint["accepted"]
    rows = on_broker("checkpoints", running_job.job.name, "--json").json
    kinds = {row["checkpoint_id"]: row["savepoint"] for row in rows}
    assert kinds[savepoint["checkpoint_id"]] is True
    assert sum(row["last_completed"] for row in rows) == 1
    assert "savepoint" in on_broker("checkpoints", running_job.job.name).out


def test_request_prints_what_the_coordinator_answers(on_broker: Cli, running_job: LocalJob) -> None:
    name = running_job.job.name
    ran = on_broker("request", name, "waiters", '{"how": "many"}')
    assert (ran.code, ran.out) == (0, '{"asked":{"how":"many"}}\n')
    refused = on_broker("request", name, "waiters", '"refuse"')
    assert (refused.code, refused.out) == (Exit.FAILED, "")
    assert "ValueError: not this one" in refused.err
    unknown = on_broker("request", name, "nobody", "1", "--json")
    assert (unknown.code, unknown.json["accepted"]) == (Exit.FAILED, False)
    assert "no operator 'nobody' with a coordinator; there is: waiters" in unknown.err


def test_stop_with_a_savepoint_then_purge(on_broker: Cli, running_job: LocalJob, transport: KafkaTransport) -> None:
    name = running_job.job.name
    refused = on_broker("purge", name, "--yes")
    assert refused.code == Exit.FAILED
    assert f"penstock stop {name}" in refused.err
    stopped = on_broker("stop", name, "--savepoint", "--json")
    assert (stopped.code, stopped.json["accepted"]) == (0, True)
    assert running_job.wait(30).ending.value == "stopped"
    again = on_broker("stop", name)
    assert again.code == Exit.FAILED
    assert "is stopped" in again.err
    assert on_broker("status", name, "--json").json["state"] == "stopped"
    unsure = on_broker("purge", name)
    assert unsure.code == Exit.USAGE
    assert "--yes" in unsure.err
    running_job.close()
    purged = on_broker("purge", name, "--yes", "--json")
    assert len(purged.json["deleted"]) == 4
    assert transport.list_topics(f"penstock.{name}.") == []


@pytest.mark.damages_logs("somebody deletes the acks that checkpoints need")
def test_checkpoints_whose_log_somebody_has_cut_are_told(
    on_broker: Cli, running_job: LocalJob, transport: KafkaTransport
) -> None:
    name = running_job.job.name
    savepoint = on_broker("savepoint", name, "--json").json["checkpoint_id"]
    running_job.wait_for(lambda status: status.last_completed > savepoint, 30)
    assert [row["lost"] for row in on_broker("checkpoints", name, "--json").json] == [None] * 3
    running_job.client.stop()
    running_job.close()
    acks = Partition(running_job.settings.topics.acks, 0)
    end = transport.offsets([acks])[acks].end
    transport.truncate({acks: end})
    rows = {row["checkpoint_id"]: row["lost"] for row in on_broker("checkpoints", name, "--json").json}
    assert rows.pop(savepoint) is None  # it holds its inbox itself
    assert all("acks from offset " in lost and f"holds offsets {end} to {end}" in lost for lost in rows.values())
    last = max(rows)
    assert f"checkpoint {last} cannot be restored: it needs {acks.topic} from" in on_broker("checkpoints", name).out


@pytest.mark.parametrize("command", ["status", "checkpoints", "stop", "savepoint", "purge"])
def test_a_job_that_does_not_exist_is_told_with_those_that_do(
    on_broker: Cli, running_job: LocalJob, command: str
) -> None:
    ran = on_broker(command, "no-such-job")
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert "there is no job 'no-such-job'" in ran.err
    assert running_job.job.name in ran.err


def test_doctor_looks_at_machine_broker_and_topics(on_broker: Cli, running_job: LocalJob) -> None:
    ran = on_broker("doctor", running_job.job.name, "--json")
    findings = {f["check"]: f for f in ran.json}
    root = f"penstock.{running_job.job.name}"
    assert ran.code == 0
    assert {"python", "java", "pyspark", "broker", "broker version", "message.max.bytes"} <= findings.keys()
    assert "LogAppendTime" in findings[f"{root}.acks"]["found"]
    assert "2 partition(s)" in findings[f"{root}.waiters.events"]["found"]
    assert "nothing is missing" in on_broker("doctor").out


def test_a_job_runs_on_a_topic_with_large_segments_and_doctor_says_how_to_change_them(
    on_broker: Cli, transport: KafkaTransport
) -> None:
    topics = TopicNames("penstock", "large-segments")
    keeps = {"retention.ms": "-1", "retention.bytes": "-1", "message.timestamp.type": "LogAppendTime"}
    transport.create_topics([TopicSpec(topics.acks, 1, keeps)])
    with LocalJob(waiting_job("large-segments"), transport) as running:
        running.wait_for(lambda status: status.checkpoints_completed >= 1, 30)
        ran = on_broker("doctor", "large-segments", "--json")
    found = next(f for f in ran.json if f["check"] == topics.acks)
    assert (ran.code, found["state"]) == (0, "advice")
    assert "segment.bytes is 1073741824 and should be 67108864" in found["found"]
    assert f"--entity-name {topics.acks} --add-config segment.bytes=67108864,segment.ms=3600000" in found["remedy"]


@pytest.mark.damages_logs("a topic deleted")
def test_doctor_finds_a_topic_that_is_gone_and_a_job_that_never_was(
    on_broker: Cli, running_job: LocalJob, transport: KafkaTransport
) -> None:
    name = running_job.job.name
    running_job.client.stop()
    running_job.close()
    transport.delete_topics([f"penstock.{name}.acks"])
    ran = on_broker("doctor", name)
    assert ran.code == Exit.FAILED
    assert f"missing: penstock.{name}.acks" in ran.out
    assert on_broker("doctor", "never-was").code == Exit.FAILED


def test_doctor_says_what_is_wrong_with_a_broker_that_does_not_answer(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.doctor.CHECK_TIMEOUT_S", 0.3)
    ran = cli("doctor", "--broker", "127.0.0.1:1")
    assert ran.code == Exit.FAILED
    assert "no Kafka broker at 127.0.0.1:1 answered" in ran.out


JOB_FILE = """
import penstock
job = penstock.Job("overwritten")
job.operator("waiters", coordinator=penstock.OperatorCoordinator, subtask=penstock.Subtask, parallelism=2)
"""


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    file = tmp_path / "alone_for_cli.py"
    file.write_text(JOB_FILE)
    return file


def test_a_coordinator_alone_ends_with_code_4_when_another_takes_over(
    on_broker: Cli, job_file: Path, transport: KafkaTransport
) -> None:
    name = "coordinator-alone"
    begun = threading.Event()

    def take_over() -> None:
        with LocalJob(waiting_job(name), transport, subtasks=False) as other:
            begun.set()
            other.wait_for(lambda status: status.state == "running", 30)
            other.client.stop(timeout_s=30)

    timer = threading.Timer(2.0, take_over)
    timer.start()
    ran = on_broker("coordinator", job_file, "--name", name, "--json")
    timer.join()
    assert begun.is_set()
    assert ran.code == Exit.REPLACED, ran.err
    assert ran.json["ending"] == "fenced"


def test_a_checkpoint_that_is_not_kept_is_refused_with_those_that_are(on_broker: Cli, job_file: Path) -> None:
    ran = on_broker("coordinator", job_file, "--from-checkpoint", "7")
    assert ran.code == Exit.USAGE
    assert "has no checkpoint 7 any more; it has: none" in ran.err
    both = on_broker("coordinator", job_file, "--from-checkpoint", "7", "--fresh")
    assert both.code == Exit.USAGE


def test_metrics_of_a_running_job_are_served_on_loopback(running_job: LocalJob) -> None:
    assert running_job.service is not None
    runtime = running_job.service.runtime
    assert runtime is not None
    running_job.client.request("waiters", b'"count me"')
    server = MetricsServer(running_job.service.status, 0, numbers=runtime.numbers)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    finally:
        server.close()
    name = running_job.job.name
    assert f'penstock_subtask_up{{job="{name}",operator="waiters",subtask="1"}} 1.0' in text
    assert f'penstock_job_state{{job="{name}",state="running"}} 1.0' in text
    assert f'penstock_user_requests_answered{{job="{name}",operator="waiters"}} 1.0' in text
    assert f'penstock_failovers_total{{job="{name}",kind="global"}} 0.0' in text


def test_from_savepoint_takes_savepoints_only_and_names_those_that_there_are(
    on_broker: Cli, running_job: LocalJob, job_file: Path, transport: KafkaTransport
) -> None:
    job = running_job.job
    savepoint = on_broker("savepoint", job.name, "--json").json["checkpoint_id"]
    assert on_broker("stop", job.name, "--json").json["accepted"]
    running_job.wait(30)
    plain = max(n for n, c in running_job.client.history().checkpoints.items() if not c.header.savepoint)
    for command in ("coordinator", "run"):
        refused = on_broker(command, job_file, "--name", job.name, "--from-savepoint", plain)
        assert (refused.code, refused.out) == (Exit.USAGE, "")
        assert f"{plain} is a plain checkpoint" in refused.err
        assert f"its savepoints are: {savepoint}." in refused.err
        unknown = on_broker(command, job_file, "--name", job.name, "--from-savepoint", 9_999)
        assert f"has no savepoint 9999 any more; it has: {savepoint}" in unknown.err
        both = on_broker(command, job_file, "--from-savepoint", savepoint, "--from-checkpoint", savepoint)
        assert "contradict one another" in both.err
    options = restore_options(job, transport, False, None, savepoint, say=pytest.fail)
    assert (options.restore, options.restore_checkpoint) == (Restore.CHECKPOINT, savepoint)
