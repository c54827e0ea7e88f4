"""One simulated job: its logs, clock and processes, and the scheduler that chooses every step."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from penstock.coordinator.protocol.inputs import Known
from penstock.schemas.acks import Command, CommandKind, FailureHint, RunStarted
from penstock.schemas.codec import encode
from penstock.schemas.ids import SubtaskId
from penstock.spark_integration.streaming.offsets import StreamOffset
from penstock.subtask_client.protocol.effects import Departure
from penstock.transport.memory import MemoryReader, MemoryTransport
from penstock.transport.ports import LogRecord, Partition

from .audits import KeepingBroker
from .backlog import strikes
from .checks import Checks
from .configs import (
    DRAIN_STEPS_MAX,
    HEARTBEAT_TIMEOUT_S,
    LENGTHS,
    LENGTHS_BACKLOG,
    PAUSES_S,
    SKEWS_S,
    SPEEDS,
    SPEEDS_BACKLOG,
    Config,
)
from .coordinator_process import CoordinatorProcess
from .damage import damages
from .faults import Fault
from .feeder import Feeder
from .forking import NAME, fork_off, run_copy
from .pen import Pen
from .planner_process import PlannerProcess
from .purging import is_gone, purge
from .query_process import QueryProcess
from .spark_folders import SparkFolders
from .standby import Group, StandbyHost
from .storage import Storage
from .subtask_process import SubtaskProcess
from .unclean import SAYS_SO, AfterLoss, elect
from .violations import Violation

Process = CoordinatorProcess | SubtaskProcess | QueryProcess | PlannerProcess | StandbyHost

_CLIENTS = CoordinatorProcess | SubtaskProcess | StandbyHost
"""Processes that can be cut off from the broker."""
Action = Any
"""(weight, what to call, its arguments...)"""

_ADDRESS = re.compile(" object at 0x[0-9a-f]+")
"""Of an object without a repr of its own: it differs from run to run."""
_EPOCH_MS = 1_700_000_000_000
_COMMANDS_MAX = 8
_STEP_FAULTY_S, _STEP_CALM_S, _STEP_AWAY_S = 0.004, 0.001, 0.02


class World:
    """``faulty`` while faults may happen; their ``rate`` changes from window to window, as do the processes' speeds."""

    """For ``call_async``, which nobody uses here."""

    def __init__(
        self,
        config: Config,
        seed: int,
        *,
        tracing: bool = False,
        faults: Collection[int] | None = None,
        origin: World | None = None,
    ) -> None:
        """``origin`` is the job that this one is a fork of."""
        self.config, self.seed = config, seed
        self.rng = random.Random(f"{config.name}/{seed}")
        self._dice = self.rng.getrandbits(64)
        """Every step throws its own: so a history changes little where one fault of it is left out."""
        self._allowed = faults
        self.faults: list[int] = []
        """The steps at which faults happened."""
        self.settings = config.settings(self.rng)
        if origin is not None:
            self.settings = replace(origin.settings, name=NAME)
        self.chaos = self.rng.choice(LENGTHS_BACKLOG if config.backlog or config.late else LENGTHS) * config.operators
        self.away_until = self.calm_since = 0.0
        self.parted_until: dict[Partition, float] = {}
        """Events partitions that take nothing."""
        self.outage_to_come = config.outages * self.rng.random() > 0.7
        self.events_wanted = 2 if config.brief else max(3, self.chaos // (30 * config.operators))
        self.records_wanted = self.events_wanted * (2 if config.backlog else 1)
        """By one source, to one receiver."""
        self.now = 1.0
        self.skew_s = 0.0
        """By how much the broker's clock is ahead."""
        self.lines: list[str] | None = [] if tracing else None
        self.steps = 0
        ids = iter(range(1, 1 << 30))
        self.broker = (
            KeepingBroker(now_ms=self.append_ms, new_id=lambda: f"topic-{next(ids)}")
            if origin is None
            else origin.broker
        )
        self.transport = MemoryTransport(self.broker, now_ms=self.append_ms)
        self.transport.create_topics(self.settings.topic_specs)
        self.forks = origin is not None
        """Whether a fork has been made, or tried."""
        self.copy: World | None = None
        self.acks = Partition(self.settings.topics.acks, 0)
        topics = self.settings.topics
        self.life = self.transport.describe_topics([topics.checkpoints])[topics.checkpoints].topic_id
        self._event_partitions = {s: Partition(topics.events(s.operator), s.index) for s in self.settings.subtasks()}
        self.stored: dict[str, bytes] = {}
        self.storage = Storage(self)
        self._stored_ever: set[str] = set()
        self.handled: set[tuple[SubtaskId, int]] = set()
        self.promised: set[tuple[SubtaskId, int]] = set()
        """Events whose futures have settled as handled."""
        self.coordinators: list[CoordinatorProcess] = []
        self.instances: list[SubtaskProcess] = []
        self.queries: list[QueryProcess] = []
        self.planners: list[PlannerProcess] = []
        """Those whose query is gone."""
        self.announced_planners: list[PlannerProcess] = []
        """By their runs' offsets."""
        self.fresh = config.driven_by_query and (config.fresh > 0 or self.rng.random() < 0.5)
        """The query's option, which counts where Spark has no checkpoint."""
        self.folders = self._new_folders()
        self.adrift: list[Pen] = []
        self.truncations: list[CoordinatorProcess] = []
        """Of coordinators that are no more: theirs are under way, for however long."""
        """Records of processes that are gone, still on their way."""
        self.side = Pen(self.transport)
        self.commands: dict[str, CommandKind] = {}
        self.faulty, self.rate, self._window = True, 0.0, 0
        self._speed: dict[object, float] = {}
        self.newest_uid = self._nonces = self._runs = 0
        self.external: set[tuple[str, int]] = set()
        """Checkpoints whose effects an operator's coordinator has committed elsewhere."""
        self.finished = False
        self.untold = False
        """The job has ended, and the last words of who ended it were refused."""
        self.stopped = False
        """Finished as far as anybody knows, because a coordinator died behind the stop: nobody starts it again."""
        self._gone: set[SubtaskId] = set()
        """Whose task of the newest run has returned normally."""
        self.leftovers: list[CoordinatorProcess | SubtaskProcess] = []
        """Of earlier incarnations of the job."""
        self._past = 0
        """How many processes there were in those."""
        self.checks = Checks(self)
        names = [operator.name for operator in self.settings.operators]
        self.feeders = [Feeder(self, name, f"q{n}") for n in range(config.feeds) for name in names]
        """Queries that feed the coordinators."""
        self.commits: list[int] = []
        """Where the checkpoint log ended behind each of its transactions."""
        self.known = Known()
        """What the host of the coordinators remembers."""
        self.standby = Group(self) if config.standby else None
        if not config.driven_by_query and origin is None:
            self.new_run()

    # ---- what everybody needs

    def now_ms(self) -> int:
        return _EPOCH_MS + int(self.now * 1000)

    def first_epoch(self) -> int:
        """By the clock where a log may lose an epoch, as over Kafka."""
        return self.transport.first_epoch() + (int(1000 * self.now) if self.config.unclean else 0)

    def append_ms(self) -> int:
        """By the broker's clock."""
        return self.now_ms() + int(1000 * self.skew_s)

    def time_of(self, ms: int) -> float:
        return (ms - _EPOCH_MS) / 1000

    def trace(self, *words: object) -> None:
        """Put into words only where somebody wants to see them: that is half of the time otherwise."""
        if self.lines is not None:
            self.lines.append(_ADDRESS.sub("", f"{self.steps:5d} {self.now:8.3f} {' '.join(map(str, words))}"))

    def chance(self, probability: float) -> bool:
        """A fault, if faults may happen."""
        return self.faulty and self.rng.random() < probability * min(self.rate, 3) and self._may_fail()

    def _may_fail(self) -> bool:
        """Whether this step's fault is one of those that this history is to have."""
        allowed = self._allowed is None or self.steps in self._allowed
        if allowed and self.steps not in self.faults[-1:]:
            self.faults.append(self.steps)
        return allowed

    @property
    def away(self) -> bool:
        """The broker is not there: nothing is written, read or looked up."""
        return self.now < self.away_until

    def takes(self, partition: Partition) -> bool:
        """Whether the broker takes records for it."""
        return not self.away and self.now >= self.parted_until.get(partition, 0.0)

    def repeats(self, pen: Pen) -> list[Fault]:
        """A writer of events, records or acks may append again what stands already (section 4.1)."""
        weight = 0.02 * self.rate * self.config.repeats if self.faulty else 0.0
        at = [partition for partition in pen.waiting() if self.takes(partition)] if weight else []
        return [Fault(weight, pen.repeat, partition, self.rng) for partition in at]

    @property
    def settled(self) -> bool:
        """No fault, and no takeover, for longer than any timeout: from here on nobody may be given up."""
        return self.calm_for(3 * HEARTBEAT_TIMEOUT_S)

    def calm_for(self, seconds: float) -> bool:
        return not self.faulty and self.now > self.calm_since + seconds

    def new_uid(self) -> int:
        self.newest_uid += 1
        return self.newest_uid

    def new_nonce(self) -> str:
        self._nonces += 1
        return f"nonce-{self._nonces}"

    def event_partition(self, subtask: SubtaskId) -> Partition:
        return self._event_partitions[subtask]

    def data_partition(self, upstream: str, receiver: SubtaskId) -> Partition:
        return Partition(self.settings.topics.data(upstream, receiver.operator), receiver.index)

    def log(self, partition: Partition, begin: int, end: int) -> list[LogRecord]:
        log = self.broker._log(partition)
        if begin < log.begin and begin < end:
            raise Violation(f"section 7.9: {partition} is truncated below {begin}, which is needed")
        return log.records[begin - log.begin : end - log.begin]

    def more(self, reader: MemoryReader, partition: Partition) -> bool:
        gone = self.config.purges and is_gone(self, reader, partition)
        return bool(gone) or reader._next[partition] != self.broker._log(partition).end

    def store(self, location: str, state: bytes) -> None:
        if location in self._stored_ever:
            raise Violation(f"section 7.6: {location} is written twice")
        self._stored_ever.add(location)
        self.stored[location] = state

    # ---- the runner

    def new_run(self) -> None:
        self._runs += 1
        self.run = f"run-{self._runs}"
        self._gone.clear()
        self.trace(f"RUN {self.run} begins")
        self.side.append(self.acks, encode(RunStarted(self.run, "here")), None, None)
        while self.side.waiting():
            self.side.flush(self.acks)

    def take_over_from(self, origin: World) -> None:
        """Begin where ``origin`` has ended: its time, its steps, its numbers."""
        self.now, self.steps, self.newest_uid = origin.now, origin.steps, origin.newest_uid
        self.lines, self.faults, self._allowed = origin.lines, origin.faults, origin._allowed
        self._runs, self._nonces = origin._runs, origin._nonces
        self.broker.now_ms = self.append_ms
        self.trace("---- the fork begins")
        self.new_run()

    def purge(self) -> None:
        purge(self)

    def begin_incarnation(self, left: Sequence[CoordinatorProcess | SubtaskProcess]) -> None:
        """Forget everything but the processes that are ``left``: nothing of it is to count any more."""
        self.leftovers += [process for process in left if process not in self.leftovers]
        self._past += len(self.coordinators) + len(self.instances)
        self.coordinators, self.instances = [], []
        self.commands, self.external = {}, set()
        self._stored_ever = set()
        self.checks = Checks(self)

    def rescale(self) -> None:
        """Somebody ends the coordinators, and starts the job with another parallelism; tasks of before may go on."""
        parallelism = self.rng.choice([n for n in range(1, 5) if n != self.settings.operators[0].parallelism])
        self.trace(f"RESCALED to {parallelism}")
        for coordinator in self.coordinators:
            if coordinator.alive:
                if self.config.late:
                    coordinator.wish_to_truncate()
                coordinator.crash()
        operators = tuple(replace(operator, parallelism=parallelism) for operator in self.settings.operators)
        self.settings = replace(self.settings, operators=operators)
        self.transport.create_topics(self.settings.topic_specs)
        for subtask in self.settings.subtasks():
            self._event_partitions[subtask] = Partition(self.settings.topics.events(subtask.operator), subtask.index)
        self.new_run()

    def _may_go_back(self) -> bool:
        """Whether there is a savepoint behind the last checkpoint, and that is of the parallelism of today."""
        history, now = self.checks.history, self.settings.operators[0]
        last = None if history.last is None else history.last.operator(now.name)
        behind = any(c.header.savepoint and n < history.last_id for n, c in history.checkpoints.items())
        return behind and last is not None and last.parallelism == now.parallelism

    def job_ended(self, finished: bool) -> None:
        """A finished job stays finished; one that was stopped is started again, as another run."""
        if finished:
            self.finished = True
        elif not self.config.driven_by_query:
            self.new_run()

    def job_failed(self, cause: str) -> None:
        """Only a log that has lost its end may fail it, or keep it from starting."""
        if not isinstance(self.checks, AfterLoss) or SAYS_SO not in cause:
            raise Violation(f"G6: the job has failed: {cause}")
        self.checks.said, self.finished = cause, True

    def left(self, instance: SubtaskProcess, departure: Departure) -> None:
        if instance.run == self.run and departure in (Departure.FINISHED, Departure.STOPPED):
            self._gone.add(instance.subtask)

    def died(self, instance: SubtaskProcess) -> None:
        """The runner may notice."""
        if self.rng.random() < 0.5:
            hint = FailureHint(*instance.subtask, instance.run, instance.name, "its process died")
            self.side.append(self.acks, encode(hint), None, None)

    def kill_task(self, task: str, cause: str) -> None:
        """As Spark does, where there is one; one that is frozen may not hear of it, and gets a successor beside it."""
        for instance in self.instances:
            if instance.alive and instance.name == task:
                if self.settled and not instance.stuck:
                    raise Violation(f"section 8: {instance}, alive and well, is given up: {cause}")
                if instance.frozen_until > self.now and self.chance(0.3):
                    instance.given_up = True
                elif self.config.hangs or self.rng.random() < 0.5:
                    instance.crash()

    def spawn_coordinator(self) -> CoordinatorProcess:
        self.coordinators.append(CoordinatorProcess(self, f"C{self._past + len(self.coordinators) + 1}"))
        self.trace(f"{self.coordinators[-1]} is started")
        return self.coordinators[-1]

    def _spawn(self, subtask: SubtaskId) -> None:
        self.instances.append(SubtaskProcess(self, subtask, self.run, self._past + len(self.instances) + 1))

    # ---- queries

    def _new_folders(self) -> SparkFolders:
        topics = self.settings.topics
        job = f"{topics.prefix}.{topics.job}"
        return SparkFolders(StreamOffset(job, self.settings.operators[0].name, self.life))

    def announced(self, planner: PlannerProcess) -> None:
        self.announced_planners.append(planner)
        self.announced_planners.sort(key=lambda p: -1 if p.run_offset is None else p.run_offset)

    def _spawn_query(self) -> None:
        alone = not any(query.alive for query in self.queries)
        if alone and self.folders.newest_committed >= 0 and self.chance(0.3 * self.config.lost_commits):
            self.trace(f"the commit of batch {self.folders.newest_committed} is LOST")
            self.folders.lose_last_commit()
        self.queries.append(QueryProcess(self, len(self.queries) + 1))
        self.trace(f"{self.queries[-1]} is started")

    def _begin_anew(self) -> None:
        """Somebody deletes Spark's checkpoint, and starts the query with the option fresh."""
        self.trace("Spark's checkpoint is DELETED")
        for query in self.queries:
            if query.alive:
                query.crash()
        self.folders = self._new_folders()
        self.checks.query.begin_anew()
        self.announced_planners.clear()

    def _query_actions(self) -> list[Action]:
        acts = list[Any]()
        living = [query for query in self.queries if query.alive]
        if not living:
            acts.append((2.0, self._spawn_query))
        elif len(living) < 3 and self.faulty and self.rate and (self.folders.newest >= 0 or not self.fresh):
            # Two that begin anew in one folder at once would each throw away what the other has done.
            acts.append(Fault(0.05 * self.rate * self.config.twins, self._spawn_query))
        if self.faulty and self.rate:
            acts.append(Fault(0.02 * self.rate * self.config.fresh, self._begin_anew))
        return acts

    def _command(self, kind: CommandKind) -> None:
        name = f"command-{len(self.commands) + 1}"
        self.commands[name] = kind
        request = kind is CommandKind.REQUEST
        operator = self.rng.choice(self.settings.operators).name if request else ""
        payload = json.dumps(self.new_uid()).encode() if request else b""
        if kind is CommandKind.DISCARD:
            payload = b"%d" % self.rng.choice(sorted(self.checks.history.checkpoints) or [1])
        self.side.append(self.acks, encode(Command(name, kind, operator, payload, "somebody")), None, None)

    def _jump(self) -> None:
        seconds = self.rng.choice((0.06, 0.2, 0.6, 1.5))
        self.trace(f"{seconds} s pass")
        self.now += seconds
        if self.standby is not None:
            self.standby.stood_still(seconds)

    def _go_away(self, seconds: float) -> None:
        self.trace(f"the broker is AWAY for {seconds} s")
        self.away_until = self.now + seconds

    def _cut_off(self, seconds: float) -> None:
        process = self.rng.choice([p for p in self.processes() if isinstance(p, _CLIENTS)])
        self.trace(f"{process} does not REACH the broker for {seconds} s")
        process.cut_off_until = self.now + seconds

    def _part(self, seconds: float) -> None:
        partition = self.event_partition(self.rng.choice(self.settings.subtasks()))
        self.trace(f"{partition} takes NOTHING for {seconds} s")
        self.parted_until[partition] = self.now + seconds

    def _skew(self, seconds: float) -> None:
        self.trace(f"the broker's clock is now AHEAD by {seconds} s")
        self.skew_s = seconds

    def _freeze(self) -> None:
        process = self.rng.choice(self.processes())
        seconds = self.rng.choice(PAUSES_S)
        self.trace(f"{process} FREEZES for {seconds} s")
        process.frozen_until = self.now + seconds

    # ---- the scheduler

    def processes(self) -> list[Process]:
        """Those that are alive."""
        everybody: list[Process] = [*self.coordinators, *self.instances, *self.queries, *self.planners, *self.leftovers]
        if self.standby is not None:
            everybody += [host for host in self.standby.hosts if host.coordinator is None]
        return [process for process in everybody if process.alive]

    def actions(self) -> list[Action]:
        acts: list[Any] = []
        if not self.away:
            acts += [(3.0, self.side.flush, at) for at in self.side.waiting()]
            self.adrift = [pen for pen in self.adrift if pen.waiting()]
            acts += [(1.0, pen.flush, at) for pen in self.adrift for at in pen.waiting() if self.takes(at)]
            self.truncations = [gone for gone in self.truncations if gone.truncation is not None]
            acts += [(0.1, gone.truncate) for gone in self.truncations]
        faults = self.rate if self.faulty else 0.0
        if self.standby is not None:
            acts += self.standby.actions()
        elif not self.finished:
            living = [c for c in self.coordinators if c.alive]
            if not any(c.log is None or self._owns_log(c) for c in living):
                acts.append((2.0, self.spawn_coordinator))
            elif len(living) < 3 and faults:
                acts.append(Fault(0.05 * faults * self.config.coordinator_faults, self.spawn_coordinator))
        if self.config.driven_by_query:
            acts += self._query_actions()
        for subtask in () if self.config.driven_by_query else self.settings.subtasks():
            mine = [i for i in self.instances if i.alive and i.subtask == subtask]
            needed = subtask not in self._gone and not self.finished
            if needed and not any(i.run == self.run and not i.given_up for i in mine):
                acts.append((2.0, self._spawn, subtask))
            elif needed and len(mine) < 3 and faults:
                acts.append(Fault(0.05 * faults * self.config.twins, self._spawn, subtask))
        if faults:
            config = self.config
            acts.append(Fault(0.02 * faults * config.jumps, self._jump))
            acts.append(Fault(0.02 * faults * config.runs, self.new_run))
            if config.unclean and len(self.commits) > 1 and not isinstance(self.checks, AfterLoss) and not self.away:
                acts.append(Fault(0.02 * faults * config.unclean, elect, self))
            if config.purges and self.checks.history.epoch:
                acts.append(Fault(0.02 * faults * config.purges, self.purge))
            if config.forks and not self.forks and self.checks.history.checkpoints and not self.away:
                acts.append(Fault(0.02 * faults * config.forks, fork_off, self))
            if not config.late:
                acts.append(Fault(0.02 * faults * config.rescales, self.rescale))
            if self.processes():
                acts.append(Fault(0.02 * faults * config.freezes, self._freeze))
            if config.skews:
                acts.append(Fault(0.02 * faults * config.skews, self._skew, self.rng.choice(SKEWS_S)))
            if config.partings:
                acts.append(Fault(0.02 * faults * config.partings, self._part, self.rng.choice(PAUSES_S)))
            if config.cut_offs and any(p.alive for p in (*self.coordinators, *self.instances)):
                acts.append(Fault(0.02 * faults * config.cut_offs, self._cut_off, self.rng.choice(PAUSES_S)))
            if not self.away:
                acts.append(Fault(0.01 * faults * config.outages, self._go_away, self.rng.choice(PAUSES_S)))
        elif self.outage_to_come and self.settled:
            self.outage_to_come = False
            self._go_away(PAUSES_S[-1])
        if self.faulty and self.config.late and self._may_go_back():
            acts.append(Fault(0.02 * self.config.rescales, self.rescale))
        if self.faulty and len(self.commands) < _COMMANDS_MAX:
            acts.append((0.01, self._command, CommandKind.REQUEST))
            acts.append((0.04 * self.config.savepoints, self._command, CommandKind.SAVEPOINT))
            acts.append((0.03 * self.config.stops, self._command, CommandKind.STOP_WITH_SAVEPOINT))
            if self.config.dies_at_the_end and self.config.stops:
                acts.append((0.03 * self.config.stops, self._command, CommandKind.STOP))
            if self.config.discards:
                acts.append((0.03 * self.config.discards, self._command, CommandKind.DISCARD))
        for feeder in self.feeders:
            acts += feeder.actions()
        return acts + strikes(self) + damages(self) + self.storage.actions()

    def _owns_log(self, coordinator: CoordinatorProcess) -> bool:
        log = coordinator.log
        return log is not None and log._claim == self.broker._claims[log._owner]  # type: ignore[attr-defined]

    def step(self) -> None:
        self.steps += 1
        self.rng.seed(self._dice + self.steps)
        step_s = _STEP_AWAY_S if self.away else _STEP_FAULTY_S if self._hurries else _STEP_CALM_S
        self.now += step_s / self.config.operators  # the more there is to do, the less time each thing takes
        if self.standby is not None:
            self.standby.turn()
        if self.faulty and self.steps >= self._window:
            self._new_window()
        pool: list[tuple[float, Action]] = [(a[0], a) for a in self.actions()]
        for process in self.processes():
            speed = 1.0
            if process.frozen_until > self.now:
                continue
            if self.faulty:
                speed = self._speed.setdefault(
                    process, self.rng.choice(SPEEDS_BACKLOG if self.config.backlog else SPEEDS)
                )
            if speed:
                pool += [(a[0] * speed, a) for a in process.actions()]
        total = sum(weight for weight, _ in pool)
        if total <= 0:
            self._wait()
            return
        at = self.rng.random() * total
        for weight, action in pool:
            at -= weight
            if at <= 0:
                _, act, *arguments = action
                if not isinstance(action, Fault) or self._may_fail():
                    act(*arguments)
                break
        self.checks.after_step()

    @property
    def _hurries(self) -> bool:
        """Little is done in the time of a checkpoint; where ranges are to be restored, some must complete."""
        return self.faulty and not self.config.backlog

    def _new_window(self) -> None:
        """Quiet windows with skewed speeds, short bursts of faults between them."""
        rng = self.rng
        self.rate = 0.0 if self.rate else rng.choice((0.3, 2, 6))
        quiet = rng.randint(20, 60) * len(self.settings.subtasks())
        self._window = self.steps + (rng.randint(4, 20) if self.rate else quiet)
        self._speed = {}
        for instance in self.instances:
            instance.stuck = instance.stuck and self.config.hangs

    def _wait(self) -> None:
        """Nobody has anything to do before the next deadline."""
        due = [max(at, p.frozen_until) for p in self.processes() if (at := p.deadline()) is not None]
        due += [max(at, self.now) for feeder in self.feeders if (at := feeder.deadline()) is not None]
        if self.away:
            due.append(self.away_until)
        due += [p.cut_off_until for p in self.processes() if isinstance(p, _CLIENTS) and p.cut_off_until > self.now]
        self.now = max(self.now, min(due, default=self.now + 0.01))

    def run_all(self) -> None:
        """Faults, then none; raises Violation (or an assertion of a core) where the protocol does not hold."""
        for _ in range(self.chaos):
            self.step()
            if self.finished:
                break
        self.trace("---- faults stop")
        self.faulty, self.calm_since, self.away_until = False, self.now, 0.0
        self.parted_until.clear()
        for process in self.processes():
            process.frozen_until = 0.0
            if isinstance(process, _CLIENTS):
                process.cut_off_until = 0.0
            if isinstance(process, SubtaskProcess):
                process.stuck = process.stuck and self.config.hangs
                if process.stuck and (process.given_up or process.run != self.run):
                    process.crash()  # nobody waits for it, and what runs it has an end
            if process not in self.coordinators[-1:] and self.rng.random() < 0.3 and self._may_fail():
                process.crash()
        for n in range(DRAIN_STEPS_MAX * self.config.operators):
            self.step()
            if n % 16 == 0 and self.checks.drained() is None:
                if self.copy is not None:
                    run_copy(self, self.copy)
                return
        raise Violation(f"G6: NO PROGRESS: {self.checks.drained()}\n    {self.checks.waits()}")
