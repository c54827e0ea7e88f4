"""The other side of each ratio: plain confluent-kafka doing the same work, without any promise."""

from __future__ import annotations

import multiprocessing
import time
import uuid
from multiprocessing.connection import Connection

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.schemas.frames import pack, unpack

_PRODUCER = {"enable.idempotence": True, "acks": "all", "linger.ms": 0, "queue.buffering.max.messages": 1_000_000}
DEADLINE_S = 120.0


def create_topic(bootstrap: str, partitions: int) -> str:
    topic = f"raw-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        created.result(30)
    return topic


def _consumer(bootstrap: str, topic: str, partition: int) -> Consumer:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "raw", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0)])
    return consumer


def _no_op(event: bytes) -> None:
    pass


def _consume(bootstrap: str, topic: str, partition: int, events: int, framed: bool, out: Connection) -> None:
    """Calls a no-op for each event and tells the monotonic second at which the last one had been handled."""
    consumer = _consumer(bootstrap, topic, partition)
    out.send("ready")
    seen, deadline = 0, time.monotonic() + DEADLINE_S
    while seen < events and time.monotonic() < deadline:
        first = consumer.poll(1.0)
        for message in [first, *consumer.consume(1000, 0)] if first is not None else []:
            value = message.value()
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
    context = multiprocessing.get_context("spawn")
    per_subtask = events // subtasks
    pipes, processes = [], []
    for partition in range(subtasks):
        mine, theirs = context.Pipe()
        process = context.Process(
            target=_consume, args=(bootstrap, topic, partition, per_subtask, frame is not None, theirs), daemon=True
        )
        process.start()
        pipes.append(mine)
        processes.append(process)
    for pipe in pipes:
        if not pipe.poll(60):
            raise TimeoutError("a raw consumer did not start")
        pipe.recv()
    producer = Producer({"bootstrap.servers": bootstrap, **_PRODUCER})
    producer.list_topics(topic, timeout=10)
    payload = bytes(size)
    began = time.monotonic()
    if frame is None:
        for _ in range(per_subtask):
            for partition in range(subtasks):
                while True:
                    try:
                        producer.produce(topic, payload, partition=partition)
                        break
                    except BufferError:
                        producer.poll(0.01)
    else:
        for begin in range(0, per_subtask, frame):
            packed = pack([payload] * min(frame, per_subtask - begin))
            value = packed.count.to_bytes(4, "little") + packed.lengths + packed.payload
            for partition in range(subtasks):
                producer.produce(topic, value, partition=partition)
                producer.poll(0)
    producer.flush(DEADLINE_S)
    ends = []
    for pipe in pipes:
        if not pipe.poll(DEADLINE_S):
            raise TimeoutError("a raw consumer did not finish")
        ends.append(pipe.recv())
    for process in processes:
        process.join(10)
    return per_subtask * subtasks / (max(ends) - began)


def _echo(bootstrap: str, there: str, back: str, out: Connection) -> None:
    """Sends back each record as soon as it arrives."""
    consumer = _consumer(bootstrap, there, 0)
    producer = Producer({"bootstrap.servers": bootstrap, **_PRODUCER})
    producer.list_topics(back, timeout=10)
    out.send("ready")
    while True:
        message = consumer.poll(30.0)
        if message is None or message.value() == b"end":
            break
        producer.produce(back, message.value(), partition=0)
        producer.poll(0)
    producer.flush(10)
    consumer.close()


def round_trips(bootstrap: str, count: int, size: int) -> tuple[list[float], list[float]]:
    """Seconds of (produce here to consumed there, produce here to answer consumed here), one at a time."""
    there, back = create_topic(bootstrap, 1), create_topic(bootstrap, 1)
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_echo, args=(bootstrap, there, back, theirs), daemon=True)
    process.start()
    if not mine.poll(60):
        raise TimeoutError("the raw echo did not start")
    consumer = _consumer(bootstrap, back, 0)
    producer = Producer({"bootstrap.servers": bootstrap, **_PRODUCER})
    producer.list_topics(there, timeout=10)
    trips = []
    for n in range(count + 50):
        began = time.monotonic()
        producer.produce(there, bytes(size), partition=0)
        producer.poll(0)
        if consumer.poll(30.0) is None:
            raise TimeoutError("no answer from the raw echo")
        if n >= 50:
            trips.append(time.monotonic() - began)
    producer.produce(there, b"end", partition=0)
    producer.flush(10)
    process.join(10)
    consumer.close()
    return [trip / 2 for trip in trips], trips
