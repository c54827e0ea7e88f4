"""Rows of a folder's CSV files, summed by carrier, in Parquet files that appear whole, each row counted once.

    FOLDER=/some/csv OUT=/some/parquet penstock run examples/delays_to_parquet.py

Three operators: readers, to which a coordinator hands out the files; totals, keyed by carrier; a sink. Kill what you
like on the way, and start it again: it goes on from its last checkpoint. Without FOLDER it makes some rows up.
"""

import csv
import functools
import io
import os
import tempfile
from pathlib import Path

import pyarrow as pa

import penstock
from penstock.sinks import FileSink, Parquet

FOLDER, OUT = os.environ.get("FOLDER"), os.environ.get("OUT") or str(Path(tempfile.gettempdir()) / "delays")
CARRIERS, FILES, ROWS = ("AA", "B6", "DL", "UA"), 12, 50
ROWS_PER_POLL = 10


def files():
    """Names of the splits; a name without a folder stands for rows made up."""
    return sorted(map(str, Path(FOLDER).glob("*.csv"))) if FOLDER else [str(number) for number in range(FILES)]


def rows(name):
    """(carrier, minutes) of one split."""
    if FOLDER:
        with Path(name).open(newline="") as file:
            return [(row["carrier"], int(row["delay"])) for row in csv.DictReader(file)]
    made = io.StringIO("".join(f"{CARRIERS[(int(name) + i) % 4]},{i}\n" for i in range(ROWS)))
    return [(carrier, int(minutes)) for carrier, minutes in csv.reader(made)]


class FileAssigner(penstock.OperatorCoordinator):
    """Hands out each file once; a reader that fails comes back with the files it had (``on_failover="global"``)."""

    def __init__(self):
        self.left, self.gateways = files(), {}

    def execution_attempt_ready(self, subtask, attempt, gateway):
        self.gateways[subtask] = gateway

    def handle_event_from_operator(self, subtask, attempt, event, context):
        self.gateways[subtask].send_event({"file": self.left.pop(0) if self.left else None})

    def checkpoint_coordinator(self, checkpoint_id, result):
        result.complete(self.left)

    def reset_to_checkpoint(self, checkpoint_id, state):
        self.gateways.clear()
        self.left = files() if state is None else state


class Reader(penstock.Subtask):
    """Asks for a file, emits its rows a few at a time, asks for the next one."""

    def open(self, context):
        self.context, self.rows = context, []
        self.asked, self.file, self.next, self.ended = False, None, 0, False

    def handle_operator_event(self, event):
        self.asked, self.file, self.next, self.rows = False, event["file"], 0, []
        self.ended = event["file"] is None

    def poll(self):
        if self.ended:
            return penstock.Finished()
        if self.file is None:
            if not self.asked:
                self.context.send_event_to_coordinator({"next": True})
                self.asked = True
            return penstock.Idle()
        self.rows = self.rows or rows(self.file)
        for carrier, minutes in self.rows[self.next : self.next + ROWS_PER_POLL]:
            self.context.emit({"carrier": carrier, "minutes": minutes})
        self.next += ROWS_PER_POLL
        if self.next >= len(self.rows):
            self.file = None
        return penstock.Progress()

    def snapshot_state(self, checkpoint_id):
        return [self.asked, self.file, self.next, self.ended]

    def restore_state(self, checkpoint_id, state):
        self.asked, self.file, self.next, self.ended = state


class Totals(penstock.Subtask):
    """One row per carrier, when no more can come."""

    def open(self, context):
        self.context, self.totals = context, {}

    def process(self, record, input):
        flights, minutes = self.totals.get(record["carrier"], (0, 0))
        self.totals[record["carrier"]] = (flights + 1, minutes + record["minutes"])

    def end_inputs(self):
        for carrier, (flights, minutes) in sorted(self.totals.items()):
            self.context.emit({"carrier": carrier, "flights": flights, "minutes": minutes})

    def snapshot_state(self, checkpoint_id):
        return self.totals

    def restore_state(self, checkpoint_id, state):
        self.totals = state


job = penstock.Job("delays-to-parquet", checkpoint=penstock.CheckpointSettings(interval=0.5))
reader = job.operator(
    "reader", coordinator=FileAssigner, subtask=Reader, parallelism=2, on_failover="global",
    codec="json", state_codec="json", output_codec="json",
)  # fmt: skip
totals = job.operator(
    "totals", subtask=Totals, parallelism=2, inputs=[reader.keyed_by("carrier")], state_codec="json",
    output_codec="json",
)  # fmt: skip
schema = pa.schema([("carrier", pa.string()), ("flights", pa.int64()), ("minutes", pa.int64())])
job.operator(
    "parquet", subtask=functools.partial(FileSink, OUT, Parquet(schema)), parallelism=1, inputs=[totals.rebalance()]
)
