"""Whatever somebody writes into the acks topic of a live job: it goes on, fails over, or ends with a cause."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.coordinator.protocol.state import Phase
from penstock.coordinator.protocol.stream import EventStream
from penstock.schemas.acks import AcksRecord
from penstock.schemas.codec import encode
from penstock.schemas.errors import JobRefused
from penstock.schemas.graph import InputSettings, Partitioning
from penstock.schemas.settings import OperatorSettings
from tests.harmless import measured
from tests.hostile import Known, hostile
from tests.machines import check
from tests.rounds import rounds

from .driver import LIFE, S0, S1, Script

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


def honest(script: Script, draw: st.DrawFn) -> None:
    """What a healthy job does."""
    if script.job.phase is not Phase.RUNNING:
        script.advance(10.0)
        return
    task = script.task(draw(st.sampled_from(sorted(script.tasks))))
    live = script.job.epoch is not None and script.slot(task.subtask).attempt is not None
    match draw(st.integers(0, 4)):
        case 0 if live and (stream := script.slot(task.subtask).stream) is not None:
            assert isinstance(stream, EventStream)
            script.send(stream, b"1", b"2")
        case 1 if live and task.started:
            script.read(task.frame(b"event"), task.heartbeat())
        case 2:
            for n in list(script.pending):
                for slot in script.job.live():
                    if script.tasks[slot.subtask].started and n in script.pending:
                        script.read(script.tasks[slot.subtask].ack(n))
        case 3:
            script.hello(task.subtask, script.job.registry.run_id or "run-1")
        case _:
            script.advance(draw(st.sampled_from([0.5, 3.0, 11.0])))


def play(script: Script, data: st.DataObject) -> None:
    """Raises what an input raises, and fails where one takes much time or memory."""
    for step in range(data.draw(st.integers(4, 24))):
        if script.ended is not None:
            return
        if step % 2:
            data.draw(st.composite(lambda draw: honest(script, draw))())
            continue
        record = data.draw(hostile(known(script), CLASSES))
        encode(record)  # it can stand in a topic
        measured(record, script.read, record)


def start_again(script: Script) -> None:
    """The coordinator dies, and another takes the job over, or says why not."""
    with suppress(JobRefused):
        measured("a restart", script.restart)


def test_records_in_the_topic_of_a_live_job_raise_nothing(round_: int) -> None:
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        script = Script.running(
            OperatorSettings("op", 2),
            OperatorSettings("sink", 1, inputs=(InputSettings("op", Partitioning.REBALANCE),)),
        )
        play(script, data)
        start_again(script)

    check(holds, round_, examples=60)


def test_records_in_the_topic_of_a_query_raise_nothing(round_: int) -> None:
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        script = Script.begun(batches=True)
        for subtask in (S0, S1):
            script.tasks[subtask] = script.hello(subtask, read=False)
        play(script, data)
        start_again(script)

    check(holds, round_, examples=40)
