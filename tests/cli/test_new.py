"""A job that `penstock new` writes runs as it stands, and so does its test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from penstock.cli.exits import Exit

from .conftest import Cli


def test_the_test_of_a_new_job_passes_and_its_job_can_be_planned(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "colors"
    written = cli("new", str(folder))
    assert written.code == Exit.DONE and "penstock run job.py" in written.out
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_job.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:]
    assert "penstock.colors.checkpoints" in cli("plan", str(folder / "job.py")).out


def test_no_file_is_overwritten(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "test_job.py").write_text("mine")
    refused = cli("new", str(tmp_path))
    assert refused.code == Exit.USAGE
    assert (tmp_path / "test_job.py").read_text() == "mine" and not (tmp_path / "job.py").exists()
