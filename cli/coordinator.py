"""`penstock coordinator`: a job's coordinator alone, in the foreground; its subtasks run elsewhere."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Annotated

import typer

from ..coordinator.service import CoordinatorService, instances_of
from ..coordinator.standby import TAKEOVER_AFTER_S, StandbyService, Standing
from ..schemas.errors import JobFailed
from ..schemas.status import End, Ending
from .connect import (
    CHECK_TIMEOUT_S,
    LOOPBACK,
    BrokerOption,
    ClientConfigOption,
    JsonOption,
    MetricsHostOption,
    MetricsPortOption,
    connection,
)
from .console import Console
from .dashboard import DashboardPortOption, dashboard_served
from .display import Display
from .exits import Exit, UsageError
from .job_file import load_job
from .run_job import OptionalPrefix
from .signals import interrupts_caught
from .start_options import (
    FreshOption,
    FromCheckpointOption,
    FromSavepointOption,
    JobFileArgument,
    NameOption,
    ReplicationOption,
    ResumeOption,
    metrics_served,
    named,
    require_one_start,
    restore_options,
)

StandbyOption = Annotated[
    bool, typer.Option("--standby", help="Wait while another coordinator is at work, and take over when it is gone.")
]
TakeoverAfterOption = Annotated[
    float | None,
    typer.Option(
        "--takeover-after",
        metavar="SECONDS",
        help=f"With --standby: for how long the one at work must be silent (default {TAKEOVER_AFTER_S:g}; the broker's"
        " group.min.session.timeout.ms bounds it).",
    ),
]
QueryOption = Annotated[
    bool, typer.Option("--query", help="A Structured Streaming query reads its events: a micro-batch is a checkpoint.")
]
LOOK_EVERY_S = 0.2
LEAVE_TIMEOUT_S = 30.0
TELL_EVERY_S = 30.0
TAKEOVER_AFTER_MIN_S = 2.0
"""A coordinator tells its status each second: less would take one that is a little late for silent."""

Host = CoordinatorService | StandbyService


def coordinator(
    file: JobFileArgument,
    name: NameOption = None,
    fresh: FreshOption = False,
    from_checkpoint: FromCheckpointOption = None,
    from_savepoint: FromSavepointOption = None,
    resume: ResumeOption = False,
    broker: BrokerOption = None,
    prefix: OptionalPrefix = None,
    replication_factor: ReplicationOption = None,
    client_config: ClientConfigOption = None,
    metrics_port: MetricsPortOption = None,
    metrics_host: MetricsHostOption = LOOPBACK,
    dashboard_port: DashboardPortOption = None,
    query: QueryOption = False,
    standby: StandbyOption = False,
    takeover_after: TakeoverAfterOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run only the coordinator of a job, in the foreground.

    It takes over from one that is at work, which then ends with exit code 4. Ctrl-C ends it and not the job: the
    subtasks go on, and wait for the next coordinator. Started several times with --standby, one is at work and the
    others wait: SIGTERM or Ctrl-C hands over at once (exit code 0), and one that dies or freezes is followed by itself.
    """
    takeover_after = _checked(
        standby, takeover_after, fresh or from_checkpoint is not None or from_savepoint is not None
    )
    require_one_start(fresh=fresh, from_checkpoint=from_checkpoint, from_savepoint=from_savepoint, resume=resume)
    console = Console(as_json=as_json)
    with console.stdout_kept():
        job = named(load_job(file), name, prefix, replication_factor)
    where = connection(broker, client_config)
    transport = where.transport()
    try:
        transport.check(CHECK_TIMEOUT_S)
        options = restore_options(
            job, transport, fresh, from_checkpoint, from_savepoint, say=console.say, resume=resume
        )
        settings = replace(job.settings, driven_by_query=query)
        service: Host
        if standby:
            service = StandbyService(
                settings, job.coordinators, transport, job.restart, options, takeover_after=takeover_after
            )
        else:
            service = CoordinatorService(instances_of(settings, job.coordinators, transport, options), job.restart)
        console.say(f"coordinating job {job.name}; Kafka at {where.bootstrap}")
        with (
            console.stdout_kept(),
            interrupts_caught(),
            metrics_served(
                metrics_port,
                service.status,
                console.say,
                lambda: _numbers(service),
                host=metrics_host,
                stands_by=standby,
            ),
            dashboard_served(
                dashboard_port, None if standby else service.status, console.say, job.name, job.prefix, where.transport
            ),
            Display(console) as display,
        ):
            return _follow(service.start(), display, console)
    finally:
        transport.close()


def _checked(standby: bool, takeover_after: float | None, elsewhere: bool) -> float:
    """The time to take over after; UsageError for options that contradict each other."""
    if takeover_after is not None and not standby:
        raise UsageError("--takeover-after is for --standby: without it a coordinator does not wait")
    if standby and elsewhere:
        raise UsageError(
            "--standby continues from the last completed checkpoint: to begin elsewhere, start once without --standby,"
            " then start the standbys"
        )
    if takeover_after is not None and not (takeover_after >= TAKEOVER_AFTER_MIN_S and math.isfinite(takeover_after)):
        raise UsageError(f"--takeover-after {takeover_after:g}: it must be at least {TAKEOVER_AFTER_MIN_S:g} seconds")
    return TAKEOVER_AFTER_S if takeover_after is None else takeover_after


def _numbers(service: Host) -> dict[str, dict[str, float]]:
    runtime = service.runtime  # a standby's comes and goes
    return {} if runtime is None else runtime.numbers()


def _follow(service: Host, display: Display, console: Console) -> int:
    standing = _Told(display)
    try:
        while (outcome := service.wait(LOOK_EVERY_S)) is None:
            display.update(service.status())
            if isinstance(service, StandbyService):
                standing.tell(service.standing())
    except KeyboardInterrupt:
        display.say("leaving; the job goes on with its next coordinator")
        service.leave()
        left = service.wait(LEAVE_TIMEOUT_S)
        if isinstance(service, StandbyService) and left is not None:
            return _ended(left, display, console)
        return Exit.INTERRUPTED
    display.update(service.status())
    return _ended(outcome, display, console)


def _ended(outcome: End, display: Display, console: Console) -> int:
    if console.as_json:
        console.data({"ending": outcome.ending.value, "cause": outcome.cause})
    if outcome.ending is Ending.FAILED:
        raise JobFailed(outcome.cause)
    display.say(f"{outcome.ending.value}: {outcome.cause}")
    return Exit.REPLACED if outcome.ending is Ending.FENCED else Exit.DONE


class _Told:
    """Says what a standby does when that changes, and now and then how long ago the one at work was seen."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._last: Standing | None = None
        self._at = 0.0

    def tell(self, standing: Standing) -> None:
        same = self._last is not None and replace(standing, silent_s=self._last.silent_s) == self._last
        if not same or time.monotonic() - self._at > TELL_EVERY_S:
            self._last, self._at = standing, time.monotonic()
            self._display.say(str(standing))
