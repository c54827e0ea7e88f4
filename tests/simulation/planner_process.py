"""The process in which Spark plans a query's batches: asks the coordinator over the log until it is answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.schemas.acks import BatchWanted, RunStarted
from penstock.schemas.codec import decode, encode
from penstock.schemas.ids import NO_CHECKPOINT
from penstock.schemas.status import BatchPlanned
from penstock.transport.memory import MemoryReader
from penstock.transport.ports import Partition

from .faults import Fault
from .pen import Pen

if TYPE_CHECKING:
    from .world import Action, World

WAIT_S = 0.06
"""How long an answer may be put off while there is nothing new."""
RESEND_S = 0.1


class PlannerProcess:
    """One run of the job. ``answered`` is its query; an orphan's is gone, and it ends with the answer it waits for."""

    def __init__(self, world: World, run: str, answered: Callable[[BatchPlanned], None]) -> None:
        self.world, self.run, self._answered = world, run, answered
        self.alive = True
        self.orphan = False
        self.frozen_until = 0.0
        self.run_offset: int | None = None
        """Of its RunStarted, which it writes once."""
        self.wanted: BatchWanted | None = None
        """Asked, and not answered."""
        self.checkpoint_id: int | None = None
        """It is to ask for what follows this one."""
        self._requests = 0
        self._unsettled = False
        """A record of its own is on its way."""
        self._send_at = 0.0
        self._pen = Pen(world.transport)
        self._reader: MemoryReader | None = None
        self._status = Partition(world.settings.topics.status, 0)

    def __str__(self) -> str:
        return f"planner of {self.run}"

    def plan(self, checkpoint_id: int) -> None:
        self.checkpoint_id = checkpoint_id

    # ---- steps

    def _link(self) -> None:
        end = self.world.transport.offsets([self._status])[self._status].end
        self._reader = self.world.transport.reader({self._status: end})

    def _write(self, record: RunStarted | BatchWanted) -> None:
        """By a new writer where the last one has failed: that takes nothing any more."""
        if self._pen.failure is not None:
            self.world.adrift.append(self._pen.abandon(self.world.rng))
            self._pen = Pen(self.world.transport)
        self._unsettled = True
        self.world.trace(f"{self} writes {record}")
        self._pen.append(self.world.acks, encode(record), None, lambda offset, _: self._settled(record, offset))
        if isinstance(record, BatchWanted) and self.world.chance(0.1 * self.world.config.duplicates):
            late = Pen(self.world.transport)  # of a writer that was replaced: it may stand behind the next request
            late.append(self.world.acks, encode(record), None, None)
            self.world.adrift.append(late)

    def _settled(self, record: RunStarted | BatchWanted, offset: int | None) -> None:
        self._unsettled = False
        if isinstance(record, RunStarted) and offset is not None:
            self.run_offset = offset
            self.world.announced(self)

    def _ask(self) -> None:
        assert self.checkpoint_id is not None
        if self.run_offset is None:
            self._write(RunStarted(self.run, "simulated"))
            return
        if self.wanted is None:
            n = self.checkpoint_id
            fresh = self.world.fresh and n == NO_CHECKPOINT
            self.wanted = BatchWanted(
                self.run,
                self.run_offset,
                self._requests,
                n,
                fresh,
                int(1000 * WAIT_S),
                False,
                f"query {self.run}",
                self.world.life,
            )
            self._requests += 1
        self._write(self.wanted)
        self._send_at = self.world.now + WAIT_S + RESEND_S

    def _read(self) -> None:
        assert self._reader is not None
        for record in self._reader.poll(0.0, self.world.rng.randint(1, 3)):
            found = decode(record.value)
            if (
                isinstance(found, BatchPlanned)
                and self.wanted is not None
                and (found.run, found.request) == (self.run, self.wanted.request)
            ):
                self.world.trace(f"{self} is answered {found}")
                self.wanted = self.checkpoint_id = None
                self._send_at = 0.0
                if self.orphan:
                    self.crash()
                else:
                    self._answered(found)

    def bereave(self) -> None:
        """Its query is gone; where it is asking it goes on doing so."""
        self.orphan = True
        if self.wanted is None:
            self.crash()

    def crash(self) -> None:
        self.alive = False
        self.world.adrift.append(self._pen.abandon(self.world.rng))

    # ---- what may happen next

    def deadline(self) -> float | None:
        return self._send_at if self.checkpoint_id is not None and not self._unsettled else None

    def waits(self) -> str:
        return f"{self} at {self.run_offset} wants {self.wanted} behind {self.checkpoint_id}"

    def actions(self) -> list[Action]:
        world, acts = self.world, list[Any]()
        if world.away:
            return []
        for partition in self._pen.waiting():
            acts.append((3.0, self._pen.flush, partition))
            if world.faulty:
                refuse = Fault(
                    0.03 * world.rate * world.config.refusals,
                    lambda at=partition: self._pen.refuse(at, stands=world.rng.random() < 0.5),
                )
                acts.append(refuse)
        if self.checkpoint_id is None:
            return acts
        if self._reader is None:
            return [*acts, (3.0, self._link)]
        due = self.run_offset is None or self.wanted is None or world.now >= self._send_at
        if due and not self._unsettled:
            acts.append((3.0, self._ask))
        if world.more(self._reader, self._status):
            acts.append((3.0, self._read))
        if world.faulty and self.orphan:
            acts.append(Fault(0.02 * world.rate, self.crash))
        return acts
