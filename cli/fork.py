"""`penstock fork`: a sandbox job on a copy of another one's history."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer

from ..recorded.fork import fork as make_fork
from ..recorded.job import RecordedJob
from ..schemas.errors import JobRefused
from ..schemas.topics import DEFAULT_PREFIX, TopicNames
from .connect import BrokerOption, ClientConfigOption, JobArgument, JsonOption, PrefixOption, connected
from .console import Console
from .events import JobFileOption
from .exits import Failed, UsageError
from .job_file import load_job

TELL_EVERY_S = 2.0


def fork(
    job: JobArgument,
    new: Annotated[str, typer.Argument(metavar="NEW", help="The sandbox job's name; there must be no such job yet.")],
    from_checkpoint: Annotated[
        int | None, typer.Option("--from-checkpoint", min=0, metavar="N", help="The checkpoint to begin with.")
    ] = None,
    from_savepoint: Annotated[
        int | None, typer.Option("--from-savepoint", min=0, metavar="S", help="The savepoint to begin with.")
    ] = None,
    new_prefix: Annotated[
        str | None, typer.Option("--new-prefix", metavar="PREFIX", help="The sandbox's prefix; else the job's own.")
    ] = None,
    state_storage: Annotated[
        str | None,
        typer.Option("--state-storage", metavar="URL", help="Where the job keeps its large states, as its file says."),
    ] = None,
    job_file: JobFileOption = None,
    broker: BrokerOption = None,
    prefix: PrefixOption = DEFAULT_PREFIX,
    client_config: ClientConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a sandbox job that begins as a copy of one of a job's checkpoints; the job itself is not touched.

    Then `penstock run FILE.py --name NEW` goes on from there. `penstock purge NEW` deletes it again.
    """
    console = Console(as_json=as_json)
    if (from_checkpoint is None) == (from_savepoint is None):
        raise UsageError("say what to begin with: --from-checkpoint N or --from-savepoint S (penstock checkpoints JOB)")
    TopicNames(new_prefix or prefix, new)
    if job_file is not None and state_storage is None:
        with console.stdout_kept():
            state_storage = load_job(job_file).state_storage
    with connected(broker, client_config) as transport:
        try:
            origin = RecordedJob(transport, job, prefix)
            wanted = from_checkpoint if from_savepoint is None else from_savepoint
            assert wanted is not None
            origin.checkpoint(wanted, savepoint=from_savepoint is not None)
        except JobRefused as error:
            raise UsageError(str(error)) from None
        telling = _Telling(console)
        try:
            made = make_fork(
                origin, new, wanted, prefix=new_prefix, savepoint=from_savepoint is not None,
                state_storage=state_storage, tell=telling.tell,
            )  # fmt: skip
        except JobRefused as error:
            raise Failed(str(error)) from error
    if as_json:
        console.data(asdict(made))
        return
    console.show(
        f"job {made.job} begins with checkpoint {made.checkpoint_id} of job {made.origin}: {len(made.topics)} topics,"
        f" {made.records} records, {made.states} stored states"
    )
    under = f" --prefix {made.prefix}" if made.prefix != DEFAULT_PREFIX else ""
    console.show(f"start it with: penstock run FILE.py --name {made.job}{under}")


class _Telling:
    """Says how far the copy is, now and then: a short one says nothing."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told_at = time.monotonic()

    def tell(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._told_at >= TELL_EVERY_S:
            self._told_at = now
            self._console.say(f"copying {what}: {done:,} of about {total:,} ({100 * done // max(total, 1)} %)")
