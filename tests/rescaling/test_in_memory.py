"""Whole jobs in threads that are killed, or stopped, and go on with another parallelism: every item exactly once."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import Job
from penstock.coordinator.runtime import CoordinatorRuntime
from penstock.coordinator.state_redistribution import Redistribution
from penstock.schemas.errors import JobRefused
from penstock.schemas.ids import NO_CHECKPOINT
from penstock.schemas.keys import key_group, subtask_of_group
from penstock.schemas.user_codec import learn
from penstock.schemas.user_schemas import text_of
from penstock.sinks import FileSink
from penstock.testing.local import LocalJob
from penstock.transport.memory import MemoryBroker, MemoryTransport
from penstock.transport.state_storage import StateStorage

from .jobs import (
    GROUPS,
    HandingOut,
    Keeping,
    collected,
    counting_job,
    group_of,
    kept,
    last_of,
    new_job,
    run_until,
    splits_job,
    states,
    wait_until,
)

LIMIT = 600


@pytest.fixture
def transport() -> MemoryTransport:
    return MemoryTransport(MemoryBroker())


@pytest.mark.parametrize("savepoint", [False, True], ids=["killed", "savepoint"])
@pytest.mark.parametrize("how", ["list", "function"])
def test_two_to_five_to_three_with_exact_lists(transport: MemoryTransport, how: str, savepoint: bool) -> None:
    """Each number is in exactly one subtask's list, whatever was killed when."""
    for phase, parallelism in enumerate((2, 5, 3), start=1):
        job = splits_job("keepers", parallelism, LIMIT, how)
        wanted = LIMIT * phase // 3
        running = run_until(job, transport, lambda r, w=wanted: len(kept(r)) >= w, savepoint=savepoint)  # type: ignore[misc]
        assert len(states(running, "keepers")) == parallelism
        numbers = kept(running)
        assert sorted(numbers) == list(range(len(numbers)))
    assert sorted(kept(running)) == list(range(LIMIT))


def test_counts_by_key_are_exact_and_where_the_keys_records_come(transport: MemoryTransport) -> None:
    """Section 9: a keyed operator's states go to the subtasks that own their keys."""
    layouts = [(2, 3, 2), (3, 5, 1), (1, 2, 3)]
    for phase, layout in enumerate(layouts, start=1):
        job = counting_job("counting", layout, LIMIT)
        wanted = LIMIT * phase // len(layouts)
        running = run_until(job, transport, lambda r, w=wanted: len(collected(r)) >= w)  # type: ignore[misc]
        check_counted(running, layout[1])
    assert sorted(number for number, _ in collected(running)) == list(range(LIMIT))


def check_counted(running: LocalJob, parallelism: int) -> None:
    """The last checkpoint is a cut: each number that was emitted is counted and collected, once."""
    records = collected(running)
    emitted = [n for split in states(running, "numbers") for k, end in split for n in range(k, end, 6)]
    assert sorted(number for number, _ in records) == sorted(emitted)
    for group in range(GROUPS):
        counts = sorted(count for number, count in records if number % GROUPS == group)
        assert counts == list(range(1, len(counts) + 1)), f"group {group}"
    found: Counter[str] = Counter()
    for index, state in enumerate(states(running, "counting")):
        assert {subtask_of_group(key_group(group, 128), 128, parallelism) for group in state} <= {index}
        found.update(state)
    assert found == Counter(group_of(number) for number in emitted)


def test_a_job_with_unaligned_checkpoints_is_rescaled_from_a_savepoint(
    transport: MemoryTransport,
) -> None:
    unaligned = {"checkpoint": {"unaligned": True}}
    job = counting_job("unaligned", (2, 3, 2), LIMIT, **unaligned)
    run_until(job, transport, lambda r: len(collected(r)) >= 100, savepoint=True)
    job = counting_job("unaligned", (2, 2, 2), LIMIT, **unaligned)
    running = run_until(job, transport, lambda r: len(collected(r)) >= LIMIT, savepoint=True)
    check_counted(running, 2)


def test_large_states_go_through_storage(transport: MemoryTransport, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"state_storage": f"file://{tmp_path}", "checkpoint": {"inline_state_max": 16}}
    for parallelism in (2, 5):
        job = splits_job("large", parallelism, LIMIT, **changes)
        running = run_until(job, transport, lambda r, p=parallelism: len(kept(r)) >= 100 * p)  # type: ignore[misc]
    numbers = kept(running)
    assert sorted(numbers) == list(range(len(numbers)))
    last = last_of(running)
    assert last is not None and any(s.state is not None and s.state.location for s in last.subtasks.values())


def test_a_derived_state_that_needs_storage_and_has_none_refuses_before_anybody_is_fenced(
    transport: MemoryTransport,
) -> None:
    with LocalJob(splits_job("large", 5, LIMIT), transport) as running:
        wait_until(lambda: len(kept(running)) == LIMIT, "all of them kept")
        epoch = running.client.history().epoch
        match = r"redistributed state of subtask keepers/0 of job large has .* cannot be stored: above 16 bytes"
        with pytest.raises(JobRefused, match=match):
            LocalJob(splits_job("large", 1, LIMIT, checkpoint={"inline_state_max": 16}), transport).start()
        assert running.client.history().epoch == epoch


def test_without_a_rule_the_start_is_refused_and_the_old_parallelism_still_runs(transport: MemoryTransport) -> None:
    run_until(splits_job("strict", 2, LIMIT), transport, lambda r: len(kept(r)) >= 100)
    strict = new_job("strict")
    strict.operator("keepers", parallelism=3, subtask=Keeping, codec="json", state_codec="json")
    match = "the operator does not say how they are redistributed"
    with pytest.raises(JobRefused, match=match), LocalJob(strict, transport):
        pass
    running = run_until(splits_job("strict", 2, LIMIT), transport, lambda r: len(kept(r)) >= LIMIT)
    assert sorted(kept(running)) == list(range(LIMIT))


def test_a_start_that_cannot_be_rescaled_leaves_the_topics_as_narrow_as_they_are(transport: MemoryTransport) -> None:
    """A topic never loses a partition that it has been given: a slip of the pen would cost the broker for ever."""
    run_until(splits_job("narrow", 2, LIMIT), transport, lambda r: len(kept(r)) >= 100)
    events = splits_job("narrow", 2, LIMIT).settings.topics.events("keepers")
    for rescale, partitions in ((None, 2), ("list", 3)):
        job = new_job("narrow")
        job.operator(
            "keepers", parallelism=3, coordinator=lambda: HandingOut(LIMIT), codec="json", state_codec="json",
            subtask=Keeping, rescale=rescale,
        )  # fmt: skip
        coordinator = CoordinatorRuntime(job.settings, job.coordinators, transport)
        coordinator.leave()
        if rescale is None:
            with pytest.raises(JobRefused, match="does not say how they are redistributed"):
                coordinator.run()
        else:
            coordinator.run()
        assert transport.describe_topics([events])[events].partitions == partitions


def test_a_functions_error_refuses_before_anybody_is_fenced(transport: MemoryTransport) -> None:
    """A start that will be refused must not end the coordinator that is at work."""
    with LocalJob(splits_job("at-work", 2, 10_000), transport) as running:
        wait_until(lambda: len(kept(running)) >= 20, "a checkpoint")
        epoch = running.client.history().epoch
        other = new_job("at-work")
        other.operator(
            "keepers", parallelism=3, subtask=Keeping, codec="json", state_codec="json", rescale=lambda states, n: [1]
        )
        with pytest.raises(JobRefused, match="must return a list of 3 states, and returned 1 of them"):
            LocalJob(other, transport).start()
        assert running.client.history().epoch == epoch


@pytest.mark.parametrize("at", ["deal", "store"])
def test_a_coordinator_killed_while_it_deals_leaves_the_checkpoint_to_the_next_whatever_its_parallelism(
    transport: MemoryTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    changes: dict[str, Any] = {"state_storage": f"file://{tmp_path}", "checkpoint": {"inline_state_max": 16}}
    run_until(splits_job("killed", 2, LIMIT, **changes), transport, lambda r: len(kept(r)) >= 200)

    class Killed(BaseException):
        pass

    calls = 0
    inner = StateStorage.put

    def put(self: StateStorage, location: str, data: bytes) -> None:
        nonlocal calls
        inner(self, location, data)
        if "rescaled" in location and (calls := calls + 1) == 3:
            raise Killed

    def perform(self: Redistribution, wanted: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patched:
        if at == "store":
            patched.setattr(StateStorage, "put", put)
        else:
            patched.setattr(Redistribution, "perform", perform)
        dying = LocalJob(splits_job("killed", 5, LIMIT, **changes), transport)
        with pytest.raises(Exception, match="Killed"), dying:
            dying.wait(20)
    running = run_until(splits_job("killed", 3, LIMIT, **changes), transport, lambda r: len(kept(r)) >= LIMIT)
    assert sorted(kept(running)) == list(range(LIMIT))


class HandingOutToFiles(HandingOut):
    """Its state is bytes: a file sink's is."""

    def checkpoint_coordinator(self, checkpoint_id: int, result: Any) -> None:
        result.complete(b"%d" % self.next)

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        super().reset_to_checkpoint(checkpoint_id, int(state or 0))


class Writing(FileSink):
    """Writes the numbers that it is handed; a notice never comes, so a restore alone makes them visible."""

    def handle_operator_event(self, event: int) -> None:
        self.write(event)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        super().notify_checkpoint_complete(NO_CHECKPOINT)


def handed_out(running: LocalJob) -> int:
    """How many numbers had been, by the last checkpoint."""
    last = last_of(running)
    state = None if last is None else last.header.operators[0].coordinator_state
    return int(state.inline or 0) if state is not None else 0


def test_what_a_file_sink_had_prepared_is_visible_once_whichever_subtasks_are_gone(
    transport: MemoryTransport, tmp_path: Path
) -> None:
    for phase, parallelism in enumerate((3, 2, 4, 1)):
        job, limit = new_job("files"), 50 * (phase + 1)
        job.operator(
            "out", parallelism=parallelism, coordinator=partial(HandingOutToFiles, limit), codec="json",
            subtask=partial(Writing, tmp_path), rescale=FileSink.rescale,
        )  # fmt: skip
        run_until(job, transport, lambda r, limit=limit: handed_out(r) == limit, savepoint=True)  # type: ignore[misc]
        visible = sorted(number for path in tmp_path.glob("*.jsonl") for number in map(int, path.read_text().split()))
        assert visible == list(range(50 * phase))


def records_of(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "record", "name": "Kept", "fields": list(fields)}}


class HandingOutRecords(HandingOut):
    """Its state is a list of one record: coordinator and subtasks share a codec."""

    def checkpoint_coordinator(self, checkpoint_id: int, result: Any) -> None:
        result.complete([{"n": self.next, "note": "next"}])

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        super().reset_to_checkpoint(checkpoint_id, state[0]["n"] if state else 0)


class KeepingRecords(Keeping):
    def snapshot_state(self, checkpoint_id: int) -> Any:
        return [{"n": number, "note": "of the second file"} for number in self.numbers]

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.numbers = [each["n"] for each in state]


def test_states_of_an_older_schema_are_dealt_under_todays_and_read_by_whoever_comes_next(
    transport: MemoryTransport,
) -> None:
    """What is dealt is written anew; what is not, a coordinator's state, is still of the older schema."""
    note = {"name": "note", "type": "string"}
    first = records_of({"name": "n", "type": "int"})
    second = records_of({"name": "n", "type": "long"}, {**note, "default": "of the first file"})
    third = records_of({"name": "n", "type": "long"}, note)

    def job(parallelism: int, schema: dict[str, Any], limit: int = LIMIT, interval: float = 0.05) -> Job:
        made = new_job("records", checkpoint={"interval": interval})
        made.operator(
            "keepers", parallelism=parallelism, coordinator=lambda: HandingOutRecords(limit), codec="json",
            state_codec=schema, subtask=KeepingRecords, rescale="list",
        )  # fmt: skip
        return made

    def count(running: LocalJob) -> int:
        last = last_of(running)
        codec = job(1, second).operators["keepers"].state_codec
        learn(codec, text_of(first))
        handles = [] if last is None else [s.state for s in last.subtasks.values()]
        return sum(len(codec.decode(handle.inline)) for handle in handles if handle is not None and handle.inline)

    run_until(job(2, first), transport, lambda r: count(r) >= 100)
    running = run_until(job(5, second, interval=60.0), transport, lambda r: last_of(r).header.rescaled_from >= 0)  # type: ignore[union-attr]
    with pytest.raises(JobRefused, match="state of operator keepers: /\\*/note: the writer does not have this field"):
        LocalJob(job(5, third), transport).start()
    running = run_until(job(3, second), transport, lambda r: count(r) == LIMIT)
    running = run_until(job(4, third), transport, lambda r: last_of(r).header.rescaled_from < 0)  # type: ignore[union-attr]
    last = last_of(running)
    assert last is not None and count(running) == LIMIT
