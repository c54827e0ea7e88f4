"""Options of the source and of the sink, as a user gives them to ``spark.readStream`` and ``df.writeStream``."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ...schemas.errors import ConfigurationError
from ...schemas.ids import checked_name
from ...schemas.settings import OperatorSettings
from ...schemas.topics import DEFAULT_PREFIX, TopicNames
from ...transport.kafka import KafkaConfig
from .event_types import EventType, event_type

BOOTSTRAP = "kafka.bootstrap.servers"
_KAFKA = "kafka."
_KNOWN = (
    "job",
    "operator",
    "prefix",
    "fresh",
    "coordinatorTimeout",
    "maxWait",
    "checkpointEveryTrigger",
    "maxHeldBytes",
    "eventSchema",
)
_KNOWN_TO_SINK = ("job", "operator", "prefix", "coordinatorTimeout", "maxHeldBytes", "eventSchema")
_ASYNC_PROGRESS = "asyncProgressTrackingEnabled"
_SPARKS = ("checkpointLocation", "queryName", "path", _ASYNC_PROGRESS, "asyncProgressTrackingCheckpointIntervalMs")
"""Options of a query, which Spark gives its sink, too."""
_SECRETS = "clientSettingsSecret"
"""All client settings in one option, in JSON. Spark shows a plan's options; it hides what is called a secret, but knows
few of the settings that are one."""

COORDINATOR_TIMEOUT_S = 120.0
MAX_WAIT_S = 1.0


@dataclass(frozen=True)
class CommonOptions:
    """Checked options of source and sink. ``repr`` never shows the value of a client setting."""

    topics: TopicNames
    operator: str
    kafka: KafkaConfig
    coordinator_timeout_s: float = COORDINATOR_TIMEOUT_S
    """Seconds that the coordinator may take for an answer, which a sink has when a completed checkpoint has the effect
    of its batch; and the broker for a source's next record."""
    event_schema: str | None = None
    """The codec's Avro schema in JSON; None: bytes."""
    max_held_bytes: int = OperatorSettings("default", 1).max_held_bytes
    """The operator's: what a batch may send to its coordinator."""

    @classmethod
    def _parsed(cls, given: Mapping[str, str], kafka: KafkaConfig, **own: Any) -> Self:
        return cls(
            TopicNames(given.get("prefix", DEFAULT_PREFIX), _required(given, "job")),
            checked_name("option 'operator'", _required(given, "operator")),
            kafka,
            _seconds(given, "coordinatorTimeout", COORDINATOR_TIMEOUT_S, least=1.0),
            given.get("eventschema") or None,
            _bytes(given, "maxHeldBytes", cls.max_held_bytes),
            **own,
        )

    def to_options(self) -> dict[str, str]:
        """Return what ``parse`` makes these of."""
        options = {
            "job": self.topics.job,
            "operator": self.operator,
            "prefix": self.topics.prefix,
            "coordinatorTimeout": repr(self.coordinator_timeout_s),
            "maxHeldBytes": str(self.max_held_bytes),
            BOOTSTRAP: self.kafka.bootstrap,
        }
        if self.kafka.client_settings:
            options[_SECRETS] = json.dumps(self.kafka.client_settings)
        if self.event_schema is not None:
            options["eventSchema"] = self.event_schema
        return options

    def event(self) -> EventType:
        return event_type(self.event_schema)


@dataclass(frozen=True)
class SourceOptions(CommonOptions):
    """Options of the source."""

    fresh: bool = False
    """With a new Spark checkpoint: begin anew, whatever checkpoints the job has."""
    max_wait_s: float = MAX_WAIT_S
    """Seconds that the planning of a batch waits for an event."""
    checkpoint_every_trigger: bool = False
    """A batch has a checkpoint also where the coordinator has sent nothing: rows of another source can have answers."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Raises ConfigurationError for an option that is missing, unknown or wrong."""
        given, kafka = _parted(options, _KNOWN, "source")
        return cls._parsed(
            given,
            kafka,
            fresh=_flag(given, "fresh"),
            max_wait_s=_seconds(given, "maxWait", MAX_WAIT_S, least=0.0),
            checkpoint_every_trigger=_flag(given, "checkpointEveryTrigger"),
        )

    def to_options(self) -> dict[str, str]:
        own = {
            "fresh": str(self.fresh).lower(),
            "maxWait": repr(self.max_wait_s),
            "checkpointEveryTrigger": str(self.checkpoint_every_trigger).lower(),
        }
        return super().to_options() | own

    @property
    def job(self) -> str:
        """As offsets name it."""
        return f"{self.topics.prefix}.{self.topics.job}"


@dataclass(frozen=True)
class SinkOptions(CommonOptions):
    """Options of the sink."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Raise ConfigurationError for an option that is missing, unknown or wrong. Leave Spark's own aside."""
        given, kafka = _parted(options, _KNOWN_TO_SINK, "sink", ignored=_SPARKS)
        if _flag(given, _ASYNC_PROGRESS):
            raise ConfigurationError(
                f"the option {_ASYNC_PROGRESS!r} lets Spark run other rows under the id of a batch that the coordinator"
                " has had, and they would be lost: leave it out"
            )
        return cls._parsed(given, kafka)


def overlaid(options: Mapping[str, str], given: Mapping[str, object]) -> dict[str, str]:
    """Options with those that a user gives as keyword arguments in their place, whatever the case of a name."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
    names = {name.lower() for name in texts}
    return {**{name: value for name, value in options.items() if name.lower() not in names}, **texts}


def _parted(
    options: Mapping[str, str], known: Sequence[str], what: str, *, ignored: Collection[str] = ()
) -> tuple[dict[str, str], KafkaConfig]:
    """Own options by lower-case name, and the client's. Raise ConfigurationError for one that is neither."""
    given = {name.lower(): value for name, value in options.items()}
    hidden = json.loads(given.pop(_SECRETS.lower(), "{}"))
    names = {name.lower() for name in (*known, *ignored)}
    for name in given:
        if name not in names and not name.startswith(_KAFKA):
            raise ConfigurationError(
                f"the penstock {what} has no option {name!r}; it has {', '.join(known)}, and client settings as"
                f" {_KAFKA}<name>, {BOOTSTRAP} first of all"
            )
    client_settings = {name.removeprefix(_KAFKA): value for name, value in given.items() if name.startswith(_KAFKA)}
    client_settings = {**hidden, **client_settings}
    bootstrap = client_settings.pop("bootstrap.servers", "")
    if not bootstrap.strip():
        raise ConfigurationError(f"the option {BOOTSTRAP!r} is missing: give host:port of the Kafka broker")
    return given, KafkaConfig(bootstrap, client_settings)


def _required(given: Mapping[str, str], name: str) -> str:
    if name not in given:
        raise ConfigurationError(f"the option {name!r} is missing: .option({name!r}, ...) names the {name}")
    return given[name]


def _flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name.lower(), "false").strip().lower()
    if text not in ("true", "false"):
        raise ConfigurationError(f"the option {name!r} is {text!r}; it must be 'true' or 'false'")
    return text == "true"


def _seconds(given: Mapping[str, str], name: str, default: float, *, least: float) -> float:
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds) or seconds < least:
        raise ConfigurationError(f"the option {name!r} is {text!r}; it must be a number of seconds, at least {least:g}")
    return seconds


def _bytes(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name.lower(), str(default))
    if not text.isdecimal() or int(text) < 1:
        raise ConfigurationError(f"the option {name!r} is {text!r}; it must be a number of bytes, at least 1")
    return int(text)
