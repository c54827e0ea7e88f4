"""The coordinator of a source by itself: who gets which split, what is in its state, and what it says."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import Backpressure, ConfigurationError, StateError
from penstock.sources import Split, SplitReader, Splits
from penstock.sources.split_coordinator import LISTING_ATTEMPTS, LOOK_AHEAD, LOOK_AHEAD_BYTES, WINDOW, SplitCoordinator
from penstock.sources.split_reader import rescale

from .driving import ReadNumbers, finite


class Surroundings:
    """A context and gateways; what is called asynchronously runs when the test says so."""

    def __init__(self, parallelism: int = 2) -> None:
        self.operator, self.parallelism = "read", parallelism
        self.work: list[tuple[Any, Any]] = []
        self.timers: list[tuple[float, Callable[[], object]]] = []
        self.sent: dict[int, list[Any]] = {subtask: [] for subtask in range(parallelism)}
        self.full: set[int] = set()
        self.writable: list[Callable[[], object]] = []
        self.numbers: dict[str, float] = {}
        self.metrics = SimpleNamespace(set=self.numbers.__setitem__, increment=lambda name: None)

    def call_async(self, fn: Any, on_result: Any) -> None:
        self.work.append((fn, on_result))

    def call_later(self, delay: float, fn: Callable[[], object]) -> None:
        self.timers.append((delay, fn))

    def on_writable(self, subtask: int, fn: Callable[[], object]) -> None:
        self.writable.append(fn)

    def list_all(self) -> None:
        while self.work:
            fn, on_result = self.work.pop(0)
            try:
                result, error = fn(), None
            except Exception as raised:
                result, error = None, raised
            on_result(result, error)

    def gateway(self, subtask: int) -> Any:
        def send_event(event: Any) -> None:
            if subtask in self.full:
                raise Backpressure("full")
            self.sent[subtask].append(json.loads(json.dumps(event)))

        return SimpleNamespace(send_event=send_event)

    def ids(self, subtask: int) -> list[str]:
        return [event["split"][0] for event in self.sent[subtask] if "split" in event]


def started(source: Any, parallelism: int = 2, state: Any = None) -> tuple[SplitCoordinator, Surroundings]:
    around = Surroundings(parallelism)
    coordinator = SplitCoordinator(source)
    coordinator.context = around  # type: ignore[assignment]
    if state is not None:
        coordinator.reset_to_checkpoint(1, state)
    coordinator.start()
    for subtask in range(parallelism):
        coordinator.execution_attempt_ready(subtask, 1, around.gateway(subtask))
    around.list_all()
    return coordinator, around


def ask(coordinator: SplitCoordinator, subtask: int, wants: int, **more: Any) -> None:
    event = {"series": 0, "wants": wants, "finished": 0, "host": "elsewhere", **more}
    coordinator.handle_event_from_operator(subtask, 1, event, SimpleNamespace(belongs_to=1))  # type: ignore[arg-type]


def state_of(coordinator: SplitCoordinator) -> Any:
    states: list[Any] = []
    coordinator.checkpoint_coordinator(1, SimpleNamespace(complete=states.append))  # type: ignore[arg-type]
    return json.loads(json.dumps(states[0]))


def test_a_request_that_is_made_again_is_given_nothing_twice() -> None:
    coordinator, around = started(finite(1, 10))
    ask(coordinator, 0, 2)
    ask(coordinator, 0, 2)
    ask(coordinator, 0, 1)
    assert around.ids(0) == ["s0000000", "s0000001"]
    ask(coordinator, 0, 3)
    assert around.ids(0) == ["s0000000", "s0000001", "s0000002"]


def test_those_that_wait_are_served_by_turns_when_splits_come() -> None:
    around, coordinator = Surroundings(), SplitCoordinator(finite(1, 6))
    coordinator.context = around  # type: ignore[assignment]
    coordinator.start()
    for subtask in (0, 1):
        coordinator.execution_attempt_ready(subtask, 1, around.gateway(subtask))
        ask(coordinator, subtask, 2)
    assert around.sent == {0: [], 1: []}
    around.list_all()
    assert around.ids(0) == ["s0000000", "s0000002"]
    assert around.ids(1) == ["s0000001", "s0000003"]


def test_the_end_is_told_once_to_each_when_the_last_split_is_handed_out() -> None:
    coordinator, around = started(finite(1, 2))
    ask(coordinator, 0, 1)
    assert {"end": True} not in around.sent[0]
    ask(coordinator, 1, 5)
    ask(coordinator, 0, 2)
    assert [event for event in around.sent[0] if "end" in event] == [{"end": True}]
    assert [event for event in around.sent[1] if "end" in event] == [{"end": True}]


def test_a_split_goes_to_a_subtask_on_its_host_first_and_waits_for_none() -> None:
    splits = [Split(f"s{i}", hosts=["a" if i % 2 else "b"]) for i in range(6)]
    coordinator, around = started(Splits(splits))
    ask(coordinator, 0, 2, host="a")
    ask(coordinator, 1, 1, host="c")
    ask(coordinator, 0, 6, host="a")
    assert around.ids(0) == ["s1", "s3", "s5", "s2", "s4"]
    assert around.ids(1) == ["s0"]


def test_heavy_splits_go_before_light_ones_that_were_listed_beside_them() -> None:
    splits = [Split(f"s{i}", weight=[1, 5, 3][i % 3]) for i in range(6)]
    coordinator, around = started(Splits(splits))
    ask(coordinator, 0, 6)
    assert around.ids(0) == ["s1", "s4", "s2", "s5", "s0", "s3"]


def test_no_split_is_passed_over_for_ever() -> None:
    splits = [Split("s0000", weight=0.5)] + [Split(f"s{i:04}", weight=2) for i in range(1, 3 * WINDOW)]
    coordinator, around = started(Splits(splits))
    ask(coordinator, 0, 2 * WINDOW)
    assert around.ids(0).index("s0000") == WINDOW


def test_a_subtask_whose_gateway_is_full_is_served_when_it_has_room() -> None:
    coordinator, around = started(finite(1, 4))
    around.full.add(0)
    ask(coordinator, 0, 2)
    ask(coordinator, 1, 1)
    assert around.ids(0) == []
    assert around.ids(1) == ["s0000000"]
    around.full.clear()
    for fn in around.writable:
        fn()
    assert around.ids(0) == ["s0000001", "s0000002"]


def listing_of(count: int) -> Splits:
    def listing(after: str | None) -> Iterator[str]:
        begin = 0 if after is None else int(after) + 1
        for number in range(begin, count):
            yield f"{number:08}"

    return Splits(listing)


@pytest.mark.parametrize("count", [2_000, 20_000])
def test_the_state_and_the_look_ahead_do_not_grow_with_the_number_of_splits(count: int) -> None:
    coordinator, around = started(listing_of(count))
    wanted = largest = 0
    while wanted < count:
        wanted += 700
        ask(coordinator, 0, wanted)
        around.list_all()
        largest = max(largest, len(json.dumps(state_of(coordinator))))
    assert around.ids(0) == [f"{number:08}" for number in range(count)]
    assert largest < 16 * LOOK_AHEAD


def test_the_look_ahead_is_bounded_in_bytes_too() -> None:
    coordinator, _ = started(Splits(lambda: [Split(f"s{i:05}", "x" * 5_000) for i in range(2_000)]))
    assert len(json.dumps(state_of(coordinator))) < LOOK_AHEAD_BYTES + 20_000


def test_a_restored_coordinator_hands_out_the_rest_and_nothing_else() -> None:
    coordinator, around = started(listing_of(3_000))
    ask(coordinator, 0, 1_234)
    restored, later = started(listing_of(3_000), state=state_of(coordinator))
    for wanted in range(1_234, 4_000, 500):
        ask(restored, 0, wanted)
        later.list_all()
    assert around.ids(0) + later.ids(0) == [f"{number:08}" for number in range(3_000)]


def test_what_a_listing_finds_after_a_rollback_is_the_new_epochs_alone() -> None:
    around, coordinator = Surroundings(), SplitCoordinator(listing_of(10))
    coordinator.context = around  # type: ignore[assignment]
    coordinator.start()
    step, _ = around.work.pop()  # its result is dropped with the epoch
    coordinator.reset_to_checkpoint(1, state_of(coordinator))
    assert step().found == []  # and its thread finds nothing more
    around.list_all()
    coordinator.execution_attempt_ready(0, 1, around.gateway(0))
    ask(coordinator, 0, 20)
    assert around.ids(0) == [f"{number:08}" for number in range(10)]


def test_new_ids_are_found_in_any_order_and_old_ones_are_not_given_again() -> None:
    there = ["b"]
    coordinator, around = started(Splits(lambda: list(there), discover_every=10))
    ask(coordinator, 0, 10)
    there += ["a", "c"]
    (delay, go_on) = around.timers.pop()
    assert delay == 10
    go_on()
    around.list_all()
    assert around.ids(0) == ["b", "a", "c"]
    restored, later = started(Splits(lambda: list(there), discover_every=10), state=state_of(coordinator))
    ask(restored, 0, 20)
    assert later.ids(0) == []


def test_a_listing_that_keeps_failing_waits_longer_each_time_and_then_fails_the_coordinator() -> None:
    def listing() -> list[str]:
        raise OSError("the store is away")

    coordinator, around = started(Splits(listing))
    delays = []
    for _ in range(LISTING_ATTEMPTS - 2):
        assert "the store is away" in coordinator.handle_request(None)["listing"]
        delays.append(list_again(around))
    with pytest.raises(OSError, match="the store is away"):
        list_again(around)
    assert delays == [1, 2, 4, 8]


def list_again(around: Surroundings) -> float:
    delay, go_on = around.timers.pop()
    go_on()
    around.list_all()
    return delay


def test_requests_are_answered_with_the_progress_and_so_are_metrics() -> None:
    coordinator, around = started(finite(1, 5))
    ask(coordinator, 0, 3)
    ask(coordinator, 0, 4, finished=2)
    told = {"found": 5, "handed_out": 4, "finished": 2, "open": 2, "listing": "ended"}
    assert coordinator.handle_request(None) == told
    assert around.numbers == {"splits_found": 5, "splits_handed_out": 4, "splits_finished": 2, "splits_open": 2}


def test_a_rescaled_subtask_begins_a_new_series_and_old_requests_count_no_more() -> None:
    coordinator, _ = started(finite(1, 10))
    ask(coordinator, 0, 3)
    ask(coordinator, 1, 3)
    restored, around = started(finite(1, 10), parallelism=1, state=state_of(coordinator))
    ask(restored, 1, 5)  # of a subtask that is gone
    ask(restored, 0, 1, series=1)
    ask(restored, 0, 9)  # of the old series
    assert around.ids(0) == ["s0000006"]


def test_rescale_deals_every_open_split_with_its_position_once() -> None:
    states = [
        {"series": 2, "received": 9, "finished": 5, "ended": True, "open": [[["a"], 3], [["b"], None]], "reader": [1]},
        None,
        {"series": 2, "received": 4, "finished": 4, "ended": True, "open": [[["c"], 7]], "reader": [2]},
    ]
    dealt = rescale(lambda readers, n: [[1, 2]] + [[]] * (n - 1), states, 4)
    assert sorted(entry for state in dealt for entry in state["open"]) == [[["a"], 3], [["b"], None], [["c"], 7]]
    assert {state["series"] for state in dealt} == {3}
    assert sum(state["finished"] for state in dealt) == 9
    assert not any(state["ended"] or state["received"] for state in dealt)


def test_readers_with_a_state_say_how_it_is_rescaled() -> None:
    states = [{"series": 0, "received": 0, "finished": 0, "ended": False, "open": [], "reader": 1}]
    with pytest.raises(ConfigurationError, match=r"read_by\(Reader, rescale=\.\.\.\)"):
        rescale(None, states, 2)


def test_another_source_is_not_taken_for_the_one_that_a_checkpoint_lists() -> None:
    coordinator, _ = started(finite(1, 3))
    with pytest.raises(ConfigurationError, match="give the operator another name"):
        started(Splits(lambda: ["a"], discover_every=1), state=state_of(coordinator))
    with pytest.raises(StateError, match="not that of a source"):
        started(finite(1, 3), state=[1])


class NoRead(SplitReader):
    pass


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Split(""), "id of a split"),
        (lambda: Split("a", hosts="b"), "hosts of split 'a'"),
        (lambda: Split("a", weight=float("nan")), "weight of split 'a'"),
        (lambda: Splits("abc"), "a list of splits"),
        (lambda: Splits(["a", 1]), "must be a penstock.sources.Split"),  # type: ignore[list-item]
        (lambda: Splits(["a", "a"]), "two splits have the id 'a'"),
        (lambda: Splits(["a"], discover_every=1), "discover_every is for a function"),
        (lambda: Splits(lambda: [], discover_every=0), "discover_every must be seconds"),
        (lambda: Splits(str(n) for n in range(100_001)), "more than 100000 splits"),
        (lambda: Splits(["a"]).read_by(NoRead), "NoRead does not say how a split is read"),
        (lambda: Splits(["a"]).read_by(dict), "a subclass of penstock.sources.SplitReader, not dict"),  # type: ignore[arg-type]
        (lambda: Splits(["a"]).read_by(ReadNumbers, prefetch=-1), "prefetch must be"),
    ],
)
def test_what_is_wrong_is_refused_where_it_is_given(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build()


@pytest.mark.parametrize("payload", ["x" * 20_000, {1, 2}, float("nan")], ids=["large", "a set", "nan"])
def test_a_split_that_cannot_travel_fails_by_name(payload: Any) -> None:
    with pytest.raises(ConfigurationError, match="split 'a'"):
        started(Splits(lambda: [Split("a", payload)]))


def test_a_source_travels_in_a_job() -> None:
    reading = Splits(["a", "b"]).read_by(ReadNumbers)
    again = pickle.loads(pickle.dumps(reading))
    assert isinstance(again["coordinator"](), SplitCoordinator)
    again["subtask"]()
