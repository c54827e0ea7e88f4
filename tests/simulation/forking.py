"""A fork of the job, made from one of its checkpoints while it runs on, and run to its end when that has drained.

Between the calls of the copying the origin makes steps of its own: it truncates, discards and completes meanwhile. The
copied checkpoint is checked as if it had been completed in the copy, and the copy's history goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.audit import audit
from penstock.recorded.fork import fork
from penstock.recorded.job import RecordedJob
from penstock.schemas.errors import JobRefused, PositionUnavailable
from penstock.transport.ports import LogRecord, Partition

from .violations import Violation

if TYPE_CHECKING:
    from .world import World

NAME = "copy"
_WRITES = ("create_topics", "delete_topics", "truncate", "claim_log")
_READS = ("read_all", "offsets", "describe_topics", "list_topics")


class _Reader:
    def __init__(self, reader: Any, meanwhile: Callable[[], None]) -> None:
        self._reader, self._meanwhile = reader, meanwhile

    def poll(self, timeout_s: float, records_max: int = 1_000) -> list[LogRecord]:
        self._meanwhile()
        return list(self._reader.poll(0.0, min(records_max, 3)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


class _Writer:
    def __init__(self, writer: Any, check: Callable[[Iterable[object]], None]) -> None:
        self._writer, self._check = writer, check

    def append(self, partition: Partition, *rest: Any) -> None:
        self._check([partition])
        self._writer.append(partition, *rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


class _Transport:
    """The world's, of a process that copies: the job goes on between its calls, and its topics are read only."""

    def __init__(self, world: World, root: str) -> None:
        self._world, self._root = world, root

    def _meanwhile(self) -> None:
        for _ in range(self._world.rng.randint(0, 4)):
            self._world.step()

    def _check(self, touched: Iterable[object]) -> None:
        for what in touched:
            if not str(getattr(what, "topic", getattr(what, "name", what))).startswith(self._root):
                raise Violation(f"section 3: a fork writes to {what}, which is its origin's")

    def reader(self, positions: Any) -> _Reader:
        return _Reader(self._world.transport.reader(positions), self._meanwhile)

    def writer(self) -> _Writer:
        return _Writer(self._world.transport.writer(), self._check)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._world.transport, name)

        def call(what: Any, *rest: Any, **named: Any) -> Any:
            if name in _WRITES:
                self._check([what] if isinstance(what, str) else what)
            self._meanwhile()
            return found(what, *rest, **named)

        return call if name in (*_WRITES, *_READS) else found


def fork_off(world: World) -> None:
    """Make the copy, if the checkpoint is kept until it has been copied."""
    origin, settings = world.settings.topics, replace(world.settings, name=NAME)
    n = world.rng.choice(sorted(world.checks.history.checkpoints))
    world.trace(f"a FORK of checkpoint {n} is made")
    world.forks = True
    copying: Any = _Transport(world, settings.topics.root)
    try:
        fork(RecordedJob(copying, origin.job), NAME, n)
    except (JobRefused, PositionUnavailable) as refusal:
        world.trace(f"the fork is refused: {refusal}")
        if left := world.transport.list_topics(settings.topics.root):
            raise Violation(f"section 3: a fork that was refused leaves {left}") from refusal
        if n in world.checks.history.checkpoints:
            raise Violation(f"section 7.9: checkpoint {n} is kept, and cannot be copied: {refusal}") from refusal
        return
    world.copy = type(world)(world.config, world.seed, origin=world)
    world.copy.checks.restored_in_copy(n)


def logs_of(world: World) -> dict[Partition, tuple[int, list[LogRecord]]]:
    """Everything that stands in the job's topics."""
    topics = world.broker._topics
    names = [name for name in topics if name.startswith(world.settings.topics.root)]
    return {log.partition: (log.begin, list(log.records)) for name in names for log in topics[name].logs}


def run_copy(world: World, copy: World) -> None:
    """Run the copy to its end; its origin's topics stay as they are."""
    before = logs_of(world)
    copy.take_over_from(world)
    copy.run_all()
    if logs_of(world) != before:
        raise Violation("section 3: what a fork does is seen in its origin's topics")
    report = audit(copy.transport, copy.settings.name, copy.settings.prefix)
    if not report.healthy:
        raise Violation(f"audit: of a fork's logs, {report}")
