"""Under random faults every checkpoint has one version of the rules in all subtasks, and every record once."""

from __future__ import annotations

import contextlib
import functools
import json
import random
from pathlib import Path

import pytest

import penstock
from penstock.schemas.errors import JobError
from penstock.testing import LocalJob
from tests.rounds import rounds

from .driving import (
    PATIENCE_S,
    Polling,
    Refused,
    Rule,
    Scoring,
    ask,
    one_more_checkpoint,
    polling_job,
    require_one_version,
    rule,
    scoring_job,
)

SEEDS = 5
"""Of each round."""
STEPS = 10


class Weather:
    """What happens to one job, by its seed."""

    def __init__(self, seed: int, running: LocalJob, parallelism: int) -> None:
        self.random, self.running, self.parallelism = random.Random(seed), running, parallelism
        self.sets = 0
        self.answered: list[int] = []

    def step(self) -> None:
        getattr(self, self.random.choice(["change", "change", "change", "roll_back", "refuse", "kill_subtask",
                                          "kill_coordinator", "kill_both", "wait"]))()  # fmt: skip

    def request(self, request: object) -> None:
        with contextlib.suppress(Refused, JobError):
            self.answered.append(ask(self.running, request, timeout=30.0)["version"])

    def change(self) -> None:
        self.sets += 1
        self.request({"set": [rule(f"set {self.sets}"), rule("always")]})

    def change_for_good(self) -> list[str]:
        """Ask until a completed checkpoint has the set: a rollback takes back an answered one that none has."""
        self.change()

        def is_durable(_: object) -> bool:
            try:
                shown = ask(self.running, {"show": True})
            except Refused:  # while it is rolled back
                return False
            if [each["name"] for each in shown["rules"] or []] != [f"set {self.sets}", "always"]:
                self.change()
                return False
            return bool(shown["durable_version"] == shown["version"])

        self.running.wait_for(is_durable, PATIENCE_S)
        return [f"set {self.sets}", "always"]

    def roll_back(self) -> None:
        if self.answered:
            self.request({"rollback": self.random.choice(self.answered)})

    def refuse(self) -> None:
        self.request({"set": [{"name": 3}]})

    def kill_subtask(self) -> None:
        for subtask in self.random.sample(range(self.parallelism), self.random.randint(1, self.parallelism)):
            self.running.crash_subtask("score", subtask)

    def kill_coordinator(self) -> None:
        self.running.crash_coordinator()
        self.running.replace_coordinator()

    def kill_both(self) -> None:
        self.kill_subtask()
        self.kill_coordinator()

    def wait(self) -> None:
        if ask(self.running, {"show": True})["durable_version"] is not None:  # else perhaps none completes
            one_more_checkpoint(self.running)


@pytest.mark.soak
@pytest.mark.parametrize("round_", rounds())
@pytest.mark.parametrize("offset", range(SEEDS))
def test_every_checkpoint_has_one_version_whoever_dies(round_: int, offset: int) -> None:
    seed = round_ * SEEDS + offset
    choose, broken = random.Random(seed), list[str]()
    parallelism = choose.choice([1, 2, 3])
    rules = penstock.Rules(Rule, initial=[Rule("first", 1.0)] if choose.random() < 0.5 else None)
    if with_input := choose.random() < 0.5:
        job = scoring_job(rules, parallelism, functools.partial(Scoring, broken))
    else:
        policy = choose.choice(["replay", "reset", "global"])
        job = polling_job(rules, parallelism, functools.partial(Polling, broken), on_failover=policy)
    with LocalJob(job) as running:
        weather = Weather(seed, running, parallelism)
        for _ in range(STEPS):
            weather.step()
        last = weather.change_for_good()
        one_more_checkpoint(running, 2)
        shown = ask(running, {"show": True})
        running.check()
    found = require_one_version(running, parallelism)
    assert broken == []
    assert shown["durable_version"] == shown["version"], f"seed {seed}"
    assert found[-1].names == [each["name"] for each in shown["rules"]] == last, f"seed {seed}"
    if with_input:
        for each in found:  # aligned: what the reader had emitted has been scored, each record once
            scored = sum(sum(state["counts"].values()) for state in each.subtasks.values())
            assert scored == each.others["reader"], f"seed {seed}"


class ByFile(Weather):
    """The same, but that rules change in a file too; a broken file is mended by the next change."""

    def __init__(self, seed: int, running: LocalJob, parallelism: int, file: Path) -> None:
        super().__init__(seed, running, parallelism)
        self.file = file

    def change(self) -> None:
        if self.random.random() < 0.3:
            super().change()
        else:
            self.write()

    def write(self) -> None:
        self.sets += 1
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps([rule(f"set {self.sets}"), rule("always")]))
        new.rename(self.file)

    def refuse(self) -> None:
        harm = self.random.choice(["unlink", "break"])
        if harm == "unlink":
            self.file.unlink(missing_ok=True)
        else:
            self.file.write_text(self.random.choice(["", "[", '[{"name": 3}]']))


@pytest.mark.soak
@pytest.mark.parametrize("round_", rounds())
@pytest.mark.parametrize("offset", range(SEEDS))
def test_every_checkpoint_has_one_version_where_a_file_has_the_rules(round_: int, offset: int, tmp_path: Path) -> None:
    seed, broken = round_ * SEEDS + offset, list[str]()
    file, parallelism = tmp_path / "rules.json", random.Random(seed).choice([1, 2, 3])
    rules = penstock.Rules(Rule, source=str(file), initial=[Rule("first", 1.0)], interval=0.01)
    policy = random.Random(seed).choice(["replay", "reset", "global"])
    with LocalJob(polling_job(rules, parallelism, functools.partial(Polling, broken), on_failover=policy)) as running:
        weather = ByFile(seed, running, parallelism, file)
        for _ in range(STEPS):
            weather.step()
        weather.write()
        last = [f"set {weather.sets}", "always"]
        running.wait_for(lambda _: [r["name"] for r in ask(running, {"show": True})["rules"] or []] == last, PATIENCE_S)
        one_more_checkpoint(running, 2)
        running.check()
    assert require_one_version(running, parallelism)[-1].names == last, f"seed {seed}"
    assert broken == []
