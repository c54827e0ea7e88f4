"""Totals by carrier, committed to a Delta table: each checkpoint that has new totals is one commit, once.

    TABLE=/some/table penstock run examples/totals_to_delta.py

Three operators: readers, which make rows up; totals, keyed by carrier, which emit a carrier's total every ten flights;
the table's sink. Kill what you like on the way, and start it again: it goes on from its last checkpoint.
"""

import os
import tempfile
from pathlib import Path

import pyarrow as pa

import penstock
from penstock.tables import Delta

TABLE = os.environ.get("TABLE") or str(Path(tempfile.gettempdir()) / "totals")
CARRIERS, ROWS = ("AA", "B6", "DL", "UA"), 600
EVERY = 10


class Reader(penstock.Subtask):
    """Emits its share of the rows."""

    def open(self, context):
        self.context, self.next = context, context.subtask

    def poll(self):
        if self.next >= ROWS:
            return penstock.Finished()
        self.context.emit({"carrier": CARRIERS[self.next % len(CARRIERS)], "delay": self.next % 60})
        self.next += self.context.parallelism
        return penstock.Progress()

    def snapshot_state(self, checkpoint_id):
        return self.next

    def restore_state(self, checkpoint_id, state):
        self.next = state


class Totals(penstock.Subtask):
    """A carrier's flights and minutes so far, every ten flights."""

    def open(self, context):
        self.context, self.totals = context, {}

    def process(self, record, input):
        flights, minutes = self.totals.get(record["carrier"], (0, 0))
        flights, minutes = flights + 1, minutes + record["delay"]
        self.totals[record["carrier"]] = flights, minutes
        if flights % EVERY == 0:
            self.context.emit({"carrier": record["carrier"], "flights": flights, "minutes": minutes})

    def snapshot_state(self, checkpoint_id):
        return self.totals

    def restore_state(self, checkpoint_id, state):
        self.totals = {carrier: tuple(total) for carrier, total in state.items()}


schema = pa.schema([pa.field("carrier", pa.string(), nullable=False), ("flights", pa.int64()), ("minutes", pa.int64())])
table = Delta(TABLE, schema, partition_by=["carrier"])

job = penstock.Job("totals-to-delta", checkpoint=penstock.CheckpointSettings(interval=0.5))
reader = job.operator("reader", subtask=Reader, parallelism=2, state_codec="json", output_codec="json")
totals = job.operator(
    "totals", subtask=Totals, parallelism=2, inputs=[reader.keyed_by("carrier")], state_codec="json",
    output_codec="json",
)  # fmt: skip
job.operator("out", **table.sink(), parallelism=2, inputs=[totals.rebalance()])
