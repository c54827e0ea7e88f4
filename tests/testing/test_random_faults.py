"""Faults at random, processes that die at random: lists that must be exact whatever the seed."""

from __future__ import annotations

import random

import pytest

from penstock.testing import Faults
from penstock.transport import Transport
from tests.rounds import rounds

from .jobs import PATIENCE_S, Course, counting_job, ends_exactly, run, wait_checkpoint


@pytest.mark.soak
@pytest.mark.parametrize("policy", ["replay", "global"])
@pytest.mark.parametrize("seed", rounds())
def test_lists_are_exact_in_any_weather(plain: Transport, policy: str, seed: int) -> None:
    """G1, G2, G3, G4; section 11."""
    faults, course, chance = Faults(seed), Course(), random.Random(seed)
    job = counting_job(
        course,
        on_failover=policy,
        budget=10_000,
        heartbeat_timeout=1.0,
        start_timeout=3.0,
        checkpoint={"timeout": 1.0, "tolerable_failures": 1000},
    )
    with run(job, plain, faults) as running:
        wait_checkpoint(running, course)
        faults.at_random(
            delay=0.05,
            lag=0.05,
            refuse=0.01,
            unknown_outcome=0.01,
            seconds=0.05,
        )
        for _ in range(3):
            known = len(course.completed)
            chance.choice(
                [
                    lambda: running.crash_subtask("reader", chance.randrange(2)),
                    lambda: running.start_subtask("reader", chance.randrange(2)),
                    running.replace_coordinator,
                    lambda: (running.crash_coordinator(), running.replace_coordinator()),
                ]
            )()
            running.wait_for(lambda _, known=known: len(course.completed) > known, PATIENCE_S)  # type: ignore[misc]
        faults.clear()
        running.wait_for(lambda s: s.state == "running", PATIENCE_S)
        ends_exactly(running, course)
    assert faults.injected != []
