"""Raw counterpart of a checkpoint: one record to each of N partitions and one answer from each, by plain clients."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection

from .raw import DEADLINE_S, Processes, consumer_of, create_topic, producer_of

WARM_UP = 3
PAUSE_S = 0.02
"""Between two rounds."""
_END = b"end"


def _answer(bootstrap: str, there: str, back: str, partitions: range, out: Connection) -> None:
    """Answers each record of these partitions with one record of its own."""
    consumer, producer = consumer_of(bootstrap, there, partitions), producer_of(bootstrap, back)
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


def raw_rounds(bootstrap: str, hosted: list[range], rounds: int, size: int, within_s: float) -> list[float]:
    """Seconds of each round: from before the first of N records is produced to the last of N answers consumed.

    ``hosted``: the partitions that each process reads with one consumer and answers with one producer. Of ``rounds``
    there are fewer where they do not fit into ``within_s`` seconds.
    """
    count = sum(map(len, hosted))
    there, back = create_topic(bootstrap, count), create_topic(bootstrap, 1)
    payload, taken, answering = bytes(size), [], Processes()
    for partitions in hosted:
        answering.add(_answer, bootstrap, there, back, partitions)
    answering.wait()
    consumer, producer = consumer_of(bootstrap, back, [0]), producer_of(bootstrap, there)
    ends = time.monotonic() + within_s
    while len(taken) < WARM_UP + rounds and (len(taken) <= WARM_UP or time.monotonic() < ends):
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
    answering.join()
    consumer.close()
    return taken[WARM_UP:]
