"""What a user of a subtask implements and is given."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeAlias

from ..schemas.errors import ConfigurationError, SubtaskError
from .metrics import Metrics


@dataclass(frozen=True, slots=True)
class Progress:
    """``poll`` has done a step, and there is more: call again as soon as events have had their turn."""


@dataclass(frozen=True, slots=True)
class Idle:
    """``poll`` has nothing to do before so many seconds from now, or before events have been handled."""

    until: float = math.inf
    """Seconds from now."""

    def __post_init__(self) -> None:
        if not isinstance(self.until, int | float) or math.isnan(self.until):
            raise ConfigurationError(f"Idle takes seconds from now, not {self.until!r}")


@dataclass(frozen=True, slots=True)
class Finished:
    """The subtask's own work has ended: it stays until a completed checkpoint contains that (protocol, section 8)."""


PollResult: TypeAlias = Progress | Idle | Finished


class FencingToken(NamedTuple):
    """Ordered; a higher token replaces a lower one in systems that a subtask writes to (protocol, section 4)."""

    epoch: int
    attempt: int


class Context:
    """A subtask's identity, and its way to its coordinator and to other operators; valid from ``open`` to ``close``.

    Belongs to the thread that calls the object.
    """

    def __init__(
        self,
        *,
        job: str,
        operator: str,
        subtask: int,
        parallelism: int,
        fencing_token: FencingToken,
        metrics: Metrics,
        send: Callable[[Any], None],
        emit: Callable[[Any, str | None], None],
        emit_many: Callable[[Sequence[Any], str | None], None] | None = None,
    ) -> None:
        self.job = job
        self.operator = operator
        self.subtask = subtask
        """Index within the operator, from 0."""
        self.parallelism = parallelism
        """How many subtasks the operator has."""
        self.attempt = fencing_token.attempt
        """This run of the subtask; a later one has a higher number."""
        self.fencing_token = fencing_token
        self.metrics = metrics
        self._send, self._emit, self._emit_many = send, emit, emit_many or self._emit_each
        self._thread = threading.get_ident()
        self._ended = False

    def send_event_to_coordinator(self, event: Any) -> None:
        """Send an event, encoded by the operator's codec at once; it leaves at the end of this turn of the loop.

        Within ``snapshot_state(n)`` it belongs to checkpoint n. May wait while very much is unsent (the broker is
        away). Raises :class:`EventTooLarge`, :class:`ConfigurationError` (not what the codec takes),
        :class:`SubtaskError` (from another thread, or after ``close``), :class:`AppendFailed` (the broker did not
        take what was sent before: the attempt fails).
        """
        if self._ended or threading.get_ident() != self._thread:
            self._refuse("send")
        self._send(event)

    def emit(self, record: Any, output: str | None = None) -> None:
        """Give a record to the operators that have this one as an input, or only to the one called ``output``.

        It is encoded by the operator's ``output_codec`` at once, and goes to the subtask that the receiver's
        partitioning says; it leaves at the end of this turn of the loop, in order per receiving subtask. Within
        ``snapshot_state(n)`` it belongs to checkpoint n. May wait while very much is unsent. Raises as
        :meth:`send_event_to_coordinator` does, :class:`ConfigurationError` if no receiver is called ``output``, and
        :class:`SubtaskError` when the subtask's work has ended: its receivers were notified.
        """
        if self._ended or threading.get_ident() != self._thread:
            self._refuse("emit")
        self._emit(record, output)

    def emit_many(self, records: Sequence[Any], output: str | None = None) -> None:
        """Give a list of records away as :meth:`emit` gives each, in this order, at a fraction of the cost.

        All are taken or, where one of them has no key or no bytes, none. Raises as ``emit`` does, and
        :class:`ConfigurationError` for what is no list or tuple.
        """
        if self._ended or threading.get_ident() != self._thread:
            self._refuse("emit")
        if not isinstance(records, list | tuple):
            raise ConfigurationError(f"emit_many takes a list of records, not a {type(records).__name__}")
        self._emit_many(records, output)

    def _emit_each(self, records: Sequence[Any], output: str | None) -> None:
        for record in records:
            self._emit(record, output)

    def _refuse(self, what: str) -> NoReturn:
        why = "the attempt has ended" if self._ended else "it belongs to the thread that calls the subtask's object"
        raise SubtaskError(
            f"subtask {self.operator}/{self.subtask} of job {self.job!r}, attempt {self.attempt}: this context cannot"
            f" {what}: {why}"
        )

    def end(self) -> None:
        """Refuse to send from now on. Called by the runtime."""
        self._ended = True


class Subtask:
    """One instance per attempt. Every method is called on one thread, and each may take its time: heartbeats go on.

    The order: ``open``, ``restore_state`` where there is a checkpoint, then events, polls, snapshots and notices as
    they come, and records or rows where the operator has inputs, ``close``. What a method raises fails the attempt
    (protocol, section 8): this object is closed, and another one begins from the last completed checkpoint, in the same
    process.
    Each event is handled exactly once in the history that counts (section 1, G2).
    """

    def open(self, context: Context) -> None:
        """Prepare for work. Called first."""

    def may_begin(self) -> bool:
        """Whether the work may begin: polls, records and rows. Until then only events, snapshots and notices come.

        Asked when the attempt has been opened and restored, and after events until it is True; then never again in
        that attempt. What is not taken waits in the log, and aligned checkpoints wait for it. (Flink: InputSelectable.)
        """
        return True

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        """Restore the state that ``snapshot_state(checkpoint_id)`` returned; None if it returned None."""

    def handle_operator_event(self, event: Any) -> None:
        """Handle one event from the coordinator. The default raises, so that no event is lost silently."""
        raise ConfigurationError(
            f"an event for a {type(self).__name__}, which does not say what to do with one: give it a"
            " handle_operator_event"
        )

    def handle_operator_events(self, events: list[Any]) -> None:
        """Handle the next events from the coordinator, in order: at least one, at most what one record of the log holds
        (``frame_events_max``, 1,000). The default calls ``handle_operator_event`` for each.

        Where one list ends and the next begins means nothing, and differs from attempt to attempt. All of them count
        as handled when this returns; a snapshot comes between two lists.
        """
        for event in events:
            self.handle_operator_event(event)

    def process(self, record: Any, input: str) -> None:
        """Handle one record of the operator called ``input``. Each is handled exactly once in the history that counts.

        Records of one sending subtask come in the order in which it emitted them.
        """
        raise ConfigurationError(
            f"a record from {input!r} for a {type(self).__name__}, which does not say what to do with one: give it a"
            " process"
        )

    def process_many(self, records: list[Any], input: str) -> None:
        """Handle the next records of one subtask of the operator called ``input``, in order: at least one, at most what
        one record of the log holds. The default calls ``process`` for each.

        As with ``handle_operator_events``, where one list ends means nothing.
        """
        for record in records:
            self.process(record, input)

    def process_rows(self, batch: Any) -> None:
        """Handle the next rows of the operator's DataFrame (``inputs=`` of ``spark_integration.run``), a
        ``pyarrow.RecordBatch`` of at least one row.

        Rows come in the order of the subtask's partition, each exactly once in the history that counts. Where one
        batch ends and the next begins means nothing, and differs from attempt to attempt; events are handled, and
        snapshots taken, between two of them. What is taken out of a batch row by row costs what Python objects cost:
        ``batch.to_pylist()`` gives dicts, ``batch.column("delay")`` a whole column at once.
        """
        raise ConfigurationError(
            f"rows for a {type(self).__name__}, which does not say what to do with them: give it a process_rows"
        )

    def end_inputs(self) -> None:
        """Every input has ended: no record and no row comes any more. What is emitted in here still counts; then the
        subtask has finished, and stays until a completed checkpoint contains that. Called once in the history that
        counts: not behind a restore of a state that was taken after it."""

    def poll(self) -> PollResult:
        """A bounded step of own work, between events; left as it is, the subtask has none. Not with inputs: there
        work comes as records, or as rows."""
        return Idle()

    def snapshot_state(self, checkpoint_id: int) -> Any:
        """All that is needed to go on from here, as bytes or what the operator's state codec takes; None: nothing.

        What is sent to the coordinator, or emitted, in here belongs to this checkpoint.
        """
        return None

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint stands. May be missed: a restore from it implies it; the second phase of a two-phase commit
        belongs here and into ``restore_state`` (section 7.7). A subtask that emits nothing has ended only when this
        has been called for a checkpoint with all of its work (section 8)."""

    def notify_checkpoint_aborted(self, checkpoint_id: int, reason: str) -> None:
        """The checkpoint that this object took part in will never complete. ``reason`` is for people."""

    def close(self) -> None:
        """Called last, also after a failure; errors in here are logged and go no further.

        A subtask that is to start over and takes longer than ``task_cancellation_timeout`` for that, this call
        included, has its task ended (section 8).
        """
