"""A file sink, called as a runtime calls it: what is visible when, and who may touch which file."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.schemas.errors import StateError
from penstock.sinks import FileSink, staging
from penstock.sinks.staging import HIDDEN

from .driving import hidden, opened, records, restored, snapshot, visible, write

# ---- the two phases


def test_records_become_visible_when_their_checkpoint_has_completed_and_not_before(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    write(sink, 1, 2)
    assert visible(tmp_path) == {}
    snapshot(sink, 7)
    assert visible(tmp_path) == {}
    write(sink, 3)
    sink.notify_checkpoint_complete(7)
    assert list(visible(tmp_path).values()) == [[1, 2]]


def test_a_restore_makes_visible_what_the_missed_notice_would_have(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    write(sink, 1, 2)
    state = snapshot(sink, 7)
    assert visible(tmp_path) == {}
    restored(tmp_path, 7, state, attempt=2)
    assert records(tmp_path) == [1, 2]
    assert hidden(tmp_path) == []


def test_a_checkpoint_without_records_makes_no_file(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    for n in range(3):
        state = snapshot(sink, n)
        sink.notify_checkpoint_complete(n)
    assert visible(tmp_path) == {} and hidden(tmp_path) == []
    assert restored(tmp_path, 2, state, attempt=2).settled


def test_the_records_of_an_aborted_checkpoint_come_with_the_next_one(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    write(sink, 1)
    snapshot(sink, 7)
    sink.notify_checkpoint_aborted(7, "declined")
    write(sink, 2)
    state = snapshot(sink, 8)
    sink.notify_checkpoint_complete(8)
    assert records(tmp_path) == [1, 2]
    restored(tmp_path, 8, state, attempt=2)
    assert records(tmp_path) == [1, 2]


def test_a_state_names_every_file_whose_notice_has_not_come(tmp_path: Path) -> None:
    """Subsumed, aborted, or not told yet: whichever it was, the newer checkpoint holds the records."""
    sink = opened(tmp_path)
    for n in (7, 8, 9):
        write(sink, n)
        state = snapshot(sink, n)
    restored(tmp_path, 9, state, attempt=2)
    assert records(tmp_path) == [7, 8, 9]


def test_a_notice_covers_the_checkpoints_below_it_and_none_above(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    for n in (7, 8, 9):
        write(sink, n)
        snapshot(sink, n)
    sink.notify_checkpoint_complete(8)
    assert records(tmp_path) == [7, 8]
    sink.notify_checkpoint_complete(8)
    assert records(tmp_path) == [7, 8]
    sink.notify_checkpoint_complete(9)
    assert records(tmp_path) == [7, 8, 9]


def test_a_checkpoint_that_completes_behind_a_newer_one_changes_nothing(tmp_path: Path) -> None:
    """A savepoint may; whoever goes back to it later finds its files visible."""
    sink = opened(tmp_path)
    write(sink, 1)
    savepoint = snapshot(sink, 7)
    write(sink, 2)
    snapshot(sink, 8)
    sink.notify_checkpoint_complete(8)
    before = visible(tmp_path)
    sink.notify_checkpoint_complete(7)
    restored(tmp_path, 7, savepoint, attempt=90)
    assert visible(tmp_path) == before


def test_a_state_that_is_restored_again_and_again_gives_its_records_once(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    write(sink, 1, 2)
    state = snapshot(sink, 7)
    for attempt in (2, 3, 4):
        restored(tmp_path, 7, state, attempt)
    assert records(tmp_path) == [1, 2]


def test_the_state_after_a_restore_names_nothing_that_is_visible_already(tmp_path: Path) -> None:
    """So a reader may take the file away as soon as the next checkpoint has completed."""
    sink = opened(tmp_path)
    write(sink, 1)
    again = restored(tmp_path, 7, snapshot(sink, 7), attempt=2)
    assert again.settled
    assert json.loads(snapshot(again, 8))["files"] == []


def test_a_state_of_another_parallelism_is_committed_by_whoever_gets_it(tmp_path: Path) -> None:
    sink = opened(tmp_path, subtask=5)
    write(sink, 1)
    state = snapshot(sink, 7)
    restored(tmp_path, 7, state, attempt=2, subtask=0)
    assert records(tmp_path) == [1]


def test_everything_is_on_the_disk_before_the_state_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(staging, "sync", synced.append)
    sink = opened(tmp_path / "new" / "out")
    folder = tmp_path / "new" / "out"
    assert synced == [folder, folder.parent, tmp_path], "folders that were made"
    del synced[:]
    write(sink, 1)
    (name,) = hidden(folder)
    snapshot(sink, 7)
    assert synced == [folder / HIDDEN / name, folder / HIDDEN]
    del synced[:]
    sink.notify_checkpoint_complete(7)
    assert synced == [folder, folder / HIDDEN]
    del synced[:]
    snapshot(sink, 8)
    sink.notify_checkpoint_complete(8)
    assert synced == [], "nothing was written"


# ---- leftovers, and whose they are


def test_what_no_checkpoint_names_is_deleted_at_the_restore(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    write(sink, 1)
    state = snapshot(sink, 7)
    write(sink, 2)
    snapshot(sink, 8)
    write(sink, 3)
    assert len(hidden(tmp_path)) == 3
    again = restored(tmp_path, 7, state, attempt=2)
    assert hidden(tmp_path) == []
    write(again, 2, 3)
    snapshot(again, 9)
    again.notify_checkpoint_complete(9)
    assert records(tmp_path) == [1, 2, 3]


def test_a_first_attempt_that_died_leaves_nothing_behind_either(tmp_path: Path) -> None:
    write(opened(tmp_path, attempt=1), 1)
    sink = opened(tmp_path, attempt=2)
    write(sink, 1)
    snapshot(sink, 7)
    sink.notify_checkpoint_complete(7)
    assert records(tmp_path) == [1]
    assert hidden(tmp_path) == []


def test_an_attempt_that_starts_over_with_the_same_token_deletes_what_it_left(tmp_path: Path) -> None:
    """In a new generation the same attempt may go on; only one object at a time bears its token."""
    sink = opened(tmp_path, attempt=3)
    write(sink, 1)
    state = snapshot(sink, 7)
    write(sink, 2)
    snapshot(sink, 8)
    sink.close()
    again = restored(tmp_path, 7, state, attempt=3)
    assert hidden(tmp_path) == []
    write(again, 2)
    snapshot(again, 9)
    again.notify_checkpoint_complete(9)
    assert records(tmp_path) == [1, 2]


def test_an_attempt_that_ends_takes_its_unfinished_file_with_it_and_nothing_else(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    write(sink, 1)
    state = snapshot(sink, 7)
    write(sink, 2)
    sink.close()
    assert len(hidden(tmp_path)) == 1
    sink.close()
    restored(tmp_path, 7, state, attempt=2)
    assert records(tmp_path) == [1]


OTHERS = [
    {"job": "flights2"},
    {"job": "flight"},
    {"operator": "out-1"},
    {"operator": "ou"},
    {"subtask": 11},
    {"subtask": 0},
    {"attempt": 51},
    {"attempt": 100},
    {"epoch": 2, "attempt": 1},
]


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_files_of_another_job_operator_subtask_or_of_a_newer_attempt_are_left_alone(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    theirs = opened(tmp_path, **{"attempt": 1, **other})
    write(theirs, 1)
    state = snapshot(theirs, 7)
    write(theirs, 2)
    snapshot(theirs, 8)
    before = hidden(tmp_path)
    assert len(before) == 2
    restored(tmp_path, 7, None, attempt=50)
    snapshot(opened(tmp_path, attempt=50), 9)
    assert hidden(tmp_path) == before
    theirs.notify_checkpoint_complete(8)
    assert records(tmp_path) == [1, 2]
    assert json.loads(state)["files"]


def test_two_jobs_write_into_one_folder_without_knowing_of_each_other(tmp_path: Path) -> None:
    one, two = opened(tmp_path, job="one"), opened(tmp_path, job="two")
    write(one, 1)
    write(two, 2)
    restored(tmp_path, 7, snapshot(one, 7), attempt=2, job="one")
    assert records(tmp_path) == [1]
    snapshot(two, 7)
    two.notify_checkpoint_complete(7)
    assert records(tmp_path) == [1, 2]


def test_names_say_whose_a_file_is_and_no_two_files_ever_have_the_same(tmp_path: Path) -> None:
    """A job that was purged and begins again has the same epoch, attempt and checkpoint once more."""
    for life in (1, 2):
        sink = opened(tmp_path, attempt=57, epoch=3)
        write(sink, life)
        snapshot(sink, 12)
        sink.notify_checkpoint_complete(12)
    assert records(tmp_path) == [1, 2]
    for name in visible(tmp_path):
        assert re.fullmatch(r"flights\.out\.1\.e3\.a57\.c12\.[0-9a-f]{12}\.jsonl", name)


# ---- zombies


def test_a_zombie_whose_unfinished_file_was_deleted_cannot_make_it_part_of_a_checkpoint(tmp_path: Path) -> None:
    zombie = opened(tmp_path)
    state = snapshot(zombie, 7)
    write(zombie, 1)
    successor = restored(tmp_path, 7, state, attempt=2)
    write(successor, 1)
    write(zombie, 2)
    with pytest.raises(FileNotFoundError):
        snapshot(zombie, 8)
    zombie.close()
    snapshot(successor, 8)
    successor.notify_checkpoint_complete(8)
    assert records(tmp_path) == [1]


def test_what_a_zombie_begins_later_is_never_visible_and_goes_with_the_next_attempt(tmp_path: Path) -> None:
    zombie = opened(tmp_path)
    state = snapshot(zombie, 7)
    successor = restored(tmp_path, 7, state, attempt=2)
    write(zombie, 1)
    snapshot(zombie, 8)  # its ack counts no more
    write(successor, 1)
    state = snapshot(successor, 9)
    successor.notify_checkpoint_complete(9)
    assert records(tmp_path) == [1]
    restored(tmp_path, 9, state, attempt=3)
    assert hidden(tmp_path) == []
    assert records(tmp_path) == [1]


def test_a_zombie_that_is_told_late_commits_what_its_successor_has_committed_already(tmp_path: Path) -> None:
    zombie = opened(tmp_path)
    write(zombie, 1)
    state = snapshot(zombie, 7)
    successor = restored(tmp_path, 7, state, attempt=2)
    write(successor, 2)
    zombie.notify_checkpoint_complete(7)
    snapshot(successor, 8)
    successor.notify_checkpoint_complete(8)
    assert records(tmp_path) == [1, 2]


def test_a_zombie_that_wakes_up_in_its_restore_deletes_nothing_of_its_successor(tmp_path: Path) -> None:
    first = opened(tmp_path)
    write(first, 1)
    state = snapshot(first, 7)
    zombie = opened(tmp_path, attempt=2)
    successor = restored(tmp_path, 7, state, attempt=3)
    write(successor, 2)
    snapshot(successor, 8)
    write(successor, 3)
    zombie.restore_state(7, state)
    snapshot(successor, 9)
    successor.notify_checkpoint_complete(9)
    assert records(tmp_path) == [1, 2, 3]


def test_two_attempts_that_restore_at_once_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one renames first, at the worst moment: between this one's decision and its rename."""
    first = opened(tmp_path)
    write(first, 1)
    state = snapshot(first, 7)
    replace, raced = os.replace, []

    def replace_after_the_other(source: Path, target: Path) -> None:
        if source.parent.name == HIDDEN and not target.name.startswith(".") and not raced:
            raced.append(target)
            replace(source, target)
        replace(source, target)

    monkeypatch.setattr(staging.os, "replace", replace_after_the_other)
    restored(tmp_path, 7, state, attempt=2)
    assert raced
    assert records(tmp_path) == [1]


# ---- another parallelism


def uncommitted(folder: Path, *subtasks: int, epoch: int = 1) -> list[bytes]:
    """The states of those subtasks after a checkpoint whose notice never came; each has written its index."""
    states = []
    for subtask in subtasks:
        sink = opened(folder, epoch=epoch, subtask=subtask)
        write(sink, subtask)
        states.append(snapshot(sink, 7))
    return states


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
@pytest.mark.parametrize("backwards", [False, True])
def test_what_subtasks_had_not_made_visible_is_made_so_by_whoever_is_there(
    tmp_path: Path, parallelism: int, backwards: bool
) -> None:
    """Whoever is restored deletes what it finds of its own: so its own are given to it, and to nobody else."""
    states = FileSink.rescale(uncommitted(tmp_path, 0, 1, 2), parallelism)
    assert len(states) == parallelism
    for subtask in sorted(range(parallelism), reverse=backwards):
        restored(tmp_path, 8, states[subtask], attempt=1, epoch=2, subtask=subtask)
    assert records(tmp_path) == [0, 1, 2]
    assert hidden(tmp_path) == []


def test_another_parallelism_and_back_before_anybody_has_started_gives_each_its_own(tmp_path: Path) -> None:
    states = FileSink.rescale(FileSink.rescale(uncommitted(tmp_path, 0, 1, 2), 2), 3)
    for subtask in (2, 1, 0):
        restored(tmp_path, 9, states[subtask], attempt=1, epoch=3, subtask=subtask)
    assert records(tmp_path) == [0, 1, 2]


def test_a_sink_is_told_which_folder_its_files_were_written_to_also_when_rescaled(tmp_path: Path) -> None:
    (state,) = FileSink.rescale([None, *uncommitted(tmp_path / "old", 1)], 1)
    with pytest.raises(StateError, match=r"written to the folder .*old"):
        restored(tmp_path / "new", 8, state, attempt=1, epoch=2, subtask=0)


def test_a_state_that_does_not_say_who_wrote_a_file_is_not_rescaled() -> None:
    state = json.dumps({"version": 1, "folder": "/x", "files": [[7, "a.jsonl", "b.jsonl"]]})
    with pytest.raises(StateError, match=r"'a\.jsonl', which does not say which subtask wrote it"):
        FileSink.rescale([state], 2)
