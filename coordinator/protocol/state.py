"""What a coordinator knows: every attribute states its invariant, and :mod:`.invariants` checks them all.

What lives as long as the coordinator instance is in :class:`JobState`; what a global failover ends is in
:class:`Epoch`, so that beginning a new epoch is making a new object and nothing can be forgotten.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ...checkpoint_log.history import Checkpoint, History, Keyed
from ...schemas.acks import BatchCommitted, BatchEvents, BatchWanted, Command, Hello
from ...schemas.checkpoints import InboxEvents
from ...schemas.errors import CoordinatorClosed
from ...schemas.events import Stop
from ...schemas.ids import NO_ATTEMPT, Generation, SubtaskId
from ...schemas.settings import JobSettings
from ...schemas.state import Sender
from ...schemas.status import End, Ending
from ...schemas.versions import CURRENT, Versions
from .after_commit import AfterCommit, CommandOutcome, Committing
from .effects import Append, CallComplete, CallEvents, Commit, Effect, Settle
from .feed_state import Feeds
from .gateway import GatewayState
from .log_clock import LogClock
from .pending import Pending
from .query_state import NO_BATCH, BatchBegin, QueryState, Rereading
from .record_limits import RecordLimits
from .registry import Registry
from .restarts import RestartBudget
from .stream import EventStream
from .timeline import Timeline


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
    gateway: GatewayState = field(default_factory=GatewayState)
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


class Dropped(StrEnum):
    """Reasons for which a record had no effect; keys of ``Statistics.dropped``. *Stale*: not of the current attempt."""

    UNREADABLE = "unreadable"
    HELLO_OF_UNKNOWN_SUBTASK = "hello-of-unknown-subtask"
    HELLO_OF_ANOTHER_LAYOUT = "hello-of-another-layout"
    HELLO_OF_ANOTHER_RUN = "hello-of-another-run"
    HELLO_OF_SUPERSEDED = "hello-of-superseded"
    HELLO_REPEATED = "hello-repeated"
    HEARTBEAT_OF_ANOTHER_COORDINATOR = "heartbeat-of-another-coordinator"
    COMMAND_EXECUTED_BEFORE = "command-executed-before"
    LATE_COORDINATOR_STATE = "late-coordinator-state"
    LATE_ACK = "late-ack"
    REPEATED_ACK = "repeated-ack"
    EVENTS_REPEATED = "events-repeated"
    EVENTS_FOR_NO_COORDINATOR = "events-for-no-coordinator"
    INHERITED_EVENTS_REPEATED = "inherited-events-repeated"
    INHERITED_EVENTS_BEHIND_A_GAP = "inherited-events-behind-a-gap"
    BATCH_OF_ANOTHER_LIFE = "batch-of-another-life"
    BATCH_OF_NO_RUN = "batch-of-no-run"
    LATE_BATCH_EVENTS = "late-batch-events"
    FEED_OF_ANOTHER_INCARNATION = "feed-of-another-incarnation"
    FEED_OUT_OF_ORDER = "feed-out-of-order"
    FEED_WITHOUT_ROOM = "feed-without-room"
    LATE_DECISION = "late-decision"
    LATE_ENDS = "late-ends"
    STALE_HEARTBEAT = "stale-Heartbeat"
    STALE_SNAPSHOT_TAKEN = "stale-SnapshotTaken"
    STALE_CHECKPOINT_ACK = "stale-CheckpointAck"
    STALE_CHECKPOINT_DECLINE = "stale-CheckpointDecline"
    STALE_FAILED = "stale-Failed"
    STALE_REFUSED = "stale-Refused"
    STALE_FINISHED = "stale-Finished"
    STALE_OPERATOR_EVENT_FRAME = "stale-OperatorEventFrame"


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
    feeds: Feeds = field(default_factory=Feeds)
    """Batches that queries send to the coordinators."""
    event_at: float = 0.0
    """Monotonic seconds: when an event was last appended for a subtask, or received from one; or the epoch began."""


@dataclass(slots=True)
class SavepointRequest:
    command: int
    stop: bool


@dataclass(slots=True)
class Schedule:
    """Which checkpoint comes next and when, and how those before it went. Times are monotonic seconds."""

    next_id: int = 0
    trigger_at: float | None = None
    """Of the next periodic checkpoint; None where there is none."""
    completed_at: float | None = None
    """The last completion, for min_pause."""
    savepoints: deque[SavepointRequest] = field(default_factory=deque)
    """Asked for, and not begun."""
    failures_in_a_row: int = 0
    """Countable failed checkpoints since one completed."""
    blamed: list[str] = field(default_factory=list)
    """The subtasks and coordinators that each of those waited for."""

    def begin(self, trigger_at: float | None) -> None:
        """An epoch begins: what went wrong in the one before does not count."""
        self.trigger_at, self.completed_at = trigger_at, None
        self.failures_in_a_row, self.blamed = 0, []


@dataclass(slots=True)
class Commands:
    """Those whose effect or refusal is not committed yet."""

    waiting: dict[int, Command] = field(default_factory=dict)
    """Read and not executed, by offset."""
    begun: set[int] = field(default_factory=set)
    """Offsets of those whose execution has begun; a subset of ``waiting``."""
    outcomes: list[CommandOutcome] = field(default_factory=list)
    """To be committed next."""

    def forget(self, offset: int) -> None:
        self.waiting.pop(offset, None)
        self.begun.discard(offset)


@dataclass(slots=True)
class OwnHeartbeat:
    """The coordinator's heartbeats, which give log time its beat. Times are monotonic seconds."""

    due_at: float = 0.0
    written_at: float | None = None
    """Of the one in flight; None while none is."""
    read_at: float = 0.0
    """When one was last read."""


@dataclass(slots=True)
class NextEpoch:
    """Input of the next epoch, which begins at a start or after a global failover."""

    is_first: bool = True
    """It is the first of this instance, which has not called start() yet."""
    cause: str = ""
    """Of the global failover."""
    claim_at: float = 0.0
    """Monotonic seconds: when it may be claimed, while BACKING_OFF."""
    restores_nothing: bool = False
    """Whatever checkpoints there are."""
    aborts_prepared: bool = False
    """The job has been set back: what is prepared follows another checkpoint."""
    rescaling: tuple[Checkpoint, int] | None = None
    """Not None exactly while RESCALING: what is restored, and where the acks topic ends."""


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
    dropped: Counter[Dropped] = field(default_factory=Counter)
    """Records read that did not count, by reason (protocol, G5)."""


@dataclass(slots=True)
class JobState:
    settings: JobSettings
    instance: str
    """Unique to this coordinator instance."""
    restarts: RestartBudget
    clock: LogClock
    limits: RecordLimits = field(default_factory=RecordLimits)
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
    first_epoch: int = 1
    """What the first epoch of this instance must not be below: those of earlier incarnations, and lost ones, are."""
    partitions: dict[str, int] = field(default_factory=dict)
    """By operator: how many partitions its events topic has, at least as many as subtasks."""
    position: int = 0
    """Offset of the next acks record of the main reader."""
    began: bool = False
    """This instance has claimed an epoch."""
    epoch: Epoch | None = None
    """None before the first claim and from a global failover until the next."""
    next_epoch: NextEpoch = field(default_factory=NextEpoch)
    registry: Registry = field(default_factory=Registry)
    schedule: Schedule = field(default_factory=Schedule)
    commands: Commands = field(default_factory=Commands)
    heartbeat: OwnHeartbeat = field(default_factory=OwnHeartbeat)
    query: QueryState = field(default_factory=QueryState)
    """Of use only where a query drives the job."""
    statistics: Statistics = field(default_factory=Statistics)
    timeline: Timeline = field(default_factory=Timeline)
    rereading: Rereading | HandingOver | None = None
    """While it is set no record is handled but by Reread; while ranges are handed over, what user code posts is."""
    accepts_lost_log: bool = False
    """A person has named where to begin: so a checkpoint log that has lost its end is no refusal."""
    committing: Committing | None = None
    """The commit under way; while it is set nothing but Committed is handled."""
    due_failover: str | None = None
    """Why the job must fail over globally, as soon as the input at hand has been dealt with."""
    due_end: tuple[Ending, str] | None = None
    """How and why the job must end, likewise."""

    # ---- short words for what every transition needs

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
            if slot.attempt is not None and ending is not Ending.FENCED and not self.settings.driven_by_query:
                hello = slot.attempt.hello
                self.emit(Append(slot.subtask, Stop(self.history.epoch, slot.attempt.id, hello.nonce, cause)))
        for subtask, waiting in self.registry.waiting.items():
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
        interval, by_query = self.settings.checkpoint.interval, self.settings.driven_by_query
        return None if interval is None or by_query else self.now + interval  # mutant: interval-triggers

    def wall_ms(self, at: float | None = None) -> int:
        """Milliseconds since 1970 at a monotonic second, by default now."""
        return int(self.wall_ms_at_zero + 1000 * (self.now if at is None else at))

    def monotonic(self, wall_ms: int) -> float:
        """The monotonic second of a wall clock's milliseconds since 1970."""
        return (wall_ms - self.wall_ms_at_zero) / 1000

    @property
    def epoch_to_claim(self) -> int:
        return max(
            self.history.epoch + 1,
            self.first_epoch,  # mutant: epochs-of-an-earlier-incarnation
        )

    def is_of_this_incarnation(self, said: BatchWanted | BatchCommitted | BatchEvents) -> bool:
        """Whether a query wrote it to this incarnation of the job: offsets and ids begin again with each."""
        return said.history == self.topic_ids.get(self.settings.topics.checkpoints)

    def drop(self, reason: Dropped) -> None:
        """Counts a record that was read and does not count."""
        self.statistics.dropped[reason] += 1
