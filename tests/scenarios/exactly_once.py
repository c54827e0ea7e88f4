"""The job of Flink's CoordinatorEventsExactlyOnceITCase (C5): integers to two operators, and failures on the way.

Each coordinator has a thread of its own, as in Flink: callbacks only leave word there, and the thread sends, cuts and
fails the job. Told of a failed attempt it stalls until the successor's attempt is ready, then sends one more integer
through the OLD gateway. Only behind that it learns of the reset, and of the new gateway.
"""

from __future__ import annotations

import json
import queue
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import penstock
from penstock.schemas.events import FailoverPolicy
from penstock.testing import LocalJob

PATIENCE_S = 30.0
EVENTS = {"fast": 200, "slow": 10}
PACE_S = {"fast": 0.001, "slow": 0.1}
INTERVAL_S = 0.01


@dataclass
class OldSend:
    """One integer sent through the gateway of an attempt that had been replaced."""

    number: int
    future: penstock.EventFuture
    undone_by: str = ""
    """What the coordinator was told next: subtask_reset or reset_to_checkpoint."""


@dataclass
class Script:
    """What is to go wrong with one operator, and what did; shared by all its instances."""

    name: str
    seed: int
    subtask_fails: bool
    """Whether the subtask raises once too, so that there is a region failover."""
    job_failures: int = 0
    subtask_failures: int = 0
    stands: bool = False
    """A checkpoint has completed that was cut behind the subtask's failure: no rollback goes back before that one."""
    old_sends: list[OldSend] = field(default_factory=list)
    sent_again: int = 0
    """How many integers subtask_reset has taken back."""
    threads: list[threading.Thread] = field(default_factory=list)
    broken: list[BaseException] = field(default_factory=list)
    """What the coordinators' own threads raised."""

    def __post_init__(self) -> None:
        chance, total = random.Random(f"{self.name}-{self.seed}"), EVENTS[self.name]
        self.job_fails_at = chance.randint(2 * total // 3, 5 * total // 6)
        self.subtask_raises_at = chance.randint(total // 3, total // 2)


class Sending(penstock.OperatorCoordinator):
    """Sends 0, 1, 2, ... to its one subtask. Its state is the next integer."""

    def __init__(self, script: Script, scripts: list[Script], policy: FailoverPolicy) -> None:
        self.script, self.scripts, self.policy = script, scripts, policy
        self.total, self.pace_s = EVENTS[script.name], PACE_S[script.name]
        self._words: queue.Queue[Callable[[], None]] = queue.Queue()
        self._ready_to_come: list[threading.Event] = []
        self._stopped = threading.Event()
        # Below: the own thread's alone.
        self.next = 0
        self.gateway: penstock.Gateway | None = None
        self.requested: tuple[int, penstock.CheckpointResult] | None = None
        self.cuts = {-1: 0}
        """The next integer at each cut that a subtask may go back to: what is sent again begins there."""
        self._await_a_cut()

    # ---- callbacks: they leave word

    def start(self) -> None:
        thread = threading.Thread(target=self._run, name=f"{self.script.name}-thread", daemon=True)
        self.script.threads.append(thread)
        thread.start()

    def close(self) -> None:
        self._stopped.set()
        self._words.put(lambda: None)

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: penstock.Gateway) -> None:
        for waiting in self._ready_to_come:
            waiting.set()
        self._ready_to_come.clear()
        self._words.put(lambda: self._adopt(gateway))

    def execution_attempt_failed(self, subtask: int, attempt: int, reason: str | None) -> None:
        successor_is_ready = threading.Event()
        self._ready_to_come.append(successor_is_ready)
        self._words.put(lambda: self._send_through_the_old(successor_is_ready))

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        self._words.put(lambda: self._reset_subtask(checkpoint_id))

    def reset_to_checkpoint(self, checkpoint_id: int, state: int | None) -> None:
        self._words.put(lambda: self._reset(checkpoint_id, 0 if state is None else state))

    def checkpoint_coordinator(self, checkpoint_id: int, result: penstock.CheckpointResult) -> None:
        self._words.put(lambda: self._request(checkpoint_id, result))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._words.put(lambda: self._complete(checkpoint_id))

    # ---- the own thread

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    self._words.get(timeout=self.pace_s)()
                except queue.Empty:
                    self._step()
        except BaseException as error:
            self.script.broken.append(error)
            self.context.fail_job(error)

    def _step(self) -> None:
        """Every pace: sends one; if a checkpoint was asked for, completes it and sends one right behind the cut."""
        self._act()
        if self.requested is not None:
            (n, result), self.requested = self.requested, None
            self.cuts[n] = self.next
            if self.next_cut_stands:
                self.cut_that_stands, self.next_cut_stands = n, False
            result.complete(self.next)
            self._act()

    def _act(self) -> None:
        if self.gateway is None:
            return
        if self.next >= self.script.job_fails_at and self.script.job_failures == 0:
            # Else there would be nothing to go back to, or the rollback would take back what a subtask had lost.
            if all(script.stands for script in self.scripts):
                self.script.job_failures += 1
                self.context.fail_job("the script says so")
        elif self.next < self.total:
            self._send(self.gateway)

    def _send(self, gateway: penstock.Gateway) -> penstock.EventFuture:
        future = gateway.send_event(self.next)
        self.next += 1
        return future

    def _send_through_the_old(self, successor_is_ready: threading.Event) -> None:
        while not successor_is_ready.wait(0.05):
            if self._stopped.is_set():
                return
        if self.gateway is not None and self.next < self.total:
            self.script.old_sends.append(OldSend(self.next, self._send(self.gateway)))
        self.gateway = None

    def _adopt(self, gateway: penstock.Gateway) -> None:
        self.gateway = gateway

    def _request(self, checkpoint_id: int, result: penstock.CheckpointResult) -> None:
        self.requested = checkpoint_id, result

    def _complete(self, checkpoint_id: int) -> None:
        if self.cut_that_stands is not None and checkpoint_id >= self.cut_that_stands:
            self.script.stands = True
        self.cuts = {n: sent for n, sent in self.cuts.items() if n >= checkpoint_id}

    def _reset_subtask(self, checkpoint_id: int) -> None:
        """Under replay the log gives the subtask its integers again; under reset that is this thread's task."""
        self._undone_by("subtask_reset")
        self._await_a_cut()
        if self.policy is FailoverPolicy.RESET:
            self.script.sent_again += self.next - self.cuts[checkpoint_id]
            self.next = self.cuts[checkpoint_id]

    def _reset(self, checkpoint_id: int, state: int) -> None:
        self._undone_by("reset_to_checkpoint")
        self.next, self.cuts, self.requested = state, {checkpoint_id: state}, None
        self._await_a_cut()

    def _await_a_cut(self) -> None:
        """From here on: is the next cut behind the subtask's failure, and which one was?"""
        self.next_cut_stands = self.script.subtask_failures > 0 or not self.script.subtask_fails
        self.cut_that_stands: int | None = None

    def _undone_by(self, what: str) -> None:
        for old in self.script.old_sends:
            old.undone_by = old.undone_by or what


class Listing(penstock.Subtask):
    """Keeps what it was sent, and has finished with the last one."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.got: list[int] = []

    def handle_operator_event(self, event: int) -> None:
        script = self.script
        if script.subtask_fails and len(self.got) == script.subtask_raises_at and script.subtask_failures == 0:
            script.subtask_failures += 1
            raise RuntimeError("the script says so")
        self.got.append(event)

    def poll(self) -> penstock.Idle | penstock.Finished:
        return penstock.Finished() if len(self.got) >= EVENTS[self.script.name] else penstock.Idle()

    def snapshot_state(self, checkpoint_id: int) -> list[int]:
        return self.got

    def restore_state(self, checkpoint_id: int, state: list[int]) -> None:
        self.got = list(state)


def exactly_once_job(policy: FailoverPolicy, scripts: list[Script]) -> penstock.Job:
    """Two independent operators of one subtask each, as upstream's."""
    job = penstock.Job(
        "exactly-once",
        checkpoint=penstock.CheckpointSettings(interval=INTERVAL_S),
        restart=penstock.RestartStrategy(backoff_next=0.01, backoff_max=0.05, budget=100),
        heartbeat_interval=0.1,
        heartbeat_timeout=PATIENCE_S,
    )
    for script in scripts:
        job.operator(
            script.name,
            coordinator=lambda script=script: Sending(script, scripts, policy),  # type: ignore[misc]
            subtask=lambda script=script: Listing(script),  # type: ignore[misc]
            parallelism=1,
            on_failover=policy,
            codec="json",
            state_codec="json",
        )
    return job


def final_lists(running: LocalJob) -> dict[str, list[int]]:
    """What the last completed checkpoint, which contains every subtask's end, holds of each."""
    last = running.client.history().last
    assert last is not None
    lists = {}
    for subtask, snapshot in last.subtasks.items():
        assert snapshot.finished
        assert snapshot.state is not None
        assert snapshot.state.inline is not None
        lists[subtask.operator] = json.loads(snapshot.state.inline)
    return lists
