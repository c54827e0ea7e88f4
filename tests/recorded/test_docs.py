"""What docs/the-log.md shows is what the commands print, on a real broker."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import penstock
from penstock.broker import EmbeddedBroker
from penstock.cli import main
from penstock.testing import LocalJob
from penstock.transport import Partition
from penstock.transport.kafka import KafkaTransport

pytestmark = pytest.mark.kafka

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```console\n(.*?)```", (ROOT / "docs" / "the-log.md").read_text(), re.DOTALL)
PENSTOCK = [block for block in BLOCKS if block.startswith("$ penstock ") and len(block.splitlines()) > 1]


class Keeping(KafkaTransport):
    """Truncates nothing: as if it had not come to that yet."""

    def truncate(self, positions: Mapping[Partition, int], timeout_s: float = 30.0) -> None:
        pass


@pytest.fixture(scope="module")
def hello_events(kafka_broker: EmbeddedBroker) -> Iterator[None]:
    """The example's job, run to its end."""
    spec = importlib.util.spec_from_file_location("hello_events_of_docs", ROOT / "examples" / "hello_events.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    job = module.job.renamed("hello-events", checkpoint=penstock.CheckpointSettings(interval=0.5, retained=10))
    with LocalJob(job, Keeping(kafka_broker.bootstrap)) as running:
        running.wait(60)
    yield
    del sys.modules[spec.name]


def shape(line: str) -> str:
    """A line without what differs from run to run."""
    line = re.sub(r"\b[0-9a-f]{32}\b|\d+|(?<=host=)\S+", "#", line)
    return re.sub(r"finished=(yes|no)", "finished=#", " ".join(line.split()))


@pytest.mark.parametrize("block", PENSTOCK, ids=lambda block: block.split()[2])
def test_a_command_of_the_page_prints_what_the_page_shows(
    block: str,
    hello_events: None,
    kafka_broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PENSTOCK_BROKER", kafka_broker.bootstrap)
    command, *shown = block.splitlines()
    capsys.readouterr()
    assert main(command.split()[2:]) == 0
    printed = {shape(line) for line in capsys.readouterr().out.splitlines()}
    assert shown
    for line in shown:
        assert shape(line) in printed
