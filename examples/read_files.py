"""Rows of all CSV files below a folder, counted by carrier; each row once, whatever dies on the way.

    FOLDER=/some/csv penstock run examples/read_files.py

Files are handed out to whichever subtask is free. With ``Files(..., discover_every=10)`` the job would go on, and read
what comes later. Without FOLDER it makes some rows up.
"""

import os
import tempfile
from pathlib import Path

import penstock
from penstock.sources import Files

FOLDER = os.environ.get("FOLDER")
if not FOLDER:
    FOLDER = tempfile.mkdtemp(prefix="penstock-flights-")
    for number in range(12):
        rows = "".join(f"{('AA', 'B6', 'DL', 'UA')[(number + i) % 4]},{i}\n" for i in range(50))
        Path(FOLDER, f"{number}.csv").write_text("carrier,delay\n" + rows)


class Count(penstock.Subtask):
    """Counts the rows of each carrier that it owns."""

    def open(self, context):
        self.rows = {}

    def process(self, record, input):
        self.rows[record["carrier"]] = self.rows.get(record["carrier"], 0) + 1

    def end_inputs(self):
        for carrier, rows in sorted(self.rows.items()):
            print(f"{rows} rows of {carrier}")

    def snapshot_state(self, checkpoint_id):
        return self.rows

    def restore_state(self, checkpoint_id, state):
        self.rows = state


job = penstock.Job("read-files", checkpoint=penstock.CheckpointSettings(interval=0.5))
reader = job.operator("read", **Files(f"{FOLDER}/**/*.csv").read(), parallelism=2)
job.operator("count", subtask=Count, parallelism=2, inputs=[reader.keyed_by("carrier")], state_codec="json")
