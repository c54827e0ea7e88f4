"""How much memory a process takes, and what is measured of it in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_SAMPLE_S = 0.005


def resident_mb() -> float:
    """Of this process, now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Peak:
    """The most that this process has taken since :meth:`begin`, above what it took then; looked at every 5 ms."""

    def __init__(self) -> None:
        self.began_mb = self.grown_mb = 0.0

    def begin(self) -> None:
        self.began_mb, self.grown_mb = resident_mb(), 0.0

    def look(self) -> float:
        self.grown_mb = max(self.grown_mb, resident_mb() - self.began_mb)
        return self.grown_mb


@contextmanager
def watched() -> Iterator[Peak]:
    peak, over = Peak(), threading.Event()
    peak.begin()

    def watch() -> None:
        while not over.wait(_SAMPLE_S):
            peak.look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def in_a_process_of_its_own(bound_s: float, target: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """What ``target`` returns where nothing has run before it: memory that was freed there would hide what it takes."""
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=_run, args=(its, target, args, named))
    process.start()
    its.close()
    try:
        if not mine.poll(bound_s):
            raise TimeoutError(f"{target.__name__} has not returned within {bound_s:g} s")
        said: T | Exception = mine.recv()
    finally:
        process.join(10)
        process.kill()
    if isinstance(said, Exception):
        raise said
    return said


def _run(pipe: Connection, target: Callable[..., object], args: tuple[object, ...], named: dict[str, object]) -> None:
    try:
        pipe.send(target(*args, **named))
    except Exception as error:
        pipe.send(RuntimeError(f"{target.__name__} has failed: {error!r}"))
        raise
