"""``python -m benchmarks.lost_brokers [--fault NAME] [--client NAME=VALUE] [--json FILE]``: a job while brokers fail.

For each fault on a cluster of three brokers: the longest time for which a subtask was given no event, and the longest
between two completed checkpoints. Once with the defaults of Penstock's clients, and once with librdkafka's own.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import penstock
from penstock.audit import audit
from penstock.broker import EmbeddedBroker, EmbeddedCluster
from penstock.client.job_client import JobClient
from penstock.schemas.status import Ending, JobStatus
from penstock.testing import LocalJob
from penstock.transport.kafka import KafkaTransport
from penstock.transport.ports import Copies

DEADLINE_S = 180.0
SUBTASKS = 2
TICK_S = 0.02
CHECKPOINT_S = 0.5
STEADY_S = 2.0
LIBRDKAFKA = {
    "socket.timeout.ms": "60000",
    "socket.connection.setup.timeout.ms": "30000",
    "request.timeout.ms": "30000",
}
"""The defaults of the client library, where Penstock's are others."""
_TRANSACTIONS = "__transaction_state"
_LOOK_S = 0.05


class Sender(penstock.OperatorCoordinator):
    """Sends each subtask 0, 1, 2 ... until told to stop, then -1. State: the next number for each."""

    def __init__(self, seen: Seen) -> None:
        self.seen, self.next, self.ended = seen, [0] * SUBTASKS, False
        self.gateways: dict[int, penstock.Gateway] = {}

    def start(self) -> None:
        self.context.call_every(TICK_S, self.tick)

    def tick(self) -> None:
        if len(self.gateways) < SUBTASKS or self.ended:
            return
        self.ended = self.seen.ending.is_set()
        for subtask, gateway in self.gateways.items():
            gateway.send_event(-1 if self.ended else self.next[subtask])
            self.next[subtask] += not self.ended

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: penstock.Gateway) -> None:
        self.gateways[subtask] = gateway

    def execution_attempt_failed(self, subtask: int, attempt: int, reason: str | None) -> None:
        self.gateways.pop(subtask, None)

    def checkpoint_coordinator(self, checkpoint_id: int, result: penstock.CheckpointResult) -> None:
        result.complete({"next": self.next, "ended": self.ended})

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.seen.completed.append((time.monotonic(), checkpoint_id))

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        self.gateways.clear()
        self.next, self.ended = (list(state["next"]), state["ended"]) if state else ([0] * SUBTASKS, False)


class Lister(penstock.Subtask):
    """Raises where a number is not the next one. State: how many there were, and whether there are more."""

    def __init__(self, seen: Seen) -> None:
        self.seen, self.count, self.ended = seen, 0, False

    def open(self, context: penstock.Context) -> None:
        self.index = context.subtask

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.count, self.ended = state

    def handle_operator_event(self, event: Any) -> None:
        if event == -1:
            self.ended = True
            self.seen.counted[self.index] = self.count
        elif event != self.count or self.ended:
            self.seen.wrong.append(f"subtask {self.index} was given {event} in place of {self.count}")
        else:
            self.count += 1
            self.seen.handled[self.index].append(time.monotonic())

    def poll(self) -> penstock.Idle | penstock.Finished:
        return penstock.Finished() if self.ended else penstock.Idle(0.05)

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return [self.count, self.ended]

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.seen.notified[self.index] = checkpoint_id


class Seen:
    """Events and checkpoints that the job's objects have seen, whatever became of them."""

    def __init__(self) -> None:
        self.handled: list[list[float]] = [[] for _ in range(SUBTASKS)]
        self.completed: list[tuple[float, int]] = []
        self.notified: dict[int, int] = {}
        """The newest completed checkpoint that each subtask knows."""
        self.counted: dict[int, int] = {}
        self.wrong: list[str] = []
        self.ending = threading.Event()


class Watched:
    """A running job on a cluster, and what it has seen. Times are monotonic seconds."""

    def __init__(
        self,
        cluster: EmbeddedCluster,
        client_settings: dict[str, str],
        replication_factor: int = 3,
        checkpoint_s: float | None = CHECKPOINT_S,
    ) -> None:
        """``checkpoint_s``: seconds from one checkpoint to the next; None: only savepoints."""
        self.cluster, self.seen = cluster, Seen()
        self.transport = KafkaTransport(cluster.bootstrap, client_settings)
        job = penstock.Job(
            f"lost-{uuid.uuid4().hex[:8]}",
            checkpoint=penstock.CheckpointSettings(interval=checkpoint_s),
            replication_factor=replication_factor,
            heartbeat_timeout=60.0,  # one client may find a new leader long before another
        )
        job.operator(
            "list", subtask=lambda: Lister(self.seen), coordinator=lambda: Sender(self.seen), parallelism=SUBTASKS,
            codec="json", state_codec="json", event_ack_timeout=120.0,
        )  # fmt: skip
        self.job, self.topics = job, job.settings.topics
        self.local = LocalJob(job, self.transport)

    # ---- looking

    def copies(self, topic: str) -> Copies:
        """Of its first partition."""
        return self.transport.inspect([topic], DEADLINE_S).topics[topic].copies[0]

    def leader(self, topic: str) -> EmbeddedBroker:
        found: list[int] = []

        def led() -> bool:
            leader = self.copies(topic).leader
            found.append(-1 if leader is None else leader)
            return leader is not None

        wait_for(led, f"{topic} has a leader")
        return self.cluster[found[-1] - 1]

    def wait_progress(self, what: str) -> None:
        """Until every subtask has been given events, and a checkpoint has been triggered and completed, from now on."""
        events, (at, _) = [len(times) for times in self.seen.handled], self.last_completed()

        def moved() -> bool:
            more = all(len(times) > count + 20 for times, count in zip(self.seen.handled, events, strict=True))
            return more and sum(1 for done, _ in self.seen.completed[-5:] if done > at) >= 2

        wait_for(moved, f"the job goes on {what}")

    def last_completed(self) -> tuple[float, int]:
        return self.seen.completed[-1] if self.seen.completed else (0.0, -1)

    def wait_whole(self) -> None:
        """Until every copy of every topic is in sync."""
        names = [*(spec.name for spec in self.job.settings.topic_specs), _TRANSACTIONS]

        def whole() -> bool:
            there = self.transport.inspect(names, DEADLINE_S)
            every = [copies for facts in there.topics.values() for copies in facts.copies]
            return len(there.brokers) == 3 and all(kept.in_sync == kept.brokers for kept in every)

        wait_for(whole, "every copy is in sync")

    def longest(self, since: float) -> tuple[float, float]:
        """The longest pauses from ``since`` to now: of a subtask's events, and of completed checkpoints."""
        now = time.monotonic()
        events = max(_longest(times, since, now) for times in self.seen.handled)
        return events, _longest([at for at, _ in self.seen.completed], since, now)

    def finish(self) -> JobStatus:
        """End the job, and check that nothing was lost or doubled, and that its log tells one history."""
        self.seen.ending.set()
        outcome = self.local.wait(DEADLINE_S)
        assert outcome.ending is Ending.FINISHED, outcome
        assert not self.seen.wrong, self.seen.wrong
        assert self.seen.counted.keys() == set(range(SUBTASKS)), self.seen.counted
        report = audit(self.transport, self.job.name)
        assert report.healthy, str(report)
        status = self.local.client.status()
        assert status is not None
        return status


def _longest(times: list[float], since: float, until: float) -> float:
    before = max((at for at in times if at <= since), default=since)
    points = [before, *(at for at in times if since < at <= until), until]
    return max(later - earlier for earlier, later in pairwise(points))


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """TimeoutError names ``what`` was missing."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {DEADLINE_S:g} s: {what}")
        time.sleep(_LOOK_S)


# ---- the faults: each is given a job that runs on three brokers, and leaves three brokers that run


def kill_leaders(watched: Watched) -> None:
    """Kill the leader of one topic after another, and start it again once the job goes on without it."""
    topics = watched.topics
    for topic in (topics.acks, topics.checkpoints, _TRANSACTIONS):
        leader = watched.leader(topic)
        leader.kill()
        watched.wait_progress(f"without the leader of {topic}")
        leader.start()
        watched.wait_whole()


def restart_in_turn(watched: Watched) -> None:
    """Stop and start every broker, one after the other."""
    for broker in watched.cluster:
        broker.stop()
        watched.wait_progress("while a broker is restarted")
        broker.start()
        watched.wait_whole()


def freeze_leader(watched: Watched) -> None:
    """Stop the process of the broker that leads the acks topic; its connections stay open."""
    leader = watched.leader(watched.topics.acks)
    leader.pause()
    try:
        watched.wait_progress("without the broker that is frozen")
    finally:
        leader.resume()
    watched.wait_whole()


def lose_one(watched: Watched) -> None:
    """Kill a broker for good, and let another process look at the job: its clients do not know who is gone."""
    lost = watched.cluster[0]
    lost.kill()
    watched.wait_progress("without the first broker")
    with closing(KafkaTransport(watched.cluster.bootstrap, watched.transport.config.client_settings)) as other:
        assert JobClient(other, watched.job.name).status() is not None
    lost.start()
    watched.wait_whole()


def stall_at_the_end(watched: Watched) -> None:
    """Freeze two of three brokers for 20 s while the job ends: its end cannot be written, nor told."""
    stalled = [watched.leader(watched.topics.checkpoints)]
    stalled.append(next(broker for broker in watched.cluster if broker is not stalled[0]))
    watched.seen.ending.set()
    for broker in stalled:
        broker.pause()
    try:
        time.sleep(20.0)  # the outage itself; nothing is waited for
    finally:
        for broker in stalled:
            broker.resume()


FAULTS: dict[str, Callable[[Watched], None]] = {
    "each leader killed": kill_leaders,
    "rolling restart": restart_in_turn,
    "a leader frozen": freeze_leader,
    "one broker gone": lose_one,
    "two frozen at the end": stall_at_the_end,
}


@dataclass(frozen=True)
class Pauses:
    """Pauses that one fault cost one job, in seconds."""

    fault: str
    clients: str
    events_s: float
    checkpoints_s: float
    failovers: int


@contextmanager
def watched(cluster: EmbeddedCluster, client_settings: dict[str, str]) -> Iterator[Watched]:
    """A job that has completed checkpoints."""
    made = Watched(cluster, client_settings)
    with closing(made.transport), made.local:
        made.wait_progress("at first")
        yield made


def measure(cluster: EmbeddedCluster, fault: str, clients: str, client_settings: dict[str, str]) -> Pauses:
    """Run a job through the fault to its end; AssertionError if anything was lost or doubled."""
    with watched(cluster, client_settings) as job:
        time.sleep(STEADY_S)
        began = time.monotonic()
        FAULTS[fault](job)
        events, checkpoints = job.longest(began)
        status = job.finish()
        failovers = status.failovers_region + status.failovers_global
        return Pauses(fault, clients, events, checkpoints, failovers)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lost_brokers", description=__doc__)
    parser.add_argument("--fault", choices=FAULTS, action="append", help="only this one; may be repeated")
    parser.add_argument("--client", action="append", default=[], metavar="NAME=VALUE", help="a client setting, instead")
    parser.add_argument("--session-s", type=float, default=9.0, help="broker.session.timeout.ms, in seconds")
    parser.add_argument("--json", type=Path, metavar="FILE")
    asked = parser.parse_args()
    clients = {"librdkafka's": LIBRDKAFKA, "Penstock's": {}}
    if asked.client:
        clients = {", ".join(asked.client): dict(setting.split("=", 1) for setting in asked.client)}
    session = {"broker.session.timeout.ms": str(int(asked.session_s * 1000))}
    found = []
    with tempfile.TemporaryDirectory() as folder, EmbeddedCluster(folder, extra_properties=session) as cluster:
        for fault in asked.fault or FAULTS:
            for name, settings in clients.items():
                found.append(measure(cluster, fault, name, settings))
                print(found[-1], flush=True)
    table = Table("fault", "clients' settings", "events, s", "checkpoints, s", "failovers")
    for one in found:
        table.add_row(one.fault, one.clients, f"{one.events_s:.1f}", f"{one.checkpoints_s:.1f}", str(one.failovers))
    Console().print(table)
    if asked.json:
        asked.json.write_text(json.dumps([asdict(one) for one in found], indent=1))


if __name__ == "__main__":
    main()
