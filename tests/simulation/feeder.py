"""A query that feeds a coordinator: Spark's side of a feed, batch by batch (protocol, section 10.9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.schemas.acks import FeedPart
from penstock.schemas.codec import encode
from penstock.schemas.frames import pack
from penstock.schemas.status import CommandReply
from penstock.transport.ports import Partition

from .faults import Fault
from .pen import Pen
from .records import reply_of

if TYPE_CHECKING:
    from .world import Action, World

BATCHES = 4
"""That a query has in all."""
RESEND_S = 0.4
"""Without an answer a sender writes its batch again."""


class Feeder:
    """Writes a batch, waits for its answer, and then has it committed. It may be killed at any step, and begin again.

    What a killed one has not written yet may still be written, by a driver that is frozen and goes on.
    """

    def __init__(self, world: World, operator: str, query: str) -> None:
        self.world, self.operator, self.query = world, operator, query
        self.committed = -1
        """The batch that Spark has committed last."""
        self._sender = ""
        self._senders = 0
        self._rows: list[int] = []
        self._unsent: list[bytes] = []
        self._older: list[list[bytes]] = []
        """What earlier senders have not written."""
        self._pen = Pen(world.transport)
        self._status = Partition(world.settings.topics.status, 0)
        self._read_to = 0
        self._resend_at = 0.0

    def __str__(self) -> str:
        return f"query {self.query} of {self.operator}"

    @property
    def is_over(self) -> bool:
        return self.committed == BATCHES - 1

    def deadline(self) -> float | None:
        return self._resend_at if self._sender and not self._unsent and not self.is_over else None

    def actions(self) -> list[Action]:
        world, acts = self.world, list[Any]()
        if world.away:
            return acts
        acts += [(2.0, self._pen.flush, at) for at in self._pen.waiting()]
        acts += world.repeats(self._pen)
        acts += [(0.3, self._write, older) for older in self._older if older]
        if self.is_over:
            return acts
        if not self._sender:
            acts.append((0.5, self._begin))
        elif self._unsent:
            acts.append((1.0, self._write, self._unsent))
        elif world.now >= self._resend_at:
            acts.append((0.5, self._send))
        if self._read_to < len(world.log(self._status, 0, 1 << 30)):
            acts.append((2.0, self._read))
        if world.faulty and world.rate and self._sender:
            acts.append(Fault(0.1 * world.rate, self._crash))
        return acts

    def _begin(self) -> None:
        """A batch that runs again need not have the rows that it had."""
        self._rows = [self.world.new_uid() for _ in range(self.world.rng.randint(1, 4))]
        self._send()

    def _send(self) -> None:
        if self._unsent:
            self._older.append(self._unsent)
        self._senders += 1
        self._sender, self._resend_at = f"{self.operator}-{self.query}-{self._senders}", self.world.now + RESEND_S
        batch, rows = self.committed + 1, [b"%d" % row for row in self._rows]
        cut = self.world.rng.randint(1, len(rows))
        runs = [pack(run) for run in (rows[:cut], rows[cut:]) if run]
        size = sum(run.size for run in runs)
        self._unsent = [
            encode(
                FeedPart(
                    self.operator, self.query, batch, self._sender, n, len(runs), size, self.world.life, *run
                )
            )
            for n, run in enumerate(runs)
        ]  # fmt: skip
        self.world.trace(f"{self} sends batch {batch} as {self._sender}: {self._rows}")

    def _write(self, parts: list[bytes]) -> None:
        self._pen.append(self.world.acks, parts.pop(0), None, None)

    def _crash(self) -> None:
        self.world.trace(f"{self} DIES")
        self._older.append(self._unsent)
        self._sender, self._unsent = "", []

    def _read(self) -> None:
        record = self.world.log(self._status, self._read_to, self._read_to + 1)[0]
        self._read_to += 1
        reply = reply_of(record)
        if isinstance(reply, CommandReply) and reply.command == self._sender:
            self.world.trace(f"{self} is answered: {reply.outcome}")
            if reply.accepted:
                self.committed += 1
                self.world.checks.feeds.committed(self)
            self._sender, self._unsent = "", []
