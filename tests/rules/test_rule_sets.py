"""What is a rule set, what is refused and in which words, and what the kept versions are."""

from __future__ import annotations

import enum
import pickle
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import penstock
from penstock.errors import ConfigurationError
from penstock.rules.rule_sets import RuleSet, check, check_text, objects, rule_set_type
from penstock.rules.versions import Versions

from .driving import Rule, Score


class Kind(enum.Enum):
    LOW = "low"
    HIGH = "high"


@dataclass
class Limit:
    above: float


@dataclass
class Rich:
    name: str
    kind: Kind = Kind.LOW
    limit: Limit | None = None
    hours: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a rule needs a name")


def test_a_rule_set_becomes_objects_of_the_dataclass() -> None:
    plain = [{"name": "a", "kind": "high", "limit": {"above": 2}, "hours": [1, 2]}, {"name": "b"}]
    assert objects(list[Rich], plain) == [Rich("a", Kind.HIGH, Limit(2.0), (1, 2)), Rich("b")]
    assert objects(dict[str, Rich], {"x": {"name": "a"}}) == {"x": Rich("a")}


@pytest.mark.parametrize(
    ("plain", "says"),
    [
        ([{"name": "a"}, {"name": 3}], "rule 1, field name of Rich: Input should be a valid string, not 3"),
        ([{}], "rule 0, field name of Rich: Field required"),
        ([{"name": "a", "nmae": "b"}], "rule 0, field nmae of Rich: there is no such field"),
        ([{"name": "a", "limit": {"above": "1"}}], "rule 0, field limit.above of Rich: Input should be a valid number"),
        ([{"name": "a", "limit": {"above": True}}], "field limit.above of Rich"),
        ([{"name": "a", "hours": [1, 2.5]}], "rule 0, field hours.1 of Rich: Input should be a valid integer, not 2.5"),
        ([{"name": "a", "kind": "medium"}], "field kind of Rich: Input should be 'low' or 'high', not 'medium'"),
        ([{"name": ""}], "rule 0: Value error, a rule needs a name"),
        ({"name": "a"}, "the rule set: Input should be a valid array"),
        ("a", "the rule set: Input should be a valid array, not 'a'"),
        ([3], "rule 0: Input should be an object"),
        ([{"name": 1}] * 7, "and 2 more"),
        ([{"name": "a", "limit": {"above": float("nan")}}], "not JSON"),
        ([{"name": "\ud800"}], "not JSON"),
        ([{"name": "a" * 3000}], "max_bytes allows 2000"),
    ],
)
def test_a_rule_set_that_does_not_fit_is_refused_by_rule_field_and_value(plain: Any, says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check(list[Rich], plain, None, 2000)
    assert says in str(refused.value)
    assert len(str(refused.value)) < 1000


def test_a_rule_of_a_dict_is_named_by_its_key() -> None:
    with pytest.raises(ConfigurationError, match="rule 'x', field name of Rich"):
        check(dict[str, Rich], {"x": {"name": 1}}, None, 2000)


@pytest.mark.parametrize(
    "text", [b"", b'[{"name": "a"}', b"[{'name': 'a'}]", b"\xff\xfe", b"[" * 100_000, b'[{"name": "\\ud800"}]']
)
def test_a_text_that_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(ConfigurationError, match="JSON"):
        check_text(list[Rich], text, None, 1_000_000)


@pytest.mark.parametrize("answer", ["too many", False, 0, ValueError("too many")], ids=repr)
def test_the_users_own_check_refuses_by_raising_or_by_saying_why(answer: Any) -> None:
    def validate(rules: list[Rich]) -> Any:
        assert rules == [Rich("a")]
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(ConfigurationError, match="validate refused it") as refused:
        check(list[Rich], [{"name": "a"}], validate, 2000)
    assert "too many" in str(refused.value) or not isinstance(answer, str)


def test_equal_sets_have_equal_digests_and_the_order_counts() -> None:
    def digest(plain: Any) -> str:
        return check(list[Rich], plain, lambda rules: True, 2000).digest

    a, b = {"name": "a"}, {"name": "b"}
    assert digest([a, b]) == digest([dict(a), dict(b)])
    assert digest([a, b]) != digest([b, a])


@pytest.mark.parametrize("given", [3, "Rule", int, list[int], dict[int, Rich], list, tuple[Rich, ...], Rich("a")])
def test_a_rule_is_a_dataclass_in_a_list_or_a_dict(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="declared by a dataclass"):
        rule_set_type(given)


def test_a_dataclass_that_cannot_be_checked_is_refused_at_once() -> None:
    class Opaque:
        pass

    @dataclass
    class Holds:
        what: Opaque

    with pytest.raises(ConfigurationError, match="pydantic cannot check"):
        penstock.Rules(Holds)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"keep": 0}, "keep of rules must be a whole number, at least 1, not 0"),
        ({"max_bytes": 1.5}, "max_bytes"),
        ({"max_bytes": 1_000_000}, "above 524288 a rule set may not fit into a Kafka record"),
        ({"interval": 0}, "interval"),
        ({"validate": "yes"}, "validate"),
        ({"initial": [{"name": 1}]}, "the initial rules are refused: rule 0, field name"),
        ({"initial": [object()]}, "JSON cannot hold"),
        ({"initial": []}, None),
        ({"source": "rules.json"}, "use 'topic:NAME', an absolute path, or a URL"),
        ({"source": 7}, "must be a text"),
        ({"source": "nosuch://a/b"}, "cannot be read"),
        ({"source": "topic:rules"}, "needs its broker"),
        ({"source": "/etc/rules.json", "kafka": {"bootstrap.servers": "a:1"}}, "kafka settings are for a source"),
        ({"kafka": {"bootstrap.servers": "a:1"}}, "there is no source"),
        ({"source": "topic:rules", "kafka": {"bootstrap.servers": "a:1", "sasl.password": "secret"}}, None),
    ],
)
def test_an_argument_that_cannot_be_is_refused_where_it_is_given(arguments: dict[str, Any], says: str | None) -> None:
    if says is None:
        assert "secret" not in repr(vars(penstock.Rules(Rule, **arguments)))
        return
    with pytest.raises(ConfigurationError) as refused:
        penstock.Rules(Rule, **arguments)
    assert says in str(refused.value)


def test_a_password_in_a_url_is_not_shown() -> None:
    rules = penstock.Rules(Rule, source="ftp://user:secret@host/rules.json")
    source = rules._settings.source
    assert source is not None
    assert source.shown == "ftp://***@host/rules.json"
    assert "secret" not in repr(rules._settings)


class HandlesEvents(penstock.RuleSubtask[list[Rule]]):
    def handle_operator_event(self, event: Any) -> None: ...


@pytest.mark.parametrize(
    ("subtask", "says"),
    [
        (penstock.Subtask, "derives from penstock.RuleSubtask"),
        (Score(), "derives from penstock.RuleSubtask"),
        (partial(print), "derives from penstock.RuleSubtask"),
        (HandlesEvents, "HandlesEvents.handle_operator_event is never called"),
    ],
    ids=["no rules", "an object", "a function", "events"],
)
def test_only_a_class_for_rules_is_taken(subtask: Any, says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        penstock.Rules(Rule).operator(subtask)
    assert says in str(refused.value)


def test_what_travels_to_the_tasks_can_be_pickled_and_makes_the_users_subtask() -> None:
    given = penstock.Rules(Rule).operator(partial(Score, broken=["x"]), state_codec="json")
    made = pickle.loads(pickle.dumps(given["subtask"]))()
    assert isinstance(made, Score)
    assert (type(made).__name__, made.broken) == ("Score", ["x"])
    assert pickle.loads(pickle.dumps(given["state_codec"])).encode([1]) == b"[1]"


def test_a_subtask_made_by_a_test_needs_no_job() -> None:
    score = Score()
    with pytest.raises(penstock.errors.SubtaskError, match="has no rules yet"):
        _ = score.rules
    score.rules = [Rule("a", 1.0)]
    assert score.rules == [Rule("a", 1.0)]


# ---- versions


def rule_set(number: int, size: int = 10) -> RuleSet:
    return RuleSet([number], f"digest {number}", size)


def test_versions_are_kept_within_their_number_and_their_bytes() -> None:
    versions = Versions(keep=3, bytes_max=25)
    for number in range(1, 6):
        added = versions.add(rule_set(number), "request", "now")
        assert added is not None and added.number == number
    assert [each.number for each in versions.kept] == [4, 5]
    versions.add(rule_set(6, size=1000), "request", "now")
    assert [each.number for each in versions.kept] == [6]
    few = Versions(keep=1, bytes_max=1000)
    few.begin(rule_set(0), "now")
    few.add(rule_set(1), "request", "now")
    assert [each.number for each in few.kept] == [1]


def test_the_same_rules_again_are_no_new_version() -> None:
    versions = Versions(keep=3, bytes_max=1000)
    versions.add(rule_set(1), "request", "now")
    assert versions.add(rule_set(1), "request", "later") is None
    assert [each.number for each in versions.kept] == [1]
