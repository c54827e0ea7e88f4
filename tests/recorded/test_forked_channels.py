"""A fork of a job whose records were on their way between its operators: none is lost, none comes twice."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest

from penstock.audit import audit
from penstock.broker import EmbeddedBroker
from penstock.recorded.fork import fork
from penstock.recorded.job import RecordedJob
from penstock.schemas.state import OPEN_END
from penstock.testing import LocalJob
from penstock.transport import MemoryBroker, MemoryTransport, Partition, Transport
from penstock.transport.kafka import KafkaTransport
from tests.data_channels.jobs import Collected, check_counted, counting_job
from tests.rescaling.jobs import kept, run_until, splits_job, wait_until

from .conftest import Keeping

LIMIT, SPLITS_LIMIT = 6_000, 300
FORKS = 3


class KeepingOnKafka(KafkaTransport):
    """Truncates nothing: as if it had not come to that yet."""

    def truncate(self, positions: Mapping[Partition, int], timeout_s: float = 30.0) -> None:
        pass


def in_flight(job: RecordedJob, checkpoint_id: int) -> int:
    """How many offsets of data partitions a checkpoint names as ranges."""
    return sum(
        segment.end - segment.begin
        for snapshot in job.checkpoint(checkpoint_id).subtasks.values()
        for position in snapshot.data_positions
        for segment in position.segments
        if segment.end != OPEN_END
    )


@pytest.mark.parametrize("unaligned", [False, True])
def test_a_fork_of_any_checkpoint_comes_to_the_exact_result(unaligned: bool) -> None:
    broker = MemoryBroker()
    come_to_the_exact_result(Keeping(broker), MemoryTransport(broker), unaligned)


@pytest.mark.kafka
def test_over_kafka_too(kafka_broker: EmbeddedBroker) -> None:
    transport = KafkaTransport(kafka_broker.bootstrap)
    come_to_the_exact_result(KeepingOnKafka(kafka_broker.bootstrap), transport, unaligned=True)
    transport.close()


def come_to_the_exact_result(keeping: Transport, transport: Transport, unaligned: bool) -> None:
    gate = threading.Event()
    settings = {"unaligned": unaligned, "retained": 40, "interval": 0.01}
    job = counting_job("counted", Collected(), LIMIT, gate=gate, pace_s=0.001, **settings)
    with LocalJob(job, keeping) as running:
        running.wait_for(lambda status: status.checkpoints_completed >= 12, 60)
        running.crash_coordinator()
    origin = RecordedJob(transport, "counted")
    kept = sorted(origin.history.checkpoints, key=lambda n: in_flight(origin, n), reverse=True)
    assert not unaligned or in_flight(origin, kept[0]) > 0, "some records were on their way"
    for number, checkpoint_id in enumerate(kept[:FORKS]):
        name, collected = f"fork-{number}", Collected()
        fork(origin, name, checkpoint_id)
        assert audit(transport, name).healthy, str(audit(transport, name))
        again = counting_job(name, collected, LIMIT, unaligned=unaligned, interval=0.05)
        with LocalJob(again, transport) as sandbox:
            assert sandbox.wait(60).ending.value == "finished"
        check_counted(collected.records, LIMIT)
        report = audit(transport, name)
        assert report.healthy, str(report)
    assert audit(transport, "counted").healthy


@pytest.mark.parametrize("layouts", [(2, 5), (5, 2)])
def test_a_checkpoint_that_a_rescaling_derived_is_forked_as_any_other(layouts: tuple[int, int]) -> None:
    before, after = layouts
    broker = MemoryBroker()
    run_until(splits_job("keepers", before, SPLITS_LIMIT, "list"), Keeping(broker), lambda r: len(kept(r)) >= 100)
    resized = splits_job("keepers", after, SPLITS_LIMIT, "list")
    with LocalJob(resized, Keeping(broker), subtasks=False) as running:

        def is_derived() -> bool:
            last = running.client.history().last
            return last is not None and last.header.rescaled_from >= 0

        wait_until(is_derived, "the derived checkpoint")
        running.crash_coordinator()
    transport = MemoryTransport(broker)
    origin = RecordedJob(transport, "keepers")
    assert origin.history.last is not None
    assert origin.history.last.header.rescaled_from >= 0
    fork(origin, "sandbox", origin.history.last_id)
    assert audit(transport, "sandbox").healthy, str(audit(transport, "sandbox"))
    sandbox = splits_job("sandbox", after, SPLITS_LIMIT, "list")
    ran = run_until(sandbox, transport, lambda r: len(kept(r)) >= SPLITS_LIMIT)
    assert sorted(kept(ran)) == list(range(SPLITS_LIMIT))
    assert audit(transport, "sandbox").healthy, str(audit(transport, "sandbox"))
