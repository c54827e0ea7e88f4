"""Whatever dies while splits are listed, handed out and read: each record is read once in the history that counts."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from penstock.sources import Split, Splits
from penstock.testing import Faults, LocalJob
from penstock.testing.records import CheckpointCommit, EventFrame, OperatorEventFrame
from penstock.transport.memory import MemoryBroker, MemoryTransport

from .driving import (
    PATIENCE_S,
    Latch,
    ReadNumbers,
    SlowNumbers,
    finite,
    number_splits,
    numbers_job,
    numbers_read,
    progress_of,
    states_of,
    wait_until,
)

SPLITS, COUNT = 40, 10
ALL = list(range(SPLITS * COUNT))


def crash_subtask(running: LocalJob) -> None:
    running.crash_subtask("read", 0)


def crash_coordinator(running: LocalJob) -> None:
    running.crash_coordinator()
    running.replace_coordinator()


def crash_both(running: LocalJob) -> None:
    running.crash_subtask("read", 0)
    crash_coordinator(running)


STRIKES: dict[str, Callable[[LocalJob], None]] = {
    "a subtask": crash_subtask,
    "the coordinator": crash_coordinator,
    "both": crash_both,
}
strikes = pytest.mark.parametrize("who", STRIKES)


def open_positions(running: LocalJob) -> list[int]:
    """Positions of all splits that are open in the last checkpoint."""
    return [position or 0 for state in states_of(running) for _, position in state["open"]]


def ended_exactly(running: LocalJob, expected: list[int] = ALL) -> None:
    assert running.wait(PATIENCE_S).ending.value == "finished"
    assert numbers_read(running) == expected
    running.check()


@strikes
def test_a_split_that_was_half_read_goes_on_at_its_position(who: str) -> None:
    go, positions = threading.Event(), list[tuple[str, Any]]()
    make = partial(SlowNumbers, go, {}, positions)
    with LocalJob(numbers_job(finite(100, 6), make)) as running:
        wait_until(lambda: sum(0 < at < 100 for at in open_positions(running)) == 3, "three splits half read")
        STRIKES[who](running)
        go.set()
        ended_exactly(running, list(range(600)))
    assert any(position is not None and 0 < position < 100 for _, position in positions)


@strikes
def test_it_dies_while_the_listing_runs(who: str) -> None:
    latch = Latch()

    def listing(after: str | None) -> Iterator[Split]:
        for split in number_splits(SPLITS, COUNT):
            if split.id == "s0000020":
                latch()
            if after is None or split.id > after:
                yield split

    with LocalJob(numbers_job(Splits(listing))) as running:
        latch.wait_until_reached()
        STRIKES[who](running)
        latch.release()
        ended_exactly(running)


@strikes
def test_it_dies_when_splits_have_been_listed_and_none_was_handed_out(who: str) -> None:
    faults = Faults()
    requests = faults.hold(OperatorEventFrame, operator="read", times=None)
    with LocalJob(numbers_job(finite(COUNT, SPLITS)), faults=faults) as running:
        requests.wait_until_caught()
        running.wait_for(lambda status: progress_of(running)["listing"] == "ended", PATIENCE_S)
        assert progress_of(running)["handed_out"] == 0
        STRIKES[who](running)
        requests.release()
        ended_exactly(running)


@strikes
def test_it_dies_when_splits_have_been_handed_out_and_have_not_arrived(who: str) -> None:
    faults = Faults()
    events = faults.lag(EventFrame, operator="read", subtask=0)
    with LocalJob(numbers_job(finite(COUNT, SPLITS)), faults=faults) as running:
        events.wait_until_caught()
        STRIKES[who](running)
        events.release()
        ended_exactly(running)


@strikes
def test_it_dies_when_splits_have_arrived_and_no_checkpoint_has_completed_since(who: str) -> None:
    latch = Latch()
    job = numbers_job(finite(COUNT, SPLITS), partial(ReadNumbers, {105: latch}), interval=3600.0)
    with LocalJob(job) as running:
        latch.wait_until_reached()
        STRIKES[who](running)
        latch.release()
        ended_exactly(running)


@strikes
def test_it_dies_when_all_is_read_and_the_end_is_in_no_checkpoint(who: str) -> None:
    faults = Faults()
    commit = faults.hold(CheckpointCommit)
    with LocalJob(numbers_job(finite(COUNT, SPLITS), interval=3600.0), faults=faults) as running:
        commit.wait_until_caught()  # the first one is taken when every subtask has finished
        STRIKES[who](running)
        commit.release()
        ended_exactly(running)


def test_a_subtask_that_dies_again_and_again_gets_its_splits_again_and_no_others() -> None:
    """Its successors ask for what their predecessor had asked for: the others starve of nothing."""
    lock, failures = threading.Lock(), [6]

    def fail() -> None:
        with lock:
            if failures[0]:
                failures[0] -= 1
                raise OSError("the disk is away")

    make = partial(ReadNumbers, dict.fromkeys(range(50, 300, 50), fail))
    with LocalJob(numbers_job(finite(COUNT, SPLITS), make)) as running:
        ended_exactly(running)
        status = running.wait_for(lambda status: True, PATIENCE_S)
    assert status.failovers_region >= 6


def test_a_split_that_cannot_be_read_fails_the_job_by_name() -> None:
    def fail() -> None:
        raise OSError("the disk is away")

    job = numbers_job(finite(COUNT, SPLITS), partial(ReadNumbers, {123: fail}))
    job.restart = type(job.restart)(budget=2, backoff_max=0.05, backoff_next=0.01)
    with LocalJob(job) as running:
        end = running.wait(PATIENCE_S)
    assert re.search(r"split 's0000012' cannot be read after position 3: OSError: the disk is away", end.cause)


def test_a_listing_that_fails_is_tried_again_where_it_was() -> None:
    failed, begins = list[int](), list[str | None]()

    def listing(after: str | None) -> Iterator[Split]:
        begins.append(after)
        for split in number_splits(3_000, 1):
            if after is None or split.id > after:
                if split.id == "s0001700" and not failed:
                    failed.append(1)
                    raise OSError("the store is away")
                yield split

    with LocalJob(numbers_job(Splits(listing))) as running:
        ended_exactly(running, list(range(3_000)))
    assert begins[0] is None
    assert len(begins) == 2 and begins[1] is not None


def test_a_listing_that_is_wrong_fails_the_job_with_the_reason() -> None:
    def listing(after: str | None) -> Iterator[str]:
        yield from ("b", "a")

    job = numbers_job(Splits(listing))
    job.restart = type(job.restart)(budget=1, backoff_max=0.05, backoff_next=0.01)
    with LocalJob(job) as running:
        end = running.wait(PATIENCE_S)
    assert re.search(r"yielded 'a' after 'b'.*increasing order", end.cause)


@pytest.mark.parametrize("way", [(4, 2), (2, 5), (3, 1, 4)], ids=str)
def test_open_splits_go_on_under_another_parallelism(way: tuple[int, ...]) -> None:
    broker, go = MemoryBroker(), threading.Event()
    for step, parallelism in enumerate(way, 1):
        last = step == len(way)
        if last:
            go.set()
        job = numbers_job(finite(COUNT, SPLITS), partial(SlowNumbers, go), parallelism=parallelism)
        with LocalJob(job, MemoryTransport(broker)) as running:
            if last:
                ended_exactly(running)
                assert sum(state["finished"] for state in states_of(running)) == SPLITS
                break
            some = len(numbers_read(running)) + 10
            wait_until(partial(has_read, running, some), "more numbers")
            assert running.client.stop(savepoint=True).accepted
            running.wait(PATIENCE_S)
            assert len(numbers_read(running)) < len(ALL)


def has_read(running: LocalJob, count: int) -> bool:
    return len(numbers_read(running)) >= count


def test_a_rescaled_job_that_dies_before_its_first_checkpoint_and_is_rescaled_back_goes_on() -> None:
    """The coordinator's state has the counters of the first parallelism, and the subtasks have begun anew twice."""
    broker, go = MemoryBroker(), threading.Event()
    make = partial(SlowNumbers, go)
    with LocalJob(numbers_job(finite(COUNT, SPLITS), make), MemoryTransport(broker)) as running:
        wait_until(lambda: len(numbers_read(running)) > 50, "some numbers")
        assert running.client.stop(savepoint=True).accepted
        running.wait(PATIENCE_S)
    never = numbers_job(finite(COUNT, SPLITS), make, parallelism=2, interval=None)
    with LocalJob(never, MemoryTransport(broker)) as running:
        running.wait_for(lambda status: status.state == "running", PATIENCE_S)
        running.crash_coordinator()
    go.set()
    with LocalJob(numbers_job(finite(COUNT, SPLITS), make), MemoryTransport(broker)) as running:
        ended_exactly(running)
