"""What users of the coordinator's side implement and call (Flink's OperatorCoordinator, in Python's case)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..schemas.errors import BatchRefused, ConfigurationError
from .futures import EventFuture


@dataclass(frozen=True, slots=True)
class EventContext:
    """Properties of an event from a subtask."""

    belongs_to: int
    """Lowest checkpoint id whose snapshot by the sender can contain the event: once a checkpoint with this id or a
    higher one has completed, the event is part of the history that counts."""


class CheckpointResult(Protocol):
    """A checkpoint future. The coordinator calls ``complete`` or ``fail`` once, from any thread."""

    def complete(self, state: Any) -> None:
        """Make the cut: events sent before belong to the checkpoint, events sent after do not.

        ``state`` is bytes, or what the operator's state codec takes, or None for no state. Raises
        ConfigurationError for anything else, and RuntimeError when called a second time.
        """

    def fail(self, error: BaseException | str) -> None:
        """Abort this checkpoint, and nothing else."""


class Gateway(Protocol):
    """The sending end towards one attempt of one subtask."""

    @property
    def subtask(self) -> int:
        """Index of the subtask."""

    @property
    def attempt(self) -> int:
        """Id of the attempt."""

    def send_event(self, event: Any) -> EventFuture:
        """Send an event: encoded now, never blocking, from any thread (protocol, section 6).

        Under the policy ``replay``, an event sent through a dead attempt's gateway goes to its successor; under
        ``reset`` its future fails with TaskNotRunning. After a global failover, which under ``global`` every failure
        is, it fails with RolledBack. Raises EventTooLarge, and Backpressure when a bound is reached: then
        :meth:`CoordinatorContext.on_writable` says when to go on.
        """

    def send_events(self, events: Sequence[Any]) -> EventFuture:
        """Send a list of events as :meth:`send_event` sends each, at a fraction of the cost.

        The future settles when the last one has been handled. They are handled in the order of the list, nothing sent
        to the same subtask comes between them, and no checkpoint's cut does: a snapshot contains all of them or none.
        A failure may come between them: where the future fails, the first ones may have been handled.

        All are taken or none. Raises as ``send_event`` does, and EventTooLarge for a list that takes more than half of
        ``max_unhandled``, of ``max_unsent_bytes`` or of ``max_held_bytes``: whatever is smaller finds room when
        :meth:`CoordinatorContext.on_writable` says so. Raises ConfigurationError for what is no list or tuple.
        """

    def fail_attempt(self, cause: BaseException | str) -> None:
        """Fail exactly this attempt (its external write failed, say). Do nothing once it is not current."""


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class CoordinatorContext(Protocol):
    """A coordinator's surroundings in one epoch. Every method may be called from any thread.

    A global failover replaces ``self.context``. A thread of the user's own takes the context when it begins: what it
    does through that once the coordinator has been rolled back is dropped, with one warning (``call_every`` goes on).
    """

    @property
    def operator(self) -> str:
        """Name of the operator."""

    @property
    def job(self) -> str:
        """Name of the job."""

    @property
    def incarnation(self) -> str:
        """Id of the job's incarnation (that of its checkpoint topic).

        A job keeps it through restarts and failovers. A job that was purged and recreated under the same name has
        another one, and so has a fork. Within an incarnation no checkpoint id is used twice: so operator, incarnation
        and checkpoint id name an external commit.
        """

    @property
    def parallelism(self) -> int:
        """Number of subtasks."""

    @property
    def epoch(self) -> int:
        """The current epoch: with the job's name a fencing token for the coordinator's own external writes."""

    @property
    def metrics(self) -> Metrics:
        """Numbers of the user's own, served with the coordinator's."""

    def show(self, what: Mapping[str, Any]) -> None:
        """Put names and JSON values into the job's status, for the dashboard, in place of the last ones.

        Raises ConfigurationError for more than 8,000 characters of JSON, or for what is not JSON.
        """

    def run_in_coordinator(self, fn: Callable[[], object]) -> None:
        """Run ``fn`` on the coordinator's thread, soon. Dropped if a global failover comes first."""

    def call_later(self, delay_s: float, fn: Callable[[], object]) -> TimerHandle:
        """Run ``fn`` on the coordinator's thread after ``delay_s`` seconds, unless a global failover comes first."""

    def call_every(self, interval_s: float, fn: Callable[[], object]) -> TimerHandle:
        """Run ``fn`` on the coordinator's thread every ``interval_s`` seconds, global failovers or not."""

    def call_async(self, fn: Callable[[], Any], on_result: Callable[[Any, BaseException | None], object]) -> None:
        """Run ``fn`` on a worker thread, then ``on_result(result, error)`` on the coordinator's.

        ``on_result`` is dropped if a global failover comes first: the result belongs to a history that was rolled back.
        The end of the job (finished, or stopped with a savepoint) waits until ``on_result`` has returned, for at most
        ``end_timeout`` seconds. If it raises, the job fails over instead of ending.
        """

    def on_writable(self, subtask: int, fn: Callable[[], object]) -> None:
        """Run ``fn`` once on the coordinator's thread when ``send_event`` to ``subtask`` is well below its bounds."""

    def fail_job(self, cause: BaseException | str) -> None:
        """Trigger a global failover. Only the first call counts until the coordinators have been reset."""


class Metrics(Protocol):
    def increment(self, name: str, by: float = 1.0) -> None:
        """Add to a counter."""

    def set(self, name: str, value: float) -> None:
        """Set a gauge."""


class OperatorCoordinator:
    """One instance per operator, in the coordinator process: decides, while the operator's subtasks work.

    All callbacks but ``close`` run on one thread, in order, and none may block; an exception in any of them is a
    global failover.
    The context is at ``self.context`` from before the first callback; a global failover replaces it.

    After a failure there are two ways back, and which one comes is the operator's ``on_failover``:

    * *Region failover*: subtasks start over from the last completed checkpoint, the coordinator keeps its state and
      is notified by ``execution_attempt_failed`` and ``subtask_reset``. Under ``replay`` it need do nothing: the log
      gives the events again. Under ``reset`` it sends again what the subtask lost.
    * *Global failover*: ``reset_to_checkpoint`` rolls the coordinator back too.
    """

    context: CoordinatorContext

    def start(self) -> None:
        """Begin work. Called once per instance, before anything but an initial ``reset_to_checkpoint``.

        If it raises, it is called again, after the reset of the failover that this causes.
        """

    def close(self) -> None:
        """Release resources; errors are logged and ignored.

        Called last, on a thread of its own, for at most 60 s: then the process goes on without it.
        """

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any, context: EventContext) -> None:
        """Handle an event from a subtask. Events of one attempt come in the order in which they were sent.

        ``attempt`` is -1 for events of a subtask that had finished before the restored checkpoint. The default raises,
        so that no event is lost silently.
        """
        raise ConfigurationError(
            f"an event for a {type(self).__name__}, which does not say what to do with one: give it a"
            " handle_event_from_operator"
        )

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        """Complete ``result`` with the state, now or later: that call is the cut.

        Until then no event from a subtask is handed over. The default has no state.
        """
        result.complete(None)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Handle the completion of a checkpoint. Every event that belongs to it has been handed over.

        The place to commit elsewhere, in ``context.call_async`` (docs/committing.md): after a restore it is called for
        the restored checkpoint, too, so it may repeat. One checkpoint may be passed over for a later one.
        """

    def notify_checkpoint_aborted(self, checkpoint_id: int, reason: str) -> None:
        """Handle the abort of a checkpoint: continue as if it had not been triggered. ``reason`` is for people."""

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        """Restore the state that ``checkpoint_coordinator`` saved (global failover). (-1, None): start empty."""

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        """Handle a region failover: the subtask restores this checkpoint (-1: it starts empty)."""

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Gateway) -> None:
        """Handle the start of an attempt; ``gateway`` sends events to it."""

    def execution_attempt_failed(self, subtask: int, attempt: int, reason: str | None) -> None:
        """Handle the failure of an attempt; ``reason`` is None if another subtask of its region failed."""

    def handle_request(self, request: Any) -> Any:
        """Answer ``penstock request``; the default refuses.

        Changes that it makes to the coordinator are durable once the next checkpoint has completed: a rollback to an
        earlier one reverts them, although the answer was given. Raising refuses the request and affects nothing else.
        """
        raise NotImplementedError(f"{type(self).__name__} answers no requests")

    def handle_batch(self, query: str, batch_id: int, events: Sequence[Any]) -> None:
        """Handle a batch that a streaming query sends with ``writeStream.format("penstock")``.

        ``query`` is Spark's id of the query, ``batch_id`` its id of the batch. Each batch is handled once, and those of
        one query in order: Spark commits a batch only when a completed checkpoint has its effect, and the effect of
        one that a rollback undoes is asked for again. Raise BatchRefused, before anything has changed, to refuse a
        batch: its query fails, and nothing else. Anything else that is raised refuses it too, and rolls the coordinator
        back. The default refuses.
        """
        raise BatchRefused(f"{type(self).__name__} does not implement handle_batch")
