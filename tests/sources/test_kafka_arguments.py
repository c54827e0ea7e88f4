"""What a Kafka source is given, and what it refuses."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark import cloudpickle

import penstock
from penstock.errors import ConfigurationError
from penstock.sources import Kafka
from penstock.sources.kafka_cluster import REFUSED

from .kafka_jobs import reading_job


def kafka(topics: Any = "flights", **settings: Any) -> Kafka:
    return Kafka(topics, **{"brokers": "broker:9092", **settings})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"topics": ""}, "empty"),
        ({"topics": []}, "a name, a list of names, or a regular expression"),
        ({"topics": 7}, "a name, a list of names, or a regular expression"),
        ({"topics": "flights,trains"}, "give a list of names"),
        ({"topics": "*flights"}, "not the glob"),
        ({"topics": ["flights", "trains.*"]}, "a regular expression is given as one string"),
        ({"brokers": " "}, "brokers="),
        ({"start": "first"}, "start= must be 'earliest' or 'latest' or a datetime"),
        ({"start": datetime(2024, 1, 1)}, "no time zone"),
        ({"start": datetime.now(UTC) + timedelta(days=1)}, "not over yet"),
        ({"until": "earliest"}, "until= must be 'latest' or a datetime"),
        ({"until": datetime.now(UTC) + timedelta(days=1)}, "not over yet"),
        ({"discover_every": 0}, "discover_every="),
        ({"discover_every": True}, "discover_every="),
        ({"fail_on_data_loss": "no"}, "fail_on_data_loss="),
        ({"config": ["sasl.mechanism"]}, "config= must be a dict"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else None,
)
def test_an_argument_that_cannot_be_is_refused_by_name(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said.replace("(", r"\(")):
        kafka(**settings)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_setting_that_exactness_depends_on_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot set {name!r}: "):
        kafka(config={name: "x"})


@pytest.mark.parametrize(
    ("reads", "said"),
    [
        ({"decode": "json"}, "decode= must be a function"),
        ({"decode_record": "json"}, "decode_record= must be a function"),
        ({"decode": json.loads, "decode_record": json.loads}, "not both"),
        ({"on_error": "ignore"}, "'fail' or 'skip'"),
    ],
)
def test_what_is_to_be_read_is_checked_where_it_is_given(reads: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        kafka().read(**reads)


@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
def test_an_operator_that_reads_kafka_travels_to_other_processes(pickler: Any) -> None:
    reads = kafka(["a", "b"], start=datetime(2024, 1, 1, tzinfo=UTC), config={"sasl.username": "u"}).read(json.loads)
    there = pickle.loads(pickler.dumps(dict(reads)))
    assert isinstance(there["coordinator"](), penstock.OperatorCoordinator)
    assert isinstance(there["subtask"](), penstock.Subtask)
    reading_job(reads).settings  # noqa: B018  # checks it all


def test_no_value_of_a_setting_is_shown() -> None:
    assert "secret" not in repr(kafka(config={"sasl.password": "secret"}))


def test_a_setting_that_librdkafka_does_not_know_is_refused_without_the_value_of_a_secret() -> None:
    source = kafka(config={"sasl.password": "hunter2", "sasl.passwort": "hunter2"})
    with pytest.raises(
        ConfigurationError, match=r"config of the Kafka source on broker:9092 .*sasl\.passwort"
    ) as raised:
        source._connect("job", "in").consumer()
    assert "hunter2" not in str(raised.value)


def test_importing_the_sources_imports_no_client() -> None:
    code = (
        "import sys, penstock; penstock.sources.Kafka('a', brokers='b').read(); print('confluent_kafka' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "False"
