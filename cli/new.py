"""`penstock new`: a job to start from, with a test that kills it."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from ..schemas.topics import DEFAULT_PREFIX, TopicNames
from .console import print_text
from .exits import UsageError

FILES = ("job.py", "test_job.py")


def new(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to; its name becomes the job's.")],
) -> None:
    """Write a job to start from into a folder: job.py, and a test of it that kills its processes.

    Files that are there already are never overwritten.
    """
    name = folder.resolve().name
    TopicNames(DEFAULT_PREFIX, name)
    for file in FILES:
        if (folder / file).exists():
            raise UsageError(f"{folder / file} is there already; choose another folder, or move it away")
    template = resources.files(__package__) / "new_job"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in FILES:
            text = (template / f"{file}.txt").read_text(encoding="utf-8").replace("JOB_NAME", name)
            with (folder / file).open("x", encoding="utf-8") as written:
                written.write(text)
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {error}") from error
    print_text(f"wrote {folder / 'job.py'} and {folder / 'test_job.py'}. Next:")
    print_text(f"  cd {folder}")
    print_text("  penstock run job.py      # on a local Spark and an embedded Kafka (Java 17)")
    print_text("  pytest test_job.py       # without both")
