"""What a user declares: a job, its operators, and who coordinates them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from typing import Any

from .coordinator.api import OperatorCoordinator
from .coordinator.host import CoordinatorSpec
from .coordinator.state_redistribution import RescaleFunction
from .schemas.errors import ConfigurationError
from .schemas.events import FailoverPolicy
from .schemas.frames import FRAME_BYTES_MAX, FRAME_EVENTS_MAX
from .schemas.graph import Graph, InputSettings, Partitioning
from .schemas.html import table
from .schemas.settings import CheckpointSettings, JobSettings, OperatorSettings, Rescale, RestartStrategy
from .schemas.topics import DEFAULT_PREFIX, TopicNames
from .schemas.user_codec import Codec, CodecSpec, codec_for, recorded_as
from .schemas.user_schemas import Subject, UserSchema
from .subtask_client.api import Subtask
from .subtask_client.routing import FieldKey, KeyFunction

_WAYS = "keyed_by(key), rebalance(), broadcast() or forward()"


@dataclass(frozen=True)
class Operator:
    """One operator of a job: N parallel subtasks and, where it has one, their coordinator.

    What its subtasks emit becomes another operator's input by :meth:`keyed_by`, :meth:`rebalance`, :meth:`broadcast`
    or :meth:`forward`, in ``inputs=[...]`` of :meth:`Job.operator`.
    """

    settings: OperatorSettings
    subtask: Callable[[], Subtask]
    coordinator: Callable[[], OperatorCoordinator] | None
    codec: Codec
    state_codec: Codec
    output_codec: Codec
    """Of the records that its subtasks emit."""
    input_codecs: Mapping[str, Codec] = field(default_factory=dict, compare=False)
    """Of the records that they take, by the name of the operator that emits them: its ``output_codec``."""
    rescale: RescaleFunction | None = field(default=None, compare=False)
    """The user's, where a function redistributes the states of its subtasks."""
    keys: dict[str, KeyFunction] = field(default_factory=dict, compare=False)
    """The key of an emitted record, by the name of the operator that takes it by key; each receiver adds its own."""

    def __repr__(self) -> str:
        upstream = ", ".join(given.upstream for given in self.settings.inputs)
        return f"<Operator {self.name!r} x {self.parallelism}{f', inputs: {upstream}' if upstream else ''}>"

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def parallelism(self) -> int:
        return self.settings.parallelism

    def keyed_by(self, key: str | KeyFunction) -> Input:
        """Each record to the subtask that owns its key.

        ``key`` is a field's name (``record[name]`` of a mapping, else the attribute), or a function of the record. A
        key is None, a bool, an int of 64 bits, a float, bytes, a str, or a tuple of these. Which subtask owns it
        follows from its bytes, ``max_parallelism`` and the receiver's parallelism alone: the same in every process and
        version (:mod:`penstock.schemas.keys`). Types count: 1, 1.0 and True may belong to different subtasks.
        """
        return Input(self, Partitioning.KEYED, key)

    def rebalance(self) -> Input:
        """Records to one subtask after the other; each sender begins at its own index."""
        return Input(self, Partitioning.REBALANCE)

    def broadcast(self) -> Input:
        """Each record to every subtask."""
        return Input(self, Partitioning.BROADCAST)

    def forward(self) -> Input:
        """Records to the subtask with the sender's own index; both operators have the same parallelism."""
        return Input(self, Partitioning.FORWARD)


@dataclass(frozen=True)
class Input:
    """All that ``upstream`` emits, as the input of another operator; made by the methods of :class:`Operator`."""

    upstream: Operator
    partitioning: Partitioning
    key: str | KeyFunction | None = None
    """A field's name, or a function of the record; of a keyed input only."""

    def __post_init__(self) -> None:
        if not isinstance(self.upstream, Operator):
            raise ConfigurationError(
                f"the upstream of an input must be an operator, as job.operator(...) returns it, not {self.upstream!r}"
            )
        where = f"an input from operator {self.upstream.name!r}"
        try:
            object.__setattr__(self, "partitioning", Partitioning(self.partitioning))
        except ValueError:
            raise ConfigurationError(
                f"the partitioning of {where} is {self.partitioning!r}; use {_WAYS} of the operator"
            ) from None
        keyed = self.partitioning is Partitioning.KEYED
        if keyed and not isinstance(self.key, str) and not callable(self.key):
            raise ConfigurationError(
                f"the key of {where} must be a field's name or a function of the record, not {self.key!r}; for several"
                " fields use a function that returns a tuple"
            )
        if not keyed and self.key is not None:
            raise ConfigurationError(
                f"{where} has the key {self.key!r} and is not keyed ({self.partitioning}); use keyed_by(key)"
            )

    @property
    def key_function(self) -> KeyFunction | None:
        """The key of a record; None where the input is not keyed."""
        if self.key is None or callable(self.key):
            return self.key
        return FieldKey(self.key)


@dataclass
class Job:
    """A job: a name, unique on a broker under its prefix, and operators added with :meth:`operator`.

    Durations are seconds, sizes bytes. Every setting is checked where it is given; ConfigurationError names it.
    """

    name: str
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    restart: RestartStrategy = field(default_factory=RestartStrategy)
    prefix: str = DEFAULT_PREFIX
    heartbeat_interval: float = 1.0
    heartbeat_timeout: float = 10.0
    start_timeout: float = 120.0
    task_cancellation_timeout: float = 180.0
    end_timeout: float = 600.0
    frame_events_max: int = FRAME_EVENTS_MAX
    frame_bytes_max: int = FRAME_BYTES_MAX
    frame_linger: float = 0.0
    state_storage: str | None = field(default=None, repr=False)
    """fsspec URL of a folder that coordinator and subtasks all reach, for states above ``inline_state_max``."""
    max_parallelism: int = 128
    """How many key groups there are: no operator with keyed input can ever have more subtasks. A job that has
    checkpoints cannot change it."""
    replay_retention: float = 0.0
    """Of so many seconds the logs are kept beyond what restarts need, with checkpoints to begin a replay at."""
    replication_factor: int | None = None
    """Copies of each partition of the job's topics, where the job creates them; None: the broker's default."""
    operators: dict[str, Operator] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        TopicNames(self.prefix, self.name)
        for what, value, kind in (
            ("checkpoint", self.checkpoint, CheckpointSettings),
            ("restart", self.restart, RestartStrategy),
        ):
            if not isinstance(value, kind):
                raise ConfigurationError(f"{what} of job {self.name!r} must be a {kind.__name__}, not {value!r}")
        groups = self.max_parallelism  # operators are checked against it as they are added
        if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1:
            raise ConfigurationError(
                f"max_parallelism of job {self.name!r} must be a whole number, at least 1, not {groups!r}"
            )

    def __repr__(self) -> str:
        operators = ", ".join(f"{operator.name} x {operator.parallelism}" for operator in self.operators.values())
        return f"<Job {self.name!r}: {operators or 'no operator yet'}>"

    def _repr_html_(self) -> str:
        rows = [
            (operator.name, operator.parallelism, ", ".join(given.upstream for given in operator.settings.inputs))
            for operator in self.operators.values()
        ]
        return f"<b>{escape(self.name)}</b>{table(('operator', 'parallelism', 'inputs'), rows)}"

    def operator(
        self,
        name: str,
        *,
        parallelism: int,
        subtask: Callable[[], Subtask] | None = None,
        coordinator: Callable[[], OperatorCoordinator] | None = None,
        inputs: Sequence[Input] = (),
        on_failover: FailoverPolicy | str = FailoverPolicy.REPLAY,
        codec: CodecSpec = None,
        state_codec: CodecSpec = None,
        output_codec: CodecSpec = None,
        max_held_bytes: int = 64 * 1024 * 1024,
        max_unsent_bytes: int = 64 * 1024 * 1024,
        max_unhandled: int = 1_000_000,
        event_ack_timeout: float = 30.0,
        rescale: RescaleFunction | str | None = None,
    ) -> Operator:
        """Adds an operator.

        ``subtask`` and ``coordinator`` are classes (or functions without arguments) that make one instance each (an
        operator that only a Structured Streaming query reads needs no subtask); ``codec`` is for events in both
        directions, ``state_codec`` for the states of both: None or "bytes", "json", a dataclass, an Avro schema, or a
        Codec. ``on_failover`` is "replay", "reset" or "global".

        ``inputs`` are the operators of this job whose records it takes, each with the way they are spread over its
        subtasks: ``upstream.keyed_by(key)``, ``.rebalance()``, ``.broadcast()`` or ``.forward()``. ``output_codec`` is
        for the records that its own subtasks emit, and takes what ``codec`` takes; who receives them decodes with it.

        ``rescale`` says what becomes of the subtasks' states when the job is started with another parallelism (see
        docs/rescaling.md): "list", "keyed", or a function (states, parallelism) -> states; None: such a start is
        refused where there are states.
        """
        if name in self.operators:
            raise ConfigurationError(f"job {self.name!r} has an operator {name!r} already")
        for what, factory in (("subtask", subtask), ("coordinator", coordinator)):
            if factory is not None and not callable(factory):
                raise ConfigurationError(
                    f"the {what} of operator {name!r} must be a class, or a function that makes one, not {factory!r}"
                )
        settings = OperatorSettings(
            name,
            parallelism,
            on_failover=on_failover,  # type: ignore[arg-type]  # a string becomes its policy there
            max_held_bytes=max_held_bytes,
            max_unsent_bytes=max_unsent_bytes,
            max_unhandled=max_unhandled,
            event_ack_timeout=event_ack_timeout,
            has_coordinator=coordinator is not None,
            inputs=tuple(InputSettings(i.upstream.name, i.partitioning) for i in self._checked(name, inputs)),
            rescale=_rescale(name, rescale),
        )
        Graph([*(known.settings for known in self.operators.values()), settings], self.max_parallelism)
        operator = Operator(
            settings,
            subtask or partial(_no_subtask, name),
            coordinator,
            codec_for(codec),
            codec_for(state_codec),
            codec_for(output_codec),
            {given.upstream.name: given.upstream.output_codec for given in inputs},
            rescale if callable(rescale) else None,
        )
        # Last, so that an operator that was refused leaves nothing behind.
        for given in inputs:
            if (key := given.key_function) is not None:
                given.upstream.keys[name] = key
        self.operators[name] = operator
        return operator

    def _checked(self, name: str, inputs: object) -> list[Input]:
        where = f"of operator {name!r} of job {self.name!r}"
        if isinstance(inputs, Input | Operator) or not isinstance(inputs, Sequence) or isinstance(inputs, str | bytes):
            raise ConfigurationError(
                f"the inputs {where} must be a list, inputs=[upstream.keyed_by(key), ...], not {_shown(inputs)}"
            )
        for given in inputs:
            if not isinstance(given, Input):
                raise ConfigurationError(
                    f"an input {where} is {_shown(given)}; say how its records are spread over the subtasks: {_WAYS} of"
                    " the operator that emits them"
                )
            upstream = given.upstream.name
            if self.operators.get(upstream) is not given.upstream:
                raise ConfigurationError(
                    f"an input {where} comes from an operator {upstream!r} that is not this job's; use what"
                    f" operator(...) of this very job returned, or its operators[{upstream!r}]; it has:"
                    f" {', '.join(self.operators) or 'none'}"
                )
        return list(inputs)

    @property
    def settings(self) -> JobSettings:
        """The job as plain data; raises ConfigurationError where it is not complete."""
        return JobSettings(
            self.name,
            tuple(operator.settings for operator in self.operators.values()),
            prefix=self.prefix,
            checkpoint=self.checkpoint,
            restart=self.restart,
            heartbeat_interval=self.heartbeat_interval,
            heartbeat_timeout=self.heartbeat_timeout,
            start_timeout=self.start_timeout,
            task_cancellation_timeout=self.task_cancellation_timeout,
            end_timeout=self.end_timeout,
            frame_events_max=self.frame_events_max,
            frame_bytes_max=self.frame_bytes_max,
            frame_linger=self.frame_linger,
            state_storage=self.state_storage,
            max_parallelism=self.max_parallelism,
            replay_retention=self.replay_retention,
            replication_factor=self.replication_factor,
            schemas=tuple(schema for operator in self.operators.values() for schema in _schemas_of(operator)),
        )

    @property
    def coordinators(self) -> Mapping[str, CoordinatorSpec]:
        """How each operator's coordinator is made, where it has one, and how its subtasks' states are redistributed."""
        return {
            name: CoordinatorSpec(operator.coordinator, operator.codec, operator.state_codec, operator.rescale)
            for name, operator in self.operators.items()
        }

    def check_subtasks(self) -> None:
        """Raises ConfigurationError where an operator has no subtask, so that the job cannot run as tasks."""
        for operator in self.operators.values():
            if isinstance(operator.subtask, partial) and operator.subtask.func is _no_subtask:
                operator.subtask()

    def renamed(self, name: str, **changes: Any) -> Job:
        """The same job under another name, with other settings where ``changes`` names them."""
        other = Job(name, **{**{f: getattr(self, f) for f in _SETTINGS}, **changes})
        # With keys of their own: an operator that is added to one job must not change what the other one emits.
        other.operators = {
            operator.name: replace(operator, keys=dict(operator.keys)) for operator in self.operators.values()
        }
        return other


def _rescale(name: str, given: object) -> Rescale:
    if given is None:
        return Rescale.REFUSE
    if callable(given):
        return Rescale.FUNCTION
    if given in (Rescale.LIST.value, Rescale.KEYED.value):
        return Rescale(given)
    raise ConfigurationError(
        f"rescale of operator {name!r} must be 'list', 'keyed', or a function of (states, parallelism), not {given!r}"
    )


def _schemas_of(operator: Operator) -> list[UserSchema]:
    codecs = {
        Subject.EVENTS: operator.codec,
        Subject.STATE: operator.state_codec,
        Subject.OUTPUT: operator.output_codec,
    }
    texts = {subject: recorded_as(codec) for subject, codec in codecs.items()}
    return [UserSchema(operator.name, subject, text) for subject, text in texts.items() if text is not None]


def _no_subtask(name: str) -> Subtask:
    raise ConfigurationError(
        f"operator {name!r} has no subtask, so only a Structured Streaming query can read its events"
        " (penstock.spark_integration.stream); to run it as long-running tasks give it one:"
        " job.operator(..., subtask=...)"
    )


def _shown(given: object) -> str:
    return f"the operator {given.name!r} itself" if isinstance(given, Operator) else repr(given)


_SETTINGS = (
    "checkpoint", "restart", "prefix", "heartbeat_interval", "heartbeat_timeout", "start_timeout",
    "task_cancellation_timeout", "end_timeout", "frame_events_max", "frame_bytes_max", "frame_linger", "state_storage",
    "max_parallelism", "replay_retention", "replication_factor",
)  # fmt: skip
