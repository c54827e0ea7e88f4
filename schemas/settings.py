"""What a user sets, checked when it is set. Durations are seconds, sizes are bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from .errors import ConfigurationError
from .events import FailoverPolicy
from .frames import FRAME_BYTES_MAX, FRAME_EVENTS_MAX
from .graph import Graph, InputSettings, Partitioning
from .ids import SubtaskId, checked_name
from .topics import DEFAULT_PREFIX, TopicNames, TopicSpec
from .user_schemas import UserSchema


class Restore(StrEnum):
    """Checkpoint from which a coordinator that starts goes on."""

    LATEST = "latest"
    """From the last completed checkpoint of the current line."""
    FRESH = "fresh"
    """From nothing; earlier checkpoints stay until the next one completes."""
    CHECKPOINT = "checkpoint"
    """From a named one that is still kept."""


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """When checkpoints are taken, and what becomes of those that fail (protocol, section 7)."""

    interval: float | None = 1.0
    """Seconds from one trigger to the next; None: only savepoints."""
    timeout: float = 60.0
    """Seconds from the trigger after which an incomplete checkpoint is aborted."""
    min_pause: float = 0.0
    """Seconds that must pass between a completion and the next trigger."""
    max_concurrent: int = 1
    """How many checkpoints may be under way; only one of them may still await its coordinators."""
    tolerable_failures: int = 3
    """How many checkpoints in a row may fail; one more is a global failover."""
    retained: int = 2
    """How many completed checkpoints are kept; savepoints do not count and always are."""
    inline_state_max: int = 128 * 1024
    """Bytes up to which a state travels in the record itself; a larger one goes through state storage."""
    unaligned: bool = False
    """Whether subtasks with inputs snapshot at the first barrier instead of the last; savepoints never do."""
    aligned_timeout: float | None = None
    """Seconds after which an alignment that still waits turns unaligned; None: never."""

    def __post_init__(self) -> None:
        if self.interval is not None:
            _above("checkpoint interval", self.interval, 0)
        _above("checkpoint timeout", self.timeout, 0)
        _at_least("checkpoint min_pause", self.min_pause, 0)
        _count("checkpoint max_concurrent", self.max_concurrent, 1)
        _count("checkpoint tolerable_failures", self.tolerable_failures, 0)
        _count("checkpoint retained", self.retained, 1)
        _count("checkpoint inline_state_max", self.inline_state_max, 0)
        if not isinstance(self.unaligned, bool):
            raise ConfigurationError(f"checkpoint unaligned must be True or False, not {self.unaligned!r}")
        if self.aligned_timeout is not None:
            _above("checkpoint aligned_timeout", self.aligned_timeout, 0)
        if self.max_concurrent > 1 and (self.unaligned or self.aligned_timeout is not None):
            raise ConfigurationError(
                f"checkpoint max_concurrent is {self.max_concurrent}; with unaligned checkpoints (unaligned,"
                " aligned_timeout) it must be 1"
            )
        if self.inline_state_max > 512 * 1024:
            raise ConfigurationError(
                f"checkpoint inline_state_max is {self.inline_state_max} bytes: above 524288 a record may not fit the"
                " broker's limit; leave larger states to state storage"
            )


@dataclass(frozen=True, slots=True)
class RestartStrategy:
    """How often, and after which delay, failed attempts start again (protocol, section 8)."""

    backoff_first: float = 0.0
    """Seconds before the first restart."""
    backoff_next: float = 0.1
    """Seconds before the second; doubles with each further one."""
    backoff_max: float = 30.0
    """Seconds that no delay exceeds."""
    budget: int = 20
    """How many failovers are allowed within ``budget_window``; one more fails the job."""
    budget_window: float = 600.0
    """Seconds; also the quiet time after which the delays begin anew."""

    def __post_init__(self) -> None:
        _at_least("restart backoff_first", self.backoff_first, 0)
        _at_least("restart backoff_next", self.backoff_next, 0)
        _at_least("restart backoff_max", self.backoff_max, 0)
        _count("restart budget", self.budget, 0)
        _above("restart budget_window", self.budget_window, 0)


class Rescale(StrEnum):
    """What becomes of an operator's subtask states when it starts with another parallelism (protocol, section 5)."""

    REFUSE = "refuse"
    """A start is refused, unless no subtask has a state that is not empty."""
    LIST = "list"
    """Each state is a list: its items are put end to end, and dealt again in even runs."""
    KEYED = "keyed"
    """Each state is a mapping, or a list of pairs: every entry goes to the subtask that owns its key."""
    FUNCTION = "function"
    """A function of the user's makes the new states from the old."""


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """One operator: how many subtasks, and the bounds on its events."""

    name: str
    parallelism: int
    on_failover: FailoverPolicy = FailoverPolicy.REPLAY
    """What a region failover does to events sent since the last checkpoint (protocol, section 8)."""
    max_held_bytes: int = 64 * 1024 * 1024
    """Bytes that closed gateways of this operator may hold; above it the oldest pending checkpoint is aborted."""
    max_unsent_bytes: int = 64 * 1024 * 1024
    """Bytes sent by user code and not yet taken by the broker; above it ``send_event`` raises ``Backpressure``."""
    max_unhandled: int = 1_000_000
    """Events per subtask sent and not yet handled; above it ``send_event`` raises ``Backpressure``."""
    event_ack_timeout: float = 30.0
    """Seconds of log time without progress on unhandled events after which the attempt is failed."""
    has_coordinator: bool = True
    inputs: tuple[InputSettings, ...] = ()
    """Operators whose records it takes; each stands before it in the job."""
    rescale: Rescale = Rescale.REFUSE
    """How its subtasks' states are redistributed over another number of subtasks."""

    def __post_init__(self) -> None:
        checked_name("operator name", self.name)
        _count(f"parallelism of operator {self.name!r}", self.parallelism, 1)
        if self.parallelism > 10_000:
            raise ConfigurationError(f"parallelism of operator {self.name!r} is {self.parallelism}; at most 10000")
        try:
            object.__setattr__(self, "on_failover", FailoverPolicy(self.on_failover))
        except ValueError:
            raise ConfigurationError(
                f"on_failover of operator {self.name!r} is {self.on_failover!r}; use one of"
                f" {', '.join(repr(p.value) for p in FailoverPolicy)}"
            ) from None
        if self.rescale is Rescale.LIST and self.has_keyed_input:
            raise ConfigurationError(
                f"rescale of operator {self.name!r} is 'list', and it has keyed input: its states must go where their"
                " keys' records go. Use 'keyed' for mappings, or a function"
            )
        for what in ("max_held_bytes", "max_unsent_bytes", "max_unhandled"):
            _count(f"{what} of operator {self.name!r}", getattr(self, what), 1)
        _above(f"event_ack_timeout of operator {self.name!r}", self.event_ack_timeout, 0)

    @property
    def has_keyed_input(self) -> bool:
        return any(given.partitioning is Partitioning.KEYED for given in self.inputs)


@dataclass(frozen=True, slots=True)
class JobSettings:
    """All that the two protocol cores need to know of a job; plain data that both sides receive."""

    name: str
    operators: tuple[OperatorSettings, ...]
    prefix: str = DEFAULT_PREFIX
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    restart: RestartStrategy = field(default_factory=RestartStrategy)
    heartbeat_interval: float = 1.0
    """Seconds between heartbeats, of subtasks and of the coordinator."""
    heartbeat_timeout: float = 10.0
    """Seconds of log time without a record from an attempt after which it counts as silent."""
    start_timeout: float = 120.0
    """Seconds within which every subtask of a run must have registered for the first time."""
    task_cancellation_timeout: float = 180.0
    """Seconds of log time that user code may go on after a failover has undone its attempt; then its task is ended."""
    end_timeout: float = 600.0
    """Seconds that the end of the job waits for what its coordinators have begun by ``call_async``."""
    frame_events_max: int = FRAME_EVENTS_MAX
    frame_bytes_max: int = FRAME_BYTES_MAX
    frame_linger: float = 0.0
    """Seconds that a frame waits for more events; 0: it takes what the mailbox has at its end of turn."""
    state_storage: str | None = field(default=None, repr=False)
    """fsspec URL of the folder for states above ``inline_state_max``; None: such states are refused."""
    max_parallelism: int = 128
    """How many key groups there are: no operator with keyed input can ever have more subtasks. Never changes."""
    replay_retention: float = 0.0
    """Seconds: of so long the logs are kept, and checkpoints to begin a replay at, beyond what restarts need."""
    driven_by_query: bool = False
    """Whether a Structured Streaming query drives the job: a micro-batch is a checkpoint (protocol, section 10)."""
    replication_factor: int | None = None
    """Copies of each partition of the topics that are created; None: the broker's default."""
    schemas: tuple[UserSchema, ...] = ()
    """Under which Avro schemas the user's payloads are written; what has none is not named."""
    graph: Graph = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        TopicNames(self.prefix, self.name)
        if not self.operators:
            raise ConfigurationError(f"job {self.name!r} has no operator; add one with job.operator(...)")
        names = [operator.name for operator in self.operators]
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(f"job {self.name!r} has two operators named {name!r}")
        _above("heartbeat_interval", self.heartbeat_interval, 0)
        _above("heartbeat_timeout", self.heartbeat_timeout, 0)
        _above("start_timeout", self.start_timeout, 0)
        _above("task_cancellation_timeout", self.task_cancellation_timeout, 0)
        _above("end_timeout", self.end_timeout, 0)
        _count("frame_events_max", self.frame_events_max, 1)
        _count("frame_bytes_max", self.frame_bytes_max, 1)
        _at_least("frame_linger", self.frame_linger, 0)
        _at_least("replay_retention", self.replay_retention, 0)
        _count("max_parallelism", self.max_parallelism, 1)
        if self.replication_factor is not None:
            _count("replication_factor", self.replication_factor, 1)
            if self.replication_factor > 32_767:
                raise ConfigurationError(f"replication_factor is {self.replication_factor}; at most 32767")
        if self.state_storage is not None and not isinstance(self.state_storage, str):
            raise ConfigurationError(
                f"state_storage of job {self.name!r} must be a URL such as file:///shared/states, or None, not a"
                f" {type(self.state_storage).__name__}"
            )
        object.__setattr__(self, "graph", Graph(self.operators, self.max_parallelism))
        if self.driven_by_query and (len(self.operators) > 1 or not self.operators[0].has_coordinator):
            raise ConfigurationError(
                f"job {self.name!r} cannot be driven by a query: that needs exactly one operator, with a coordinator,"
                f" and it has {', '.join(names)}. A query's source has one offset, and a checkpoint is the whole job's:"
                " make a job of each operator that a query is to read"
            )
        if self.heartbeat_timeout < 2 * self.heartbeat_interval:
            raise ConfigurationError(
                f"heartbeat_timeout ({self.heartbeat_timeout} s) must be at least twice heartbeat_interval"
                f" ({self.heartbeat_interval} s), or one late heartbeat fails a healthy subtask"
            )

    @property
    def topics(self) -> TopicNames:
        return TopicNames(self.prefix, self.name)

    @property
    def topic_specs(self) -> list[TopicSpec]:
        """Every topic of the job."""
        edges = [(edge.sender, edge.receiver) for edge in self.graph.edges]
        return self.topics.specs(self.parallelism, edges, self.replication_factor)

    @property
    def parallelism(self) -> Mapping[str, int]:
        return {operator.name: operator.parallelism for operator in self.operators}

    @property
    def held_bytes_max(self) -> int:
        """The ``max_held_bytes`` of all operators together."""
        return sum(operator.max_held_bytes for operator in self.operators)

    def schema_of(self, operator: str, subject: str) -> UserSchema | None:
        """Under which schema that is written today; None where it has none."""
        return next((s for s in self.schemas if (s.operator, s.subject) == (operator, subject)), None)

    def operator(self, name: str) -> OperatorSettings:
        """The operator of that name; :class:`ConfigurationError` names those there are."""
        for operator in self.operators:
            if operator.name == name:
                return operator
        known = ", ".join(sorted(operator.name for operator in self.operators))
        raise ConfigurationError(f"job {self.name!r} has no operator {name!r}; it has: {known}")

    def subtasks(self) -> list[SubtaskId]:
        """Every subtask of the job, operator by operator."""
        return [SubtaskId(operator.name, index) for operator in self.operators for index in range(operator.parallelism)]


def _number(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigurationError(f"{what} must be a finite number, not {value!r}")
    return value


def _above(what: str, value: object, bound: float) -> None:
    if _number(what, value) <= bound:
        raise ConfigurationError(f"{what} is {value!r}; it must be above {bound}")


def _at_least(what: str, value: object, bound: float) -> None:
    if _number(what, value) < bound:
        raise ConfigurationError(f"{what} is {value!r}; it must be at least {bound}")


def _count(what: str, value: object, bound: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{what} must be a whole number, not {value!r}")
    if value < bound:
        raise ConfigurationError(f"{what} is {value}; it must be at least {bound}")


def layout_text(parallelism: Mapping[str, int]) -> str:
    """The number of subtasks of each operator, for people."""
    return ", ".join(f"{name} x {n}" for name, n in sorted(parallelism.items()))
