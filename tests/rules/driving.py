"""Jobs with rules for these tests, and what their completed checkpoints say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import penstock
from penstock.rules.state_codec import CoordinatorState, StateCodec
from penstock.schemas.checkpoints import CheckpointCompleted, CheckpointPart
from penstock.schemas.codec import decode
from penstock.schemas.user_codec import JsonCodec
from penstock.testing import LocalJob
from penstock.transport.ports import LogRecord, Partition

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Rule:
    name: str
    factor: float
    tags: tuple[str, ...] = ()


def rule(name: str, factor: float = 1.0) -> dict[str, Any]:
    return {"name": name, "factor": factor}


class Score(penstock.RuleSubtask[list[Rule]]):
    """Counts its polls, or the records it is given, by the version of the rules; no method calls super()."""

    def __init__(self, broken: list[str] | None = None) -> None:
        self.broken = [] if broken is None else broken
        self.counts: dict[str, int] = {}
        self.changes: list[int] = []

    def open(self, context: penstock.Context) -> None:
        self.context = context

    def rules_changed(self, rules: list[Rule], version: int) -> None:
        if self.rules is not rules or self.rules_version != version:
            self.broken.append("rules_changed is told other rules than the subtask has")
        if self.changes and version <= self.changes[-1]:
            self.broken.append(f"version {version} after {self.changes[-1]}")
        self.changes.append(version)

    def count(self) -> None:
        if self.rules_version < 0 or not all(isinstance(rule, Rule) for rule in self.rules):
            self.broken.append(f"worked by {self._rules!r}, version {self.rules_version}")
        key = str(self.rules_version)
        self.counts[key] = self.counts.get(key, 0) + 1

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return {"version": self.rules_version, "rules": [rule.name for rule in self.rules], "counts": self.counts}

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.counts = state["counts"]


class Polling(Score):
    def poll(self) -> penstock.Idle:
        self.count()
        return penstock.Idle(0.005)


class Scoring(Score):
    def process(self, record: Any, input: str) -> None:
        self.count()


class Reader(penstock.Subtask):
    """Emits numbers until it is ended."""

    position = 0
    limit: int | None = None

    def open(self, context: penstock.Context) -> None:
        self.context = context

    def poll(self) -> penstock.Idle | penstock.Finished:
        if self.limit is not None and self.position >= self.limit:
            return penstock.Finished()
        self.context.emit(self.position)
        self.position += 1
        return penstock.Idle(0.002)

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return self.position

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self.position = state


def empty_job(name: str = "scoring", **changes: Any) -> penstock.Job:
    settings: dict[str, Any] = {
        "checkpoint": penstock.CheckpointSettings(interval=0.03, timeout=20.0, tolerable_failures=1000),
        "restart": penstock.RestartStrategy(budget=1000, backoff_next=0.005, backoff_max=0.02),
        "heartbeat_interval": 0.1,
        "heartbeat_timeout": 5.0,
        "start_timeout": 30.0,
        **changes,
    }
    return penstock.Job(name, **settings)


def polling_job(
    rules: penstock.Rules, parallelism: int = 3, subtask: Any = Polling, name: str = "scoring", **settings: Any
) -> penstock.Job:
    job = empty_job(name)
    job.operator("score", **rules.operator(subtask, state_codec="json"), parallelism=parallelism, **settings)
    return job


def scoring_job(
    rules: penstock.Rules,
    parallelism: int = 2,
    subtask: Any = Scoring,
    reader: Callable[[], penstock.Subtask] = Reader,
    **changes: Any,
) -> penstock.Job:
    """A reader feeds the operator with the rules."""
    job = empty_job(**changes)
    upstream = job.operator("reader", subtask=reader, parallelism=1, state_codec="json", output_codec="json")
    job.operator(
        "score",
        **rules.operator(subtask, state_codec="json"),
        parallelism=parallelism,
        inputs=[upstream.rebalance()],
    )
    return job


class Refused(Exception):
    """A request's."""


def ask(running: LocalJob, request: Any, timeout: float = 20.0) -> Any:
    reply = running.client.request("score", json.dumps(request).encode(), timeout_s=timeout)
    if not reply.accepted:
        raise Refused(reply.outcome)
    return json.loads(reply.payload)


def one_more_checkpoint(running: LocalJob, more: int = 1) -> None:
    done = running.wait_for(lambda _: True, PATIENCE_S).last_completed
    for _ in range(more):
        done = running.wait_for(lambda status, d=done: status.last_completed > d, PATIENCE_S).last_completed  # type: ignore[misc]


class Completed(NamedTuple):
    """A completed checkpoint."""

    checkpoint_id: int
    coordinator: dict[str, Any]
    subtasks: dict[int, Any]
    others: dict[str, Any]

    @property
    def version(self) -> int:
        """The coordinator's."""
        return int(self.coordinator["versions"][-1]["number"])

    @property
    def names(self) -> list[str]:
        return [each["name"] for each in self.coordinator["versions"][-1]["rules"]]


def completed(running: LocalJob) -> list[Completed]:
    """Every checkpoint that has ever completed, also those that are discarded by now."""
    return completed_in(running._inner.read_all(Partition(running.settings.topics.checkpoints, 0)), "score")


def completed_in(records: Iterable[LogRecord], name: str) -> list[Completed]:
    """Every checkpoint that these records of a checkpoint log complete, of one operator with rules."""
    parts: dict[int, list[CheckpointPart]] = {}
    found: list[Completed] = []
    for stored in records:
        record = None if stored.value is None else decode(stored.value)
        if isinstance(record, CheckpointPart):
            parts.setdefault(record.checkpoint_id, []).append(record)
        if isinstance(record, CheckpointCompleted):
            operator = next(o for o in record.operators if o.operator == name)
            assert operator.coordinator_state is not None and operator.coordinator_state.inline is not None
            state = StateCodec(JsonCodec()).decode(operator.coordinator_state.inline)
            assert isinstance(state, CoordinatorState)
            states = {
                (part.operator, s.subtask): json.loads(s.state.inline)
                for part in parts.pop(record.checkpoint_id)
                for s in part.subtasks
                if s.state is not None and s.state.inline is not None
            }
            own = {subtask: state for (of, subtask), state in states.items() if of == name}
            others = {of: state for (of, _), state in states.items() if of != name}
            found.append(Completed(record.checkpoint_id, state.plain, own, others))
    return found


def require_one_version(running: LocalJob, parallelism: int) -> list[Completed]:
    return have_one_version(completed(running), parallelism)


def have_one_version(found: list[Completed], parallelism: int) -> list[Completed]:
    """Require of every checkpoint one version in all subtasks, of every number one set, and that none comes back."""
    contents = dict[int, list[str]]()
    for each in found:
        told = {state["version"] for state in each.subtasks.values()}
        assert (len(each.subtasks), told) == (parallelism, {each.version}), each
        assert all(state["rules"] == each.names for state in each.subtasks.values()), each
        for kept in each.coordinator["versions"]:
            names = [rule["name"] for rule in kept["rules"]]
            assert contents.setdefault(kept["number"], names) == names, f"version {kept['number']} has two meanings"
    versions = [each.version for each in found]
    assert versions == sorted(versions)
    return found
