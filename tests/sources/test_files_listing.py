"""Which files are found, in which order, and what is remembered of them."""

from __future__ import annotations

import json
import os
import pickle
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest

from penstock.errors import ConfigurationError, SubtaskError
from penstock.sources import Files, Split
from penstock.sources.files_walk import is_same, version_of
from penstock.sources.listing import Closed, Listed, Progress


def write(folder: Path, *names: str, text: str = "1\n") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def listed(files: Files, progress: Progress, root: Path | str, count: int | None = None) -> list[str]:
    """Names below ``root`` of what a pass finds, which ``progress`` then knows; it may end after ``count``."""
    names: list[str] = []
    for found in files.walk(progress):
        progress.note(found)
        if isinstance(found, Listed):
            names.append(found.split.id.split(f"{root}/", 1)[1])
        if count is not None and len(names) == count:
            break
    return names


def restored(progress: Progress) -> Progress:
    return Progress.from_json(json.loads(json.dumps(progress.to_json())))


NAMES = ["a.csv", "z.csv", "a-b/1.csv", "a/1.csv", "a/2.csv", "a/b/3.csv", "b/4.csv", "b/c/d/5.csv"]


def test_files_come_folder_by_folder_and_a_listing_goes_on_anywhere(tmp_path: Path) -> None:
    write(tmp_path, *NAMES)
    files = Files(str(tmp_path))
    assert listed(files, Progress(), tmp_path) == NAMES
    for count in range(1, len(NAMES)):
        progress = Progress()
        first = listed(files, progress, tmp_path, count)
        assert first + listed(files, restored(progress), tmp_path) == NAMES
        assert len(json.dumps(progress.to_json())) < 100


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("", NAMES),
        ("/*.csv", ["a.csv", "z.csv"]),
        ("/*/*.csv", ["a-b/1.csv", "a/1.csv", "a/2.csv", "b/4.csv"]),
        ("/a*/[13].csv", ["a-b/1.csv", "a/1.csv"]),
        ("/**/?.csv", NAMES),
        ("/b/**", ["b/4.csv", "b/c/d/5.csv"]),
        ("/*/*/3.csv", ["a/b/3.csv"]),
        ("/a.csv", ["a.csv"]),
        ("/none*", []),
    ],
)
def test_a_path_is_a_file_a_folder_or_a_pattern(tmp_path: Path, pattern: str, found: list[str]) -> None:
    write(tmp_path, *NAMES, "_SUCCESS", ".a.csv.crc", "a/_temporary/1.csv", ".hidden/1.csv")
    assert listed(Files(f"{tmp_path}{pattern}"), Progress(), tmp_path) == found
    progress = Progress()
    files = Files(f"file://{tmp_path}{pattern}", discover_every=1)
    assert listed(files, progress, tmp_path) == found
    assert listed(files, restored(progress), tmp_path) == []


def test_folders_that_cannot_hold_what_matches_are_not_listed(tmp_path: Path) -> None:
    write(tmp_path, *NAMES)
    files = Files(f"{tmp_path}/a/*.csv")
    file_system, _ = files._file_system()
    looked_at, ls = [], file_system.ls

    def watched(path: str, **named: Any) -> Any:
        looked_at.append(path)
        return ls(path, **named)

    file_system.ls = watched
    try:
        assert listed(files, Progress(), tmp_path) == ["a/1.csv", "a/2.csv"]
    finally:
        del file_system.ls
    assert looked_at == [f"{tmp_path}/a"]


def test_new_files_of_any_name_are_found_once(tmp_path: Path) -> None:
    write(tmp_path, *NAMES)
    files, progress = Files(str(tmp_path), discover_every=1), Progress()
    assert listed(files, progress, tmp_path, 3) == NAMES[:3]
    progress = restored(progress)
    write(tmp_path, "0.csv", "a/0.csv", "zz/1.csv")
    assert sorted(listed(files, progress, tmp_path)) == sorted([*NAMES[3:], "0.csv", "a/0.csv", "zz/1.csv"])
    (tmp_path / "a.csv").unlink()
    assert listed(files, progress, tmp_path) == []
    write(tmp_path, "a.csv")  # a name that was read is not read again
    assert listed(files, progress, tmp_path) == []
    assert progress.remembered == len(NAMES) + 3


def test_with_open_folders_earlier_ones_are_neither_listed_nor_remembered(tmp_path: Path) -> None:
    days = [f"day={day:02}" for day in range(1, 8)]
    for day in days[:4]:
        write(tmp_path, f"{day}/x.csv", f"{day}/y.csv")
    files, progress = Files(str(tmp_path), discover_every=1, open_folders=2), Progress()
    assert len(listed(files, progress, tmp_path)) == 8
    assert (progress.closed, sorted(progress.seen)) == ("day=02/", ["day=03/", "day=04/"])
    write(tmp_path, "day=03/a.csv", "day=04/a.csv", "day=05/a.csv")
    progress = restored(progress)
    assert listed(files, progress, tmp_path) == ["day=03/a.csv", "day=04/a.csv", "day=05/a.csv"]
    assert (progress.closed, sorted(progress.seen)) == ("day=03/", ["day=04/", "day=05/"])
    write(tmp_path, "day=03/late.csv", "day=04/late.csv")
    assert listed(files, progress, tmp_path) == ["day=04/late.csv"]


def test_a_folder_with_a_file_that_is_too_young_stays_open(tmp_path: Path) -> None:
    write(tmp_path, "1/old.csv", "2/old.csv", "3/old.csv")
    os.utime(tmp_path / "1/old.csv", (0, 0))
    os.utime(tmp_path / "3/old.csv", (0, 0))
    files, progress = Files(str(tmp_path), discover_every=1, open_folders=1, min_age=60), Progress()
    assert listed(files, progress, tmp_path) == ["1/old.csv", "3/old.csv"]
    assert progress.closed == "1/"
    os.utime(tmp_path / "2/old.csv", (0, 0))
    assert listed(files, restored(progress), tmp_path) == ["2/old.csv"]


def test_a_folder_that_is_not_there_yet_is_found_later_or_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"there is no folder file://{tmp_path}/in"):
        listed(Files(f"{tmp_path}/in"), Progress(), tmp_path)
    files, progress = Files(f"{tmp_path}/in/*.csv", discover_every=1), Progress()
    assert listed(files, progress, tmp_path) == []
    write(tmp_path, "in/a.csv")
    assert listed(files, progress, tmp_path) == ["in/a.csv"]


def test_any_file_system_of_fsspec_will_do() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe({"/files-any/x/1.csv": b"1", "/files-any/x/2.csv": b"2", "/files-any/y.json": b"{}"})
    try:
        files = Files("memory://files-any/**/*.csv", discover_every=1)
        progress = Progress()
        assert listed(files, progress, "memory:///files-any") == ["x/1.csv", "x/2.csv"]
        memory.pipe("/files-any/x/0.csv", b"0")
        assert listed(files, progress, "memory:///files-any") == ["x/0.csv"]
    finally:
        memory.rm("/files-any", recursive=True)


def opened(files: Files, split: Split) -> bytes:
    with files.open(files.cut(split)[0]) as file:
        return file.read()


def splits_of(files: Files) -> list[Split]:
    return [found.split for found in files.walk(Progress()) if not isinstance(found, Closed)]


def test_a_file_that_has_changed_since_it_was_listed_fails_by_name(tmp_path: Path) -> None:
    write(tmp_path, "a.csv")
    files = Files(str(tmp_path))
    (split,) = splits_of(files)
    assert opened(files, split) == b"1\n"
    with pytest.raises(SubtaskError, match=r"a\.csv has changed since it was listed"), files.open(files.cut(split)[0]):
        write(tmp_path, "a.csv", text="while it is read")
    with pytest.raises(SubtaskError, match=r"its size was 2 and is 16.*min_age"):
        opened(files, split)
    write(tmp_path, "a.csv", text="2\n")
    os.utime(tmp_path / "a.csv", (time.time() + 5, time.time() + 5))
    with pytest.raises(SubtaskError, match=r"version"):
        opened(files, split)
    (tmp_path / "a.csv").unlink()
    with pytest.raises(SubtaskError, match=r"a\.csv is gone since it was listed"):
        opened(files, split)


@pytest.mark.parametrize(
    ("listed_as", "asked_alone", "same"),
    [
        ({"ETag": "a", "LastModified": "2024-05-01T10:00:00.250+00:00"}, {"ETag": "a"}, True),
        ({"ETag": "a"}, {"ETag": "b"}, False),
        ({"ETag": "a"}, {"LastModified": "2024-05-01T10:00:00+00:00"}, True),
        ({"LastModified": "2024-05-01T10:00:00.250+00:00"}, {"LastModified": "2024-05-01T10:00:00+00:00"}, True),
        ({"LastModified": "2024-05-01T10:00:00+00:00"}, {"LastModified": "2024-05-01T10:00:01+00:00"}, False),
        ({}, {"mtime": 3.5}, True),
        ({"mtime": 3.5}, {"mtime": 3.25}, False),
        ({"updated": "yesterday"}, {"updated": "today"}, True),
    ],
    ids=str,
)
def test_a_version_is_held_against_one_of_its_kind(
    listed_as: dict[str, Any], asked_alone: dict[str, Any], same: bool
) -> None:
    assert is_same(version_of(listed_as), version_of(asked_alone)) is same


def test_a_file_that_is_overwritten_in_memory_has_changed(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/files-changed/a.csv", b"1")
    files = Files("memory://files-changed")
    (split,) = splits_of(files)
    assert opened(files, split) == b"1"
    memory.pipe("/files-changed/a.csv", b"12")
    with pytest.raises(SubtaskError, match="has changed"):
        opened(files, split)
    memory.rm("/files-changed", recursive=True)


def test_storage_options_travel_with_the_job_and_are_shown_nowhere(tmp_path: Path) -> None:
    files = Files(str(tmp_path), storage_options={"token": "a secret"})
    files._file_system()
    again = pickle.loads(pickle.dumps(files))
    assert again.storage_options == {"token": "a secret"}
    assert "secret" not in repr(again)
    assert "secret" not in json.dumps(again.identity())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": ""}, "the path of Files"),
        ({"path": 3}, "the path of Files"),
        ({"discover_every": -1}, "discover_every"),
        ({"discover_every": 1, "open_folders": 0}, "open_folders"),
        ({"open_folders": 1}, "open_folders of .* needs discover_every"),
        ({"min_age": 5}, "min_age of .* needs discover_every"),
        ({"discover_every": 1, "min_age": float("nan")}, "min_age"),
    ],
)
def test_what_is_wrong_is_refused_where_it_is_given(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Files(**{"path": "/in", **arguments})


def test_an_unknown_file_system_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="nosuch"):
        splits_of(Files("nosuch://in/"))
