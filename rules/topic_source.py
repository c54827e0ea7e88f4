"""Rule sets in a Kafka topic of one partition: each record is a whole set, and the last one counts."""

from __future__ import annotations

import threading
import time
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from .source_port import Found, Look

LOOK_TIMEOUT_S = 5.0
RECORDS_MAX = 100
"""Records that one look returns at most."""
_WAIT_S = 0.05
"""How long a look waits where everything had been read before."""


class TopicSource:
    """One topic. Its position is the topic's id and the offset of the next record.

    The consumer is assigned, never subscribed, and commits nothing: the position is in the coordinator's state. A topic
    that was created again has another id, and is read from its beginning.
    """

    def __init__(self, topic: str, settings: dict[str, Any]) -> None:
        self._topic = topic
        self._given = settings
        self._settings = {
            "group.id": f"penstock-rules-{topic}",
            **settings,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",  # records that retention has deleted have been replaced by later ones
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
        self._lock = threading.Lock()
        """Of the clients: a look that a rollback has made void may still be under way."""
        self._admin: AdminClient | None = None
        self._consumer: Consumer | None = None
        self._topic_id = ""
        """That of the topic that the consumer reads."""
        self._position: int | None = None
        """Offset that the consumer reads next; None where it must be assigned."""
        self._is_at_end = False

    def look(self, position: list[Any] | None) -> Look:
        """Read on. Raises KafkaException, ValueError for a topic that cannot be used, TimeoutError after seconds."""
        with self._lock:
            try:
                return self._look(position)
            except BaseException:
                self._position = None
                raise

    def _look(self, position: list[Any] | None) -> Look:
        topic_id = self._described()
        begin = position[1] if position is not None and position[0] == topic_id else OFFSET_BEGINNING
        consumer = self._consumer
        if consumer is None or topic_id != self._topic_id:
            self._close_consumer()
            consumer = self._consumer = Consumer(self._settings)
            self._topic_id = topic_id
        if self._position != begin:
            consumer.assign([TopicPartition(self._topic, 0, begin)])
            self._position, self._is_at_end = begin, False
        found: list[Found] = []
        deadline = time.monotonic() + LOOK_TIMEOUT_S
        while len(found) < RECORDS_MAX:
            message = consumer.poll(_WAIT_S if self._is_at_end else max(0.0, deadline - time.monotonic()))
            if message is None:
                if self._is_at_end or found:
                    break
                raise TimeoutError(f"topic {self._topic} has not been read to its end within {LOOK_TIMEOUT_S:g} s")
            error, offset = message.error(), message.offset()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            assert offset is not None
            self._is_at_end = error is not None
            if self._is_at_end:
                self._position = offset
                break
            self._position = offset + 1
            found.append(Found(f"topic {self._topic}, offset {offset}", message.value()))
        return Look([topic_id, self._position], found, self._is_at_end)

    def _described(self) -> str:
        """Return the topic's id; raises ValueError for one that is not there, or has several partitions."""
        if self._admin is None:
            self._admin = AdminClient(dict(self._given))
        asked = self._admin.describe_topics(TopicCollection([self._topic]), request_timeout=LOOK_TIMEOUT_S)
        try:
            described = asked[self._topic].result(LOOK_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
                raise ValueError(f"topic {self._topic} does not exist; create it with one partition") from None
            raise
        if len(described.partitions) != 1:
            raise ValueError(
                f"topic {self._topic} has {len(described.partitions)} partitions: rule sets need one partition, since"
                " records in several have no order"
            )
        return str(described.topic_id)

    def _close_consumer(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._consumer, self._position = None, None

    def close(self) -> None:
        with self._lock:
            self._close_consumer()
            self._admin = None
