"""The coordinator by hand: which version each attempt is sent, when a cut is taken, what a rollback leaves."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

import penstock
from penstock.errors import Backpressure, ConfigurationError, EventNotHandled
from penstock.rules.coordinator import RulesCoordinator
from penstock.rules.source_port import Found, Look
from penstock.rules.state_codec import CoordinatorState, StateCodec
from penstock.schemas.user_codec import BytesCodec

from .driving import Rule, rule


class Metrics(dict[str, float]):
    def set(self, name: str, value: float) -> None:
        self[name] = value

    def increment(self, name: str, by: float = 1.0) -> None:
        self[name] = self.get(name, 0) + by


class Context:
    """Runs nothing by itself."""

    job, operator, parallelism, epoch = "scoring", "score", 3, 1

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.every: list[Callable[[], object]] = []
        self.async_calls: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], object]]] = []
        self.later: list[Callable[[], object]] = []
        self.shown: dict[str, Any] = {}
        self.writable: list[tuple[int, Callable[[], object]]] = []

    def call_every(self, interval_s: float, fn: Callable[[], object]) -> None:
        self.every.append(fn)

    def call_later(self, delay_s: float, fn: Callable[[], object]) -> None:
        self.later.append(fn)

    def show(self, what: dict[str, Any]) -> None:
        self.shown = what

    def call_async(self, fn: Callable[[], Any], on_result: Callable[[Any, BaseException | None], object]) -> None:
        self.async_calls.append((fn, on_result))

    def on_writable(self, subtask: int, fn: Callable[[], object]) -> None:
        self.writable.append((subtask, fn))

    def finish_async(self) -> None:
        fn, on_result = self.async_calls.pop(0)
        result, error = None, None
        try:
            result = fn()
        except Exception as raised:
            error = raised
        on_result(result, error)


class Future:
    """Of an event; ``settle`` is for the test."""

    error: Exception | None = None

    def add_done_callback(self, callback: Callable[[Future], object]) -> None:
        self.callback = callback

    def exception(self) -> Exception | None:
        return self.error

    def settle(self, error: Exception | None = None) -> None:
        self.error = error
        self.callback(self)


@dataclass
class Gateway:
    subtask: int
    attempt: int
    room: int = 1_000

    def __post_init__(self) -> None:
        self.sent: list[Any] = []
        self.futures: list[Future] = []

    def send_event(self, event: Any) -> Future:
        if not self.room:
            raise Backpressure("no room")
        self.room -= 1
        self.sent.append(event)
        self.futures.append(Future())
        return self.futures[-1]

    @property
    def versions(self) -> list[int]:
        return [event["version"] for event in self.sent]


class Result:
    state: Any = None

    def complete(self, state: Any) -> None:
        assert self.state is None
        self.state = StateCodec(BytesCodec()).decode(StateCodec(BytesCodec()).encode(state))

    @property
    def version(self) -> Any:
        return None if self.state is None else self.state.plain["versions"][-1]["number"]


class Source:
    """Answers looks as a test says."""

    def __init__(self) -> None:
        self.looks: list[Look | Exception] = []
        self.positions: list[Any] = []

    def look(self, position: Any) -> Look:
        self.positions.append(position)
        answer = self.looks.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def made(source: Source | None = None, **arguments: Any) -> tuple[RulesCoordinator, Context]:
    if source is not None:
        arguments["source"] = "/rules.json"
    coordinator = penstock.Rules(Rule, **arguments).operator(Subtask)["coordinator"]()
    if source is not None:
        coordinator._source = source
    context = coordinator.context = Context()
    coordinator.start()
    return coordinator, context


class Subtask(penstock.RuleSubtask[list[Rule]]):
    pass


def ready(coordinator: RulesCoordinator, subtask: int, attempt: int = 1, **how: Any) -> Gateway:
    gateway = Gateway(subtask, attempt, **how)
    coordinator.execution_attempt_ready(subtask, attempt, cast(penstock.Gateway, gateway))
    return gateway


def cut(coordinator: RulesCoordinator, checkpoint_id: int) -> Result:
    result = Result()
    coordinator.checkpoint_coordinator(checkpoint_id, result)
    return result


def change(coordinator: RulesCoordinator, *names: str) -> Any:
    return coordinator.handle_request({"set": [rule(name) for name in names]})


def text(*names: str) -> bytes:
    return json.dumps([rule(name) for name in names]).encode()


INITIAL = [Rule("first", 1.0)]


def test_each_attempt_is_given_the_current_version() -> None:
    coordinator, _ = made(initial=INITIAL)
    first = ready(coordinator, 0)
    change(coordinator, "a")
    change(coordinator, "b")
    late = ready(coordinator, 1)
    coordinator.execution_attempt_failed(0, 1, "died")
    change(coordinator, "c")
    again = ready(coordinator, 0, attempt=2)
    assert (first.versions, late.versions, again.versions) == ([0, 1, 2], [2, 3], [3])


def test_the_end_of_a_replaced_attempt_does_not_take_its_successors_gateway() -> None:
    coordinator, _ = made(initial=INITIAL)
    ready(coordinator, 0, attempt=1)
    newer = ready(coordinator, 0, attempt=2)
    coordinator.execution_attempt_failed(0, 1, "late word")
    change(coordinator, "a")
    assert newer.versions == [0, 1]


def test_no_cut_is_taken_before_the_first_version() -> None:
    coordinator, context = made()
    gateway = ready(coordinator, 0)
    result = cut(coordinator, 1)
    assert (gateway.versions, result.version) == ([], None)
    assert change(coordinator, "a")["version"] == 1
    assert (gateway.versions, result.version) == ([1], 1)
    assert context.metrics["rules_version"] == 1


def test_a_cut_waits_until_back_pressure_has_let_the_version_through_to_all() -> None:
    coordinator, context = made(initial=INITIAL)
    gateways = [ready(coordinator, 0), ready(coordinator, 1, room=1), ready(coordinator, 2)]
    answer = change(coordinator, "a")
    assert answer["subtasks_not_sent"] == 2
    waiting = cut(coordinator, 1)
    change(coordinator, "b")  # meanwhile: those that lack the version before are sent this one alone
    assert waiting.version is None
    assert [subtask for subtask, _ in context.writable] == [1]
    gateways[1].room = 10
    context.writable.pop()[1]()
    assert [gateway.versions for gateway in gateways] == [[0, 1, 2], [0, 2], [0, 2]]
    assert waiting.version == 2


def test_a_cut_that_was_aborted_while_it_waited_is_forgotten() -> None:
    coordinator, _ = made()
    ready(coordinator, 0)
    aborted = cut(coordinator, 1)
    coordinator.notify_checkpoint_aborted(1, "too slow")
    later = cut(coordinator, 2)
    change(coordinator, "a")
    assert (aborted.version, later.version) == (None, 1)


def test_a_subtask_that_dies_holds_no_cut_up() -> None:
    coordinator, _ = made(initial=INITIAL)
    ready(coordinator, 0)
    ready(coordinator, 1, room=1)
    change(coordinator, "a")
    coordinator.execution_attempt_failed(1, 1, "died")
    assert cut(coordinator, 1).version == 1


def test_a_refused_set_leaves_the_old_one_and_is_seen_everywhere(caplog: pytest.LogCaptureFixture) -> None:
    coordinator, context = made(initial=INITIAL)
    gateway = ready(coordinator, 0)
    with pytest.raises(ConfigurationError, match="rule 0, field factor of Rule"):
        coordinator.handle_request({"set": [{"name": "a", "factor": "much"}]})
    shown = coordinator.handle_request({"show": True})
    assert (shown["version"], shown["rules"]) == (0, [{"name": "first", "factor": 1.0, "tags": []}])
    assert "field factor of Rule" in shown["last_refused"]["reason"]
    assert context.metrics["rules_refused"] == 1
    assert "job=scoring operator=score: the rules from request are refused, and version 0 stays" in caplog.text
    assert gateway.versions == [0]


def test_a_rollback_makes_old_rules_a_new_version() -> None:
    coordinator, _ = made(initial=INITIAL, keep=3)
    gateway = ready(coordinator, 0)
    change(coordinator, "a")
    change(coordinator, "b")
    answer = coordinator.handle_request({"rollback": 1})
    assert (answer["version"], answer["origin"], answer["changed"]) == (3, "rollback to 1", True)
    assert gateway.sent[-1] == {"version": 3, "rules": [rule("a")]}
    with pytest.raises(ConfigurationError, match="version 0 is not kept; kept are: 1, 2, 3"):
        coordinator.handle_request({"rollback": 0})
    assert not coordinator.handle_request({"rollback": 3})["changed"]
    told = coordinator.handle_request({"history": True})["history"]
    assert [(each["version"], each["origin"], each["rules"]) for each in told] == [
        (1, "request", 1), (2, "request", 1), (3, "rollback to 1", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "request_",
    [None, [], {}, {"set": [], "show": True}, {"show": False}, {"rollback": "1"}, {"rollback": True}, {"sett": []}],
    ids=str,
)
def test_another_request_is_told_which_there_are(request_: Any) -> None:
    coordinator, _ = made(initial=INITIAL)
    with pytest.raises(ConfigurationError, match=r'is no request about rules; use one of {"set": \[\.\.\.\]}'):
        coordinator.handle_request(request_)


# ---- rollbacks of the job


def test_a_rollback_of_the_job_brings_the_version_of_the_checkpoint_and_says_what_is_undone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    coordinator, context = made(initial=INITIAL)
    ready(coordinator, 0)
    change(coordinator, "a")
    saved = cut(coordinator, 1)
    coordinator.notify_checkpoint_complete(1)
    assert coordinator.handle_request({"show": True})["durable_version"] == 1
    answer = change(coordinator, "b")
    assert (answer["version"], answer["durable_version"]) == (2, 1)
    coordinator.reset_to_checkpoint(1, saved.state)
    assert "version 2 of the rules" in caplog.text and "is undone by the rollback to checkpoint 1" in caplog.text
    assert ready(coordinator, 0, attempt=2).versions == [1]
    assert coordinator.handle_request({"show": True})["durable_version"] == 1
    coordinator.notify_checkpoint_complete(1)
    assert context.metrics["rules_durable_version"] == 1
    coordinator.reset_to_checkpoint(-1, None)
    assert ready(coordinator, 0, attempt=3).versions == [0]


def test_a_cut_that_waited_is_void_after_a_rollback() -> None:
    coordinator, _ = made()
    ready(coordinator, 0)
    void = cut(coordinator, 1)
    coordinator.reset_to_checkpoint(-1, None)
    ready(coordinator, 0, attempt=2)
    change(coordinator, "a")
    assert void.version is None


def test_rules_of_a_checkpoint_that_do_not_fit_todays_types_are_an_error_that_says_so() -> None:
    coordinator, _ = made(initial=INITIAL)
    ready(coordinator, 0)
    state = cut(coordinator, 1).state
    state.plain["versions"][-1]["rules"] = [{"name": "first"}]
    with pytest.raises(ConfigurationError, match=r"version 0 of the rules, in checkpoint 4.*Give new fields a default"):
        coordinator.reset_to_checkpoint(4, state)


# ---- a source


def test_subtasks_wait_for_the_first_look_at_the_source() -> None:
    source = Source()
    coordinator, context = made(source, initial=INITIAL)
    gateway, result = ready(coordinator, 0), cut(coordinator, 1)
    source.looks = [ConnectionError("away"), Look(3, [Found("at 2", text("a"))], False), Look(4)]
    context.finish_async()
    assert coordinator.handle_request({"show": True})["source_trouble"] == "ConnectionError: away"
    assert (gateway.versions, result.version, context.metrics["rules_source_failures"]) == ([], None, 1)
    context.every[0]()
    context.finish_async()
    assert gateway.versions == []  # there is more to read
    context.finish_async()
    assert (gateway.versions, result.version, source.positions) == ([1], 1, [None, None, 3])
    assert result.state.plain["position"] == 4


def test_a_source_without_rules_leaves_the_initial_ones() -> None:
    source = Source()
    coordinator, context = made(source, initial=INITIAL)
    gateway = ready(coordinator, 0)
    source.looks = [Look(None)]
    context.finish_async()
    assert gateway.versions == [0]


def test_without_rules_anywhere_a_warning_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    source = Source()
    coordinator, context = made(source)
    source.looks = [Look(None), Look(None)]
    for _ in range(2):
        context.every[0]()
        context.finish_async()
    assert caplog.text.count("""send one (penstock request scoring score '{"set": [...]}')""") == 1
    assert ready(coordinator, 0).versions == []


def test_of_what_a_look_finds_each_set_is_a_version_and_the_last_one_is_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = Source()
    coordinator, context = made(source)
    gateway = ready(coordinator, 0)
    found = [Found("at 0", text("a")), Found("at 1", b"{"), Found("at 2", None), Found("at 3", text("b"))]
    source.looks = [Look(4, found)]
    context.finish_async()
    assert gateway.versions == [2]
    assert [each.origin for each in coordinator._versions.kept] == ["at 0", "at 3"]
    assert "the rules from at 1 are refused, and version 1 stays: it is not JSON" in caplog.text
    assert "the rules from at 2 are refused, and version 1 stays: a record without a value" in caplog.text
    assert context.metrics["rules_refused"] == 2


def test_one_look_is_under_way_at_a_time() -> None:
    _, context = made(Source())
    context.every[0]()
    context.every[0]()
    assert len(context.async_calls) == 1


def test_a_look_that_began_before_a_rollback_changes_nothing_after_it() -> None:
    source = Source()
    coordinator, context = made(source, initial=INITIAL)
    ready(coordinator, 0)
    source.looks = [Look(1, [Found("at 0", text("a"))])]
    context.finish_async()
    state = cut(coordinator, 1).state
    context.every[0]()
    coordinator.reset_to_checkpoint(1, state)
    context.every[0]()
    source.looks = [Look(3, [Found("at 1", text("b")), Found("at 2", text("c"))]), Look(2, [Found("at 1", text("b"))])]
    context.finish_async()
    assert coordinator._versions.current is not None and coordinator._versions.current.number == 1
    context.finish_async()
    assert (coordinator._position, coordinator._versions.current.number) == (2, 2)


def test_another_source_is_read_from_its_beginning() -> None:
    source = Source()
    coordinator, context = made(source, initial=INITIAL)
    source.looks = [Look("digest", [Found("at 0", text("a"))])]
    context.finish_async()
    ready(coordinator, 0)
    state = cut(coordinator, 1).state
    same, _ = made(Source())
    same.reset_to_checkpoint(1, state)
    assert same._position == "digest"
    other = penstock.Rules(Rule, source="/other.json").operator(Subtask)["coordinator"]()
    other.context = Context()
    other.reset_to_checkpoint(1, CoordinatorState(state.plain))
    assert other._position is None


def test_changes_are_logged_with_their_origin(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.rules")
    coordinator, _ = made(initial=INITIAL)
    change(coordinator, "a", "b")
    assert "operator=score: version 1 of the rules, 2 of them (" in caplog.text


# ---- what is shown


def test_it_shows_the_version_the_rules_and_which_subtasks_have_taken_them() -> None:
    coordinator, context = made(initial=INITIAL)
    first, second = ready(coordinator, 0), ready(coordinator, 1)
    first.futures[0].settle()
    second.futures[0].settle()
    assert len(context.later) == 1  # one change of the page for many subtasks
    context.later.pop()()
    assert context.shown["version"].startswith("0 (")
    assert context.shown["subtasks that have it"] == "0, 1 of 3"
    assert context.shown["rules"] == '[{"name": "first", "factor": 1.0, "tags": []}]'
    ready(coordinator, 2).futures[0].settle()
    context.later.pop()()
    assert context.shown["subtasks that have it"] == "all"
    change(coordinator, "a")
    context.later.pop()()
    assert context.shown["subtasks that have it"] == "none of 3"
    first.futures[0].settle()  # of the version before
    assert coordinator.handle_request({"show": True})["subtasks"] == []
    first.futures[1].settle()
    second.futures[1].settle(EventNotHandled("rolled back"))
    assert coordinator.handle_request({"show": True})["subtasks"] == [0]
    ready(coordinator, 0, attempt=2)
    assert coordinator.handle_request({"show": True})["subtasks"] == []


def test_what_it_shows_has_a_bound_whatever_the_rules_and_reasons_are() -> None:
    def validate(rules: Any) -> str:
        return "" if not rules or rules[0].name != "bad" else "\x00\ud800" * 5_000

    coordinator, context = made(initial=[rule('\\"\x00é' * 1_000)], validate=lambda rules: validate(rules) or True)
    with pytest.raises(ConfigurationError):
        change(coordinator, "bad")
    context.later.pop()()
    text = json.dumps(context.shown, ensure_ascii=False)
    assert len(text) < 8_000 and text.encode()
    assert "last refused" in context.shown and "characters)" in context.shown["rules"]
