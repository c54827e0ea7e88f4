"""`penstock events` on a real broker: an operator's log in lines, or as JSON that reads back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.broker import EmbeddedBroker
from penstock.cli.exits import Exit
from penstock.recorded.exported import Exported
from penstock.schemas.events import EventFrame
from penstock.schemas.ids import SubtaskId
from penstock.testing import LocalJob
from penstock.transport import Partition
from penstock.transport.kafka import KafkaTransport
from tests.coordinator.jobs import Plan, make_job, run

from .conftest import Cli

pytestmark = pytest.mark.kafka


class Keeping(KafkaTransport):
    """Truncates nothing: as if it had not come to that yet."""

    def truncate(self, positions: Mapping[Partition, int], timeout_s: float = 30.0) -> None:
        pass


@pytest.fixture(scope="module")
def history(kafka_broker: EmbeddedBroker) -> tuple[str, int]:
    """A job's name, and its savepoint: three events to each of two subtasks before it, three behind it."""
    plan, name = Plan(), "events-history"
    transport = Keeping(kafka_broker.bootstrap)
    with run(make_job(plan, name, parallelism=2, interval=None), transport) as running:
        plan.wait_gateways(0, 1)
        savepoint = -1
        for letter in "ab":
            for number in range(3):
                for subtask in (0, 1):
                    plan.gateways[subtask].send_event(json.dumps({letter: number}).encode())
            for subtask in (0, 1):
                plan.wait_handled(json.dumps({letter: 2}).encode(), subtask)
            if letter == "a":
                savepoint = running.client.savepoint(timeout_s=20).checkpoint_id
        assert running.client.stop(timeout_s=20).accepted
        running.wait(20)
    transport.close()
    return name, savepoint


@pytest.fixture
def on_broker(cli: Cli, kafka_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("PENSTOCK_BROKER", kafka_broker.bootstrap)
    return cli


def test_each_record_is_a_line_in_the_order_of_time(on_broker: Cli, history: tuple[str, int]) -> None:
    ran = on_broker("events", history[0], "op", "--subtask", 1)
    assert ran.code == 0, ran.err
    head, *lines = ran.out.splitlines()
    assert head.split() == ["where", "time", "subtask", "epoch", "attempt", "kind", "sequence", "what"]
    kinds = [line.split()[6] for line in lines]
    for kind in ("hello", "start", "event-frame", "trigger-checkpoint", "checkpoint-ack", "checkpoint-completed"):
        assert kind in kinds
    assert kinds.index("hello") < kinds.index("start") < kinds.index("event-frame")
    assert '{"b": 2}' in ran.out
    assert "heartbeat" not in kinds
    times = [line.split()[1] + line.split()[2] for line in lines]
    assert times == sorted(times)


def test_json_lines_read_back_as_the_records_they_were(
    on_broker: Cli, history: tuple[str, int], tmp_path: Path
) -> None:
    name, savepoint = history
    ran = on_broker("events", name, "op", "--from-checkpoint", savepoint, "--json")
    assert ran.code == 0, ran.err
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert lines[0]["checkpoint_id"] == savepoint
    assert [e for line in lines if line.get("kind") == "event-frame" and line["subtask"] == 0 for e in line["events"]] \
        == ['{"b": 0}', '{"b": 1}', '{"b": 2}']  # fmt: skip
    path = tmp_path / "events.jsonl"
    path.write_text(ran.out)
    exported = Exported(path)
    found = exported.checkpoint(savepoint, "op")
    assert found is not None
    assert sorted(found.subtasks) == [SubtaskId("op", 0), SubtaskId("op", 1)]
    frames = [found.record for found in exported.records(SubtaskId("op", 1)) if isinstance(found.record, EventFrame)]
    assert b"".join(frame.payload for frame in frames) == b'{"b": 0}{"b": 1}{"b": 2}'


def test_kinds_limit_offset_and_time_narrow_it_down(on_broker: Cli, history: tuple[str, int]) -> None:
    name, _ = history
    ran = on_broker("events", name, "op", "--kind", "trigger-checkpoint", "--kind", "start", "--json")
    assert {json.loads(line)["kind"] for line in ran.out.splitlines()} == {"trigger-checkpoint", "start"}
    assert len(on_broker("events", name, "op", "--limit", 2, "--json").out.splitlines()) == 2
    offset = json.loads(on_broker("events", name, "op", "--subtask", 0, "--json").out.splitlines()[-1])
    assert offset["offset"] >= 0
    ran = on_broker("events", name, "op", "--subtask", 0, "--from-offset", 2, "--kind", "control", "--json")
    assert min(json.loads(line)["offset"] for line in ran.out.splitlines()) >= 2
    assert on_broker("events", name, "op", "--from-time", "1h", "--json").out
    assert on_broker("events", name, "op", "--from-time", "2100-01-01", "--json").out == ""


def test_events_are_decoded_by_the_job_files_codec(on_broker: Cli, history: tuple[str, int], tmp_path: Path) -> None:
    file = tmp_path / "job_of_events.py"
    file.write_text("import penstock\njob = penstock.Job('x')\njob.operator('op', parallelism=2, codec='json')\n")
    ran = on_broker("events", history[0], "op", "--kind", "events", "--job", file, "--json")
    assert {"b": 2} in json.loads(ran.out.splitlines()[-1])["events"]
    wrong = on_broker("events", history[0], "other", "--job", file)
    assert (wrong.code, "has no operator 'other'; it has: op" in wrong.err) == (Exit.USAGE, True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("never", "op"), "there is no job 'never'"),
        (("JOB", "other"), "has no operator 'other' on this broker; there is: op"),
        (("JOB", "op", "--subtask", 7), "has no subtask 7"),
        (("JOB", "op", "--from-checkpoint", 12345), "has no checkpoint 12345 any more; it has:"),
        (("JOB", "op", "--from-offset", 1), "say which with --subtask I"),
        (("JOB", "op", "--from-time", "noon"), "'noon' is no time"),
        (("JOB", "op", "--from-time", "1m", "--from-checkpoint", 1), "contradict one another"),
        (("JOB", "op", "--kind", "helo"), "'helo' is no kind of record"),
    ],
)
def test_what_cannot_be_is_one_clear_error(
    on_broker: Cli, history: tuple[str, int], arguments: tuple[object, ...], says: str
) -> None:
    ran = on_broker("events", *(history[0] if a == "JOB" else a for a in arguments))
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert says in ran.err


def test_an_offset_that_is_gone_is_refused_with_what_there_is(on_broker: Cli, history: tuple[str, int]) -> None:
    ran = on_broker("events", history[0], "op", "--subtask", 0, "--from-offset", 99_999)
    assert ran.code == Exit.FAILED
    assert "and 99999 is none of them" in ran.err


def test_replay_says_what_a_restored_subtask_would_get(on_broker: Cli, history: tuple[str, int]) -> None:
    name, savepoint = history
    ran = on_broker("replay", name, "op", "--subtask", 1, "--from-checkpoint", savepoint)
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0].startswith(f"op/1 restored from checkpoint {savepoint} by a failover")
    assert "3 events handled in" in lines[-1]
    assert any("handled  behind the event position: " in line and '{"b": 2}' in line for line in lines)
    as_json = [json.loads(line) for line in on_broker(
        "replay", name, "op", "--subtask", 1, "--from-checkpoint", savepoint, "--restart", "--json"
    ).out.splitlines()]  # fmt: skip
    assert as_json[0]["start"]["checkpoint_id"] == savepoint
    assert {line["verdict"] for line in as_json[1:-1]} == {"not read"}
    assert as_json[-1]["events"] == 0


def test_replay_of_a_checkpoint_that_is_not_there_names_those_that_are(
    on_broker: Cli, history: tuple[str, int]
) -> None:
    ran = on_broker("replay", history[0], "op", "--subtask", 1, "--from-checkpoint", 999)
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert f"has no checkpoint 999 any more; it has: {history[1]}" in ran.err


def test_following_shows_what_comes_until_the_limit(on_broker: Cli, running_job: LocalJob) -> None:
    name = running_job.job.name
    there = len(on_broker("events", name, "waiters", "--kind", "checkpoint-ack", "--json").out.splitlines())
    ran = on_broker("events", name, "waiters", "--kind", "checkpoint-ack", "--follow", "--limit", there + 20, "--json")
    assert ran.code == 0, ran.err
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert len(lines) == there + 20
    offsets = [line["offset"] for line in lines]
    assert offsets == sorted(set(offsets))
