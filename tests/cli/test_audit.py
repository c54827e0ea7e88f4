"""`penstock audit` against a real broker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.broker import EmbeddedBroker
from penstock.cli.exits import Exit
from penstock.schemas.codec import decode, encode
from penstock.schemas.errors import UnreadableRecord
from penstock.schemas.events import TriggerCheckpoint
from penstock.testing import LocalJob
from penstock.transport.kafka import KafkaTransport
from penstock.transport.ports import Partition

from .conftest import Cli

pytestmark = pytest.mark.kafka


@pytest.fixture
def on_broker(cli: Cli, kafka_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("PENSTOCK_BROKER", kafka_broker.bootstrap)
    return cli


def test_a_running_job_is_healthy_and_what_was_checked_is_told(on_broker: Cli, running_job: LocalJob) -> None:
    name = running_job.job.name
    ran = on_broker("audit", name, "--json")
    assert (ran.code, ran.json["healthy"], ran.json["findings"]) == (Exit.DONE, True, [])
    assert ran.json["checked"]["completed checkpoints"] >= 2
    shown = on_broker("audit", name)
    assert shown.code == Exit.DONE
    assert shown.out.splitlines()[0] == f"{name}: healthy"
    assert "completed checkpoints" in shown.out


@pytest.mark.damages_logs("a marker that stands twice")
def test_damage_is_named_by_topic_partition_and_offset_with_an_exit_code_of_its_own(
    on_broker: Cli, running_job: LocalJob, transport: KafkaTransport
) -> None:
    name = running_job.job.name
    running_job.client.stop()
    running_job.wait(30)
    events = Partition(running_job.settings.topics.events("waiters"), 1)
    marker = next(
        record for record in map(_decoded, _values(transport, events)) if isinstance(record, TriggerCheckpoint)
    )
    offsets: list[int | None] = []
    writer = transport.writer()
    writer.append(
        events, encode(replace(marker, sequence=marker.sequence + 5)), b"", lambda offset, _: offsets.append(offset)
    )
    writer.close()
    ran = on_broker("audit", name, "--json")
    assert (ran.code, ran.json["healthy"]) == (Exit.DAMAGED, False)
    assert {(f["topic"], f["partition"], f["offset"]) for f in ran.json["findings"]} == {(events.topic, 1, offsets[0])}
    assert "checkpoint-id" in {f["kind"] for f in ran.json["findings"]}
    shown = on_broker("audit", name)
    assert shown.code == Exit.DAMAGED
    assert shown.out.startswith(f"{name}: DAMAGED, {len(ran.json['findings'])} place")
    assert f"{events.topic}[1] offset {offsets[0]}: checkpoint-id" in shown.out


def test_a_job_that_never_was_is_wrong_usage(on_broker: Cli) -> None:
    ran = on_broker("audit", "never-was")
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert "no job 'never-was'" in ran.err


def _values(transport: KafkaTransport, partition: Partition) -> list[bytes | None]:
    return [record.value for record in transport.read_all(partition)]


def _decoded(value: bytes | None) -> object:
    try:
        return decode(value)
    except UnreadableRecord:
        return None
