"""`penstock pack`: an archive with everything that Spark's workers need beside Spark, and the line that ships it."""

from __future__ import annotations

import re
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .connect import JsonOption
from .console import Console
from .exits import UsageError
from .packed_environment import packed

LINK = "environment"
"""What the archive is called where it is unpacked, in each worker's folder."""
PYTHON = f"./{LINK}/bin/python"
STANDALONE_SHOWN = "spark://MASTER:7077"
CORES_MAX = 4
"""Of one executor, in the line that is printed."""


class DeployMode(StrEnum):
    """Place of the driver: here, or in the cluster."""

    CLIENT = "client"
    CLUSTER = "cluster"


def pack(
    modules: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODULE]...", help="Modules (FILE.py) and packages (folders) of your own."),
    ] = None,
    requirements: Annotated[
        list[Path] | None,
        typer.Option("--requirements", "-r", metavar="FILE", help="What your code needs, as pip reads it; repeat."),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The archive to write: .tar.gz or .tgz.")
    ] = Path("penstock.tar.gz"),
    program: Annotated[
        str, typer.Option("--program", metavar="FILE", help="Your driver's file, for the line that is printed.")
    ] = "main.py",
    master: Annotated[
        str, typer.Option("--master", metavar="URL", help="spark://HOST:PORT, yarn, or k8s://URL, likewise.")
    ] = STANDALONE_SHOWN,
    deploy_mode: Annotated[
        DeployMode, typer.Option("--deploy-mode", help="Where the driver runs, likewise.")
    ] = DeployMode.CLIENT,
    subtasks: Annotated[
        int, typer.Option("--subtasks", min=1, metavar="N", help="Subtasks of the job, likewise: a core for each.")
    ] = 4,
    as_json: JsonOption = False,
) -> None:
    """Pack an environment for Spark's workers, without PySpark, and print the spark-submit line that ships it.

    It holds this Penstock, what it needs, and what you name. The workers' machines need Spark and a Python of the
    version that runs this command. Modules beside your driver's file travel by themselves and need not be named.
    """
    console = Console(as_json=as_json)
    line = submit_line(output, program, master, deploy_mode, subtasks)
    made = packed(modules or [], requirements or [], output, console.say)
    if as_json:
        console.data({"archive": str(output), "bytes": made.size, "python": made.python, "spark_submit": line})
        return
    console.show(f"wrote {output} ({made.size / 1e6:.1f} MB, in {made.took_s:.0f} s)")
    console.show(
        f"It runs on machines with Python {made.python} on {made.machine}: at {made.interpreter}, or on the PATH of"
        " Spark's workers"
    )
    console.show("\n" + shown(line))


def submit_line(archive: Path, program: str, master: str, mode: DeployMode, subtasks: int) -> list[str]:
    """Return the words of the spark-submit command. Raises UsageError for a master that cannot be used like this."""
    if re.fullmatch(r"spark://\S+|yarn|k8s://\S+", master) is None:
        raise UsageError(f"--master {master!r}: an archive is shipped to spark://HOST:PORT, to yarn or to k8s://URL")
    standalone, client = master.startswith("spark:"), mode is DeployMode.CLIENT
    if standalone and not client:
        raise UsageError("a standalone cluster runs no Python driver: leave out --deploy-mode cluster, or use yarn")
    cores = min(subtasks, CORES_MAX)
    executors = -(-subtasks // cores)
    settings = {
        "spark.executor.cores": str(cores),
        **({"spark.cores.max": str(cores * executors)} if standalone else {"spark.executor.instances": str(executors)}),
        "spark.task.maxFailures": "1000000",
        **({} if standalone else {"spark.executor.maxNumFailures": "1000"}),
        **({"spark.yarn.maxAppAttempts": "4"} if master == "yarn" and not client else {}),
        **({"spark.kubernetes.container.image": "IMAGE"} if master.startswith("k8s:") else {}),
        "spark.python.worker.reuse": "false",
        "spark.python.task.killTimeout": "100ms",
        "spark.python.daemon.module": "penstock.spark_integration.daemon",
        "spark.pyspark.python": PYTHON,
        **({"spark.pyspark.driver.python": sys.executable} if client else {}),
    }
    words = ["spark-submit", "--master", master, "--deploy-mode", mode.value, "--archives", f"{archive}#{LINK}"]
    return [*words, *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")), program]


def shown(line: list[str]) -> str:
    """The command for a shell, an option a line."""
    text = ""
    for word in line:
        text += (" \\\n    " if word.startswith("--") or word == line[-1] else " " * bool(text)) + shlex.quote(word)
    return text
