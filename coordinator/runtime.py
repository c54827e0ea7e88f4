"""The coordinator's runtime: polls, feeds the core, performs its effects in order. Every decision is the core's.

Threads: the coordinator's own (``run``), one that reads the acks topic ahead of it within bounds, a few workers for
state storage and user code's ``call_async``. All meet in the mailbox.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from math import inf
from typing import assert_never

from ..checkpoint_log.history import History
from ..client.log_reader import read_log
from ..schemas.acks import CoordinatorHeartbeat
from ..schemas.codec import encode
from ..schemas.errors import (
    Fenced,
    JobHasFinished,
    NotAuthorized,
    OutcomeUnknown,
    PositionUnavailable,
    StateError,
    TransportError,
)
from ..schemas.events import EventFrame, EventsRecord, Start, Stop
from ..schemas.ids import SubtaskId
from ..schemas.plan import Role
from ..schemas.sanitize import told
from ..schemas.settings import JobSettings
from ..schemas.state import StateHandle
from ..schemas.status import End, Ending, JobStatus
from ..transport.ports import Partition, Transport, Writer
from ..transport.state_storage import StateStorage, load_state
from . import acks_reader, preflight
from .acks_reader import AcksReader
from .best_effort_writer import SideWriter
from .epoch_filter import EpochFilter
from .event_ends import EventEnds
from .host import CoordinatorSpec, OperatorHost, close_all
from .late_stops_writer import tell_to_leave, untold
from .mailbox import Item, Mailbox
from .options import CoordinatorOptions
from .partitions import data_partitions, event_partitions
from .protocol import effects, inputs
from .protocol.core import CoordinatorCore
from .protocol.record_limits import RECORD_HEADROOM
from .protocol.state import HandingOver, Phase
from .state_owner import StateOwner, claim_states
from .state_redistribution import Redistribution
from .status import completed, encoded, job_status, settings_told
from .stored_states import collect_orphans
from .thread_pool import Workers, logged
from .timers import Timers
from .truncation import Truncation
from .writers import Logs, NoticeEncoder

_log = logging.getLogger(__name__)

_FRAME_COST_BYTES = 512
"""What a frame on its way takes in memory beside its events, about; many small ones are bounded by this."""


class CoordinatorRuntime:
    """One coordinator instance of one job: make it, ``run`` it once, drop it."""

    def __init__(
        self,
        settings: JobSettings,
        coordinators: Mapping[str, CoordinatorSpec],
        transport: Transport,
        options: CoordinatorOptions | None = None,
    ) -> None:
        self.settings = settings
        self.options = options or CoordinatorOptions()
        self.instance = uuid.uuid4().hex
        self._specs = coordinators
        self._transport = transport
        self._topics = settings.topics
        self._core = CoordinatorCore(settings, self.instance, transport.max_record_bytes)
        self._mailbox = Mailbox(handle_alone=None if settings.driven_by_query else self._send_alone)
        self._timers = Timers(self._mailbox.wake)
        self._workers = Workers(4, f"{settings.name}-storage")
        self._user_workers = Workers(4, f"{settings.name}-call-async")
        """Of their own: user code that waits must not keep states from being stored."""
        self._storage = StateStorage(settings.state_storage, settings.topics.root)
        self._redistribution = Redistribution(
            settings, coordinators, self._storage, self.instance, transport.max_record_bytes
        )
        self._hosts: dict[str, OperatorHost] = {}
        self._raised: deque[inputs.Input] = deque()
        self._outcome: End | None = None
        self._acks_reader: AcksReader | None = None
        self._owner: StateOwner | None = None
        self._logs: Logs
        self._status_at = 0.0
        self._status = job_status(self._core.job)
        self._settings_told = settings_told(settings)
        self._truncation = Truncation(settings, transport, lambda work: self._workers.submit(logged, work))
        self._epoch_filter = EpochFilter(settings.name, transport, Partition(self._topics.checkpoints, 0))
        self._leaving = threading.Event()
        self._before: preflight.Seen | None = None
        self._event_partitions = event_partitions(settings)
        self._event_ends = EventEnds(self._event_partitions, transport)
        self._encode = NoticeEncoder()
        self._data_partitions = data_partitions(settings)
        self._acks = Partition(self._topics.acks, 0)
        self._status_partition = Partition(self._topics.status, 0)
        self._perform_log = _log.getChild(settings.name)

    # ---- the one loop

    def run(self) -> End:
        """Coordinates until the job or this instance ends, on the calling thread.

        Raises JobRefused when the job may not start like this, StateError when the checkpoint to restore cannot be
        read back, TransportError when the broker cannot be reached at the start. Being fenced is an outcome.
        """
        try:
            return self._run()
        except OutcomeUnknown:
            raise
        except Fenced as fenced:
            return self._ended(End(Ending.FENCED, str(fenced)))
        except PositionUnavailable as gone:
            return self._position_gone(gone)
        except JobHasFinished:
            self._tell_end()
            raise
        finally:
            self._close()

    def _position_gone(self, gone: PositionUnavailable) -> End:
        """The acks topic was truncated past this instance: by a successor, whose claim then stands in the log."""
        log = read_log(
            self.settings.name, self._transport, Partition(self._topics.checkpoints, 0), self.options.deadline_s
        )
        if History.of(log).epoch == self._core.job.history.epoch:
            raise gone
        return self._ended(End(Ending.FENCED, f"another coordinator is at work: {gone}"))

    def _tell_end(self) -> None:
        """The instance before may have died before it could: tasks leave, and readers learn how the job has ended."""
        history = self._core.job.history
        assert history.finished is not None
        tell_to_leave(self.settings, self._transport, self._logs.events, history, self.options.deadline_s)
        self._ended(End(Ending(history.finished.outcome), history.finished.cause))

    def _run(self) -> End:
        self._start()
        while self._outcome is None:
            wake_at = self._wake_at()
            for item in self._mailbox.take(wake_at, self.settings.frame_linger, reads=self._core.reads):
                self._take(item)
                if self._outcome is not None:
                    return self._outcome
            self._take_reads(wake_at)
            self._timers.run_due()
            if time.monotonic() >= min(self._core.deadline() or inf, self._status_at):
                self._feed(inputs.Tick())  # a status, too, is told of now
            for host in self._hosts.values():
                host.guard("on_writable", host.call_writable)
            self._tell_status()
            if self._leaving.is_set():
                return self._ended(End(Ending.LEFT, "the coordinator's host asked it to leave"))
        return self._outcome

    def _take_reads(self, until: float) -> None:
        """Takes records of the acks topic, one at least, until something is posted or due."""
        overtaken = False
        while self._outcome is None and self._core.reads:
            read = self._mailbox.next_read(overtaken=overtaken)
            if read is None:
                return
            self._take(read)
            overtaken = True
            if time.monotonic() >= until:
                return

    def leave(self) -> None:
        """Asks ``run`` to return soon, without ending the job: a successor goes on from the log. From any thread."""
        self._leaving.set()
        self._mailbox.wake()

    def follow(self, before: CoordinatorRuntime) -> None:
        """Says whose place this one takes, in the same host. To be called before ``run``."""
        self._before = before.seen

    @property
    def seen(self) -> preflight.Seen | None:
        """What this host knows of the job's epochs; None where none of its instances has come that far."""
        job, log = self._core.job, self._topics.checkpoints
        return self._before if job.phase is Phase.NEW else preflight.Seen.of(job.history, self.instance, log)

    @property
    def began(self) -> bool:
        """Whether this instance has claimed an epoch: from then on a successor resumes, whatever it was told."""
        return self._core.job.began

    def status(self) -> JobStatus:
        """The job as of the last turn of the loop. From any thread."""
        return self._status

    def numbers(self) -> dict[str, dict[str, float]]:
        """The users' own metrics, by operator."""
        return {name: dict(host.numbers) for name, host in self._hosts.items()}

    def _wake_at(self) -> float:
        due = [self._core.deadline(), self._timers.next_at(), self._status_at]
        return min(at for at in due if at is not None)

    def _take(self, item: Item) -> None:
        item() if callable(item) else self._feed(item)

    def _feed(self, input: inputs.Input) -> None:
        """Feed one input to the core and perform its effects; then feed what user code raised meanwhile."""
        if isinstance(input, inputs.AckRead):
            input = self._epoch_filter.without(input, self._core.job.history.epoch)
        self._decide(input)
        self._finish([])

    def _finish(self, decided: list[effects.Effect]) -> None:
        """Perform what has been decided; then feed what user code raised meanwhile."""
        self._perform_all(decided)
        while self._raised and self._outcome is None:
            self._decide(self._raised.popleft())

    def _decide(self, input: inputs.Input) -> None:
        """Let the core decide on one input, and perform and let go of each effect. Some nest the next decision."""
        decided = self._core.handle(input, time.monotonic())
        if self.settings.driven_by_query and (epoch := self._core.job.epoch) is not None:
            self._mailbox.note_held(epoch.held_bytes)  # first: who is told of a decision may send at once
        self._perform_all(decided)

    def _perform_all(self, decided: list[effects.Effect]) -> None:
        decided.reverse()
        while decided:
            self._perform(decided.pop())

    def _send_alone(self, sent: inputs.Sent) -> Item | None:
        """Decide on a send on its sender's thread, while this one waits, and append. Return what else was decided: it
        may call user code, or commit, and is done on this thread before anything else."""
        try:
            decided = self._core.handle(sent, time.monotonic())
            if any(not isinstance(e, effects.Append) or not isinstance(e.record, EventFrame) for e in decided):
                return partial(self._finish, decided)
            self._perform_all(decided)
        except Exception as error:  # whatever it is, the coordinator's thread must learn of it
            return acks_reader.raiser(error)
        return None

    # ---- start

    def _start(self) -> None:
        settings, deadline_s = self.settings, self.options.deadline_s
        restore, must_exist = (self.options.restore, self.options.restore_checkpoint), self.options.must_exist
        preflight.require_topics(settings, self._transport, [Role.COORDINATOR], deadline_s, *restore, must_exist)
        if not self.options.continues:  # a start that will be refused must not fence the coordinator that is at work
            with suppress(JobHasFinished):  # found again behind the claim, where it can be told to all
                preflight.check_may_start(settings, self._transport, *restore, self._specs)
        if self._before is not None:
            preflight.require_no_successor(settings, self._transport, self._before, deadline_s)
        checkpoints = self._transport.claim_log(self._topics.checkpoints, self._topics.transactional_id, deadline_s)
        self._logs = Logs(checkpoints, self._transport.writer(), SideWriter(settings.name, self._transport))
        continues = self.options.continues
        self._owner = claim_states(settings, self._transport, self._storage, deadline_s, continues=continues)
        known = self.options.known if self._before is None else self._before.known
        begin = preflight.read_begin(settings, self._transport, *restore, known, continues, timeout_s=deadline_s)
        self._truncation.begin(begin.topic_ids)
        preflight.learn_schemas(self._specs, begin)
        for operator in settings.operators:
            if operator.has_coordinator:
                self._hosts[operator.name] = OperatorHost(
                    settings.name,
                    operator,
                    self._specs[operator.name],
                    self._mailbox,
                    self._timers,
                    self._user_workers,
                    partial(load_state, self._storage),
                    self._transport.max_record_bytes - RECORD_HEADROOM,
                    self._work_done,
                    begin.topic_ids.get(self._topics.checkpoints, ""),
                )
        self._feed(begin)
        self._status_at = 0.0
        self._acks_reader = AcksReader(self._transport, self._acks, self._core.job.position, self._mailbox)
        self._acks_reader.start()

    # ---- effects

    def _perform(self, effect: effects.Effect) -> None:
        if self._perform_log.isEnabledFor(logging.DEBUG):
            self._perform_log.debug("job=%s epoch=%s %s", self.settings.name, self._core.job.history.epoch, effect)
        match effect:
            case _ if isinstance(effect, effects.Call):
                self._call(effect)
            case effects.Append():
                self._append(effect.subtask, effect.record)
            case effects.Commit():
                self._commit(effect)
            case effects.Settle():
                host = self._hosts.get(effect.stream.subtask.operator)
                if host is not None:
                    host.settle(effect.stream)
            case effects.AppendHeartbeat():
                self._logs.outstanding.behind(lambda: self._mailbox.post(lambda: self._append_heartbeat(effect.record)))
            case effects.Reply():
                reply = effect.reply
                self._logs.side.append(self._status_partition, reply, getattr(reply, "command", "batch"))
            case effects.ReadAcks():
                self._reread(effect.begin, effect.end)
            case effects.LookAtEnds():
                self._workers.submit(self._look_at_ends, effect, self._logs.events)
            case effects.ReplaceWriter():
                self._logs.replace_events(self._transport.writer())
            case effects.StoreState():
                self._workers.submit(self._store, effect)
            case effects.DeleteStates():
                self._workers.submit(logged, self._storage.delete, list(effect.locations))
            case effects.CollectOrphans():
                self._workers.submit(logged, collect_orphans, self._storage, effect, self._owner)
            case effects.Redistribute():
                self._decide(self._redistribution.perform(effect))
            case effects.Truncate():
                self._truncation.want(effect)
            case effects.Drain():
                self._work_done()
            case effects.KillTask():
                if self.options.on_silent is not None:
                    logged(self.options.on_silent, effect.subtask, effect.task, effect.cause)
            case End():
                if effect.ending is not Ending.FENCED and not self._logs.events_stand(self.options.deadline_s):
                    raise untold(self.settings.name)
                self._ended(effect)
            case _:
                assert_never(effect)

    def _call(self, call: effects.Call) -> None:
        host = self._hosts[call.operator]
        if host.epoch != self._core.job.history.epoch and isinstance(call, effects.CallReset | effects.CallStart):
            host.reset_epoch(self._core.job.history.epoch)
        try:
            host.call(call)
        except StateError:
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit() or a cancelled await of the user's ends no coordinator
            host.tell_raised(error)
            self._raised.append(host.failure(host.calling, error))

    def _work_done(self) -> None:
        """Tell the core, if it drains; what user code posted before goes ahead: it may have raised."""
        if (epoch := self._core.job.epoch) is not None and epoch.draining is not None:
            self._mailbox.post(self._tell_work_left)

    def _tell_work_left(self) -> None:
        left = {name: host.work_left for name, host in self._hosts.items() if host.work_left}
        self._feed(inputs.WorkLeft(self._core.job.history.epoch, left))

    def _append(self, subtask: SubtaskId, record: EventsRecord) -> None:
        partition, epoch = Partition(self._topics.events(subtask.operator), subtask.index), self._core.job.history.epoch
        size = _FRAME_COST_BYTES + len(record.payload) if isinstance(record, EventFrame) else 0
        attempt = record.attempt if isinstance(record, EventFrame | Start | Stop) else ""
        number = self._logs.events_writer_number
        if size:
            self._mailbox.count_unsent(subtask.operator, size)

        def taken(offset: int | None, error: Exception | None) -> None:
            self._event_ends.appended(partition, offset)
            self._logs.outstanding.ended()
            if size:
                self._mailbox.count_unsent(subtask.operator, -size)
            if error is not None:
                self._logs.events_failed = max(number, self._logs.events_failed)
                self._mailbox.post(lambda: self._append_failed(number, inputs.AppendFailed(epoch, str(error)), error))

        self._logs.outstanding.began()
        try:
            self._logs.events.append(partition, self._encode(record), f"{subtask.index}:{attempt}".encode(), taken)
        except TransportError as error:
            taken(None, error)

    def _append_failed(self, number: int, failed: inputs.AppendFailed, error: Exception) -> None:
        """A writer fails with all that it had queued at once: it is replaced once, unless it may not write at all."""
        if isinstance(error, NotAuthorized):
            raise error
        if number == self._logs.events_writer_number:
            self._feed(failed)

    def _append_heartbeat(self, heartbeat: CoordinatorHeartbeat) -> None:
        lost = lambda error: self._mailbox.post(lambda: self._heartbeat_lost(error))  # noqa: E731
        self._logs.side.append(self._acks, heartbeat, lost=lost)

    def _heartbeat_lost(self, error: Exception) -> None:
        """Without heartbeats the log's time may stand still, and every deadline with it: they must be allowed."""
        if isinstance(error, NotAuthorized):
            raise error
        self._feed(inputs.HeartbeatLost())

    def _commit(self, commit: effects.Commit) -> None:
        """Blocks until the outcome is known: until then the coordinator handles nothing else."""
        try:
            self._logs.checkpoints.commit([(key, None if r is None else encode(r)) for key, r in commit.records])
        except Fenced as fenced:
            raise preflight.judge_fenced(fenced, self.settings, self._transport, self.seen) from None
        committed = inputs.Committed()
        if commit.looks_at_ends:
            wanted = [*self._event_partitions.values(), *self._data_partitions.values(), self._acks]
            ends = self._transport.offsets(wanted, self.options.deadline_s)
            committed = inputs.Committed(
                {subtask: ends[partition].end for subtask, partition in self._event_partitions.items()},
                ends[self._acks].end,
                {partition: ends[at].end for partition, at in self._data_partitions.items()},
            )
        self._decide(committed)

    def _reread(self, begin: int, end: int) -> None:
        self._tell_status()  # whoever waits for a silent coordinator must hear of one that has much to read
        for offset, record in acks_reader.read_range(self._transport, self._acks, begin, end, self.options.deadline_s):
            self._tell_status()
            self._decide(inputs.Reread(offset, record))
            if isinstance(self._core.job.rereading, HandingOver):  # user code may answer each event by another
                self._mailbox.drain(self._take, self._is_pressed, self.options.deadline_s)
        self._decide(inputs.RereadEnd())

    def _is_pressed(self) -> bool:
        return self._outcome is None and any(host.is_pressed for host in self._hosts.values())

    def _look_at_ends(self, effect: effects.LookAtEnds, events: Writer) -> None:
        """Behind the outcome of everything appended; what failed has been posted by then, ahead of this."""
        if not events.flush(self.options.deadline_s):
            return  # the checkpoint's timeout says so
        try:
            seen = self._event_ends.seen(self.options.deadline_s)
        except TransportError as error:
            _log.warning("job=%s: the ends of the event partitions cannot be read: %s", self.settings.name, error)
            return
        self._mailbox.post(inputs.EndsSeen(effect.checkpoint_id, seen))

    def _store(self, effect: effects.StoreState) -> None:
        try:
            self._storage.put(effect.location, effect.state)
        except Exception as error:
            self._mailbox.post(inputs.StateNotStored(effect.operator, effect.checkpoint_id, told(error)))
        else:
            handle = StateHandle.stored(effect.location, effect.state)
            self._mailbox.post(inputs.StateStored(effect.operator, effect.checkpoint_id, handle))

    # ---- status and end

    def _tell_status(self) -> None:
        if time.monotonic() < self._status_at:
            return
        self._status_at = time.monotonic() + self.options.status_interval_s
        self._truncation.run_due()
        if self._core.job.phase is not Phase.ENDED:
            self._publish(job_status(self._core.job))

    def _publish(self, status: JobStatus) -> None:
        """With the wall clock as it is: that of the core's times was read when the instance began."""
        shown = {name: host.shown for name, host in self._hosts.items()}
        status = self._status = completed(status, round(1000 * time.time()), shown, self._settings_told)
        self._logs.side.append(self._status_partition, encoded(status, self._transport.max_record_bytes), "status")
        if self.options.on_status is not None:
            logged(self.options.on_status, status)

    def _ended(self, end: End) -> End:
        level = logging.ERROR if end.ending is Ending.FAILED else logging.INFO
        _log.log(level, "job=%s: this coordinator ends (%s): %s", self.settings.name, end.ending.value, end.cause)
        self._outcome = end
        status = job_status(self._core.job, end.ending.value, end.cause)
        if end.ending is Ending.FENCED:
            self._status = status  # the successor writes the job's status now
        elif hasattr(self, "_logs"):
            self._publish(status)
        return end

    def _close(self) -> None:
        if self._outcome is None:
            self._outcome = End(Ending.FAILED, "the coordinator instance broke off")
        self._mailbox.close()
        close_all(list(self._hosts.values()), self._outcome.cause)
        self._workers.close()
        self._user_workers.close()
        if hasattr(self, "_logs"):
            keeps = 0.0 if self._outcome.ending is Ending.FENCED else 5.0
            self._logs.events.close(keeps)
            self._logs.side.close(keeps)
            self._logs.checkpoints.close()
        if self._acks_reader is not None:
            self._acks_reader.close()
