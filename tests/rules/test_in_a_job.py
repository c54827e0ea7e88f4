"""Rules in running jobs: changed, refused and rolled back by requests; late subtasks; waiting; rescaling; the end."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.schemas.status import Ending
from penstock.testing import LocalJob
from penstock.transport.memory import MemoryBroker, MemoryTransport

from .driving import (
    PATIENCE_S,
    Polling,
    Reader,
    Refused,
    Rule,
    Scoring,
    ask,
    completed,
    empty_job,
    one_more_checkpoint,
    polling_job,
    require_one_version,
    rule,
    scoring_job,
)

INITIAL = [Rule("first", 1.0)]


def test_rules_are_set_refused_rolled_back_and_shown_by_requests() -> None:
    broken: list[str] = []
    with LocalJob(polling_job(penstock.Rules(Rule, initial=INITIAL), 3, functools.partial(Polling, broken))) as running:
        one_more_checkpoint(running, 2)
        assert ask(running, {"set": [rule("a"), rule("b")]})["version"] == 1
        one_more_checkpoint(running, 2)
        with pytest.raises(Refused, match="rule 0, field factor of Rule: Field required"):
            ask(running, {"set": [{"name": "c"}]})
        one_more_checkpoint(running)
        assert ask(running, {"rollback": 0})["version"] == 2
        one_more_checkpoint(running, 2)
        shown = ask(running, {"show": True})
        assert (shown["version"], shown["durable_version"]) == (2, 2)
        assert shown["rules"] == [{"name": "first", "factor": 1.0, "tags": []}]
        assert [each["origin"] for each in ask(running, {"history": True})["history"]] == [
            "initial", "request", "rollback to 0",
        ]  # fmt: skip
        numbers = running.service._runtime.numbers()["score"] if running.service is not None else {}
        assert (numbers["rules_version"], numbers["rules_count"], numbers["rules_refused"]) == (2, 1, 1)
        running.check()
    assert broken == []
    assert {each.version for each in require_one_version(running, 3)} == {0, 1, 2}


def test_a_subtask_that_comes_late_works_by_the_current_rules_alone() -> None:
    """Before it was there, the rules were changed; nobody had sent them to it."""
    broken: list[str] = []
    job = polling_job(penstock.Rules(Rule, initial=INITIAL), 2, functools.partial(Polling, broken))
    with LocalJob(job, subtasks=False) as running:
        running.wait_for(lambda status: status.state == "running", PATIENCE_S)
        running.client.announce_run(running.run_id)
        running.start_subtask("score", 0)
        running.wait_for(lambda status: status.operators[0].subtasks[0].phase == "running", PATIENCE_S)
        ask(running, {"set": [rule("a")]})
        running.start_subtask("score", 1)
        running.wait_for(lambda status: status.checkpoints_completed >= 2, PATIENCE_S)
    found = require_one_version(running, 2)
    assert broken == []
    assert "0" not in found[-1].subtasks[1]["counts"]
    assert found[0].version == 1


@pytest.mark.parametrize("policy", ["replay", "reset", "global"])
def test_a_new_attempt_works_by_the_current_rules_under_every_policy(policy: str) -> None:
    broken: list[str] = []
    rules = penstock.Rules(Rule, initial=INITIAL)
    with LocalJob(polling_job(rules, 3, functools.partial(Polling, broken), on_failover=policy)) as running:
        one_more_checkpoint(running)
        for name in "abc":
            ask(running, {"set": [rule(name)]})
            running.crash_subtask("score", 1)
            one_more_checkpoint(running, 2)
        running.check()
    assert broken == []
    require_one_version(running, 3)


def test_records_wait_for_the_first_rules_and_none_is_lost() -> None:
    broken: list[str] = []

    class Limited(Reader):
        limit = 200

    job = scoring_job(penstock.Rules(Rule), 2, functools.partial(Scoring, broken), Limited)
    with LocalJob(job) as running:
        running.wait_for(lambda status: bool(status.pending), PATIENCE_S)
        status = running.wait_for(lambda _: True, PATIENCE_S)
        assert status.pending[0].waits_for == "the coordinator of score to complete its checkpoint future"
        ask(running, {"set": [rule("a")]})
        assert running.wait(PATIENCE_S).ending.value == "finished"
    assert broken == []
    last = completed(running)[-1]
    assert sum(sum(state["counts"].values()) for state in last.subtasks.values()) == 200
    assert {version for state in last.subtasks.values() for version in state["counts"]} == {"1"}


class EndsByItself(Polling):
    """Ends by itself, in subtask 0 alone."""

    def poll(self) -> Any:
        self.count()
        return penstock.Finished() if self.context.subtask == 0 else penstock.Idle(0.005)


def test_rules_change_also_when_a_subtask_has_finished() -> None:
    with LocalJob(polling_job(penstock.Rules(Rule, initial=INITIAL), 2, EndsByItself)) as running:
        running.wait_for(lambda status: status.operators[0].totals.finished == 1, PATIENCE_S)
        ask(running, {"set": [rule("a")]})
        one_more_checkpoint(running, 2)
    assert completed(running)[-1].subtasks[1]["version"] == 1


class Sends(Polling):
    def rules_changed(self, rules: Any, version: int) -> None:
        self.context.send_event_to_coordinator("hello")


def test_a_subtask_that_sends_its_coordinator_an_event_fails_the_job_by_name() -> None:
    with LocalJob(polling_job(penstock.Rules(Rule, initial=INITIAL), 1, Sends)) as running:
        end = running.wait(PATIENCE_S)
    assert end.ending is Ending.FAILED
    assert "sends its coordinator an event, which is that of its rules and takes none" in end.cause


class Reads(penstock.RuleSubtask[list[Rule]]):
    def open(self, context: penstock.Context) -> None:
        self.first = self.rules[0]


def test_a_subtask_that_reads_its_rules_too_early_is_told_where_to() -> None:
    with LocalJob(polling_job(penstock.Rules(Rule, initial=INITIAL), 1, Reads)) as running:
        failed = running.wait_for(lambda status: status.failovers_region > 0, PATIENCE_S)
    assert "Reads has no rules yet" in failed.last_failure and "rules_changed()" in failed.last_failure


def test_rules_may_be_a_dict() -> None:
    class ByName(penstock.RuleSubtask[dict[str, Rule]]):
        def snapshot_state(self, checkpoint_id: int) -> Any:
            assert all(isinstance(rule, Rule) for rule in self.rules.values())
            return {"version": self.rules_version, "rules": list(self.rules)}

    rules = penstock.Rules(dict[str, Rule], initial={"x": {"name": "a", "factor": 1}})
    with LocalJob(polling_job(rules, 2, ByName)) as running:
        one_more_checkpoint(running)
        assert ask(running, {"set": {"y": rule("b"), "z": rule("c")}})["version"] == 1
        one_more_checkpoint(running, 2)
        with pytest.raises(Refused, match="rule 'y', field name"):
            ask(running, {"set": {"y": {"factor": 1}}})
    assert completed(running)[-1].subtasks[1]["rules"] == ["y", "z"]


@pytest.mark.parametrize("codec", [None, "json", Rule], ids=["bytes", "json", "dataclass"])
def test_the_subtasks_own_state_goes_through_its_own_codec(codec: Any) -> None:
    states: list[Any] = []

    class Keeps(penstock.RuleSubtask[list[Rule]]):
        def snapshot_state(self, checkpoint_id: int) -> Any:
            return b"x" if codec is None else {"x": 1} if codec == "json" else self.rules[0]

        def restore_state(self, checkpoint_id: int, state: Any) -> None:
            states.append(state)

    rules = penstock.Rules(Rule, initial=INITIAL)
    job = empty_job()
    job.operator("score", **rules.operator(Keeps, state_codec=codec), parallelism=1)
    with LocalJob(job) as running:
        one_more_checkpoint(running)
        running.crash_subtask("score", 0)
        running.wait_for(lambda _: bool(states), PATIENCE_S)
    assert states[0] == (b"x" if codec is None else {"x": 1} if codec == "json" else INITIAL[0])


# ---- another parallelism, and another start


def by_list(rules: penstock.Rules, parallelism: int) -> penstock.Job:
    return polling_job(rules, parallelism, Listing, rescale="list")


class Listing(Polling):
    """Its state is a list, dealt by the operator's own ``rescale``."""

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.numbers = state

    def open(self, context: penstock.Context) -> None:
        self.numbers = [context.subtask]

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return [*self.numbers[:50], f"v{self.rules_version}"]


@pytest.mark.parametrize("later", [1, 5])
def test_a_job_goes_on_with_another_parallelism_and_one_version_everywhere(later: int) -> None:
    broker, rules = MemoryBroker(), penstock.Rules(Rule, initial=INITIAL)
    with LocalJob(by_list(rules, 3), MemoryTransport(broker)) as first:
        one_more_checkpoint(first)
        ask(first, {"set": [rule("a")]})
        one_more_checkpoint(first, 2)
        assert first.client.stop(savepoint=True).accepted
        first.wait(PATIENCE_S)
    with LocalJob(by_list(rules, later), MemoryTransport(broker)) as second:
        second.wait_for(lambda status: status.checkpoints_completed >= 2, PATIENCE_S)
        assert ask(second, {"show": True})["version"] == 1
        ask(second, {"set": [rule("b")]})
        one_more_checkpoint(second, 2)
    last = completed(second)[-1]
    assert len(last.subtasks) == later
    assert {state[-1] for state in last.subtasks.values()} == {"v2"}
    assert {0, 1, 2} <= {n for state in last.subtasks.values() for n in state}


def test_a_later_start_goes_on_with_the_version_of_the_checkpoint() -> None:
    """Also where the job declares other initial rules by then."""
    broker = MemoryBroker()
    with LocalJob(polling_job(penstock.Rules(Rule, initial=INITIAL)), MemoryTransport(broker)) as first:
        one_more_checkpoint(first)
        ask(first, {"set": [rule("a")]})
        assert first.client.stop(savepoint=True).accepted
        first.wait(PATIENCE_S)
    with LocalJob(polling_job(penstock.Rules(Rule, initial=[Rule("x", 2)])), MemoryTransport(broker)) as second:
        second.wait_for(lambda status: status.checkpoints_completed >= 1, PATIENCE_S)
        assert [each["name"] for each in ask(second, {"show": True})["rules"]] == ["a"]
    require_one_version(second, 3)


def test_a_recorded_subtask_is_replayed_with_its_rules() -> None:
    rules = penstock.Rules(Rule, initial=INITIAL)
    job = empty_job(checkpoint=penstock.CheckpointSettings(interval=3600.0))
    job.operator("score", **rules.operator(Polling, state_codec="json"), parallelism=2)
    with LocalJob(job) as running:
        running.wait_for(lambda status: status.operators[0].totals.handled == 2, PATIENCE_S)
        ask(running, {"set": [rule("a")]})
        running.wait_for(lambda status: status.operators[0].totals.handled == 4, PATIENCE_S)
        replayed = penstock.replay(job, "score", 1, running.transport)
    assert isinstance(replayed.subtask, Polling)
    assert (replayed.subtask.rules, replayed.subtask.rules_version) == ([Rule("a", 1.0)], 1)
    assert replayed.metrics["rules_version"] == 1


def test_a_large_set_goes_through_state_storage(tmp_path: Any) -> None:
    rules = penstock.Rules(Rule, initial=INITIAL, max_bytes=500_000)
    job = polling_job(rules, 3).renamed("large", state_storage=tmp_path.as_uri())
    with LocalJob(job) as running:
        one_more_checkpoint(running)
        answer = ask(running, {"set": [rule("n" * 1000 + str(n)) for n in range(400)]})
        assert answer["version"] == 1
        one_more_checkpoint(running, 2)
        running.crash_coordinator()
        running.replace_coordinator()
        running.wait_for(lambda status: status.epoch == 2 and status.checkpoints_completed >= 1, PATIENCE_S)
        assert ask(running, {"show": True})["durable_version"] == 1
        with pytest.raises(Refused, match="max_bytes allows 500000"):
            ask(running, {"set": [rule("n" * 1000) for n in range(700)]})


def test_a_set_of_ten_megabytes_is_refused_and_the_job_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    rules = penstock.Rules(Rule, source=str(file), initial=INITIAL, interval=0.05)
    with LocalJob(polling_job(rules, 2)) as running:
        one_more_checkpoint(running)
        write(file, json.dumps([rule("x")] * 350_000))
        running.wait_for(lambda _: "last_refused" in ask(running, {"show": True}), PATIENCE_S)
        one_more_checkpoint(running, 2)
        shown = ask(running, {"show": True})
    assert shown["version"] == 0
    assert "has more than 65536 bytes (max_bytes)" in shown["last_refused"]["reason"]


def write(file: Path, text: str) -> None:
    """Replace the file in one step."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.rename(file)
