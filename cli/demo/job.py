"""The demo's job: a coordinator hands out splits of the input as events, the subtasks add them up.

Why the result is exactly right, by what the protocol guarantees and nothing else:

* Each split is one event. A subtask adds up whatever it is handed and looks at no split number, so an event that came
  twice, or never, would show in the sums. Events handled since the last checkpoint are undone with the sums they led
  to, and the log gives them again (G2, policy ``replay``).
* The coordinator gives a subtask a few splits ahead and one more for each that is reported done. A report of an
  attempt that was undone may be repeated; it only paces, and ``outstanding`` being a set makes a repeat harmless.
* When everything is handed out each subtask gets ``end``. It answers with its sums, and its own work has finished: the
  last checkpoint contains both. Sums of an undone attempt are dropped in ``subtask_reset``: those that no checkpoint
  up to the restored one can contain. Whatever else arrives is added, not compared: two answers would double the sums.
* ``next``, ``outstanding`` and the answers are the coordinator's checkpointed state; a global rollback resets them.
* The result is written when a completed checkpoint contains every answer (or when such a checkpoint is restored).
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from ...coordinator.api import CheckpointResult, EventContext, Gateway, OperatorCoordinator
from ...job import Job
from ...schemas.settings import CheckpointSettings, RestartStrategy
from ...subtask_client.api import Context, Finished, Idle, PollResult, Progress, Subtask
from .cells import EXACT
from .inputs import Question, Split
from .split_reader import SplitReader

OPERATOR = "adders"
AHEAD = 16
"""Splits that a subtask has at most before it has reported one of them done."""
ANSWER_GROUPS_MAX = 500
"""Groups in one event of an answer: an event must fit into a record."""


class InjectedFault(RuntimeError):
    """Raised in a task because the demo wants it to."""


class _WantedFaults(logging.Filter):
    """The traceback of a fault that the demo wanted would only tear its display."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "InjectedFault" not in record.getMessage() and not (
            record.exc_info and isinstance(record.exc_info[1], InjectedFault)
        )


_wanted_faults = _WantedFaults()


class HandOut(OperatorCoordinator):
    """Hands out the splits in order, collects the answers, writes the result.

    ``gates``: how many splits may be handed out before the first, second, ... fault has come and been survived, so that
    no fault comes too late. The gates passed so far are told by whoever injects the faults, again and again.
    """

    def __init__(self, splits: tuple[Split, ...], gates: tuple[int, ...], result: str) -> None:
        self._splits, self._gates, self._result = splits, gates, Path(result)
        self._gateways: dict[int, Gateway] = {}
        self._workers: dict[int, tuple[int, int]] = {}
        """Subtask to (attempt, process id): for those who want to kill one."""
        self._live: set[int] = set()
        self._gates_passed = 0
        self._failed = self._resets = 0
        self._restored = -1
        self._begin({})

    def _begin(self, state: dict[str, Any]) -> None:
        self.next: int = state.get("next", 0)
        self.sent: int = state.get("sent", 0)
        self.ended: set[int] = set(state.get("ended", ()))
        self.outstanding = {int(s): set(numbers) for s, numbers in state.get("outstanding", {}).items()}
        self.answers: dict[int, list[tuple[int, dict[str, Any]]]] = {
            int(s): [(belongs_to, part) for belongs_to, part in parts] for s, parts in state.get("answers", {}).items()
        }

    # ---- the protocol's callbacks

    def start(self) -> None:
        self._write_if_complete(self._restored)

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        self._begin(state or {})
        self._gateways.clear()
        self._live.clear()
        self._workers.clear()
        self._restored = checkpoint_id
        self._resets += 1

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        result.complete(
            {
                "next": self.next,
                "sent": self.sent,
                "ended": sorted(self.ended),
                "outstanding": {s: sorted(numbers) for s, numbers in self.outstanding.items()},
                "answers": self.answers,
            }
        )

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._write_if_complete(checkpoint_id)

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Gateway) -> None:
        self._gateways[subtask] = gateway
        self._live.add(subtask)
        self._fill(subtask)

    def execution_attempt_failed(self, subtask: int, attempt: int, reason: str | None) -> None:
        # Its gateway stays: what is sent through it goes to the successor (policy replay).
        self._failed += 1
        self._live.discard(subtask)
        self._workers.pop(subtask, None)

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        kept = [(n, part) for n, part in self.answers.get(subtask, ()) if n <= checkpoint_id]
        self.answers[subtask] = kept

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any, context: EventContext) -> None:
        match event:
            case {"worker": int(pid)}:
                self._workers[subtask] = attempt, pid
            case {"done": int(number)}:
                self.outstanding.setdefault(subtask, set()).discard(number)
                self._fill(subtask)
                self.context.metrics.set("splits_done", self.splits_done)
            case {"answer": _}:
                self.answers.setdefault(subtask, []).append((context.belongs_to, event))
                if attempt < 0:  # its subtask had finished before the restored checkpoint, which contains this
                    self._write_if_complete(self._restored)
            case _:
                raise ValueError(f"an event that no subtask of this job sends: {event!r}")

    def handle_request(self, request: Any) -> Any:
        match request:
            case {"gates_passed": int(passed)}:
                self._gates_passed = passed
                for subtask in self._gateways:
                    self._fill(subtask)
            case {"fault": "raise", "subtask": int(subtask)} if subtask in self._gateways:
                gateway = self._gateways[subtask]
                self._send(gateway, {"raise": gateway.attempt})
            case {"fault": "roll back"}:
                # After this request's answer: an unanswered request is asked again of the rolled back coordinator.
                self.context.call_later(0.05, lambda: self.context.fail_job("the demo rolls everything back"))
            case None:
                pass
            case _:
                raise ValueError(f"no request of this job: {request!r}")
        return self.progress()

    @property
    def splits_done(self) -> int:
        return self.next - sum(map(len, self.outstanding.values()))

    def progress(self) -> dict[str, Any]:
        return {
            "splits": len(self._splits),
            "done": self.splits_done,
            "subtasks": self.context.parallelism,
            "live": len(self._live),
            "failed": self._failed,
            "resets": self._resets,
            "workers": {str(s): worker for s, worker in self._workers.items()},
        }

    # ---- handing out

    def _fill(self, subtask: int) -> None:
        gateway = self._gateways[subtask]
        outstanding = self.outstanding.setdefault(subtask, set())
        gates = self._gates[self._gates_passed :]
        may = min(gates[0] if gates else len(self._splits), len(self._splits))
        while self.next < may and len(outstanding) < AHEAD:
            split = self._splits[self.next]
            self._send(gateway, {"split": list(split)})
            outstanding.add(split.number)
            self.next += 1
        if self.next == len(self._splits) and subtask not in self.ended:
            for other, its_gateway in self._gateways.items():
                if other not in self.ended:
                    self.ended.add(other)
                    self._send(its_gateway, {"end": True})

    def _send(self, gateway: Gateway, event: dict[str, Any]) -> None:
        gateway.send_event(event)
        self.sent += 1

    # ---- the result

    def _write_if_complete(self, checkpoint_id: int) -> None:
        answered = [self.answers.get(s, []) for s in range(self.context.parallelism)]
        if not all(parts and parts[-1][1]["last"] and parts[-1][0] <= checkpoint_id for parts in answered):
            return
        result = {
            "checkpoint": checkpoint_id,
            "events_sent": self.sent,
            "answers": [part for parts in answered for _, part in parts],
        }
        beside = self._result.with_suffix(".new")
        beside.write_text(json.dumps(result))
        os.replace(beside, self._result)


class AddUp(Subtask):
    """Adds up the splits it is handed, one per step, at least ``pace_s`` seconds apart."""

    def __init__(self, question: Question, pace_s: float) -> None:
        self._reader = SplitReader(question)
        self._pace_s = pace_s
        self._next_at = 0.0
        self._told = False
        self.queue: deque[Split] = deque()
        self.sums: dict[tuple[str, ...], Decimal] = {}
        self.values = self.missing = self.handled = 0
        self.ended = self.answered = False

    def open(self, context: Context) -> None:
        self.context = context
        logging.getLogger("penstock.subtask").addFilter(_wanted_faults)
        self._splits_done = context.metrics.counter("splits_done")

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.queue = deque(Split(*split) for split in state["queue"])
        self.sums = {tuple(group): Decimal(text) for group, text in state["sums"]}
        self.values, self.missing, self.handled = state["counts"]
        self.ended, self.answered = state["ended"], state["answered"]

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return {
            "queue": [list(split) for split in self.queue],
            "sums": self._shown_sums(),
            "counts": [self.values, self.missing, self.handled],
            "ended": self.ended,
            "answered": self.answered,
        }

    def handle_operator_event(self, event: Any) -> None:
        self.handled += 1
        match event:
            case {"split": fields}:
                self.queue.append(Split(*fields))
            case {"end": True}:
                self.ended = True
            case {"raise": attempt}:
                if attempt == self.context.attempt:  # a successor that is given this event again goes on
                    raise InjectedFault("the demo made this task fail")
            case _:
                raise ValueError(f"an event that this job's coordinator does not send: {event!r}")

    def poll(self) -> PollResult:
        if not self._told:
            self.context.send_event_to_coordinator({"worker": os.getpid()})
            self._told = True
        if not self.queue:
            if not self.ended:
                return Idle()
            self._answer()
            return Finished()
        now = time.monotonic()
        if now < self._next_at:
            return Idle(self._next_at - now)
        self._next_at = now + self._pace_s
        self._add(self.queue.popleft())
        return Progress()

    def _add(self, split: Split) -> None:
        sums, values, missing = self._reader.sums(split)
        for group, amount in sums.items():
            self.sums[group] = EXACT.add(self.sums.get(group, Decimal(0)), amount)
        self.values += values
        self.missing += missing
        self._splits_done.inc()
        self.context.send_event_to_coordinator({"done": split.number})

    def _answer(self) -> None:
        if self.answered:
            return
        rows = self._shown_sums()
        for begin in range(0, max(1, len(rows)), ANSWER_GROUPS_MAX):
            self.context.send_event_to_coordinator(
                {
                    "answer": rows[begin : begin + ANSWER_GROUPS_MAX],
                    "last": begin + ANSWER_GROUPS_MAX >= len(rows),
                    "counts": [self.values, self.missing, self.handled] if begin == 0 else [0, 0, 0],
                }
            )
        self.answered = True

    def _shown_sums(self) -> list[list[Any]]:
        return [[list(group), str(amount)] for group, amount in self.sums.items()]


def demo_job(
    name: str,
    question: Question,
    splits: list[Split],
    *,
    subtasks: int,
    work: Path,
    gates: tuple[int, ...] = (),
    pace_s: float = 0.0,
    prefix: str = "penstock",
    adder: type[AddUp] = AddUp,
) -> Job:
    """The job; it leaves its result in ``work / "result.json"``."""
    job = Job(
        name,
        prefix=prefix,
        checkpoint=CheckpointSettings(interval=0.5),
        restart=RestartStrategy(backoff_first=0.0, backoff_next=0.05, backoff_max=0.5, budget=100_000),
        state_storage=(work / "states").as_uri(),
    )
    job.operator(
        OPERATOR,
        coordinator=partial(HandOut, tuple(splits), gates, str(work / "result.json")),
        subtask=partial(adder, question, pace_s),
        parallelism=subtasks,
        codec="json",
        state_codec="json",
    )
    return job
