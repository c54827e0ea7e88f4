"""The README's code runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

import penstock

BLOCKS = re.findall(r"```python\n(.*?)```", (Path(__file__).parent.parent / "README.md").read_text(), re.DOTALL)


def block_with(words: str) -> str:
    (found,) = [block for block in BLOCKS if words in block]
    return found


def test_the_job_of_the_readme_runs_in_threads_as_the_readme_says(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "hello"}
    exec(block_with("# hello.py"), names)
    exec(block_with("LocalJob"), names)
    status = names["running"].service.status()
    assert status.state == "finished"
    assert [s.handled for s in status.operators[0].subtasks] == [1, 1, 1, 1]
    told = sorted(capsys.readouterr().out.splitlines())
    assert [line.partition(" has heard")[0] for line in told] == [f"subtask {index}" for index in range(4)]


def test_the_job_of_the_readme_resumes_where_it_was() -> None:
    names: dict[str, Any] = {"__name__": "hello"}
    exec(block_with("# hello.py"), names)
    local_job = names["penstock"].testing.LocalJob

    class Patient(names["Listener"]):  # type: ignore[misc]
        def poll(self) -> penstock.Idle:
            return penstock.Idle()

    def job(coordinator: type[penstock.OperatorCoordinator]) -> penstock.Job:
        made = names["job"].renamed("hello")
        made.operators.clear()
        made.operator(
            "greet", coordinator=coordinator, subtask=Patient, parallelism=4, codec="json", state_codec="json"
        )
        assert isinstance(made, penstock.Job)
        return made

    with local_job(job(names["Greeter"])) as first:
        first.wait_for(lambda s: s.checkpoints_completed >= 1, timeout=10)
        assert first.client.stop(savepoint=True).accepted
    greeters: list[Any] = []

    class Watched(names["Greeter"]):  # type: ignore[misc]
        def __init__(self) -> None:
            greeters.append(self)

    with local_job(job(Watched), first.transport) as second:
        second.wait_for(lambda s: s.checkpoints_completed >= 1, timeout=10)
    assert greeters[0].sent == 8, "four before, four since"


def test_the_query_of_the_readme_has_a_checkpoint_location_and_ends_before_its_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark_integration = MagicMock()
    monkeypatch.setattr(penstock, "spark_integration", spark_integration, raising=False)
    exec(block_with("read_stream"), {"penstock": penstock, "spark": None, "job": None, "write": None})
    calls = [str(call) for call in spark_integration.mock_calls]
    located, awaited, left = (
        next(i for i, call in enumerate(calls) if part in call)
        for part in ("option('checkpointLocation'", "awaitTermination()", "__exit__(")
    )
    assert located < awaited < left
