"""``context.incarnation``: one for a job through all that happens to it, another one after a purge, and for a fork."""

from __future__ import annotations

import penstock
from penstock.client.job_client import JobClient
from penstock.recorded.fork import fork
from penstock.recorded.job import RecordedJob
from penstock.testing.local import LocalJob
from penstock.transport import MemoryBroker, MemoryTransport

from .jobs import PATIENCE_S


class Tells(penstock.OperatorCoordinator):
    seen: list[str]

    def start(self) -> None:
        self.seen.append(self.context.incarnation)

    def reset_to_checkpoint(self, checkpoint_id: int, state: object) -> None:
        self.seen.append(self.context.incarnation)


def test_a_job_keeps_its_incarnation_and_neither_a_fork_nor_a_job_of_its_name_has_it() -> None:
    seen: list[str] = []
    transport = MemoryTransport(MemoryBroker())

    def run(name: str) -> None:
        job = penstock.Job(name, checkpoint=penstock.CheckpointSettings(interval=0.05))
        coordinator = type("TellsHere", (Tells,), {"seen": seen})
        job.operator("op", coordinator=coordinator, subtask=penstock.Subtask, parallelism=1)
        with LocalJob(job, transport) as running:
            running.wait_for(lambda status: status.checkpoints_completed >= 1, PATIENCE_S)
            running.crash_coordinator()
            running.replace_coordinator()
            running.wait_for(lambda status: status.epoch >= 2 and status.checkpoints_completed >= 1, PATIENCE_S)
            assert running.client.stop(savepoint=True, timeout_s=PATIENCE_S).accepted
            running.wait(PATIENCE_S)

    run("job")
    run("job")
    (first,) = set(seen)
    assert first
    recorded = RecordedJob(transport, "job")
    fork(recorded, "sandbox", recorded.history.last_id, savepoint=True)
    seen.clear()
    run("sandbox")
    (of_fork,) = set(seen)
    JobClient(transport, "job").purge()
    seen.clear()
    run("job")
    (second,) = set(seen)
    assert len({first, of_fork, second}) == 3
