"""The detached broker: started, found, stopped, and told apart from what is no longer there."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import AnotherBrokerRuns, DetachedBroker, detached_status, start_detached, stop_detached
from penstock.broker.processes import identity

pytestmark = pytest.mark.kafka


@pytest.fixture(autouse=True)
def registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The registration file, in a data folder of the test's own. (The cache of jars is the user's: 44 MB.)"""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    yield tmp_path / "share" / "penstock" / "broker" / "broker.json"
    stop_detached()


def test_start_status_stop(tmp_path: Path, registration: Path, client: type[Any]) -> None:
    assert detached_status() is None
    assert stop_detached() is None

    started = start_detached()
    assert started.data_dir == registration.parent / "data"
    assert detached_status() == started
    kafka = client(started.bootstrap)
    kafka.create_topic("t")
    kafka.produce("t", b"kept")

    assert stop_detached() == started
    assert identity(started.pid) is None
    assert detached_status() is None
    assert not registration.exists()

    again = start_detached()
    assert client(again.bootstrap).consume("t", 1) == [b"kept"]


STARTER = """
import sys
from penstock.broker import start_detached
started = start_detached()
print(started.bootstrap, started.pid, flush=True)
sys.stdin.read()
"""


def test_it_outlives_the_process_that_started_it_and_another_finds_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as starter:
        assert starter.stdout is not None
        bootstrap, pid = starter.stdout.readline().decode().split()
        # As a closed terminal would, and worse.
        os.killpg(starter.pid, signal.SIGHUP)
        starter.kill()
        starter.wait(20)
        found = detached_status()
        assert found is not None
        assert (found.bootstrap, found.pid) == (bootstrap, int(pid))
        assert start_detached() == found, "starting again returns the running one"


def test_of_two_starts_at_once_one_starts_and_both_return_it() -> None:
    with ThreadPoolExecutor() as pool:
        first, second = (future.result(120) for future in [pool.submit(start_detached) for _ in range(2)])
    assert first == second == detached_status()


def test_asking_for_another_port_or_other_data_than_the_running_ones_is_refused(tmp_path: Path) -> None:
    started = start_detached()
    port = int(started.bootstrap.rpartition(":")[2])
    assert start_detached(started.data_dir, port) == started
    with pytest.raises(AnotherBrokerRuns, match=started.bootstrap):
        start_detached(port=port + 1)
    with pytest.raises(AnotherBrokerRuns, match=str(started.data_dir)):
        start_detached(tmp_path / "other")


def test_after_sigkill_the_registration_is_stale_and_a_start_makes_a_new_one(
    registration: Path, eventually: Callable[..., None]
) -> None:
    started = start_detached()
    os.kill(started.pid, signal.SIGKILL)
    eventually(lambda: identity(started.pid) is None, "the broker is gone")
    assert registration.exists()
    assert detached_status() is None
    assert not registration.exists(), "it is cleaned up"

    again = start_detached()
    assert again.pid != started.pid
    assert again.bootstrap == started.bootstrap, "jobs that run without a broker meanwhile find it again"


def test_where_its_last_port_is_taken_it_takes_another() -> None:
    started = start_detached()
    stop_detached()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", int(started.bootstrap.rpartition(":")[2])))
        other.listen(1)
        assert start_detached().bootstrap != started.bootstrap


def test_a_process_that_got_the_id_of_a_dead_broker_is_left_alone(registration: Path) -> None:
    registration.parent.mkdir(parents=True)
    with subprocess.Popen(["sleep", "60"]) as bystander:
        try:
            registration.write_text(
                json.dumps(
                    {
                        "bootstrap": "127.0.0.1:1",
                        "pid": bystander.pid,
                        "data_dir": str(registration.parent / "data"),
                        "process_identity": "another boot or another start time",
                    }
                )
            )
            assert detached_status() is None
            assert stop_detached() is None
            assert bystander.poll() is None
        finally:
            bystander.kill()


@pytest.mark.parametrize("garbage", ["", "[]", "{}", '{"pid": "x"}', "\x00"])
def test_a_registration_that_cannot_be_read_counts_as_none(registration: Path, garbage: str) -> None:
    registration.parent.mkdir(parents=True)
    registration.write_text(garbage)
    assert detached_status() is None
    assert not registration.exists()


def test_a_broker_that_ignores_sigterm_is_killed(registration: Path) -> None:
    started: DetachedBroker = start_detached()
    # 0 s to stop in order: the way a broker goes that does not react.
    assert stop_detached(timeout_s=0) == started
    assert identity(started.pid) is None
