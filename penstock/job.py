"""What a user declares: a job, its operators, and who coordinates them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .coordinator.api import OperatorCoordinator
from .coordinator.host import CoordinatorSpec
from .schemas.errors import ConfigurationError
from .schemas.events import FailoverPolicy
from .schemas.frames import FRAME_BYTES_MAX, FRAME_EVENTS_MAX
from .schemas.settings import CheckpointSettings, JobSettings, OperatorSettings, RestartStrategy
from .schemas.topics import DEFAULT_PREFIX, TopicNames
from .schemas.user_codec import Codec, CodecSpec, codec_for
from .subtask_client.api import Subtask


@dataclass(frozen=True)
class Operator:
    """One operator of a job: N parallel subtasks and, where it has one, their coordinator."""

    settings: OperatorSettings
    subtask: Callable[[], Subtask]
    coordinator: Callable[[], OperatorCoordinator] | None
    codec: Codec
    state_codec: Codec

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def parallelism(self) -> int:
        return self.settings.parallelism


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
    frame_events_max: int = FRAME_EVENTS_MAX
    frame_bytes_max: int = FRAME_BYTES_MAX
    frame_linger: float = 0.0
    state_storage: str | None = None
    """fsspec URL of a folder that coordinator and subtasks all reach, for states above ``inline_state_max``."""
    operators: dict[str, Operator] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        TopicNames(self.prefix, self.name)
        for what, value, kind in (
            ("checkpoint", self.checkpoint, CheckpointSettings),
            ("restart", self.restart, RestartStrategy),
        ):
            if not isinstance(value, kind):
                raise ConfigurationError(f"{what} of job {self.name!r} must be a {kind.__name__}, not {value!r}")

    def operator(
        self,
        name: str,
        *,
        subtask: Callable[[], Subtask],
        parallelism: int,
        coordinator: Callable[[], OperatorCoordinator] | None = None,
        on_failover: FailoverPolicy | str = FailoverPolicy.REPLAY,
        codec: CodecSpec = None,
        state_codec: CodecSpec = None,
        max_held_bytes: int = 64 * 1024 * 1024,
        max_unsent_bytes: int = 64 * 1024 * 1024,
        max_unhandled: int = 1_000_000,
        event_ack_timeout: float = 30.0,
    ) -> Operator:
        """Adds an operator.

        ``subtask`` and ``coordinator`` are classes (or functions without arguments) that make one instance each;
        ``codec`` is for events in both directions, ``state_codec`` for the states of both: None or "bytes", "json",
        a dataclass, an Avro schema, or a Codec. ``on_failover`` is "replay", "reset" or "global".
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
        )
        operator = Operator(settings, subtask, coordinator, codec_for(codec), codec_for(state_codec))
        self.operators[name] = operator
        return operator

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
            frame_events_max=self.frame_events_max,
            frame_bytes_max=self.frame_bytes_max,
            frame_linger=self.frame_linger,
            state_storage=self.state_storage,
        )

    @property
    def coordinators(self) -> Mapping[str, CoordinatorSpec]:
        """How each operator's coordinator is made."""
        return {
            name: CoordinatorSpec(operator.coordinator, operator.codec, operator.state_codec)
            for name, operator in self.operators.items()
            if operator.coordinator is not None
        }

    def renamed(self, name: str, **changes: Any) -> Job:
        """The same job under another name, with other settings where ``changes`` names them."""
        other = Job(name, **{**{f: getattr(self, f) for f in _SETTINGS}, **changes})
        other.operators = dict(self.operators)
        return other


_SETTINGS = (
    "checkpoint", "restart", "prefix", "heartbeat_interval", "heartbeat_timeout", "start_timeout",
    "frame_events_max", "frame_bytes_max", "frame_linger", "state_storage",
)  # fmt: skip
