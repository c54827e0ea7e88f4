"""Real Kafka, real Spark tasks, faults at random moments on both sides, and lists that must be exact.

After Flink's CoordinatorEventsExactlyOnceITCase; ``exactly_once_job.py`` says what the job does and what hits it.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import PenstockError
from penstock.broker import EmbeddedBroker
from penstock.client.job_client import JobClient
from penstock.schemas.errors import RolledBack, TaskNotRunning
from penstock.spark_integration import JobHandle, run
from penstock.transport.kafka import KafkaTransport
from tests.rounds import ROUNDS_VARIABLE, rounds

from .exactly_once_job import (
    EVENTS,
    PERHAPS_NEVER_CALLED,
    SUBTASKS,
    VOID,
    Counting,
    Plan,
    counting_job,
    plan_of,
    trace_into,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

DEADLINE_S = 360.0
TRACE_VARIABLE = "PENSTOCK_SOAK_TRACE"
"""Set to anything: driver and workers log every step into the round's folder, which is kept when the round fails."""
EXACT = {operator: [list(range(total))] * SUBTASKS for operator, total in EVENTS.items()}


@pytest.mark.soak
@pytest.mark.parametrize("policy", ["replay", "reset", "global"])
@pytest.mark.parametrize("seed", rounds(), ids=lambda seed: f"seed{seed}")
def test_every_list_is_exact_whatever_fails_and_whenever(
    spark: SparkSession, kafka_broker: EmbeddedBroker, tmp_path: Path, policy: str, seed: int
) -> None:
    """G1, G2, G3, G4; section 11."""
    plan = plan_of(seed, policy, tmp_path, traced=TRACE_VARIABLE in os.environ)
    name, made = f"exactly-once-{policy}-{seed}", dict[str, Counting]()
    with told_on_failure(plan, name, kafka_broker):
        handle = run(spark, counting_job(name, plan, made), broker=kafka_broker.bootstrap)
        wait_for_its_end(handle)
        check_faults(plan, made, handle)
        check_journals(plan)
        check_what_was_told(plan, made)
        check_futures(made)
        with closing(KafkaTransport(kafka_broker.bootstrap)) as transport:
            client = JobClient(transport, name)
            assert states_of(client) == EXACT
            client.purge()
    shutil.rmtree(tmp_path)


@contextmanager
def told_on_failure(plan: Plan, name: str, broker: EmbeddedBroker) -> Iterator[None]:
    """Whoever sees the failure sees what was planned, what had happened, how it stood, and how to repeat it."""
    try:
        with tracing(plan):
            yield
    except BaseException as error:
        try:
            with closing(KafkaTransport(broker.bootstrap)) as transport:
                status: Any = JobClient(transport, name).status()
        except Exception as unknown:
            status = unknown
        test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
        planned = "\n  ".join(f"{fault}{'' if plan.struck(fault) else ' (has not happened)'}" for fault in plan.faults)
        error.add_note(
            f"seed {plan.seed}; again, every step logged beside the journals:\n"
            f"  {TRACE_VARIABLE}=1 {ROUNDS_VARIABLE}={plan.seed + 1} .venv/bin/pytest '{test}'\n"
            f"faults:\n  {planned}\njournals: {plan.folder}\nstatus: {status}"
        )
        raise


@contextmanager
def tracing(plan: Plan) -> Iterator[None]:
    """Into the file alone: pytest would keep all of it, and print it."""
    if not plan.traced:
        yield
        return
    logger = logging.getLogger("penstock")
    level, handler = logger.level, trace_into(plan.folder / "driver.log")
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = True
        handler.close()


def wait_for_its_end(handle: JobHandle) -> None:
    try:
        assert handle.wait(DEADLINE_S).ending == "finished"
    except TimeoutError as late:
        late.add_note(f"status when time was up: {handle.status()}")
        with suppress(PenstockError):
            handle.stop()  # the next round needs its slots
        raise


def check_faults(plan: Plan, made: dict[str, Counting], handle: JobHandle) -> None:
    """A round in which nothing went wrong shows nothing."""
    missing = [
        str(fault)
        for fault in plan.faults
        if not plan.struck(fault)
        and not (fault.where in PERHAPS_NEVER_CALLED and fault.where not in made[fault.operator].called)
    ]
    assert not missing, f"planned, and did not happen: {missing}"
    status = handle.status()
    assert status is not None
    assert status.failovers_global > 0, "coordinators have failed the job; what else came then, came together with that"
    print(
        f"{plan.policy} {plan.seed}: {len(plan.faults)} faults, {status.failovers_region} region and"
        f" {status.failovers_global} global failovers, {status.checkpoints_completed} checkpoints completed and"
        f" {status.checkpoints_aborted} aborted"
    )
    assert any(number == VOID for coordinator in made.values() for _, number, _ in coordinator.sent)


def states_of(client: JobClient) -> dict[str, list[list[int]]]:
    """The subtasks' lists in the last completed checkpoint."""
    last = client.history().last
    assert last is not None
    lists: dict[str, list[list[int]]] = {operator: [[] for _ in range(SUBTASKS)] for operator in EVENTS}
    for subtask, snapshot in last.subtasks.items():
        assert snapshot.state is not None and snapshot.state.inline is not None
        assert snapshot.finished
        lists[subtask.operator][subtask.index] = json.loads(snapshot.state.inline)
    return lists


def check_journals(plan: Plan) -> None:
    """What every attempt handled, the undone ones too: in order, from its state on, of its own epoch."""
    lists: dict[tuple[str, int], dict[tuple[int, int], list[int]]] = defaultdict(dict)
    for journal in plan.folder.glob("handled *"):
        _, operator, *numbers = journal.name.split()
        subtask, epoch, attempt = map(int, numbers)
        got: list[int] = []
        for line in map(json.loads, journal.read_text().splitlines()):
            if "restored" in line:
                got = line["restored"]
                continue
            got.append(line["handled"])
            assert line["epoch"] == epoch, f"{journal.name}: {line} is of another epoch"
            to_itself = line["attempt"] == attempt if plan.policy == "reset" else line["attempt"] <= attempt
            assert to_itself, f"{journal.name}: {line} was for another attempt"
        assert got == list(range(len(got))), f"{journal.name}: {got}"
        lists[operator, subtask][epoch, attempt] = got
    last = {operator: [lists[operator, i][max(lists[operator, i])] for i in range(SUBTASKS)] for operator in EVENTS}
    assert last == EXACT


def check_what_was_told(plan: Plan, made: dict[str, Counting]) -> None:
    """Everything that counts came once and in order; under global nothing else came."""
    told = {operator: made[operator].told for operator in EVENTS}
    if plan.policy != "global":
        told = {operator: [list(dict.fromkeys(each)) for each in lists] for operator, lists in told.items()}
    assert told == EXACT
    kept = {operator: [[number for number, _ in each] for each in made[operator].kept] for operator in EVENTS}
    assert kept == EXACT, "without what subtask_reset has undone"


def check_futures(made: dict[str, Counting]) -> None:
    """All have settled; those of the events that count say so, those sent in vain say why."""
    for operator, coordinator in made.items():
        newest = {}
        for subtask, number, future in coordinator.sent:
            assert future.done(), f"{number} to {operator}/{subtask} has not settled"
            if number == VOID:
                assert isinstance(future.exception(), RolledBack | TaskNotRunning), f"{operator}/{subtask}: {future}"
            else:
                newest[subtask, number] = future
        for (subtask, number), future in newest.items():
            assert future.exception() is None, f"{number} to {operator}/{subtask}: {future.exception()}"
