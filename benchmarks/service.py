"""A job's coordinator as a user's process hosts it, and processes for its subtasks."""

from __future__ import annotations

import multiprocessing
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from penstock.client.job_client import JobClient
from penstock.coordinator.options import CoordinatorOptions
from penstock.coordinator.service import CoordinatorService, instances_of
from penstock.job import Job
from penstock.schemas.ids import SubtaskId
from penstock.subtask_client.runtime import SubtaskRuntime
from penstock.transport.kafka import KafkaTransport
from penstock.transport.ports import Partition

READY_S = 120.0


@contextmanager
def coordinated(job: Job, bootstrap: str, targets: Iterable[Callable[[str], object]]) -> Iterator[CoordinatorService]:
    """The job's coordinators run here, over plain Kafka; in the end the job is stopped, unless it has ended by itself.

    Each target runs in a process of its own, given the run's id, as long as that. What it holds travels to its process,
    so it holds a job without coordinators.
    """
    transport, run = KafkaTransport(bootstrap), uuid.uuid4().hex
    client = JobClient(transport, job.name, job.prefix)
    transport.create_topics(job.settings.topic_specs)
    topics = transport.describe_topics([spec.name for spec in job.settings.topic_specs])
    everything = [Partition(topic.name, n) for topic in topics.values() for n in range(topic.partitions)]
    transport.offsets(everything, READY_S)  # a thousand partitions are there at once, and have leaders seconds later
    client.announce_run(run)
    instances = instances_of(job.settings, job.coordinators, transport, CoordinatorOptions())
    service = CoordinatorService(instances, job.settings.restart).start()
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=target, args=(run,), daemon=True) for target in targets]
    try:
        for process in processes:
            process.start()
        yield service
        if not service.done():
            client.stop(timeout_s=60)
    finally:
        service.leave()
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()


def run_subtask(job: Job, subtask: SubtaskId, bootstrap: str, run: str) -> None:
    """Run a subtask in this process until it leaves."""
    operator = job.operators[subtask.operator]
    SubtaskRuntime(
        job.settings, subtask, operator.subtask, KafkaTransport(bootstrap), run=run, keys=operator.keys,
        codec=operator.codec, state_codec=operator.state_codec,
    ).run()  # fmt: skip
