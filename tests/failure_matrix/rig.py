"""A job whose coordinator and subtasks are processes, on a real broker, and what must be true of it in the end."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from penstock.audit import audit
from penstock.cli.exits import Exit
from penstock.client.job_client import JobClient
from penstock.schemas.checkpoints import CheckpointCompleted, EpochClaimed
from penstock.schemas.codec import decode
from penstock.schemas.errors import UnreadableRecord
from penstock.schemas.ids import SubtaskId
from penstock.schemas.settings import JobSettings, OperatorSettings
from penstock.schemas.status import JobStatus
from penstock.transport.kafka import KafkaTransport
from penstock.transport.ports import Partition
from tests.auditing import AUDITOR

from .children import Child, Nursery, Supervised, Zygote
from .gates import DEADLINE_S, Gates, Passage
from .workload import OPERATOR, SUBTASKS

COORDINATOR = "coordinator"
EVENTS = 60
"""What each subtask is sent in all."""
NEVER = None
"""For ``truncate_every_s``: what is written stays to be looked at."""
FIRST = "list/0"
SECOND = "list/1"


class Rig:
    """Use it as a context manager: nothing that it started outlives it.

    ``limit`` of its gates says how far the coordinator may send; the job ends when that is ``EVENTS``.
    """

    def __init__(
        self,
        zygote: Zygote,
        bootstrap: str,
        job: str,
        folder: Path,
        *,
        policy: str = "replay",
        checkpoint: dict[str, Any] | None = None,
        restart: dict[str, Any] | None = None,
        timing: dict[str, float] | None = None,
        event_ack_timeout: float = 60.0,
        truncate_every_s: float | None = 5.0,
    ) -> None:
        self.bootstrap = bootstrap
        self.gates = Gates()
        self._nursery = Nursery(zygote, folder)
        self._told: dict[str, Any] = {
            "bootstrap": bootstrap,
            "job": job,
            "gates": self.gates.address,
            "events": EVENTS,
            "policy": policy,
            "checkpoint": {"interval": 0.15, "tolerable_failures": 1000, **(checkpoint or {})},
            "restart": {"backoff_next": 0.01, "backoff_max": 0.1, "budget": 1000, **(restart or {})},
            "timing": {"heartbeat_interval": 0.25, "heartbeat_timeout": 30.0, **(timing or {})},
            "event_ack_timeout": event_ack_timeout,
            "truncate_every_s": truncate_every_s,
        }
        self.transport = KafkaTransport(bootstrap)
        self.client = JobClient(self.transport, job)
        self.settings = JobSettings(job, (OperatorSettings(OPERATOR, SUBTASKS),))
        self.topics = self.settings.topics
        self.coordinator: Child
        self.subtasks: list[Supervised] = []
        self.older_runs: list[list[Supervised]] = []
        self.run = ""

    # ---- starting

    def start(self) -> Rig:
        """The whole job."""
        try:
            self.announce()
            self.start_coordinator()
            self.start_subtasks()
        except BaseException:
            self.close()
            raise
        return self

    def announce(self) -> None:
        """A new run, as every runner does before its subtasks start."""
        self.run = uuid.uuid4().hex
        self.transport.create_topics(self.settings.topics.specs(self.settings.parallelism))
        self.client.announce_run(self.run)

    def start_coordinator(self, *arguments: str) -> Child:
        """`penstock coordinator`, beside the one that may be at work."""
        self.coordinator = self._nursery.start(["coordinator", *arguments], {**self._told, "who": COORDINATOR})
        return self.coordinator

    def start_subtasks(self) -> None:
        if self.subtasks:
            self.older_runs.append(self.subtasks)
        self.subtasks = [Supervised(self.starter(index)) for index in range(SUBTASKS)]

    def starter(self, index: int) -> Callable[[], Child]:
        """Starts an instance of a subtask of the present run."""
        told = {**self._told, "who": f"{OPERATOR}/{index}", "run": self.run}
        return lambda: self._nursery.start(["subtask", str(index)], told)

    def replace_coordinator(self) -> Child:
        """Kills the one at work where it is, and starts the next."""
        self.coordinator.kill()
        return self.start_coordinator()

    def kill_all(self) -> None:
        """Every process of the job at once; nobody starts one again."""
        for supervised in self.subtasks:
            supervised.close()
        self._nursery.close()

    # ---- looking

    def pids(self) -> list[int]:
        """Of the subtasks' processes."""
        return [supervised.child.pid for supervised in self.subtasks]

    def run_up_to(self, limit: int) -> Passage:
        """Lets every subtask be sent the numbers below ``limit``, and waits for a checkpoint that contains them all."""
        self.gates.limit = limit
        return self.gates.wait_passage(
            COORDINATOR, "completed", lambda p: all(len(told) >= limit for told in p.data["told"])
        )

    def wait_completed(self, behind: Passage | None = None) -> Passage:
        """The next notice of a completed checkpoint behind a passage, or behind now."""
        seen = len(self.gates.passages) if behind is None else self.gates.passages.index(behind) + 1
        found: list[Passage] = []

        def there() -> bool:
            found[:] = [p for p in self.gates.passages[seen:] if (p.who, p.point) == (COORDINATOR, "completed")]
            return bool(found)

        self.gates.wait_for(there, "a completed checkpoint")
        return found[0]

    def records(self, topic: str, index: int = 0) -> list[tuple[int, Any]]:
        """Every readable record of a partition, with its offset."""
        found = []
        for record in self.transport.read_all(Partition(topic, index), 30.0):
            try:
                found.append((record.offset, None if record.value is None else decode(record.value)))
            except UnreadableRecord:
                continue
        return found

    def completed(self) -> list[int]:
        """Ids of all checkpoints that were ever completed."""
        log = self.records(self.topics.checkpoints)
        return [record.checkpoint_id for _, record in log if isinstance(record, CheckpointCompleted)]

    def claims(self) -> list[EpochClaimed]:
        return [record for _, record in self.records(self.topics.checkpoints) if isinstance(record, EpochClaimed)]

    def epochs(self) -> list[int]:
        """The epochs that were claimed, which rise, counted from 1."""
        epochs = [claim.epoch for claim in self.claims()]
        return [1 + sorted(set(epochs)).index(epoch) for epoch in epochs]

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """For what no process tells of."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {what}"
            time.sleep(0.05)

    # ---- the end

    def finish(self) -> JobStatus:
        """Lets the job go to its end, and checks that every list is exact: in the last completed checkpoint, in what
        every object of a subtask was restored with and handled, and in what the coordinator was told. The last status.
        """
        self.gates.limit = EVENTS
        assert self.coordinator.ended() == Exit.DONE, self.coordinator.said()[-5000:]
        assert self._data()["ending"] == "finished"
        for supervised in self.subtasks:
            supervised.returned()
        wanted = list(range(EVENTS))
        assert self.states() == [wanted] * SUBTASKS
        for who, numbers in self.gates.stories():
            assert numbers == list(range(len(numbers))), f"{who} was restored with and handled {numbers}"
        told = self.gates.of(COORDINATOR, "completed")[-1].data["told"]
        assert told == [wanted] * SUBTASKS
        if self.bootstrap != AUDITOR.bootstrap:  # a broker of its own is gone when others are audited
            report = audit(self.transport, self.settings.name)
            assert report.healthy, str(report)
        status = self.client.status()
        assert status is not None
        return status

    def states(self) -> list[list[int]]:
        """The subtasks' lists in the last completed checkpoint."""
        last = self.client.history().last
        assert last is not None
        lists = []
        for index in range(SUBTASKS):
            handle = last.subtasks[SubtaskId(OPERATOR, index)].state
            assert handle is not None and handle.inline is not None
            lists.append(json.loads(handle.inline))
        return lists

    def _data(self) -> dict[str, Any]:
        """What the coordinator printed for programs: its last line that is JSON."""
        lines = [line for line in self.coordinator.said().splitlines() if line.startswith("{")]
        data: dict[str, Any] = json.loads(lines[-1])
        return data

    def close(self) -> None:
        for supervised in [*self.subtasks, *(s for run in self.older_runs for s in run)]:
            supervised.close()
        self._nursery.close()
        self.gates.close()
        self.transport.close()

    def __enter__(self) -> Rig:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:  # pytest shows it with the failure
            for child in self._nursery.children:
                print(f"---- {child.log_file.name}, exit code {child.poll()}\n{child.said()[-4000:]}")
        self.close()
