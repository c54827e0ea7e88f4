"""The command line in this process: arguments in; exit code, stdout and stderr out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import penstock
from penstock.broker import EmbeddedBroker
from penstock.cli import main
from penstock.testing import LocalJob
from penstock.transport.kafka import KafkaTransport


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Ran]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """Knows no broker but those that a test names, or starts."""
    for name in ("PENSTOCK_BROKER", "PENSTOCK_CLIENT_CONFIG", "PENSTOCK_PREFIX", "PENSTOCK_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


class Counting(penstock.OperatorCoordinator):
    """Answers requests with what it was asked; knows one that it refuses."""

    def handle_request(self, request: Any) -> Any:
        if request == "refuse":
            raise ValueError("not this one")
        self.context.metrics.increment("requests-answered")
        return {"asked": request}


class Waiting(penstock.Subtask):
    def snapshot_state(self, checkpoint_id: int) -> Any:
        return [1, 2, 3]

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        assert state == [1, 2, 3]


def waiting_job(name: str) -> penstock.Job:
    """Runs until it is stopped."""
    job = penstock.Job(name, checkpoint=penstock.CheckpointSettings(interval=0.1))
    job.operator("waiters", coordinator=Counting, subtask=Waiting, parallelism=2, codec="json", state_codec="json")
    return job


@pytest.fixture
def transport(kafka_broker: EmbeddedBroker) -> Iterator[KafkaTransport]:
    made = KafkaTransport(kafka_broker.bootstrap)
    yield made
    made.close()


@pytest.fixture
def running_job(transport: KafkaTransport, request: pytest.FixtureRequest) -> Iterator[LocalJob]:
    """A job of this test's own on the broker, with a checkpoint or two."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name.lower())[:50].strip("-")
    with LocalJob(waiting_job(name), transport) as running:
        running.wait_for(lambda status: status.checkpoints_completed >= 2, 30)
        yield running
