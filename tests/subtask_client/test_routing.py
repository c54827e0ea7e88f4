"""Each record goes to the subtasks that its receivers' partitioning says, and a record without a key is an error."""

from __future__ import annotations

import types
from collections import Counter, UserDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.schemas.errors import ConfigurationError
from penstock.schemas.graph import Graph, InputSettings, Partitioning
from penstock.schemas.ids import SubtaskId
from penstock.schemas.keys import key_group, subtask_of_group
from penstock.schemas.settings import OperatorSettings
from penstock.subtask_client import routing
from penstock.subtask_client.routing import FieldKey, KeyFunction, Router
from tests.machines import check
from tests.rounds import rounds


def router(
    outputs: Mapping[str, tuple[str, int]],
    *,
    index: int = 0,
    senders: int = 3,
    groups: int = 128,
    keys: Mapping[str, KeyFunction] | None = None,
) -> Router:
    """Of subtask ``index`` of operator a; ``outputs`` are receivers with their partitioning and parallelism."""
    operators = [OperatorSettings("a", senders)]
    for name, (how, parallelism) in outputs.items():
        operators.append(OperatorSettings(name, parallelism, inputs=(InputSettings("a", Partitioning(how)),)))
    return Router(Graph(operators, groups), SubtaskId("a", index), keys or {}, groups)


def receivers(name: str, *indexes: int) -> list[SubtaskId]:
    return [SubtaskId(name, index) for index in indexes]


def carrier_of(record: Any) -> Any:
    return record["carrier"]


# ---- partitionings


@pytest.mark.parametrize(
    ("key", "parallelism", "owner"),
    [("AA", 4, 3), ("AA", 2, 1), ("AA", 1, 0), ("東京", 4, 0), (0, 128, 123), (None, 128, 13), (("AA", 17), 2, 1)],
)
def test_a_record_goes_to_the_owner_of_its_key(key: Any, parallelism: int, owner: int) -> None:
    for index in range(3):  # whoever sends it
        keyed = router({"b": ("keyed", parallelism)}, index=index, keys={"b": carrier_of})
        assert list(keyed.route({"carrier": key})) == receivers("b", owner)
        assert list(keyed.route({"carrier": key}, "b")) == receivers("b", owner)


@pytest.mark.soak
@pytest.mark.parametrize("round_", rounds())
def test_any_key_goes_where_its_group_lives(round_: int) -> None:
    @given(
        st.integers(1, 300).flatmap(lambda groups: st.tuples(st.just(groups), st.integers(1, groups))),
        st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.binary(), st.text()),
    )
    def holds(split: tuple[int, int], key: Any) -> None:
        groups, parallelism = split
        keyed = router({"b": ("keyed", parallelism)}, groups=groups, keys={"b": lambda record: record})
        owner = subtask_of_group(key_group(key, groups), groups, parallelism)
        assert list(keyed.route(key)) == receivers("b", owner)

    check(holds, round_, examples=200)


def test_equal_keys_of_different_types_are_not_taken_for_one_another() -> None:
    keyed = router({"b": ("keyed", 128)}, keys={"b": lambda record: record})
    assert [keyed.route(key)[0].index for key in (1, True, 1.0, 1, True, 1.0)] == [87, 107, 36, 87, 107, 36]


@pytest.mark.parametrize(("index", "first"), [(0, 0), (1, 1), (2, 2), (3, 0), (7, 1)])
def test_rebalance_takes_turns_and_begins_at_the_senders_own_index(index: int, first: int) -> None:
    turns = router({"b": ("rebalance", 3)}, index=index, senders=8)
    got = [list(turns.route("record")) for _ in range(7)]
    assert got == [receivers("b", (first + turn) % 3) for turn in range(7)]


def test_each_rebalanced_output_has_turns_of_its_own() -> None:
    turns = router({"b": ("rebalance", 2), "c": ("rebalance", 3)})
    assert list(turns.route("record", "b")) == receivers("b", 0)
    assert list(turns.route("record")) == [*receivers("b", 1), *receivers("c", 0)]
    assert list(turns.route("record", "c")) == receivers("c", 1)


@pytest.mark.parametrize("index", [0, 2])
def test_broadcast_goes_to_every_subtask(index: int) -> None:
    everybody = router({"b": ("broadcast", 4)}, index=index)
    assert [list(everybody.route("record")) for _ in range(2)] == [receivers("b", 0, 1, 2, 3)] * 2


@pytest.mark.parametrize("index", [0, 2])
def test_forward_goes_to_the_own_index(index: int) -> None:
    own = router({"b": ("forward", 3)}, index=index)
    assert [list(own.route("record")) for _ in range(2)] == [receivers("b", index)] * 2


def test_every_output_gets_a_record_that_names_none_and_only_that_one_gets_a_record_that_does() -> None:
    both = router({"b": ("broadcast", 2), "c": ("forward", 3), "d": ("keyed", 4)}, index=1, keys={"d": carrier_of})
    assert list(both.route({"carrier": "AA"})) == [*receivers("b", 0, 1), *receivers("c", 1), *receivers("d", 3)]
    assert list(both.route({"carrier": "AA"}, "c")) == receivers("c", 1)
    assert list(both.route({"carrier": "AA"}, "d")) == receivers("d", 3)


def test_a_record_for_another_output_needs_no_key() -> None:
    both = router({"b": ("broadcast", 1), "d": ("keyed", 4)}, keys={"d": carrier_of})
    assert list(both.route("no carrier", "b")) == receivers("b", 0)


def test_each_keyed_output_has_a_key_of_its_own() -> None:
    both = router({"b": ("keyed", 128), "c": ("keyed", 128)}, keys={"b": FieldKey("x"), "c": FieldKey("y")})
    assert list(both.route({"x": 0, "y": "AA"})) == [SubtaskId("b", 123), SubtaskId("c", 102)]


def test_many_keys_reach_every_subtask() -> None:
    keyed = router({"b": ("keyed", 4)}, keys={"b": carrier_of})
    shares = Counter(keyed.route({"carrier": f"carrier-{n}"})[0].index for n in range(4_000))
    assert min(shares[index] for index in range(4)) > 800, shares


# ---- keys that are a field


@dataclass
class Flight:
    carrier: str


class Leg(NamedTuple):
    carrier: str


class Row(dict[str, Any]):
    carrier = "not this one"


@pytest.mark.parametrize(
    "record",
    [
        {"carrier": "AA"},
        Row(carrier="AA"),
        UserDict(carrier="AA"),
        types.MappingProxyType({"carrier": "AA"}),
        Flight("AA"),
        Leg("AA"),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_field_is_an_entry_of_a_mapping_and_an_attribute_of_anything_else(record: Any) -> None:
    assert FieldKey("carrier")(record) == "AA"


def test_the_keys_of_one_field_are_equal() -> None:
    assert FieldKey("carrier") == FieldKey("carrier") != FieldKey("origin")
    assert hash(FieldKey("carrier")) == hash(FieldKey("carrier"))


# ---- errors


def raises_key_error(record: Any) -> Any:
    raise KeyError("carrier")


@pytest.mark.parametrize(
    ("key", "record", "name", "what"),
    [
        (carrier_of, {}, "carrier_of", "raised KeyError: 'carrier'"),
        (raises_key_error, "text", "raises_key_error", "raised KeyError: 'carrier'"),
        (FieldKey("carrier"), {}, "field 'carrier'", "raised KeyError: 'carrier'"),
        (FieldKey("carrier"), "text", "field 'carrier'", "raised AttributeError: 'str' object has no attribute"),
        (carrier_of, {"carrier": ["AA"]}, "carrier_of", "gave no key: a list cannot be a key: use None, bool"),
        (carrier_of, {"carrier": 2**63}, "carrier_of", "gave no key: the key 9223372036854775808 does not fit"),
        (carrier_of, {"carrier": "\ud800"}, "carrier_of", "gave no key: 'utf-8' codec can't encode"),
    ],
)
def test_a_record_without_a_key_is_an_error_that_names_both_operators_and_the_key_function(
    key: Callable[[Any], Any], record: Any, name: str, what: str
) -> None:
    keyed = router({"b": ("keyed", 2)}, keys={"b": key})
    with pytest.raises(ConfigurationError) as refused:
        keyed.route(record)
    message = str(refused.value)
    assert f"operator 'a' emitted a {type(record).__name__} that has no key for 'b'" in message
    assert f"({name}) {what}" in message
    assert refused.value.__cause__ is not None


def test_a_key_that_nests_without_end_is_an_error_too() -> None:
    key: Any = ()
    for _ in range(100_000):
        key = (key,)
    keyed = router({"b": ("keyed", 2)}, keys={"b": lambda record: key})
    with pytest.raises(ConfigurationError, match="that has no key for 'b'"):
        keyed.route("record")


def test_a_keyed_output_without_a_key_function_is_refused_at_once() -> None:
    with pytest.raises(
        ConfigurationError, match=r"operator 'a' feeds 'c' by key, .*; declare .* with keyed_by\(\.\.\.\)"
    ):
        router({"b": ("keyed", 2), "c": ("keyed", 2)}, keys={"b": carrier_of})


@pytest.mark.parametrize("outputs", [{"b": ("forward", 3)}, {"b": ("forward", 3), "c": ("rebalance", 1)}])
@pytest.mark.parametrize("unknown", ["d", "a", ""])
def test_an_unknown_output_is_refused_with_those_there_are(outputs: dict[str, tuple[str, int]], unknown: str) -> None:
    there_are = ", ".join(outputs)
    with pytest.raises(
        ConfigurationError,
        match=f"operator 'a' emitted a record for output '{unknown}', .* none of its outputs; there are: {there_are}$",
    ):
        router(outputs).route("record", unknown)


@pytest.mark.parametrize(("output", "what"), [(None, "a record"), ("b", "a record for output 'b'")])
def test_a_record_of_an_operator_that_feeds_nobody_is_refused_with_the_way_out(output: str | None, what: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"operator 'a' emitted {what}, and no operator takes its records; .* input from 'a'"
    ):
        router({}).route("record", output)


# ---- many at once

_KEYS = st.one_of(st.none(), st.booleans(), st.integers(-2, 2), st.sampled_from([0.0, 1.0]), st.text(max_size=2))


@given(st.lists(st.lists(_KEYS, max_size=9), max_size=4), st.sampled_from(list(Partitioning)), st.integers(1, 3))
def test_many_records_are_dealt_as_they_are_routed_one_by_one(
    turns: list[list[Any]], how: Partitioning, parallelism: int
) -> None:
    parallelism = 3 if how is Partitioning.FORWARD else parallelism
    outputs = {"b": (how.value, parallelism), "c": ("broadcast", 2)}
    one_by_one, at_once = (router(outputs, index=1, keys={"b": lambda record: record}) for _ in range(2))
    for turn in turns:
        data = [repr(key).encode() for key in turn]
        expected: dict[SubtaskId, list[bytes]] = {}
        for key, its_data in zip(turn, data, strict=True):
            for receiver in one_by_one.route(key):
                expected.setdefault(receiver, []).append(its_data)
        assert {to: list(many) for to, many in at_once.deal(turn, data).items()} == expected
        assert {to: list(many) for to, many in at_once.deal(turn, data, "c").items()} == {
            to: data for to in receivers("c", 0, 1) if data
        }


def test_the_owners_that_an_output_keeps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "_KEPT_KEYS_MAX", 10)
    keyed = router({"b": ("keyed", 4)}, keys={"b": lambda record: record})
    keys = [f"{number}" for number in range(25)]
    dealt = keyed.deal(keys, [key.encode() for key in keys])
    assert dealt.keys() == {receiver for key in keys for receiver in keyed.route(key)}
    (way,) = keyed._ways.values()
    assert isinstance(way, routing._ByKey)
    assert len(way._kept) <= 10
    keyed.deal(["x" * 65], [b""])
    assert "x" * 65 not in way._kept


def test_many_records_are_refused_as_one_is() -> None:
    keyed = router({"b": ("keyed", 2)}, keys={"b": carrier_of})
    with pytest.raises(ConfigurationError, match=r"that has no key for 'b'.*raised KeyError: 'carrier'"):
        keyed.deal([{"carrier": "AA"}, {}], [b"", b""])
    with pytest.raises(ConfigurationError, match="gave no key: a list cannot be a key"):
        keyed.deal([{"carrier": "AA"}, {"carrier": []}], [b"", b""])
    with pytest.raises(ConfigurationError, match=r"output 'd', .* none of its outputs"):
        keyed.deal([], [], "d")
    with pytest.raises(ConfigurationError, match="no operator takes its records"):
        router({}).deal([], [])
