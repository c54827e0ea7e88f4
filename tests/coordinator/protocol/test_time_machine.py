"""The restart budget and the log's clock against all the moments they were told of (protocol, section 8)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.coordinator.protocol.log_clock import LogClock
from penstock.coordinator.protocol.restarts import RestartBudget
from penstock.schemas.settings import RestartStrategy
from tests.machines import check
from tests.rounds import rounds

pytestmark = [pytest.mark.soak, pytest.mark.parametrize("round_", rounds())]

# Quarters of a second are exact in binary: a model's sum is then the same as anybody's.
PAUSES = st.lists(st.integers(0, 40).map(lambda quarters: quarters / 4), max_size=40)
STRATEGIES = st.builds(
    RestartStrategy,
    backoff_first=st.sampled_from([0.0, 0.5]),
    backoff_next=st.sampled_from([0.0, 0.25, 1.0]),
    backoff_max=st.sampled_from([0.0, 0.5, 3.0, 30.0]),
    budget=st.integers(0, 6),
    budget_window=st.sampled_from([1.0, 5.0, 20.0]),
)


def moments(pauses: list[float]) -> list[float]:
    return [sum(pauses[: i + 1]) for i in range(len(pauses))]


def test_no_window_ever_holds_more_restarts_than_the_budget_and_none_is_refused_without_need(round_: int) -> None:
    @given(STRATEGIES, PAUSES)
    def holds(strategy: RestartStrategy, pauses: list[float]) -> None:
        budget = RestartBudget(strategy)
        granted: list[float] = []
        for now in moments(pauses):
            recent = [at for at in granted if now - at < strategy.budget_window]
            delay = budget.spend(now)
            assert (delay is not None) == (len(recent) < strategy.budget)
            if delay is not None:
                granted.append(now)

    check(holds, round_, examples=100)


def test_each_further_restart_waits_twice_as_long_until_a_window_has_been_quiet(round_: int) -> None:
    @given(STRATEGIES, PAUSES)
    def holds(strategy: RestartStrategy, pauses: list[float]) -> None:
        budget = RestartBudget(strategy)
        granted: list[float] = []
        for now in moments(pauses):
            earlier = [at for at in granted if now - at < strategy.budget_window]
            delay = budget.spend(now)
            if delay is None:
                continue
            granted.append(now)
            if not earlier:
                assert delay == strategy.backoff_first
                continue
            expected = strategy.backoff_next
            for _ in earlier[1:]:
                expected *= 2
            assert delay == min(expected, strategy.backoff_max)

    check(holds, round_, examples=100)


def test_log_time_is_the_sum_of_the_steps_between_own_heartbeats_none_above_two_intervals(round_: int) -> None:
    beats = st.lists(st.tuples(st.integers(-2_000, 10_000), st.booleans()), max_size=30)

    @given(beats, st.sampled_from([0.5, 1.0, 2.0]))
    def holds(records: list[tuple[int, bool]], interval: float) -> None:
        """Others' records are read in between, appended earlier or later than it should be: they move nothing."""
        own: list[int] = []
        clock, at_ms, heard = LogClock(interval), 1_000_000, 0.0
        for step_ms, is_own in records:
            at_ms += step_ms
            steps_ms = [later - earlier for earlier, later in pairwise(own)]
            passed = sum(min(max(0, step), 2000 * interval) for step in steps_ms) / 1000
            assert clock.seconds == pytest.approx(passed)
            since = min(max(0, at_ms - own[-1]), 2000 * interval) / 1000 if own else 0.0
            assert clock.of(at_ms) == pytest.approx(passed + since)
            if is_own:
                own.append(at_ms)
                now = clock.own_heartbeat(at_ms)
                assert now == clock.seconds >= heard, "it never goes back"
                heard = now

    check(holds, round_, examples=100)
