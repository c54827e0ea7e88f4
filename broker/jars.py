"""The cache of Kafka's jars: fetched once, verified always, shared by every process of the user.

Only a verified jar is ever under its own name in the cache: a fetch works in a folder of its own and moves each jar
over when its SHA-256 is right. The file `verified` lists what was checked, so that later starts compare sizes only.
A lock file lets one process fetch while others wait for its result.
"""

import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from . import ivy
from .atomic import replace_text
from .errors import JarChecksumMismatch, JarsUnavailable
from .folders import cache_folder
from .locks import file_lock
from .pinned_jars import KAFKA_VERSION, Pin, kafka_pins

logger = logging.getLogger(__name__)

Progress = Callable[[str], None]
"""Told, in words for a user, what a long step is doing."""

Download = Callable[[Sequence[Pin], Path, float, Callable[[int, int], None]], None]
"""Puts jars into a folder: see ivy.download."""

FETCH_TIMEOUT_S = 300.0
_TRIES = 3
_PAUSE_S = 1.0


def jar_cache() -> Path:
    """The folder in the user's cache that holds this Kafka version."""
    return cache_folder() / f"kafka-{KAFKA_VERSION}"


def kafka_jars(
    progress: Progress | None = None,
    timeout_s: float = FETCH_TIMEOUT_S,
    *,
    pins: Sequence[Pin] | None = None,
    download: Download = ivy.download,
) -> list[Path]:
    """The paths of the broker's jars; fetches what the cache lacks (about 44 MB, a few seconds).

    `timeout_s` (seconds) bounds the whole call: waiting for another process that fetches, and three tries.
    `pins` and `download` are there for tests and mirrors of one's own.
    Raises JarsUnavailable, JarChecksumMismatch, JavaNotFound or LockTimeout.
    """
    wanted = kafka_pins() if pins is None else pins
    cache = jar_cache()
    say = progress or logger.info
    if not _is_verified(cache, wanted):
        try:
            _fill_once(cache, wanted, download, timeout_s, say)
        except OSError as error:
            raise JarsUnavailable(
                f"Kafka's jars cannot be kept in {cache}: {error}; free some space there, or name another cache "
                "folder in XDG_CACHE_HOME"
            ) from error
    return [cache / pin.file_name for pin in wanted]


def _fill_once(cache: Path, pins: Sequence[Pin], download: Download, timeout_s: float, say: Progress) -> None:
    """Fill the cache, or wait until another process has."""
    deadline = time.monotonic() + timeout_s

    def waiting() -> None:
        say(f"another process is fetching Apache Kafka {KAFKA_VERSION}; waiting for it")

    with file_lock(cache / "fetch.lock", timeout_s, waiting):
        if not _is_verified(cache, pins):
            _fill(cache, pins, download, deadline, say)


def _is_verified(cache: Path, pins: Sequence[Pin]) -> bool:
    """Whether every pin was verified before and still has its size: 45 calls of stat, not 44 MB to read."""
    try:
        verified = set((cache / "verified").read_text().split())
        return all(pin.sha256 in verified and (cache / pin.file_name).stat().st_size == pin.size_bytes for pin in pins)
    except OSError:
        return False


def _fill(cache: Path, pins: Sequence[Pin], download: Download, deadline: float, say: Progress) -> None:
    """Under the lock: fetch what is missing, and write down what is verified."""
    for left_by_a_killed_process in cache.glob(".fetch-*"):
        shutil.rmtree(left_by_a_killed_process, ignore_errors=True)
    for attempt in range(1, _TRIES + 1):
        missing = [pin for pin in pins if not pin.matches(cache / pin.file_name)]
        if not missing:
            break
        try:
            _fetch(cache, missing, download, deadline, say)
            break
        except JarsUnavailable as error:
            if attempt == _TRIES or time.monotonic() + _PAUSE_S >= deadline:
                raise
            say(f"fetching Apache Kafka {KAFKA_VERSION} failed, trying again ({attempt + 1} of {_TRIES})")
            logger.warning("fetching Kafka's jars, try %d of %d: %s", attempt, _TRIES, error)
            time.sleep(_PAUSE_S)
    replace_text(cache / "verified", "".join(f"{pin.sha256}\n" for pin in pins))


def _fetch(cache: Path, missing: Sequence[Pin], download: Download, deadline: float, say: Progress) -> None:
    total_mb = round(sum(pin.size_bytes for pin in missing) / 1e6)
    last = ""

    def report(jars: int, size_bytes: int) -> None:
        nonlocal last
        so_far = f"{min(jars, len(missing))} of {len(missing)} jars, {round(size_bytes / 1e6)} of {total_mb} MB"
        if so_far != last:
            say(f"fetching Apache Kafka {KAFKA_VERSION}: {so_far}")
            last = so_far

    report(0, 0)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as folder:
        work = Path(folder)
        download(missing, work, deadline, report)
        wrong = []
        for pin in missing:
            if pin.matches(work / pin.file_name):
                (work / pin.file_name).replace(cache / pin.file_name)
            else:
                wrong.append(pin.file_name)
        if wrong:
            raise JarChecksumMismatch(
                f"fetched, but not with the pinned SHA-256, and thrown away: {', '.join(wrong)}. A proxy or mirror "
                f"may have changed them, or the download was cut short; nothing of them is in {cache}. Try again"
            )
    report(len(missing), sum(pin.size_bytes for pin in missing))
