"""What threads and brokers do between two decisions of the core: looks that overlap, failures that come in heaps."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from penstock.coordinator import preflight
from penstock.schemas.errors import AppendFailed, BrokerUnreachable
from penstock.schemas.settings import RestartStrategy
from penstock.schemas.status import Ending
from penstock.transport.memory import MemoryBroker, MemoryTransport, MemoryWriter
from penstock.transport.ports import LogRecord, OnOutcome, Partition

from .jobs import PATIENCE_S, Plan, epoch_of, make_job, run, wait_checkpoint, wait_recovered, wait_status, wait_until


class CheckpointsMeanwhile(MemoryTransport):
    """Between being asked for offsets and for the log, the coordinator at work completes a checkpoint."""

    def __init__(self, broker: MemoryBroker, meanwhile: Any) -> None:
        super().__init__(broker)
        self.meanwhile = meanwhile

    def read_all(self, partition: Partition, timeout_s: float = 60.0) -> list[LogRecord]:
        self.meanwhile()
        return super().read_all(partition, timeout_s)


def test_a_look_at_a_job_that_goes_on_meanwhile_is_no_reason_to_refuse() -> None:
    """Section 4: a second start of a running job takes over; a position above an older end is no truncation."""
    plan, broker = Plan(), MemoryBroker()
    job = make_job(plan)
    with run(job, MemoryTransport(broker)) as running:
        wait_checkpoint(running, plan)
        transport = CheckpointsMeanwhile(broker, lambda: wait_checkpoint(running, plan))
        for _ in range(3):
            preflight.check_may_start(job.settings, transport)


class Holding(MemoryWriter):
    """Like one over Kafka: while the broker is away records are queued, and all of them fail at once."""

    away = threading.Event()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.queued: list[OnOutcome | None] = []
        self.failed = False

    def append(
        self, partition: Partition, value: bytes, key: bytes | None = None, on_outcome: OnOutcome | None = None
    ) -> None:
        if self.failed:
            raise AppendFailed("an earlier append failed, so nothing may follow")
        if partition.topic.endswith(".events") and self.away.is_set():
            self.queued.append(on_outcome)
            return
        super().append(partition, value, key, on_outcome)

    def fail(self) -> None:
        self.failed = True
        for on_outcome in self.queued:
            assert on_outcome is not None
            on_outcome(None, AppendFailed("timed out"))


class HoldingTransport(MemoryTransport):
    def __init__(self) -> None:
        super().__init__(MemoryBroker())
        self.writers: list[Holding] = []

    def writer(self) -> MemoryWriter:
        self.writers.append(Holding(self.broker, self.broker.now_ms))
        return self.writers[-1]


def test_a_writer_that_fails_with_all_it_had_queued_is_replaced_once() -> None:
    """Section 6 ◆, also where the failover has to wait for its backoff."""
    plan, transport = Plan(), HoldingTransport()
    strategy = RestartStrategy(backoff_first=0.3, backoff_next=0.3, backoff_max=0.3, budget=5)
    with run(make_job(plan, interval=None, restart=strategy), transport) as running:
        plan.wait_gateways(0)
        Holding.away.set()
        futures = []
        for index in range(50):
            futures.append(plan.gateways[0].send_event(b"%d" % index))
            time.sleep(0.002)
        wait_until(lambda: any(len(w.queued) > 10 for w in transport.writers), "many queued frames")
        time.sleep(0.05)
        Holding.away.clear()
        made = len(transport.writers)
        service = running.service
        assert service is not None and service.runtime is not None
        for writer in list(transport.writers):
            if writer.queued:
                writer.fail()
        wait_status(running, lambda s: s.epoch == 2 and s.state == "running")
        side_and_subtask = 2  # a side writer may have been replaced too, and the subtask says Hello again
        assert len(transport.writers) <= made + 1 + side_and_subtask
        assert all(future.exception() is not None for future in futures)
        wait_until(lambda: service.runtime._mailbox.load("op").unsent == 0, "all of it accounted for")
        assert epoch_of(running) == 2


class Away(MemoryTransport):
    """Once told to, nobody answers."""

    def __init__(self) -> None:
        super().__init__(MemoryBroker())
        self.away = threading.Event()

    def offsets(self, *args: Any, **kwargs: Any) -> Any:
        if self.away.is_set():
            raise BrokerUnreachable("nobody answers")
        return super().offsets(*args, **kwargs)


def test_a_host_may_leave_while_the_broker_is_away() -> None:
    """It is not started again and again until the budget is used up."""
    plan, transport = Plan(), Away()
    strategy = RestartStrategy(backoff_first=0.2, backoff_next=0.2, backoff_max=0.2, budget=1_000)
    running = run(make_job(plan, restart=strategy), transport).start()
    assert running.service is not None
    try:
        plan.wait_gateways(0)
        transport.away.set()
        plan.raises["notify_checkpoint_complete"] = 1  # a new epoch: its claim asks for offsets
        time.sleep(0.5)
        running.service.leave()
        outcome = running.service.wait(5.0)
        assert outcome is not None and outcome.ending is Ending.LEFT
    finally:
        transport.away.clear()
        running.close()


@pytest.mark.parametrize("raised", [asyncio.CancelledError(), SystemExit(3), GeneratorExit()])
def test_whatever_user_code_raises_is_a_global_failover(raised: BaseException) -> None:
    """``sys.exit()`` in a callback, or an await that was cancelled, must not end the coordinator silently."""
    plan, has_raised = Plan(), threading.Event()

    def boom(*_: object) -> None:
        plan.does.clear()
        has_raised.set()
        raise raised

    plan.does["notify_checkpoint_complete"] = boom
    with run(make_job(plan)) as running:
        assert has_raised.wait(PATIENCE_S)
        wait_status(running, lambda s: s.epoch == 2 and s.state == "running")
        plan.wait_gateways(0)
        assert plan.coordinator is not None
        plan.coordinator.context.run_in_coordinator(boom)
        wait_recovered(running, plan)
        assert type(raised).__name__ in wait_status(running, lambda s: s.epoch == 3).last_failure
        future = plan.gateways[0].send_event(b"last")
        future.add_done_callback(lambda _: (_ for _ in ()).throw(SystemExit(3)))
        wait_checkpoint(running, plan)
        assert epoch_of(running) == 3


def test_what_the_host_asked_to_be_told_may_raise() -> None:
    """It is logged, and neither breaks the instance off nor hides how the job ended."""
    plan = Plan()

    def boom(*_: object) -> None:
        raise ValueError("in the host")

    with run(make_job(plan), options={"on_status": boom}) as running:
        wait_checkpoint(running, plan)
        assert running.client.stop(timeout_s=10.0).accepted
        assert running.wait(10.0).ending is Ending.STOPPED
        assert plan.count("start") == 1


def test_a_status_of_more_subtasks_than_a_record_holds_is_told_without_them() -> None:
    """And takes no heartbeat along with a writer that is given up."""
    plan, transport = Plan(), MemoryTransport(MemoryBroker(max_record_bytes=6_000))
    with run(make_job(plan, parallelism=100), transport) as running:
        plan.wait_gateways(*range(100))
        told = wait_until(running.client.status, "a status")
        assert told.state == "running" and told.operators[0].parallelism == 100
        complete = wait_status(running, lambda s: s.state == "running")
        assert len(complete.operators[0].subtasks) == 100
