"""A job whose operators feed one another: what is declared is what the settings, codecs and keys then say."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from pyspark import cloudpickle

import penstock
from penstock.job import Input, Job, Operator
from penstock.schemas.errors import ConfigurationError
from penstock.schemas.graph import Edge, InputSettings, Partitioning
from penstock.schemas.ids import SubtaskId
from penstock.schemas.user_codec import BytesCodec, DataclassCodec, JsonCodec
from penstock.subtask_client.api import Subtask
from penstock.subtask_client.routing import FieldKey, Router


@dataclass
class Flight:
    carrier: str
    minutes: int


def by_route(record: Any) -> tuple[str, str]:
    return record["origin"], record["dest"]


def a_job(**settings: Any) -> Job:
    return Job("flights", **settings)


def add(job: Job, name: str, parallelism: int = 2, **more: Any) -> Operator:
    return job.operator(name, subtask=Subtask, parallelism=parallelism, **more)


def refused(job: Job, **more: Any) -> str:
    """What adding operator "totals" is refused with; nothing of it is left behind."""
    before = {name: (operator, dict(operator.keys)) for name, operator in job.operators.items()}
    with pytest.raises(ConfigurationError) as error:
        add(job, "totals", **more)
    assert {name: (operator, dict(operator.keys)) for name, operator in job.operators.items()} == before
    return str(error.value)


# ---- what is declared


def test_each_way_to_spread_records_is_an_input_of_its_own_kind() -> None:
    reader = add(a_job(), "reader")
    assert reader.keyed_by("carrier") == Input(reader, Partitioning.KEYED, "carrier")
    assert reader.keyed_by(by_route) == Input(reader, Partitioning.KEYED, by_route)
    assert reader.rebalance() == Input(reader, Partitioning.REBALANCE)
    assert reader.broadcast() == Input(reader, Partitioning.BROADCAST)
    assert reader.forward() == Input(reader, Partitioning.FORWARD)


def test_inputs_become_the_graph_of_the_settings() -> None:
    job = a_job(max_parallelism=32)
    reader, rules = add(job, "reader"), add(job, "rules", 1)
    totals = add(job, "totals", 3, inputs=[reader.keyed_by("carrier"), rules.broadcast()])
    add(job, "sink", 3, inputs=(totals.forward(), reader.rebalance()))
    assert totals.settings.inputs == (
        InputSettings("reader", Partitioning.KEYED),
        InputSettings("rules", Partitioning.BROADCAST),
    )
    assert set(job.settings.graph.edges) == {
        Edge("reader", "totals", Partitioning.KEYED),
        Edge("rules", "totals", Partitioning.BROADCAST),
        Edge("totals", "sink", Partitioning.FORWARD),
        Edge("reader", "sink", Partitioning.REBALANCE),
    }
    assert job.settings.max_parallelism == 32


def test_a_job_without_inputs_has_no_graph() -> None:
    job = a_job()
    reader = add(job, "reader")
    assert (reader.settings.inputs, dict(reader.input_codecs), reader.keys) == ((), {}, {})
    assert (job.settings.graph.edges, job.settings.max_parallelism) == ([], 128)


def test_the_receiver_decodes_with_the_output_codec_of_each_sender() -> None:
    job = a_job()
    reader = add(job, "reader", output_codec=Flight, codec="json")
    rules = add(job, "rules", output_codec="json")
    raw = add(job, "raw")
    totals = add(job, "totals", inputs=[rules.broadcast(), reader.keyed_by("carrier"), raw.rebalance()])
    assert isinstance(reader.output_codec, DataclassCodec)
    assert isinstance(rules.output_codec, JsonCodec)
    assert isinstance(raw.output_codec, BytesCodec)
    assert totals.input_codecs == {
        "rules": rules.output_codec, "reader": reader.output_codec, "raw": raw.output_codec,
    }  # fmt: skip
    record = Flight("AA", 17)
    assert totals.input_codecs["reader"].decode(reader.output_codec.encode(record)) == record


def test_a_sender_knows_the_key_of_each_keyed_receiver_and_of_no_other() -> None:
    job = a_job()
    reader = add(job, "reader")
    add(job, "totals", inputs=[reader.keyed_by("carrier")])
    add(job, "routes", inputs=[reader.keyed_by(by_route)])
    add(job, "sink", inputs=[reader.rebalance()])
    assert reader.keys == {"totals": FieldKey("carrier"), "routes": by_route}
    assert [operator.keys for operator in job.operators.values() if operator is not reader] == [{}, {}, {}]


@pytest.mark.parametrize("record", [{"carrier": "AA"}, Flight("AA", 17)], ids=["mapping", "object"])
def test_what_is_declared_is_enough_to_route_a_record(record: Any) -> None:
    job = a_job()
    reader = add(job, "reader")
    add(job, "totals", 4, inputs=[reader.keyed_by("carrier")])
    router = Router(job.settings.graph, SubtaskId("reader", 1), reader.keys, job.max_parallelism)
    assert list(router.route(record)) == [SubtaskId("totals", 3)]


@pytest.mark.parametrize(
    "key",
    [str, len, partial(getattr, "x"), lambda record: record],
    ids=["class", "builtin", "partial", "lambda"],
)
def test_whatever_can_be_called_may_be_a_key(key: Any) -> None:
    job = a_job()
    reader = add(job, "reader")
    add(job, "totals", inputs=[reader.keyed_by(key)])
    assert reader.keys["totals"] is key


def test_what_runs_in_workers_can_be_sent_to_them() -> None:
    job = a_job()
    reader = add(job, "reader", output_codec="json")
    totals = add(job, "totals", 4, inputs=[reader.keyed_by("carrier")])
    add(job, "routes", 4, inputs=[reader.keyed_by(lambda record: (record["origin"], record["dest"]))])
    sent = (job.settings, reader.keys, reader.output_codec, totals.input_codecs)
    settings, keys, output_codec, input_codecs = cloudpickle.loads(cloudpickle.dumps(sent))  # type: ignore[no-untyped-call]
    record = {"carrier": "AA", "origin": "JFK", "dest": "SFO"}
    there = Router(settings.graph, SubtaskId("reader", 0), keys, settings.max_parallelism)
    here = Router(job.settings.graph, SubtaskId("reader", 0), reader.keys, job.max_parallelism)
    assert list(there.route(record)) == list(here.route(record))
    assert input_codecs["reader"].decode(output_codec.encode(record)) == record


def test_an_operator_can_be_hashed_whatever_feeds_it() -> None:
    job = a_job()
    reader = add(job, "reader")
    before = hash(reader)
    totals = add(job, "totals", inputs=[reader.keyed_by("carrier")])
    assert hash(reader) == before
    assert len({reader, totals, reader.rebalance()}) == 3


def test_users_find_the_type_of_an_input_beside_the_operator() -> None:
    assert penstock.Input is Input
    assert {"Input", "Job", "Operator"} <= set(penstock.__all__)


# ---- the same job under another name


def test_a_renamed_job_has_the_same_graph_codecs_and_keys() -> None:
    job = a_job(max_parallelism=64)
    reader = add(job, "reader", output_codec="json")
    add(job, "totals", inputs=[reader.keyed_by("carrier")])
    other = job.renamed("flights-2")
    assert other.settings.graph.edges == job.settings.graph.edges
    assert (other.settings.operators, other.max_parallelism) == (job.settings.operators, 64)
    assert other.operators["reader"].output_codec is reader.output_codec
    assert other.operators["totals"].input_codecs == {"reader": reader.output_codec}
    assert other.operators["reader"].keys == {"totals": FieldKey("carrier")}
    assert job.renamed("flights-3", max_parallelism=16).settings.max_parallelism == 16


def test_an_operator_added_to_one_of_two_jobs_changes_nothing_in_the_other() -> None:
    job = a_job()
    reader = add(job, "reader")
    other = job.renamed("flights-2")
    add(other, "totals", inputs=[other.operators["reader"].keyed_by("origin")])
    assert reader.keys == {}
    add(job, "totals", inputs=[reader.keyed_by("carrier")])
    assert other.operators["reader"].keys == {"totals": FieldKey("origin")}


# ---- what is refused


def test_an_operator_of_another_job_is_no_input() -> None:
    job, other = a_job(), Job("other")
    mine, theirs = add(job, "reader"), add(other, "reader")
    message = refused(job, inputs=[theirs.keyed_by("carrier")])
    assert "operator 'totals' of job 'flights' comes from an operator 'reader' that is not this job's" in message
    assert "operators['reader']" in message
    assert theirs.keys == {}
    add(job, "totals", inputs=[mine.keyed_by("carrier")])


def test_an_operator_of_the_job_that_was_renamed_is_no_input() -> None:
    job = a_job()
    reader = add(job, "reader")
    other = job.renamed("flights-2")
    assert "that is not this job's" in refused(other, inputs=[reader.keyed_by("carrier")])
    add(other, "totals", inputs=[other.operators["reader"].keyed_by("carrier")])


def test_an_operator_itself_is_no_input_and_the_error_names_the_ways() -> None:
    job = a_job()
    reader = add(job, "reader")
    message = refused(job, inputs=[reader])
    assert "an input of operator 'totals' of job 'flights' is the operator 'reader' itself" in message
    assert "keyed_by(key), rebalance(), broadcast() or forward()" in message


@pytest.mark.parametrize("given", ["reader", None, 5, ("reader", "keyed")], ids=repr)
def test_what_is_no_input_is_refused(given: Any) -> None:
    job = a_job()
    add(job, "reader")
    message = refused(job, inputs=[given])
    assert f"an input of operator 'totals' of job 'flights' is {given!r}" in message
    assert "keyed_by(key)" in message


def test_inputs_that_are_no_list_are_refused() -> None:
    job = a_job()
    reader = add(job, "reader")
    for given in (reader, reader.rebalance(), "reader", None, iter([reader.rebalance()]), {reader.rebalance()}):
        message = refused(job, inputs=given)
        assert "the inputs of operator 'totals' of job 'flights' must be a list, inputs=[" in message
    assert "the operator 'reader' itself" in refused(job, inputs=reader)


@pytest.mark.parametrize("key", [None, 5, ["carrier"], ("carrier", "origin"), b"carrier"], ids=repr)
def test_a_key_that_is_neither_a_field_nor_a_function_is_refused(key: Any) -> None:
    reader = add(a_job(), "reader")
    with pytest.raises(ConfigurationError) as error:
        reader.keyed_by(key)
    assert f"the key of an input from operator 'reader' must be a field's name or a function of the record, not {key!r}" in str(error.value)  # noqa: E501  # fmt: skip
    assert "for several fields use a function that returns a tuple" in str(error.value)


def test_an_input_made_by_hand_is_checked_too() -> None:
    reader = add(a_job(), "reader")
    assert Input(reader, "forward").partitioning is Partitioning.FORWARD  # type: ignore[arg-type]
    with pytest.raises(
        ConfigurationError, match=r"partitioning of an input from operator 'reader' is 'hash'; use keyed"
    ):
        Input(reader, "hash")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"has the key 'carrier' and is not keyed \(rebalance\)"):
        Input(reader, Partitioning.REBALANCE, "carrier")
    with pytest.raises(ConfigurationError, match="the upstream of an input must be an operator"):
        Input("reader", Partitioning.REBALANCE)  # type: ignore[arg-type]


def test_what_the_graph_refuses_is_refused_where_the_operator_is_added() -> None:
    job = a_job(max_parallelism=4)
    reader = add(job, "reader", 3)
    assert "two inputs from 'reader'" in refused(job, inputs=[reader.keyed_by("carrier"), reader.broadcast()])
    assert "forward needs the same parallelism" in refused(job, inputs=[reader.forward()])
    message = refused(job, parallelism=5, inputs=[reader.keyed_by("carrier")])
    assert "operator 'totals' has 5 subtasks" in message and "max_parallelism" in message
    assert "is no codec" in refused(job, output_codec="xml", inputs=[reader.keyed_by("carrier")])


@pytest.mark.parametrize("groups", [0, -1, 1.5, "128", True, None])
def test_a_number_of_key_groups_that_cannot_be_is_refused(groups: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_parallelism of job 'flights' must be a whole number, at least 1"):
        a_job(max_parallelism=groups)


def test_an_operator_that_only_a_query_reads_needs_no_subtask() -> None:
    job = penstock.Job("rules")
    job.operator("rules", coordinator=penstock.OperatorCoordinator, parallelism=2)
    with pytest.raises(ConfigurationError, match=r"'rules' has no subtask.*subtask="):
        job.check_subtasks()
    with pytest.raises(ConfigurationError, match="has no subtask"):
        job.renamed("others").check_subtasks()


@pytest.mark.parametrize(
    ("given", "means"), [(None, "refuse"), ("list", "list"), ("keyed", "keyed"), (max, "function")]
)
def test_how_states_are_dealt_again_is_said_per_operator(given: Any, means: str) -> None:
    job = Job("job")
    job.operator("op", parallelism=2, rescale=given)
    assert job.settings.operator("op").rescale == means
    assert job.coordinators["op"].rescale is (max if given is max else None)


def test_no_other_way_of_dealing_states_is_known() -> None:
    with pytest.raises(ConfigurationError, match=r"rescale of operator 'op' must be 'list', 'keyed', or a function"):
        Job("job").operator("op", parallelism=2, rescale="function")
