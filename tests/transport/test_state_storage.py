"""State storage: what is put can be got, by name, and nothing half-written is ever seen."""

from __future__ import annotations

import os
import pickle
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from penstock.schemas.errors import StateError
from penstock.transport import StateStorage


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield (tmp_path / "states").as_uri()
        return
    made = f"memory://states-{uuid.uuid4().hex}"
    yield made
    files, root = fsspec.core.url_to_fs(made)
    if files.exists(root):
        files.rm(root, recursive=True)


@pytest.fixture
def storage(url: str) -> StateStorage:
    return StateStorage(url, "penstock.flights.")


def test_a_state_is_read_back_as_it_was_put(storage: StateStorage) -> None:
    storage.put("7/1/counts/0-12", b"\x00state\xff" * 1_000)
    storage.put("7/1/counts/1-13", b"")
    assert storage.get("7/1/counts/0-12") == b"\x00state\xff" * 1_000
    assert storage.get("7/1/counts/1-13") == b""


def test_whether_a_state_is_there_can_be_told_without_reading_it(storage: StateStorage) -> None:
    assert not storage.has("1/a")
    storage.put("1/a", b"")
    assert storage.has("1/a")
    storage.delete(["1/a"])
    assert not storage.has("1/a")


def test_states_are_listed_by_location(storage: StateStorage) -> None:
    assert storage.list() == []
    for location in ("2/a", "1/b/c", "1/b/a"):
        storage.put(location, b"x")
    assert storage.list() == ["1/b/a", "1/b/c", "2/a"]


def test_deleted_states_are_gone_and_missing_ones_are_fine(storage: StateStorage) -> None:
    storage.put("1/a", b"x")
    storage.put("1/b", b"x")
    storage.delete(["1/a", "1/never-there", "9/nor/this"])
    assert storage.list() == ["1/b"]
    with pytest.raises(StateError, match="1/a"):
        storage.get("1/a")


def test_jobs_that_share_a_url_do_not_see_each_other(url: str) -> None:
    one, other = StateStorage(url, "penstock.one."), StateStorage(url, "penstock.other.")
    one.put("1/a", b"one")
    other.put("1/a", b"other")
    assert one.get("1/a") == b"one"
    other.delete(other.list())
    assert one.list() == ["1/a"]


def test_a_missing_state_is_an_error_that_names_storage_job_and_location(storage: StateStorage, url: str) -> None:
    with pytest.raises(StateError) as caught:
        storage.get("7/1/counts/0-12")
    for part in (url, "penstock.flights", "7/1/counts/0-12", "does not exist"):
        assert part in str(caught.value)


def test_without_a_url_the_error_names_the_setting() -> None:
    storage = StateStorage(None, "penstock.flights.")
    with pytest.raises(StateError, match="state_storage"):
        storage.put("1/a", b"x")
    with pytest.raises(StateError, match="state_storage"):
        storage.get("1/a")


@pytest.mark.parametrize("location", ["", "/etc/x", "a//b", "../b", "a/../../b", "a/.", "a\\..\\b"])
def test_a_location_outside_the_jobs_folder_is_refused(storage: StateStorage, location: str) -> None:
    with pytest.raises(StateError, match="is no name of a state"):
        storage.put(location, b"x")


def test_an_unknown_kind_of_storage_is_a_state_error() -> None:
    with pytest.raises(StateError, match="nosuchthing://"):
        StateStorage("nosuchthing://somewhere", "job").put("1/a", b"x")


@pytest.mark.parametrize("password", ["hunter2", "p@hunter2", "hunter2@"])
def test_passwords_in_the_url_are_not_shown(password: str) -> None:
    """What stands behind the last @ is the host."""
    storage = StateStorage(f"nosuchthing://me:{password}@somewhere/x", "job")
    with pytest.raises(StateError) as caught:
        storage.get("1/a")
    assert "hunter2" not in str(caught.value) + repr(storage)
    assert "nosuchthing://***@somewhere/x" in repr(storage)


@pytest.mark.parametrize(
    "url",
    [
        "nosuchthing://user:hun/ter2@somewhere/x",
        "nosuchthing://user:h@nter/2@somewhere/x",
        "nosuchthing://somewhere/x?secret=hunter2hunter2&region=hunter2",
        "nosuchthing://user:hunter%2Fhunter2@somewhere/x?token=a%20hunter2",
    ],
)
def test_no_part_of_a_secret_is_shown_wherever_it_stands_in_the_url(url: str) -> None:
    storage = StateStorage(url, "penstock.flights.")
    with pytest.raises(StateError) as caught:
        storage.get("1/a")
    told = str(caught.value) + repr(storage) + storage.owner_location
    assert not [part for part in ("hunter", "ter2", "h@nter", "user") if part in told], told
    assert "somewhere/x" in told


def test_a_secret_that_a_library_names_by_itself_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("InvalidAccessKey: a hunter2/ is unknown")

    monkeypatch.setattr(fsspec.core, "url_to_fs", refuse)
    with pytest.raises(StateError, match=r"InvalidAccessKey: \*\*\* is unknown"):
        StateStorage("s3://somewhere/x?key=a%20hunter2%2F", "penstock.flights.").get("1/a")


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX")
def test_a_stored_state_and_the_mark_of_its_owner_are_for_their_user_alone(tmp_path: Path) -> None:
    storage = StateStorage(tmp_path.as_uri(), "penstock.flights.")
    storage.put("1/a", b"state")
    storage.mark_owner(b"mark", instead=False)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_it_travels_to_another_process(storage: StateStorage, url: str) -> None:
    storage.put("1/a", b"x")
    assert repr(pickle.loads(pickle.dumps(storage))) == repr(storage)
    if url.startswith("file:"):
        assert pickle.loads(pickle.dumps(storage)).get("1/a") == b"x"


def test_a_crash_while_writing_leaves_neither_a_state_nor_a_listed_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = StateStorage(tmp_path.as_uri(), "job")

    class Crash(BaseException):
        pass

    def crash(*_: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crash)
        patch.setattr(os, "remove", lambda _: None)  # a real crash cleans nothing up
        with pytest.raises(Crash):
            storage.put("1/a", b"x")
    assert len([file for file in tmp_path.rglob("*") if file.is_file()]) == 1
    assert storage.list() == []
    with pytest.raises(StateError):
        storage.get("1/a")
    storage.put("1/a", b"x")
    assert storage.get("1/a") == b"x"


def test_an_error_that_passes_is_tried_again_and_one_that_stays_is_reported(
    storage: StateStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.put("1/a", b"x")
    files = storage._files()
    real, calls = files.cat_file, []

    def flaky(path: str, failures: int) -> bytes:
        calls.append(path)
        if len(calls) <= failures:
            raise TimeoutError("the network hiccups")
        return bytes(real(path))

    monkeypatch.setattr(files, "cat_file", lambda path: flaky(path, 2))
    assert storage.get("1/a") == b"x"
    assert len(calls) == 3
    calls.clear()
    monkeypatch.setattr(files, "cat_file", lambda path: flaky(path, 99))
    with pytest.raises(StateError, match="the network hiccups"):
        storage.get("1/a")
    assert len(calls) == 3


def test_a_state_that_does_not_stand_whole_is_not_called_stored(
    storage: StateStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage._files(), "size", lambda path: 1)
    with pytest.raises(StateError, match=r"3 bytes were stored and 1 are there"):
        storage.put("1/a", b"abc")
