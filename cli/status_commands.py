"""`penstock status` and `checkpoints`: what a job is doing, what it has, and what it waits for."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated

import typer
from rich.table import Table

from ..client.job_client import JobClient
from ..client.status_follower import Heard
from ..dashboard import model
from ..dashboard.model import History
from ..schemas.errors import BrokerUnreachable
from ..schemas.status import ENDED, JobStatus
from ..schemas.topics import DEFAULT_PREFIX
from .connect import BrokerOption, ClientConfigOption, JobArgument, JsonOption, PrefixOption, job_client
from .console import Console
from .display import headline, subtask_table, waiting_lines
from .exits import Failed
from .status_view import StatusDisplay
from .to_json import checkpoint_row, plain

LOOK_EVERY_S = 0.5
CATCH_UP_S = 30.0


def status(
    job: JobArgument,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on until the job has ended, or Ctrl-C.")] = False,
    broker: BrokerOption = None,
    prefix: PrefixOption = DEFAULT_PREFIX,
    client_config: ClientConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a job is doing: its subtasks, and what each checkpoint waits for, by name."""
    console = Console()
    with job_client(job, broker, prefix, client_config) as client:
        if watch:
            _watch(client, Console(as_json=as_json))
            return
        newest, standbys = client.status(), client.standbys()
    if newest is None:
        raise Failed(f"job {job} has no status yet: has its coordinator started?")
    if as_json:
        console.data({**told(newest), "standbys": standbys})
        return
    console.show(headline(newest))
    if state_of(newest) == "gone":
        console.show(f"this was {ago(newest)}: its coordinator has written nothing since")
    if newest.cause:
        console.show(f"because: {newest.cause}")
    if standbys:
        console.show(f"coordinators started with --standby: {standbys}, the one at work included")
    console.show(subtask_table(newest))
    for line in waiting_lines(newest) or ["no checkpoint is under way"]:
        console.show(line)
    if newest.last_failure:
        console.show(f"last failure: {newest.last_failure}")
    if newest.dropped:
        console.show("records that did not count: " + ", ".join(f"{n} {why}" for why, n in newest.dropped.items()))


def _watch(client: JobClient, console: Console) -> None:
    """Until the job has ended; what it has told in the minutes before counts for the rates."""
    history, away_until = History(), 0.0
    with client.follow() as follower, StatusDisplay(console) as display:
        until = time.monotonic() + CATCH_UP_S
        while not follower.caught_up and time.monotonic() < until:
            for heard in follower.poll(LOOK_EVERY_S):
                history.see(*heard)
        news = [] if history.newest is None else [Heard(history.newest, history.heard_ms)]
        looked_ms = _now_ms()
        while True:
            if console.as_json:
                for heard in news:
                    console.data(told(heard.status, (looked_ms - heard.at_ms) / 1000))
            elif (view := history.view(looked_ms)) is not None:
                display.show(view)
            if history.newest is not None and history.newest.state in ENDED:
                return
            try:
                news = [heard for heard in follower.poll(LOOK_EVERY_S) if history.see(*heard)]
                if news or time.monotonic() >= away_until:
                    looked_ms, away_until = _now_ms(), 0.0
            except BrokerUnreachable as error:  # nobody is gone because of it
                if not away_until:
                    console.say(f"the job cannot be looked at, trying again: {error}")
                news, away_until = [], time.monotonic() + model.STALE_S


def checkpoints(
    job: JobArgument,
    broker: BrokerOption = None,
    prefix: PrefixOption = DEFAULT_PREFIX,
    client_config: ClientConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the checkpoints and savepoints that a job can be restored from."""
    console = Console(as_json=as_json)
    with job_client(job, broker, prefix, client_config) as client:
        history, lost = client.checkpoints()
    rows = [checkpoint_row(checkpoint) for _, checkpoint in sorted(history.checkpoints.items())]
    for row in rows:
        row["last_completed"] = row["checkpoint_id"] == history.last_id
        row["lost"] = lost.get(row["checkpoint_id"])
    if as_json:
        console.data(rows)
        return
    if not rows:
        console.show(f"job {job} has no completed checkpoint")
        return
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("checkpoint", "kind", "epoch", "triggered", "took", "subtasks", "finished", "state"):
        table.add_column(name)
    for row in rows:
        table.add_row(
            str(row["checkpoint_id"]) + (" (last)" if row["last_completed"] else ""),
            "savepoint" if row["savepoint"] else "checkpoint",
            str(row["epoch"]),
            f"{datetime.fromtimestamp(row['triggered_at_ms'] / 1000):%Y-%m-%d %H:%M:%S}",
            f"{row['duration_ms']} ms",
            str(row["subtasks"]),
            str(row["finished_subtasks"]),
            f"{row['state_bytes']:,} bytes" + (f", {row['stored_states']} stored" if row["stored_states"] else ""),
        )
    console.show(table)
    for n, why in sorted(lost.items()):
        console.show(f"checkpoint {n} cannot be restored: it needs {why}")


def state_of(status: JobStatus) -> str:
    """Its state; "gone" where it says that it runs, and has not said so for a while."""
    return model.state_of(status, _age_s(status))


def told(status: JobStatus, age_s: float | None = None) -> dict[str, object]:
    """The status for programs; so old, or as old as it says."""
    age_s = _age_s(status) if age_s is None else max(0.0, age_s)
    return {**plain(status), "age_s": round(age_s, 3), "gone": model.state_of(status, age_s) == "gone"}


def _age_s(status: JobStatus) -> float:
    return model.age_s(status, _now_ms())


def _now_ms() -> int:
    return round(1000 * time.time())


def ago(status: JobStatus, age_s: float | None = None) -> str:
    """Return how long ago it was told; as old as it says, or as it is now."""
    age = int(_age_s(status) if age_s is None else age_s)
    if age < 120:
        return f"{age} s ago"
    return f"{age // 60} min ago" if age < 7200 else f"{age // 3600} h ago"
