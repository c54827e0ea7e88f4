"""A writer whose records reach the log one scheduler step at a time, or never."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable

from penstock.schemas.errors import AppendFailed
from penstock.transport.memory import MemoryTransport
from penstock.transport.ports import Partition

Outcome = Callable[[int | None, Exception | None], None]
Queued = tuple[bytes, bytes | None, Outcome | None]


class Pen:
    """In order per partition and without a hole, as an idempotent producer; partitions are independent."""

    def __init__(self, transport: MemoryTransport) -> None:
        self._transport = transport
        self._writer = transport.writer()
        self.queues: dict[Partition, deque[Queued]] = {}
        self.failure: str | None = None
        self._appended: Counter[Partition] = Counter()
        self._settled: Counter[Partition] = Counter()

    def all_settled(self) -> Callable[[], bool]:
        """Tells, then or later, whether everything appended up to now has its outcome."""
        appended = dict(self._appended)
        return lambda: all(self._settled[partition] >= count for partition, count in appended.items())

    def append(self, partition: Partition, value: bytes, key: bytes | None, outcome: Outcome | None) -> None:
        if self.failure is not None:
            if outcome is not None:
                outcome(None, AppendFailed(f"an earlier append failed: {self.failure}"))
            return
        self._appended[partition] += 1
        self.queues.setdefault(partition, deque()).append((value, key, outcome))

    def waiting(self) -> list[Partition]:
        return [partition for partition, queue in self.queues.items() if queue]

    def flush(self, partition: Partition) -> None:
        """The oldest record reaches the log."""
        value, key, outcome = self.queues[partition].popleft()
        self._settled[partition] += 1
        offsets: list[int] = []
        self._writer.append(partition, value, key, lambda offset, _: offsets.append(offset or 0))
        if outcome is not None:
            outcome(offsets[0], None)

    def repeat(self, partition: Partition, rng: random.Random) -> None:
        """The oldest records reach the log, and their answers are lost: the same are appended again, by :meth:`flush`.

        So a client does where a partition's leader changes while another partition has refused what it sent out of
        order (librdkafka issue 4953).
        """
        queue = self.queues[partition]
        for value, key, _ in list(queue)[: rng.randint(1, len(queue))]:
            self._writer.append(partition, value, key, None)

    def refuse(self, partition: Partition, *, stands: bool) -> None:
        """The broker's answer to the oldest record is an error, whether it ``stands`` or not; no later one stands."""
        if stands:
            value, key, outcome = self.queues[partition][0]
            self.queues[partition][0] = value, key, None
            self.flush(partition)
        else:
            _, _, outcome = self.queues[partition].popleft()
        lost, self.queues[partition] = self.queues[partition], deque()
        self._settled[partition] = self._appended[partition]
        self.failure = f"{partition} was refused"
        for one in (outcome, *(later for _, _, later in lost)):
            if one is not None:
                one(None, AppendFailed(self.failure))

    def abandon(self, rng: random.Random | None) -> Pen:
        """What is in flight when the process (or the writer) is gone: a prefix per partition, all without ``rng``."""
        rest = Pen(self._transport)
        for partition, queue in self.queues.items():
            keep = len(queue) if rng is None else rng.randint(0, len(queue))
            rest.queues[partition] = deque((value, key, None) for value, key, _ in list(queue)[:keep])
        self.queues.clear()
        self._settled = self._appended
        self.failure = "closed"
        return rest
