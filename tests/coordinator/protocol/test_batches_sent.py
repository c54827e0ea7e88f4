"""What a batch of a query sends back to the coordinator (protocol, section 10)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.schemas.acks import BatchEventFrame, BatchEvents, BatchWriter
from penstock.schemas.frames import pack

from .driver import LIFE, Script, names
from .test_batches import attached, send


def batch_sends(script: Script, n: int, writer: str, *events: bytes, subtask: int = 0) -> BatchWriter:
    script.read(BatchEventFrame(n, "op", subtask, writer, 0, *pack(events)))
    return BatchWriter(subtask, writer, len(events))


def names_writers(script: Script, n: int, *writers: BatchWriter) -> None:
    script.read(BatchEvents(n, "op", writers, LIFE))


def test_what_a_batch_sends_is_handed_over_when_it_is_committed() -> None:
    script, query = attached()
    send(script, b"a")
    planned = query.plan()
    n = planned.checkpoint_id
    failed = batch_sends(script, n, "attempt-0", b"wrong")
    first, second = batch_sends(script, n, "attempt-1", b"x", b"y"), batch_sends(script, n, "other", b"z", subtask=1)
    names_writers(script, n, failed)
    names_writers(script, n, first, second)
    script.forget()
    assert script.received() == []
    query.commit(planned)
    query.idle()
    assert script.received() == [b"x", b"y", b"z"]
    assert names(script.calls) == ["events", "events", "complete"]


@pytest.mark.parametrize("committed", ["before", "at the restart"])
def test_a_restore_hands_over_what_the_batch_sent(committed: str) -> None:
    script, query = attached()
    send(script, b"a")
    planned = query.plan()
    n = planned.checkpoint_id
    names_writers(script, n, batch_sends(script, n, "w", b"x", b"y"))
    query.commit(planned)
    if committed == "before":
        query.idle()
        assert script.received() == [b"x", b"y"]
    script.restart()
    query.idle()
    assert script.received() == [b"x", b"y"]
    assert names([c for c in script.calls if getattr(c, "subtask", 0) == 0])[-3:] == ["ready", "events", "complete"]


def test_a_batch_that_runs_again_after_its_commit_sends_nothing_twice() -> None:
    script, query = attached()
    send(script, b"a")
    planned = query.plan()
    n = planned.checkpoint_id
    names_writers(script, n, batch_sends(script, n, "w", b"x"))
    query.commit(planned)
    query.idle()
    script.forget()
    names_writers(script, n, batch_sends(script, n, "again", b"x"))
    query.idle()
    assert script.received() == []
    assert script.dropped("late-batch-events") == 1


def test_a_manifest_whose_frames_are_gone_fails_the_job() -> None:
    script, query = attached()
    send(script, b"a")
    planned = query.plan()
    names_writers(script, planned.checkpoint_id, BatchWriter(0, "nobody", 3))
    query.commit(planned)
    query.ask()
    assert script.ended is not None and "not in the log" in script.ended.cause


def test_runs_that_failed_take_no_room() -> None:
    """Section 10.7: only what the manifest names is bounded; a batch may fail any number of times."""
    script, query = attached()
    send(script, b"a")
    planned = query.plan()
    n, bound = planned.checkpoint_id, script.settings.operators[0].max_held_bytes
    for run in range(3):
        batch_sends(script, n, f"run-{run}", b"x" * (bound // 2))
    names_writers(script, n, batch_sends(script, n, "last", b"y"))
    query.commit(planned)
    query.idle()
    assert script.received() == [b"y"]


def test_more_than_a_coordinator_may_be_handed_fails_the_job_until_it_may_be_handed_more() -> None:
    script, query = attached()
    send(script, b"a")
    planned = query.plan()
    n, operator = planned.checkpoint_id, script.settings.operators[0]
    size = operator.max_held_bytes // 2 + 1
    names_writers(script, n, *(batch_sends(script, n, f"writer-{i}", b"x" * size) for i in range(2)))
    query.commit(planned)
    query.ask()
    assert script.ended is not None and f"max_held_bytes={2 * size} or more" in script.ended.cause
    script.restart(replace(script.settings, operators=(replace(operator, max_held_bytes=2 * size),)))
    query.idle()
    assert [len(event) for event in script.received()] == [size, size]


def test_a_damaged_frame_fails_the_job() -> None:
    script, query = attached()
    send(script, b"a")
    planned = query.plan()
    n = planned.checkpoint_id
    script.read(BatchEventFrame(n, "op", 0, "w", 0, 3, b"\1\0\0\0", b"xyz"))
    names_writers(script, n, BatchWriter(0, "w", 3))
    query.commit(planned)
    query.ask()
    assert script.ended is not None and "one of its frames is damaged" in script.ended.cause


def test_frames_that_were_truncated_meanwhile_fail_the_job() -> None:
    script, query = attached()
    send(script, b"a")
    planned = query.plan()
    n = planned.checkpoint_id
    names_writers(script, n, batch_sends(script, n, "w", b"x"))
    script.acks_begin = len(script.acks)
    query.commit(planned)
    query.ask()
    assert script.ended is not None and "not in the log" in script.ended.cause
