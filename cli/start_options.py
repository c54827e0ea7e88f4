"""What `run` and `coordinator` share: where a job is taken up, and serving its metrics and probes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from ..checkpoint_log.history import History
from ..client.job_client import JobClient
from ..coordinator.metrics import MetricsServer, Numbers
from ..coordinator.options import CoordinatorOptions
from ..coordinator.preflight import require_history
from ..job import Job
from ..recorded.job import kept_checkpoint
from ..schemas.errors import JobRefused
from ..schemas.settings import Restore
from ..schemas.status import JobStatus
from ..transport.kafka import KafkaTransport
from .connect import LOOPBACK
from .exits import UsageError

JobFileArgument = Annotated[
    str, typer.Argument(metavar="FILE.py[:NAME]", help="The file, and the variable or function in it (default: job).")
]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Start from nothing, whatever checkpoints there are.")]
FromCheckpointOption = Annotated[
    int | None,
    typer.Option("--from-checkpoint", min=0, metavar="N", help="Go back to this one (penstock checkpoints JOB)."),
]
FromSavepointOption = Annotated[
    int | None,
    typer.Option("--from-savepoint", min=0, metavar="S", help="Go back to this one, which must be a savepoint."),
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Fail where the job has no checkpoint log on this broker to go on from.")
]
ReplicationOption = Annotated[
    int | None,
    typer.Option(
        "--replication-factor",
        min=1,
        metavar="N",
        help="Copies of each topic that is created; else the file's, else the broker's default.",
    ),
]
NameOption = Annotated[str | None, typer.Option("--name", help="Run it under another name than the file's.")]


def named(job: Job, name: str | None, prefix: str | None, replication_factor: int | None = None) -> Job:
    """The job under the name and prefix, and with the copies, asked for; every setting is checked."""
    changes = {"prefix": prefix, "replication_factor": replication_factor}
    asked = {setting: value for setting, value in changes.items() if value is not None}
    if name is not None or asked:
        job = job.renamed(name or job.name, **asked)
    _ = job.settings
    return job


def require_one_start(*, fresh: bool, from_checkpoint: int | None, from_savepoint: int | None, resume: bool) -> None:
    """Raise UsageError for options that contradict one another; before anything is started or asked."""
    if fresh and resume:
        raise UsageError("--fresh and --resume contradict one another: give one of them")
    if sum((fresh, from_checkpoint is not None, from_savepoint is not None)) > 1:
        raise UsageError("--fresh, --from-checkpoint and --from-savepoint contradict one another: give one of them")


def restore_options(
    job: Job,
    transport: KafkaTransport,
    fresh: bool,
    from_checkpoint: int | None,
    from_savepoint: int | None = None,
    *,
    say: Callable[[str], None],
    resume: bool = False,
) -> CoordinatorOptions:
    """From where the coordinator takes up the job; UsageError for a checkpoint, or savepoint, that it does not have.

    With ``resume``, JobRefused for a job that has never run on this broker: asked here, before Spark is started.
    Without, ``say`` is told so: the broker may have lost what the job had done.
    """
    if resume:
        require_history(job.settings, transport)
    elif not fresh and not JobClient(transport, job.name, job.prefix).exists():
        say(f"job {job.name} is new on this broker and begins from nothing (--resume refuses that)")
    wanted = from_checkpoint if from_savepoint is None else from_savepoint
    if wanted is None:
        return CoordinatorOptions(Restore.FRESH if fresh else Restore.LATEST, must_exist=resume)
    client = JobClient(transport, job.name, job.prefix)
    history = client.history() if client.exists() else History()
    try:
        kept_checkpoint(job.name, history, wanted, savepoint=from_savepoint is not None)
    except JobRefused as error:
        raise UsageError(str(error)) from None
    return CoordinatorOptions(Restore.CHECKPOINT, wanted, must_exist=resume)


@contextmanager
def metrics_served(
    port: int | None,
    status: Callable[[], JobStatus | None],
    say: Callable[[str], None],
    numbers: Numbers | None = None,
    *,
    host: str = LOOPBACK,
    stands_by: bool = False,
) -> Iterator[None]:
    """Serve metrics and probes while the body runs, if a port was asked for."""
    if port is None:
        yield
        return
    try:
        server = MetricsServer(status, port, host, numbers=numbers, stands_by=stands_by)
    except OSError as error:
        raise UsageError(
            f"--metrics-port {port} on {host}: {error.strerror or error}; choose another, or 0 for a free one"
        ) from None
    say(f"metrics at http://{host}:{server.port}/metrics")
    try:
        yield
    finally:
        server.close()
