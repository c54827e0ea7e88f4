"""Every block of docs/testing-your-job.md runs as it stands, as a user's test file."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "testing-your-job.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_every_block_is_a_test_or_the_job() -> None:
    assert [b for b in BLOCKS if "def test_" not in b and not b.startswith("# make_job")] == []
    assert len(BLOCKS) >= 6


@pytest.mark.kafka
def test_the_blocks_pass_one_after_the_other_in_a_folder_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("\n\n".join(BLOCKS))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    wanted = sum(block.count("def test_") for block in BLOCKS) + 2  # one of them under three seeds
    assert f"{wanted} passed" in done.stdout, done.stdout
