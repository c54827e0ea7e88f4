"""The users' code: a coordinator that sends numbered events to each subtask, and keeps lists of what went both ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.coordinator.api import CheckpointResult, EventContext, Gateway, OperatorCoordinator
from penstock.coordinator.futures import EventFuture
from penstock.schemas.errors import Backpressure
from penstock.schemas.events import FailoverPolicy
from penstock.schemas.ids import NO_ATTEMPT, NO_CHECKPOINT, SubtaskId

from .rescaling import fitted
from .violations import Violation

if TYPE_CHECKING:
    from .coordinator_process import CoordinatorProcess

Lists = dict[int, list[int]]


class UserRaised(Exception):
    """User code raised, as it may."""


class NumberedCoordinator(OperatorCoordinator):
    """State: what was sent to and received from each subtask. Under ``reset`` it sends again from ``subtask_reset``."""

    def __init__(self, process: CoordinatorProcess, operator: str) -> None:
        self.process, self.world, self.operator = process, process.world, operator
        self.subtasks = range(process.world.settings.parallelism[operator])
        self.policy = process.world.config.policy
        self.sent: Lists = {s: [] for s in self.subtasks}
        self.past: list[int] = []
        """Received from subtasks of a former layout, of which the restored checkpoint says what they had sent."""
        self._of_the_past: set[int] = set()
        self.received: Lists = {s: [] for s in self.subtasks}
        self.gateways: dict[int, Gateway] = {}
        self.live: dict[int, int] = {}
        """By subtask: the attempt that it was told is ready, and not told has failed."""
        self.requests: list[int] = []
        self.fed: dict[str, list[list[Any]]] = {}
        """By query: each batch that was handled, with its rows."""
        self.owed: dict[int, CheckpointResult] = {}
        """Checkpoint futures not completed, aborted ones included."""
        self.cuts: dict[int, Lists] = {}
        """What had been sent at the cut, by checkpoint."""
        self.cut_at: dict[int, int] = {}
        """The newest event of all at the cut, by checkpoint: what is sent later has a higher number."""
        self.open_futures: dict[int, SubtaskId] = {}
        """Events whose futures have not settled, of all epochs of this process."""
        self.settled: set[int] = set()

    # ---- callbacks

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        self._maybe_raise("reset_to_checkpoint")
        lists = state or {"sent": {}, "received": {}, "requests": [], "past": [], "fed": {}}
        checkpoint = self.world.checks.history.checkpoints.get(checkpoint_id)
        if self.world.config.rescales and checkpoint is not None:
            lists = fitted(lists, len(self.subtasks), checkpoint)
            self._of_the_past = set(self.world.checks.rescaling.past_of(checkpoint, self.operator))
        self.past = list(lists["past"])
        self.sent = {s: list(lists["sent"].get(str(s), ())) for s in self.subtasks}
        self.received = {s: list(lists["received"].get(str(s), ())) for s in self.subtasks}
        self.requests = list(lists["requests"])
        self.fed = {query: list(batches) for query, batches in lists["fed"].items()}
        self.gateways.clear()
        self.live.clear()
        self.cuts = {checkpoint_id: {s: list(sent) for s, sent in self.sent.items()}}

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any, context: EventContext) -> None:
        self._maybe_raise("handle_event_from_operator")
        self.process.check_may_be_handed(self.operator)
        if attempt not in (self.live.get(subtask), NO_ATTEMPT) and not self.process.raised:
            raise Violation(
                f"section 4: {event} of {self.operator}/{subtask} attempt {attempt} is handed over while"
                f" {self.live.get(subtask)} is its attempt: what was read before goes ahead of"
                " execution_attempt_failed"
            )
        if event in self._of_the_past:
            self.past.append(event)
            return
        if subtask not in self.received:
            raise Violation(f"section 5: {event} of {self.operator}/{subtask}, which is gone, is not of the past")
        self.received[subtask].append(event)
        if self.world.config.pull:
            if attempt == NO_ATTEMPT or (subtask not in self.gateways and self.process.raised):
                return  # its subtask has finished; or it raised in execution_attempt_ready, and will be rolled back
            if subtask not in self.gateways:
                raise Violation(f"section 8: {event} of {self.operator}/{subtask} is handed over before its gateway")
            self.send(subtask)

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        self._maybe_raise("checkpoint_coordinator")
        self.owed[checkpoint_id] = result
        if self.world.rng.random() < 0.3:
            self.complete(checkpoint_id)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        checkpoint = self.world.checks.history.checkpoints.get(checkpoint_id)
        if checkpoint is None:
            if self.world.checks.newest() is self.process:
                raise Violation(f"section 7.9: {self.operator} is told of {checkpoint_id}, which has been deleted")
            return  # its successor deleted it
        derived = checkpoint.header.rescaled_from != NO_CHECKPOINT  # nobody has acknowledged it
        for s in () if derived else self.subtasks:
            contained = self.world.checks.sent_in(checkpoint_id, SubtaskId(self.operator, s))
            missing = set(contained) - set(self.received[s])
            if missing and not self.process.raised:
                raise Violation(
                    f"section 7.7: {self.operator} is told of {checkpoint_id} before it has {missing}, which belong to"
                    " it"
                )
        self._maybe_raise("notify_checkpoint_complete")
        self.context.call_async(lambda: self.world.external.add((self.operator, checkpoint_id)), self._committed)

    def _committed(self, result: Any, error: BaseException | None) -> None:
        self._maybe_raise("call_async")

    def notify_checkpoint_aborted(self, checkpoint_id: int, reason: str) -> None:
        self._maybe_raise("notify_checkpoint_aborted")

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        self._maybe_raise("subtask_reset")
        if self.policy is FailoverPolicy.RESET:
            self.sent[subtask] = list(self.cuts[checkpoint_id][subtask]) if checkpoint_id != -1 else []

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Gateway) -> None:
        self._maybe_raise("execution_attempt_ready")
        self.gateways[subtask], self.live[subtask] = gateway, attempt
        if self.world.config.driven_by_query:
            self.world.checks.query.attached(self.process)

    def execution_attempt_failed(self, subtask: int, attempt: int, reason: str | None) -> None:
        self.live.pop(subtask, None)
        if self.policy is FailoverPolicy.RESET:
            self.gateways.pop(subtask, None)
        self._maybe_raise("execution_attempt_failed")

    def handle_request(self, request: Any) -> Any:
        if request in self.requests:
            raise Violation(f"section 8: request {request} is executed twice")
        self.requests.append(request)
        return request

    def handle_batch(self, query: str, batch_id: int, events: Sequence[Any]) -> None:
        if self.process.owes_future(self.operator):  # what is raised here refuses the batch, and is no violation
            self.world.checks.blame(f"section 10.9: {self.operator} is handed a batch while it owes a future")
        handled = self.fed.setdefault(query, [])
        if any(batch_id == batch for batch, _ in handled):
            self.world.checks.blame(f"section 10.9: batch {batch_id} of query {query} has its effect twice")
        handled.append([batch_id, list(events)])
        self._maybe_raise("handle_batch")  # behind its effect, which is to be undone

    # ---- what it does of its own accord, each a step of the scheduler

    def can_send(self, subtask: int) -> bool:
        return (
            not self.world.config.pull
            and subtask in self.gateways
            and len(self.sent[subtask]) < self.world.events_wanted
        )

    def send(self, subtask: int) -> None:
        uid = self.world.new_uid()
        who = SubtaskId(self.operator, subtask)
        try:
            future = self.gateways[subtask].send_event(uid)
        except Backpressure:
            if self.world.config.pull:
                raise
            return
        self.sent[subtask].append(uid)
        self.world.trace(f"{self.process} {self.operator} sends {uid} to {who} (number {len(self.sent[subtask]) - 1})")
        self.open_futures[uid] = who
        future.add_done_callback(self._when_settled(uid, who))

    def _when_settled(self, uid: int, who: SubtaskId) -> Callable[[EventFuture], None]:
        def settled(future: EventFuture) -> None:
            error = future.exception()
            self.world.trace(f"{self.process} future of {uid} to {who}: {error or 'handled'}")
            if uid in self.settled:
                self.world.checks.blame(f"section 6: the future of {uid} settles twice")
            self.settled.add(uid)
            self.open_futures.pop(uid, None)
            if error is None and (who, uid) not in self.world.handled:
                self.world.checks.blame(f"section 6: {uid} to {who} settles as handled, and nobody handled it")
            if error is None:
                self.world.promised.add((who, uid))

        return settled

    def complete(self, checkpoint_id: int) -> None:
        lists = {"sent": self.sent, "received": self.received, "requests": self.requests, "past": self.past}
        lists |= {"fed": self.fed}
        self.cut_at[checkpoint_id] = self.world.newest_uid
        self.world.trace(f"{self.process} {self.operator} completes its future of {checkpoint_id}: sent {self.sent}")
        self.cuts[checkpoint_id] = {s: list(sent) for s, sent in self.sent.items()}
        self.owed.pop(checkpoint_id).complete(lists)

    def fail_future(self, checkpoint_id: int) -> None:
        self.owed.pop(checkpoint_id).fail("the user could not")

    def _maybe_raise(self, callback: str) -> None:
        if self.world.chance(0.01 * self.world.config.raises):
            self.world.trace(f"{self.process} {self.operator} raises in {callback}")
            raise UserRaised(callback)
