"""What a coordinator knows: every attribute states its invariant, and :mod:`.invariants` checks them all.

What lives as long as the coordinator instance is in :class:`JobState`; what a global failover ends is in
:class:`Epoch`, so that beginning a new epoch is making a new object and nothing can be forgotten.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ...schemas.acks import BatchCommitted, BatchEvents, BatchWanted, Command, FailureHint, Hello
from ...schemas.checkpoints import InboxEvents
from ...schemas.errors import CoordinatorClosed
from ...schemas.events import Stop
from ...schemas.ids import NO_ATTEMPT, Generation, SubtaskId
from ...schemas.settings import JobSettings
from ...schemas.state import Sender
from ...schemas.versions import CURRENT, Versions
from .after_commit import AfterCommit, CommandOutcome, Committing
from .effects import Append, CallComplete, CallEvents, Commit, Effect, End, Ending, Settle
from .gateway import Gateway
from .history import Checkpoint, History, Keyed
from .log_clock import LogClock
from .pending import Pending
from .query_state import NO_BATCH, BatchBegin, Decision, Query, Rereading
from .restarts import RestartBudget
from .room import Room
from .stream import EventStream
from .timeline import Timeline
from .waiting_hello import WaitingHello, shorten

STOPS_MAX = 1_000


class Phase(StrEnum):
    """Where the instance stands.

    ::

        NEW ──Begin──> CLAIMING ──Committed──> CATCHING_UP ──RereadEnd──> RUNNING
         │                ^  ^                                               │
         └──> RESCALING ──┘  └─────── BACKING_OFF <──── global failover ─────┘       any ──> ENDED
    """

    NEW = "new"
    RESCALING = "rescaling"
    """States of the checkpoint to restore are on their way to another number of subtasks; nothing is committed."""
    CLAIMING = "claiming"
    CATCHING_UP = "catching-up"
    RUNNING = "running"
    BACKING_OFF = "backing-off"
    ENDED = "ended"


class SlotPhase(StrEnum):
    """Where a subtask stands within an epoch: ABSENT ──Start──> LIVE ──failover──> ABSENT; LIVE or ABSENT ──> DONE."""

    ABSENT = "absent"
    LIVE = "live"
    DONE = "done"
    """A completed checkpoint contains its end: it is never started again in this epoch."""


@dataclass(slots=True)
class Attempt:
    """One run of a subtask, from its Start to its failure."""

    id: int
    hello: Hello
    generation: Generation
    at_takeover: bool
    """Its Hello was found while catching up: if it says Hello again that is no failure of its own."""
    seen_at: float
    """Log time of its newest record."""
    progress_at: float
    """Log time at which its handled-through last advanced, or had nothing to advance over."""
    handled_through: int = 0
    """What it reported itself; the stream's may be higher, from an attempt before it."""
    received_through: int = 0
    """Sequence of the next event expected from it."""
    finished: bool = False
    """It reported that its work has ended."""
    killed: bool = False
    """Its task is to be ended: it was silent, or stuck."""
    step: str = "starting"
    step_age_ms: int = 0

    def sender(self, subtask: SubtaskId) -> Sender:
        """The identity that its records carry: any other is somebody's past."""
        return Sender(subtask.operator, subtask.index, self.id, self.generation.epoch, self.generation.number)


@dataclass(slots=True)
class Left:
    """An attempt that a failover has undone: its instance is to drop its state and say Hello again.

    It cannot while user code has not returned, and one that is frozen never will. Times are log time.
    """

    attempt: int
    task: str
    host: str
    since: float
    """When it was undone, and told so."""
    seen_at: float
    """Of its newest record, in whatever generation."""
    step: str = ""
    """What it last said that it was doing."""
    killed_at: float | None = None
    """When its task was to be ended; None: not yet."""

    @property
    def doing(self) -> str:
        return self.step or "it has not said at what"


@dataclass(slots=True)
class Slot:
    """One subtask within an epoch."""

    subtask: SubtaskId
    begin_position: int
    """Where the epoch began in its event partition: every frame of the epoch stands at or behind it."""
    begin_data: Mapping[str, int] = field(default_factory=dict)
    """The same of its data partitions, by upstream operator."""
    phase: SlotPhase = SlotPhase.ABSENT
    generation: int = 0
    """Number of the current generation; rises with every failover of its region."""
    attempt: Attempt | None = None
    """Not None exactly while LIVE."""
    newest: tuple[int, str] = (NO_ATTEMPT, "")
    """The newest attempt started in this epoch, live or not, and its task."""
    gateway: Gateway = field(default_factory=Gateway)
    """Of the current attempt; while ABSENT unmarked, so that nothing is held."""
    stream: EventStream | None = None
    """What new gateways send through; None before the first, and under policy reset while ABSENT."""
    batch_begin: BatchBegin = NO_BATCH
    """Where a query drives the job: behind the last batch that Spark has committed, in this epoch."""
    start_not_before: float = 0.0
    """Monotonic seconds; the restart backoff."""
    events_received: int = 0
    since: float = 0.0
    """Monotonic seconds: when it came into its phase."""

    @property
    def sent_through(self) -> int:
        """Sequence of the first event of this epoch that has not been appended."""
        return 0 if self.stream is None else self.stream.appended_through


Delivery = CallEvents | CallComplete
"""What a coordinator that owes a checkpoint future is not handed yet."""


@dataclass(slots=True)
class Draining:
    """The end of the job, which waits for what user code has begun."""

    until: float
    """Monotonic seconds; then the job fails."""
    left: Mapping[str, int] = field(default_factory=dict)
    """By operator: calls of ``call_async`` that have not ended, as last told."""


@dataclass(slots=True)
class Inherited:
    """The inbox range of one subtask."""

    through: int
    """Sequence behind the last event found."""
    parts: list[InboxEvents] = field(default_factory=list)
    """None where the ranges stay in the log."""


@dataclass(slots=True)
class HandingOver:
    """Inbox ranges are read from the log once more and handed over."""

    due: dict[SubtaskId, int]
    """By subtask: sequence of the next event."""


@dataclass(slots=True)
class Epoch:
    """One uninterrupted history of the job's coordinators."""

    number: int
    restored: Checkpoint | None
    slots: dict[SubtaskId, Slot]
    pending: dict[int, Pending] = field(default_factory=dict)
    """By id, ascending; at most one of them is CALLING, and that is the highest."""
    withheld: dict[str, deque[Delivery]] = field(default_factory=lambda: defaultdict(deque))
    """By operator; not empty only while that operator is uncut in a pending checkpoint."""
    withheld_bytes: int = 0
    inherited: dict[SubtaskId, Inherited] = field(default_factory=dict)
    """The inbox range of the restored checkpoint, until that subtask's first attempt is ready."""
    inherited_bytes: int = 0
    """Bytes of events and their lengths in the ranges found in the log. Above ``held_bytes_max`` they stay there."""
    inherited_end: int = 0
    """Offset in the acks topic behind the last event of any range."""
    inherited_at: float | None = None
    """Monotonic seconds: until then subtasks whose ranges stayed in the log wait for others of them."""
    inherited_due: set[SubtaskId] = field(default_factory=set)
    """Subtasks whose range is still in the log, and may be handed over now."""
    held_bytes: Counter[str] = field(default_factory=Counter)
    """By operator: payload bytes in closed gateways."""
    query_run: str = ""
    """The run of the query that stands for every subtask; empty until one has attached."""
    unnotified: set[str] = field(default_factory=set)
    """Operators that have not been told that the restored checkpoint is complete: some inherit events of it."""
    draining: Draining | None = None
    """Not None once every slot is DONE."""
    event_at: float = 0.0
    """Monotonic seconds: when an event was last appended for a subtask, or received from one; or the epoch began."""


@dataclass(frozen=True, slots=True)
class OwedStop:
    """A Stop that may not stand yet."""

    subtask: SubtaskId
    stop: Stop
    until: int
    """The first checkpoint whose marker in that partition stands behind it, and so shows that it stands."""


@dataclass(slots=True)
class SavepointRequest:
    command: int
    stop: bool


@dataclass(slots=True)
class Statistics:
    """Since the instance began; for people and metrics."""

    completed: int = 0
    aborted: int = 0
    region_failovers: int = 0
    global_failovers: int = 0
    last_duration_s: float = -1.0
    last_failure: str = ""
    failures: Counter[SubtaskId] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    """Records read that did not count, by reason (protocol, G5)."""


@dataclass(slots=True)
class JobState:
    settings: JobSettings
    instance: str
    """Unique to this coordinator instance."""
    restarts: RestartBudget
    clock: LogClock
    room: Room = field(default_factory=Room)
    versions: Versions = CURRENT
    """What it speaks."""
    phase: Phase = Phase.NEW
    now: float = 0.0
    """Monotonic seconds of the input being handled."""
    wall_ms_at_zero: float = 0.0
    """Milliseconds since 1970 at monotonic second 0."""
    out: list[Effect] = field(default_factory=list)
    """Effects of the input being handled."""
    history: History = field(default_factory=History)
    topic_ids: dict[str, str] = field(default_factory=dict)
    partitions: dict[str, int] = field(default_factory=dict)
    """By operator: how many partitions its events topic has, at least as many as subtasks."""
    position: int = 0
    """Offset of the next acks record of the main reader."""
    run: tuple[str, int] | None = None
    """Newest run read, and its offset; the claimed one, or one about to be claimed."""
    older_runs: set[str] = field(default_factory=set)
    """Ids of the runs before it that were read: none of them comes back."""
    hellos: dict[SubtaskId, WaitingHello] = field(default_factory=dict)
    unheard: dict[SubtaskId, WaitingHello] = field(default_factory=dict)
    """Hellos answered, until something is read of that attempt or a newer Hello: their Start may never have stood."""
    stops: deque[OwedStop] = field(default_factory=lambda: deque(maxlen=STOPS_MAX))
    """Appended, until a checkpoint is complete whose markers stand behind them."""
    left: dict[SubtaskId, Left] = field(default_factory=dict)
    """Attempts that a failover has undone, until their subtask is started again or their task dies: one may be stuck,
    or frozen. While a Hello waits nobody waits for them."""
    strangers: list[WaitingHello] = field(default_factory=list)
    """Hellos of older runs, found while catching up; answered by Stop when that is done."""
    superseded: list[tuple[WaitingHello, int]] = field(default_factory=list)
    """Likewise those of instances in whose place another attempt is, with that."""
    epoch: Epoch | None = None
    """None before the first claim and from a global failover until the next."""
    began: bool = False
    """This instance has claimed an epoch."""
    first_epoch: bool = True
    """No epoch of this instance runs yet: start() has not been called."""
    next_checkpoint_id: int = 0
    next_trigger_at: float | None = None
    """Monotonic seconds of the next periodic checkpoint; None where there is none."""
    completed_at: float | None = None
    """Monotonic seconds of the last completion, for min_pause."""
    savepoints: deque[SavepointRequest] = field(default_factory=deque)
    commands: dict[int, Command] = field(default_factory=dict)
    """Read and not executed, by offset."""
    query: Query | None = None
    """Where a query drives the job: None until one has asked."""
    decision: Decision | None = None
    """The last one that was read, also where nobody could act on it: it counts while that checkpoint is prepared."""
    manifests: dict[int, BatchEvents] = field(default_factory=dict)
    """By prepared checkpoint: who has written what its batch sent to a coordinator."""
    rescaling: tuple[Checkpoint, int] | None = None
    """Not None exactly while RESCALING: what is restored, and where the acks topic ends."""
    aborts_prepared: bool = False
    """The next epoch begins where the job has been set back to: what is prepared follows another checkpoint."""
    restores_nothing: bool = False
    """The next epoch begins from nothing, whatever checkpoints there are."""
    begun_commands: set[int] = field(default_factory=set)
    """Those whose execution has begun; a subset of ``commands``."""
    failures_in_a_row: int = 0
    """Countable failed checkpoints since one completed."""
    failed_alike: Counter[tuple[SubtaskId | None, str]] = field(default_factory=Counter)
    """Failovers by subtask (None: of the job) and cause, before the first checkpoint of all completes."""
    blamed: list[str] = field(default_factory=list)
    """What each of those waited for."""
    claim_at: float = 0.0
    """Monotonic seconds: when the next epoch may be claimed, while BACKING_OFF."""
    failover_cause: str = ""
    heartbeat_at: float | None = None
    """Monotonic seconds at which the own heartbeat in flight was written; None while none is."""
    next_heartbeat_at: float = 0.0
    heartbeat_read_at: float = 0.0
    """Monotonic seconds at which an own heartbeat was last read."""
    started_at: float | None = None
    """Monotonic seconds since which the claimed run lacks subtasks that have never registered; None once all have."""
    registered: set[SubtaskId] = field(default_factory=set)
    statistics: Statistics = field(default_factory=Statistics)
    timeline: Timeline = field(default_factory=Timeline)
    rereading: Rereading | HandingOver | None = None
    """While it is set no record is handled but by Reread; while ranges are handed over, what user code posts is."""
    committing: Committing | None = None
    """The commit under way; while it is set nothing but Committed is handled."""
    outcomes: list[CommandOutcome] = field(default_factory=list)
    """Of commands, not committed yet."""
    due_failover: str | None = None
    """Why the job must fail over globally, as soon as the input at hand has been dealt with."""
    due_end: tuple[Ending, str] | None = None
    """How and why the job must end, likewise."""

    # ---- short words for what every transition needs

    def take_run(self, run: str, offset: int) -> bool:
        """Whether this run, read at ``offset``, is newer than any before; it owns the job from now on."""
        if self.run is not None and run != self.run[0] and offset < self.run[1]:
            self.older_runs.add(run)
        if run in self.older_runs or (self.run is not None and self.run[0] == run):
            return False
        if self.run is not None:
            self.older_runs.add(self.run[0])
        self.run = run, offset
        return True

    def forget_hello_of(self, hint: FailureHint) -> bool:
        """A task has died, and a Hello of it that waits is forgotten; whether nobody's waits instead."""
        subtask = SubtaskId(hint.operator, hint.subtask)
        left = self.left.get(subtask)
        if left is not None and (hint.run, hint.task) == (self.run and self.run[0], left.task):
            del self.left[subtask]
        if subtask in self.unheard and hint.names(self.unheard[subtask].hello):
            del self.unheard[subtask]
        waiting = self.hellos.get(subtask)
        if waiting is None:
            return False
        if not hint.names(waiting.hello):
            link = waiting
            while link.displaced is not None:
                if hint.names(link.displaced.hello):
                    link.displaced = link.displaced.displaced
                else:
                    link = link.displaced
            return False
        del self.hellos[subtask]
        if waiting.displaced is not None:
            self.hellos[subtask] = waiting.displaced
        elif left is not None:
            left.since = self.clock.seconds  # it is told so only now
        return waiting.displaced is None

    def wait(self, waiting: WaitingHello) -> None:
        """The newest Hello of its subtask waits for its Start."""
        subtask = waiting.hello.subtask_id
        before = self.hellos.get(subtask)
        if before is not None:
            again = before.hello.task == waiting.hello.task
            waiting.displaced = before.displaced if again else before  # mutant: displaced-hello-forgotten
            shorten(waiting)
        self.hellos[subtask] = waiting

    @property
    def current(self) -> Epoch:
        assert self.epoch is not None, f"there is no epoch in phase {self.phase}"
        return self.epoch

    def emit(self, *effects: Effect) -> None:
        self.out.extend(effects)

    def commit(self, records: Sequence[Keyed], then: AfterCommit, *, looks_at_ends: bool = False) -> None:
        """Commits ``records``; ``then`` goes on once they stand. Always the last effect of a decision."""
        assert self.committing is None, "one commit at a time"
        self.committing = Committing(tuple(records), then)
        self.emit(Commit(self.committing.records, looks_at_ends))

    def end(self, ending: Ending, cause: str) -> None:
        """This instance is done: nothing is handled any more."""
        for slot in [] if self.epoch is None else self.epoch.slots.values():
            if (stream := slot.stream) is not None and stream.fail(
                CoordinatorClosed(f"the coordinator ended: {cause}")
            ):
                self.emit(Settle(stream))
            if slot.attempt is not None and ending is not Ending.FENCED and not self.settings.batches:
                hello = slot.attempt.hello
                self.emit(Append(slot.subtask, Stop(self.history.epoch, slot.attempt.id, hello.nonce, cause)))
        for subtask, waiting in self.hellos.items():
            if ending is not Ending.FENCED:
                self.emit(Append(subtask, Stop(self.history.epoch, waiting.offset, waiting.hello.nonce, cause)))
        self.phase = Phase.ENDED
        self.emit(End(ending, cause))

    def live(self) -> list[Slot]:
        """Slots with a live attempt."""
        return [] if self.epoch is None else [s for s in self.epoch.slots.values() if s.phase is SlotPhase.LIVE]

    def has_coordinator(self, operator: str) -> bool:
        return self.settings.operator(operator).has_coordinator

    def coordinated(self) -> list[str]:
        """Operators that have a coordinator."""
        return [operator.name for operator in self.settings.operators if operator.has_coordinator]

    def after_interval(self) -> float | None:
        """Monotonic second of the periodic checkpoint after one at this instant; None where there are none."""
        interval = self.settings.checkpoint.interval
        return None if interval is None or self.settings.batches else self.now + interval  # mutant: interval-triggers

    def wall_ms(self, at: float | None = None) -> int:
        """Milliseconds since 1970 at a monotonic second, by default now."""
        return int(self.wall_ms_at_zero + 1000 * (self.now if at is None else at))

    def monotonic(self, wall_ms: int) -> float:
        """The monotonic second of a wall clock's milliseconds since 1970."""
        return (wall_ms - self.wall_ms_at_zero) / 1000

    def is_of_this_life(self, said: BatchWanted | BatchCommitted | BatchEvents) -> bool:
        """Whether a query has said it since the job was purged: offsets and ids begin again with each life."""
        return said.history == self.topic_ids.get(self.settings.topics.checkpoints)

    def drop(self, reason: str) -> None:
        """Counts a record that was read and does not count."""
        self.statistics.dropped[reason] += 1
