"""Two counting operators whose seed decides what goes wrong, and when (after Flink's CoordinatorEventsExactlyOnce).

Coordinators run in the driver and subtasks in Spark's workers, which are killed on the way. What each side has seen
and which faults have struck therefore stands in files of one folder.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from penstock import (
    CheckpointResult,
    CheckpointSettings,
    Context,
    EventContext,
    Finished,
    Gateway,
    Idle,
    Job,
    OperatorCoordinator,
    RestartStrategy,
    Subtask,
)

EVENTS = {"fast": 200, "slow": 10}
PACE_S = {"fast": 0.001, "slow": 0.1}
SUBTASKS = 2
VOID = -1
"""Sent where nobody may receive it."""
CALLBACKS = (
    "start", "step", "execution_attempt_ready", "execution_attempt_failed", "handle_event_from_operator",
    "checkpoint_coordinator", "notify_checkpoint_complete", "reset_to_checkpoint", "subtask_reset",
    "notify_checkpoint_aborted",
)  # fmt: skip
"""Where a coordinator may raise."""
PERHAPS_NEVER_CALLED = ("subtask_reset", "notify_checkpoint_aborted")
"""A global failover may forestall the one, and nothing may be pending for the other."""
ALONG_THE_WAY = ("before handling", "after handling", "in snapshot", "after snapshot", "when told")
AT_THE_END = ("in last snapshot", "after last snapshot")


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong once. Its marker file says that it has struck; it outlives the process that it hits."""

    operator: str
    subtask: int
    """-1: the coordinator."""
    what: str
    """raise, kill, fail job, fail future."""
    where: str
    at: int = 0
    """How many numbers have been handled, or sent, by then."""
    delay_s: float = 0.0

    def __str__(self) -> str:
        who = "coordinator" if self.subtask < 0 else str(self.subtask)
        return f"{self.operator} {who}: {self.what} {self.where} at {self.at}"


@dataclass(frozen=True)
class Plan:
    """All that one round is told; plain data, which travels to the workers."""

    seed: int
    policy: str
    folder: Path
    faults: tuple[Fault, ...]
    traced: bool = False

    def of(self, operator: str, subtask: int = -1) -> tuple[Fault, ...]:
        return tuple(fault for fault in self.faults if (fault.operator, fault.subtask) == (operator, subtask))

    def struck(self, fault: Fault) -> bool:
        return self._marker(fault).exists()

    def strikes(self, fault: Fault) -> bool:
        """Whether this is the moment: True once, in whichever process asks first."""
        return once(self._marker(fault))

    def _marker(self, fault: Fault) -> Path:
        return self.folder / f"struck {fault}"


def once(marker: Path) -> bool:
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def plan_of(seed: int, policy: str, folder: Path, traced: bool = False) -> Plan:
    """What this seed wants to go wrong."""
    chance = random.Random(f"{policy} {seed}")
    faults = []
    for operator, total in EVENTS.items():
        faults.append(Fault(operator, -1, "fail job", "in step", chance.randint(2 * total // 3, 5 * total // 6)))
    operator, where = chance.choice(list(EVENTS)), chance.choice(CALLBACKS)
    at = 0 if where == "start" else chance.randint(0, EVENTS[operator] // 2)
    faults.append(Fault(operator, -1, "raise", where, at))
    operator = chance.choice(list(EVENTS))
    faults.append(Fault(operator, -1, "fail future", "in step", chance.randint(0, EVENTS[operator] // 2)))
    victims = [(operator, subtask) for operator in EVENTS for subtask in range(SUBTASKS)]
    chance.shuffle(victims)
    kinds = ["raise", "kill", chance.choice(["raise", "kill"]), chance.choice(["raise", "kill"])]
    for (operator, subtask), what in zip(victims, kinds, strict=True):
        faults.append(_along_the_way(chance, operator, subtask, what))
    if chance.random() < 0.4:
        operator, subtask = chance.choice(victims)
        where = chance.choice(AT_THE_END)
        what = "kill" if where.startswith("after") else chance.choice(["raise", "kill"])
        faults.append(Fault(operator, subtask, what, where, EVENTS[operator], chance.uniform(0, 0.01)))
    if chance.random() < 0.4:  # each coordinator's failure of the job makes its subtask 0 start over
        faults.append(Fault(chance.choice(list(EVENTS)), 0, chance.choice(["raise", "kill"]), "in second open"))
    return Plan(seed, policy, folder, tuple(faults), traced)


def _along_the_way(chance: random.Random, operator: str, subtask: int, what: str) -> Fault:
    where = chance.choice(ALONG_THE_WAY)
    if where == "after snapshot":
        what = "kill"
    return Fault(operator, subtask, what, where, chance.randrange(EVENTS[operator]), chance.uniform(0, 0.005))


class Counting(OperatorCoordinator):
    """Sends 0, 1, 2, ... to each subtask and keeps what it is told.

    A checkpoint's future completes a step after it was asked for. Nothing is sent to a subtask between its attempt's
    failure and its successor's readiness; then one more event goes through the old gateway. Under ``reset`` it sends
    again what a subtask lost.
    """

    def __init__(self, name: str, plan: Plan, made: dict[str, Counting]) -> None:
        self.name, self.plan = name, plan
        made[name] = self
        self.faults = plan.of(name)
        self.called: set[str] = set()
        """Callbacks that have come since it was their turn to raise."""
        self.furthest = 0
        """How many numbers subtask 0 has been sent at most, whatever was rolled back since."""
        self.sent: list[tuple[int, int, Any]] = []
        """(subtask, number, future) of every event."""
        self.gateways: dict[int, Gateway] = {}
        self.old: dict[int, Gateway] = {}
        self.rolled_back: set[int] = set()
        """Subtasks whose old gateway belongs to an epoch that has been rolled back."""
        self.owed: list[tuple[int, CheckpointResult]] = []
        self.may_go_back = False
        self._become(None)

    def _become(self, state: dict[str, Any] | None) -> None:
        nothing: list[list[Any]] = [[] for _ in range(SUBTASKS)]
        state = state or {"next": [0] * SUBTASKS, "told": nothing, "kept": nothing}
        self.next = list(state["next"])
        self.told = [list(told) for told in state["told"]]
        """Everything in the order in which it came, with what failovers have undone."""
        self.kept = [[tuple(entry) for entry in kept] for kept in state["kept"]]
        """(number, checkpoint it belongs to), without what failovers have undone."""
        self.next_at: dict[int, list[int]] = {}
        """What had been sent at the cut of each checkpoint."""

    def start(self) -> None:
        self._perhaps_raise("start")
        self.context.call_every(PACE_S[self.name], self._step)

    def _step(self) -> None:
        self._perhaps_raise("step")
        for subtask, gateway in self.gateways.items():
            self._send_next(subtask, gateway)
        for fault in self.faults:
            if fault.what == "fail job" and self.next[0] >= fault.at and self.plan.strikes(fault):
                self.context.fail_job(str(fault))
        owed, self.owed = self.owed, []
        for checkpoint_id, result in owed:
            self._settle(checkpoint_id, result)

    def _settle(self, checkpoint_id: int, result: CheckpointResult) -> None:
        for fault in self.faults:
            if fault.what == "fail future" and self.next[0] >= fault.at and self.plan.strikes(fault):
                result.fail(str(fault))
                return
        self.next_at[checkpoint_id] = list(self.next)
        result.complete({"next": self.next, "told": self.told, "kept": self.kept})

    def _send_next(self, subtask: int, gateway: Gateway) -> None:
        """The second half only when there is a checkpoint to go back to: what fails then does not begin anew."""
        end = EVENTS[self.name] if self.may_go_back else EVENTS[self.name] // 2
        if self.next[subtask] < end:
            self._send(subtask, gateway, self.next[subtask])
            self.next[subtask] += 1
            self.furthest = max(self.furthest, self.next[0])

    def _send(self, subtask: int, gateway: Gateway, number: int) -> None:
        future = gateway.send_event([number, self.context.epoch, gateway.attempt])
        self.sent.append((subtask, number, future))

    def _perhaps_raise(self, callback: str) -> None:
        for fault in self.faults:
            if fault.what == "raise" and fault.where == callback and self.furthest >= fault.at:
                self.called.add(callback)
                if self.plan.strikes(fault):
                    raise RuntimeError(str(fault))

    # ---- callbacks

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Gateway) -> None:
        self._perhaps_raise("execution_attempt_ready")
        old = self.old.pop(subtask, None)
        self.gateways[subtask] = gateway
        if old is None:
            return
        if self.plan.policy == "replay" and subtask not in self.rolled_back:
            self._send_next(subtask, old)  # goes to the successor
        else:
            self._send(subtask, old, VOID)
        self.rolled_back.discard(subtask)

    def execution_attempt_failed(self, subtask: int, attempt: int, reason: str | None) -> None:
        self._perhaps_raise("execution_attempt_failed")
        self._stall(subtask)

    def _stall(self, subtask: int) -> None:
        """Nothing is sent to the subtask until its successor is ready."""
        gateway = self.gateways.pop(subtask, None)
        if gateway is not None:
            self.old[subtask] = gateway

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        self._perhaps_raise("subtask_reset")
        self.kept[subtask] = [(number, belongs) for number, belongs in self.kept[subtask] if belongs <= checkpoint_id]
        if self.plan.policy == "reset":
            self.next[subtask] = self.next_at[checkpoint_id][subtask] if checkpoint_id >= 0 else 0

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        self._perhaps_raise("checkpoint_coordinator")
        self.owed.append((checkpoint_id, result))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.may_go_back = True
        self._perhaps_raise("notify_checkpoint_complete")
        self.next_at = {n: sent for n, sent in self.next_at.items() if n >= checkpoint_id}

    def notify_checkpoint_aborted(self, checkpoint_id: int, reason: str) -> None:
        self._perhaps_raise("notify_checkpoint_aborted")
        self.owed = [(n, result) for n, result in self.owed if n != checkpoint_id]

    def reset_to_checkpoint(self, checkpoint_id: int, state: dict[str, Any] | None) -> None:
        self._perhaps_raise("reset_to_checkpoint")
        for subtask in list(self.gateways):
            self._stall(subtask)
        self.rolled_back = set(self.old)
        self.owed = []
        self.may_go_back = checkpoint_id >= 0
        self._become(state)
        self.next_at[checkpoint_id] = list(self.next)

    def handle_event_from_operator(self, subtask: int, attempt: int, event: int, context: EventContext) -> None:
        self._perhaps_raise("handle_event_from_operator")
        self.told[subtask].append(event)
        self.kept[subtask].append((event, context.belongs_to))


class Listing(Subtask):
    """Keeps the numbers it was sent and tells each back; ends with the last one, once its faults have struck."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.got: list[int] = []
        self.ended = False

    def open(self, context: Context) -> None:
        self.context = context
        self.faults = self.plan.of(context.operator, context.subtask)
        name = f"handled {context.operator} {context.subtask} {context.fencing_token.epoch} {context.attempt}"
        self.journal = os.open(self.plan.folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if not once(self.plan.folder / f"opened {context.operator} {context.subtask}"):
            self._suffer("in second open")

    def restore_state(self, checkpoint_id: int, state: list[int]) -> None:
        self.got = list(state)
        self._write({"restored": state, "checkpoint": checkpoint_id})

    def handle_operator_event(self, event: list[int]) -> None:
        self._suffer("before handling")
        number, epoch, attempt = event
        self.got.append(number)
        self._write({"handled": number, "epoch": epoch, "attempt": attempt})
        self.context.send_event_to_coordinator(number)
        self._suffer("after handling")

    def poll(self) -> Idle | Finished:
        whole = len(self.got) >= EVENTS[self.context.operator]
        self.ended = whole and all(self.plan.struck(f) for f in self.faults if f.where in ALONG_THE_WAY)
        return Finished() if self.ended else Idle(0.02)

    def snapshot_state(self, checkpoint_id: int) -> list[int]:
        self._suffer("in snapshot")
        self._suffer("after snapshot")
        if self.ended:
            self._suffer("in last snapshot")
            self._suffer("after last snapshot")
        return self.got

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._suffer("when told")

    def close(self) -> None:
        os.close(self.journal)

    def _suffer(self, where: str) -> None:
        for fault in self.faults:
            if fault.where == where and len(self.got) >= fault.at and self.plan.strikes(fault):
                if fault.what == "raise":
                    raise RuntimeError(str(fault))
                if where.startswith("after") and where.endswith("snapshot"):
                    threading.Timer(fault.delay_s, _die).start()
                else:
                    _die()

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self.journal, json.dumps(line).encode() + b"\n")  # at once: nobody flushes for a killed process


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class ListingFactory:
    """Makes subtasks; in a worker of a traced round the log begins with its arrival."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __call__(self) -> Listing:
        return Listing(self.plan)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.plan.traced:
            trace_into(self.plan.folder / f"worker {os.getpid()}.log")


def trace_into(file: Path) -> logging.Handler:
    """Everything that Penstock logs in this process, step by step."""
    handler = logging.FileHandler(file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(threadName)s %(message)s"))
    logger = logging.getLogger("penstock")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    return handler


def counting_job(name: str, plan: Plan, made: dict[str, Counting]) -> Job:
    """``made`` receives the coordinators."""
    job = Job(
        name,
        checkpoint=CheckpointSettings(interval=0.01, timeout=10.0, max_concurrent=1),
        restart=RestartStrategy(backoff_next=0.01, backoff_max=0.05, budget=1000),
        heartbeat_interval=0.2,
        heartbeat_timeout=20.0,
    )
    for operator in EVENTS:
        job.operator(
            operator,
            coordinator=partial(Counting, operator, plan, made),
            subtask=ListingFactory(plan),
            parallelism=SUBTASKS,
            on_failover=plan.policy,
            codec="json",
            state_codec="json",
        )
    return job
