"""What the page on deployment says of spark-submit, as it stands there: on a standalone cluster, with a SPARK_HOME."""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.broker import EmbeddedBroker

from .packed import Packed, pack
from .test_clusters import standalone_master

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
JOB = (ROOT / "cli" / "new_job" / "job.py.txt").read_text(encoding="utf-8")
SUMS = {"red: 1498500", "green: 1499500", "blue: 1500500"}


@pytest.fixture
def packed(tmp_path: Path) -> Packed:
    return pack(tmp_path)


def submit_command(packed: Packed, master: str, broker: str) -> list[str]:
    """The first spark-submit of the page, with this cluster's addresses and folders in the place of the page's."""
    found = re.search(r"^spark-submit --master spark://master:7077(?:.*\\\n)+.*$", PAGE, re.MULTILINE)
    assert found is not None
    ours = {
        "\\\n": " ",
        "spark://master:7077": master,
        "broker:9092": broker,
        "penstock.tar.gz": str(packed.archive),
        '"$(command -v python3)"': sys.executable,
    }
    line = functools.reduce(lambda text, pair: text.replace(*pair), ours.items(), found[0])
    command = [str(packed.spark_home / "bin" / "spark-submit"), *shlex.split(line)[1:]]
    assert command[: len(command) - 2] == packed.line(master), "what penstock pack prints"
    return command


def test_the_program_and_the_command_of_the_page_finish_a_job_on_a_standalone_cluster(
    kafka_broker: EmbeddedBroker, tmp_path: Path, packed: Packed
) -> None:
    """Its executors have no Penstock but the packed one, and PySpark from a zip in SPARK_HOME, no installed package."""
    unset = ("PYSPARK_PYTHON", "PYTHONPATH", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"SPARK_HOME": str(packed.spark_home), "SPARK_LOCAL_IP": "127.0.0.1"}
    (program,) = re.findall(r"```python\n(# main\.py\n.*?)```", PAGE, re.DOTALL)
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "main.py").write_text(program, encoding="utf-8")
    (folder / "job.py").write_text(JOB.replace("JOB_NAME", "submitted"), encoding="utf-8")
    with standalone_master(tmp_path, environment) as master:
        ran = subprocess.run(
            submit_command(packed, master, kafka_broker.bootstrap),
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-8000:]
        said = {line for file in (tmp_path / "w").rglob("stderr") for line in file.read_text().splitlines()}
    assert said >= SUMS
