"""What `run` and `coordinator` share: where a job is taken up, and serving its metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from ..coordinator.client import JobClient
from ..coordinator.metrics import MetricsServer, Numbers
from ..coordinator.protocol.inputs import Restore
from ..coordinator.runtime import CoordinatorOptions
from ..job import Job
from ..schemas.status import JobStatus
from ..transport.kafka import KafkaTransport
from .exits import UsageError

JobFileArgument = Annotated[
    str, typer.Argument(metavar="FILE.py[:NAME]", help="The file, and the variable or function in it (default: job).")
]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Start from nothing, whatever checkpoints there are.")]
FromCheckpointOption = Annotated[
    int | None,
    typer.Option("--from-checkpoint", min=0, metavar="N", help="Go back to this one (penstock checkpoints JOB)."),
]
NameOption = Annotated[str | None, typer.Option("--name", help="Run it under another name than the file's.")]


def named(job: Job, name: str | None, prefix: str | None) -> Job:
    """The job under the name and prefix asked for; every setting is checked."""
    if name is not None or prefix is not None:
        job = job.renamed(name or job.name, prefix=prefix or job.prefix)
    _ = job.settings
    return job


def restore_options(
    job: Job, transport: KafkaTransport, fresh: bool, from_checkpoint: int | None, **others: object
) -> CoordinatorOptions:
    """From where the coordinator takes up the job; UsageError for a checkpoint that it does not have."""
    if fresh and from_checkpoint is not None:
        raise UsageError("--fresh and --from-checkpoint contradict each other: give one of them")
    if from_checkpoint is not None:
        client = JobClient(transport, job.name, job.prefix)
        kept = sorted(client.history().checkpoints) if client.exists() else []
        if from_checkpoint not in kept:
            raise UsageError(
                f"job {job.name} has no checkpoint {from_checkpoint} any more; it has:"
                f" {', '.join(map(str, kept)) or 'none'}"
            )
        return CoordinatorOptions(Restore.CHECKPOINT, from_checkpoint, **others)  # type: ignore[arg-type]
    return CoordinatorOptions(Restore.FRESH if fresh else Restore.LATEST, **others)  # type: ignore[arg-type]


@contextmanager
def metrics_served(
    port: int | None, status: Callable[[], JobStatus | None], say: Callable[[str], None], numbers: Numbers | None = None
) -> Iterator[None]:
    """Serves metrics while the body runs, where a port was asked for."""
    if port is None:
        yield
        return
    try:
        server = MetricsServer(status, port, numbers=numbers)
    except OSError as error:
        raise UsageError(
            f"--metrics-port {port}: {error.strerror or error}; choose another, or 0 for a free one"
        ) from None
    say(f"metrics at http://127.0.0.1:{server.port}/metrics")
    try:
        yield
    finally:
        server.close()
