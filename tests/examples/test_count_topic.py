"""The topic that an example counts is a real one; by ``penstock run`` also on real Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.broker import EmbeddedBroker
from penstock.cli.job_file import load_job
from penstock.testing import LocalJob

EXAMPLES = Path(__file__).parents[2] / "examples"
RECORDS = 1_000
EXPECTED = ["C0: 334", "C1: 333", "C2: 333"]


def filled(topic: str, broker: str) -> str:
    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": broker})
    for number in range(RECORDS):
        producer.produce(topic, json.dumps({"carrier": f"C{number % 3}"}))
    assert producer.flush(60) == 0
    return topic


def ran(name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    with LocalJob(load_job(str(EXAMPLES / f"{name}.py"))) as running:
        running.wait_for(lambda status: status.checkpoints_completed >= 1, 60)
        running.crash_subtask("reader", 0)
        assert running.wait(60).ending.value == "finished"
    return capsys.readouterr().out.splitlines()


@pytest.mark.kafka
def test_count_topic_counts_every_record_once_also_when_a_reader_dies(
    kafka_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BROKER", kafka_broker.bootstrap)
    monkeypatch.setenv("TOPIC", filled("counted-in-threads", kafka_broker.bootstrap))
    monkeypatch.delitem(sys.modules, "count_topic", raising=False)
    assert ran("count_topic", capsys)[-3:] == EXPECTED


@pytest.mark.kafka
@pytest.mark.spark
def test_count_topic_counts_every_record_once_on_spark(kafka_broker: EmbeddedBroker) -> None:
    topic = filled("counted-on-spark", kafka_broker.bootstrap)
    finished = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "run", str(EXAMPLES / "count_topic.py"), "--broker",
         kafka_broker.bootstrap, "--name", "count-topic-on-spark"],
        capture_output=True, text=True, timeout=540, check=False,
        env={**os.environ, "COLUMNS": "200", "BROKER": kafka_broker.bootstrap, "TOPIC": topic},
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert [line for line in finished.stdout.splitlines() if line in EXPECTED][-3:] == EXPECTED
