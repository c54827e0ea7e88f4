"""A user's coordinator in its surroundings: callbacks in, sends and results out (the API of :mod:`.api`)."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..schemas.errors import (
    BatchRefused,
    ConfigurationError,
    CoordinatorClosed,
    EventTooLarge,
    StateError,
    UnreadableRecord,
)
from ..schemas.frames import unpack
from ..schemas.sanitize import LastError, told
from ..schemas.settings import OperatorSettings
from ..schemas.state import StateHandle
from ..schemas.user_codec import Codec
from .api import EventContext, OperatorCoordinator
from .context import HostContext, HostMetrics
from .futures import Ledger
from .mailbox import Mailbox
from .protocol import effects, inputs
from .protocol.stream import EventStream
from .state_redistribution import RescaleFunction
from .thread_pool import Workers
from .timers import Timer, Timers
from .user_gateway import UserGateway

_log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 60.0
"""How long ``close()`` of all coordinators together may take."""
CALLBACKS: Mapping[type[effects.Call], str] = {
    effects.CallReset: "reset_to_checkpoint",
    effects.CallStart: "start",
    effects.CallEvents: "handle_event_from_operator",
    effects.CallCheckpoint: "checkpoint_coordinator",
    effects.CallComplete: "notify_checkpoint_complete",
    effects.CallAborted: "notify_checkpoint_aborted",
    effects.CallSubtaskReset: "subtask_reset",
    effects.CallReady: "execution_attempt_ready",
    effects.CallFailed: "execution_attempt_failed",
    effects.CallRequest: "handle_request",
    effects.CallBatch: "handle_batch",
}
"""The user's callback that each call makes."""

LoadState = Callable[[StateHandle], bytes]


@dataclass(frozen=True, slots=True)
class CoordinatorSpec:
    """How an operator's coordinator is made, and how its events and states travel."""

    factory: Callable[[], OperatorCoordinator] | None
    """None for an operator that has no coordinator."""
    codec: Codec
    state_codec: Codec
    rescale: RescaleFunction | None = None
    """Deals its subtasks' states over another number of subtasks, where its settings say that a function does."""


class OperatorHost:
    """One operator's coordinator. Callbacks are made on the coordinator's thread; the rest is for any thread."""

    def __init__(
        self,
        job: str,
        settings: OperatorSettings,
        spec: CoordinatorSpec,
        mailbox: Mailbox,
        timers: Timers,
        workers: Workers,
        load_state: LoadState,
        event_bytes_max: int,
        on_work_done: Callable[[], None] = lambda: None,
        incarnation: str = "",
    ) -> None:
        self.job = job
        self.incarnation = incarnation
        self.settings = settings
        self.spec = spec
        self.mailbox = mailbox
        self.event_bytes_max = event_bytes_max
        self.epoch = 0
        self.numbers: dict[str, float] = defaultdict(float)
        self.metrics = HostMetrics(self.numbers)
        self.shown = ""
        """What the coordinator last gave to ``context.show``, as JSON."""
        self.ledgers: dict[EventStream, Ledger] = {}
        """Of the streams that have not failed."""
        self.load = mailbox.load(settings.name)
        self._timers = timers
        self._workers = workers
        self._load_state = load_state
        self._settled = threading.Condition()
        self._thread = threading.get_ident()
        self.calling = ""
        """The callback that was called last."""
        self._writable: list[tuple[int, Callable[[], object]]] = []
        self._broken = False
        """It has raised and has not been reset since."""
        self._owes_start = False
        """start() is due and has not returned yet."""
        self._work = 0
        """Calls of ``call_async`` of this epoch whose ``on_result`` has not returned."""
        self._counting = threading.Lock()
        self._last_raised = LastError()
        self._on_work_done = on_work_done
        assert spec.factory is not None, f"operator {settings.name} has no coordinator"
        self.coordinator = spec.factory()
        if not isinstance(self.coordinator, OperatorCoordinator):
            raise ConfigurationError(
                f"the coordinator of operator {settings.name!r} must be a penstock.OperatorCoordinator, and its factory"
                f" returned {type(self.coordinator).__name__}"
            )
        self.coordinator.context = HostContext(self)

    # ---- callbacks, on the coordinator's thread

    def call(self, call: effects.Call) -> None:
        """Makes the callback. Whatever user code raises goes through; until it is reset it is not called again."""
        if self._broken and not isinstance(call, effects.CallReset):
            self._owes_start = self._owes_start or isinstance(call, effects.CallStart)
            if isinstance(call, effects.CallRequest):
                answer = inputs.RequestAnswered(call.offset, False, "the coordinator is being rolled back", b"")
                self.mailbox.post(answer)
            return
        try:
            self._call(call)
        except BaseException:
            self._broken = True
            raise

    def _call(self, call: effects.Call) -> None:
        user, self.calling = self.coordinator, CALLBACKS[type(call)]
        match call:
            case effects.CallReset():
                self._broken = False
                user.reset_to_checkpoint(call.checkpoint_id, self._state(call))
                if self._owes_start:
                    self._start()
            case effects.CallStart():
                self._start()
            case effects.CallEvents():
                context = EventContext(call.belongs_to)
                decode = self.spec.codec.decode
                for event in call.events:
                    user.handle_event_from_operator(call.subtask, call.attempt, decode(event), context)
            case effects.CallCheckpoint():
                user.checkpoint_coordinator(call.checkpoint_id, _Result(self, call.checkpoint_id))
            case effects.CallComplete():
                user.notify_checkpoint_complete(call.checkpoint_id)
            case effects.CallAborted():
                user.notify_checkpoint_aborted(call.checkpoint_id, call.reason)
            case effects.CallSubtaskReset():
                user.subtask_reset(call.subtask, call.checkpoint_id)
            case effects.CallReady():
                user.execution_attempt_ready(call.subtask, call.attempt, self._gateway(call))
            case effects.CallFailed():
                user.execution_attempt_failed(call.subtask, call.attempt, call.reason)
            case effects.CallRequest():
                self.mailbox.post(self._answer(call))
            case effects.CallBatch():
                self._handle_batch(call)

    def _start(self) -> None:
        """Once; again, behind the reset, where it raised or was not reached."""
        self._owes_start, self.calling = True, "start"
        self.coordinator.start()
        self._owes_start = False

    def _answer(self, call: effects.CallRequest) -> inputs.RequestAnswered:
        """A request that user code refuses by raising concerns its sender alone: the job goes on."""
        codec = self.spec.codec
        try:
            answer = codec.encode(self.coordinator.handle_request(codec.decode(call.payload)))
            if len(answer) > self.event_bytes_max:
                raise EventTooLarge(
                    f"the answer has {len(answer)} bytes, the broker takes {self.event_bytes_max}; ask for parts"
                )
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return inputs.RequestAnswered(call.offset, False, told(error), b"")
        return inputs.RequestAnswered(call.offset, True, "answered", answer)

    def _handle_batch(self, call: effects.CallBatch) -> None:
        """Hand a batch over. Refusing it, before anything has changed, concerns its sender; other errors go through."""
        error, decode = "", self.spec.codec.decode
        try:
            events = [decode(event) for frame in call.frames for event in unpack(*frame)]
        except Exception as unreadable:
            error = told(unreadable)
        else:
            try:
                self.coordinator.handle_batch(call.query, call.batch, events)
            except BatchRefused as refused:
                error = told(refused)
        self.mailbox.post(inputs.BatchHandled(self.epoch, call.operator, call.query, error))

    def _state(self, call: effects.CallReset) -> Any:
        if call.state is None:
            return None
        try:
            return self.spec.state_codec.decode(self._load_state(call.state))
        except (StateError, UnreadableRecord) as error:
            raise StateError(
                f"checkpoint {call.checkpoint_id} of job {self.job} cannot be restored: the state of the coordinator of"
                f" {call.operator} cannot be read back: {error}. Name an older one: --from-checkpoint N (penstock"
                f" checkpoints {self.job} lists them)"
            ) from error

    def _gateway(self, call: effects.CallReady) -> UserGateway:
        ledger = self.ledgers.get(call.stream)
        if ledger is None:
            ledger = self.ledgers[call.stream] = Ledger(call.stream, self.load, self._settled)
            ledger.forbidden_thread = self._thread
        return UserGateway(self.settings, self.spec.codec, self.mailbox, ledger, self.event_bytes_max, call.attempt)

    def settle(self, stream: EventStream) -> None:
        """The stream has moved: its futures settle."""
        ledger = self.ledgers.get(stream)
        if ledger is not None:
            if stream.failure is not None:
                del self.ledgers[stream]
            ledger.settle()

    def close(self, cause: str) -> threading.Thread:
        """Settle the futures that are still open, and close the user's coordinator on a thread, which is returned."""
        for stream in list(self.ledgers):
            stream.fail(CoordinatorClosed(f"the coordinator ended: {cause}"))
            self.settle(stream)
        thread = threading.Thread(target=self._close, name=f"{self.job}-{self.settings.name}-close", daemon=True)
        thread.start()
        return thread

    def _close(self) -> None:
        try:
            self.coordinator.close()
        except BaseException:
            _log.exception("job=%s operator=%s: close() of the coordinator raised", self.job, self.settings.name)

    def call_writable(self) -> None:
        """Call the functions given to ``on_writable`` for subtasks whose gateway has room again."""
        if not self._writable:
            return
        due = [(subtask, fn) for subtask, fn in self._writable if self._is_writable(subtask)]
        self._writable = [entry for entry in self._writable if entry not in due]
        for _, fn in due:
            fn()

    def _is_writable(self, subtask: int) -> bool:
        streams = [ledger for ledger in self.ledgers.values() if ledger.stream.subtask.index == subtask]
        unhandled = max((ledger.promised - ledger.stream.handled_through for ledger in streams), default=0)
        settings, load = self.settings, self.load
        return (
            unhandled <= settings.max_unhandled // 2
            and not self.is_pressed
            and load.held <= settings.max_held_bytes // 2
        )

    @property
    def is_pressed(self) -> bool:
        """Whether more than half of the bytes that may be unsent are."""
        return self.load.unsent > self.settings.max_unsent_bytes // 2

    # ---- for user code, from any thread

    def run(self, name: str, fn: Callable[[], object]) -> None:
        """Posts user code; what it raises is the coordinator's failure, in the epoch it was posted in."""
        epoch = self.epoch

        def guarded() -> None:
            if epoch == self.epoch:
                self.guard(name, fn)

        self.mailbox.post(guarded)

    def tell_raised(self, error: BaseException) -> None:
        """Log what user code has raised in the callback that was called last."""
        again, traceback = (" again", None) if self._last_raised.is_like(error) else ("", error)
        says = f"the coordinator raised{again} in {self.calling}: {told(error)}"
        _log.error("job=%s operator=%s: %s", self.job, self.settings.name, says, exc_info=traceback)

    def guard(self, name: str, fn: Callable[[], object]) -> bool:
        """Runs user code; whether it returned."""
        try:
            fn()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit() or a cancelled await of the user's ends no coordinator
            self.raised(name, error)
            return False
        return True

    def raised(self, callback: str, error: BaseException | str) -> None:
        self.mailbox.post(self.failure(callback, error))

    def failure(self, callback: str, error: BaseException | str) -> inputs.CoordinatorRaised:
        """Return the core's input for user code that has raised, or failed the job, in the current epoch."""
        final = isinstance(error, ConfigurationError)
        return inputs.CoordinatorRaised(self.settings.name, self.epoch, callback, told(error), final)

    def after(self, delay_s: float, fn: Callable[[], object], epoch: int) -> Timer:
        return self._timers.add(delay_s, lambda: self.guard("call_later", fn) if epoch == self.epoch else None)

    def every(self, interval_s: float, fn: Callable[[], object]) -> Timer:
        if not interval_s > 0:
            raise ConfigurationError(f"call_every needs an interval above 0 seconds, not {interval_s!r}")
        return self._timers.add(interval_s, lambda: self.guard("call_every", fn), every_s=interval_s)

    def work(self, fn: Callable[[], Any], on_result: Callable[[Any, BaseException | None], object]) -> None:
        with self._counting:
            epoch = self.epoch
            self._work += 1

        def worker() -> None:
            result, error = None, None
            try:
                result = fn()
            except BaseException as raised:  # on_result must come, whatever it was
                error = raised
            self.mailbox.post(lambda: self._work_done(epoch, lambda: on_result(result, error)))

        self._workers.submit(worker)

    def _work_done(self, epoch: int, on_result: Callable[[], object]) -> None:
        """On the coordinator's thread. Work whose ``on_result`` raises never counts as done: a rollback follows."""
        if epoch == self.epoch and self.guard("call_async", on_result):
            with self._counting:
                self._work -= 1
            self._on_work_done()

    @property
    def work_left(self) -> int:
        """Calls of ``call_async`` that have not ended, of this epoch."""
        return self._work

    def when_writable(self, subtask: int, fn: Callable[[], object]) -> None:
        self.run("on_writable", lambda: self._writable.append((subtask, fn)))

    def reset_epoch(self, epoch: int) -> None:
        """A global failover: what was posted before is dropped when its turn comes."""
        with self._counting:
            self.epoch, self._work = epoch, 0
        self.coordinator.context = HostContext(self)
        self._writable.clear()


def close_all(hosts: Sequence[OperatorHost], cause: str) -> None:
    """Close every coordinator, each on a thread of its own. Do not wait longer than the deadline for any."""
    threads = [host.close(cause) for host in hosts]
    deadline = time.monotonic() + CLOSE_TIMEOUT_S
    for host, thread in zip(hosts, threads, strict=True):
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            _log.error(
                "job=%s operator=%s: close() of the coordinator has not returned within %g s: it is left behind",
                host.job, host.settings.name, CLOSE_TIMEOUT_S,
            )  # fmt: skip


class _Result:
    """One checkpoint future."""

    def __init__(self, host: OperatorHost, checkpoint_id: int) -> None:
        self._host = host
        self._checkpoint_id = checkpoint_id
        self._lock = threading.Lock()
        self._done = False

    def complete(self, state: Any) -> None:
        data = None if state is None else self._host.spec.state_codec.encode(state)
        self._once()
        operator = self._host.settings.name
        self._host.mailbox.post(inputs.FutureCompleted(operator, self._checkpoint_id, data))

    def fail(self, error: BaseException | str) -> None:
        self._once()
        self._host.mailbox.post(inputs.FutureFailed(self._host.settings.name, self._checkpoint_id, told(error)))

    def _once(self) -> None:
        with self._lock:
            if self._done:
                raise RuntimeError(
                    f"the future of checkpoint {self._checkpoint_id} has been completed or failed before"
                )
            self._done = True
