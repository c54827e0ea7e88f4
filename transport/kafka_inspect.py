"""What a broker is and how topics are set up there: for people who want to know what is wrong (`penstock doctor`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin._config import ConfigResource

from ..schemas.errors import TransportError
from .kafka_client import TOPIC_UNKNOWN, AdminHandle, ClientEvents, KafkaConfig, client_settings, make_client


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """One broker, in its own words."""

    brokers: int
    settings: Mapping[str, str]
    """Its configuration, without secrets (the broker does not tell those)."""

    @property
    def version(self) -> str:
        """The release as far as a client can tell: since 4.0 no setting names it any more."""
        return self.settings.get("inter.broker.protocol.version", "4.0 or newer")


class KafkaInspector:
    """Asks for configurations. Raises TransportError, BrokerUnreachable included."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._events = ClientEvents(config)
        self._client: Any = make_client(AdminHandle, config, client_settings(config, self._events))

    def broker(self, timeout_s: float = 10.0) -> BrokerFacts:
        try:
            metadata = self._client.list_topics(timeout=timeout_s)
        except KafkaException as failure:
            raise self._config.error("asking for the cluster", failure.args[0], timeout_s, self._events.heard) from None
        any_broker = str(next(iter(metadata.brokers)))
        found = self._settings(ConfigResource.Type.BROKER, [any_broker], timeout_s)
        return BrokerFacts(len(metadata.brokers), found.get(any_broker, {}))

    def topics(self, names: Iterable[str], timeout_s: float = 10.0) -> dict[str, dict[str, str]]:
        """The settings of those that exist."""
        return self._settings(ConfigResource.Type.TOPIC, list(names), timeout_s)

    def _settings(self, kind: Any, names: list[str], timeout_s: float) -> dict[str, dict[str, str]]:
        if not names:
            return {}
        asked = self._client.describe_configs([ConfigResource(kind, name) for name in names], request_timeout=timeout_s)
        found: dict[str, dict[str, str]] = {}
        for resource, future in asked.items():
            try:
                entries = future.result(timeout_s + 1.0)
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                if error.code() in TOPIC_UNKNOWN or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    continue
                raise self._config.error("asking for settings", error, timeout_s, self._events.heard) from None
            except FutureTimeout:
                raise TransportError(f"{self._config.bootstrap} did not return its settings in {timeout_s} s") from None
            found[resource.name] = {
                entry.name: entry.value
                for entry in entries.values()
                if entry.value is not None and not entry.is_sensitive
            }
        return found
