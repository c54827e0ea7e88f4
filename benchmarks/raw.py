"""The other side of each ratio: plain confluent-kafka doing the same work, without any promise."""

from __future__ import annotations

import multiprocessing
import struct
import time
import uuid
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.schemas.frames import pack, unpack

PRODUCER = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 0,
    "queue.buffering.max.messages": 1_000_000,
    "log_level": 3,  # not what passes by itself
}
DEADLINE_S = 120.0
_STAMP = struct.Struct("<d")


def create_topic(bootstrap: str, partitions: int) -> str:
    topic = f"raw-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        created.result(30)
    return topic


def consumer_of(bootstrap: str, topic: str, partitions: Iterable[int]) -> Consumer:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "raw", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    return consumer


def _no_op(event: bytes) -> None:
    pass


def _consume(bootstrap: str, topic: str, partition: int, events: int, framed: bool, out: Connection) -> None:
    """Calls a no-op for each event and tells the monotonic second at which the last one had been handled."""
    consumer = consumer_of(bootstrap, topic, [partition])
    out.send("ready")
    seen, deadline = 0, time.monotonic() + DEADLINE_S
    while seen < events and time.monotonic() < deadline:
        first = consumer.poll(1.0)
        for message in [first, *consumer.consume(1000, 0)] if first is not None else []:
            value = message.value() or b""
            if not framed:
                _no_op(value)
                seen += 1
                continue
            count = int.from_bytes(value[:4], "little")
            for event in unpack(count, value[4 : 4 + 4 * count], value[4 + 4 * count :]):
                _no_op(event)
            seen += count
    out.send(time.monotonic())
    consumer.close()


def events_per_second(bootstrap: str, subtasks: int, events: int, size: int, frame: int | None) -> float:
    """From before the first produce to the last event handled; ``frame`` events to a record, None: one record each."""
    topic = create_topic(bootstrap, subtasks)
    per_subtask = events // subtasks
    consumers = Processes()
    for partition in range(subtasks):
        consumers.add(_consume, bootstrap, topic, partition, per_subtask, frame is not None)
    consumers.wait()
    producer = producer_of(bootstrap, topic)
    began = time.monotonic()
    _produce_all(producer, topic, subtasks, per_subtask, size, frame)
    ended = max(consumers.results())
    return per_subtask * subtasks / (ended - began)


def channel_records_per_second(bootstrap: str, parallelism: int, records: int, size: int, frame: int | None) -> float:
    """The same from so many senders to as many receivers, all in processes of their own, each to each."""
    topic = create_topic(bootstrap, parallelism)
    per_channel = records // parallelism**2
    consumers, producers = Processes(), Processes()
    for index in range(parallelism):
        consumers.add(_consume, bootstrap, topic, index, per_channel * parallelism, frame is not None)
        producers.add(_produce, bootstrap, topic, parallelism, per_channel, size, frame)
    consumers.wait()
    producers.wait()
    began = time.monotonic()
    producers.tell("go")
    ended = max(consumers.results())
    producers.results()
    return per_channel * parallelism**2 / (ended - began)


class Processes:
    """Each says when it is ready, and later what came of it."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []

    def add(self, target: Callable[..., None], *args: object) -> None:
        mine, theirs = self._context.Pipe()
        process = self._context.Process(target=target, args=(*args, theirs), daemon=True)
        process.start()
        self._pipes.append(mine)
        self._processes.append(process)

    def wait(self) -> None:
        self.heard("did not start")

    def tell(self, what: str) -> None:
        for pipe in self._pipes:
            pipe.send(what)

    def results(self) -> list[float]:
        said = self.heard("did not finish")
        self.join()
        return said

    def join(self) -> None:
        for process in self._processes:
            process.join(10)

    def heard(self, complaint: str) -> list[Any]:
        said = []
        for pipe in self._pipes:
            if not pipe.poll(DEADLINE_S):
                raise TimeoutError(f"a raw process {complaint}")
            said.append(pipe.recv())
        return said


def producer_of(bootstrap: str, topic: str) -> Producer:
    """Connected, and knowing its topic."""
    producer = Producer({"bootstrap.servers": bootstrap, **PRODUCER})
    producer.list_topics(topic, timeout=10)
    return producer


def _produce(
    bootstrap: str, topic: str, partitions: int, per_partition: int, size: int, frame: int | None, pipe: Connection
) -> None:
    producer = producer_of(bootstrap, topic)
    pipe.send("ready")
    pipe.recv()
    _produce_all(producer, topic, partitions, per_partition, size, frame)
    pipe.send(time.monotonic())


def _produce_all(
    producer: Producer, topic: str, partitions: int, per_partition: int, size: int, frame: int | None
) -> None:
    """So many events to each partition, by turns."""
    payload = bytes(size)
    if frame is None:
        for _ in range(per_partition):
            for partition in range(partitions):
                while True:
                    try:
                        producer.produce(topic, payload, partition=partition)
                        break
                    except BufferError:
                        producer.poll(0.01)
    else:
        for begin in range(0, per_partition, frame):
            for partition in range(partitions):
                packed = pack([payload] * min(frame, per_partition - begin))
                value = packed.count.to_bytes(4, "little") + packed.lengths + packed.payload
                producer.produce(topic, value, partition=partition)
                producer.poll(0)
    producer.flush(DEADLINE_S)


def _echo(bootstrap: str, there: str, back: str, out: Connection) -> None:
    """Answers each record as soon as it arrives, with the moment at which it did, at the size of the record."""
    consumer = consumer_of(bootstrap, there, [0])
    producer = producer_of(bootstrap, back)
    out.send("ready")
    while True:
        message = consumer.poll(30.0)
        value = b"end" if message is None else message.value() or b""
        if value == b"end":
            break
        producer.produce(back, _STAMP.pack(time.monotonic()).ljust(len(value), b"\0"), partition=0)
        producer.poll(0)
    producer.flush(10)
    consumer.close()


def round_trips(bootstrap: str, count: int, warm_up: int, size: int, pause_s: float) -> tuple[list[float], list[float]]:
    """Seconds of (produce here to consumed there, produce here to answer consumed here), one at a time."""
    there, back = create_topic(bootstrap, 1), create_topic(bootstrap, 1)
    echo = Processes()
    echo.add(_echo, bootstrap, there, back)
    echo.wait()
    consumer = consumer_of(bootstrap, back, [0])
    producer = producer_of(bootstrap, there)
    one_way, trips = [], []
    for _ in range(warm_up + count):
        time.sleep(pause_s)
        began = time.monotonic()
        producer.produce(there, bytes(size), partition=0)
        producer.poll(0)
        answer = consumer.poll(30.0)
        if answer is None:
            raise TimeoutError("no answer from the raw echo")
        trips.append(time.monotonic() - began)
        one_way.append(_STAMP.unpack_from(answer.value() or b"")[0] - began)
    producer.produce(there, b"end", partition=0)
    producer.flush(10)
    echo.join()
    consumer.close()
    return one_way[warm_up:], trips[warm_up:]
