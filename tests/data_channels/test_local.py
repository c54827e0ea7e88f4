"""Whole jobs of several operators in threads, with crashes of everybody, over logs in memory and over Kafka."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from penstock.broker import EmbeddedBroker
from penstock.schemas.status import JobStatus
from penstock.testing import LocalJob
from penstock.transport.kafka import KafkaTransport
from tests.rounds import rounds

from .jobs import Collected, check_counted, counting_job

LIMIT = 3000
SMOKE = pytest.mark.smoke


@pytest.mark.parametrize("checkpoint", [{}, {"unaligned": True}, {"aligned_timeout": 0.01}, {"max_concurrent": 3}])
def test_a_finite_job_ends_by_itself_with_every_record_counted_once(checkpoint: dict[str, object]) -> None:
    collected = Collected()
    with LocalJob(counting_job("counting", collected, LIMIT, **checkpoint)) as running:
        running.wait(60)
        running.check()
    check_counted(collected.records, LIMIT)


WAYS = {
    "aligned": {},
    "unaligned": {"unaligned": True},
    "turning unaligned": {"aligned_timeout": 0.005},
    "two at once": {"max_concurrent": 2},
}
OPERATORS = {"numbers": 2, "passing": 3, "collecting": 2}
PATIENCE_S = 360.0


def completed_more(than: int) -> Callable[[JobStatus], bool]:
    return lambda status: status.checkpoints_completed > than or status.state == "finished"


def everybody_runs(status: JobStatus) -> bool:
    subtasks = [subtask for operator in status.operators for subtask in operator.subtasks]
    return status.state == "finished" or all(s.phase in ("running", "finished") for s in subtasks)


def strike(running: LocalJob, chance: random.Random) -> str:
    """Something dies; what did."""
    operator = chance.choice([*OPERATORS, "coordinator"])
    if operator == "coordinator":
        running.crash_coordinator()
        running.replace_coordinator()
        return operator
    subtask = chance.randrange(OPERATORS[operator])
    running.crash_subtask(operator, subtask)
    return f"{operator}/{subtask}"


def run_with_crashes(running: LocalJob, gate: threading.Event, chance: random.Random, crashes: int) -> int:
    """How many struck. Between two of them a checkpoint completes, or not. The gate is opened before the last one."""
    done = struck = 0
    for crash in range(crashes):
        if crash == crashes - 1:
            gate.set()
        if chance.random() < 0.6:
            running.wait_for(completed_more(done), PATIENCE_S)
        status = running.wait_for(everybody_runs, PATIENCE_S)
        if status.state == "finished":
            break
        done = status.checkpoints_completed
        strike(running, chance)
        struck += 1
    running.wait(PATIENCE_S)
    running.check()
    return struck


@pytest.mark.soak
@pytest.mark.parametrize("way", [*WAYS, "in batches"])
@pytest.mark.parametrize("round_", rounds())
def test_every_record_counts_once_whoever_dies(way: str, round_: int) -> None:
    """Section 9: whole regions fall back in place; section 1, G2, for what operators tell each other."""
    collected = Collected()
    changes = {"batches": True, "max_concurrent": 2} if way == "in batches" else WAYS[way]
    job = counting_job("counting", collected, LIMIT, pace_s=0.01, gate=(gate := threading.Event()), **changes)
    with LocalJob(job) as running:
        run_with_crashes(running, gate, random.Random(f"{way} {round_}"), crashes=4)
    check_counted(collected.records, LIMIT)


@pytest.mark.kafka
@pytest.mark.soak
@pytest.mark.parametrize("way", [pytest.param(way, marks=SMOKE if way == "unaligned" else ()) for way in WAYS])
@pytest.mark.parametrize("round_", rounds())
def test_the_same_over_kafka(
    kafka_broker: EmbeddedBroker, way: str, round_: int, record_property: Callable[[str, object], None]
) -> None:
    collected = Collected()
    name = f"counting-{way.replace(' ', '-')}-{round_}"
    job = counting_job(name, collected, LIMIT, pace_s=0.01, gate=(gate := threading.Event()), **WAYS[way])
    transport = KafkaTransport(kafka_broker.bootstrap)
    with LocalJob(job, transport) as running:
        record_property("deaths", run_with_crashes(running, gate, random.Random(f"kafka {way} {round_}"), crashes=4))
    check_counted(collected.records, LIMIT)
