"""The processes under test end with the test, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.broker.processes import identity

from .children import ROOT

STARTS_TWO = """
import sys, time
from pathlib import Path
from tests.failure_matrix.children import Zygote
zygote, folder = Zygote(), Path(sys.argv[1])
told = {
    "bootstrap": "127.0.0.1:1", "job": "nobody", "gates": "nowhere", "who": "list/0", "run": "none", "events": 1,
    "policy": "replay", "checkpoint": {}, "restart": {}, "timing": {}, "event_ack_timeout": 60.0,
}
waits, frozen = (zygote.start(["subtask", "0"], told, folder / name) for name in ("waits", "frozen"))
frozen.freeze()
print(waits.pid, frozen.pid, flush=True)
time.sleep(600)
"""
DEADLINE_S = 30.0


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing ends a stopped process")
def test_they_die_with_a_killed_test_also_when_they_are_stopped(tmp_path: Path) -> None:
    test = subprocess.Popen([sys.executable, "-c", STARTS_TWO, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE)
    assert test.stdout is not None
    with test, test.stdout as said:
        children = {pid: identity(pid) for pid in map(int, said.readline().split())}
        assert len(children) == 2 and None not in children.values()
        test.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + DEADLINE_S
    while any(identity(pid) == who for pid, who in children.items()):
        assert time.monotonic() < deadline, f"not gone within {DEADLINE_S:g} s: {children}"
        time.sleep(0.02)
