"""Ids and topic names: what may be part of one, and what the topics of a job are called (protocol, section 3)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.schemas.errors import ConfigurationError
from penstock.schemas.ids import Generation, SubtaskId, checked_name
from penstock.schemas.topics import SIZE_SETTINGS, TopicNames, job_of_topic, owner_of_topic

NAMES = st.from_regex(r"\A[a-z0-9][a-z0-9-]{0,59}\Z")
TOPICS = TopicNames("penstock", "flights")


@given(NAMES)
def test_a_name_of_lower_case_letters_digits_and_dashes_is_allowed(name: str) -> None:
    assert checked_name("job name", name) == name


@pytest.mark.parametrize(
    "name", ["", "-a", "A", "a.b", "a_b", "a b", "a/b", "é", "a\n", "a" * 61, "..", "a\x00", "٣", "flights."]
)
def test_any_other_name_is_refused_with_the_name_and_what_is_allowed(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the job name {re.escape(repr(name))} .* a-z, 0-9 and '-'"):
        checked_name("job name", name)


@pytest.mark.parametrize("name", [None, 1, b"flights", ["flights"]])
def test_a_name_that_is_no_string_is_refused(name: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"the job name must be a string, not {type(name).__name__}"):
        checked_name("job name", name)


def test_a_subtask_and_a_generation_read_well_in_messages() -> None:
    assert str(SubtaskId("reader", 3)) == "reader/3"
    assert str(Generation(4, 2)) == "4.2"


def test_a_higher_epoch_beats_any_number_of_a_generation() -> None:
    assert sorted([Generation(2, 0), Generation(1, 9), Generation(1, 10)]) == [
        Generation(1, 9),
        Generation(1, 10),
        Generation(2, 0),
    ]


def test_topics_are_called_as_the_protocol_says() -> None:
    assert TOPICS.acks == "penstock.flights.acks"
    assert TOPICS.checkpoints == "penstock.flights.checkpoints"
    assert TOPICS.status == "penstock.flights.status"
    assert TOPICS.events("reader") == "penstock.flights.reader.events"
    assert TOPICS.data("reader", "totals") == "penstock.flights.reader.totals.data"
    assert TOPICS.transactional_id == "penstock.flights.coordinator"


@given(NAMES, NAMES, NAMES, NAMES)
def test_topics_of_one_job_never_begin_with_the_root_of_another(
    prefix: str, job: str, other: str, operator: str
) -> None:
    """An ACL prefix for one job must not cover a second one: ``flights.`` does not match ``flights2``."""
    if job != other:
        mine, others = TopicNames(prefix, job), TopicNames(prefix, other)
        for topic in (others.acks, others.checkpoints, others.status, others.events(operator), others.transactional_id):
            assert not topic.startswith(mine.root)


@given(NAMES, NAMES, NAMES, NAMES)
def test_no_two_topics_of_a_job_have_the_same_name(job: str, one: str, two: str, three: str) -> None:
    names = TopicNames("penstock", job)
    operators = {one, two, three}
    topics = [names.acks, names.checkpoints, names.status]
    topics += [names.events(operator) for operator in operators]
    topics += [names.data(sender, receiver) for sender in operators for receiver in operators]
    assert len(set(topics)) == len(topics)


@pytest.mark.parametrize(("prefix", "job"), [("pen.stock", "flights"), ("penstock", "fl.ights"), ("", "flights")])
def test_a_prefix_or_job_that_could_be_mistaken_for_another_is_refused(prefix: str, job: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be part of a topic name"):
        TopicNames(prefix, job)


def test_every_topic_keeps_its_records_until_we_truncate_it() -> None:
    specs = {spec.name: spec for spec in TOPICS.specs({"reader": 4, "totals": 2})}
    assert {name: spec.partitions for name, spec in specs.items()} == {
        TOPICS.checkpoints: 1,
        TOPICS.acks: 1,
        TOPICS.status: 1,
        TOPICS.events("reader"): 4,
        TOPICS.events("totals"): 2,
    }
    for spec in specs.values():
        assert (spec.settings["retention.ms"], spec.settings["retention.bytes"]) == ("-1", "-1")
    assert specs[TOPICS.checkpoints].settings["cleanup.policy"] == "compact"
    assert specs[TOPICS.acks].settings["message.timestamp.type"] == "LogAppendTime"
    assert specs[TOPICS.acks].settings["cleanup.policy"] == "delete"


def test_no_topic_waits_for_a_gibibyte_before_a_broker_frees_what_was_truncated() -> None:
    """Brokers free whole segments, and compact none that is written to."""
    for spec in TOPICS.specs({"reader": 4, "totals": 2}, [("reader", "totals")]):
        assert int(spec.settings["segment.bytes"]) <= 64 << 20, spec.name
        assert int(spec.settings["segment.ms"]) <= 3_600_000, spec.name
        assert {key for key in spec.settings if key.startswith("segment.")} <= SIZE_SETTINGS
    assert not SIZE_SETTINGS & {"retention.ms", "retention.bytes", "cleanup.policy", "message.timestamp.type"}


@given(NAMES, NAMES)
def test_the_job_of_a_checkpoint_log_is_found_by_its_name(prefix: str, job: str) -> None:
    assert job_of_topic(TopicNames(prefix, job).checkpoints, prefix) == job


@pytest.mark.parametrize(
    "topic",
    ["", "penstock", "penstock.flights.acks", "other.flights.checkpoints", "penstock.a.b.checkpoints", "checkpoints"],
)
def test_other_topics_are_no_checkpoint_logs(topic: str) -> None:
    assert job_of_topic(topic, "penstock") is None


@given(NAMES, NAMES, NAMES, NAMES)
def test_every_topic_of_a_job_tells_whose_it_is(prefix: str, job: str, one: str, other: str) -> None:
    for spec in TopicNames(prefix, job).specs({one: 1, other: 2}, [(one, other)]):
        assert owner_of_topic(spec.name) == (prefix, job)


@pytest.mark.parametrize(
    "topic",
    ["acks", "a.acks", "a.b.c", "a.b.c.acks", "a.b.events", "a.b.c.d.events", "a.b.c.data", "A.b.acks", "a..acks"],
)
def test_other_topics_are_nobodys(topic: str) -> None:
    assert owner_of_topic(topic) is None
