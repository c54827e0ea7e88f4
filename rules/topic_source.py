"""Rule sets in a Kafka topic of one partition: each record is a whole set, and the last one counts."""

from __future__ import annotations

import threading
import time
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from .source_port import Found, Look

LOOK_TIMEOUT_S = 5.0
RECORDS_MAX = 100
"""Records that one look returns at most."""
_WAIT_S = 0.05
"""How long a look waits where everything had been read before."""


class TopicSource:
    """One topic. Its position is the offset of the next record.

    The consumer is assigned, never subscribed, and commits nothing: the position is in the coordinator's state.
    """

    def __init__(self, topic: str, settings: dict[str, Any]) -> None:
        self._topic = topic
        self._settings = {
            "group.id": f"penstock-rules-{topic}",
            **settings,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",  # records that retention has deleted have been replaced by later ones
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
        self._lock = threading.Lock()
        """Of the consumer: a look that a rollback has made void may still be under way."""
        self._consumer: Consumer | None = None
        self._position: int | None = None
        """Offset that the consumer reads next; None where it must be assigned."""
        self._is_at_end = False

    def look(self, position: int | None) -> Look:
        """Read on. Raises KafkaException, or TimeoutError where no answer comes within a few seconds."""
        with self._lock:
            try:
                return self._look(position)
            except BaseException:
                self._position = None
                raise

    def _look(self, position: int | None) -> Look:
        consumer = self._consumer if self._consumer is not None else self._open()
        begin = OFFSET_BEGINNING if position is None else position
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
        return Look(None if self._position == OFFSET_BEGINNING else self._position, found, self._is_at_end)

    def _open(self) -> Consumer:
        consumer = Consumer(self._settings)
        try:
            described = consumer.list_topics(self._topic, timeout=LOOK_TIMEOUT_S).topics[self._topic]
            if described.error is not None:
                raise KafkaException(described.error)
            if len(described.partitions) != 1:
                raise ValueError(
                    f"topic {self._topic} has {len(described.partitions)} partitions: rule sets need one partition,"
                    " since records in several have no order"
                )
        except BaseException:
            consumer.close()
            raise
        self._consumer = consumer
        return consumer

    def close(self) -> None:
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None
