"""An operator in the middle of a job takes events (after Flink's CoordinatorEventsToStreamOperatorRecipient).

An idle source feeds it, and a sink takes what it got. Its coordinator sends 0 to 99. The subtask keeps each snapshot
back until its coordinator has sent something behind that checkpoint's cut: so its barrier is late for certain.

Coordinators and subtasks may run in different processes, which may be killed. What each has to know of the other, and
which faults have struck, stands in files of one folder.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
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

EVENTS = 100
END = "end"
WHERE = "where"
"""Asks a new attempt which event it has last. The answer to an event covers what a checkpoint's ranges gave back.

It repeats whom was asked: behind a global failover answers of the attempt before may come once more.
"""
PATIENCE_S = 180.0
CUTS = ("before the cut", "at the cut", "behind the cut")
"""Where in the second checkpoint the coordinator raises."""
FAILS = ("", "raise", "kill")
HELD = 3
"""So many events are sent, and held, behind the second cut before the coordinator raises there."""


@dataclass(frozen=True)
class Plan:
    """All that one round is told; plain data, which travels to the workers."""

    folder: Path
    policy: str
    raises: str
    """One of ``CUTS``."""
    subtask_fails: str
    """One of ``FAILS``."""
    before_first: int
    """So many events are sent before the first cut at most."""
    fails_at: int
    """The subtask fails on this event."""
    keyed: bool
    pace_s: float

    def mark(self, what: str, content: Any = None) -> bool:
        """True once, in whichever process is first; the file appears with its content."""
        draft = self.folder / f"draft {os.getpid()} {time.monotonic_ns()}"
        draft.write_text(json.dumps(content))
        try:
            os.link(draft, self.folder / what)
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        return True

    def marked(self, what: str) -> bool:
        return (self.folder / what).exists()

    def read(self, what: str) -> Any:
        return json.loads((self.folder / what).read_text())


def plan_of(seed: int, folder: Path, policy: str, subtask_fails: str, pace_s: float) -> Plan:
    chance = random.Random(f"{seed} {policy} {subtask_fails}")
    cut = CUTS[(seed + FAILS.index(subtask_fails) + (policy == "reset")) % len(CUTS)]  # each of them in every round
    return Plan(
        folder, policy, cut, subtask_fails, chance.randint(1, EVENTS // 6 - 1),
        chance.randrange(EVENTS // 3, EVENTS // 2), chance.random() < 0.5, pace_s,
    )  # fmt: skip


class Sending(OperatorCoordinator):
    """Sends 0 to 99, then END. It raises once, when the first checkpoint is complete and the second is not."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.gateway: Gateway | None = None
        """None: nothing may be sent now."""
        self.asked: Gateway | None = None
        """To the attempt that has been asked where it stands."""
        self.next = 0
        self.completed: list[int] = []
        self.cuts: list[int] = []
        """Checkpoints behind whose cut nothing has been sent yet."""
        self.second = -1
        """The checkpoint that is not to complete before this coordinator has raised."""
        self.held = 0

    def start(self) -> None:
        self.context.call_every(self.plan.pace_s, self._step)

    def _step(self) -> None:
        if self.gateway is None or self.next > self._limit():
            return
        number = self.next
        self.gateway.send_event(END if number == EVENTS else number)
        self.next += 1
        if self.second < 0:
            self._release(number)
            return
        self.held += 1
        if self.held == HELD:
            self._fail()

    def _limit(self) -> int:
        """The last number that may be sent now. Before it has failed it keeps away from where the subtask fails."""
        if self.plan.marked("coordinator failed"):
            return EVENTS
        if not self.completed and not self.plan.marked("first cut"):
            return self.plan.before_first - 1
        return EVENTS // 3 - 1 - (HELD if self.second < 0 else 0)

    def _release(self, number: int) -> None:
        for checkpoint_id in self.cuts:
            self.plan.mark(f"behind {checkpoint_id}", number)
        self.cuts = []

    def _fail(self) -> None:
        if self.plan.mark("coordinator failed", {"completed": self.completed, "second": self.second}):
            raise RuntimeError(f"the coordinator fails {self.plan.raises}")

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        failing = bool(self.completed) and not self.plan.marked("coordinator failed")
        if failing:
            self.second = checkpoint_id
        self.cuts.append(checkpoint_id)
        if failing and self.plan.raises == "before the cut":
            self._fail()
        if not self.completed:
            self.plan.mark("first cut", self.next)
        result.complete(self.next)
        if failing and self.plan.raises == "at the cut":
            self._fail()
        if self.gateway is None or self.next > EVENTS:
            self._release(-1)  # nothing can be sent

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.completed.append(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int, reason: str) -> None:
        if checkpoint_id in self.cuts:
            self.cuts.remove(checkpoint_id)
            self.plan.mark(f"behind {checkpoint_id}", -1)
        if checkpoint_id == self.second:
            self.second, self.held = -1, 0

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        self._release(-1)
        self.gateway, self.asked, self.next, self.second = None, None, state or 0, -1

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Gateway) -> None:
        if self.plan.policy == "reset":
            gateway.send_event([WHERE, attempt])
            self.asked = gateway
        else:
            self.gateway = gateway

    def execution_attempt_failed(self, subtask: int, attempt: int, reason: str | None) -> None:
        self.gateway = None
        self._release(-1)

    def handle_event_from_operator(self, subtask: int, attempt: int, event: list[int], context: EventContext) -> None:
        """StartEvent: goes on behind the last number that this attempt has."""
        asked, last = event
        if self.asked is not None and asked == self.asked.attempt:
            self.gateway, self.next = self.asked, last + 1


class Idling(Subtask):
    """Emits nothing, and ends when told."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def poll(self) -> Idle | Finished:
        return Finished() if self.plan.marked(END) else Idle(0.01)


class Recipient(Subtask):
    """Keeps the numbers it was sent, and passes them on."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.got: list[int] = []

    def open(self, context: Context) -> None:
        self.context = context

    def restore_state(self, checkpoint_id: int, state: list[int]) -> None:
        self.got = state

    def handle_operator_event(self, event: Any) -> None:
        if event == END:
            self.plan.mark(END)
            return
        if isinstance(event, list):
            _where, attempt = event
            self.context.send_event_to_coordinator([attempt, self.got[-1] if self.got else -1])
            return
        if event == self.plan.fails_at and self.plan.subtask_fails and self.plan.mark("subtask failed"):
            if self.plan.subtask_fails == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError(f"the subtask fails on {event}")
        self.got.append(event)
        self.context.emit(event)

    def snapshot_state(self, checkpoint_id: int) -> list[int]:
        """Section 1, G3: what was sent behind the cut is not in here, and it has been sent by now."""
        mark, deadline = f"behind {checkpoint_id}", time.monotonic() + PATIENCE_S
        while not self.plan.marked(mark):
            assert time.monotonic() < deadline, f"nothing was sent behind the cut of {checkpoint_id}"
            time.sleep(0.001)
        behind = self.plan.read(mark)
        assert behind not in self.got, f"{behind} was sent behind the cut of {checkpoint_id}"
        if behind >= 0:
            self.plan.mark("late")
        return self.got


class Keeping(Subtask):
    """The sink."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    def restore_state(self, checkpoint_id: int, state: list[int]) -> None:
        self.kept = state

    def snapshot_state(self, checkpoint_id: int) -> list[int]:
        return self.kept

    def process(self, record: int, input: str) -> None:
        self.kept.append(record)


def never_called(record: Any) -> None:
    raise AssertionError("the source is idle")


def recipient_job(name: str, plan: Plan, *, unaligned: bool, interval_s: float) -> Job:
    job = Job(
        name,
        checkpoint=CheckpointSettings(interval=interval_s, unaligned=unaligned),
        restart=RestartStrategy(0.0, 0.01, 0.05),
        heartbeat_interval=0.2,
        heartbeat_timeout=20.0,
    )
    source = job.operator("source", subtask=partial(Idling, plan), parallelism=1, on_failover=plan.policy)
    recipient = job.operator(
        "recipient", subtask=partial(Recipient, plan), coordinator=partial(Sending, plan), parallelism=1,
        inputs=[source.keyed_by(never_called) if plan.keyed else source.forward()], on_failover=plan.policy,
        codec="json", state_codec="json", output_codec="json",
    )  # fmt: skip
    job.operator(
        "sink", subtask=Keeping, parallelism=1, inputs=[recipient.rebalance()], on_failover=plan.policy,
        state_codec="json",
    )  # fmt: skip
    return job
