"""State storage in an object store: one request for each state, no buckets made, and a deadline for every answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.schemas.errors import StateError
from penstock.transport import StateStorage, state_storage

from ..s3 import S3Server, s3_server

pytestmark = pytest.mark.more
PATIENCE_S = 30.0
LOCATION = "7/1/counts/0-12"
KEY = f"/lake/states/penstock.flights/{LOCATION}"


@pytest.fixture
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        server.make_bucket("lake")
        yield server


@pytest.fixture
def storage(server: S3Server) -> StateStorage:
    return StateStorage("s3://lake/states", "penstock.flights.")


EVERY_CALL: list[Callable[[StateStorage], Any]] = [
    lambda storage: storage.put(LOCATION, b"state"),
    lambda storage: storage.get(LOCATION),
    lambda storage: storage.has(LOCATION),
    lambda storage: storage.list(),
    lambda storage: storage.delete([LOCATION]),
    lambda storage: storage.owner_mark(),
    lambda storage: storage.mark_owner(b"mark", instead=False),
    lambda storage: storage.mark_owner(b"mark"),
]
NAMES = ["put", "get", "has", "list", "delete", "owner_mark", "mark_owner", "mark_owner_instead"]


def test_a_put_is_one_request_and_a_get_another(server: S3Server, storage: StateStorage) -> None:
    storage.put(LOCATION, bytes(200_000))
    assert server.requests == {("PUT", KEY): 1}
    server.requests.clear()
    assert storage.get(LOCATION, 200_000) == bytes(200_000)
    assert server.requests == {("GET", KEY): 1}


@pytest.mark.parametrize("call", EVERY_CALL, ids=NAMES)
def test_a_misspelt_bucket_is_named_and_not_made(server: S3Server, call: Callable[[StateStorage], Any]) -> None:
    with pytest.raises(StateError, match=r"bucket 'laek' does not exist; create it, or correct state_storage"):
        call(StateStorage("s3://laek/states", "penstock.flights."))
    assert server.buckets == {"lake"}


@pytest.mark.parametrize("call", EVERY_CALL, ids=NAMES)
def test_a_bucket_that_vanished_is_no_empty_folder(
    server: S3Server, storage: StateStorage, call: Callable[[StateStorage], Any]
) -> None:
    storage.mark_owner(b"mark")
    storage.put(LOCATION, b"state")
    server.lose_bucket("lake")
    with pytest.raises(StateError, match="bucket 'lake' does not exist"):
        call(storage)


def test_what_is_missing_in_a_bucket_is_just_missing(storage: StateStorage) -> None:
    assert storage.owner_mark() is None
    assert not storage.has(LOCATION)
    assert storage.list() == []
    storage.delete([LOCATION])
    with pytest.raises(StateError, match="it does not exist"):
        storage.get(LOCATION)


def test_rights_on_objects_alone_suffice(server: S3Server, storage: StateStorage) -> None:
    """Without the right to list, S3 says of a missing object that it is forbidden."""
    server.object_rights_only()
    assert storage.owner_mark() is None
    storage.mark_owner(b"mark", instead=False)
    assert storage.owner_mark() == b"mark"
    storage.put(LOCATION, b"state")
    assert storage.has(LOCATION)
    assert storage.get(LOCATION) == b"state"
    storage.delete([LOCATION])
    assert not server.holds(KEY)
    with pytest.raises(StateError, match=r"cannot list the states of job penstock.flights.*Access Denied"):
        storage.list()


def test_a_mark_that_may_not_be_read_is_neither_overwritten_nor_taken_for_missing(
    server: S3Server, storage: StateStorage
) -> None:
    storage.mark_owner(b"another's")
    server.denied = lambda method, path: method == "GET"
    with pytest.raises(StateError, match="Access Denied"):
        storage.mark_owner(b"mine", instead=False)
    server.denied = lambda method, path: False
    assert storage.owner_mark() == b"another's"


def test_no_rights_are_an_error_at_once(server: S3Server, storage: StateStorage) -> None:
    server.denied = lambda method, path: True
    with pytest.raises(StateError, match=f"cannot store state '{LOCATION}'.*Access Denied"):
        storage.put(LOCATION, b"state")
    assert server.requests == {("PUT", KEY): 1}


@pytest.mark.parametrize("call", [EVERY_CALL[0], EVERY_CALL[1]], ids=["put", "get"])
def test_an_endpoint_that_accepts_and_never_answers_holds_no_call_beyond_its_deadline(
    server: S3Server, storage: StateStorage, call: Callable[[StateStorage], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.put(LOCATION, b"before")
    server.requests.clear()
    monkeypatch.setattr(state_storage, "_TRY_S", 0.5)
    ended: list[object] = []

    def run() -> None:
        try:
            ended.append(call(storage))
        except StateError as error:
            ended.append(error)

    with server.silent() as asked:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert asked.wait(PATIENCE_S)
        thread.join(PATIENCE_S)  # and the server still answers nothing
        assert len(ended) == 1 and "no answer within 0.5 s, tried 3 times" in str(ended[0])
    assert sum(server.requests.values()) <= 3
    monkeypatch.undo()
    storage.put(LOCATION, b"after")
    assert storage.get(LOCATION) == b"after"


def test_a_slow_answer_is_waited_for(server: S3Server, storage: StateStorage) -> None:
    server.delay_s = 0.5
    began = time.monotonic()
    storage.put(LOCATION, b"state")
    assert time.monotonic() - began >= 0.5
    assert server.requests == {("PUT", KEY): 1}


def test_a_larger_state_may_take_longer(server: S3Server, storage: StateStorage, monkeypatch: Any) -> None:
    monkeypatch.setattr(state_storage, "_TRY_S", 0.1)
    monkeypatch.setattr(state_storage, "_BYTES_PER_S", 10_000)
    server.delay_s = 1.0
    storage.put(LOCATION, bytes(300_000))
    assert server.requests == {("PUT", KEY): 1}
    with pytest.raises(StateError, match=r"no answer within 0\.1"):
        storage.put(LOCATION, b"small")


def test_an_endpoint_that_is_gone_is_an_error_that_names_the_state(
    server: S3Server, storage: StateStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_storage, "_TRY_S", 1.0)
    server.close()
    with pytest.raises(StateError, match=f"cannot store state '{LOCATION}' of job penstock.flights in s3://lake"):
        storage.put(LOCATION, b"state")
