"""Whatever somebody writes into the acks topic of a live job: it goes on, fails over, or ends with a cause."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.coordinator.protocol.state import Phase
from penstock.schemas.acks import AcksRecord, FromAttempt
from penstock.schemas.codec import encode
from penstock.schemas.errors import JobRefused
from penstock.schemas.graph import InputSettings, Partitioning
from penstock.schemas.settings import OperatorSettings
from penstock.schemas.status import BatchOutcome
from tests.harmless import measured
from tests.hostile import Known, hostile
from tests.machines import check
from tests.rounds import rounds

from .driver import LIFE, S0, S1, Script
from .test_batches import Query, attached

pytestmark = [pytest.mark.soak, pytest.mark.parametrize("round_", rounds())]

CLASSES: Sequence[type] = typing.get_args(AcksRecord)


def known(script: Script) -> Known:
    job = script.job
    return Known(
        [record for _, record in script.acks if record is not None],
        [slot.attempt.sender(slot.subtask) for slot in job.live() if slot.attempt is not None],
        [job.position, job.schedule.next_id - 1, job.history.last_id, job.history.epoch],
        [LIFE],
        script.settings.parallelism,
    )


def counts(script: Script, record: AcksRecord) -> bool:
    """Whether the core is handed it: one of an epoch that the checkpoint log does not hold is kept out before."""
    epoch = record.sender.epoch if isinstance(record, FromAttempt) else getattr(record, "epoch", 0)
    return epoch <= script.job.history.epoch


def pass_time(script: Script, seconds: float) -> None:
    """The coordinator's heartbeats come back, so log time passes too."""
    script.advance(seconds)
    script.beat()


def acknowledge(script: Script) -> None:
    for n in list(script.pending):
        for slot in script.job.live():
            task = script.tasks[slot.subtask]
            if slot.attempt is not None and slot.attempt.id == task.attempt and n in script.pending:
                script.read(task.ack(n))


def honest(script: Script, draw: st.DrawFn) -> None:
    """Do the next step of a healthy job."""
    if script.job.phase is not Phase.RUNNING:
        pass_time(script, 10.0)
        return
    task = script.task(draw(st.sampled_from(sorted(script.tasks))))
    slot = script.slot(task.subtask)
    live = slot.attempt is not None and slot.attempt.id == task.attempt
    match draw(st.integers(0, 5)):
        case 0 if slot.stream is not None:
            script.send(slot.stream, b"1", b"2")
        case 1 if live:
            script.read(task.frame(b"event"), task.heartbeat())
        case 2 | 3:
            pass_time(script, 11.0)
            acknowledge(script)
        case 4:
            script.hello(task.subtask, script.job.registry.run_id or "run-1")
        case _:
            pass_time(script, draw(st.sampled_from([0.5, 3.0, 40.0])))


def asks(query: Query, draw: st.DrawFn) -> None:
    """Ask as a query's planner does; most often Spark then commits what it was given."""
    script = query.script
    if script.job.phase is not Phase.RUNNING:
        pass_time(script, 10.0)
        return
    stream = script.slot(draw(st.sampled_from([S0, S1]))).stream
    if stream is not None and draw(st.booleans()):
        script.send(stream, b"1", b"2")
    query.ask()
    pass_time(script, draw(st.sampled_from([0.0, 11.0])))
    if query.answer is not None and query.answer.outcome is BatchOutcome.PLANNED and draw(st.integers(0, 3)):
        query.commit(query.answer)


def play(script: Script, data: st.DataObject, honestly: Callable[[st.DrawFn], None]) -> None:
    """Raises what an input raises, and fails where one takes much time or memory."""
    for step in range(data.draw(st.integers(4, 24))):
        if script.ended is not None:
            assert script.ended.cause
            return
        if step % 2:
            honestly(data.draw)
            continue
        record = data.draw(hostile(known(script), CLASSES))
        encode(record)  # it can stand in a topic
        if counts(script, record):
            measured(record, script.read, record)


def start_again(script: Script) -> bool:
    """The coordinator dies, and another takes the job over, or says why not."""
    try:
        measured("a restart", script.restart)
    except JobRefused:
        return False
    return script.ended is None


def test_records_in_the_topic_of_a_live_job_raise_nothing(round_: int) -> None:
    completed = started = 0

    @given(st.data())
    def holds(data: st.DataObject) -> None:
        nonlocal completed, started
        script = Script.running(
            OperatorSettings("op", 2),
            OperatorSettings("sink", 1, inputs=(InputSettings("op", Partitioning.REBALANCE),)),
        )
        play(script, data, lambda draw: honest(script, draw))
        completed += script.job.statistics.completed
        if start_again(script):
            started += 1
            play(script, data, lambda draw: honest(script, draw))

    check(holds, round_, examples=60)
    assert completed >= 3 and started >= 3, "a job in which nothing goes on shows nothing"


def test_records_in_the_topic_of_a_query_raise_nothing(round_: int) -> None:
    completed = started = 0

    @given(st.data())
    def holds(data: st.DataObject) -> None:
        nonlocal completed, started
        script, query = attached()
        play(script, data, lambda draw: asks(query, draw))
        completed += script.job.statistics.completed
        if start_again(script):
            started += 1
            query = Query(script, "query-2", query.committed)
            play(script, data, lambda draw: asks(query, draw))

    check(holds, round_, examples=40)
    assert completed >= 3 and started >= 3, "a query that gets nothing shows nothing"
