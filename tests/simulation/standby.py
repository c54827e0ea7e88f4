"""Hosts of which one coordinates and the others stand by (protocol, section 4.3).

The policy is the product's. The election is modelled by what a consumer group promises: a member whose process is dead,
frozen, or away from the broker for longer than a session loses its place, and an outage may end every session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.coordinator.protocol.takeover_policy import STOPPED_S, Verdict, Watch
from penstock.schemas.codec import decode
from penstock.schemas.status import AT_WORK, Ending, JobStatus
from penstock.transport.ports import Partition

from .coordinator_process import CoordinatorProcess
from .faults import Fault
from .violations import Violation

if TYPE_CHECKING:
    from .world import Action, World

HOSTS = 3
_TAKEOVER_AFTER_S = 6.0
_SCALE = 5.0
"""The policy's seconds in one of the world's, in which everything else is faster too."""
SESSION_S = _TAKEOVER_AFTER_S / _SCALE
_LOOK_S, _ASK_S = 0.1 / _SCALE, 0.5 / _SCALE
_UNSEEN_S = STOPPED_S / _SCALE
"""A shorter outage may lie between two looks."""
_RECORDS_MAX = 3
"""That one look reads."""


class Group:
    """The candidates, the elected one first; and for how long the status topic has been silent."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.hosts: list[StandbyHost] = []
        """All that there have been."""
        self._members: list[StandbyHost] = []
        self.silent_s = 0.0
        """While the broker was there to take a status, and not everything stood still."""
        self._away_s = 0.0
        """How long the outage lasts by now."""
        self._last = world.now
        self._epoch = 0
        """The newest that a status was told of."""

    def turn(self) -> None:
        """Time has passed."""
        world = self._world
        passed, self._last = world.now - self._last, world.now
        if world.away:
            self._away_s += passed
            return
        if self._away_s > _UNSEEN_S:
            self.silent_s = 0.0
        self._away_s = 0.0
        self.silent_s += passed
        self._members = [host for host in self._members if world.now - host.in_touch_at <= SESSION_S]
        for host in self.hosts:
            if host.alive and host.process.frozen_until <= world.now and not host.process.away:
                host.in_touch_at = world.now

    def stood_still(self, seconds: float) -> None:
        """Nothing at all has run, as in a suspended machine: nobody's silence."""
        self._last += seconds if seconds > _UNSEEN_S else 0.0

    def told(self, epoch: int) -> None:
        """A status was written; one of an older epoch than another is a zombie's, and counts for nothing."""
        if epoch >= self._epoch:
            self._epoch, self.silent_s = epoch, 0.0

    def elected(self, host: StandbyHost) -> bool:
        if host not in self._members:
            self._members.append(host)
        return self._members[0] is host

    def leave(self, host: StandbyHost) -> None:
        self._members = [member for member in self._members if member is not host]

    def actions(self) -> list[Action]:
        """Hosts that are gone are replaced, soon."""
        alive = [host for host in self.hosts if host.alive]
        return [] if len(alive) >= HOSTS or self._world.finished else [(0.3 if alive else 2.0, self._spawn)]

    def _spawn(self) -> None:
        self.hosts.append(StandbyHost(self._world, self, f"H{len(self.hosts) + 1}"))
        self._world.trace(f"{self.hosts[-1]} is started")

    def check_may_take_over(self, host: StandbyHost, watch: Watch) -> None:
        """Nobody who lives and can write is replaced (P-4.3.2, P-4.3.3)."""
        newest = watch.newest
        if newest is None or newest.state not in AT_WORK or newest.epoch <= host.ended_through:
            return
        if self.silent_s < SESSION_S - _ASK_S - _UNSEEN_S:
            raise Violation(f"section 4.3: {host} takes over, and the status topic is silent for {self.silent_s:.2f} s")
        if self._members[0].coordinator is not None:
            raise Violation(f"section 4.3: {host} takes over, and {self._members[0]}, which is at work, is elected")


class StandbyHost:
    """One host: stands by, runs a coordinator when it is its turn, and stands by again when that is fenced."""

    def __init__(self, world: World, group: Group, name: str) -> None:
        self.world, self.name, self._group = world, name, group
        self.alive = True
        self.frozen_until = self.cut_off_until = 0.0
        self.in_touch_at = world.now
        """When the broker has heard of it last."""
        self.coordinator: CoordinatorProcess | None = None
        self._elected = False
        """As far as it has heard."""
        finished = world.checks.history.finished
        self.ended_through = 0 if finished is None else finished.epoch
        self._stand_by(followed=False)

    def __str__(self) -> str:
        return self.name

    @property
    def process(self) -> StandbyHost | CoordinatorProcess:
        """What is frozen or cut off with it: it and its coordinator are one."""
        return self.coordinator or self

    @property
    def away(self) -> bool:
        return self.world.away or self.world.now < self.cut_off_until

    def _stand_by(self, *, followed: bool) -> None:
        world = self.world
        self.coordinator = None
        self.watch = Watch(_TAKEOVER_AFTER_S, followed=followed, ended_through=self.ended_through)
        self._topic = Partition(world.settings.topics.status, 0)
        there = world.transport.offsets([self._topic])[self._topic]
        self._recalled_through = there.end
        self._position = there.begin
        self._reader = world.transport.reader({self._topic: there.begin})
        self._complete, self._look_at, self._ask_at = False, world.now, world.now

    def look(self) -> None:
        """One turn of the product's loop."""
        world, now = self.world, self.world.now * _SCALE
        self._look_at = world.now + _LOOK_S
        if self.away:
            self._complete = False
        else:
            self._read(now)
            self._elected = self._group.elected(self)
        self.watch.look(now, complete=self._complete)
        match self.watch.verdict(now, elected=self._elected):
            case Verdict.TAKE_OVER if not self.away:
                self._take_over(self.watch.seen_at_work)
            case Verdict.LEAVE:
                self._leave("the job has ended")

    def _read(self, now: float) -> None:
        for record in self._reader.poll(0.0, self.world.rng.randint(1, _RECORDS_MAX)):
            self._position = record.offset + 1
            status = decode(record.value)
            if not isinstance(status, JobStatus):
                continue
            if record.offset < self._recalled_through:
                self.watch.recall(status)
            else:
                self.watch.hear(status, now)
        if self.world.now >= self._ask_at:
            self._complete = self._position >= self.world.transport.offsets([self._topic])[self._topic].end
            self._ask_at = self.world.now + _ASK_S

    def _take_over(self, continues: bool) -> None:
        self._group.check_may_take_over(self, self.watch)
        self._coordinate(continues)

    def _coordinate(self, continues: bool) -> None:
        self.coordinator = self.world.spawn_coordinator()
        self.coordinator.host, self.coordinator.continues = self, continues

    def ended(self, ending: Ending | None) -> None:
        """Its coordinator has. One that breaks off is followed by another of this host, unless a successor is there."""
        gone, self.coordinator = self.coordinator, None
        newest = self.world.checks.history
        if ending in (Ending.STOPPED, Ending.FINISHED):
            self._leave("its coordinator has ended the job")
        elif ending is Ending.FENCED or (gone is not None and newest.epoch > gone.core.job.history.epoch):
            self._stand_by(followed=True)
        else:
            self._coordinate(True)

    def _leave(self, why: str) -> None:
        self.world.trace(f"{self} leaves: {why}")
        self.alive = False
        self._group.leave(self)

    def crash(self) -> None:
        self.world.trace(f"{self} CRASHES")
        self.alive = False

    def deadline(self) -> float:
        return self._look_at

    def waits(self) -> str:
        return f"{self} elected {self._elected} complete {self._complete} newest {self.watch.newest}"

    def actions(self) -> list[Action]:
        world = self.world
        acts: list[Any] = [(3.0, self.look)] if world.now >= self._look_at else []
        if world.faulty:
            acts.append(Fault(0.05 * world.rate * world.config.coordinator_faults, self.crash))
        return acts
