"""The page about Structured Streaming runs as it stands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

import penstock
from penstock.broker import EmbeddedBroker
from penstock.spark_integration.streaming.options import BOOTSTRAP, SinkOptions, SourceOptions
from penstock.testing import LocalJob
from penstock.transport.kafka import KafkaTransport

from .counting import Counts, Idle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE = (Path(__file__).parents[3] / "docs" / "structured-streaming.md").read_text(encoding="utf-8")
FEEDS = (Path(__file__).parents[3] / "docs" / "feeds.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.kafka
@pytest.mark.spark
def test_the_query_of_the_page_gets_its_rules_and_what_is_asked_for(
    spark: SparkSession, kafka_broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = ModuleType("rules")
    monkeypatch.setitem(sys.modules, "rules", rules)
    exec(BLOCKS[0], vars(rules))
    seen: list[tuple[Any, ...]] = []

    def apply(batch: DataFrame, batch_id: int) -> None:
        seen.extend(sorted(tuple(row)[0:1] + tuple(row)[2:] for row in batch.collect()))
        if batch_id == 0:
            handle.request("rules", rules.Rule("DL", 45))  # type: ignore[attr-defined]
        else:
            raise LookupError("enough")

    handle = penstock.spark_integration.stream(spark, rules.job, broker=kafka_broker.bootstrap)  # type: ignore[attr-defined]
    monkeypatch.setattr(penstock.spark_integration, "stream", lambda *_, **__: handle)
    with pytest.raises(Exception, match="enough"):
        exec(BLOCKS[1], {"spark": spark, "apply": apply, "folder": str(tmp_path)})
    assert seen == [(0, "AA", 30), (1, "AA", 30), (0, "DL", 45), (1, "DL", 45)]


@pytest.mark.kafka
@pytest.mark.spark
def test_the_page_about_feeds_runs_as_a_script(tmp_path: Path) -> None:
    script = tmp_path / "delays.py"
    script.write_text(re.findall(r"```python\n(.*?)```", FEEDS, re.DOTALL)[0])
    ran = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=400, check=False, cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    minutes = int(re.findall(r"minutes: {'AA': (\d+)}", ran.stdout)[0])
    assert minutes >= 100
    assert (ran.stdout + ran.stderr).count("AA is late") == 2, "each subtask is told, once"


@pytest.mark.kafka
@pytest.mark.spark
def test_the_pipeline_of_the_page_feeds_a_coordinator(kafka_broker: EmbeddedBroker, tmp_path: Path) -> None:
    for folder in ("definitions", "storage", "delays"):
        (tmp_path / folder).mkdir()
    (tmp_path / "definitions" / "delays.py").write_text(re.findall(r"```python\n(.*?)```", FEEDS, re.DOTALL)[2])
    libraries = "libraries:\n  - glob:\n      include: definitions/**\n"
    spec = f"name: delays\nstorage: {(tmp_path / 'storage').as_uri()}\n{libraries}"
    (tmp_path / "spark-pipeline.yml").write_text(spec)
    for file in range(2):
        (tmp_path / "delays" / f"{file}.txt").write_text("".join(f"{10 * file + line}\n" for line in range(10)))
    job = penstock.Job("delays")
    job.operator("board", coordinator=Counts, subtask=Idle, parallelism=1, codec="json", state_codec="json")
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines"), "run", "--spec", "spark-pipeline.yml"]
    env = {
        **os.environ, "BROKER": kafka_broker.bootstrap, "DELAYS": str(tmp_path / "delays"),
        "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
    }  # fmt: skip
    transport = KafkaTransport(kafka_broker.bootstrap)
    with LocalJob(job, transport) as running:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, cwd=tmp_path, env=env)
        # It may end with an error of Spark's behind its last batch; the page says so.
        assert ran.returncode == 0 or "python_accumulator" in ran.stdout, ran.stdout + ran.stderr
        told = running.client.request("board", b"null", 60.0).payload
    transport.close()
    assert json.loads(told) == {str(number): 1 for number in range(20)}


def test_the_page_about_feeds_names_every_option() -> None:
    given = {"job": "j", "operator": "o", BOOTSTRAP: "b:1", "eventSchema": '"string"'}
    for name in SinkOptions.parse(given).to_options():
        assert f"`{name}`" in FEEDS, name


def test_the_page_names_every_option() -> None:
    table = PAGE[PAGE.index("### Options") : PAGE.index("## What a batch is")]
    given = {"job": "j", "operator": "o", BOOTSTRAP: "b:1", "eventSchema": '"string"'}
    for name in SourceOptions.parse(given).to_options():
        assert f"`{name}`" in table, name
