"""The demo's job: files as splits, sums by group, a Delta table with one commit for each checkpoint.

::

    read (files, handed out as they are asked for) ── keyed by group ── totals ── table (Delta)

A subtask of ``totals`` emits what it has added since the last checkpoint when it takes its snapshot. So each commit of
the table has the sums of one interval, and all commits together the sums of all rows: a row that came twice, or never,
would show.
"""

from __future__ import annotations

import logging
import os
import time
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from ...coordinator.api import CheckpointResult, EventContext, Gateway, OperatorCoordinator
from ...job import Job
from ...schemas.settings import CheckpointSettings, RestartStrategy
from ...sources import FileReader, Files
from ...subtask_client.api import Context, Subtask
from ...tables import Delta
from .inputs import EXACT, Question

TOTALS = "totals"
PACE_EVERY = 100
"""Rows after which a reader takes its time."""


class InjectedFault(RuntimeError):
    """Raised in a task because the demo wants it to."""


def _unwanted(record: logging.LogRecord) -> bool:
    """Leave the traceback of a fault that the demo wanted out of its display."""
    raised = record.exc_info[1] if record.exc_info else None
    return "InjectedFault" not in record.getMessage() and not isinstance(raised, InjectedFault)


class PacedReader(FileReader):
    """Reads files, and takes its time, so that there is something to see."""

    def __init__(self, pace_s: float, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pace_s, self._rows = pace_s, 0

    def handle(self, record: Any) -> None:
        super().handle(record)
        self._rows += 1
        if self._rows % PACE_EVERY == 0:
            time.sleep(self._pace_s * PACE_EVERY)


class Totals(Subtask):
    """Adds up the rows of its groups; tells its coordinator who it is, and how far."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._sums: dict[tuple[str, ...], tuple[Decimal, int, int]] = {}
        self._rows = 0

    def open(self, context: Context) -> None:
        self.context = context
        logging.getLogger("penstock.subtask").addFilter(_unwanted)
        context.send_event_to_coordinator({"worker": os.getpid()})

    def handle_operator_event(self, event: Any) -> None:
        if event["raise"] == self.context.attempt:  # a successor that is given this event again goes on
            raise InjectedFault("the demo made this task fail")

    def process(self, record: Any, input: str) -> None:
        group, value = self._question.group(record), self._question.number(record)
        amount, values, missing = self._sums.get(group, (Decimal(0), 0, 0))
        if value is None:
            self._sums[group] = amount, values, missing + 1
        else:
            self._sums[group] = EXACT.add(amount, value), values + 1, missing
        self._rows += 1

    def end_inputs(self) -> None:
        self._emit()

    def snapshot_state(self, checkpoint_id: int) -> Any:
        self._emit()
        self.context.send_event_to_coordinator({"rows": self._rows})
        return self._rows

    def restore_state(self, checkpoint_id: int, state: Any) -> None:
        self._rows = state

    def _emit(self) -> None:
        for group, (amount, values, missing) in self._sums.items():
            columns = dict(zip(self._question.group_by, group, strict=True))
            self.context.emit({**columns, "sum": format(amount, "f"), "rows": values, "missing": missing})
        self._sums.clear()


class Saboteur(OperatorCoordinator):
    """Makes subtasks fail when asked to, and says how far they are."""

    def __init__(self) -> None:
        self._gateways: dict[int, Gateway] = {}
        self._workers: dict[int, int] = {}
        """Subtask to process id, of those that run."""
        self._rows: dict[int, int] = {}
        self._failures = 0

    def execution_attempt_ready(self, subtask: int, attempt: int, gateway: Gateway) -> None:
        self._gateways[subtask] = gateway

    def execution_attempt_failed(self, subtask: int, attempt: int, reason: str | None) -> None:
        self._failures += 1
        self._workers.pop(subtask, None)

    def handle_event_from_operator(self, subtask: int, attempt: int, event: Any, context: EventContext) -> None:
        if "worker" in event:
            self._workers[subtask] = event["worker"]
        else:
            self._rows[subtask] = event["rows"]
            self.context.metrics.set("rows", sum(self._rows.values()))

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        result.complete(self._rows)

    def reset_to_checkpoint(self, checkpoint_id: int, state: Any) -> None:
        self._rows = {int(subtask): rows for subtask, rows in (state or {}).items()}
        self._workers.clear()

    def handle_request(self, request: Any) -> Any:
        match request["fault"]:
            case "raise":
                gateway = self._gateways[request["subtask"]]
                gateway.send_event({"raise": gateway.attempt})
            case "roll back":
                self.context.fail_job("the demo rolls the coordinators back")
        return {
            "rows": sum(self._rows.values()),
            "failures": self._failures,
            "epoch": self.context.epoch,
            "workers": self._workers,
            "all_run": len(self._workers) == self.context.parallelism,
        }


def demo_job(
    name: str,
    question: Question,
    folder: Path,
    *,
    subtasks: int,
    pace_s: float = 0.0,
    prefix: str = "penstock",
    totals: type[Totals] = Totals,
) -> Job:
    """Return the job, whose table is ``folder / "table"``; a reader takes ``pace_s`` seconds for a row."""
    import pyarrow as pa
    from pyarrow import csv

    job = Job(
        name,
        prefix=prefix,
        checkpoint=CheckpointSettings(interval=0.5),
        restart=RestartStrategy(backoff_first=0.0, backoff_next=0.05, backoff_max=0.5, budget=100_000),
        state_storage=(folder / "states").as_uri(),
    )
    files = Files(f"{question.folder}/**/*{question.suffix}")
    if question.kind in ("csv", "tsv"):  # as text: a number keeps all of its digits
        options: dict[str, Any] = {
            "csv": {
                "parse_options": csv.ParseOptions(
                    delimiter="\t" if question.kind == "tsv" else ",", newlines_in_values=True
                ),
                "convert_options": csv.ConvertOptions(
                    include_columns=question.columns, column_types=dict.fromkeys(question.columns, pa.string())
                ),
            }
        }
        format = "csv"
    else:
        options, format = {"columns": question.columns}, question.kind
    read = job.operator("read", **files.read_by(partial(PacedReader, pace_s, format, **options)), parallelism=subtasks)
    sums = job.operator(
        TOTALS,
        coordinator=Saboteur,
        subtask=partial(totals, question),
        parallelism=subtasks,
        inputs=[read.keyed_by(question.group)],
        codec="json",
        state_codec="json",
        output_codec="json",
    )
    columns = [(column, pa.string()) for column in (*question.group_by, "sum")]
    table = Delta(folder / "table", pa.schema([*columns, ("rows", pa.int64()), ("missing", pa.int64())]))
    job.operator("table", **table.sink(), parallelism=1, inputs=[sums.rebalance()])
    return job
