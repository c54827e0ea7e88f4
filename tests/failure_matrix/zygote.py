"""Starts the processes under test by forking: each import of everything would cost more than most of them do.

Run as a program by :mod:`tests.failure_matrix.children`: requests come as lines of JSON, and pids and exit codes go
back as such. It ends with the end of its input, and so with the test that started it, even if that is killed; and its
children end with it: the kernel kills them, stopped ones included, and where it cannot be asked to, they look.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.02


def serve() -> None:
    import penstock.cli.app  # noqa: F401  # what the children would import

    from . import process

    unread = b""
    while True:
        readable, _, _ = select.select([0], [], [], _LOOK_S)
        if readable:
            read = os.read(0, 65536)
            if not read:
                return
            *lines, unread = (unread + read).split(b"\n")
            for line in lines:
                wanted = json.loads(line)
                _say({"started": _fork(wanted, process.run), "number": wanted["number"]})
        _reap()


def _fork(wanted: dict[str, Any], run: Any) -> int:
    """Returns when the child is safe: from then on it does not outlive this process, whatever is done to it."""
    parent = os.getpid()
    safe, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(safe)
        _child(wanted, run, parent, tell)
    os.close(tell)
    os.read(safe, 1)
    os.close(safe)
    return pid


def _child(wanted: dict[str, Any], run: Any, parent: int, safe: int) -> NoReturn:
    code = 70
    try:
        die_with(parent)
        os.close(safe)
        os.setsid()
        log = os.open(wanted["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, stream in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(descriptor, stream)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        os.environ.update(wanted["environment"])
        code = run(wanted["arguments"])
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def die_with(parent: int) -> None:
    """The calling process ends when its parent does, also when it is stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before that was said
            os._exit(99)
        return

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(99)

    threading.Thread(target=look, daemon=True).start()


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _say({"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _say(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    serve()
