"""The rules of a running query: one version in each batch, also in one whose driver died between sink and commit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from penstock.broker import EmbeddedBroker

EXAMPLES = Path(__file__).parents[2] / "examples"
KILLED_IN = 3


def ran(name: str, folder: Path, broker: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        capture_output=True, text=True, timeout=400, check=False,
        env={**os.environ, "FOLDER": str(folder), "BROKER": broker, **env},
    )  # fmt: skip


def prices(folder: Path) -> list[dict[str, Any]]:
    """By a reader that knows nothing of us."""
    rows = ds.dataset(folder / "prices", format="parquet").to_table().to_pylist()
    return sorted(rows, key=lambda row: int(row["value"]))


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(1200)  # two drivers, one after the other
def test_rules_in_a_query_has_one_rule_in_each_batch_also_in_one_that_ran_twice(
    kafka_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    killed = ran("rules_in_a_query", tmp_path, kafka_broker.bootstrap, KILL_IN_BATCH=str(KILLED_IN))
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    assert not (tmp_path / "checkpoint" / "commits" / str(KILLED_IN)).exists()
    before = prices(tmp_path)
    assert max(row["batch_id"] for row in before) == KILLED_IN

    finished = ran("rules_in_a_query", tmp_path, kafka_broker.bootstrap)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "each by one rule; the last one is rule 6" in finished.stdout
    after = prices(tmp_path)
    assert after[: len(before)] == before
    assert [row["value"] for row in after] == list(range(len(after)))
    assert len({(row["batch_id"], row["rule"]) for row in after}) == len({row["batch_id"] for row in after})
    assert {row["rule"] for row in after} >= {1, 2, 3, 4, 5}


class Events(list[dict[str, Any]]):
    def collect(self) -> list[dict[str, Any]]:
        return self


class Batch:
    class token:
        stream = "stream"

    def __init__(self, batch_id: int) -> None:
        self.batch_id = batch_id


def told(*rules: int) -> Events:
    return Events({"subtask": s, "rule": f'{{"rule": {rule}, "multiply_by": 1}}'} for rule in rules for s in (0, 1))


def test_a_batch_that_runs_again_takes_the_same_rule_with_events_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import rules_in_a_query

    batches = [told(), told(1), told(), told(2, 3), told()]
    expected = [0, 1, 1, 3, 3]
    for batch_id, events in enumerate(batches):
        for _ in range(2):
            rules = rules_in_a_query.Rules(tmp_path)
            assert rules.for_batch(events, Batch(batch_id))["rule"] == expected[batch_id]
    with pytest.raises(AssertionError, match="half of the rules"):
        rules_in_a_query.Rules(tmp_path).for_batch(Events(told(4)[:1]), Batch(5))
