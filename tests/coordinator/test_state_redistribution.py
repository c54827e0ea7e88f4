"""States dealt over another number of subtasks: what each rule makes of them, and what it refuses."""

from __future__ import annotations

import threading
from ast import literal_eval
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock.coordinator.host import CoordinatorSpec
from penstock.coordinator.protocol.effects import Redistribute, StatesToDeal
from penstock.coordinator.state_redistribution import Redistribution
from penstock.schemas.errors import ConfigurationError, JobRefused
from penstock.schemas.graph import InputSettings, Partitioning
from penstock.schemas.keys import key_group, subtask_of_group
from penstock.schemas.settings import CheckpointSettings, JobSettings, OperatorSettings, Rescale
from penstock.schemas.state import ROWS_MARK, StateHandle
from penstock.schemas.user_codec import codec_for
from penstock.transport.state_storage import StateStorage

JSON = codec_for("json")
PATIENCE_S = 20.0


def deal(
    rescale: Rescale,
    states: Sequence[Any],
    parallelism: int,
    function: Any = None,
    *,
    keyed: bool = False,
    codec: Any = JSON,
) -> list[Any]:
    """What ``parallelism`` subtasks restore of these states, as objects; None: no state."""
    inputs = (InputSettings("source", Partitioning.KEYED),) if keyed else ()
    operators = (
        OperatorSettings("source", 1, has_coordinator=False),
        OperatorSettings("op", parallelism, rescale=rescale, inputs=inputs),
    )
    settings, storage = JobSettings("job", operators), StateStorage(None, "penstock.job")
    spec = CoordinatorSpec(None, JSON, codec, function)
    encoded = [None if state is None else codec.encode(state) for state in states]
    handles = tuple(None if data is None else StateHandle(len(data), inline=data) for data in encoded)
    wanted = Redistribute(7, 101, 2, (StatesToDeal("op", handles, parallelism),))
    redistribution = Redistribution(settings, {"op": spec}, storage, "me")
    redistribution.try_out(wanted)
    dealt = redistribution.perform(wanted).states["op"]
    return [None if handle is None else codec.decode(handle.inline) for handle in dealt]


@pytest.mark.parametrize("p", [1, 2, 3, 7])
@pytest.mark.parametrize("q", [1, 2, 3, 5, 8])
def test_a_list_keeps_its_order_and_is_dealt_evenly(p: int, q: int) -> None:
    items = [[100 * subtask + n for n in range(subtask + 2)] for subtask in range(p)]
    dealt = deal(Rescale.LIST, items, q)
    assert [item for part in dealt for item in part] == [item for part in items for item in part]
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


def test_a_missing_state_is_a_list_of_nothing_beside_others() -> None:
    assert deal(Rescale.LIST, [None, [1, 2], []], 2) == [[1], [2]]


def test_what_is_no_list_is_refused() -> None:
    with pytest.raises(JobRefused, match=r"operator op in checkpoint 7 of job job.*from 2 to 3.*subtask 1 is a dict"):
        deal(Rescale.LIST, [[1], {"a": 1}], 3)
    with pytest.raises(JobRefused, match="subtask 0 is a bytes"):
        deal(Rescale.LIST, [b"abc"], 3, codec=codec_for(None))


def owned(keys: Sequence[Any], parallelism: int, value: Any = 1) -> list[dict[Any, Any]]:
    """Each key in the mapping of the subtask that owns it."""
    states: list[dict[Any, Any]] = [{} for _ in range(parallelism)]
    for key in keys:
        states[subtask_of_group(key_group(key, 128), 128, parallelism)][key] = value
    return states


@pytest.mark.parametrize("q", [1, 2, 5, 128])
def test_an_entry_goes_where_the_records_of_its_key_go(q: int) -> None:
    keys = [f"key {n}" for n in range(200)]
    assert deal(Rescale.KEYED, owned(keys, 3), q, keyed=True) == owned(keys, q)


def test_pairs_keep_keys_that_are_no_strings() -> None:
    keys = [1, 2, 3, "3", False, None, 2.5]
    pairs = [[[key, "v"] for key in state] for state in owned(keys, 2)]
    dealt = deal(Rescale.KEYED, pairs, 5, keyed=True)
    for subtask, state in enumerate(dealt):
        assert all(subtask_of_group(key_group(key, 128), 128, 5) == subtask for key, _ in state)
    assert sorted(repr(key) for state in dealt for key, _ in state) == sorted(map(repr, keys))


def test_a_tuple_comes_back_as_a_list_and_is_the_same_key() -> None:
    key = ("a", 1)
    owner = subtask_of_group(key_group(key, 128), 128, 2)
    states: list[Any] = [[], []]
    states[owner] = [[["a", 1], "v"]]
    dealt = deal(Rescale.KEYED, states, 5, keyed=True)
    assert dealt[subtask_of_group(key_group(key, 128), 128, 5)] == [[["a", 1], "v"]]


def test_a_key_whose_type_the_codec_has_changed_is_refused() -> None:
    """JSON has made strings of ints: their entries would come to subtasks that never see those keys."""
    states = [{str(key): 1 for key in state} for state in owned(range(50), 3)]
    with pytest.raises(
        JobRefused, match=r"the key '\d+' in the state of subtask \d belongs to subtask \d.*\[key, value\]"
    ):
        deal(Rescale.KEYED, states, 5, keyed=True)


def test_without_keyed_input_any_subtask_may_have_had_a_key_but_only_one() -> None:
    dealt = deal(Rescale.KEYED, [{"a": 1, "b": 2}, {"c": 3}], 2)
    assert {key: value for state in dealt for key, value in state.items()} == {"a": 1, "b": 2, "c": 3}
    with pytest.raises(JobRefused, match="the key 'a' is in the states of subtasks 0 and 1"):
        deal(Rescale.KEYED, [{"a": 1}, {"a": 2}], 3)


class Literals:
    """A codec that keeps a key's type."""

    def encode(self, value: Any) -> bytes:
        return repr(value).encode()

    def decode(self, data: bytes) -> Any:
        return literal_eval(data.decode())


def test_keys_that_a_mapping_cannot_hold_apart_are_refused_and_never_merged() -> None:
    """Records of 1, 1.0 and True go to subtasks of their own: so each may have had an entry."""
    states = [{1: "an int"}, {1.0: "a float"}]
    with pytest.raises(JobRefused, match=r"the keys 1 and 1\.0 come to one subtask, and are the same in a mapping"):
        deal(Rescale.KEYED, states, 1, codec=Literals())
    pairs = [[["k", 0], *map(list, state.items())] for state in [{1: "an int"}]] + [[[1.0, "a float"]]]
    assert sorted(map(str, deal(Rescale.KEYED, pairs, 1, codec=Literals())[0])) == sorted(
        map(str, [["k", 0], [1, "an int"], [1.0, "a float"]])
    )


def test_what_is_no_mapping_and_no_key_is_refused() -> None:
    with pytest.raises(JobRefused, match="subtask 0 is a int"):
        deal(Rescale.KEYED, [3], 2)
    with pytest.raises(JobRefused, match="a dict cannot be a key"):
        deal(Rescale.KEYED, [[[{}, 1]]], 2)


def test_a_function_sees_missing_states_and_may_return_some() -> None:
    seen = []

    def function(states: Any, parallelism: int) -> Any:
        seen.append((list(states), parallelism))
        return [None, {"x": 1}, []]

    assert deal(Rescale.FUNCTION, [None, {"x": 0}], 3, function) == [None, {"x": 1}, []]
    assert seen == [([None, {"x": 0}], 3)] * 2


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (lambda states, n: [1], "its rescale function .*lambda.* must return a list of 3 states, .*returned 1 of them"),
        (lambda states, n: None, "must return a list of 3 states, and returned a NoneType"),
        (lambda states, n: "abc", "must return a list of 3 states, and returned a str"),
        (lambda states, n: [1, 2, {3}], "the new state of subtask 2 does not fit the state codec"),
        (lambda states, n: 1 // 0, "raised ZeroDivisionError"),
    ],
)
def test_what_is_wrong_with_a_function_refuses_and_names_it(function: Any, match: str) -> None:
    with pytest.raises(JobRefused, match=match):
        deal(Rescale.FUNCTION, [[1]], 3, function)


def test_states_that_go_with_rows_of_a_dataframe_are_refused() -> None:
    with pytest.raises(JobRefused, match="positions in the rows of a DataFrame"):
        deal(Rescale.FUNCTION, [ROWS_MARK + b"x"], 2, lambda states, n: states, codec=codec_for(None))


def test_a_state_that_cannot_be_read_is_refused() -> None:
    class Broken:
        encode = staticmethod(lambda value: b"{")
        decode = staticmethod(JSON.decode)

    with pytest.raises(JobRefused, match="that of subtask 0 cannot be read"):
        deal(Rescale.LIST, [[1]], 2, codec=Broken())


def test_a_list_rule_is_refused_where_input_is_keyed() -> None:
    with pytest.raises(ConfigurationError, match=r"rescale of operator 'op' is 'list', and it has keyed input"):
        OperatorSettings("op", 2, rescale=Rescale.LIST, inputs=(InputSettings("a", Partitioning.KEYED),))


def merging(url: str | None, record_bytes_max: int) -> tuple[Redistribution, Redistribute]:
    """Two states of 1,500 bytes that become one."""
    settings = JobSettings("job", (OperatorSettings("op", 1, rescale=Rescale.LIST),))
    spec, storage = CoordinatorSpec(None, JSON, JSON, None), StateStorage(url, "penstock.job")
    handles = tuple(StateHandle(len(data), inline=data) for data in [JSON.encode(["x" * 1_500])] * 2)
    redistribution = Redistribution(settings, {"op": spec}, storage, "me", record_bytes_max)
    return redistribution, Redistribute(7, 101, 2, (StatesToDeal("op", handles, 1),))


def test_a_state_that_no_record_of_the_broker_holds_is_stored_or_refused_when_it_is_tried_out(tmp_path: Path) -> None:
    redistribution, wanted = merging(f"file://{tmp_path}", 4_096)
    (handle,) = redistribution.perform(wanted).states["op"]
    assert handle is not None and handle.location is not None
    redistribution, wanted = merging(None, 4_096)
    with pytest.raises(JobRefused, match=r"cannot be stored: above 2048 bytes it needs a state_storage"):
        redistribution.try_out(wanted)
    redistribution, wanted = merging(None, 8_192)
    redistribution.try_out(wanted)


def test_thousands_of_stored_states_are_read_and_stored_several_at_once_and_keep_their_order() -> None:
    """One after the other ten thousand would take an object store half an hour."""
    settings = JobSettings(
        "job", (OperatorSettings("op", 30, rescale=Rescale.LIST),), checkpoint=CheckpointSettings(inline_state_max=0)
    )
    together = threading.Barrier(2)

    class Storage:
        configured = True
        stored: ClassVar[dict[str, bytes]] = {}

        def get(self, location: str, size: int = 0) -> bytes:
            together.wait(PATIENCE_S)
            return JSON.encode([int(location)])

        def put(self, location: str, data: bytes) -> None:
            together.wait(PATIENCE_S)
            self.stored[location] = data

    storage: Any = Storage()
    redistribution = Redistribution(settings, {"op": CoordinatorSpec(None, JSON, JSON, None)}, storage, "me")
    handles = tuple(StateHandle.stored(str(number), JSON.encode([number])) for number in range(40))
    dealt = redistribution.perform(Redistribute(7, 101, 2, (StatesToDeal("op", handles, 30),))).states["op"]
    found = [JSON.decode(storage.stored[handle.location]) for handle in dealt if handle is not None and handle.location]
    assert len(found) == 30 and [number for each in found for number in each] == list(range(40))


def test_a_damaged_state_is_not_dealt(tmp_path: Path) -> None:
    """Section 7.6: each that reads a stored state looks at its size and its checksum."""
    settings = JobSettings("job", (OperatorSettings("op", 3, rescale=Rescale.LIST),))
    storage = StateStorage(tmp_path.as_uri(), "penstock.job")
    whole, cut = b'["a","b","c"]', b'["a","b"]'
    storage.put("1-op-0", cut)
    handles = (StateHandle.stored("1-op-0", whole), StateHandle(2, inline=b"[]"))
    redistribution = Redistribution(settings, {"op": CoordinatorSpec(None, JSON, JSON, None)}, storage, "me")
    with pytest.raises(JobRefused, match=r"'1-op-0'.* is damaged: it has 9 bytes and should have 13"):
        redistribution.perform(Redistribute(7, 101, 2, (StatesToDeal("op", handles, 3),)))
