"""A job whose states are in an object store with faults (protocol, sections 7.6 and 7.8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.cli.display import waiting_lines
from penstock.schemas.errors import StateError
from penstock.transport import state_storage

from ..s3 import S3Server, s3_server
from .jobs import PATIENCE_S, Plan, make_job, run, wait_checkpoint, wait_status, wait_until
from .test_large_states import large_plan

pytestmark = pytest.mark.more
BUCKET = "job-states"
URL = f"s3://{BUCKET}/here"


@pytest.fixture
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        server.make_bucket(BUCKET)
        yield server


def job(plan: Plan, url: str = URL, **changes: Any) -> Any:
    return make_job(plan, state_storage=url, **changes)


def test_a_checkpoint_is_one_request_for_each_stored_state(server: S3Server) -> None:
    plan = large_plan()
    with run(job(plan, interval=None)) as running:
        wait_until(lambda: plan.gateways, "the subtask")
        server.requests.clear()
        running.client.savepoint(timeout_s=PATIENCE_S)
        states = Counter(method for method, path in server.requests.elements() if "/checkpoint-" in path)
        assert states == {"PUT": 1}


def test_with_rights_on_objects_alone_a_job_runs_and_goes_on(server: S3Server) -> None:
    server.object_rights_only()
    plan = large_plan()
    with run(job(plan)) as running:
        wait_checkpoint(running, plan)
    again = large_plan()
    with run(job(again), running.transport) as resumed:
        wait_checkpoint(resumed, again)
        wait_until(lambda: "reset_to_checkpoint" in again.names(), "the restored state")


def test_a_job_with_a_misspelt_bucket_does_not_start(server: S3Server) -> None:
    refused = pytest.raises(StateError, match="bucket 'job-state' does not exist")
    with refused, run(job(large_plan(), "s3://job-state/here")):
        pass
    assert "job-state" not in server.buckets


def test_a_silent_store_aborts_checkpoints_says_why_and_rolls_nothing_back(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-7.8.2."""
    plan = large_plan()
    with run(job(plan, checkpoint={"tolerable_failures": 0})) as running:
        wait_checkpoint(running, plan)
        with server.silent("PUT"), monkeypatch.context() as patch:
            patch.setattr(state_storage, "_TRY_S", 0.5)
            before = running.client.status()
            aborted = 0 if before is None else before.checkpoints_aborted
            told = wait_status(running, lambda s: s.checkpoints_aborted >= aborted + 2)
            (line,) = (line for line in waiting_lines(told) if "aborted" in line)
            assert f"in {URL}: no answer within 0." in line
        wait_checkpoint(running, plan)
        after = wait_status(running, lambda s: not [w for w in waiting_lines(s) if "aborted" in w])
        assert after.failovers_global == 0
