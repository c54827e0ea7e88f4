"""A job that was purged and made anew under its name, while somebody of the one before still speaks."""

from __future__ import annotations

import pytest

from penstock.schemas.acks import AcksRecord, CoordinatorHeartbeat, Finished
from penstock.schemas.codec import encode
from penstock.schemas.state import Sender
from penstock.transport.ports import Partition

from .jobs import Plan, epoch_of, make_job, run, wait_checkpoint, wait_status


@pytest.mark.damages_logs
@pytest.mark.parametrize(
    "said",
    [Finished(Sender("op", 0, 77, 9, 0)), CoordinatorHeartbeat(9, "who was frozen")],
    ids=["a-task", "a-coordinator"],
)
def test_whoever_was_frozen_while_the_job_was_purged_does_not_end_the_one_that_has_its_name_now(
    said: AcksRecord,
) -> None:
    """Section 4: the checkpoint log does not know the epoch, so nobody has followed."""
    plan = Plan()
    with run(make_job(plan)) as running:
        plan.wait_gateways(0)
        writer = running.transport.writer()
        for _ in range(2):
            writer.append(Partition(running.settings.topics.acks, 0), encode(said))
        wait_status(running, lambda s: s.dropped.get("unreadable") == 2)
        wait_checkpoint(running, plan)
        assert epoch_of(running) == 1
