"""Raw counterpart of a checkpoint: one record to each of N partitions and one answer from each, by plain clients."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from confluent_kafka import Consumer, Producer, TopicPartition

from .raw import DEADLINE_S, PRODUCER, create_topic

WARM_UP = 3
PAUSE_S = 0.02
"""Between two rounds."""
_END = b"end"


def _consumer(bootstrap: str, topic: str, partitions: range) -> Consumer:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "raw", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    return consumer


def _answer(bootstrap: str, there: str, back: str, partitions: range, out: Connection) -> None:
    """Answers each record of these partitions with one record of its own."""
    consumer = _consumer(bootstrap, there, partitions)
    producer = Producer({"bootstrap.servers": bootstrap, **PRODUCER})
    producer.list_topics(back, timeout=DEADLINE_S)
    out.send("ready")
    while True:
        first = consumer.poll(DEADLINE_S)
        for message in [first, *consumer.consume(1000, 0)] if first is not None else [None]:
            if message is None or message.value() == _END:
                consumer.close()
                producer.flush(10)
                return
            producer.produce(back, message.value(), partition=0)
        producer.poll(0)


@contextmanager
def _answering(bootstrap: str, there: str, back: str, hosted: list[range]) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for partitions in hosted:
        mine, theirs = context.Pipe()
        process = context.Process(target=_answer, args=(bootstrap, there, back, partitions, theirs), daemon=True)
        process.start()
        pipes.append(mine)
        processes.append(process)
    try:
        for pipe in pipes:
            if not pipe.poll(DEADLINE_S):
                raise TimeoutError("a raw process that answers did not start")
        yield
    finally:
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()


def raw_rounds(bootstrap: str, hosted: list[range], rounds: int, size: int) -> list[float]:
    """Seconds of each round: from before the first of N records is produced to the last of N answers consumed.

    ``hosted``: the partitions that each process reads with one consumer and answers with one producer.
    """
    count = sum(map(len, hosted))
    there, back = create_topic(bootstrap, count), create_topic(bootstrap, 1)
    payload, taken = bytes(size), []
    with _answering(bootstrap, there, back, hosted):
        consumer = _consumer(bootstrap, back, range(1))
        producer = Producer({"bootstrap.servers": bootstrap, **PRODUCER})
        producer.list_topics(there, timeout=DEADLINE_S)
        for _ in range(WARM_UP + rounds):
            began = time.monotonic()
            for partition in range(count):
                producer.produce(there, payload, partition=partition)
            producer.poll(0)
            answers = 0
            while answers < count:
                if consumer.poll(DEADLINE_S) is None:
                    raise TimeoutError(f"{answers} of {count} raw answers came")
                answers += 1 + len(consumer.consume(count - answers - 1, 0) if count - answers > 1 else ())
            taken.append(time.monotonic() - began)
            time.sleep(PAUSE_S)
        for partitions in hosted:
            producer.produce(there, _END, partition=partitions[0])
        producer.flush(10)
        consumer.close()
    return taken[WARM_UP:]
