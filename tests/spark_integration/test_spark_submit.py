"""What the page on deployment says of spark-submit, as it stands there: on a standalone cluster, with a SPARK_HOME."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from penstock.broker import EmbeddedBroker

from .test_clusters import spark_environment, standalone_master

__all__ = ["spark_environment"]

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
JOB = (ROOT / "cli" / "new_job" / "job.py.txt").read_text(encoding="utf-8")
SUMS = {"red: 1498500", "green: 1499500", "blue: 1500500"}


def submit_command(spark_home: str, master: str, broker: str) -> list[str]:
    """The first spark-submit of the page, with this cluster's addresses in the place of the page's."""
    found = re.search(r"^spark-submit --master spark://master:7077(?:.*\\\n)+.*$", PAGE, re.MULTILINE)
    assert found is not None
    line = found[0].replace("\\\n", " ").replace("spark://master:7077", master).replace("broker:9092", broker)
    command = shlex.split(line)
    return [f"{spark_home}/bin/spark-submit", *command[1:]]


def test_the_program_and_the_command_of_the_page_finish_a_job_on_a_standalone_cluster(
    kafka_broker: EmbeddedBroker, tmp_path: Path, spark_environment: dict[str, str]
) -> None:
    """Also that the job's module travels by value where PySpark is a zip of SPARK_HOME and no installed package."""
    (program,) = re.findall(r"```python\n(# main\.py\n.*?)```", PAGE, re.DOTALL)
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "main.py").write_text(program, encoding="utf-8")
    (folder / "job.py").write_text(JOB.replace("JOB_NAME", "submitted"), encoding="utf-8")
    with standalone_master(tmp_path, spark_environment) as master:
        ran = subprocess.run(
            submit_command(spark_environment["SPARK_HOME"], master, kafka_broker.bootstrap),
            cwd=folder,
            env=spark_environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-8000:]
        said = {line for file in (tmp_path / "w").rglob("stderr") for line in file.read_text().splitlines()}
    assert said >= SUMS
