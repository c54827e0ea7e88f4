"""Runs one subtask: polls its events partition, feeds the core, performs what the core asks for, in order."""

from __future__ import annotations

import math
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar, assert_never

from ..schemas import events
from ..schemas.acks import CheckpointAck, OperatorEventFrame
from ..schemas.errors import AppendFailed, BrokerUnreachable, ConfigurationError, StartTimeout, Superseded
from ..schemas.ids import SubtaskId
from ..schemas.settings import JobSettings
from ..schemas.user_codec import CodecSpec, codec_for
from ..transport.ports import Partition, Transport
from ..transport.state_storage import StateStorage
from .activity import Steps
from .api import Finished, Idle, Progress, Subtask
from .emitting import Emitter
from .heartbeat_thread import HeartbeatThread
from .incoming import Incoming
from .outgoing import Outgoing
from .protocol import effects as do
from .protocol import inputs as on
from .protocol.config import RECORD_HEADROOM_BYTES, CoreConfig
from .protocol.core import SubtaskCore
from .protocol.effects import Departure, Effect
from .protocol.phases import Phase
from .routing import KeyFunction, Router
from .rows import RowSource
from .trace import Trace
from .uploads import Storage, Uploads
from .user_object import Host, cause_of, digests_of

T = TypeVar("T")

TURN_MAX_S = 0.02
"""After so long a turn of the loop ends, although more was fetched: frames leave, own work goes on."""
IDLE_WAIT_MAX_S = 0.25
"""So often an idle loop looks whether it is to leave, and whether its writer still stands."""
QUIET_AFTER_S, QUIET_WAIT_MAX_S = 10.0, 1.0
"""A running attempt that has been idle for so long looks so often: each look costs more than a heartbeat."""
UPLOAD_WAIT_MAX_S = 0.01
FLUSH_TIMEOUT_S = 5.0
_RETRY_FIRST_S, _RETRY_MAX_S = 0.1, 2.0


class SubtaskRuntime:
    """One instance of a subtask, in the thread that calls :meth:`run`; its topics must exist.

    ``factory`` makes the user's object, a new one for every attempt. ``codec`` is for events both ways,
    ``state_codec`` for states (see :func:`penstock.schemas.user_codec.codec_for`), ``output_codec`` for the records
    that it emits, ``input_codecs`` for those that it takes, by the operator that emits them; ``keys`` gives the key of
    an emitted record, by the operator that takes it keyed; ``rows`` are what it is fed beside its events. ``run`` is
    the id of the run it belongs to, ``task`` what the runner calls the task that hosts it. ``stop_requested``, once
    set, makes it leave.
    """

    def __init__(
        self,
        settings: JobSettings,
        subtask: SubtaskId,
        factory: Callable[[], Subtask],
        transport: Transport,
        *,
        run: str,
        task: str = "",
        codec: CodecSpec = None,
        state_codec: CodecSpec = None,
        output_codec: CodecSpec = None,
        input_codecs: Mapping[str, CodecSpec] | None = None,
        keys: Mapping[str, KeyFunction] | None = None,
        rows: RowSource | None = None,
        stop_requested: threading.Event | None = None,
        storage: Storage | None = None,
    ) -> None:
        settings.operator(subtask.operator)
        graph, topics = settings.graph, settings.topics
        self._settings, self._transport = settings, transport
        self._stop_requested = stop_requested if stop_requested is not None else threading.Event()
        self._partition = Partition(topics.events(subtask.operator), subtask.index)
        inputs, outputs = graph.inputs(subtask.operator), graph.outputs(subtask.operator)
        record_room = transport.max_record_bytes - RECORD_HEADROOM_BYTES
        self.core = SubtaskCore(
            CoreConfig(
                job=settings.name,
                subtask=subtask,
                run=run,
                task=task,
                host=socket.gethostname(),
                inline_state_max=min(settings.checkpoint.inline_state_max, record_room),
                frame_events_max=settings.frame_events_max,
                frame_bytes_max=min(settings.frame_bytes_max, record_room),
                event_bytes_max=record_room,
                senders=tuple(graph.channels_into(subtask)),
                receivers=tuple(graph.channels_out_of(subtask)),
                unaligned=settings.checkpoint.unaligned,
                aligned_timeout=math.inf if (timeout := settings.checkpoint.aligned_timeout) is None else timeout,
                start_timeout=settings.start_timeout,
                layout=settings.parallelism,
                schemas=digests_of(codec, state_codec, output_codec),
            )
        )
        self._core_lock = threading.Lock()
        """The core is fed by this thread, and heartbeats by the pulse and by whoever tells outcomes."""
        self._steps = Steps()
        self._trace = Trace(self.core)
        self._storage = storage or StateStorage(settings.state_storage, settings.topics.root)
        self._inbox: deque[on.Input] = deque()
        """What other threads have to tell; drained at each turn."""
        self._outgoing = Outgoing(
            transport,
            Partition(settings.topics.acks, 0),
            str(subtask),
            gives_up=self._stop_requested.is_set,
        )
        self._emitter = Emitter(
            self.core,
            self._outgoing,
            Router(graph, subtask, keys or {}, settings.max_parallelism),
            codec_for(output_codec),
            {edge.receiver: topics.data(edge.sender, edge.receiver) for edge in outputs},
        )
        self._host = Host(
            settings, subtask, factory, codec=codec_for(codec), state_codec=codec_for(state_codec),
            input_codecs={edge.sender: codec_for((input_codecs or {}).get(edge.sender)) for edge in inputs},
            storage=self._storage, send=self._emitter.send, emit=self._emitter.emit,
            emit_many=self._emitter.emit_many, log=self._trace, rows=rows,
        )  # fmt: skip
        self._uploads = Uploads(self._storage, self._inbox.append)
        self._pulse = HeartbeatThread(settings.heartbeat_interval, self._beat, lambda: self._steps.handling)
        self._incoming = Incoming(
            transport,
            self._partition,
            {edge.sender: Partition(topics.data(edge.sender, edge.receiver), subtask.index) for edge in inputs},
            self._trace,
            self._patiently,
            takes_inputs=lambda: self._host.may_begin,
        )
        self._told: tuple[str, dict[str, float]] = "", {}
        """Step and metrics of the last periodic heartbeat."""
        self._read_something = False
        self._poll_due = 0.0
        self._worked_at = 0.0
        """Monotonic second at which events or records were last handled, or an attempt opened."""
        self._snapshot_began: dict[int, float] = {}
        self._departure: do.Leave | None = None

    def run(self, check: Callable[[], None] = lambda: None) -> do.Leave:
        """Blocks until the subtask has been stopped or has finished for good, and returns why it leaves.

        Calls ``check`` first, while it connects.

        Raises what ``check`` does, :class:`Superseded` when a newer attempt runs, :class:`StartTimeout` when no
        coordinator answers within ``start_timeout`` (not counting the time the broker is away), :class:`TopicMissing`,
        and whatever user code or its rows raise that is no ``Exception`` (KeyboardInterrupt, SystemExit, EndsTask). The
        user's object is closed in every case.
        """
        self._pulse.start()
        try:
            self._outgoing.open()
            check()
            self._drive(on.InstanceStarted())
            while self._departure is None:
                self._turn()
        finally:
            self._close()
        assert self._departure is not None
        reason = self._departure.reason
        match self._departure.departure:
            case Departure.STOPPED | Departure.REFUSED | Departure.FINISHED:
                return self._departure  # its task has nothing to retry
            case Departure.SUPERSEDED:
                raise Superseded(reason)
            case Departure.NO_START:
                raise StartTimeout(reason)
            case Departure.HELLO_FAILED:
                raise AppendFailed(reason)
            case never:
                assert_never(never)

    # ---- the loop

    def _turn(self) -> None:
        if self._stop_requested.is_set():
            self._drive(on.LeaveRequested("this process was asked to stop its subtasks"))
            return
        self._look_after_writer()
        while self._inbox and self._departure is None:
            self._drive(self._inbox.popleft())
        if self._departure is not None:
            return
        fed = self._feed_records()
        if self._due_in() <= 0.0 and self._departure is None:
            self._drive(on.Tick())
        if self._departure is None and self._may_poll() and (fed or time.monotonic() >= self._poll_due):
            self._poll_user()
        if self._departure is None:
            self._drive(on.TurnEnded(dry=not fed and not self._incoming.waiting))
        self._read_something = fed

    def _feed_records(self) -> bool:
        """Feeds what the logs have, for at most one turn; whether there was anything."""
        incoming = self._incoming
        fed = self._fetch(0.0 if incoming.waiting else self._patience())
        turn_ends = time.monotonic() + TURN_MAX_S
        while incoming.waiting and self._departure is None:
            event, record = incoming.take()
            self._drive(event)
            if isinstance(event, on.DataRead) and self.core.skips(event.upstream):
                incoming.keep(event.upstream, record)
            if time.monotonic() >= turn_ends:
                break
        return fed

    def _patience(self) -> float:
        """Seconds that the next read may wait for a record."""
        if self._read_something or self._inbox:
            return 0.0
        quiet = self.core.phase is Phase.RUNNING and time.monotonic() >= self._worked_at + QUIET_AFTER_S
        wait = UPLOAD_WAIT_MAX_S if self.core.uploads else QUIET_WAIT_MAX_S if quiet else IDLE_WAIT_MAX_S
        if self._may_poll():
            wait = min(wait, max(0.0, self._poll_due - time.monotonic()))
        return min(wait, max(0.0, self._due_in()))

    def _due_in(self) -> float:
        """Seconds until a Tick is due."""
        due = self.core.deadline()
        return math.inf if due is None else due - time.monotonic()

    def _fetch(self, timeout_s: float) -> bool:
        """Whether the logs had anything to say; that a position is gone is something."""
        lost = self._incoming.fetch(timeout_s)
        if lost is not None:
            self._drive(lost)
        return lost is not None or self._incoming.waiting

    def _look_after_writer(self) -> None:
        if (failure := self._outgoing.failure) is not None:
            self._trace.error("a record to the coordinator may not have been written: %s", failure)
            self._outgoing.replace()
            self._drive(on.WriterFailed(failure))

    def _ask_broker(self) -> on.BrokerAsked:
        try:
            self._transport.check(FLUSH_TIMEOUT_S)
        except BrokerUnreachable:
            return on.BrokerAsked(reachable=False)
        return on.BrokerAsked(reachable=True)

    def _may_poll(self) -> bool:
        return self._host.has_poll and self._host.may_begin and self.core.may_poll

    def _poll_user(self) -> None:
        self._steps.enter("polling")
        try:
            result = self._host.poll()
        except Exception as error:
            self._drive(self._failed("poll", error))
            return
        self._steps.enter("waiting for input")
        match result:
            case Progress():
                self._poll_due = 0.0
            case Idle(until=seconds):
                self._poll_due = time.monotonic() + seconds
            case Finished():
                self._poll_due = math.inf
                self._drive(on.WorkEnded())
            case _:
                assert_never(result)
        self._rest()

    # ---- feeding the core, performing its effects

    def _drive(self, input: on.Input) -> None:
        """Feed one input, then the input that each user call among its effects ends with."""
        pending: on.Input | None = input
        while pending is not None:
            with self._core_lock:
                effects = self.core.handle(pending, time.monotonic())
                self._steps.done = 0  # in the same moment as the core counts those events
            pending = self._perform(pending, effects)

    def _perform(self, input: on.Input, effects: Iterable[Effect]) -> on.Input | None:
        tracing = self._trace.isEnabledFor(10)
        if tracing:
            self._trace.told(input)
        pending: on.Input | None = None
        for effect in effects:
            assert pending is None, "something follows a user call"
            if tracing:
                self._trace.asked(effect)
            match effect:
                case do.HandleEvents():
                    pending = self._handle_events(effect)
                case do.Write(record=record):
                    if isinstance(record, OperatorEventFrame):
                        self._outgoing.wait_for_room()
                    self._outgoing.write(record)
                    if isinstance(record, CheckpointAck):
                        self._pulse.record_written(news=(self._step(0)[0], self._metrics()) != self._told)
                case do.WriteHeartbeat():
                    self._write_heartbeat(effect)
                case do.AskBroker():
                    pending = self._ask_broker()
                case do.HandleRecords():
                    pending = self._handle_records(effect)
                case do.WriteData():
                    self._emitter.write(effect)
                case do.Seek(offset=offset):
                    self._incoming.seek(offset)
                case do.SeekData(upstream=upstream, offset=offset, through=through):
                    lacking = None if through is None else self._incoming.lacking(upstream, offset, through)
                    if lacking is not None:
                        self._inbox.append(lacking)
                    self._incoming.seek_data(upstream, offset)
                case do.PauseData(upstream=upstream):
                    self._incoming.pause_data(upstream)
                case do.EndInputs():
                    ended = on.EndInputsReturned()
                    pending = self._call("end_inputs", "ending its inputs", self._host.end_inputs, ended)
                case do.OpenUser(start=start):
                    step = "opening" if start.checkpoint_id < 0 else f"restoring checkpoint {start.checkpoint_id}"
                    pending = self._call("open or restore_state", step, partial(self._open, start), on.Opened())
                case do.TakeSnapshot(checkpoint_id=n):
                    pending = self._snapshot(n)
                case do.NotifyCompleted(checkpoint_id=n):
                    pending = self._call(
                        "notify_checkpoint_complete", f"notified that checkpoint {n} completed",
                        partial(self._host.notify_completed, n), on.Notified(n),
                    )  # fmt: skip
                case do.NotifyAborted(checkpoint_id=n, reason=reason):
                    pending = self._call(
                        "notify_checkpoint_aborted", f"notified that checkpoint {n} was aborted",
                        partial(self._host.notify_aborted, n, reason), on.Notified(n),
                    )  # fmt: skip
                case do.LearnSchema():
                    self._host.learn(effect.operator, effect.subject, effect.schema)
                case do.CloseUser():
                    self._steps.enter("closing")
                    self._host.close()
                case do.StoreState(checkpoint_id=n, location=location, data=data):
                    self._uploads.store(n, location, data, self._snapshot_began.pop(n, time.monotonic()))
                case do.DropState(location=location):
                    self._uploads.drop(location)
                case do.NotePosition():
                    pending = self._note_position()
                case do.WriteHello():
                    self._write_hello(effect)
                case do.Report(error=error):
                    self._trace.error("%s", error)
                case do.Leave():
                    self._trace.info("leaves (%s): %s", effect.departure, effect.reason)
                    self._departure = effect
                case _:
                    assert_never(effect)
        return pending

    def _handle_events(self, effect: do.HandleEvents) -> on.Input:
        steps, first, count = self._steps, effect.first_sequence, len(effect.events)
        steps.enter_handling(first)
        self._worked_at = time.monotonic()
        self._pulse.touch()
        try:
            self._host.handle(effect.events, steps)
        except Exception as error:
            what = f"handling event {first + steps.done}"
            if self._host.takes_batches:
                what = f"handling events {first} to {first + count - 1}"
            return self._failed(what, error)
        finally:
            self._rest()
        return on.EventsHandled()

    def _handle_records(self, effect: do.HandleRecords) -> on.Input:
        self._worked_at = time.monotonic()
        what = f"handling records of {effect.sender} (offset {effect.offset})"
        return self._call(
            what, what, partial(self._host.process, effect.sender.operator, effect.records), on.RecordsHandled()
        )

    def _open(self, start: events.Start) -> None:
        self._trace.info("starts: generation %s, checkpoint %d", start.full_generation, start.checkpoint_id)
        self._snapshot_began.clear()
        self._poll_due, self._worked_at = 0.0, time.monotonic()
        self._host.open(start)

    def _snapshot(self, checkpoint_id: int) -> on.Input:
        began = self._snapshot_began[checkpoint_id] = time.monotonic()
        self._steps.enter(f"snapshotting checkpoint {checkpoint_id}")
        try:
            state = self._host.snapshot(checkpoint_id)
        except Exception as error:
            return self._failed(f"snapshot_state({checkpoint_id})", error)
        if state is None or len(state) <= self.core.config.inline_state_max:
            del self._snapshot_began[checkpoint_id]
        self._rest()
        elapsed_ms = int((time.monotonic() - began) * 1000)
        return on.SnapshotReturned(checkpoint_id, state, elapsed_ms, time.time_ns() // 1_000_000)

    def _call(self, what: str, step: str, call: Callable[[], None], ended: on.Input) -> on.Input:
        self._steps.enter(step)
        try:
            call()
        except Exception as error:
            return self._failed(what, error)
        finally:
            self._rest()
        return ended

    def _rest(self) -> None:
        if self.core.phase is Phase.FINISHED:
            self._steps.enter("finished, waits for a checkpoint that contains its end")
        else:
            self._steps.enter("waiting for input")

    def _failed(self, what: str, error: Exception) -> on.UserFailed:
        self._trace.failed(what, error)
        return on.UserFailed(f"{what}: {cause_of(error)}", final=isinstance(error, ConfigurationError))

    def _note_position(self) -> on.PositionNoted | on.LeaveRequested:
        self._steps.enter("saying Hello")
        end = self._patiently(lambda: self._transport.offsets([self._partition])[self._partition].end)
        if end is None:
            return on.LeaveRequested("this process was asked to stop its subtasks")
        return on.PositionNoted(end, uuid.uuid4().hex)

    def _write_hello(self, effect: do.WriteHello) -> None:
        if self._outgoing.failure is not None:
            self._outgoing.replace()
        nonce = effect.record.nonce

        def then(offset: int | None) -> None:
            if offset is not None:
                self._inbox.append(on.HelloTaken(nonce, offset))

        self._steps.enter("waiting for Start")
        self._outgoing.write(effect.record, then)

    def _patiently(self, action: Callable[[], T]) -> T | None:
        """``action``, again and again while the broker is away; None when asked to stop meanwhile."""
        wait_s = _RETRY_FIRST_S
        while not self._stop_requested.is_set():
            try:
                return action()
            except BrokerUnreachable as error:
                self._trace.warning("the broker is away, trying again: %s", error)
            self._stop_requested.wait(wait_s)
            wait_s = min(2 * wait_s, _RETRY_MAX_S)
        return None

    # ---- heartbeats: from the pulse's thread

    def _beat(self, periodic: bool) -> None:
        metrics = self._metrics() if periodic else {}
        with self._core_lock:
            done = self._steps.done
            step, age_ms = self._step(done)
            effects = self.core.handle(on.HeartbeatDue(periodic, step, age_ms, done, metrics), time.monotonic())
        if periodic:
            self._told = step, metrics
        for effect in effects:
            assert isinstance(effect, do.WriteHeartbeat)
            self._write_heartbeat(effect)

    def _step(self, done: int) -> tuple[str, int]:
        step, age_ms = self._steps.describe(done)
        if uploads := self.core.uploads:
            step += f", uploading the state of checkpoint {', '.join(map(str, uploads))}"
        if (aligning := self.core.aligning) is not None:
            step += f", aligning checkpoint {aligning}"
        return step, age_ms

    def _metrics(self) -> dict[str, float]:
        dropped = {f"penstock_dropped_{why}": float(n) for why, n in self.core.dropped.copy().items()}
        return {**self._host.metrics.values(), **dropped}

    def _write_heartbeat(self, effect: do.WriteHeartbeat) -> None:
        self._outgoing.write_heartbeat(effect.record, self._heartbeat_settled if effect.periodic else None)

    def _heartbeat_settled(self, offset: int | None) -> None:
        with self._core_lock:
            self.core.handle(on.HeartbeatSettled(), time.monotonic())

    # ---- the end

    def _close(self) -> None:
        self._pulse.close()
        self._host.close()
        self._uploads.close()
        self._outgoing.close(FLUSH_TIMEOUT_S)
        self._incoming.close()
