"""`penstock fork` on a real broker: a sandbox beside a job that goes on running."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker import EmbeddedBroker
from penstock.cli.exits import Exit
from penstock.client.job_client import JobClient
from penstock.testing import LocalJob
from penstock.transport.kafka import KafkaTransport

from .conftest import Cli, waiting_job

pytestmark = pytest.mark.kafka


@pytest.fixture
def on_broker(cli: Cli, kafka_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("PENSTOCK_BROKER", kafka_broker.bootstrap)
    return cli


def test_a_running_job_is_forked_and_neither_job_notices_the_other(
    on_broker: Cli, running_job: LocalJob, transport: KafkaTransport
) -> None:
    name, sandbox = running_job.job.name, "sandbox-of-a-running-job"
    savepoint = on_broker("savepoint", name, "--json").json["checkpoint_id"]
    made = on_broker("fork", name, sandbox, "--from-savepoint", savepoint, "--json")
    assert made.code == 0, made.err
    assert len(made.json["topics"]) == 4
    listed = {row["checkpoint_id"]: row for row in on_broker("checkpoints", sandbox, "--json").json}
    assert listed[savepoint]["savepoint"]
    again = on_broker("fork", name, sandbox, "--from-savepoint", savepoint)
    assert again.code == Exit.FAILED
    assert f"there is a job {sandbox!r}" in again.err
    with LocalJob(waiting_job(sandbox), transport) as forked:
        forked.wait_for(lambda status: status.checkpoints_completed >= 2, 30)
        forked.check()
        assert forked.client.stop(timeout_s=30).accepted
        forked.wait(30)
    history = JobClient(transport, sandbox).history()
    assert history.last_id > savepoint
    before = running_job.client.status()
    assert before is not None
    running_job.wait_for(lambda status: status.checkpoints_completed > before.checkpoints_completed, 30)
    now = running_job.client.status()
    assert now is not None
    assert (now.state, now.epoch, now.failovers_global) == ("running", before.epoch, before.failovers_global)
    for job in (name, sandbox):
        audited = on_broker("audit", job)
        assert audited.code == 0, audited.out
    assert on_broker("purge", sandbox, "--yes").code == 0
    running_job.check()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "say what to begin with"),
        (("--from-checkpoint", 1, "--from-savepoint", 1), "say what to begin with"),
        (("--from-checkpoint", 99_999), "has no checkpoint 99999 any more; it has: "),
        (("--from-savepoint", 99_999), "has no savepoint 99999 any more; it has: none"),
    ],
)
def test_what_cannot_be_forked_is_told_with_what_can(
    on_broker: Cli, running_job: LocalJob, arguments: tuple[object, ...], says: str, transport: KafkaTransport
) -> None:
    ran = on_broker("fork", running_job.job.name, "never-made", *arguments)
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert says in ran.err
    assert transport.list_topics("penstock.never-made.") == []


def test_the_state_storage_of_the_job_file_is_taken(on_broker: Cli, tmp_path: Path) -> None:
    file = tmp_path / "job_of_fork.py"
    file.write_text("import penstock\njob = penstock.Job('x', state_storage='file:///somewhere')\n")
    ran = on_broker("fork", "no-such-job", "never-made", "--from-checkpoint", 1, "--job", file)
    assert (ran.code, "there is no job 'no-such-job'" in ran.err) == (Exit.USAGE, True)
