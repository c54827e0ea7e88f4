"""A job that has run on an in-memory broker, and what its subtasks handled."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from penstock.recorded.job import RecordedJob
from penstock.testing import LocalJob
from penstock.transport import MemoryBroker, MemoryTransport, Partition
from tests.coordinator.jobs import Plan, make_job, run


class Keeping(MemoryTransport):
    """Truncates nothing: as if it had not come to that yet."""

    def truncate(self, positions: Mapping[Partition, int], timeout_s: float = 30.0) -> None:
        pass


class Ran:
    """A job ``ran`` with two subtasks, stopped: two checkpoints, the events of which are ``a..``, ``b..`` and ``c..``.

    Its coordinator died behind the last events, so nothing of them is in a checkpoint.
    """

    def __init__(self) -> None:
        broker, self.plan = MemoryBroker(), Plan()
        self.job = make_job(self.plan, "ran", parallelism=2, interval=None, checkpoint={"retained": 5})
        self.checkpoints: list[int] = []
        with run(self.job, Keeping(broker)) as running:
            self.plan.wait_gateways(0, 1)
            for letter in (b"a", b"b", b"c"):
                self.send(letter)
                if letter != b"c":
                    self.checkpoints.append(self.savepoint(running))
            running.crash_coordinator()
        self.transport = MemoryTransport(broker)

    def send(self, letter: bytes) -> None:
        for number in range(3):
            for subtask in (0, 1):
                self.plan.gateways[subtask].send_event(b"%s%d" % (letter, number))
        for subtask in (0, 1):
            self.plan.wait_handled(b"%s2" % letter, subtask)

    def savepoint(self, running: LocalJob) -> int:
        reply = running.client.savepoint(timeout_s=20)
        assert reply.accepted, reply
        return reply.checkpoint_id

    @property
    def recorded(self) -> RecordedJob:
        return RecordedJob(self.transport, self.job.name)


@pytest.fixture
def ran() -> Ran:
    return Ran()
