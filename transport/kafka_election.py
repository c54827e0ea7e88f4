"""Who of several processes goes first, over Kafka: a consumer group over one partition; whoever is assigned it.

The group's member reads nothing and commits nothing. Being alive is told by librdkafka's own threads, so user code that
takes long does not end a membership; a process that is dead or stopped says nothing, and its session ends.
"""

from __future__ import annotations

import threading

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from ..schemas.access import Grant, Operation, Resource, topic_grant
from ..schemas.errors import ConfigurationError, NotAuthorized, PenstockError, TransportError
from .kafka_client import (
    NO_ANSWER,
    ClientEvents,
    ConsumerHandle,
    KafkaConfig,
    OwnProcess,
    client_settings,
    logger,
    make_client,
)
from .kafka_inspect import KafkaInspector

_POLL_S = 0.1
_CLOSE_TIMEOUT_S = 10.0
_BEATS_PER_SESSION = 20
_BEAT_MIN_MS, _BEAT_MAX_MS = 100, 500
"""A beat is also how members learn that one has left: however long the session, that takes no longer."""
_POLL_INTERVAL_MIN_MS = 300_000
_INSPECT_TIMEOUT_S = 5.0
_REFRESH_MS = 5_000
"""A topic that a broker did not know for a moment is looked for again after so long: by default it takes minutes."""

_REFUSED = frozenset({KafkaError._FATAL, KafkaError.INVALID_GROUP_ID})
"""Errors of a member that waiting does not cure."""


class KafkaElection:
    """See :class:`penstock.transport.ports.Election`. The caller has checked that the topic exists."""

    def __init__(self, config: KafkaConfig, group: str, topic: str, session_s: float) -> None:
        self._config, self._group, self._topic, self._session_s = config, group, topic, session_s
        self._process = OwnProcess()
        self._elected = False
        self._failure: PenstockError | None = None
        self._closing = threading.Event()
        session_ms = round(session_s * 1000)
        settings = client_settings(
            config,
            ClientEvents(config),
            group_id=group,
            group_protocol="classic",
            # Sticky, so that one who joins does not take the place from its holder; cooperative, so that the holder
            # keeps it while others come and go.
            partition_assignment_strategy="cooperative-sticky",
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=min(max(session_ms // _BEATS_PER_SESSION, _BEAT_MIN_MS), _BEAT_MAX_MS),
            max_poll_interval_ms=max(2 * session_ms, _POLL_INTERVAL_MIN_MS),
            enable_auto_commit=False,
            enable_auto_offset_store=False,
            auto_offset_reset="latest",
            topic_metadata_refresh_interval_ms=_REFRESH_MS,
        )
        self._consumer = make_client(ConsumerHandle, config, settings)
        self._thread = threading.Thread(target=self._run, name=f"{group}-election", daemon=True)
        self._thread.start()

    def elected(self) -> bool:
        self._process.check("this election")
        if self._failure is not None:
            raise self._failure
        return self._elected

    def close(self) -> None:
        self._process.check("this election")
        self._closing.set()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        try:
            self._consumer.subscribe([self._topic], self._assigned, self._revoked, self._revoked)
            while not self._closing.is_set() and self._failure is None:
                message = self._consumer.poll(_POLL_S)
                if message is not None and (error := message.error()) is not None:
                    self._heard(error)
        except Exception as error:  # whatever it is, whoever asks must learn of it
            self._failure = self._failure or self._broken(error)
        finally:
            self._elected = False
            self._consumer.close()  # tells the group: the next one is elected at once

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # From the end: what is read is thrown away, so there had better be little of it.
        consumer.incremental_assign([TopicPartition(p.topic, p.partition, OFFSET_END) for p in partitions])
        if partitions:
            self._elected = True

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if partitions:
            self._elected = False

    def _heard(self, error: KafkaError) -> None:
        code = error.code()
        if code == KafkaError.INVALID_SESSION_TIMEOUT:
            self._failure = ConfigurationError(self._session_refused())
        elif code == KafkaError.GROUP_AUTHORIZATION_FAILED:
            self._failure = self._denied(Grant(Resource.GROUP, self._group, False, Operation.READ), error)
        elif code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            self._failure = self._denied(topic_grant(self._topic, Operation.READ), error)
        elif code in _REFUSED or error.fatal():
            why = self._config.explained(error)
            self._failure = TransportError(f"standing for {self._group} at {self._config.bootstrap} failed: {why}")
        elif code not in NO_ANSWER:  # a topic that is unknown may be so to a broker that has just started
            logger.debug("group %s: %s", self._group, self._config.explained(error))

    def _denied(self, grant: Grant, error: KafkaError) -> NotAuthorized:
        return self._config.denied(f"standing for {self._group}", grant, self._config.explained(error))

    def _session_refused(self) -> str:
        least, most = "group.min.session.timeout.ms", "group.max.session.timeout.ms"
        try:
            there = KafkaInspector(self._config).broker(_INSPECT_TIMEOUT_S).settings
            bounds = f"{least} is {there.get(least, 'unknown')}, {most} is {there.get(most, 'unknown')}"
        except PenstockError:
            bounds = f"{least}, {most}"
        return (
            f"the broker at {self._config.bootstrap} refuses a session of {self._session_s:g} s in group"
            f" {self._group}: it must lie within the broker's bounds ({bounds}); choose another time after which to"
            " take over, or change the broker's setting"
        )

    def _broken(self, error: Exception) -> TransportError:
        cause = error.args[0] if isinstance(error, KafkaException) else None
        why = self._config.explained(cause) if isinstance(cause, KafkaError) else self._config.scrubbed(str(error))
        return TransportError(f"standing for {self._group} at {self._config.bootstrap} failed: {why}")
