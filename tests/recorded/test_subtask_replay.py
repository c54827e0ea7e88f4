"""Recorded events are handed to a user's subtask in a test, as they were handed to it in the job."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.recorded.exported import checkpoint_line, record_line
from penstock.recorded.reading import LogReading, Recorded
from penstock.schemas.errors import ConfigurationError, PositionUnavailable, SequenceGap, StateError
from penstock.schemas.ids import SubtaskId
from penstock.testing import LocalJob
from penstock.transport import MemoryBroker, MemoryTransport
from tests.coordinator.jobs import Plan, make_job, run

from .conftest import Keeping, Ran

PAGE = (Path(__file__).parents[2] / "docs" / "the-log.md").read_text(encoding="utf-8")


class Listing(penstock.Subtask):
    """Its state is the list of events, as the recorded job's handler has it; emits each event, fails on ``boom``."""

    boom = b""

    def open(self, context: penstock.Context) -> None:
        self.context, self.events, self.calls = context, list[bytes](), ["open"]
        context.send_event_to_coordinator(b"up")

    def restore_state(self, checkpoint_id: int, state: bytes | None) -> None:
        self.calls.append(f"restore {checkpoint_id}")
        self.events = state.split(b"\0") if state else []

    def handle_operator_event(self, event: bytes) -> None:
        if event == self.boom:
            raise ValueError("boom")
        self.events.append(event)
        self.calls.append(event.decode())
        self.context.emit({"event": event.decode()})
        self.context.metrics.counter("heard").inc()

    def close(self) -> None:
        self.calls.append("close")


class Booming(Listing):
    boom = b"c1"


def listing(name: str = "ran", subtask: type[penstock.Subtask] = Listing, **operator: Any) -> penstock.Job:
    job = penstock.Job(name)
    op = job.operator("op", parallelism=2, subtask=subtask, output_codec="json", **operator)
    job.operator("sink", parallelism=3, subtask=Listing, inputs=[op.broadcast()])
    return job


ALL = [b"%s%d" % (letter, n) for letter in (b"a", b"b", b"c") for n in range(3)]


def test_without_a_checkpoint_it_is_handed_everything_from_the_first_event_on(ran: Ran) -> None:
    replayed = penstock.replay(listing(), "op", 1, ran.transport)
    assert isinstance(replayed.subtask, Listing)
    assert replayed.subtask.calls == ["open", *(event.decode() for event in ALL)]
    assert (replayed.events, replayed.checkpoint_id) == (9, -1)
    assert replayed.sent == [b"up"]
    assert [emitted.record for emitted in replayed.emitted] == [{"event": event.decode()} for event in ALL]
    assert replayed.emitted[0].receivers == tuple(SubtaskId("sink", i) for i in range(3))
    assert replayed.metrics == {"heard": 9.0}
    replayed.close()
    assert replayed.subtask.calls[-1] == "close"


def test_from_a_checkpoint_its_state_is_restored_and_what_was_sent_since_is_handed_over(ran: Ran) -> None:
    replayed = penstock.replay(listing(), "op", 0, ran.transport, checkpoint=ran.checkpoints[1])
    assert isinstance(replayed.subtask, Listing)
    assert replayed.subtask.calls == ["open", f"restore {ran.checkpoints[1]}", "c0", "c1", "c2"]
    assert replayed.subtask.events == ALL
    assert replayed.events == 3


def exported(ran: Ran, path: Path, checkpoint: int | None) -> Path:
    """What `penstock events ran op --json` prints."""
    job = ran.recorded
    lines = [] if checkpoint is None else [checkpoint_line("ran", job.checkpoint(checkpoint), "op")]
    begins = {job.events(s): 0 for s in job.subtasks("op")} | {job.acks: 0}
    lines += [record_line(found) for found in LogReading(ran.transport, begins) if isinstance(found, Recorded)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_file_replays_as_the_log_does(ran: Ran, tmp_path: Path) -> None:
    path = exported(ran, tmp_path / "events.jsonl", ran.checkpoints[0])
    for checkpoint in (None, ran.checkpoints[0]):
        from_file = penstock.replay(listing("another"), "op", 1, path, checkpoint=checkpoint)
        from_log = penstock.replay(listing(), "op", 1, ran.transport, checkpoint=checkpoint)
        assert isinstance(from_file.subtask, Listing)
        assert isinstance(from_log.subtask, Listing)
        assert from_file.subtask.calls == from_log.subtask.calls
    with pytest.raises(ConfigurationError, match=r"holds no checkpoint \d+ of op/1: write it with `penstock events"):
        penstock.replay(listing(), "op", 1, path, checkpoint=ran.checkpoints[1])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nonsense", "line 1: Expecting value"),
        ("[1]", "line 1: no JSON object"),
        ('{"topic": "x.op.events", "partition": 0, "value": "?"}', "a record without an offset"),
        ('{"topic": "x.op.events", "partition": 0, "offset": 1, "timestamp_ms": 1, "value": "?"}', "no base64"),
    ],
)
def test_a_file_that_is_none_is_refused_with_its_line(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "wrong.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        penstock.replay(listing(), "op", 0, path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        penstock.replay(listing(), "op", 0, tmp_path / "missing")


def test_what_the_object_raises_goes_through_and_says_at_which_event(ran: Ran) -> None:
    with pytest.raises(ValueError, match="boom") as caught:
        penstock.replay(listing(subtask=Booming), "op", 0, ran.transport)
    assert re.search(
        r"op/0 handled event 7 \(offset \d+ of penstock\.ran\.op\.events\[0\]\)", caught.value.__notes__[0]
    )
    before = penstock.replay(listing(subtask=Booming), "op", 0, ran.transport, events_max=7)
    assert isinstance(before.subtask, Listing)
    assert before.subtask.events == ALL[:7]
    assert penstock.replay(listing(), "op", 0, ran.transport, events_max=0).events == 0


@pytest.mark.damages_logs("truncated above what is needed")
def test_a_log_whose_beginning_is_gone_needs_a_checkpoint(ran: Ran) -> None:
    job, subtask = ran.recorded, SubtaskId("op", 0)
    position = job.checkpoint(ran.checkpoints[0]).subtasks[subtask].event_position
    ran.transport.truncate({job.events(subtask): position})
    with pytest.raises(SequenceGap, match=r"begins with event 3 of epoch 1.*name a checkpoint"):
        penstock.replay(listing(), "op", 0, ran.transport)
    assert penstock.replay(listing(), "op", 0, ran.transport, checkpoint=ran.checkpoints[0]).events == 6
    ran.transport.truncate({job.events(subtask): position + 4})
    with pytest.raises((SequenceGap, PositionUnavailable)):
        penstock.replay(listing(), "op", 0, ran.transport, checkpoint=ran.checkpoints[0])


def test_events_of_policy_reset_are_those_of_the_attempt_that_acknowledged() -> None:
    broker, plan = MemoryBroker(), Plan()
    job = make_job(plan, "ran", parallelism=2, interval=None, on_failover="reset")
    with run(job, Keeping(broker)) as running:
        plan.wait_gateways(0, 1)
        plan.gateways[0].send_event(b"a")
        plan.wait_handled(b"a")
        savepoint = running.client.savepoint(timeout_s=20).checkpoint_id
        plan.gateways[0].send_event(b"b")
        plan.wait_handled(b"b")
        running.crash_coordinator()
    for checkpoint in (None, savepoint):
        replayed = penstock.replay(
            listing(on_failover="reset"), "op", 0, MemoryTransport(broker), checkpoint=checkpoint
        )
        assert isinstance(replayed.subtask, Listing)
        assert replayed.subtask.events == [b"a", b"b"]


def test_what_is_not_there_is_refused_by_name(ran: Ran) -> None:
    job = listing()
    with pytest.raises(ConfigurationError, match="has no operator 'other'; it has: op, sink"):
        penstock.replay(job, "other", 0, ran.transport)
    with pytest.raises(ConfigurationError, match="has no subtask 2: it has 2"):
        penstock.replay(job, "op", 2, ran.transport)
    with pytest.raises(ConfigurationError, match="there is no job 'never' on this broker"):
        penstock.replay(job, "op", 0, ran.transport, recorded_as="never")
    with pytest.raises(ConfigurationError, match="has no checkpoint 77 any more; it has"):
        penstock.replay(job, "op", 0, ran.transport, checkpoint=77)


def test_a_stored_state_is_read_from_the_jobs_state_storage(tmp_path: Path) -> None:
    broker, plan = MemoryBroker(), Plan()
    storage = f"file://{tmp_path}"
    job = make_job(plan, "ran", interval=None, checkpoint={"inline_state_max": 1}, state_storage=storage)
    with run(job, Keeping(broker)) as running:
        plan.wait_gateways(0)
        plan.gateways[0].send_event(b"event")
        plan.wait_handled(b"event")
        savepoint = running.client.savepoint(timeout_s=20).checkpoint_id
        running.crash_coordinator()
    with pytest.raises(StateError, match="no state storage"):
        penstock.replay(listing(), "op", 0, MemoryTransport(broker), checkpoint=savepoint)
    reading = listing().renamed("ran", state_storage=storage)
    replayed = penstock.replay(reading, "op", 0, MemoryTransport(broker), checkpoint=savepoint)
    assert isinstance(replayed.subtask, Listing)
    assert replayed.subtask.events == [b"event"]


def test_the_example_of_the_page_runs_as_it_stands() -> None:
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "penstock.replay(" in block]
    names: dict[str, Any] = {}
    exec(block, names)
    assert isinstance(names["running"], LocalJob)
