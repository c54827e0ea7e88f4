"""The options of source and sink: checked at once, and silent about secrets."""

from __future__ import annotations

import pickle

import pytest

from penstock.schemas.errors import ConfigurationError
from penstock.spark_integration.streaming.options import SinkOptions, SourceOptions

GIVEN = {"job": "flights", "operator": "reader", "kafka.bootstrap.servers": "127.0.0.1:1"}
SECRET = {"kafka.sasl.password": "hush-hush", "kafka.sasl.username": "me"}


def test_names_of_options_are_taken_in_any_case() -> None:
    options = SourceOptions.parse({**GIVEN, "COORDINATORtimeout": "7", "MaxWait": "0", "Fresh": "TRUE", "prefix": "x"})
    assert (options.coordinator_timeout_s, options.max_wait_s, options.fresh) == (7.0, 0.0, True)
    assert (options.job, options.topics.acks) == ("x.flights", "x.flights.acks")


def test_options_come_back_from_what_they_are_given_as() -> None:
    for given in (GIVEN, GIVEN | SECRET | {"fresh": "true", "maxWait": "0.25", "eventSchema": '"string"'}):
        options = SourceOptions.parse(given)
        assert SourceOptions.parse(options.to_options()) == options
        assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"job": None}, "option 'job' is missing"),
        ({"operator": None}, "option 'operator' is missing"),
        ({"kafka.bootstrap.servers": None}, r"option 'kafka\.bootstrap\.servers' is missing"),
        ({"kafka.bootstrap.servers": "  "}, r"option 'kafka\.bootstrap\.servers' is missing"),
        ({"job": "No Name"}, "job name 'No Name' cannot be part of a topic name"),
        ({"operator": "a.b"}, "option 'operator' 'a.b' cannot be part"),
        ({"startingOffsets": "earliest"}, "no option 'startingoffsets'; it has job, operator"),
        ({"fresh": "yes"}, "option 'fresh' is 'yes'; it must be 'true' or 'false'"),
        ({"maxWait": "soon"}, "option 'maxWait' is 'soon'; it must be a number of seconds, at least 0"),
        ({"maxWait": "-1"}, "option 'maxWait' is '-1'"),
        ({"coordinatorTimeout": "nan"}, "option 'coordinatorTimeout' is 'nan'"),
        ({"coordinatorTimeout": "0"}, "at least 1"),
        ({"kafka.group.id": "mine"}, "client setting 'group.id' cannot be changed"),
    ],
)
def test_a_wrong_option_is_named(change: dict[str, str | None], message: str) -> None:
    given = {name: value for name, value in {**GIVEN, **change}.items() if value is not None}
    with pytest.raises(ConfigurationError, match=message):
        SourceOptions.parse(given)


def test_a_secret_shows_neither_in_repr_nor_in_an_error() -> None:
    options = SourceOptions.parse(GIVEN | SECRET)
    assert "hush-hush" not in repr(options)
    assert "sasl.password" in repr(options)
    with pytest.raises(ConfigurationError) as caught:
        SourceOptions.parse({**GIVEN, **SECRET, "kafka.acks": "0"})
    assert "hush-hush" not in str(caught.value)


def test_a_sink_leaves_the_options_of_its_query_to_spark() -> None:
    given = GIVEN | SECRET | {"checkpointlocation": "folder", "queryname": "numbers", "coordinatorTimeout": "7"}
    options = SinkOptions.parse(given)
    assert options.coordinator_timeout_s == 7.0
    assert SinkOptions.parse(options.to_options()) == options


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"asyncProgressTrackingEnabled": "true"}, "lets Spark run other rows under the id of a batch"),
        ({"maxWait": "1"}, "the penstock sink has no option 'maxwait'; it has job, operator"),
        ({"maxHeldBytes": "0"}, "it must be a number of bytes, at least 1"),
    ],
)
def test_a_wrong_option_of_the_sink_is_named(change: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SinkOptions.parse(GIVEN | change)
