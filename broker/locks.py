"""A lock between processes: a file under flock(2), which the kernel gives back when its holders are gone."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import LockTimeout

_POLL_S = 0.05


@contextmanager
def file_lock(path: Path, timeout_s: float, on_wait: Callable[[], None] | None = None) -> Iterator[int]:
    """Hold the lock file at `path`; yields its descriptor, which a child can inherit to go on holding it.

    Waits up to `timeout_s` seconds for another holder, and calls `on_wait` once if it has to; raises LockTimeout then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _acquire(descriptor, path, time.monotonic() + timeout_s, on_wait)
        # Closing, not unlocking: a child that inherited the descriptor keeps the lock.
        yield descriptor
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, path: Path, deadline: float, on_wait: Callable[[], None] | None) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise LockTimeout(
                    f"another process holds the lock {path}: wait for it to finish, or end it, and try again"
                ) from None
        if on_wait is not None:
            on_wait()
            on_wait = None
        time.sleep(_POLL_S)
