"""What `penstock pack` makes, and the line that it prints, for tests that ship it to a cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyspark

from penstock.cli.pack import DeployMode, submit_line


@dataclass(frozen=True)
class Packed:
    """An archive that this run has made, and a SPARK_HOME to submit it from."""

    archive: Path
    spark_home: Path

    def line(self, master: str, mode: DeployMode = DeployMode.CLIENT, subtasks: int = 4) -> list[str]:
        """Return the printed spark-submit line, up to the program."""
        words = submit_line(self.archive, "main.py", master, mode, subtasks)
        return [str(self.spark_home / "bin" / words[0]), *words[1:-1]]


def pack(folder: Path) -> Packed:
    """Pack an environment, and copy SPARK_HOME out of the installed package, as a cluster has it."""
    home = folder / "spark"
    shutil.copytree(Path(pyspark.__file__).parent, home, copy_function=_copy, ignore=shutil.ignore_patterns("work"))
    archive = folder / "penstock.tar.gz"
    ran = subprocess.run(
        [sys.executable, "-m", "penstock", "pack", "--output", str(archive)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert archive.stat().st_size < 60e6, "PySpark is not in it"
    return Packed(archive, home)


def _copy(source: str, target: str) -> None:
    """Link jars, 400 MB of them; copy all else, so that no path leads back into the installed package."""
    if source.endswith(".jar"):
        os.symlink(source, target)
    else:
        shutil.copy2(source, target)
