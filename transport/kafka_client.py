"""What every Kafka handle has in common: its settings, who may use it, and what its errors are called here.

librdkafka handles own threads and sockets, which a fork does not carry over: each handle remembers the process that
made it (:class:`OwnProcess`) and refuses to work in another, instead of hanging there. Nor may it be freed there, at
the child's end for one: that aborts the process, so a child keeps what it inherits (:func:`_keep_inherited`).
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import GroupMetadata
from confluent_kafka.cimpl import _AdminClientImpl

from ..schemas.access import Grant, Resource, grant_commands
from ..schemas.errors import BrokerUnreachable, ConfigurationError, NotAuthorized, TransportError

MESSAGE_BYTES_MAX = 1_000_000
"""``message.max.bytes`` where the user sets none: librdkafka's default, a little below the broker's."""

MESSAGE_BYTES_MIN = 10_000

NO_ANSWER = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
"""Errors that mean: nobody who could know has answered."""

FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
"""Errors that mean: a newer producer has the same transactional id."""

TOPIC_UNKNOWN = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)

NOT_AUTHORIZED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: Resource.TOPIC,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Resource.TRANSACTIONAL_ID,
    KafkaError.GROUP_AUTHORIZATION_FAILED: Resource.GROUP,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: Resource.CLUSTER,
}
"""Errors that mean: this user lacks a right on such a resource."""

_PROTOCOL_OWNS = {
    "bootstrap.servers",
    "group.id",
    "group.instance.id",
    "group.protocol",
    "transactional.id",
    "transaction.timeout.ms",
    "isolation.level",
    "enable.idempotence",
    "allow.auto.create.topics",
    "enable.gapless.guarantee",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.partition.eof",
    "auto.offset.reset",
    "acks",
    "request.required.acks",
    "retries",
    "message.timeout.ms",
    "delivery.timeout.ms",
    "max.in.flight.requests.per.connection",
    "max.in.flight",
}
_SECRET_NAME = re.compile(r"password|secret|token|\bkey\b|\.pem|jaas|oauthbearer\.config")


@dataclass(frozen=True)
class KafkaConfig:
    """What a process needs to reach the broker; plain data, so that it travels to other processes.

    Its ``repr`` names the client settings and never shows their values.
    """

    bootstrap: str
    """``host:port``, several separated by commas."""
    client_settings: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    """librdkafka settings, such as security ones. Those that the protocol depends on are refused."""
    append_timeout_s: float = 300.0
    """Seconds after which a record that the broker has not taken makes its writer fail; above any outage to survive."""
    queue_full_timeout_s: float = 10.0
    """Seconds that an append waits for room in a full queue."""
    commit_timeout_s: float = 90.0
    """Seconds after which the outcome of a commit counts as unknown; above any outage to survive."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "client_settings", dict(self.client_settings))
        for name in sorted(_PROTOCOL_OWNS.intersection(self.client_settings)):
            raise ConfigurationError(
                f"client setting {name!r} cannot be changed: Penstock's guarantees depend on its value; leave it out"
            )
        limit = str(self.client_settings.get("message.max.bytes", MESSAGE_BYTES_MAX))
        if not limit.isdecimal() or int(limit) < MESSAGE_BYTES_MIN:
            raise ConfigurationError(
                f"client setting 'message.max.bytes' is {limit!r}; it must be a number of at least {MESSAGE_BYTES_MIN}"
            )
        if not self.bootstrap.strip():
            raise ConfigurationError("the bootstrap address is empty; give host:port of a Kafka broker")

    def __repr__(self) -> str:
        return f"KafkaConfig(bootstrap={self.bootstrap!r}, client_settings=<{', '.join(sorted(self.client_settings))}>)"

    @property
    def message_bytes_max(self) -> int:
        return int(self.client_settings.get("message.max.bytes", MESSAGE_BYTES_MAX))

    @property
    def user(self) -> str | None:
        """The name that the broker is told; None where there is none, or a certificate's."""
        name = self.client_settings.get("sasl.username") or self.client_settings.get("sasl.user.name")
        return str(name) if name else None

    def denied(self, what: str, grant: Grant, why: str = "") -> NotAuthorized:
        """The error of a user that lacks ``grant``, for an operation described by ``what``."""
        return NotAuthorized(self.denial(what, grant, why))

    def denial(self, what: str, grant: Grant, why: str = "") -> str:
        user = self.user
        (command,) = grant_commands([grant], user or "USER", self.bootstrap)
        who = "this user" if user is None else f"user {user!r}"
        said = f" ({self.scrubbed(why)})" if why else ""
        return f"{what} at {self.bootstrap}: {who} lacks the right {grant}{said}. What grants it: {command}"

    def scrubbed(self, text: str) -> str:
        """``text`` without the value of any client setting that may be a secret."""
        for name, value in self.client_settings.items():
            if value and _SECRET_NAME.search(name):
                text = text.replace(str(value), "***")
        return text

    def explained(self, error: KafkaError) -> str:
        return self.scrubbed(f"{error.str()} ({error.name()})")

    def unreachable(self, what: str, timeout_s: float, heard: str) -> BrokerUnreachable:
        because = f"; last heard: {heard}" if heard else ""
        return BrokerUnreachable(
            f"no Kafka broker at {self.bootstrap} answered within {timeout_s:.1f} s ({what}){because}."
            " Check the address, and that a broker runs there"
        )

    def error(self, what: str, error: KafkaError, timeout_s: float, heard: str = "") -> TransportError:
        """The error of ours that ``error`` is, for an operation described by ``what``."""
        if error.code() in NO_ANSWER:
            return self.unreachable(what, timeout_s, heard or self.explained(error))
        return TransportError(f"{what} failed at {self.bootstrap}: {self.explained(error)}")


class ClientEvents:
    """What librdkafka says outside of any call, per handle: the last of it explains a timeout (a wrong password, say).

    While a broker is away this is the normal noise of reconnecting, hence logged at DEBUG.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self.heard = ""
        self.topic_missing = ""
        """What was said of topics that have vanished: a consumer says that here, and nowhere else, once."""

    def __call__(self, error: KafkaError) -> None:
        text = self._config.explained(error)
        vanished = error.code() in TOPIC_UNKNOWN or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        if vanished and text not in self.topic_missing:
            self.topic_missing = f"{self.topic_missing}; {text}" if self.topic_missing else text
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self.heard:
            self.heard = text
        level = logging.WARNING if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL) else logging.DEBUG
        logger.log(level, "Kafka client of %s: %s", self._config.bootstrap, text)


class OwnProcess:
    """Remembers the process in which it was made; :meth:`check` raises in any other."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    def check(self, what: str) -> None:
        if os.getpid() != self._pid:
            raise TransportError(
                f"{what} was made by process {self._pid} and cannot be used in process {os.getpid()}: Kafka handles do"
                " not survive a fork. Pass KafkaTransport.config on, and make a KafkaTransport of it where it is used"
            )


logger = logging.getLogger("penstock.transport.kafka")


class _LibrdkafkaLog:
    """librdkafka's own lines, at DEBUG: a lost connection shows in what it leads to, and being fenced is no error.

    Stands in for a logger, whose filters could drop lines and not lower their level.
    """

    def log(self, _level: int, text: str, *arguments: object) -> None:
        librdkafka_logger.debug(text, *arguments)


librdkafka_logger = logging.getLogger("penstock.transport.kafka.librdkafka")


def client_settings(config: KafkaConfig, events: ClientEvents, **ours: str | int | bool) -> dict[str, Any]:
    """Settings of one handle: our defaults, the user's, then those that the protocol depends on (``a_b`` for a.b)."""
    defaults: dict[str, Any] = {
        # Recovery after an outage should take as long as the broker takes, not as long as we have been waiting. And a
        # new client waits half of the first one between connecting to the address given and to the broker it names.
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 500,
        "retry.backoff.ms": 50,
        "retry.backoff.max.ms": 500,
        "log.connection.close": False,
        # For how long a topic must be unknown to the broker to count as missing; a restart may forget it for a moment.
        "topic.metadata.propagation.max.ms": 5_000,
        # A broker that is frozen keeps its connections open: a request to it is given up after so long (60 s by
        # default), and asked again of the broker that leads then. Less would give up brokers that are only slow.
        "socket.timeout.ms": 15_000,
        # The same for the first words on a connection (10 s) and for its making (30 s): a client may try a frozen
        # broker several times, one after the other, before it looks for the next leader.
        "api.version.request.timeout.ms": 5_000,
        "socket.connection.setup.timeout.ms": 5_000,
    }
    return {
        **defaults,
        **config.client_settings,
        **{name.replace("_", "."): value for name, value in ours.items()},
        # True for a producer unless told: one that outlives a purge would create the topics anew, with the broker's
        # default settings.
        "allow.auto.create.topics": False,
        "bootstrap.servers": config.bootstrap,
        "error_cb": events,
    }


PRODUCER_ANSWER_MS = 10_000
"""``request.timeout.ms``: within so long a broker says that a record has too few copies. Below the socket's timeout, so
that the connection outlives it."""


class AdminHandle(AdminClient):
    """An AdminClient; like the two below a class of its own, so that it can be referred to weakly."""

    def groups(self, group: str, timeout_s: float) -> list[GroupMetadata]:
        """Return what each broker knows of a group; nothing of one that does not exist, or that this user may not see.

        A question to the group's coordinator alone (DescribeConsumerGroups) ends the process, by an assertion of
        librdkafka 2.16, if that broker is lost or frozen meanwhile. So the older call is used, below its warning.
        """
        return _AdminClientImpl.list_groups(self, group, timeout=timeout_s)


class ConsumerHandle(Consumer):
    pass


class ProducerHandle(Producer):
    pass


Handle = TypeVar("Handle", AdminHandle, ConsumerHandle, ProducerHandle)

_handles: weakref.WeakSet[Any] = weakref.WeakSet()


def _keep_inherited() -> None:
    for handle in tuple(_handles):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_inherited)


def make_client(kind: type[Handle], config: KafkaConfig, settings: dict[str, Any]) -> Handle:
    """``kind(settings)``; a setting that librdkafka refuses is a :class:`ConfigurationError` without its value."""
    try:
        handle = kind(settings, logger=_LibrdkafkaLog())
        _handles.add(handle)
        return handle
    except (KafkaException, ValueError, TypeError) as error:
        reason = config.scrubbed(error.args[0].str() if isinstance(error, KafkaException) else str(error))
    # Raised outside the handler, so that the unscrubbed original is no part of the traceback.
    raise ConfigurationError(f"Kafka client settings for {config.bootstrap} are refused: {reason}")
