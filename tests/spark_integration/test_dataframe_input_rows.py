"""Rows as one Spark task gets them: read ahead, kept for a restart in place, skipped and compared after a real one."""

from __future__ import annotations

import io
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import Finished, Idle, Progress, Subtask
from penstock.schemas.errors import ConfigurationError, StateError
from penstock.schemas.ids import SubtaskId
from penstock.spark_integration.rows import (
    ArrowMessages,
    ArrowRows,
    InputChanged,
    InputLost,
    RowsNotKept,
    RowsPlan,
)
from penstock.subtask_client.rows import BEGINNING, EndsTask, RowFeed, RowPosition, refuse_position

pa = pytest.importorskip("pyarrow")

SCHEMA = pa.schema([("id", pa.int64()), ("hash", pa.int64())])
DEADLINE_S = 10.0


def plan(**changes: Any) -> RowsPlan:
    given = {"rows_per_batch": 10, "kept_bytes_max": 1_000_000, "ahead_bytes_max": 1_000_000, "description": "id"}
    return RowsPlan(schema=bytes(SCHEMA.serialize()), **{**given, **changes})


def message(ids: list[int]) -> bytes:
    """As the JVM writes a batch; the hash of a row is some function of it."""
    batch = pa.record_batch([pa.array(ids, pa.int64()), pa.array([i * 7 - 3 for i in ids], pa.int64())], SCHEMA)
    return bytes(batch.serialize())


def messages(ids: list[int], per_message: int) -> Iterator[bytes]:
    return (message(ids[i : i + per_message]) for i in range(0, len(ids), per_message))


def rows_of(ids: list[int], per_message: int = 25, **changes: Any) -> ArrowRows:
    return ArrowRows(plan(**changes), SubtaskId("reader", 1), messages(ids, per_message))


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.001)
    return found


def next_batch(rows: ArrowRows) -> list[int]:
    batch = wait_until(rows.take, "a batch")
    assert batch.schema.names == ["id"], "the hash is not the user's"
    return list(batch.column("id").to_pylist())


def taken(rows: ArrowRows, count: int) -> list[int]:
    """Batches of at least so many rows."""
    got: list[int] = []
    while len(got) < count:
        got += next_batch(rows)
    return got


def rest(rows: ArrowRows) -> list[int]:
    got: list[int] = []
    while not rows.ended:
        if (batch := rows.take()) is not None:
            got += batch.column("id").to_pylist()
    return got


def error_of(rows: ArrowRows) -> Exception:
    """What take() raises sooner or later."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            rows.take()
        except EndsTask as ends:
            return ends.error
        except InputChanged:  # the coordinator is told first; the next attempt ends the task
            with pytest.raises(EndsTask) as ends_too:
                rows.seek(BEGINNING)
            return ends_too.value.error
    raise AssertionError("no error")


ALL = list(range(100))


def test_rows_come_in_order_in_batches_of_at_most_the_given_size() -> None:
    rows = rows_of(ALL)
    rows.seek(BEGINNING)
    batches = []
    while not rows.ended:
        if (batch := rows.take()) is not None:
            batches.append(batch.num_rows)
    assert batches == [10, 10, 5] * 4
    assert rows.take() is None


def test_an_input_without_rows_ends_at_once() -> None:
    rows = ArrowRows(plan(), SubtaskId("reader", 1), iter([message([])]))
    rows.seek(BEGINNING)
    wait_until(lambda: rows.ended, "the end")
    assert rows.take() is None
    assert rows.position().rows == 0


@pytest.mark.parametrize("taken_before", [0, 10, 20, 25, 60, 75, 100])
@pytest.mark.parametrize("taken_after", [0, 10, 25, 100])
def test_an_attempt_that_starts_over_in_place_gets_the_rows_behind_its_checkpoint_again(
    taken_before: int, taken_after: int
) -> None:
    rows = rows_of(ALL)
    rows.seek(BEGINNING)
    before = taken(rows, taken_before) if taken_before else []
    position = rows.position()
    assert position.rows == len(before)
    if len(before) < 100:
        taken(rows, min(taken_after, 100 - len(before))) if taken_after else None
    rows.seek(position)
    assert rows.position() == position
    assert before + rest(rows) == ALL


@pytest.mark.parametrize("at", [0, 10, 25, 40, 50, 100])
@pytest.mark.parametrize("per_message", [1, 7, 25, 100])
def test_another_task_skips_exactly_the_rows_consumed_however_they_are_cut(at: int, per_message: int) -> None:
    first = rows_of(ALL, rows_per_batch=5)
    first.seek(BEGINNING)
    before = taken(first, at) if at else []
    second = rows_of(ALL, per_message)
    second.seek(first.position())
    assert second.position() == first.position(), "also while it skips"
    assert before + rest(second) == ALL


def test_a_position_may_be_restored_again_while_its_rows_are_being_skipped() -> None:
    gate = threading.Event()

    def slowly() -> Iterator[bytes]:
        yield from messages(ALL[:30], 10)
        assert gate.wait(DEADLINE_S)
        yield from messages(ALL[30:], 10)

    first = rows_of(ALL)
    first.seek(BEGINNING)
    taken(first, 45)
    position = first.position()
    rows = ArrowRows(plan(), SubtaskId("reader", 1), slowly())
    rows.seek(position)
    assert rows.take() is None and not rows.ended
    rows.seek(position)
    assert rows.position() == position
    gate.set()
    assert rest(rows) == ALL[45:]


@pytest.mark.parametrize(
    "now",
    [
        [*ALL[:20], 1000, *ALL[21:]],
        [*ALL[:10], 11, 10, *ALL[12:]],
        ALL[1:],
        [*ALL[:5], 5, *ALL[5:]],
        ALL[:49],
        [],
    ],
    ids=["other value", "other order", "one fewer", "one more", "too short", "empty"],
)
def test_rows_that_are_not_those_consumed_end_the_job_with_who_and_what(now: list[int]) -> None:
    first = rows_of(ALL)
    first.seek(BEGINNING)
    taken(first, 50)
    second = rows_of(now, 8)
    second.seek(first.position())
    error = error_of(second)
    assert isinstance(error, InputChanged)
    for part in ("'reader'", "subtask 1", "rows 0 to 49", "checkpoint()", "files"):
        assert part in str(error)
    assert not second.ended


def test_other_columns_are_other_rows() -> None:
    first = rows_of(ALL, description="struct<id:bigint>")
    first.seek(BEGINNING)
    second = rows_of(ALL, description="struct<number:bigint>")
    second.seek(first.position())
    assert isinstance(error_of(second), InputChanged)


def test_rows_before_a_completed_checkpoint_are_let_go_of() -> None:
    rows = rows_of(ALL)
    rows.seek(BEGINNING)
    taken(rows, 60)
    position = rows.position()
    rows.completed(position)
    with pytest.raises(EndsTask) as ends:
        rows.seek(BEGINNING)
    assert isinstance(ends.value.error, RowsNotKept)
    rows.seek(position)
    assert rest(rows) == ALL[position.rows :]


def test_past_its_bound_nothing_is_kept_and_starting_over_ends_the_task() -> None:
    rows = rows_of(ALL, kept_bytes_max=0)
    rows.seek(BEGINNING)
    taken(rows, 10)
    rows.seek(BEGINNING)  # the batch that is under way is there anyhow
    taken(rows, 60)
    with pytest.raises(EndsTask) as ends:
        rows.seek(BEGINNING)
    assert isinstance(ends.value.error, RowsNotKept)
    assert "kept_bytes" in str(ends.value.error)


def test_it_reads_ahead_no_further_than_its_bound() -> None:
    asked: list[int] = []

    def counted() -> Iterator[bytes]:
        for i in ALL:
            asked.append(i)
            yield message([i])

    rows = ArrowRows(plan(ahead_bytes_max=3 * (len(message([0])) + 2_048)), SubtaskId("reader", 1), counted())
    rows.seek(BEGINNING)
    wait_until(lambda: len(asked) == 4, "three are ahead, one waits for room")
    for i in range(50):
        next_batch(rows)
        wait_until(lambda: len(asked) == min(100, i + 5), "one for one")  # noqa: B023
    rows.close()


def test_a_slow_input_keeps_nobody_waiting_and_is_no_end() -> None:
    gate = threading.Event()

    def slowly() -> Iterator[bytes]:
        yield message(ALL[:10])
        assert gate.wait(DEADLINE_S)
        yield message(ALL[10:])

    rows = ArrowRows(plan(), SubtaskId("reader", 1), slowly())
    rows.seek(BEGINNING)
    assert next_batch(rows) == ALL[:10]
    assert rows.take() is None
    assert not rows.ended
    gate.set()
    assert rest(rows) == ALL[10:]


# ---- the socket of the JVM


def framed(*bodies: bytes, end: bytes = struct.pack(">i", -1)) -> io.BytesIO:
    return io.BytesIO(b"".join(struct.pack(">i", len(body)) + body for body in bodies) + end)


def test_messages_end_where_the_jvm_says_so() -> None:
    assert list(ArrowMessages().load_stream(framed(b"one", b"two"))) == [b"one", b"two"]


@pytest.mark.parametrize("end", [b"", b"\x00\x00", struct.pack(">i", 9) + b"half", struct.pack(">i", -2)])
def test_a_stream_that_breaks_off_is_no_end(end: bytes) -> None:
    """A dead executor must not look like a finished input: its subtask's last rows would be lost for good."""
    batches = list(messages(ALL, 50))
    rows = ArrowRows(plan(), SubtaskId("reader", 1), ArrowMessages().load_stream(framed(*batches, end=end)))
    rows.seek(BEGINNING)
    assert isinstance(error_of(rows), InputLost)
    assert not rows.ended


def test_what_the_stream_raises_ends_the_task() -> None:
    def broken() -> Iterator[bytes]:
        yield message(ALL)
        raise OSError("no more")

    rows = ArrowRows(plan(), SubtaskId("reader", 1), broken())
    rows.seek(BEGINNING)
    assert "OSError: no more" in str(error_of(rows))


# ---- between the rows and the user's object


class Lister(Subtask):
    def __init__(self) -> None:
        self.got: list[int] = []
        self.ends = 0

    def process_rows(self, batch: Any) -> None:
        self.got += batch.column("id").to_pylist()

    def end_inputs(self) -> None:
        self.ends += 1


def polled(feed: RowFeed, user: Subtask) -> list[object]:
    """Until the end."""
    seen: list[object] = []
    deadline = time.monotonic() + DEADLINE_S
    while not seen or not isinstance(seen[-1], Finished):
        assert time.monotonic() < deadline
        seen.append(feed.poll(user))
    return seen


def test_the_end_of_the_rows_is_told_once_and_is_the_end_of_the_work() -> None:
    feed, user = RowFeed(rows_of(ALL)), Lister()
    feed.begin(user, "who")
    seen = polled(feed, user)
    assert {type(result) for result in seen} <= {Progress, Idle, Finished}
    assert user.got == ALL
    assert isinstance(feed.poll(user), Finished)
    assert user.ends == 1


@pytest.mark.parametrize("state", [None, b"", b"mine"])
def test_the_position_goes_in_front_of_the_users_state_and_comes_off_again(state: bytes | None) -> None:
    feed, user = RowFeed(rows_of(ALL)), Lister()
    feed.begin(user, "who")
    wait_until(lambda: isinstance(feed.poll(user), Progress), "a batch")
    data = feed.wrapped(7, state)
    later, other = RowFeed(rows_of(ALL, 3)), Lister()
    assert later.unwrapped("who", 7, data) == state
    later.begin(other, "who")
    polled(later, other)
    assert user.got + other.got == ALL


def test_without_a_checkpoint_an_attempt_begins_at_the_first_row() -> None:
    feed, first, second = RowFeed(rows_of(ALL)), Lister(), Lister()
    feed.begin(first, "who")
    polled(feed, first)
    assert feed.unwrapped("who", -1, None) is None
    feed.begin(second, "who")
    polled(feed, second)
    assert second.got == ALL and second.ends == 1


@pytest.mark.parametrize("completed", [2, 3])
def test_rows_are_let_go_of_when_their_checkpoint_completes(completed: int) -> None:
    source = rows_of(ALL)
    feed, user = RowFeed(source), Lister()
    feed.begin(user, "who")
    polled(feed, user)
    feed.wrapped(3, None)
    feed.completed(completed)
    if completed == 3:
        with pytest.raises(EndsTask):
            source.seek(BEGINNING)
    else:
        source.seek(BEGINNING)


@pytest.mark.parametrize("data", [None, b"", b"the user's alone"])
def test_a_checkpoint_without_a_position_is_refused(data: bytes | None) -> None:
    with pytest.raises(StateError, match=r"reader/0.*checkpoint 4.*without that input"):
        RowFeed(rows_of(ALL)).unwrapped("reader/0", 4, data)


def test_a_position_of_a_version_to_come_is_refused() -> None:
    feed = RowFeed(rows_of(ALL))
    feed.begin(Lister(), "who")
    data = bytearray(feed.wrapped(1, None))
    data[8] = 9
    with pytest.raises(StateError, match="version 9"):
        feed.unwrapped("reader/0", 1, bytes(data))


def test_a_position_where_no_rows_come_is_refused() -> None:
    feed = RowFeed(rows_of(ALL))
    feed.begin(Lister(), "who")
    refuse_position("reader/0", 1, b"mine")
    with pytest.raises(StateError, match=r"reader/0.*inputs="):
        refuse_position("reader/0", 1, feed.wrapped(1, b"mine"))


class Polls(Lister):
    def poll(self) -> Idle:
        return Idle()


@pytest.mark.parametrize(("user", "says"), [(Subtask(), "process_rows"), (Polls(), "a poll")])
def test_an_object_that_cannot_take_rows_is_refused(user: Subtask, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        RowFeed(rows_of(ALL)).begin(user, "reader/0")


def test_positions_of_rows_compare_by_what_was_consumed() -> None:
    one, two = rows_of(ALL, 10), rows_of(ALL, 33)
    for rows in (one, two):
        rows.seek(BEGINNING)
    assert rest(one) == rest(two)
    assert one.position() == two.position() == RowPosition(100, one.position().digest)
