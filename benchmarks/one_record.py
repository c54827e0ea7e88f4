"""What one record for all subtasks would save a checkpoint, beside one for each, by plain clients.

``python -m benchmarks.one_record`` measures rounds of each kind (see ``Kind``), by turns, with the same processes and
clients: what asks all subtasks differs, and each answers by a record of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from multiprocessing.connection import Connection

from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.broker import EmbeddedBroker

from .checkpoints import PROCESSES_MAX, STATE, hosts
from .idle import processor_seconds
from .one_request import OneRequest
from .raw import DEADLINE_S, Processes, consumer_of, create_topic, producer_of

CONSUMERS_PER_PROCESS = 16
TURNS = 4
"""Blocks of rounds of each kind, one after the other."""
PAUSE_S = 0.02
_END = b"end"


class Kind(Enum):
    EACH = "a record to each of as many partitions, by the client library"
    REQUEST = "a record to each of as many partitions, in one request"
    ONE = "one record in a partition that all read"


@dataclass(frozen=True)
class Topics:
    """Topics that records go to: a partition for each subtask, one for all, and one for the answers."""

    each: str
    one: str
    back: str


@dataclass(frozen=True)
class Cost:
    """Of one block of rounds."""

    taken: list[float]
    """Seconds of each."""
    broker: float
    """Seconds of processor time, all rounds together."""
    answering: float
    asking: float


def _consumer(bootstrap: str, topics: Topics, partitions: range) -> Consumer:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "raw", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topics.one, 0, 0), *(TopicPartition(topics.each, n, 0) for n in partitions)])
    return consumer


def _answer(bootstrap: str, topics: Topics, partitions: range, producer: Producer) -> None:
    """Answers each record for one with a record, and each for all with as many records as there are partitions."""
    consumer = _consumer(bootstrap, topics, partitions)
    while True:
        first = consumer.poll(DEADLINE_S)
        for message in [first, *consumer.consume(1000, 0)] if first is not None else [None]:
            if message is None or message.value() == _END:
                consumer.close()
                return
            for _ in partitions if message.topic() == topics.one else (0,):
                producer.produce(topics.back, message.value(), partition=0)
        producer.poll(0)


def _host(bootstrap: str, topics: Topics, consumers: Sequence[range], out: Connection) -> None:
    """A process with so many consumers, a thread each, and one producer."""
    producer = producer_of(bootstrap, topics.back)
    threads = [threading.Thread(target=_answer, args=(bootstrap, topics, these, producer)) for these in consumers]
    for thread in threads:
        thread.start()
    out.send(os.getpid())
    for thread in threads:
        thread.join()
    producer.flush(10)


class Rounds:
    """All kinds of round, with the same processes."""

    def __init__(self, bootstrap: str, broker_pid: int, hosted: Sequence[Sequence[range]]) -> None:
        self._count = sum(len(partitions) for process in hosted for partitions in process)
        self._topics = Topics(
            create_topic(bootstrap, self._count), create_topic(bootstrap, 1), create_topic(bootstrap, 1)
        )
        self._processes = Processes()
        for process in hosted:
            self._processes.add(_host, bootstrap, self._topics, process)
        self._pids = [int(pid) for pid in self._processes.heard("did not start")]
        self._broker_pid = broker_pid
        self._back = consumer_of(bootstrap, self._topics.back, [0])
        self._producer = producer_of(bootstrap, self._topics.each)
        self._producer.list_topics(self._topics.one, timeout=10)
        self._request = OneRequest(bootstrap, self._topics.each, self._count, STATE)
        for kind in Kind:
            self.round(kind)

    def round(self, kind: Kind) -> float:
        """Seconds from before the first record is produced to the last answer consumed."""
        began = time.monotonic()
        match kind:
            case Kind.REQUEST:
                self._request.send()
            case Kind.ONE:
                self._producer.produce(self._topics.one, STATE, partition=0)
            case Kind.EACH:
                for partition in range(self._count):
                    self._producer.produce(self._topics.each, STATE, partition=partition)
        self._producer.poll(0)
        answers = 0
        while answers < self._count:
            if self._back.poll(DEADLINE_S) is None:
                raise TimeoutError(f"{answers} of {self._count} answers came")
            answers += 1 + len(self._back.consume(self._count - answers - 1, 0) if self._count > answers + 1 else ())
        taken = time.monotonic() - began
        if kind is Kind.REQUEST:
            self._request.answered()
        return taken

    def block(self, kind: Kind, rounds: int) -> Cost:
        self.round(kind)
        before = self._spent()
        taken = []
        for _ in range(rounds):
            time.sleep(PAUSE_S)
            taken.append(self.round(kind))
        return Cost(taken, *(after - earlier for after, earlier in zip(self._spent(), before, strict=True)))

    def close(self) -> None:
        self._producer.produce(self._topics.one, _END, partition=0)
        self._producer.flush(10)
        self._processes.join()
        self._back.close()
        self._request.close()

    def _spent(self) -> tuple[float, float, float]:
        sides = ([self._broker_pid], self._pids, [os.getpid()])
        broker, answering, asking = map(processor_seconds, sides)
        return broker, answering, asking


def hosted_by(subtasks: int, shared: bool) -> list[list[range]]:
    """The consumers of each process, as the partitions of each."""
    if shared:
        return [[partitions] for partitions in hosts(subtasks)]
    ranges = [range(n, n + 1) for n in range(subtasks)]
    per_process = 1 if subtasks <= PROCESSES_MAX else max(CONSUMERS_PER_PROCESS, subtasks // 10)
    return [ranges[n : n + per_process] for n in range(0, subtasks, per_process)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.one_record", description=__doc__)
    parser.add_argument("subtasks", type=int, nargs="+")
    parser.add_argument("--rounds", type=int, default=10, help="of each kind in a block")
    parser.add_argument("--own", action="store_true", help="a consumer for each subtask, however many there are")
    chosen = parser.parse_args()
    for subtasks in chosen.subtasks:
        with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(folder) as broker:
            _measure(broker, subtasks, chosen.rounds, not chosen.own)


def _measure(broker: EmbeddedBroker, subtasks: int, rounds: int, shared: bool) -> None:
    hosted = hosted_by(subtasks, shared)
    every = Rounds(broker.bootstrap, broker.pid, hosted)
    blocks: dict[Kind, list[Cost]] = {kind: [] for kind in Kind}
    for _ in range(TURNS):
        for kind, costs in blocks.items():
            costs.append(every.block(kind, rounds))
    every.close()
    consumers = sum(map(len, hosted))
    print(f"{subtasks:,} subtasks, {consumers:,} consumers in {len(hosted)} processes", flush=True)
    for kind, costs in blocks.items():
        taken = sorted(1000 * seconds for cost in costs for seconds in cost.taken)
        spent = [
            statistics.median(1000 * getattr(cost, side) / rounds for cost in costs)
            for side in ("broker", "answering", "asking")
        ]  # of the blocks: a new block of a partition's index costs the broker much, and once
        print(
            f"  {kind.value}: p50 {statistics.median(taken):.1f} ms,"
            f" p90 {taken[len(taken) * 9 // 10]:.1f}; processor time a round: broker {spent[0]:.1f} ms,"
            f" answering {spent[1]:.1f}, asking {spent[2]:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
