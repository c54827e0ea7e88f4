"""Two operators over real Kafka, failures at random moments of their own making, and lists that must be exact.

After Flink's CoordinatorEventsExactlyOnceITCase: one coordinator sends many small events quickly, the other few and
slowly; futures of checkpoints complete a step after they were asked for, so that events fall between trigger and cut;
an old gateway is used after its successor is up; coordinators fail the job, subtasks raise, and another coordinator
process takes over.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable

import pytest

import penstock
from penstock.broker import EmbeddedBroker
from penstock.coordinator.options import CoordinatorOptions
from penstock.schemas.events import FailoverPolicy
from penstock.schemas.status import Ending
from penstock.testing import LocalJob
from penstock.transport.kafka import KafkaTransport
from penstock.transport.kafka_shared import SharedKafkaTransport
from tests.rounds import rounds

DEADLINE_S = 180.0
EVENTS = {"fast": 200, "slow": 10}
PACE_S = {"fast": 0.001, "slow": 0.1}
SUBTASKS = 2


class Chance:
    """One seed decides what goes wrong and when; shared by the threads of one test."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.coordinator_failures = self.subtask_failures = 0
        self.taken_over = threading.Event()
        """Before it is set nobody is sent the last events: the job cannot end too early."""

    def between(self, low: int, high: int) -> int:
        with self._lock:
            return self._random.randint(low, high)


class Counting(penstock.OperatorCoordinator):
    """Sends 0, 1, 2, ... to each subtask; its state is what it sent next, and what it has been told."""

    def __init__(self, name: str, chance: Chance) -> None:
        self.name, self.chance = name, chance
        self.gateways: dict[int, penstock.Gateway] = {}
        self.next = [0] * SUBTASKS
        self.told: list[list[int]] = [[] for _ in range(SUBTASKS)]
        total = EVENTS[name]
        self.fails_at = chance.between(2 * total // 3, 5 * total // 6)

    def start(self) -> None:
        self.context.call_every(PACE_S[self.name], self._send)

    def _send(self) -> None:
        end = EVENTS[self.name] - (0 if self.chance.taken_over.is_set() else 2)
        for subtask, gateway in self.gateways.items():
            if self.next[subtask] < end:
                gateway.send_event(self.next[subtask])
                self.next[subtask] += 1
        if self.next[0] == self.fails_at and self.chance.coordinator_failures < 2:
            self.chance.coordinator_failures += 1
            self.fails_at = -1
            self.context.fail_job("this seed wants it")

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: penstock.Gateway) -> None:
        old = self.gateways.get(subtask)
        if old is not None and self.next[subtask] < EVENTS[self.name] - 2:
            old.send_event(self.next[subtask])  # through the gateway of the attempt before
            self.next[subtask] += 1
        self.gateways[subtask] = gateway

    def checkpoint_coordinator(self, checkpoint_id: int, result: penstock.CheckpointResult) -> None:
        def later() -> None:
            result.complete({"next": self.next, "told": self.told})

        self.context.call_later(PACE_S[self.name], later)

    def reset_to_checkpoint(self, checkpoint_id: int, state: dict | None) -> None:
        self.gateways.clear()
        state = state or {"next": [0] * SUBTASKS, "told": [[] for _ in range(SUBTASKS)]}
        self.next, self.told = list(state["next"]), [list(told) for told in state["told"]]

    def handle_event_from_operator(
        self, subtask: int, attempt: int, event: int, context: penstock.EventContext
    ) -> None:
        self.told[subtask].append(event)

    def handle_request(self, request: object) -> object:
        return self.told


class Listing(penstock.Subtask):
    """Keeps what it was sent, tells every event back, and finishes with the last one."""

    def __init__(self, name: str, chance: Chance) -> None:
        self.name, self.chance = name, chance
        self.got: list[int] = []
        total = EVENTS[name]
        self.raises_at = chance.between(total // 3, total // 2)

    def open(self, context: penstock.Context) -> None:
        self.context = context

    def handle_operator_event(self, event: int) -> None:
        if len(self.got) == self.raises_at and self.chance.subtask_failures < 3:
            self.chance.subtask_failures += 1
            raise RuntimeError("this seed wants it")
        self.got.append(event)
        self.context.send_event_to_coordinator(event)

    def poll(self) -> penstock.Idle | penstock.Finished:
        return penstock.Finished() if len(self.got) >= EVENTS[self.name] else penstock.Idle(0.05)

    def snapshot_state(self, checkpoint_id: int) -> list[int]:
        return self.got

    def restore_state(self, checkpoint_id: int, state: list[int]) -> None:
        self.got = list(state)


def counting_job(name: str, policy: FailoverPolicy, finals: dict[str, list[list[int]]], chance: Chance) -> penstock.Job:
    class Told(Counting):
        def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
            finals[self.name] = [list(told) for told in self.told]

    job = penstock.Job(
        name,
        checkpoint=penstock.CheckpointSettings(interval=0.01, timeout=5.0),
        restart=penstock.RestartStrategy(budget=1000),
        heartbeat_interval=0.1,
        heartbeat_timeout=10.0,
    )
    for name in EVENTS:
        job.operator(
            name,
            coordinator=lambda name=name: Told(name, chance),  # type: ignore[misc]
            subtask=lambda name=name: Listing(name, chance),  # type: ignore[misc]
            parallelism=SUBTASKS,
            on_failover=policy,
            codec="json",
            state_codec="json",
        )
    return job


def states(running: LocalJob) -> dict[str, list[list[int]]]:
    """What the last completed checkpoint holds of each subtask."""
    last = running.client.history().last
    assert last is not None
    lists: dict[str, list[list[int]]] = {name: [[] for _ in range(SUBTASKS)] for name in EVENTS}
    for subtask, snapshot in last.subtasks.items():
        assert snapshot.state is not None
        assert snapshot.state.inline is not None
        lists[subtask.operator][subtask.index] = json.loads(snapshot.state.inline)
    return lists


@pytest.mark.kafka
@pytest.mark.soak
@pytest.mark.parametrize(
    ("clients", "policy"),
    [
        pytest.param(KafkaTransport, FailoverPolicy.REPLAY, marks=pytest.mark.smoke),
        (KafkaTransport, FailoverPolicy.GLOBAL),
        (SharedKafkaTransport, FailoverPolicy.REPLAY),
        pytest.param(SharedKafkaTransport, FailoverPolicy.GLOBAL, marks=pytest.mark.smoke),
    ],
)
@pytest.mark.parametrize("seed", rounds())
def test_lists_are_exact_whatever_fails(
    kafka_broker: EmbeddedBroker,
    policy: FailoverPolicy,
    clients: type[KafkaTransport],
    seed: int,
    record_property: Callable[[str, object], None],
) -> None:
    """G1, G2, G3, G4; section 11. With clients of their own, and with one consumer and one producer for all."""
    chance = Chance(seed)
    finals: dict[str, list[list[int]]] = {}
    job = counting_job(f"soak-{policy.value}-{clients.__name__.lower()}-{seed}", policy, finals, chance)
    transport = clients(kafka_broker.bootstrap)
    options = CoordinatorOptions(status_interval_s=0.02)
    with LocalJob(job, transport, options) as first:
        first.wait_for(lambda s: min(s.checkpoints_completed, s.failovers_region + s.failovers_global) > 0, DEADLINE_S)
        second = LocalJob(job, transport, subtasks=False)
        with second:  # fences the first; the subtasks stay up and roll back in place
            assert first.wait(DEADLINE_S).ending is Ending.FENCED
            chance.taken_over.set()
            outcome = second.wait(DEADLINE_S)
        assert outcome.ending is Ending.FINISHED, outcome
        assert states(second) == {name: [list(range(n))] * SUBTASKS for name, n in EVENTS.items()}
    assert chance.subtask_failures > 0
    record_property("faults", chance.coordinator_failures + chance.subtask_failures + 1)  # and the takeover
    told = finals
    if policy is FailoverPolicy.GLOBAL:
        assert told == {name: [list(range(n))] * SUBTASKS for name, n in EVENTS.items()}
    else:  # events that a region failover undid may stand among them, in order
        for name, n in EVENTS.items():
            for heard in told[name]:
                assert set(heard) == set(range(n))
    transport.close()
