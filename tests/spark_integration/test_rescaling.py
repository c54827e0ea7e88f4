"""A job whose driver is killed, and started again with another parallelism: every number in exactly one list."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from penstock.broker import EmbeddedBroker
from penstock.client.job_client import JobClient
from penstock.testing import check_logs
from penstock.transport.kafka import KafkaTransport
from tests.rescaling.jobs import splits_job

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

DRIVER = Path(__file__).with_name("rescaling_driver.py")
LIMIT = 900
DEADLINE_S = 120.0


@contextmanager
def driver(broker: EmbeddedBroker, name: str, parallelism: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A driver process of its own; whatever becomes of the test, it is gone afterwards, with its JVM."""
    command = [sys.executable, str(DRIVER), broker.bootstrap, name, str(parallelism), str(LIMIT)]
    with log.open("wb") as told:
        process = subprocess.Popen(command, stdout=told, stderr=told, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def lists_of(client: JobClient) -> list[list[int]]:
    """In the last completed checkpoint; none where there is no such checkpoint."""
    last = client.history().last if client.exists() else None
    if last is None:
        return []
    found = []
    for subtask in sorted(last.subtasks)[: last.header.operators[0].parallelism]:
        state = last.subtasks[subtask].state
        assert state is not None and state.inline is not None
        found.append(json.loads(state.inline))
    return found


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert process.poll() is None, f"the driver has ended with {process.returncode}: {log.read_text()[-3000:]}"
        assert time.monotonic() < deadline, f"not in time: {log.read_text()[-3000:]}"
        time.sleep(0.1)


def test_two_to_five_to_three_with_exact_lists(kafka_broker: EmbeddedBroker, tmp_path: Path, job_name: str) -> None:
    """Drivers killed, tasks of the layout before perhaps still there for a moment; the last run stops in order."""
    with closing(KafkaTransport(kafka_broker.bootstrap)) as transport:
        client = JobClient(transport, job_name)
        for phase, parallelism in enumerate((2, 5, 3), start=1):
            log, wanted = tmp_path / f"driver-{parallelism}.log", LIMIT * phase // 3
            with driver(kafka_broker, job_name, parallelism, log) as process:

                def reached(p: int = parallelism, wanted: int = wanted) -> bool:
                    lists = lists_of(client)
                    return len(lists) == p and sum(map(len, lists)) >= wanted

                wait_until(reached, process, log)
                if phase == 3:
                    assert client.stop(savepoint=True).accepted
                    assert process.wait(60) == 0
                lists = lists_of(client)  # ahead of the kill: a commit that it breaks off holds readers up for a minute
            assert sorted(number for each in lists for number in each) == list(range(sum(map(len, lists))))
            print(f"{parallelism} subtasks: lists of {[len(each) for each in lists]} numbers")
        assert sorted(number for each in lists_of(client) for number in each) == list(range(LIMIT))
        check_logs(transport, splits_job(job_name, 3, LIMIT).settings)
        rescaled = [c.header.rescaled_from for c in client.history().checkpoints.values()]
        print(f"kept checkpoints, derived from: {rescaled}")
        client.purge()
