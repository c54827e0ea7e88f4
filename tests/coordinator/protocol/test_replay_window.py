"""``replay_retention``: what is kept beyond what restarts need (protocol, section 7.9)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checkpoint_log.history import History, Keyed, keyed
from penstock.coordinator.protocol import effects
from penstock.coordinator.protocol.retention import REPLAY_STEPS, beginnings, truncation, window_of
from penstock.schemas.checkpoints import (
    CheckpointCompleted,
    CheckpointPart,
    EpochClaimed,
    OperatorSnapshot,
    SubtaskSnapshot,
)
from penstock.schemas.errors import ConfigurationError
from penstock.schemas.graph import DataPartition, InputSettings, Partitioning
from penstock.schemas.ids import SubtaskId
from penstock.schemas.settings import CheckpointSettings, JobSettings, OperatorSettings, Restore
from penstock.schemas.state import Segment

from .driver import S0, S1, Script, channel, open_from

RETAINED = 2
STEP_S = 10.0
WINDOW_S = REPLAY_STEPS * STEP_S


def windowed(interval: float = STEP_S) -> Script:
    """Script.checkpoint() has the interval pass."""
    return Script.running(replay_retention=WINDOW_S, checkpoint={"retained": RETAINED, "interval": interval})


def kept(script: Script) -> list[int]:
    return sorted(script.job.history.checkpoints)


def completed_at(script: Script, n: int) -> float:
    return script.job.history.checkpoints[n].header.completed_at_ms / 1000


# ---- a coordinator with a window


def test_nothing_is_truncated_before_the_job_is_as_old_as_the_window() -> None:
    script = windowed(STEP_S / 2)
    first = script.checkpoint(event_position=1)
    for _ in range(REPLAY_STEPS - 1):
        script.checkpoint(event_position=2)
    assert first in kept(script)
    assert script.made(effects.Truncate) == []


def test_the_logs_are_kept_from_the_newest_checkpoint_that_is_as_old_as_the_window() -> None:
    script = windowed()
    at: dict[int, int] = {}
    for position in range(1, 60):
        at[script.checkpoint(event_position=position)] = position
    (*_, floors) = script.made(effects.Truncate)
    begins = kept(script)[0]
    newest = completed_at(script, script.last_id)
    assert newest - completed_at(script, begins) >= WINDOW_S
    assert newest - completed_at(script, kept(script)[1]) < WINDOW_S
    assert floors.events == {S0: at[begins], S1: at[begins]}
    assert floors.acks == script.job.history.checkpoints[begins].inbox_position


def test_one_checkpoint_of_each_step_is_kept_beside_the_retained_ones() -> None:
    script = windowed(1.0)
    for _ in range(300):
        script.checkpoint()
    assert len(kept(script)) <= RETAINED + REPLAY_STEPS + 2
    times = [completed_at(script, n) for n in kept(script)]
    assert max(later - earlier for earlier, later in pairwise(times)) < 2 * STEP_S


def test_every_one_of_them_can_be_gone_back_to() -> None:
    script = windowed(STEP_S / 2)
    for _ in range(40):
        script.checkpoint()
    for n in kept(script):
        script.acks_begin = script.made(effects.Truncate)[-1].acks if script.made(effects.Truncate) else 0
        script.restart(restore=Restore.CHECKPOINT, restore_checkpoint=n)
        assert script.last_id == n


def test_without_a_window_nothing_is_kept_for_replays() -> None:
    script = Script.running(checkpoint={"retained": RETAINED})
    completed = [script.checkpoint() for _ in range(5)]
    assert kept(script) == completed[-RETAINED:]


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), "a day", None, True])
def test_a_window_that_is_none_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="replay_retention"):
        JobSettings("job", (OperatorSettings("op", 1),), replay_retention=wrong)  # type: ignore[arg-type]


# ---- what the first checkpoint of the window knows nothing of


def taken(n: int, seconds: int, *operators: str, rescaled_from: int = -1) -> list[Keyed]:
    """A checkpoint of one subtask of each operator, at positions of its id; b takes the records of a."""
    parts = []
    for at, name in enumerate(operators):
        channels = (channel(SubtaskId("a", 0), open_from(n, (1, 0))),) if name == "b" and rescaled_from < 0 else ()
        parts.append(CheckpointPart(n, at, name, (SubtaskSnapshot(0, 0, 1, 0, 0, None, n, (), 0, 0, channels, False),)))
    of = tuple(OperatorSnapshot(name, 1, None, n, 128, ()) for name in operators)
    ms = 1000 * seconds
    return keyed(
        *parts,
        CheckpointCompleted(1, n, False, ms, ms, len(parts), of, n, (), 0, rescaled_from=rescaled_from),
    )


def floors_of(*checkpoints: list[Keyed]) -> effects.Truncate:
    a = OperatorSettings("a", 1)
    b = OperatorSettings("b", 1, inputs=(InputSettings("a", Partitioning.FORWARD),))
    history = History.of(keyed(EpochClaimed(1, -1, 0, 0, {}, "i", "why")))
    for records in checkpoints:
        history.apply(records)
    floors = truncation(JobSettings("job", (a, b), replay_retention=10), history)
    assert floors is not None
    return floors


A, B = SubtaskId("a", 0), SubtaskId("b", 0)
INTO_B = DataPartition("a", B)


def test_of_an_operator_that_was_added_within_the_window_everything_is_kept() -> None:
    floors = floors_of(taken(1, 0, "a"), taken(2, 5, "a", "b"), taken(3, 12, "a", "b"))
    assert (floors.events, floors.data, floors.acks) == ({A: 1}, {}, 1)


def test_of_channels_that_began_anew_within_the_window_everything_is_kept() -> None:
    """They did so with another parallelism: the checkpoint that was derived for it names none."""
    floors = floors_of(taken(1, 0, "a", "b"), taken(2, 1, "a", "b", rescaled_from=1), taken(3, 12, "a", "b"))
    assert (floors.events, floors.data) == ({A: 2, B: 2}, {})


def test_once_the_window_has_passed_that_they_are_truncated_as_the_others() -> None:
    floors = floors_of(taken(1, 0, "a"), taken(2, 5, "a", "b"), taken(3, 16, "a", "b"))
    assert (floors.events, floors.data, floors.acks) == ({A: 2, B: 2}, {INTO_B: 2}, 1)


# ---- the arithmetic


def test_the_window_begins_with_the_newest_one_from_before_it() -> None:
    line = [(1, 1_000), (2, 2_000), (3, 3_000), (4, 4_000)]
    assert window_of(line, 0) == [4]
    assert window_of(line, 1) == [3, 4]
    assert window_of(line, 1.5) == [2, 3, 4]
    assert window_of(line, 3) == [1, 2, 3, 4]
    assert window_of(line, 3.1) == []
    assert window_of([], 0) == []


def test_without_a_window_only_the_last_one_counts_wherever_the_clock_was_set_to() -> None:
    assert window_of([(1, 9_000), (2, 2_000)], 0) == [2]


def test_a_clock_that_was_ahead_for_a_moment_costs_no_window() -> None:
    """A savepoint is kept for good, and may be from then."""
    ahead = (3, 9_999_000)
    assert window_of([(1, 1_000), (2, 2_000), ahead, (4, 4_000)], 1.5) == [2, 3, 4]
    assert {2, 4} <= beginnings([(1, 1_000), (2, 2_000), ahead, (4, 4_000)], 1.5)


@given(st.lists(st.integers(-5_000, 60_000), max_size=80), st.floats(0.001, 100))
def test_however_the_clock_jumps_few_are_kept(steps: list[int], window: float) -> None:
    """As a coordinator keeps them: what has gone is not asked about again."""
    line: list[tuple[int, int]] = []
    now = 1_000_000
    for n, step in enumerate(steps):
        now += step
        line.append((n, now))
        begins = beginnings(line, window)
        line = [(m, ms) for m, ms in line if m in begins or m == n]
        assert len(line) <= REPLAY_STEPS + 3


# ---- any history: never above a need, and it catches up


@dataclass
class Life:
    """A job that completes checkpoints, goes back, and truncates; with the time at which each offset was appended."""

    window: float
    retained: int

    def __post_init__(self) -> None:
        self.settings = JobSettings(
            "job", (OperatorSettings("op", 1),), replay_retention=self.window,
            checkpoint=CheckpointSettings(retained=self.retained),
        )  # fmt: skip
        self.history = History()
        self.now = 0
        self.appended_at: list[int] = []
        """Milliseconds, by offset; events and acks alike."""
        self.completed: dict[int, tuple[int, int]] = {}
        """Those of the present line, whatever has become of them: (time, position)."""
        self.ever: dict[int, tuple[int, int]] = {}
        self.next_id = 1
        self.claim(-1)

    def claim(self, restored: int) -> None:
        self.history.apply(keyed(EpochClaimed(self.history.epoch + 1, restored, 0, 0, {}, "i", "why")))
        if restored in self.completed:
            self.completed = {n: c for n, c in self.completed.items() if n <= restored}
        else:
            self.completed = {n: self.ever[n] for n in self.history.lineage}

    def complete(self, wait_ms: int, records: int, behind: int, owed: int, savepoint: bool) -> None:
        """``behind`` the end stands the position, ``owed`` ahead of that begins a range."""
        for _ in range(records):
            self.appended_at.append(self.now)
        self.now += wait_ms
        n, self.next_id = self.next_id, self.next_id + 1
        lowest = 0 if self.history.last is None else self.history.last.subtasks[SubtaskId("op", 0)].event_position
        position = max(lowest, len(self.appended_at) - behind)
        ranges = (Segment(max(0, position - owed), position, 1, 0, 0),) if owed else ()
        begins = beginnings([*self.times(), (n, self.now)], self.window) if self.window else frozenset()
        subsumed = self.history.subsumed_by(n, self.retained, savepoint=savepoint)
        gone = [i for i in subsumed if i not in begins]
        header = CheckpointCompleted(
            1, n, savepoint, self.now, self.now, 1, (OperatorSnapshot("op", 1, None, position, 128, ()),), position,
            tuple(gone), 0,
        )  # fmt: skip
        snapshot = SubtaskSnapshot(0, 0, 1, 0, 0, None, position, ranges, 0, 0, (), False)
        tombstones = self.history.checkpoint_tombstones(gone, 0)
        self.history.apply([*keyed(CheckpointPart(n, 0, "op", (snapshot,)), header), *tombstones])
        self.completed[n] = self.ever[n] = self.now, position

    def times(self) -> list[tuple[int, int]]:
        return [(n, self.history.checkpoints[n].header.completed_at_ms) for n in self.history.lineage]


STEPS = st.tuples(
    st.integers(0, 4_000),
    st.integers(0, 5),
    st.integers(0, 3),
    st.integers(0, 4),
    st.integers(0, 9),
    st.integers(0, 99),
)


@given(st.sampled_from([0.0, 0.5, 5.0, 30.0]), st.integers(1, 3), st.lists(STEPS, min_size=1, max_size=60))
def test_nothing_needed_is_truncated_and_what_nobody_needs_is(
    window: float, retained: int, steps: list[tuple[int, int, int, int, int, int]]
) -> None:
    life = Life(window, retained)
    for wait_ms, records, behind, owed, kind, pick in steps:
        if kind == 0 and life.history.checkpoints:
            life.claim(sorted(life.history.checkpoints)[pick % len(life.history.checkpoints)])
        life.complete(wait_ms, records, behind, owed, savepoint=kind == 1)
        history, last = life.history, life.history.last
        assert last is not None
        floors = truncation(life.settings, history)
        since = max(ms for _, ms in life.times()) - 1000 * window
        old = [n for n, (ms, _) in life.completed.items() if ms <= since]
        if floors is None:
            assert not old, "it does not catch up"
            continue
        below = floors.events[SubtaskId("op", 0)]
        ranges = [r.begin for c in history.checkpoints.values() for s in c.subtasks.values() for r in s.event_ranges]
        inboxes = [c.inbox_position for c in history.checkpoints.values() if not c.header.savepoint]
        assert below <= min([last.subtasks[SubtaskId("op", 0)].event_position, *ranges])
        assert floors.acks <= min([last.inbox_position, last.header.commands_position, *inboxes])
        young = [at for at, ms in enumerate(life.appended_at) if ms > since]
        if window:
            assert not young or (below <= young[0] and floors.acks <= young[0])
        # The newest one that is as old as the window, or the first of its step, is where the logs begin.
        step = 1000 * window / REPLAY_STEPS
        same = [n for n in old if not step or life.completed[n][0] // step == life.completed[old[-1]][0] // step]
        assert below >= min([life.completed[same[0] if window else last.id][1], *ranges])
        assert floors.acks >= min([life.completed[same[0] if window else last.id][1], *inboxes])
        ordinary = [c for c in history.checkpoints.values() if not c.header.savepoint]
        assert len(ordinary) <= retained + REPLAY_STEPS + 3
