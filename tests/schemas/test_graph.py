"""What follows from who feeds whom: which channels there are, and who fails together."""

from __future__ import annotations

import pytest

from penstock.schemas.errors import ConfigurationError
from penstock.schemas.graph import DataPartition, Edge, Graph, InputSettings, Partitioning
from penstock.schemas.ids import SubtaskId
from penstock.schemas.settings import JobSettings, OperatorSettings

ALL_TO_ALL = [Partitioning.KEYED, Partitioning.REBALANCE, Partitioning.BROADCAST]


def op(name: str, parallelism: int, **inputs: str) -> OperatorSettings:
    given = tuple(InputSettings(upstream, Partitioning(how)) for upstream, how in inputs.items())
    return OperatorSettings(name, parallelism, inputs=given)


def graph(*operators: OperatorSettings, max_parallelism: int = 128) -> Graph:
    return Graph(operators, max_parallelism)


def subtasks(*names: str) -> list[SubtaskId]:
    """``a0`` is subtask 0 of operator a."""
    return [SubtaskId(name[0], int(name[1:])) for name in names]


def regions(of: Graph, *names: str) -> list[tuple[SubtaskId, ...]]:
    """The regions of these subtasks, each once."""
    return list(dict.fromkeys(of.region(subtask) for subtask in subtasks(*names)))


@pytest.mark.parametrize("how", ALL_TO_ALL)
def test_operators_whose_every_subtask_feeds_every_other_are_one_region(how: Partitioning) -> None:
    both = graph(op("a", 2), op("b", 3, a=how))
    assert regions(both, "a0", "a1", "b0", "b1", "b2") == [tuple(subtasks("a0", "a1", "b0", "b1", "b2"))]


def test_forward_makes_a_region_of_each_index() -> None:
    chain = graph(op("a", 3), op("b", 3, a="forward"), op("c", 3, b="forward"))
    assert regions(chain, "a0", "b1", "c2", "c0") == [
        tuple(subtasks("a0", "b0", "c0")),
        tuple(subtasks("a1", "b1", "c1")),
        tuple(subtasks("a2", "b2", "c2")),
    ]


def test_one_keyed_edge_behind_forward_ones_makes_one_region_of_all() -> None:
    job = graph(op("a", 2), op("b", 2, a="forward"), op("c", 1, b="keyed"))
    assert regions(job, "a0", "a1", "b0", "b1", "c0") == [tuple(subtasks("a0", "a1", "b0", "b1", "c0"))]


def test_forward_regions_are_joined_by_a_receiver_that_they_share() -> None:
    job = graph(op("a", 2), op("b", 2, a="forward"), op("x", 2), op("c", 2, b="forward", x="rebalance"))
    assert len(regions(job, "a0", "a1", "b0", "b1", "x0", "x1", "c0", "c1")) == 1


def test_an_operator_without_channels_is_a_region_per_subtask() -> None:
    job = graph(op("a", 2), op("b", 1), op("c", 2, b="keyed"))
    assert regions(job, "a0", "a1", "c1") == [*[(s,) for s in subtasks("a0", "a1")], tuple(subtasks("b0", "c0", "c1"))]


def test_two_graphs_in_one_job_are_two_regions() -> None:
    job = graph(op("a", 1), op("x", 1), op("b", 2, a="broadcast"), op("y", 2, x="broadcast"))
    assert regions(job, "a0", "x0") == [tuple(subtasks("a0", "b0", "b1")), tuple(subtasks("x0", "y0", "y1"))]


@pytest.mark.parametrize("how", ALL_TO_ALL)
def test_a_channel_leads_from_every_sender_to_every_receiver(how: Partitioning) -> None:
    both = graph(op("a", 2), op("b", 3, a=how))
    assert both.channels_into(SubtaskId("b", 1)) == subtasks("a0", "a1")
    assert both.channels_out_of(SubtaskId("a", 1)) == subtasks("b0", "b1", "b2")
    assert both.channels_into(SubtaskId("a", 0)) == both.channels_out_of(SubtaskId("b", 0)) == []


def test_a_forward_channel_leads_to_the_own_index_only() -> None:
    both = graph(op("a", 3), op("b", 3, a="forward"))
    assert both.channels_into(SubtaskId("b", 2)) == subtasks("a2")
    assert both.channels_out_of(SubtaskId("a", 1)) == subtasks("b1")


def test_channels_of_several_inputs_and_outputs_come_in_the_order_of_declaration() -> None:
    job = graph(op("a", 2), op("b", 2), op("c", 2, b="forward", a="keyed"), op("d", 1, a="broadcast"))
    assert job.channels_into(SubtaskId("c", 1)) == subtasks("b1", "a0", "a1")
    assert job.channels_out_of(SubtaskId("a", 0)) == subtasks("c0", "c1", "d0")
    assert job.channels_out_of(SubtaskId("b", 0)) == subtasks("c0")
    assert job.inputs("c") == (Edge("b", "c", Partitioning.FORWARD), Edge("a", "c", Partitioning.KEYED))
    assert job.outputs("a") == (Edge("a", "c", Partitioning.KEYED), Edge("a", "d", Partitioning.BROADCAST))
    assert set(job.edges) == {*job.inputs("c"), *job.inputs("d")}


@pytest.mark.parametrize("how", list(Partitioning))
def test_each_channel_is_seen_from_both_its_ends(how: Partitioning) -> None:
    job = graph(op("a", 3), op("b", 3, a=how), op("c", 2, a="keyed", b="rebalance"))
    everybody = [SubtaskId(name, index) for name, n in (("a", 3), ("b", 3), ("c", 2)) for index in range(n)]
    by_sender = {(sender, receiver) for sender in everybody for receiver in job.channels_out_of(sender)}
    by_receiver = {(sender, receiver) for receiver in everybody for sender in job.channels_into(receiver)}
    assert by_sender == by_receiver


def test_an_edge_has_a_partition_per_receiving_subtask_whatever_its_channels() -> None:
    job = graph(op("a", 2), op("b", 2, a="forward"), op("c", 1, a="broadcast"))
    assert job.data_partitions() == [
        DataPartition("a", SubtaskId("b", 0)),
        DataPartition("a", SubtaskId("b", 1)),
        DataPartition("a", SubtaskId("c", 0)),
    ]
    assert str(DataPartition("a", SubtaskId("b", 1))) == "a to b/1"


@pytest.mark.parametrize(
    ("operators", "known"),
    [
        ([op("b", 1, a="keyed")], "none"),
        ([op("b", 1, a="keyed"), op("a", 1)], "none"),
        ([op("x", 1), op("y", 1), op("b", 1, a="keyed")], "x, y"),
    ],
)
def test_an_input_from_no_operator_before_it_is_refused_with_those_there_are(
    operators: list[OperatorSettings], known: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"operator 'b' has an input from 'a', .*; there is: {known}$"):
        graph(*operators)


def test_an_operator_does_not_feed_itself() -> None:
    with pytest.raises(ConfigurationError, match="operator 'a' has an input from 'a', which no operator before it"):
        graph(op("a", 1, a="forward"))


def test_two_inputs_from_one_operator_are_refused() -> None:
    twice = (InputSettings("a", Partitioning.KEYED), InputSettings("a", Partitioning.BROADCAST))
    with pytest.raises(ConfigurationError, match="operator 'b' has two inputs from 'a'; one is all there can be"):
        graph(op("a", 1), OperatorSettings("b", 1, inputs=twice))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_forward_to_another_parallelism_is_refused_with_the_way_out(parallelism: int) -> None:
    with pytest.raises(
        ConfigurationError,
        match=rf"operator 'b' \({parallelism} subtasks\) takes forward\(\) from 'a' \(2 subtasks\): .*; use rebalance",
    ):
        graph(op("a", 2), op("b", parallelism, a="forward"))


def test_a_keyed_operator_may_have_a_subtask_per_key_group_and_no_more() -> None:
    graph(op("a", 9), op("b", 8, a="keyed"), max_parallelism=8)
    graph(op("a", 9), op("b", 9, a="rebalance"), max_parallelism=8)
    with pytest.raises(
        ConfigurationError,
        match=r"operator 'b' has 9 subtasks and keyed input, .* only 8 key groups \(max_parallelism\)",
    ):
        graph(op("a", 9), op("b", 9, a="keyed"), max_parallelism=8)


def test_an_input_whose_upstream_has_no_name_of_an_operator_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"upstream operator's name 'A\.b'"):
        InputSettings("A.b", Partitioning.KEYED)


def test_a_job_has_the_graph_of_its_operators_and_a_topic_per_edge() -> None:
    job = JobSettings("flights", (op("a", 2), op("b", 3, a="keyed")), max_parallelism=64)
    assert job.graph.edges == [Edge("a", "b", Partitioning.KEYED)]
    data = {spec.name: spec.partitions for spec in job.topic_specs if spec.name.endswith(".data")}
    assert data == {"penstock.flights.a.b.data": 3}
    with pytest.raises(ConfigurationError, match="keyed input"):
        JobSettings("flights", (op("a", 2), op("b", 3, a="keyed")), max_parallelism=2)
