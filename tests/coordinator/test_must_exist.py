"""A start that must go on from an existing checkpoint log (protocol, section 4)."""

from __future__ import annotations

import pytest

from penstock.coordinator.options import CoordinatorOptions
from penstock.coordinator.preflight import require_topics
from penstock.coordinator.service import CoordinatorService, instances_of
from penstock.schemas.errors import ConfigurationError, JobRefused
from penstock.schemas.plan import Role
from penstock.schemas.settings import Restore
from penstock.testing.local import LocalJob
from penstock.transport.memory import MemoryBroker, MemoryTransport

from .jobs import PATIENCE_S, Plan, make_job, run, wait_checkpoint, wait_recovered, wait_until

OPTIONS = CoordinatorOptions(must_exist=True, status_interval_s=0.02)


def test_a_job_without_a_checkpoint_log_is_refused_and_no_topic_is_made() -> None:
    transport, job = MemoryTransport(MemoryBroker()), make_job(Plan())
    said = r"job job cannot resume: its checkpoint log penstock\.job\.checkpoints is missing.*--resume"
    with pytest.raises(JobRefused, match=said):
        LocalJob(job, transport, OPTIONS).start()
    with pytest.raises(JobRefused, match=said):
        require_topics(job.settings, transport, [Role.COORDINATOR], PATIENCE_S, must_exist=True)
    service = CoordinatorService(instances_of(job.settings, job.coordinators, transport, OPTIONS), job.restart)
    with pytest.raises(JobRefused, match=said):
        service.start().wait(PATIENCE_S)
    assert transport.list_topics("penstock.") == []


def test_a_checkpoint_log_that_no_coordinator_has_written_is_refused() -> None:
    """The broker was wiped, and an administrator has made the topics anew."""
    transport, job = MemoryTransport(MemoryBroker()), make_job(Plan())
    transport.create_topics(job.settings.topic_specs)
    with pytest.raises(JobRefused, match=r"its checkpoint log penstock\.job\.checkpoints is empty"):
        LocalJob(job, transport, OPTIONS).start()


def test_a_job_that_has_run_goes_on() -> None:
    first = Plan()
    with run(make_job(first)) as running:
        wait_checkpoint(running, first)
        assert running.client.stop(timeout_s=PATIENCE_S).accepted
        running.wait(PATIENCE_S)
        wait_until(running.client.ended, "the last status")
    again = Plan()
    with LocalJob(make_job(again), running.transport, OPTIONS) as running:
        wait_recovered(running, again)
        assert again.calls[0][0] == "reset_to_checkpoint"


def test_it_contradicts_a_fresh_start() -> None:
    with pytest.raises(ConfigurationError, match=r"must_exist and Restore\.FRESH contradict one another"):
        CoordinatorOptions(restore=Restore.FRESH, must_exist=True)
