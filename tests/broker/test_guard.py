"""The guard, with a shell in the broker's place: a child must not outlive its parent."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.broker import processes
from penstock.broker.parent_death import GuardedProcess
from penstock.broker.processes import identity

# $0 is the test's folder, by which the process is known; "exec sleep" would lose it.
LONG = "while :; do sleep 0.05; done"
DEAF = f'trap "" TERM; touch "$0/deaf"; {LONG}'


def guarded(tmp_path: Path, script: str) -> GuardedProcess:
    with (tmp_path / "stderr").open("wb") as stderr:
        return GuardedProcess(["/bin/sh", "-c", script, f"{tmp_path}/"], stderr=stderr, env=os.environ)


PARENT = """
import os, sys
from pathlib import Path
from penstock.broker.parent_death import GuardedProcess
with open(os.devnull, "wb") as null:
    process = GuardedProcess(["/bin/sh", "-c", sys.argv[1], sys.argv[2]], stderr=null, env=os.environ)
if sys.argv[3] == "fork" and os.fork() == 0:
    sys.stdin.read()     # a forked child that outlives its parent, until the test closes its input
    os._exit(0)
print(process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("fork", ["alone", "fork"])
@pytest.mark.parametrize("state", ["running", "stopped"])
def test_the_command_dies_with_its_sigkilled_parent(
    tmp_path: Path, eventually: Callable[..., None], fork: str, state: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, LONG, f"{tmp_path}/", fork], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert identity(pid) is not None
        if state == "stopped":
            os.kill(pid, signal.SIGSTOP)
        parent.kill()
        eventually(lambda: identity(pid) is None, "the command is gone")


def test_a_command_that_ends_by_itself_is_seen_at_once(tmp_path: Path, eventually: Callable[..., None]) -> None:
    process = guarded(tmp_path, "exit 3")
    eventually(lambda: not process.alive(), "the end is seen")
    process.release()


def test_a_command_that_ignores_sigterm_is_killed_at_the_deadline(
    tmp_path: Path, eventually: Callable[..., None]
) -> None:
    process = guarded(tmp_path, DEAF)
    eventually((tmp_path / "deaf").exists, "the command ignores SIGTERM")
    assert processes.end(process, timeout_s=0.2) is False
    assert not process.alive()


def test_a_paused_command_can_be_ended(tmp_path: Path) -> None:
    process = guarded(tmp_path, LONG)
    processes.send_signal(process, signal.SIGSTOP)
    assert processes.end(process, timeout_s=20) is True


def test_the_parent_is_not_fooled_by_a_killed_guard(tmp_path: Path, eventually: Callable[..., None]) -> None:
    process = guarded(tmp_path, LONG)
    guard = process._guard
    guard.kill()
    guard.wait(20)
    assert process.alive(), "the command itself still runs"
    process.release()
    eventually(lambda: not process.alive(), "the watcher ends the command")


def test_an_identity_tells_a_process_from_a_later_one_of_the_same_id(tmp_path: Path) -> None:
    mine = identity(os.getpid())
    assert mine is not None and mine == identity(os.getpid())
    assert mine != identity(os.getppid())
    with subprocess.Popen(["/bin/sh", "-c", "exit"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert identity(child.pid) is None, "a zombie does not count"
