"""The cache of jars, with downloads that come from memory."""

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from penstock.broker import JarChecksumMismatch, JarsUnavailable, LockTimeout, jar_cache, jars, kafka_jars
from penstock.broker.pinned_jars import Pin, kafka_pins


def content(artifact: str) -> bytes:
    return artifact.encode() * 1000


PINS = tuple(
    Pin("group", name, "1.0", hashlib.sha256(content(name)).hexdigest(), len(content(name))) for name in ("one", "two")
)


class FakeDownload:
    """Writes what the pins want, unless told to do worse; remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.failures = 0
        self.wrong: set[str] = set()
        self.before: Callable[[], None] = lambda: None

    def __call__(self, pins: Sequence[Pin], work: Path, deadline: float, on_bytes: Callable[[int, int], None]) -> None:
        self.asked.append([pin.artifact for pin in pins])
        self.before()
        if len(self.asked) <= self.failures:
            raise JarsUnavailable("no network")
        for number, pin in enumerate(pins, 1):
            bad = pin.artifact in self.wrong
            (work / pin.file_name).write_bytes(b"?" * pin.size_bytes if bad else content(pin.artifact))
            on_bytes(number, number * pin.size_bytes)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(jars, "_PAUSE_S", 0.0)


@pytest.fixture
def download() -> FakeDownload:
    return FakeDownload()


def leftovers() -> list[str]:
    return sorted(path.name for path in jar_cache().glob(".fetch-*"))


def test_jars_are_fetched_once(download: FakeDownload) -> None:
    paths = kafka_jars(pins=PINS, download=download)
    assert [path.read_bytes() for path in paths] == [content("one"), content("two")]
    assert kafka_jars(pins=PINS, download=download) == paths
    assert download.asked == [["one", "two"]]
    assert leftovers() == []


def test_progress_says_what_is_fetched_and_how_far(download: FakeDownload) -> None:
    said: list[str] = []
    kafka_jars(said.append, pins=PINS, download=download)
    assert said[0] == "fetching Apache Kafka 4.3.0: 0 of 2 jars, 0 of 0 MB"
    assert said[-1] == "fetching Apache Kafka 4.3.0: 2 of 2 jars, 0 of 0 MB"
    assert len(said) == len(set(said)), "nothing is said twice"


def test_a_jar_with_another_sha256_is_never_in_the_cache(download: FakeDownload) -> None:
    download.wrong = {"two"}
    with pytest.raises(JarChecksumMismatch, match=r"two-1\.0\.jar"):
        kafka_jars(pins=PINS, download=download)
    assert not (jar_cache() / "two-1.0.jar").exists()
    assert leftovers() == []

    download.wrong = set()
    kafka_jars(pins=PINS, download=download)
    assert download.asked[-1] == ["two"], "the good jar was kept, the bad one fetched again"


def test_a_fetch_that_fails_twice_is_tried_a_third_time(download: FakeDownload) -> None:
    download.failures = 2
    kafka_jars(pins=PINS, download=download)
    assert len(download.asked) == 3


def test_a_fetch_that_goes_on_failing_gives_up_with_the_reason(download: FakeDownload) -> None:
    download.failures = 99
    with pytest.raises(JarsUnavailable, match="no network"):
        kafka_jars(pins=PINS, download=download)
    assert len(download.asked) == 3


def test_a_jar_that_lost_bytes_is_fetched_again(download: FakeDownload) -> None:
    first, _ = kafka_jars(pins=PINS, download=download)
    first.write_bytes(b"short")
    kafka_jars(pins=PINS, download=download)
    assert download.asked[1:] == [["one"]]
    assert first.read_bytes() == content("one")


def test_jars_that_nobody_wrote_down_as_verified_are_verified_not_believed(download: FakeDownload) -> None:
    first, second = kafka_jars(pins=PINS, download=download)
    (jar_cache() / "verified").unlink()
    second.write_bytes(b"?" * len(content("two")))
    kafka_jars(pins=PINS, download=download)
    assert download.asked[1:] == [["two"]]
    assert first.read_bytes() == content("one")


def test_a_changed_pin_is_fetched_although_a_jar_of_that_name_is_there(download: FakeDownload) -> None:
    old = Pin("group", "one", "1.0", hashlib.sha256(b"old").hexdigest(), 3)
    jar_cache().mkdir(parents=True)
    (jar_cache() / "one-1.0.jar").write_bytes(b"old")
    (jar_cache() / "verified").write_text(old.sha256 + "\n")
    kafka_jars(pins=PINS, download=download)
    assert download.asked == [["one", "two"]]


def test_of_two_fetches_at_once_the_second_waits_and_takes_what_the_first_brought(download: FakeDownload) -> None:
    second_waits = threading.Event()
    download.before = lambda: _require(second_waits.wait(20), "the second fetch waits")
    first = threading.Thread(target=kafka_jars, kwargs={"pins": PINS, "download": download})
    first.start()
    _until(lambda: download.asked)

    def progress(text: str) -> None:
        assert "another process is fetching" in text
        second_waits.set()

    paths = kafka_jars(progress, pins=PINS, download=download)
    first.join(20)
    assert [path.read_bytes() for path in paths] == [content("one"), content("two")]
    assert len(download.asked) == 1


def test_waiting_for_another_fetch_has_a_deadline(download: FakeDownload) -> None:
    gave_up = threading.Event()
    download.before = lambda: _require(gave_up.wait(20), "the second fetch gave up")
    first = threading.Thread(target=kafka_jars, kwargs={"pins": PINS, "download": download})
    first.start()
    _until(lambda: download.asked)
    with pytest.raises(LockTimeout, match=r"fetch\.lock"):
        kafka_jars(pins=PINS, download=download, timeout_s=0.1)
    gave_up.set()
    first.join(20)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, download: FakeDownload) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(JarsUnavailable, match="XDG_CACHE_HOME"):
        kafka_jars(pins=PINS, download=download)


def test_what_a_killed_fetch_left_is_removed(download: FakeDownload) -> None:
    (jar_cache() / ".fetch-killed").mkdir(parents=True)
    kafka_jars(pins=PINS, download=download)
    assert leftovers() == []


def test_the_pinned_list_is_whole_and_names_no_host() -> None:
    pins = kafka_pins()
    assert len(pins) == 45
    assert len({pin.file_name for pin in pins}) == 45
    assert all(len(pin.sha256) == 64 and pin.size_bytes > 0 for pin in pins)
    assert {pin.version for pin in pins if pin.group == "org.apache.kafka"} == {"4.3.0"}


def _require(held: bool, what: str) -> None:
    if not held:
        raise TimeoutError(what)


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
