"""What is simulated: policies, bounds, and which faults happen how often."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import StrEnum

from penstock.schemas.events import FailoverPolicy
from penstock.schemas.graph import InputSettings, Partitioning
from penstock.schemas.settings import CheckpointSettings, JobSettings, OperatorSettings, Rescale, RestartStrategy

LENGTHS = (60, 120, 250, 500, 1000, 1000)
"""Steps with faults, before they stop."""
LENGTHS_BACKLOG = (500, 1000)
"""The same where ranges are to be restored: that takes a while."""
SPEEDS = (0, 0.03, 0.3, 1, 1, 1, 1, 2, 3)
"""Of a process, from window to window."""
SPEEDS_BACKLOG = (0.3, 1, 1, 1, 1, 2)
"""Where one stands still, no checkpoint completes, and so none is restored."""
DRAIN_STEPS_MAX = 8_000
"""Steps without faults in which two subtasks must have drained."""
HEARTBEAT_S = 0.05
HEARTBEAT_TIMEOUT_S = 0.5
EVENT_ACK_TIMEOUT_S = 0.8
TASK_CANCELLATION_TIMEOUT_S = 1.5
START_TIMEOUT_S = 1.5
"""How long an instance waits for the answer to its Hello."""
PAUSES_S = (0.05, 0.3, 1.0, 2.5)
"""How long a broker is away, or a process frozen."""
SKEWS_S = (-60.0, -1.0, -0.2, 0.0, 0.2, 1.0, 60.0)
"""By how much one broker's clock is ahead of another's."""


class Shape(StrEnum):
    NONE = "none"
    """Nobody feeds anybody."""
    PAIR = "pair"
    FORWARD = "forward"
    CHAIN = "chain"
    DIAMOND = "diamond"


_KEYED, _FORWARD, _BROADCAST = Partitioning.KEYED, Partitioning.FORWARD, Partitioning.BROADCAST

INPUTS: dict[Shape, dict[str, tuple[InputSettings, ...]]] = {
    Shape.NONE: {},
    Shape.PAIR: {"alpha": (), "beta": (InputSettings("alpha", _KEYED),)},
    Shape.FORWARD: {"alpha": (), "beta": (InputSettings("alpha", _FORWARD),)},
    Shape.CHAIN: {
        "alpha": (),
        "beta": (InputSettings("alpha", _KEYED),),
        "gamma": (InputSettings("beta", _BROADCAST),),
    },
    Shape.DIAMOND: {
        "alpha": (),
        "beta": (InputSettings("alpha", _KEYED),),
        "gamma": (InputSettings("alpha", _FORWARD),),
        "delta": (InputSettings("beta", _KEYED), InputSettings("gamma", _KEYED)),
    },
}


@dataclass(frozen=True, slots=True)
class Config:
    """Rates are weights beside the scheduler's other choices; 0 switches a fault off."""

    name: str
    policy: FailoverPolicy = FailoverPolicy.REPLAY
    max_concurrent: int = 1
    operators: int = 1
    pull: bool = False
    """The coordinator sends nothing but one event in reply to each event of a subtask."""
    finite: bool = False
    """Subtasks finish when they have handled and sent everything; the job ends when all have."""
    eager_end: bool = False
    """They finish when they have sent everything, whatever is still on its way to them."""
    brief: bool = False
    """There is so little to do that they end while faults still happen."""
    dies_at_the_end: float = 0.0
    """Chance that a coordinator dies as soon as the end of the job stands in its log, faults or not."""
    refuses_the_end: bool = False
    """The broker takes nothing that is on its way when the end of the job stands in the log."""
    savepoints: float = 0.0
    stops: float = 0.0
    tiny: bool = False
    """Bounds so small that they are reached."""
    runs: float = 0.3
    coordinator_faults: float = 1.0
    subtask_faults: float = 1.0
    twins: float = 1.0
    """A second instance of a subtask, while the first lives."""
    older: float = 0.0
    """How likely a new coordinator is told to go back to an older checkpoint."""
    raises: float = 1.0
    refusals: float = 1.0
    jumps: float = 1.0
    shape: Shape = Shape.NONE
    """Which operators feed which."""
    unaligned: bool = False
    aligned_timeout: float | None = None
    outages: float = 1.0
    """The broker is away, for a moment or far beyond every timeout."""
    freezes: float = 1.0
    """A process does nothing at all, for a moment or far beyond every timeout, and then goes on."""
    backlog: bool = False
    """Partitions are not read for a while, and failures strike where the last checkpoint names ranges."""
    duplicates: float = 1.0
    """What a subtask says stands twice in the log."""
    repeats: float = 0.0
    """A writer appends again what stands already, as a Kafka client may."""
    driven_by_query: bool = False
    """A Spark query drives the job."""
    parallelism: int = 2
    query_faults: float = 1.0
    """The query is killed, or a task of its batch fails."""
    batch_events: bool = False
    """What a batch reads makes it send to the coordinator."""
    lost_commits: float = 1.0
    """A query that starts finds the last batch not committed, though it was."""
    fresh: float = 0.0
    """Spark's checkpoint is deleted, and the query begins anew."""
    discards: float = 0.0
    """Somebody gives up a checkpoint, whichever."""
    retention: float | None = None
    """Seconds of the replay window; then the size of the logs is looked at too. None: no window, and it is not."""
    truncates: float = 0.5
    """How soon a coordinator does; one that has been replaced may yet."""
    rescales: float = 0.0
    """The job is started again with another parallelism."""
    late: bool = False
    """The job is rescaled when there is a savepoint behind it, to any checkpoint that it has; what its coordinator
    truncates happens after that."""
    losses: float = 0.0
    """A record of the acks topic that stood is lost before a coordinator reads it."""
    corruptions: float = 0.0
    """The same where it is damaged: what it says is not so."""
    repetitions: float = 0.0
    """Somebody writes a record of the acks topic once more, later."""
    strays: float = 0.0
    """Somebody writes a frame of an events partition once more, later."""
    partings: float = 0.0
    """One events partition takes nothing, for a moment or far beyond every timeout; what it holds can be read."""
    cut_offs: float = 0.0
    """One process does not reach the broker, for a moment or far beyond every timeout, and goes on otherwise."""
    slow: bool = False
    """A coordinator takes ten times as long for a record as others: far more of them wait than it takes in a while."""
    skews: float = 0.0
    """A broker with another clock stamps what is appended from then on: it is ahead, or behind."""
    compacts: bool = False
    """Of a log's earlier part a coordinator that begins finds the newest record of each key alone."""
    rots: float = 0.0
    """A stored state comes back damaged, or not at all, for a moment or far beyond every timeout; so does a record of
    the checkpoint log, once."""
    standby: bool = False
    """Coordinators run in hosts, of which one is at work and the others stand by."""
    purges: float = 0.0
    """The job is purged and begins anew under its name, while processes of before are frozen."""
    forks: float = 0.0
    """A fork of one of its checkpoints is made while the job runs on; it is run too."""
    feeds: int = 0
    """So many queries send batches to each coordinator."""
    unclean: float = 0.0
    """The checkpoint log loses its end, once."""
    hangs: bool = False
    """User code that is stuck stays so, until its task is ended."""

    @property
    def damages(self) -> bool:
        """Whether something happens to the logs that an audit calls damage."""
        return bool(self.losses or self.corruptions or self.repetitions or self.strays or self.unclean)

    def settings(self, rng: random.Random) -> JobSettings:
        """The job's settings; what may differ without changing what is tested differs from seed to seed."""
        frame_events = rng.choice((1, 2, 1000))
        inputs = INPUTS[self.shape]
        names = tuple(inputs) if inputs else ("alpha", "beta")[: self.operators]
        held, unhandled = (12, 3) if self.tiny else (1 << 20, 1_000_000)
        unsent = held if self.driven_by_query else 1 << 26
        return JobSettings(
            "job",
            tuple(
                OperatorSettings(
                    name,
                    self.parallelism,
                    self.policy,
                    max_held_bytes=held,
                    max_unsent_bytes=unsent,
                    max_unhandled=unhandled,
                    event_ack_timeout=EVENT_ACK_TIMEOUT_S,
                    inputs=inputs.get(name, ()),
                    rescale=Rescale.FUNCTION if self.rescales else Rescale.REFUSE,
                )
                for name in names
            ),
            checkpoint=CheckpointSettings(
                interval=0.02 if self.backlog else 0.05,
                timeout=1.0,
                min_pause=rng.choice((0.0, 0.03)),
                max_concurrent=self.max_concurrent,
                tolerable_failures=rng.choice((0, 3)),
                retained=rng.choice((1, 2)),
                inline_state_max=rng.choice(
                    (128 * 1024 if self.forks or self.unclean else 0, 0 if self.rots else 128 * 1024)
                ),
                unaligned=self.unaligned,
                aligned_timeout=self.aligned_timeout,
            ),
            restart=RestartStrategy(0.0, 0.005, 0.02, budget=1_000_000, budget_window=60.0),
            heartbeat_interval=HEARTBEAT_S,
            heartbeat_timeout=HEARTBEAT_TIMEOUT_S,
            start_timeout=1e6,
            task_cancellation_timeout=TASK_CANCELLATION_TIMEOUT_S if self.hangs else 1e6,
            frame_events_max=frame_events,
            state_storage="memory://states",
            driven_by_query=self.driven_by_query,
            replay_retention=self.retention or 0.0,
        )


_WITH_REPEATS = (
    "replay2", "reset2", "global2", "pair", "pair-unaligned", "pair-timeout", "pair-reset", "chain-unaligned",
    "query-3", "retention-replay", "rescale-replay", "feeds-two", "forks-replay",
)  # fmt: skip
"""Configurations that are run with writers that repeat themselves, too."""

_NO_FAULTS = Config(
    "", coordinator_faults=0, subtask_faults=0, twins=0, raises=0, refusals=0, jumps=0, runs=0, outages=0, freezes=0,
    duplicates=0,
)  # fmt: skip


def _with_backlog(config: Config) -> Config:
    """Few faults but those that strike while ranges are owed: between them checkpoints must complete."""
    return replace(
        config, backlog=True, coordinator_faults=0.05, subtask_faults=0.05, twins=0.05, raises=0.05, refusals=0.05,
        jumps=0.05, runs=0.03, outages=0.05, freezes=0.05,
    )  # fmt: skip


def _graphs() -> list[Config]:
    all_ = []
    for shape, operators in ((Shape.PAIR, 2), (Shape.FORWARD, 2), (Shape.CHAIN, 3), (Shape.DIAMOND, 4)):
        base = Config(f"{shape}", shape=shape, operators=operators)
        all_ += [
            base,
            replace(base, name=f"{shape}-unaligned", unaligned=True),
            replace(base, name=f"{shape}-timeout", aligned_timeout=0.05, savepoints=0.3),
            replace(base, name=f"{shape}-two-at-once", max_concurrent=2, savepoints=0.5),
            replace(base, name=f"{shape}-finite", finite=True),
            replace(base, name=f"{shape}-finite-unaligned", finite=True, unaligned=True, savepoints=0.5),
        ]
        if shape is not Shape.FORWARD:
            all_.append(_with_backlog(replace(base, name=f"{shape}-backlog", unaligned=True)))
    pair = Config("pair", shape=Shape.PAIR, operators=2)
    all_ += [
        _with_backlog(replace(pair, name="pair-backlog-timeout", aligned_timeout=0.05, savepoints=0.3)),
        _with_backlog(replace(pair, name="pair-backlog-finite", unaligned=True, finite=True)),
        _with_backlog(replace(pair, name="pair-backlog-older", unaligned=True, older=0.5, savepoints=0.3)),
        _with_backlog(replace(pair, name="pair-forks", unaligned=True, forks=60.0, savepoints=0.3)),
        replace(pair, name="pair-brief", finite=True, brief=True, savepoints=0.3),
        replace(pair, name="pair-brief-unaligned", finite=True, brief=True, unaligned=True),
        replace(pair, name="pair-global", policy=FailoverPolicy.GLOBAL, unaligned=True),
        replace(pair, name="pair-reset", policy=FailoverPolicy.RESET, unaligned=True),
        replace(pair, name="pair-stops", stops=0.5, savepoints=0.3),
        replace(pair, name="pair-zombies", coordinator_faults=8.0, raises=0.0, unaligned=True),
        replace(pair, name="pair-frozen", freezes=10.0, unaligned=True),
        replace(pair, name="pair-hangs", hangs=True, twins=0.0, unaligned=True),
        replace(pair, name="pair-older", older=0.5, coordinator_faults=3.0, savepoints=0.3, unaligned=True),
        replace(
            pair, name="pair-everything", unaligned=True, savepoints=0.5, stops=0.3, runs=1.0, twins=4.0, older=0.2
        ),
    ]
    return all_


def _queries() -> list[Config]:
    base = Config("query", driven_by_query=True, parallelism=3, batch_events=True, runs=0.0, twins=0.3)
    tiny = replace(base, tiny=True, batch_events=False)
    calm = replace(
        _NO_FAULTS, driven_by_query=True, parallelism=3, batch_events=True, query_faults=0, lost_commits=0,
        name="query-calm",
    )  # fmt: skip
    return [
        calm,
        replace(base, name="query-1", parallelism=1),
        replace(base, name="query-3"),
        replace(base, name="query-two-at-once", max_concurrent=2, savepoints=0.3),
        replace(tiny, name="query-tiny"),
        replace(tiny, name="query-tiny-1", parallelism=1, freezes=4.0),
        replace(base, name="query-zombies", coordinator_faults=8.0, raises=0.0),
        replace(base, name="query-raises", raises=4.0),
        replace(base, name="query-frozen", freezes=10.0, twins=6.0, coordinator_faults=0.3),
        replace(base, name="query-killed", query_faults=4.0, lost_commits=2.0, coordinator_faults=0.3),
        replace(base, name="query-twins", twins=12.0, coordinator_faults=0.3, parallelism=1),
        replace(base, name="query-outages", outages=8.0, freezes=0.3),
        replace(base, name="query-refusals", refusals=8.0, coordinator_faults=0.3),
        replace(base, name="query-fresh", fresh=1.0, parallelism=1),
        replace(
            base, name="query-everything", coordinator_faults=3.0, query_faults=3.0, twins=4.0, fresh=0.3, freezes=3.0,
            max_concurrent=2, savepoints=0.3,
        ),
    ]  # fmt: skip


def _retention() -> list[Config]:
    base = Config("retention", max_concurrent=2, savepoints=0.5, retention=0.3)
    late = replace(base, retention=0.0, backlog=True, truncates=0.03, older=0.5, coordinator_faults=4.0)
    return [
        *(replace(base, name=f"retention-{policy}", policy=policy) for policy in FailoverPolicy),
        replace(base, name="retention-no-window", retention=0.0),
        replace(base, name="retention-older", older=0.5, coordinator_faults=3.0),
        replace(base, name="retention-discards", discards=2.0, older=0.3, max_concurrent=1),
        replace(base, name="retention-rescale", rescales=20.0, coordinator_faults=2.0),
        replace(late, name="retention-late"),
        replace(late, name="retention-late-rescale", rescales=40.0, savepoints=2.0),
        replace(base, name="retention-zombies", coordinator_faults=8.0, raises=0.0),
        replace(
            base, name="retention-pair", shape=Shape.PAIR, operators=2, unaligned=True, max_concurrent=1, older=0.3
        ),
        replace(
            base, name="retention-query", driven_by_query=True, parallelism=1, batch_events=True, runs=0.0, twins=0.3,
            savepoints=0.0,
        ),
    ]  # fmt: skip


def _rescaled() -> list[Config]:
    base = Config("rescale", max_concurrent=2, rescales=20.0, coordinator_faults=2.0)
    return [
        *(replace(base, name=f"rescale-{policy}", policy=policy) for policy in FailoverPolicy),
        replace(base, name="rescale-two", operators=2),
        replace(base, name="rescale-savepoints", savepoints=1.0, stops=0.3),
        replace(base, name="rescale-older", older=0.5, savepoints=0.3),
        replace(
            base, name="rescale-late", retention=0.0, late=True, rescales=60.0, savepoints=3.0, coordinator_faults=0.3,
            subtask_faults=0.1, raises=0.1, runs=0.0, refusals=0.1, jumps=0.1, outages=0.1, freezes=0.1, twins=0.1,
        ),
        replace(base, name="rescale-rots", rots=40.0, savepoints=0.3, older=0.3),
        replace(base, name="rescale-frozen", freezes=6.0, twins=4.0),
        replace(base, name="rescale-runs", runs=3.0, refusals=4.0),
        replace(base, name="rescale-often", rescales=60.0, savepoints=0.3),
    ]  # fmt: skip


def _feeds() -> list[Config]:
    base = Config("feeds", max_concurrent=2, feeds=2)
    return [
        *(replace(base, name=f"feeds-{policy}", policy=policy) for policy in FailoverPolicy),
        replace(base, name="feeds-two", operators=2, feeds=1, savepoints=0.5),
        replace(base, name="feeds-pair", shape=Shape.PAIR, operators=2, unaligned=True, max_concurrent=1),
        replace(base, name="feeds-zombies", coordinator_faults=8.0, raises=0.0),
        replace(base, name="feeds-raises", raises=8.0),
        replace(base, name="feeds-outages", outages=8.0, freezes=4.0),
        replace(base, name="feeds-rescale", rescales=20.0, coordinator_faults=2.0),
        replace(base, name="feeds-stops", stops=0.5, savepoints=0.3, runs=1.0),
    ]


def _damaged_pairs() -> list[Config]:
    pair = Config("pair", shape=Shape.PAIR, operators=2, unaligned=True)
    return [
        replace(pair, name="pair-losses", losses=30.0, coordinator_faults=0.3),
        replace(pair, name="pair-corruptions", corruptions=20.0),
        replace(pair, name="pair-cut-offs", cut_offs=20.0, coordinator_faults=0.3, freezes=0.3),
        replace(pair, name="pair-repetitions", repetitions=20.0, coordinator_faults=4.0),
        replace(pair, name="finite-losses", losses=30.0, finite=True, coordinator_faults=0.3),
        replace(pair, name="finite-repetitions", repetitions=20.0, finite=True, coordinator_faults=4.0),
    ]


def _configs() -> dict[str, Config]:
    policies = list(FailoverPolicy)
    all_ = [
        Config(f"{policy}{concurrent}{'-two' if operators == 2 else ''}", policy, concurrent, operators)
        for policy in policies
        for concurrent in (1, 2)
        for operators in (1, 2)
    ]
    for policy in policies:
        base = Config(str(policy), policy, max_concurrent=2)
        all_ += [
            replace(base, name=f"savepoints-{policy}", savepoints=1.0),
            replace(base, name=f"stops-{policy}", savepoints=0.3, stops=0.5),
            replace(base, name=f"tiny-{policy}", tiny=True),
            replace(base, name=f"finite-{policy}", finite=True),
            replace(base, name=f"finite-savepoints-{policy}", finite=True, savepoints=1.0),
            replace(base, name=f"eager-end-{policy}", finite=True, eager_end=True),
            replace(base, name=f"brief-{policy}", finite=True, eager_end=True, brief=True),
            replace(base, name=f"untold-{policy}", finite=True, eager_end=True, brief=True, dies_at_the_end=0.9),
            replace(base, name=f"refused-end-{policy}", finite=True, eager_end=True, brief=True, refuses_the_end=True),
            replace(base, name=f"untold-stops-{policy}", finite=True, dies_at_the_end=0.9, stops=3.0, twins=8.0),
            replace(base, name=f"zombies-{policy}", coordinator_faults=8.0, raises=0.0),
            replace(base, name=f"runs-{policy}", runs=4.0),
            replace(base, name=f"twins-{policy}", twins=12.0, coordinator_faults=0.3),
            replace(base, name=f"frozen-{policy}", freezes=10.0, coordinator_faults=0.3),
            replace(base, name=f"hangs-{policy}", hangs=True, twins=0.0),
            replace(base, name=f"losses-{policy}", losses=30.0, coordinator_faults=0.3, subtask_faults=0.3),
            replace(base, name=f"corruptions-{policy}", corruptions=20.0, savepoints=0.3),
            replace(base, name=f"strays-{policy}", strays=10.0, coordinator_faults=0.3),
            replace(base, name=f"repetitions-{policy}", repetitions=20.0, coordinator_faults=4.0, savepoints=0.3),
            replace(base, name=f"outages-{policy}", outages=8.0, freezes=0.3),
            replace(base, name=f"slow-{policy}", slow=True, savepoints=0.3),
            replace(base, name=f"skews-{policy}", skews=10.0, coordinator_faults=2.0),
            replace(
                base,
                name=f"compacts-{policy}",
                compacts=True,
                coordinator_faults=6.0,
                savepoints=0.5,
                older=0.3,
                raises=0.0,
            ),
            replace(base, name=f"cut-offs-{policy}", cut_offs=20.0, coordinator_faults=0.3, freezes=0.3),
            replace(base, name=f"partings-{policy}", partings=20.0, coordinator_faults=0.3, hangs=True, twins=0.0),
            replace(base, name=f"refusals-{policy}", refusals=8.0, subtask_faults=2.0, coordinator_faults=0.3),
            replace(base, name=f"rots-{policy}", rots=40.0, coordinator_faults=4.0, savepoints=0.3, older=0.3),
            replace(base, name=f"standby-{policy}", standby=True, outages=6.0, freezes=4.0, cut_offs=6.0, jumps=3.0),
            replace(base, name=f"standby-finite-{policy}", standby=True, finite=True, dies_at_the_end=0.5, outages=4.0),
            replace(base, name=f"purges-{policy}", purges=8.0, coordinator_faults=2.0, freezes=3.0, savepoints=0.3),
            replace(base, name=f"forks-{policy}", forks=100.0, savepoints=1.0, discards=1.0, coordinator_faults=0.3),
            replace(base, name=f"unclean-{policy}", unclean=4.0, truncates=0.0, coordinator_faults=0.3, runs=0.0),
            replace(base, name=f"older-{policy}", older=0.5, coordinator_faults=3.0, savepoints=0.3),
            replace(
                base,
                name=f"everything-{policy}",
                operators=2,
                savepoints=0.5,
                stops=0.3,
                runs=1.0,
                twins=4.0,
                older=0.2,
                coordinator_faults=3.0,
            ),
        ]
    all_ += [
        replace(Config("", max_concurrent=2, finite=True, eager_end=True), name="eager-end-savepoints", savepoints=1.0),
        Config("repeats", max_concurrent=2, duplicates=20.0),
        Config("refused-stops", max_concurrent=2, runs=5.0, refusals=12.0, twins=6.0, coordinator_faults=0.3),
        Config("pull-global", FailoverPolicy.GLOBAL, pull=True),
        Config("pull-global2", FailoverPolicy.GLOBAL, 2, pull=True),
        Config("pull-replay2", FailoverPolicy.REPLAY, 2, pull=True),
        Config("pull-savepoints", FailoverPolicy.GLOBAL, 2, pull=True, savepoints=1.0, stops=0.3),
        replace(
            _with_backlog(Config("hangs-takeovers", hangs=True)),
            twins=0.0,
            subtask_faults=0.6,
            coordinator_faults=3.0,
            raises=0.1,
            runs=0.0,
            refusals=0.1,
            jumps=0.3,
            outages=0.2,
            freezes=0.3,
        ),
        *_graphs(),
        *_damaged_pairs(),
        *_queries(),
        *_retention(),
        *_rescaled(),
        *_feeds(),
        replace(_NO_FAULTS, name="calm"),
        replace(_NO_FAULTS, name="calm-outages", outages=3.0),
    ]
    by_name = {config.name: config for config in all_}
    repeats = {f"repeats-{name}": replace(by_name[name], repeats=20.0) for name in _WITH_REPEATS}
    return by_name | {name: replace(config, name=name) for name, config in repeats.items()}


CONFIGS = _configs()
