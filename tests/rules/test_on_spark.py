"""Rules on a real Spark over a real Kafka, changed by a topic, a file and the command line, while processes are killed.

Python workers, the coordinator and the driver with its JVM get SIGKILL, in an order that the round draws.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from penstock.broker import EmbeddedBroker
from penstock.schemas.topics import DEFAULT_PREFIX, TopicNames
from penstock.transport.kafka import KafkaTransport
from penstock.transport.ports import LogRecord, Partition
from tests.rounds import rounds
from tests.sources.real_kafka import Topics

from .driving import Completed, completed_in, have_one_version, rule

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

PROGRAM = Path(__file__).with_name("job_on_spark.py")
PENSTOCK = Path(sys.executable).with_name("penstock")
OPERATORS, PARALLELISM = ("by-topic", "by-file"), 2
PATIENCE_S = 120.0
CHANGES = ("by_topic", "by_topic", "by_file", "by_file", "by_command", "by_command", "back")
KILLS = ("kill_worker", "kill_worker", "kill_coordinator", "kill_coordinator", "kill_driver")


class OnSpark:
    """The job's processes, and everything that its checkpoint log has said so far."""

    def __init__(self, broker: str, job: str, folder: Path) -> None:
        self.broker, self.job, self.folder = broker, job, folder
        self.sets = 0
        self.records: list[LogRecord] = []
        self._told = (folder / "processes.log").open("ab")
        self._ends = threading.Event()
        self.coordinator = self._coordinator()
        self.driver = self._start(sys.executable, str(PROGRAM))
        self._watch = threading.Thread(target=self._follow, daemon=True)

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, cwd=self.folder, env=self._environment(), stdout=self._told, stderr=self._told,
            start_new_session=True,
        )  # fmt: skip

    def _coordinator(self) -> subprocess.Popen[bytes]:
        return self._start(str(PENSTOCK), "coordinator", str(PROGRAM), "--broker", self.broker)

    def _environment(self) -> dict[str, str]:
        own = {"RULES_JOB": self.job, "RULES_BROKER": self.broker, "RULES_FOLDER": str(self.folder)}
        return {**os.environ, **own, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}

    def _follow(self) -> None:
        """Read the checkpoint log as it grows: the coordinator deletes from it."""
        with closing(KafkaTransport(self.broker)) as transport:
            log = Partition(TopicNames(DEFAULT_PREFIX, self.job).checkpoints, 0)
            with closing(transport.reader({log: 0})) as reader:
                while not self._ends.is_set():
                    self.records += reader.poll(0.2)

    def close(self) -> None:
        self._ends.set()
        for process in (self.driver, self.coordinator):
            kill(process)
        if self._watch.is_alive():
            self._watch.join(10.0)
        self._told.close()

    # ---- looking

    def completed(self, operator: str) -> list[Completed]:
        return completed_in(list(self.records), operator)

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            ended = [process.args for process in (self.driver, self.coordinator) if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                words = (self.folder / "processes.log").read_text(errors="replace")[-5000:]
                raise AssertionError(f"not within {PATIENCE_S:g} s: {what}; ended: {ended}; {words}")
            self._ends.wait(0.1)

    def wait_until_it_runs(self) -> None:
        topics = TopicNames(DEFAULT_PREFIX, self.job)
        with closing(KafkaTransport(self.broker)) as transport:
            self.wait_for(lambda: topics.checkpoints in transport.list_topics(topics.root), "the job's topics")
        self._watch.start()
        self.wait_for_checkpoint()

    def wait_for_checkpoint(self) -> None:
        """Wait for one more."""
        known = len(self.completed(OPERATORS[0]))
        self.wait_for(lambda: len(self.completed(OPERATORS[0])) > known, "a checkpoint")

    def wait_for_rules(self, operator: str, names: list[str]) -> None:
        self.wait_for(lambda: self.completed(operator)[-1].names == names, f"{names} in a checkpoint of {operator}")

    # ---- changing

    def new_set(self) -> list[dict[str, Any]]:
        self.sets += 1
        return [rule(f"set {self.sets}"), rule("always")]

    def by_topic(self) -> list[str]:
        new = self.new_set()
        producer = Producer({"bootstrap.servers": self.broker})
        producer.produce(self.job, json.dumps(new).encode())
        assert producer.flush(30.0) == 0
        return [each["name"] for each in new]

    def by_file(self) -> list[str]:
        new, path = self.new_set(), self.folder / "rules.json"
        path.with_suffix(".new").write_text(json.dumps(new))
        path.with_suffix(".new").rename(path)
        return [each["name"] for each in new]

    def ask(self, operator: str, request: Any) -> dict[str, Any] | None:
        """Ask by the command line; None where it says that nobody answers, or that it is refused."""
        asked = subprocess.run(
            [PENSTOCK, "request", self.job, operator, json.dumps(request), "--broker", self.broker, "--timeout", "60"],
            cwd=self.folder, env=self._environment(), capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        return json.loads(asked.stdout) if asked.returncode == 0 else None


def kill(process: subprocess.Popen[bytes]) -> None:
    """The process and all that it has started, at once."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


@pytest.fixture
def on_spark(kafka_broker: EmbeddedBroker, tmp_path: Path) -> Iterator[OnSpark]:
    name = Topics(kafka_broker.bootstrap).create(name=f"rules-{uuid.uuid4().hex[:12]}")
    job = OnSpark(kafka_broker.bootstrap, name, tmp_path)
    try:
        job.wait_until_it_runs()
        yield job
    finally:
        job.close()


class Weather:
    """What happens to the job, in an order of the round's own."""

    def __init__(self, seed: int, job: OnSpark) -> None:
        self.random, self.job = random.Random(seed), job

    def steps(self) -> list[str]:
        steps = [*CHANGES, *KILLS]
        self.random.shuffle(steps)
        return steps

    def take(self, step: str) -> None:
        getattr(self, step)()
        if self.random.random() < 0.4:
            self.job.wait_for_checkpoint()

    def by_topic(self) -> None:
        self.job.by_topic()

    def by_file(self) -> None:
        self.job.by_file()

    def by_command(self) -> None:
        self.job.ask(self.random.choice(OPERATORS), {"set": self.job.new_set()})

    def back(self) -> None:
        self.job.ask(self.random.choice(OPERATORS), {"rollback": self.random.randint(0, 3)})

    def kill_worker(self) -> None:
        pids = [int(path.read_text()) for path in self.job.folder.glob("*.pid")]
        with suppress(ProcessLookupError):
            os.kill(self.random.choice(pids), signal.SIGKILL)

    def kill_coordinator(self) -> None:
        kill(self.job.coordinator)
        self.job.coordinator = self.job._coordinator()

    def kill_driver(self) -> None:
        kill(self.job.driver)
        self.job.driver = self.job._start(sys.executable, str(PROGRAM))


@pytest.mark.soak
@pytest.mark.parametrize("round_", rounds())
def test_every_checkpoint_has_one_version_whatever_is_killed(round_: int, on_spark: OnSpark) -> None:
    weather = Weather(round_, on_spark)
    for step in weather.steps():
        weather.take(step)
    on_spark.wait_for_checkpoint()
    for operator, change in zip(OPERATORS, (on_spark.by_topic, on_spark.by_file), strict=True):
        on_spark.wait_for_rules(operator, change())  # the last word of each source counts
    answer = on_spark.ask("by-file", {"set": [rule("by request")]})
    assert answer is not None and answer["changed"]
    on_spark.wait_for_rules("by-file", ["by request"])
    for operator in OPERATORS:
        found = have_one_version(on_spark.completed(operator), PARALLELISM)
        print(f"round {round_}: {operator}: {len(found)} checkpoints, {len({c.version for c in found})} versions")
