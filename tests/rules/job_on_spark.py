"""Run as a program: a driver of a job with two operators with rules, one from a topic, one from a file.

It is a job file too: ``penstock coordinator`` runs the coordinators of the same job.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import penstock
from penstock.spark_integration import local_session, run

PARALLELISM = 2
NAME = os.environ["RULES_JOB"]
BROKER = os.environ["RULES_BROKER"]
FOLDER = Path(os.environ["RULES_FOLDER"])


@dataclass(frozen=True)
class Rule:
    name: str
    factor: float


class Scores(penstock.RuleSubtask[list[Rule]]):
    """Its state says by which rules it works; a file says in which process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, context: penstock.Context) -> None:
        (self.folder / f"{context.operator}-{context.subtask}.pid").write_text(str(os.getpid()))

    def poll(self) -> penstock.Idle:
        assert self.rules_version >= 0
        return penstock.Idle(0.01)

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return {"version": self.rules_version, "rules": [rule.name for rule in self.rules]}

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        pass


job = penstock.Job(
    NAME,
    checkpoint=penstock.CheckpointSettings(interval=0.1, timeout=60.0, tolerable_failures=1000),
    restart=penstock.RestartStrategy(budget=1000, backoff_next=0.01, backoff_max=0.1),
    heartbeat_interval=0.25,
    heartbeat_timeout=10.0,
)
sources: dict[str, Any] = {
    "by-topic": {"source": f"topic:{NAME}", "kafka": {"bootstrap.servers": BROKER}},
    "by-file": {"source": str(FOLDER / "rules.json")},
}
for operator, source in sources.items():
    rules = penstock.Rules(Rule, **source, initial=[Rule("first", 1.0)], interval=0.1)
    given = rules.operator(partial(Scores, FOLDER), state_codec="json")
    job.operator(operator, **given, parallelism=PARALLELISM)


if __name__ == "__main__":
    spark = local_session(2 * PARALLELISM)
    run(spark, job, broker=BROKER, coordinator="elsewhere").wait()
    spark.stop()
